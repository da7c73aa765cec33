"""Files of records, the runs in them, and the rows of a run.

Records are Parquet, as `lab campaign` and `emu run` write them, or lines of JSON, as real nodes do and as `emu run`
writes to a file with that ending. The run of a file is taken from its statistics; only if they do not tell it is the
file read. A line that is no row of a record (no JSON, a column of another type, a kind that there is not, a time or a
size that no node has) is counted and passed over.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Annotated, Any, NamedTuple, Self

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from carrypost.emu.records.files import ARROW_SCHEMA
from carrypost.lab import folders
from carrypost.lab.schemas import RECORDS, RUNS
from carrypost.log.files import refusing
from carrypost.log.record import SCHEMA, Kind, Line
from carrypost.model.times import MICROSECONDS
from carrypost.traces.csvfiles import TIME_S_MAX

REAL = "node"
"""Prefix of the runs of real nodes, before a stroke."""
COLUMNS = ("t", "kind", "node", "peer", "message", "hops", "size", "detail", "attrs")
"""Columns of a record that families need."""
TEXTS = ("kind", "node", "peer", "message", "detail")
_LINES = ("*.jsonl", "*.ndjson")
SIZE_MAX = 1 << 53
_INT32 = 1 << 31


class _Line(Line, kw_only=True):
    """One row whose values a node can have written."""

    t: Annotated[float, msgspec.Meta(ge=-TIME_S_MAX, le=TIME_S_MAX)]
    kind: Kind
    hops: Annotated[int, msgspec.Meta(ge=-_INT32, lt=_INT32)] | None = None
    size: Annotated[int, msgspec.Meta(ge=-SIZE_MAX, le=SIZE_MAX)] | None = None


@dataclass(frozen=True, slots=True)
class Source:
    """Files of records."""

    path: Path
    files: tuple[Path, ...]
    lines: bool
    """True if they are lines of JSON, not Parquet."""

    @classmethod
    def find(cls, path: Path) -> Self:
        """Return the records in a folder, or one file; what is no record is refused."""
        lines = _files_of_lines(path)
        return cls(path, tuple(lines or folders.parquet_files(path, RECORDS, _of_campaign(path))), bool(lines))

    def read(self) -> tuple[pa.Table, int]:
        """Return the rows of all files, of whatever runs, and how many lines are none."""
        if self.lines:
            tables, unreadable = zip(*map(read_lines, self.files), strict=True)
            return pa.concat_tables(tables), sum(unreadable)
        return folders.read_arrow(self.path, RECORDS), 0

    @property
    def nbytes(self) -> int:
        """Size of all files."""
        return sum(file.stat().st_size for file in self.files)


def _of_campaign(path: Path) -> frozenset[str]:
    """Return the names of the records that a campaign wrote to a folder: there may be very many."""
    files = (path / RUNS.name).glob("*.parquet")
    with suppress(OSError, pa.ArrowException):
        return frozenset(
            chain.from_iterable(pq.read_table(file, columns=["record"])["record"].to_pylist() for file in files)
        )
    return frozenset()


def _files_of_lines(path: Path) -> list[Path]:
    """Files of JSON lines, if it is these that are there."""
    if path.is_file():
        return [path] if any(path.match(pattern) for pattern in _LINES) else []
    folder = path / RECORDS.name if (path / RECORDS.name).is_dir() else path
    found = sorted(file for pattern in _LINES for file in folder.glob(pattern) if not file.name.startswith("."))
    return found if not any(folder.glob("*.parquet")) else []


def read_lines(path: Path) -> tuple[pa.Table, int]:
    """Return the rows of a file, of whatever runs, and how many lines are none."""
    columns: dict[str, list[Any]] = {each.name: [] for each in SCHEMA}
    appends = [(name, column.append) for name, column in columns.items()]
    decode, unreadable = msgspec.json.Decoder(_Line).decode, 0
    with refusing(f"{path} cannot be read"), path.open("rb") as file:
        for text in file:
            if not text.strip():
                continue
            try:
                line = decode(text)
            except (msgspec.MsgspecError, UnicodeDecodeError):
                unreadable += 1
                continue
            for name, append in appends:
                append(getattr(line, name))
    columns["attrs"] = [None if each is None else list(each.items()) for each in columns["attrs"]]
    return pa.table(columns, schema=ARROW_SCHEMA), unreadable


class RowGroup(NamedTuple):
    """A row group of a file, and the time span of its rows, as far as its statistics have it."""

    file: str
    number: int
    rows: int
    first_us: float
    last_us: float

    def touches(self, first_us: float, last_us: float) -> bool:
        """Return True if rows of this time may be in it."""
        return self.first_us <= last_us and self.last_us >= first_us


def _readable(path: str | Path) -> AbstractContextManager[None]:
    """Refuse a file that is no record, or cannot be read, while the block lasts."""
    return refusing(f"{path} cannot be read as a record", pa.ArrowException)


def _span_us(group: Any) -> tuple[float, float]:  # noqa: ANN401 - Arrow has no types
    """Return the times of a row group; without statistics, all times."""
    columns = (group.column(at) for at in range(group.num_columns))
    statistics = next((each.statistics for each in columns if each.path_in_schema == "t"), None)
    if statistics is None or not statistics.has_min_max:
        return -math.inf, math.inf
    return round(statistics.min * MICROSECONDS), round(statistics.max * MICROSECONDS)


@dataclass(frozen=True, slots=True)
class RunFiles:
    """The files with the rows of a run."""

    run: str
    names: tuple[str, ...]
    """Names of the run in the files: one, except for real nodes that are combined to one run."""
    files: tuple[str, ...]
    """Paths of Parquet files."""
    shared: bool
    """True if there are other runs in them."""

    def groups(self) -> list[RowGroup]:
        """Return the row groups of its files."""
        found = []
        for file in self.files:
            with _readable(file):
                statistics = pq.read_metadata(file)
            groups = (statistics.row_group(number) for number in range(statistics.num_row_groups))
            found += [RowGroup(file, number, each.num_rows, *_span_us(each)) for number, each in enumerate(groups)]
        return found

    def rows(self, groups: Sequence[RowGroup] | None = None, columns: Sequence[str] = COLUMNS) -> pa.Table:
        """Return some columns of its rows, of all row groups or of some; all that families need if none are named."""
        wanted: dict[str, list[int]] = {file: [] for file in self.files} if groups is None else {}
        for group in groups or ():
            wanted.setdefault(group.file, []).append(group.number)
        return pa.concat_tables([self._read(file, numbers, columns) for file, numbers in wanted.items()])

    def _read(self, path: str, groups: Sequence[int], columns: Sequence[str]) -> pa.Table:
        names = [*columns, "run"] if self.shared else list(columns)
        with _readable(path):
            file = pq.ParquetFile(path, read_dictionary=[name for name in (*TEXTS, "run") if name in names])
            found = file.read_row_groups(groups, columns=names) if groups else file.read(columns=names)
        if not self.shared:
            return found
        return found.filter(pc.is_in(found["run"].cast(pa.string()), pa.array(self.names))).drop_columns(["run"])


def runs(files: Mapping[str, Iterable[str]], *, merge: bool) -> list[RunFiles]:
    """Return the runs in these files by name; `merge`: real nodes are one run."""
    there: dict[str, tuple[set[str], dict[str, None]]] = {}
    by_file: dict[str, set[str]] = {}
    for file, names in files.items():
        for name in names:
            run = REAL if merge and name.startswith(f"{REAL}/") else name
            known, where = there.setdefault(run, (set(), {}))
            known.add(name)
            where[file] = None
            by_file.setdefault(file, set()).add(run)
    return [
        RunFiles(run, tuple(sorted(names)), tuple(where), any(len(by_file[file]) > 1 for file in where))
        for run, (names, where) in sorted(there.items())
    ]


def names_in(path: Path) -> list[str]:
    """Return the runs in a Parquet file."""
    with _readable(path):
        return folders.texts_in(path, "run")


def file_digest(file: str) -> bytes:
    """Return the hash of a file."""
    with refusing(f"{file} cannot be read"), Path(file).open("rb") as content:
        return hashlib.file_digest(content, "sha256").digest()


def joined(parts: Sequence[str | bytes], digests: Iterable[bytes]) -> str:
    """Return the hash of some files, given their own ones, and of what else counts."""
    made = hashlib.sha256()
    for each in digests:
        made.update(each)
    for part in parts:
        made.update(hashlib.sha256(part.encode() if isinstance(part, str) else part).digest())
    return made.hexdigest()
