"""Buses from a timetable in GTFS (gtfs.org): one day of a feed, which is a zip file or a folder.

A trip follows its shape if the feed has one that fits its stops; otherwise it goes in straight lines from stop to stop.
It is at its stops at the times of the timetable and moves at constant speed in between, also past stops that have no
time, or the same time as the stop before. Trips with the same ``block_id`` have one vehicle. A trip without a block is
taken over by the vehicle that arrived last near its first stop, if that did not wait too long; otherwise it gets a new
vehicle. Shapes have no influence on that. Vehicles are named after the route of their first trip: 110-1, 110-2.

A place on a shape (`Polyline`) is given by its distance in metres from the beginning. Stops are placed on the shape of
a trip by the distances in the feed, if stops and shape have them and they fit. Otherwise they are placed by projection:
of all ways to place the stops in their order along the shape, at the points closest to them, the one with the least sum
of squared distances is chosen. So loops, and shapes that pass a stop twice, are no problem; between equally good ways
the times decide. If some stop has no point of the shape near enough, the shape does not fit, and belongs to another
trip.

Nothing is random: every seed gives the same day. Hours go on after midnight, as in the feed. Errors are `LocalError`
with file and line. Trips with one stop, or without duration, are left out.
"""

# Why not the nearest point of the shape for each stop. Buses drive loops and pass the same street
# in both directions, so that the nearest point is often the wrong passage, and stops would come out
# of order. The order of stops is certain, so it is a constraint, and dynamic programming finds the
# best placement that keeps it.
#
# Why vehicles and not trips are nodes. A trip lasts an hour, and the device in the bus goes on to
# the next trip with all that it carries. Feeds name the vehicle by blocks, which are optional, so
# that trips without a block are chained by place and time. A chain that is too eager joins trips
# that two buses drove; hence bounds on distance and waiting time.

from __future__ import annotations

import datetime as dt
import itertools
import math
from collections import Counter
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Self

import numpy as np

from carrypost.arrays import Floats
from carrypost.config import DAY_S
from carrypost.config.rules import number, table, text, texts
from carrypost.errors import ConfigError
from carrypost.mobility import Sample, clock_s, presences, since
from carrypost.mobility.feed import Feed, RouteTypes, Shape, StopTime, Trip
from carrypost.model.times import MICROSECONDS
from carrypost.traces.contacts import Presence
from carrypost.traces.formats.assembly import EARTH_M
from carrypost.traces.tracks import Movement, Tracks

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


