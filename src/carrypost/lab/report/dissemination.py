"""Spread of messages and its cost: deliveries beside the flood bound, bytes and hops, what nodes keep by time.

Every figure is the mean over seeds with its interval.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from carrypost.arrays import Floats
from carrypost.lab.metrics import families
from carrypost.lab.report import curves, distributions, plots
from carrypost.lab.report.curves import Extent, Steps
from carrypost.lab.report.distributions import by_settings, ordered, steps_of
from carrypost.lab.report.grids import Element, TableRow, table
from carrypost.lab.report.pictures import Picture
from carrypost.lab.report.plots import Axis
from carrypost.lab.report.study import FinishedRun, Series, Study, matched
from carrypost.lab.report.tables import Show, over_seeds
from carrypost.lab.report.times import count, mean, share
from carrypost.log.record import Kind

_WINDOWS = 48
"""Approximate number of windows on an axis of time."""
_MINUTE_S = 60.0
_TAIL = 0.95
_NEARLY = 0.99
_DATA_FRAMES = ("Data", "Parcel")


def part(study: Study, all_series: Sequence[Series]) -> dict[str, object]:
    """Return everything about dissemination: the nodes reached, the costs and the hops."""
    compared = matched(all_series)
    reached, bounded = _reached(study, compared)
    overhead, overhead_most, overhead_end = _overhead(study, compared)
    return {
        "reached": reached,
        "bounded": bounded,
        "costs": _costs(study, all_series),
        "hops": _hops_taken(study, compared),
        "overhead": overhead,
        "overhead_most": overhead_most,
        "overhead_end": overhead_end,
        "cache": _cache(study, compared),
        "some": distributions.some(all_series),
    }


def _reached(study: Study, all_series: Sequence[Series]) -> tuple[Picture | None, bool]:
    """Return the share of recipients that have a message, by its age; True if that of a flood is there as well."""
    chosen = all_series[: plots.CURVES_MAX]
    got = {each.settings: [_by_age(study, run) for run in each.runs] for each in chosen}
    bound = {each.settings: [_flooded(study, run) for run in each.runs] for each in chosen}
    every = [steps for found in (got, bound) for seeds in found.values() for steps in seeds if len(steps[0])]
    if not every:
        return None, False
    most_s = max(_nearly_all(steps) for steps in every)
    unit_s, unit_name = distributions.unit(most_s)
    extent = Extent(most_s, 1.0)
    lines, above = (
        {
            name: curve.scaled(unit_s)
            for name, seeds in found.items()
            if (curve := curves.distribution(seeds, extent)) is not None
        }
        for found in (got, bound)
    )
    ages = Axis(f"age of the message ({unit_name})", most_s / unit_s)
    tops = [curve.y if curve.high is None else curve.high for curve in (*lines.values(), *above.values())]
    axes = ages, distributions.shares("share of recipients reached", max(float(top.max()) for top in tops))
    picture = plots.curves(lines, axes, "delivery ratio by age", bounds=above, steps=False, legend="settings")
    return picture, bool(above)


def _by_age(study: Study, run: FinishedRun) -> Steps:
    """Return, by age of messages, the share of recipients that have got them."""
    x, shares = steps_of(study, families.DELAY_CDF, run, metric=families.CODLVDELAY)
    delivered, recipients = _totals(study, run)
    return (x, shares * delivered / recipients) if recipients else (x[:0], shares[:0])


def _flooded(study: Study, run: FinishedRun) -> Steps:
    """Return the share of recipients that a flood reaches, by the age of a message."""
    x, shares = steps_of(study, families.FLOOD, run)
    _, recipients = _totals(study, run)
    total = float(study.columns(families.FLOOD, run)["cumulative"].max(initial=0))
    return (x, shares * total / recipients) if recipients else (x[:0], shares[:0])


def _totals(study: Study, run: FinishedRun) -> tuple[float, float]:
    """Deliveries while messages lived, and recipients, of all messages together."""
    found = study.columns(families.DELIVERY, run)
    return float(found["delivered"].sum()), float(found["recipients"].sum())


def _nearly_all(steps: Steps) -> float:
    """Return the age by which nearly all is reached that ever is."""
    x, shares = steps
    return max(float(x[int(np.searchsorted(shares, _NEARLY * shares[-1]))]), 0.01) * 1.05


def _hops_taken(study: Study, all_series: Sequence[Series]) -> Picture | None:
    def taken(series: Series) -> list[Steps]:
        seeds = [ordered(study, families.HOP_COUNTS, run, "hops", "copies") for run in series.runs]
        return [(hops, np.cumsum(copies) / copies.sum()) for hops, copies in seeds if len(copies)]

    chosen = all_series[: plots.CURVES_MAX]
    most = max((float(hops[-1]) for series in chosen for hops, _ in taken(series)), default=0.0)
    lines = by_settings(chosen, lambda series: curves.distribution(taken(series), Extent(most + 1, 1.0)))
    axes = Axis("hops, at most", most + 1), distributions.shares("share of receptions")
    return plots.plain(curves.merged(lines), axes, "hops", "settings")


def _deliveries(study: Study, run: FinishedRun) -> float:
    """Copies that were delivered to others than their author."""
    row = study.row(families.DELAY_SPREAD, run, metric=families.CODLVDELAY)
    return float(row.get("count") or 0)


def _ratios(run_figures: Sequence[tuple[float, float]]) -> list[float]:
    return [part / whole for part, whole in run_figures if whole]


def _costs(study: Study, all_series: Sequence[Series]) -> Element:
    heads = [
        "settings",
        "bytes sent",
        "bytes for each delivery",
        "share of data",
        "hops, mean",
        "one hop",
        "hops, most",
    ]
    lines = []
    for series in all_series:
        sent = [float(study.columns(families.TRAFFIC, run)["bytes"].sum()) for run in series.runs]
        delivered = [_deliveries(study, run) for run in series.runs]
        data = [_data(study, run) for run in series.runs]
        hops = [_hops(study, run) for run in series.runs]
        figures: list[tuple[list[float], Show]] = [
            (sent, count),
            (_ratios(list(zip(sent, delivered, strict=True))), count),
            (_ratios(list(zip(data, sent, strict=True))), share),
            ([each[0] for each in hops if each], mean),
            ([each[1] for each in hops if each], share),
            ([each[2] for each in hops if each], count),
        ]
        lines.append(TableRow(series.settings, [over_seeds(values, show) for values, show in figures]))
    return table("Cost of dissemination", heads, [lines])


def _data(study: Study, run: FinishedRun) -> float:
    """Return the bytes sent in frames that carry payload."""
    found = study.columns(families.TRAFFIC, run)
    return float(found["bytes"][np.isin(found["frame"].astype(str), _DATA_FRAMES)].sum())


def _hops(study: Study, run: FinishedRun) -> tuple[float, float, float] | None:
    """Return mean, share from the author, and maximum of the hops of all receptions; None if there are none."""
    found = study.columns(families.HOPS, run)
    received = found["received"].sum()
    if not received:
        return None
    hops = float((found["mean"] * found["received"]).sum() / received)
    return hops, float(found["direct"].sum() / received), float(found["max"].max())


def _width_s(study: Study, all_series: Sequence[Series]) -> float:
    """Return the length of windows: whole minutes."""
    last_s = max(
        (float(study.columns(families.TIMELINE, series.first)["t"].max(initial=0.0)) for series in all_series),
        default=0.0,
    )
    return _MINUTE_S * max(1, math.ceil(last_s / _WINDOWS / _MINUTE_S))


def _overhead(study: Study, all_series: Sequence[Series]) -> tuple[Picture | None, float, float | None]:
    """Return the bytes for each delivery by time, their most, and the end of the axis if it is less."""
    width_s = _width_s(study, all_series)
    lines = by_settings(
        all_series,
        lambda series: curves.over_time([_bytes_by_time(study, run, width_s) for run in series.runs], width_s),
    )
    if not lines:
        return None, 0.0, None
    values = np.concatenate([curve.y for curve in lines.values()])
    most, end = float(values.max()), float(np.quantile(values, _TAIL)) * 1.5
    title = "bytes for each delivery"
    picture = distributions.by_time_plot(lines, title, "overhead by time", min(end, most * 1.06))
    return picture, most, end if most > end else None


def _bytes_by_time(study: Study, run: FinishedRun, width_s: float) -> Steps:
    """Return the bytes sent per delivery to other nodes; windows without deliveries have no value."""
    found = study.columns(families.TIMELINE, run)
    number = np.floor(found["t"] / width_s + 1e-9).astype(np.int64)

    def summed(kind: Kind, column: str) -> Floats:
        chosen = found["kind"] == kind.value
        figures = np.nan_to_num(found[column][chosen].astype(np.float64))
        return np.bincount(number[chosen], figures, int(number.max(initial=-1)) + 1).astype(np.float64)

    delivered = summed(Kind.DELIVER, "count")
    if (study.row(families.PROCESSING, run).get("codlvd") or 0) > _deliveries(study, run):
        delivered -= summed(Kind.PUBLISH, "count")  # Authors get their own at once.
    there = np.flatnonzero(delivered > 0)
    return there.astype(np.float64) * width_s, summed(Kind.TRAFFIC, "size")[there] / delivered[there]


def _cache(study: Study, all_series: Sequence[Series]) -> Picture | None:
    width_s = _width_s(study, all_series)

    def held(run: FinishedRun) -> Steps:
        found = study.columns(families.REGISTRIES, run)
        many = found["cache"].astype(np.float64)
        regular = ~found["leaving"].astype(np.bool_) & ~np.isnan(many)
        return curves.windows(found["t"][regular], many[regular], width_s)

    lines = by_settings(all_series, lambda series: curves.over_time([held(run) for run in series.runs], width_s))
    return distributions.by_time_plot(lines, "messages in the cache, mean", "cache by time") if lines else None
