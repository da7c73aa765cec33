"""The part of a page about clients of OVERLAY (§4.1): lengths of paths from producers to consumers, figures 10 to 12.

The paper's text gives one number for these figures: paths become up to five hops shorter. So its curves are described
in words beside ours.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
from markupsafe import Markup

from carrypost.emu.engine.delivery_paths import BEST, DELIVERY
from carrypost.lab.metrics import families
from carrypost.lab.report import origins, overlay, plots, verdict
from carrypost.lab.report.curves import Curve
from carrypost.lab.report.grids import Element, TableRow, table
from carrypost.lab.report.loads import curve
from carrypost.lab.report.overlay import WHOLE_S, by_time, hops_of, lengths, mean_of, overlay_of, two_digits
from carrypost.lab.report.pictures import Figures, Picture
from carrypost.lab.report.plots import Axis
from carrypost.lab.report.study import FinishedRun, Series, Study, matched_by
from carrypost.lab.report.tables import over_seeds
from carrypost.lab.report.times import NOTHING, count, difference, shown
from carrypost.lab.report.verdict import Claim

TITLE = overlay.TITLE
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
        verdict=verdict.of_claims(_claims(study, found), all_series, WHOLE_S),
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
        most = most._replace(ours=ours, holds=verdict.is_near(gain.hops, _PAPER_GAIN))
    homes = Claim("changing homes alone makes paths much shorter")
    if _STATIC in by_name and _HOMES in by_name:
        off, less = difference(by_name[_HOMES], by_name[_STATIC]), verdict.is_less(by_name[_HOMES], by_name[_STATIC])
        homes = homes._replace(ours=f"{hops_of(by_name[_HOMES])}, {off}", holds=less)
    periods = {of.discovery_s: mean for of, mean in means.items() if of[::2] == (_OURS, None)}
    rise = verdict.rising("paths become slightly longer with the discovery period", periods, "s", two_digits)
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
        fast._replace(ours=f"{hops_of(often)} against {rarely:.2f}", holds=verdict.is_less(often, rarely)),
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
        name: curve({period_s: lengths(study, each, path) for period_s, each in matched_by(of).items()}, np.inf)
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
    lines = {name: curve(values, np.inf) for name, values in points.items()}
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
