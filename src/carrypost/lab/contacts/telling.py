"""What the contacts of traces tell by themselves: families of metrics whose `run` is the name of a scenario.

Each scenario is a piece of work of its own. Who was there when, a trace does not say: a node is, from a first sample to
a last one, broken where samples are further apart than what is bridged by a line.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from carrypost.files import refusing
from carrypost.lab import folders
from carrypost.lab.engines import Engine
from carrypost.lab.metrics import families as f
from carrypost.lab.metrics import kept, statistics
from carrypost.lab.metrics.distribution import Columns
from carrypost.lab.metrics.parts import made
from carrypost.lab.metrics.rows import microseconds
from carrypost.lab.metrics.statistics import Meetings, Stays
from carrypost.lab.schemas import CONTACTS, POSITIONS, Table

STATISTICS = "statistics"
_PARTS = ".parts"
_TEXTS = frozenset({"scenario", "node", "a", "b"})
TABLES: Mapping[Table, Callable[[Meetings, Stays, int], Columns]] = {
    f.ACTIVITY: lambda _, stays, __: statistics.activity(stays),
    f.ACTIVITY_SUMMARY: lambda _, stays, __: statistics.activity_summary(stays),
    f.CONTACT_SUMMARY: lambda met, _, __: statistics.contact_summary(met),
    f.CONTACT_CDF: lambda met, _, __: statistics.contact_cdf(met),
    f.INTER_CONTACT_CDF: lambda met, _, __: statistics.inter_contact_cdf(met),
    f.NEIGHBOURS: lambda met, stays, _: statistics.neighbours(met, stays),
    f.NEIGHBOURS_TIMELINE: statistics.neighbours_timeline,
}


@dataclass(frozen=True, slots=True)
class Order:
    """One scenario."""

    scenario: str
    positions: tuple[str, ...]
    contacts: tuple[str, ...]
    max_gap_us: int | None
    window_us: int
    target: str


def make(
    engine: Engine, positions: Path, out: Path, scenarios: Sequence[str], *, max_gap_us: int | None, window_us: int
) -> None:
    """Write the tables to a folder of their own in `out`, where the contacts are."""
    target = out / STATISTICS
    parts = target.absolute() / _PARTS
    with folders.told_of(parts):
        parts.mkdir(parents=True, exist_ok=True)
    files = [
        tuple(str(file.absolute()) for file in folders.parquet_files(path, table))
        for path, table in ((positions, POSITIONS), (out, CONTACTS))
    ]
    orders = [
        Order(scenario, files[0], files[1], max_gap_us, window_us, str(parts / f"{number}.arrow"))
        for number, scenario in enumerate(scenarios)
    ]
    try:
        engine.each("statistics of contacts", told, orders)
        with kept.appending(target, list(TABLES)) as append:
            for order in orders:
                append(order.scenario, "", kept.read(Path(order.target)))
    finally:
        shutil.rmtree(parts, ignore_errors=True)


def told(order: Order) -> None:
    """A task: the tables of a scenario, in their file."""
    places = _rows(order.positions, order.scenario, ["node", "t"])
    stays = statistics.stays_of_positions(places["node"], microseconds(places["t"].to_numpy()), order.max_gap_us)
    rows = _rows(order.contacts, order.scenario, ["a", "b", "start", "end"])
    times = (microseconds(rows[name].to_numpy()) for name in ("start", "end"))
    met = Meetings(rows["a"], rows["b"], *times)
    columns = {table: of(met, stays, order.window_us) for table, of in TABLES.items()}
    found = {table.name: made(table, order.scenario, each) for table, each in columns.items()}
    kept.write(Path(order.target), found)


def _rows(files: Sequence[str], scenario: str, names: list[str]) -> pa.Table:
    """Columns of one scenario."""
    parts = []
    for file in files:
        with refusing(f"{file} cannot be read", pa.ArrowException):
            wanted = ["scenario", *names]
            rows = pq.ParquetFile(file, read_dictionary=sorted(_TEXTS & set(wanted))).read(columns=wanted)
        parts.append(rows.filter(pc.equal(rows["scenario"].cast(pa.string()), scenario)).select(names))
    return pa.concat_tables(parts)
