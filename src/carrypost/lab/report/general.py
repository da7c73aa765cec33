"""The part of a page about any scenario: messages, costs, contacts and traffic; all settings; metrics of one's own.

Tables and figures are means over seeds. What a scenario has nothing of (no order, no contacts known, nothing received)
is left out.

The summary has all settings of a scenario, and figures over the keys that a campaign varies. The delivery ratio of a
series is the mean over its messages, as in `delivery_ratio`. The overhead ratio is that of The ONE: copies relayed,
less those delivered, by those delivered. The share of the flood bound is of all pairs of a message and a recipient.

Metrics of one's own are those of `carrypost.lab.metrics.plugins`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from markupsafe import Markup

from carrypost.errors import LocalError
from carrypost.lab.metrics import families
from carrypost.lab.metrics.plugins import Plugin
from carrypost.lab.report import distributions, origins, papers, plots
from carrypost.lab.report.blocks import (
    Block,
    Element,
    Figure,
    Figures,
    Grid,
    Picture,
    TableRow,
    comparison,
    paragraph,
    table,
    tag,
)
from carrypost.lab.report.causal import waited
from carrypost.lab.report.distributions import Distribution, Drawn, lasting, neighbours, neighbours_by_time
from carrypost.lab.report.numbers import count, mean, share, shown
from carrypost.lab.report.papers import Show, over_seeds
from carrypost.lab.report.plots import Axis, mean_curve
from carrypost.lab.report.study import FinishedRun, Series, Study, matched
from carrypost.lab.schemas import Column, Table

Of = Callable[[Study, FinishedRun], float | None]
"""A figure of a run; None: it has none."""


class Metric(NamedTuple):
    """A figure of runs, and how it is shown."""

    name: str
    of: Of
    show: Show
    axis: str = ""
    """Title of the axis of a figure over a key; empty: it has no figure."""


def delivered(study: Study, run: FinishedRun) -> float:
    """Return the number of deliveries to recipients."""
    return float(study.columns(families.CLASSES, run)["delivered"].sum())


def overhead(study: Study, run: FinishedRun) -> float | None:
    """Return The ONE's overhead ratio; None: nothing was delivered."""
    relayed, got = study.row(families.OUTCOMES, run).get("relayed"), delivered(study, run)
    return None if relayed is None or not got else (relayed - got) / got


def _of_row(table: Table, column: str, **equal: str) -> Of:
    def of(study: Study, run: FinishedRun) -> float | None:
        value = study.row(table, run, **equal).get(column)
        return None if value is None or math.isnan(value) else float(value)

    return of


def _of_bound(study: Study, run: FinishedRun) -> float | None:
    bound = float(study.columns(families.FLOOD, run)["cumulative"].max(initial=0))
    return delivered(study, run) / bound if bound else None


RATIO = Metric("delivery ratio", _of_row(families.DELIVERY_RATIO, "ratio"), share, "delivery ratio")
DELAY = Metric(
    "delay, mean", _of_row(families.DELAY_SPREAD, "avg_s", metric=families.CODLVDELAY), shown, "mean delay (s)"
)
OVERHEAD = Metric("overhead ratio", overhead, mean, "overhead ratio")
METRICS = (
    RATIO,
    Metric("share of the flood bound", _of_bound, share),
    DELAY,
    Metric("delay, median", _of_row(families.DELAY_SPREAD, "p50_s", metric=families.CODLVDELAY), shown),
    OVERHEAD,
    Metric("copies dropped", _of_row(families.OUTCOMES, "dropped"), count),
)


def metric_values(study: Study, series: Series, metric: Metric) -> list[float]:
    """Return a metric of each seed that has it."""
    return [found for run in series.runs if (found := metric.of(study, run)) is not None]


def by_settings(study: Study, all_series: Sequence[Series], title: str, metrics: Sequence[Metric]) -> list[Element]:
    """Return a table of means over seeds, a row for each choice of settings."""
    lines = [
        TableRow(series.settings, [over_seeds(metric_values(study, series, metric), metric.show) for metric in metrics])
        for series in all_series
    ]
    return comparison(title, ["settings", *(metric.name for metric in metrics)], lines)


# --- figures over a key ----------------------------------------------------------------------------------------------


class Sweep(NamedTuple):
    """The figures over a key: a picture for each main metric."""

    key: str
    pictures: list[tuple[str, Picture]]
    others: str
    """The keys that tell curves apart; empty: there is one curve."""


