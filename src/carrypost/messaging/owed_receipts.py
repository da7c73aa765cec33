"""Receipts that this node owes to the authors of messages to topics that asked for them.

The first acknowledgement on a node leads to its receipt. The receipt is a row, in the batch with that acknowledgement,
until it was sent; so it is never sent for something that a crash takes back, and a crash does not lose it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from carrypost.application.control_outbox import Subject
from carrypost.application.tables import Table
from carrypost.gossip.composite import Part, Stored
from carrypost.messaging.control import DELIVERED, Outcome
from carrypost.model import address
from carrypost.model.ids import MessageId, NodeId
from carrypost.model.times import NEVER

if TYPE_CHECKING:
    from carrypost.gossip.holdings.copies import Copy
    from carrypost.messaging.context import MessagingContext


class OwedRow(msgspec.Struct, frozen=True, array_like=True):
    """A receipt that is owed, in the store; fields may be appended with a default."""

    author: NodeId
    until_us: int
    """Time from which it is of no use any more."""


class _OwedReceipt(Subject):
    """One receipt that is owed."""

    __slots__ = ("_message", "_table")

    def __init__(self, table: Table[OwedRow], message: MessageId) -> None:
        self._table, self._message = table, message

    def item(self) -> Outcome:
        """Return the outcome that the message was delivered."""
        return Outcome(self._message, DELIVERED)

    def mark_sent(self) -> None:
        """Delete its row."""
        self._table.delete(self._message)


class OwedReceipts(Part):
    """The receipts that one node owes."""

    def __init__(self, context: MessagingContext) -> None:
        self._holdings = context.holdings
        self._table, self._outbox = Table(context.ledger, b"O", OwedRow), context.outbox
        self._outlive_us = round(context.settings.messaging.receipt_s * 1e6)

    def acknowledged(self, copy: Copy) -> None:
        """Owe a receipt for a message that was acknowledged for the first time on this node."""
        descriptor = copy.original
        headers = descriptor.headers
        if headers is None or not headers.receipt:
            return
        held = address.is_held(descriptor.destination)
        if not held and (headers.recipients or address.addressee(descriptor.destination) is not None):
            return  # For a queue its manager speaks, and listed recipients acknowledge.
        until_us = min(self._holdings.own_time(descriptor.deadline_us) + self._outlive_us, NEVER)
        self._table.put(descriptor.id, OwedRow(descriptor.node, until_us))
        self._send(descriptor.id, descriptor.node, until_us)

    def restore(self, stored: Stored, now: int) -> None:
        """Restore the receipts after a restart; forget those that are of no use any more."""
        for name, row in self._table.read(stored):
            if row.until_us <= now:
                self._table.delete(name)
            else:
                self._send(MessageId(name), row.author, row.until_us)

    def _send(self, message: MessageId, author: NodeId, until_us: int) -> None:
        self._outbox.add(author, _OwedReceipt(self._table, message), until_us=until_us)
