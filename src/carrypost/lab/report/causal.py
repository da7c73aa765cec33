"""The part of a page about an experiment of CAUSAL §VI: its figures from our runs, and runs on limited links.

The figures are running intervals, latency against delay, distributions, and registries of one node. Each caption says
what the paper shows; where its text quotes numbers, they are in the plot. Distributions are means over seeds with their
bands; what is of single nodes or copies shows the first seed.

The paper states neither the rate of links nor the order in which messages are sent. Both decide how many messages
arrive before their predecessors, and so how long they wait. So runs on limited links stand beside those on unlimited
ones, and beside the paper.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import time
from statistics import fmean
from typing import Any, NamedTuple

import numpy as np
from markupsafe import Markup

from carrypost.arrays import Floats
from carrypost.lab.metrics import families
from carrypost.lab.report import distributions, origins, papers, plots
from carrypost.lab.report.blocks import Element, Figures, Picture, TableRow, table
from carrypost.lab.report.distributions import steps, unit
from carrypost.lab.report.numbers import NOTHING, count, difference, interval, lifetime, share, shown, tenths
from carrypost.lab.report.papers import Experiment, PaperLifetime, Point, over_seeds
from carrypost.lab.report.plots import Axis, Curve, Extent, Histogram, Mark
from carrypost.lab.report.study import FinishedRun, Series, Study, matched
from carrypost.lab.schemas import Table

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
    if paper is papers.BUS:
        from_h = _clock_h(run)
        axis = _day(from_h, run.duration_s or float(ends.max(initial=_HOUR)))
        picture = plots.intervals(
            starts / _HOUR + from_h, ends / _HOUR + from_h, axis, f"{name}: running times of buses"
        )
        return Running(picture, len(set(found["node"].tolist())))
    early = starts < papers.ENTERED_S
    starts, ends = starts[early], ends[early]
    most_min = float(ends.max(initial=papers.ENTERED_S)) / _MINUTE
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


def delay_distributions(study: Study, all_series: Sequence[Series], paper: Experiment) -> Distributions:
    """Return figure 5 or 10."""
    cut_s = 3 * _HOUR if paper is papers.BUS else 20 * _MINUTE
    delays = _cdf(study, all_series, _Cut(families.TDELAY, cut_s, _MINUTE, "transmission delay (min)"), paper)
    waits = _cdf(study, all_series, _Cut(families.LTCY, paper.ltcy_cut_s, 1.0, "co-delivery latency (s)"), paper)
    halves = [("transmission delays", delays), ("co-delivery latencies", waits)]
    most = (study.row(families.DELAY_SPREAD, each.first, metric=families.TDELAY).get("max_s") for each in all_series)
    longer = any(each is not None and each > cut_s for each in most)
    parts = [waited(study, each.first) or 0.0 for each in all_series]
    alike = len(parts) > 1 and max(parts) < 0.005  # noqa: PLR2004 - a line's width
    return Distributions(halves, _quoted(study, all_series, paper), cut_s, longer, alike)


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
        if (curve := plots.distribution(found, Extent(most_s, 1.0))) is not None:
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
    return table(f"Points of {paper.figures[2]} that the paper quotes", ["", "paper", "ours"], [lines])


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
    if paper is papers.BUS:
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
    if papers.BUS_NODE in nodes or not nodes:
        return papers.BUS_NODE
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
        lines[registry] = plots.changes(t[there], sizes[there])
    most = max((float(curve.y.max(initial=0)) for curve in lines.values()), default=0.0)
    return plots.curves(lines, (x, Axis("entries", 1.06 * most or 1.0)), title, legend="registry", height=200)


def _walker(study: Study, run: FinishedRun, *, whole: bool) -> Evolution:
    """Return the walker like the paper's: present for about five minutes, from 1h49' or the middle of a part on."""
    found = study.columns(families.ACTIVITY, run)
    starts, stays = found["start"], found["end"] - found["start"]
    wanted_s = papers.WALKER_FROM_S if whole else (run.duration_s or papers.WALKER_FROM_S) / 2
    about = (stays >= _STAY_S[0]) & (stays <= _STAY_S[1])
    away = np.abs(starts - wanted_s) + (0 if about.any() else np.abs(stays - papers.WALKER_STAY_S))
    at = int(np.where(about | ~about.any(), away, np.inf).argmin())
    return Evolution([], str(found["node"][at]), float(starts[at]), float(stays[at]))


def _walker_table(study: Study, pair: Sequence[Series], node: str) -> Element:
    lines = []
    for series in pair:
        run = series.first
        row = study.row(families.PROCESSING_BY_NODE, run, node=node)
        registry = study.columns(families.REGISTRIES, run, node=node)
        long_life = series.lifetime_s == max(papers.WALKER, key=lambda each: each or 0)
        theirs = [
            *map(count, papers.WALKER.get(series.lifetime_s, (None, None))),
            f"almost {papers.WALKER_PENDING_MAX}" if long_life else NOTHING,
            f"about {papers.WALKER_SOURCES_MAX}" if long_life else NOTHING,
        ]
        ours = [
            count(row.get("rcvd")),
            count(row.get("codlvd")),
            *(_most(registry[name]) for name in ("pending", "co_delivered")),
        ]
        lines.append([
            TableRow(series.label, ["paper (N777)", *theirs], "paper"),
            TableRow("", [f"ours ({node})", *ours], "ours"),
            TableRow("", ["all who stay about 5 min, mean (least – most)", *_like(study, run)], "spread"),
        ])  # fmt: skip
    heads = ["lifetime", "", "received", "co-delivered", "pending, most", "co_delivered, most"]
    return table("One walker of about five minutes", heads, lines)


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


class Links(NamedTuple):
    """The series of an experiment by their links, labelled by lifetime."""

    unlimited: tuple[Series, ...]
    limited: tuple[Series, ...]


class _Figure(NamedTuple):
    name: str
    of: Table
    column: str
    show: Callable[[float | None], str]
    paper: Callable[[PaperLifetime], float | None]
    where: dict[str, str]


_LATENCY = {"metric": families.LTCY}
_FIGURES = (
    _Figure("receive events", families.PROCESSING, "rcvd", count, lambda each: each.processing.rcvd, {}),
    _Figure("co-delivery ratio", families.PROCESSING, "codlvratio", share, lambda each: each.processing.codlvratio, {}),
    _Figure("ltcy, avg", families.DELAY_SPREAD, "avg_s", shown, lambda each: each.ltcy.avg_s, _LATENCY),
    _Figure("ltcy, stdev", families.DELAY_SPREAD, "stdev_s", shown, lambda each: each.ltcy.stdev_s, _LATENCY),
    _Figure("ltcy, max", families.DELAY_SPREAD, "max_s", shown, lambda each: each.ltcy.max_s, _LATENCY),
    _Figure("pending, most", families.REGISTRY_SIZES, "max", count, lambda _: None, {"registry": "pending"}),
)


def by_links(all_series: Sequence[Series]) -> Links:
    """Divide series by their links; if all are limited there is nothing to compare, and they count as the others."""
    plain = _labelled([each for each in all_series if _rate(each) is None])
    limited = _labelled([each for each in all_series if _rate(each) is not None])
    return Links(plain, limited) if plain else Links(limited, ())


def _labelled(all_series: Sequence[Series]) -> tuple[Series, ...]:
    """Label series by their lifetimes, where these differ."""
    lifetimes = [each.lifetime_s for each in all_series]
    return tuple(
        replace(each, label=lifetime(each.lifetime_s))
        if lifetimes.count(each.lifetime_s) == 1 and each.first.in_force
        else each
        for each in all_series
    )


def _rate(series: Series) -> int | None:
    """Return the rate of links in bytes/s; None: no limit, or not known."""
    radio: dict[str, Any] = series.first.in_force.get("radio", {})
    found = radio.get("rate_bytes_per_s")
    return found if isinstance(found, int) else None


class LimitedLinks(NamedTuple):
    """The comparison of a page."""

    table: Element
    rate: str
    reached: float | None
    """Largest difference of receptions from those on unlimited links."""


def limited_links(study: Study, links: Links, paper: Experiment, *, whole: bool) -> LimitedLinks | None:
    """Return the paper's figures, ours on unlimited links, and ours on limited ones; None if there are none of these.

    All with the seeds that runs of a lifetime on both kinds of links have.
    """
    groups, off = [], []
    unlimited = {each.lifetime_s: each for each in links.unlimited}
    for series in links.limited:
        if (plain := unlimited.get(series.lifetime_s)) is None:
            continue
        both = matched([plain, series])
        quoted = paper.of.get(series.lifetime_s)
        rows: list[TableRow] = []
        for figure in _FIGURES:
            values = [study.values(figure.of, each, figure.column, **figure.where) for each in both]
            printed = None if quoted is None else figure.paper(quoted)
            cells = [
                NOTHING if printed is None else figure.show(printed),
                *(over_seeds(e, figure.show) for e in values),
            ]
            means = [None if (found := interval(each)) is None else found.mean for each in values]
            rows.append(TableRow(series.label if not rows else "", [
                figure.name, *cells, difference(means[1], printed) if whole and printed else NOTHING,
            ]))  # fmt: skip
            if figure.column == "rcvd" and means[0] and means[1] is not None:
                off.append(abs(means[1] / means[0] - 1))
        groups.append(rows)
    if not groups:
        return None
    heads = ["lifetime", "", "paper", "unlimited", "limited", "difference from the paper"]
    rates = ", ".join(dict.fromkeys(f"{_rate(each):,} bytes/s" for each in links.limited))
    return LimitedLinks(table("Waiting on limited links", heads, groups, kept=2), rates, max(off, default=None))


_NEAR = 0.1
"""Latencies below this share of the paper's are explained, and counts that are off by less."""