def sweeps(study: Study, all_series: Sequence[Series]) -> list[Sweep]:
    """Return the figures over each key that has several numbers in these series."""
    compared = matched(all_series)
    keys = dict.fromkeys(key for series in compared for key in series.first.set)
    varied = [key for key in keys if len({series.first.set.get(key) for series in compared}) > 1]
    return [made for key in varied if (made := _sweep(study, compared, key, varied)) is not None]


def _sweep(study: Study, compared: Sequence[Series], key: str, varied: Sequence[str]) -> Sweep | None:
    others = [each for each in varied if each != key]
    lines: dict[str, dict[float, Series]] = {}
    for series in compared:
        if (x := _number(series.first.set.get(key))) is not None:
            named = ", ".join(f"{_last(each, others)}={series.first.set.get(each, '–')}" for each in others)
            lines.setdefault(named or _last(key, varied), {})[x] = series
    lines = {name: of for name, of in lines.items() if len(of) > 1}
    if not lines:
        return None
    pictures = [
        (metric.name, picture)
        for metric in (RATIO, DELAY, OVERHEAD)
        if (picture := _picture(study, key, lines, metric)) is not None
    ]
    return Sweep(key, pictures, ", ".join(others)) if pictures else None


def _picture(study: Study, key: str, lines: Mapping[str, Mapping[float, Series]], metric: Metric) -> Picture | None:
    places = sorted({x for of in lines.values() for x in of})
    around = (places[-1] - places[0]) * 0.03
    x = Axis(key, places[-1] + around, places[0] - around, ticks=places if len(places) <= _TICKS_MAX else ())
    most = 1.0 if metric is RATIO else math.inf
    found = {
        name: mean_curve({at: metric_values(study, series, metric) for at, series in of.items()}, most)
        for name, of in lines.items()
    }
    tops = [each.y if each.high is None else each.high for each in found.values() if each is not None]
    top = max((float(each.max()) for each in tops), default=0.0)
    if not top:
        return None
    y = distributions.shares(metric.axis, top) if metric is RATIO else Axis(metric.axis, 1.06 * top or 1.0)
    return plots.plain(found, (x, y), f"{metric.axis} by {key}", "settings" if len(lines) > 1 else "")


_TICKS_MAX = 12


def _number(text: str | None) -> float | None:
    try:
        value = float(text or "")
    except ValueError:
        return None
    return value if math.isfinite(value) else None


def _last(key: str, among: Sequence[str]) -> str:
    """Return the last part of a key, or all of it where another one has the same."""
    last = key.rpartition(".")[2]
    return key if sum(each.rpartition(".")[2] == last for each in among) > 1 else last


def section(study: Study, all_series: Sequence[Series], figures: Figures) -> Markup:
    """Return everything about this scenario."""
    scenario, waits, lists = all_series[0].scenario, _waits(study, all_series), _lists(study, all_series)
    return figures.filled(
        "general",
        scenario=scenario,
        verdict=papers.of_campaign(study, all_series),
        ran=origins.ran(all_series),
        seeds=origins.seeds(all_series),
        failures=origins.failures(study, scenario),
        summary=by_settings(study, all_series, "Summary of all settings", METRICS),
        sweeps=sweeps(study, all_series),
        processing=by_settings(study, all_series, "Outcome of messages", _TO_RECIPIENTS if lists else _PROCESSING),
        to_recipients=lists,
        delays=_delays(study, all_series),
        taken=_taken(study, all_series, families.CODLVDELAY, "from publication to delivery"),
        waited=_taken(study, all_series, families.LTCY, "from reception to delivery") if waits else [],
        at_once="" if waits else _at_once(study, all_series),
        contacts=by_settings(study, all_series, "Nodes and contacts", _CONTACTS),
        lasting=lasting(study, all_series),
        neighbours=neighbours(study, all_series),
        neighbours_by_time=neighbours_by_time(study, all_series),
        traffic=_traffic(study, all_series),
        registries=papers.registries(study, all_series, "settings"),
        parameters=origins.parameters(all_series, None),
        **distributions.part(study, all_series),
    )


def _of_received(study: Study, run: FinishedRun) -> float | None:
    """Return the share of received messages that were delivered."""
    received = study.row(families.PROCESSING, run).get("rcvd")
    return _got(study, run) / received if received else None


def _got(study: Study, run: FinishedRun) -> float:
    """Return the number of deliveries of received messages; the family counts own messages, too, as the paper does."""
    return float(study.row(families.DELAY_SPREAD, run, metric=families.LTCY).get("count") or 0)


