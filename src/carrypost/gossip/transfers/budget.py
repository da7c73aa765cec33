"""Token buckets: how much one link address may make this host do.

A budget is charged per observed link address, before any work is done for it, because identities are free to a
forger and link addresses are not.
"""

from __future__ import annotations

import math

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

    def spend(self, amount: float, now: int, *, debt_s_max: float = 60.0) -> int:
        """Charge for what was done already; `take` refuses until the debt is paid. Returns when that will be."""
        self.take(0, now)
        self._tokens = max(self._tokens - amount, -debt_s_max * self._rate * _SECOND_US)
        return self.above_us(0.0, now)

    def share(self, now: int) -> float:
        """What is there, as a part of what may be saved up; below 0: a debt."""
        self.take(0, now)
        return self._tokens / self._full

    def above_us(self, share: float, now: int) -> int:
        """When so much will be there, if nothing is spent; now, if it is."""
        missing = share * self._full - self._tokens
        return now + math.ceil(missing / self._rate) if missing > 0 else now


class Volume:
    """How many frames and bytes a second a link may bring. One for both: all that comes is charged to it."""

    __slots__ = ("_byte_rate", "_bytes", "_bytes_full", "_frame_rate", "_frames", "_frames_full", "_when")

    def __init__(self, frames_per_s: float, bytes_per_s: float, burst_s: float = 2.0) -> None:
        self._frame_rate, self._byte_rate = frames_per_s / _SECOND_US, bytes_per_s / _SECOND_US
        self._frames = self._frames_full = frames_per_s * burst_s
        self._bytes = self._bytes_full = bytes_per_s * burst_s
        self._when = 0

    def take(self, frames: int, nbytes: int, now: int) -> bool:
        """Spend so much if it is there; what is full always gives once."""
        elapsed = now - self._when
        have_frames, have_bytes = self._frames, self._bytes
        if elapsed > 0:
            self._when = now
            # By comparisons: this is done for everything that comes.
            have_frames += elapsed * self._frame_rate
            if have_frames > self._frames_full:
                have_frames = self._frames_full
            have_bytes += elapsed * self._byte_rate
            if have_bytes > self._bytes_full:
                have_bytes = self._bytes_full
        allowed = (have_frames >= frames or have_frames == self._frames_full) and (
            have_bytes >= nbytes or have_bytes == self._bytes_full
        )
        self._frames = have_frames - frames if allowed else have_frames
        self._bytes = have_bytes - nbytes if allowed else have_bytes
        return allowed
