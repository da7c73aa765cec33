"""The part of a page about the campus of JOMS (§3.3): figures 6b, 7, 8a, 8b, 9 and 10 beside the words of its text.

The figures of the paper are pictures: what its text says of them stands beside ours. Contacts are a model's, fitted to
the paper's sums, so they are no evidence; what becomes of messages is.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import numpy as np
from markupsafe import Markup

from carrypost.lab.metrics import families
from carrypost.lab.metrics.presence import HOSTS, TRUE
from carrypost.lab.report import distributions, origins, papers, plots
from carrypost.lab.report.blocks import Element, Figures, Picture, TableRow, table
from carrypost.lab.report.numbers import NOTHING, count, interval, share, shown
from carrypost.lab.report.papers import Claim, over_seeds
from carrypost.lab.report.plots import Axis, Bar, Curve, Extent, Mark
from carrypost.lab.report.study import FinishedRun, Series, Study, matched
from carrypost.lab.schemas import Table

TITLE = "JMS for opportunistic networks: eight phones on a campus"
TOPIC, THIRD, RECIPIENT = "topic", "queue of a third manager", "queue of the recipient"
_LOADS = {"none": TOPIC, "third": THIRD, "recipient": RECIPIENT}
WHOLE_S = 144_000.0
_CONTACTS, _MEAN_S, _ONE_WAY, _ALONE, _TWO = 5_729, 121.0, 0.025, 0.3, 0.8
_SOON_S, _SHARE, _QUEUE_S, _HOUR_S, _LOST = 1_200.0, 0.8, 2_400.0, 3_600.0, 0.03
"""Figure 8a: the share of messages to a topic received soon; the time by which that share of a queue's is; losses."""
_FIRST_DAY_S, _WINDOW_S, _AXIS_S, _LASTING_S = 57_600.0, 600.0, 7_200.0, 600.0
_MOST = 0.5
_QUANTILES = (0.5, 0.8, 0.9)


class _Loads(NamedTuple):
    """The series of a campaign by load."""

    study: Study
    by: Mapping[str, Series]

    def values(self, load: str, value: Callable[[Study, FinishedRun], float | None]) -> list[float]:
        """Return a figure of each run."""
        series = self.by.get(load)
        found = [value(self.study, run) for run in series.runs] if series else []
        return [each for each in found if each is not None]

    def mean(self, load: str, value: Callable[[Study, FinishedRun], float | None]) -> float | None:
        """Return its mean over seeds."""
        found = interval(self.values(load, value))
        return None if found is None else found.mean


def section(study: Study, all_series: Sequence[Series], figures: Figures) -> Markup:
    """Return everything about this experiment."""
    loads = _Loads(study, {_load(each): each for each in matched(all_series)})
    first = next(iter(loads.by.values()))
    return figures.filled(
        "campus",
        verdict=papers.of_claims(_claims(loads), all_series, WHOLE_S),
        contacts=_contacts(study, first),
        neighbours=_neighbours(study, first),
        by_time=_by_time(study, first),
        deliveries=_deliveries(loads),
        delays=_delays(loads),
        spread=_spread(loads),
        way=_way(loads),
        lasting=_lasting(study, first),
        hops=_hops(loads),
        **origins.of_paper(study, all_series, "campus"),
    )


def is_of_paper(all_series: Sequence[Series]) -> bool:
    """Return True if these are runs of this experiment."""
    return all(_load(each) for each in all_series)


def _load(series: Series) -> str:
    workload: dict[str, object] = next(iter(series.first.in_force.get("workload", [])), {})
    return _LOADS.get(str(workload.get("queue")), "") if workload.get("kind") == "random" else ""


# --- figures of a run -----------------------------------------------------------------------------------------
def _within(load: str, at_s: float) -> Callable[[Study, FinishedRun], float | None]:
    """Return the share of delivered messages that were delivered in less than a time."""

    def value(study: Study, run: FinishedRun) -> float | None:
        x, y = distributions.steps_of(study, families.DELIVERY_CDF, run, destination=_kind(load))
        return float(y[x < at_s].max(initial=0.0)) if len(x) else None

    return value


def _quantile(load: str, part: float) -> Callable[[Study, FinishedRun], float | None]:
    """Return the time in which this share of delivered messages was delivered."""

    def value(study: Study, run: FinishedRun) -> float | None:
        x, y = distributions.steps_of(study, families.DELIVERY_CDF, run, destination=_kind(load))
        return float(x[min(int(np.searchsorted(y, part)), len(x) - 1)]) if len(x) else None

    return value


def _kind(load: str) -> str:
    return "topic" if load == TOPIC else "queue"


def _lost(study: Study, run: FinishedRun) -> float | None:
    """Return the share of pairs of a message and a recipient without a delivery."""
    found = study.columns(families.CLASSES, run)
    recipients = float(found["recipients"].sum())
    return 1 - float(found["delivered"].sum()) / recipients if recipients else None


def _far(study: Study, run: FinishedRun) -> float | None:
    """Return the number of phones that got at least half of their messages over several hops."""
    shares = _several_hops(study, run)
    return float(sum(each >= _MOST for each in shares.values())) if shares else None


