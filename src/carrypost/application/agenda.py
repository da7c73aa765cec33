"""Things that wait for a time, the earliest first: delivery times of claims, delays and leases of queue entries.

Most of them end long before their time, which may be years away. Those stay in the heap until they outnumber the
others, and are swept out then. So a sweep costs a constant for each thing that ended.
"""

from __future__ import annotations

from heapq import heapify, heappop, heappush
from typing import TYPE_CHECKING, Generic, TypeVar

from carrypost.model.times import NEVER

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

T = TypeVar("T")


class Agenda(Generic[T]):
    """Things by the time that they wait for."""

    __slots__ = ("_ended", "_heap", "_serial", "_waits", "due_us")

    def __init__(self, waits: Callable[[T, int], bool]) -> None:
        self._waits = waits
        """Function that returns True while a thing still waits for this time."""
        self._heap: list[tuple[int, int, T]] = []
        """Time, a number that breaks ties, and thing."""
        self._serial = 0
        self._ended = 0
        """Upper bound of the number of things in the heap that wait no more."""
        self.due_us = NEVER
        """Not after the time of the first thing that waits."""

    def next_us(self) -> int:
        """Return the time of the first thing that waits."""
        heap = self._heap
        while heap and not self._waits(heap[0][2], heap[0][0]):
            heappop(heap)
            self._ended = max(self._ended - 1, 0)
        self.due_us = heap[0][0] if heap else NEVER
        return self.due_us

    def __iter__(self) -> Iterator[T]:
        """Yield everything that waits, in no particular order."""
        return (thing for due_us, _, thing in self._heap if self._waits(thing, due_us))

    def add(self, thing: T, due_us: int) -> None:
        """Add a thing that waits for this time."""
        self._serial += 1
        heappush(self._heap, (due_us, self._serial, thing))
        self.due_us = min(self.due_us, due_us)

    def note_ended(self) -> None:
        """Note that a thing waits no more; sweep such things out once they are the majority."""
        self._ended += 1
        if self._ended * 2 > len(self._heap):
            self._heap = [each for each in self._heap if self._waits(each[2], each[0])]
            heapify(self._heap)
            self._ended = 0
        self.next_us()

    def pop_due(self, now: int) -> Iterator[T]:
        """Remove and yield the things whose time has come."""
        while self.next_us() <= now:
            yield heappop(self._heap)[2]
