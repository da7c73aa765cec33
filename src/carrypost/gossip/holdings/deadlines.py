"""The order in which copies expire, and in which memories are forgotten.

Entries are the copies' own `expiry`: deadline, serial and slot as one number, so that an entry keeps no copy alive and
comparing two is fast. They are sorted in on demand, a burst at a time: most messages come in bursts, and nothing reads
them before the earliest deadline. An entry is stale once its slot has another tenant, or none; stale entries are
dropped when they come up, and swept out when there are too many. Deadlines are dates, and the host's own time is ahead
of them by `lead_us`.
"""

from __future__ import annotations

from collections.abc import Sequence
from heapq import heapify, heappop, heappush

from mypy_extensions import mypyc_attr

from carrypost.gossip.holdings.copies import Copy, deadline_of, slot_of
from carrypost.model.times import NEVER

_STALE_SLACK = 64
"""Stale entries are swept out when there are this many entries more than twice the copies."""


@mypyc_attr(allow_interpreted_subclasses=True)
class Deadlines:
    """The deadlines of copies that have slots."""

    __slots__ = ("_copies", "_entries", "_new", "due_us", "lead_us")

    def __init__(self, copies: Sequence[Copy | None]) -> None:
        self.due_us = NEVER
        """Not after the earliest deadline, in the host's own time: nothing expires before this time."""
        self.lead_us = 0
        self._copies = copies
        """The tenants by slot."""
        self._entries: list[int] = []
        """A heap."""
        self._new: list[int] = []

    def add(self, copies: Sequence[Copy], tenants: int) -> None:
        """Add the deadlines of copies; `tenants` is the number of tenants in all."""
        expiries = [copy.expiry for copy in copies]
        self._new += expiries
        if expiries:
            self.due_us = min(self.due_us, deadline_of(min(expiries)) + self.lead_us)
        if len(self._entries) + len(self._new) > 2 * tenants + _STALE_SLACK:
            self._new += self._entries
            self._new = [expiry for expiry in dict.fromkeys(self._new) if self._tenant(expiry) is not None]
            self._entries.clear()

    def pop_due(self, now: int) -> list[Copy]:
        """Remove and return the copies whose deadline has passed, earliest first; they still have their slots."""
        ended: list[Copy] = []
        if self.due_us > now:
            return ended
        entries, date_us = self._in_order(), now - self.lead_us
        while entries and deadline_of(entries[0]) <= date_us:
            copy = self._tenant(heappop(entries))
            if copy is not None:
                ended.append(copy)
        self.due_us = deadline_of(entries[0]) + self.lead_us if entries else NEVER
        return ended

    def set_lead(self, lead_us: int) -> None:
        """Set the time by which the host's own time is ahead of dates."""
        if self.due_us < NEVER:
            self.due_us += lead_us - self.lead_us
        self.lead_us = lead_us

    def pop(self) -> Copy:
        """Remove and return the copy with the earliest deadline; there must be one."""
        entries = self._in_order()
        while True:
            expiry = heappop(entries)
            while entries and entries[0] == expiry:  # A copy that came back and left again is in here twice.
                heappop(entries)
            copy = self._tenant(expiry)
            if copy is not None:
                return copy

    def _tenant(self, expiry: int) -> Copy | None:
        """Return the copy of an entry, unless the entry is stale."""
        copy = self._copies[slot_of(expiry)]
        return copy if copy is not None and copy.expiry == expiry else None

    def _in_order(self) -> list[int]:
        entries, new = self._entries, self._new
        if len(new) > len(entries) >> 3:
            entries += new
            heapify(entries)
        else:
            for expiry in new:
                heappush(entries, expiry)
        new.clear()
        return entries
