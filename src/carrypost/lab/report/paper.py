"""Values that the papers print, to stand beside ours, and the parameters that they give: `papers.toml`.

Of CAUSAL these are Tables I to VI, and the figures that its text quotes.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from carrypost.lab.report.times import ENDLESS, seconds


class Time(float):
    """A length of time in seconds, which the paper prints in its own way."""


class Quad(msgspec.Struct, frozen=True, array_like=True):
    """Least, most, mean and standard deviation, in seconds."""

    min_s: Time
    max_s: Time
    avg_s: Time
    stdev_s: Time


class Processing(msgspec.Struct, frozen=True, array_like=True):
    """A column of Table II or V."""

    bcast: int
    rcvd: int
    codlvd: int
    codlvratio: float
    expd: int | None = None
    expratio: float | None = None


class Point(msgspec.Struct, frozen=True, array_like=True):
    """A point of a distribution that the text quotes: the share received or delivered in less than this time."""

    share: float
    value_s: float


class PaperLifetime(msgspec.Struct, frozen=True):
    """A column of Table II or V, and a line of Table III or VI."""

    processing: Processing
    tdelay: Quad
    ltcy: Quad
    codlvdelay: Quad
    lifetime_s: float | None = None
    """None: endless."""
    tdelay_points: tuple[Point, ...] = ()
    ltcy_points: tuple[Point, ...] = ()


class Experiment(msgspec.Struct, frozen=True):
    """One of the paper's two experiments; lifetimes in seconds, None: endless."""

    scenario: str
    """As the shipped scenario is called."""
    title: str
    section: str
    tables: tuple[str, str, str]
    figures: tuple[str, str, str, str]
    duration_s: Time
    nodes: int
    active_max: int
    activity: Quad
    contacts: int
    contact: Quad
    lifetimes: tuple[PaperLifetime, ...]
    pair: tuple[float | None, float | None]
    """Lifetimes of the two halves of figures 4, 6, 9 and 11."""
    ltcy_cut_s: float
    """End of the axis of latencies."""

    @property
    def of(self) -> dict[float | None, PaperLifetime]:
        """Printed values by lifetime."""
        return {each.lifetime_s: each for each in self.lifetimes}


def _experiment(scenario: str, printed: dict[str, Any]) -> Experiment:
    pair = [None if each == ENDLESS else each for each in printed["pair"]]
    values = {**printed, "scenario": scenario, "pair": pair}
    return msgspec.convert(values, Experiment, dec_hook=lambda kind, text: kind(seconds(text)))


_PRINTED = tomllib.loads(Path(__file__).with_name("papers.toml").read_text(encoding="utf-8"))
SOURCES: Mapping[str, Mapping[str, str]] = _PRINTED["sources"]
"""The papers: authors, title, place and a note."""
PARAMETERS: Mapping[str, Any] = _PRINTED["parameters"]
"""Keys of scenarios and their meanings, by what gives them."""
EXPERIMENTS = {name: _experiment(name, printed) for name, printed in _PRINTED["causal"].items()}
BUS, OSTERMALM = EXPERIMENTS["city_bus"], EXPERIMENTS["ostermalm"]

# Figure 8 shows the 140 walkers that enter in the first 20 minutes. Figure 11 is of node N777, which is there for five
# minutes from 1h49' on: received and co-delivered by lifetime; pending and co_delivered at most, at 20'.
ENTERED_S = 1_200.0
BUS_NODE = "L01-1"
WALKER_FROM_S = seconds("1h49'")
WALKER_STAY_S = 300.0
WALKER: dict[float | None, tuple[int, int]] = {300: (269, 274), 1_200: (760, 764)}
WALKER_PENDING_MAX = 400
WALKER_SOURCES_MAX = 150
