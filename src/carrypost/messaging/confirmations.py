"""The first acknowledgement of a message on this node, which confirms it: later subscribers do not get it.

If the application has still to confirm the message as well, a row records that it was acknowledged.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from carrypost.application.tables import Marks
from carrypost.model.address import names_addressee
from carrypost.model.ids import MessageId

if TYPE_CHECKING:
    from collections.abc import Iterable

    from carrypost.gossip.composite import Stored
    from carrypost.gossip.holdings.copies import Copy
    from carrypost.messaging.context import MessagingContext
    from carrypost.messaging.owed_receipts import OwedReceipts


class Confirmations:
    """The messages that programs of one node acknowledged."""

    def __init__(self, context: MessagingContext, owed: OwedReceipts) -> None:
        self._holdings = context.holdings
        self._deliveries, self._ledger, self._owed = context.deliveries, context.ledger, owed
        self._acknowledged = Marks(context.ledger, b"K")
        """Acknowledged messages that the application has still to confirm as well."""

    def has(self, copy: Copy) -> bool:
        """Return True if a program on this node acknowledged it."""
        return self._holdings.is_confirmed(copy) or copy.id in self._acknowledged

    def restore(self, stored: Stored) -> None:
        """Restore acknowledgements that the application has still to confirm after a restart."""
        get, owes = self._holdings.cache.get, self._deliveries.owes
        self._acknowledged.read(stored, lambda message: (copy := get(message)) is not None and owes(copy))

    def add(self, copy: Copy, *, consumed: bool) -> None:
        """Record an acknowledgement, of which the first one counts.

        The author of a message that was given up, and not `consumed`, gets no receipt.
        """
        if self.has(copy):
            return
        if consumed:
            self._owed.acknowledged(copy)
        # A consumed message of a queue is dropped at once, and cannot be confirmed any more.
        if self._deliveries.owes(copy) and not names_addressee(copy.descriptor.destination):
            self._acknowledged.add(copy.id)
        else:
            self._holdings.confirm((copy,))
            self._ledger.confirmed(copy)

    def forget(self, messages: Iterable[MessageId]) -> None:
        """Drop records of acknowledgements: the application confirmed the messages as well, or they left."""
        for message in messages:
            self._acknowledged.discard(message)
