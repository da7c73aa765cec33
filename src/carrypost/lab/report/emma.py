"""The part of a page about EMMA's evaluation (§4): its figures 1 to 6 from our runs, and which of its trends hold.

The paper gives no figures in its text, only trends; of its pictures, captions say what the text says of them. Each
figure has a half for each strategy of hosts: EMMA's own, and carrypost's exchange with the same loads.

A load is what a series was run with. It is known by the keys that held, not by the name of its settings, so that
campaigns of other people's making have the same page.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from statistics import fmean
from typing import Any, NamedTuple

import numpy as np
from markupsafe import Markup

from carrypost.arrays import Floats
from carrypost.lab.metrics import families
from carrypost.lab.report import distributions, origins, plots
from carrypost.lab.report.blocks import Element, Figures, Picture, Piece, TableRow, table
from carrypost.lab.report.numbers import MINUS, NOTHING, count, over_rows, tenths
from carrypost.lab.report.papers import over_seeds
from carrypost.lab.report.plots import Axis, Curve, Extent, mean_curve
from carrypost.lab.report.study import FinishedRun, Series, Study, matched_by

EXCHANGE = "exchange"
ISLAND = ", island"
"""Behind the strategy of hosts that send straight to recipients that are connected."""
PERSISTENT, NON_PERSISTENT = "persistent", "non-persistent"
MODES = (PERSISTENT, NON_PERSISTENT)


class Load(NamedTuple):
    """Load that a series was run with."""

    strategy: str
    """Of hosts, and whether they have islands."""
    topic: bool
    """True if messages have several recipients."""
    modes: bool
    """True if messages are of both modes; else all are persistent, and differ by priority."""
    hosts: int
    buffer: int

    @classmethod
    def of(cls, run: FinishedRun) -> Load | None:
        """Return the load of a run; None: its messages are not drawn with recipients, or its hosts are not counted."""
        known = run.in_force
        workload: Mapping[str, Any] = next(iter(known.get("workload", [])), {})
        settings: Mapping[str, Any] = known.get("settings", {})
        hosts = known.get("mobility", {}).get("count")
        if workload.get("kind") != "addressed" or not isinstance(hosts, int):
            return None
        island = ISLAND if settings.get("island") else ""
        return cls(
            settings.get("strategy", EXCHANGE) + island, workload["recipients"] != 1, workload["persistent"] < 1, hosts,
            settings["cache_messages_max"],
        )  # fmt: skip


class Loads:
    """The loads of a campaign and what became of their messages."""

    def __init__(self, study: Study, all_series: Sequence[Series]) -> None:
        self._study = study
        self._series = {load: series for series in all_series if (load := Load.of(series.first)) is not None}
        strategies = dict.fromkeys(load.strategy for load in self._series)
        self.strategies = sorted(strategies, key=lambda name: name.startswith(EXCHANGE))
        """EMMA's own first."""
        self.hosts_most = max((load.hosts for load in self._series), default=0)

    def by_buffer(self, strategy: str, *, topic: bool, modes: bool) -> dict[int, Series]:
        """Return the series with the most hosts, by buffer."""
        return {
            load.buffer: self._series[load]
            for load in sorted(self._series)
            if load[:4] == (strategy, topic, modes, self.hosts_most)
        }

    def by_hosts(self, strategy: str, buffer: int) -> dict[int, Series]:
        """Return the series of topics with this buffer, by the number of hosts."""
        return {
            load.hosts: self._series[load]
            for load in sorted(self._series)
            if load[:3] == (strategy, True, True) and load.buffer == buffer
        }

    def shares(self, series: Series, mode: str = "", priority: int | None = None) -> list[float]:
        """Return, by seed, the share of recipients that got the messages of a class, by default of all classes."""
        return [share for run in series.runs if (share := self._share(run, mode, priority)) is not None]

    def _share(self, run: FinishedRun, mode: str, priority: int | None) -> float | None:
        found = self._study.columns(families.CLASSES, run)
        mine = np.ones(len(found["mode"]), np.bool_)
        if mode:
            mine &= found["mode"] == mode
        if priority is not None:
            mine &= found["priority"] == priority
        recipients = float(found["recipients"][mine].sum())
        return float(found["delivered"][mine].sum()) / recipients if recipients else None

    def priorities(self, series: Series) -> list[int]:
        """Return the priorities of its messages, the highest first."""
        found = self._study.columns(families.CLASSES, series.first)["priority"]
        return sorted({int(each) for each in found if each == each}, reverse=True)  # noqa: PLR0124 - not NaN

    def recipients(self, run: FinishedRun) -> float:
        """Return the number of pairs of a message and a recipient."""
        return float(self._study.columns(families.CLASSES, run)["recipients"].sum())

    def refused(self, series: Series) -> list[float]:
        """Return, by seed, the number of messages that the full buffer of their author refused to publish."""
        return self._study.values(families.OUTCOMES, series, "refused")

    def within(self, series: Series, age_s: float) -> list[float]:
        """Return, by seed, the share of recipients that got a message in this time."""
        made = []
        for run in series.runs:
            found = self._study.columns(families.MODE_DELAYS, run)
            soon = [
                found["cumulative"][(found["mode"] == mode) & (found["value_ms"] <= age_s * 1_000)].max(initial=0)
                for mode in dict.fromkeys(found["mode"].tolist())
            ]
            made.append(float(sum(soon)) / max(self.recipients(run), 1.0))
        return made

    def flooded(self, series: Series, age_s: float | None = None) -> list[float]:
        """Return, by seed, the share of recipients that a flood reaches; by an age, if one is given."""
        made = []
        for run in series.runs:
            found = self._study.columns(families.FLOOD, run)
            soon = np.ones(len(found["value_ms"]), np.bool_) if age_s is None else found["value_ms"] <= age_s * 1_000
            made.append(float(found["cumulative"][soon].max(initial=0)) / max(self.recipients(run), 1.0))
        return made

    def reached(self, series: Series, mode: str, least: Floats) -> list[Floats]:
        """Return, by seed, the share of a mode's messages that reached at least these shares of their recipients."""
        made = []
        for run in series.runs:
            found = self._study.columns(families.DELIVERY, run)
            ratios = found["ratio"][found["mode"] == mode].astype(np.float64)
            if len(ratios):
                made.append((ratios[None, :] >= least[:, None] - 1e-9).mean(axis=1))
        return made


