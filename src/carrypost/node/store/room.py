"""Room on the disk for a store, and the batches that may use it."""

# The problem. Consuming is the only way to make room, and it needs some itself: for records of what
# was handed over and acknowledged, for items that queues send to other nodes, and for the log,
# through which every commit goes, deletions included. A node that fills its disk to the last byte
# can therefore never get out again: its messages cannot even be deleted.
#
# The way chosen. The store never grows until the disk is full. Messages are refused while there is
# still room for the reserve and for the log beside it. Room freed by deletions stays inside the
# store's file, where the log cannot use it: without room of its own the log could not even write
# messages into an empty store. Half of the log's room is for units of work that acknowledge and send in
# one: they make room a moment later.
#
# Others may fill the disk nevertheless. Then everything but messages gets the room of the reserve,
# and the last of it is for batches that free some.

from __future__ import annotations

import contextlib
import enum
import os
import sqlite3
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from carrypost.journal import HASHES, MESSAGE, META, PIECE, SEEN, Batch, StoredMessage
from carrypost.node.store import schema
from carrypost.node.store.reserve import RESERVE_BYTES, Reserve

LOG_BYTES = schema.CHECKPOINT_PAGES * schema.PAGE_BYTES
"""Size at which the log is emptied. A longer batch needs as much room there as in the store."""
_LAST_BYTES = RESERVE_BYTES // 4
"""Part of the reserve's room that only batches that free some may use."""
_AMPLE_BYTES = 8 * RESERVE_BYTES
"""Free room above which nothing is counted. Below it the log is kept short: others may fill the disk at any moment."""


class Item(NamedTuple):
    """A batch on its way to the disk."""

    batch: Batch
    epoch: int
    nbytes: int


class Kind(enum.IntEnum):
    """The room that a batch may use; of several, the greatest kind counts."""

    FREES = 0
    """The batch makes room, and takes little for notes. Without its incarnation no node starts."""
    NOTES = 1
    """The batch records something about messages, or has control messages of queues: without it nothing is consumed."""
    WORKS = 2
    """The batch acknowledges messages and sends others, as transactions do. What it acknowledges is deleted soon."""
    MESSAGES = 3


def kind_of(batch: Batch) -> Kind:
    """Return the kind of room that a batch may use."""
    kinds = {key[0] for key in batch.puts}
    if kinds <= {META}:
        return Kind.FREES
    if kinds.isdisjoint({PIECE, HASHES}):
        return Kind.FREES if any(key[0] == PIECE for key in batch.deletes) else Kind.NOTES
    bodies = {name for kind, name, _ in batch.puts if kind in {PIECE, HASHES}}
    controls = all(_is_control(batch.puts.get((MESSAGE, name, 0))) for name in bodies)
    if controls:
        return Kind.NOTES
    return Kind.WORKS if SEEN in kinds else Kind.MESSAGES


def _is_control(value: object) -> bool:
    """Return True if a message is from this node's queues, or for them: it has no payload. Carried ones are not."""
    if not isinstance(value, StoredMessage) or not (value.own or value.interesting):
        return False
    headers = value.descriptor.headers
    return headers is not None and bool(headers.control) and not value.descriptor.size


class Room:
    """The room for one store. All of it belongs to the writer's thread, but for `full` and `Reserve.whole`."""

    def __init__(self, connection: sqlite3.Connection, path: Path) -> None:
        self.reserve = Reserve(path)
        self.full = False
        """True if something found no room, and messages still would not."""
        self._connection = connection
        self._path = path
        self._short = False
        self._demand: tuple[Kind, int, int] | None = None
        """Kind of the transaction that is being written, the bytes that it has, and how many were used before it. None
        if there is room for anything."""
        self.reserve.make()

    def begin(self, items: Sequence[Item]) -> None:
        """Determine the room before a transaction writes these batches."""
        free_bytes = schema.free_bytes(self._path)
        nbytes = sum(item.nbytes for item in items)
        self._limit_log(short=free_bytes < _AMPLE_BYTES)
        self._demand = None
        if not self.reserve.whole or free_bytes < _AMPLE_BYTES + 3 * nbytes:
            self._demand = max(kind_of(item.batch) for item in items), nbytes, self._used_bytes()

    def takes(self) -> bool:
        """Return True if the transaction leaves the room that is reserved for others. Called before it is committed."""
        if self._demand is None:
            return True
        kind, nbytes, used_bytes = self._demand
        if kind is Kind.FREES or (kind is Kind.NOTES and self.reserve.held_bytes) or self._used_bytes() <= used_bytes:
            return True
        if kind is Kind.NOTES:
            return self._left_bytes() >= _LAST_BYTES
        log_bytes = LOG_BYTES if kind is Kind.MESSAGES else LOG_BYTES // 2
        return self._left_bytes() >= RESERVE_BYTES + max(log_bytes, nbytes)

    def _pages(self, name: str) -> int:
        return int(self._connection.execute(f"PRAGMA {name}").fetchone()[0])

    def _used_bytes(self) -> int:
        return (self._pages("page_count") - self._pages("freelist_count")) * schema.PAGE_BYTES

    def _left_bytes(self) -> int:
        """Return the room that is left: on the disk, the reserve included, and inside the store.

        The log's size counts if the store has all of its pages already: otherwise emptying the log takes room first.
        """
        own_bytes = self._path.stat().st_size
        left_bytes = schema.free_bytes(self._path) + self.reserve.held_bytes + own_bytes - self._used_bytes()
        if self._pages("page_count") * schema.PAGE_BYTES <= own_bytes:
            left_bytes += schema.wal(self._path).stat().st_size
        return left_bytes

    def make(self, item: Item) -> int:
        """Make room for a batch that found none; return the number of times that the reserve was given up.

        The log is emptied into the store, so that it is used from its start. The store may have to grow for that: then
        the log gets the reserve for a moment. Messages get no more than what the log leaves.
        """
        self.full = True
        small = kind_of(item.batch) <= Kind.NOTES
        given = small and self.reserve.give_up()
        if not self.empty_log() and self.reserve.give_up():
            given = True
            self.empty_log()
            if not small:
                self.reserve.make()
        return int(given)

    def mend(self) -> None:
        """Restore the reserve as soon as there is room; the log returns what it does not need."""
        if not os.path.lexists(self._path):
            return
        if not self.reserve.make():
            self.empty_log()
            self.reserve.make()
        if self.full:
            with contextlib.suppress(sqlite3.Error, OSError):
                self.full = self._left_bytes() < RESERVE_BYTES + 2 * LOG_BYTES

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
