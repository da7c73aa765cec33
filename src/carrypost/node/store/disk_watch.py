"""Reports when the disk no longer accepts what a node writes, and when it does again: once each."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable

from carrypost.node.store.store import Store

LOOK_S = 2.0
"""Time without a failure after which it is over: a disk at the brink would otherwise be reported all the time."""
_log = logging.getLogger("carrypost.node")


class DiskWatch:
    """Observer of the batches of one store."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._failures = 0
        self._looked = 0
        """Number of failures at the last look."""
        self._written = True
        """True if anything was written since the last failure."""
        self._timer: asyncio.TimerHandle | None = None

    def update(self, answers: Iterable[tuple[int, str | None]]) -> None:
        """Process answers: batches were written (None), or could not be, and why."""
        for _, reason in answers:
            self._written = reason is None
            if reason is None:
                continue
            self._failures += 1
            if self._timer is None:
                _log.warning("%s; until then sends fail, and messages carried for others are evicted", reason)
                self._look_later()

    def close(self) -> None:
        """Stop watching."""
        if self._timer is not None:
            self._timer.cancel()

    def _look_later(self) -> None:
        self._looked = self._failures
        self._timer = asyncio.get_running_loop().call_later(LOOK_S, self._look)

    def _look(self) -> None:
        # Notes of a few bytes find room on a full disk too.
        if self._failures > self._looked or not self._written or self._store.full:
            self._look_later()
            return
        self._timer = None
        _log.warning("the store %s can be written again, and messages are accepted again", self._store.path)
