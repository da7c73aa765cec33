"""Checkpoints: when a seat sends its state to the consumer.

A checkpoint is a result that has nothing for the program: its payload is a snapshot of the seat. It has a number as
any result, so it fits what the consumer accepted before it exactly. A seat whose modulator has a state sends one when
that state begins, and then every `checkpoint_s` as long as there are events, if it has at most `checkpoint_share` of
the bytes of results since the last one. Up to 1 KiB are always allowed. It also sends one before the consumer would
have to remember more than `runs_max` runs of events. A modulator without a state has one checkpoint, which says so.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from carrypost.model.headers import RUNS_MAX
from carrypost.model.times import NEVER

if TYPE_CHECKING:
    from carrypost.config import Settings
    from carrypost.overlay.processing import SeatRow

_FREE_BYTES = 1024
"""Checkpoints up to this length are sent, however few bytes of results there were since the last one."""
_CURSOR_BYTES = 32
"""Estimated bytes of one cursor in a checkpoint."""


class Checkpoints:
    """The checkpoints of one seat."""

    def __init__(self, settings: Settings, now: int) -> None:
        self._every_us, self._share = round(settings.overlay.checkpoint_s * 1e6), settings.overlay.checkpoint_share
        # Results that are made of one event may have RUNS_MAX runs before it.
        self._runs_max = max(settings.limits.runs_max - RUNS_MAX, 1)
        self._since_us = now
        self._runs = 1  # Perhaps of an earlier life.
        self._bytes = 0
        self._last: tuple[str, int] | None = None
        """The last event that was processed."""

    def processed(self, producer: str, number: int) -> None:
        """Note an event that was processed."""
        self._runs += self._last != (producer, number - 1)
        self._last = producer, number

    def sent(self, nbytes: int) -> None:
        """Note a result that was sent."""
        self._bytes += nbytes

    def begin(self, now: int, *, runs: int = 0) -> None:
        """Note a checkpoint that was sent, or a state that came with this many runs of events after its checkpoint."""
        self._since_us, self._bytes, self._last = now, 0, None
        self._runs = runs

    def due_us(self, row: SeatRow) -> int:
        """Return the time of the next checkpoint, of a seat whose modulator has a state."""
        if not self._runs:
            return NEVER
        if self._runs >= self._runs_max:
            return 0
        size = len(row.state) + len(row.cursors) * _CURSOR_BYTES
        return self._since_us + self._every_us if size <= max(_FREE_BYTES, self._share * self._bytes) else NEVER
