"""The parts of a page about brokers of OVERLAY: paths and costs of the network (§4.1), and load balancing (§4.2).

In §4.1 the paper compares brokers that follow mobility with static ones and with shortest paths of the network. It
gives lengths of paths for some update periods, and what keeping the overlay costs for two of them. Figures 7 to 9 stand
beside the values of its text.

In §4.2 its text gives no values of figures 13 and 14. It says from which loads on the two approaches differ, and which
paths are longer. So its sentences stand beside ours.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from statistics import fmean
from typing import Any

import numpy as np
from markupsafe import Markup

from carrypost.arrays import Floats
from carrypost.emu.engine.samples import DELIVERY
from carrypost.lab.metrics import families
from carrypost.lab.report import origins, papers, plots
from carrypost.lab.report.blocks import Element, Figures, Picture, Piece, TableRow, paragraph, table
from carrypost.lab.report.numbers import NOTHING, tenths
from carrypost.lab.report.papers import Claim, over_seeds
from carrypost.lab.report.plots import Axis, Curve, Mark, mean_curve
from carrypost.lab.report.study import FinishedRun, Series, Study, matched, matched_by

TITLE = "Opportunistic overlays: brokers that follow mobility"
NETWORK, OVERLAY = "network", "overlay"
WHOLE_S = 600.0
"""Duration of a run."""
_OFTEN = 0.9
"""From this share of the samples on, something is so at nearly all times."""
_SHOWN_S = 50.0
"""Update period of figure 7."""
_PAPER_HOPS = {10.0: 3.32, 50.0: 4.17, 100.0: 4.43}
_PAPER_KBIT = {50.0: "2.4", 100.0: "less than 2"}
_PAPER_STATIC, _PAPER_NETWORK = 6.06, 2.36
_STATIC = -1.0
"""Stands for static brokers among update periods."""


def has_brokers(all_series: Sequence[Series]) -> bool:
    """Return True if all of these have brokers."""
    return all(overlay_of(series.first).get("enabled", False) for series in all_series)


def section(study: Study, all_series: Sequence[Series], figures: Figures) -> Markup:
    """Return everything about this experiment."""
    adaptive = {_update_s(each.first): each for each in all_series if not _is_static(each.first)}
    static = next((each for each in all_series if _is_static(each.first)), None)
    shown = adaptive.get(_SHOWN_S) or next(iter(adaptive.values()), None)
    several = dict(adaptive) if len(adaptive) > 1 else {}
    return figures.filled(
        "overlay",
        verdict=papers.of_claims(_claims(study, adaptive, static), all_series, WHOLE_S),
        values=_values(study, dict(sorted(adaptive.items())), static),
        timeline=_timeline(study, shown, static),
        update_s=None if shown is None else _update_s(shown.first),
        by_period=_by_period(study, several, static),
        costs=_costs(study, several),
        **origins.of_paper(study, all_series, "overlay"),
    )


def _claims(study: Study, adaptive: Mapping[float, Series], static: Series | None) -> list[Claim]:
    """Return the statements of the paper's text about brokers."""
    hops = {period_s: mean for period_s, each in adaptive.items() if (mean := mean_of(lengths(study, each, OVERLAY)))}
    still = None if static is None else mean_of(lengths(study, static, OVERLAY))
    first = next(iter(adaptive.values()), static)
    network = None if first is None else mean_of(lengths(study, first, NETWORK))
    kbit = {period_s: mean_of(kilobits(study, each)) for period_s, each in adaptive.items()}
    late = max(_PAPER_HOPS)
    less = Claim(f"paths over adaptive brokers are much shorter than static ones with an update every {late:g} s")
    if still and late in hops:
        less = less._replace(ours=f"{hops_of(hops[late])} against {still:.2f}", holds=papers.is_less(hops[late], still))
    return [
        papers.quoted(f"shortest paths of the network have {_PAPER_NETWORK} hops", network, _PAPER_NETWORK, hops_of),
        papers.quoted(f"paths over static brokers have {_PAPER_STATIC} hops", still, _PAPER_STATIC, hops_of),
        *(
            papers.quoted(
                f"paths over adaptive brokers have {paper} hops with an update every {period_s:g} s",
                hops.get(period_s), paper, hops_of,
            )
            for period_s, paper in _PAPER_HOPS.items()
        ),
        papers.rising("paths become longer with the update period", hops, "s", two_digits),
        less,
        _nearly_always(study, adaptive.get(_SHOWN_S), static),
        papers.quoted(
            f"a broker sends {_PAPER_KBIT[_SHOWN_S]} kbit/s with an update every {_SHOWN_S:g} s",
            kbit.get(_SHOWN_S), float(_PAPER_KBIT[_SHOWN_S]), _kbit,
        ),
    ]  # fmt: skip


