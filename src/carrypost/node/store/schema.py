"""The store's file: its tables, their versions, and whether a file may be used at all.

A file is a carrypost store by its `application_id`; `user_version` counts the migrations that it has been through.
Nothing here deletes or overwrites a file that is not what it should be: the error names the file, and what the user can
do. Rows are numbered in order of arrival, whatever their ids, so that new ones are appended and the same few pages are
written again and again: an index over the ids, which are random, costs more than everything else together. The number
of each id is read once, at the start.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
import time
from collections.abc import Sequence
from pathlib import Path

from carrypost.errors import NodeError
from carrypost.log.files import FULL, keep_entry

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
