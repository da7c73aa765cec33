"""Batches as rows: the encoding of values, and the statements for a group of batches.

Each statement handles all rows of its table. The interpreter's lock is released several times per statement, and beside
a busy loop it is long in coming back: with a statement per row the writer would fall behind for good.
"""

from __future__ import annotations

import functools
import sqlite3
import threading
from collections.abc import Iterable, Iterator

import msgspec

from carrypost.errors import StateError
from carrypost.gossip.wire.pieces import from_bitmap, to_bitmap
from carrypost.log.journal import (
    HASHES,
    LAYERS,
    MESSAGE,
    META,
    ORDER,
    PIECE,
    SEEN,
    Batch,
    Key,
    PieceOf,
    StoredMessage,
    Value,
)
from carrypost.model import descriptor as descriptors
from carrypost.model.descriptor import Descriptor
from carrypost.model.ids import NodeId
from carrypost.node.store.schema import PIECE_BITS

Entry = tuple[int, int]
"""(number, the keys that the store has of this id: the bits below, and one per piece from `_PIECE` on)."""

_HASHES, _SEEN, _MESSAGE, _PIECE = 1, 2, 4, 8
_ROW_MASK_SHIFT = 2
_PIECE_SHIFT = 3
_ROWS_MAX = 1000
"""Number of rows in one statement: SQLite accepts 32,766 values."""


class _Row(msgspec.Struct, frozen=True, array_like=True):
    """A `StoredMessage` on disk; fields may be appended with a default."""

    descriptor: bytes
    held: bytes
    hops: int
    age_ms: int
    received_us: int
    giver: str | None
    own: bool
    interesting: bool
    delivered: bool
    claimed: bool = False
    predecessors_lost: int = 0


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(_Row).decode


def _wire(descriptor: Descriptor) -> bytes:
    """Return `Descriptor.wire` without keeping the bytes with the descriptor for as long as that lives."""
    signature = descriptor.signature
    return b"%c%b%b" % (len(signature), signature, descriptor.encoded)


def encode_message(stored: StoredMessage) -> bytes:
    """Return the value of a message's row."""
    return _encode(
        _Row(
            _wire(stored.descriptor), to_bitmap(stored.held), stored.hops, stored.age_ms, stored.received_us,
            stored.giver, stored.own, stored.interesting, stored.delivered, stored.claimed,
            stored.predecessors_lost,
        )
    )  # fmt: skip


def decode_message(value: bytes) -> StoredMessage:
    """Return the message that `encode_message` was given; raises `DecodeError` or `ValueError`."""
    row = _decode(value)
    return StoredMessage(
        descriptors.decode(row.descriptor), from_bitmap(row.held), row.hops, row.age_ms, row.received_us,
        None if row.giver is None else NodeId(row.giver), row.own, row.interesting, row.delivered,
        row.claimed, row.predecessors_lost,
    )  # fmt: skip


