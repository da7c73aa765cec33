"""Movement of nodes: models that draw tracks from a seed, and readers of recorded movement.

Here is what models share: names of nodes, paths cut to the time of a run, presences, times of day. A path is a list of
samples (microseconds, x, y), as `Tracks.of` takes them.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence

from carrypost.errors import ConfigError
from carrypost.traces.contacts import Presence
from carrypost.traces.tracks import Movement, Tracks

Sample = tuple[int, float, float]
"""A time, in whole microseconds, and a position, in metres."""

_DIGITS = 4
_CLOCK = re.compile(r"(\d{1,3}):([0-5]\d)(?::([0-5]\d))?", re.ASCII)


def names(count: int) -> list[str]:
    """Return this many names, n0001 and on; a larger number of nodes does not change the names of the first ones."""
    return [f"n{number:0{_DIGITS}}" for number in range(1, count + 1)]


def check_order(model: object, low: str, high: str, table: str = "mobility") -> None:
    """Refuse settings of a model, which stand in this table, whose minimum is above the maximum."""
    least, most = getattr(model, low), getattr(model, high)
    if least > most:
        raise ConfigError(f"{table}.{high} must be at least {least:g}, which is {low}, not {most:g}")


def throughout(paths: Mapping[str, Sequence[Sample]]) -> Movement:
    """Return the movement of nodes that are there for the whole run."""
    return Movement(Tracks.of(paths), [Presence(name, 0, None) for name in paths])


def presences(name: str, spans: Iterable[tuple[int, int]], duration_us: int) -> list[Presence]:
    """Return the presences of a node; a node that is present at the end of the run does not leave."""
    return [Presence(name, join_us, leave_us if leave_us < duration_us else None) for join_us, leave_us in spans]


def since(path: Sequence[Sample], start_us: int) -> list[Sample]:
    """Return the part of a path from the start on, with times counted from there."""
    found = [(t_us - start_us, x, y) for t_us, x, y in path if t_us >= start_us]
    if found and path[0][0] < start_us < start_us + found[0][0]:
        found.insert(0, (0, *_at(path, start_us)))
    return found


def cut(path: Sequence[Sample], start_us: int, end_us: int) -> list[Sample]:
    """Return the part of a path from start to end, with times counted from the start; it must be under way at both."""
    assert path[0][0] <= start_us < end_us <= path[-1][0], "a path that covers the time asked for"
    inside = [(t_us - start_us, x, y) for t_us, x, y in path if start_us < t_us < end_us]
    return [(0, *_at(path, start_us)), *inside, (end_us - start_us, *_at(path, end_us))]


def _at(path: Sequence[Sample], t_us: int) -> tuple[float, float]:
    after = next(index for index, sample in enumerate(path) if sample[0] >= t_us)
    t1_us, x1, y1 = path[after]
    if t1_us == t_us:
        return x1, y1
    t0_us, x0, y0 = path[after - 1]
    part = (t_us - t0_us) / (t1_us - t0_us)
    return x0 + part * (x1 - x0), y0 + part * (y1 - y0)


def clock_s(given: str, what: str = "a time") -> float:
    """Return the seconds since midnight of a time such as 05:30 or 05:30:00; `what` names the setting in errors.

    Hours go on after midnight: a bus that leaves at 24:30 belongs to the day before, as in GTFS.
    """
    if (found := _CLOCK.fullmatch(given.strip())) is None:
        raise ConfigError(f"{what} must be a time such as 05:30 or 05:30:00, not {given!r}")
    hours, minutes, seconds = (int(part or 0) for part in found.groups())
    return hours * 3_600.0 + minutes * 60.0 + seconds
