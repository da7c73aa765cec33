"""Curves of figures: distributions and figures over time, their means over seeds, and the bands around these.

A curve is a line of points, and where there are several seeds the ends of the 95 % interval of each
(`carrypost.lab.report.intervals`). Points closer to a straight line than the eye can see are left out.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from carrypost.arrays import Flags, Floats
from carrypost.lab.report.intervals import over_rows

WIDTH, HEIGHT = 600, 250
"""Of plots, in pixels."""
_SEEN_PX = 0.5
EVERYONE = "all"
"""Name of a curve that all settings have in common."""

Steps = tuple[Floats, Floats]
"""The places where something changes, in order, and its value from there on."""


@dataclass(frozen=True, slots=True)
class Curve:
    """A line, and the band around it."""

    x: Floats
    y: Floats
    low: Floats | None = None
    """None: there is one seed, and no band."""
    high: Floats | None = None

    def scaled(self, unit: float) -> Curve:
        """Return the curve with x in other units."""
        return replace(self, x=self.x / unit)

    def bare(self) -> Curve:
        """Return the line without its band."""
        return Curve(self.x, self.y)

    def same(self, other: Curve) -> bool:
        """Return True if two curves have the same points."""
        return np.array_equal(self.x, other.x) and np.array_equal(self.y, other.y)


class Extent(NamedTuple):
    """The area that a plot shows, to see which points matter."""

    x_most: float
    y_most: float
    x_least: float = 0.0
    y_least: float = 0.0
    log: bool = False
    """True if both axes are logarithmic."""

    def pixels(self, x: Floats, y: Floats) -> tuple[Floats, Floats]:
        """Return the places where points are drawn."""
        ends = (self.x_least, self.x_most), (self.y_least, self.y_most)
        (x, x_ends), (y, y_ends) = ((each, np.asarray(end)) for each, end in zip((x, y), ends, strict=True))
        if self.log:
            x, y, x_ends, y_ends = (np.log10(np.maximum(each, 1e-12)) for each in (x, y, x_ends, y_ends))
        across, up = (float(each[1] - each[0]) or 1.0 for each in (x_ends, y_ends))
        return (x - x_ends[0]) / across * WIDTH, (y - y_ends[0]) / up * HEIGHT


def distribution(seeds: Sequence[Steps], extent: Extent, *, above: bool = False) -> Curve | None:
    """Return the share of values up to, or `above`, each value: its mean over seeds, in steps, to the right edge.

    It begins at the least value. Return None if no seed has any value.
    """
    seeds = [(x, y) for x, y in seeds if len(x)]
    if not seeds:
        return None
    values = np.unique(np.concatenate([x for x, _ in seeds]))
    values = values[(values <= extent.x_most) & (values >= extent.x_least)]
    if not len(values):
        values = np.array([extent.x_least, extent.x_most])
    mean, half = over_rows(np.stack([_at(steps, values, 0.0) for steps in seeds]))
    lines = [mean, mean - half, mean + half] if len(seeds) > 1 else [mean]
    if above:
        lines = [1 - each for each in lines]
        lines = [lines[0], *lines[:0:-1]]  # The lower end of what is above belongs to the upper end of what is not.
    x = np.append(np.repeat(values, 2), extent.x_most)
    begin = 1.0 if above else 0.0
    stairs = [np.clip(np.append(begin, np.repeat(each, 2)), extent.y_least, 1.0) for each in lines]
    return _thinned(x, stairs, extent)


def over_time(seeds: Sequence[Steps], width_s: float) -> Curve | None:
    """Return a figure by windows of time: its mean over those seeds that have it, to the end of the last window.

    Figures may be NaN. None: no seed has any.
    """
    seeds = [(x, y) for x, y in seeds if len(x) and not np.isnan(y).all()]
    if not seeds:
        return None
    times = np.unique(np.concatenate([x for x, _ in seeds]))
    figures = np.full((len(seeds), len(times)), np.nan)
    for row, (x, y) in zip(figures, seeds, strict=True):
        row[np.searchsorted(times, x)] = y
    mean, half = over_rows(figures)
    there = ~np.isnan(mean)
    times, mean, half = times[there], mean[there], np.nan_to_num(half[there])
    lines = [mean, np.maximum(mean - half, 0.0), mean + half] if len(seeds) > 1 else [mean]
    return Curve(np.append(times, times[-1] + width_s), *(np.append(each, each[-1]) for each in lines))


def merged(lines: Mapping[str, Curve]) -> dict[str, Curve]:
    """Return curves by name; one for all if they are equal, as contacts are unless settings change them."""
    made = dict(lines)
    first = next(iter(made.values()), None)
    if first is None or len(made) == 1 or not all(first.same(each) for each in made.values()):
        return made
    return {EVERYONE: first}


def changes(x: Floats, y: Floats) -> Curve:
    """Return the points where a curve of steps changes, and the last one."""
    if not len(x):
        return Curve(x, y)
    new = np.append(True, y[1:] != y[:-1])
    new[-1] = True
    return Curve(x[new], y[new])


def windows(t: Floats, figures: Floats, width_s: float) -> Steps:
    """Means of figures by windows of time: the begin of each window that has any."""
    number = np.floor(t / width_s + 1e-9).astype(np.int64)
    found, at = np.unique(number, return_inverse=True)
    total = np.bincount(at, figures, len(found)).astype(np.float64)
    begins: Floats = found.astype(np.float64) * width_s
    return begins, total / np.bincount(at, minlength=len(found))


def _at(steps: Steps, values: Floats, before: float) -> Floats:
    x, y = steps
    place = np.searchsorted(x, values, side="right")
    found: Floats = np.where(place > 0, y[np.maximum(place - 1, 0)], before)
    return found


def _thinned(x: Floats, lines: Sequence[Floats], extent: Extent) -> Curve:
    """Return only the points that can be seen, of the line or of an edge of its band."""
    kept = np.zeros(len(x), np.bool_)
    for line in lines:
        kept |= _corners(*extent.pixels(x, line))
    return Curve(x[kept], *(line[kept] for line in lines))


def _corners(x: Floats, y: Floats) -> Flags:
    """Return flags of points between which straight lines stay invisibly near to the curve (Douglas and Peucker)."""
    kept = np.zeros(len(x), np.bool_)
    kept[[0, -1]] = True
    parts = [(0, len(x) - 1)]
    while parts:
        first, last = parts.pop()
        if last - first < 2:  # noqa: PLR2004 - nothing in between
            continue
        inner = slice(first + 1, last)
        across, up = x[last] - x[first], y[last] - y[first]
        away = np.abs((y[inner] - y[first]) * across - (x[inner] - x[first]) * up) / (np.hypot(across, up) or 1.0)
        at = int(away.argmax())
        if away[at] > _SEEN_PX:
            kept[first + 1 + at] = True
            parts += [(first, first + 1 + at), (first + 1 + at, last)]
    return kept
