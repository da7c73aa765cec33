"""Memories of messages that are not here, so that they do not come again.

A message is `done`, and never wanted again, or `declined`: it found no room, or had to give way, and is not asked for
until there is room (`transfers.declined`). Some of those declined were turned away by an owner (`holdings.owners`),
and are not asked for before that owner reopens them, whatever room there is.

The invariant is that both sets are disjoint and within `limits.seen_max` and `seen_bytes_max`: the memory with the
earliest deadline is forgotten first.

What was declined counts as known when sets are compared, or it would be offered in every contact. While there is room
some that would find it are invited: left out of what is compared, so that a neighbour that has them offers them again.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import islice

from carrypost.config import Limits
from carrypost.gossip.holdings.copies import Copy
from carrypost.gossip.holdings.deadlines import Deadlines
from carrypost.gossip.holdings.room import Room
from carrypost.gossip.slots import Members, bits, mask_of

_INVITED_MIN = 256
"""Fewest declined messages that may be offered again after a review; as many as there are places, if those are more."""
_INVITE_SCAN = 4096
"""They are looked for among so many at a time."""


class Memories:
    """The memories of one cache: bitsets of slots, whose copies the cache has."""

    __slots__ = (
        "_bytes", "_bytes_max", "_copies", "_count", "_count_max", "_deadlines", "_invited", "_room", "_up_to",
        "declined", "done", "turned_away",
    )  # fmt: skip

    def __init__(self, limits: Limits, copies: Sequence[Copy | None], room: Room) -> None:
        self.done = self.declined = 0
        self.turned_away: dict[int, int] = {}
        """By owner."""
        self._count = self._bytes = 0
        self._count_max, self._bytes_max = limits.seen_max, limits.seen_bytes_max
        self._deadlines = Deadlines(copies)
        self._copies, self._room = copies, room
        self._invited = 0
        """Declined slots that do not count as known."""
        self._up_to = 0
        """The first slot that is looked at by the next `invite`."""

    @property
    def waiting(self) -> int:
        """Declined slots that nothing but want of room keeps away."""
        waiting = self.declined
        for slots in self.turned_away.values():
            waiting &= ~slots
        return waiting

    def keep(self, copies: Sequence[Copy]) -> list[Copy]:
        """Remember copies that are not here any more. Returns those that are to be forgotten for it."""
        self.done |= mask_of([copy.slot for copy in copies if copy.finished])
        self.declined |= mask_of([copy.slot for copy in copies if not copy.finished])
        self._count += len(copies)
        self._bytes += sum((len(copy.wire) or copy.descriptor.wire_bytes) for copy in copies)
        self._deadlines.add(copies, self._count)
        excess: list[Copy] = []
        count, nbytes = self._count, self._bytes
        while count > self._count_max or nbytes > self._bytes_max:
            copy = self._deadlines.pop()
            if not copy.here:
                excess.append(copy)
                count, nbytes = count - 1, nbytes - (len(copy.wire) or copy.descriptor.wire_bytes)
        return excess

    def finish(self, copy: Copy) -> None:
        """Never want a declined message again."""
        self.declined ^= 1 << copy.slot
        self.done |= 1 << copy.slot

    def recall(self, copy: Copy) -> None:
        """Forget that a message was declined: it comes in."""
        self.declined ^= 1 << copy.slot
        self._count -= 1
        self._bytes -= len(copy.wire) or copy.descriptor.wire_bytes

    def forget(self, copies: Iterable[Copy], keep: int) -> None:
        """Forget copies whose tenancy ends; `keep`: all other slots."""
        remembered = Members(self.done | self.declined)
        for copy in copies:
            if copy.slot in remembered:
                self._count -= 1
                self._bytes -= len(copy.wire) or copy.descriptor.wire_bytes
        self.done, self.declined = self.done & keep, self.declined & keep
        self._invited &= keep
        for owner, slots in self.turned_away.items():
            if slots:
                self.turned_away[owner] = slots & keep

    def turn_away(self, copy: Copy, owner: int) -> None:
        """Note that this owner has no room for a message."""
        self.turned_away[owner] = self.turned_away.get(owner, 0) | 1 << copy.slot

    def is_turned_away(self, copy: Copy) -> bool:
        """Return True while an owner has no room for a message."""
        return any(slots >> copy.slot & 1 for slots in self.turned_away.values())

    def reopen(self, owner: int, slots: int) -> int:
        """End that this owner turned these slots away. Returns those of which it did."""
        reopened = self.turned_away.get(owner, 0) & slots
        self.turned_away[owner] = self.turned_away.get(owner, 0) & ~reopened
        return reopened

    def invite(self) -> tuple[list[Copy], list[Copy]]:
        """Choose what shall not count as known in the next review; returns it, and what shall again.

        With room for one, all that are small enough would do, and nobody can tell which of them the neighbour has: so
        some are chosen, and others the next time.
        """
        before, copies = self._invited, self._copies
        self._invited = invited = self._chosen()
        ended = [copy for slot in bits(before & ~invited) if (copy := copies[slot]) and (copy.whole or not copy.here)]
        return [copy for slot in bits(invited) if (copy := copies[slot])], ended

    def _chosen(self) -> int:
        room, waiting = self._room, self.waiting
        if not waiting or not room.fits(1, 0, interesting=False):
            return 0
        waiting = waiting >> self._up_to << self._up_to or waiting
        most = max(_INVITED_MIN, room.messages_max - room.messages)
        chosen: list[int] = []
        for slot in islice(bits(waiting), _INVITE_SCAN):
            copy = self._copies[slot]
            self._up_to = slot + 1
            if copy is not None and room.fits(1, copy.descriptor.length, interesting=False):
                chosen.append(slot)
                if len(chosen) >= most:
                    break
        return mask_of(chosen)
