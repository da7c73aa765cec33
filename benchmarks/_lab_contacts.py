"""Contacts of walkers: the kernel in one process, SQL in duckdb, and the same kernel on Spark.

The artificial trace is like the paper's city quarter: walkers that wander for about five minutes each, sampled every
0.6 s by clocks of their own, with a range of 50 m; the large case has ten times the walkers on ten times the area.
Every engine reads the same Parquet file and writes the table of contacts. Those of Spark and of one process must be
equal to the last bit; duckdb works in floats, and must find the same number. Spark is measured in a session that has
done the work before.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from benchmarks._lab_weigh import Weighed, weigh, weigh_apart
from benchmarks._processes import BenchmarkError, Row, say
from numpy.typing import NDArray

from carrypost.lab import folders
from carrypost.lab.contacts.search import found_here
from carrypost.lab.schemas import CONTACTS, POSITIONS
from carrypost.traces.encounters import Rules

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

NAME: Final = "contacts"
TITLE: Final = "Contacts: of positions, Spark, one process and duckdb"
WALKERS: Final = (2_092, 20_920)
WALKERS_QUICK: Final = (100,)
SQL_WALKERS_MAX: Final = 2_092
GOAL: Final = 1.5
MEGABYTE: Final = 1_000_000
RULES: Final = Rules(range_m=50.0, max_gap_us=600_000_000)
INTERVAL_S: Final = 0.6
SPAN_S: Final = 3_600.0
STAY_S: Final = 315.0
AREA_M2: Final = 450.0
"""Area of the quarter for each walker."""
SPEED_M_PER_S: Final = 1.3
TURN_RAD: Final = 0.15
"""Deviation of the angle by which a walker turns from one sample to the next."""

KERNEL, SPARK, DUCKDB = "kernel, one process", "Spark, warm", "duckdb"


# --- the trace ---------------------------------------------------------------------------------------------


def positions(walkers: int, seed: int = 1) -> pa.Table:
    """Return the positions of walkers, sorted by node and time."""
    rng = np.random.Generator(np.random.PCG64(seed))
    counts = np.maximum(rng.exponential(STAY_S / INTERVAL_S, walkers).astype(np.int64), 1)
    node = np.repeat(np.arange(walkers), counts)
    first = np.cumsum(counts) - counts
    step = np.arange(len(node)) - first[node]
    t_us = np.rint((rng.uniform(0, SPAN_S, walkers)[node] + step * INTERVAL_S) * 1e6)
    turned = _since(np.cumsum(rng.normal(0, TURN_RAD, len(node))), first, node)
    heading = turned + rng.uniform(0, 2 * np.pi, walkers)[node]
    speed = rng.uniform(0.6, 1.4, walkers)[node] * SPEED_M_PER_S * INTERVAL_S
    side_m = float(np.sqrt(AREA_M2 * walkers))
    places = {}
    for name, moved in (("x", np.cos(heading)), ("y", np.sin(heading))):
        path = _since(np.cumsum(moved * speed), first, node) + rng.uniform(0, side_m, walkers)[node]
        places[name] = np.abs((path + side_m) % (2 * side_m) - side_m)
    width = len(str(walkers))
    names = pa.array([f"w{index:0{width}}" for index in range(walkers)])
    return pa.table(
        {
            "scenario": pa.repeat("walkers", len(node)),
            "node": names.take(pa.array(node)),
            "t": t_us / 1e6,
            **places,
        },
        schema=POSITIONS.arrow,
    )


def _since(total: NDArray[np.float64], first: NDArray[np.int64], node: NDArray[np.int64]) -> NDArray[np.float64]:
    """Running totals of each walker, out of those of all."""
    return total - total[first][node]


def written(walkers: int, folder: Path) -> Path:
    """Return the trace as a table."""
    path = folder / f"walkers-{walkers}.parquet"
    pq.write_table(positions(walkers), path, compression="zstd")
    return path


# --- engines -----------------------------------------------------------------------------------------------


def here(trace: str, out: str) -> None:
    """Contacts by the kernel, in this process."""
    folders.write_arrow(found_here(folders.read_arrow(Path(trace), POSITIONS), RULES), Path(out), CONTACTS)


def on_spark(spark: SparkSession, trace: Path, out: Path) -> None:
    """Contacts on Spark."""
    from carrypost.lab.contacts.spark import found  # noqa: PLC0415 - loaded where Spark is

    folders.write(found(folders.read(spark, trace, POSITIONS), RULES), out, CONTACTS)


_SLAB_S: Final = 1.2
_CELL_M: Final = 55.0
"""Greatest distance of two walkers in range, in the middle of their segments."""
_SQL: Final = f"""
COPY (
WITH segments AS (
  SELECT scenario, node, t AS t0, x AS x0, y AS y0, lead(t) OVER w AS t1, lead(x) OVER w AS x1, lead(y) OVER w AS y1
  FROM read_parquet('{{trace}}') WINDOW w AS (PARTITION BY scenario, node ORDER BY t)
), cut AS (
  SELECT *, CAST(floor((x0 + x1) / 2 / {_CELL_M}) AS INT) AS gx, CAST(floor((y0 + y1) / 2 / {_CELL_M}) AS INT) AS gy,
    unnest(range(CAST(floor(t0 / {_SLAB_S}) AS BIGINT), CAST(floor(t1 / {_SLAB_S}) AS BIGINT) + 1)) AS slab
  FROM segments WHERE t1 - t0 <= 600
), near AS MATERIALIZED (
  SELECT *, gx + hx AS nx, gy + hy AS ny FROM cut, (VALUES (-1), (0), (1)) h(hx), (VALUES (-1), (0), (1)) v(hy)
), pairs AS (
  SELECT a.scenario, a.node AS a, b.node AS b, greatest(a.t0, b.t0) AS since, least(a.t1, b.t1) AS until,
    a.x0 + (a.x1 - a.x0) * (since - a.t0) / (a.t1 - a.t0) - b.x0 - (b.x1 - b.x0) * (since - b.t0) / (b.t1 - b.t0) AS px,
    a.y0 + (a.y1 - a.y0) * (since - a.t0) / (a.t1 - a.t0) - b.y0 - (b.y1 - b.y0) * (since - b.t0) / (b.t1 - b.t0) AS py,
    (a.x1 - a.x0) / (a.t1 - a.t0) - (b.x1 - b.x0) / (b.t1 - b.t0) AS vx,
    (a.y1 - a.y0) / (a.t1 - a.t0) - (b.y1 - b.y0) / (b.t1 - b.t0) AS vy
  FROM near a JOIN cut b ON a.slab = b.slab AND a.nx = b.gx AND a.ny = b.gy
  WHERE a.node < b.node AND until > since AND a.slab = CAST(floor(since / {_SLAB_S}) AS BIGINT)
), roots AS (
  SELECT *, vx * vx + vy * vy AS q, px * vx + py * vy AS p, px * px + py * py - {RULES.range_m**2} AS c,
    p * p - q * c AS d FROM pairs
), pieces AS (
  SELECT scenario, a, b, round(CASE WHEN c <= 0 THEN since ELSE since + (-p - sqrt(d)) / q END, 6) AS start,
    round(least(until, since + (-p + sqrt(d)) / q), 6) AS "end"
  FROM roots WHERE d > 0 AND (c <= 0 OR (p < 0 AND since + (-p - sqrt(d)) / q < until))
), marked AS (
  SELECT *, CASE WHEN start - lag("end") OVER w <= 1.5e-6 THEN 0 ELSE 1 END AS begins
  FROM pieces WHERE "end" > start WINDOW w AS (PARTITION BY scenario, a, b ORDER BY start)
), numbered AS (
  SELECT *, sum(begins) OVER (PARTITION BY scenario, a, b ORDER BY start) AS which FROM marked
)
SELECT scenario, a, b, min(start) AS start, max("end") AS "end" FROM numbered GROUP BY scenario, a, b, which
ORDER BY start, a, b
) TO '{{out}}' (FORMAT parquet, COMPRESSION zstd)
"""  # noqa: S608 - our own figures and paths


def on_duckdb(trace: str, out: str) -> None:
    """Contacts by SQL: segments in slabs, pairs by a grid, roots, and what touches joined."""
    import duckdb  # noqa: PLC0415 - needed here only

    Path(out).parent.mkdir(parents=True, exist_ok=True)
    connection = duckdb.connect()
    connection.execute("SET threads = 2; SET enable_progress_bar = false")
    connection.execute(_SQL.format(trace=trace, out=out))


# --- measurements ------------------------------------------------------------------------------------------


def measure(spark: SparkSession, folder: Path, *, quick: bool, repeats: int) -> list[Row]:
    """Return the cost of each case on each engine; unequal tables are an error."""
    found: list[Row] = []
    warm = False
    for walkers in WALKERS_QUICK if quick else WALKERS:
        trace = written(walkers, folder)
        samples = pq.read_metadata(trace).num_rows
        case = f"{samples / 1e6:.1f} M positions" if samples >= 1e5 else f"{samples:,} positions"
        tables = {engine: folder / f"{walkers}-{number}" for number, engine in enumerate((KERNEL, SPARK, DUCKDB))}
        if not warm:
            say("contacts: the first time on Spark")
            on_spark(spark, trace, tables[SPARK])
            warm = True
        weighed: dict[str, list[Weighed[Any]]] = {KERNEL: [], SPARK: []}
        if walkers <= SQL_WALKERS_MAX:
            weighed[DUCKDB] = []
        for number in range(repeats):
            say(f"contacts, {case}: {number + 1} of {repeats}")
            weighed[KERNEL].append(weigh_apart(here, str(trace), str(tables[KERNEL])))
            weighed[SPARK].append(weigh(lambda: on_spark(spark, trace, tables[SPARK])))  # noqa: B023 - called at once
            if DUCKDB in weighed:
                weighed[DUCKDB].append(weigh_apart(on_duckdb, str(trace), str(tables[DUCKDB] / "contacts.parquet")))
        contacts = _compared(tables[KERNEL], tables[SPARK], tables[DUCKDB] if DUCKDB in weighed else None)
        found.extend(_rows(case, contacts, weighed))
    return found


def _compared(kernel: Path, spark: Path, sql: Path | None) -> int:
    """Return the number of contacts, if all agree."""
    tables = [folders.read_arrow(each, CONTACTS).combine_chunks() for each in (kernel, spark)]
    if not tables[0].equals(tables[1]):
        raise BenchmarkError("contacts on Spark are not those of one process")
    if sql is not None and (count := len(folders.read_arrow(sql, CONTACTS))) != len(tables[0]):
        raise BenchmarkError(f"duckdb finds {count:,} contacts, the kernel {len(tables[0]):,}")
    return len(tables[0])


def _rows(case: str, contacts: int, weighed: dict[str, list[Weighed[Any]]]) -> list[Row]:
    base_s = _median([each.wall_s for each in weighed[KERNEL]])
    return [
        {
            "case": case,
            "engine": engine,
            "contacts": contacts,
            "wall s": _median([each.wall_s for each in times]),
            "CPU s": _median([each.cpu_s for each in times]),
            "peak MB": _median([each.peak_bytes for each in times]) / MEGABYTE,
            "ratio": _median([each.wall_s for each in times]) / base_s,
        }
        for engine, times in weighed.items()
    ]


def _median(values: Sequence[float]) -> float:
    return float(statistics.median(values))


def goals(rows: list[Row]) -> list[Row]:
    """Return Spark's wall time on two cores, divided by that of one process, in the largest case."""
    row = [row for row in rows if row["engine"] == SPARK][-1]
    ratio = float(str(row["ratio"]))
    what = f"contacts, {row['case']}: wall time by that of one process"
    return [{"what": what, "measured": round(ratio, 3), "goal": f"at most {GOAL}", "met": ratio <= GOAL}]
