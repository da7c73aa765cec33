"""The laboratory on Spark, beside the same work without it: wall time, CPU time and memory, in the same run.

CPU time is that of all processes, the JVM and its workers too; memory is the most that they had together (PSS). Each
part has a Spark of its own, so that none is the heavier for what another did before; what it costs to have Spark at all
is in a table of its own. Engines without Spark are measured in programs of their own. Parts:

    contacts    contacts of 1.1 and 11 million positions: Spark, the same kernel in one process, duckdb
    analytics   metrics of 1.5 and 15 million records: Spark, duckdb
    campaign    16 runs of the emulator: Spark, a pool of processes
    commands    an experiment, its metrics, statistics of contacts, one run of 100 million rows: whole commands

Run: carrypost bench lab [--only PART...] [--repeats N] [--quick] [--json]
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Final, Protocol, cast

from benchmarks._lab_weigh import Weighed, weigh
from benchmarks._processes import BenchmarkError, Row, say, scratch

from benchmarks import _report
from carrypost.lab.spark.session import needs_extra, session

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession

MEGABYTE: Final = 1_000_000
PARTS: Final = ("contacts", "analytics", "campaign", "commands")
_JOB_ROWS: Final = 1_000


class Part(Protocol):
    """A module `_lab_NAME`."""

    TITLE: str

    def measure(self, spark: SparkSession, folder: Path, *, quick: bool, repeats: int) -> list[Row]:
        """Return the cost of each case on each engine."""

    def goals(self, rows: list[Row]) -> list[Row]:
        """Return each measurement with its goal."""


def _part(name: str) -> Part:
    return cast("Part", import_module(f"benchmarks._lab_{name}"))


# --- what Spark costs by itself ----------------------------------------------------------------------------


def start(part: str, stack: ExitStack) -> tuple[SparkSession, list[Row]]:
    """Start Spark, and return its cost; a running one is used, and costs nothing."""
    from pyspark.sql import SparkSession  # noqa: PLC0415 - loaded where Spark is

    if SparkSession.getActiveSession() is not None:
        return stack.enter_context(session()), []
    say(f"{part}: starting Spark")
    started = weigh(lambda: stack.enter_context(session()))
    return started.result, [_fixed_row(part, "session start", started)]


def fixed_rows(part: str, spark: SparkSession) -> Iterator[Row]:
    """Return the time that Spark takes for next to nothing, at first and after that."""
    steps: tuple[tuple[str, Callable[[], int]], ...] = (
        ("job", lambda: _job(spark)),
        ("mapInArrow", lambda: _map(spark)),
    )
    for what, step in steps:
        for time in ("first", "second"):
            yield _fixed_row(part, f"{time} {what}", weigh(step))


def _fixed_row(part: str, what: str, weighed: Weighed[object]) -> Row:
    return {
        "before": part,
        "what": what,
        "wall s": weighed.wall_s,
        "CPU s": weighed.cpu_s,
        "peak MB": weighed.peak_bytes / MEGABYTE,
        "more MB": weighed.more_bytes / MEGABYTE,
    }


def _job(spark: SparkSession) -> int:
    return int(spark.range(_JOB_ROWS).selectExpr("sum(id)").collect()[0][0])


def _map(spark: SparkSession) -> int:
    def same(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        yield from batches

    return spark.range(_JOB_ROWS).mapInArrow(same, "id bigint").count()


# --- the command -------------------------------------------------------------------------------------------


def goal_rows(part: Part, rows: list[Row], *, quick: bool) -> list[Row]:
    """Goals of a part; whether they are met shows in whole measurements only."""
    return [{**row, "met": None} if quick else row for row in part.goals(rows)]


def _options(argv: Sequence[str]) -> argparse.Namespace:
    parser = _report.parser("lab", str(__doc__).split("\n\n", maxsplit=1)[0], "--only contacts campaign --repeats 3")
    parser.add_argument(
        "--only", nargs="+", choices=PARTS, default=PARTS, metavar="PART", help=f"these parts: {', '.join(PARTS)}"
    )
    parser.add_argument(
        "--repeats", type=_report.positive, default=1, metavar="N", help="the median of so many (default 1)"
    )
    parser.add_argument("--quick", action="store_true", help="small cases; they say little about speed")
    return parser.parse_args(argv)


def main(argv: Sequence[str]) -> int:
    """Print the tables."""
    options = _options(argv)
    needs_extra()
    show = partial(_report.show, json=options.json)
    fixed: list[Row] = []
    goals: list[Row] = []
    for name in dict.fromkeys(options.only):
        part = _part(name)
        try:
            with scratch() as folder, ExitStack() as stack:
                spark, started = start(name, stack)
                if started or not fixed:  # A Spark that was there does nothing for the first time later.
                    fixed += [*started, *fixed_rows(name, spark)]
                rows = part.measure(spark, folder, quick=options.quick, repeats=options.repeats)
        except BenchmarkError as error:
            say(f"carrypost bench lab: {error}")
            return 1
        show(part.TITLE + (", small" if options.quick else ""), rows)
        goals += goal_rows(part, rows, quick=options.quick)
    show("Fixed: what Spark takes before it does any work", fixed)
    show("Goals: of whole measurements", goals)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
