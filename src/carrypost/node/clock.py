"""The node's clock: microseconds since 1970 that never decrease."""

# Deadlines are absolute, so the clock has to follow the system's, and the system's may be wrong in
# every way: a phone that slept, a Raspberry Pi without a battery that boots in 1970, an
# administrator that sets it back by an hour.
#
# - Set forward, or the machine slept: follow at once, and report the step. That much silence was
#   none, and neighbours must not time out because of it.
# - Set backward: continue at half speed until the system's clock has caught up. A clock that stood
#   still would stop every timer of the node; one that went back would revive expired messages.
# - Days behind what this node has already seen: not believed. Time continues from there, and the
#   user is warned.

from __future__ import annotations

import time
from collections.abc import Callable

from carrypost.model.times import MICROSECONDS

STEP_US = MICROSECONDS
"""Time that the system's clock may gain between two readings before it counts as a step."""
WRONG_US = 24 * 3_600 * MICROSECONDS
"""A system clock that is this much behind is wrong, and was not merely corrected."""


def _wall_us() -> int:
    return time.time_ns() // 1_000


def _steady_us() -> int:
    return time.monotonic_ns() // 1_000


class NodeClock:
    """The clock of one node. `floor_us`: the latest time that is known to have passed."""

    def __init__(
        self, floor_us: int = 0, *, wall_us: Callable[[], int] = _wall_us, steady_us: Callable[[], int] = _steady_us
    ) -> None:
        self._wall_us = wall_us
        self._steady_us = steady_us
        self._steady = steady_us()
        self._now = max(floor_us, wall_us())
        self._odd = 0
        self._step = 0

    def now(self) -> int:
        """Return microseconds since 1970."""
        wall, steady = self._wall_us(), self._steady_us()
        passed, self._steady = steady - self._steady, steady
        gained = wall - self._now - passed
        self._now = max(wall, self._now + self._pace(passed, -gained))
        if gained >= STEP_US:
            self._step += gained
        return self._now

    def _pace(self, passed: int, lead: int) -> int:
        """Return the least advance of time: all that passed, or half of it; odd microseconds are carried over."""
        if lead > WRONG_US:
            return passed
        half, self._odd = divmod(passed + self._odd, 2)
        return half

    def pop_step_us(self) -> int:
        """Return the time by which the clock was set forward since the last call, for `Host.clock_stepped`."""
        step, self._step = self._step, 0
        return step

    @property
    def ahead_us(self) -> int:
        """Time by which this clock is ahead of the system's, for people to see."""
        return max(0, self._now - self._wall_us())
