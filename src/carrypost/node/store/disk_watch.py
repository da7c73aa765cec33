"""Reports when the disk no longer accepts messages, and when it does again: once each."""

from __future__ import annotations

import logging
from pathlib import Path

from carrypost.model.times import MICROSECONDS, NEVER
from carrypost.node.store.room import LOG_BYTES

LOOK_US = 2 * MICROSECONDS
"""Time without a shortage after which it is over: a disk at the brink would otherwise be reported all the time."""
_log = logging.getLogger("carrypost.node")


class DiskWatch:
    """Observer of the room for one store."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._over_us = NEVER
        """Time at which a shortage is over if there is none any more by then; `NEVER` if there was none."""

    def update(self, room_bytes: int, now: int) -> None:
        """Process how many bytes of new messages the disk takes."""
        if room_bytes <= 0 and self._over_us == NEVER:
            _log.warning(
                "the disk is full: the store %s cannot grow; free some space; until then sends fail, and messages "
                "carried for others are evicted",
                self._path,
            )
        if room_bytes <= 0 or (room_bytes < LOG_BYTES and self._over_us != NEVER):
            self._over_us = now + LOOK_US
        elif now >= self._over_us:
            self._over_us = NEVER
            _log.warning("the store %s can be written again, and messages are accepted again", self._path)
