"""The store's file: its tables, their versions, whether a file may be used, and batches as rows of these tables.

A file is a carrypost store by its `application_id`; `user_version` counts the migrations that it has been through.
Nothing here deletes or overwrites a file that is not what it should be: the error names the file, and what the user can
do. Rows are numbered in order of arrival, whatever their ids, so that new ones are appended and the same few pages are
written again and again: an index over the ids, which are random, costs more than everything else together. The number
of each id is read once, at the start.

Each statement handles all rows of its table. The interpreter's lock is released several times per statement, and beside
a busy loop it is long in coming back: with a statement per row the writer would fall behind for good.
"""

from __future__ import annotations

import contextlib
import functools
import os
import sqlite3
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import msgspec

from carrypost.errors import NodeError, StateError
from carrypost.gossip.wire.pieces import from_bitmap, to_bitmap
from carrypost.log import journal
from carrypost.log.files import FULL, keep_entry
from carrypost.model import descriptor as descriptors
from carrypost.model.descriptor import Descriptor
from carrypost.model.ids import NodeId

APPLICATION_ID = 0x43505354
"""The letters CPST."""
PAGE_BYTES = 4096
CHECKPOINT_PAGES = 256
PIECE_BITS = 24
"""Number of bits by which a message's number is shifted to make room for the numbers of its pieces."""
CHECK_S_MAX = 1.0
CHECK_S_MAX_UNCLEAN = 5.0
"""Time for which the structure of a file is checked when it is opened; the second after an unclean end."""
BUSY_S = 2.0

_HEADER = b"SQLite format 3\0"
_HEADER_BYTES = 100
"""Bytes of the header: the size of a page is at 16, in two bytes, the number of pages at 28, in four."""
_STATEMENTS_MAX = 12
"""Number of prepared statements that are kept, more than a program's commit needs: each keeps a copy of its last
values."""
_ROOM_BYTES_MIN = 64 * 1024

MIGRATIONS: tuple[Sequence[str], ...] = (
    (
        # A row is here as long as the message or any of its pieces is; `pieces` is the bitmap of those.
        "CREATE TABLE message (n INTEGER PRIMARY KEY, id BLOB NOT NULL, pieces BLOB NOT NULL, value BLOB)",
        "CREATE TABLE hashes (n INTEGER PRIMARY KEY, id BLOB NOT NULL, value BLOB NOT NULL)",
        "CREATE TABLE seen (n INTEGER PRIMARY KEY, id BLOB NOT NULL, value BLOB NOT NULL)",
        "CREATE TABLE piece (n INTEGER PRIMARY KEY, body BLOB NOT NULL)",
        "CREATE TABLE meta (name BLOB NOT NULL, number INTEGER NOT NULL, value NOT NULL, PRIMARY KEY (name, number))",
    ),
    # What order groups remember, by group and source.
    ("CREATE TABLE registry (name BLOB PRIMARY KEY, value BLOB NOT NULL) WITHOUT ROWID",),
    # What other layers keep, by layer and name.
    ("CREATE TABLE layer (kind TEXT, name BLOB, value BLOB NOT NULL, PRIMARY KEY (kind, name)) WITHOUT ROWID",),
)
"""Statements that bring a file from version `n` to `n + 1`, in one transaction; never changed, only appended."""


def wal(path: Path) -> Path:
    """Return the log beside a store, where commits go first."""
    return path.with_name(path.name + "-wal")


def open_writer(path: Path) -> sqlite3.Connection:
    """Return the store at `path`, made if there is none, checked and brought up to date; raises `NodeError`."""
    try:
        if not _look_at(path):
            _make(path)
        unclean = _has_log(path)
        # A connection that may write empties the log into the store when it is closed, even into a damaged one.
        with contextlib.closing(connect(path, mode="ro")) as connection:
            version = _version(connection, path)
            _check(connection, path, CHECK_S_MAX_UNCLEAN if unclean else CHECK_S_MAX)
            _check_tables(connection, path, version)
        with contextlib.ExitStack() as failed:
            connection = failed.enter_context(contextlib.closing(connect(path)))
            _prepare(connection, path, version)
            failed.pop_all()
    except sqlite3.Error as error:
        raise NodeError(explained(error, path)) from error
    except OSError as error:
        if error.errno in FULL:
            raise NodeError(f"the disk is full: the store {path} cannot be made; free some space") from error
        raise NodeError(f"the store {path} cannot be opened: {error.strerror}; check its permissions") from error
    return connection


