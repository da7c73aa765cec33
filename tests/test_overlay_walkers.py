"""Brokers among walking nodes: lengths of paths and what keeping them costs, beside the paper's text (OVERLAY §4.1)."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import NamedTuple

import pytest

from carrypost.emu import Scenario, run
from carrypost.lab.metrics import families, tables

OVERLAY = Path(__file__).parent.parent / "scenarios" / "overlay.toml"
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
    """Means of one run: hops between brokers, and kbit/s that each sends to keep the overlay."""

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
