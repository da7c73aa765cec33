"""Group mobility: hosts live in clouds that wander about, and now and then a host moves to another cloud.

This is the kind of movement in EMMA's evaluation (§4.1: a group mobility model, hosts "in the same cloud"). The paper
gives 16, 24 and 32 hosts on 1 km² and a range of 200 m, but neither the number of clouds nor any speed; ours are chosen
freely.

A cloud is a disc whose centre goes from one random place to the next. A host walks in straight lines to random places
in its cloud: it heads for the position that such a place will have when it arrives, since the cloud moves on meanwhile.
At each of them it may choose another cloud. Hosts are faster than clouds, so there is always a place to meet.

Clouds and hosts draw from streams of their own: an additional host does not change the ways of the others.
"""
# A host that walks to where a place of its cloud is now would always be late, as the cloud moves
# on. It has to aim ahead, and the aim depends on how long the way takes, which depends on the aim:
# hence the iteration (`_TRIES`).

from __future__ import annotations

import math
from bisect import bisect_right

from carrypost.chance import stream
from carrypost.config.rules import number, table, whole
from carrypost.errors import ConfigError
from carrypost.mobility import Sample, check_order, cut, names, throughout
from carrypost.model.times import MICROSECONDS
from carrypost.traces.tracks import Movement

_CLOSE_S = 1e-7
_TRIES = 200
"""Number of tries. Each divides the error by host speed / cloud speed; a host that is hardly faster misses a little."""


@table("mobility")
class Community:
    """Hosts that move in groups (clouds) on a square."""

    count: int = whole(32, 1, 100_000)
    """Number of hosts."""
    side_m: float = number(1_000.0, 2.0, 1e7)
    """Side of the square."""
    clouds: int = whole(4, 1, 10_000)
    """Number of groups; hosts are assigned to them in turn."""
    cloud_radius_m: float = number(100.0, 1.0, 1e6)
    """Largest distance of a cloud's members from its centre."""
    cloud_speed_min_m_per_s: float = number(0.3, 0.0, 1_000.0)
    """Lowest speed of a cloud. The speed of each leg is drawn evenly between this and `cloud_speed_max_m_per_s`."""
    cloud_speed_max_m_per_s: float = number(0.9, 0.001, 1_000.0)
    """Highest speed of a cloud."""
    speed_min_m_per_s: float = number(1.0, 0.001, 1_000.0)
    """Lowest speed of a host. The speed of each leg is drawn evenly between this and `speed_max_m_per_s`."""
    speed_max_m_per_s: float = number(2.0, 0.001, 1_000.0)
    """Highest speed of a host."""
    change: float = number(0.1, 0.0, 1.0)
    """Probability that a host that has reached a place changes to another cloud."""

    def __post_init__(self) -> None:
        check_order(self, "cloud_speed_min_m_per_s", "cloud_speed_max_m_per_s")
        check_order(self, "speed_min_m_per_s", "speed_max_m_per_s")
        if self.speed_min_m_per_s <= self.cloud_speed_max_m_per_s:
            found = f"{self.speed_min_m_per_s:g}"
            least = f"more than {self.cloud_speed_max_m_per_s:g}, as fast as clouds are"
            raise ConfigError(f"mobility.speed_min_m_per_s must be {least}, or hosts fall behind, not {found}")
        if 2 * self.cloud_radius_m >= self.side_m:
            found = f"{self.cloud_radius_m:g}"
            raise ConfigError(f"mobility.cloud_radius_m must be less than half of side_m, {self.side_m:g}, not {found}")

    def move(self, seed: int | str, duration_us: int) -> Movement:
        """Return the movement of all hosts from 0 to the end of the run."""
        clouds = [_Cloud(self, seed, index) for index in range(self.clouds)]
        paths = (cut(self._path(seed, index, clouds, duration_us), 0, duration_us) for index in range(self.count))
        return throughout(dict(zip(names(self.count), paths, strict=True)))

    def _path(self, seed: int | str, index: int, clouds: list[_Cloud], end_us: int) -> list[Sample]:
        chance = stream(seed, index, "places")
        member = index % len(clouds)
        t_s = 0.0
        x, y = clouds[member].at(t_s, self._place(chance.random(), chance.random()))
        path = [(0, x, y)]
        while path[-1][0] < end_us:
            # Drawn even if there is nowhere else to go, so that `clouds` alone decides what a draw means.
            leaves, which = chance.random() < self.change, chance.random()
            if leaves and len(clouds) > 1:
                member = (member + 1 + int(which * (len(clouds) - 1))) % len(clouds)
            place = self._place(chance.random(), chance.random())
            speed = self.speed_min_m_per_s + chance.random() * (self.speed_max_m_per_s - self.speed_min_m_per_s)
            t_s = _meeting(clouds[member], place, (t_s, x, y), speed)
            x, y = clouds[member].at(t_s, place)
            path.append((round(t_s * MICROSECONDS), x, y))
        return path

    def _place(self, far: float, turn: float) -> tuple[float, float]:
        """Return a place in a cloud, from its centre; the root makes the disc evenly filled."""
        radius_m, angle = self.cloud_radius_m * math.sqrt(far), 2 * math.pi * turn
        return radius_m * math.cos(angle), radius_m * math.sin(angle)


class _Cloud:
    """The centre of a cloud; its way is drawn no further than it is asked for."""

    def __init__(self, model: Community, seed: int | str, index: int) -> None:
        self._model = model
        self._chance = stream(seed, "cloud", index)
        self._t_s = [0.0]
        self._places = [self._draw()]

    def at(self, t_s: float, place: tuple[float, float]) -> tuple[float, float]:
        """Return the position of a place, given from the cloud's centre, at a time."""
        while self._t_s[-1] <= t_s:
            self._go_on()
        after = bisect_right(self._t_s, t_s)
        t0_s, (x0, y0), (x1, y1) = self._t_s[after - 1], self._places[after - 1], self._places[after]
        part = (t_s - t0_s) / (self._t_s[after] - t0_s)
        return x0 + part * (x1 - x0) + place[0], y0 + part * (y1 - y0) + place[1]

    def _go_on(self) -> None:
        slowest, fastest = self._model.cloud_speed_min_m_per_s, self._model.cloud_speed_max_m_per_s
        # 1 - random() is above 0, and so is the speed.
        speed = slowest + (1 - self._chance.random()) * (fastest - slowest)
        goal = self._draw()
        self._t_s.append(self._t_s[-1] + math.dist(self._places[-1], goal) / speed)
        self._places.append(goal)

    def _draw(self) -> tuple[float, float]:
        low, high = self._model.cloud_radius_m, self._model.side_m - self._model.cloud_radius_m
        return self._chance.uniform(low, high), self._chance.uniform(low, high)


def _meeting(cloud: _Cloud, place: tuple[float, float], since: tuple[float, float, float], speed: float) -> float:
    """Return the time at which a host that leaves now, at this speed, meets a place of a cloud that moves on."""
    t0_s, *here = since
    t_s = t0_s
    for _ in range(_TRIES):
        before_s, t_s = t_s, t0_s + math.dist(here, cloud.at(t_s, place)) / speed
        if abs(t_s - before_s) < _CLOSE_S:
            break
    return t_s