def _nearly_always(study: Study, shown: Series | None, static: Series | None) -> Claim:
    claim = Claim("paths over adaptive brokers are shorter than static ones at almost all times")
    ours, still = (None if each is None else by_time(study, each, OVERLAY) for each in (shown, static))
    if ours is None or still is None or not len(shared := np.intersect1d(ours.x, still.x)):
        return claim
    part = float((np.interp(shared, ours.x, ours.y) < np.interp(shared, still.x, still.y)).mean())
    return claim._replace(ours=f"at {tenths(part)} of the times", holds=part >= _OFTEN)


def mean_of(values: Sequence[float]) -> float | None:
    """Return the mean over seeds; None: there are none."""
    return fmean(values) if values else None


def hops_of(value: float | None) -> str:
    """Return a length of paths."""
    return f"{two_digits(value)} hops"


def _kbit(value: float | None) -> str:
    return f"{two_digits(value)} kbit/s"


def overlay_of(run: FinishedRun) -> Mapping[str, object]:
    """Return the settings of the overlay that held in a run."""
    found = run.in_force.get("settings", {}).get("overlay", {})
    return found if isinstance(found, Mapping) else {}


def _is_static(run: FinishedRun) -> bool:
    return overlay_of(run).get("topology") == "static"


def _update_s(run: FinishedRun) -> float:
    found = overlay_of(run).get("update_s", 0.0)
    return float(found) if isinstance(found, int | float) else 0.0


def lengths(study: Study, series: Series, path: str) -> list[float]:
    """Return, by seed, the mean length of all paths over the whole run."""
    found = []
    for run in series.runs:
        columns = study.columns(families.PATH_LENGTHS, run, path=path)
        if (pairs := columns["pairs"].astype(np.float64)).sum():
            found.append(float((np.nan_to_num(columns["hops"]) * pairs).sum() / pairs.sum()))
    return found


def kilobits(study: Study, series: Series) -> list[float]:
    """Return, by seed, the rate at which a broker sends to maintain the overlay, in kbit/s."""
    rates = [study.columns(families.BROKER_TRAFFIC, run)["bits_per_s"] for run in series.runs]
    return [float(each.mean()) / 1_000 for each in rates if len(each)]


def _values(study: Study, adaptive: Mapping[float, Series], static: Series | None) -> Element:
    first = next(iter(adaptive.values()), static)
    lines = []
    if first is not None:
        lines.append(_line("network", lengths(study, first, NETWORK), two_digits(_PAPER_NETWORK), [], NOTHING))
    for update_s, series in adaptive.items():
        paper = two_digits(_PAPER_HOPS.get(update_s)), _PAPER_KBIT.get(update_s, NOTHING)
        name = f"adaptive, every {update_s:g} s"
        lines.append(_line(name, lengths(study, series, OVERLAY), paper[0], kilobits(study, series), paper[1]))
    if static is not None:
        lines.append(_line("static", lengths(study, static, OVERLAY), two_digits(_PAPER_STATIC), [], NOTHING))
    heads = ("", "hops, ours", "the paper", "kbit/s per broker, ours", "the paper")
    return table("Path lengths between brokers, and cost of maintenance", heads, [lines])


def _line(name: str, hops: Sequence[float], paper: str, kbit: Sequence[float], paper_kbit: str) -> TableRow:
    cells: list[Piece] = [
        over_seeds(hops, two_digits),
        paper,
        over_seeds(kbit, two_digits) if kbit else NOTHING,
        paper_kbit,
    ]
    return TableRow(name, cells)


