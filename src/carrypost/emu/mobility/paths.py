"""What the models of movement share: names of nodes, and a path cut to the time of a run.

A path is a list of samples (microseconds, x, y), as `Tracks.of` takes them.
"""

from __future__ import annotations

from collections.abc import Sequence

Sample = tuple[int, float, float]
"""When, in whole microseconds, and where, in metres."""

_DIGITS = 4


def names(count: int) -> list[str]:
    """So many names, n0001 and on; nobody's depends on how many there are."""
    return [f"n{number:0{_DIGITS}}" for number in range(1, count + 1)]


def cut(path: Sequence[Sample], start_us: int, end_us: int) -> list[Sample]:
    """What happens on a path from start to end, with times counted from the start; it must be under way at both."""
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
