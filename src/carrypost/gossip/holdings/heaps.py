"""The order of eviction among the copies of a cache, or of one author or giver (`gossip.holdings.room`).

Heaps are lazy: an entry whose copy left, was pinned, changed its rank or belongs elsewhere by now is dropped when it
comes up, and a heap with mostly such entries is rebuilt. Authors and givers have a heap only once their share has
mattered.
"""

from __future__ import annotations

from collections.abc import Callable
from heapq import heapify, heappop, heappush

from carrypost.gossip.holdings.copies import Copy
from carrypost.gossip.holdings.usage import Usage

_STALE_SLACK = 64
"""A heap is rebuilt when it has this many entries more than twice the copies it is for."""


class Heap:
    """Copies, lowest rank first, then lowest serial."""

    __slots__ = ("_arrived", "_belongs", "_entries", "_of")

    def __init__(self, of: Usage, copies: list[Copy], belongs: Callable[[Copy], bool] | None = None) -> None:
        """Make a heap of these copies; `belongs` selects the copies that it is for, None all of them."""
        self._of, self._belongs = of, belongs
        self._arrived = copies
        """Copies that are not sorted in yet, which is not necessary while there is room."""
        self._entries: list[tuple[int, int, Copy]] = []

    def push(self, copy: Copy) -> None:
        """Add a copy that arrived, or may be evicted again."""
        self._arrived.append(copy)
        if len(self._entries) + len(self._arrived) > 2 * self._of.messages + _STALE_SLACK:
            self._arrived, self._entries = self.copies(), []

    def copies(self) -> list[Copy]:
        """Return all copies that are here, unordered; a pinned one may be missing once `lowest` was called."""
        both = dict.fromkeys(self._arrived)
        both.update((copy, None) for rank, _, copy in self._entries if rank == copy.rank)
        return [copy for copy in both if copy.here]

    def lowest(self) -> Copy | None:
        """Return the copy to evict first."""
        entries = self._entries
        if self._arrived:
            self._sort_in()
        while entries:
            rank, _, copy = entries[0]
            if copy.here and not copy.pins and rank == copy.rank and (self._belongs is None or self._belongs(copy)):
                return copy
            heappop(entries)
        return None

    def _sort_in(self) -> None:
        entries, arrived = self._entries, self._arrived
        if len(arrived) > len(entries) >> 3:
            entries.extend([(copy.rank, copy.serial, copy) for copy in arrived])
            heapify(entries)
        else:
            for copy in arrived:
                heappush(entries, (copy.rank, copy.serial, copy))
        arrived.clear()
