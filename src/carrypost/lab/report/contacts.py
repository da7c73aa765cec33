"""Figures of contacts: how long they last, what is between them, and how many neighbours nodes have."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from carrypost.lab.metrics import families
from carrypost.lab.report import curves, distributions, plots
from carrypost.lab.report.curves import Curve, Extent, Steps
from carrypost.lab.report.distributions import Distribution, by_settings, ordered
from carrypost.lab.report.pictures import Block
from carrypost.lab.report.plots import Axis
from carrypost.lab.report.study import Series, Study


def lasting(study: Study, all_series: Sequence[Series]) -> list[Block]:
    """Durations of contacts, and times between those of a pair."""
    made: list[Block] = []
    for of, title in (
        (families.CONTACT_CDF, "duration of contacts"),
        (families.INTER_CONTACT_CDF, "time between contacts of a pair"),
    ):
        made += distributions.figure(study, all_series, Distribution(of, title, "contacts"))
    return made


def neighbours(study: Study, all_series: Sequence[Series]) -> list[Block]:
    """Return figures of the numbers of neighbours: by share of time, and by time."""

    def many(series: Series) -> Curve | None:
        seeds = [ordered(study, families.NEIGHBOURS, run, "neighbours", "share") for run in series.runs]
        most = max((float(x.max(initial=0)) for x, _ in seeds), default=0.0)
        return curves.distribution(seeds, Extent(most or 1.0, 1.0))

    def by_time(series: Series) -> Curve | None:
        seeds = [ordered(study, families.NEIGHBOURS_TIMELINE, run, "t", "neighbours") for run in series.runs]
        return curves.over_time(seeds, _window_s(seeds))

    made: list[Block] = []
    if there := by_settings(all_series, many):
        axes = Axis("number of neighbours, at most"), distributions.shares("share of time")
        picture = plots.curves(curves.merged(there), axes, "number of neighbours", steps=False, legend="settings")
        caption = "Share of their time in which nodes have at most this number of neighbours."
        made.append(distributions.captioned([picture], all_series, caption))
    if there := by_settings(all_series, by_time):
        picture = distributions.by_time_plot(there, "neighbours, mean", "neighbours by time")
        made.append(
            distributions.captioned([picture], all_series, ("Number of neighbours of a node that is present, by time."))
        )
    return made


def _window_s(seeds: Sequence[Steps]) -> float:
    """Return the length of windows, by what is between their begins."""
    steps_s = [float(np.diff(t).min()) for t, _ in seeds if len(t) > 1]
    return min(steps_s, default=0.0)
