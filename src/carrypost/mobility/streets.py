"""Street walkers: people who come into a district by one of its streets, walk through it, and leave.

The district is a rectangle with streets from side to side and from bottom to top. Both ends of every street are entry
points, with a Poisson process of arrivals each. Every walker is a node of its own, which joins where and when it
enters. It keeps its speed, drawn from a truncated normal distribution, and its side of the street. At crossings it goes
straight on, turns, or goes back; at the border it leaves for good. Walkers that are still inside at the end of the run
leave then.

The walkers of the causal broadcast paper move like this (§VI-B); its traces were made with another simulator, on a map
of the real district.

Arrivals draw from (seed, entry point), walkers from (seed, entry point, number of arrivals before): neither another
street nor a longer run changes the arrivals elsewhere or earlier. Names are given in order of arrival.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import pairwise
from statistics import NormalDist
from typing import NamedTuple

from carrypost.chance import stream
from carrypost.config import DAY_S
from carrypost.config.rules import number, numbers, table
from carrypost.errors import ConfigError
from carrypost.mobility import Sample, cut, names
from carrypost.model.times import MICROSECONDS
from carrypost.traces.contacts import Presence
from carrypost.traces.tracks import Movement, Tracks

_SIDE_M_MAX = 1e6


@table("mobility")
class Streets:
    """A district of streets, and the people who walk there."""

    width_m: float = number(400.0, 1.0, _SIDE_M_MAX)
    """Distance from the left border of the district to the right one."""
    height_m: float = number(400.0, 1.0, _SIDE_M_MAX)
    """Distance from the bottom to the top."""
    columns_m: tuple[float, ...] = numbers((100.0, 200.0, 300.0), 0.0, _SIDE_M_MAX)
    """Positions of the streets that run from bottom to top: distances from the left border, rising."""
    rows_m: tuple[float, ...] = numbers((100.0, 200.0, 300.0), 0.0, _SIDE_M_MAX)
    """Positions of the streets that run from left to right: distances from the bottom, rising."""
    street_m: float = number(8.0, 0.0, 1_000.0)
    """Width of streets; a walker keeps to its own line."""
    arrivals_per_s: float = number(0.01, 1e-9, 1_000.0)
    """Mean number of walkers that arrive at each entry point."""
    speed_mean_m_per_s: float = number(1.3, 0.001, 100.0)
    """Mean of the normal distribution of speeds."""
    speed_sd_m_per_s: float = number(0.25, 0.001, 100.0)
    """Standard deviation of the speed, before it is truncated."""
    speed_min_m_per_s: float = number(0.6, 0.001, 100.0)
    """Lowest speed."""
    speed_max_m_per_s: float = number(2.0, 0.001, 100.0)
    """Highest speed."""
    straight: float = number(0.5, 0.0, 1.0)
    """Probability that a walker continues straight at a crossing."""
    back: float = number(0.0, 0.0, 1.0)
    """Probability that a walker turns back. In all other cases it turns left or right with equal probability."""
    pause: float = number(0.0, 0.0, 1.0)
    """Probability that a walker stops at a crossing."""
    pause_mean_s: float = number(60.0, 0.001, DAY_S)
    """Mean duration of a pause; pauses are distributed exponentially."""

    def __post_init__(self) -> None:
        self._check_streets("columns_m", self.columns_m, "width_m", self.width_m)
        self._check_streets("rows_m", self.rows_m, "height_m", self.height_m)
        if not self.speed_min_m_per_s <= self.speed_mean_m_per_s <= self.speed_max_m_per_s:
            between = f"{self.speed_min_m_per_s:g} and {self.speed_max_m_per_s:g}, the slowest and the fastest"
            raise ConfigError(f"mobility.speed_mean_m_per_s must be between {between}, not {self.speed_mean_m_per_s:g}")
        if (together := self.straight + self.back) > 1:
            raise ConfigError(f"mobility.straight and mobility.back must be at most 1 together, not {together:g}")

    def move(self, seed: int | str, duration_us: int) -> Movement:
        """Return the path of every walker, from entry to exit or to the end of the run."""
        entries = self._entries()
        arrivals = sorted(
            (t_us, index, before)
            for index, entry in enumerate(entries)
            for before, t_us in enumerate(self._arrivals(seed, entry, duration_us))
        )
        paths: dict[str, list[Sample]] = {}
        presences: list[Presence] = []
        for name, (t_us, index, before) in zip(names(len(arrivals)), arrivals, strict=True):
            path = list(_Walker(self, seed, entries[index], before).path(t_us, duration_us))
            if path[-1][0] > duration_us:
                path = [(t_us + since_us, x, y) for since_us, x, y in cut(path, t_us, duration_us)]
            paths[name] = path
            presences.append(Presence(name, t_us, path[-1][0]))
        return Movement(Tracks.of(paths), presences)

    def _check_streets(self, name: str, streets_m: tuple[float, ...], side: str, side_m: float) -> None:
        half_m = self.street_m / 2
        # No street lies in another or reaches over the border; so every leg has a length.
        ends_m = (-half_m, *streets_m, side_m + half_m)
        if any(after_m - before_m <= 2 * half_m for before_m, after_m in pairwise(ends_m)):
            found = ", ".join(f"{each:g}" for each in streets_m)
            allowed = f"rise from 0 to {side}, {side_m:g}, with more than street_m, {self.street_m:g}, between them"
            raise ConfigError(f"mobility.{name} must {allowed} and half of it from the border, not {found}")

    def _entries(self) -> list[_Entry]:
        columns, rows = len(self.columns_m), len(self.rows_m)
        return [
            *(_Entry(f"left {row}", 0, row, 1, 0) for row in range(1, rows + 1)),
            *(_Entry(f"right {row}", columns + 1, row, -1, 0) for row in range(1, rows + 1)),
            *(_Entry(f"bottom {column}", column, 0, 0, 1) for column in range(1, columns + 1)),
            *(_Entry(f"top {column}", column, rows + 1, 0, -1) for column in range(1, columns + 1)),
        ]

    def _arrivals(self, seed: int | str, entry: _Entry, end_us: int) -> Iterator[int]:
        chance = stream(seed, entry.name, "arrivals")
        t_s = 0.0
        while True:
            t_s += chance.expovariate(self.arrivals_per_s)
            if (t_us := round(t_s * MICROSECONDS)) >= end_us:
                return
            yield t_us


class _Entry(NamedTuple):
    """An end of a street, by the numbers of the streets that cross there (0: the border), and the way in."""

    name: str
    column: int
    row: int
    right: int
    up: int


class _Walker:
    """One person: its speed, its side of the street, and the way it takes."""

    def __init__(self, streets: Streets, seed: int | str, entry: _Entry, before: int) -> None:
        self._streets = streets
        self._entry = entry
        person = stream(seed, entry.name, before, "person")
        self._speed_m_per_s = _truncated_normal(streets, person.random())
        # One shift for the whole way keeps the walker in every street that it takes, and its turns square.
        self._shift_x_m = (person.random() - 0.5) * streets.street_m
        self._shift_y_m = (person.random() - 0.5) * streets.street_m
        self._way = stream(seed, entry.name, before, "way")
        self._pauses = stream(seed, entry.name, before, "pauses") if streets.pause else None

    def path(self, t_us: int, end_us: int) -> Iterator[Sample]:
        """Samples at the entry, at every crossing, and at the exit, or at the first crossing after the end."""
        columns, rows = len(self._streets.columns_m), len(self._streets.rows_m)
        _, column, row, right, up = self._entry
        t_s = t_us / MICROSECONDS
        x, y = self._place(column, row)
        yield t_us, x, y
        while True:
            column, row = column + right, row + up
            before, (x, y) = (x, y), self._place(column, row)
            t_s += math.dist(before, (x, y)) / self._speed_m_per_s
            yield round(t_s * MICROSECONDS), x, y
            if column in {0, columns + 1} or row in {0, rows + 1} or t_s * MICROSECONDS > end_us:
                return
            if self._pauses is not None and self._pauses.random() < self._streets.pause:
                t_s += self._pauses.expovariate(1 / self._streets.pause_mean_s)
                yield round(t_s * MICROSECONDS), x, y
            right, up = self._turned(right, up)

    def _place(self, column: int, row: int) -> tuple[float, float]:
        streets = self._streets
        x = (0.0, *streets.columns_m, streets.width_m)[column]
        y = (0.0, *streets.rows_m, streets.height_m)[row]
        return (
            min(max(x + self._shift_x_m, 0.0), streets.width_m),
            min(max(y + self._shift_y_m, 0.0), streets.height_m),
        )

    def _turned(self, right: int, up: int) -> tuple[int, int]:
        draw = self._way.random()
        if draw < self._streets.straight:
            return right, up
        if draw < self._streets.straight + self._streets.back:
            return -right, -up
        side = self._way.choice((-1, 1))
        return -up * side, right * side


def _truncated_normal(streets: Streets, draw: float) -> float:
    """Return a speed from the truncated normal distribution, for a uniform number in [0, 1)."""
    slowest, fastest = streets.speed_min_m_per_s, streets.speed_max_m_per_s
    normal = NormalDist(streets.speed_mean_m_per_s, streets.speed_sd_m_per_s)
    low, high = normal.cdf(slowest), normal.cdf(fastest)
    # The inverse is not defined at 0 and 1, which a narrow distribution gives far from its mean.
    inside = min(max(low + draw * (high - low), 1e-12), 1 - 1e-12)
    return min(max(normal.inv_cdf(inside), slowest), fastest)
