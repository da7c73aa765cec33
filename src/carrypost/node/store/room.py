"""Room on the disk for a store: how many bytes of new messages it takes, and the reserve for everything else."""

# The problem. Consuming is the only way to make room, and it needs some itself: for records of what
# was handed over and acknowledged, for items that queues send to other nodes, and for the log,
# through which every commit goes, deletions included. A node that fills its disk to the last byte
# can therefore never get out again: its messages cannot even be deleted.
#
# The way chosen. The host is told how many bytes of new messages the disk takes (`Host.room`), and
# refuses further ones while there is still room for the reserve and for the log beside it. So the
# store never grows until the disk is full. Room freed by deletions stays inside the store's file,
# and counts.
#
# Others may fill the disk nevertheless. Then a write that fails is tried again with the room of the
# reserve, which is taken back as soon as there is room again.

from __future__ import annotations

import contextlib
import os
import sqlite3
from pathlib import Path
from typing import NamedTuple

from carrypost.log.journal import Batch
from carrypost.node.store import schema
from carrypost.node.store.reserve import RESERVE_BYTES, Reserve

LOG_BYTES = schema.CHECKPOINT_PAGES * schema.PAGE_BYTES
"""Size at which the log is emptied."""
_LAST_BYTES = RESERVE_BYTES // 2
"""Room below which the disk takes not even messages without a payload."""
_SHORT_BYTES = 8 * RESERVE_BYTES
"""Free room below which the log is kept short: others may fill the disk at any moment."""
_AMPLE_BYTES = 128 * RESERVE_BYTES
"""Free room above which the room inside the store does not matter."""


class Item(NamedTuple):
    """A batch on its way to the disk."""

    batch: Batch
    epoch: int
    nbytes: int


class Room:
    """The room for one store. It belongs to the writer's thread, but for `messages_bytes` and `Reserve.whole`."""

    def __init__(self, connection: sqlite3.Connection, path: Path) -> None:
        self.reserve = Reserve(path)
        self._connection = connection
        self._path = path
        self._short = False
        self._spare_bytes = 0
        """Room inside the store and its log after the last transaction; 0 if it does not matter."""
        self.reserve.make()
        self.measure()

    def messages_bytes(self, unwritten_bytes: int) -> int:
        """Return how many bytes of new messages the disk takes beside this much that is not written yet.

        Free space, less the reserve and the room of the log. 0 while the reserve has what everything else needs; less
        than 0 if not even that is left.
        """
        left_bytes = schema.free_bytes(self._path) + self._spare_bytes + self.reserve.held_bytes - unwritten_bytes
        room_bytes = left_bytes - RESERVE_BYTES - LOG_BYTES
        return max(room_bytes, 0) if left_bytes >= _LAST_BYTES else room_bytes

    def measure(self) -> None:
        """Find the room inside the store, where the disk is short of room."""
        free_bytes = schema.free_bytes(self._path)
        self._limit_log(short=free_bytes < _SHORT_BYTES)
        self._spare_bytes = 0
        if free_bytes < _AMPLE_BYTES:
            with contextlib.suppress(sqlite3.Error, OSError):
                self._spare_bytes = self._inside_bytes()

    def _pages(self, name: str) -> int:
        return int(self._connection.execute(f"PRAGMA {name}").fetchone()[0])

    def _inside_bytes(self) -> int:
        """Return the room that is free inside the store.

        The log's size counts if the store has all of its pages already: otherwise emptying the log takes room first.
        """
        own_bytes, pages = self._path.stat().st_size, self._pages("page_count")
        spare_bytes = own_bytes - (pages - self._pages("freelist_count")) * schema.PAGE_BYTES
        if pages * schema.PAGE_BYTES <= own_bytes:
            spare_bytes += schema.wal(self._path).stat().st_size
        return spare_bytes

    def make(self) -> bool:
        """Make room for a batch that found none; return True if there was a reserve.

        The reserve is given up, and the log emptied, so that it is used from its start.
        """
        given = self.reserve.give_up()
        self.empty_log()
        return given

    def mend(self) -> None:
        """Restore the reserve as soon as there is room; the log returns what it does not need."""
        if not os.path.lexists(self._path):
            return
        if not self.reserve.make():
            self.empty_log()
            self.reserve.make()
        self.measure()

    def empty_log(self) -> bool:
        """Write the log into the store and truncate it; return True if that succeeded."""
        try:
            return not self._connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()[0]
        except sqlite3.Error:
            return False

    def _limit_log(self, *, short: bool) -> None:
        """Let the log be short in time before the disk is full."""
        if short is not self._short:
            schema.limit_log(self._connection, short=short)
            self._short = short
