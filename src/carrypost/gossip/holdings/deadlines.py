"""Who expires when.

Entries are sorted in when somebody asks, a burst at a time: most messages come in bursts, and nobody asks before the
earliest deadline has come. An entry is stale once its copy has no slot any more; stale ones are dropped when they come
up, and swept out when there are too many.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Sequence

from carrypost.gossip.holdings.copies import Copy
from carrypost.model.times import NEVER

_STALE_SLACK = 64
"""Entries of copies that left are swept out when there are this many more than twice the copies."""
_FEW = 16
"""So many are sorted in one by one."""


class Deadlines:
    """The deadlines of copies that have slots."""

    __slots__ = ("_copies", "_new", "_sorted", "due_us")

    def __init__(self, copies: Sequence[Copy | None]) -> None:
        self.due_us = NEVER
        """Not after the earliest deadline: before it nobody expires."""
        self._copies = copies
        """By slot: whose tenancy it is."""
        self._sorted: list[tuple[int, int, Copy]] = []
        """Negative deadline, negative serial: the earliest comes last."""
        self._new: list[tuple[int, int, Copy]] = []

    def add(self, copies: Sequence[Copy], tenants: int) -> None:
        """Note when copies expire, if they have a deadline; there are so many tenants in all."""
        new, due_us = self._new, self.due_us
        for copy in copies:
            deadline_us = copy.descriptor.deadline_us
            if deadline_us is not None:
                new.append((-deadline_us, -copy.serial, copy))
                if deadline_us < due_us:
                    due_us = deadline_us
        self.due_us = due_us
        if len(self._sorted) + len(new) > 2 * tenants + _STALE_SLACK:
            self._sorted = [entry for entry in self._in_order() if self._copies[entry[2].slot] is entry[2]]

    def take(self, now: int) -> list[Copy]:
        """Take the copies whose deadline has come, earliest first; they still have their slots."""
        if self.due_us > now:
            return []
        ended: list[Copy] = []
        entries = self._in_order()
        while entries and -entries[-1][0] <= now:
            copy = entries.pop()[2]
            if self._copies[copy.slot] is copy:
                ended.append(copy)
        self.due_us = -entries[-1][0] if entries else NEVER
        return ended

    def _in_order(self) -> list[tuple[int, int, Copy]]:
        if len(self._new) > _FEW:
            self._sorted += self._new
            self._sorted.sort()
        else:
            for entry in self._new:
                insort(self._sorted, entry)
        self._new.clear()
        return self._sorted
