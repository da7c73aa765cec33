"""The part of a page about any scenario: what became of messages, delays, their cost, contacts, neighbours, traffic.

Tables and figures are means over seeds. What a scenario has nothing of (no order, no contacts known, nothing received)
is left out.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from markupsafe import Markup

from carrypost.lab.metrics import families
from carrypost.lab.report import contacts, dissemination, distributions, origins, summary, tables, verdict
from carrypost.lab.report.distributions import Distribution, Drawn
from carrypost.lab.report.figures import waited
from carrypost.lab.report.grids import Element, TableRow, comparison, table
from carrypost.lab.report.html import Piece, paragraph
from carrypost.lab.report.pictures import Figures
from carrypost.lab.report.study import FinishedRun, Series, Study
from carrypost.lab.report.times import count, mean, share, shown
from carrypost.lab.schemas import Table

Figured = tuple[str, Table, str, Callable[[float | None], str]]
"""The head of a column, and the figure of a family that it shows."""


def section(study: Study, all_series: Sequence[Series], figures: Figures) -> Markup:
    """Return everything about this scenario."""
    scenario, waits = all_series[0].scenario, _waits(study, all_series)
    return figures.filled(
        "general",
        scenario=scenario,
        verdict=verdict.of_campaign(study, all_series),
        ran=origins.ran(all_series),
        seeds=origins.seeds(all_series),
        failures=origins.failures(study, scenario),
        summary=summary.of_settings(study, all_series),
        sweeps=summary.sweeps(study, all_series),
        processing=_processing(study, all_series),
        to_recipients=_lists(study, all_series),
        delays=_delays(study, all_series),
        taken=_taken(study, all_series, families.CODLVDELAY, "from publication to delivery"),
        waited=_taken(study, all_series, families.LTCY, "from reception to delivery") if waits else [],
        at_once="" if waits else _at_once(study, all_series),
        contacts=_contacts(study, all_series),
        lasting=contacts.lasting(study, all_series),
        neighbours=contacts.neighbours(study, all_series),
        neighbours_by_time=contacts.neighbours_by_time(study, all_series),
        traffic=_traffic(study, all_series),
        registries=tables.registries(study, all_series, "settings"),
        parameters=origins.parameters(all_series, None),
        **dissemination.part(study, all_series),
    )


def _mean(
    study: Study, of: Table, series: Series, column: str, show: Callable[[float | None], str], **equal: str
) -> Piece:
    return tables.over_seeds(study.values(of, series, column, **equal), show)


def _lists(study: Study, all_series: Sequence[Series]) -> bool:
    """Return True if any messages list their recipients: then a copy at another node is a relay."""
    return any(study.row(families.OUTCOMES, run).get("listed") for series in all_series for run in series.runs)


def _processing(study: Study, all_series: Sequence[Series]) -> list[Element]:
    if _lists(study, all_series):
        return _to_recipients(study, all_series)
    heads = ("published", "received", "delivered", "of the received", "expired waiting", "neither", "delivery ratio")
    lines = []
    for series in all_series:
        # The family counts own messages as delivered, as the paper does.
        rows = [
            (study.row(families.PROCESSING, run), study.row(families.DELAY_SPREAD, run, metric=families.LTCY))
            for run in series.runs
        ]
        got = [float(delays.get("count") or 0) for _, delays in rows]
        figures: list[tuple[list[float], tables.Show]] = [
            (study.values(families.PROCESSING, series, "bcast"), count),
            (study.values(families.PROCESSING, series, "rcvd"), count),
            (got, count),
            ([part / row["rcvd"] for part, (row, _) in zip(got, rows, strict=True) if row.get("rcvd")], share),
            (study.values(families.PROCESSING, series, "expd"), count),
            (study.values(families.PROCESSING, series, "left"), count),
            (study.values(families.DELIVERY_RATIO, series, "ratio"), share),
        ]
        lines.append(TableRow(series.settings, [tables.over_seeds(values, show) for values, show in figures]))
    return comparison("Outcome of messages", ["settings", *heads], lines)


def _to_recipients(study: Study, all_series: Sequence[Series]) -> list[Element]:
    """Return the outcome of messages that list their recipients."""
    heads = ("created", "refused", "recipients", "delivered", "delivery ratio", "relayed", "overhead ratio")
    lines = []
    for series in all_series:
        classes = [study.columns(families.CLASSES, run) for run in series.runs]
        figures: list[tuple[list[float], tables.Show]] = [
            (study.values(families.OUTCOMES, series, "created"), count),
            (study.values(families.OUTCOMES, series, "refused"), count),
            ([float(each["recipients"].sum()) for each in classes], count),
            ([float(each["delivered"].sum()) for each in classes], count),
            (study.values(families.DELIVERY_RATIO, series, "ratio"), share),
            (study.values(families.OUTCOMES, series, "relayed"), count),
            (summary.values(study, series, summary.OVERHEAD), mean),
        ]
        lines.append(TableRow(series.settings, [tables.over_seeds(values, show) for values, show in figures]))
    return comparison("Outcome of messages", ["settings", *heads], lines)


def _by_settings(study: Study, all_series: Sequence[Series], title: str, columns: Sequence[Figured]) -> list[Element]:
    """Return a table of means, a row for each choice of settings."""
    lines = [
        TableRow(series.settings, [_mean(study, of, series, column, show) for _, of, column, show in columns])
        for series in all_series
    ]
    return comparison(title, ["settings", *(name for name, *_ in columns)], lines)


def _delays(study: Study, all_series: Sequence[Series]) -> Element:
    """Return a table; empty where nothing was received."""
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


def _contacts(study: Study, all_series: Sequence[Series]) -> list[Element]:
    activity, contacts = families.ACTIVITY_SUMMARY, families.CONTACT_SUMMARY
    columns = (
        ("nodes", activity, "nodes", count),
        ("at once", activity, "active_max", count),
        ("presence, mean", activity, "avg_s", shown),
        ("contacts", contacts, "contacts", count),
        ("pairs", contacts, "pairs", count),
        ("contacts lasting, least", contacts, "min_s", shown),
        ("contacts lasting, mean", contacts, "avg_s", shown),
        ("contacts lasting, most", contacts, "max_s", shown),
    )
    return _by_settings(study, all_series, "Nodes and contacts", columns)


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
        lines.append(TableRow(series.settings, [tables.over_seeds(values, count) for values in figures_of]))
    return table("Bytes sent by kind of frame", ["settings", "all", "per node", *order], [lines])


def _by_frame(study: Study, run: FinishedRun) -> dict[str, int]:
    found = study.columns(families.TRAFFIC, run)
    frames = dict.fromkeys(map(str, found["frame"].tolist()))
    return {frame: int(found["bytes"][found["frame"] == frame].sum()) for frame in frames}
