"""Time on a host: its own time and the date, and the timers of every neighbour with the first that is due.

A part that has to act later arms a timer in the link's table, and cancels it or arms it again when it has acted. `due`
is read-only (its type has no assignment), so nothing is due that was not armed here, and no part can forget to inform
the others: the host wakes in time because of the tables alone.

`HostTime` has two times: the host's own, which never decreases, and the date, which others read. Every timer runs by
the host's own time. Dates of descriptors and of control items are those of the system's clock, which may be set back:
then the host's own time continues, and is ahead of dates by its `lead_us`. A date that comes from others is converted
where it enters the state of the host, and a time of the host where it leaves.
"""

# The problem. A host asks after every step when to wake, and steps are far more frequent than
# timers that end: most are cancelled or armed again first. A heap of deadlines would be pushed to
# several times per datagram, and would fill with stale entries. Looking through all tables after
# every step is worse: with hundreds of neighbours that took longer than everything else.
#
# The way chosen. `Schedule` keeps a bound that is never later than the earliest timer.
#
# - Arming a timer for later than the bound is a store and a comparison, nothing else.
# - Arming it for earlier marks the table, and marked tables are looked through when the host asks.
#   Most of what becomes due in a step, such as an acknowledgement, is done before the step ends,
#   and must not wake the host.
# - Hastening timers of all links, as a new message to offer does, lowers the bound at once: among
#   hundreds of neighbours it would take longer to look through their tables.
# - Cancelling a timer, or arming it for later, leaves the bound too early. Waking for nothing costs
#   one look at all tables (`refresh`); keeping the bound exact would cost more, since most timers
#   never end.
#
# What must hold: the bound may be early but never late. A late bound is a host that sleeps through
# a timeout.

# Why two times. A clock that ran an hour ahead and was set right must not keep the node's messages
# an hour ahead, since others refuse them. But timers that were set by the wrong time are all over
# the host. If its time went back by an hour, each of them would be an hour late.

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from carrypost.model.times import NEVER

# The timers of a link, each named by its action at the end. All are cancelled when the link's contact ends. They are
# plain numbers, because each is the place of its time in a table that is read several times per datagram.
OFFER: Final = 0
"""Offer what is new."""
OFFER_AGAIN: Final = 1
"""Repeat offers that were not answered."""
REVIEW: Final = 2
"""Compare sets: for the first time, again, or because no answer came."""
REQUEST_AGAIN: Final = 3
"""Repeat requests that brought nothing, or ask another neighbour."""
ACKNOWLEDGE: Final = 4
"""Acknowledge transfer frames."""
DECLARE_LOST: Final = 5
"""Retransmit frames without an acknowledgement."""
SEND: Final = 6
"""Send bursts that waited for other neighbours to request the same."""
ASK_PROFILE: Final = 7
"""Ask for the neighbour's profile again."""
REPORT_ONE_WAY: Final = 8
"""Report that the neighbour is heard, but does not hear this host."""
FORGET: Final = 9
"""Drop a neighbour that timed out."""
SECOND_LOOK: Final = 10
"""Request messages that were declined for lack of room. Belongs to no neighbour: the host has a table for itself."""
LEARN: Final = 11
"""Continue learning a profile. In another table of the host itself."""
PROVE: Final = 12
"""Ask the neighbour again for a proof of its address."""
_NONE: Final = [NEVER] * (PROVE + 1)


