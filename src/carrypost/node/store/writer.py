"""The thread that writes batches to disk.

It commits everything that is queued as one transaction. If that fails, the batches are tried one by one, in order; the
first that cannot be written is answered as lost, and with it goes every other of its epoch: those that were submitted
before the loop's thread knew of the loss, and may stand on what is not there. The loop's thread begins a new epoch when
it fetches the answer, and tells the host of all of them (`Store.answers`); here they are passed over in silence.

A full disk: deletions need room as well, in the log beside the store, and so do notes of what was delivered and
confirmed. They get that of the reserve. The log is emptied into the store before it is longer than the reserve, so that
giving up the reserve always lets it be emptied, too. What the reserve gave up is not for payloads: until it is held
again they have to fit into pages of the store that are free.
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
from typing import NamedTuple

import msgspec

from carrypost.journal import HASHES, META, PIECE, Batch, Durability
from carrypost.node.store import schema
from carrypost.node.store.reserve import RESERVE_BYTES, Reserve
from carrypost.node.store.rows import Directory, Transaction, merged

GROUP_BYTES_MAX = 1024 * 1024
"""What one transaction takes at the most, so that answers keep coming and the log stays short."""
_REST_S_MAX = 0.005
_REST_RATIO = 8
"""After a commit the writer rests, so that more can gather for the next one: not if somebody waits for the disk, nor
after a time in which nothing came."""
_MEND_S = 1.0
"""How often it is looked whether there is room for the reserve again."""
_LAST_BYTES = RESERVE_BYTES // 4
"""Of what the reserve gave up, so much is for what frees alone."""
_AMPLE_BYTES = 8 * RESERVE_BYTES
"""With less room than this the log is kept short: others may fill the disk at any moment."""
_PAGES_MARGIN = 8
_PAGE_COUNTS = ("page_count", "freelist_count")


class Item(NamedTuple):
    """A batch on its way to the disk."""

    batch: Batch
    epoch: int
    nbytes: int


class Counters(msgspec.Struct):
    """What the writer has done."""

    commits: int = 0
    commits_full: int = 0
    batches: int = 0
    lost: int = 0
    reserve_given_up: int = 0
    failure: str | None = None
    """Why the last batch was lost, until one goes through again."""


def _frees(batch: Batch) -> bool:
    """Whether a batch makes room. It may take notes of a few bytes: without its incarnation no node starts."""
    return all(key[0] == META for key in batch.puts)


def _notes(batch: Batch) -> bool:
    """Whether a batch only tells of messages, without any payload: it takes little room."""
    return not any(key[0] in {PIECE, HASHES} for key in batch.puts)


class Writer:
    """Owns the connection that writes, and the thread that uses it."""

    def __init__(
        self, connection: sqlite3.Connection, path: Path, directory: Directory, wake: Callable[[], object]
    ) -> None:
        self.counters = Counters()
        self.answered: deque[tuple[int, str | None]] = deque()
        """For the loop's thread, in order: (serial, why it was lost)."""
        self.signalled = False
        """Whether the loop's thread has been woken and has not looked yet."""
        self.reserve = Reserve(path)
        self._connection = connection
        self._path = path
        self._names = str(path), str(schema.wal(path))
        self._own_bytes = self._wal_bytes = 0
        # Unix goes on writing to files that were removed or replaced, and the next start finds nothing of it.
        self._files = self._look()
        self._directory = directory
        self._wake = wake
        self._queue: SimpleQueue[Item | None] = SimpleQueue()
        self._urgent = threading.Event()
        """Something is queued that somebody waits for the disk with."""
        self._failed_epoch = -1
        self._synchronous = Durability.NORMAL
        self._full = self._short = False
        self._closing = False
        self._mended_s = time.monotonic()
        self.reserve.make()
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
        free_s = -math.inf
        while not self._closing:
            group = self._next_group()
            if group:
                began_s = time.monotonic()
                self._answer(self._write(group))
                if began_s - free_s < _REST_S_MAX:  # Else it is quiet, and what follows on this may be waited for.
                    self._rest(group, time.monotonic() - began_s)
                free_s = time.monotonic()
            if not self.reserve.held:
                self._mend()
        with contextlib.suppress(sqlite3.Error):
            self._connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        self._connection.close()

    def _rest(self, group: list[Item], took_s: float) -> None:
        if not self._closing and group[-1].batch.durability is Durability.NORMAL:
            self._urgent.wait(min(_REST_S_MAX, _REST_RATIO * took_s))

    def _next_group(self) -> list[Item]:
        """What is queued, up to a bound; waits for the first. Nothing: it is time to look after the reserve."""
        group: list[Item] = []
        nbytes = 0
        self._urgent.clear()
        try:
            item = self._queue.get(timeout=None if self.reserve.held else _MEND_S)
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
        answers: list[tuple[int, str | None]] = []
        for item in group:
            if len(group) > 1:
                reason = self._attempt([item])
            if reason is not None and self._full:
                self._make_room(item)
                reason = self._attempt([item])
            answers.append((item.batch.serial, reason))
            if reason is not None:
                self._failed_epoch = item.epoch
                self.counters.lost += 1
                self.counters.failure = reason
                break
        return answers

    def _attempt(self, items: list[Item]) -> str | None:
        """Commit these batches as one transaction; says why not, if it cannot be."""
        connection = self._connection
        self._full = False
        try:
            if self._look() != self._files:
                return f"the store {self._path} was replaced while the node runs: put it back, or start the node again"
            transaction = Transaction(merged(item.batch for item in items), self._directory)
            if transaction:
                frees = all(_frees(item.batch) for item in items)
                if not frees and self._wal_bytes > RESERVE_BYTES:
                    connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
                if not frees and not self.reserve.held and not self._spares(items):
                    self._full = True
                    return schema.full(self._path)
                self._limit_log()
                self._commit(transaction, max(item.batch.durability for item in items))
        except Exception as error:  # noqa: BLE001 - whatever it is: the batch is not on disk, and the thread goes on
            self._full = schema.is_full(error, self._path)
            with contextlib.suppress(sqlite3.Error):
                if connection.in_transaction:
                    connection.execute("ROLLBACK")
            return schema.explained(error, self._path)
        self.counters.batches += len(items)
        return None

    def _commit(self, transaction: Transaction, durability: Durability) -> None:
        connection = self._connection
        if durability != self._synchronous:
            connection.execute(f"PRAGMA synchronous = {durability.name}")
            self._synchronous = durability
        connection.execute("BEGIN IMMEDIATE")
        transaction.execute(connection)
        connection.execute("COMMIT")
        transaction.committed()
        self.counters.failure = None
        self.counters.commits += 1
        self.counters.commits_full += durability is Durability.FULL

    def _look(self) -> tuple[int, int, int, int]:
        """Which files there are now at the places of the store and its log."""
        own, log = (os.stat(name) for name in self._names)  # noqa: PTH116 - a path object takes three times as long
        self._own_bytes, self._wal_bytes = own.st_size, log.st_size
        return own.st_dev, own.st_ino, log.st_dev, log.st_ino

    def _answer(self, answers: list[tuple[int, str | None]]) -> None:
        self.answered.extend(answers)
        if not self.signalled:
            self.signalled = True
            with contextlib.suppress(RuntimeError):  # The loop has ended: nobody waits for the answer.
                self._wake()

    # --- a full disk ---------------------------------------------------------------------------------------

    def _limit_log(self) -> None:
        """Let the log be short in time before the disk is full."""
        short = schema.free_bytes(self._path) < _AMPLE_BYTES
        if short is not self._short:
            schema.limit_log(self._connection, short=short)
            self._short = short

    def _spares(self, items: list[Item]) -> bool:
        """Whether these batches leave room that the reserve gave up to those that it was given up for."""
        if self.reserve.make():
            return True
        needed_bytes, free_bytes = sum(item.nbytes for item in items) * 5 // 4, schema.free_bytes(self._path)
        spared_bytes = _LAST_BYTES if all(_notes(item.batch) for item in items) else RESERVE_BYTES + needed_bytes
        if free_bytes >= spared_bytes:  # With that much room there may still be no reserve: some disks cannot hold one.
            return True
        pages, unused = (self._connection.execute(f"PRAGMA {name}").fetchone()[0] for name in _PAGE_COUNTS)
        # Pages may be free that are in the log only: what counts is what the file has already.
        used_bytes = (pages - unused + _PAGES_MARGIN) * schema.PAGE_BYTES
        return bool(used_bytes + needed_bytes <= self._own_bytes)

    def _make_room(self, item: Item) -> None:
        """Empty the log into the store, so that it is used from its start; for what is small give up the reserve."""
        if _notes(item.batch) and self.reserve.give_up():
            self.counters.reserve_given_up += 1
        with contextlib.suppress(sqlite3.Error):
            self._connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")

    def _mend(self) -> None:
        """Take the reserve again as soon as there is room; the log gives back what it does not need."""
        now_s = time.monotonic()
        if now_s - self._mended_s < _MEND_S:
            return
        self._mended_s = now_s
        if os.path.lexists(self._path) and not self.reserve.make():
            with contextlib.suppress(sqlite3.Error):
                self._connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
            self.reserve.make()