def two_digits(value: float | None) -> str:
    """Return a figure with two digits after the point."""
    return NOTHING if value is None else f"{value:,.2f}"


def _timeline(study: Study, shown: Series | None, static: Series | None) -> Picture | None:
    pair = [each for each in (shown, static) if each is not None]
    mine = dict(zip((each.settings for each in pair), matched(pair), strict=True))
    shown, static = (None if each is None else mine[each.settings] for each in (shown, static))
    lines = {
        "network": None if shown is None else by_time(study, shown, NETWORK),
        "adaptive": None if shown is None else by_time(study, shown, OVERLAY),
        "static": None if static is None else by_time(study, static, OVERLAY),
    }
    axes = Axis("time (s)"), Axis("hops between brokers, mean")
    return plots.plain(lines, axes, "Figure 7: path lengths by time", "paths")


def by_time(study: Study, series: Series, path: str) -> Curve | None:
    """Return the mean length of paths by time."""
    seeds = []
    for run in series.runs:
        columns = study.columns(families.PATH_LENGTHS, run, path=path)
        seeds.append((columns["t"].astype(np.float64), columns["hops"].astype(np.float64)))
    return plots.over_time(seeds, 0.0)


def _by_period(study: Study, adaptive: dict[float, Series], static: Series | None) -> Picture | None:
    adaptive = matched_by(adaptive | ({} if static is None else {_STATIC: static}))
    static = adaptive.pop(_STATIC, None)
    of = {"adaptive": {update_s: lengths(study, each, OVERLAY) for update_s, each in adaptive.items()}}
    of["network"] = {update_s: lengths(study, each, NETWORK) for update_s, each in adaptive.items()}
    if static is not None:
        of["static"] = dict.fromkeys(adaptive, lengths(study, static, OVERLAY))
    marks = [Mark("adaptive", update_s, hops) for update_s, hops in _PAPER_HOPS.items()]
    marks += [Mark("network", _SHOWN_S, _PAPER_NETWORK), Mark("static", _SHOWN_S, _PAPER_STATIC)]
    lines = {name: mean_curve(points, np.inf) for name, points in of.items()}
    return plots.plain(lines, (_periods(adaptive), Axis("hops between brokers, mean")), "Figure 8", "paths", marks)


def _costs(study: Study, adaptive: Mapping[float, Series]) -> Picture | None:
    costs = mean_curve({update_s: kilobits(study, each) for update_s, each in matched_by(adaptive).items()}, np.inf)
    marks = [Mark("adaptive", _SHOWN_S, float(_PAPER_KBIT[_SHOWN_S]))]
    axes = _periods(adaptive), Axis("kbit/s per broker")
    return plots.plain({"adaptive": costs}, axes, "Figure 9", "paths", marks)


def _periods(adaptive: Mapping[float, Series]) -> Axis:
    return Axis("update period (s)", max(adaptive, default=1.0) * 1.03, ticks=sorted(adaptive))


BALANCE_TITLE = "Opportunistic overlays: brokers that share the work"
CONTROL, NEAREST, STATIC = "with control", "without control", "static"
_BEGIN_S = 60.0
"""Loads of the first minute do not count: all clients begin at the nearest broker."""
_UNLIMITED = 100.0
"""Brokers with such a `load_max` are never overloaded."""
_LIGHT, _MIDDLE, _FULL = 30, 70, 100
"""Mean loads, in percent, at which the paper's text says that behaviour changes."""
_AROUND = 2
"""Measured loads this near to one of these, in percent, count as the load itself."""
_SAME_HOPS = 0.1
"""Paths whose lengths differ by less are the same."""


def balance_section(study: Study, all_series: Sequence[Series], figures: Figures) -> Markup:
    """Return everything about this experiment."""
    found = _by_load(study, all_series)
    compared, claims = _compared(found), [*_load_claims(study, found), *_path_claims(study, found)]
    return figures.filled(
        "balance",
        verdict=papers.of_claims(claims, all_series, WHOLE_S),
        values=_balance_values(study, found),
        maxima=_by_mean(_points(study, compared, maxima), Axis("highest load"), "Figure 13", "brokers"),
        paths=_paths(study, compared),
        **origins.of_paper(study, all_series, "balance"),
    )