TITLE = "EMMA: messages to selected hosts"
_FLOOD = "flood"
_BUFFER = 100
"""Unless it is varied, as in the paper."""
_SOON_S = 10.0
"""Age up to which a delivery counts as one without delay."""
_FALL = 0.02
"""Less than this is no fall where more hosts crowd the same buffers."""
_LOST = 0.01
"""Part of losses below which buffers are no reason for differences between classes, and the draw of recipients is."""
_GRID = np.linspace(0.0, 1.0, 41)
Of = Callable[[str], Picture | None]
"""Draws the half of a figure that is of a strategy; None: its runs are not there."""


class _Shown(NamedTuple):
    """A figure, a half for each strategy, and its numbers."""

    pictures: Sequence[tuple[str, Picture]] = ()
    numbers: Element = ""


def is_of_paper(all_series: Sequence[Series]) -> bool:
    """Return True for messages that are drawn with recipients."""
    return all(Load.of(series.first) is not None for series in all_series)


def section(study: Study, all_series: Sequence[Series], figures: Figures) -> Markup:
    """Return everything about this experiment."""
    loads = Loads(study, all_series)
    return figures.filled(
        "emma",
        strategies=loads.strategies,
        island=any(ISLAND in each for each in loads.strategies),
        trends=_trends(loads),
        receiver=_by_buffer(loads, "Figure 1", topic=False, modes=True),
        delays=_delays(study, loads),
        priorities=_by_buffer(loads, "Figure 3", topic=False, modes=False),
        ratios=_distributions(loads),
        topic=_by_buffer(loads, "Figure 5", topic=True, modes=True),
        hosts=_by_hosts(loads),
        **origins.of_paper(study, all_series, "emma"),
    )


# --- figures ----------------------------------------------------------------------------------------------------------


def _shown(loads: Loads, of: Of, numbers: Element = "") -> _Shown:
    drawn = [(strategy, picture) for strategy in loads.strategies if (picture := of(strategy)) is not None]
    if not drawn:
        return _Shown()
    return _Shown([(strategy if len(loads.strategies) > 1 else "", picture) for strategy, picture in drawn], numbers)


def _plot(lines: Mapping[str, Curve | None], x: Axis, title: str, legend: str) -> Picture | None:
    return plots.plain(lines, (x, distributions.shares("delivered, share of recipients")), title, legend)


def _classes(loads: Loads, found: Mapping[int, Series], *, modes: bool) -> dict[str, Callable[[Series], list[float]]]:
    """Return functions from a series to its shares, by the name of a curve."""
    if modes:
        return {mode: lambda series, mode=mode: loads.shares(series, mode) for mode in MODES}  # type: ignore[misc]
    priorities = loads.priorities(next(iter(found.values())))
    return {
        f"priority {each}": lambda series, each=each: loads.shares(series, priority=each)  # type: ignore[misc]
        for each in priorities
    }


