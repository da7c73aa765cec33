"""Files of records and what their first rows say of a run, and tables of many runs, which stay when runs are added.

Records are Parquet, as `lab campaign` and `emu run` write them, or lines of JSON, as real nodes do and as `emu run`
writes to a file with that ending. The run of a file is taken from its statistics; only if they do not tell it is the
file read. A line that is no row of a record (no JSON, a column of another type, a kind that there is not, a time or a
size that no node has) is counted and passed over.

The first row names the mode of the emulator that made the run. A run of population mode has no rows of hosts: no frames
were sent, and no neighbours were found. Families made of such rows have nothing of it, which is remarked wherever they
are shown.

A task leaves the tables of some runs in a folder, a file for each family, and the driver puts these files beside those
that are there: it reads no rows. In a file is, run by run, the digest of the inputs and the origin of the run: a run
whose digest is unchanged is not read again. A file with runs that are gone or changed is written again without them.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import shutil
import tomllib
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Annotated, Any, NamedTuple, Self

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from carrypost.emu.records import ARROW_SCHEMA
from carrypost.emu.scenario_tables import POPULATION
from carrypost.lab import folders
from carrypost.lab.folders import Folder
from carrypost.lab.metrics import families as f
from carrypost.lab.schemas import RECORDS, RUNS, Table
from carrypost.log.files import refused, refusing, staged
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


NEEDS = {
    f.TRAFFIC: "traffic", f.REGISTRIES: "registry", f.REGISTRY_SIZES: "registry", f.PATH_LENGTHS: "path",
    f.BROKER_TRAFFIC: "registry", f.LOAD: "load",
}  # fmt: skip
"""Families made of rows that only hosts write, and these rows."""


class Origin(NamedTuple):
    """Origin of a run."""

    mode: str
    """Empty: not known, or real nodes."""
    calibration: str
    """Of population mode: the origin of its delays."""
    counted: bool
    """True if rows were not kept, so that only its counts are known."""

    @property
    def of_population(self) -> bool:
        """True if no hosts ran."""
        return self.mode == POPULATION


def first_row(record: Path) -> dict[str, str]:
    """Return the attributes of the first row of a record; none where there is no such file."""
    try:
        batch = next(pq.ParquetFile(record).iter_batches(batch_size=1, columns=["attrs"]), None)
    except FileNotFoundError:  # Metrics may have been taken elsewhere without the records.
        return {}
    except (OSError, pa.ArrowException) as error:
        raise refused(f"{record} cannot be read as a record", error) from None
    return {} if batch is None or not batch.num_rows else dict(batch["attrs"][0].as_py() or ())


def origin(first: dict[str, str]) -> Origin:
    """Return what made the run that begins with this row."""
    try:
        table = tomllib.loads(first.get("defaults", "")).get(POPULATION, {})
    except tomllib.TOMLDecodeError:  # Written by a version of another kind.
        table = {}
    return Origin(first.get("mode", ""), first.get("calibration", ""), table.get("rows") == "none")


def remarks(origins: Iterable[Origin], wanted: Iterable[Table]) -> list[str]:
    """Return remarks about runs of population mode: what they are, and which families know nothing of them."""
    found = [each for each in origins if each.of_population]
    if not found:
        return []
    many = f"{len(found):,} runs are" if len(found) > 1 else "one run is"
    named = "; ".join(dict.fromkeys(each.calibration for each in found))
    remarks = [f"{many} of population mode, calibrated by: {named}"]
    if lacking := [f"{table.name} (rows `{NEEDS[table]}`)" for table in wanted if table in NEEDS]:
        remarks.append(f'{", ".join(lacking)} need rows that only mode = "faithful" has')
    if counted := sum(each.counted for each in found):
        many = f"{counted:,} of them have" if counted > 1 else "one of them has"
        remarks.append(f'{many} counts only (population.rows = "none"): see `carrypost emu show`')
    return remarks


def origin_of(of: RunFiles) -> Origin:
    """Return what made a run; a file of several runs has the first row of only one of them at its beginning."""
    return origin({} if of.shared else first_row(Path(of.files[0])))


_NAME = b"table"
_RUNS = b"carrypost.runs"
_PART = "part-{:05d}.parquet"


def write(path: Path, tables: Mapping[str, pa.Table]) -> None:
    """Write tables as one file, complete or absent."""
    with staged(path) as written, pa.OSFile(str(written), "wb") as file:
        for name, table in tables.items():
            with pa.ipc.new_stream(file, named(table, name)) as stream:
                stream.write_table(table)


def named(table: pa.Table, name: str) -> pa.Schema:
    """Return the schema of a table with a name, by which `read` finds it."""
    return table.schema.with_metadata({_NAME: name.encode()})


def read(path: Path) -> dict[str, pa.Table]:
    """Tables out of a file, by name."""
    found = {}
    with refusing(f"{path} cannot be read", pa.ArrowException), pa.OSFile(str(path), "rb") as file:
        while file.tell() < file.size():
            table = pa.ipc.open_stream(file).read_all()
            found[table.schema.metadata[_NAME].decode()] = table
    return found


class Known(NamedTuple):
    """The notes on a run beside its rows."""

    digest: str
    """Of its record, and of what else the tables depend on."""
    origin: Origin


Append = Callable[[str, Known, Mapping[str, pa.Table]], None]
"""Takes a run, what is known of it, and its rows by table."""


class KeptTable:
    """A table of many runs on disk, as far as it can be used again."""

    def __init__(self, folder: Path, table: Table, notes: dict[bytes, dict[str, Known]]) -> None:
        self._table = table
        self.files: dict[Path, dict[str, Known]] = {}
        """The runs in each file; those without rows, too."""
        for path in sorted((folder / table.name).glob(_PART.replace("{:05d}", "*"))):
            with suppress(OSError, pa.ArrowException, ValueError, KeyError, TypeError):  # Then it is made anew.
                text = pq.read_metadata(path).metadata[_RUNS]
                if text not in notes:
                    noted = json.loads(text)
                    notes[text] = {run: Known(digest, Origin(*made_by)) for run, (digest, made_by) in noted.items()}
                self.files[path] = notes[text]

    @property
    def runs(self) -> dict[str, Known]:
        """All runs that are known."""
        return {run: known for each in self.files.values() for run, known in each.items()}

    def put(self, folder: Path, digests: Mapping[str, str], new: Sequence[Path]) -> int:
        """Replace the table by those of its rows whose digests are these, and by new files; return how many rows."""
        with folders.staged(folder / self._table.name) as partial:
            partial.mkdir()
            rows = 0
            for number, path in enumerate(self._usable(digests, partial, new)):
                target = partial / _PART.format(number)
                _link(path, target)
                rows += pq.read_metadata(target).num_rows
            for left in partial.glob("old-*"):
                left.unlink()
            return rows

    def _usable(self, digests: Mapping[str, str], partial: Path, new: Sequence[Path]) -> Iterator[Path]:
        """Yield files that have only runs with these digests; what is written for that is in a folder."""
        count = 0
        for path, known in self.files.items():
            good = {run for run, each in known.items() if digests.get(run) == each.digest}
            if len(good) == len(known):
                count += 1
                yield path
            elif good:
                count += 1
                yield self._without(path, {run: known[run] for run in good}, partial / f"old-{count}")
        yield from new
        if not count and not new:
            yield _written(partial / "old-0", self._table, [], {})

    def _without(self, path: Path, kept: Mapping[str, Known], target: Path) -> Path:
        rows = pq.ParquetFile(path).read()
        these = pc.is_in(rows["run"], pa.array(list(kept), pa.string()))
        return _written(target, self._table, [rows.filter(these)], kept)


def tables(folder: Path, wanted: Iterable[Table]) -> dict[str, KeptTable]:
    """Return tables by name; files of the same runs have the same notes, which are read once."""
    notes: dict[bytes, dict[str, Known]] = {}
    return {table.name: KeptTable(folder, table, notes) for table in wanted}


def _link(path: Path, target: Path) -> None:
    try:
        os.link(path, target)
    except OSError:  # A file system without links.
        shutil.copy2(path, target)


def _written(path: Path, table: Table, rows: Sequence[pa.Table], known: Mapping[str, Known]) -> Path:
    noted = {run: [each.digest, list(each.origin)] for run, each in known.items()}
    schema = table.arrow.with_metadata({_RUNS: json.dumps(noted).encode()})
    found = pa.concat_tables(
        [*(each.select(table.names).cast(table.arrow) for each in rows), table.arrow.empty_table()]
    )
    pq.write_table(found.replace_schema_metadata(schema.metadata), path, compression="zstd")
    return path


@contextmanager
def appending(folder: Path, tables: Collection[Table]) -> Iterator[Append]:
    """Yield a function that collects the rows of runs; after the block, a file of each table is in a folder."""
    known: dict[str, Known] = {}
    rows: dict[str, list[pa.Table]] = {table.name: [] for table in tables}

    def append(run: str, about: Known, found: Mapping[str, pa.Table]) -> None:
        known[run] = about
        for name, each in rows.items():
            each.append(found[name])

    with folders.staged(folder) as partial:
        partial.mkdir()
        yield append
        for table in tables:
            _written(partial / file_of(table), table, rows[table.name], known)


def file_of(table: Table) -> str:
    """Return the name of the file of a table in the folder of a task."""
    return f"{table.name}.parquet"


def put_once(folder: Folder, table: Table, rows: Sequence[pa.Table]) -> None:
    """Write a table that is always made anew."""
    with folders.staged(folder / table.name) as partial:
        partial.mkdir()
        _written(partial / _PART.format(0), table, rows, {})
