"""The node's clock: follows the system's, never decreases, and says when it was set forward."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from carrypost.node.clock import STEP_US, WRONG_US, NodeClock

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


# Name, floor, moves (time that passes, by how much the system's clock is set meanwhile), (now, step) after each.
TABLE: list[tuple[str, int, list[tuple[int, int]], list[tuple[int, int]]]] = [
    ("goes with the system's", 0, [(S, 0), (S, 0)], [(11 * S, 0), (12 * S, 0)]),
    ("stands still when nothing passes", 0, [(0, 0), (0, 0)], [(10 * S, 0), (10 * S, 0)]),
    ("follows forward at once and says so", 0, [(S, HOUR), (S, 0)], [(11 * S + HOUR, HOUR), (12 * S + HOUR, 0)]),
    ("a machine that slept looks like a step", 0, [(0, 8 * HOUR)], [(10 * S + 8 * HOUR, 8 * HOUR)]),
    ("follows small corrections and says nothing", 0, [(S, STEP_US - 1)], [(12 * S - 1, 0)]),
    ("a correction of one second is a step", 0, [(S, STEP_US)], [(12 * S, S)]),
    ("half speed after a step backward", 0, [(2 * S, -8 * S), (4 * S, 0)], [(11 * S, 0), (13 * S, 0)]),
    ("and the system's again once it has caught up", 0, [(0, -4 * S), (8 * S, 0), (S, 0)],
     [(10 * S, 0), (14 * S, 0), (15 * S, 0)]),
    ("one long wait is as good as many short ones", 0, [(0, -4 * S), (5 * S, 0)], [(10 * S, 0), (12_500_000, 0)]),
    ("small steps backward, too", 0, [(S, -S // 2), (S, 0)], [(10_500_000, 0), (11_500_000, 0)]),
    ("ahead of the system's from the start", 20 * S, [(4 * S, 0)], [(22 * S, 0)]),
    ("a floor in the past is no floor", 5 * S, [(S, 0)], [(11 * S, 0)]),
    ("a clock that is days behind is not believed", 3 * DAY, [(S, 0), (S, 0)],
     [(3 * DAY + S, 0), (3 * DAY + 2 * S, 0)]),
    ("until it is set right", 3 * DAY, [(S, 4 * DAY)], [(11 * S + 4 * DAY, DAY + 10 * S)]),
    ("set back and forth", 0, [(S, -HOUR), (S, HOUR)], [(10_500_000, 0), (12 * S, 0)]),
    ("set forward beyond where it was", 0, [(0, -HOUR), (0, 3 * HOUR)], [(10 * S, 0), (10 * S + 2 * HOUR, 2 * HOUR)]),
]  # fmt: skip


@pytest.mark.parametrize(("floor", "moves", "expected"), [row[1:] for row in TABLE], ids=[row[0] for row in TABLE])
def test_what_the_clock_says(floor: int, moves: list[tuple[int, int]], expected: list[tuple[int, int]]) -> None:
    times = Times(10 * S)
    clock = times.clock(floor)
    said = []
    for passed, set_by in moves:
        times.pass_(passed, set_by=set_by)
        said.append((clock.now(), clock.pop_step_us()))
    assert said == expected


def test_steps_add_up_until_they_are_taken() -> None:
    times = Times(0)
    clock = times.clock()
    for _ in range(3):
        times.pass_(S, set_by=HOUR)
        clock.now()
    assert clock.pop_step_us() == 3 * HOUR
    assert clock.pop_step_us() == 0


def test_it_says_how_far_it_is_ahead() -> None:
    times = Times(10 * S)
    clock = times.clock(15 * S)
    assert clock.ahead_us == 5 * S
    times.pass_(4 * S)
    clock.now()
    assert clock.ahead_us == 3 * S
    times.pass_(0, set_by=DAY)
    clock.now()
    assert clock.ahead_us == 0


def test_half_speed_does_not_depend_on_how_often_it_is_looked_at() -> None:
    times = Times(10 * S)
    clock = times.clock(20 * S)
    for _ in range(1_000):
        times.pass_(1)
        clock.now()
    assert clock.now() == 20 * S + 500


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
@example(floor=0, told=[(0, -WRONG_US), (S, 0)])
@example(floor=0, told=[(0, -WRONG_US - 1), (S, 0)])
def test_it_never_decreases_nor_falls_behind_nor_stands_still(floor: int, told: list[tuple[int, int]]) -> None:
    times = Times(20 * DAY)
    clock = times.clock(floor)
    before, steps = clock.now(), 0
    assert before == max(floor, times.wall)
    for passed, set_by in told:
        times.pass_(passed, set_by=set_by)
        now = clock.now()
        assert now >= before + passed // 2
        assert now >= times.wall
        # It is never faster than time, but where it follows the system's.
        assert now <= before + passed or now == times.wall
        step = clock.pop_step_us()
        assert step == 0 or now == before + passed + step == times.wall
        assert step > 0 or now < before + passed + STEP_US
        before, steps = now, steps + step


@given(told=moves)
def test_it_catches_up_with_a_clock_that_is_not_set_any_more(told: list[tuple[int, int]]) -> None:
    times = Times(20 * DAY)
    clock = times.clock()
    for passed, set_by in told:
        times.pass_(passed, set_by=set_by)
        clock.now()
    ahead = clock.ahead_us
    if ahead > WRONG_US:  # Not believed: it keeps its lead, until somebody sets the system's clock.
        times.pass_(10 * DAY)
        clock.now()
        assert clock.ahead_us == ahead
        return
    times.pass_(ahead)
    clock.now()
    assert clock.ahead_us in {ahead // 2, ahead - ahead // 2}
    times.pass_(ahead + 1)
    assert clock.now() == times.wall
