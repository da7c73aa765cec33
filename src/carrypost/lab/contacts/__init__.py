"""From a table of positions to one of contacts, and on demand to their statistics, on Spark or in one process.

Each table is complete or absent, and the manifest describes its origin. Statistics go to a folder of their own, as
tables of `lab.metrics.families` whose `run` is the name of the scenario; each scenario is a separate piece of work. A
trace does not say when nodes were present: a node is, from a first sample to a last one, interrupted where samples are
further apart than what a line bridges.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from carrypost.emu.rows import microseconds
from carrypost.errors import LocalError
from carrypost.lab import folders
from carrypost.lab.contacts.search import found_here
from carrypost.lab.engines import Engine, SparkEngine
from carrypost.lab.folders import Folder, readable
from carrypost.lab.metrics import FAMILIES, presence, records
from carrypost.lab.metrics.parts import table_of, window_us
from carrypost.lab.metrics.presence import Meetings, Presence, Stays
from carrypost.lab.schemas import CONTACTS, POSITIONS, Table
from carrypost.log.files import refusing
from carrypost.traces.encounters import Rules

STATISTICS = "statistics"
_TEXTS = frozenset({"scenario", "node", "a", "b"})
TABLES = [table for table, family in FAMILIES.items() if family.part == Presence.of]


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """The contacts to be made, and the options."""

    rules: Rules
    slab_us: int | None = None
    statistics: bool = False
    window_s: float = 60.0
    """Of means over time."""


def extract(positions: Folder, out: Folder, wanted: Wanted, engine: Engine) -> list[dict[str, Any]]:
    """Write the contacts of these positions to a folder; return the summary of each scenario that has any."""
    count = samples(positions)
    scenarios = _scenarios(positions, POSITIONS)
    if (out / CONTACTS.name).is_dir():
        for other in sorted(_scenarios(out / CONTACTS.name, CONTACTS) - scenarios):
            raise LocalError(f"{out / CONTACTS.name} holds the scenario {other!r}; choose another --out")
    if isinstance(engine, SparkEngine):
        from carrypost.lab.contacts.spark import found  # noqa: PLC0415 - loaded only where Spark is
        from carrypost.lab.spark.session import described  # noqa: PLC0415 - likewise

        spark = engine.start()
        with described(spark, "samples of each node"):
            contacts = found(folders.read(spark, positions, POSITIONS), wanted.rules, slab_us=wanted.slab_us)
        with described(spark, "contacts"):
            folders.write(contacts, out, CONTACTS)
    else:
        rows = folders.read_arrow(positions, POSITIONS)
        folders.write_arrow(found_here(rows, wanted.rules, slab_us=wanted.slab_us), out, CONTACTS)
    facts = engine.each("summary of contacts", partial(summary, _files(out, CONTACTS)), sorted(scenarios))
    folders.note(out, CONTACTS, _facts(positions, count, engine, wanted.rules, facts))
    if wanted.statistics:
        _write_statistics(engine, positions, out, sorted(scenarios), wanted)
    return facts


def samples(positions: Folder) -> int:
    """Return the number of samples."""
    count = 0
    for file in _files(positions, POSITIONS):
        with readable(file) as content:
            count += pq.read_metadata(content).num_rows
    return count


def _files(place: Folder, table: Table) -> tuple[Folder, ...]:
    """Return the files of a table, as tasks find them."""
    return tuple(file.absolute() for file in folders.parquet_files(place, table))


def _facts(positions: Folder, count: int, engine: Engine, rules: Rules, facts: list[dict[str, Any]]) -> dict[str, Any]:
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


def _scenarios(path: Folder, table: Table) -> set[str]:
    return {name for file in _files(path, table) for name in folders.texts_in(file, "scenario")}


def summary(files: Sequence[Folder], scenario: str) -> dict[str, Any]:
    """Return the number of contacts of a scenario, their nodes and lengths. Runs as a task."""
    found = presence.contact_summary(_met(files, scenario))
    row = {name: each[0] for name, each in found.items() if each}
    return {"scenario": scenario, **(row or {"contacts": 0, "pairs": 0, "nodes": 0})}


# --- statistics -----------------------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class Order:
    """One scenario."""

    scenario: str
    positions: tuple[Folder, ...]
    contacts: tuple[Folder, ...]
    max_gap_us: int | None
    window_us: int


class Seen(NamedTuple):
    """Tables of a trace, in place of the `Presence` of a run."""

    meetings: Meetings
    presence: Stays
    window_us: int

    def stays(self) -> Stays:
        """Stays of the nodes."""
        return self.presence


def _write_statistics(engine: Engine, positions: Folder, out: Folder, scenarios: Sequence[str], wanted: Wanted) -> None:
    """Write the tables to a folder of their own in `out`, where the contacts are."""
    files = _files(positions, POSITIONS), _files(out, CONTACTS)
    max_gap_us, width_us = wanted.rules.max_gap_us, window_us(wanted.window_s)
    orders = [Order(scenario, files[0], files[1], max_gap_us, width_us) for scenario in scenarios]
    found = engine.each("statistics of contacts", tables_of, orders)
    for table in TABLES:
        records.put_once(out / STATISTICS, table, [tables[table.name] for tables in found])


def tables_of(order: Order) -> dict[str, pa.Table]:
    """Return the tables of a scenario, by name. Runs as a task."""
    places = _rows(order.positions, order.scenario, ["node", "t"])
    stays = presence.stays_of_positions(places["node"], microseconds(places["t"].to_numpy()), order.max_gap_us)
    seen = Seen(_met(order.contacts, order.scenario), stays, order.window_us)
    return {table.name: table_of(table, order.scenario, FAMILIES[table].rows(seen)) for table in TABLES}


def _met(files: Sequence[Folder], scenario: str) -> Meetings:
    rows = _rows(files, scenario, ["a", "b", "start", "end"])
    start_us, end_us = (microseconds(rows[name].to_numpy()) for name in ("start", "end"))
    return Meetings(rows["a"], rows["b"], start_us, end_us)


def _rows(files: Sequence[Folder], scenario: str, names: list[str]) -> pa.Table:
    """Return columns of one scenario."""
    parts = []
    for file in files:
        with refusing(f"{file} cannot be read", pa.ArrowException), readable(file) as content:
            wanted = ["scenario", *names]
            rows = pq.ParquetFile(content, read_dictionary=sorted(_TEXTS & set(wanted))).read(columns=wanted)
        parts.append(rows.filter(pc.equal(rows["scenario"].cast(pa.string()), scenario)).select(names))
    return pa.concat_tables(parts)
