"""The time of a host: its own, which never decreases, and the date, which others read.

Every timer runs by the host's own time. Dates of descriptors and of control items are those of the system's clock,
which may be set back: then the host's own time continues, and is ahead of dates by its `lead_us`. A date that comes
from others is converted where it enters the state of the host, and a time of the host where it leaves.
"""

# Why two times. A clock that ran an hour ahead and was set right must not keep the node's messages
# an hour ahead, since others refuse them. But timers that were set by the wrong time are all over
# the host. If its time went back by an hour, each of them would be an hour late.

from __future__ import annotations

from carrypost.model.times import NEVER


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
