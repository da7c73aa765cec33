"""The parts of a page about clients of OVERLAY: paths between producers and consumers (§4.1), the flood watch (§4.3).

For figures 10 to 12 the paper's text gives one number: paths become up to five hops shorter. So its curves are
described in words beside ours.

The flood watch is about latencies in four topologies, figures 16 and 17. The paper's text gives few numbers: 6,000 ms
against 1,000 ms where the static approach is worst, and less than 200 ms for a tenth of the data. It does not state how
often events come, so ours are of two periods.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import numpy as np
from markupsafe import Markup

from carrypost.emu.engine.samples import BEST, DELIVERY
from carrypost.lab.metrics import families
from carrypost.lab.report import origins, overlay_brokers, papers, plots
from carrypost.lab.report.blocks import Element, Figures, Picture, TableRow, table
from carrypost.lab.report.numbers import NOTHING, count, difference, interval, shown
from carrypost.lab.report.overlay_brokers import WHOLE_S, by_time, hops_of, lengths, mean_of, overlay_of, two_digits
from carrypost.lab.report.papers import Claim, over_seeds
from carrypost.lab.report.plots import Axis, Bar, Curve, mean_curve
from carrypost.lab.report.study import FinishedRun, Series, Study, matched_by

TITLE = overlay_brokers.TITLE
_STATIC, _HOMES, _OURS = "static", "static-opportunistic", "opportunistic-opportunistic"
_APPROACHES = (_STATIC, _HOMES, _OURS)
_KNOWING = "with perfect knowledge"
_PAPER_GAIN = 5.0
"""Hops by which paths become shorter at most."""
_SHOWN_S = 10.0
"""Discovery period of figure 10."""
_HOPS = Axis("hops, mean over all pairs")


class Approach(NamedTuple):
    """The settings of a series."""

    name: str
    discovery_s: float
    speed: float | None
    """Speed of all nodes; None: they differ."""

    @classmethod
    def of(cls, run: FinishedRun) -> Approach:
        """Return the approach of a run."""
        brokers, mobility = overlay_of(run), run.in_force.get("mobility", {})
        adaptive = brokers.get("topology") != "static", brokers.get("homing") != "static"
        slowest, fastest = mobility.get("speed_min_m_per_s"), mobility.get("speed_max_m_per_s")
        discovery_s = brokers.get("discovery_s", 0.0)
        period_s = float(discovery_s) if isinstance(discovery_s, int | float) else 0.0
        return cls(_APPROACHES[sum(adaptive)], period_s, None if slowest != fastest else float(fastest))


def section(study: Study, all_series: Sequence[Series], figures: Figures) -> Markup:
    """Return everything about this experiment."""
    found = {Approach.of(each.first): each for each in all_series}
    shown = _shown(found)
    return figures.filled(
        "overlay_clients",
        verdict=papers.of_claims(_claims(study, found), all_series, WHOLE_S),
        values=_values(study, found),
        timeline=_timeline(study, shown),
        by_period=_by_period(study, {of.discovery_s: each for of, each in found.items() if of[::2] == (_OURS, None)}),
        by_speed=_by_speed(study, found),
        moves=_moves(study, shown),
        **origins.of_paper(study, all_series, "overlay_clients"),
    )


def _shown(found: Mapping[Approach, Series]) -> dict[str, Series]:
    """Return the series of figure 10 by approach."""
    return {of.name: each for of, each in found.items() if (of.discovery_s, of.speed) == (_SHOWN_S, None)}


def _claims(study: Study, found: Mapping[Approach, Series]) -> list[Claim]:
    """Return the statements of the paper's text about clients."""
    means = {of: mean for of, each in found.items() if (mean := mean_of(lengths(study, each, DELIVERY)))}
    by_name = {of.name: mean for of, mean in means.items() if (of.discovery_s, of.speed) == (_SHOWN_S, None)}
    shortest = Claim(f"{_OURS} has the shortest paths of the three approaches")
    if set(by_name) == set(_APPROACHES):
        listed = ", ".join(f"{name} {two_digits(by_name[name])}" for name in _APPROACHES)
        shortest = shortest._replace(
            ours=f"hops: {listed}", holds=min(by_name, key=lambda name: by_name[name]) == _OURS
        )
    most = Claim(f"paths of {_OURS} are up to {_PAPER_GAIN:g} hops shorter than static ones")
    if gain := _gain(_lines(study, _shown(found))):
        ours = f"up to {gain.hops:.1f} hops, at {gain.at_s:g} s"
        most = most._replace(ours=ours, holds=papers.is_near(gain.hops, _PAPER_GAIN))
    homes = Claim("changing homes alone makes paths much shorter")
    if _STATIC in by_name and _HOMES in by_name:
        off, less = difference(by_name[_HOMES], by_name[_STATIC]), papers.is_less(by_name[_HOMES], by_name[_STATIC])
        homes = homes._replace(ours=f"{hops_of(by_name[_HOMES])}, {off}", holds=less)
    periods = {of.discovery_s: mean for of, mean in means.items() if of[::2] == (_OURS, None)}
    rise = papers.rising("paths become slightly longer with the discovery period", periods, "s", two_digits)
    return [shortest, most, homes, rise, *_speed_claims(means)]


