"""Claims whose delivery time has not come, the earliest first.

A delivery time may be years away, and programs that come and go leave an ended claim each time: those are swept out as
soon as they are the greater part.
"""

from __future__ import annotations

from heapq import heapify, heappop, heappush
from typing import TYPE_CHECKING

from carrypost.model.times import NEVER
from carrypost.mom.state import ClaimState

if TYPE_CHECKING:
    from collections.abc import Iterator

    from carrypost.mom.state import Claim, Subscription


class Delays:
    """The claims of one host that are delayed."""

    __slots__ = ("_ended", "_heap")

    def __init__(self) -> None:
        self._heap: list[tuple[int, int, Claim]] = []
        """Delivery time, place, and claim."""
        self._ended = 0
        """How many of them ended."""

    @property
    def due_us(self) -> int:
        """When the next delivery time comes; not after it, where that one ended."""
        return self._heap[0][0] if self._heap else NEVER

    def add(self, claim: Claim, due_us: int) -> None:
        """One more."""
        heappush(self._heap, (due_us, claim.place, claim))

    def take_due(self, now: int) -> Iterator[Claim]:
        """Those that may be handed over by now; they are not here any more."""
        while self._heap and self._heap[0][0] <= now:
            claim = heappop(self._heap)[2]
            if claim.state is ClaimState.DELAYED:
                yield claim
            else:
                self._ended -= 1

    def of(self, subscription: Subscription) -> list[Claim]:
        """Those of one subscription."""
        return [
            claim for _, _, claim in self._heap
            if claim.subscription is subscription and claim.state is ClaimState.DELAYED
        ]  # fmt: skip

    def note_ended(self) -> None:
        """One of them is no claim any more."""
        self._ended += 1
        if self._ended * 2 > len(self._heap):
            self._heap = [each for each in self._heap if each[2].state is ClaimState.DELAYED]
            heapify(self._heap)
            self._ended = 0
