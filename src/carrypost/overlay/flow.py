"""Flow: the bytes that a seat received and sent for its latest events.

Both count payloads and descriptors: of events as their producers sent them, and of results as they leave. Checkpoints
do not count: they are a small part of all bytes, and the first one of a seat would look like a burst of results.
"""

from __future__ import annotations

_EVENTS_MIN, _EVENTS_MAX = 8, 64
"""Events after which a ratio is known, and after which all counts are halved, so that old events fade."""


class Flow:
    """Bytes through one seat."""

    def __init__(self) -> None:
        self._events, self._got, self._sent = 0, 0, 0

    def got(self, nbytes: int) -> None:
        """Count an event that is processed."""
        if self._events >= _EVENTS_MAX:
            self._events, self._got, self._sent = self._events // 2, self._got // 2, self._sent // 2
        self._events += 1
        self._got += nbytes

    def sent(self, nbytes: int) -> None:
        """Count a result."""
        self._sent += nbytes

    @property
    def ratio(self) -> float | None:
        """Bytes sent for each byte received; None as long as too few events were processed."""
        return self._sent / self._got if self._events >= _EVENTS_MIN else None

    def share(self, most: float | None) -> float:
        """Return the ratio if it is known and at most `most`; else 1."""
        ratio = self.ratio
        return 1.0 if ratio is None or most is None or ratio > most else ratio
