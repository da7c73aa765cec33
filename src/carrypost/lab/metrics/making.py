"""From records to metrics, in folders on disk or of objects: each run separately, by either engine.

The driver knows which files hold which runs, and nothing of their rows. A task reads the records of some runs, makes
their tables and leaves a file of each family (`lab.metrics.records`); the driver puts these beside those of other runs.
Families go to ``metrics`` beside the records, each complete or absent, and the manifest there describes their origin.
Runs whose family is there, made of the same record in the same way, are not read again; nor are those that were done
when the command was killed.

With objects, tasks fetch the records that they measure, and put the files that they make. The driver has the tables of
metrics in a folder of its own meanwhile, and puts what is new there at the end; it fetches no record, and of each, for
a report, the first row only. Of a large run a first task puts the rows by slice, so that the tasks of its slices fetch
only these.
"""

from __future__ import annotations

import os
import re
import shutil
import tempfile
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from itertools import accumulate
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import pyarrow.parquet as pq

import carrypost
from carrypost.lab import folders
from carrypost.lab.campaign.folder import CampaignFolder, CampaignObjects, State
from carrypost.lab.folders import ObjectFolder, remove, working
from carrypost.lab.metrics import FAMILIES, WINDOW_S, families_of, records, slices, tables
from carrypost.lab.metrics.plugins import Plugin, families_with
from carrypost.lab.metrics.records import Known, Origin, RunFiles, Source, origin_of, remarks
from carrypost.lab.metrics.slices import Order, SliceOrder
from carrypost.lab.schemas import FAILURES, RECORDS, RUNS

if TYPE_CHECKING:
    from carrypost.lab.engines import Engine
    from carrypost.lab.schemas import Table


METRICS = "metrics"
SMALL_BYTES = 64 << 20
"""Size of records up to which one process is done before Spark has started."""
_PARTS = ".parts"
_BATCH_BYTES = 8 << 20
"""Bytes of records that one task measures, unless a single run has more."""


@dataclass(frozen=True, slots=True)
class Conversion:
    """A file of JSON lines to convert to Parquet."""

    lines: str
    target: str


@dataclass(frozen=True, slots=True)
class Batch:
    """Runs that one task measures, and one file of each family has."""

    runs: tuple[RunFiles, ...]
    digests: tuple[str, ...]
    families: tuple[str, ...]
    window_s: float
    target: str
    """Folder of the files."""
    plugins: tuple[Plugin, ...] = ()


def measured(batch: Batch) -> None:
    """Compute the tables of some runs, and write them to their folder, as a task."""
    target = Path(batch.target)
    if target.exists():
        return  # A killed process had come that far.
    among = families_with(batch.plugins)
    wanted = families_of(batch.families, among)
    with records.appending(target, wanted) as append:
        for of, digest in zip(batch.runs, batch.digests, strict=True):
            found = tables(of.run, of.rows(), wanted, window_s=batch.window_s, among=among)
            append(of.run, Known(digest, origin_of(of)), found)


def converted(order: Conversion) -> tuple[list[str], int]:
    """Convert lines of JSON to Parquet, as a task; return the runs in them, and the number of unreadable lines."""
    rows, unreadable = records.read_lines(Path(order.lines))
    with folders.staged(Path(order.target)) as written:
        pq.write_table(rows, written, compression="zstd", compression_level=1)
    return records.names_in(Path(order.target)), unreadable


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """The tables to be made."""

    tables: Sequence[Table] = tuple(FAMILIES)
    out: Path | None = None
    """In place of `metrics` beside the records."""
    window_s: float = WINDOW_S
    merge_runs: bool = False
    batch_runs: int = 256
    """Runs in a file of a table, at most; it changes the cost, never the result."""
    slice_rows: int = slices.SLICE_ROWS
    """Runs with more are cut into slices; it changes the cost, never the result."""
    plugins: tuple[Plugin, ...] = ()
    """Files with those of the tables that are not ours."""


