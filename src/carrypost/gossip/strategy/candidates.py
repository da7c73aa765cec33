"""Candidates for offers, in the order of offering: each message is ranked once, not for every page.

First comes what the neighbour wants for itself, then by privilege, then the one that has waited longest; of equals the
lowest slot. Where a message stands does not change while it has its slot, so what is left over from one page is in
order for the next one. Whether it may still be offered does change: that is asked when its turn comes.
"""

from __future__ import annotations

from heapq import heapify, heappop, heappush
from typing import TYPE_CHECKING

from carrypost.gossip.slots import Members, bits, mask_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from carrypost.gossip.holdings.copies import Copy

_FEW = 16
"""Newcomers are pushed one by one if the heap has more than so many times as many."""
_STALE_SLACK = 64
"""Number of stale entries, beyond twice the others, at which stale ones are swept out."""


class Candidates:
    """The messages that one neighbour may be offered."""

    __slots__ = ("_heap", "_ranked")

    def __init__(self) -> None:
        self._heap: list[tuple[bool, int, int, int]] = []
        """Of each: whether it would only be carried, its sending order, its slot, and its serial in the cache. What is
        stale, as the slot was freed, is passed over."""
        self._ranked = 0
        """The slots in the heap."""

    def __len__(self) -> int:
        return len(self._heap)

    def clear(self) -> None:
        """Rank everything anew: the neighbour wants something else."""
        self._heap.clear()
        self._ranked = 0

    def forget_slots(self, mask: int) -> None:
        """Forget slots that are freed for other messages."""
        self._ranked &= ~mask

    def unranked(self, mask: int) -> int:
        """Return those of these slots that `rank` was not told of."""
        return mask & ~self._ranked

    def rank(self, mask: int, wanted: int, copies: Sequence[Copy | None]) -> None:
        """Add slots; those of them that are `wanted` the neighbour wants for itself."""
        self._ranked |= mask
        chosen = set(bits(wanted))
        fresh = [
            (slot not in chosen, copy.sending_order, slot, copy.serial)
            for slot in bits(mask)
            if (copy := copies[slot]) is not None
        ]
        if _FEW * len(fresh) < len(self._heap):
            for each in fresh:
                heappush(self._heap, each)
        else:
            self._heap += fresh
            heapify(self._heap)
        if len(self._heap) > 2 * self._ranked.bit_count() + _STALE_SLACK:
            self._heap = [each for each in self._heap if _tenant(copies, each[2], each[3]) is not None]
            heapify(self._heap)

    def first(self, mask: int, most: int, copies: Sequence[Copy | None]) -> list[Copy]:
        """Take so many of these slots at most, which all were ranked. What is not among them is ranked anew later."""
        heap, allowed = self._heap, Members(mask)
        found: list[Copy] = []
        passed: list[int] = []
        while heap and len(found) < most:
            _, _, slot, serial = heappop(heap)
            copy = _tenant(copies, slot, serial)
            if copy is not None:
                passed.append(slot)
                if slot in allowed:
                    found.append(copy)
        self._ranked &= ~mask_of(passed)
        return found


def _tenant(copies: Sequence[Copy | None], slot: int, serial: int) -> Copy | None:
    """Return the copy that has a slot, if it is the one with this serial."""
    copy = copies[slot]
    return copy if copy is not None and copy.serial == serial else None
