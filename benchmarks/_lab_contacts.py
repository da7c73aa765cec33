"""Contacts of walkers: the kernel in one process, SQL in duckdb, and the same kernel on Spark.

A made trace that is like the paper's city quarter: walkers that wander for about five minutes each, sampled every 0.6 s
by clocks of their own, so that some five of them are in range of 50 m at a time; ten times the walkers on ten times the
area for the large case. Every engine reads the same Parquet file and writes the table of contacts; their tables are
compared, and must be equal to the microsecond (duckdb's, which works in floats: in number).
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from carrypost.lab.schemas import POSITIONS

RANGE_M = 50.0
INTERVAL_S = 0.6
SPAN_S = 3_600.0
STAY_S = 315.0
AREA_M2 = 450.0
"""Of the quarter, by walker."""
SPEED_M_PER_S = 1.3
TURN_RAD = 0.15
"""Deviation of how much a walker turns from one sample to the next."""


def positions(walkers: int, seed: int = 1) -> pa.Table:
    """Where walkers are, sorted by node and time."""
    rng = np.random.Generator(np.random.PCG64(seed))
    counts = np.maximum(rng.exponential(STAY_S / INTERVAL_S, walkers).astype(np.int64), 1)
    node = np.repeat(np.arange(walkers), counts)
    first = np.cumsum(counts) - counts
    step = np.arange(len(node)) - first[node]
    t_us = np.rint((rng.uniform(0, SPAN_S, walkers)[node] + step * INTERVAL_S) * 1e6)
    heading = _since(np.cumsum(rng.normal(0, TURN_RAD, len(node))), first, node) + rng.uniform(0, 2 * np.pi, walkers)[node]
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
    """The trace as a table."""
    path = folder / f"walkers-{walkers}.parquet"
    if not path.exists():
        pq.write_table(positions(walkers), path, compression="zstd")
    return path
