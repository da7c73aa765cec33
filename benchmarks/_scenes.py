"""Scenarios that the emulator is measured on: shipped ones, workloads given as files, random waypoint.

Everything is made from the seed, as files in a folder that is removed afterwards. Random waypoint has 100 nodes per
square kilometre, so that more nodes mean a larger area and the same number of neighbours.
"""

from __future__ import annotations

import csv
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from benchmarks._processes import BenchmarkError

from carrypost.chance import stream
from carrypost.mobility import names
from carrypost.model.descriptor import Ordering

SHIPPED: Final = Path(__file__).resolve().parents[1] / "scenarios"
NEUTRAL: Final = "neutral-"
"""Stands before the names of workloads that were given as files."""
WORKLOADS: Final = ("bus", "ostermalm", "rwp-100", "rwp-500", "rwp-1000")
FILES: Final = {
    "contacts.csv": ("start", "end", "a", "b"),
    "messages.csv": ("t", "id", "src", "size", "ttl"),
    "nodes.csv": ("node", "start", "end"),
}
"""Files of such a workload, and the columns that are read."""
WAYPOINT: Final = "waypoint-"
COUNTS: Final = (100, 500, 1_000, 5_000)
CASES: Final = (
    "city_bus",
    "ostermalm",
    *(f"{NEUTRAL}{name}" for name in WORKLOADS),
    *(f"{WAYPOINT}{count}" for count in COUNTS),
)
MESSAGE_BYTES: Final = 1_000
WAYPOINT_S: Final = 600
EVERY_S: Final = 5
"""Random waypoint: interval between messages."""
_OSTERMALM_LIFETIME_S: Final = 1_200
_QUICK_S: Final = {
    "city_bus": 3_600,
    "ostermalm": 600,
    f"{NEUTRAL}bus": 3_600,
    f"{NEUTRAL}ostermalm": 600,
    f"{WAYPOINT}100": 60,
    f"{WAYPOINT}500": 20,
}
_QUICK_LEAST_S: Final = 10


@dataclass(frozen=True, slots=True)
class Scene:
    """A scenario's file, and the changes to it."""

    scenario: Path
    overrides: Mapping[str, object] = field(default_factory=dict)


def scene(
    case: str, folder: Path, workloads: Path | None, seed: int, *, quick: bool, ordering: Ordering = Ordering.NONE
) -> Scene:
    """Return the scene of a case, made in a new folder below `folder` if necessary; `quick`: a short part of it.

    The ordering in shipped scenarios does not count, `ordering` does; everything else has none.
    """
    changes: dict[str, object] = {"mode": "faithful"}
    if quick:
        changes["duration_s"] = _QUICK_S.get(case, _QUICK_LEAST_S)
    made = folder / case
    if case.startswith(WAYPOINT):
        made.mkdir()
        return Scene(_waypoint(made, int(case.removeprefix(WAYPOINT)), seed), changes)
    if case.startswith(NEUTRAL):
        assert workloads is not None
        made.mkdir()
        return Scene(_converted(workloads / case.removeprefix(NEUTRAL), made), changes)
    if case == "ostermalm":
        changes["workload.0.lifetime_s"] = _OSTERMALM_LIFETIME_S
    return Scene(SHIPPED / f"{case}.toml", changes | {"workload.0.ordering": ordering.text})


def missing(case: str, workloads: Path | None) -> str:
    """Return the reason why a case must be left out; empty if it can be measured."""
    if not case.startswith(NEUTRAL):
        return ""
    if workloads is None:
        return f"{case} is left out: --workloads names the folder that its files are in"
    home = workloads / case.removeprefix(NEUTRAL)
    absent = [name for name in FILES if not (home / name).is_file()]
    return f"{case} is left out: there is no {home / absent[0]}" if absent else ""


def _waypoint(folder: Path, count: int, seed: int) -> Path:
    """Write a scenario of walking nodes, one of which, chosen at random, publishes a message every few seconds."""
    chance = stream(seed, "bench", "waypoint", count)
    nodes = names(count)
    rows = [(t, chance.choice(nodes), f"m{t}", MESSAGE_BYTES) for t in range(EVERY_S, WAYPOINT_S, EVERY_S)]
    _write(folder / "publish.csv", ("t", "node", "message", "size"), rows)
    scenario = folder / f"{folder.name}.toml"
    scenario.write_text(
        f"""duration_s = {WAYPOINT_S}
[radio]
range_m = 50
[mobility]
model = "random-waypoint"
count = {count}
nodes_per_km2 = 100
speed_min_m_per_s = 0.5
speed_max_m_per_s = 1.5
pause_min_s = 0
pause_max_s = 120
[[workload]]
kind = "script"
file = "publish.csv"
""",
        encoding="utf-8",
    )
    return scenario


def _converted(given: Path, folder: Path) -> Path:
    """Return a workload as a scenario: other names of columns, and every node wants every message."""
    contacts, messages, nodes = (_read(given / name, columns) for name, columns in FILES.items())
    try:
        times = ((contacts, "end"), (messages, "t"), (nodes, "end"))
        end_s = max(float(row[name]) for rows, name in times for row in rows)
        endless = {row["id"] for row in messages if float(row["ttl"]) < 0}
    except ValueError as error:
        raise BenchmarkError(f"{given} is no workload: {error}") from None
    _write(
        folder / "contacts.csv",
        ("a", "b", "start", "end"),
        ((row["a"], row["b"], row["start"], row["end"]) for row in contacts),
    )
    _write(
        folder / "publish.csv",
        ("t", "node", "message", "size", "lifetime"),
        (
            (row["t"], row["src"], row["id"], row["size"], "" if row["id"] in endless else row["ttl"])
            for row in messages
        ),
    )
    _write(folder / "nodes.csv", ("node", "join", "leave"), ((row["node"], row["start"], row["end"]) for row in nodes))
    scenario = folder / f"{folder.name}.toml"
    scenario.write_text(
        f"""duration_s = {math.floor(end_s) + 1}
[nodes]
file = "nodes.csv"
[contacts]
file = "contacts.csv"
[[workload]]
kind = "script"
file = "publish.csv"
""",
        encoding="utf-8",
    )
    return scenario


def _read(path: Path, columns: Sequence[str]) -> list[dict[str, str]]:
    with path.open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    for row in rows:
        if absent := [name for name in columns if not row.get(name)]:
            raise BenchmarkError(f"{path}: a row has no {absent[0]}; there should be {','.join(columns)}")
    return rows


def _write(path: Path, header: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(header)
        writer.writerows(rows)
