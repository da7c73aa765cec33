"""Records and metrics as objects: tasks fetch the records that they measure, and put the files that they make.

The driver has the tables of metrics in a folder of its own meanwhile, and puts what is new there at the end; it fetches
no record, and of each, for a report, the first row only.
"""

from __future__ import annotations

import os
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
from carrypost.lab.metrics.making import METRICS, Batch, Sources, Wanted, measured
from carrypost.lab.metrics.records import RunFiles
from carrypost.lab.objects import ObjectFolder
from carrypost.lab.schemas import FAILURES, RECORDS, RUNS

_PARTS = f"{METRICS}/.parts"
_TABLES = (RUNS.name, FAILURES.name, METRICS)


class ObjectSources(Sources):
    """The records of a campaign in a folder of objects; only those with a state count."""

    def __init__(self, objects: ObjectFolder, home: Path) -> None:
        super().__init__()
        self._objects = objects
        self._home = home
        objects.mirror(METRICS, home)
        for state in CampaignObjects(home, objects).states_there().values():
            if state.record and state.sha256:
                self.states[f"{RECORDS.name}/{state.record}"] = state
        self.paths = sorted(self.states)

    @property
    def shown(self) -> str:
        """Sentence that people are told of the place."""
        return str(self._objects)

    @property
    def nbytes(self) -> int:
        """Size of all records."""
        return sum(state.size or 0 for state in self.states.values())

    def home(self, wanted: Wanted) -> Path:
        """Return the folder of the driver that has the tables meanwhile."""
        return wanted.out or self._home

    def size(self, path: str) -> int:
        """Return the size of a record."""
        return self.states[path].size or 0

    def slices(self, of: RunFiles, slice_rows: int) -> int:  # noqa: ARG002 - as other sources
        """Return 1: slices of a run need a folder that tasks share."""
        return 1

    @property
    def task(self) -> Callable[[Batch], None]:
        """Function that measures the runs of a batch, as a task: fetches their records, and puts their tables."""
        return partial(measured_objects, self._objects)

    def collect(self, batches: Sequence[Batch]) -> None:
        """Fetch the tables that tasks have put."""
        for batch in batches:
            self._objects.mirror(f"{_PARTS}/{Path(batch.target).name}", Path(batch.target))

    def publish(self, home: Path) -> None:
        """Put the tables, and remove what was there before, parts of tasks included."""
        files = {file.relative_to(home).as_posix(): file for file in home.rglob("*") if file.is_file()}
        self._objects.replace(METRICS, files)


def measured_objects(objects: ObjectFolder, batch: Batch) -> None:
    """Fetch records, measure them, and put the tables."""
    target = f"{_PARTS}/{Path(batch.target).name}"
    wanted = {f"{target}/{name}.parquet" for name in batch.families}
    if wanted <= objects.names(target).keys():
        return  # A killed process had come that far.
    with tempfile.TemporaryDirectory(prefix="carrypost-metrics-") as folder:
        scratch = Path(folder)
        runs = tuple(
            replace(of, files=tuple(str(objects.fetch(file, scratch / file)) for file in of.files)) for of in batch.runs
        )
        measured(replace(batch, runs=runs, target=str(scratch / "made")))
        for file in sorted((scratch / "made").iterdir()):
            objects.put(f"{target}/{file.name}", file)


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
            with objects.opened(name) as file:
                first = next(pq.ParquetFile(file).iter_batches(batch_size=1), None)
            if first is not None:
                with pq.ParquetWriter(local / name, first.schema) as writer:
                    writer.write_batch(first)
                os.utime(local / name, ns=(about.mtime_ns, about.mtime_ns))
        yield local
