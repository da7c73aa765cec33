"""The disk of a real node: batches in order, payloads, and the state that a restart begins with."""

# One SQLite file in WAL mode. Batches are written by one thread of their own
# (`carrypost.node.store.writer`) and are readable from the moment they are submitted: batches
# without an answer lie as an overlay over the disk. Everything here is called from the loop's
# thread; only `wake` is called from the writer's.
#
# The problem. A commit with `fdatasync` takes 0.1 ms on a good disk and far longer on a busy or
# slow one. The event loop must not wait for it, or the node misses datagrams and times out its
# neighbours. But a message that was received is offered to others at once, and its payload has to
# be readable although it is not on disk yet.
#
# What must hold.
# 1. Batches become durable in the order of their serials. A batch may build on every batch before
#    it.
# 2. If one is lost, all later ones are lost with it, even if they would fit: they may build on rows
#    that are not there. The host is informed of all of them before it submits again (`answers`),
#    and from then on builds on the disk.
# 3. A read sees the batches submitted before it, never half of one.
# 4. Memory is bounded by the caller: `unanswered_bytes` is the amount that waits, and callers wait
#    when it is large.
#
# Why not a log of our own? SQLite's WAL is tested against the loss of power, which we could not do
# as well, and a store that cannot be read any more loses everything that a node carries for others.

from __future__ import annotations

import contextlib
import functools
import itertools
import sqlite3
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec

from carrypost.config import Limits
from carrypost.errors import DecodeError, NodeError, StateError
from carrypost.gossip.wire.codec import assemble_payload
from carrypost.log.journal import PIECE, Batch, Key, PieceOf, Value
from carrypost.model.descriptor import Descriptor
from carrypost.model.ids import MessageId
from carrypost.node.store import tables
from carrypost.node.store.writer import Item, Reserve, Writer

RECENT_BYTES_MAX = 4 * 1024 * 1024
_PUT_BYTES = 512
"""Approximate memory of a put besides its payload, in bytes."""
_GIVE_WAY_BYTES = 256 * 1024
_GIVE_WAY_S = 0.0001
"""With this much unanswered, the loop's thread sleeps briefly at each batch. A busy loop releases the interpreter's
lock only for short system calls, and takes it again before the writer has woken up, over and over."""
_READER_CACHE_BYTES = 512 * 1024

_Covering = bytes | tuple[MessageId, ...] | None
"""A piece of an unanswered batch: its bytes, None if it is deleted, or the messages that it is a copy of.

One of these messages has it on disk, unless the piece is there itself. There are several if a copy was copied before
the first copy was answered: the writer may have made that one and deleted its source.
"""


class _Recent:
    """Pieces that were written or read lately: they are requested fragment by fragment, and soon."""

    __slots__ = ("_bodies", "nbytes")

    def __init__(self) -> None:
        self._bodies: OrderedDict[Key, bytes] = OrderedDict()
        self.nbytes = 0

    def put(self, key: Key, body: bytes) -> None:
        bodies = self._bodies
        self.drop(key)
        bodies[key] = body
        self.nbytes += len(body) + _PUT_BYTES
        while self.nbytes > RECENT_BYTES_MAX:
            self.nbytes -= len(bodies.popitem(last=False)[1]) + _PUT_BYTES

    def get(self, key: Key) -> bytes | None:
        body = self._bodies.pop(key, None)
        if body is not None:
            self._bodies[key] = body
        return body

    def drop(self, key: Key) -> None:
        body = self._bodies.pop(key, None)
        if body is not None:
            self.nbytes -= len(body) + _PUT_BYTES


