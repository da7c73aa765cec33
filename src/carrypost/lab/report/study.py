"""A campaign as studies for pages and as pandas frames for notebooks: runs and tables of metrics, without Spark.

Runs of one scenario and one choice of settings are a `Series`, one run for each seed: figures show its first seed,
tables the mean of all, with least and most. What a run ran with stands in the first row of its record.

A frame has scenario, settings, seed and swept keys as columns.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from carrypost.config.rules import nearest
from carrypost.errors import LocalError
from carrypost.lab import folders
from carrypost.lab.metrics import FAMILIES, families
from carrypost.lab.metrics.records import Origin, first_row, origin
from carrypost.lab.report.numbers import lifetime
from carrypost.lab.schemas import FAILURES, RECORDS, RUNS, Table
from carrypost.traces.formats.lines import is_number

if TYPE_CHECKING:
    import pandas as pd


METRICS = "metrics"
DONE = "done"
Columns = dict[str, npt.NDArray[Any]]
Row = dict[str, Any]


@dataclass(frozen=True, slots=True)
class FinishedRun:
    """One run that came to its end."""

    name: str
    scenario: str
    settings: str
    seed: str
    version: str
    cpu_s: float | None
    in_force: dict[str, Any] = field(repr=False)
    """Every key of its scenario with the value that held; empty where its record is not there."""
    text: str = field(repr=False)
    """The same, as it stands in the record."""
    origin: Origin = field(repr=False)
    """Mode that made it, with its calibration."""
    set: dict[str, str] = field(default_factory=dict)
    """Keys that its settings and the sweep change, with their values."""

    @property
    def duration_s(self) -> float | None:
        """The length of the run, in virtual time."""
        found = self.in_force.get("duration_s")
        return float(found) if isinstance(found, int | float) else None

    @property
    def lifetime_s(self) -> float | None:
        """Of the first messages that nodes publish; None: endless, or not known."""
        found = next((each.get("lifetime_s") for each in self.in_force.get("workload", [])), None)
        return float(found) if isinstance(found, int | float) else None

    @property
    def ordered(self) -> bool:
        """True if any of its messages have an order."""
        return any(each.get("ordering", "none") != "none" for each in self.in_force.get("workload", []))


@dataclass(frozen=True, slots=True)
class Series:
    """Runs that differ by their seed only."""

    scenario: str
    settings: str
    runs: tuple[FinishedRun, ...]
    label: str

    @property
    def first(self) -> FinishedRun:
        """The run that figures show."""
        return self.runs[0]

    @property
    def lifetime_s(self) -> float | None:
        """Of messages; None: endless, or not known."""
        return self.first.lifetime_s


def matched(all_series: Iterable[Series]) -> tuple[Series, ...]:
    """Return series with those of their runs only whose seeds all of them have, so that a figure compares like runs.

    Without a common seed each keeps as many runs as the one with the fewest.
    """
    every = tuple(all_series)
    common = set.intersection(*({run.seed for run in series.runs} for series in every)) if every else set()
    least = min((len(series.runs) for series in every), default=0)
    return tuple(
        replace(series, runs=tuple(run for run in series.runs if run.seed in common) if common else series.runs[:least])
        for series in every
    )


Key = TypeVar("Key")


def matched_by(of: Mapping[Key, Series]) -> dict[Key, Series]:
    """Return the same for series by a key."""
    return dict(zip(of, matched(of.values()), strict=True))


class Study:
    """A campaign's folder."""

    def __init__(self, folder: Path) -> None:
        if not folder.is_dir():
            raise LocalError(f"{folder}: there is no such folder: make one with `carrypost lab campaign`")
        if not (folder / RUNS.name).is_dir():
            raise LocalError(
                f"{folder} does not contain a campaign, since it has no table of {RUNS.name}: make one with "
                "`carrypost lab campaign`; nor does it contain records of real nodes (.jsonl or .parquet)"
            )
        self.folder = folder
        self._tables: dict[str, pa.Table] = {}
        self._parts: dict[tuple[str, str], pa.Table] = {}
        rows = _table(folder, RUNS).to_pylist()
        self.failures: list[Row] = _table(folder, FAILURES).to_pylist() if (folder / FAILURES.name).is_dir() else []
        self.runs = tuple(_run(folder, row) for row in rows if row["status"] == DONE)
        there = {file.name for file in (folder / RECORDS.name).glob("*.parquet")}
        self.lost = [str(row["run"]) for row in rows if row["status"] == DONE and row["record"] not in there]
        """Runs whose records are gone, from which nothing can be made any more."""
        if not self.runs:
            count = len(self.failures)
            raise LocalError(
                f"{folder}: none of its {count} runs succeeded; the first failed with: {self.failures[0]['error']}"
                if count
                else f"{folder}: no run of the campaign has finished: run `carrypost lab campaign` again"
            )

    @cached_property
    def scenarios(self) -> dict[str, tuple[Series, ...]]:
        """By scenario, in order of appearance; endless messages first, then those that live longer."""
        names = dict.fromkeys(run.scenario for run in self.runs)
        return {name: tuple(self._series(name)) for name in names}

    def _series(self, scenario: str) -> Iterator[Series]:
        runs = [run for run in self.runs if run.scenario == scenario]
        groups = [
            tuple(sorted((run for run in runs if run.settings == name), key=_by_seed))
            for name in dict.fromkeys(run.settings for run in runs)
        ]
        groups.sort(key=lambda group: -(group[0].lifetime_s or float("inf")))
        lifetimes = [group[0].lifetime_s for group in groups]
        for group in groups:
            first = group[0]
            label = lifetime(first.lifetime_s)
            if lifetimes.count(first.lifetime_s) > 1 or not first.in_force:
                label = first.settings
            yield Series(scenario, first.settings, group, label)

    def missing(self, needed: Sequence[Table] = tuple(FAMILIES)) -> list[Table]:
        """Families that are not there, or were made of older records; all of them where they do not know all runs."""
        folder = self.folder / METRICS
        absent = [table for table in needed if not (folder / table.name).is_dir() or self._stale(folder / table.name)]
        if families.PROCESSING in absent:
            return list(needed)
        known = set(_table(folder, families.PROCESSING)["run"].to_pylist())
        return absent if {run.name for run in self.runs} <= known else list(needed)

    def _stale(self, made: Path) -> bool:
        """Return True if some record was made after these metrics."""
        records = [file.stat().st_mtime_ns for file in (self.folder / RECORDS.name).glob("*.parquet")]
        return max(records, default=0) > max((file.stat().st_mtime_ns for file in made.glob("*.parquet")), default=0)

    def table(self, table: Table) -> pa.Table:
        """Return a family, all runs."""
        if table.name not in self._tables:
            folder = self.folder / METRICS
            if not (folder / table.name).is_dir():
                raise LocalError(
                    f"{folder} has no table of {table.name}: make it with `carrypost lab metrics {self.folder}`"
                )
            self._tables[table.name] = _table(folder, table)
        return self._tables[table.name]

    def _of_run(self, table: Table, run: FinishedRun) -> pa.Table:
        key = table.name, run.name
        if key not in self._parts:
            self._parts[key] = _where(self.table(table), {"run": run.name})
        return self._parts[key]

    def columns(self, table: Table, run: FinishedRun, **equal: str) -> Columns:
        """Return the columns of a family for one run, where others are equal to something."""
        found = _where(self._of_run(table, run), equal)
        return {name: found[name].to_numpy() for name in found.column_names}

    def row(self, table: Table, run: FinishedRun, **equal: str) -> Row:
        """Return the one row of a family for a run, or the first; empty where there is none."""
        found = self._of_run(table, run)
        if found.num_rows > 1:
            found = _where(found, equal)
        row: Row = next(iter(found.slice(0, 1).to_pylist()), {})
        return row if all(row.get(name) == value for name, value in equal.items()) else {}

    def values(self, table: Table, series: Series, column: str, **equal: str) -> list[float]:
        """Return one figure of each run of a series, where it has one."""
        values = (self.row(table, run, **equal).get(column) for run in series.runs)
        return [float(each) for each in values if each is not None and not np.isnan(each)]


