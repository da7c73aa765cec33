"""CAUSAL's figures from our runs: running intervals, latency against delay, distributions, registries of one node.

Each caption says what the paper shows; where its text quotes numbers, they are in the plot. Distributions are means
over seeds with their bands; what is of single nodes or copies shows the first seed.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import time
from typing import NamedTuple

import numpy as np

from carrypost.arrays import Floats
from carrypost.lab.metrics import families
from carrypost.lab.report import curves, plots
from carrypost.lab.report import paper as printed
from carrypost.lab.report.curves import Curve, Extent
from carrypost.lab.report.distributions import steps, unit
from carrypost.lab.report.grids import Element, TableRow
from carrypost.lab.report.grids import table as table_of
from carrypost.lab.report.paper import Experiment, Point
from carrypost.lab.report.pictures import Picture
from carrypost.lab.report.plots import Axis, Histogram, Mark
from carrypost.lab.report.study import FinishedRun, Series, Study
from carrypost.lab.report.tables import over_seeds
from carrypost.lab.report.times import NOTHING, count, shown, tenths

_HOUR, _MINUTE = 3_600.0, 60.0
_REGISTRIES = ("co_delivered", "pending", "c_barrier")
_ACROSS, _UP = 60, 40
"""Approximate numbers of cells."""
_STAY_S = (270.0, 330.0)
"""Times that count as about five minutes."""


def _clock_h(run: FinishedRun) -> float:
    """Hours at which the run begins; 0 where it has no time of day."""
    start = str(run.in_force.get("mobility", {}).get("start", ""))
    try:
        at = time.fromisoformat(start)
    except ValueError:
        return 0.0
    return at.hour + at.minute / 60


class Running(NamedTuple):
    """Figure 3 or 8, and the number of nodes in it."""

    picture: Picture
    nodes: int


def running(study: Study, series: Series, paper: Experiment) -> Running:
    """Return figure 3 or 8."""
    run, name = series.first, paper.figures[0]
    found = study.columns(families.ACTIVITY, run)
    starts, ends = found["start"], found["end"]
    if paper is printed.BUS:
        from_h = _clock_h(run)
        axis = _day(from_h, run.duration_s or float(ends.max(initial=_HOUR)))
        picture = plots.intervals(
            starts / _HOUR + from_h, ends / _HOUR + from_h, axis, f"{name}: running times of buses"
        )
        return Running(picture, len(set(found["node"].tolist())))
    early = starts < printed.ENTERED_S
    starts, ends = starts[early], ends[early]
    most_min = float(ends.max(initial=printed.ENTERED_S)) / _MINUTE
    axis = Axis("minutes since the start", float(np.ceil(most_min / 5) * 5))
    return Running(plots.intervals(starts / _MINUTE, ends / _MINUTE, axis, f"{name}: presence of walkers"), len(starts))


def _day(from_h: float, duration_s: float) -> Axis:
    """Hours of the day."""
    until_h = from_h + duration_s / _HOUR
    step = 1 if until_h - from_h < 8 else 2  # noqa: PLR2004 - so that ticks have room
    ticks = [hour for hour in range(int(np.ceil(from_h)), int(until_h) + 1) if hour % step == 0]
    return Axis("time of day", until_h, from_h, "format(datum.value, '02d') + ':00'", ticks)


class Against(NamedTuple):
    """Figure 4 or 9: pictures of lifetimes for which copies waited, and how many did."""

    pictures: list[tuple[str, Picture]]
    waits: list[tuple[str, float | None, float | None, float | None]]
    """Lifetime, share that waited, longest time, and the paper's."""


def against(study: Study, pair: Sequence[Series], paper: Experiment) -> Against:
    """Return figure 4 or 9."""
    name, made = paper.figures[1], Against([], [])
    for series in pair:
        found = study.columns(families.DELAY_GRID, series.first)
        quoted = paper.of.get(series.lifetime_s)
        limits = (None, None) if quoted is None else (quoted.tdelay.max_s, quoted.ltcy.max_s)
        row = study.row(families.DELAY_SPREAD, series.first, metric=families.LTCY)
        if part := waited(study, series.first):
            title = f"{name}: latency against delay, lifetime {series.label}"
            made.pictures.append((f"lifetime {series.label}", _cells(found, limits, title)))
        made.waits.append((series.label, part, row.get("max_s"), limits[1]))
    return made


