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
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
from benchmarks import _lab_records
from benchmarks._lab_weigh import Weighed, weigh, weigh_apart
from benchmarks._processes import BenchmarkError, Row, say
from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it

from carrypost.lab import folders
from carrypost.lab.families import LTCY, TDELAY
from carrypost.lab.metrics import Material, causal, material
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

Found = dict[str, Any]
"""By question, the answer."""


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
        done("messages", of.messages.select("message", "name").toArrow())
        done("processing", causal.processing(of.copies, of.nodes).toArrow())
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
    return thinned_counts(delays, ["node"], 2, steps=NODE_STEPS).toArrow()


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
  FROM read_parquet('{home}/records/*.parquet') WHERE kind IN ('publish', 'receive', 'deliver', 'expire')
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
_SPREADS: Final = ", ".join(
    f"count({name}), min({name}), max({name}), avg({name}), stddev_pop({name})"
    for name in ("tdelay", "ltcy", "codlvdelay")
)
_SHARES: Final = ", ".join(f"{share / 100}" for share in SHARES)
_VALUES: Final = """
  SELECT run, {metric} AS metric, CAST(round_even({name} / 1000, 0) AS BIGINT) AS value
  FROM copies WHERE {name} IS NOT NULL
"""
QUESTIONS: Final[Mapping[str, str]] = {
    "processing": """
        SELECT run, sum(broadcasts), count(received), count(delivered), count(expired),
          count(*) FILTER (received IS NOT NULL AND delivered IS NULL AND expired IS NULL)
        FROM copies GROUP BY run""",
    "delays": f"SELECT run, {_SPREADS} FROM copies GROUP BY run",
    "percentiles": " UNION ALL ".join(
        f"SELECT run, {metric}, quantile_disc(value, [{_SHARES}]) "
        f"FROM ({_VALUES.format(metric=metric, name=name)}) GROUP BY run"
        for metric, name in enumerate(("tdelay", "ltcy"))
    ),
    "medians": f"""
        SELECT run, node, quantile_disc(value, 0.5) FROM (
          SELECT run, node, CAST(round_even(tdelay / 1000, 0) AS BIGINT) AS value FROM copies WHERE tdelay IS NOT NULL
        ) GROUP BY run, node""",
    "deliveries": "SELECT run, message, count(delivered), max(delivered) FROM copies GROUP BY run, message",
}


def on_duckdb(home: str, repeats: int) -> tuple[list[tuple[float, float]], Found]:
    """Wall and CPU seconds of the first time and of each repetition, and all answers."""
    import duckdb  # noqa: PLC0415 - needed here only

    connection = duckdb.connect()
    connection.execute(f"SET threads = {THREADS}")
    times: list[tuple[float, float]] = []
    for _ in range(1 + repeats):
        began_s, cpu_s = time.perf_counter(), time.process_time()
        connection.execute(_COPIES.format(home=home))
        found = {name: connection.execute(question).fetchall() for name, question in QUESTIONS.items()}
        times.append((time.perf_counter() - began_s, time.process_time() - cpu_s))
    return times, found
