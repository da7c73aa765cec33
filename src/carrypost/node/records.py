"""Records that a real node writes of itself, in rotated files, and the history of messages for `carrypost trace`.

The record has events, and samples of traffic and sizes, as JSON lines in files that are complete once they have their
name. The history has rows of the record, in an SQLite file.
"""

# The record. Rows are collected in memory and appended at intervals to a file that ends in ``.part``. When it
# is long or old enough it gets its name by an atomic rename and a new one is begun, so that a
# reader of the folder, such as the laboratory's stream, sees only whole files. The remains of a
# killed predecessor are completed first: its last line may be cut short, and is removed.
#
# A record must never cost the node anything else. A folder that cannot be used is reported at once,
# to the user that named it, since that is a mistake in the settings. Later failures, and a disk
# that is full at the start, cost rows, which are counted: the node logs it once, and again when it
# is over.

# The history. It has no index. A message costs a node two or three rows, and a person asks about one
# message in a million. An index over random ids would cost more than everything else that is
# written. So rows are collected in memory and written in bursts, each one value of JSON lines; a
# search reads all bursts, which are few megabytes.
#
# A burst counts as many messages as it reports arrivals, or as its bytes are worth if that is more:
# peers choose labels, and how much is refused. The oldest bursts are deleted while the others
# contain as many messages as are to be kept.
#
# The history is an aid, and never costs the node anything else: a damaged file is set aside, a full
# disk costs rows, and the file is not synced to the disk, so a loss of power may damage it.

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import platform
import re
import sqlite3
import time
from collections import Counter, deque
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any

import msgspec

from carrypost.config import Settings, differences
from carrypost.errors import ConfigError, NodeError
from carrypost.extensions import BUILD
from carrypost.log import events
from carrypost.log.events import Event
from carrypost.log.files import FULL, reason, refused
from carrypost.log.record import Kind, Record
from carrypost.model import ids
from carrypost.model.times import MICROSECONDS
from carrypost.node.driver import NodeDriver
from carrypost.node.settings import NodeSettings, RecordSettings, TraceSettings
from carrypost.version import __version__

_PART = ".part"
_record_log = logging.getLogger("carrypost.log.record")


class Archive:
    """The files of one node's record."""

    def __init__(self, folder: Path, node: str, run: str, settings: RecordSettings) -> None:
        self.record = Record(run)
        self.lost = 0
        """Rows that could not be written."""
        self._folder = folder
        self._stem = re.sub(r"[^\w.-]", "_", node)
        # Another node's name may begin with this one's.
        self._own = re.compile(re.escape(self._stem) + r"-\d{8}T\d{6}-\d+-\d{6,}\.jsonl(\.part)?")
        self._settings = settings
        self._number = 0
        self._part: Path | None = None
        self._bytes = 0
        self._begun_s = 0.0
        self._failed = False
        self._complete()

    def _complete(self) -> None:
        """Give their names to the files that a killed predecessor left."""
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            for part in self._files(_PART):
                content = part.read_bytes()
                whole = content.rfind(b"\n") + 1
                if not whole:
                    part.unlink()
                    continue
                if whole < len(content):
                    os.truncate(part, whole)
                part.replace(part.with_suffix(""))
        except OSError as error:
            self._refuse(error)

    def begin(self) -> None:
        """Write the first rows; raises `ConfigError` or `NodeError` if the folder cannot be used."""
        try:
            self._append(self._lines())
        except OSError as error:
            self.lost += len(self.record)
            self._refuse(error)
        self.record.clear()

    def _refuse(self, error: OSError) -> None:
        """Prevent the node from starting if a record cannot be begun, except for a full disk, which passes."""
        if error.errno not in FULL:
            what = f"the record cannot be written to {self._folder}"
            raise refused(what, error, misnamed=ConfigError, otherwise=NodeError) from None
        self._warn(error)

    def _files(self, suffix: str = "") -> list[Path]:
        """Return the files of this node, the oldest first."""
        return sorted(
            each
            for each in self._folder.iterdir()
            if (found := self._own.fullmatch(each.name)) and (found[1] or "") == suffix
        )

    def flush(self, *, final: bool = False) -> None:
        """Append collected rows; end the file if it is long or old enough, or the last one."""
        if rows := len(self.record):
            lines = self._lines()
            self.record.clear()
            try:
                self._append(lines)
            except OSError as error:
                self.lost += rows
                self._warn(error)
        self._rotate(final=final)

    def _lines(self) -> bytes:
        return "".join(f"{line}\n" for line in self.record.json_lines()).encode()

    def _append(self, lines: bytes) -> None:
        if self._part is None or not self._part.exists():  # A user may have removed it.
            self._folder.mkdir(parents=True, exist_ok=True)
            self._number += 1
            stamp = time.strftime("%Y%m%dT%H%M%S", time.gmtime())
            self._part = self._folder / f"{self._stem}-{stamp}-{os.getpid()}-{self._number:06}.jsonl{_PART}"
            self._bytes, self._begun_s = 0, time.monotonic()
        with self._part.open("ab", buffering=0) as file:
            rest = memoryview(lines)
            try:
                while rest:
                    rest = rest[file.write(rest) :]
            except OSError:
                file.truncate(self._bytes)  # Half a line would spoil the next one.
                raise
        self._bytes += len(lines)
        if self._failed:
            self._failed = False
            _record_log.warning("the record in %s can be written again; %d rows are missing", self._folder, self.lost)

    def _rotate(self, *, final: bool) -> None:
        part, settings = self._part, self._settings
        if part is None or not (
            final or self._bytes >= settings.rotate_bytes or time.monotonic() - self._begun_s >= settings.rotate_s
        ):
            return
        try:
            if part.exists():
                part.replace(part.with_suffix(""))
            self._part = None
            for old in self._files()[: -settings.files_max]:
                old.unlink()
        except OSError as error:
            self._warn(error)

    def _warn(self, error: OSError) -> None:
        if not self._failed:
            path = error.filename or self._folder
            _record_log.warning(
                "the record at %s cannot be written: %s; the node continues without it", path, reason(error)
            )
        self._failed = True


