"""The pause of a session after its program failed: nothing is handed out for a while, so that order is kept.

Without a pause, a program that cannot do its work for a moment would use up all tries of a message within milliseconds.
The pause doubles with each failure in a row, up to a minute.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

_LONGEST_S = 60.0
_DOUBLINGS_MAX = 32
"""Further doublings change nothing, whatever the first pause is."""


def pause_s(first_s: float, failures: int) -> float:
    """Return the length of the pause after this many failures in a row; `first_s` is that of the first."""
    return min(first_s * 2.0 ** min(failures - 1, _DOUBLINGS_MAX), max(first_s, _LONGEST_S))


class Pause:
    """Pauses of one session, and their lengths."""

    def __init__(self, first_s: float, wake: Callable[[], None]) -> None:
        self._first_s = first_s
        self._wake = wake
        self._failures = 0
        self._timer: asyncio.TimerHandle | None = None

    @property
    def is_on(self) -> bool:
        """True if nothing may be handed out."""
        return self._timer is not None

    def begin(self) -> None:
        """Begin a pause, because the program failed once more."""
        self._failures += 1
        if self._first_s:
            self.end()
            length_s = pause_s(self._first_s, self._failures)
            self._timer = asyncio.get_running_loop().call_later(length_s, self._over)

    def succeed(self) -> None:
        """Note a success: the next pause is a short one again."""
        self._failures = 0

    def _over(self) -> None:
        self._timer = None
        self._wake()

    def end(self) -> None:
        """Pause no longer."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