def make(
    engine: Engine,
    source: Source | Sources,
    wanted: Wanted,
    *,
    on_progress: Callable[[int, int], None] = lambda _, __: None,
    unreadable: Callable[[int], None] = lambda _: None,
    remark: Callable[[str], None] = lambda _: None,
) -> Path:
    """Make these families of the records in a folder; return the folder that they are in.

    `on_progress`: called with the number of runs done, and of all; `unreadable`: with the number of lines that are no
    rows of a record; `remark`: with remarks about runs of population mode.
    """
    sources = source if isinstance(source, Sources) else FileSources(source)
    home = sources.home(wanted)
    parts = home.absolute() / _PARTS
    with folders.errors_naming(parts):
        parts.mkdir(parents=True, exist_ok=True)
    rows: dict[str, int] = {}
    origins: dict[str, Origin] = {}
    try:
        runs = _runs(engine, sources, wanted, parts, unreadable)
        # A change of a plugin concerns its own tables only.
        for plugins in ((), wanted.plugins) if wanted.plugins else ((),):
            if chosen := [table for table in wanted.tables if (table in FAMILIES) is not bool(plugins)]:
                these = replace(wanted, tables=chosen, plugins=plugins)
                found, made_by = _make(engine, runs, these, sources, on_progress)
                rows |= found
                origins |= made_by
    except KeyboardInterrupt:
        raise  # The next call continues from the finished files.
    except BaseException:
        shutil.rmtree(parts, ignore_errors=True)
        raise
    shutil.rmtree(parts, ignore_errors=True)
    facts: dict[str, object] = {
        "source": sources.shown,
        "parameters": {"window_s": wanted.window_s, "merge_runs": wanted.merge_runs},
    }
    for sentence in remarks(origins.values(), wanted.tables):
        remark(sentence)
    if populations := {run: each.calibration for run, each in origins.items() if each.of_population}:
        facts["population"] = populations
    folders.note_all(home, {table: facts | {"rows": rows[table.name]} for table in wanted.tables})
    sources.publish(home)
    return home


SliceTasks = tuple[Callable[[Order], list[SliceOrder]], Callable[[SliceOrder], None], Callable[[Order], None]]


