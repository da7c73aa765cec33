"""Bus lines in a town that is drawn from a number.

Streets are a square grid. Hubs stand at crossings: the first in the middle, the others on a circle round it. A line
runs from a terminus by way of its hubs to another terminus, in steps along streets, and stops every few crossings. Its
buses keep to a timetable: the round trip divided by the buses is the headway, service starts from both termini, and a
bus that is late turns round at once. Some buses (to school and back) run at certain hours only.

Invariants: `town` alone decides streets, routes and timetable; the seed decides departures, traffic and stops, and
every bus draws from a stream of its own. A bus moves only along streets, and is present from its first departure to
the last arrival of each service. The setting is that of CAUSAL §VI-A, whose own timetable and map we do not have.
"""
# Why a drawn town. The paper's bus traces are not public, and random waypoints have none of what
# makes buses interesting: they meet at hubs, at certain times, again and again. A grid with hubs
# and a timetable has these, from a few numbers.
#
# Why two sources of chance. Routes are drawn from `town` and everything else from the seed, so that
# repeated runs of a scenario differ in traffic but are about the same town. Each bus has a stream
# of its own: one more bus on a line must not change where the others are.

from __future__ import annotations

import math
import random
from collections.abc import Iterator
from typing import NamedTuple

from carrypost.chance import stream
from carrypost.config import DAY_S, HOUR_S, UNBOUNDED
from carrypost.config.rules import number, rows, table, text, texts, whole, wholes
from carrypost.errors import ConfigError
from carrypost.mobility import Sample, clock_s, presences
from carrypost.model.times import MICROSECONDS
from carrypost.traces.contacts import Presence
from carrypost.traces.tracks import Movement, Tracks

_HUBS_MAX = 1_000
_BEND_RAD = 0.8
"""The termini of a line lie opposite each other, as seen from the middle, give or take this."""
_FIRST_HUB_RAD = 0.6
"""The outer hubs are off the streets that cross in the middle, or all lines between hubs would take the same one."""
_TRAFFIC_MIN = 0.5
"""No bus is more than twice as fast as the timetable has it."""
_AWAY_S_MIN = 1.0
"""Between two services a bus is away, if only for a moment: it may start again elsewhere."""

Crossing = tuple[int, int]


@table("line")
class BusLine:
    """One bus line."""

    name: str = text("", "a name")
    """Prefix of the names of its buses: NAME-1, NAME-2 and so on. Required."""
    buses: int = whole(4, 1, 10_000)
    """Number of buses on it."""
    service: tuple[str, ...] = texts('a list of hours such as "06:00-20:30"')
    """First and last departure. With several ranges, buses are absent in between. Empty: as in `[mobility]`."""
    via: tuple[int, ...] = wholes("a list of hubs, the one in the middle being 0")
    """Hubs that the line passes; empty: one or two, drawn from the town."""
    across: bool = True
    """True if the line continues to a second terminus; otherwise it ends at its last hub."""

    def __post_init__(self) -> None:
        if not self.name:
            raise ConfigError("line.name is missing: buses are named after their line")
        _services(self.service, f"service of line {self.name}")