_FLUSH_S = 1.0
"""Interval at which rows are written; those of the record more often where samples are wanted more often."""


class RecordWriter:
    """Writes one node's record."""

    def __init__(self, folder: Path, settings: NodeSettings, driver: NodeDriver) -> None:
        self._driver = driver
        self._node = driver.host.node
        self._sample_s = settings.record.sample_s
        self.archive = Archive(folder, self._node, run=f"node/{self._node}", settings=settings.record)
        self._traffic: Counter[str] = Counter()
        driver.traffic = self._traffic
        now = driver.date
        attrs = {"version": __version__, "build": BUILD, "python": platform.python_version()}
        self.archive.record.add(Kind.RUN, now, self._node, attrs=attrs | differences(settings.core, Settings()))
        self.archive.record.add(Kind.JOIN, now, self._node)
        self.archive.begin()
        self._chore = asyncio.get_running_loop().create_task(self._keep())

    def observe(self, event: Event) -> None:
        """Record an event of the host."""
        self.archive.record.observe(self._driver.date, self._node, event)

    def close(self) -> None:
        """Write the last rows, and give the last file its name."""
        self._chore.cancel()
        self._sample()
        self.archive.record.add(Kind.LEAVE, self._driver.date, self._node)
        self.archive.flush(final=True)

    async def _keep(self) -> None:
        loop = asyncio.get_running_loop()
        due_s = loop.time() + self._sample_s
        while True:
            await asyncio.sleep(min(_FLUSH_S, self._sample_s))
            if loop.time() >= due_s:
                due_s = loop.time() + self._sample_s
                self._sample()
            self.archive.flush()

    def _sample(self) -> None:
        record, now = self.archive.record, self._driver.date
        for kind, nbytes in sorted(self._traffic.items()):
            record.add(Kind.TRAFFIC, now, self._node, size=nbytes, detail=kind)
        self._traffic.clear()
        record.add(Kind.REGISTRY, now, self._node, size=self._driver.host.overview().messages, detail="cache")


_ROWS_MAX = 4_096
"""Rows that wait in memory to be written."""
_MESSAGE_BYTES = 4_096
"""Number of bytes of history that count as one message, whatever they contain."""
_FOUND_MAX = 20
"""Number of messages of one label that are returned, the latest."""
_TOLD_MAX = 10_000
"""Number of rows that are returned, the latest."""
_ARRIVALS = frozenset({Kind.PUBLISH.value, Kind.RECEIVE.value})
_UNNAMED = frozenset(
    {events.NeighbourUp, events.NeighbourDown, events.OneWay, events.Reachable, events.Unreachable}
)  # fmt: skip
"""Events with rows that are about no message."""
_DAMAGED = frozenset({sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB})
_PRIMARY = 0xFF
"""The part of an error's code that is not a detail."""
_TABLE = "CREATE TABLE IF NOT EXISTS burst (number INTEGER PRIMARY KEY, until_us INTEGER, messages INTEGER, lines TEXT)"
_trace_log = logging.getLogger("carrypost.trace")