class _Statement:
    """One SQL statement for many rows."""

    __slots__ = ("_end", "_row", "_start", "_width")

    def __init__(self, start: str, row: str, end: str = "") -> None:
        self._start, self._row, self._end = start, row, end
        self._width = row.count("?")

    def run(self, connection: sqlite3.Connection, values: list[object]) -> None:
        """Execute the statement for all rows, whose values are concatenated."""
        most = _ROWS_MAX * self._width
        for at in range(0, len(values), most):
            part = values[at : at + most]
            rows = ",".join([self._row] * (len(part) // self._width))
            connection.execute(self._start + rows + self._end, part)


_DELETE = {
    table: _Statement(f"DELETE FROM {table} WHERE n IN (", "?", ")")  # noqa: S608 - our own names
    for table in ("piece", "message", "hashes", "seen")
} | {
    "meta": _Statement("DELETE FROM meta WHERE (name, number) IN (VALUES ", "(?,?)", ")"),
    "registry": _Statement("DELETE FROM registry WHERE name IN (", "?", ")"),
}
_PUT = {
    table: _Statement(f"INSERT OR REPLACE INTO {table} VALUES ", f"({','.join('?' * width)})")  # noqa: S608 - likewise
    for table, width in {"message": 4, "piece": 2, "hashes": 3, "seen": 3, "meta": 3, "registry": 2, "layer": 3}.items()
}
_COPY = _Statement(
    "INSERT OR REPLACE INTO piece SELECT asked.column1, piece.body FROM (VALUES ",
    "(?,?)",
    ") AS asked JOIN piece ON piece.n = asked.column2",
)
"""Statement that copies pieces inside the file: rows to make, each with its source."""
_PLAIN = {META: ("meta", 2), ORDER: ("registry", 1)}
"""Tables whose rows have their key unchanged, and the part of it that they use."""
_UPDATE_PIECES = "UPDATE message SET pieces = ? WHERE n = ?"
_UPDATE_PIECES_ONLY = "UPDATE message SET pieces = ?, value = NULL WHERE n = ?"


@functools.cache
def _delete_of(kind: str) -> _Statement:
    """Return the statement that deletes rows of a layer.

    SQLite finds pairs by no index: it would read all rows of a layer for every acknowledgement.
    """
    return _Statement(f"DELETE FROM layer WHERE kind = '{kind}' AND name IN (", "?", ")")  # noqa: S608 - our own names


class Directory:
    """Numbers of ids, and those of their keys that are on disk.

    Changed by the writer's thread after each commit, entry by entry, and read by the loop's.
    """

    def __init__(self, connection: sqlite3.Connection) -> None:
        entries: dict[bytes, Entry] = {}
        for n, name, pieces, whole in connection.execute("SELECT n, id, pieces, value IS NOT NULL FROM message"):
            entries[name] = (n, (_MESSAGE if whole else 0) | from_bitmap(pieces) << _PIECE_SHIFT)
        for bit, query in ((_HASHES, "SELECT n, id FROM hashes"), (_SEEN, "SELECT n, id FROM seen")):
            for n, name in connection.execute(query):
                entries[name] = (n, entries.get(name, (n, 0))[1] | bit)
        self.entries = entries
        self.changing = threading.Lock()
        """Held while a transaction is committed and entered here."""
        self.number = 1 + max((n for n, _ in entries.values()), default=0)
        """The next one."""

    def row_of(self, message: bytes, piece: int) -> int | None:
        """Return the number of a piece's row; None if it is not on disk."""
        number, keys = self.entries.get(message, (0, 0))
        return number << PIECE_BITS | piece if keys & _PIECE << piece else None


class _Touched:
    """The changes to one id."""

    __slots__ = ("had", "has", "number", "value")

    def __init__(self, number: int, keys: int) -> None:
        self.number = number
        self.had = self.has = keys
        self.value: bytes | None = None


def merged(batches: Iterable[Batch]) -> dict[Key, Value | None]:
    """Return the sum of several consecutive batches; None: deleted."""
    changes: dict[Key, Value | None] = {}
    for batch in batches:
        referred = _referred(batch, changes) if batch.refers else {}
        if batch.deletes:
            changes.update(dict.fromkeys(batch.deletes))
        changes.update(batch.puts)
        changes.update(referred)
    return changes


def _referred(batch: Batch, changes: dict[Key, Value | None]) -> dict[Key, Value | None]:
    """Return the pieces of other messages that a batch refers to, as earlier batches, not written yet, have them."""
    return {
        key: changes.get((PIECE, value.message, key[2]), value)
        for key, value in batch.puts.items()
        if isinstance(value, PieceOf)
    }


class Transaction:
    """The statements of one transaction, and what the directory has to learn once it is committed."""

    def __init__(self, changes: dict[Key, Value | None], directory: Directory) -> None:
        self._directory = directory
        self._number = directory.number
        self._touched: dict[bytes, _Touched] = {}
        self._puts: dict[str, list[object]] = {table: [] for table in _PUT}
        self._deletes: dict[str, list[object]] = {table: [] for table in _DELETE}
        """By table, the values of all rows, one after the other."""
        self._layer_deletes: dict[str, list[object]] = {}
        """By the kind of a layer's rows, their names."""
        self._copies: list[object] = []
        """Rows of pieces, each with the row that it is a copy of, one after the other."""
        self._updates: list[tuple[str, tuple[bytes, int]]] = []
        touched = self._touched
        for key, value in changes.items():
            kind, name, piece = key
            if kind in _PLAIN:
                table, width = _PLAIN[kind]
                self._change(table, key[1 : 1 + width], value)
                continue
            if kind in LAYERS:
                self._layer(kind, name, value)
                continue
            own = touched.get(name)
            if own is None:
                own = touched[name] = self._touch(name)
            if kind == PIECE:
                self._piece(own, piece, value)
            elif kind == MESSAGE:
                self._message(own, value)
            elif kind == SEEN:
                self._known("seen", _SEEN, own, name, _wire(value) if isinstance(value, Descriptor) else None)
            elif kind == HASHES:
                self._known("hashes", _HASHES, own, name, value)
            else:
                raise StateError(f"the store knows no keys of kind {kind!r}")
        self._rows()

    def _touch(self, name: bytes) -> _Touched:
        entry = self._directory.entries.get(name)
        if entry is not None:
            return _Touched(*entry)
        self._number += 1
        return _Touched(self._number - 1, 0)

    def _change(self, table: str, key: tuple[object, ...], value: object) -> None:
        """Change a row that has its key unchanged."""
        if value is None:
            self._deletes[table] += key
        else:
            self._puts[table] += (*key, value)

    def _layer(self, kind: str, name: bytes, value: object) -> None:
        if value is None:
            self._layer_deletes.setdefault(kind, []).append(name)
        else:
            self._puts["layer"] += (kind, name, value)

    def _piece(self, own: _Touched, piece: int, body: object) -> None:
        if not 0 <= piece < 1 << PIECE_BITS:
            raise StateError(f"no message has a piece number {piece}")
        row, bit = own.number << PIECE_BITS | piece, _PIECE << piece
        if isinstance(body, PieceOf):
            if (source := self._directory.row_of(body.message, piece)) is not None:
                self._copies += (row, source)
                own.has |= bit
        elif body is not None:
            self._puts["piece"] += (row, body)
            own.has |= bit
        elif own.has & bit:
            self._deletes["piece"].append(row)
            own.has ^= bit

    def _message(self, own: _Touched, stored: object) -> None:
        if isinstance(stored, StoredMessage):
            own.value = encode_message(stored)
            own.has |= _MESSAGE
        else:
            own.has &= ~_MESSAGE

    def _known(self, table: str, bit: int, own: _Touched, name: bytes, value: object) -> None:
        """Change a row that an id has or has not in a table."""
        if value is not None:
            self._puts[table] += (own.number, name, value)
            own.has |= bit
        elif own.has & bit:
            self._deletes[table].append(own.number)
            own.has ^= bit

    def _rows(self) -> None:
        """Add the rows of table `message`, which list what else there is of a message."""
        for name, own in self._touched.items():
            had, has = own.had >> _ROW_MASK_SHIFT, own.has >> _ROW_MASK_SHIFT
            if own.value is not None or (has and not had):
                self._puts["message"] += (own.number, name, to_bitmap(own.has >> _PIECE_SHIFT), own.value)
            elif had and not has:
                self._deletes["message"].append(own.number)
            elif had != has:
                text = _UPDATE_PIECES if has & 1 else _UPDATE_PIECES_ONLY
                self._updates.append((text, (to_bitmap(own.has >> _PIECE_SHIFT), own.number)))

    def __bool__(self) -> bool:
        """Return True if there is anything to write: many deletions are of keys that were never there."""
        changes = (*self._puts.values(), *self._deletes.values(), self._layer_deletes, self._updates, self._copies)
        return any(changes)

    def execute(self, connection: sqlite3.Connection) -> None:
        """Execute everything, inside the open transaction. Deletions before puts: their room is used at once."""
        _COPY.run(connection, self._copies)  # What they are made of may be deleted.
        for table, values in self._deletes.items():
            _DELETE[table].run(connection, values)
        for kind, names in self._layer_deletes.items():
            _delete_of(kind).run(connection, names)
        for text, row in self._updates:
            connection.execute(text, row)
        for table, values in self._puts.items():
            _PUT[table].run(connection, values)

    def committed(self) -> None:
        """Update the directory."""
        entries = self._directory.entries
        self._directory.number = self._number
        for name, own in self._touched.items():
            if own.has:
                entries[name] = (own.number, own.has)
            else:
                entries.pop(name, None)


def state(connection: sqlite3.Connection) -> Iterator[tuple[Key, Value]]:
    """Yield everything on disk but pieces, in order of arrival within each kind; raises as `decode_message`."""
    for name, value in connection.execute("SELECT id, value FROM hashes ORDER BY n"):
        yield (HASHES, name, 0), value
    for name, value in connection.execute("SELECT id, value FROM message WHERE value IS NOT NULL ORDER BY n"):
        yield (MESSAGE, name, 0), decode_message(value)
    for name, number, value in connection.execute("SELECT name, number, value FROM meta ORDER BY name, number"):
        yield (META, name, number), value
    for name, value in connection.execute("SELECT name, value FROM registry ORDER BY name"):
        yield (ORDER, name, 0), value
    for kind, name, value in connection.execute("SELECT kind, name, value FROM layer ORDER BY kind, name"):
        yield (kind, name, 0), value
    for name, value in connection.execute("SELECT id, value FROM seen ORDER BY n"):
        yield (SEEN, name, 0), descriptors.decode(value)