def _by_buffer(loads: Loads, name: str, *, topic: bool, modes: bool) -> _Shown:
    found = {each: loads.by_buffer(each, topic=topic, modes=modes) for each in loads.strategies}
    most = max((buffer for series in found.values() for buffer in series), default=0)
    x = Axis("buffer (messages)", most * 1.03, ticks=list(dict.fromkeys(each for of in found.values() for each in of)))
    return _by_number(loads, name, found, x, modes=modes)


def _by_hosts(loads: Loads) -> _Shown:
    found = {each: loads.by_hosts(each, _BUFFER) for each in loads.strategies}
    counts = sorted({hosts for series in found.values() for hosts in series})
    if len(counts) <= 1:
        return _Shown()
    x = Axis("hosts", counts[-1] + 1, counts[0] - 1, ticks=counts)
    return _by_number(loads, "Figure 6", found, x, modes=True)


def _by_number(loads: Loads, name: str, found: Mapping[str, Mapping[int, Series]], x: Axis, *, modes: bool) -> _Shown:
    """Return a figure of shares by buffer or number of hosts, and its table."""

    def of(strategy: str) -> Picture | None:
        if not (series := found[strategy]):
            return None
        legend = "messages" if modes else "persistent messages"
        return _plot(_lines(loads, series, modes=modes), x, f"{name}: delivered, {strategy}", legend)

    there = {strategy: series for strategy, series in found.items() if series}
    return _shown(loads, of, _numbers(loads, name, x.title, there, modes=modes))


def _lines(loads: Loads, found: Mapping[int, Series], *, modes: bool) -> dict[str, Curve | None]:
    classes = _classes(loads, found, modes=modes)
    found = matched_by(found)
    lines = {name: mean_curve({x: of(series) for x, series in found.items()}) for name, of in classes.items()}
    bound = mean_curve({x: loads.flooded(series) for x, series in found.items()})
    return lines | {_FLOOD: None if bound is None else bound.bare()}


def _delays(study: Study, loads: Loads) -> _Shown:
    name = "Figure 2"

    def of(strategy: str) -> Picture | None:
        series = loads.by_buffer(strategy, topic=False, modes=True).get(_BUFFER)
        if series is None:
            return None
        most_s = series.lifetime_s or series.first.duration_s or 1.0
        extent = Extent(most_s, 1.0)
        lines = {
            mode: plots.distribution(distributions.steps(study, families.MODE_DELAYS, series, mode=mode), extent)
            for mode in MODES
        }
        floods = [
            (x, shares * loads.flooded(series)[place])
            for place, (x, shares) in enumerate(distributions.steps(study, families.FLOOD, series))
        ]
        bound = plots.distribution(floods, extent)
        lines[_FLOOD] = None if bound is None else bound.bare()
        return _plot(lines, Axis("delay (s)", most_s), f"{name}: delays, {strategy}", "messages")

    heads = [
        "strategy",
        "buffer",
        "within 10 s",
        "connected at publication",
        "in a flood within 10 s",
        "in a flood at all",
    ]
    rows = [
        TableRow(strategy, [
            str(buffer), *(
                over_seeds(values, tenths) for values in (
                    loads.within(series, _SOON_S), loads.flooded(series, 0), loads.flooded(series, _SOON_S),
                    loads.flooded(series),
                )
            ),
        ])
        for strategy in loads.strategies
        for buffer, series in loads.by_buffer(strategy, topic=False, modes=True).items()
    ]  # fmt: skip
    return _shown(loads, of, table("Delivered at once", heads, [rows]))


def _distributions(loads: Loads) -> _Shown:
    name = "Figure 4"

    def of(strategy: str) -> Picture | None:
        series = loads.by_buffer(strategy, topic=True, modes=True).get(_BUFFER)
        if series is None:
            return None
        lines: dict[str, Curve] = {}
        for mode in MODES:
            if seeds := loads.reached(series, mode, _GRID):
                mean, half = over_rows(np.stack(seeds))
                band = [np.clip(each, 0.0, 1.0) for each in (mean - half, mean + half)] if len(seeds) > 1 else []
                lines[mode] = Curve(_GRID, mean, *band)
        x = Axis("recipients reached, at least", 1.0, labels=plots.SHARE.labels, ticks=plots.SHARE.ticks)
        axes = x, distributions.shares("share of messages")
        return plots.curves(lines, axes, f"{name}: delivery ratios, {strategy}", steps=False, legend="messages")

    return _shown(loads, of)


# --- tables -----------------------------------------------------------------------------------------------------------


