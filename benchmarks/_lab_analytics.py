"""Metrics of records by the functions of `lab metrics`, on Spark and in one process, beside SQL in duckdb.

All read the same Parquet files (`_lab_records`), assemble the copies of messages, and answer five questions: Table V
(processing), Table VI (delays), 99 percentiles of transmission delay and of latency, the median transmission delay of
every node, and the number and last time of deliveries of every message. The answers must be equal: numbers exactly,
means and deviations to a millionth of a second. Then all families are made, of which these are a part. Spark is
measured in a session whose workers have started, duckdb in its own process, from the second time on.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from benchmarks._lab_weigh import weigh, weigh_apart
from benchmarks._processes import BenchmarkError, Row, say
from pyspark import cloudpickle

from benchmarks import _lab_records
from carrypost.emu.rows import NEVER, Log
from carrypost.lab.engines import Engine, LocalEngine, SparkEngine
from carrypost.lab.metrics import making, records
from carrypost.lab.metrics.copies import Delays, processing, processing_part
from carrypost.lab.metrics.families import DELAYS, TDELAY
from carrypost.lab.metrics.parts import Slice, milliseconds
from carrypost.lab.metrics.records import RunFiles, Source
from carrypost.lab.spark.session import SparkOptions

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

NAME: Final = "analytics"
TITLE: Final = "Analytics: metrics of records, Spark and duckdb"
ROWS: Final = (1_500_000, 15_000_000)
ROWS_QUICK: Final = (50_000,)
THREADS: Final = 2
GOAL: Final = 1.0
MEGABYTE: Final = 1_000_000
SHARES: Final = tuple(range(1, 100))
_CLOSE_US: Final = 1.0
_FIVE: Final = "Spark, five questions"
_ALL: Final = "Spark, all families"
_DUCKDB: Final = "duckdb, five questions"

Found = dict[str, Any]
"""Answers by question, as they came."""
Answer = dict[tuple[Any, ...], list[Any]]
"""An answer by key, for comparison."""


# --- by run ------------------------------------------------------------------------------------------------


def answers(of: RunFiles) -> dict[str, Answer]:
    """Return the answers of one run, by key, as a task."""
    whole = Slice(Log.in_order(of.rows()), window_s=60.0)
    copies, nodes, messages = whole.copies, whole.rows.names("node"), whole.rows.names("message")
    counts, delays = processing(processing_part(whole)), Delays.of(whole)
    spreads, ranks = {}, {}
    for number, name in enumerate(DELAYS):
        moments = delays.moments[name]
        of_all = moments.seconds
        means = [(of_all[each] or 0.0) * 1e6 for each in ("avg_s", "stdev_s")]
        spreads[of.run, number] = [moments.count, moments.least, moments.most, *means]
        if number < 2:
            ranks[of.run, number] = [delays.counts[name].percentile(share) for share in SHARES]
    delivered = np.bincount(copies.message[copies.delivered_us != NEVER], minlength=len(messages))
    last = np.full(len(messages), NEVER)
    np.maximum.at(last, copies.message, copies.delivered_us)
    return {
        "processing": {(of.run,): [int(counts[name][0]) for name in ("bcast", "rcvd", "codlvd", "expd", "left")]},
        "delays": spreads,
        "percentiles": ranks,
        "medians": {(of.run, nodes[node].as_py()): [value] for node, value in _medians(whole)},
        "deliveries": {
            (of.run, name): [count, when if when != NEVER else None]
            for name, count, when in zip(messages.to_pylist(), delivered.tolist(), last.tolist(), strict=True)
        },
    }


def _medians(whole: Slice) -> list[tuple[int, int]]:
    """By node, the median of transmission delays, of the nearest rank."""
    known, delay_us = whole.copies.delays[TDELAY]
    node, value = whole.copies.node[known], milliseconds(delay_us[known])
    order = np.lexsort((value, node))
    found, first, count = np.unique(node[order], return_index=True, return_counts=True)
    middle = value[order][first + (count + 1) // 2 - 1]
    return list(zip(found.tolist(), middle.tolist(), strict=True))


def asked(engine: Engine, home: Path) -> dict[str, Answer]:
    """Return all answers of all runs."""
    files = {str(file): records.names_in(file) for file in Source.find(home).files}
    found: dict[str, Answer] = {}
    for each in engine.each("five questions", answers, records.runs(files, merge=False)):
        for name, answer in each.items():
            found.setdefault(name, {}).update(answer)
    return found


def made(engine: Engine, home: Path) -> int:
    """Make all families of all runs, none of which exists."""
    out = home / f"metrics-{time.monotonic_ns()}"
    making.make(engine, Source.find(home), making.Wanted(out=out))
    return sum(1 for _ in out.glob("*/*.parquet"))


def made_here(home: Path) -> int:
    """Make the same in one process."""
    return made(LocalEngine(), home)


# --- duckdb ------------------------------------------------------------------------------------------------

_COPIES: Final = """
CREATE OR REPLACE TEMP TABLE copies AS
WITH rows AS (
  SELECT run, node, message, kind, detail, CAST(round(t * 1e6) AS BIGINT) AS t_us
  FROM read_parquet($files) WHERE kind IN ('publish', 'receive', 'deliver', 'expire')
), publications AS (
  SELECT run, message, max(node) AS source, count(*) AS broadcasts, max(t_us) AS published
  FROM rows WHERE kind = 'publish' GROUP BY run, message
), copies AS (
  SELECT run, node, message,
    min(CASE WHEN kind = 'receive' AND detail IS DISTINCT FROM 'again' THEN t_us END) AS received,
    min(CASE WHEN kind = 'deliver' AND detail IS DISTINCT FROM 'redelivered' THEN t_us END) AS delivered,
    min(CASE WHEN kind = 'expire' THEN t_us END) AS expired
  FROM rows GROUP BY run, node, message
)
SELECT run, node, message, CASE WHEN node = source THEN broadcasts ELSE 0 END AS broadcasts,
  received, delivered, expired, received - published AS tdelay, delivered - received AS ltcy,
  delivered - published + (received - received) AS codlvdelay
