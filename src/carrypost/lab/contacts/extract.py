"""From a table of positions on disk to one of contacts, and on demand to their statistics, by either engine.

Each table is complete or absent, and the manifest describes its origin. Statistics go to a folder of their own, as
tables of `lab.metrics.families` whose `run` is the name of the scenario.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from carrypost.emu.records.log import microseconds
from carrypost.emu.traces.encounters import Rules
from carrypost.errors import LocalError
from carrypost.lab import folders
from carrypost.lab.contacts import scenario_tables
from carrypost.lab.contacts.contacts_here import found_here
from carrypost.lab.engines import Engine, SparkEngine
from carrypost.lab.metrics.parts import window_us
from carrypost.lab.schemas import CONTACTS, POSITIONS, Table


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """The contacts to be made, and the options."""

    rules: Rules
    slab_us: int | None = None
    statistics: bool = False
    window_s: float = 60.0
    """Of means over time."""


def extract(positions: Path, out: Path, wanted: Wanted, engine: Engine) -> list[dict[str, Any]]:
    """Write the contacts of these positions to a folder; return the summary of each scenario that has any."""
    count = samples(positions)
    scenarios = _scenarios(positions, POSITIONS)
    if (out / CONTACTS.name).is_dir():
        for other in sorted(_scenarios(out / CONTACTS.name, CONTACTS) - scenarios):
            raise LocalError(f"{out / CONTACTS.name} holds the scenario {other!r}; choose another --out")
    if isinstance(engine, SparkEngine):
        from carrypost.lab.contacts.contacts import found  # noqa: PLC0415 - loaded only where Spark is

        frame = folders.read(engine.start(), positions, POSITIONS)
        folders.write(found(frame, wanted.rules, slab_us=wanted.slab_us), out, CONTACTS)
    else:
        rows = folders.read_arrow(positions, POSITIONS)
        folders.write_arrow(found_here(rows, wanted.rules, slab_us=wanted.slab_us), out, CONTACTS)
    facts = list(summaries(out, scenarios))
    folders.note(out, CONTACTS, _facts(positions, count, engine, wanted.rules, facts))
    if wanted.statistics:
        scenario_tables.make(
            engine, positions, out, sorted(scenarios), max_gap_us=wanted.rules.max_gap_us,
            window_us=window_us(wanted.window_s),
        )  # fmt: skip
    return facts


def samples(positions: Path) -> int:
    """Return the number of samples."""
    return sum(pq.read_metadata(file).num_rows for file in folders.parquet_files(positions, POSITIONS))


def _facts(positions: Path, count: int, engine: Engine, rules: Rules, facts: list[dict[str, Any]]) -> dict[str, Any]:
    return {
        "source": str(positions),
        "parameters": {
            "range_m": rules.range_m,
            "max_gap_s": None if rules.max_gap_us is None else rules.max_gap_us / 1e6,
            "merge_gap_s": rules.merge_gap_us / 1e6,
            "min_duration_s": rules.min_duration_us / 1e6,
        },
        "engine": engine.name,
        "samples": count,
        "rows": sum(each["contacts"] for each in facts),
        "scenarios": facts,
    }


def _scenarios(path: Path, table: Table) -> set[str]:
    return {name for file in folders.parquet_files(path, table) for name in folders.texts_in(file, "scenario")}


def summaries(folder: Path, scenarios: set[str]) -> Iterator[dict[str, Any]]:
    """Yield the number of contacts of each of these scenarios, their nodes and lengths."""
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