def waited(study: Study, run: FinishedRun) -> float | None:
    """Return the share of copies whose latency is 1 ms or more; None: there are none."""
    found = study.columns(families.DELAY_CDF, run, metric=families.LTCY)
    if not len(found["share"]):
        return None
    return 1 - float(found["share"][found["value_ms"] <= 0].max(initial=0.0))


def _cells(found: dict[str, Floats], limits: tuple[float | None, float | None], title: str) -> Picture:
    at_x, at_y = limits
    empty = not len(found["copies"])
    widths = (1.0, 1.0) if empty else (float(found["tdelay_width_s"].max()), float(found["ltcy_width_s"].max()))
    most_x = max(at_x or 0.0, 0.0 if empty else float((found["tdelay_s"] + widths[0]).max())) or 1.0
    most_y = max(at_y or 0.0, 0.0 if empty else float((found["ltcy_s"] + widths[1]).max())) or 1.0
    (unit_x, name_x), (unit_y, name_y) = unit(most_x), unit(most_y)
    cells = Histogram(
        found["tdelay_s"] / unit_x, found["ltcy_s"] / unit_y, widths[0] / unit_x, widths[1] / unit_y,
        found["copies"].astype(np.float64),
    ).coarser(most_x / unit_x / _ACROSS, most_y / unit_y / _UP)  # fmt: skip
    x = Axis(f"transmission delay ({name_x})", most_x / unit_x * 1.02)
    y = Axis(f"co-delivery latency ({name_y})", most_y / unit_y * 1.04)
    rules = (None if at_x is None else at_x / unit_x, None if at_y is None else at_y / unit_y)
    return plots.cells(cells, (x, y), rules, title)


class Distributions(NamedTuple):
    """Figure 5 or 10, and the points that the paper quotes."""

    pictures: list[tuple[str, Picture]]
    quoted: Element
    cut_s: float
    longer: bool
    """Some delays are beyond the axis."""
    alike: bool
    """Hardly anything waits."""


def distributions(study: Study, all_series: Sequence[Series], paper: Experiment) -> Distributions:
    """Return figure 5 or 10."""
    cut_s = 3 * _HOUR if paper is printed.BUS else 20 * _MINUTE
    delays = _cdf(study, all_series, _Cut(families.TDELAY, cut_s, _MINUTE, "transmission delay (min)"), paper)
    waits = _cdf(study, all_series, _Cut(families.LTCY, paper.ltcy_cut_s, 1.0, "co-delivery latency (s)"), paper)
    halves = [("transmission delays", delays), ("co-delivery latencies", waits)]
    longer, alike = _longer(study, all_series, cut_s), _all_alike(study, all_series)
    return Distributions(halves, _quoted(study, all_series, paper), cut_s, longer, alike)


def _longer(study: Study, all_series: Sequence[Series], cut_s: float) -> bool:
    """Return True if some delay is beyond the axis."""
    most = (study.row(families.DELAY_SPREAD, each.first, metric=families.TDELAY).get("max_s") for each in all_series)
    return any(each is not None and each > cut_s for each in most)


def _all_alike(study: Study, all_series: Sequence[Series]) -> bool:
    parts = [waited(study, each.first) or 0.0 for each in all_series]
    return len(parts) > 1 and max(parts) < 0.005  # noqa: PLR2004 - a line's width


class _Cut(NamedTuple):
    """A metric, and the axis that it is shown on."""

    metric: str
    most_s: float
    unit_s: float
    title: str


