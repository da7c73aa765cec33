"""From a table of positions on disk to one of contacts, and on demand to what these tell; either engine, same tables.

Each table is there whole or not at all, and the manifest tells how it was made. Statistics go to a folder of their own,
as tables of `lab.metrics.families` whose `run` is the name of the scenario.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from carrypost.emu.traces.encounters import Rules
from carrypost.errors import LocalError
from carrypost.lab import folders
from carrypost.lab.contacts.contacts_here import SAMPLES_HERE_MAX, found_here, microseconds
from carrypost.lab.schemas import CONTACTS, POSITIONS, Table
from carrypost.lab.spark.session import SparkOptions, session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

STATISTICS = "statistics"


class Engine(Enum):
    """Where contacts are searched."""

    AUTO = "auto"
    """In this process if there are few samples, else on Spark."""
    LOCAL = "local"
    SPARK = "spark"


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """What is to be made, and how."""

    rules: Rules
    engine: Engine = Engine.AUTO
    slab_us: int | None = None
    statistics: bool = False
    window_s: float = 60.0
    """Of means over time."""
    options: SparkOptions | None = None


def extract(positions: Path, out: Path, wanted: Wanted) -> list[dict[str, Any]]:
    """Write the contacts of these positions to a folder; what is told of each scenario that has any."""
    samples = sum(pq.read_metadata(file).num_rows for file in folders.parquet_files(positions, POSITIONS))
    scenarios = _scenarios(positions, POSITIONS)
    if (out / CONTACTS.name).is_dir():
        for other in sorted(_scenarios(out / CONTACTS.name, CONTACTS) - scenarios):
            raise LocalError(f"{out / CONTACTS.name} holds the scenario {other!r}; choose another --out")
    engine = wanted.engine
    if engine is Engine.AUTO:
        engine = Engine.LOCAL if samples <= SAMPLES_HERE_MAX else Engine.SPARK
    with ExitStack() as ending:
        spark = None
        if wanted.statistics or engine is Engine.SPARK:
            spark = ending.enter_context(session(wanted.options))
        if spark is None or engine is Engine.LOCAL:
            rows = folders.read_arrow(positions, POSITIONS)
            folders.write_arrow(found_here(rows, wanted.rules, slab_us=wanted.slab_us), out, CONTACTS)
        else:
            from carrypost.lab.contacts.contacts import found  # noqa: PLC0415 - loaded only where Spark is

            frame = folders.read(spark, positions, POSITIONS)
            folders.write(found(frame, wanted.rules, slab_us=wanted.slab_us), out, CONTACTS)
        told = list(summaries(out, scenarios))
        folders.note(out, CONTACTS, _facts(positions, samples, engine, wanted.rules, told))
        if spark is not None and wanted.statistics:
            _statistics(spark, positions, out, wanted)
    return told


def _facts(positions: Path, samples: int, engine: Engine, rules: Rules, told: list[dict[str, Any]]) -> dict[str, Any]:
    return {
        "source": str(positions),
        "parameters": {
            "range_m": rules.range_m,
            "max_gap_s": None if rules.max_gap_us is None else rules.max_gap_us / 1e6,
            "merge_gap_s": rules.merge_gap_us / 1e6,
            "min_duration_s": rules.min_duration_us / 1e6,
        },
        "engine": engine.value,
        "samples": samples,
        "rows": sum(each["contacts"] for each in told),
        "scenarios": told,
    }


def _scenarios(path: Path, table: Table) -> set[str]:
    return set().union(*map(folders.scenarios, folders.parquet_files(path, table)))


def summaries(folder: Path, scenarios: set[str]) -> Iterator[dict[str, Any]]:
    """How many contacts each of these scenarios has, of whom, and how long they are."""
    rows = folders.read_arrow(folder, CONTACTS)
    for scenario in sorted(scenarios):
        mine = rows.filter(pc.equal(rows["scenario"], scenario))
        if not len(mine):
            yield {"scenario": scenario, "contacts": 0, "pairs": 0, "nodes": 0}
            continue
        lasting_us = microseconds(mine["end"].to_numpy()) - microseconds(mine["start"].to_numpy())
        nodes = pa.chunked_array([*mine["a"].chunks, *mine["b"].chunks])
        yield {
            "scenario": scenario,
            "contacts": len(mine),
            "pairs": len(mine.group_by(["a", "b"]).aggregate([])),
            "nodes": len(pc.unique(nodes)),
            "min_s": int(lasting_us.min()) / 1e6,
            "max_s": int(lasting_us.max()) / 1e6,
            "avg_s": float(np.mean(lasting_us)) / 1e6,
            "stdev_s": float(np.std(lasting_us)) / 1e6,
        }


def _statistics(spark: SparkSession, positions: Path, out: Path, wanted: Wanted) -> None:
    from carrypost.lab.metrics import families, statistics  # noqa: PLC0415 - loaded only where Spark is

    contacts = statistics.of_trace(folders.read(spark, out, CONTACTS))
    samples = folders.read(spark, positions, POSITIONS)
    target = out / STATISTICS
    folders.write(statistics.activity_of_positions(samples, wanted.rules.max_gap_us), target, families.ACTIVITY)
    activity = folders.read(spark, target, families.ACTIVITY)
    made = {
        families.ACTIVITY_SUMMARY: statistics.activity_summary(activity),
        families.CONTACT_SUMMARY: statistics.contact_summary(contacts),
        families.CONTACT_CDF: statistics.contact_cdf(contacts),
        families.INTER_CONTACT_CDF: statistics.inter_contact_cdf(contacts),
        families.NEIGHBOURS: statistics.neighbours(contacts, activity),
        families.NEIGHBOURS_TIMELINE: statistics.neighbours_timeline(contacts, activity, wanted.window_s),
    }
    for table, frame in made.items():
        folders.write(frame, target, table)