class Traces:
    """The history of the messages of one node."""

    def __init__(self, file: Path, settings: TraceSettings, driver: NodeDriver) -> None:
        self._file, self._settings, self._driver = file, settings, driver
        self._node = driver.host.node
        self._record = Record(by_id=True)
        self._timer: asyncio.TimerHandle | None = None
        self._connection: sqlite3.Connection | None = None
        self._bursts: deque[tuple[int, int, int]] = deque()
        """Number, time of the last row and messages of every burst in the file, the oldest first."""
        self._messages = 0
        self._failed = False
        self.lost = 0
        """Rows that could not be written."""
        with self._trying():
            self._open()
        driver.trace()

    def observe(self, event: events.Event) -> None:
        """Note an event of the host, if it is about a message."""
        if type(event) in _UNNAMED or (isinstance(event, events.Refused) and event.message is None):
            return
        self._record.observe(self._driver.date, self._node, event)
        if len(self._record) >= _ROWS_MAX:
            self.flush()
        elif self._timer is None and len(self._record):
            self._timer = asyncio.get_running_loop().call_later(_FLUSH_S, self.flush)

    def flush(self) -> None:
        """Write what was collected, and delete what is too old."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        record = self._record
        rows = len(record)
        lines = "\n".join(record.json_lines())
        messages = max(sum(kind in _ARRIVALS for kind in record.kind), len(lines) // _MESSAGE_BYTES)
        record.clear()
        self.lost += rows
        with self._trying():
            self._write(lines, messages, self._driver.date)
            self.lost -= rows
            if self._failed:
                self._failed = False
                _trace_log.warning("the history %s can be written again; %d rows are missing", self._file, self.lost)

    def find(self, name: str) -> list[dict[str, Any]]:
        """Return the rows of the message with this id, or of those with this label, in order of time."""
        self.flush()
        names = ids.spellings(name)
        found: dict[str, None] = {}
        for row in self._rows(names):
            if row["message"] in names or row.get("attrs", {}).get("label") == name:
                found[row["message"]] = None
        wanted = set(list(found)[-_FOUND_MAX:])
        return list(deque((row for row in self._rows(wanted) if row["message"] in wanted), _TOLD_MAX))

    def close(self) -> None:
        """Write the rows collected so far, and close the file."""
        self.flush()
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    # --- the file ------------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def _trying(self) -> Iterator[None]:
        """Continue without a history if it cannot be written, and log that once; set a damaged file aside."""
        try:
            yield
        except (sqlite3.Error, OSError) as error:
            if self._connection is not None:
                self._connection.close()
                self._connection = None
            damaged = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_OK) & _PRIMARY in _DAMAGED
            if not self._failed and not (damaged and self._set_aside(error)):
                self._failed = True
                why = reason(error)
                _trace_log.warning(
                    "the history %s cannot be written: %s; the node continues without it", self._file, why
                )

    def _set_aside(self, error: Exception) -> bool:
        """Rename a damaged file; return False if that fails."""
        aside = self._file.with_name(f"{self._file.name}.damaged")
        try:
            self._file.replace(aside)
            for suffix in ("-wal", "-shm"):
                self._file.with_name(self._file.name + suffix).unlink(missing_ok=True)
        except OSError:
            return False
        _trace_log.warning(
            "the history %s is damaged (%s): it was renamed to %s, and a new one was started",
            self._file,
            error,
            aside.name,
        )
        return True

    def _open(self) -> sqlite3.Connection:
        if self._connection is None:
            os.close(os.open(self._file, os.O_RDWR | os.O_CREAT, 0o600))
            self._connection = connection = sqlite3.connect(self._file, isolation_level=None)
            for statement in ("PRAGMA journal_mode = WAL", "PRAGMA synchronous = OFF", _TABLE):
                connection.execute(statement)
            self._bursts = deque(connection.execute("SELECT number, until_us, messages FROM burst ORDER BY number"))
            self._messages = sum(messages for _, _, messages in self._bursts)
        return self._connection

    def _write(self, lines: str, messages: int, now: int) -> None:
        connection = self._open()
        if lines:
            number = self._bursts[-1][0] + 1 if self._bursts else 1
            connection.execute("INSERT INTO burst VALUES (?, ?, ?, ?)", (number, now, messages, lines))
            self._bursts.append((number, now, messages))
            self._messages += messages
        oldest_us = now - round(self._settings.keep_s * MICROSECONDS)
        last = 0
        while self._bursts:
            number, until_us, counted = self._bursts[0]
            if self._messages - counted < self._settings.messages_max and until_us >= oldest_us:
                break
            self._bursts.popleft()
            self._messages -= counted
            last = number
        if last:
            connection.execute("DELETE FROM burst WHERE number <= ?", (last,))

    def _rows(self, names: Collection[str]) -> list[dict[str, Any]]:
        """Return the rows that contain one of these names, in order of time."""
        needles = [msgspec.json.encode(name).decode() for name in names]
        found: list[dict[str, Any]] = []
        with self._trying():
            for (lines,) in self._open().execute("SELECT lines FROM burst ORDER BY number"):
                if any(needle in lines for needle in needles):
                    matching = [line for line in lines.split("\n") if any(needle in line for needle in needles)]
                    found += filter(None, map(_row, matching))
        return found


def _row(line: str) -> dict[str, Any] | None:
    """Return a row; None for a line that is damaged, which SQLite does not notice."""
    try:
        row = msgspec.json.decode(line, type=dict[str, Any])
    except msgspec.DecodeError:
        return None
    return row if {"message", "kind", "t"} <= row.keys() else None