FROM copies LEFT JOIN publications USING (run, message)
"""
_SPREAD: Final = """
  SELECT run, {metric}, count({name}), min({name}), max({name}), avg({name}), stddev_pop({name})
  FROM copies GROUP BY run
"""
_RANKS: Final = """
  SELECT run, {metric}, quantile_disc(CAST(round_even({name} / 1000, 0) AS BIGINT), [x / 100 FOR x IN range(1, 100)])
  FROM copies WHERE {name} IS NOT NULL GROUP BY run
"""
QUESTIONS: Final[Mapping[str, str]] = {
    "processing": """
        SELECT run, sum(broadcasts), count(received), count(delivered), count(expired),
          count(*) FILTER (received IS NOT NULL AND delivered IS NULL AND expired IS NULL)
        FROM copies GROUP BY run""",
    "delays": " UNION ALL ".join(_SPREAD.format(metric=at, name=name) for at, name in enumerate(DELAYS)),
    "percentiles": " UNION ALL ".join(_RANKS.format(metric=at, name=name) for at, name in enumerate(DELAYS[:2])),
    "medians": """
        SELECT run, node, quantile_disc(CAST(round_even(tdelay / 1000, 0) AS BIGINT), 0.5)
        FROM copies WHERE tdelay IS NOT NULL GROUP BY run, node""",
    "deliveries": "SELECT run, message, count(delivered), max(delivered) FROM copies GROUP BY run, message",
}


def on_duckdb(home: Path, repeats: int) -> tuple[list[tuple[float, float]], Found]:
    """Wall and CPU seconds of the first time and of each repetition, and all answers, fetched."""
    import duckdb  # noqa: PLC0415 - needed here only

    connection = duckdb.connect()
    connection.execute(f"SET threads = {THREADS}")
    files = [str(file) for file in sorted((home / "records").glob("*.parquet"))]
    times: list[tuple[float, float]] = []
    found: Found = {}
    for _ in range(1 + repeats):
        began_s, cpu_s = time.perf_counter(), time.process_time()
        connection.execute(_COPIES, {"files": files})
        found = {name: connection.execute(question).fetchall() for name, question in QUESTIONS.items()}
        times.append((time.perf_counter() - began_s, time.process_time() - cpu_s))
    return times, found


# --- the same answers --------------------------------------------------------------------------------------


def compare(ours: Mapping[str, Answer], duckdb: Found) -> None:
    """Raise unless both found the same; otherwise there is nothing to measure."""
    for name, answer in _of_duckdb(duckdb).items():
        if ours[name].keys() != answer.keys():
            raise BenchmarkError(f"{name}: we have {len(ours[name]):,} rows, duckdb {len(answer):,}")
        for key, values in answer.items():
            if not _same(ours[name][key], values):
                raise BenchmarkError(f"{name} of {key}: we find {ours[name][key]}, duckdb {values}")


def _same(one: Sequence[float | None], other: Sequence[float | None]) -> bool:
    """Return True if whole numbers are equal, and others differ by less than a microsecond."""
    return len(one) == len(other) and all(
        mine == yours or (isinstance(mine, float) and yours is not None and abs(mine - yours) < _CLOSE_US)
        for mine, yours in zip(one, other, strict=True)
    )


def _of_duckdb(found: Found) -> dict[str, Answer]:
    keys = {"processing": 1, "delays": 2, "percentiles": 2, "medians": 2, "deliveries": 2}
    made: dict[str, Answer] = {name: {row[:at]: list(row[at:]) for row in found[name]} for name, at in keys.items()}
    made["percentiles"] = {key: list(values[0]) for key, values in made["percentiles"].items()}
    return made


# --- the measurement ---------------------------------------------------------------------------------------


def measure(spark: SparkSession, folder: Path, *, quick: bool, repeats: int) -> list[Row]:
    """Return the cost of each number of rows on each engine."""
    del spark  # The session that is there is the one that engines use.
    # Executors know nothing of benchmarks.
    cloudpickle.register_pickle_by_value(sys.modules[__name__])  # type: ignore[no-untyped-call]
    rows: list[Row] = []
    with ExitStack() as ending:
        engine = SparkEngine(SparkOptions(), ending)
        for count in ROWS_QUICK if quick else ROWS:
            say(f"{count:,} rows: making them")
            home = _lab_records.written(count, folder)
            say(f"{count:,} rows: duckdb")
            apart = weigh_apart(on_duckdb, home, repeats)
            times, theirs = apart.result
            shown = [(_DUCKDB, *_middle(times[1:]), apart.peak_bytes)]
            compare(asked(engine, home), theirs)  # Workers have started, and import what they need, by then.
            shown.append((_FIVE, *_weighed(f"{count:,} rows: Spark", partial(asked, engine, home), repeats)))
            shown.append((_ALL, *_weighed(f"{count:,} rows: Spark, all", partial(made, engine, home), repeats)))
            say(f"{count:,} rows: one process")
            here = weigh_apart(made_here, home)
            shown.append(("one process, all families", here.wall_s, here.cpu_s, here.peak_bytes))
            rows += [
                {
                    "rows": count, "engine": name, "wall s": wall_s, "CPU s": cpu_s, "peak MB": peak_bytes / MEGABYTE,
                    "CPU by duckdb's": cpu_s / shown[0][2],
                }
                for name, wall_s, cpu_s, peak_bytes in shown
            ]  # fmt: skip
    return rows


def _weighed(what: str, do: Callable[[], object], repeats: int) -> tuple[float, float, int]:
    """Medians of wall and CPU seconds, and the most memory."""
    found = []
    for number in range(repeats):
        say(f"{what}, {number + 1} of {repeats}")
        found.append(weigh(do))
    return *_middle([(each.wall_s, each.cpu_s) for each in found]), max(each.peak_bytes for each in found)


def _middle(times: Sequence[tuple[float, float]]) -> tuple[float, float]:
    """Return the medians of wall and of CPU seconds."""
    walls, cpus = zip(*times, strict=True)
    return statistics.median(walls), statistics.median(cpus)


def goals(rows: list[Row]) -> list[Row]:
    """Return the CPU time of Spark compared with duckdb's, at the most rows."""
    most = max(row["rows"] for row in rows if isinstance(row["rows"], int))
    found: list[Row] = []
    for engine in (_FIVE, _ALL):
        (share,) = (row["CPU by duckdb's"] for row in rows if row["rows"] == most and row["engine"] == engine)
        assert isinstance(share, float)
        what = f"{most:,} rows: CPU of {engine} by that of {_DUCKDB}"
        found.append({"what": what, "measured": share, "goal": f"at most {GOAL}", "met": share <= GOAL})
    return found
