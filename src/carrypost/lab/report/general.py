"""The part of a page about any scenario: what became of messages, delays, contacts, neighbours, traffic.

Tables are means over seeds with 95 % intervals, figures the first seed. What a scenario has nothing of (no order, no
contacts known, nothing received) is left out.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from statistics import fmean
from typing import Any, NamedTuple

import numpy as np

from carrypost.lab.metrics import families
from carrypost.lab.report import cost, figures, origins, plots, prose, tables
from carrypost.lab.report.html import Markup, Piece, TableRow, figure, paragraph, table, tag, within
from carrypost.lab.report.plots import Axis, Floats
from carrypost.lab.report.seeds import half_width
from carrypost.lab.report.study import Columns, Series, Study
from carrypost.lab.report.times import NOTHING, count, share, shown
from carrypost.lab.schemas import Table

_MS = 1_000
_CUT = 0.99
"""Axes of distributions end where so many are below."""
_UNITS = ((10_800.0, 3_600.0, "h"), (180.0, 60.0, "min"), (0.0, 1.0, "s"))


def section(study: Study, all_series: Sequence[Series]) -> list[Piece]:
    """Everything about this scenario."""
    scenario = all_series[0].scenario
    parts: list[Piece] = [
        tag("h2", scenario),
        origins.ran(all_series),
        origins.failures(study, scenario),
        tag("h3", "Messages"),
        _processing(study, all_series),
        cost.travel(study, all_series),
        *cost.deliveries(study, all_series),
        *_delays(study, all_series),
        tag("h3", "Nodes and contacts"),
        _contacts(study, all_series),
        *_contact_figures(study, all_series),
        *cost.tails(study, all_series),
        tag("h3", "Traffic"),
        _traffic(study, all_series),
    ]
    if (kept := tables.registries(study, all_series, "settings")).text:
        parts += [tag("h3", "Registries"), kept, *cost.caches(study, all_series)]
    parts += [tag("h3", "Parameters"), origins.parameters(all_series, None)]
    return parts


def _mean(
    study: Study, of: Table, series: Series, column: str, show: Callable[[float | None], str], **equal: str
) -> Piece:
    values = study.values(of, series, column, **equal)
    if not values:
        return NOTHING
    half = half_width(values)
    return within(show(fmean(values)), None if half is None else show(half))


def _processing(study: Study, all_series: Sequence[Series]) -> Markup:
    columns: tuple[tuple[str, Table, str, Callable[[float | None], str]], ...] = (
        ("published", families.PROCESSING, "bcast", count),
        ("received", families.PROCESSING, "rcvd", count),
        ("delivered", families.PROCESSING, "codlvd", count),
        ("of these", families.PROCESSING, "codlvratio", share),
        ("expired waiting", families.PROCESSING, "expd", count),
        ("neither", families.PROCESSING, "left", count),
        ("delivery ratio", families.DELIVERY_RATIO, "ratio", share),
    )
    lines = [
        TableRow(series.settings, [_mean(study, of, series, column, show) for _, of, column, show in columns])
        for series in all_series
    ]
    made = table("What became of messages", ["settings", *(name for name, *_ in columns)], [lines])
    return tag("div", made, paragraph(prose.GENERAL, kind="note"))


def _delays(study: Study, all_series: Sequence[Series]) -> list[Piece]:
    names = {"tdelay": "transmission delay", "ltcy": "latency of delivery", "codlvdelay": "both together"}
    columns = ("min_s", "avg_s", "stdev_s", *(f"p{each}_s" for each in families.PERCENTILES), "max_s")
    groups = []
    for series in all_series:
        of = [metric for metric in families.DELAYS if study.row(families.DELAY_SPREAD, series.first, metric=metric)]
        groups.append([
            TableRow(series.settings if not place else "", [names[metric], *(
                _mean(study, families.DELAY_SPREAD, series, column, shown, metric=metric) for column in columns
            )])
            for place, metric in enumerate(of)
        ])  # fmt: skip
    groups = [group for group in groups if group]
    if not groups:
        return [paragraph("Nothing was received.")]
    heads = ["settings", "", "least", "mean", "deviation", *(f"{each} %" for each in families.PERCENTILES), "most"]
    made: list[Piece] = [
        tag("h3", "Delays"),
        table("Delays; so many per cent are not above", heads, groups, texts=(0,)),
    ]
    for metric, title in (("codlvdelay", "from publication to delivery"), ("ltcy", "from reception to delivery")):
        if metric == families.LTCY and not _waits(study, all_series):
            made += _at_once(study, all_series)
            continue
        curves = _cdf(study, all_series, families.DELAY_CDF, f"time {title}", metric=metric)
        if curves.lines:
            picture = plots.curves(
                curves.lines, (curves.axis, plots.SHARE), f"time {title}", steps=False, legend="settings"
            )
            told = [f"Distribution of the time {title}.", curves.cut, _some(all_series)]
            made.append(figure([("", picture)], told))
    return made


def _waits(study: Study, all_series: Sequence[Series]) -> bool:
    """Whether more than one in a hundred waits for its turn."""
    return any(
        max(study.values(families.DELAY_SPREAD, each, "p99_s", metric=families.LTCY), default=0) for each in all_series
    )


def _at_once(study: Study, all_series: Sequence[Series]) -> list[Piece]:
    """What takes the place of a figure where hardly anything waits."""
    waits = [
        each for series in all_series for each in study.values(families.DELAY_SPREAD, series, "max_s", metric="ltcy")
    ]
    if not waits:
        return []
    told = "Every copy is delivered in the instant of its reception."
    if max(waits) > 0:
        parts = [figures.waited(study, run) or 0.0 for series in all_series for run in series.runs]
        many = f"At least {share(1 - max(parts))} of the copies" if max(parts) else "All copies"
        told = f"{many} are delivered within 1 ms of their reception; the longest waits for {shown(max(waits))}."
    return [paragraph(told, kind="note")]


def _some(all_series: Sequence[Series]) -> str:
    if len(all_series) <= plots.CURVES_MAX:
        return ""
    return f" The first {plots.CURVES_MAX} of {len(all_series)} settings."


class _Curves(NamedTuple):
    """Distributions by settings."""

    lines: dict[str, tuple[Floats, Floats]]
    axis: Axis
    cut: str
    """What the axis does not show, in words; empty: it shows all."""


def _cdf(study: Study, all_series: Sequence[Series], of: Table, title: str, **equal: str) -> _Curves:
    """Distributions by settings, cut where nearly all are below."""
    found: dict[str, Columns] = {}
    for series in all_series[: plots.CURVES_MAX]:
        columns = study.columns(of, series.first, **equal)
        if len(columns["share"]):
            order = np.argsort(columns["value_ms"])
            found[series.settings] = {name: columns[name][order] for name in ("value_ms", "share")}
    most_s = max((_below(each) for each in found.values()), default=1.0)
    unit_s, unit = _unit(most_s)
    axis = Axis(f"{title} ({unit})", most_s / unit_s)
    lines = {
        name: plots.staircase(each["value_ms"] / _MS / unit_s, each["share"], most_s / unit_s, 1.0)
        for name, each in found.items()
    }
    beyond = [1 - float(each["share"][each["value_ms"] <= most_s * _MS].max(initial=0.0)) for each in found.values()]
    longest_s = max((float(each["value_ms"][-1]) / _MS for each in found.values()), default=0.0)
    if longest_s <= most_s:
        return _Curves(_merged(lines), axis, "")
    cut = f" The axis is cut at {shown(most_s)}; at most {share(max(beyond))} is beyond, up to {shown(longest_s)}."
    return _Curves(_merged(lines), axis, cut)


def _unit(most_s: float) -> tuple[float, str]:
    return next((size, name) for least, size, name in _UNITS if most_s > least or not least)


def _merged(lines: dict[str, tuple[Floats, Floats]]) -> dict[str, tuple[Floats, Floats]]:
    """Curves by name; one for all where they are the same, as contacts are unless settings change them."""
    first = next(iter(lines.values()), None)
    if first is None or len(lines) == 1:
        return lines
    same = all(np.array_equal(x, first[0]) and np.array_equal(y, first[1]) for x, y in lines.values())
    return {"all": first} if same else lines


def _below(columns: Columns) -> float:
    at = int(np.searchsorted(columns["share"], _CUT))
    return max(float(columns["value_ms"][min(at, len(columns["share"]) - 1)]) / _MS, 0.01) * 1.05


def _contacts(study: Study, all_series: Sequence[Series]) -> Markup:
    activity, contacts = families.ACTIVITY_SUMMARY, families.CONTACT_SUMMARY
    columns: tuple[tuple[str, Table, str, Any], ...] = (
        ("nodes", activity, "nodes", count),
        ("at once", activity, "active_max", count),
        ("there for, mean", activity, "avg_s", shown),
        ("contacts", contacts, "contacts", count),
        ("pairs", contacts, "pairs", count),
        ("lasting, least", contacts, "min_s", shown),
        ("mean", contacts, "avg_s", shown),
        ("most", contacts, "max_s", shown),
    )
    lines = [
        TableRow(series.settings, [_mean(study, of, series, column, show) for _, of, column, show in columns])
        for series in all_series
    ]
    return table("Nodes and contacts", ["settings", *(name for name, *_ in columns)], [lines])


def _contact_figures(study: Study, all_series: Sequence[Series]) -> list[Piece]:
    made: list[Piece] = []
    for of, title in (
        (families.CONTACT_CDF, "duration of contacts"),
        (families.INTER_CONTACT_CDF, "time between contacts of a pair"),
    ):
        curves = _cdf(study, all_series, of, title)
        if curves.lines:
            share_axis = Axis("share of contacts", plots.SHARE.most, labels=plots.SHARE.labels, ticks=plots.SHARE.ticks)
            picture = plots.curves(curves.lines, (curves.axis, share_axis), title, steps=False, legend="settings")
            made.append(figure([("", picture)], [f"Distribution of the {title}.", curves.cut, _some(all_series)]))
    made += _neighbours(study, all_series)
    return made


def _neighbours(study: Study, all_series: Sequence[Series]) -> list[Piece]:
    shares: dict[str, tuple[Floats, Floats]] = {}
    times: dict[str, tuple[Floats, Floats]] = {}
    for series in all_series[: plots.CURVES_MAX]:
        found = study.columns(families.NEIGHBOURS, series.first)
        if len(found["share"]):
            order = np.argsort(found["neighbours"])
            shares[series.settings] = found["neighbours"][order].astype(np.float64), found["share"][order]
        found = study.columns(families.NEIGHBOURS_TIMELINE, series.first)
        there = ~np.isnan(found["neighbours"].astype(np.float64))
        if there.any():
            order = np.argsort(found["t"][there])
            times[series.settings] = found["t"][there][order], found["neighbours"][there][order].astype(np.float64)
    shares, times = _merged(shares), _merged(times)
    made: list[Piece] = []
    if shares:
        share_axis = Axis("share of time", plots.SHARE.most, labels=plots.SHARE.labels, ticks=plots.SHARE.ticks)
        axes = (Axis("neighbours at a time, at most"), share_axis)
        picture = plots.curves(shares, axes, "neighbours at a time", legend="settings")
        made.append(
            figure(
                [("", picture)], ["How much of their time nodes have so many neighbours or fewer.", _some(all_series)]
            )
        )
    if times:
        last_s = max(float(t[-1]) for t, _ in times.values())
        most = max(float(mean.max()) for _, mean in times.values())
        unit_s, unit = _unit(last_s)
        axes = (
            Axis(f"time since the start ({unit})", last_s / unit_s or 1.0),
            Axis("neighbours, mean", 1.06 * most or 1.0),
        )
        times = {name: (t / unit_s, mean) for name, (t, mean) in times.items()}
        picture = plots.curves(times, axes, "neighbours by time", legend="settings", height=180)
        made.append(figure([("", picture)], ["Neighbours of a node that is there, by time.", _some(all_series)]))
    return made


def _traffic(study: Study, all_series: Sequence[Series]) -> Markup:
    by_frame: dict[str, dict[str, int]] = {}
    nodes: dict[str, int] = {}
    for series in all_series:
        found = study.columns(families.TRAFFIC, series.first)
        nodes[series.settings] = len(set(found["node"].tolist()))
        for frame in dict.fromkeys(found["frame"].tolist()):
            by_frame.setdefault(str(frame), {})[series.settings] = int(found["bytes"][found["frame"] == frame].sum())
    if not by_frame:
        return paragraph("Nothing was sent.")
    order = sorted(by_frame, key=lambda frame: -max(by_frame[frame].values()))
    lines = [
        TableRow(frame, [count(by_frame[frame].get(series.settings, 0)) for series in all_series]) for frame in order
    ]
    sums = [sum(each.get(series.settings, 0) for each in by_frame.values()) for series in all_series]
    total = [
        TableRow("all", [count(each) for each in sums]),
        TableRow(
            "per node",
            [count(each // max(nodes[series.settings], 1)) for each, series in zip(sums, all_series, strict=True)],
        ),
    ]
    return table(
        "Bytes sent by kind of frame, first seed", ["", *(series.settings for series in all_series)], [lines, total]
    )
