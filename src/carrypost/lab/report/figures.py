"""CAUSAL's figures from our runs: running intervals, latency against delay, distributions, registries of one node.

Each caption says what the paper shows; where its text quotes numbers, they are in the plot. Distributions are means
over seeds with their bands; what is of single nodes or copies shows the first seed.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import time
from typing import NamedTuple

import numpy as np

from carrypost.emu.arrays import Floats
from carrypost.lab.metrics import families
from carrypost.lab.report import curves, plots, prose
from carrypost.lab.report import paper as printed
from carrypost.lab.report.curves import Curve, Extent
from carrypost.lab.report.distributions import steps, unit
from carrypost.lab.report.html import Markup, TableRow, paragraph
from carrypost.lab.report.html import table as table_of
from carrypost.lab.report.paper import Experiment
from carrypost.lab.report.pictures import Block, Figure, Picture
from carrypost.lab.report.plots import Axis, Histogram, Mark
from carrypost.lab.report.study import FinishedRun, Series, Study
from carrypost.lab.report.tables import over_seeds
from carrypost.lab.report.times import NOTHING, count, share, shown, tenths

_HOUR, _MINUTE = 3_600.0, 60.0
_REGISTRIES = ("co_delivered", "pending", "c_barrier")
_ACROSS, _UP = 60, 40
"""Approximate numbers of cells."""
_STAY_S = (270.0, 330.0)
"""Times that count as about five minutes."""


def _caption(*texts: str) -> list[str]:
    return [" ".join(text for text in texts if text)]


def _clock_h(run: FinishedRun) -> float:
    """Hours at which the run begins; 0 where it has no time of day."""
    start = str(run.in_force.get("mobility", {}).get("start", ""))
    try:
        at = time.fromisoformat(start)
    except ValueError:
        return 0.0
    return at.hour + at.minute / 60


def running(study: Study, series: Series, paper: Experiment) -> Figure:
    """Figure 3 or 8."""
    run, name = series.first, paper.figures[0]
    found = study.columns(families.ACTIVITY, run)
    starts, ends = found["start"], found["end"]
    if paper is printed.BUS:
        from_h = _clock_h(run)
        axis = _day(from_h, run.duration_s or float(ends.max(initial=_HOUR)))
        picture = plots.intervals(
            starts / _HOUR + from_h, ends / _HOUR + from_h, axis, f"{name}: running times of buses"
        )
        nodes = len(set(found["node"].tolist()))
        text = f"Running times of our {nodes} buses. {prose.BUS_RUNNING}"
    else:
        early = starts < printed.ENTERED_S
        starts, ends = starts[early], ends[early]
        most_min = float(ends.max(initial=printed.ENTERED_S)) / _MINUTE
        axis = Axis("minutes since the start", float(np.ceil(most_min / 5) * 5))
        picture = plots.intervals(starts / _MINUTE, ends / _MINUTE, axis, f"{name}: presence of walkers")
        text = f"Presence of the {len(starts)} walkers who enter in the first 20 minutes. The paper shows "
        text += f"{printed.ENTERED_NODES} for the same time."
    return Figure([("", picture)], _caption(text), name)


def _day(from_h: float, duration_s: float) -> Axis:
    """Hours of the day."""
    until_h = from_h + duration_s / _HOUR
    step = 1 if until_h - from_h < 8 else 2  # noqa: PLR2004 - so that ticks have room
    ticks = [hour for hour in range(int(np.ceil(from_h)), int(until_h) + 1) if hour % step == 0]
    return Axis("time of day", until_h, from_h, "format(datum.value, '02d') + ':00'", ticks)


def against(study: Study, pair: Sequence[Series], paper: Experiment) -> Block:
    """Figure 4 or 9; lifetimes for which no copy waited have a sentence in place of a picture."""
    name = paper.figures[1]
    pictures, texts = [], []
    for series in pair:
        found = study.columns(families.DELAY_GRID, series.first)
        quoted = paper.delays.get(series.lifetime_s)
        limits = (None, None) if quoted is None else (quoted.tdelay.max_s, quoted.ltcy.max_s)
        row = study.row(families.DELAY_SPREAD, series.first, metric=families.LTCY)
        if part := waited(study, series.first):
            title = f"{name}: latency against delay, lifetime {series.label}"
            pictures.append((f"lifetime {series.label}", _cells(found, limits, title)))
        ours = f"Lifetime {series.label}: {_part_text(part, row.get('max_s'))}"
        texts.append(ours + ("." if quoted is None else f"; in the paper at most {shown(quoted.ltcy.max_s)}."))
    if not pictures:
        return paragraph(f"The paper's {name} shows how long copies wait. ", " ".join(texts), kind="note")
    return Figure(pictures, _caption(prose.CELLS, _first_of(pair), *texts), name)


def _first_of(all_series: Sequence[Series]) -> str:
    """Return a note for a figure that is not of all seeds."""
    return "Shown for the first seed." if any(len(series.runs) > 1 for series in all_series) else ""


def _part_text(part: float | None, most_s: float | None) -> str:
    if not part:
        return "none of our copies waited for 1 ms or more"
    return f"{share(part)} of our copies waited for 1 ms or more, at most {shown(most_s)}"


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


def distributions(study: Study, all_series: Sequence[Series], paper: Experiment) -> list[Block]:
    """Figure 5 or 10."""
    cut_s = 3 * _HOUR if paper is printed.BUS else 20 * _MINUTE
    delays = _cdf(study, all_series, _Cut(families.TDELAY, cut_s, _MINUTE, "transmission delay (min)"), paper)
    waits = _cdf(study, all_series, _Cut(families.LTCY, paper.ltcy_cut_s, 1.0, "co-delivery latency (s)"), paper)
    quoted = _quoted(study, all_series, paper)
    texts = [
        "Cumulative distributions of (a) transmission delays and (b) co-delivery latencies, by lifetime of messages.",
        "Diamonds are values that the paper's text quotes, in the colour of their curve." if quoted.text else "",
        f"As in the paper, the axis of (b) is cut at {paper.ltcy_cut_s:.0f} s"
        + (f"; that of (a) is cut at {shown(cut_s)}." if _longer(study, all_series, cut_s) else "."),
    ]
    if _all_alike(study, all_series):
        texts.append("In (b) our curves coincide along the upper edge, because hardly any message waits.")
    halves = [("transmission delays", delays), ("co-delivery latencies", waits)]
    return [Figure(halves, _caption(*texts), paper.figures[2]), quoted]


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
    quoted = paper.tdelay_points if metric == families.TDELAY else paper.ltcy_points
    labels = {series.lifetime_s: series.label for series in all_series}
    marks = [
        Mark(labels[each.lifetime_s], each.value_s / unit_s, each.share) for each in quoted if each.lifetime_s in labels
    ]
    axes = (Axis(title, most_s / unit_s), plots.SHARE)
    return plots.curves(lines, axes, f"{paper.figures[2]}: distribution of {metric}", marks=marks, steps=False)


def _quoted(study: Study, all_series: Sequence[Series], paper: Experiment) -> Markup:
    """Return the quoted points as a table: which share of ours is below."""
    lines = []
    for metric, quoted in ((families.TDELAY, paper.tdelay_points), (families.LTCY, paper.ltcy_points)):
        for point in quoted:
            for series in all_series:
                if series.lifetime_s == point.lifetime_s:
                    under = [
                        float(shares[values < round(point.value_s, 3)].max(initial=0.0))
                        for values, shares in steps(study, families.DELAY_CDF, series, metric=metric)
                        if len(values)
                    ]
                    name = f"{metric} under {shown(point.value_s)}, lifetime {series.label}"
                    cells = [f"{point.share:.0%}".replace("%", " %"), over_seeds(under, tenths)]
                    lines.append(TableRow(name, cells))
    if not lines:
        return Markup("")
    return table_of(f"Points of {paper.figures[2]} that the paper quotes", ["", "paper", "ours"], [lines])


def evolution(study: Study, pair: Sequence[Series], paper: Experiment, *, whole: bool) -> list[Block]:
    """Figure 6 or 11."""
    name = paper.figures[3]
    if not pair:
        return []
    if paper is printed.BUS:
        node = _bus(study, pair[0].first)
        text = f"Registries of bus {node}. {prose.BUS_REGISTRIES}"
        extra = Markup("")
    else:
        node, text = _walker(study, pair[0].first, whole=whole)
        extra = _walker_table(study, pair, node)
    pictures = []
    for half, series in zip("ab", pair, strict=False):
        picture = _registries(study, series.first, node, f"{name}{half}: registries of {node}, lifetime {series.label}")
        pictures.append((f"lifetime {series.label}", picture))
    return [Figure(pictures, _caption(text, _first_of(pair)), name), extra]


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


def _walker(study: Study, run: FinishedRun, *, whole: bool) -> tuple[str, str]:
    """Return the walker like the paper's: present for about five minutes, from 1h49' or the middle of a part on."""
    found = study.columns(families.ACTIVITY, run)
    starts, stays = found["start"], found["end"] - found["start"]
    wanted_s = printed.WALKER_FROM_S if whole else (run.duration_s or printed.WALKER_FROM_S) / 2
    about = (stays >= _STAY_S[0]) & (stays <= _STAY_S[1])
    away = np.abs(starts - wanted_s) + (0 if about.any() else np.abs(stays - printed.WALKER_STAY_S))
    away = np.where(about | ~about.any(), away, np.inf)
    at = int(away.argmin())
    node = str(found["node"][at])
    when = "to that of the paper's N777, 1 h 49 min" if whole else "to the middle of this part"
    who = (
        f"Registries of walker {node}, who enters at {shown(float(starts[at]))} and stays for {shown(float(stays[at]))}"
    )
    return node, f"{who}: among the walkers who stay for about five minutes, the entry nearest {when}. {prose.WALKER}"


def _walker_table(study: Study, pair: Sequence[Series], node: str) -> Markup:
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