class Timers:
    """The timers of one link."""

    __slots__ = ("_due", "_schedule", "bound_us", "due")

    def __init__(self, schedule: Schedule) -> None:
        self._schedule = schedule
        self._due = _NONE.copy()
        self.due: Sequence[int] = self._due
        """Time at which each timer is due, `NEVER` if it is not armed; by timer."""
        self.bound_us = NEVER
        """No timer ends before this time. A table that is not marked has no earlier one than the schedule."""

    def arm(self, timer: int, due_us: int) -> None:
        """Set the time at which a timer ends."""
        self._due[timer] = due_us
        if due_us < self.bound_us:
            self.bound_us = due_us
            if due_us < self._schedule.bound_us:
                self._schedule.marked.add(self)

    def hasten(self, timer: int, due_us: int) -> None:
        """Make a timer end at this time, unless it ends sooner.

        The host then wakes for it, whatever else this step does.
        """
        if due_us < self._due[timer]:
            self._due[timer] = due_us
            if due_us < self.bound_us:
                self.bound_us = due_us
            if due_us < self._schedule.bound_us:
                self._schedule.bound_us = due_us

    def postpone(self, timer: int, delta_us: int) -> None:
        """Delay a timer by `delta_us`, if it is armed."""
        if self._due[timer] != NEVER:
            self._due[timer] += delta_us

    def cancel(self, timer: int) -> None:
        """Cancel a timer."""
        self._due[timer] = NEVER

    def cancel_all(self) -> None:
        """Cancel all timers."""
        self._due[:] = _NONE

    def look(self) -> int:
        """Return the time at which the first timer is due, and set the bound to it."""
        first_us = NEVER
        for due_us in self._due:  # By a loop: compiled, it takes a fifth of the time of `min`.
            if due_us < first_us:
                first_us = due_us
        self.bound_us = first_us
        return first_us


class Schedule:
    """All tables of one host, and the time at which the first timer is due."""

    __slots__ = ("_tables", "bound_us", "marked")

    def __init__(self) -> None:
        self._tables: dict[Timers, None] = {}
        self.bound_us = NEVER
        """No timer ends before this time, except in marked tables. Lowered by `Timers`, raised by `refresh` alone."""
        self.marked: set[Timers] = set()
        """Tables in which a timer was armed for earlier than the bound."""

    def add(self, timers: Timers) -> None:
        """Watch a table."""
        self._tables[timers] = None
        self.marked.add(timers)

    def remove(self, timers: Timers) -> None:
        """Stop watching a table."""
        del self._tables[timers]

    def next_due_us(self) -> int:
        """Return the time to wake: no timer ends before it, and usually one ends then."""
        if self.marked:
            for timers in self.marked:
                due_us = timers.look()
                if due_us < self.bound_us:
                    self.bound_us = due_us
            self.marked.clear()
        return self.bound_us

    def due_elsewhere(self, own: Timers | None, now: int) -> bool:
        """Return True if a timer of another table may have ended."""
        if self.bound_us <= now:
            return True
        # By a loop: this is asked after every step, and mostly its own table is the only one.
        for timers in self.marked:  # noqa: SIM110
            if timers is not own and timers.bound_us <= now and timers.look() <= now:
                return True
        return False

    def refresh(self) -> None:
        """Set the bound to the earliest timer of all tables."""
        self.marked.clear()
        bound_us = NEVER
        for timers in self._tables:
            if timers.bound_us < bound_us and (due_us := timers.look()) < bound_us:
                bound_us = due_us
        self.bound_us = bound_us


class HostTime:
    """The own time and the date of the current step."""

    __slots__ = ("date_us", "lead_us", "now_us")

    def __init__(self) -> None:
        self.now_us = self.date_us = 0
        self.lead_us = 0
        """Time by which the host's own time is ahead of dates."""

    def begin(self, now: int) -> None:
        """Begin a step at this time of the host."""
        self.now_us, self.date_us = now, max(now - self.lead_us, 0)

    def clock_stepped(self, delta_us: int) -> int:
        """Set dates forward or back; return the time by which the host's own time jumps forward."""
        before_us, self.lead_us = self.lead_us, max(self.lead_us - delta_us, 0)
        return delta_us - before_us + self.lead_us

    def date_of(self, own_us: int) -> int:
        """Return a time of this host as a date."""
        return max(own_us - self.lead_us, 0) if own_us < NEVER else own_us

    def own_time(self, date_us: int | None) -> int:
        """Return a date as a time of this host; `NEVER` if there is none."""
        return NEVER if date_us is None or date_us >= NEVER else date_us + self.lead_us