def _approach(run: FinishedRun) -> str:
    overlay_settings = overlay_of(run)
    if overlay_settings.get("homing") == "static":
        return STATIC
    load_max = overlay_settings.get("load_max", 0.0)
    return NEAREST if isinstance(load_max, int | float) and load_max >= _UNLIMITED else CONTROL


def _by_load(study: Study, all_series: Sequence[Series]) -> dict[str, dict[int, Series]]:
    """Return the series of each approach by mean load in percent: the mean of all runs with the same cost of events."""
    means: dict[object, list[float]] = {}
    for series in all_series:
        found = [float(each["mean"].mean()) for each in _loads(study, series) if len(each["mean"])]
        means.setdefault(_cost(series.first), []).extend(found)
    by_load: dict[str, dict[int, Series]] = {}
    for series in all_series:
        if of := means[_cost(series.first)]:
            by_load.setdefault(_approach(series.first), {})[round(100 * float(np.mean(of)))] = series
    return {name: dict(sorted(each.items())) for name, each in by_load.items()}


def _cost(run: FinishedRun) -> object:
    workload: dict[str, Any] = next(iter(run.in_force.get("workload", [])), {})
    return workload.get("params", {}).get("cost_us")


def _loads(study: Study, series: Series) -> list[dict[str, Floats]]:
    """Return the loads of each run after the first minute."""
    made = []
    for run in series.runs:
        columns = study.columns(families.LOAD, run)
        late = columns["t"].astype(np.float64) >= _BEGIN_S
        made.append({name: columns[name].astype(np.float64)[late] for name in ("mean", "max")})
    return made


def maxima(study: Study, series: Series) -> list[float]:
    """Return, by seed, the highest load of a broker after the first minute."""
    return [float(each["max"].max()) for each in _loads(study, series) if len(each["max"])]


def _means(study: Study, of: Mapping[int, Series], by: Callable[[Study, Series], list[float]]) -> dict[int, float]:
    return {percent: mean for percent, each in of.items() if (mean := mean_of(by(study, each))) is not None}


def _hops(study: Study, series: Series) -> list[float]:
    return lengths(study, series, DELIVERY)


def _load_claims(study: Study, found: Mapping[str, Mapping[int, Series]]) -> list[Claim]:
    """Return the statements about figure 13."""
    control, nearest = (_means(study, found.get(name, {}), maxima) for name in (CONTROL, NEAREST))
    both = sorted({*control} & {*nearest})
    light = [each for each in both if each < _LIGHT - _AROUND]
    more = [each for each in both if each > _LIGHT + _AROUND]
    same = Claim(f"below a mean load of {_LIGHT} % no broker is overloaded, and control changes nothing")
    if light:
        most = max(nearest[each] for each in light)
        off = max(abs(control[each] - nearest[each]) for each in light)
        alike = all(papers.is_near(control[each], nearest[each]) for each in light)
        same = same._replace(
            ours=f"loads up to {most:.2f}, a difference of at most {off:.2f}", holds=most <= 1 and alike
        )
    over, less = (
        Claim(f"above {_LIGHT} % some brokers are overloaded without control"),
        Claim(f"above {_LIGHT} % control lowers the highest load"),
    )
    if more:
        first = next((each for each in more if nearest[each] > 1), None)
        ours = "none is overloaded" if first is None else f"from {first} % on, with a load of {nearest[first]:.2f}"
        over = over._replace(ours=ours, holds=first is not None)
        ours = f"{control[more[-1]]:.2f} in place of {nearest[more[-1]]:.2f} at {more[-1]} %"
        less = less._replace(ours=ours, holds=all(papers.is_less(control[each], nearest[each]) for each in more))
    return [same, over, less]


