"""Entries of queues that wait for a time: the end of a delay, or of a lease.

Most entries are consumed long before that time. They stay in the heap as dead weight until they outnumber the others,
and are swept out then, so that a sweep costs a constant for each entry that ended.
"""

from __future__ import annotations

from heapq import heapify, heappop, heappush
from typing import TYPE_CHECKING

from carrypost.model.times import NEVER

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from carrypost.mom.queues.entries import QueueEntry


class Terms:
    """Entries by the time that they wait for, the earliest first."""

    __slots__ = ("_ended", "_heap", "_serial", "_waits")

    def __init__(self, waits: Callable[[QueueEntry, int], bool]) -> None:
        self._waits = waits
        """Whether an entry still waits for this time."""
        self._heap: list[tuple[int, int, QueueEntry]] = []
        """Time, a number that tells equal times apart, and entry."""
        self._serial = 0
        self._ended = 0
        """How many of them wait no more, or fewer."""

    @property
    def due_us(self) -> int:
        """When the first time comes."""
        return self._heap[0][0] if self._heap else NEVER

    def add(self, entry: QueueEntry, due_us: int) -> None:
        """Add an entry that waits for this time."""
        self._serial += 1
        heappush(self._heap, (due_us, self._serial, entry))

    def note_ended(self) -> None:
        """Note that an entry waits no more; sweep such entries out once they are the greater part."""
        self._ended += 1
        if self._ended * 2 > len(self._heap):
            self._heap = [each for each in self._heap if self._waits(each[2], each[0])]
            heapify(self._heap)
            self._ended = 0

    def take_due(self, now: int) -> Iterator[QueueEntry]:
        """Remove and yield the entries whose time has come."""
        while self._heap and self._heap[0][0] <= now:
            due_us, _, entry = heappop(self._heap)
            if self._waits(entry, due_us):
                yield entry
            else:
                self._ended = max(self._ended - 1, 0)
