"""Metrics of records: on Spark by the functions of `lab metrics`, beside SQL in duckdb with as many threads.

Both read the same Parquet files (`_lab_records`), put together the copies of messages, and answer five questions:
Table V (processing), Table VI (delays), 99 percentiles of transmission delay and of latency, the median transmission
delay of every node, and deliveries and the last of them of every message. What they find is compared, and must be
equal: numbers exactly, means and deviations to a millionth of a second. Spark is measured in a session that has done
the same before, duckdb in a program of its own, the second time too.
"""

from __future__ import annotations

import statistics
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
from benchmarks import _lab_records
from benchmarks._lab_weigh import Weighed, weigh, weigh_apart
from benchmarks._processes import BenchmarkError, Row, say
from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it

from carrypost.lab import folders
from carrypost.lab.metrics import Material, causal, material
from carrypost.lab.metrics.families import DELAYS, LTCY, TDELAY
from carrypost.lab.metrics.percentiles import milliseconds, thinned_counts
from carrypost.lab.schemas import RECORDS

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

NAME: Final = "analytics"
TITLE: Final = "Analytics: metrics of records, Spark and duckdb"
ROWS: Final = (1_500_000, 15_000_000)
ROWS_QUICK: Final = (50_000,)
THREADS: Final = 2
GOAL: Final = 2.5
MEGABYTE: Final = 1_000_000
SHARES: Final = tuple(range(1, 100))
NODE_STEPS: Final = 64
_CLOSE_US: Final = 1.0

WARM: Final = 2
"""Runs on Spark before those that count: it compiles as it goes."""

Found = dict[str, Any]
"""By question, the answer as it came."""
Answer = dict[tuple[Any, ...], list[Any]]
"""An answer by key, for comparison."""


# --- Spark -------------------------------------------------------------------------------------------------


def on_spark(spark: SparkSession, home: Path, steps: dict[str, float] | None = None) -> Found:
    """All answers; `steps` gets how long each took."""
    began_s = time.perf_counter()
    found: Found = {}

    def done(name: str, answer: pa.Table) -> None:
        nonlocal began_s
        found[name] = answer
        if steps is not None:
            steps[name] = time.perf_counter() - began_s
        began_s = time.perf_counter()

    with material(folders.read(spark, home, RECORDS)) as of:
        done("nodes", of.nodes.select("run", "run_name", "node", "node_name").toArrow())
        done("messages", of.messages.select("message", "run_name", "name").toArrow())
        done("processing", causal.processing(of.copies, of.runs).toArrow())
        done("delays", of.spreads.toArrow())
        done("percentiles", _percentiles(of))
        done("medians", _medians(of))
        done("deliveries", _deliveries(of))
    return found


def _percentiles(of: Material) -> pa.Table:
    values = causal.values(of.copies, (TDELAY, LTCY))
    return thinned_counts(values, ["run", "metric"], 100, limits=causal.limits(of.spreads)).toArrow()


def _medians(of: Material) -> pa.Table:
    delays = of.copies.select("node", milliseconds(causal.delay_columns()[TDELAY]).alias("value")).dropna()
    # Those of a node lie between the least and the most of its run, which are known.
    tdelays = causal.limits(of.spreads).where(F.col("metric") == DELAYS.index(TDELAY))
    limits = of.nodes.join(F.broadcast(tdelays), on="run", how="inner").select("node", "least", "most")
    return thinned_counts(delays, ["node"], 2, steps=NODE_STEPS, limits=limits).toArrow()


def _deliveries(of: Material) -> pa.Table:
    return (
        of.copies.groupBy("message")
        .agg(F.count("delivered_us").alias("delivered"), F.max("delivered_us").alias("last"))
        .toArrow()
    )


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


def compare(spark: Found, duckdb: Found) -> None:
    """Whether both found the same; otherwise there is nothing to measure."""
    ours, theirs = _of_spark(spark), _of_duckdb(duckdb)
    for name, answer in theirs.items():
        if ours[name].keys() != answer.keys():
            raise BenchmarkError(f"{name}: Spark has {len(ours[name]):,} rows, duckdb {len(answer):,}")
        for key, values in answer.items():
            if not _same(ours[name][key], values):
                raise BenchmarkError(f"{name} of {key}: Spark finds {ours[name][key]}, duckdb {values}")


def _same(one: Sequence[float | None], other: Sequence[float | None]) -> bool:
    """Whole numbers must be equal, others to a microsecond."""
    return len(one) == len(other) and all(
        mine == yours or (isinstance(mine, float) and yours is not None and abs(mine - yours) < _CLOSE_US)
        for mine, yours in zip(one, other, strict=True)
    )