def _path_claims(study: Study, found: Mapping[str, Mapping[int, Series]]) -> list[Claim]:
    """Return the statements about figure 14."""
    control, nearest = (_means(study, found.get(name, {}), _hops) for name in (CONTROL, NEAREST))
    static = mean_of(_static(study, found))
    few = [each for each in control if each < _MIDDLE - _AROUND]
    same = Claim(f"below {_MIDDLE} % the home of a client is always the nearest broker")
    if both := [each for each in few if each in nearest]:
        off = max(abs(control[each] - nearest[each]) for each in both)
        ours = f"paths differ by at most {hops_of(off)} (equal: {_SAME_HOPS:g})"
        same = same._replace(ours=ours, holds=off <= _SAME_HOPS)
    hop = Claim(f"below {_MIDDLE} % paths can be more than a hop shorter than static ones")
    if few and static is not None:
        gain = static - min(control[each] for each in few)
        hop = hop._replace(ours=f"up to {hops_of(gain)}", holds=gain > 1)
    longer = Claim(f"above {_MIDDLE} % paths become longer with the load")
    if few and (many := [each for each in control if each > _MIDDLE + _AROUND]):
        ours = f"{hops_of(control[many[-1]])} at {many[-1]} %, {control[few[0]]:.2f} at {few[0]} %"
        longer = longer._replace(ours=ours, holds=control[many[-1]] > control[few[0]])
    still = Claim(f"at {_FULL} % paths are still shorter than static ones")
    full = max(control, default=0)
    if full >= _FULL - _AROUND and static is not None:
        ours = f"{hops_of(control[full])} against {static:.2f}"
        still = still._replace(ours=ours, holds=control[full] < static)
    return [same, hop, longer, still]


def _static(study: Study, found: Mapping[str, Mapping[int, Series]]) -> list[float]:
    """Return, by seed, the length of static paths, which have nothing to do with the load."""
    return [hops for each in found.get(STATIC, {}).values() for hops in lengths(study, each, DELIVERY)]


def _balance_values(study: Study, found: Mapping[str, Mapping[int, Series]]) -> list[Element]:
    control, nearest = found.get(CONTROL, {}), found.get(NEAREST, {})
    lines = []
    for percent in sorted({*control, *nearest}):
        of = [each.get(percent) for each in (control, nearest)]
        values = [[] if each is None else maxima(study, each) for each in of]
        values += [[] if each is None else lengths(study, each, DELIVERY) for each in of]
        lines.append(TableRow(f"{percent} %", [over_seeds(each, two_digits) for each in values]))
    heads = ("mean load", "highest load, with control", "without", "hops, with control", "without")
    made = [table("Loads of brokers and path lengths", heads, [lines])]
    if static := _static(study, found):
        made.append(paragraph("Static paths have ", over_seeds(static, two_digits), " hops.", kind="note"))
    return made


def _compared(found: Mapping[str, Mapping[int, Series]]) -> dict[str, dict[int, Series]]:
    """Return the same series with the seeds that all of them have."""
    every = matched_by({(name, percent): each for name, of in found.items() for percent, each in of.items()})
    return {name: {percent: every[name, percent] for percent in of} for name, of in found.items()}


def _paths(study: Study, found: Mapping[str, Mapping[int, Series]]) -> Picture | None:
    points = _points(study, found, _hops)
    if static := _static(study, found):
        points[STATIC] = dict.fromkeys((percent for each in points.values() for percent in each), static)
    return _by_mean(points, Axis("hops, mean over all pairs"), "Figure 14", "homes")


def _points(
    study: Study, found: Mapping[str, Mapping[int, Series]], by: Callable[[Study, Series], list[float]]
) -> dict[str, dict[float, list[float]]]:
    return {
        name: {float(percent): by(study, series) for percent, series in found.get(name, {}).items()}
        for name in (CONTROL, NEAREST)
    }


def _by_mean(points: Mapping[str, Mapping[float, Sequence[float]]], y: Axis, name: str, legend: str) -> Picture | None:
    loads = sorted({percent for each in points.values() for percent in each})
    x = Axis("mean load of brokers (%)", max(loads, default=100.0) * 1.03, ticks=loads)
    return plots.plain({name: mean_curve(mine, np.inf) for name, mine in points.items()}, (x, y), name, legend)
