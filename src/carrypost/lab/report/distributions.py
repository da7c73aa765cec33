"""Figures that any scenario has: distributions, figures by time, contacts, and the spread of messages with its cost.

Distributions and figures by time are of any length of time. Those of contacts show how long they last, what is between
them, and how many neighbours nodes have. Those of messages show deliveries beside the flood bound, bytes and hops, and
what nodes keep by time. Every figure is the mean over seeds with its interval or band.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from carrypost.arrays import Floats
from carrypost.lab.metrics import families
from carrypost.lab.report import plots
from carrypost.lab.report.blocks import Element, Picture, TableRow, table
from carrypost.lab.report.numbers import count, mean, share, shown
from carrypost.lab.report.papers import Show, over_seeds
from carrypost.lab.report.plots import Axis, Curve, Extent, Steps
from carrypost.lab.report.study import FinishedRun, Series, Study, matched
from carrypost.lab.schemas import Table
from carrypost.log.record import Kind

_CUT = 0.99
"""Share of values below the end of an axis."""
_THOUSANDTH = 1e-3
"""Distributions are kept by thousandths: what is rarer is not known."""
_MS = 1e-3
_FEW = 0.6
"""Shares up to this one have an axis that ends above them."""
_PERCENT = "format(datum.value * 100, '~r') + ' %'"
_UNITS = ((10_800.0, 3_600.0, "h"), (180.0, 60.0, "min"), (0.0, 1.0, "s"))


class Distribution(NamedTuple):
    """A length of time that is looked at."""

    of: Table
    title: str
    what: str
    """Things that have it."""
    metric: str = ""

    @property
    def equal(self) -> dict[str, str]:
        """The conditions that select the rows of the table."""
        return {"metric": self.metric} if self.metric else {}


def steps(study: Study, of: Table, series: Series, **equal: str) -> list[Steps]:
    """Return the distribution of each seed: values in seconds, and the share that is not above them."""
    return [steps_of(study, of, run, **equal) for run in series.runs]


def steps_of(study: Study, of: Table, run: FinishedRun, **equal: str) -> Steps:
    """Return the distribution of one seed."""
    value_ms, parts = ordered(study, of, run, "value_ms", "share", **equal)
    return value_ms / 1_000, parts


def ordered(study: Study, of: Table, run: FinishedRun, x: str, y: str, **equal: str) -> Steps:
    """Return two columns of a table, in order of the first."""
    found = study.columns(of, run, **equal)
    order = np.argsort(found[x])
    return found[x][order].astype(np.float64), found[y][order].astype(np.float64)


def by_settings(all_series: Sequence[Series], curve: Callable[[Series], Curve | None]) -> dict[str, Curve]:
    """Return a curve for each choice of settings that has one, of as many as can be distinguished."""
    made = {series.settings: curve(series) for series in all_series[: plots.CURVES_MAX]}
    return {name: each for name, each in made.items() if each is not None}


def unit(most_s: float) -> tuple[float, str]:
    """Return the unit of an axis that ends there."""
    return next((size, name) for least, size, name in _UNITS if most_s > least or not least)


def some(all_series: Sequence[Series]) -> str:
    """Return a sentence for captions if there are more settings than distinguishable curves; empty: there are not."""
    most = plots.CURVES_MAX
    return f"The first {most} of {len(all_series)} settings." if len(all_series) > most else ""


class Drawn(NamedTuple):
    """A distribution up to a time, and its complement, on logarithmic axes."""

    title: str
    pictures: list[tuple[str, Picture]]
    cut: str
    """A sentence on what the axis does not show."""


def figures(study: Study, all_series: Sequence[Series], *wanted: Distribution) -> list[Drawn]:
    """Return those of these distributions that have any values."""
    chosen = matched(all_series)[: plots.CURVES_MAX]
    return [made for of in wanted if (made := _figure(study, chosen, of)) is not None]


def _figure(study: Study, chosen: Sequence[Series], of: Distribution) -> Drawn | None:
    found = {series.settings: steps(study, of.of, series, **of.equal) for series in chosen}
    found = {name: [each for each in seeds if len(each[0])] for name, seeds in found.items()}
    found = {name: seeds for name, seeds in found.items() if seeds}
    if not found:
        return None
    every = [each for seeds in found.values() for each in seeds]
    most_s = max(map(_below, every))
    unit_s, unit_name = unit(most_s)
    axes = Axis(f"{of.title} ({unit_name})", most_s / unit_s), shares(f"share of {of.what}")
    lines = {name: _curve(seeds, Extent(most_s, 1.0)).scaled(unit_s) for name, seeds in found.items()}
    picture = plots.curves(plots.merged(lines), axes, of.title, steps=False, legend="settings")
    pictures = [each for each in (picture, _above(found, of)) if each is not None]
    return Drawn(of.title, [("", each) for each in pictures], _cut(every, most_s))


def _curve(seeds: Sequence[Steps], extent: Extent, *, above: bool = False) -> Curve:
    found = plots.distribution(seeds, extent, above=above)
    assert found is not None, "settings without values are left out"
    return found


def _above(found: dict[str, list[Steps]], of: Distribution) -> Picture | None:
    """Return the complementary distributions; None where nothing but one length of time is known."""
    values = np.concatenate([values for seeds in found.values() for values, _ in seeds])
    values = values[values >= _MS]
    if not len(values) or values.min() == values.max():
        return None
    extent = Extent(float(values.max()) * 1.05, 1.0, float(values.min()) * 0.95, _THOUSANDTH, log=True)
    lines = {name: _curve(seeds, extent, above=True) for name, seeds in found.items()}
    axes = (
        plots.log_time(of.title, extent.x_least, extent.x_most),
        plots.log_share(f"share of {of.what} above", _THOUSANDTH),
    )
    title = f"{of.title}, log scale"
    return plots.curves(plots.merged(lines), axes, title, steps=False, legend="settings")


def _below(found: Steps) -> float:
    """Return the end of an axis that shows nearly all."""
    values, parts = found
    at = int(np.searchsorted(parts, _CUT))
    return max(float(values[min(at, len(parts) - 1)]), 0.01) * 1.05


def _cut(every: Sequence[Steps], most_s: float) -> str:
    """Return a note on what the axis does not show; empty: it shows all."""
    beyond = max(1 - float(parts[values <= most_s].max(initial=0.0)) for values, parts in every)
    longest_s = max(float(values[-1]) for values, _ in every)
    if longest_s <= most_s:
        return ""
    above = f"at most {share(beyond)} of the values are above, up to {shown(longest_s)}"
    return f"The axis is cut at {shown(most_s)}; {above}."


def shares(title: str, most: float = 1.0) -> Axis:
    """Return an axis from none to all; to the greatest share, if that is far less."""
    if 0 < most < _FEW:
        return Axis(title, most * 1.06, labels=_PERCENT)
    return Axis(title, plots.SHARE.most, labels=plots.SHARE.labels, ticks=plots.SHARE.ticks)


def by_time_plot(lines: dict[str, Curve], title: str, name: str, most: float | None = None) -> Picture:
    """Figures over the time of runs."""
    last_s = max(float(curve.x[-1]) for curve in lines.values())
    top = max(float((curve.y if curve.high is None else curve.high).max()) for curve in lines.values())
    unit_s, unit_name = unit(last_s)
    axes = (
        Axis(f"time since the start ({unit_name})", last_s / unit_s or 1.0),
        Axis(title, most or 1.06 * top or 1.0),
    )
    scaled = {each: curve.scaled(unit_s) for each, curve in lines.items()}
    return plots.curves(plots.merged(scaled), axes, name, legend="settings", height=180)


def lasting(study: Study, all_series: Sequence[Series]) -> list[Drawn]:
    """Return durations of contacts, and times between those of a pair."""
    lasted = Distribution(families.CONTACT_CDF, "duration of contacts", "contacts")
    between = Distribution(families.INTER_CONTACT_CDF, "time between contacts of a pair", "gaps")
    return figures(study, all_series, lasted, between)


def neighbours(study: Study, all_series: Sequence[Series]) -> Picture | None:
    """Return the numbers of neighbours by share of time."""

    def many(series: Series) -> Curve | None:
        seeds = [ordered(study, families.NEIGHBOURS, run, "neighbours", "share") for run in series.runs]
        most = max((float(x.max(initial=0)) for x, _ in seeds), default=0.0)
        return plots.distribution(seeds, Extent(most or 1.0, 1.0))

    axes = Axis("number of neighbours, at most", whole=True), shares("share of time")
    return plots.plain(plots.merged(by_settings(matched(all_series), many)), axes, "number of neighbours", "settings")


def neighbours_by_time(study: Study, all_series: Sequence[Series]) -> Picture | None:
    """Return the numbers of neighbours by time."""

    def by_time(series: Series) -> Curve | None:
        seeds = [ordered(study, families.NEIGHBOURS_TIMELINE, run, "t", "neighbours") for run in series.runs]
        return plots.over_time(seeds, _window_s(seeds))

    there = by_settings(matched(all_series), by_time)
    return by_time_plot(there, "neighbours, mean", "neighbours by time") if there else None


def _window_s(seeds: Sequence[Steps]) -> float:
    """Return the length of windows, by what is between their begins."""
    steps_s = [float(np.diff(t).min()) for t, _ in seeds if len(t) > 1]
    return min(steps_s, default=0.0)


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
        "some": some(all_series),
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
    unit_s, unit_name = unit(most_s)
    extent = Extent(most_s, 1.0)
    lines, above = (
        {
            name: curve.scaled(unit_s)
            for name, seeds in found.items()
            if (curve := plots.distribution(seeds, extent)) is not None
        }
        for found in (got, bound)
    )
    ages = Axis(f"age of the message ({unit_name})", most_s / unit_s)
    tops = [curve.y if curve.high is None else curve.high for curve in (*lines.values(), *above.values())]
    axes = ages, shares("share of recipients reached", max(float(top.max()) for top in tops))
    picture = plots.curves(lines, axes, "delivery ratio by age", bounds=above, steps=False, legend="settings")
    return picture, bool(above)


def _by_age(study: Study, run: FinishedRun) -> Steps:
    """Return, by age of messages, the share of recipients that have got them."""
    x, reached = steps_of(study, families.DELAY_CDF, run, metric=families.CODLVDELAY)
    delivered, recipients = _totals(study, run)
    return (x, reached * delivered / recipients) if recipients else (x[:0], reached[:0])


def _flooded(study: Study, run: FinishedRun) -> Steps:
    """Return the share of recipients that a flood reaches, by the age of a message."""
    x, reached = steps_of(study, families.FLOOD, run)
    _, recipients = _totals(study, run)
    total = float(study.columns(families.FLOOD, run)["cumulative"].max(initial=0))
    return (x, reached * total / recipients) if recipients else (x[:0], reached[:0])


def _totals(study: Study, run: FinishedRun) -> tuple[float, float]:
    """Deliveries while messages lived, and recipients, of all messages together."""
    found = study.columns(families.DELIVERY, run)
    return float(found["delivered"].sum()), float(found["recipients"].sum())


def _nearly_all(steps: Steps) -> float:
    """Return the age by which nearly all is reached that ever is."""
    x, reached = steps
    return max(float(x[int(np.searchsorted(reached, _NEARLY * reached[-1]))]), 0.01) * 1.05


def _hops_taken(study: Study, all_series: Sequence[Series]) -> Picture | None:
    def taken(series: Series) -> list[Steps]:
        seeds = [ordered(study, families.HOP_COUNTS, run, "hops", "copies") for run in series.runs]
        return [(hops, np.cumsum(copies) / copies.sum()) for hops, copies in seeds if len(copies)]

    chosen = all_series[: plots.CURVES_MAX]
    most = max((float(hops[-1]) for series in chosen for hops, _ in taken(series)), default=0.0)
    lines = by_settings(chosen, lambda series: plots.distribution(taken(series), Extent(most + 1, 1.0)))
    axes = Axis("hops, at most", most + 1), shares("share of receptions")
    return plots.plain(plots.merged(lines), axes, "hops", "settings")


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
        lambda series: plots.over_time([_bytes_by_time(study, run, width_s) for run in series.runs], width_s),
    )
    if not lines:
        return None, 0.0, None
    values = np.concatenate([curve.y for curve in lines.values()])
    most, end = float(values.max()), float(np.quantile(values, _TAIL)) * 1.5
    title = "bytes for each delivery"
    picture = by_time_plot(lines, title, "overhead by time", min(end, most * 1.06))
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
        return plots.windows(found["t"][regular], many[regular], width_s)

    lines = by_settings(all_series, lambda series: plots.over_time([held(run) for run in series.runs], width_s))
    return by_time_plot(lines, "messages in the cache, mean", "cache by time") if lines else None
