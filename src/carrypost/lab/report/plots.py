"""Plots of a page: curves with bands over seeds, bars, running intervals, counts over two delays, sizes over time.

Each function takes numbers and gives a picture for the page: it says in Vega-Lite what is to be drawn, as plain data,
and has it drawn. Curves differ by lightness and by dashes, so that they can be distinguished in print without colour;
bands around them are shaded; what the paper quotes is drawn as marks in the look of the curve that it is about.

A curve is a line of points, and where there are several seeds the ends of the 95 % interval of each
(`carrypost.lab.report.numbers`). It is of a distribution or of a figure over time. Points closer to a straight line
than the eye can see are left out.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import vl_convert

from carrypost.arrays import Flags, Floats
from carrypost.lab.report.blocks import FONT, Cell, Picture, inline_svg
from carrypost.lab.report.numbers import interval, over_rows

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


def mean_curve(points: Mapping[float, Sequence[float]], most: float = 1.0) -> Curve | None:
    """Return means over seeds, each with its interval, by a number, capped at `most`; None if there are none."""
    found = [(x, each) for x, values in sorted(points.items()) if (each := interval(values)) is not None]
    if not found:
        return None
    x, mean = np.array([each[0] for each in found], np.float64), np.array([each[1].mean for each in found])
    halves = [each[1].half for each in found]
    if any(half is None for half in halves):
        return Curve(x, mean)
    half = np.array(halves, np.float64)
    return Curve(x, mean, np.clip(mean - half, 0.0, most), np.clip(mean + half, 0.0, most))


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


Spec = dict[str, Any]
"""A part of what is to be drawn."""
_COLOURS = ("#08306b", "#c2410c", "#2e7d32", "#7b1fa2", "#00838f", "#795548", "#616161", "#ad1457")
_DASHES = ([1, 0], [7, 3], [2, 2], [9, 2, 2, 2], [4, 2], [1, 3], [12, 4], [6, 2, 2, 2, 2, 2])
CURVES_MAX = len(_COLOURS)
_BAND = 0.2
"""Darkness of bands: two that overlap can still be seen below a curve, in grey as well."""
_BANDS_MAX = 3
"""More bands than these cannot be told apart: then curves have bars at some points."""
_BARS = 8
_CIRCLES = 11
_BOUND = "flood bound"
_ROW_PX = 16
"""Height of a row with a name."""
_STEPS = 7
"""Classes of counts."""
_CONFIG: Spec = {
    "background": "transparent",
    "font": FONT,
    "aria": False,
    "padding": {"left": 5, "right": 18, "top": 5, "bottom": 5},
    "view": {"stroke": "#999"},
    "axis": {"labelFontSize": 11, "titleFontSize": 12, "titleFontWeight": "normal", "gridColor": "#e6e6e6"},
    "legend": {"labelFontSize": 11, "titleFontSize": 12, "titleFontWeight": "normal", "symbolStrokeWidth": 2},
    "axisY": {"titlePadding": 8},
}


@dataclass(frozen=True, slots=True)
class Axis:
    """A scale of numbers."""

    title: str
    most: float | None = None
    """End of the axis; None: where the numbers end."""
    least: float | None = None
    labels: str = ""
    """Format of the ticks' labels, in Vega's language; empty: their number."""
    ticks: Sequence[float] = ()
    log: bool = False
    whole: bool = False
    """True: ticks are whole numbers only."""

    def of(self, field: str) -> Spec:
        """Return a field of the data along this axis."""
        return {
            "field": field,
            "type": "quantitative",
            "title": self.title,
            "scale": self._scale(),
            "axis": self._axis(),
        }

    def _scale(self) -> Spec:
        if self.most is None:
            return {"zero": True, "nice": True}
        if self.log:
            return {"type": "log", "domain": [self.least, self.most], "nice": False, "clamp": True}
        return {"domain": [self.least or 0, self.most], "nice": False}

    def _axis(self) -> Spec:
        options: Spec = {"tickCount": 8}
        if self.whole:
            options["tickMinStep"] = 1
        if self.labels:
            options["labelExpr"] = self.labels
        if self.ticks:
            options["values"] = list(self.ticks)
        return options


SHARE = Axis(
    "share of copies", 1.03, labels="format(datum.value * 100, '.0f') + ' %'", ticks=[each / 5 for each in range(6)]
)
"""From none to all, and a little more, so that a curve at all can be seen."""
_TIMES_S = (0.001, 0.01, 0.1, 1, 10, 60, 600, 3_600, 36_000, 86_400, 864_000, 8_640_000)
_TIME = (
    "datum.value < 1 ? format(datum.value * 1000, 'd') + ' ms' : datum.value < 60 ? datum.value + ' s' : "
    "datum.value < 3600 ? datum.value / 60 + ' min' : datum.value < 86400 ? datum.value / 3600 + ' h' : "
    "datum.value / 86400 + ' d'"
)


def log_time(title: str, least_s: float, most_s: float) -> Axis:
    """Lengths of time by their logarithms."""
    ticks = [each for each in _TIMES_S if least_s <= each <= most_s]
    return Axis(title, most_s, least_s, _TIME, ticks, log=True)


def log_share(title: str, least: float) -> Axis:
    """Shares by their logarithms, all at the top."""
    ticks = [10.0**-each for each in range(9) if 10.0**-each >= least * 0.999]
    return Axis(title, 1.0, least, "format(datum.value * 100, '~r') + ' %'", ticks, log=True)


@dataclass(frozen=True, slots=True)
class Mark:
    """A point that the paper quotes, and the curve that it is about."""

    curve: str
    x: float
    y: float


def intervals(starts: Floats, ends: Floats, x: Axis, title: str) -> Picture:
    """Return a line from start to end for each, those that begin first at the bottom."""
    order = np.lexsort((ends, starts)).tolist()
    numbers = [(place, float(starts[at]), float(ends[at])) for place, at in enumerate(order)]
    # One line with gaps is a tenth of the size of as many lines.
    points = [(at, place) for place, start, end in numbers for at in (start, end, None)]
    rows = [{"x": at, "y": place, "n": number} for number, (at, place) in enumerate(points)]
    width = max(1.0, min(2.2, 150 / max(len(starts), 1)))
    y = {
        "field": "y", "type": "quantitative", "title": "nodes, in order of appearance",
        "scale": {"domain": [-1, max(len(starts), 1)], "nice": False}, "axis": {"grid": False, "tickMinStep": 10},
    }  # fmt: skip
    mark = {"type": "line", "strokeWidth": width, "color": _COLOURS[0], "strokeCap": "butt"}
    layer = _layer(rows, mark, {"x": x.of("x"), "y": y, "order": {"field": "n", "type": "quantitative"}})
    heads = ("node, in order of appearance", f"{x.title}, from", "until")
    return Picture(_drawn([layer], title), heads, numbers)


def spans(found: Mapping[str, Sequence[tuple[float, float]]], x: Axis, title: str) -> Picture:
    """Return bars from start to end, in a row for each name."""
    numbers = [(name, start, end) for name, times in found.items() for start, end in times]
    rows = [{"name": name, "x": start, "x2": end} for name, start, end in numbers]
    y = {"field": "name", "type": "nominal", "title": None, "sort": list(found), "axis": {"grid": True}}
    mark = {"type": "bar", "color": _COLOURS[0], "height": {"band": 0.6}, "minBandSize": 1}
    layer = _layer(rows, mark, {"x": x.of("x"), "x2": {"field": "x2"}, "y": y})
    height = max(_ROW_PX, _ROW_PX * len(found))
    return Picture(_drawn([layer], title, height=height), ("name", f"{x.title}, from", "until"), numbers)


class Bar(NamedTuple):
    """A value of a category, of one kind."""

    category: str
    kind: str
    value: float
    half: float | None = None
    """Half of its interval; None: it has none."""


def bars(found: Sequence[Bar], axes: tuple[str, Axis, str], title: str, *, marks: Sequence[Bar] = ()) -> Picture:
    """Return bars of each kind side by side by category, with their intervals; marks are what the paper quotes.

    The axes are the title of the categories, the scale of values, and the title of the legend.
    """
    name, y, legend = axes
    kinds = list(dict.fromkeys(each.kind for each in found))[:CURVES_MAX]
    categories = list(dict.fromkeys(each.category for each in found))
    there = [each for each in found if each.kind in kinds]
    quoted = [each for each in marks if each.kind in kinds and each.category in categories]
    scale = {"domain": kinds, "range": list(_COLOURS[: len(kinds)])}
    color = {"field": "kind", "type": "nominal", "sort": kinds, "scale": scale, "legend": {"title": legend}}
    place: Spec = {
        "x": {"field": "category", "type": "nominal", "sort": categories, "title": name, "axis": {"labelAngle": 0}},
        "xOffset": {"field": "kind", "type": "nominal", "sort": kinds},
    }
    ends = [each | {"low": max(each["y"] - each["half"], 0), "high": each["y"] + each["half"]}
            for each in map(_bar, there) if each["half"] is not None]  # fmt: skip
    layers = [
        _layer(list(map(_bar, there)), {"type": "bar", "opacity": 0.75}, place | {"y": y.of("y"), "color": color})
    ]
    if ends:
        span = place | {"y": y.of("low"), "y2": {"field": "high"}}
        layers.append(_layer(ends, {"type": "rule", "strokeWidth": 1.3, "color": "black"}, span))
    if quoted:
        layers.append(_layer(list(map(_bar, quoted)), _point("diamond", 70, 1.6), place | {
            "y": y.of("y"), "color": color | {"legend": None},
        }))  # fmt: skip
    rows: list[Sequence[Cell]] = [(each.category, *_bar_numbers(each)) for each in there]
    rows += [(each.category, f"{each.kind}, quoted by the paper", each.value, None, None) for each in quoted]
    heads = (name, legend, y.title, "lower end of 95 %", "upper end of 95 %")
    return Picture(_drawn(layers, title), heads, rows)


def _bar(each: Bar) -> Spec:
    return {"category": each.category, "kind": each.kind, "y": each.value, "half": each.half}


def _bar_numbers(each: Bar) -> Sequence[Cell]:
    if each.half is None:
        return each.kind, each.value, None, None
    return each.kind, each.value, max(each.value - each.half, 0.0), each.value + each.half


def curves(
    lines: Mapping[str, Curve], axes: tuple[Axis, Axis], title: str, *,
    marks: Sequence[Mark] = (), bounds: Mapping[str, Curve] | None = None, steps: bool = True, height: int = HEIGHT,
    legend: str = "lifetime",
) -> Picture:  # fmt: skip
    """Curves by name with their bands, or bars if there are many; those of steps keep their value until the next.

    Marks are what the paper quotes; bounds are thin lines with circles, in the look of the curve that they are above.
    """
    names = list(lines)[:CURVES_MAX]
    shown = {name: lines[name] for name in names}
    above = {name: curve for name, curve in (bounds or {}).items() if name in shown}
    there = [mark for mark in marks if mark.curve in shown]
    look = _Look(axes, names, legend, steps=steps)
    several = sum(curve.low is not None for curve in shown.values()) > _BANDS_MAX
    layers = [*(() if several else look.bands(shown)), look.lines(shown), *(look.bars(shown) if several else ())]
    layers += [*look.bounds(above), *look.marks(there)]
    rows: list[Sequence[Cell]] = [row for name, curve in shown.items() for row in _numbers(name, curve)]
    rows += [row for name, curve in above.items() for row in _numbers(f"{name}, bound", curve)]
    rows += [(f"{mark.curve}, quoted by the paper", mark.x, mark.y, None, None) for mark in there]
    heads = (legend or "curve", axes[0].title, axes[1].title, "lower end of 95 %", "upper end of 95 %")
    return Picture(_drawn(layers, title, height=height), heads, rows)


def plain(
    lines: Mapping[str, Curve | None], axes: tuple[Axis, Axis], title: str, legend: str, marks: Sequence[Mark] = ()
) -> Picture | None:
    """Return those of these curves that are there, from point to point; None if there are none."""
    there = {name: each for name, each in lines.items() if each is not None}
    return curves(there, axes, title, marks=marks, steps=False, legend=legend) if there else None


def _numbers(name: str, curve: Curve) -> Iterator[Sequence[Cell]]:
    low, high = ([None] * len(curve.x) if each is None else each.tolist() for each in (curve.low, curve.high))
    for row in zip(curve.x.tolist(), curve.y.tolist(), low, high, strict=True):
        yield name, *row


class _Look:
    """The looks that distinguish curves."""

    def __init__(self, axes: tuple[Axis, Axis], names: Sequence[str], legend: str, *, steps: bool) -> None:
        x, y = axes
        self._axes = axes
        self._place: Spec = {"x": x.of("x"), "y": y.of("y")}
        self._how: Spec = {"interpolate": "step-after" if steps else "linear", "clip": True}
        # Where all settings have one curve in common there is nothing to tell apart.
        key = None if list(names) == [EVERYONE] else {"title": legend or None, "symbolSize": 400, "labelLimit": 220}
        each: Spec = {"field": "curve", "type": "nominal", "sort": list(names)}
        self._plain = {**each, "scale": {"domain": list(names), "range": list(_COLOURS[: len(names)])}, "legend": None}
        self._color = self._plain | {"legend": key}
        dashes = {"domain": list(names), "range": [list(dash) for dash in _DASHES[: len(names)]]}
        self._dash = {**each, "scale": dashes, "legend": key}

    def lines(self, found: Mapping[str, Curve]) -> Spec:
        encoding = self._place | {"color": self._color, "strokeDash": self._dash}
        return _layer(_points(found), {"type": "line", "strokeWidth": 1.6, **self._how}, encoding)

    def bands(self, found: Mapping[str, Curve]) -> list[Spec]:
        """Return layers with explicit colours: two layers with a legend of one scale would share its symbols."""
        x, y = self._axes
        made = []
        for colour, (name, curve) in zip(_COLOURS, found.items(), strict=False):
            rows = [
                {"x": at, "low": low, "high": high} for _, at, _, low, high in _numbers(name, curve) if low is not None
            ]
            mark = {"type": "area", "color": colour, "opacity": _BAND, **self._how}
            made += [_layer(rows, mark, {"x": x.of("x"), "y": y.of("low"), "y2": {"field": "high"}})] if rows else []
        return made

    def bars(self, found: Mapping[str, Curve]) -> list[Spec]:
        """Return layers with an interval at some points of each curve, beside those of the others."""
        x, y = self._axes
        rows = [
            {"curve": name, "x": at, "low": low, "high": high}
            for place, (name, curve) in enumerate(found.items())
            for at, low, high in _bars_of(curve, x, (place + 0.5) / len(found))
        ]
        across = {"x": x.of("x"), "color": self._plain}
        ends = ({"y": y.of(end)} for end in ("low", "high"))
        look = {"strokeWidth": 1.2, "opacity": 0.8, "clip": True}
        return [
            _layer(rows, {"type": "rule", **look}, across | {"y": y.of("low"), "y2": {"field": "high"}}),
            *(_layer(rows, {"type": "tick", "orient": "horizontal", "width": 6, **look}, across | end) for end in ends),
        ]

    def bounds(self, found: Mapping[str, Curve]) -> list[Spec]:
        if not found:
            return []
        x = self._axes[0]
        places = np.linspace(x.least or 0.0, x.most or 1.0, _CIRCLES + 2)[1:-1]
        circles = {name: Curve(places, np.interp(places, curve.x, curve.y)) for name, curve in found.items()}
        encoding = self._place | {"color": self._plain}
        # Circles with the colours of their curves have no colour in a legend. So there is one in black, below another.
        key = {"datum": _BOUND, "type": "nominal", "scale": {"domain": [_BOUND], "range": ["circle"]}, "legend": {
            "title": None, "symbolSize": 60, "symbolStrokeWidth": 1,
        }}  # fmt: skip
        look, points = _point("circle", 26, 1.0), _points(circles)
        return [
            _layer(_points(found), {"type": "line", "strokeWidth": 0.7, **self._how}, encoding),
            _layer(points[:1], look | {"stroke": "black"}, self._place | {"shape": key}),
            _layer(points, look, encoding),
        ]

    def marks(self, there: Sequence[Mark]) -> list[Spec]:
        rows = [{"curve": each.curve, "x": each.x, "y": each.y} for each in there]
        return [_layer(rows, _point("diamond", 70, 1.6), self._place | {"color": self._plain})] if rows else []


def _bars_of(curve: Curve, x: Axis, phase: float) -> Iterator[tuple[float, float, float]]:
    """Yield intervals of a curve and their places: all points of a short one, else regular places after a phase."""
    if curve.low is None or curve.high is None or not len(curve.x):
        return
    places = curve.x
    if len(places) > _BARS + 1:
        least, most = float(places[0]), float(places[-1])
        share = (np.arange(_BARS) + phase) / _BARS
        if x.log:
            places = np.exp(np.log(least) + share * (np.log(most) - np.log(least)))
        else:
            places = least + share * (most - least)
    low, high = (np.interp(places, curve.x, each) for each in (curve.low, curve.high))
    yield from zip(places.tolist(), low.tolist(), high.tolist(), strict=True)


def _points(found: Mapping[str, Curve]) -> list[Spec]:
    return [{"curve": name, "x": x, "y": y} for name, curve in found.items() for _, x, y, *_ in _numbers(name, curve)]


def _point(shape: str, size: int, width: float) -> Spec:
    return {"type": "point", "shape": shape, "size": size, "strokeWidth": width, "fill": "white", "opacity": 1}


def _layer(rows: Sequence[Spec], mark: Spec, encoding: Spec) -> Spec:
    return {"data": {"values": list(rows)}, "mark": mark, "encoding": encoding}


@dataclass(frozen=True, slots=True)
class Histogram:
    """Counts over two numbers: lower edges, widths, how many."""

    x: Floats
    y: Floats
    x_width: float
    y_width: float
    copies: Floats

    def coarser(self, x_step: float, y_step: float) -> Histogram:
        """Return the grid in cells of at least this width."""
        wide, high = max(1, round(x_step / self.x_width)), max(1, round(y_step / self.y_width))
        x_width, y_width = wide * self.x_width, high * self.y_width
        places = np.stack([np.floor(self.x / x_width + 1e-9), np.floor(self.y / y_width + 1e-9)])
        kept, at = np.unique(places, axis=1, return_inverse=True)
        copies = np.bincount(at.ravel(), self.copies, kept.shape[1]).astype(np.float64)
        return Histogram(kept[0] * x_width, kept[1] * y_width, x_width, y_width, copies)


def cells(found: Histogram, axes: tuple[Axis, Axis], rules: tuple[float | None, float | None], title: str) -> Picture:
    """Counts by colour, on a scale of logarithms; rules are the most that the paper has, dashed."""
    x, y = axes
    most = float(found.copies.max(initial=1))
    steps = min(_STEPS, max(1, int(np.ceil(np.log10(max(most, 2)) * 2))))
    edges = np.unique(np.round(most ** (np.arange(1, steps) / steps)))
    kind = np.searchsorted(edges, found.copies, side="right")
    names = _classes(edges.astype(int).tolist(), int(most))
    corners = (found.x, found.x + found.x_width, found.y, found.y + found.y_width, found.copies)
    numbers = list(zip(*(each.tolist() for each in corners), strict=True))
    rows = []
    for at in np.lexsort((found.x, found.y, kind)).tolist():  # Those of one colour become one path.
        left, right, below, above, _ = numbers[at]
        rows.append({"x": left, "x2": right, "y": below, "y2": above, "copies": names[kind[at]]})
    color = {
        "field": "copies", "type": "nominal", "sort": names, "scale": {"domain": names, "range": _shades(len(names))},
        "legend": {"title": "copies", "symbolType": "square", "symbolSize": 140, "symbolStrokeWidth": 0},
    }  # fmt: skip
    encoding = {"x": x.of("x"), "x2": {"field": "x2"}, "y": y.of("y"), "y2": {"field": "y2"}, "color": color}
    layers = [_layer(rows, {"type": "rect", "clip": True}, encoding), *_rules(rules)]
    heads = (f"{x.title}, from", "until", f"{y.title}, from", "until", "copies")
    return Picture(_drawn(layers, title, height=HEIGHT - 30), heads, numbers)


def _rules(rules: tuple[float | None, float | None]) -> list[Spec]:
    look = {"type": "rule", "strokeDash": [5, 4], "color": _COLOURS[1], "strokeWidth": 1.3}
    return [
        _layer([{axis: at}], look, {axis: {"field": axis, "type": "quantitative"}})
        for axis, at in zip("xy", rules, strict=True)
        if at is not None
    ]


def _classes(edges: Sequence[int], most: int) -> list[str]:
    lows, highs = [1, *edges], [*(edge - 1 for edge in edges), most]
    return [f"{low:,}" if low == high else f"{low:,}–{high:,}" for low, high in zip(lows, highs, strict=True)]


def _shades(count: int) -> list[str]:
    """Return shades from light to dark, so that more is darker in grey as well."""
    light, dark = np.array([0xC6, 0xDB, 0xEF]), np.array([0x08, 0x1D, 0x58])
    parts = np.linspace(0, 1, count) if count > 1 else np.array([0.6])
    return ["#" + "".join(f"{round(each):02x}" for each in (light + part * (dark - light)).tolist()) for part in parts]


def _drawn(layers: Sequence[Spec], title: str, *, height: int = HEIGHT) -> str:
    spec = {"width": WIDTH, "height": height, "layer": list(layers), "config": _CONFIG}
    return inline_svg(vl_convert.vegalite_to_svg(vl_spec=spec), title)
