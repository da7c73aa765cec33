"""Metrics of contacts of traces alone: families whose `run` is the name of a scenario.

Each scenario is a separate piece of work. A trace does not say when nodes were present: a node is, from a first sample
to a last one, interrupted where samples are further apart than what a line bridges.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from carrypost.emu.records.log import microseconds
from carrypost.files import refusing
from carrypost.lab import folders
from carrypost.lab.engines import Engine
from carrypost.lab.metrics import FAMILIES, kept, statistics
from carrypost.lab.metrics.parts import table_of
from carrypost.lab.metrics.presence import Presence
from carrypost.lab.metrics.statistics import Meetings, Stays
from carrypost.lab.schemas import CONTACTS, POSITIONS

STATISTICS = "statistics"
_TEXTS = frozenset({"scenario", "node", "a", "b"})
TABLES = [table for table, family in FAMILIES.items() if family.part == Presence.of]


@dataclass(frozen=True, slots=True)
class Order:
    """One scenario."""

    scenario: str
    positions: tuple[str, ...]
    contacts: tuple[str, ...]
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


def make(
    engine: Engine, positions: Path, out: Path, scenarios: Sequence[str], *, max_gap_us: int | None, window_us: int
) -> None:
    """Write the tables to a folder of their own in `out`, where the contacts are."""
    files = [
        tuple(str(file.absolute()) for file in folders.parquet_files(path, table))
        for path, table in ((positions, POSITIONS), (out, CONTACTS))
    ]
    orders = [Order(scenario, files[0], files[1], max_gap_us, window_us) for scenario in scenarios]
    found = engine.each("statistics of contacts", tables_of, orders)
    with kept.appending(out / STATISTICS, TABLES) as append:
        for scenario, tables in zip(scenarios, found, strict=True):
            append(scenario, "", tables)


def tables_of(order: Order) -> dict[str, pa.Table]:
    """Return the tables of a scenario, by name. Runs as a task."""
    places = _rows(order.positions, order.scenario, ["node", "t"])
    stays = statistics.stays_of_positions(places["node"], microseconds(places["t"].to_numpy()), order.max_gap_us)
    rows = _rows(order.contacts, order.scenario, ["a", "b", "start", "end"])
    times = (microseconds(rows[name].to_numpy()) for name in ("start", "end"))
    seen = Seen(Meetings(rows["a"], rows["b"], *times), stays, order.window_us)
    return {table.name: table_of(table, order.scenario, FAMILIES[table].rows(seen)) for table in TABLES}


def _rows(files: Sequence[str], scenario: str, names: list[str]) -> pa.Table:
    """Return columns of one scenario."""
    parts = []
    for file in files:
        with refusing(f"{file} cannot be read", pa.ArrowException):
            wanted = ["scenario", *names]
            rows = pq.ParquetFile(file, read_dictionary=sorted(_TEXTS & set(wanted))).read(columns=wanted)
        parts.append(rows.filter(pc.equal(rows["scenario"].cast(pa.string()), scenario)).select(names))
    return pa.concat_tables(parts)
