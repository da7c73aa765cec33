"""The claims of one claimant that wait for a consumer."""

from __future__ import annotations

from collections import deque
from heapq import heappop, heappush
from typing import TYPE_CHECKING, Generic, Protocol, TypeVar

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

_STALE_SLACK = 64
"""Places of claims that are gone are swept out when there are this many more than twice those that wait."""


class Placed(Protocol):
    """A claim, which has a place in the order of its claimant's claims."""

    place: int


T = TypeVar("T", bound=Placed)


# Two parts, as claims come back: fresh ones have rising places, and a queue will do; returned ones
# need a heap.
class Backlog(Generic[T]):
    """The claims of one claimant that wait, in the order of their places."""

    __slots__ = ("_fresh", "_order", "_places", "_returned")

    def __init__(self) -> None:
        self._fresh: dict[int, T] = {}
        self._order: deque[int] = deque()
        """Places of those, and of some that are gone: the front of a dict is slow to find after many deletions
        there."""
        self._returned: dict[int, T] = {}
        """Claims that come again: before any that was never handed over."""
        self._places: list[int] = []
        """Heap of the places of those, and of some that are gone."""

    def __len__(self) -> int:
        return len(self._fresh) + len(self._returned)

    def __iter__(self) -> Iterator[T]:
        for place in sorted(self._returned):
            yield self._returned[place]
        yield from self._fresh.values()

    def add(self, claim: T) -> None:
        """Add a claim at the end."""
        self._fresh[claim.place] = claim
        self._order.append(claim.place)

    def put_back(self, claims: Iterable[T]) -> None:
        """Put claims that were handed over back to their places."""
        for claim in claims:
            self._returned[claim.place] = claim
            heappush(self._places, claim.place)

    def discard(self, claim: T) -> None:
        """Remove a claim that ended while it waited."""
        # Places stay behind in the queue and the heap, and are skipped later: to find one in the
        # middle costs the whole length.
        if self._fresh.pop(claim.place, None) is None:
            self._returned.pop(claim.place, None)
        if len(self._order) > 2 * len(self._fresh) + _STALE_SLACK:
            self._order = deque(self._fresh)
        if len(self._places) > 2 * len(self._returned) + _STALE_SLACK:
            self._places = sorted(self._returned)

    @property
    def first(self) -> T:
        """The claim that is next."""
        if self._returned:
            while self._places[0] not in self._returned:
                heappop(self._places)
            # Only places that are still in the dict count: others were discarded meanwhile.
            return self._returned[self._places[0]]
        while self._order[0] not in self._fresh:
            self._order.popleft()
        return self._fresh[self._order[0]]

    def next(self) -> T:
        """Remove and return the first claim."""
        claim = self.first
        del (self._returned or self._fresh)[claim.place]
        return claim
