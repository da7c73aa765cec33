"""Receipts that this node owes to the authors of messages to topics that asked for them.

The first acknowledgement on a node leads to its receipt. The receipt is a row, in the batch with that acknowledgement,
until it was sent; so it is never sent for something that a crash takes back, and a crash does not lose it. An undone
commit cancels the receipts of its acknowledgements.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from carrypost.local.control_outbox import Subject
from carrypost.model import address
from carrypost.model.ids import MessageId, NodeId
from carrypost.model.times import NEVER
from carrypost.mom.control import DELIVERED, Outcome
from carrypost.mom.rows import Table

if TYPE_CHECKING:
    from carrypost.gossip.holdings.copies import Copy
    from carrypost.mom.context import MessagingContext
    from carrypost.mom.rows import Stored


class OwedRow(msgspec.Struct, frozen=True, array_like=True):
    """A receipt that is owed, in the store; fields may be appended with a default."""

    author: NodeId
    until_us: int
    """Time from which it is of no use any more."""


class _OwedReceipt(Subject):
    """One receipt that is owed."""

    __slots__ = ("_owed", "message", "row")

    def __init__(self, owed: OwedReceipts, message: MessageId, row: OwedRow) -> None:
        self._owed, self.message, self.row = owed, message, row

    def item(self) -> Outcome | None:
        """Return the outcome that the message was delivered, unless that was undone."""
        return Outcome(self.message, DELIVERED) if self._owed.stands(self) else None

    def mark_sent(self) -> None:
        """Note that it was sent."""
        self._owed.clear(self)


class OwedReceipts:
    """The receipts that one node owes."""

    def __init__(self, context: MessagingContext) -> None:
        self._holdings = context.holdings
        self._table, self._outbox = Table(context.ledger, b"O", OwedRow), context.outbox
        self._outlive_us = round(context.settings.messaging.receipt_s * 1e6)
        self._receipts: dict[MessageId, _OwedReceipt] = {}
        """Receipts by message; bounded by what is acknowledged until the next control message leaves."""

    def __len__(self) -> int:
        return len(self._receipts)

    def acknowledged(self, copy: Copy) -> None:
        """Owe a receipt for a message that was acknowledged for the first time on this node."""
        descriptor, headers = copy.descriptor.original, copy.descriptor.original.headers
        if headers is None or not headers.receipt:
            return
        held = address.is_held(descriptor.destination)
        if not held and (headers.recipients or address.addressee(descriptor.destination) is not None):
            return  # For a queue its manager speaks, and listed recipients acknowledge.
        until_us = min(self._holdings.own_time(descriptor.deadline_us) + self._outlive_us, NEVER)
        receipt = _OwedReceipt(self, descriptor.id, OwedRow(descriptor.node, until_us))
        self.write(receipt)
        self._send(receipt)

    def restore(self, stored: Stored, now: int) -> None:
        """Restore the receipts after a restart; forget those that are of no use any more."""
        for name, row in self._table.read(stored):
            receipt = _OwedReceipt(self, MessageId(name), row)
            if row.until_us <= now:
                self._table.delete(name)
            else:
                self._receipts[receipt.message] = receipt
                self._send(receipt)

    def _send(self, receipt: _OwedReceipt) -> None:
        self._outbox.add(receipt.row.author, receipt, until_us=receipt.row.until_us)

    # --- for its receipts ----------------------------------------------------------------------------------

    def stands(self, receipt: _OwedReceipt) -> bool:
        """Return True if the receipt has still to be sent."""
        return self._receipts.get(receipt.message) is receipt

    def clear(self, receipt: _OwedReceipt) -> None:
        """Remove a receipt that was sent, or is void."""
        self._receipts.pop(receipt.message, None)
        self._table.delete(receipt.message)

    def write(self, receipt: _OwedReceipt) -> None:
        """Write a receipt that is to be sent."""
        self._receipts[receipt.message] = receipt
        self._table.put(receipt.message, receipt.row)
