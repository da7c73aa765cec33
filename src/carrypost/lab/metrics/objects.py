"""Records and metrics as objects: tasks fetch the records that they measure, and put the files that they make.

The driver has the tables of metrics in a folder of its own meanwhile, and puts what is new there at the end; it fetches
no record, and of each, for a report, the first row only. Of a large run a first task puts the rows by slice, so that
the tasks of its slices fetch only these.
"""

from __future__ import annotations

import os
import re
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from urllib.parse import urlsplit

import pyarrow.parquet as pq

from carrypost.lab import folders
from carrypost.lab.campaign.objects import CampaignObjects
from carrypost.lab.metrics import slices
from carrypost.lab.metrics.making import METRICS, Batch, FileSources, SliceTasks, Sources, Wanted, measured
from carrypost.lab.metrics.records import RunFiles, Source
from carrypost.lab.metrics.slices import Order, SliceOrder
from carrypost.lab.objects import ObjectFolder, remove, working
from carrypost.lab.schemas import FAILURES, RECORDS, RUNS

_PARTS, _MADE = ".parts", ".made"
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
            self._tables.mirror(_target(each), Path(each.target))

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


def _target(of: Batch | Order) -> str:
    return f"{_PARTS}/{Path(of.target).name}"


def _is_made(tables: ObjectFolder, of: Batch | Order) -> bool:
    """Return True if a killed process had come that far."""
    target = _target(of)
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
    with tempfile.TemporaryDirectory(prefix="carrypost-metrics-") as folder, working(tables / _target(batch)) as made:
        runs = tuple(_here(objects, of, Path(folder)) for of in batch.runs)
        measured(replace(batch, runs=runs, target=str(made / _MADE)))
        _lift(made)


def _lift(folder: Path) -> None:
    """Move the tables of a task to where they are put from."""
    for file in (folder / _MADE).iterdir():
        file.rename(folder / file.name)


def _slices(tables: ObjectFolder, order: Order) -> ObjectFolder:
    return tables / f"{_target(order)}.slices"


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
    with tempfile.TemporaryDirectory(prefix="carrypost-metrics-") as folder, working(tables / _target(order)) as made:
        of, scratch = order.of, Path(folder)
        if objects is not None:
            of = replace(of, files=tuple(str(_first(objects, file, scratch / file)) for file in of.files))
        with working(work, parts) as there:
            slices.finish(replace(order, of=of, work=str(there), target=str(made / _MADE)))
        _lift(made)
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
