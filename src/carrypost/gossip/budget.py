"""Token buckets: how much one link address may make this host do.

A budget is charged per observed link address, before any work is done for it, because identities are free to a
forger and link addresses are not.
"""

from __future__ import annotations

_SECOND_US = 1_000_000


class Budget:
    """So many tokens a second, saved up for at most `burst_s` seconds."""

    __slots__ = ("_full", "_rate", "_tokens", "_when")

    def __init__(self, rate_per_s: float, burst_s: float = 2.0) -> None:
        self._rate = rate_per_s / _SECOND_US
        self._full = rate_per_s * burst_s
        self._tokens = self._full
        self._when = 0

    def take(self, amount: float, now: int) -> bool:
        """Spend `amount` if it is there; a bucket that is full always gives once."""
        if now > self._when:
            self._tokens = min(self._full, self._tokens + (now - self._when) * self._rate)
            self._when = now
        if (self._tokens < amount and self._tokens < self._full) or self._tokens < 0:
            return False
        self._tokens -= amount
        return True

    def spend(self, amount: float, now: int) -> None:
        """Charge for what was done already; `take` refuses until the debt is paid."""
        self.take(0, now)
        self._tokens -= amount
