"""Slots: small numbers for ids, so that a set of ids is one Python int.

A slot comes from a free list, lowest first, and goes back to it: one message that lives for a month holds one bit, not
a window. Bitsets over slots therefore stay as narrow as the largest number of ids known at one time. The invariant is
that a slot has one tenant; every owner of a bitset clears a slot's bit before the slot is reused.
"""

# Why bitsets. For each neighbour a host asks, several times a second, "which of my messages match
# its profile, are whole, and are not known to it?" With sets of ids this costs one hash lookup per
# message and neighbour. With one int per question it is three machine-word operations per 64
# messages: 10,000 messages are 157 words.
#
# Why the free list is a heap. A list used as a stack would reuse the slots of whatever was deleted
# last, and leave the high ones occupied for as long as something long-lived has them; every bitset
# would stay as wide as the highest slot.
#
# Costs to keep in mind: an int is immutable, so `mask | 1 << slot` and `mask >> slot & 1` copy or
# shift the whole width. For many slots use `mask_of`, `among` or `Members`, which cost the width
# once.

from __future__ import annotations

from collections.abc import Collection, Iterator
from heapq import heappop, heappush
from typing import Final

_WORD_BITS: Final = 64
_FEW: Final = 8
"""Up to this many bits are found faster one by one in the wide int than by cutting it into words."""


class Slots:
    """The free list."""

    __slots__ = ("_free", "_fresh")

    def __init__(self) -> None:
        self._free: list[int] = []
        self._fresh = 0

    def allocate(self, count: int = 1) -> list[int]:
        """Return the lowest free slots, ascending, and mark them as used."""
        free, fresh = self._free, self._fresh
        found = [heappop(free) for _ in range(min(count, len(free)))] if free else []
        self._fresh += count - len(found)
        found += range(fresh, self._fresh)
        return found

    def release(self, slot: int) -> None:
        """Free a slot. The caller took it, and has cleared its bit everywhere."""
        heappush(self._free, slot)


class Members:
    """A bitset prepared for many lookups; shifting the int for each of them would copy it whole each time."""

    __slots__ = ("_octets",)

    def __init__(self, mask: int) -> None:
        self._octets = mask.to_bytes((mask.bit_length() + 7) // 8, "little")

    def __contains__(self, slot: int) -> bool:
        octets = self._octets
        return slot >> 3 < len(octets) and octets[slot >> 3] >> (slot & 7) & 1 == 1


def bits(mask: int) -> Iterator[int]:
    """Yield the slots in a bitset, ascending. The bitset must not be negative."""
    count = mask.bit_count()
    if count <= _FEW:
        while count > 1:
            low = mask & -mask
            yield low.bit_length() - 1
            mask ^= low
            count -= 1
        if count:
            yield mask.bit_length() - 1
        return
    octets = mask.to_bytes(-(-mask.bit_length() // _WORD_BITS) * 8, "little")
    base = -1
    for word in memoryview(octets).cast("Q"):
        rest = word
        while rest:
            low = rest & -rest
            yield base + low.bit_length()
            rest ^= low
        base += _WORD_BITS


def among(slots: Collection[int], mask: int) -> list[int]:
    """Return the slots that are in a bitset, in their order; the cost is their number plus the width."""
    octets = mask.to_bytes(max(mask.bit_length(), max(slots, default=0) + 1) // 8 + 1, "little")
    return [slot for slot in slots if octets[slot >> 3] >> (slot & 7) & 1]


def without(mask: int, others: int) -> int:
    """Return the slots of a bitset that are not in another; costs the narrower one, where `& ~` costs the wider."""
    return mask ^ (mask & others)


def mask_of(slots: Collection[int]) -> int:
    """Return the bitset of these slots; the cost is their number plus the width, not the product."""
    if len(slots) <= _FEW:
        mask = 0
        for slot in slots:
            mask |= 1 << slot
        return mask
    first = min(slots)
    if slots == list(range(first, first + len(slots))):  # As of a burst.
        return (1 << len(slots)) - 1 << first
    octets = bytearray((max(slots) >> 3) + 1)
    for slot in slots:
        octets[slot >> 3] |= 1 << (slot & 7)
    return int.from_bytes(octets, "little")