def _speed_claims(means: Mapping[Approach, float]) -> list[Claim]:
    """Return the statements about fast nodes: figure 12."""
    by_speed: dict[float, dict[float, float]] = {}
    for of, mean in means.items():
        if of.name == _OURS and of.speed is not None:
            by_speed.setdefault(of.speed, {})[of.discovery_s] = mean
    pairs = {
        speed: (each[min(each)], each[max(each)]) for speed, each in sorted(by_speed.items()) if len(each) > 1
    }  # fmt: skip
    always, fast = (
        Claim("more frequent discovery gives shorter paths"),
        Claim("of very fast nodes, more frequent discovery makes paths much shorter"),
    )
    if len(pairs) <= 1:
        return [always, fast]
    listed = ", ".join(f"{difference(*pair)} at {speed:g} m/s" for speed, pair in pairs.items())
    often, rarely = pairs[max(pairs)]
    return [
        always._replace(ours=listed, holds=all(often < rarely for often, rarely in pairs.values())),
        fast._replace(ours=f"{hops_of(often)} against {rarely:.2f}", holds=papers.is_less(often, rarely)),
    ]


def _description(of: Approach) -> str:
    speed = "" if of.speed is None else f", {of.speed:g} m/s"
    return f"{of.name}, discovery every {of.discovery_s:g} s{speed}" if of.name != _STATIC else of.name


def _order(of: Approach) -> tuple[int, float, float]:
    return _APPROACHES.index(of.name), of.speed or 0.0, of.discovery_s


def _values(study: Study, found: Mapping[Approach, Series]) -> Element:
    lines = []
    for of in sorted(found, key=_order):
        ours, best = (lengths(study, found[of], path) for path in (DELIVERY, BEST))
        ratios = [mine / least for mine, least in zip(ours, best, strict=True)]
        cells = [over_seeds(each, two_digits) if each else NOTHING for each in (ours, best, ratios)]
        lines.append(TableRow(_description(of), cells))
    heads = ("", "hops", "with perfect knowledge, at the same moments", "ratio")
    return table("Path lengths from producers to consumers", heads, [lines])


def _lines(study: Study, shown: Mapping[str, Series]) -> dict[str, Curve]:
    return {name: each for name in _APPROACHES if name in shown and (each := by_time(study, shown[name], DELIVERY))}


def _timeline(study: Study, shown: Mapping[str, Series]) -> Picture | None:
    shown = matched_by(shown)
    lines = _lines(study, shown)
    if _OURS in shown and (best := by_time(study, shown[_OURS], BEST)):
        lines[_KNOWING] = best
    return plots.plain(lines, (Axis("time (s)"), _HOPS), "Figure 10: path lengths by time", "approach")


class _Gain(NamedTuple):
    """The most by which paths are shorter than static ones, and when."""

    hops: float
    at_s: float


