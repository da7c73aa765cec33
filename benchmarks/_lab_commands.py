"""Whole commands of the laboratory, from the prompt and back: the time that users wait, including the start of Spark.

The commands are an experiment of the papers in its small form, its metrics by both engines, statistics of contacts of a
million places, and one run of a hundred million rows. Each command is a separate program, whose processes are all
counted.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Final

from benchmarks._lab_weigh import weigh_command
from benchmarks._processes import BenchmarkError, Row, say

from benchmarks import _lab_contacts, _lab_records

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

NAME: Final = "commands"
TITLE: Final = "Commands: from the prompt and back"
WALKERS: Final = 2_092
WALKERS_QUICK: Final = 100
ROWS: Final = 100_000_000
ROWS_QUICK: Final = 200_000
MEGABYTE: Final = 1_000_000
EXPERIMENT, METRICS, LARGE = "reproduce bus --quick", "its metrics", "one run of many rows"
CONTACTS, STATISTICS = "contacts", "contacts with statistics"
GOALS_CPU_S: Final = {
    (EXPERIMENT, "spark"): 60.0,
    (METRICS, "local"): 5.0,
    (METRICS, "spark"): 40.0,
    (LARGE, "spark, local[2]"): 200.0,
}
"""CPU seconds of all processes, by command and engine."""
STATISTICS_CPU_S: Final = 3.0
"""Beyond those of the contacts."""
WORKER_BYTES: Final = 2_000_000_000


def measure(spark: SparkSession, folder: Path, *, quick: bool, repeats: int) -> list[Row]:
    """Return the cost of each command; they start a Spark of their own, and run once."""
    del spark, repeats
    return [*_experiment(folder, quick=quick), *_statistics(folder, quick=quick), _large(folder, quick=quick)]


def _command(what: str, engine: str, *arguments: str | Path) -> Row:
    say(f"{what}, {engine}")
    found = weigh_command([sys.executable, "-c", "from carrypost.cli import main; main()", *map(str, arguments)])
    if found.result:
        raise BenchmarkError(f"carrypost {' '.join(map(str, arguments))} ended with exit code {found.result}")
    return {
        "what": what,
        "engine": engine,
        "wall s": found.wall_s,
        "CPU s": found.cpu_s,
        "peak MB": found.peak_bytes / MEGABYTE,
    }


def _experiment(folder: Path, *, quick: bool) -> list[Row]:
    if quick:  # An experiment has no smaller form.
        home = _lab_records.written(ROWS_QUICK, folder)
        made: list[Row] = []
    else:
        home = folder / "bus"
        made = [_command(EXPERIMENT, "spark", "reproduce", "bus", "--quick", "--out", home)]
    for engine in ("local", "spark"):
        out = folder / f"metrics-{engine}"
        made.append(_command(METRICS, engine, "lab", "metrics", home, "--engine", engine, "--out", out))
    return made


def _statistics(folder: Path, *, quick: bool) -> list[Row]:
    trace = _lab_contacts.written(WALKERS_QUICK if quick else WALKERS, folder)
    order = ("lab", "contacts", trace, "--range-m", "50", "--engine", "local", "--out")
    return [
        _command(CONTACTS, "local", *order, folder / "plain"),
        _command(STATISTICS, "local", *order, folder / "told", "--statistics"),
    ]


def _large(folder: Path, *, quick: bool) -> Row:
    say(f"{LARGE}: making it")
    home = _lab_records.one(ROWS_QUICK if quick else ROWS, folder)
    order = ("lab", "metrics", home, "--master", "local[2]", "--out", folder / "large")
    return _command(LARGE, "spark, local[2]", *order)


def goals(rows: list[Row]) -> list[Row]:
    """CPU time of commands, and the memory of the largest process with many rows."""
    found: list[Row] = []
    cpu_s = {(row["what"], row["engine"]): _float(row["CPU s"]) for row in rows}
    for (what, engine), goal in GOALS_CPU_S.items():
        if (what, engine) in cpu_s:
            found.append(_goal(f"{what}, {engine}: CPU s", cpu_s[what, engine], goal))
    more = cpu_s[STATISTICS, "local"] - cpu_s[CONTACTS, "local"]
    found.append(_goal("statistics of contacts, beyond the contacts: CPU s", max(0.01, more), STATISTICS_CPU_S))
    largest = next(_float(row["peak MB"]) for row in rows if row["what"] == LARGE)
    return [*found, _goal(f"{LARGE}: MB of a worker", largest, WORKER_BYTES / MEGABYTE)]


def _float(value: object) -> float:
    assert isinstance(value, float)
    return value


def _goal(what: str, measured: float, goal: float) -> Row:
    return {"what": what, "measured": measured, "goal": f"at most {goal:,.0f}", "met": measured <= goal}
