"""Figures of distributions and of figures by time, for any length of time: means over seeds, with their bands."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from carrypost.lab.report import curves, plots
from carrypost.lab.report.curves import Curve, Extent, Steps
from carrypost.lab.report.pictures import Picture
from carrypost.lab.report.plots import Axis
from carrypost.lab.report.study import FinishedRun, Series, Study, matched
from carrypost.lab.report.times import share, shown
from carrypost.lab.schemas import Table

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
    picture = plots.curves(curves.merged(lines), axes, of.title, steps=False, legend="settings")
    pictures = [each for each in (picture, _above(found, of)) if each is not None]
    return Drawn(of.title, [("", each) for each in pictures], _cut(every, most_s))


def _curve(seeds: Sequence[Steps], extent: Extent, *, above: bool = False) -> Curve:
    found = curves.distribution(seeds, extent, above=above)
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
    return plots.curves(curves.merged(lines), axes, title, steps=False, legend="settings")


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
    return plots.curves(curves.merged(scaled), axes, name, legend="settings", height=180)