def section(study: Study, all_series: Sequence[Series], paper: Experiment, figures: Figures) -> Markup:
    """Return everything about this experiment. Its figures are those on unlimited links."""
    links, every = by_links(all_series), all_series
    all_series = links.unlimited
    whole = all(run.duration_s == paper.duration_s for series in every for run in series.runs)
    compared = matched(all_series)
    pair = [series for lifetime_s in paper.pair for series in compared if series.lifetime_s == lifetime_s]
    movement = all_series[0].first.in_force.get("mobility", {})
    elsewhere = movement.get("file") or all_series[0].first.in_force.get("contacts", {}).get("file") or "elsewhere"
    return figures.filled(
        "causal",
        paper=paper,
        whole=whole,
        lasted=", ".join(dict.fromkeys(shown(each.first.duration_s) for each in all_series)),
        verdict=papers.against_paper(study, all_series, paper) if whole else "",
        scene=papers.scene(study, all_series[0], paper, whole=whole),
        source="" if movement.get("model") in {"buses", "streets"} else elsewhere,
        running=running(study, all_series[0], paper),
        processing=papers.processing(study, all_series, paper, whole=whole),
        delays=papers.delays(study, all_series, paper, whole=whole),
        against=against(study, pair, paper),
        missing=_absent(list(paper.of), all_series),
        missing_halves=_absent(paper.pair, pair),
        distributions=delay_distributions(study, compared, paper),
        implied=None if whole is False else _implied(paper),
        evolution=evolution(study, pair, paper, whole=whole),
        registries=papers.registries(study, all_series),
        lasting=distributions.lasting(study, all_series),
        off=_off(study, all_series, paper) if whole else None,
        near=_NEAR,
        hardly_waits=_hardly_waits(study, all_series, paper),
        limited=limited_links(study, links, paper, whole=whole),
        one_seed=all(len(series.runs) == 1 for series in pair),
        seeds=origins.seeds(every),
        parameters=origins.parameters(every, paper),
        ran=origins.ran(every),
        failures=origins.failures(study, paper.scenario),
        **distributions.part(study, all_series),
    )


