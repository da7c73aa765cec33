"""Messages that went to one neighbour unasked, from this host or another, and are not known to have arrived.

A *push* of this host is known by its serial. A message is *awaited* if another neighbour brought it unasked and lists
this neighbour as heard: then the giver sent it here as well, under the same serial. Both are confirmed by the
neighbour's announcements, which name the serials received from each giver, and an own push also by acknowledgements.

There are no timers. A push is lost if an announcement that was made long enough after it does not name it, or if three
later ones are confirmed. The part that chose the push calls `pop_lost`, and decides what follows.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING

from carrypost.gossip.slots import bits
from carrypost.gossip.transfers.loss import PACKET_THRESHOLD
from carrypost.gossip.wire.pieces import from_bitmap

if TYPE_CHECKING:
    from carrypost.gossip.wire.frames import Receipt


@dataclass(eq=False, slots=True)
class Push:
    """One message that went to the neighbour unasked."""

    slot: int
    nbytes: int
    """Bytes on their way from this host; 0 if another host sent it."""
    since_us: int
    overtaken: int = 0
    """Number of confirmed pushes that were sent later."""


class Unconfirmed:
    """Messages that went to one neighbour unasked, by the prefix of their sender and by serial."""

    __slots__ = ("_by_giver", "_lost", "_lost_elsewhere", "nbytes", "slots")

    def __init__(self) -> None:
        self._by_giver: defaultdict[bytes, dict[int, Push]] = defaultdict(dict)
        """Pushes by giver and serial, which rise. No giver is in here without a push."""
        self._lost = self._lost_elsewhere = 0
        """Slots of messages lost since the last `pop_lost`: of own pushes, and of others'."""
        self.nbytes = 0
        """Bytes of own pushes."""
        self.slots = 0
        """Slots of all pushes: these messages are neither offered nor pushed."""

    def add(self, giver: bytes, serial: int, slot: int, now: int, nbytes: int = 0) -> None:
        """Record a message that was sent to the neighbour; `nbytes` is 0 unless this host sent it."""
        self._by_giver[giver][serial] = Push(slot, nbytes, now)
        self.slots |= 1 << slot
        self.nbytes += nbytes

    def confirm(self, giver: bytes, base: int, bitmap: int) -> int:
        """Note that the serials base + i of a giver arrived, for each bit i; return the slots of their messages."""
        pushes = self._by_giver.get(giver)
        if pushes is None:
            return 0
        named = [serial for serial in pushes if serial >= base and bitmap >> serial - base & 1]
        slots = self._pop(giver, named)
        if pushes and named:
            for serial, push in pushes.items():
                push.overtaken += sum(serial < other for other in named)
            self._lose(giver, [serial for serial, push in pushes.items() if push.overtaken >= PACKET_THRESHOLD])
        return slots

    def announced(self, receipts: tuple[Receipt, ...]) -> int:
        """Process the receipts of an announcement; return the slots that they name."""
        confirmed = 0
        for receipt in receipts:
            if receipt.node in self._by_giver:
                confirmed |= self.confirm(receipt.node, receipt.base, from_bitmap(receipt.bitmap))
        return confirmed

    def lose(self, before_us: int) -> None:
        """Give up pushes sent up to `before_us`, because an announcement does not name them."""
        for giver, pushes in list(self._by_giver.items()):
            self._lose(giver, [serial for serial, push in pushes.items() if push.since_us <= before_us])

    @property
    def lost(self) -> bool:
        """True if anything was lost since the last `pop_lost`."""
        return bool(self._lost or self._lost_elsewhere)

    def pop_lost(self) -> tuple[int, int]:
        """Return and reset the slots of lost messages: of own pushes, and of those that others sent."""
        lost = self._lost, self._lost_elsewhere
        self._lost = self._lost_elsewhere = 0
        return lost

    def forget_slots(self, mask: int) -> None:
        """Forget what is known of slots that are freed for other messages."""
        gone = set(bits(mask & self.slots))
        for giver, pushes in list(self._by_giver.items()):
            self._pop(giver, [serial for serial, push in pushes.items() if push.slot in gone])
        self._lost &= ~mask
        self._lost_elsewhere &= ~mask

    def _lose(self, giver: bytes, serials: list[int]) -> None:
        nbytes = self.nbytes
        slots = self._pop(giver, serials)
        if self.nbytes < nbytes:
            self._lost |= slots
        else:
            self._lost_elsewhere |= slots

    def _pop(self, giver: bytes, serials: list[int]) -> int:
        """Remove pushes of a giver; return their slots."""
        pushes, slots, nbytes = self._by_giver[giver], 0, 0
        for serial in serials:
            push = pushes.pop(serial)
            slots |= 1 << push.slot
            nbytes += push.nbytes
        self.nbytes -= nbytes
        if not pushes:
            del self._by_giver[giver]
        self.slots &= ~slots
        return slots