def _gain(lines: Mapping[str, Curve]) -> _Gain | None:
    if _OURS not in lines or _STATIC not in lines:
        return None
    ours, static = lines[_OURS], lines[_STATIC]
    shared = np.intersect1d(ours.x, static.x)
    if not len(shared):
        return None
    gains = np.interp(shared, static.x, static.y) - np.interp(shared, ours.x, ours.y)
    return _Gain(float(gains.max()), float(shared[int(gains.argmax())]))


def _by_period(study: Study, of: Mapping[float, Series]) -> Picture | None:
    if len(of) <= 1:
        return None
    axes = Axis("discovery period (s)", max(of) * 1.03, ticks=sorted(of)), _HOPS
    paths = {_OURS: DELIVERY, _KNOWING: BEST}
    lines = {
        name: mean_curve({period_s: lengths(study, each, path) for period_s, each in matched_by(of).items()}, np.inf)
        for name, path in paths.items()
    }
    return plots.plain(lines, axes, "Figure 11", "approach")


def _by_speed(study: Study, found: Mapping[Approach, Series]) -> Picture | None:
    mine = matched_by({of: each for of, each in found.items() if of.name == _OURS and of.speed is not None})
    speeds = sorted({of.speed for of in mine if of.speed is not None})
    if len(speeds) <= 1:
        return None
    points: dict[str, dict[float, list[float]]] = {}
    for of, each in sorted(mine.items(), key=lambda pair: _order(pair[0])):
        assert of.speed is not None
        points.setdefault(f"discovery every {of.discovery_s:g} s", {})[of.speed] = lengths(study, each, DELIVERY)
    lines = {name: mean_curve(values, np.inf) for name, values in points.items()}
    return plots.plain(lines, (Axis("speed (m/s)", speeds[-1] * 1.03, ticks=speeds), _HOPS), "Figure 12", "clients")


def _moves(study: Study, of: Mapping[str, Series]) -> Element:
    lines = []
    for name in [each for each in _APPROACHES if each in of]:
        rows = [study.columns(families.RELOCATIONS, run) for run in of[name].runs]
        homes, seats = (
            [float(each["count"][each["what"] == what].sum()) for each in rows] for what in ("home", "relocate")
        )
        pauses = [float(np.nanmax(each["pause_max_s"], initial=0.0)) for each in rows if len(each["pause_max_s"])]
        waits = [
            float(np.average(each["avg_s"], weights=each["results"]))
            for each in (study.columns(families.EVENT_LATENCY, run) for run in of[name].runs)
            if len(each["results"])
        ]
        moved = [over_seeds(each, count) for each in (homes, seats)]
        cells = [*moved, *(over_seeds(each, shown) for each in (pauses, waits))]
        lines.append(TableRow(name, cells))
    heads = ("", "new homes", "seats that moved", "longest pause", "from event to result, mean")
    return table("Homes, seats and latencies, discovery every 10 s", heads, [lines])


FLOODWATCH_TITLE = "Opportunistic overlays: the flood watch"
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


def floodwatch_section(study: Study, all_series: Sequence[Series], figures: Figures) -> Markup:
    """Return everything about this experiment."""
    found = {Case.of(each.first): each for each in all_series}
    values = {case: latencies(study, each) for case, each in found.items()}
    whole = sorted({(case.ratio, case.period_s) for case in found if case.ratio == 1}, reverse=True)
    parts = sorted({(case.ratio, case.period_s) for case in found if case.ratio < 1})
    return figures.filled(
        "floodwatch",
        verdict=papers.of_claims(_flood_claims(values), all_series, _WHOLE_S),
        values=[_flood_values(found, values, *each) for each in (*whole, *parts)],
        all_data=_pictures(study, found, whole, "Figure 16"),
        part=_pictures(study, found, parts, "Figure 17"),
        **origins.of_paper(study, all_series, "floodwatch"),
    )


def _flood_claims(values: Mapping[Case, Sequence[float]]) -> list[Claim]:
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
    inside = least <= paper <= most or any(papers.is_near(each, paper) for each in by_period.values())
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


def _flood_values(
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
