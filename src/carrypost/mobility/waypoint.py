"""Random waypoint: every node walks to a random place, rests there, and goes on to the next.

Nodes are present throughout the run. Each draws from a stream of its own, so an additional node does not change the
paths of the others; if the area follows from a density, it scales them.

The model's known flaws are part of it: nodes gather in the middle, and their mean speed falls at first, as slow legs
take longer. `warm_up_s` lets that pass before the run begins.
"""

from __future__ import annotations

import math

from carrypost.chance import stream
from carrypost.config import DAY_S
from carrypost.config.rules import number, table, whole
from carrypost.errors import ConfigError
from carrypost.mobility import Sample, check_order, cut, names, throughout
from carrypost.model.times import MICROSECONDS
from carrypost.traces.tracks import Movement

_SIDE_M = 1_000.0
_SIDE_M_MAX = 1e7


@table("mobility")
class RandomWaypoint:
    """Nodes in a rectangle that walk from one random place to the next."""

    count: int = whole(100, 1, 1_000_000)
    """Number of nodes."""
    side_m: float | None = number(None, 1.0, _SIDE_M_MAX)
    """Side of the square, or width of the rectangle; 1,000 if neither this nor `nodes_per_km2` is given."""
    height_m: float | None = number(None, 1.0, _SIDE_M_MAX)
    """Height of a rectangle; requires `side_m`. Without it, the area is a square."""
    nodes_per_km2: float | None = number(None, 0.001, 1e6)
    """Density that determines the size of the square, instead of `side_m`."""
    speed_min_m_per_s: float = number(0.5, 0.001, 1_000.0)
    """Lowest speed. The speed of each leg is drawn evenly between this and `speed_max_m_per_s`."""
    speed_max_m_per_s: float = number(1.5, 0.001, 1_000.0)
    """Highest speed."""
    pause_min_s: float = number(0.0, 0.0, DAY_S)
    """Shortest pause. The pause after each leg is drawn evenly between this and `pause_max_s`."""
    pause_max_s: float = number(120.0, 0.0, DAY_S)
    """Longest pause."""
    warm_up_s: float = number(0.0, 0.0, 100 * DAY_S)
    """Time for which nodes have been moving when the run begins."""

    def __post_init__(self) -> None:
        if self.side_m is not None and self.nodes_per_km2 is not None:
            raise ConfigError("mobility: give side_m or nodes_per_km2, not both")
        if self.height_m is not None and self.side_m is None:
            raise ConfigError("mobility: height_m requires side_m, the width of the rectangle")
        check_order(self, "speed_min_m_per_s", "speed_max_m_per_s")
        check_order(self, "pause_min_s", "pause_max_s")

    @property
    def area_side_m(self) -> float:
        """The side of the square, or the width of the rectangle, however it was given."""
        if self.nodes_per_km2 is not None:
            return 1_000 * math.sqrt(self.count / self.nodes_per_km2)
        return _SIDE_M if self.side_m is None else self.side_m

    def move(self, seed: int | str, duration_us: int) -> Movement:
        """Return the movement of all nodes from 0 to the end of the run."""
        start_us = round(self.warm_up_s * MICROSECONDS)
        end_us = start_us + duration_us
        paths = (cut(self._path(seed, index, end_us), start_us, end_us) for index in range(self.count))
        return throughout(dict(zip(names(self.count), paths, strict=True)))

    def _path(self, seed: int | str, index: int, end_us: int) -> list[Sample]:
        chance = stream(seed, index, "waypoints").random
        width_m = self.area_side_m
        height_m = width_m if self.height_m is None else self.height_m
        slowest, faster = self.speed_min_m_per_s, self.speed_max_m_per_s - self.speed_min_m_per_s
        shortest, longer = self.pause_min_s, self.pause_max_s - self.pause_min_s
        t_s = 0.0
        x, y = width_m * chance(), height_m * chance()
        path = [(0, x, y)]
        while path[-1][0] < end_us:
            goal_x, goal_y = width_m * chance(), height_m * chance()
            t_s += math.hypot(goal_x - x, goal_y - y) / (slowest + faster * chance())
            x, y = goal_x, goal_y
            path.append((round(t_s * MICROSECONDS), x, y))
            t_s += shortest + longer * chance()
            path.append((round(t_s * MICROSECONDS), x, y))
        return path
