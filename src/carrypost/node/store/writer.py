"""The thread that writes batches to disk.

It commits everything that is queued as one transaction. If that fails, the batches are tried one by one, in order; the
first that cannot be written is answered as lost, and with it every other batch of its *epoch*: those submitted before
the loop's thread knew of the loss, which may build on rows that are not there. The loop's thread begins a new epoch
when it fetches the answer, and informs the host of all of them (`Store.answers`); the writer skips them in silence.

A batch that finds no room is tried again with that of the reserve (`carrypost.node.store.room`). The log is emptied
into the store before it is longer than the reserve, so that giving up the reserve always leaves room to empty it.
"""

from __future__ import annotations

import contextlib
import math
import os
import sqlite3
import threading
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path
from queue import Empty, SimpleQueue

import msgspec

from carrypost.log.journal import SEALING, Durability
from carrypost.node.store import schema
from carrypost.node.store.reserve import RESERVE_BYTES
from carrypost.node.store.room import Item, Room
from carrypost.node.store.rows import Directory, Transaction, merged

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
        self, connection: sqlite3.Connection, path: Path, directory: Directory, wake: Callable[[], object]
    ) -> None:
        self.counters = Counters()
        self.answered: deque[tuple[int, str | None]] = deque()
        """For the loop's thread, in order: (serial, reason of the loss or None)."""
        self.signalled = False
        """True if the loop's thread was woken and has not read the answers yet."""
        self.room = Room(connection, path)
        self._connection = connection
        self._path = path
        self._names = str(path), str(schema.wal(path))
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
            transaction = Transaction(merged(item.batch for item in items), self._directory)
            if transaction:
                if self._wal_bytes > RESERVE_BYTES:
                    self.room.empty_log()
                self._commit(transaction, items)
        except Exception as error:  # noqa: BLE001 - whatever it is: the batch is not on disk, and the thread goes on
            self._full = schema.is_full(error, self._path)
            with contextlib.suppress(sqlite3.Error):
                if connection.in_transaction:
                    connection.execute("ROLLBACK")
            return schema.explained(error, self._path)
        self.counters.batches += len(items)
        return None

    def _commit(self, transaction: Transaction, items: list[Item]) -> None:
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