def _several_hops(study: Study, run: FinishedRun) -> dict[str, float]:
    found = study.columns(families.HOPS, run)
    shares = 1 - found["direct"] / np.maximum(found["received"], 1)
    return dict(zip(found["node"].tolist(), shares.tolist(), strict=True))


def _up_to(neighbours: int) -> Callable[[Study, FinishedRun], float | None]:
    """Return the share of time with so many neighbours or fewer."""

    def value(study: Study, run: FinishedRun) -> float | None:
        x, y = distributions.ordered(study, families.NEIGHBOURS, run, "neighbours", "share")
        return float(y[x <= neighbours].max(initial=0.0)) if len(x) else None

    return value


# --- verdict and tables ---------------------------------------------------------------------------------------
def _claims(loads: _Loads) -> list[Claim]:
    """Return the statements of the paper's text about messages."""
    hour = [loads.mean(load, _within(load, _HOUR_S)) for load in loads.by]
    most = Claim("most messages take less than an hour")
    if known := [each for each in hour if each is not None]:
        most = most._replace(ours=" and ".join(map(share, known)), holds=min(known) > _MOST)
    lost = Claim("about 3 % of the messages are not delivered")
    if (ours := loads.mean(TOPIC, _lost)) is not None:
        lost = lost._replace(ours=f"{share(ours)} of the messages to the topic", holds=ours < 2 * _LOST)
    far = Claim("most phones got at least half of their messages over several hops")
    if (phones := loads.mean(TOPIC, _far)) is not None:
        far = far._replace(ours=f"{phones:.1f} of 8 phones", holds=phones > 8 / 2)
    soon = loads.mean(TOPIC, _within(TOPIC, _SOON_S))
    text = f"nearly {100 * _SHARE:g} % of the messages to a topic take less than {shown(_SOON_S)}"
    slow = f"most messages to a queue, read as {100 * _SHARE:g} %, take about {shown(_QUEUE_S)}"
    return [
        papers.quoted(text, soon, _SHARE, share), _slower(loads),
        papers.quoted(slow, loads.mean(THIRD, _quantile(THIRD, _SHARE)), _QUEUE_S, shown), most, lost, far,
    ]  # fmt: skip


def _slower(loads: _Loads) -> Claim:
    claim = Claim("messages to a queue take longer than those to a topic")
    both = [[loads.mean(load, _quantile(load, part)) for part in _QUANTILES] for load in (TOPIC, THIRD)]
    pairs = [(one, two) for one, two in zip(*both, strict=True) if one is not None and two is not None]
    if len(pairs) < len(_QUANTILES):
        return claim
    listed = ", ".join(
        f"{shown(two)} in place of {shown(one)} for {100 * part:g} %"
        for part, (one, two) in zip(_QUANTILES, pairs, strict=True)
    )
    return claim._replace(ours=listed, holds=all(two > one for one, two in pairs))


def _contacts(study: Study, series: Series) -> Element:
    """Return the contacts that there were, those that hosts saw, and the paper's."""

    def seen(view: str, column: str, show: Callable[[float | None], str]) -> str | Markup:
        return over_seeds(study.values(families.CONTACT_VIEWS, series, column, view=view), show)

    def part(view: str) -> str | Markup:
        rows = [study.row(families.CONTACT_VIEWS, run, view=view) for run in series.runs]
        return over_seeds([row["one_way"] / row["contacts"] for row in rows if row], share)

    def spent(neighbours: int) -> str | Markup:
        found = [_up_to(neighbours)(study, run) for run in series.runs]
        return over_seeds([each for each in found if each is not None], share)

    lines = [
        TableRow("contacts", [count(_CONTACTS), seen(TRUE, "contacts", count), seen(HOSTS, "contacts", count)]),
        TableRow("mean duration", [shown(_MEAN_S), seen(TRUE, "avg_s", shown), seen(HOSTS, "avg_s", shown)]),
        TableRow("less than a minute", ["most", seen(TRUE, "short", share), seen(HOSTS, "short", share)]),
        TableRow("one way only", [f"{100 * _ONE_WAY:g} %", part(TRUE), part(HOSTS)]),
        TableRow("time without a neighbour", [f"about {100 * _ALONE:g} %", spent(0), NOTHING]),
        TableRow("time with at most two", [f"almost {100 * _TWO:g} %", spent(2), NOTHING]),
    ]
    return table("Contacts and neighbours", ["", "paper", "ours", "ours, as hosts see them"], [lines])