@table("mobility")
class Buses:
    """Bus lines through one town."""

    town: int = whole(1, 0, UNBOUNDED)
    """Number of the town: its routes are drawn from this number, never from the seed."""
    start: str = text("06:00", "a time such as 05:30")
    """Time of day at the start of the run."""
    lines: int = whole(8, 1, 1_000)
    """Number of lines, named L01 and so on, if none are given as [[mobility.line]]."""
    buses: int = whole(4, 1, 1_000)
    """Number of buses on each of these lines."""
    service: tuple[str, ...] = texts('a list of hours such as "06:00-20:30"')
    """First and last departure of lines without their own `service`; empty: all day."""
    block_m: float = number(200.0, 1.0, 10_000.0)
    """Distance from one street to the next."""
    hubs: int = whole(3, 1, _HUBS_MAX)
    """Interchanges where lines meet."""
    hub_m: float = number(1_500.0, 0.0, 1e6)
    """Distance of the other hubs from the middle."""
    reach_m_min: float = number(3_000.0, 1.0, 1e6)
    """Least distance of a terminus from the middle."""
    reach_m_max: float = number(5_000.0, 1.0, 1e6)
    """Greatest distance of a terminus from the middle."""
    turn: float = number(0.3, 0.0, 1.0)
    """Probability that a route turns at a crossing where both directions lead to its destination."""
    stop_m: float = number(400.0, 1.0, 100_000.0)
    """Distance from one stop to the next, in whole blocks."""
    speed_m_per_s: float = number(6.0, 0.1, 100.0)
    """Speed between stops."""
    dwell_s: float = number(20.0, 0.0, HOUR_S)
    """Time that a bus waits at a stop."""
    hub_dwell_s: float = number(120.0, 0.0, HOUR_S)
    """Time that a bus waits at a hub."""
    layover_s: float = number(180.0, 0.0, DAY_S)
    """Time that a bus waits at a terminus according to the timetable."""
    traffic: float = number(0.1, 0.0, 1.0)
    """Standard deviation of the time between stops, from trip to trip, as a share of that time."""
    dwell_spread: float = number(0.3, 0.0, 1.0)
    """Largest share by which stops are shorter or longer."""
    jitter_s: float = number(30.0, 0.0, HOUR_S)
    """Largest delay of a departure even if the bus arrived in time."""
    line: tuple[BusLine, ...] = rows(BusLine, "name")
    """The lines, if they differ from each other."""

    def __post_init__(self) -> None:
        clock_s(self.start, "mobility.start")
        _services(self.service, "mobility.service")
        if self.reach_m_min > self.reach_m_max:
            raise ConfigError(
                f"mobility.reach_m_min must be at most reach_m_max ({self.reach_m_max:,}), not {self.reach_m_min:,}"
            )
        names = [line.name for line in self.line]
        for index, line in enumerate(self.line):
            if line.name in names[:index]:
                raise ConfigError(f"mobility.line: there are two lines with the name {line.name!r}")
            if max(line.via, default=0) >= self.hubs:
                allowed = f"hubs from 0 to {self.hubs - 1}"
                raise ConfigError(f"mobility.line: via of {line.name!r} must name {allowed}, not {max(line.via)}")

    def move(self, seed: int | str, duration_us: int) -> Movement:
        """Return the movement of every bus."""
        samples: dict[str, list[Sample]] = {}
        there: list[Presence] = []
        for line in self.line or self._alike():
            route = _route(self, line)
            for index in range(line.buses):
                name = f"{line.name}-{index + 1}"
                bus = _Bus(self, route, stream(seed, name, "buses"))
                bus.run(_departures(self, line, route, index), duration_us / MICROSECONDS)
                if bus.samples:
                    samples[name] = bus.samples
                    there += presences(name, bus.services, duration_us)
        return Movement(Tracks.of(samples), there)

    def _alike(self) -> tuple[BusLine, ...]:
        return tuple(BusLine(name=f"L{index:02}", buses=self.buses) for index in range(1, self.lines + 1))


class _RoutePoint(NamedTuple):
    """A place on a route where a bus turns or stops."""

    x: float
    y: float
    run_s: float
    """Driving time from the point before."""
    dwell_s: float


class _Route(NamedTuple):
    """The way of a line, with the times of the timetable."""

    there: list[_RoutePoint]
    back: list[_RoutePoint]
    trip_s: float


class _Departure(NamedTuple):
    """One entry of a bus's timetable."""

    t_s: float
    back: bool
    begins: bool
    """True if a service begins with it."""


class _Bus:
    """Drives the departures of one bus, and notes its positions."""

    def __init__(self, town: Buses, route: _Route, chance: random.Random) -> None:
        self._town = town
        self._route = route
        self._chance = chance
        self.samples: list[Sample] = []
        self.services: list[tuple[int, int]] = []
        """Times of joining and leaving."""

    def run(self, departures: Iterator[_Departure], until_s: float) -> None:
        """Drive the departures before the end of the run."""
        now_s = -_AWAY_S_MIN
        joined_us = 0
        for departure in departures:
            earliest_s = now_s + (_AWAY_S_MIN if departure.begins else 0.0)
            leave_s = max(earliest_s, departure.t_s + self._chance.uniform(0.0, self._town.jitter_s))
            if leave_s >= until_s:
                if not departure.begins:  # At the end it waits for this one.
                    # It stands at the terminus until the run ends: without this sample it would be
                    # gone from the map.
                    self.samples.append((round(leave_s * MICROSECONDS), *self.samples[-1][1:]))
                break
            if departure.begins:
                self._end(joined_us)
                joined_us = round(leave_s * MICROSECONDS)
            now_s = self._drive(leave_s, self._route.back if departure.back else self._route.there)
        self._end(joined_us)

    def _end(self, joined_us: int) -> None:
        if self.samples:
            self.services.append((joined_us, self.samples[-1][0]))

    def _drive(self, now_s: float, points: list[_RoutePoint]) -> float:
        """Drive one trip; return the time of its arrival."""
        town, chance, note = self._town, self._chance, self.samples.append
        pace = max(_TRAFFIC_MIN, chance.gauss(1.0, town.traffic))
        shortest, longest = 1.0 - town.dwell_spread, 1.0 + town.dwell_spread
        for x, y, run_s, dwell_s in points:
            now_s += run_s * pace
            note((round(now_s * MICROSECONDS), x, y))
            if dwell_s:
                now_s += dwell_s * chance.uniform(shortest, longest)
                note((round(now_s * MICROSECONDS), x, y))
        return now_s


