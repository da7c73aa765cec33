"""Ways on the plane: how a vehicle drives from stop to stop, and where its stops are on the way.

A place on a `Polyline` is given by its distance in metres from the beginning. Stops are placed on the shape of a trip
by the distances in the feed, if stops and shape have them and they fit. Otherwise they are placed by projection: of all
ways to place the stops in their order along the shape, at the points closest to them, the one with the least sum of
squared distances is chosen. So loops, and shapes that pass a stop twice, are no problem; between equally good ways the
times decide. If some stop has no point of the shape near enough, the shape does not fit, and belongs to another trip.
"""
# Why not the nearest point of the shape for each stop. Buses drive loops and pass the same street
# in both directions, so that the nearest point is often the wrong passage, and stops would come out
# of order. The order of stops is certain, so it is a constraint, and dynamic programming finds the
# best placement that keeps it.

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np

from carrypost.arrays import Floats
from carrypost.traces.formats.places import EARTH_M

Place = tuple[float, float]

STOP_FROM_SHAPE_M_MAX = 150.0
"""A stop that is further from a shape is not on it; planners of journeys look as far."""
_DEGREE_M = math.radians(1.0) * EARTH_M
_TIME_M = 10.0
"""Cost of being at the other end of the shape than the time says: less than the width of a road where it counts, so
that it only decides between places that are as near."""


class Plane:
    """The plane that touches the Earth in the middle of some places; metres east and north of it."""

    def __init__(self, places: Iterable[Place]) -> None:
        lats, lons = zip(*places, strict=True)
        lat = (min(lats) + max(lats)) / 2
        # Feeds that span the date line have longitudes on both sides of it.
        east = [_turn(lon - lons[0]) for lon in lons]
        self.middle: Place = lat, _turn(lons[0] + (min(east) + max(east)) / 2)
        """Degrees north and east."""
        self._shrink = math.cos(math.radians(lat))

    def place(self, lat: float, lon: float) -> Place:
        """Metres east and north of the middle, of a place in degrees."""
        return _DEGREE_M * self._shrink * _turn(lon - self.middle[1]), _DEGREE_M * (lat - self.middle[0])


def _turn(degrees: float) -> float:
    return (degrees + 180.0) % 360.0 - 180.0


@dataclass(frozen=True, slots=True, eq=False)
class Polyline:
    """A polyline of two points or more."""

    x: Floats
    y: Floats
    along_m: Floats
    """Distance of each point along it; never goes back."""

    @classmethod
    def of(cls, places: Sequence[Place]) -> Self:
        """Return the polyline through these places."""
        x, y = np.array(places, dtype=np.float64).T
        return cls(x, y, np.concatenate([[0.0], np.hypot(np.diff(x), np.diff(y)).cumsum()]))

    def at(self, along_m: Floats) -> tuple[Floats, Floats]:
        """Return the places at these distances along the line."""
        return np.interp(along_m, self.along_m, self.x), np.interp(along_m, self.along_m, self.y)


def placed(
    way: Polyline, measure: Sequence[float], stops: Polyline, along: Sequence[float | None], shares: Floats
) -> Floats:
    """Return the distances of a trip's stops along a way, in rising order; empty if the way does not fit them.

    `measure` and `along` are the feed's own distances of the points and of the stops, if it has them. `shares` has the
    part of the trip's time that has passed at each stop, nan where that is not known.
    """
    distances = _by_distance(way, measure, along)
    if len(distances):
        x, y = way.at(distances)
        if np.hypot(stops.x - x, stops.y - y).max() <= STOP_FROM_SHAPE_M_MAX:
            return distances
    return _by_projection(way, stops, shares)


def _by_distance(way: Polyline, measure: Sequence[float], along: Sequence[float | None]) -> Floats:
    """Place stops by the feed's own distances, in whatever unit; return nothing if some are missing or decrease."""
    distances = np.array([math.nan if each is None else each for each in along])
    points = np.asarray(measure, dtype=np.float64)
    # Written so that nan fails too.
    if not len(points) or not (np.diff(points) >= 0).all() or not (np.diff(distances) >= 0).all():
        return np.empty(0)
    return np.asarray(np.interp(distances, points, way.along_m))


def _by_projection(way: Polyline, stops: Polyline, shares: Floats) -> Floats:
    """Place stops by their positions and their order."""
    spots_m = _feet(way, stops)
    x, y = way.at(spots_m)
    away_m2 = (stops.x[:, None] - x) ** 2 + (stops.y[:, None] - y) ** 2
    late = np.nan_to_num(spots_m / max(way.along_m[-1], 1.0) - shares[:, None])
    costs = np.where(away_m2 <= STOP_FROM_SHAPE_M_MAX**2, away_m2 + (_TIME_M * late) ** 2, np.inf)
    # Row by row: the least cost of all stops up to this one, if it is there.
    for index in range(1, len(costs)):
        costs[index] += np.minimum.accumulate(costs[index - 1])
    if not len(spots_m) or np.isinf(costs[-1].min()):
        return np.empty(0)
    chosen = [int(costs[-1].argmin())]
    for row in costs[-2::-1]:
        chosen.append(int(row[: chosen[-1] + 1].argmin()))
    return np.asarray(spots_m[chosen[::-1]])


def _feet(way: Polyline, stops: Polyline) -> Floats:
    """Places on a way to choose from, as metres along it: of each of its segments, the point next to each stop near it.

    All stops choose from all of them, so that two that are close together can be in their order in any case.
    """
    dx, dy = np.diff(way.x), np.diff(way.y)
    length_m2 = np.maximum(dx**2 + dy**2, np.finfo(np.float64).tiny)
    from_x, from_y = stops.x[:, None] - way.x[:-1], stops.y[:, None] - way.y[:-1]
    share = np.clip((from_x * dx + from_y * dy) / length_m2, 0.0, 1.0)
    near = np.hypot(from_x - share * dx, from_y - share * dy) <= STOP_FROM_SHAPE_M_MAX
    spots_m = way.along_m[:-1] + share * np.diff(way.along_m)
    return np.unique(spots_m[near])
