"""The beacon: the times at which a host announces itself.

The period doubles from `announce_s_min` to `announce_s_max` while nothing changes, and falls back on a change; then the
next announcement follows soon, after a random delay, so that neighbours do not all transmit at once. Some strategies
have a fixed period; without `beacons` there are no periodic announcements at all.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from carrypost.model.times import NEVER

if TYPE_CHECKING:
    from random import Random

    from carrypost.config import Settings

_HASTE_US = 100_000
"""Longest time until a change is announced."""
_GAP_US = 200_000
"""Shortest time between two announcements."""
_REPORT_US = 1_000_000
"""Time within which unasked Parcels are confirmed."""
_JITTER = 0.1


class Beacon:
    """The clock of one host's announcements."""

    __slots__ = ("_fixed", "_last_us", "_on", "_rng", "due_us", "period_max_us", "period_min_us", "period_us")

    def __init__(self, settings: Settings, rng: Random, *, fixed: bool = False) -> None:
        self._on = settings.beacons
        self._fixed = fixed
        self._rng = rng
        self.period_max_us = round(settings.announce_s_max * 1e6)
        self.period_min_us = self.period_max_us if self._fixed else round(settings.announce_s_min * 1e6)
        self.period_us = self.period_min_us
        self._last_us = -NEVER
        self.due_us = NEVER

    def sent(self, now: int) -> None:
        """Record that an announcement was broadcast."""
        period_us = self.period_us
        self._last_us = now
        if not self._fixed:
            self.period_us = min(self.period_max_us, period_us * 2)
        # Without jitter, hosts that met once would announce in step for ever, and collide on the
        # radio each time.
        self.due_us = now + round(period_us * (1 - _JITTER * self._rng.random()))

    def report(self, now: int) -> None:
        """Announce soon to confirm something that arrived, without changing the period."""
        if self._on and not self._fixed:
            soon = max(now + round(_REPORT_US * (1 - self._rng.random() / 4)), self._last_us + _GAP_US)
            self.due_us = min(self.due_us, soon)

    def hasten(self, now: int) -> None:
        """Announce soon, and often for a while, because something changed."""
        if not self._on:
            return
        if self._fixed:
            if self.due_us == NEVER:
                self.due_us = now + round(self.period_us * self._rng.random())
            return
        self.period_us = self.period_min_us
        soon = max(now + round(_HASTE_US * self._rng.random()), self._last_us + _GAP_US)
        self.due_us = min(self.due_us, soon)