def connect(path: Path, *, mode: str = "rw", cache_bytes: int = 1024 * 1024) -> sqlite3.Connection:
    """Return a connection to a file that exists; transactions are begun and ended by hand, in whichever thread."""
    connection = sqlite3.connect(
        f"{path.absolute().as_uri()}?mode={mode}", uri=True,
        isolation_level=None, timeout=BUSY_S, check_same_thread=False, cached_statements=_STATEMENTS_MAX,
    )  # fmt: skip
    try:
        connection.execute(f"PRAGMA cache_size = {-cache_bytes // 1024}")
        connection.execute("PRAGMA temp_store = MEMORY")
    except sqlite3.Error:
        connection.close()
        raise
    return connection


def _look_at(path: Path) -> bool:
    """Return True if there is a file; raises `NodeError` unless it is one that SQLite would accept."""
    try:
        with path.open("r+b") as file:
            start = file.read(_HEADER_BYTES)
            nbytes = os.fstat(file.fileno()).st_size
    except FileNotFoundError:
        if _has_log(path):
            raise NodeError(damaged(path, "its log is there, and the store itself is gone")) from None
        return False
    if not start:
        raise NodeError(damaged(path, "it is empty"))
    if not start.startswith(_HEADER):
        raise NodeError(damaged(path, "it does not begin like a database"))
    # The check of the structure does not see it where there is no time to read all. With a log, a file may be short.
    page_bytes, pages = int.from_bytes(start[16:18], "big"), int.from_bytes(start[28:32], "big")
    if len(start) < _HEADER_BYTES or (nbytes < pages * page_bytes and not _has_log(path)):
        raise NodeError(damaged(path, "its end is missing"))
    return True


def _has_log(path: Path) -> bool:
    return wal(path).exists() and wal(path).stat().st_size > 0


def _make(path: Path) -> None:
    """Make a new store, for its owner only.

    It gets its name once it is complete, so that an empty file is never a new one.
    """
    part = path.with_name(path.name + ".new")
    leftovers = [part, part.with_name(part.name + "-journal")]
    try:
        for file in leftovers:
            file.unlink(missing_ok=True)
        os.close(os.open(part, os.O_RDWR | os.O_CREAT | os.O_EXCL | getattr(os, "O_CLOEXEC", 0), 0o600))
        with contextlib.closing(connect(part)) as connection:
            connection.execute(f"PRAGMA page_size = {PAGE_BYTES}")
            for number, migration in enumerate(MIGRATIONS, 1):
                _migrate(connection, migration, number)
        part.replace(path)
    finally:
        for file in leftovers:
            with contextlib.suppress(OSError):
                file.unlink(missing_ok=True)
    keep_entry(path)


def _prepare(connection: sqlite3.Connection, path: Path, version: int) -> None:
    mode = connection.execute("PRAGMA journal_mode = WAL").fetchone()[0]
    if mode != "wal":
        raise NodeError(f"the file system of {path} cannot hold a store (it has no shared memory): choose a local disk")
    connection.execute("PRAGMA synchronous = NORMAL")
    connection.execute(f"PRAGMA wal_autocheckpoint = {CHECKPOINT_PAGES}")
    limit_log(connection, short=False)
    # Secrets must not outlive their rows. FAST zeroes what is deleted in pages that are written anyway; for keys the
    # writer asks for more.
    connection.execute("PRAGMA secure_delete = FAST")
    for number in range(version, len(MIGRATIONS)):
        _migrate(connection, MIGRATIONS[number], number + 1)
    # Another writer is detected now and not in the middle of the work.
    connection.execute("BEGIN IMMEDIATE")
    connection.execute("ROLLBACK")


def limit_log(connection: sqlite3.Connection, *, short: bool) -> None:
    """Set the size that the log keeps when it is used from its start; `short`: the disk has little room.

    Truncating it to the limit would write its end anew every time, and wait for the disk. But on a full disk deletions
    would fit into the end of a long log, and nothing that is to use the room that they make.
    """
    pages = CHECKPOINT_PAGES if short else 2 * CHECKPOINT_PAGES
    connection.execute(f"PRAGMA journal_size_limit = {pages * PAGE_BYTES}")


