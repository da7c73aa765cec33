"""EMMA's loads among the runs of a campaign: what each series was run with, and shares over seeds of what it reached.

A load is known by the keys that held, not by the name of its settings, so that campaigns of other people's making have
the same page.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from carrypost.arrays import Floats
from carrypost.lab.metrics import families
from carrypost.lab.report.curves import Curve
from carrypost.lab.report.intervals import interval
from carrypost.lab.report.study import FinishedRun, Series, Study

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


def curve(points: Mapping[float, Sequence[float]], most: float = 1.0) -> Curve | None:
    """Return means over seeds, each with its interval, by a number, capped at `most`; None if there are none."""
    found = [(x, each) for x, values in sorted(points.items()) if (each := interval(values)) is not None]
    if not found:
        return None
    x, mean = np.array([each[0] for each in found], np.float64), np.array([each[1].mean for each in found])
    halves = [each[1].half for each in found]
    if any(half is None for half in halves):
        return Curve(x, mean)
    half = np.array(halves, np.float64)
    return Curve(x, mean, np.clip(mean - half, 0.0, most), np.clip(mean + half, 0.0, most))