def _cdf(study: Study, all_series: Sequence[Series], cut: _Cut, paper: Experiment) -> Picture:
    metric, most_s, unit_s, title = cut
    lines: dict[str, Curve] = {}
    for series in all_series:
        found = steps(study, families.DELAY_CDF, series, metric=metric)
        if (curve := curves.distribution(found, Extent(most_s, 1.0))) is not None:
            lines[series.label] = curve.scaled(unit_s)
    marks = [
        Mark(series.label, point.value_s / unit_s, point.share)
        for series in all_series
        for point in _points(paper, series, metric)
    ]
    axes = (Axis(title, most_s / unit_s), plots.SHARE)
    return plots.curves(lines, axes, f"{paper.figures[2]}: distribution of {metric}", marks=marks, steps=False)


def _points(paper: Experiment, series: Series, metric: str) -> Sequence[Point]:
    """Return the points of a distribution that the paper quotes."""
    quoted = paper.of.get(series.lifetime_s)
    return () if quoted is None else quoted.tdelay_points if metric == families.TDELAY else quoted.ltcy_points


def _quoted(study: Study, all_series: Sequence[Series], paper: Experiment) -> Element:
    """Return the quoted points as a table: which share of ours is below."""
    lines = []
    for metric in (families.TDELAY, families.LTCY):
        for series in all_series:
            for point in _points(paper, series, metric):
                under = [
                    float(shares[values < round(point.value_s, 3)].max(initial=0.0))
                    for values, shares in steps(study, families.DELAY_CDF, series, metric=metric)
                    if len(values)
                ]
                name = f"{metric} under {shown(point.value_s)}, lifetime {series.label}"
                lines.append(TableRow(name, [f"{point.share:.0%}".replace("%", " %"), over_seeds(under, tenths)]))
    if not lines:
        return ""
    return table_of(f"Points of {paper.figures[2]} that the paper quotes", ["", "paper", "ours"], [lines])


class Evolution(NamedTuple):
    """Figure 6 or 11: the node that it shows, and of a walker when it comes and goes, and its table."""

    pictures: list[tuple[str, Picture]]
    node: str = ""
    from_s: float = 0.0
    stay_s: float = 0.0
    table: Element = ""


def evolution(study: Study, pair: Sequence[Series], paper: Experiment, *, whole: bool) -> Evolution:
    """Return figure 6 or 11."""
    name, made = paper.figures[3], Evolution([])
    if not pair:
        return made
    if paper is printed.BUS:
        made = made._replace(node=_bus(study, pair[0].first))
    else:
        made = _walker(study, pair[0].first, whole=whole)
        made = made._replace(table=_walker_table(study, pair, made.node))
    for half, series in zip("ab", pair, strict=False):
        title = f"{name}{half}: registries of {made.node}, lifetime {series.label}"
        made.pictures.append((f"lifetime {series.label}", _registries(study, series.first, made.node, title)))
    return made


def _bus(study: Study, run: FinishedRun) -> str:
    """Return the paper's bus; where buses are called otherwise, the one that runs longest."""
    found = study.columns(families.ACTIVITY, run)
    nodes = found["node"].tolist()
    if printed.BUS_NODE in nodes or not nodes:
        return printed.BUS_NODE
    return str(nodes[int((found["end"] - found["start"]).argmax())])


def _samples(study: Study, run: FinishedRun, node: str) -> dict[str, Floats]:
    """Sizes of a node's registries in order of time; they are empty when it first appears."""
    found = study.columns(families.REGISTRIES, run, node=node)
    order = np.argsort(found["t"], kind="stable")
    made = {name: found[name][order].astype(np.float64) for name in ("t", *_REGISTRIES)}
    start_s = study.columns(families.ACTIVITY, run, node=node)["start"].min(initial=np.inf)
    if len(order) and start_s < made["t"][0]:
        made = {name: np.insert(values, 0, start_s if name == "t" else 0.0) for name, values in made.items()}
    return made


