"""Faults before a run: the lives of nodes and their names; and wrong clocks."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from carrypost.emu.engine.driver import EmulatedClock
from carrypost.emu.engine.world import FaultPlan, plan
from carrypost.emu.scenario_tables import EventTable, FaultsTable
from carrypost.traces.contacts import Contact, Presence

SECOND = 1_000_000


def planned(*events: EventTable, presences: tuple[Presence, ...] = (Presence("a", 0, None),)) -> FaultPlan:
    return plan(FaultsTable(event=events), presences, 1, 100 * SECOND)


def lives(made: FaultPlan) -> list[tuple[str, float, float, str]]:
    return [(life.node, life.start_us / SECOND, life.end_us / SECOND, life.end) for life in made.stays]


def event(t: float, kind: str = "away", duration_s: float = 10, node: str = "a") -> EventTable:
    return EventTable(t=t, node=node, kind=kind, duration_s=duration_s)  # type: ignore[arg-type]


def test_a_fault_splits_a_presence_in_two() -> None:
    assert lives(planned(event(20))) == [("a", 0, 20, "away"), ("a", 30, 100, "")]


def test_a_fault_of_a_node_that_is_not_there_does_nothing() -> None:
    made = planned(event(20), event(25), event(20, "crash"), event(99, duration_s=5))
    assert lives(made) == [("a", 0, 20, "away"), ("a", 30, 99, "away")]
    assert [life.last for life in made.stays] == [False, True]


def test_a_fault_that_lasts_beyond_a_presence_shortens_the_next() -> None:
    there = Presence("a", 0, 30 * SECOND), Presence("a", 40 * SECOND, None)
    assert lives(planned(event(25, duration_s=20), presences=there)) == [("a", 0, 25, "away"), ("a", 45, 100, "")]


def test_who_lost_its_store_gets_a_name_that_nobody_has() -> None:
    there = Presence("a", 0, None), Presence("a.2", 0, None)
    made = planned(event(20, "crash-lost"), event(50, "crash-lost"), presences=there)
    assert [life.node for life in made.stays if life.place == "a"] == ["a", "a.3", "a.4"]
    contact = Contact("a", "b", 0, 100 * SECOND)
    both = planned(event(20, "crash-lost"), presences=(Presence("a", 0, None), Presence("b", 0, None)))
    assert [each[:2] for each in both.contacts([contact])] == [("a", "b"), ("a.2", "b")]


def test_drawn_faults_differ_by_node_and_kind_and_come_again_with_the_seed() -> None:
    faults = FaultsTable(crash_per_h=30, away_per_h=30, restart_s=1, away_s=1)
    nodes = [Presence("a", 0, None), Presence("b", 0, None)]
    hour = 3_600 * SECOND
    first = plan(faults, nodes, 1, hour)
    assert first == plan(faults, nodes, 1, hour)
    assert first != plan(faults, nodes, 2, hour)
    crashes = {
        node: [life.end_us for life in first.stays if life.place == node and life.end == "crash"] for node in ("a", "b")
    }
    assert crashes["a"] != crashes["b"]
    assert all(15 < len(times) < 45 for times in crashes.values())
    # Without the other kind of fault the crashes are the same.
    alone = plan(FaultsTable(crash_per_h=30, restart_s=1), nodes, 1, hour)
    told = {life.end_us for life in alone.stays if life.place == "a"}
    assert len(told & set(crashes["a"])) > len(crashes["a"]) * 0.9


# --- clocks --------------------------------------------------------------------------------------------------

STEPS = st.lists(st.tuples(st.integers(0, 10**9), st.integers(-(10**8), 10**8)), max_size=4)


@given(st.integers(-(10**8), 10**8), st.floats(-10_000, 10_000), STEPS, st.integers(0, 10**9))
def test_a_clock_never_goes_back_and_tells_when_it_will_show_a_time(
    skew_us: int, drift_ppm: float, steps: list[tuple[int, int]], ahead_us: int
) -> None:
    clock = EmulatedClock(skew_us, drift_ppm)
    shown = clock.local(0)
    now_us = 0
    for pause_us, delta_us in steps:
        now_us += pause_us
        assert clock.local(now_us) >= shown
        shown = clock.local(now_us)
        clock.step(delta_us)
        assert clock.local(now_us) >= shown
    target_us = clock.local(now_us) + ahead_us
    due_us = clock.world(target_us, now_us)
    assert clock.local(due_us) >= target_us
    assert due_us == now_us or clock.local(due_us - 1) < target_us


def test_the_own_time_of_a_node_goes_on_after_a_step_back_until_it_is_restarted() -> None:
    assert EmulatedClock().right
    clock = EmulatedClock()
    clock.step(-5 * SECOND)
    assert not clock.right
    assert [clock.local(t * SECOND) // SECOND for t in (20, 22, 25)] == [20, 22, 25]
    clock.step(10 * SECOND)
    assert clock.local(30 * SECOND) == 35 * SECOND
    clock.step(-8 * SECOND)
    assert clock.local(30 * SECOND) == 35 * SECOND
    clock.restart()
    assert clock.local(30 * SECOND) == 27 * SECOND
