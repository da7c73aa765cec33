"""Requests at a queue that ask for one correlation id each, as every program does that waits for a reply.

There may be ten thousand of them. So they are not held against each message one by one: what waits is found by its
correlation id, and the ids that are both asked for and there are in a heap.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from heapq import heappop, heappush
from operator import attrgetter
from typing import TYPE_CHECKING

from carrypost.model.selector import Selector

if TYPE_CHECKING:
    from collections.abc import Callable

    from carrypost.model.descriptor import Descriptor
    from carrypost.mom.entries import QueueEntry
    from carrypost.mom.queue import Group, Standing

_FIELD = "JMSCorrelationID"
_rank = attrgetter("rank")


def correlation_asked(selector: Selector) -> str | None:
    """Return the one correlation id that a selector asks for; None if it asks for anything else."""
    found = selector.equality
    return found[1] if found is not None and found[0] == _FIELD else None


def _correlation_of(descriptor: Descriptor) -> str | None:
    return None if descriptor.headers is None else descriptor.headers.correlation


class Correlated:
    """What waits in one queue by its correlation id, and the groups of requests that ask for one."""

    __slots__ = ("_groups", "_heap", "_noted", "_waiting")

    def __init__(self) -> None:
        self._waiting: dict[str, list[QueueEntry]] = {}
        """In order."""
        self._groups: dict[str, dict[Group, None]] = {}
        self._heap: list[tuple[tuple[int, int, int], str]] = []
        """Ranks of the first that wait for an id that is asked for. Some do not wait, or are not asked for any more."""
        self._noted: set[tuple[tuple[int, int, int], str]] = set()
        """What is in the heap, each once."""

    # --- messages ------------------------------------------------------------------------------------------

    def came(self, entry: QueueEntry) -> None:
        """One more waits."""
        correlation = _correlation_of(entry.descriptor)
        if correlation is not None:
            insort(self._waiting.setdefault(correlation, []), entry, key=_rank)
            self._note(correlation)

    def went(self, entry: QueueEntry) -> None:
        """One waits no more."""
        correlation = _correlation_of(entry.descriptor)
        waiting = self._waiting.get(correlation or "", [])
        at = bisect_left(waiting, entry.rank, key=_rank)
        if correlation is None or at >= len(waiting) or waiting[at] is not entry:
            return
        del waiting[at]
        if waiting:
            self._note(correlation)
        else:
            del self._waiting[correlation]

    # --- requests ------------------------------------------------------------------------------------------

    def add(self, correlation: str, group: Group) -> None:
        """A group of requests asks for this id."""
        self._groups.setdefault(correlation, {})[group] = None

    def remove(self, correlation: str, group: Group) -> None:
        """A group is no more."""
        groups = self._groups[correlation]
        del groups[group]
        if not groups:
            del self._groups[correlation]

    def asks(self, correlation: str) -> None:
        """A request of a group takes another message."""
        self._note(correlation)

    def _note(self, correlation: str) -> None:
        waiting = self._waiting.get(correlation)
        if waiting and self._asking(correlation) and (note := (waiting[0].rank, correlation)) not in self._noted:
            self._noted.add(note)
            heappush(self._heap, note)

    def _asking(self, correlation: str) -> list[Standing]:
        return [standing for group in self._groups.get(correlation, ()) for standing in group.asking]

    # --- assignment ----------------------------------------------------------------------------------------

    def first(self, is_able: Callable[[Standing], bool]) -> tuple[QueueEntry, list[Standing]] | None:
        """Return the first that waits for an id that a request asks for which is able, and all such requests."""
        heap, passed_over, found = self._heap, [], None
        while heap and found is None:
            rank, correlation = heap[0]
            waiting, asking = self._waiting.get(correlation), self._asking(correlation)
            if not waiting or waiting[0].rank != rank or not asking:
                self._noted.discard(heappop(heap))
            elif able := [each for each in asking if is_able(each)]:
                found = waiting[0], able
            else:
                passed_over.append(heappop(heap))
        for each in passed_over:
            heappush(heap, each)
        return found
