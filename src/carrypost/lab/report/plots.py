"""The plots of a page: running intervals, counts over two delays, distributions, sizes over time.

Each function takes numbers and gives a picture for the page. Curves differ by lightness and by dashes, so that they can
be told apart in print without colour. Points closer than the eye can see are left out; what the paper quotes is drawn
as marks in the look of the curve that it is about.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import altair as alt
import numpy as np
import numpy.typing as npt
import vl_convert

from carrypost.lab.report import svg
from carrypost.lab.report.html import Picture

Floats = npt.NDArray[np.float64]
Numbers = Mapping[str, Sequence[object]]
"""What is drawn, by head of column."""
WIDTH, HEIGHT = 600, 250
_COLOURS = ("#08306b", "#c2410c", "#2e7d32", "#7b1fa2", "#00838f", "#795548", "#616161", "#ad1457")
_DASHES = ([1, 0], [7, 3], [2, 2], [9, 2, 2, 2], [4, 2], [1, 3], [12, 4], [6, 2, 2, 2, 2, 2])
CURVES_MAX = len(_COLOURS)
_NONE: Mapping[str, Floats] = {}
_SEEN_PX = 0.5
_STEPS = 7
"""Classes of counts."""
_FONT = "Helvetica, Arial, sans-serif"
_CONFIG: dict[str, Any] = {
    "background": "transparent",
    "font": _FONT,
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
    """Where it ends; None: where the numbers do."""
    least: float | None = None
    labels: str = ""
    """How ticks are labelled, in Vega's language; empty: by their number."""
    ticks: Sequence[float] = ()
    log: bool = False
    """By powers of ten."""

    def x(self, field: str) -> alt.X:
        """Of a plot, left to right."""
        return alt.X(f"{field}:Q", title=self.title, scale=self._scale(), axis=self._axis())

    def y(self, field: str) -> alt.Y:
        """Of a plot, from below."""
        return alt.Y(f"{field}:Q", title=self.title, scale=self._scale(), axis=self._axis())

    def _scale(self) -> alt.Scale:
        if self.log:
            return alt.Scale(type="log", nice=False)
        if self.most is None:
            return alt.Scale(zero=True, nice=True)
        return alt.Scale(domain=[self.least or 0, self.most], nice=False, clamp=False)

    def _axis(self) -> alt.Axis:
        options: dict[str, Any] = {"tickCount": 8}
        if self.labels:
            options["labelExpr"] = self.labels
        if self.ticks:
            options["values"] = list(self.ticks)
        return alt.Axis(**options)


SHARE = Axis("share of copies", 1.03, labels="format(datum.value, '.0%')", ticks=[each / 5 for each in range(6)])
"""From none to all, and a little more, so that a curve at all can be seen."""


@dataclass(frozen=True, slots=True)
class Mark:
    """A point that the paper quotes, and the curve that it is about."""

    curve: str
    x: float
    y: float


def intervals(starts: Floats, ends: Floats, x: Axis, title: str) -> Picture:
    """A line from start to end for each, those that begin first at the bottom."""
    order = np.lexsort((ends, starts))
    rows: list[dict[str, float | None]] = []
    for place, at in enumerate(order.tolist()):
        # One line with gaps is a tenth of the size of as many lines.
        rows += [{"x": float(starts[at]), "y": place}, {"x": float(ends[at]), "y": place}, {"x": None, "y": place}]
    for number, row in enumerate(rows):
        row["n"] = number
    chart = (
        alt.Chart(_data(rows))
        .mark_line(strokeWidth=max(1.0, min(2.2, 150 / max(len(starts), 1))), color=_COLOURS[0], strokeCap="butt")
        .encode(
            x=x.x("x"),
            y=alt.Y(
                "y:Q",
                title="nodes, in order of appearance",
                scale=alt.Scale(domain=[-1, max(len(starts), 1)], nice=False),
                axis=alt.Axis(grid=False, tickMinStep=10),
            ),
            order="n:Q",
        )
    )
    return _drawn(chart, title, {"start": starts[order].tolist(), "end": ends[order].tolist()})


