"""The thread that writes batches to disk, and the room there: how many bytes of new messages the disk takes.

The writer commits everything that is queued as one transaction. If that fails, the batches are tried one by one, in
order; the first that cannot be written is answered as lost, and with it every other batch of its *epoch*: those
submitted before the loop's thread knew of the loss, which may build on rows that are not there. The loop's thread
begins a new epoch when it fetches the answer, and informs the host of all of them (`Store.answers`); the writer skips
them in silence.

A batch that finds no room is tried again with that of the reserve, a file that only takes up room, to be given up when
the disk is full: even deleting needs some. The log is emptied into the store before it is longer than the reserve, so
that giving up the reserve always leaves room to empty it. `DiskWatch` reports when the disk no longer accepts messages,
and when it does again: once each.
"""

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
import logging
import math
import os
import sqlite3
import threading
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import NamedTuple

import msgspec

from carrypost.log.journal import SEALING, Batch, Durability
from carrypost.model.times import MICROSECONDS, NEVER
from carrypost.node.store import tables

RESERVE_BYTES = 2 * 1024 * 1024
_MARGIN_BYTES = 512 * 1024
_MARGIN_RATIO = 4
"""Room that is left beside it for the log, or that part of what there is: otherwise it would be given up at once."""


class Reserve:
    """The reserve beside one store."""

    def __init__(self, store: Path) -> None:
        self.path = store.with_name(store.name + ".reserve")
        self.held_bytes = 0
        """Room that it takes now, which is less than all of it if the disk has no more."""
        with contextlib.suppress(OSError):
            self.held_bytes = min(self.path.stat().st_size, RESERVE_BYTES)

    @property
    def whole(self) -> bool:
        """True if it has its full size."""
        return self.held_bytes == RESERVE_BYTES

    def make(self) -> bool:
        """Take the room, or as much of it as the disk has; return True if all of it is held. Never raises."""
        if self.whole:
            return True
        room = self.held_bytes + tables.free_bytes(self.path)
        nbytes = min(RESERVE_BYTES, room - min(_MARGIN_BYTES, room // _MARGIN_RATIO))
        if nbytes > self.held_bytes:
            try:
                self._fill(nbytes)
            except OSError:
                self.give_up()
            else:
                self.held_bytes = nbytes
        return self.whole

    def _fill(self, nbytes: int) -> None:
        handle = os.open(self.path, os.O_WRONLY | os.O_CREAT | getattr(os, "O_CLOEXEC", 0), 0o600)
        try:
            if hasattr(os, "posix_fallocate"):
                # Zeroes that are only written might be packed by the file system until they take no room.
                os.posix_fallocate(handle, 0, nbytes)
            else:
                os.write(handle, bytes(nbytes))
            os.ftruncate(handle, nbytes)
        finally:
            os.close(handle)

    def give_up(self) -> bool:
        """Release the room; return True if there was any."""
        self.held_bytes = 0
        try:
            self.path.unlink()
        except OSError:
            return False
        return True


LOG_BYTES = tables.CHECKPOINT_PAGES * tables.PAGE_BYTES
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
        left_bytes = tables.free_bytes(self._path) + self._spare_bytes + self.reserve.held_bytes - unwritten_bytes
        room_bytes = left_bytes - RESERVE_BYTES - LOG_BYTES
        return max(room_bytes, 0) if left_bytes >= _LAST_BYTES else room_bytes

    def measure(self) -> None:
        """Find the room inside the store, where the disk is short of room."""
        free_bytes = tables.free_bytes(self._path)
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
        spare_bytes = own_bytes - (pages - self._pages("freelist_count")) * tables.PAGE_BYTES
        if pages * tables.PAGE_BYTES <= own_bytes:
            spare_bytes += tables.wal(self._path).stat().st_size
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
            tables.limit_log(self._connection, short=short)
            self._short = short


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


GROUP_BYTES_MAX = 1024 * 1024
"""Largest transaction in bytes, so that answers keep coming and the log stays short."""
_REST_S_MAX = 0.005
_REST_RATIO = 8
"""After a commit the writer rests, so that more batches gather for the next one. It does not rest if a program waits
for the disk, nor after a quiet time, nor if the last rest gathered a single batch, which it only delayed."""
REST_AGAIN = 3
"""Number of commits of one batch each, without a pause, after which the writer tries a rest again."""
_MEND_S = 1.0
"""Interval of the search for room, once there was none."""


class Counters(msgspec.Struct):
    """The counters of the writer."""

    commits: int = 0
    commits_full: int = 0
    batches: int = 0
    lost: int = 0
    reserve_given_up: int = 0
    failure: str | None = None
    """Reason why the last batch was lost, until one succeeds again."""


class Writer:
    """Owner of the connection that writes, and of the thread that uses it."""

    def __init__(
        self, connection: sqlite3.Connection, path: Path, directory: tables.Directory, wake: Callable[[], object]
    ) -> None:
        self.counters = Counters()
        self.answered: deque[tuple[int, str | None]] = deque()
        """For the loop's thread, in order: (serial, reason of the loss or None)."""
        self.signalled = False
        """True if the loop's thread was woken and has not read the answers yet."""
        self.room = Room(connection, path)
        self._connection = connection
        self._path = path
        self._names = str(path), str(tables.wal(path))
        self._wal_bytes = 0
        # Unix goes on writing to files that were removed or replaced, and the next start finds nothing of it.
        self._files = self._look()
        self._directory = directory
        self._wake = wake
        self._queue: SimpleQueue[Item | None] = SimpleQueue()
        self._urgent = threading.Event()
        """Set when a batch is queued whose durability a program waits for."""
        self._failed_epoch = -1
        self._synchronous = Durability.NORMAL
        self._full = False
        self._closing = False
        self._mended_s = time.monotonic()
        self._thread = threading.Thread(target=self._run, name="carrypost-store", daemon=True)
        self._thread.start()

    def submit(self, item: Item) -> None:
        """Queue a batch."""
        self._queue.put(item)
        if item.batch.durability is Durability.FULL:
            self._urgent.set()

    def close(self) -> None:
        """Write what is queued, empty the log into the store and end."""
        self._queue.put(None)
        self._thread.join()

    # --- the thread ----------------------------------------------------------------------------------------

    def _run(self) -> None:
        free_s, alone = -math.inf, 0
        while not self._closing:
            group = self._next_group()
            if group:
                began_s = time.monotonic()
                self._answer(self._write(group))
                if began_s - free_s >= _REST_S_MAX:  # It is quiet, and what follows on this may be waited for.
                    alone = 0
                else:
                    alone = alone + 1 if len(group) == 1 else 0
                    if alone % REST_AGAIN == 0:
                        self._rest(group, time.monotonic() - began_s)
                free_s = time.monotonic()
            if self._wants_room:
                self._mend()
        self.room.empty_log()
        self._connection.close()
        self.room.reserve.make()

    def _rest(self, group: list[Item], took_s: float) -> None:
        if not self._closing and group[-1].batch.durability is Durability.NORMAL:
            self._urgent.wait(min(_REST_S_MAX, _REST_RATIO * took_s))

    def _next_group(self) -> list[Item]:
        """Return what is queued, up to a bound, after waiting for the first.

        An empty list means that it is time to look for room.
        """
        group: list[Item] = []
        nbytes = 0
        self._urgent.clear()
        try:
            item = self._queue.get(timeout=_MEND_S if self._wants_room else None)
            while item is not None:
                if item.epoch > self._failed_epoch:
                    group.append(item)
                    nbytes += item.nbytes
                    if nbytes >= GROUP_BYTES_MAX:
                        return group
                item = self._queue.get_nowait()
            self._closing = True
        except Empty:
            pass
        return group

    def _write(self, group: list[Item]) -> list[tuple[int, str | None]]:
        """Commit a group, or as many of its batches as go in order, and answer them."""
        reason = self._attempt(group)
        if reason is None:
            return [(item.batch.serial, None) for item in group]
        # One bad batch must not take down the good ones before it. Those are written one by one, up
        # to the first that fails.
        answers: list[tuple[int, str | None]] = []
        for item in group:
            if len(group) > 1:
                reason = self._attempt([item])
            if reason is not None and self._full:
                self.counters.reserve_given_up += self.room.make()
                reason = self._attempt([item])
            answers.append((item.batch.serial, reason))
            if reason is not None:
                self._failed_epoch = item.epoch
                self.counters.lost += 1
                self.counters.failure = reason
                break
        return answers

    def _attempt(self, items: list[Item]) -> str | None:
        """Commit these batches as one transaction; return the reason if that failed, else None."""
        connection = self._connection
        self._full = False
        try:
            if self._look() != self._files:
                return (
                    f"the store {self._path} was replaced while the node was running: restore it, or restart the node"
                )
            transaction = tables.Transaction(tables.merged(item.batch for item in items), self._directory)
            if transaction:
                if self._wal_bytes > RESERVE_BYTES:
                    self.room.empty_log()
                self._commit(transaction, items)
        except Exception as error:  # noqa: BLE001 - whatever it is: the batch is not on disk, and the thread goes on
            self._full = tables.is_full(error, self._path)
            with contextlib.suppress(sqlite3.Error):
                if connection.in_transaction:
                    connection.execute("ROLLBACK")
            return tables.explained(error, self._path)
        self.counters.batches += len(items)
        return None

    def _commit(self, transaction: tables.Transaction, items: list[Item]) -> None:
        connection, durability = self._connection, max(item.batch.durability for item in items)
        if durability != self._synchronous:
            connection.execute(f"PRAGMA synchronous = {durability.name}")
            self._synchronous = durability
        ending_keys = any(key[0] == SEALING for item in items for key in item.batch.deletes)
        if ending_keys:
            connection.execute("PRAGMA secure_delete = ON")
        connection.execute("BEGIN IMMEDIATE")
        transaction.execute(connection)
        with self._directory.changing:
            connection.execute("COMMIT")
            transaction.committed()
        if ending_keys:  # The log may have pages with the keys, too.
            connection.execute("PRAGMA secure_delete = FAST")
            self.room.empty_log()
        self.room.measure()
        self.counters.failure = None
        self.counters.commits += 1
        self.counters.commits_full += durability is Durability.FULL

    def _look(self) -> tuple[int, int, int, int]:
        """Return the identities of the files at the places of the store and its log."""
        own, log = (os.stat(name) for name in self._names)  # noqa: PTH116 - a path object takes three times as long
        self._wal_bytes = log.st_size
        return own.st_dev, own.st_ino, log.st_dev, log.st_ino

    def _answer(self, answers: list[tuple[int, str | None]]) -> None:
        self.answered.extend(answers)
        if not self.signalled:
            self.signalled = True
            with contextlib.suppress(RuntimeError):  # The loop has ended: no caller waits for the answer.
                self._wake()

    @property
    def _wants_room(self) -> bool:
        return not self.room.reserve.whole

    def _mend(self) -> None:
        now_s = time.monotonic()
        if now_s - self._mended_s >= _MEND_S:
            self._mended_s = now_s
            self.room.mend()
