"""Positions from a timetable in GTFS: one service day of a feed, as the emulator's ``model = "gtfs"`` drives it.

Times are seconds since midnight of the service day, and go on after the next one. A reader of the positions alone can
draw lines between all samples of a node: no two are more than a minute apart, however long a vehicle stands, so that
every sensible maximum gap keeps them together; and a vehicle that was away comes back under another name, as NAME.2, so
that no line is drawn over the time in between.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa

from carrypost.arrays import Floats, Ints
from carrypost.errors import LocalError
from carrypost.lab.schemas import POSITIONS
from carrypost.mobility.gtfs import Gtfs, Vehicle
from carrypost.mobility.routes import RouteTypes
from carrypost.model.times import MICROSECONDS

STEP_US_MAX = 60 * MICROSECONDS
"""Longest time between two samples of a node."""


def positions(
    path: Path, *, day: str, shapes: bool = True, route_types: Sequence[str] = ()
) -> tuple[pa.Table, dict[str, object]]:
    """Return rows node, t, x, y, sorted by node and t, and the description of feed and day for the manifest."""
    try:
        dt.date.fromisoformat(day)
    except ValueError:
        raise LocalError(f"--day must be a day such as 2014-06-03, not {day!r}") from None
    RouteTypes(route_types, "--route-type")
    driven = Gtfs(file=str(path), day=day, shapes=shapes, route_types=tuple(route_types)).drive()
    stays = dict(sorted(stay for vehicle in driven.vehicles for stay in _stays(vehicle).items()))
    t_us = np.concatenate([t_us for t_us, _ in stays.values()])
    x, y = np.concatenate([places for _, places in stays.values()]).T
    names = np.repeat(np.arange(len(stays), dtype=np.int32), [len(t_us) for t_us, _ in stays.values()])
    node = pa.DictionaryArray.from_arrays(pa.array(names), pa.array(list(stays), pa.string())).cast(pa.string())
    schema = pa.schema([POSITIONS.arrow.field(name) for name in ("node", "t", "x", "y")])
    rows = pa.Table.from_arrays([node, pa.array(t_us / MICROSECONDS), pa.array(x), pa.array(y)], schema=schema)
    counts: dict[str, object] = {
        "feed": driven.feed,
        "day": {
            "date": day,
            **driven.counts,
            "vehicles": len(driven.vehicles),
            "nodes": len(stays),
            "first_s": float(t_us.min() / MICROSECONDS),
            "last_s": float(t_us.max() / MICROSECONDS),
        },
        "middle": {"lat": driven.middle[0], "lon": driven.middle[1]},
    }
    return rows, counts


def _stays(vehicle: Vehicle) -> dict[str, tuple[Ints, Floats]]:
    """Times and places from when to when a vehicle is there, by name."""
    t_us = np.array([t_us for t_us, _, _ in vehicle.samples], dtype=np.int64)
    places = np.array([(x, y) for _, x, y in vehicle.samples], dtype=np.float64)
    found = {}
    for number, (join_us, leave_us) in enumerate(vehicle.presences, 1):
        alive = slice(*np.searchsorted(t_us, [join_us, leave_us + 1]))
        name = vehicle.name if number == 1 else f"{vehicle.name}.{number}"
        found[name] = _filled(t_us[alive], places[alive])
    return found


def _filled(t_us: Ints, places: Floats) -> tuple[Ints, Floats]:
    """Return the same motion, with samples on long straight lines."""
    steps = -(-np.diff(t_us) // STEP_US_MAX)
    before = np.repeat(np.arange(len(steps)), steps)
    number = np.arange(len(before)) - np.repeat(steps.cumsum() - steps, steps)
    more_us = np.diff(t_us)[before] * number // steps[before]
    share = (more_us / np.diff(t_us)[before])[:, None]
    filled = places[before] + share * np.diff(places, axis=0)[before]
    return np.append(t_us[before] + more_us, t_us[-1]), np.concatenate([filled, places[-1:]])