@table("mobility")
class Gtfs:
    """One day of a public timetable."""

    file: str = text("", "a GTFS zip file or folder")
    """The feed; required."""
    day: str = text("", "a day such as 2014-06-03")
    """Day of the feed's calendar; required."""
    start: str = text("00:00", "a time such as 05:30")
    """Time of day at the start of the run."""
    chain_m: float = number(500.0, 0.0, 1e6)
    """Largest distance to the start of a trip that a vehicle takes over."""
    chain_wait_s: float = number(2_700.0, 0.0, DAY_S)
    """Longest time that a vehicle waits for a trip to take over; a vehicle that waits longer is absent meanwhile."""
    shapes: bool = True
    """True if trips follow their shapes, if the feed has them; otherwise they go straight from stop to stop."""
    route_types: tuple[str, ...] = texts('a list of types of routes, as ["bus", "ferry"]')
    """Types of the routes to include, as words or as GTFS numbers; none: all."""

    def __post_init__(self) -> None:
        if not self.file:
            raise ConfigError("mobility.file is missing: a GTFS zip file or folder")
        clock_s(self.start, "mobility.start")
        self._date()
        RouteTypes(self.route_types, "mobility.route_types")

    def move(self, seed: int | str, duration_us: int) -> Movement:  # noqa: ARG002 - the same day for every seed
        """Return the movement of every vehicle."""
        start_us = round(clock_s(self.start) * MICROSECONDS)
        samples: dict[str, list[Sample]] = {}
        there: list[Presence] = []
        for vehicle in self.drive().vehicles:
            spans = ((max(0, join - start_us), leave - start_us) for join, leave in vehicle.presences)
            within = [(join, leave) for join, leave in spans if join < min(leave, duration_us)]
            if within:
                samples[vehicle.name] = since(vehicle.samples, start_us)
                there += presences(vehicle.name, within, duration_us)
        return Movement(Tracks.of(samples), there)

    def drive(self) -> Day:
        """Return the whole day: vehicles, and counts of what the feed contains."""
        feed = Feed(self.file)
        service = feed.service(self._date(), RouteTypes(self.route_types, "mobility.route_types"))
        shapes = feed.shapes(service.trips)
        plane = Plane((call.lat, call.lon) for trip in service.trips for call in trip.calls)
        trips, made = _Planner(plane, shapes if self.shapes else {}).place_trips(service.trips)
        files = {table: feed.rows_read[table] for table in ("routes", "trips", "stops", "stop_times")}
        files |= {"shapes": feed.shapes_seen, "shape_points": feed.rows_read["shapes"]}
        counts = service.counts | {"trips_at_once": _at_once(trips), **made}
        return Day(self._vehicles(trips), plane.middle, files, counts)

    def _date(self) -> dt.date:
        try:
            return dt.date.fromisoformat(self.day)
        except ValueError:
            raise ConfigError(f"mobility.day must be a day such as 2014-06-03, not {self.day!r}") from None

    def _vehicles(self, trips: list[_PlacedTrip]) -> list[Vehicle]:
        """Deal trips out to vehicles, which come in order of their first departures."""
        vehicles: list[Vehicle] = []
        counts: Counter[str] = Counter()
        blocks: dict[str, Vehicle] = {}
        for trip in sorted(trips, key=lambda trip: (trip.samples[0][0], trip.id)):
            vehicle = blocks.get(trip.block) if trip.block else self._nearby(vehicles, trip)
            if vehicle is None or vehicle.samples[-1][0] > trip.samples[0][0]:
                counts[trip.route] += 1
                vehicle = Vehicle(f"{trip.route}-{counts[trip.route]}")
                vehicles.append(vehicle)
            if trip.block:
                blocks[trip.block] = vehicle
                vehicle.blocked = True
            vehicle.drive(trip, round(self.chain_wait_s * MICROSECONDS))
        return vehicles

    def _nearby(self, vehicles: list[Vehicle], trip: _PlacedTrip) -> Vehicle | None:
        """Return the vehicle that can take over a trip and arrived last."""
        starts_us = trip.samples[0][0]
        best: Vehicle | None = None
        for vehicle in vehicles:
            wait_us = starts_us - vehicle.samples[-1][0]
            if vehicle.blocked or not 0 <= wait_us <= self.chain_wait_s * MICROSECONDS:
                continue
            if math.dist(trip.first, vehicle.at) > self.chain_m:
                continue
            if best is None or vehicle.samples[-1][0] > best.samples[-1][0]:
                best = vehicle
        return best


class _PlacedTrip(NamedTuple):
    """A trip on the plane."""

    id: str
    route: str
    block: str
    first: Place
    """First stop."""
    last: Place
    samples: list[Sample]


@dataclass(slots=True)
class Vehicle:
    """A vehicle, which drives trips one after the other."""

    name: str
    blocked: bool = False
    """True if the feed says which trips it drives."""
    samples: list[Sample] = field(default_factory=list)
    """Positions, with times in microseconds since midnight."""
    presences: list[tuple[int, int]] = field(default_factory=list)
    """Times of joining and leaving; in between the vehicle is away, whatever its samples say."""
    at: Place = (math.inf, math.inf)
    """The stop where it arrived."""

    def drive(self, trip: _PlacedTrip, wait_us_max: int) -> None:
        """Drive this trip after those taken before."""
        first_us, last_us = trip.samples[0][0], trip.samples[-1][0]
        if self.presences and first_us - self.presences[-1][1] <= wait_us_max:
            self.presences[-1] = self.presences[-1][0], last_us
        else:
            self.presences.append((first_us, last_us))
        at_once = self.samples and first_us == self.samples[-1][0]
        self.samples += _rest_of_trip(self.samples[-1], trip.samples) if at_once else trip.samples
        self.at = trip.last


def _rest_of_trip(at: Sample, samples: list[Sample]) -> list[Sample]:
    """Return the rest of a trip for a bus that arrives when it starts.

    If it starts across the street, the bus cannot be in both places: it goes straight to where it can join the way at
    no more than twice the speed there.
    """
    way_m = 0.0
    for index, (before, after) in enumerate(itertools.pairwise(samples), 1):
        way_m += math.dist(before[1:], after[1:])
        if math.dist(at[1:], after[1:]) <= 2 * way_m:
            return samples[index:]
    return samples[-1:]


class Day(NamedTuple):
    """The vehicles of a day."""

    vehicles: list[Vehicle]
    middle: Place
    """Origin of the plane, in degrees north and east."""
    feed: dict[str, int]
    """Rows of the whole feed, by file; shapes: how many there are."""
    counts: dict[str, int]
    """Of the day: rows of the feed; trips under way at once; trips that follow a shape, or do not since theirs does not
    fit; trips left out."""


