"""From a folder of records to a folder of metrics: each run separately, by either engine.

The driver knows which files hold which runs, and nothing of their rows. A task reads the rows of one run, makes its
tables and leaves them in a file (`kept`); the driver appends them. Families go to ``metrics`` beside the records, each
complete or absent, and the manifest there describes their origin. Runs whose family is there, made of the same record
in the same way, are not read again; nor are those that were done when the command was killed.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow.parquet as pq

import carrypost
from carrypost.lab import folders
from carrypost.lab.metrics import FAMILIES, WINDOW_S, families_of, finished, kept, merge, records, slices, tables
from carrypost.lab.metrics.origin import first_row, origin, remarks
from carrypost.lab.metrics.plugins import Plugin, families_with
from carrypost.lab.metrics.records import RunFiles, Source
from carrypost.lab.metrics.slices import Order

if TYPE_CHECKING:
    from carrypost.lab.engines import Engine
    from carrypost.lab.schemas import Table

METRICS = "metrics"
SMALL_BYTES = 64 << 20
"""Size of records up to which one process is done before Spark has started."""
_PARTS = ".parts"


@dataclass(frozen=True, slots=True)
class Conversion:
    """A file of JSON lines to convert to Parquet."""

    lines: str
    target: str


def measured(order: Order) -> None:
    """Compute the tables of a run, and write them to their file, as a task."""
    target = Path(order.target)
    if target.exists():
        return  # A killed process had come that far.
    among = families_with(order.plugins)
    wanted = families_of(order.families, among)
    kept.write(target, tables(order.of.run, order.of.rows(), wanted, window_s=order.window_s, among=among))


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
    slice_rows: int = slices.SLICE_ROWS
    """Runs with more are cut into slices; it changes the cost, never the result."""
    plugins: tuple[Plugin, ...] = ()
    """Files with those of the tables that are not ours."""


def make(
    engine: Engine,
    source: Source,
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
    home = wanted.out or (source.path.parent if source.path.is_file() else source.path) / METRICS
    parts = home.absolute() / _PARTS
    with folders.errors_naming(parts):
        parts.mkdir(parents=True, exist_ok=True)
    try:
        runs = _runs(engine, source, wanted, parts, unreadable)
        # A change of a plugin concerns its own tables only.
        for plugins in ((), wanted.plugins) if wanted.plugins else ((),):
            if chosen := [table for table in wanted.tables if (table in FAMILIES) is not bool(plugins)]:
                _make(engine, runs, replace(wanted, tables=chosen, plugins=plugins), home, on_progress)
        # A file of several runs has the first row of only one of them at its beginning.
        origins = {of.run: origin(first_row(Path(of.files[0]))) for of in runs if not of.shared}
    except KeyboardInterrupt:
        raise  # The next call continues from the finished files.
    except BaseException:
        shutil.rmtree(parts, ignore_errors=True)
        raise
    shutil.rmtree(parts, ignore_errors=True)
    facts: dict[str, object] = {
        "source": str(source.path),
        "parameters": {"window_s": wanted.window_s, "merge_runs": wanted.merge_runs},
    }
    for sentence in remarks(origins.values(), wanted.tables):
        remark(sentence)
    if populations := {run: each.calibration for run, each in origins.items() if each.of_population}:
        facts["population"] = populations
    for table in wanted.tables:
        rows = pq.read_metadata(home / table.name / kept.FILE).num_rows
        folders.note(home, table, facts | {"rows": rows})
    return home


def _runs(
    engine: Engine, source: Source, wanted: Wanted, parts: Path, unreadable: Callable[[int], None]
) -> list[RunFiles]:
    """Return the runs of a source; lines of JSON are made Parquet first."""
    paths = [str(file.absolute()) for file in source.files]
    if not source.lines:
        return records.runs({path: records.names_in(Path(path)) for path in paths}, merge=wanted.merge_runs)
    orders = [Conversion(path, str(parts / f"lines-{number}.parquet")) for number, path in enumerate(paths)]
    found = engine.each("reading lines", converted, orders)
    if bad := sum(count for _, count in found):
        unreadable(bad)
    there = {order.target: names for order, (names, _) in zip(orders, found, strict=True)}
    return records.runs(there, merge=wanted.merge_runs)


def _make(
    engine: Engine, runs: Sequence[RunFiles], wanted: Wanted, home: Path, on_progress: Callable[[int, int], None]
) -> None:
    how = [f"{carrypost.__version__} {wanted.window_s!r}", *(each.source for each in wanted.plugins)]
    digests = {of.run: records.digest([*how, of.run, *of.names], of.files) for of in runs}
    before = {table.name: kept.KeptTable(home, table) for table in wanted.tables}
    orders: dict[str, Order] = {}
    for of in runs:
        lacking = tuple(name for name, there in before.items() if there.digests.get(of.run) != digests[of.run])
        if lacking:
            target = home.absolute() / _PARTS / f"{records.digest([digests[of.run], *lacking], ())}.arrow"
            count = -(-sum(group.rows for group in of.groups()) // wanted.slice_rows)
            orders[of.run] = Order(of, lacking, wanted.window_s, str(target), max(1, count), wanted.plugins)
    large = [order for order in orders.values() if order.slices > 1 and not Path(order.target).exists()]
    engine.each("metrics", measured, [order for order in orders.values() if order.slices == 1], on_progress)
    for order in large:
        _sliced(engine, order)
    with kept.appending(home, wanted.tables) as append:
        for of in runs:
            new = kept.read(Path(orders[of.run].target)) if of.run in orders else {}
            old = {name: there.rows(of.run) for name, there in before.items() if name not in new}
            append(of.run, digests[of.run], old | new)


def _sliced(engine: Engine, order: Order) -> None:
    """Compute a large run, slice by slice."""
    (pieces,) = engine.each("cutting a run", slices.cut, [order])
    found = engine.each(f"metrics of {order.of.run}", slices.measured, pieces)
    among = families_with(order.plugins)
    chosen = families_of(order.families, among)
    kept.write(Path(order.target), finished(order.of.run, reduce(merge, found), chosen, among=among))
    shutil.rmtree(order.folder, ignore_errors=True)