def _where(found: pa.Table, equal: Mapping[str, str]) -> pa.Table:
    for name, value in equal.items():
        found = found.filter(pc.equal(found[name], value))
    return found


def _by_seed(run: FinishedRun) -> tuple[int, int, str]:
    return (0, int(run.seed), "") if run.seed.lstrip("-").isdecimal() else (1, 0, run.seed)


def _table(folder: Path, table: Table) -> pa.Table:
    """Return a table of this folder; Spark may write no file where there are no rows."""
    if not any((folder / table.name).rglob("*.parquet")):
        return table.arrow.empty_table()
    return folders.read_arrow(folder / table.name, table)


def _run(folder: Path, row: Row) -> FinishedRun:
    first = first_row(folder / RECORDS.name / row["record"]) if row["record"] else {}
    text = first.get("defaults", "")
    try:
        in_force = tomllib.loads(text)
    except tomllib.TOMLDecodeError:  # Written by a version of another kind.
        in_force = {}
    return FinishedRun(
        row["run"], row["scenario"], row["settings"], row["seed"], row["version"], row["cpu_s"], in_force, text,
        origin(first), dict(row["set"] or ()),
    )  # fmt: skip


def frame(folder: str | Path, family: str) -> pd.DataFrame:
    """Return a table of a campaign's folder: a family of metrics, or `runs` or `failures`.

    Each row has the scenario, settings and seed of its run, and a column for each key that settings or the sweep
    change, under its name in the scenario. Values of keys are numbers where all of them are. Tables of plugins are
    found by their names, too.
    """
    root = Path(folder)
    rows = _read_named(root, family)
    about = _about(root, rows["run"])
    names = [name for name in about.column_names if name not in rows.column_names]
    columns = [*names, *rows.column_names] if "scenario" in names else [*rows.column_names, *names]
    both = {**{name: about[name] for name in names}, **{name: rows[name] for name in rows.column_names}}
    return pa.table({name: both[name] for name in columns}).drop_columns(["run"]).to_pandas()


