"""Brokers and clients among walking nodes: lengths of paths and costs, beside the paper's text (OVERLAY §4.1)."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import NamedTuple

import pytest

from carrypost.emu import Scenario, run
from carrypost.lab.metrics import families, tables

OVERLAY = Path(__file__).parents[2] / "scenarios" / "overlay.toml"
STATIC: dict[str, object] = {"settings.overlay.topology": "static"}
SMALL: dict[str, object] = {
    "mobility.count": 30,
    "mobility.side_m": 548,
    "nodes.group.0.count": 12,
    "duration_s": 80,
    "sample_s": 20,
}
"""As many nodes on a square metre as in the paper, and of these as many brokers."""
SEEDS = range(1, 11)


class Found(NamedTuple):
    """Means of one run: hops between brokers, and kbit/s that each sends to maintain the overlay."""

    network: float
    overlay: float
    kbit: float


def walked(seed: int, changes: Mapping[str, object]) -> Found:
    records = run(Scenario.load(OVERLAY, changes), seed).table
    made = tables("walk", records, [families.PATH_LENGTHS, families.BROKER_TRAFFIC])
    hops: dict[str, float] = defaultdict(float)
    pairs: dict[str, int] = defaultdict(int)
    for row in made["path_lengths"].to_pylist():
        hops[row["path"]] += (row["hops"] or 0) * row["pairs"]
        pairs[row["path"]] += row["pairs"]
    kbit = fmean(row["bits_per_s"] for row in made["broker_traffic"].to_pylist()) / 1_000
    return Found(hops["network"] / pairs["network"], hops["overlay"] / pairs["overlay"], kbit)


def mean(runs: Sequence[Found]) -> Found:
    return Found(*[fmean(column) for column in zip(*runs, strict=True)])


@pytest.mark.soak
def test_paths_that_follow_mobility_are_between_those_of_the_network_and_static_ones() -> None:
    adaptive = walked(1, SMALL | {"settings.overlay.update_s": 10})
    static = walked(1, SMALL | STATIC)
    assert adaptive.network == static.network
    assert adaptive.network < adaptive.overlay < 0.9 * static.overlay
    assert 0 < adaptive.kbit < 2.4 * (50 / 10) * (12 / 40)  # The paper's, for as many brokers and looks.


@pytest.mark.soak
def test_paths_and_costs_are_those_of_the_paper() -> None:
    static = mean([walked(seed, STATIC) for seed in SEEDS])
    by_s = {
        update_s: mean([walked(seed, {"settings.overlay.update_s": update_s}) for seed in SEEDS])
        for update_s in (10, 50, 100)
    }
    shown = f"static {static}, adaptive {by_s}"
    assert static.network == pytest.approx(2.36, rel=0.03), shown
    assert static.overlay == pytest.approx(6.06, rel=0.08), shown
    assert by_s[10].overlay == pytest.approx(3.32, rel=0.08), shown
    assert 1.3 * static.network <= by_s[50].overlay <= 4.17, shown
    assert by_s[10].overlay < by_s[50].overlay < by_s[100].overlay <= 4.43, shown
    assert by_s[100].overlay < 0.75 * static.overlay, shown
    assert by_s[50].kbit <= 2.4, shown
    assert by_s[100].kbit <= 2.0, shown


CLIENTS = OVERLAY.with_name("overlay_clients.toml")
FEW: dict[str, object] = {
    "mobility.count": 24, "mobility.side_m": 490, "nodes.group.0.count": 8, "nodes.group.1.count": 3,
    "nodes.group.2.count": 8, "duration_s": 45,
}  # fmt: skip
"""A quarter of the nodes of the experiment with clients, at the same density."""
STATIC_HOMES = STATIC | {"settings.overlay.homing": "static"}
Lengths = dict[str, list[float]]
"""Mean hops from producers to consumers, by kind of path, at each moment."""


def delivered(seed: int, changes: Mapping[str, object], *, after_s: float) -> Lengths:
    records = run(Scenario.load(CLIENTS, changes), seed).table
    found: Lengths = {"delivery": [], "best": []}
    for row in tables("walk", records, [families.PATH_LENGTHS])["path_lengths"].to_pylist():
        if row["path"] in found and row["t"] > after_s:
            found[row["path"]].append(row["hops"])
    return found


def delivered_all(changes: Mapping[str, object]) -> list[Lengths]:
    """Return the lengths of all seeds at each moment after the first minute."""
    return [delivered(seed, changes, after_s=60) for seed in SEEDS]


def means(runs: Sequence[Lengths]) -> Lengths:
    """Return the means over runs at each moment."""
    return {path: [fmean(column) for column in zip(*[each[path] for each in runs], strict=True)] for path in runs[0]}


@pytest.mark.soak
def test_paths_to_consumers_are_shorter_if_homes_and_brokers_follow_them() -> None:
    ours, static = (delivered(1, changes, after_s=15) for changes in (FEW, FEW | STATIC_HOMES))
    hops, best = fmean(ours["delivery"]), fmean(ours["best"])
    assert hops < 0.9 * fmean(static["delivery"])
    assert hops <= 1.25 * best  # Not as few: among so few nodes brokers that are equally near make a difference.


@pytest.mark.soak
def test_paths_to_consumers_are_ordered_as_in_the_paper() -> None:
    static_runs, our_runs = delivered_all(STATIC_HOMES), delivered_all({})
    static, homes, found = means(static_runs)["delivery"], means(delivered_all(STATIC))["delivery"], means(our_runs)
    ours, best = found["delivery"], found["best"]
    shown = f"static {static}, static-opportunistic {homes}, ours {ours}, best {best}"
    for longer, shorter in ((static, homes), (homes, ours)):
        assert fmean(longer) > fmean(shorter), shown
        assert sum(map(float.__gt__, longer, shorter)) >= 0.9 * len(longer), shown
    assert fmean(ours) >= fmean(best), shown
    assert sum(map(float.__ge__, ours, best)) >= 0.9 * len(ours), shown
    assert fmean(ours) <= 1.10 * fmean(best), shown
    # The largest gain of each run, as in the paper's figure of one run. Runs have theirs at different moments: in the
    # means of ten seeds even the best paths are at most 3.5 hops shorter than static ones.
    gains = [
        max(map(float.__sub__, one["delivery"], other["delivery"]))
        for one, other in zip(static_runs, our_runs, strict=True)
    ]
    assert fmean(gains) >= 4, gains


@pytest.mark.soak
def test_paths_to_consumers_rise_with_the_discovery_period_and_with_speed() -> None:
    def hops(discovery_s: float, speed: float | None = None) -> float:
        speeds = (
            {} if speed is None else dict.fromkeys(("mobility.speed_min_m_per_s", "mobility.speed_max_m_per_s"), speed)
        )
        return fmean(means(delivered_all({"settings.overlay.discovery_s": discovery_s, **speeds}))["delivery"])

    by_period = [hops(each) for each in (1, 10, 50)]
    assert by_period == sorted(by_period), by_period
    slow, fast = ([hops(each, speed) for each in (10, 50)] for speed in (2, 20))
    assert fast[0] > slow[0], (slow, fast)
    assert fast[1] - fast[0] > slow[1] - slow[0], (slow, fast)