def _deliveries(loads: _Loads) -> Element:
    """Return what became of messages, by load."""
    figures: list[tuple[str, str, Callable[[float | None], str], Callable[[str], Callable[..., float | None]]]] = [
        (f"in less than {shown(_SOON_S)}", "nearly 80 % (topic)", share, lambda load: _within(load, _SOON_S)),
        (f"in less than {shown(_QUEUE_S)}", "most, 80 % here (queue)", share, lambda load: _within(load, _QUEUE_S)),
        (f"in less than {shown(_HOUR_S)}", "most", share, lambda load: _within(load, _HOUR_S)),
        *((f"time for {100 * part:g} %", NOTHING, shown, lambda load, part=part: _quantile(load, part))
          for part in _QUANTILES),
        ("not delivered", "about 3 %", share, lambda _: _lost),
    ]  # fmt: skip
    lines = [
        TableRow(name, [paper, *(over_seeds(loads.values(load, value(load)), show) for load in loads.by)])
        for name, paper, show, value in figures
    ]
    return table("Messages delivered, by time", ["", "paper", *loads.by], [lines])


def _way(loads: _Loads) -> Element:
    """Return the way of the message of figure 8b, in the first run."""
    if (series := loads.by.get(TOPIC)) is None:
        return ""
    found = loads.study.columns(families.SPREAD, series.first)
    lines = [
        TableRow(f"{peer} → {node}", [shown(after_s)])
        for node, peer, after_s in zip(found["node"], found["peer"], found["after_s"].tolist(), strict=True)
    ]
    return table("The way of one message", ["from → to", "time since its publication"], [lines])


# --- figures --------------------------------------------------------------------------------------------------
def _neighbours(study: Study, series: Series) -> Picture | None:
    seeds = [distributions.ordered(study, families.NEIGHBOURS, run, "neighbours", "share") for run in series.runs]
    curve = plots.distribution(seeds, Extent(7.0, 1.0))
    axes = Axis("number of neighbours, at most", 7.0), distributions.shares("share of time")
    marks = [Mark(plots.EVERYONE, 0, _ALONE), Mark(plots.EVERYONE, 2, _TWO)]
    return plots.plain({plots.EVERYONE: curve}, axes, "Figure 6b", "", marks)


def _by_time(study: Study, series: Series) -> Picture | None:
    seeds = []
    for run in series.runs:
        t_s, found = distributions.ordered(study, families.NEIGHBOURS_TIMELINE, run, "t", "neighbours")
        there = (t_s < _FIRST_DAY_S) & ~np.isnan(found)
        seeds.append(plots.windows(t_s[there], found[there], _WINDOW_S))
    curve = plots.over_time(seeds, _WINDOW_S)
    if curve is None:
        return None
    axes = Axis("time since the start (h)", _FIRST_DAY_S / _HOUR_S), Axis("neighbours of a phone, mean", 7.0)
    return plots.plain({plots.EVERYONE: curve.scaled(_HOUR_S)}, axes, "Figure 7", "")


def _distribution(study: Study, of: Table, series: Series, most_s: float, unit_s: float, **equal: str) -> Curve | None:
    found = plots.distribution(distributions.steps(study, of, series, **equal), Extent(most_s, 1.0))
    return None if found is None else found.scaled(unit_s)


def _delays(loads: _Loads) -> Picture | None:
    lines = {
        load: _distribution(
            loads.study, families.DELIVERY_CDF, series, _AXIS_S, 60.0, destination=_kind(load)
        )
        for load, series in loads.by.items()
    }  # fmt: skip
    axes = Axis("time from publication to delivery (min)", _AXIS_S / 60), distributions.shares("share of deliveries")
    marks = [Mark(TOPIC, _SOON_S / 60, _SHARE), Mark(THIRD, _QUEUE_S / 60, _SHARE)]
    return plots.plain(lines, axes, "Figure 8a", "load", marks)


def _spread(loads: _Loads) -> Picture | None:
    if (series := loads.by.get(TOPIC)) is None:
        return None
    after_s, reached = distributions.ordered(loads.study, families.SPREAD, series.first, "after_s", "reached")
    if not len(after_s):
        return None
    most_s = float(after_s[-1]) or 1.0
    stairs = Curve(np.append(after_s, most_s) / _HOUR_S, np.append(reached, reached[-1]))
    axes = Axis("time since publication (h)", most_s / _HOUR_S), Axis("phones that have it", 7.3)
    return plots.curves({plots.EVERYONE: stairs}, axes, "Figure 8b", legend="")


def _lasting(study: Study, series: Series) -> Picture | None:
    lines = {
        name: _distribution(study, of, series, _LASTING_S, 1.0)
        for name, of in (("ours", families.CONTACT_CDF), ("as hosts see them", families.SEEN_CONTACT_CDF))
    }
    axes = Axis("duration of contacts (s)", _LASTING_S), distributions.shares("share of contacts")
    return plots.plain(lines, axes, "Figure 9", "contacts")


def _hops(loads: _Loads) -> Picture | None:
    if (series := loads.by.get(TOPIC)) is None:
        return None
    by_run = [_several_hops(loads.study, run) for run in series.runs]
    bars = [
        Bar(node, TOPIC, *found)
        for node in sorted({node for each in by_run for node in each})
        if (found := interval([each[node] for each in by_run if node in each])) is not None
    ]
    axis = distributions.shares("share of receptions over several hops")
    return plots.bars(bars, ("phone", axis, "messages to a"), "Figure 10") if bars else None