class _Planner:
    """Places trips on the plane."""

    def __init__(self, plane: Plane, shapes: Mapping[str, Shape]) -> None:
        self._plane = plane
        self._ways = {
            name: Polyline.of([plane.place(*place) for place in shape.places])
            for name, shape in shapes.items()
            if len(shape.places) > 1
        }
        self._measures = {name: shape.along for name, shape in shapes.items()}
        self._placed: dict[Hashable, Floats] = {}
        """Placed trips by shape, stops and times: trips that are equal in these are placed once."""
        self._on_shapes = self._off_shapes = 0

    def place_trips(self, trips: list[Trip]) -> tuple[list[_PlacedTrip], dict[str, int]]:
        """Place all trips that take time; also how many follow a shape, do not, or were left out."""
        found = [each for trip in trips if (each := self._placed_trip(trip)).samples]
        return found, {
            "trips_left_out": len(trips) - len(found),
            "trips_on_shapes": self._on_shapes,
            "trips_off_shapes": self._off_shapes,
        }

    def _placed_trip(self, trip: Trip) -> _PlacedTrip:
        places = [self._plane.place(call.lat, call.lon) for call in trip.calls]
        straight = Polyline.of(places)
        way, along_m = straight, straight.along_m
        anchors = _anchors(trip.calls)
        if trip.shape in self._measures and anchors[-1] == len(trip.calls) - 1:
            on_shape = self._on_shape(trip, straight, anchors)
            if len(on_shape):
                way, along_m = self._ways[trip.shape], on_shape
                self._on_shapes += 1
            else:
                self._off_shapes += 1
        samples = _timed(trip.calls, anchors, way, along_m)
        return _PlacedTrip(trip.id, trip.route, trip.block, places[0], places[-1], samples)

    def _on_shape(self, trip: Trip, stops: Polyline, anchors: list[int]) -> Floats:
        """Return the distances of the stops along the shape; empty if the shape does not fit."""
        if trip.shape not in self._ways:
            return np.empty(0)
        times_s = np.full(len(trip.calls), math.nan)
        times_s[anchors] = [trip.calls[index].arrival_s for index in anchors]
        shares = (times_s - times_s[0]) / (times_s[-1] - times_s[0])
        key = trip.shape, tuple((call.lat, call.lon, call.along) for call in trip.calls), shares.tobytes()
        if key not in self._placed:
            along = [call.along for call in trip.calls]
            self._placed[key] = placed(self._ways[trip.shape], self._measures[trip.shape], stops, along, shares)
        return self._placed[key]


def _at_once(trips: list[_PlacedTrip]) -> int:
    """Return the number of trips that are under way at the same time, at most."""
    changes = [(trip.samples[at][0], change) for trip in trips for at, change in ((0, 1), (-1, -1))]
    return max(itertools.accumulate((change for _, change in sorted(changes)), initial=0))


def _timed(calls: list[StopTime], anchors: list[int], way: Polyline, along_m: Floats) -> list[Sample]:
    """Samples at arrivals, departures and bends; none if the trip takes no time."""
    if anchors[-1] != len(calls) - 1:
        return []
    samples: list[Sample] = []
    x, y = (each.tolist() for each in way.at(along_m))
    for start, end in itertools.pairwise(anchors):
        leave_s, arrive_s = calls[start].departure_s, calls[end].arrival_s
        assert leave_s is not None
        assert arrive_s is not None
        from_m, to_m = along_m[start], along_m[end]
        _note(samples, leave_s, x[start], y[start])
        bends = slice(*np.searchsorted(way.along_m, [from_m, to_m], "right"))
        if from_m < to_m:
            times_s = leave_s + (way.along_m[bends] - from_m) / (to_m - from_m) * (arrive_s - leave_s)
            for t_s, x_bend, y_bend in zip(times_s.tolist(), way.x[bends].tolist(), way.y[bends].tolist(), strict=True):
                _note(samples, t_s, x_bend, y_bend)
        _note(samples, arrive_s, x[end], y[end])
    return samples


def _anchors(calls: list[StopTime]) -> list[int]:
    """Return the stops whose times count: each arrival is later than the departure before."""
    anchors = [0]

    def take(index: int) -> None:
        arrival_s, left_s = calls[index].arrival_s, calls[anchors[-1]].departure_s
        if arrival_s is not None and left_s is not None and arrival_s > left_s:
            anchors.append(index)

    last = len(calls) - 1
    for index in range(1, len(calls)):
        take(index)
    # The last stop always counts: if it has the time of one before, that one does not.
    while len(anchors) > 1 and anchors[-1] != last:
        anchors.pop()
        take(last)
    return anchors


def _note(samples: list[Sample], t_s: float, x: float, y: float) -> None:
    t_us = round(t_s * MICROSECONDS)
    if not samples or t_us > samples[-1][0]:
        samples.append((t_us, x, y))