class Store:
    """The store of one node on its disk."""

    def __init__(self, path: Path, directory: tables.Directory, reader: sqlite3.Connection, writer: Writer) -> None:
        self.path = path
        self._directory = directory
        self._reader = reader
        self._writer = writer
        self._open: dict[int, Item] = {}
        self._overlay: dict[Key, tuple[int, _Covering]] = {}
        """Pieces of unanswered batches: (serial of the last batch that has it, the piece)."""
        self._recent = _Recent()
        self._epoch = 0
        self._closed = False
        self._unreadable = 0
        self.unanswered_bytes = 0
        """Approximate memory of unanswered batches: callers of `submit` should wait if it is much."""

    @classmethod
    def open(cls, path: Path, wake: Callable[[], object]) -> Store:
        """Open the store at `path`, made if there is none; raises `NodeError`.

        `wake` is called from another thread when there are `answers`.
        """
        try:
            return cls._opened(path, wake)
        except NodeError as error:
            # A full disk does not even let a store be opened that was cut off: the reserve is for that, too.
            if not tables.is_full(error.__cause__, path) or not Reserve(path).give_up():
                raise
        return cls._opened(path, wake)

    @classmethod
    def _opened(cls, path: Path, wake: Callable[[], object]) -> Store:
        with contextlib.ExitStack() as failed:
            connection = failed.enter_context(contextlib.closing(tables.open_writer(path)))
            try:
                directory = tables.Directory(connection)
                reader = tables.connect(path, cache_bytes=_READER_CACHE_BYTES)
                failed.enter_context(contextlib.closing(reader)).execute("PRAGMA query_only = ON")
                writer = Writer(connection, path, directory, wake)
            except (sqlite3.Error, OSError) as error:
                raise NodeError(tables.explained(error, path)) from error
            failed.pop_all()
        return cls(path, directory, reader, writer)

    # --- at the start --------------------------------------------------------------------------------------

    def state(self) -> Iterator[tuple[Key, Value]]:
        """Yield everything on disk except payloads, to restore a host from. Call it before the first `submit`."""
        try:
            yield from tables.state(self._reader)
        except sqlite3.Error as error:
            raise NodeError(tables.explained(error, self.path)) from error
        except (DecodeError, ValueError) as error:
            raise NodeError(tables.damaged(self.path, f"a row does not decode: {error}")) from error

    # --- batches -------------------------------------------------------------------------------------------

    def submit(self, batch: Batch) -> None:
        """Write a batch, after those before it. It is readable from now on; the answer comes later."""
        if self._closed:
            raise StateError(f"the store {self.path} is closed")
        overlay, serial = self._overlay, batch.serial
        nbytes = _PUT_BYTES * len(batch.puts)
        referred = self._referred(batch) if batch.refers else {}
        for key in batch.deletes:
            if key[0] == PIECE:
                overlay[key] = (serial, None)
        for key, value in batch.puts.items():
            if key[0] == PIECE and isinstance(value, bytes):
                overlay[key] = (serial, value)
                nbytes += len(value)
        overlay.update({key: (serial, value) for key, value in referred.items()})
        item = self._open[serial] = Item(batch, self._epoch, nbytes)
        self.unanswered_bytes += nbytes
        self._writer.submit(item)
        if self.unanswered_bytes > _GIVE_WAY_BYTES:
            time.sleep(_GIVE_WAY_S)

    def _referred(self, batch: Batch) -> dict[Key, _Covering]:
        """Return the pieces of other messages that a batch refers to, as they are before it."""
        found: dict[Key, _Covering] = {}
        for key, value in batch.puts.items():
            if isinstance(value, PieceOf):
                source = self._overlay.get((PIECE, value.message, key[2]), (0, ()))[1]
                found[key] = (*source, value.message) if isinstance(source, tuple) else source
        return found

    def answers(self) -> list[tuple[int, str | None]]:
        """Return the batches that became durable (None) or were lost (the reason) since the last call, in order.

        A lost batch takes all unanswered ones with it. The host must be informed of all of them before it submits
        further changes, which then build on what is on disk.
        """
        writer, found = self._writer, []
        writer.signalled = False
        while writer.answered:
            serial, reason = writer.answered.popleft()
            found.append((serial, reason))
            if reason is None:
                self._uncover(serial, durable=True)
                continue
            self._epoch += 1
            self._uncover(serial, durable=False)
            for later in tuple(self._open):
                found.append((later, reason))
                self._uncover(later, durable=False)
                writer.counters.lost += 1
        return found

    def _uncover(self, serial: int, *, durable: bool) -> None:
        """Remove a batch from the overlay; if it is durable, the disk has it."""
        item = self._open.pop(serial)
        self.unanswered_bytes -= item.nbytes
        overlay, recent, puts = self._overlay, self._recent, item.batch.puts
        for key in itertools.chain(item.batch.deletes, puts):
            if key[0] != PIECE:
                continue
            waiting = overlay.get(key)
            if waiting is not None and waiting[0] == serial:
                del overlay[key]
            if durable and isinstance(body := puts.get(key), bytes):
                recent.put(key, body)
            elif durable:
                recent.drop(key)

    # --- payloads ------------------------------------------------------------------------------------------

    def read(self, message: MessageId, piece: int, *, keep: bool = True) -> bytes | None:
        """Return a piece; None if it is gone or unreadable. `keep`: it may be requested again soon."""
        if self._closed:
            raise StateError(f"the store {self.path} is closed")
        key = (PIECE, message, piece)
        if (waiting := self._overlay.get(key)) is not None:
            found = waiting[1]
            return self._copied((*found, message), piece) if isinstance(found, tuple) else found
        body = self._recent.get(key)
        if body is None:
            body = self._from_disk(message, piece)
            if body is not None and keep:
                self._recent.put(key, body)
        return body

    def payload(self, descriptor: Descriptor, limits: Limits) -> bytes:
        """Return a whole payload as it was published.

        Raises `StoreError` if it is gone, `RemoteError` if it does not expand.
        """
        # Not kept as recent: one large message would push out everything else.
        return assemble_payload(descriptor, functools.partial(self.read, keep=False), limits)

    def _copied(self, messages: tuple[MessageId, ...], piece: int) -> bytes | None:
        """Return a piece that one of these messages has on disk, where it is the same in each.

        A commit may move it from one to the next during the read, so a failed read is repeated between two commits.
        Taking the lock from the beginning would make the loop's thread wait for the disk.
        """
        body = self._first(messages, piece)
        if body is None:
            with self._directory.changing:
                body = self._first(messages, piece)
        return body

    def _first(self, messages: tuple[MessageId, ...], piece: int) -> bytes | None:
        bodies = (self._from_disk(message, piece) for message in messages)
        return next((body for body in bodies if body is not None), None)

    def _from_disk(self, message: MessageId, piece: int) -> bytes | None:
        row = self._directory.row_of(message, piece)
        if row is None:
            return None
        try:
            # All rows of one: only then is the statement done, and the log may be emptied.
            found = self._reader.execute("SELECT body FROM piece WHERE n = ?", (row,)).fetchall()
        except sqlite3.Error:
            self._unreadable += 1
            return None
        return bytes(found[0][0]) if found else None

    @property
    def room_bytes(self) -> int:
        """Bytes of new messages that the disk takes; less than 0 if it does not even take other rows for long."""
        return self._writer.room.messages_bytes(self.unanswered_bytes)

    @property
    def failure(self) -> str | None:
        """Reason why the last batch was lost, if it was."""
        return self._writer.counters.failure

    # --- the rest ------------------------------------------------------------------------------------------

    def status(self) -> dict[str, object]:
        """Return sizes and counts, for people."""
        nbytes = 0
        for file in (self.path, tables.wal(self.path)):
            with contextlib.suppress(OSError):
                nbytes += file.stat().st_size
        return {
            "path": str(self.path),
            "bytes": nbytes,
            "free_bytes": tables.free_bytes(self.path),
            "names": len(self._directory.entries),
            "reserve": self._writer.room.reserve.whole,
            "unanswered": len(self._open),
            "unanswered_bytes": self.unanswered_bytes,
            "recent_bytes": self._recent.nbytes,
            "unreadable": self._unreadable,
            **msgspec.to_builtins(self._writer.counters),
        }

    def close(self) -> None:
        """Write what was submitted and end. The last `answers` can still be fetched. Idempotent."""
        if not self._closed:
            self._closed = True
            self._reader.close()
            self._writer.close()
