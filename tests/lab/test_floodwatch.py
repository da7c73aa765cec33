"""The flood watch of the paper (§4.3): latencies of both approaches in four topologies, on shared air."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from statistics import mean
from typing import NamedTuple

import pytest

from carrypost.cli.app import run as command
from carrypost.emu import Scenario, run
from carrypost.lab.campaign.reproduce import RECIPES, scenario_file
from carrypost.lab.report.overlay_clients import ADAPTIVE, BEGINS_S, STATIC, TOPOLOGIES, Case

SETTINGS = {each.name: each for each in RECIPES["floodwatch"].settings}
APPROACHES = {STATIC: "static", ADAPTIVE: "adaptive"}
HOP_S, WORK_S = 80_000 / 125_000, {"A": 0.02, "B": 0.02 / 1.7}


class Watched(NamedTuple):
    """The events of one run, and their results."""

    ms: float
    """Mean latency of those that were sent in the topology of the run."""
    numbers: list[int]
    """Numbers of the events that the client was given, in that order."""
    sent: int
    moves: list[tuple[str, str]]
    """Operations, and brokers that got the seat."""


def watched(case: str, approach: str, topology: str, duration_s: float = 260, seed: int = 1) -> Watched:
    changes: Mapping[str, object] = SETTINGS[f"{APPROACHES[approach]}-{case}-{topology}"].changes
    made = Scenario.load(scenario_file("floodwatch"), {**changes, "duration_s": duration_s})
    rows = [row | {"attrs": dict(row["attrs"] or ())} for row in run(made, seed).table.to_pylist()]
    published = {row["message"]: row for row in rows if row["kind"] == "publish"}
    sent = {int(row["attrs"]["event"]): row["t"] for row in published.values() if "event" in row["attrs"]}
    numbers, latencies = [], []
    for row in rows:
        if row["kind"] == "deliver" and row["node"] == "C":
            _, _, events = published[row["message"]]["attrs"]["covers"].split(" ")
            numbers.append(int(events.partition("-")[2]))
            if sent[numbers[-1]] >= BEGINS_S:
                latencies.append(row["t"] - sent[numbers[-1]])
    assert not [row for row in rows if row["detail"] == "events-lost"]
    moves = [(row["detail"], row["peer"]) for row in rows if row["kind"] == "relocate"]
    return Watched(1_000 * mean(latencies), numbers, len(sent), moves)


def least(case: Case) -> float:
    """Return the time of an event that waits for nothing, in seconds."""
    return case.air_s(HOP_S) + WORK_S[case.broker]


def check(found: Watched, least_s: float | None, on_way_max: int) -> None:
    """Expect all events, in order; those of the last seconds may be on their way. Expect a latency where none wait."""
    assert found.numbers == list(range(1, len(found.numbers) + 1))
    assert found.sent - len(found.numbers) <= on_way_max
    if least_s is not None:
        assert least_s <= found.ms / 1_000 <= 1.25 * least_s


def test_a_tenth_of_the_data_comes_from_the_feeds_own_node() -> None:
    found = {approach: watched("box", approach, "A-B-C", 100) for approach in APPROACHES}
    check(found[STATIC], least(Case(0.1, 2.5, STATIC, "A-B-C")), 1)
    check(found[ADAPTIVE], least(Case(0.1, 2.5, ADAPTIVE, "A-B-C")), 1)
    assert found[ADAPTIVE].ms < 200 < found[STATIC].ms
    assert (found[STATIC].moves, found[ADAPTIVE].moves) == ([], [("upstream", "A")])


def test_all_data_takes_the_shorter_path() -> None:
    found = {approach: watched("all", approach, "B-A-C", 110) for approach in APPROACHES}
    check(found[STATIC], None, 2)
    check(found[ADAPTIVE], HOP_S + WORK_S["A"], 1)
    assert found[STATIC].ms >= 2.7 * found[ADAPTIVE].ms
    assert found[ADAPTIVE].moves == [("horizontal", "A")]


@pytest.mark.soak
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_the_orderings_of_figures_16_and_17(seed: int) -> None:
    """All events arrive once and in order. What is on its way at the end is little, unless the air is full."""
    found = {
        (case, approach, topology): watched(case, approach, topology, seed=seed)
        for case in ("all", "full", "box")
        for approach in APPROACHES
        for topology in TOPOLOGIES
    }
    for (case, approach, topology), each in found.items():
        queues = case == "full" and approach == STATIC and topology in {"A-C-B", "B-A-C"}
        ratio = 0.1 if case == "box" else 1.0
        least_s = None if queues else least(Case(ratio, 2.5, approach, topology))
        check(each, least_s, 30 if queues else 2)
        if approach == ADAPTIVE:
            # In A-B-C with all data both take the same path, and looks of brokers take a little of the air.
            assert each.ms <= 1.005 * found[case, STATIC, topology].ms
    ours = {topology: found["all", ADAPTIVE, topology].ms for topology in TOPOLOGIES}
    assert found["all", STATIC, "B-A-C"].ms >= 2.7 * ours["B-A-C"]
    full = {key[1:]: each.ms for key, each in found.items() if key[0] == "full"}
    assert max(full, key=lambda each: full[each]) == (STATIC, "B-A-C")
    assert full[STATIC, "B-A-C"] >= 6 * full[ADAPTIVE, "B-A-C"]
    assert all(found["box", ADAPTIVE, topology].ms < 200 for topology in TOPOLOGIES)
    assert found["box", STATIC, "A-C-B"].ms > found["box", STATIC, "B-A-C"].ms


CAMPAIGN = """
scenarios = ["floodwatch.toml"]
seeds = [1]
[[settings]]
name = "static-box"
set = {"duration_s" = 70, "settings.overlay.homing" = "static", "workload.0.params" = {cost_us = 20000, ratio = 0.1}}
[[settings]]
name = "adaptive-all"
set = {"duration_s" = 70, "contacts.file" = "floodwatch_B-A-C.csv"}
"""


def test_a_page_has_both_figures_and_the_papers_values(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("floodwatch.toml", *RECIPES["floodwatch"].files):
        (tmp_path / name).write_text((scenario_file("floodwatch").parent / name).read_text(encoding="utf-8"), "utf-8")
    (tmp_path / "campaign.toml").write_text(CAMPAIGN, encoding="utf-8")
    assert command(["lab", "campaign", "campaign.toml", "--out", "runs", "--engine", "local"]) == 0
    assert command(["lab", "report", "runs", "--out", "page.html", "--engine", "local"]) == 0
    page = (tmp_path / "page.html").read_text(encoding="utf-8")
    heads = "<th>channel and modulator alone</th>", "<th>opportunistic, ms</th>"
    for told in (
        "Figure 16",
        "Figure 17",
        "6,000",
        "1,000",
        "less than 200",
        "do not collide",
        "10 % of the data",
        *heads,
    ):
        assert told in page
