"""The part of a page about the flood watch of OVERLAY (§4.3): latencies in four topologies, figures 16 and 17.

The paper's text gives few numbers: 6,000 ms against 1,000 ms where the static approach is worst, and less than 200 ms
for a tenth of the data. It does not state how often events come, so ours are of two periods.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import numpy as np
from markupsafe import Markup

from carrypost.lab.metrics import families
from carrypost.lab.report import origins, plots, verdict
from carrypost.lab.report.grids import Element, TableRow, table
from carrypost.lab.report.intervals import interval
from carrypost.lab.report.overlay import mean_of, overlay_of
from carrypost.lab.report.pictures import Figures, Picture
from carrypost.lab.report.plots import Axis, Bar
from carrypost.lab.report.study import FinishedRun, Series, Study, matched_by
from carrypost.lab.report.tables import over_seeds
from carrypost.lab.report.times import NOTHING, difference
from carrypost.lab.report.verdict import Claim

TITLE = "Opportunistic overlays: the flood watch"
TOPOLOGIES = ("A-B-C", "A-B-C-A", "A-C-B", "B-A-C")
STATIC, ADAPTIVE = "static", "opportunistic"
BEGINS_S = 60.0
"""Time at which the topology of a run begins, and a window of the metrics."""
_PAPER_MS = {STATIC: 6_000.0, ADAPTIVE: 1_000.0}
"""Latencies of figure 16, topology B-A-C."""
_PAPER_BOX_MS = 200.0
_PAPER_TIMES = 6.0
"""Largest ratio of both latencies, if the client wants all data."""
_WORST = "B-A-C"
_WHOLE_S = 260.0


class Case(NamedTuple):
    """The settings of a series."""

    ratio: float
    """Part of the data that the client wants."""
    period_s: float
    approach: str
    topology: str

    @classmethod
    def of(cls, run: FinishedRun) -> Case:
        """Return the case of a run."""
        workload, file = run.in_force["workload"][0], str(run.in_force["contacts"]["file"])
        approach = STATIC if overlay_of(run).get("homing") == "static" else ADAPTIVE
        topology = next((each for each in sorted(TOPOLOGIES, key=len, reverse=True) if each in file), "")
        return cls(float(workload["params"]["ratio"]), float(workload["period_s"]), approach, topology)

    @property
    def broker(self) -> str:
        """The broker that has the client's seat."""
        stays = self.ratio == 1 and self.topology == "A-B-C"
        return "B" if self.approach == STATIC or stays else "A"

    def least_s(self, run: FinishedRun) -> float:
        """Return the time on the air, and that of the modulator, of an event that waits for nothing."""
        known, workload = run.in_force, run.in_force["workload"][0]
        hop_s = workload["size"] / known["radio"]["rate_bytes_per_s"]
        speed = next(
            each["settings"]["overlay"]["speed"] for each in known["nodes"]["group"] if self.broker in each["names"]
        )
        return float(self.air_s(hop_s) + workload["params"]["cost_us"] / 1e6 / speed)

    def air_s(self, hop_s: float) -> float:
        """Return the time that an event is on the air, if all data take this time for a hop."""
        before, after = 0, 1
        if self.broker == "B":
            before, after = 1 + (self.topology == "A-C-B"), 1 + (self.topology == "B-A-C")
        elif self.topology == "A-B-C":
            after = 2
        return (before + after * self.ratio) * hop_s


def latencies(study: Study, series: Series) -> list[float]:
    """Return, by seed, the mean latency in milliseconds of events that were sent in the topology of the run."""
    found = []
    for run in series.runs:
        columns = study.columns(families.EVENT_LATENCY, run)
        counted = columns["results"].astype(np.float64) * (columns["t"] >= BEGINS_S)
        if counted.sum():
            found.append(float((columns["avg_s"] * counted).sum() / counted.sum() * 1e3))
    return found


def section(study: Study, all_series: Sequence[Series], figures: Figures) -> Markup:
    """Return everything about this experiment."""
    found = {Case.of(each.first): each for each in all_series}
    values = {case: latencies(study, each) for case, each in found.items()}
    whole = sorted({(case.ratio, case.period_s) for case in found if case.ratio == 1}, reverse=True)
    parts = sorted({(case.ratio, case.period_s) for case in found if case.ratio < 1})
    return figures.filled(
        "floodwatch",
        verdict=verdict.of_claims(_claims(values), all_series, _WHOLE_S),
        values=[_values(found, values, *each) for each in (*whole, *parts)],
        all_data=_pictures(study, found, whole, "Figure 16"),
        part=_pictures(study, found, parts, "Figure 17"),
        **origins.of_paper(study, all_series, "floodwatch"),
    )


def _claims(values: Mapping[Case, Sequence[float]]) -> list[Claim]:
    """Return the statements of the paper's text.

    It does not state the rate of events. What it says of all data holds if it does at one of our rates, or between.
    """
    means = {case: mean for case, each in values.items() if (mean := mean_of(each)) is not None}
    whole = {case: mean for case, mean in means.items() if case.ratio == 1}
    static, ours = (
        {case.period_s: ms for case, ms in whole.items() if case[2:] == (name, _WORST)} for name in _PAPER_MS
    )
    times: dict[float, float] = {}
    for case, ms in whole.items():
        if case.approach == STATIC and (other := whole.get(case._replace(approach=ADAPTIVE))):
            times[case.period_s] = max(times.get(case.period_s, 0.0), ms / other)
    faster = f"with all data the opportunistic approach is up to {_PAPER_TIMES:g} times faster"
    latency = "with all data the {} approach takes {} in " + _WORST
    return [
        _range(faster, times, _PAPER_TIMES, lambda value: f"{value:.1f} times"),
        _worst(whole),
        *(
            _range(latency.format(name, _in_ms(paper)), found, paper, _in_ms)
            for (name, paper), found in zip(_PAPER_MS.items(), (static, ours), strict=True)
        ),
        *_part_claims({case: mean for case, mean in means.items() if case.ratio < 1}),
    ]