def _absent(wanted: Sequence[float | None], there: Sequence[Series]) -> str:
    """Lifetimes that were not run, in words."""
    run = {series.lifetime_s for series in there}
    return ", ".join(lifetime(each) for each in wanted if each not in run)


def _implied(paper: Experiment) -> tuple[float, float, float] | None:
    """Return a lifetime, a shorter one, and what Table II or V says of the share that arrives within the shorter one.

    What a lifetime brings at all is what any longer one brings by then: receptions are of the same flood. Of the pairs
    for which the paper's text quotes a share.
    """
    for each in paper.lifetimes:
        for point in each.tdelay_points:
            shorter = paper.of.get(point.value_s)
            if shorter is not None and each.lifetime_s is not None:
                return each.lifetime_s, point.value_s, shorter.processing.rcvd / each.processing.rcvd
    return None


def _off(study: Study, all_series: Sequence[Series], paper: Experiment) -> tuple[float, float] | None:
    """Return the largest difference of receptions, and of their delays, from the paper's."""
    pairs = []
    for series in all_series:
        received = study.values(families.PROCESSING, series, "rcvd")
        mean_s = study.values(families.DELAY_SPREAD, series, "avg_s", metric=families.TDELAY)
        if (printed := paper.of.get(series.lifetime_s)) and received and mean_s:
            parts = fmean(received) / printed.processing.rcvd, fmean(mean_s) / printed.tdelay.avg_s
            pairs.append([abs(each - 1) for each in parts])
    if not pairs:
        return None
    counts, delays = map(max, zip(*pairs, strict=True))
    return counts, delays


def _hardly_waits(study: Study, all_series: Sequence[Series], paper: Experiment) -> bool:
    """Return True if our latencies are far below the paper's."""
    for series in all_series:
        ours = study.values(families.DELAY_SPREAD, series, "avg_s", metric=families.LTCY)
        if (printed := paper.of.get(series.lifetime_s)) and ours and max(ours) > _NEAR * printed.ltcy.avg_s:
            return False
    return True


def title(experiments: Sequence[Experiment]) -> str:
    """Return the title of a page about these."""
    return f"Causal and Δ-causal broadcast: {' and '.join(each.title for each in experiments)}"
