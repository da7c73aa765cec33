"""Virtual time: order at one instant, and endless instants."""

from __future__ import annotations

import random
from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st

from carrypost.chance import stream
from carrypost.emu.engine.scheduler import Phase, Scheduler
from carrypost.errors import RunawayError, StateError


def nothing() -> None:
    """An action that does nothing."""


def test_time_moves_only_by_running_what_is_due() -> None:
    scheduler = Scheduler()
    seen: list[int] = []
    for t_us in (30, 10, 20):
        scheduler.post(t_us, Phase.TIMER, "a", lambda: seen.append(scheduler.now))
    scheduler.run_until(20)
    assert (seen, scheduler.now, scheduler.next_time()) == ([10, 20], 20, 30)
    scheduler.run_until(99)
    assert (seen, scheduler.now, scheduler.next_time()) == ([10, 20, 30], 99, None)


def test_at_one_instant_the_phase_decides_then_the_name_then_the_order_of_scheduling() -> None:
    plan = [(phase, node, turn) for phase in Phase for node in ("a", "b", "c") for turn in (0, 1)]
    shuffled = sorted(plan, key=lambda entry: (entry[2], random.Random(repr(entry)).random()))
    scheduler = Scheduler()
    ran: list[tuple[Phase, str, int]] = []
    for entry in shuffled:
        scheduler.post(5, entry[0], entry[1], partial(ran.append, entry))
    scheduler.run_until(5)
    assert ran == plan


def test_the_phases_come_in_the_order_of_the_emulator() -> None:
    order = ["DOWN", "LEAVE", "DISK", "ARRIVAL", "TIMER", "JOIN", "UP", "PUBLISH"]
    assert [phase.name for phase in sorted(Phase)] == order


def test_what_an_action_schedules_for_the_present_instant_still_runs_in_it() -> None:
    scheduler = Scheduler()
    seen: list[str] = []

    def publish() -> None:
        seen.append("publish")
        scheduler.post(scheduler.now, Phase.ARRIVAL, "b", lambda: seen.append("arrival"))

    scheduler.post(7, Phase.PUBLISH, "a", publish)
    scheduler.post(7, Phase.PUBLISH, "z", lambda: seen.append("later publish"))
    scheduler.run_until(7)
    assert seen == ["publish", "arrival", "later publish"]


def test_what_is_posted_runs_with_its_arguments() -> None:
    scheduler = Scheduler()
    ran: list[tuple[object, ...]] = []

    def note(*arguments: object) -> None:
        ran.append((scheduler.now, *arguments))

    scheduler.post(7, Phase.TIMER, "a", note, "timer")
    scheduler.post(7, Phase.TIMER, "a", note, "second timer")
    scheduler.post(7, Phase.ARRIVAL, "b", note, "arrival", 1, None)
    scheduler.post(7, Phase.ARRIVAL, "a", note, "arrival at a")
    scheduler.post(3, Phase.PUBLISH, "z", note)
    assert (len(scheduler), scheduler.next_time()) == (5, 3)
    scheduler.run_until(7)
    assert ran == [
        (3,),
        (7, "arrival at a"),
        (7, "arrival", 1, None),
        (7, "timer"),
        (7, "second timer"),
    ]


@given(st.lists(st.integers(0, 50), max_size=400))
def test_whatever_is_posted_runs_in_order_of_time(plan: list[int]) -> None:
    scheduler = Scheduler()
    ran: list[int] = []
    for t_us in plan:
        scheduler.post(t_us, Phase.TIMER, "a", ran.append, t_us)
    assert (len(scheduler), scheduler.next_time()) == (len(plan), min(plan, default=None))
    scheduler.run_until(50)
    assert ran == sorted(plan)


def test_nothing_can_be_scheduled_in_the_past_and_time_does_not_go_back() -> None:
    scheduler = Scheduler()
    scheduler.run_until(10)
    with pytest.raises(StateError, match="9 µs is in the past, it is 10 µs"):
        scheduler.post(9, Phase.TIMER, "a", nothing)
    with pytest.raises(StateError, match="cannot go back"):
        scheduler.run_until(9)


def test_what_happens_in_virtual_time_cannot_let_time_pass() -> None:
    scheduler = Scheduler()
    scheduler.post(1, Phase.TIMER, "a", lambda: scheduler.run_until(5))
    with pytest.raises(StateError, match="passing already"):
        scheduler.run_until(3)


def test_an_instant_without_end_raises_and_names_who_is_busy() -> None:
    scheduler = Scheduler(instant_steps_max=1_000)

    def ping(me: str, other: str) -> None:
        scheduler.post(scheduler.now, Phase.ARRIVAL, other, partial(ping, other, me))

    scheduler.post(3, Phase.ARRIVAL, "a", partial(ping, "a", "b"))
    with pytest.raises(RunawayError, match=r"3 µs after 1000 steps.*a \(arrival x \d+\), b \(arrival x \d+\)"):
        scheduler.run_until(10)


def test_the_step_limit_is_per_instant() -> None:
    scheduler = Scheduler(instant_steps_max=10)
    for t_us in range(100):
        for _ in range(10):
            scheduler.post(t_us, Phase.TIMER, "a", nothing)
    scheduler.run_until(100)
    assert scheduler.now == 100


def test_cleared_actions_never_run() -> None:
    scheduler = Scheduler()
    scheduler.post(6, Phase.TIMER, "a", pytest.fail, "it ran")
    scheduler.clear()
    scheduler.run_until(10)
    assert len(scheduler) == 0


def test_streams_of_chance_depend_on_seed_and_purpose_and_on_nothing_else() -> None:
    first = [stream(1, "a", "loss").random() for _ in range(2)]
    assert first[0] == first[1]
    others = [stream(2, "a", "loss"), stream(1, "b", "loss"), stream(1, "a", "delay"), stream(1, "al", "oss")]
    assert len({first[0], *(other.random() for other in others)}) == 5