def curves(
    lines: Mapping[str, tuple[Floats, Floats]], axes: tuple[Axis, Axis], title: str, *,
    marks: Sequence[Mark] = (), steps: bool = True, height: int = HEIGHT, legend: str = "lifetime",
    bands: Mapping[str, Floats] = _NONE,
) -> Picture:  # fmt: skip
    """Curves by name, those of steps keep their value until the next; marks are what the paper quotes.

    `bands` reach so far above and below the curves of their names, point by point.
    """
    x, y = axes
    names = list(lines)[:CURVES_MAX]
    rows = [
        {"curve": name, "x": at, "y": value}
        for name in names
        for at, value in zip(*(each.tolist() for each in lines[name]), strict=True)
    ]
    scale = alt.Scale(domain=names, range=list(_COLOURS[: len(names)]))
    dashes = alt.Scale(domain=names, range=[list(each) for each in _DASHES[: len(names)]])
    key = alt.Legend(title=legend or None, symbolSize=400)
    line = (
        alt.Chart(_data(rows))
        .mark_line(interpolate="step-after" if steps else "linear", strokeWidth=1.6, clip=True)
        .encode(
            x=x.x("x"),
            y=y.y("y"),
            color=alt.Color("curve:N", scale=scale, sort=names, legend=key),
            strokeDash=alt.StrokeDash("curve:N", scale=dashes, sort=names, legend=key),
        )
    )
    heads = {legend or "curve": "curve", x.title: "x", y.title: "y"}
    drawn: dict[str, Sequence[object]] = {head: [row[column] for row in rows] for head, column in heads.items()}
    if bands:
        drawn["95 % ±"] = [each for name in names for each in bands[name].tolist()]
        area = _band({name: lines[name] for name in names}, bands, (x, y), scale)
        return _drawn(alt.layer(area, line), title, drawn, height=height)
    there = [mark for mark in marks if mark.curve in names]
    if not there:
        return _drawn(line, title, drawn, height=height)
    points = (
        alt.Chart(_data([{"curve": each.curve, "x": each.x, "y": each.y} for each in there]))
        .mark_point(shape="diamond", size=70, strokeWidth=1.6, fill="white", opacity=1)
        .encode(x=x.x("x"), y=y.y("y"), color=alt.Color("curve:N", scale=scale, sort=names, legend=None))
    )
    return _drawn(alt.layer(line, points), title, drawn, height=height)


def _band(
    lines: Mapping[str, tuple[Floats, Floats]], bands: Mapping[str, Floats], axes: tuple[Axis, Axis], scale: alt.Scale
) -> alt.Chart:
    rows = [
        {"curve": name, "x": at, "y": value - half, "y2": value + half}
        for name, (x, y) in lines.items()
        for at, value, half in zip(x.tolist(), y.tolist(), bands[name].tolist(), strict=True)
    ]
    made: alt.Chart = (
        alt.Chart(_data(rows))
        .mark_area(opacity=0.18, clip=True)
        .encode(
            x=axes[0].x("x"), y=axes[1].y("y"), y2="y2:Q",
            color=alt.Color("curve:N", scale=scale, sort=list(lines), legend=None),
        )
    )  # fmt: skip
    return made


@dataclass(frozen=True, slots=True)
class Histogram:
    """Counts over two numbers: lower edges, widths, how many."""

    x: Floats
    y: Floats
    x_width: float
    y_width: float
    copies: Floats

    def coarser(self, x_step: float, y_step: float) -> Histogram:
        """The same in cells that are at least so wide."""
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
    order = np.lexsort((found.x, found.y, kind))  # Those of one colour become one path.
    rows = [
        {
            "x": float(found.x[at]), "x2": float(found.x[at] + found.x_width), "y": float(found.y[at]),
            "y2": float(found.y[at] + found.y_width), "copies": names[kind[at]],
        }
        for at in order.tolist()
    ]  # fmt: skip
    shades = _shades(len(names))
    chart = (
        alt.Chart(_data(rows))
        .mark_rect(clip=True)
        .encode(
            x=x.x("x"),
            x2="x2:Q",
            y=y.y("y"),
            y2="y2:Q",
            color=alt.Color(
                "copies:N",
                scale=alt.Scale(domain=names, range=shades),
                sort=names,
                legend=alt.Legend(title="copies", symbolType="square", symbolSize=140, symbolStrokeWidth=0),
            ),
        )
    )
    drawn = {x.title: found.x.tolist(), y.title: found.y.tolist(), "copies": found.copies.tolist()}
    return _drawn(alt.layer(chart, *_rules(rules)), title, drawn, height=HEIGHT - 30)


