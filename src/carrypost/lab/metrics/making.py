"""From a folder of records to a folder of metrics: reads, lets families be made, writes each whole or not at all.

Records are Parquet, as `lab campaign` and `emu run` write them, or lines of JSON, as real nodes do and as `emu run`
writes to a file that ends so. Families go to ``metrics`` beside the records; the manifest there tells where from.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Self

import pyarrow.parquet as pq

from carrypost.errors import LocalError
from carrypost.lab import folders
from carrypost.lab.metrics import FAMILIES
from carrypost.lab.metrics.copies import merged
from carrypost.lab.metrics.material import WINDOW_S, material
from carrypost.lab.schemas import RECORDS, Table
from carrypost.lab.stream import json_lines
from carrypost.lab.stream.json_lines import READABLE

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

METRICS = "metrics"
_AT_A_TIME = 3
_LINES = ("*.jsonl", "*.ndjson")


def chosen(names: Sequence[str]) -> list[Table]:
    """The families of these names; all of them if there is none."""
    known = {table.name: table for table in FAMILIES}
    if unknown := [name for name in names if name not in known]:
        raise LocalError(f"there is no family {unknown[0]!r}; there are {', '.join(known)}")
    return [known[name] for name in names] if names else list(FAMILIES)


@dataclass(frozen=True, slots=True)
class Source:
    """Files of records."""

    path: Path
    files: tuple[Path, ...]
    lines: bool
    """They are lines of JSON, not Parquet."""

    @classmethod
    def find(cls, path: Path) -> Self:
        """The records in a folder, or one file; what is no record is refused."""
        lines = _files_of_lines(path)
        return cls(path, tuple(lines or folders.parquet_files(path, RECORDS)), bool(lines))

    def read(self, spark: SparkSession) -> DataFrame:
        """Table RECORDS."""
        if not self.lines:
            return RECORDS.conform(spark.read.parquet(*(str(file.absolute()) for file in self.files)))
        return RECORDS.conform(self._judged(spark).where(READABLE))

    def unreadable(self, spark: SparkSession) -> int:
        """How many lines are no rows of a record; they are passed over."""
        return self._judged(spark).where(f"NOT {READABLE}").count() if self.lines else 0

    def _judged(self, spark: SparkSession) -> DataFrame:
        names = [str(file.absolute()) for file in self.files]
        return json_lines.judged(spark.read.schema(json_lines.SCHEMA).options(**json_lines.OPTIONS).json(names))


def _files_of_lines(path: Path) -> list[Path]:
    """Files of JSON lines, if it is these that are there."""
    if path.is_file():
        return [path] if any(path.match(pattern) for pattern in _LINES) else []
    folder = path / RECORDS.name if (path / RECORDS.name).is_dir() else path
    found = sorted(file for pattern in _LINES for file in folder.glob(pattern) if not file.name.startswith("."))
    return found if not any(folder.glob("*.parquet")) else []


def make(
    spark: SparkSession,
    source: Source,
    tables: Sequence[Table],
    *,
    out: Path | None = None,
    window_s: float = WINDOW_S,
    merge_runs: bool = False,
    told: Callable[[Table], None] = lambda _: None,
) -> Path:
    """Make these families of the records that are there; gives the folder they are in. `told`: of each that is done."""
    records = source.read(spark)
    home = out or (source.path.parent if source.path.is_file() else source.path) / METRICS
    facts = {"source": str(source.path), "parameters": {"window_s": window_s, "merge_runs": merge_runs}}
    with material(merged(records) if merge_runs else records, window_s=window_s) as of:
        frames = [(FAMILIES[table](of), home, table) for table in tables]
        for _, _, table in _written(frames):
            folders.note(home, table, facts | {"rows": sum(_rows(home / table.name))})
            told(table)
    return home


def _written(frames: Sequence[tuple[DataFrame, Path, Table]]) -> Iterator[tuple[DataFrame, Path, Table]]:
    """Write these; the first alone, as it makes what the others share, those some at a time: most are small."""
    for each in frames[:1]:
        folders.write(*each)
        yield each
    with ThreadPoolExecutor(_AT_A_TIME) as pool:
        waiting = {pool.submit(folders.write, *each): each for each in frames[1:]}
        try:
            for done in as_completed(waiting):
                done.result()
                yield waiting[done]
        finally:
            pool.shutdown(cancel_futures=True)


def _rows(folder: Path) -> Iterator[int]:
    for file in folder.glob("*.parquet"):
        yield pq.ParquetFile(file).metadata.num_rows
