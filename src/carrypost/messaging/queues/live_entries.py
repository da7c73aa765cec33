"""The live entries of one node's queues: pinned, within their bounds, with their delivery times and leases."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from carrypost.application.agenda import Agenda
from carrypost.application.tables import Table
from carrypost.gossip.holdings.owners import QUEUES
from carrypost.messaging.queues.bounds import Bounds
from carrypost.messaging.queues.entries import EntryRow, EntryState, QueueEntry
from carrypost.model.ids import MessageId

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from carrypost.gossip.composite import Stored
    from carrypost.gossip.holdings.copies import Copy
    from carrypost.messaging.context import MessagingContext
    from carrypost.messaging.queues.queue import Queue


class LiveEntries:
    """The entries of one node, by the ids of their messages."""

    def __init__(self, context: MessagingContext) -> None:
        self._holdings, self._table = context.holdings, Table(context.ledger, b"E", EntryRow)
        self._entries: dict[MessageId, list[QueueEntry]] = {}
        """Entries by message: one, except for dead letters of several subscriptions to topics."""
        self._place = 0
        self.bounds = Bounds(context)
        self.delays, self.leases = Agenda(_is_delayed), Agenda(_is_leased)

    def __contains__(self, message: object) -> bool:
        return message in self._entries

    def of(self, message: MessageId) -> Sequence[QueueEntry]:
        """Return the entries of a message."""
        return tuple(self._entries.get(message, ()))

    def make(self, queue_number: int, copy: Copy) -> QueueEntry:
        """Make an entry of a message, the latest of all."""
        self._place += 1
        entry = QueueEntry(self._place, table=self._table, queue_number=queue_number, message=copy.id)
        entry.fill(copy, self._holdings)
        self._holdings.mark_claimed(copy)
        self._holdings.cache.mark_done((copy,))
        return entry

    def read(self, stored: Stored) -> Iterator[QueueEntry]:
        """Yield the entries after a restart by their places, without their copies."""
        for name, row in sorted(self._table.read(stored), key=lambda each: each[1].place):
            self._place = max(self._place, row.place)
            number, message = int.from_bytes(name[:8], "big"), MessageId(name[8:])
            yield QueueEntry(*msgspec.structs.astuple(row), table=self._table, queue_number=number, message=message)

    def enter(self, queue: Queue, entry: QueueEntry) -> None:
        """Put an entry into its queue."""
        assert entry.copy is not None  # It was filled, or is reopened with its copy.
        entry.queue, entry.tries = queue.asked.name, queue.asked.tries
        queue.entries[entry.message] = entry
        self._entries.setdefault(entry.message, []).append(entry)
        if entry.state is EntryState.ASSIGNED:
            queue.hold(entry.receiver)
        self.bounds.entered(queue, entry.copy)
        self._holdings.cache.pin((entry.copy,), QUEUES)

    def leave(self, queue: Queue, entry: QueueEntry) -> None:
        """Remove a closed entry from its queue. Its copy stays pinned."""
        assert entry.copy is not None  # It was alive until now.
        del queue.entries[entry.message]
        left = self._entries[entry.message]
        left.remove(entry)
        if not left:
            del self._entries[entry.message]
        self.bounds.released(queue, entry.copy)
        if entry.due_us > self._holdings.now_us:
            self.delays.note_ended()
        if entry.lease_us:
            self.leases.note_ended()

    def end_lease(self, entry: QueueEntry) -> None:
        """End the lease of an entry, if it has one."""
        if entry.lease_us:
            entry.lease_us = 0
            self.leases.note_ended()


def _is_delayed(entry: QueueEntry, due_us: int) -> bool:
    return entry.state is EntryState.WAITING and entry.due_us == due_us


def _is_leased(entry: QueueEntry, due_us: int) -> bool:
    return entry.state is EntryState.ASSIGNED and entry.lease_us == due_us