def _rules(rules: tuple[float | None, float | None]) -> list[alt.Chart]:
    look: dict[str, Any] = {"strokeDash": [5, 4], "color": _COLOURS[1], "strokeWidth": 1.3}
    at_x, at_y = rules
    made = []
    if at_x is not None:
        made.append(alt.Chart(_data([{"x": at_x}])).mark_rule(**look).encode(x="x:Q"))
    if at_y is not None:
        made.append(alt.Chart(_data([{"y": at_y}])).mark_rule(**look).encode(y="y:Q"))
    return made


def _classes(edges: Sequence[int], most: int) -> list[str]:
    lows, highs = [1, *edges], [*(edge - 1 for edge in edges), most]
    return [f"{low:,}" if low == high else f"{low:,}–{high:,}" for low, high in zip(lows, highs, strict=True)]


def _shades(count: int) -> list[str]:
    """From light to dark, so that more is darker in grey as well."""
    light, dark = np.array([0xC6, 0xDB, 0xEF]), np.array([0x08, 0x1D, 0x58])
    parts = np.linspace(0, 1, count) if count > 1 else np.array([0.6])
    return ["#" + "".join(f"{round(each):02x}" for each in (light + part * (dark - light)).tolist()) for part in parts]


def staircase(x: Floats, y: Floats, x_most: float, y_most: float) -> tuple[Floats, Floats]:
    """A distribution that rises at each value, as a line for `curves` without steps of its own, to the right edge.

    It begins at the least value. Steps that the eye cannot tell from a slope are one, which keeps pictures small.
    """
    inside = x <= x_most
    x, y = x[inside], y[inside]
    if not len(x):
        return np.array([0.0, x_most]), np.zeros(2)
    x, y = np.append(np.repeat(x, 2), x_most), np.append(0.0, np.repeat(y, 2))
    kept = _corners(x / x_most * WIDTH, y / y_most * HEIGHT)
    return x[kept], y[kept]


def _corners(x: Floats, y: Floats) -> npt.NDArray[np.bool_]:
    """Points between which straight lines stay as near to the curve as the eye can tell (Douglas and Peucker)."""
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


def changes(x: Floats, y: Floats) -> tuple[Floats, Floats]:
    """Of a curve of steps, the points where it changes, and the last."""
    if not len(x):
        return x, y
    new = np.append(True, y[1:] != y[:-1])
    new[-1] = True
    return x[new], y[new]


def _data(rows: Sequence[Mapping[str, object]]) -> alt.Data:
    return alt.Data(values=list(rows))  # type: ignore[no-untyped-call]


def _drawn(
    chart: alt.Chart | alt.LayerChart | alt.FacetChart, title: str, numbers: Numbers, *, height: int = HEIGHT
) -> Picture:
    spec = chart.properties(width=WIDTH, height=height).configure(**_CONFIG).to_dict()
    drawn = vl_convert.vegalite_to_svg(vl_spec=spec)
    return Picture(svg.small(drawn, title), drawn, _csv(numbers))


def _csv(numbers: Numbers) -> str:
    """Columns with their heads, as a file."""
    made = io.StringIO()
    writer = csv.writer(made, lineterminator="\n")
    writer.writerow(numbers)
    writer.writerows(zip(*numbers.values(), strict=True))
    return made.getvalue()