def _registries(study: Study, run: FinishedRun, node: str, title: str) -> Picture:
    found = _samples(study, run, node)
    day = run.in_force.get("mobility", {}).get("start")
    if day:
        from_h = _clock_h(run)
        t = found["t"] / _HOUR + from_h
        x = _day(from_h, run.duration_s or float(found["t"].max(initial=_HOUR)))
    else:
        t = found["t"] / _MINUTE
        least, most = (float(t.min()), float(t.max())) if len(t) else (0.0, 1.0)
        ticks = [float(minute) for minute in range(int(np.ceil(least)), int(most) + 1)]
        labels = "floor(datum.value / 60) + ' h ' + format(datum.value % 60, 'd') + ' min'"
        x = Axis("time since the start", most, least, labels, ticks)
    lines: dict[str, Curve] = {}
    for registry in _REGISTRIES:
        sizes = found[registry]
        there = ~np.isnan(sizes)
        lines[registry] = curves.changes(t[there], sizes[there])
    most = max((float(curve.y.max(initial=0)) for curve in lines.values()), default=0.0)
    return plots.curves(lines, (x, Axis("entries", 1.06 * most or 1.0)), title, legend="registry", height=200)


def _walker(study: Study, run: FinishedRun, *, whole: bool) -> Evolution:
    """Return the walker like the paper's: present for about five minutes, from 1h49' or the middle of a part on."""
    found = study.columns(families.ACTIVITY, run)
    starts, stays = found["start"], found["end"] - found["start"]
    wanted_s = printed.WALKER_FROM_S if whole else (run.duration_s or printed.WALKER_FROM_S) / 2
    about = (stays >= _STAY_S[0]) & (stays <= _STAY_S[1])
    away = np.abs(starts - wanted_s) + (0 if about.any() else np.abs(stays - printed.WALKER_STAY_S))
    at = int(np.where(about | ~about.any(), away, np.inf).argmin())
    return Evolution([], str(found["node"][at]), float(starts[at]), float(stays[at]))


def _walker_table(study: Study, pair: Sequence[Series], node: str) -> Element:
    lines = []
    for series in pair:
        run = series.first
        row = study.row(families.PROCESSING_BY_NODE, run, node=node)
        registry = study.columns(families.REGISTRIES, run, node=node)
        quoted = printed.WALKER.get(series.lifetime_s)
        long_life = series.lifetime_s == max(printed.WALKER, key=lambda each: each or 0)
        papers = [
            NOTHING if quoted is None else count(quoted[0]),
            NOTHING if quoted is None else count(quoted[1]),
            f"almost {printed.WALKER_PENDING_MAX}" if long_life else NOTHING,
            f"about {printed.WALKER_SOURCES_MAX}" if long_life else NOTHING,
        ]
        ours = [
            count(row.get("rcvd")),
            count(row.get("codlvd")),
            *(_most(registry[name]) for name in ("pending", "co_delivered")),
        ]
        lines.append([
            TableRow(series.label, ["paper (N777)", *papers], "paper"),
            TableRow("", [f"ours ({node})", *ours], "ours"),
            TableRow("", ["all who stay about 5 min, mean (least – most)", *_like(study, run)], "spread"),
        ])  # fmt: skip
    heads = ["lifetime", "", "received", "co-delivered", "pending, most", "co_delivered, most"]
    return table_of("One walker of about five minutes", heads, lines)


def _most(sizes: Floats) -> str:
    sizes = sizes.astype(np.float64)
    return count(float(np.nanmax(sizes))) if len(sizes) and not np.isnan(sizes).all() else NOTHING


def _like(study: Study, run: FinishedRun) -> list[str]:
    """Return mean, least and most of receptions and co-deliveries of all walkers who stay for about five minutes."""
    found = study.columns(families.ACTIVITY, run)
    stays = found["end"] - found["start"]
    nodes = found["node"][(stays >= _STAY_S[0]) & (stays <= _STAY_S[1])]
    by_node = study.columns(families.PROCESSING_BY_NODE, run)
    chosen = np.isin(by_node["node"].astype(str), nodes.astype(str))
    cells = []
    for column in ("rcvd", "codlvd"):
        values = by_node[column][chosen]
        cells.append(f"{values.mean():,.0f} ({values.min():,.0f} – {values.max():,.0f})" if len(values) else NOTHING)
    return [*cells, "", ""]