def _numbers(loads: Loads, name: str, what: str, found: Mapping[str, Mapping[int, Series]], *, modes: bool) -> Element:
    """Return means over seeds, with minimum and maximum, by strategy and then by buffer or number of hosts."""
    groups: list[list[TableRow]] = []
    names: list[str] = []
    for strategy, by_number in found.items():
        every = {"all": loads.shares} if modes else {}
        refused = [loads.refused(series) for series in by_number.values()]
        classes = {**_classes(loads, by_number, modes=modes), **every, _FLOOD: loads.flooded}
        names = list(classes)
        lines: list[TableRow] = []
        for (number, series), declined in zip(by_number.items(), refused, strict=True):
            cells: list[Piece] = [str(number), over_seeds(declined, count) if declined else NOTHING]
            for of in classes.values():
                values = of(series)
                cells += [over_seeds(values, tenths), _span(values)]
            lines.append(TableRow("" if lines else strategy, cells))
        groups.append(lines)
    over = [("", 3), *((each, 2) for each in names)]
    heads = ["strategy", what, "refused", *(["mean", "seeds, %"] * len(names))]
    return table(f"{name} in numbers", heads, groups, over=over, kept=3)


def _span(values: Sequence[float]) -> str:
    return f"{100 * min(values):.0f} – {100 * max(values):.0f}" if len(values) > 1 else NOTHING


def _trends(loads: Loads) -> Element:
    """Show what the paper's text says, a row each, and what we found with each strategy."""
    rows = [TableRow(trend, [of(loads, strategy) for strategy in loads.strategies]) for trend, of in _TRENDS.items()]
    return table(
        "The paper's trends", ["the paper", *loads.strategies], [rows], texts=tuple(range(len(loads.strategies)))
    )


def _least(loads: Loads, strategy: str) -> str:
    """Return how much more often persistent messages are delivered, at the buffer where that is least."""
    found = [
        fmean(loads.shares(series, PERSISTENT)) - fmean(loads.shares(series, NON_PERSISTENT))
        for topic in (False, True)
        for series in _short(loads, loads.by_buffer(strategy, topic=topic, modes=True))
    ]
    return _verdict(min(found), "at least", "pp more") if found else _NOT_SHORT


def _short(loads: Loads, found: Mapping[int, Series]) -> list[Series]:
    """Return the series whose buffers are too small, so that messages are lost that a flood would have brought."""
    return [series for series in found.values() if fmean(loads.flooded(series)) - fmean(loads.shares(series)) >= _LOST]


def _rising(loads: Loads, strategy: str) -> str:
    steps = []
    for topic in (False, True):
        means = [fmean(loads.shares(series)) for series in loads.by_buffer(strategy, topic=topic, modes=True).values()]
        steps += [after - before for before, after in pairwise(means)]
    return _verdict(min(steps), "each step by at least", "pp") if steps else _MISSING


def _ordered(loads: Loads, strategy: str) -> str:
    steps = []
    for series in _short(loads, loads.by_buffer(strategy, topic=False, modes=False)):
        means = [fmean(loads.shares(series, priority=each)) for each in loads.priorities(series)]
        steps += [higher - lower for higher, lower in pairwise(means)]
    return _verdict(min(steps), "each class by at least", "pp") if steps else _NOT_SHORT


def _denser(loads: Loads, strategy: str) -> str:
    means = {hosts: fmean(loads.shares(series)) for hosts, series in loads.by_hosts(strategy, _BUFFER).items()}
    if len(means) <= 1:
        return _MISSING
    steps = [after - before for before, after in pairwise(means.values())]
    text = ", ".join(f"{hosts} hosts {tenths(each)}" for hosts, each in means.items())
    holds = steps[0] >= 0 and all(each >= -_FALL for each in steps)
    return f"{'yes' if holds else 'no'}: {text}"


def _at_once(loads: Loads, strategy: str) -> str:
    found = loads.by_buffer(strategy, topic=False, modes=True)
    if not found:
        return _MISSING
    series = found[max(found)]
    soon, connected = fmean(loads.within(series, _SOON_S)), fmean(loads.flooded(series, 0))
    return f"{tenths(soon)} within 10 s; {tenths(connected)} of recipients were connected with the sender"


_MISSING = "not run"
_NOT_SHORT = "not run, or no buffer was too small"
_TRENDS: Mapping[str, Callable[[Loads, str], str]] = {
    "persistent messages are delivered at least as often as others": _least,
    "more is delivered with larger buffers": _rising,
    "higher priorities are delivered at least as often": _ordered,
    "more is delivered with more hosts": _denser,
    "a proportion is delivered more or less immediately": _at_once,
}


def _verdict(least: float, how: str, unit: str) -> str:
    rounded = round(100 * least, 1)
    text = f"{MINUS if rounded < 0 else ''}{abs(rounded):.1f}"
    return f"{'yes' if rounded >= 0 else 'no'}: {how} {text} {unit}"
