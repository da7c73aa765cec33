"""The summary of all settings of a scenario, and figures over the keys that a campaign varies.

The delivery ratio of a series is the mean over its messages, as in `delivery_ratio`. The overhead ratio is that of The
ONE: copies relayed, less those delivered, by those delivered. The share of the flood bound is of all pairs of a message
and a recipient.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from carrypost.lab.metrics import families
from carrypost.lab.report import distributions, plots
from carrypost.lab.report.grids import Element, TableRow, comparison
from carrypost.lab.report.loads import curve
from carrypost.lab.report.pictures import Picture
from carrypost.lab.report.plots import Axis
from carrypost.lab.report.study import FinishedRun, Series, Study, matched
from carrypost.lab.report.tables import Show, over_seeds
from carrypost.lab.report.times import count, mean, share, shown
from carrypost.lab.schemas import Table

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


def values(study: Study, series: Series, metric: Metric) -> list[float]:
    """Return a metric of each seed that has it."""
    return [found for run in series.runs if (found := metric.of(study, run)) is not None]


def of_settings(study: Study, all_series: Sequence[Series]) -> list[Element]:
    """Return all settings with their main metrics."""
    lines = [
        TableRow(series.settings, [over_seeds(values(study, series, metric), metric.show) for metric in METRICS])
        for series in all_series
    ]
    return comparison("Summary of all settings", ["settings", *(metric.name for metric in METRICS)], lines)


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
        name: curve({at: values(study, series, metric) for at, series in of.items()}, most)
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
