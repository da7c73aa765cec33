"""The part of a page about the broker network of OVERLAY (§4.1): its figures 7 to 9 beside the values of its text.

The paper compares brokers that follow mobility with static ones and with shortest paths of the network. It gives
lengths of paths for some update periods, and what keeping the overlay costs for two of them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import fmean

import numpy as np
from markupsafe import Markup

from carrypost.lab.metrics import families
from carrypost.lab.report import curves, origins, plots, verdict
from carrypost.lab.report.curves import Curve
from carrypost.lab.report.grids import Element, TableRow, table
from carrypost.lab.report.html import Piece
from carrypost.lab.report.loads import curve
from carrypost.lab.report.pictures import Figures, Picture
from carrypost.lab.report.plots import Axis, Mark
from carrypost.lab.report.study import FinishedRun, Series, Study, matched, matched_by
from carrypost.lab.report.tables import over_seeds
from carrypost.lab.report.times import NOTHING, tenths
from carrypost.lab.report.verdict import Claim

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
        verdict=verdict.of_claims(_claims(study, adaptive, static), all_series, WHOLE_S),
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
        less = less._replace(
            ours=f"{hops_of(hops[late])} against {still:.2f}", holds=verdict.is_less(hops[late], still)
        )
    return [
        verdict.quoted(f"shortest paths of the network have {_PAPER_NETWORK} hops", network, _PAPER_NETWORK, hops_of),
        verdict.quoted(f"paths over static brokers have {_PAPER_STATIC} hops", still, _PAPER_STATIC, hops_of),
        *(
            verdict.quoted(
                f"paths over adaptive brokers have {paper} hops with an update every {period_s:g} s",
                hops.get(period_s), paper, hops_of,
            )
            for period_s, paper in _PAPER_HOPS.items()
        ),
        verdict.rising("paths become longer with the update period", hops, "s", two_digits),
        less,
        _nearly_always(study, adaptive.get(_SHOWN_S), static),
        verdict.quoted(
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
    return curves.over_time(seeds, 0.0)


def _by_period(study: Study, adaptive: dict[float, Series], static: Series | None) -> Picture | None:
    adaptive = matched_by(adaptive | ({} if static is None else {_STATIC: static}))
    static = adaptive.pop(_STATIC, None)
    of = {"adaptive": {update_s: lengths(study, each, OVERLAY) for update_s, each in adaptive.items()}}
    of["network"] = {update_s: lengths(study, each, NETWORK) for update_s, each in adaptive.items()}
    if static is not None:
        of["static"] = dict.fromkeys(adaptive, lengths(study, static, OVERLAY))
    marks = [Mark("adaptive", update_s, hops) for update_s, hops in _PAPER_HOPS.items()]
    marks += [Mark("network", _SHOWN_S, _PAPER_NETWORK), Mark("static", _SHOWN_S, _PAPER_STATIC)]
    lines = {name: curve(points, np.inf) for name, points in of.items()}
    return plots.plain(lines, (_periods(adaptive), Axis("hops between brokers, mean")), "Figure 8", "paths", marks)


def _costs(study: Study, adaptive: Mapping[float, Series]) -> Picture | None:
    costs = curve({update_s: kilobits(study, each) for update_s, each in matched_by(adaptive).items()}, np.inf)
    marks = [Mark("adaptive", _SHOWN_S, float(_PAPER_KBIT[_SHOWN_S]))]
    axes = _periods(adaptive), Axis("kbit/s per broker")
    return plots.plain({"adaptive": costs}, axes, "Figure 9", "paths", marks)


def _periods(adaptive: Mapping[float, Series]) -> Axis:
    return Axis("update period (s)", max(adaptive, default=1.0) * 1.03, ticks=sorted(adaptive))
