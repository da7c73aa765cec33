"""Files of a run, as row groups in order of time.

A Parquet file is read group by group, and only the columns that are asked for; a group whose statistics lie outside the
time asked for is not read at all. JSON lines are kept in memory as columns: all files of a folder are one run, and what
nodes add to them is read when it is asked for. The one invariant: groups, and the rows in them, are in order of time.
A file that is not in order, or has several runs, is sorted in memory.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Iterable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from carrypost.arrays import Floats
from carrypost.emu.records.files import ENCODED_SCHEMA, check_columns, encoded_column, reading
from carrypost.errors import FileError
from carrypost.log.files import refusing
from carrypost.log.record import SCHEMA, Line

TEXTS = tuple(column.name for column in SCHEMA if column.type == "string")
LINES = (".jsonl", ".ndjson")
PART = ".part"
_T_MAX = 1e12
"""Seconds: as microseconds they must fit into 64 bits."""
_GROUP_ROWS = 100_000


class Group(NamedTuple):
    """Rows that are read together."""

    first: int
    """Number of its first row in the run."""
    rows: int
    start: float
    end: float
    """Time of its last row."""


class Source(Protocol):
    """The rows of one run."""

    run: str
    path: Path
    groups: list[Group]
    notes: list[str]
    """Sentences about what is wrong with the files."""
    follows: bool
    """True if rows may be added."""

    def read(self, group: int, *columns: str) -> pa.Table:
        """Return columns of a group; texts are dictionaries."""

    def changed(self) -> bool:
        """Read what was added to the files; return True if anything was."""


def rows_of(source: Source) -> int:
    """Return the number of rows."""
    return source.groups[-1].first + source.groups[-1].rows if source.groups else 0


def within(source: Source, start: float, end: float) -> Iterator[int]:
    """Yield the groups that may have rows in a span of time."""
    for number, group in enumerate(source.groups):
        if group.start <= end and group.end >= start:
            yield number


class ParquetSource:
    """A Parquet file whose row groups are in order."""

    follows = False

    def __init__(self, path: Path, run: str, file: pq.ParquetFile, groups: list[Group]) -> None:
        self.path, self.run, self.groups = path, run, groups
        self.notes: list[str] = []
        self._file = file
        self._lock = threading.Lock()

    def read(self, group: int, *columns: str) -> pa.Table:
        """Return columns of a group; texts are dictionaries."""
        with self._lock, reading(self.path):
            return self._file.read_row_group(group, columns=list(columns), use_threads=False)

    def changed(self) -> bool:
        """Return False: a Parquet file is whole once it has its name."""
        return False


class TableSource:
    """Rows in memory."""

    follows = False

    def __init__(self, path: Path, run: str, table: pa.Table) -> None:
        self.path, self.run = path, run
        self.notes: list[str] = []
        self.groups: list[Group] = []
        self._table = table
        self._hold(table)

    def _hold(self, table: pa.Table) -> None:
        """Keep these rows, in order of time."""
        t = table["t"].to_numpy()
        there = np.abs(t) < _T_MAX  # Written so that nan fails, too.
        if not there.all():
            self.notes.append(f"{np.count_nonzero(~there):,} rows without a time that can be shown were left out")
            table = table.filter(pa.array(there))
            t = table["t"].to_numpy()
        if (np.diff(t) < 0).any():
            order = np.argsort(t, kind="stable")
            table, t = table.take(pa.array(order)), t[order]
        self._table = table.combine_chunks()
        self.groups = list(_cut(t))

    def read(self, group: int, *columns: str) -> pa.Table:
        """Return columns of a group; texts are dictionaries."""
        return self._table.select(columns).slice(self.groups[group].first, self.groups[group].rows)

    def changed(self) -> bool:
        """Return False: nothing is added."""
        return False


def _cut(t: Floats) -> Iterator[Group]:
    for first in range(0, len(t), _GROUP_ROWS):
        part = t[first : first + _GROUP_ROWS]
        yield Group(first, len(part), float(part[0]), float(part[-1]))


# --- Parquet ---------------------------------------------------------------------------------------------------------


def parquet(path: Path) -> list[Source]:
    """Return the runs of a Parquet file; raises `CarrypostError`."""
    with reading(path):
        with path.open("rb"):
            file = pq.ParquetFile(path, memory_map=True, read_dictionary=list(TEXTS))
            check_columns(path, file.schema_arrow.names)
        if not file.metadata.num_rows:
            raise FileError("it is empty")
    groups = list(_groups(path, file))
    names = _runs(path, file)
    in_order = all(one.end <= two.start for one, two in pairwise(groups))
    if len(names) == 1 and in_order and all(-_T_MAX < group.start <= group.end < _T_MAX for group in groups):
        return [ParquetSource(path, names[0], file, groups)]
    return in_memory(path)


def in_memory(path: Path) -> list[Source]:
    """Return the runs of a Parquet file, sorted."""
    with reading(path):
        table = pq.read_table(path, columns=[each.name for each in SCHEMA], read_dictionary=list(TEXTS))
        run = table["run"].cast(pa.string())
        names = run.unique().to_pylist()
        return [TableSource(path, name or "", table.filter(pc.equal(run, name))) for name in names]


def _runs(path: Path, file: pq.ParquetFile) -> list[str]:
    """Return the names of the runs: from statistics, else from the column."""
    at, found = file.schema_arrow.names.index("run"), dict[str, None]()
    for number in range(file.metadata.num_row_groups):
        known = file.metadata.row_group(number).column(at).statistics
        if known is not None and known.has_min_max and known.min == known.max:
            found[str(known.min)] = None
            continue
        with reading(path):
            column = file.read_row_group(number, columns=["run"])["run"]
        found |= dict.fromkeys(str(each) for each in column.cast(pa.string()).unique().to_pylist())
    return list(found)


def _groups(path: Path, file: pq.ParquetFile) -> Iterator[Group]:
    at, first, span = file.schema_arrow.names.index("t"), 0, (-math.inf, -math.inf)
    for number in range(file.metadata.num_row_groups):
        about = file.metadata.row_group(number)
        known = about.column(at).statistics
        if not about.num_rows:
            span = span[1], span[1]
        elif known is not None and known.has_min_max:
            span = known.min, known.max
        else:
            with reading(path):
                t = file.read_row_group(number, columns=["t"])["t"].to_numpy()
            span = float(t.min()), float(t.max())
        yield Group(first, about.num_rows, *span)
        first += about.num_rows


# --- JSON lines ------------------------------------------------------------------------------------------------------


class _Line(Line, kw_only=True):
    """A row; all that makes it one is its time."""

    run: str = ""
    kind: str = ""
    node: str = ""


_DECODER = msgspec.json.Decoder(_Line)


class LinesSource(TableSource):
    """JSON lines: a file, or all files of a folder, as far as they are written."""

    follows = True

    def __init__(self, path: Path) -> None:
        self._read: dict[Path, int] = {}
        """Bytes of each file that are read, by its final name."""
        self._tables: list[pa.Table] = []
        self._bad = 0
        super().__init__(path, path.resolve().name, ENCODED_SCHEMA.empty_table())
        self._named = path.is_dir()  # Every node calls its run in another way.

    def changed(self) -> bool:
        """Read what was added to the files; return True if anything was."""
        fresh: list[_Line] = []
        with refusing(f"{self.path} cannot be read"):
            for file in lines_in(self.path) if self.path.is_dir() else [self.path]:
                fresh += self._added(file)
        if not fresh:
            return False
        self._tables.append(_table(fresh))
        self.notes = [f"{self._bad:,} lines are not rows of a record, and were left out"] if self._bad else []
        whole = pa.concat_tables(self._tables).unify_dictionaries()
        self._tables = [whole]
        if not self._named and (name := next((line.run for line in fresh if line.run), "")):
            self.run, self._named = name, True
        self._hold(whole)
        return True

    def _added(self, file: Path) -> list[_Line]:
        known = file.with_name(file.name.removesuffix(PART))
        with file.open("rb") as opened:
            begun = self._read.get(known, 0)
            opened.seek(begun)
            content = opened.read()
        whole = content.rfind(b"\n") + 1
        if not file.name.endswith(PART) and whole < len(content) and _row(content[whole:]) is not None:
            whole = len(content)  # The last line of a file need not end.
        self._read[known] = begun + whole
        try:
            return _DECODER.decode_lines(content[:whole])
        except (msgspec.MsgspecError, UnicodeDecodeError):
            lines = [line for line in content[:whole].splitlines() if line.strip()]
            found = [row for line in lines if (row := _row(line)) is not None]
            self._bad += len(lines) - len(found)
            return found


def _row(line: bytes) -> _Line | None:
    try:
        return _DECODER.decode(line)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return None


def lines_in(folder: Path) -> list[Path]:
    """Return the files of JSON lines in a folder, unfinished ones included."""
    found = [each for each in folder.iterdir() if each.name.removesuffix(PART).endswith(LINES) and each.is_file()]
    return sorted(found, key=lambda each: each.name)


def _table(lines: Iterable[_Line]) -> pa.Table:
    columns = ([getattr(line, field.name) for line in lines] for field in ENCODED_SCHEMA)
    arrays = [_column(field.type, values) for field, values in zip(ENCODED_SCHEMA, columns, strict=True)]
    return pa.Table.from_arrays(arrays, schema=ENCODED_SCHEMA)


def _column(kind: pa.DataType, values: list[Any]) -> pa.Array:
    """Return a column, without numbers that it cannot hold."""
    try:
        return encoded_column(kind, values)
    except (pa.ArrowException, OverflowError):
        most = 1 << (kind.bit_width - 1)
        return pa.array([None if each is None or not -most <= each < most else each for each in values], kind)