def _of_spark(found: Found) -> dict[str, Answer]:
    runs = {row["run"]: row["run_name"] for row in found["nodes"].to_pylist()}
    nodes = {row["node"]: (row["run_name"], row["node_name"]) for row in found["nodes"].to_pylist()}
    messages = {row["message"]: (row["run_name"], row["name"]) for row in found["messages"].to_pylist()}
    counts = ("bcast", "rcvd", "codlvd", "expd", "left")
    ranks: dict[tuple[str, int], list[tuple[int, int, int]]] = defaultdict(list)
    for row in found["percentiles"].to_pylist():
        ranks[runs[row["run"]], row["metric"]].append((row["value"], row["cumulative"], row["total"]))
    medians: dict[tuple[str, str], int] = {}
    for row in found["medians"].to_pylist():
        if 2 * row["cumulative"] >= row["total"]:
            key = nodes[row["node"]]
            medians[key] = min(medians.get(key, row["value"]), row["value"])
    return {
        "processing": {(row["run"],): [row[each] for each in counts] for row in found["processing"].to_pylist()},
        "delays": {
            (runs[row["run"]], row["metric"]): [row[each] for each in ("count", "min", "max", "avg", "stdev")]
            for row in found["delays"].to_pylist()
        },
        "percentiles": {key: [_nearest(rows, share) for share in SHARES] for key, rows in ranks.items()},
        "medians": {key: [value] for key, value in medians.items()},
        "deliveries": {
            messages[row["message"]]: [row["delivered"], row["last"]] for row in found["deliveries"].to_pylist()
        },
    }


def _nearest(rows: list[tuple[int, int, int]], share: int) -> int:
    return min(value for value, cumulative, total in rows if cumulative * 100 >= total * share)


def _of_duckdb(found: Found) -> dict[str, Answer]:
    keys = {"processing": 1, "delays": 2, "percentiles": 2, "medians": 2, "deliveries": 2}
    made: dict[str, Answer] = {name: {row[:at]: list(row[at:]) for row in found[name]} for name, at in keys.items()}
    made["percentiles"] = {key: list(values[0]) for key, values in made["percentiles"].items()}
    return made


# --- the measurement ---------------------------------------------------------------------------------------


def measure(spark: SparkSession, folder: Path, *, quick: bool, repeats: int) -> list[Row]:
    """What each number of rows took on each engine, the first time and after that."""
    rows: list[Row] = []
    before = 0 if quick else WARM
    for count in ROWS_QUICK if quick else ROWS:
        say(f"{count:,} rows: making them")
        home = _lab_records.written(count, folder)
        say(f"{count:,} rows: duckdb")
        apart = weigh_apart(on_duckdb, home, repeats)
        times, theirs = apart.result
        warm_s, warm_cpu_s = _middle(times[1:])
        shown: list[tuple[str, float, float, int]] = [
            ("duckdb, first", *times[0], apart.peak_bytes), ("duckdb, warm", warm_s, warm_cpu_s, apart.peak_bytes),
        ]  # fmt: skip
        weighed: list[Weighed[Found]] = []
        steps: list[dict[str, float]] = []
        for number in range(before + repeats):
            say(f"{count:,} rows: Spark, {number + 1} of {before + repeats}")
            steps.append({})
            weighed.append(weigh(partial(on_spark, spark, home, steps[-1])))
        compare(weighed[-1].result, theirs)
        for name, each in steps[-1].items():
            say(f"{count:,} rows: Spark, {name}: {each:.2f} s")
        first = weighed[0]
        spark_s, spark_cpu_s = _middle([(each.wall_s, each.cpu_s) for each in weighed[before:]])
        peak = max(each.peak_bytes for each in weighed[before:])
        shown += [
            ("Spark, first", first.wall_s, first.cpu_s, first.peak_bytes),
            ("Spark, warm", spark_s, spark_cpu_s, peak),
        ]
        rows += [
            {
                "rows": count, "engine": engine, "wall s": wall_s, "CPU s": cpu_s, "peak MB": peak_bytes / MEGABYTE,
                "by duckdb, warm": wall_s / warm_s,
            }
            for engine, wall_s, cpu_s, peak_bytes in shown
        ]  # fmt: skip
    return rows


def _middle(times: Sequence[tuple[float, float]]) -> tuple[float, float]:
    """The medians of wall and of CPU seconds."""
    walls, cpus = zip(*times, strict=True)
    return statistics.median(walls), statistics.median(cpus)


def goals(rows: list[Row]) -> list[Row]:
    """Spark, warm, beside duckdb, warm, at the most rows."""
    most = max(row["rows"] for row in rows if isinstance(row["rows"], int))
    (found,) = (row["by duckdb, warm"] for row in rows if row["rows"] == most and row["engine"] == "Spark, warm")
    assert isinstance(found, float)
    what = f"analytics, {most:,} rows: Spark's wall time by duckdb's, both warm"
    return [{"what": what, "measured": found, "goal": f"at most {GOAL}", "met": found <= GOAL}]
