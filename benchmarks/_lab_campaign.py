"""A campaign of 16 runs of the emulator: on Spark, and by a pool of processes that does the same and writes the same.

The runs are the first two and a half hours of the shipped city buses, with two lifetimes and eight seeds, some 4 CPU
seconds each. Both have as many processes as Spark has processors. The session is warm, as is the pool: its processes
know the emulator when the time begins. The pool keeps no states, makes no tables and looks for no failures; its records
must be those of the campaign, to the byte.
"""

from __future__ import annotations

import multiprocessing
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Final

from benchmarks._lab_weigh import Weighed, weigh, weigh_apart
from benchmarks._processes import BenchmarkError, Row, say

from carrypost.emu import runs as emulator
from carrypost.lab.campaign import campaign, grid
from carrypost.lab.engines import opened
from carrypost.lab.spark.session import SparkOptions

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

NAME: Final = "campaign"
TITLE: Final = "Campaign: 16 runs of the emulator"
MEGABYTE: Final = 1_000_000
GOAL: Final = 1.15
SPARK, POOL = "Spark", "pool of processes"
_SCENARIO: Final = Path(__file__).resolve().parent.parent / "scenarios" / "city_bus.toml"
_TEXT: Final = """
scenarios = ["city_bus.toml"]
seeds = {{first = 1, last = {seeds}}}
[[settings]]
name = "none"
set = {{duration_s = {duration_s}}}
[[settings]]
name = "20min"
set = {{duration_s = {duration_s}, "workload.0.ordering" = "delta-causal", "workload.0.lifetime_s" = 1200}}
"""
Order = tuple[str, int | str, dict[str, object], str, str]
"""Scenario, seed, overrides, their name, and the path of the record."""


def measure(spark: SparkSession, folder: Path, *, quick: bool, repeats: int) -> list[Row]:
    """Return the cost of the runs on each engine."""
    seeds, duration_s = (2, 600) if quick else (8, 9_000)
    made = _grid(folder / "campaign", seeds, duration_s)
    processes = spark.sparkContext.defaultParallelism
    _campaign(_grid(folder / "first", 1, 60), folder / "first" / "out")
    engines: dict[str, Callable[[Path], Weighed[object]]] = {
        POOL: lambda out: weigh_apart(pool, _orders(made, out), processes),
        SPARK: lambda out: weigh(lambda: _campaign(made, out)),
    }
    found: dict[str, list[Weighed[object]]] = {name: [] for name in engines}
    expected: dict[str, bytes] | None = None
    for number in range(repeats):
        for name in list(engines)[:: 1 if number % 2 == 0 else -1]:
            say(f"campaign of {len(made.runs)} runs: {name}, {number + 1} of {repeats}")
            out = folder / "out"
            (out / "records").mkdir(parents=True)
            found[name].append(engines[name](out))
            records = {path.name: path.read_bytes() for path in sorted((out / "records").iterdir())}
            shutil.rmtree(out)
            if len(records) != len(made.runs) or (expected is not None and records != expected):
                raise BenchmarkError(f"the records of the {name} are not those of the other")
            expected = records
    return [_row(len(made.runs), processes, name, each) for name, each in found.items()]


def goals(rows: list[Row]) -> list[Row]:
    """Return the ratio of Spark's time to the other's."""
    wall_s = {str(row["engine"]): float(str(row["wall s"])) for row in rows}
    ratio = wall_s[SPARK] / wall_s[POOL]
    what = f"campaign of {rows[0]['runs']} runs: wall time by that of the pool"
    return [{"what": what, "measured": round(ratio, 3), "goal": f"at most {GOAL}", "met": ratio <= GOAL}]


def _row(runs: int, processes: int, name: str, found: Sequence[Weighed[object]]) -> Row:
    return {
        "runs": runs,
        "processes": processes,
        "engine": name,
        "wall s": median(each.wall_s for each in found),
        "CPU s": median(each.cpu_s for each in found),
        "peak MB": median(each.peak_bytes for each in found) / MEGABYTE,
        "more MB": median(each.more_bytes for each in found) / MEGABYTE,
    }


def _grid(folder: Path, seeds: int, duration_s: int) -> grid.Grid:
    folder.mkdir()
    shutil.copy(_SCENARIO, folder)
    path = folder / "campaign.toml"
    path.write_text(_TEXT.format(seeds=seeds, duration_s=duration_s), encoding="utf-8")
    return grid.load(path)


def _campaign(made: grid.Grid, out: Path) -> None:
    """Do it on the session that is there."""
    with campaign.begun(made, out) as running, opened(SparkOptions()) as engine:
        failed = [state for state in running.conduct(engine) if state.status != "done"]
    if failed:
        raise BenchmarkError(f"{failed[0].run} failed: {failed[0].error}")


def _orders(made: grid.Grid, out: Path) -> list[Order]:
    return [
        (
            str(made.path.parent / run.file),
            run.seed,
            dict(run.overrides),
            run.settings,
            str(out / "records" / f"{run.stem}.parquet"),
        )
        for run in made.runs
    ]


def pool(orders: list[Order], processes: int) -> int:
    """Make the same runs by a pool; return the number of their rows."""
    with multiprocessing.get_context("fork").Pool(processes) as workers:
        return sum(workers.imap_unordered(_one, orders))


def _one(order: Order) -> int:
    scenario, seed, overrides, settings, out = order
    return len(emulator.run(scenario, seed, overrides=overrides, settings=settings, out=out))