def _recipients(study: Study, run: FinishedRun) -> float:
    return float(study.columns(families.CLASSES, run)["recipients"].sum())


_PROCESSING = (
    Metric("published", _of_row(families.PROCESSING, "bcast"), count),
    Metric("received", _of_row(families.PROCESSING, "rcvd"), count),
    Metric("delivered", _got, count),
    Metric("of the received", _of_received, share),
    Metric("expired waiting", _of_row(families.PROCESSING, "expd"), count),
    Metric("neither", _of_row(families.PROCESSING, "left"), count),
    RATIO,
)
_TO_RECIPIENTS = (
    Metric("created", _of_row(families.OUTCOMES, "created"), count),
    Metric("refused", _of_row(families.OUTCOMES, "refused"), count),
    Metric("recipients", _recipients, count),
    Metric("delivered", delivered, count),
    RATIO,
    Metric("relayed", _of_row(families.OUTCOMES, "relayed"), count),
    OVERHEAD,
)
"""Outcomes of messages; the second for those that list their recipients."""
_CONTACTS = (
    Metric("nodes", _of_row(families.ACTIVITY_SUMMARY, "nodes"), count),
    Metric("at once", _of_row(families.ACTIVITY_SUMMARY, "active_max"), count),
    Metric("presence, mean", _of_row(families.ACTIVITY_SUMMARY, "avg_s"), shown),
    Metric("contacts", _of_row(families.CONTACT_SUMMARY, "contacts"), count),
    Metric("pairs", _of_row(families.CONTACT_SUMMARY, "pairs"), count),
    Metric("contacts lasting, least", _of_row(families.CONTACT_SUMMARY, "min_s"), shown),
    Metric("contacts lasting, mean", _of_row(families.CONTACT_SUMMARY, "avg_s"), shown),
    Metric("contacts lasting, most", _of_row(families.CONTACT_SUMMARY, "max_s"), shown),
)


def _lists(study: Study, all_series: Sequence[Series]) -> bool:
    """Return True if any messages list their recipients: then a copy at another node is a relay."""
    return any(study.row(families.OUTCOMES, run).get("listed") for series in all_series for run in series.runs)


def _delays(study: Study, all_series: Sequence[Series]) -> Element:
    """Return a table; empty where nothing was received."""
    names = {"tdelay": "transmission delay", "ltcy": "latency of delivery", "codlvdelay": "both together"}
    columns = ("min_s", "avg_s", "stdev_s", *(f"p{each}_s" for each in families.PERCENTILES), "max_s")
    groups = []
    for series in all_series:
        of = [metric for metric in families.DELAYS if study.row(families.DELAY_SPREAD, series.first, metric=metric)]
        groups.append([
            TableRow(series.settings if not place else "", [names[metric], *(
                over_seeds(study.values(families.DELAY_SPREAD, series, column, metric=metric), shown)
                for column in columns
            )])
            for place, metric in enumerate(of)
        ])  # fmt: skip
    heads = ["settings", "", "least", "mean", "deviation", *(f"{each} %" for each in families.PERCENTILES), "most"]
    groups = [group for group in groups if group]
    return table("Delays, by percentile", heads, groups, texts=(0,), kept=2) if groups else ""


def _taken(study: Study, all_series: Sequence[Series], metric: str, title: str) -> list[Drawn]:
    times = Distribution(families.DELAY_CDF, f"time {title}", "copies", metric)
    return distributions.figures(study, all_series, times)


def _waits(study: Study, all_series: Sequence[Series]) -> bool:
    """Return True if more than one in a hundred waits for its turn."""
    return any(
        max(study.values(families.DELAY_SPREAD, each, "p99_s", metric=families.LTCY), default=0) for each in all_series
    )


def _at_once(study: Study, all_series: Sequence[Series]) -> str:
    """Return the replacement of a figure where hardly anything waits."""
    waits = [
        each for series in all_series for each in study.values(families.DELAY_SPREAD, series, "max_s", metric="ltcy")
    ]
    if not waits:
        return ""
    text = "Every copy is delivered at the moment of its reception."
    if max(waits) > 0:
        parts = [waited(study, run) or 0.0 for series in all_series for run in series.runs]
        many = f"At least {share(1 - max(parts))} of the copies" if max(parts) else "All copies"
        text = f"{many} are delivered within 1 ms of their reception; the longest waits for {shown(max(waits))}."
    return text


