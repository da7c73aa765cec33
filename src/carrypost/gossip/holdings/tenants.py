"""The messages known here, by slot and by id: each has one `Copy` for as long as it is known.

The invariant is that a slot whose tenancy ended is not reused before `release` reported it to the owners of other
bitsets.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

from carrypost.gossip.holdings.copies import DEADLINE_SHIFT, SERIAL_SHIFT, Copy
from carrypost.gossip.holdings.deadlines import Deadlines
from carrypost.gossip.slots import Slots, bits, mask_of
from carrypost.model.ids import MessageId
from carrypost.model.times import NEVER


class Tenants:
    """Copies by slot, and by id."""

    __slots__ = ("_by_id", "_ended", "_serial", "_slots", "copies", "deadlines", "get")

    def __init__(self) -> None:
        self.copies: list[Copy | None] = []
        """By slot; None where the slot has no tenant."""
        self._by_id: dict[MessageId, Copy] = {}
        self.get: Callable[[MessageId], Copy | None] = self._by_id.get
        """Return the copy of a message. Called several times per message."""
        self._slots = Slots()
        self._serial = 0
        self._ended = 0
        """Slots whose tenancy ended since the last `release`."""
        self.deadlines = Deadlines(self.copies)

    def __len__(self) -> int:
        return len(self._by_id)

    def newer(self, serial: int) -> Iterator[Copy]:
        """Yield the copies that became known after the one with this serial, latest first."""
        for copy in reversed(self._by_id.values()):  # In order of their serials: a copy that comes back keeps its own.
            if copy.serial <= serial:
                return
            yield copy

    def allocate(self, count: int = 1) -> Iterator[tuple[int, int]]:
        """Yield slots and serials for messages that are not known yet; the caller must `enter` their copies at once."""
        first = self._serial + 1
        self._serial += count
        return zip(self._slots.allocate(count), range(first, first + count), strict=True)

    def enter(self, newcomers: Sequence[Copy]) -> None:
        """Add these messages to the known ones."""
        by_id, copies = self._by_id, self.copies
        for copy in newcomers:
            slot, deadline_us = copy.slot, copy.descriptor.deadline_us
            copy.expiry = (
                (NEVER if deadline_us is None else deadline_us) << DEADLINE_SHIFT | copy.serial << SERIAL_SHIFT | slot
            )
            by_id[copy.id] = copy
            if slot < len(copies):
                copies[slot] = copy
            else:
                copies.append(copy)
        self.deadlines.add(newcomers, len(by_id))

    def refuse(self, copy: Copy) -> None:
        """End the tenancy of a newcomer whose slot nothing else has seen: slot and id may be reused at once."""
        self.copies[copy.slot] = None
        del self._by_id[copy.id]
        self._slots.release(copy.slot)

    def end(self, copies: Iterable[Copy]) -> int:
        """End the tenancy of copies; return their slots."""
        for copy in copies:
            self.copies[copy.slot] = None
            del self._by_id[copy.id]
        ended = mask_of([copy.slot for copy in copies])
        self._ended |= ended
        return ended

    def release(self) -> int:
        """Return the slots whose tenancy ended since the last call. They may be reused from now on."""
        released, self._ended = self._ended, 0
        for slot in bits(released):
            self._slots.release(slot)
        return released