def _range(text: str, by_period: Mapping[float, float], paper: float, show: Callable[[float | None], str]) -> Claim:
    """Return the statement that a figure has a value at some rate of events."""
    if not by_period:
        return Claim(text)
    listed = ", ".join(f"{show(each)} with an event every {period_s:g} s" for period_s, each in by_period.items())
    least, most = min(by_period.values()), max(by_period.values())
    inside = least <= paper <= most or any(verdict.is_near(each, paper) for each in by_period.values())
    if not inside:
        nearest = min(by_period.values(), key=lambda each: abs(each - paper))
        listed += f" ({difference(nearest, paper)})"
    return Claim(text, listed, inside)


def _worst(whole: Mapping[Case, float]) -> Claim:
    claim = Claim(f"with all data the static approach is slowest in {_WORST}")
    found = {}
    for period_s in dict.fromkeys(case.period_s for case in whole):
        static = {case.topology: ms for case, ms in whole.items() if case[1:3] == (period_s, STATIC)}
        if set(static) == set(TOPOLOGIES):
            found[period_s] = max(static, key=lambda topology: static[topology])
    listed = ", ".join(f"{slowest} with an event every {period_s:g} s" for period_s, slowest in found.items())
    return claim._replace(ours=listed, holds=_WORST in found.values())


def _part_claims(means: Mapping[Case, float]) -> list[Claim]:
    """Return the statements about a client that wants a part of the data: figure 17."""
    soon = Claim(
        f"with a tenth of the data the opportunistic approach takes less than {_in_ms(_PAPER_BOX_MS)} everywhere"
    )
    ours = {case.topology: ms for case, ms in means.items() if case.approach == ADAPTIVE}
    static = {case.topology: ms for case, ms in means.items() if case.approach == STATIC}
    if set(ours) == set(TOPOLOGIES):
        most = max(ours.values())
        soon = soon._replace(ours=f"at most {_in_ms(most)}", holds=most < _PAPER_BOX_MS)
    slower = Claim(f"with a tenth of the data the static approach is slower in A-C-B than in {_WORST}")
    if {"A-C-B", _WORST} <= set(static):
        text = f"{_in_ms(static['A-C-B'])} against {_in_ms(static[_WORST])}"
        slower = slower._replace(ours=text, holds=static["A-C-B"] > static[_WORST])
    return [soon, slower]


def _in_ms(value: float | None) -> str:
    return f"{_ms(value)} ms"


def _condition(ratio: float, period_s: float) -> str:
    data = "all data" if ratio == 1 else f"{100 * ratio:g} % of the data"
    return f"{data}, an event every {period_s:g} s"


def _ms(value: float | None) -> str:
    return NOTHING if value is None else f"{value:,.0f}"


def _values(
    found: Mapping[Case, Series], values: Mapping[Case, Sequence[float]], ratio: float, period_s: float
) -> Element:
    lines = []
    for topology in TOPOLOGIES:
        static, ours = (Case(ratio, period_s, approach, topology) for approach in (STATIC, ADAPTIVE))
        cells: list[str | Markup] = []
        for case in (static, ours):
            there = values.get(case)
            cells.append(over_seeds(there or [], _ms))
            cells.append(_ms(case.least_s(found[case].first) * 1e3) if case in found else NOTHING)
        both = values.get(static) and values.get(ours)
        times = f"{np.mean(values[static]) / np.mean(values[ours]):.1f}" if both else NOTHING
        lines.append(TableRow(topology, [*cells, times]))
    heads = (
        "", "static, ms", "channel and modulator alone", "opportunistic, ms", "channel and modulator alone",
        "static / opportunistic",
    )  # fmt: skip
    return table(f"Latency of events, mean: {_condition(ratio, period_s)}", heads, [lines])


def _pictures(
    study: Study, found: Mapping[Case, Series], kinds: Sequence[tuple[float, float]], paper: str
) -> list[tuple[str, Picture]]:
    pictures = []
    for ratio, period_s in kinds:
        shown = matched_by({case: each for case, each in found.items() if case[:2] == (ratio, period_s)})
        values = {case: latencies(study, each) for case, each in shown.items()}
        bars = [
            Bar(topology, approach, *each)
            for topology in TOPOLOGIES
            for approach in (STATIC, ADAPTIVE)
            if (each := interval(values.get(Case(ratio, period_s, approach, topology), [])))
        ]
        marks = [Bar(_WORST, name, ms) for name, ms in _PAPER_MS.items()] if ratio == 1 else []
        if bars:
            picture = plots.bars(bars, ("topology", Axis("latency (ms)"), "approach"), paper, marks=marks)
            pictures.append((_condition(ratio, period_s), picture))
    return pictures