def _traffic(study: Study, all_series: Sequence[Series]) -> Element:
    """Return the bytes by kind of frame, a row for each choice of settings."""
    by_run = {run.name: _by_frame(study, run) for series in all_series for run in series.runs}
    frames = {frame: 0 for found in by_run.values() for frame in found}
    if not frames:
        if any(series.first.origin.of_population for series in all_series):
            text = "Not known in population mode: rows `traffic` are written only with mode = “faithful”."
            return paragraph(text, kind="note")
        return paragraph("Nothing was sent.")
    for found in by_run.values():
        for frame, sent in found.items():
            frames[frame] = max(frames[frame], sent)
    order = sorted(frames, key=lambda frame: -frames[frame])
    lines = []
    for series in all_series:
        runs = [by_run[run.name] for run in series.runs]
        sums = [float(sum(found.values())) for found in runs]
        nodes = [len(set(study.columns(families.TRAFFIC, run)["node"].tolist())) for run in series.runs]
        per_node = [float(each // max(many, 1)) for each, many in zip(sums, nodes, strict=True)]
        figures_of = [sums, per_node, *([float(found.get(frame, 0)) for found in runs] for frame in order)]
        lines.append(TableRow(series.settings, [papers.over_seeds(values, count) for values in figures_of]))
    return table("Bytes sent by kind of frame", ["settings", "all", "per node", *order], [lines])


def _by_frame(study: Study, run: FinishedRun) -> dict[str, int]:
    found = study.columns(families.TRAFFIC, run)
    frames = dict.fromkeys(map(str, found["frame"].tolist()))
    return {frame: int(found["bytes"][found["frame"] == frame].sum()) for frame in frames}


_ROWS_MAX = 40


def plugins_part(study: Study, all_series: Sequence[Series], plugins: Sequence[Plugin]) -> list[Block]:
    """Return what plugins show of a scenario: what their own functions return, or their tables."""
    made: list[Block] = []
    for plugin in plugins:
        if plugin.report is not None:
            found = list(plugin.report(study, all_series))
            for each in found:
                if not isinstance(each, str | Grid | Figure):
                    raise LocalError(f"{plugin.path}: report must return parts of a page, not {each!r}")
            made += found
        else:
            for of in plugin.families:
                made += [tag("h3", of.name), *_shown(study, all_series, of)]
    return made


def _shown(study: Study, all_series: Sequence[Series], of: Table) -> list[Element]:
    """Return a family as a table: texts are keys, numbers are means over seeds."""
    keys = [each for each in of.columns[1:] if each.type == "string"]
    values = [each for each in of.columns[1:] if each.type != "string"]
    lines = [line for series in all_series for line in _rows(study, series, of, (keys, values))]
    heads = ["settings", *(each.name for each in (*keys, *values))]
    more = f", the first {_ROWS_MAX:,} of {len(lines):,} rows" if len(lines) > _ROWS_MAX else ""
    meaning = f"{of.meaning[:1].upper()}{of.meaning[1:]}{more}"
    meanings = "; ".join(f"{each.name}: {each.meaning}" for each in of.columns[1:])
    return [
        table(meaning, heads, [lines[:_ROWS_MAX]], texts=tuple(range(len(keys)))),
        paragraph(f"{meanings}.", kind="note"),
    ]


def _rows(study: Study, series: Series, of: Table, columns: tuple[list[Column], list[Column]]) -> list[TableRow]:
    keys, values = columns
    found: dict[tuple[str, ...], list[list[float]]] = {}
    for run in series.runs:
        rows = study.columns(of, run)
        for at in range(len(rows["run"])):
            key = tuple(str(rows[each.name][at]) for each in keys)
            figures = found.setdefault(key, [[] for _ in values])
            for figure, column in zip(figures, values, strict=True):
                figure.append(float(rows[column.name][at]))
    return [
        TableRow(series.settings, [*key, *(
            papers.over_seeds([each for each in figure if each == each], _show(column))  # noqa: PLR0124 - not a number
            for figure, column in zip(figures, values, strict=True)
        )])
        for key, figures in sorted(found.items())
    ]  # fmt: skip


def _show(column: Column) -> Callable[[float | None], str]:
    """Return how a column is written: by its unit, which its name ends with, or by its type."""
    if column.name.endswith("_s"):
        return shown
    if column.name.endswith(("ratio", "share")):
        return share
    return count if column.type.startswith("int") else mean
