"""The part of a page about load balancing of OVERLAY (§4.2): figures 13 and 14 beside the words of its text.

The paper's text gives no values of these figures. It says from which loads on the two approaches differ, and which
paths are longer. So its sentences stand beside ours.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from markupsafe import Markup

from carrypost.arrays import Floats
from carrypost.emu.engine.delivery_paths import DELIVERY
from carrypost.lab.metrics import families
from carrypost.lab.report import origins, plots, verdict
from carrypost.lab.report.grids import Element, TableRow, table
from carrypost.lab.report.html import paragraph
from carrypost.lab.report.loads import curve
from carrypost.lab.report.overlay import WHOLE_S, hops_of, lengths, mean_of, overlay_of, two_digits
from carrypost.lab.report.pictures import Figures, Picture
from carrypost.lab.report.plots import Axis
from carrypost.lab.report.study import FinishedRun, Series, Study, matched_by
from carrypost.lab.report.tables import over_seeds
from carrypost.lab.report.verdict import Claim

TITLE = "Opportunistic overlays: brokers that share the work"
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


def section(study: Study, all_series: Sequence[Series], figures: Figures) -> Markup:
    """Return everything about this experiment."""
    found = _by_load(study, all_series)
    return figures.filled(
        "balance",
        verdict=verdict.of_claims(_claims(study, found), all_series, WHOLE_S),
        values=_values(study, found),
        maxima=_maxima(study, _compared(found)),
        paths=_paths(study, _compared(found)),
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


def _claims(study: Study, found: Mapping[str, Mapping[int, Series]]) -> list[Claim]:
    """Return the statements of the paper's text."""
    return [*_load_claims(study, found), *_path_claims(study, found)]


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
        alike = all(verdict.is_near(control[each], nearest[each]) for each in light)
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
        less = less._replace(ours=ours, holds=all(verdict.is_less(control[each], nearest[each]) for each in more))
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


def _values(study: Study, found: Mapping[str, Mapping[int, Series]]) -> list[Element]:
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


def _maxima(study: Study, found: Mapping[str, Mapping[int, Series]]) -> Picture | None:
    return _by_mean(_points(study, found, maxima), Axis("highest load"), "Figure 13", "brokers")


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
    return plots.plain({name: curve(mine, np.inf) for name, mine in points.items()}, (x, y), name, legend)
