"""Population mode: without delays it is the flood bound, and no window changes a row."""

from __future__ import annotations

import tempfile
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.examples import examples
from tests.support.populations import POPULATION, SCENARIOS, events, played, tallies, violations
from tests.support.schedules import Schedule, schedules

from carrypost.emu import Scenario, flood_bound, run
from carrypost.emu.summary import summarise


@given(schedules())
@examples(25)
def test_without_delays_receptions_are_the_flood_bound(schedule: Schedule) -> None:
    with tempfile.TemporaryDirectory() as folder:
        table = played(schedule, Path(folder))
    found = [(row["message"], row["node"]) for row in events(table) if row["kind"] == "receive"]
    assert set(found) == flood_bound(schedule.contacts, schedule.messages, schedule.presences)
    assert len(found) == len(set(found))
    assert violations(table) == []


@pytest.mark.soak
@given(schedules(messages_max=9), st.sampled_from(("zero", "delays.json")), st.sampled_from((1, 2.5, 5, 100)))
@examples(25)
def test_windows_change_no_row(schedule: Schedule, delays: str, window_s: float) -> None:
    with tempfile.TemporaryDirectory() as folder:
        whole = played(schedule, Path(folder), delays=delays)
        cut = played(schedule, Path(folder), delays=delays, window_s=window_s)
        none = played(schedule, Path(folder), delays=delays, window_s=window_s, rows="none")
    assert events(cut) == events(whole)
    assert tallies(cut) == tallies(whole) == tallies(none)
    assert not events(none)
    assert violations(whole) == []


@given(schedules())
@examples(15)
def test_counts_are_those_of_the_rows(schedule: Schedule) -> None:
    with tempfile.TemporaryDirectory() as folder:
        table = played(schedule, Path(folder), delays="delays.json")
    rows, counts = events(table), tallies(table)
    kinds = Counter(row["kind"] for row in rows)
    assert {name: counts.get((name, None), 0) for name in ("contact", "publish", "receive")} == {
        name: kinds[name] for name in ("contact", "publish", "receive")
    }
    assert Counter({key[1]: size for key, size in counts.items() if key[0] == "hops"}) == Counter(
        row["hops"] for row in rows if row["kind"] == "receive"
    )
    assert sum(size for key, size in counts.items() if key[0] == "delay") == kinds["receive"]


@given(schedules())
@examples(15)
def test_delays_only_take_receptions_away_and_hops_come_from_the_giver(schedule: Schedule) -> None:
    with tempfile.TemporaryDirectory() as folder:
        table = played(schedule, Path(folder), delays="delays.json")
    received = {(row["message"], row["node"]): row for row in events(table) if row["kind"] == "receive"}
    assert received.keys() <= flood_bound(schedule.contacts, schedule.messages, schedule.presences)
    for (message, _), row in received.items():
        giver = received.get((message, str(row["peer"])))
        if giver is None:
            assert (row["peer"], row["hops"]) == (row["source"], 1)
        else:
            assert row["hops"] == giver["hops"] + 1  # type: ignore[operator] # a number
            assert float(row["t"]) >= float(giver["t"])  # type: ignore[arg-type] # a number


@pytest.mark.parametrize(("name", "duration_s"), [("ostermalm", 1_200), ("city_bus", 7_200)])
def test_without_delays_shipped_scenarios_reach_the_flood_bound(name: str, duration_s: int) -> None:
    changes = {**POPULATION, "duration_s": duration_s, "population.delays": "zero", "population.window_s": 600}
    summary = summarise(run(Scenario.load(SCENARIOS / f"{name}.toml", changes), 1).table)
    assert summary.received == summary.bound
    assert summary.received > 2_000
    assert not summary.partial
