"""Buses from a timetable in GTFS (gtfs.org): one day of a feed, a zip file or a folder.

A trip moves in straight lines from stop to stop; stops without a time of their own, or with that of the stop before,
are passed at constant speed between those that have one. Trips become vehicles by ``block_id``; a trip without one is
taken over by the vehicle that arrived last near its first stop, if that did not wait too long, and otherwise by a new
vehicle. Vehicles are called after the route of their first trip: 110-1, 110-2.

There is no chance here: every seed gives the same day. Hours go on after midnight, as in the feed. What is wrong in a
file is a `LocalError` with file and line; trips of one stop, or that take no time, move nobody and are left out.
"""

from __future__ import annotations

import datetime as dt
import itertools
import math
from collections import Counter
from dataclasses import dataclass, field
from typing import NamedTuple

from carrypost.config import DAY_S
from carrypost.config.rules import keep_checked, number, text
from carrypost.emu.contacts import Presence
from carrypost.emu.mobility.feed import Call, Feed, Trip
from carrypost.emu.mobility.hours import clock_s
from carrypost.emu.tracks import Movement, Tracks
from carrypost.errors import ConfigError

MICROSECONDS = 1_000_000
_EARTH_M = 6_371_000.0

Sample = tuple[int, float, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Gtfs:
    """One day of a public timetable."""

    file: str = text("", "a GTFS zip file or folder")
    """The feed; has to be given."""
    day: str = text("", "a day such as 2014-06-03")
    """Which day of its calendar; has to be given."""
    start: str = text("00:00", "a time such as 05:30")
    """What the clock shows when the run starts."""
    chain_m: float = number(500.0, 0.0, 1e6)
    """A vehicle takes over a trip that starts at most so far away."""
    chain_wait_s: float = number(2_700.0, 0.0, DAY_S)
    """And at most so long after it arrived. One that waits longer for its next trip is away in between."""

    def __post_init__(self) -> None:
        keep_checked(self, "mobility")
        if not self.file:
            raise ConfigError("mobility.file is missing: a GTFS zip file or folder")
        clock_s(self.start, "mobility.start")
        self._date()

    def move(self, seed: int | str, duration_us: int) -> Movement:  # noqa: ARG002 - the same day for every seed
        """Where every vehicle is, and when."""
        vehicles = self._vehicles()
        start_us = round(clock_s(self.start) * MICROSECONDS)
        counts: Counter[str] = Counter()
        samples: dict[str, list[Sample]] = {}
        presences: list[Presence] = []
        for vehicle in vehicles:
            counts[vehicle.route] += 1
            name = f"{vehicle.route}-{counts[vehicle.route]}"
            lives = [(max(0, join - start_us), leave - start_us) for join, leave in vehicle.lives]
            lives = [(join, leave) for join, leave in lives if join < min(leave, duration_us)]
            if lives:
                samples[name] = _since(start_us, vehicle.samples)
                presences += [Presence(name, join, leave if leave < duration_us else None) for join, leave in lives]
        return Movement(Tracks.of(samples), presences)

    def _date(self) -> dt.date:
        try:
            return dt.date.fromisoformat(self.day)
        except ValueError:
            raise ConfigError(f"mobility.day must be a day such as 2014-06-03, not {self.day!r}") from None

    def _vehicles(self) -> list[_Vehicle]:
        """In order of their first departures."""
        trips = _runs(Feed(self.file).trips(self._date()))
        vehicles: list[_Vehicle] = []
        blocks: dict[str, _Vehicle] = {}
        for trip in sorted(trips, key=lambda trip: (trip.samples[0][0], trip.id)):
            vehicle = blocks.get(trip.block) if trip.block else self._nearby(vehicles, trip)
            if vehicle is None or vehicle.samples[-1][0] > trip.samples[0][0]:
                vehicle = _Vehicle(trip.route)
                vehicles.append(vehicle)
            if trip.block:
                blocks[trip.block] = vehicle
                vehicle.blocked = True
            vehicle.take(trip, round(self.chain_wait_s * MICROSECONDS))
        return vehicles

    def _nearby(self, vehicles: list[_Vehicle], trip: _Run) -> _Vehicle | None:
        """The vehicle that can take over a trip and arrived last."""
        starts_us, x, y = trip.samples[0]
        best: _Vehicle | None = None
        for vehicle in vehicles:
            arrived_us, x_there, y_there = vehicle.samples[-1]
            wait_us = starts_us - arrived_us
            if vehicle.blocked or not 0 <= wait_us <= self.chain_wait_s * MICROSECONDS:
                continue
            if math.dist((x, y), (x_there, y_there)) > self.chain_m:
                continue
            if best is None or arrived_us > best.samples[-1][0]:
                best = vehicle
        return best


class _Run(NamedTuple):
    """A trip on the plane."""

    id: str
    route: str
    block: str
    samples: list[Sample]


@dataclass(slots=True)
class _Vehicle:
    """Drives trips one after the other."""

    route: str
    blocked: bool = False
    """Whether the feed says which trips it drives."""
    samples: list[Sample] = field(default_factory=list)
    lives: list[tuple[int, int]] = field(default_factory=list)

    def take(self, trip: _Run, wait_us_max: int) -> None:
        """Drive this trip too."""
        first_us, last_us = trip.samples[0][0], trip.samples[-1][0]
        if self.lives and first_us - self.lives[-1][1] <= wait_us_max:
            self.lives[-1] = self.lives[-1][0], last_us
        else:
            self.lives.append((first_us, last_us))
        # A bus that goes on at once, across the street, cannot be in both places.
        fresh = self.samples and trip.samples[0][0] == self.samples[-1][0]
        self.samples += trip.samples[1:] if fresh else trip.samples


def _runs(trips: list[Trip]) -> list[_Run]:
    """Trips on the plane that touches the Earth in the middle of all stops; metres east and north of it."""
    places = [(call.lat, call.lon) for trip in trips for call in trip.calls]
    lat_0 = (min(lat for lat, _ in places) + max(lat for lat, _ in places)) / 2
    # Feeds that span the date line have longitudes on both sides of it.
    lon_0 = places[0][1]
    east = [_turn(lon - lon_0) for _, lon in places]
    middle = (min(east) + max(east)) / 2
    scale_m = math.radians(1.0) * _EARTH_M
    shrink = math.cos(math.radians(lat_0))

    def run(trip: Trip) -> _Run:
        places = [
            (scale_m * shrink * (_turn(lon - lon_0) - middle), scale_m * (lat - lat_0)) for lat, lon, *_ in trip.calls
        ]
        return _Run(trip.id, trip.route, trip.block, _timed(trip.calls, places))

    return [each for each in map(run, trips) if each.samples]


def _turn(degrees: float) -> float:
    return (degrees + 180.0) % 360.0 - 180.0


def _timed(calls: list[Call], places: list[tuple[float, float]]) -> list[Sample]:
    """Samples at arrivals and departures; none if the trip takes no time."""
    last = len(calls) - 1
    anchors = _anchors(calls)
    if anchors[-1] != last:
        return []
    samples: list[Sample] = []
    for start, end in itertools.pairwise(anchors):
        leave_s, arrive_s = calls[start].departure_s, calls[end].arrival_s
        assert leave_s is not None
        assert arrive_s is not None
        way_m = [math.dist(places[index], places[index + 1]) for index in range(start, end)]
        passed_m, all_m = 0.0, sum(way_m)
        _note(samples, leave_s, places[start])
        for index in range(start + 1, end):
            passed_m += way_m[index - start - 1]
            share = passed_m / all_m if all_m else (index - start) / (end - start)
            _note(samples, leave_s + share * (arrive_s - leave_s), places[index])
        _note(samples, arrive_s, places[end])
    return samples


def _anchors(calls: list[Call]) -> list[int]:
    """Stops whose times count: each arrival is later than the departure from the one before."""
    anchors = [0]
    for index, call in enumerate(calls):
        left_s = calls[anchors[-1]].departure_s
        if index and call.arrival_s is not None and left_s is not None and call.arrival_s > left_s:
            anchors.append(index)
    # The last stop always counts: if it has the time of one before, that one does not.
    last = len(calls) - 1
    while len(anchors) > 1 and anchors[-1] != last:
        anchors.pop()
        arrival_s, left_s = calls[last].arrival_s, calls[anchors[-1]].departure_s
        if arrival_s is not None and left_s is not None and arrival_s > left_s:
            anchors.append(last)
    return anchors


def _note(samples: list[Sample], t_s: float, place: tuple[float, float]) -> None:
    t_us = round(t_s * MICROSECONDS)
    if not samples or t_us > samples[-1][0]:
        samples.append((t_us, *place))


def _since(start_us: int, samples: list[Sample]) -> list[Sample]:
    """Samples in times of the run, without what was before it."""
    moved = [(t_us - start_us, x, y) for t_us, x, y in samples]
    before = [sample for sample in moved if sample[0] < 0]
    after = moved[len(before) :]
    if before and after and after[0][0] > 0:
        (t, x, y), (t_next, x_next, y_next) = before[-1], after[0]
        share = -t / (t_next - t)
        after.insert(0, (0, x + share * (x_next - x), y + share * (y_next - y)))
    return after