def _departures(town: Buses, line: BusLine, route: _Route, bus: int) -> Iterator[_Departure]:
    """Yield the timetable of one bus: even half rounds start at its first terminus, odd ones at the other."""
    half_s = route.trip_s + town.layover_s
    headway_s = 2 * half_s / line.buses
    start_s = clock_s(town.start)
    for first_s, last_s in _services(line.service or town.service) or [(start_s, math.inf)]:
        t_s, back = first_s + bus * headway_s, False
        # Buses whose turn comes more than half a round later start from the other terminus instead.
        if t_s - half_s >= first_s:
            t_s, back = t_s - half_s, True
        begins = True
        while t_s <= last_s:
            if t_s >= start_s:
                yield _Departure(t_s - start_s, back, begins)
                begins = False
            t_s, back = t_s + half_s, not back


def _route(town: Buses, line: BusLine) -> _Route:
    """Return the way of a line, drawn from the town."""
    chance = stream(town.town, line.name, "route")
    bearing = chance.uniform(0.0, math.tau)
    start = _terminus(town, chance, bearing)
    end = _terminus(town, chance, bearing + math.pi + chance.uniform(-_BEND_RAD, _BEND_RAD))
    # Hubs are drawn after the termini, as their order depends on where the line starts.
    via = [_hub(town, hub) for hub in line.via] or _drawn_hubs(town, chance, start)
    path = [start]
    for goal in [*via, end] if line.across else via:
        path += _walk(chance, path[-1], goal, town.turn)
    if len(path) == 1:
        raise ConfigError(f"mobility: line {line.name} has zero length: raise reach_m_min or lower block_m")
    there = _points(town, path, set(via))
    back = _points(town, path[::-1], set(via))
    return _Route(there, back, sum(point.run_s + point.dwell_s for point in there))


def _hub(town: Buses, index: int) -> Crossing:
    if index == 0:
        return 0, 0
    angle = _FIRST_HUB_RAD + math.tau * (index - 1) / (town.hubs - 1)
    return round(town.hub_m * math.cos(angle) / town.block_m), round(town.hub_m * math.sin(angle) / town.block_m)


def _drawn_hubs(town: Buses, chance: random.Random, start: Crossing) -> list[Crossing]:
    """Return one of the outer hubs and, twice out of three times, the middle.

    They are in the order in which a line from `start` passes them.
    """
    if town.hubs == 1:
        return [_hub(town, 0)]
    found = [_hub(town, chance.randrange(1, town.hubs))]
    if chance.randrange(3):
        found.append(_hub(town, 0))
    return sorted(found, key=lambda hub: math.dist(start, hub))


def _terminus(town: Buses, chance: random.Random, angle: float) -> Crossing:
    reach = chance.uniform(town.reach_m_min, town.reach_m_max) / town.block_m
    return round(reach * math.cos(angle)), round(reach * math.sin(angle))


def _walk(chance: random.Random, start: Crossing, goal: Crossing, turn: float) -> Iterator[Crossing]:
    """Yield the crossings on one of the shortest ways, without the first."""
    (x, y), (x_goal, y_goal) = start, goal
    along_x = chance.random() < 0.5  # noqa: PLR2004 - as likely as not
    while (x, y) != goal:
        if x == x_goal or y == y_goal:
            along_x = x != x_goal
        elif chance.random() < turn:
            along_x = not along_x
        if along_x:
            x += 1 if x_goal > x else -1
        else:
            y += 1 if y_goal > y else -1
        yield x, y


def _points(town: Buses, path: list[Crossing], hubs: set[Crossing]) -> list[_RoutePoint]:
    """Return the points on a way from terminus to terminus."""
    every = max(1, round(town.stop_m / town.block_m))
    last = len(path) - 1
    points = [_RoutePoint(path[0][0] * town.block_m, path[0][1] * town.block_m, 0.0, 0.0)]
    run_m = 0.0
    for index in range(1, last + 1):
        (x, y), here = path[index - 1], path[index]
        run_m += town.block_m
        ahead = path[min(index + 1, last)]
        straight = (here[0] - x, here[1] - y) == (ahead[0] - here[0], ahead[1] - here[1])
        # Counted from the same end in both directions, a stop would serve one of them only.
        stop = min(index, last - index) % every == 0
        dwell_s = 0.0 if index == last else town.hub_dwell_s if here in hubs else town.dwell_s if stop else 0.0
        if dwell_s or not straight:
            points.append(
                _RoutePoint(here[0] * town.block_m, here[1] * town.block_m, run_m / town.speed_m_per_s, dwell_s)
            )
            run_m = 0.0
    return points


def _services(hours: tuple[str, ...], what: str = "service") -> list[tuple[float, float]]:
    """Return first and last departures in seconds of the day.

    `what` names the setting in error messages.
    """
    found: list[tuple[float, float]] = []
    for each in hours:
        first, dash, last = each.partition("-")
        if not dash:
            raise ConfigError(f'{what} must be a list of hours such as "06:00-20:30", not {each!r}')
        first_s, last_s = clock_s(first, what), clock_s(last, what)
        if first_s > last_s or (found and first_s <= found[-1][1]):
            raise ConfigError(f"{what} must be hours in ascending order, not {', '.join(hours)}")
        found.append((first_s, last_s))
    return found
