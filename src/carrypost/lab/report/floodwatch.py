"""The part of a page about the flood watch of OVERLAY (§4.3): latencies in four topologies, figures 16 and 17.

The paper's text gives few numbers: 6,000 ms against 1,000 ms where the static approach is worst, and less than 200 ms
for a tenth of the data. It does not state how often events come, so ours are of two periods.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from carrypost.lab.metrics import families
from carrypost.lab.report import origins, overlay, plots
from carrypost.lab.report.html import Markup, TableRow, paragraph, table, tag
from carrypost.lab.report.loads import curve
from carrypost.lab.report.overlay import overlay_of
from carrypost.lab.report.pictures import Block, Figure
from carrypost.lab.report.plots import Axis, Mark
from carrypost.lab.report.study import FinishedRun, Series, Study
from carrypost.lab.report.tables import over_seeds
from carrypost.lab.report.times import NOTHING

SCENARIO = "floodwatch"
TITLE = "Opportunistic overlays: the flood watch"
source = overlay.source
TOPOLOGIES = ("A-B-C", "A-B-C-A", "A-C-B", "B-A-C")
STATIC, ADAPTIVE = "static", "opportunistic"
BEGINS_S = 60.0
"""Time at which the topology of a run begins, and a window of the metrics."""
_PAPER_MS = {STATIC: 6_000.0, ADAPTIVE: 1_000.0}
"""Latencies of figure 16, topology B-A-C."""
_PAPER_BOX = "less than 200"
_LEAD = (
    "A feed on A sends events of 100 × 100 doubles, 80,000 bytes, to a client on C. A and B are brokers, and B is "
    "the client's first home. A modulator computes the flood, which takes 20 ms. All three share a channel of "
    "125,000 bytes/s (1 Mbit/s), as far as they hear each other. Each topology lasts 200 s, after a minute of "
    "A-B-C and A-B-C-A."
)
_HIDDEN = (
    "In the emulator, stations that do not hear each other do not collide: in A-C-B, A and B may send at the same "
    "time, and C receives both. A real channel carries less in that case. A burst occupies the channel until its "
    "end, so bursts are short here (window_bytes_max). The paper does not state the rate of events. With an event "
    "every 2.5 s the channel is never full. With one every 1.9 s the static approach needs more than the channel "
    "can carry in B-A-C, where each event occupies the channel around A three times. Events queue up there, and "
    "those that have not arrived at the end are not counted. The paper's 6,000 ms lie between the two."
)
_FIGURE_16 = (
    "Latency of events by topology; the client wants all data. Diamonds: 6,000 ms (static) and 1,000 ms "
    "(opportunistic) in B-A-C, from the paper's text."
)
_FIGURE_17 = (
    "Latency of events by topology; the client wants a tenth of the area. The seat moves to A in every topology. "
    "According to the paper, the opportunistic approach takes less than 200 ms in all four, and the static one is "
    "slower in A-C-B than in B-A-C."
)
_PAPER = {
    "workload.0.size": "size of an event, bytes",
    "duration_s": "duration of a run, including a minute before the topology",
}
_OPEN = {
    "radio.rate_bytes_per_s": "rate of the shared channel, bytes/s",
    "workload.0.period_s": "interval between events, s",
    "settings.overlay.update_s": "update period of brokers, s",
    "settings.overlay.discovery_s": "discovery period of the client, s",
    "settings.window_bytes_max": "largest burst, bytes",
}
_KEYS = ((_PAPER, "the paper"), (_OPEN, "ours: not given in the paper"))


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


def is_of_paper(name: str, all_series: Sequence[Series]) -> bool:
    """Return True for the scenario of the paper: called so, with brokers."""
    return name == SCENARIO and all(overlay_of(series.first).get("enabled", False) for series in all_series)


def latencies(study: Study, series: Series) -> list[float]:
    """Return, by seed, the mean latency in milliseconds of events that were sent in the topology of the run."""
    found = []
    for run in series.runs:
        columns = study.columns(families.EVENT_LATENCY, run)
        counted = columns["results"].astype(np.float64) * (columns["t"] >= BEGINS_S)
        if counted.sum():
            found.append(float((columns["avg_s"] * counted).sum() / counted.sum() * 1e3))
    return found


def section(study: Study, all_series: Sequence[Series]) -> list[Block]:
    """Return everything about this experiment."""
    found = {Case.of(each.first): each for each in all_series}
    values = {case: latencies(study, each) for case, each in found.items()}
    whole = sorted({(case.ratio, case.period_s) for case in found if case.ratio == 1}, reverse=True)
    parts = sorted({(case.ratio, case.period_s) for case in found if case.ratio < 1})
    return [
        tag("h2", "The flood watch on three laptops (§4.3)"),
        paragraph(_LEAD, f" {origins.seeds(all_series)}", kind="lead"),
        *[_values(found, values, *each) for each in (*whole, *parts)],
        paragraph(_HIDDEN, kind="note"),
        *_figure(values, whole, _FIGURE_16, "Figure 16"),
        *_figure(values, parts, _FIGURE_17, "Figure 17"),
        tag("h3", "Runs and parameters"),
        origins.parameters(all_series, None, _KEYS),
        origins.ran(all_series),
        origins.failures(study, SCENARIO),
    ]


def _condition(ratio: float, period_s: float) -> str:
    data = "all data" if ratio == 1 else f"{ratio:.0%} of the data"
    return f"{data}, an event every {period_s:g} s"


def _ms(value: float | None) -> str:
    return NOTHING if value is None else f"{value:,.0f}"


def _values(
    found: Mapping[Case, Series], values: Mapping[Case, Sequence[float]], ratio: float, period_s: float
) -> Markup:
    lines = []
    for topology in TOPOLOGIES:
        static, ours = (Case(ratio, period_s, approach, topology) for approach in (STATIC, ADAPTIVE))
        cells: list[str | Markup] = []
        for case in (static, ours):
            there = values.get(case)
            cells.append(over_seeds(there, _ms) if there else NOTHING)
            cells.append(_ms(case.least_s(found[case].first) * 1e3) if case in found else NOTHING)
        both = values.get(static) and values.get(ours)
        times = f"{np.mean(values[static]) / np.mean(values[ours]):.1f}" if both else NOTHING
        paper = NOTHING
        if ratio < 1:
            paper = f"{NOTHING}, {_PAPER_BOX}"
        elif topology == "B-A-C":
            paper = ", ".join(map(_ms, _PAPER_MS.values()))
        lines.append(TableRow(topology, [*cells, times, paper]))
    heads = (
        "", "static, ms", "channel and modulator alone", "opportunistic, ms", "channel and modulator alone",
        "static / opportunistic", "the paper: static, opportunistic",
    )  # fmt: skip
    return table(f"Latency of events, mean: {_condition(ratio, period_s)}", heads, [lines])


def _figure(
    values: Mapping[Case, Sequence[float]], kinds: Sequence[tuple[float, float]], caption: str, paper: str
) -> list[Block]:
    pictures = []
    for ratio, period_s in kinds:
        points = {
            approach: {
                float(place): there
                for place, topology in enumerate(TOPOLOGIES, 1)
                if (there := values.get(Case(ratio, period_s, approach, topology)))
            }
            for approach in (STATIC, ADAPTIVE)
        }
        lines = {name: each for name, mine in points.items() if mine and (each := curve(mine, np.inf)) is not None}
        if not lines:
            continue
        names = ", ".join(f"'{each}'" for each in TOPOLOGIES)
        x = Axis("topology", 4.15, 0.85, f"[{names}][datum.value - 1]", [1, 2, 3, 4])
        marks = [Mark(name, len(TOPOLOGIES), ms) for name, ms in _PAPER_MS.items()] if ratio == 1 else []
        axes = x, Axis("latency (ms)")
        picture = plots.curves(lines, axes, paper, marks=marks, steps=False, legend="approach")
        pictures.append((_condition(ratio, period_s), picture))
    if not pictures:
        return [paragraph(f"The paper's {paper} is about other data than these runs have.", kind="note")]
    return [Figure(pictures, [caption], paper)]
