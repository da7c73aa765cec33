"""A node's clock, which may be wrong: set ahead or behind, too fast or too slow, and set anew now and then.

`local` is the node's own time, in whole microseconds. It never decreases, as hosts demand: it follows steps forward
and, after a step back, goes on and is ahead of the date that the clock shows, by its lead; nor is it ever below 0.
Reckoned in whole numbers, so that the same run gives the same times everywhere.
"""

from __future__ import annotations

_BILLION = 1_000_000_000


class EmulatedClock:
    """The clock of one emulated node, right or wrong."""

    __slots__ = ("_drift_ppb", "_lead_us", "_offset_us")

    def __init__(self, skew_us: int = 0, drift_ppm: float = 0.0) -> None:
        self._offset_us = skew_us
        self._drift_ppb = round(drift_ppm * 1_000)
        self._lead_us = 0

    @property
    def right(self) -> bool:
        """True if it shows the true time."""
        return not (self._offset_us or self._drift_ppb or self._lead_us)

    def local(self, t_us: int) -> int:
        """Return the node's own time at the true time `t_us`."""
        return max(self._shown(t_us), 0)

    def world(self, local_us: int, now_us: int) -> int:
        """Return the first instant, not before `now_us`, at which it shows `local_us` or more."""
        if self.local(now_us) >= local_us:
            return now_us
        t_us = (local_us - self._offset_us - self._lead_us) * _BILLION // (_BILLION + self._drift_ppb)
        while self._shown(t_us) >= local_us:
            t_us -= 1
        while self._shown(t_us) < local_us:
            t_us += 1
        return max(t_us, now_us)

    def step(self, delta_us: int) -> None:
        """Set the clock forward or, by a negative amount, back."""
        self._offset_us += delta_us
        self._lead_us = max(self._lead_us - delta_us, 0)

    def restart(self) -> None:
        """Begin another life of the node, whose own time is the date that the clock shows."""
        self._lead_us = 0

    def _shown(self, t_us: int) -> int:
        return t_us + t_us * self._drift_ppb // _BILLION + self._offset_us + self._lead_us
