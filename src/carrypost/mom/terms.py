"""Entries of queues that wait for a time: the end of a delay, or of a lease."""

from __future__ import annotations

from heapq import heappop, heappush
from typing import TYPE_CHECKING

from carrypost.model.times import NEVER

if TYPE_CHECKING:
    from collections.abc import Iterator

    from carrypost.mom.entries import QueueEntry


class Terms:
    """Entries by the time that they wait for, the earliest first. Whether one still does is its owner's to know."""

    __slots__ = ("_heap", "_serial")

    def __init__(self) -> None:
        self._heap: list[tuple[int, int, QueueEntry]] = []
        """Time, a number that tells equal times apart, and entry."""
        self._serial = 0

    @property
    def due_us(self) -> int:
        """When the first time comes."""
        return self._heap[0][0] if self._heap else NEVER

    def add(self, entry: QueueEntry, due_us: int) -> None:
        """One more."""
        self._serial += 1
        heappush(self._heap, (due_us, self._serial, entry))

    def take_due(self, now: int) -> Iterator[QueueEntry]:
        """Those whose time has come; they are not here any more."""
        while self._heap and self._heap[0][0] <= now:
            yield heappop(self._heap)[2]
