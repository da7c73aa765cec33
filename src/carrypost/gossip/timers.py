"""The timers of every neighbour, in one table each, and when the first of them is due.

Whoever has something to do later arms a timer of the link's table, and whoever does it cancels that timer or arms it
anew. `due` is for reading only (its type has no assignment), so nothing is due that was not armed here, and no part can
forget to tell the others: that the host wakes in time follows from the tables alone.

A host asks after every step when to be woken, and steps are far more frequent than timers that end. So `Schedule` keeps
a bound, which is never later than the earliest timer:

- Arming a timer for later than the bound is a store and a comparison, nothing else.
- Arming it for sooner marks the table, and marked tables are looked through when the question comes. Most of what
  becomes due in a step, such as an acknowledgement, is done before the step ends, and must wake nobody.
- To hasten timers of all links, as something new to offer does, lowers the bound at once: among hundreds of neighbours
  it would take longer to look through their tables.
- Cancelling a timer, or arming it for later, leaves the bound too early. Waking for nothing costs one look at all
  tables (`refresh`); to have the bound exact at all times would cost more, since most timers never end.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence

from carrypost.model.times import NEVER


class Timer(enum.IntEnum):
    """The timers of a link, each named by its action at the end. All are cancelled with the link's contact."""

    OFFER = 0
    """Offer what is new."""
    OFFER_AGAIN = 1
    """Repeat offers that were not answered."""
    REVIEW = 2
    """Compare sets: for the first time, again, or because no answer came."""
    REQUEST_AGAIN = 3
    """Repeat requests that brought nothing, or ask somebody else."""
    ACKNOWLEDGE = 4
    """Acknowledge transfer frames."""
    DECLARE_LOST = 5
    """Send again what was not acknowledged."""
    SEND = 6
    """Send what waited for other neighbours to ask for the same."""
    ASK_PROFILE = 7
    """Ask for the neighbour's profile again."""
    REPORT_ONE_WAY = 8
    """Tell that the neighbour is heard, but does not hear this host."""
    FORGET = 9
    """End a neighbour that fell silent."""
    SECOND_LOOK = 10
    """Ask for what was declined for want of room. Belongs to no neighbour: the host has a table for itself."""
    LEARN = 11
    """Go on to learn a profile. In another table of the host's own."""


# To ask an enumeration for a member takes three times as long as to look up a name.
(
    OFFER, OFFER_AGAIN, REVIEW, REQUEST_AGAIN, ACKNOWLEDGE, DECLARE_LOST, SEND, ASK_PROFILE, REPORT_ONE_WAY, FORGET,
    SECOND_LOOK, LEARN,
) = Timer  # fmt: skip
_NONE = [NEVER] * len(Timer)


class Timers:
    """The timers of one link."""

    __slots__ = ("_due", "_schedule", "due")

    def __init__(self, schedule: Schedule) -> None:
        self._schedule = schedule
        self._due = _NONE.copy()
        self.due: Sequence[int] = self._due
        """Time at which each timer is due, `NEVER` if it is not armed; by `Timer`."""

    def arm(self, timer: Timer, due_us: int) -> None:
        """Let a timer end then, whenever it would have ended."""
        self._due[timer] = due_us
        schedule = self._schedule
        if due_us < schedule.bound_us:
            schedule.marked.add(self)

    def hasten(self, timer: Timer, due_us: int) -> None:
        """Let a timer end then, unless it ends sooner. Wakes the host then, whatever else this step does."""
        if due_us < self._due[timer]:
            self._due[timer] = due_us
            schedule = self._schedule
            if due_us < schedule.bound_us:
                schedule.bound_us = due_us

    def postpone(self, timer: Timer, delta_us: int) -> None:
        """Let a timer end so much later, if it is armed."""
        if self._due[timer] != NEVER:
            self._due[timer] += delta_us

    def cancel(self, timer: Timer) -> None:
        """Let a timer not end."""
        self._due[timer] = NEVER

    def cancel_all(self) -> None:
        """Let none end."""
        self._due[:] = _NONE


class Schedule:
    """All tables of one host, and when the first timer is due."""

    __slots__ = ("_tables", "bound_us", "marked")

    def __init__(self) -> None:
        self._tables: dict[Timers, None] = {}
        self.bound_us = NEVER
        """No timer ends before, but for those of marked tables. Lowered by `Timers`, raised by `refresh` alone."""
        self.marked: set[Timers] = set()
        """Tables in which something was armed for sooner than the bound."""

    def add(self, timers: Timers) -> None:
        """Heed a table."""
        self._tables[timers] = None
        self.marked.add(timers)

    def remove(self, timers: Timers) -> None:
        """Heed a table no more."""
        del self._tables[timers]

    def next_due_us(self) -> int:
        """Return the time to look next: no timer ends before, and mostly one does then."""
        if self.marked:
            for timers in self.marked:
                due_us = min(timers.due)
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
            if timers is not own and min(timers.due) <= now:
                return True
        return False

    def refresh(self) -> None:
        """Look through all tables, so that the bound is the earliest timer."""
        self.marked.clear()
        bound_us = NEVER
        for timers in self._tables:
            due_us = min(timers.due)
            if due_us < bound_us:
                bound_us = due_us
        self.bound_us = bound_us
