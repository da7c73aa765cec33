"""The node's clock: the host's own time, in microseconds that never decrease, and the steps of the system's clock."""

# Deadlines are absolute, so dates have to follow the system's clock, and that may be wrong in every
# way: a phone that slept, a Raspberry Pi without a battery that boots in 1970, a bad GPS date, an
# administrator that sets it back by an hour.
#
# - Set forward, or the machine slept: follow at once, and report the step. That much silence was
#   none, and neighbours must not time out because of it.
# - Set back: report the step. The host's dates follow at once, since others refuse messages that
#   are dated ahead. Its own time, by which timers run, continues, and is ahead by its lead.
# - Corrected by less than a second: the host's own time runs at half speed until it is right.
# - Days behind what this node has already seen, when it starts: not believed until it is set. Time
#   continues from there, and the user is warned.

from __future__ import annotations

import time
from collections.abc import Callable

from carrypost.model.times import MICROSECONDS

STEP_US = MICROSECONDS
"""Time by which the system's clock may deviate between two readings before that counts as a step."""
WRONG_US = 24 * 3_600 * MICROSECONDS
"""A system clock that is this much behind at the start is wrong, and was not merely corrected."""


def _wall_us() -> int:
    return time.time_ns() // 1_000


def _steady_us() -> int:
    return time.monotonic_ns() // 1_000


class NodeClock:
    """The clock of one node. `floor_us`: the latest date that is known to have passed."""

    def __init__(
        self, floor_us: int = 0, *, wall_us: Callable[[], int] = _wall_us, steady_us: Callable[[], int] = _steady_us
    ) -> None:
        self._wall_us, self._steady_us = wall_us, steady_us
        self._steady, self._wall = steady_us(), wall_us()
        self._distrusts = floor_us - self._wall > WRONG_US
        self._now = floor_us if self._distrusts else self._wall
        self.lead_us = 0
        """Time by which the host's own time is ahead of its dates, because the system's clock was set back."""
        self._odd = 0
        self._steps: list[int] = []

    def now(self) -> int:
        """Return the host's own time: microseconds since 1970, ahead of the date by `lead_us`."""
        wall, steady = self._wall_us(), self._steady_us()
        passed, self._steady = steady - self._steady, steady
        set_by, self._wall = wall - self._wall - passed, wall
        going = self._now + passed
        if self._distrusts:
            self._distrusts = wall < going - self.lead_us and abs(set_by) < STEP_US
        gained = 0 if self._distrusts else wall + self.lead_us - going
        if abs(gained) >= STEP_US:
            self._steps.append(gained)
            self._now, self.lead_us = max(going, wall), max(self.lead_us - gained, 0)
        else:
            self._now = max(going + gained, self._now + self._half(passed)) if gained < 0 else going + gained
        return self._now

    def _half(self, passed: int) -> int:
        """Return half of the time that passed; odd microseconds are carried over."""
        half, self._odd = divmod(passed + self._odd, 2)
        return half

    def pop_steps(self) -> list[int]:
        """Return the steps of the clock since the last call, forward or back, for `Host.clock_stepped`."""
        steps, self._steps = self._steps, []
        return steps

    @property
    def ahead_us(self) -> int:
        """Time by which dates are ahead of the system's clock, because that is not believed; for people to see."""
        return max(0, self._now - self.lead_us - self._wall_us()) if self._distrusts else 0