def _version(connection: sqlite3.Connection, path: Path) -> int:
    """Return the version of a store; refuses what belongs to another program, or to a later one."""
    queries = ("PRAGMA application_id", "PRAGMA user_version", "SELECT count(*) FROM sqlite_master")
    application, version, tables = (int(connection.execute(query).fetchone()[0]) for query in queries)
    if application != APPLICATION_ID and (application or version or tables):
        raise NodeError(f"{path} is a database, but not a store of carrypost: choose another folder, or move it away")
    if version < 1:
        raise NodeError(damaged(path, "it is an empty database"))
    if version > len(MIGRATIONS):
        raise NodeError(
            f"the store {path} has version {version}, and this carrypost supports versions up to "
            f"{len(MIGRATIONS)}: install the newer carrypost that wrote it, or choose another folder"
        )
    return version


def _check_tables(connection: sqlite3.Connection, path: Path, version: int) -> None:
    """Check that everything is there that a store of this version has."""
    with contextlib.closing(sqlite3.connect(":memory:", isolation_level=None)) as model:
        for number, migration in enumerate(MIGRATIONS[:version], 1):
            _migrate(model, migration, number)
        missing = _columns(model) - _columns(connection)
    if missing:
        table, column = min(missing)
        raise NodeError(damaged(path, f"the column {column} of the table {table} is missing"))


def _columns(connection: sqlite3.Connection) -> set[tuple[str, str]]:
    found = connection.execute(
        "SELECT tables.name, columns.name FROM sqlite_master AS tables, pragma_table_info(tables.name) AS columns"
    )
    return {(table, column) for table, column in found}


def _migrate(connection: sqlite3.Connection, migration: Sequence[str], version: int) -> None:
    connection.execute("BEGIN IMMEDIATE")
    try:
        for statement in migration:
            connection.execute(statement)
        connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
        connection.execute(f"PRAGMA user_version = {version}")
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise


def _check(connection: sqlite3.Connection, path: Path, limit_s: float) -> None:
    """Check the structure of the file, for a limited time: a large one is not read in full at every start."""
    until = time.monotonic() + limit_s
    connection.set_progress_handler(lambda: time.monotonic() > until, 20_000)
    try:
        found = connection.execute("PRAGMA quick_check(1)").fetchone()[0]
    except sqlite3.OperationalError as error:
        if error.sqlite_errorcode != sqlite3.SQLITE_INTERRUPT:
            raise
        return
    finally:
        connection.set_progress_handler(None, 0)
    if found != "ok":
        raise NodeError(damaged(path, " ".join(str(found).split())))


def damaged(path: Path, why: str) -> str:
    """Return the message about a store that is not as it was written."""
    return (
        f"the store {path} is damaged ({why}) and was left unchanged: restore a copy, or move it and the "
        "files beside it away to start with an empty store"
    )


def is_full(error: BaseException | None, path: Path) -> bool:
    """Return True if the disk had no room. Some calls of a full disk fail without saying why."""
    if isinstance(error, OSError):
        return error.errno in FULL
    code = getattr(error, "sqlite_errorcode", 0) & 0xFF
    return code == sqlite3.SQLITE_FULL or (code == sqlite3.SQLITE_IOERR and free_bytes(path) < _ROOM_BYTES_MIN)


def free_bytes(path: Path) -> int:
    """Return the bytes that the disk under `path` still takes; many if that is not known."""
    try:
        found = os.statvfs(path.parent)
    except (AttributeError, OSError):
        return 2**62
    return found.f_bavail * found.f_frsize


