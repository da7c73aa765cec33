"""Token buckets: something that may be done at a fixed rate, and a little of it at once."""

from __future__ import annotations

import math

_SECOND_US = 1_000_000


class Budget:
    """A token bucket, filled at a fixed rate and saved up for at most `burst_s` seconds.

    It is stored as the time at which it will be full again (the virtual scheduling of GCRA, ITU-T I.371), so that no
    timer has to fill it.
    """

    __slots__ = ("_burst_us", "_full_us", "_token_us")

    def __init__(self, rate_per_s: float, burst_s: float = 2.0) -> None:
        self._token_us = _SECOND_US / rate_per_s
        self._burst_us = burst_s * _SECOND_US
        self._full_us = 0.0

    def try_spend(self, amount: float, now: int) -> bool:
        """Spend `amount` and return True, if it is available. A full bucket always allows one amount, of any size."""
        # Otherwise an amount above the burst, such as one datagram of 9 KiB, could never pass.
        if self._full_us <= now:
            self._full_us = now + amount * self._token_us
            return True
        full_us = self._full_us + amount * self._token_us
        if full_us > now + self._burst_us:
            return False
        self._full_us = full_us
        return True

    def spend(self, amount: float, now: int, *, debt_s_max: float = 60.0) -> int:
        """Charge for work done already; return the time at which the debt is paid, before which `try_spend` refuses."""
        spent_us = max(self._full_us, now) + amount * self._token_us
        self._full_us = min(spent_us, now + self._burst_us + debt_s_max * _SECOND_US)
        return self.above_us(0.0, now)

    def share(self, now: int) -> float:
        """Return the balance as a part of the maximum; negative: a debt."""
        return 1 - max(0, self._full_us - now) / self._burst_us

    def above_us(self, share: float, now: int) -> int:
        """Return the time at which the balance reaches this share if nothing is spent; now, if it has."""
        return max(now, math.ceil(self._full_us - (1 - share) * self._burst_us))
