"""The benchmarks of queues run, show every table, and their figures can be true. How fast they are is not tested."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.support.benches import Bench

from tools import netns

needs_namespaces = pytest.mark.skipif(bool(netns.available()), reason=netns.available())


@pytest.mark.soak
def test_queues_are_weighed_against_topics_sends_and_deadlines(tmp_path: Path) -> None:
    shown = Bench("queue").tables(tmp_path, "--quick", "--json", apart=True, progress=True)
    assert list(shown) == ["Hand-outs", "Receipts", "Control", "Assignments", "Commits", "Purges"]
    assert [row["messages"] for row in shown["Hand-outs"]] == ["NON_PERSISTENT", "PERSISTENT"]
    for row in shown["Hand-outs"]:
        assert row["share"] == pytest.approx(row["topic µs"] / row["queue µs"])
    for row in shown["Receipts"]:
        assert row["times"] == pytest.approx(row["receipt ms"] / row["delivery ms"])
        assert row["least receipt ms"] > row["least delivery ms"] > 0
    alone, together = shown["Control"]
    assert (alone["together"], together["together"]) == (1, 100)
    for row in shown["Control"]:
        parts = ("Offer bytes", "Request bytes", "Ack bytes", "descriptor bytes", "acknowledgement bytes")
        assert row["bytes"] == pytest.approx(sum(row[name] for name in parts))
        assert row["met"] is (row["bytes"] <= row["goal"])
    # Assignment, acknowledgement and receipt, each with a signature and a key, and records that purge; or many in one.
    assert alone["control messages"] >= 3
    assert min(alone["descriptor bytes"] / 3, alone["acknowledgement bytes"] / 2) > 64 + 32
    assert together["control messages"] < 0.2
    for row in (*shown["Assignments"], *shown["Receipts"], *shown["Purges"]):
        assert row["times"] > 0
        assert row["met"] is (row["times"] <= row["goal"])
    for row in (*shown["Commits"], *shown["Hand-outs"]):
        assert row["met"] is (row["share"] >= row["goal"])
    (commits,) = shown["Commits"]
    assert commits["share"] == pytest.approx(commits["commits/s"] / commits["sends/s"])
    (purges,) = shown["Purges"]
    assert purges["times"] == pytest.approx(purges["purge ms"] / purges["expiry ms"])
    assert 100 < purges["bytes of 1"] < 150
    assert 16 < purges["bytes of 1000"] / purges["copies"] < 24


@pytest.mark.soak
def test_some_of_the_tables_can_be_asked_for_and_missed_goals_be_an_error(tmp_path: Path) -> None:
    outcome = Bench("queue").run("--quick", "--strict", "--only", "Control", TMPDIR=str(tmp_path))
    assert [line.split('"')[3] for line in outcome.stdout.splitlines()] == ["Control", "Control"]
    assert outcome.returncode == (0 if outcome.stdout.count('"met":true') == 2 else 1)


@pytest.mark.soak
@needs_namespaces
def test_along_a_chain_a_queue_stands_beside_a_topic(tmp_path: Path) -> None:
    shown = Bench("chain").tables(tmp_path, "--quick", "--queue", "--json", apart=True, progress=True)
    assert list(shown) == ["Saturated", "One at a time", "Goals"]
    for name in ("Saturated", "One at a time"):
        assert [(row["hops"], row["bytes"]) for row in shown[name]] == [(1, 1_000), (1, 100_000)]
        for row in shown[name]:
            assert row["queue %"] == pytest.approx(row["queue kB/s"] / row["topic kB/s"] * 100)
    small = shown["Saturated"][0]
    # The same payloads, and more is said about them, both ways.
    assert small["queue wire"] > small["topic wire"] > 1_000
    assert small["queue back"] > small["topic back"] > 0
    assert [(row["what"], row["met"]) for row in shown["Goals"]] == [
        (row["what"], row["least %"] >= row["goal %"]) for row in shown["Goals"]
    ]
    assert len(shown["Goals"]) == 3


def test_help_gives_an_example() -> None:
    outcome = Bench("queue").here("--help")
    assert outcome.returncode == 0
    assert "carrypost bench queue --" in " ".join(outcome.stdout.split("For example:")[1].split())