class Sources(ABC):
    """Records, and what the states of a campaign say of them, so that they need not be opened."""

    def __init__(self) -> None:
        self.paths: list[str] = []
        self.lines = False
        """True if they are lines of JSON, not Parquet."""
        self.states: dict[str, State] = {}

    @property
    @abstractmethod
    def shown(self) -> str:
        """Sentence that people are told of the place."""

    @abstractmethod
    def home(self, wanted: Wanted) -> Path:
        """Return the folder of the tables."""

    @property
    def task(self) -> Callable[[Batch], None]:
        """Function that measures the runs of a batch, as a task."""
        return measured

    @property
    def slice_tasks(self) -> SliceTasks:
        """Functions that cut large runs, measure their slices, and join these, as tasks."""
        return slices.cut, slices.measured, slices.finish

    def size(self, path: str) -> int:
        """Return the size of a file of records."""
        return Path(path).stat().st_size

    def names(self, path: str) -> list[str]:
        """Return the runs in a file of records."""
        state = self._sure(path)
        return records.names_in(Path(path)) if state is None else [state.run]

    def digest(self, path: str) -> bytes:
        """Return the hash of a file of records."""
        state = self._sure(path)
        return records.file_digest(path) if state is None else bytes.fromhex(state.sha256 or "")

    def slices(self, of: RunFiles, slice_rows: int) -> int:
        """Return the number of slices of a run."""
        states = [self._sure(path) for path in of.files]
        if all(state is not None and state.rows is not None for state in states):
            rows = sum(state.rows or 0 for state in states if state is not None)
        else:
            rows = sum(group.rows for group in of.groups())
        return max(1, -(-rows // slice_rows))

    @abstractmethod
    def collect(self, made: Sequence[Batch | Order]) -> None:
        """Make what tasks have made accessible to this process."""

    @abstractmethod
    def publish(self, home: Path) -> None:
        """Make what this process has made accessible to others."""

    def _sure(self, path: str) -> State | None:
        """Return the state of a file, if the file has the size that the state says."""
        state = self.states.get(path)
        return state if state is not None and self.size(path) == state.size else None


class FileSources(Sources):
    """Records in a folder, or one file."""

    def __init__(self, source: Source) -> None:
        super().__init__()
        self._path = source.path
        self.paths = [str(file.absolute()) for file in source.files]
        self.lines = source.lines
        if source.path.is_dir() and (source.path / ".runs").is_dir():
            place = CampaignFolder(source.path)
            for state in place.states_there().values():
                if state.record and state.sha256:
                    self.states[str((place.records / state.record).absolute())] = state

    @property
    def shown(self) -> str:
        """Sentence that people are told of the place."""
        return str(self._path)

    def home(self, wanted: Wanted) -> Path:
        """Return the folder of the tables."""
        return wanted.out or (self._path.parent if self._path.is_file() else self._path) / METRICS

    def collect(self, made: Sequence[Batch | Order]) -> None:
        """Do nothing: tasks share the folder."""

    def publish(self, home: Path) -> None:
        """Do nothing: others see the folder."""


def _runs(
    engine: Engine, sources: Sources, wanted: Wanted, parts: Path, unreadable: Callable[[int], None]
) -> list[RunFiles]:
    """Return the runs of a source; lines of JSON are made Parquet first."""
    paths = sources.paths
    if not sources.lines:
        return records.runs({path: sources.names(path) for path in paths}, merge=wanted.merge_runs)
    orders = [Conversion(path, str(parts / f"lines-{number}.parquet")) for number, path in enumerate(paths)]
    found = engine.each("reading lines", converted, orders)
    if bad := sum(count for _, count in found):
        unreadable(bad)
    there = {order.target: names for order, (names, _) in zip(orders, found, strict=True)}
    return records.runs(there, merge=wanted.merge_runs)


def _make(
    engine: Engine, runs: Sequence[RunFiles], wanted: Wanted, sources: Sources, on_progress: Callable[[int, int], None]
) -> tuple[dict[str, int], dict[str, Origin]]:
    """Make families of these runs; return how many rows each has, and the origins of runs."""
    home = sources.home(wanted)
    how = [f"{carrypost.__version__} {wanted.window_s!r}", *(each.source for each in wanted.plugins)]
    digests = {of.run: records.joined([*how, of.run, *of.names], map(sources.digest, of.files)) for of in runs}
    before = records.tables(home, wanted.tables)
    batches = _Batches(wanted, home, sources)
    large: list[Order] = []
    for of, lacking in _lacking(runs, {name: there.runs for name, there in before.items()}, digests):
        if (count := sources.slices(of, wanted.slice_rows)) > 1:
            target = _target(home, [digests[of.run]], lacking)
            large.append(Order(of, digests[of.run], lacking, wanted.window_s, target, count, wanted.plugins))
        else:
            batches.add(of, digests[of.run], lacking)
    small = batches.made()
    ends = [0, *accumulate(len(each.runs) for each in small)]
    engine.each("metrics", sources.task, small, lambda done, _: on_progress(ends[done], ends[-1]))
    sources.collect(small)
    todo = [order for order in large if not Path(order.target).exists()]
    cutting, measuring, joining = sources.slice_tasks
    cut = engine.each("cutting large runs", cutting, todo)
    engine.each("metrics of large runs", measuring, [piece for pieces in cut for piece in pieces])
    engine.each("joining slices of large runs", joining, todo)
    sources.collect(todo)
    made: list[Batch | Order] = sorted([*small, *large], key=lambda each: _runs_of(each)[0].run)
    rows = {}
    for table in wanted.tables:
        new = [Path(each.target) / records.file_of(table) for each in made if table.name in each.families]
        rows[table.name] = before[table.name].put(home, digests, new)
    (after,) = records.tables(home, wanted.tables[:1]).values()
    return rows, {run: each.origin for run, each in after.runs.items()}


def _runs_of(each: Batch | Order) -> Sequence[RunFiles]:
    return each.runs if isinstance(each, Batch) else [each.of]


def _target(home: Path, digests: Sequence[str], families: Sequence[str]) -> str:
    return str(home.absolute() / _PARTS / records.joined([*digests, *families], ()))


def _lacking(
    runs: Sequence[RunFiles], noted: Mapping[str, Mapping[str, Known]], digests: Mapping[str, str]
) -> Iterator[tuple[RunFiles, tuple[str, ...]]]:
    """Yield runs of which any family is not there, or is made of something else, with these families."""
    for of in runs:
        lacking = tuple(
            name for name, there in noted.items() if of.run not in there or there[of.run].digest != digests[of.run]
        )
        if lacking:
            yield of, lacking


class _Batches:
    """Runs by batch: of the same families each, and of not too many bytes."""

    def __init__(self, wanted: Wanted, home: Path, sources: Sources) -> None:
        self._sources = sources
        self._wanted = wanted
        self._home = home
        self._full: list[Batch] = []
        self._open: dict[tuple[str, ...], list[tuple[RunFiles, str]]] = {}
        self._bytes: dict[tuple[str, ...], int] = {}

    def add(self, of: RunFiles, digest: str, families: tuple[str, ...]) -> None:
        """Add a run to the batch of these families that has room, or to a new one."""
        size = sum(map(self._sources.size, of.files))
        runs = self._open.setdefault(families, [])
        if runs and (len(runs) >= self._wanted.batch_runs or self._bytes[families] + size > _BATCH_BYTES):
            self._close(families)
            runs = self._open.setdefault(families, [])
        runs.append((of, digest))
        self._bytes[families] = self._bytes.get(families, 0) + size

    def _close(self, families: tuple[str, ...]) -> None:
        runs, digests = zip(*self._open.pop(families), strict=True)
        del self._bytes[families]
        target = _target(self._home, digests, families)
        self._full.append(Batch(runs, digests, families, self._wanted.window_s, target, self._wanted.plugins))

    def made(self) -> list[Batch]:
        """Return all batches."""
        for families in list(self._open):
            self._close(families)
        return self._full


_MADE = ".made"
_OF_TABLES = re.compile(rf"[^./][^/]*/[^/]+\.parquet|{re.escape(folders.MANIFEST)}")
"""Names of the objects that are tables, in a folder that may contain others."""
_TABLES = (RUNS.name, FAILURES.name, METRICS)


class PutTables(Sources):
    """Sources whose tables are put to a folder of objects; the driver has them in a folder of its own meanwhile.

    `objects`: folder of the records, which tasks fetch; None: tasks see the files.
    """

    def _put_to(self, tables: ObjectFolder, home: Path, objects: ObjectFolder | None) -> None:
        self._objects = objects
        self._home = home
        self._tables = tables
        tables.mirror("", home, only=_OF_TABLES)

    def home(self, wanted: Wanted) -> Path:
        """Return the folder of the driver that has the tables meanwhile, or at the end."""
        return wanted.out or self._home

    @property
    def task(self) -> Callable[[Batch], None]:
        """Function that measures the runs of a batch, as a task: fetches their records, and puts their tables."""
        return partial(measured_objects, self._objects, self._tables)

    @property
    def slice_tasks(self) -> SliceTasks:
        """Functions that cut large runs, measure their slices, and join these, as tasks."""
        places = self._objects, self._tables
        return partial(cut_objects, *places), partial(measured_slice, self._tables), partial(joined, *places)

    def collect(self, made: Sequence[Batch | Order]) -> None:
        """Fetch the tables that tasks have put."""
        for each in made:
            self._tables.mirror(_task_folder(each), Path(each.target))

    def publish(self, home: Path) -> None:
        """Put the tables, then the manifest; remove the parts of tasks."""
        if home == self._home:
            for folder in sorted(each for each in home.iterdir() if each.is_dir()):
                self._tables.replace(folder.name, {file.name: file for file in folder.glob("*.parquet")})
            self._tables.put(folders.MANIFEST, home / folders.MANIFEST)
        (self._tables / _PARTS).clear()


class ObjectSources(PutTables):
    """The records of a campaign in a folder of objects; only those with a state count.

    `tables`: folder of objects for the tables, in place of `metrics` beside the records.
    """

    def __init__(self, objects: ObjectFolder, home: Path, tables: ObjectFolder | None = None) -> None:
        super().__init__()
        self._put_to(objects / METRICS if tables is None else tables, home, objects)
        self._shown = str(objects)
        for state in CampaignObjects(home, objects).states_there().values():
            if state.record and state.sha256:
                self.states[f"{RECORDS.name}/{state.record}"] = state
        self.paths = sorted(self.states)

    @property
    def shown(self) -> str:
        """Sentence that people are told of the place."""
        return self._shown

    @property
    def nbytes(self) -> int:
        """Size of all records."""
        return sum(state.size or 0 for state in self.states.values())

    def size(self, path: str) -> int:
        """Return the size of a record."""
        return self.states[path].size or 0


class FilesToObjects(PutTables, FileSources):
    """Records in a folder, whose tables are put to a folder of objects."""

    def __init__(self, source: Source, home: Path, tables: ObjectFolder) -> None:
        super().__init__(source)
        self._put_to(tables, home, None)

    @property
    def nbytes(self) -> int:
        """Size of all records."""
        return sum(map(self.size, self.paths))


def _task_folder(of: Batch | Order) -> str:
    """Return the place of the files that a task makes."""
    return f"{_PARTS}/{Path(of.target).name}"


def _is_made(tables: ObjectFolder, of: Batch | Order) -> bool:
    """Return True if a killed process had come that far."""
    target = _task_folder(of)
    return {f"{target}/{name}.parquet" for name in of.families} <= tables.names(target).keys()


def _here(objects: ObjectFolder | None, of: RunFiles, scratch: Path) -> RunFiles:
    """Return a run with its records on this machine."""
    return (
        of
        if objects is None
        else replace(of, files=tuple(str(objects.fetch(file, scratch / file)) for file in of.files))
    )


def measured_objects(objects: ObjectFolder | None, tables: ObjectFolder, batch: Batch) -> None:
    """Fetch records, measure them, and put the tables."""
    if _is_made(tables, batch):
        return
    with _making(tables, batch) as (scratch, target):
        measured(replace(batch, runs=tuple(_here(objects, of, scratch) for of in batch.runs), target=target))


@contextmanager
def _making(tables: ObjectFolder, of: Batch | Order) -> Iterator[tuple[Path, str]]:
    """Yield a folder for records, and the target of a task, whose tables are put when the block ends."""
    with (
        tempfile.TemporaryDirectory(prefix="carrypost-metrics-") as scratch,
        working(tables / _task_folder(of)) as made,
    ):
        yield Path(scratch), str(made / _MADE)
        for file in (made / _MADE).iterdir():
            file.rename(made / file.name)


def _slices(tables: ObjectFolder, order: Order) -> ObjectFolder:
    return tables / f"{_task_folder(order)}.slices"


def cut_objects(objects: ObjectFolder | None, tables: ObjectFolder, order: Order) -> list[SliceOrder]:
    """Fetch the record of a run, and put its rows by slice; return its slices."""
    if _is_made(tables, order):
        return []
    with tempfile.TemporaryDirectory(prefix="carrypost-metrics-") as folder, working(_slices(tables, order)) as work:
        whole = replace(order, of=_here(objects, order.of, Path(folder)), work=str(work), spill=True)
        return [replace(piece, whole=order) for piece in slices.cut(whole)]


def measured_slice(tables: ObjectFolder, piece: SliceOrder) -> None:
    """Fetch the rows of a slice, and put its parts."""
    with working(_slices(tables, piece.whole), slices.rows_files(piece.number)) as work:
        slices.measured(replace(piece, whole=replace(piece.whole, work=str(work))))


def joined(objects: ObjectFolder | None, tables: ObjectFolder, order: Order) -> None:
    """Fetch the parts of all slices of a run, and put its tables."""
    if _is_made(tables, order):
        return
    work, parts = _slices(tables, order), map(slices.parts_file, range(order.slices))
    with _making(tables, order) as (scratch, target), working(work, parts) as there:
        of = order.of
        if objects is not None:
            of = replace(of, files=tuple(str(_first(objects, file, scratch / file)) for file in of.files))
        slices.finish(replace(order, of=of, work=str(there), target=target))
    remove(work)


def _first(objects: ObjectFolder, name: str, to: Path) -> Path:
    """Write a record of which only the first row is fetched; return it."""
    with objects.opened(name) as file:
        content = pq.ParquetFile(file)
        first = next(content.iter_batches(batch_size=1), None)
    to.parent.mkdir(parents=True, exist_ok=True)
    with pq.ParquetWriter(to, content.schema_arrow) as writer:
        if first is not None:
            writer.write_batch(first)
    return to


@contextmanager
def fetched(objects: ObjectFolder) -> Iterator[Path]:
    """Yield a folder of the driver with what a report needs of a campaign: tables, metrics, first rows of records."""
    with tempfile.TemporaryDirectory(prefix="carrypost-report-") as scratch:
        local = Path(scratch) / (Path(urlsplit(objects.uri).path).name or "objects")
        for name in _TABLES:
            objects.mirror(name, local / name)
        for name in ("campaign.toml", folders.MANIFEST):
            if (content := objects.read(name)) is not None:
                (local / name).write_bytes(content)
        (local / RECORDS.name).mkdir(parents=True, exist_ok=True)
        for name, about in objects.names(RECORDS.name).items():
            os.utime(_first(objects, name, local / name), ns=(about.mtime_ns, about.mtime_ns))
        yield local
