"""The benchmark of the overlay runs, and its figures can be true; whether goals are met is not for a busy machine."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.support.benches import Bench

from carrypost.overlay.modulators import programs


@pytest.mark.soak
def test_legs_and_events_are_weighed_against_gossip_routes_and_modulators_by_the_clock(tmp_path: Path) -> None:
    shown = Bench("overlay").tables(tmp_path, "--quick", "--json")
    modules = ["Modules", "Runoff"] if programs.is_installed() else []
    assert list(shown) == ["Routes", "Legs", "Events", "Relocations", "Modulators", "Control", *modules]
    assert all(row["times"] > 1 for name in modules for row in shown[name])
    assert [(row["brokers"], row["reached"]) for row in shown["Routes"]] == [(40, 39), (256, 255)]
    assert all(row["median ms"] > 0 for row in shown["Routes"])
    for table, kind in {"Legs": "leg", "Events": "event"}.items():
        assert [(row["security"], row["published"]) for row in shown[table]] == [
            ("off", "alone"), ("off", "20 together"), ("signed", "alone"), ("signed", "20 together"),
        ]  # fmt: skip
        for row in shown[table]:
            assert row["times"] == pytest.approx(row[f"{kind} µs"] / row["gossip µs"])
            assert row["times"] > 1
            assert row["met"] == (row["times"] <= row["goal"])
    assert [row["security"] for row in shown["Relocations"]] == ["off", "signed"]
    assert all(row["times"] > 1 for row in shown["Relocations"])
    one, ten = shown["Control"]
    assert 0 < one["bytes per broker and hour"] < ten["bytes per broker and hour"]
    (modulated,) = shown["Modulators"]
    assert modulated["with it µs"] > modulated["without it µs"] > 0
