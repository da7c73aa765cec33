"""The node's clock: follows the system's, never decreases, and says when it was set forward."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from carrypost.node.driver import STEP_US, WRONG_US, NodeClock

S = 1_000_000
HOUR = 3_600 * S
DAY = 24 * HOUR


class Times:
    """The clocks of the system: one that people set, and one that only goes on."""

    def __init__(self, wall: int, steady: int = 0) -> None:
        self.wall = wall
        self.steady = steady

    def clock(self, floor_us: int = 0) -> NodeClock:
        return NodeClock(floor_us, wall_us=lambda: self.wall, steady_us=lambda: self.steady)

    def pass_(self, us: int, *, set_by: int = 0) -> None:
        self.steady += us
        self.wall += us + set_by


# Name, floor, moves (time that passes, by how much the system's clock is set meanwhile), after each: own time, lead,
# and the steps that the host is told.
TABLE: list[tuple[str, int, list[tuple[int, int]], list[tuple[int, int, list[int]]]]] = [
    ("goes with the system's", 0, [(S, 0), (S, 0)], [(11 * S, 0, []), (12 * S, 0, [])]),
    ("stands still when nothing passes", 0, [(0, 0), (0, 0)], [(10 * S, 0, []), (10 * S, 0, [])]),
    ("follows forward at once and says so", 0, [(S, HOUR), (S, 0)],
     [(11 * S + HOUR, 0, [HOUR]), (12 * S + HOUR, 0, [])]),
    ("a machine that slept looks like a step", 0, [(0, 8 * HOUR)], [(10 * S + 8 * HOUR, 0, [8 * HOUR])]),
    ("follows small corrections and says nothing", 0, [(S, STEP_US - 1)], [(12 * S - 1, 0, [])]),
    ("a correction of one second is a step", 0, [(S, STEP_US)], [(12 * S, 0, [S])]),
    ("goes on after a step back, with a lead", 0, [(2 * S, -8 * S), (4 * S, 0)],
     [(12 * S, 8 * S, [-8 * S]), (16 * S, 8 * S, [])]),
    ("half speed after a small correction", 0, [(S, -S // 2), (S // 2, 0), (S, 0)],
     [(10_500_000, 0, []), (11 * S, 0, []), (12 * S, 0, [])]),
    ("small corrections that add up are a step", 0, [(0, -600_000), (0, -600_000)],
     [(10 * S, 0, []), (10 * S, 1_200_000, [-1_200_000])]),
    ("a system clock that was corrected before the start is believed", 20 * S, [(4 * S, 0)], [(14 * S, 0, [])]),
    ("a floor in the past is no floor", 5 * S, [(S, 0)], [(11 * S, 0, [])]),
    ("a clock that is days behind is not believed", 3 * DAY, [(S, 0), (S, 0)],
     [(3 * DAY + S, 0, []), (3 * DAY + 2 * S, 0, [])]),
    ("until it is set forward", 3 * DAY, [(S, 4 * DAY)], [(11 * S + 4 * DAY, 0, [DAY + 10 * S])]),
    ("or set otherwise", 3 * DAY, [(S, DAY)], [(3 * DAY + S, 2 * DAY - 10 * S, [10 * S - 2 * DAY])]),
    ("set back and forth", 0, [(S, -HOUR), (S, HOUR)], [(11 * S, HOUR, [-HOUR]), (12 * S, 0, [HOUR])]),
    ("ahead for a moment", 0, [(S, HOUR), (S, -HOUR)],
     [(11 * S + HOUR, 0, [HOUR]), (12 * S + HOUR, HOUR, [-HOUR])]),
    ("set forward beyond where it was", 0, [(0, -HOUR), (0, 3 * HOUR)],
     [(10 * S, HOUR, [-HOUR]), (10 * S + 2 * HOUR, 0, [3 * HOUR])]),
]  # fmt: skip


@pytest.mark.parametrize(("floor", "moves", "expected"), [row[1:] for row in TABLE], ids=[row[0] for row in TABLE])
def test_what_the_clock_says(
    floor: int, moves: list[tuple[int, int]], expected: list[tuple[int, int, list[int]]]
) -> None:
    times = Times(10 * S)
    clock = times.clock(floor)
    said = []
    for passed, set_by in moves:
        times.pass_(passed, set_by=set_by)
        said.append((clock.now(), clock.lead_us, clock.pop_steps()))
    assert said == expected


def test_steps_are_kept_in_order_until_they_are_taken() -> None:
    times = Times(DAY)
    clock = times.clock()
    for set_by in (HOUR, -HOUR, 2 * HOUR):
        times.pass_(S, set_by=set_by)
        clock.now()
    assert clock.pop_steps() == [HOUR, -HOUR, 2 * HOUR]
    assert clock.pop_steps() == []


def test_it_says_how_far_it_is_ahead_of_a_clock_that_it_does_not_believe() -> None:
    times = Times(10 * S)
    clock = times.clock(3 * DAY)
    assert clock.ahead_us == 3 * DAY - 10 * S
    times.pass_(4 * S)
    clock.now()
    assert clock.ahead_us == 3 * DAY - 10 * S
    times.pass_(0, set_by=DAY)
    clock.now()
    assert clock.ahead_us == 0


def test_half_speed_does_not_depend_on_how_often_it_is_looked_at() -> None:
    times = Times(10 * S)
    clock = times.clock()
    times.pass_(0, set_by=-S // 2)
    for _ in range(1_000):
        times.pass_(1)
        clock.now()
    assert clock.now() == 10 * S + 500


def test_by_default_it_is_the_system_s() -> None:
    clock = NodeClock()
    assert clock.ahead_us == 0
    assert abs(clock.now() - NodeClock().now()) < 10 * S


moves = st.lists(
    st.tuples(
        st.one_of(st.integers(0, 10), st.integers(0, 10 * S), st.integers(0, DAY)),
        st.one_of(st.just(0), st.integers(-5 * S, 5 * S), st.integers(-9 * DAY, 9 * DAY)),
    ),
    max_size=30,
)


@given(floor=st.integers(0, 40 * DAY), told=moves)
@example(floor=0, told=[(0, -STEP_US), (S, 0)])
@example(floor=20 * DAY + WRONG_US + 1, told=[(S, 0), (S, S - 1), (S, S)])
def test_own_time_never_decreases_nor_stands_still_and_dates_follow_the_system_s(
    floor: int, told: list[tuple[int, int]]
) -> None:
    times = Times(20 * DAY)
    clock = times.clock(floor)
    before, lead = clock.now(), 0
    distrusts = floor - times.wall > WRONG_US
    assert before == (floor if distrusts else times.wall)
    for passed, set_by in told:
        times.pass_(passed, set_by=set_by)
        now = clock.now()
        assert now >= before + passed // 2
        steps = clock.pop_steps()
        lead = max(lead - sum(steps), 0)  # As the host reckons it.
        assert clock.lead_us == lead
        assert now <= before + passed + max(sum(steps), STEP_US)
        distrusts = distrusts and abs(set_by) < STEP_US and times.wall < now - lead
        if not distrusts:
            assert abs(now - lead - times.wall) < STEP_US
        assert (clock.ahead_us > 0) <= distrusts
        before = now
