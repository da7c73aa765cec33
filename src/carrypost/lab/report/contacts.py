"""Figures of contacts: how long they last, what is between them, and how many neighbours nodes have."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from carrypost.lab.metrics import families
from carrypost.lab.report import curves, distributions, plots
from carrypost.lab.report.curves import Curve, Extent, Steps
from carrypost.lab.report.distributions import Distribution, Drawn, by_settings, ordered
from carrypost.lab.report.pictures import Picture
from carrypost.lab.report.plots import Axis
from carrypost.lab.report.study import Series, Study, matched


def lasting(study: Study, all_series: Sequence[Series]) -> list[Drawn]:
    """Return durations of contacts, and times between those of a pair."""
    lasted = Distribution(families.CONTACT_CDF, "duration of contacts", "contacts")
    between = Distribution(families.INTER_CONTACT_CDF, "time between contacts of a pair", "gaps")
    return distributions.figures(study, all_series, lasted, between)


def neighbours(study: Study, all_series: Sequence[Series]) -> Picture | None:
    """Return the numbers of neighbours by share of time."""

    def many(series: Series) -> Curve | None:
        seeds = [ordered(study, families.NEIGHBOURS, run, "neighbours", "share") for run in series.runs]
        most = max((float(x.max(initial=0)) for x, _ in seeds), default=0.0)
        return curves.distribution(seeds, Extent(most or 1.0, 1.0))

    axes = Axis("number of neighbours, at most", whole=True), distributions.shares("share of time")
    return plots.plain(curves.merged(by_settings(matched(all_series), many)), axes, "number of neighbours", "settings")


def neighbours_by_time(study: Study, all_series: Sequence[Series]) -> Picture | None:
    """Return the numbers of neighbours by time."""

    def by_time(series: Series) -> Curve | None:
        seeds = [ordered(study, families.NEIGHBOURS_TIMELINE, run, "t", "neighbours") for run in series.runs]
        return curves.over_time(seeds, _window_s(seeds))

    there = by_settings(matched(all_series), by_time)
    return distributions.by_time_plot(there, "neighbours, mean", "neighbours by time") if there else None


def _window_s(seeds: Sequence[Steps]) -> float:
    """Return the length of windows, by what is between their begins."""
    steps_s = [float(np.diff(t).min()) for t, _ in seeds if len(t) > 1]
    return min(steps_s, default=0.0)