def explained(error: BaseException, path: Path) -> str:
    """Return a sentence that says what went wrong with a store, and what to do."""
    if isinstance(error, FileNotFoundError):
        return f"the store {path} is gone: restore it, or restart the node"
    if is_full(error, path):
        return f"the disk is full: the store {path} cannot grow; free some space"
    if not isinstance(error, sqlite3.Error):
        return f"the store {path} could not be written: {error}"
    code = getattr(error, "sqlite_errorcode", 0)
    name = getattr(error, "sqlite_errorname", "no code")
    sentences = {
        sqlite3.SQLITE_BUSY: f"the store {path} is in use by another process: stop that process first",
        sqlite3.SQLITE_LOCKED: f"the store {path} is in use by another process: stop that process first",
        sqlite3.SQLITE_READONLY: f"the store {path} is read-only: check how its disk is mounted, and its permissions",
        sqlite3.SQLITE_PERM: f"the store {path} may not be used: check its permissions",
        sqlite3.SQLITE_CANTOPEN: f"the store {path} or a file beside it cannot be opened: check their permissions",
        sqlite3.SQLITE_IOERR: f"the disk under the store {path} failed ({name}): see the system's log",
        sqlite3.SQLITE_CORRUPT: damaged(path, str(error)),
        sqlite3.SQLITE_NOTADB: damaged(path, str(error)),
    }
    return sentences.get(code & 0xFF, f"the store {path} could not be used: {error} ({name})")


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


def encode_message(stored: journal.StoredMessage) -> bytes:
    """Return the value of a message's row."""
    return _encode(
        _Row(
            _wire(stored.descriptor), to_bitmap(stored.held), stored.hops, stored.age_ms, stored.received_us,
            stored.giver, stored.own, stored.interesting, stored.delivered, stored.claimed,
            stored.predecessors_lost,
        )
    )  # fmt: skip


def decode_message(value: bytes) -> journal.StoredMessage:
    """Return the message that `encode_message` was given; raises `DecodeError` or `ValueError`."""
    row = _decode(value)
    return journal.StoredMessage(
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
Changes = dict[journal.Key, journal.Value | None]
"""New values by their keys; None: deleted."""
_PLAIN = {journal.META: ("meta", 2), journal.ORDER: ("registry", 1)}
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


def merged(batches: Iterable[journal.Batch]) -> Changes:
    """Return the sum of several consecutive batches; None: deleted."""
    changes: Changes = {}
    for batch in batches:
        referred = _referred(batch, changes) if batch.refers else {}
        if batch.deletes:
            changes.update(dict.fromkeys(batch.deletes))
        changes.update(batch.puts)
        changes.update(referred)
    return changes


def _referred(batch: journal.Batch, changes: Changes) -> Changes:
    """Return the pieces of other messages that a batch refers to, as earlier batches, not written yet, have them."""
    return {
        key: changes.get((journal.PIECE, value.message, key[2]), value)
        for key, value in batch.puts.items()
        if isinstance(value, journal.PieceOf)
    }


class Transaction:
    """The statements of one transaction, and what the directory has to learn once it is committed."""

    def __init__(self, changes: Changes, directory: Directory) -> None:
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
            if kind in journal.LAYERS:
                self._layer(kind, name, value)
                continue
            own = touched.get(name)
            if own is None:
                own = touched[name] = self._touch(name)
            if kind == journal.PIECE:
                self._piece(own, piece, value)
            elif kind == journal.MESSAGE:
                self._message(own, value)
            elif kind == journal.SEEN:
                self._known("seen", _SEEN, own, name, _wire(value) if isinstance(value, Descriptor) else None)
            elif kind == journal.HASHES:
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
        if isinstance(body, journal.PieceOf):
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
        if isinstance(stored, journal.StoredMessage):
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


def state(connection: sqlite3.Connection) -> Iterator[tuple[journal.Key, journal.Value]]:
    """Yield everything on disk but pieces, in order of arrival within each kind; raises as `decode_message`."""
    for name, value in connection.execute("SELECT id, value FROM hashes ORDER BY n"):
        yield (journal.HASHES, name, 0), value
    for name, value in connection.execute("SELECT id, value FROM message WHERE value IS NOT NULL ORDER BY n"):
        yield (journal.MESSAGE, name, 0), decode_message(value)
    for name, number, value in connection.execute("SELECT name, number, value FROM meta ORDER BY name, number"):
        yield (journal.META, name, number), value
    for name, value in connection.execute("SELECT name, value FROM registry ORDER BY name"):
        yield (journal.ORDER, name, 0), value
    for kind, name, value in connection.execute("SELECT kind, name, value FROM layer ORDER BY kind, name"):
        yield (kind, name, 0), value
    for name, value in connection.execute("SELECT id, value FROM seen ORDER BY n"):
        yield (journal.SEEN, name, 0), descriptors.decode(value)