def _read_named(root: Path, family: str) -> pa.Table:
    """Return a table of a campaign's folder by name; `runs` without the keys, which become columns."""
    known = {table.name: table for table in (*FAMILIES, FAILURES)}
    if family == RUNS.name:
        return folders.read_arrow(root, Table(RUNS.name, RUNS.meaning, RUNS.columns[:-1]))
    if family in known:
        inside = root if family == FAILURES.name else root / METRICS
        if not (inside / family).is_dir():
            raise LocalError(f"{inside} has no table of {family}: make it with `carrypost lab metrics {root}`")
        return folders.read_arrow(inside / family, known[family])
    files = sorted((root / METRICS / family).glob("*.parquet"))
    if not files:
        wrong = f"there is no family {family!r} in {root}{nearest(family, [RUNS.name, *known])}"
        raise LocalError(wrong)
    return pa.concat_tables([pq.ParquetFile(file).read() for file in files])


def _about(root: Path, run: pa.ChunkedArray) -> pa.Table:
    """Return what is known of these runs, a row for each of them."""
    known = folders.read_arrow(root, RUNS)
    at = pc.index_in(run, known["run"])
    columns = {name: known[name].take(at) for name in ("scenario", "settings", "seed")}
    sets = [dict(each or ()) for each in known["set"].to_pylist()]
    for key in dict.fromkeys(key for each in sets for key in each):
        texts = [each.get(key) for each in sets]
        numeric = all(text is None or is_number(text) for text in texts)
        values = [None if text is None else float(text) for text in texts] if numeric else texts
        columns[key] = pa.chunked_array([pa.array(values)]).take(at)
    return pa.table(columns)
