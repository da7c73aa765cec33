"""Closed entries of queues whose outcome has still to be sent, and the copies that they leave behind.

Their authors are informed that they were consumed, or failed. Authors on this node are informed without a control
message, in the batch that makes it final. All nodes learn by an acknowledgement that copies are of no use any more
(`gossip.acked`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from carrypost.gossip.composite import Part
from carrypost.gossip.holdings.owners import QUEUES
from carrypost.log.events import Reason
from carrypost.messaging.queues.entries import NOTICE, OUTCOME, EntryNotice
from carrypost.model import address
from carrypost.model.times import NEVER

if TYPE_CHECKING:
    from collections.abc import Container

    from carrypost.gossip.holdings.copies import Copy
    from carrypost.messaging.context import MessagingContext
    from carrypost.messaging.control import Item
    from carrypost.messaging.queues.entries import QueueEntry
    from carrypost.model.ids import MessageId

_SWEEP_US = 60_000_000
"""Interval of the search for entries whose outcome needs not be sent any more."""


class ClosedEntries(Part):
    """The closed entries of one node, by the ids of their messages."""

    def __init__(self, context: MessagingContext) -> None:
        self._node, self._holdings = context.node, context.holdings
        self._ledger, self._outbox, self._keyring = context.ledger, context.outbox, context.keyring
        self._receipt_us = round(context.settings.messaging.receipt_s * 1e6)
        """Time after its end for which the author of a message may be informed."""
        self._entries: dict[MessageId, QueueEntry] = {}
        self.own: list[EntryNotice] = []
        """Outcomes of messages that programs of this node sent."""

    def __contains__(self, message: MessageId) -> bool:
        return message in self._entries

    def add(self, entry: QueueEntry, now: int) -> None:
        """Add an entry, whose author is informed once that is durable."""
        if not self._entries:
            self.due_us = now + _SWEEP_US
        self._entries[entry.message] = entry
        if not entry.owed & OUTCOME:
            return
        notice = EntryNotice(entry, OUTCOME, entry.author, self._keyring)
        if entry.author == self._node:
            self.own.append(notice)
        else:
            self._outbox.add(entry.author, notice, until_us=self._ends_us(entry))

    def resume(self, entry: QueueEntry, now: int) -> None:
        """Resume an entry after a restart."""
        if entry.owed & NOTICE:
            self._holdings.acknowledge(entry.message, self._holdings.date_of(entry.until_us))
            entry.owed &= ~NOTICE
            entry.write()
        if entry.owed:
            self.add(entry, now)

    def pop_own(self) -> list[Item]:
        """Return the outcomes of messages of this node, once."""
        own, self.own = self.own, []
        items = [item for notice in own if (item := notice.item()) is not None]
        for notice in own:
            notice.mark_sent()
        return items

    def drop(self, copy: Copy, reason: Reason) -> None:
        """Drop a copy that no queue needs any more, and never accept its message again."""
        self._holdings.cache.unpin((copy,), QUEUES)
        if not self._holdings.is_confirmed(copy):  # Else its consumer is on this node.
            self._holdings.confirm((copy,))
            self._ledger.confirmed(copy)
        self._drop(copy, reason)

    def drop_consumed(self, alive: Container[MessageId]) -> None:
        """Drop copies that were consumed before a restart, and not dropped then."""
        for copy in [each for each in self._holdings.cache.copies if each is not None and each.here]:
            if self._holdings.is_confirmed(copy) and copy.id not in alive:
                self._drop(copy, Reason.PURGED)

    def _drop(self, copy: Copy, reason: Reason) -> None:
        if address.addressee(copy.descriptor.destination) == self._node:  # Others want what was sent to a topic.
            self._holdings.discard(copy, reason, done=True)

    def expire(self, now: int) -> None:
        """Forget entries whose outcome was sent, or is of no use any more."""
        for entry in list(self._entries.values()):
            if self._ends_us(entry) <= now:
                entry.owed = 0
                entry.write()
            if not entry.owed:
                del self._entries[entry.message]
        self.due_us = now + _SWEEP_US if self._entries else NEVER

    def _ends_us(self, entry: QueueEntry) -> int:
        return NEVER if entry.until_us == NEVER else entry.until_us + self._receipt_us
