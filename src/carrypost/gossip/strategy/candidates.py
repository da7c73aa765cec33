"""Candidates for offers, in the order of offering: each message is ranked once, not once per page.

Messages that the neighbour wants for itself come first, then higher privilege, then those that have waited longest;
ties go to the lowest slot. The rank of a message does not change while it keeps its slot, so the rest of one page is
already in order for the next. Permission to offer a message does change, and is checked when its turn comes.
"""

from __future__ import annotations

from heapq import heapify, heappop, heappush
from typing import TYPE_CHECKING

from carrypost.gossip.slots import Members, bits, mask_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from carrypost.gossip.holdings.copies import Copy

_FEW = 16
"""Newcomers are pushed one by one if the heap is more than this many times larger."""
_STALE_SLACK = 64
"""Number of stale entries, beyond twice the others, at which stale ones are swept out."""


class Candidates:
    """The messages that one neighbour may be offered."""

    __slots__ = ("_heap", "_ranked")

    def __init__(self) -> None:
        self._heap: list[tuple[bool, int, int, int]] = []
        """For each: True if it would only be carried, its sending order, its slot, and its serial in the cache. Entries
        whose slot was freed are stale, and are skipped."""
        self._ranked = 0
        """The slots in the heap."""

    def __len__(self) -> int:
        return len(self._heap)

    def clear(self) -> None:
        """Forget all ranks, because the neighbour's profile changed."""
        self._heap.clear()
        self._ranked = 0

    def forget_slots(self, mask: int) -> None:
        """Forget slots that are freed for other messages."""
        self._ranked &= ~mask

    def unranked(self, mask: int) -> int:
        """Return the slots among these that were not ranked yet."""
        return mask & ~self._ranked

    def rank(self, mask: int, wanted: int, copies: Sequence[Copy | None]) -> None:
        """Rank slots; the neighbour wants those in `wanted` for itself, and would only carry the others."""
        self._ranked |= mask
        chosen = set(bits(wanted))
        fresh = [
            (slot not in chosen, copy.sending_order, slot, copy.serial)
            for slot in bits(mask)
            if (copy := copies[slot]) is not None
        ]
        # Pushing one entry costs log n and heapify costs n: which is cheaper depends on how many
        # are new.
        if _FEW * len(fresh) < len(self._heap):
            for each in fresh:
                heappush(self._heap, each)
        else:
            self._heap += fresh
            heapify(self._heap)
        # Freed slots leave entries behind. To remove each at once would be O(n); to keep them all
        # would let a neighbour that makes messages come and go grow the heap without end.
        if len(self._heap) > 2 * self._ranked.bit_count() + _STALE_SLACK:
            self._heap = [each for each in self._heap if _tenant(copies, each[2], each[3]) is not None]
            heapify(self._heap)

    def first(self, mask: int, most: int, copies: Sequence[Copy | None]) -> list[Copy]:
        """Return the best `most` of these slots, which must all be ranked already.

        Entries that were looked at and may not be offered now lose their rank, and are ranked again later.
        """
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
