"""Brokers that share the work among walking nodes: highest loads, lengths of paths (OVERLAY §4.2, figures 13, 14)."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from pathlib import Path
from statistics import fmean
from typing import NamedTuple

import pytest

from carrypost.emu import Scenario, run
from carrypost.lab.campaign.reproduce import RECIPES
from carrypost.lab.metrics import families, tables

FILE = Path(__file__).parents[2] / "scenarios" / "balance.toml"
SETTINGS = {each.name: each.changes for each in RECIPES["balance"].settings}
LOADS = range(10, 101, 10)
SEEDS = range(1, 11)
LOAD_MAX = 0.9
CLIENTS_PER_BROKER = 3


class Found(NamedTuple):
    """The highest load of a broker, and the mean length of paths to consumers."""

    load: float
    hops: float


def balanced(name: str, seed: int, begin_s: float = 60, more: Mapping[str, object] | None = None) -> Found:
    """Run one choice of settings; loads count from `begin_s` on."""
    records = run(Scenario.load(FILE, {**SETTINGS[name], **(more or {})}), seed).table
    made = tables("balance", records, [families.LOAD, families.PATH_LENGTHS])
    paths = [row for row in made["path_lengths"].to_pylist() if row["path"] == "delivery" and row["pairs"]]
    hops = sum(row["hops"] * row["pairs"] for row in paths) / sum(row["pairs"] for row in paths)
    return Found(max(row["max"] for row in made["load"].to_pylist() if row["t"] >= begin_s), hops)


def allowed(percent: int) -> float:
    """Return the load that a broker may have: the limit, or the mean of all, plus one client."""
    mean = percent / 100
    return max(LOAD_MAX, mean) + mean / CLIENTS_PER_BROKER


@pytest.mark.soak
def test_work_is_shared_where_the_nearest_brokers_would_have_too_much() -> None:
    short = {"duration_s": 40}
    control, nearest = (balanced(f"{name}-80", 1, 20, short) for name in ("control", "nearest"))
    assert control.load <= allowed(80) < nearest.load
    assert nearest.hops <= control.hops


@cache
def mean(name: str) -> Found:
    found = [balanced(name, seed) for seed in SEEDS]
    return Found(fmean(each.load for each in found), fmean(each.hops for each in found))


@pytest.mark.soak
@pytest.mark.parametrize("percent", LOADS)
def test_loads_and_paths_are_those_of_the_paper(percent: int) -> None:
    control, nearest, static = mean(f"control-{percent}"), mean(f"nearest-{percent}"), mean("static")
    if percent <= 30:
        assert abs(control.load - nearest.load) <= 0.05
    if percent >= 40:
        assert nearest.load >= 1.0
    if percent <= 90:
        assert control.load <= allowed(percent)
    if percent <= 60:
        assert control.hops <= nearest.hops + 0.15
        # At 60 % some brokers are full, and seats wait elsewhere: brokers do not exchange seats.
        assert control.hops <= static.hops - (0.9 if percent <= 50 else 0.8)
    assert control.hops < static.hops
