"""The timers of a host's links: armed timers are due, and the host never asks to be woken too late."""

from __future__ import annotations

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from tests.support.examples import examples

from carrypost.gossip.timers import ACKNOWLEDGE, FORGET, OFFER, PROVE, Schedule, Timers
from carrypost.model.times import NEVER

TIMERS = st.sampled_from([OFFER, ACKNOWLEDGE, FORGET])
TIMES = st.integers(0, 40)


class Tables(RuleBasedStateMachine):
    """Several tables beside an oracle that has every armed timer in one dictionary, and checks all of them."""

    def __init__(self) -> None:
        super().__init__()
        self.schedule = Schedule()
        self.tables: list[Timers] = []
        self.armed: dict[tuple[Timers, int], int] = {}
        """The oracle."""

    def pick(self, data: st.DataObject) -> Timers:
        return data.draw(st.sampled_from(self.tables))

    def earliest(self) -> int:
        return min((due for (timers, _), due in self.armed.items() if timers in self.tables), default=NEVER)

    @initialize()
    def begin_with_one(self) -> None:
        self.begin()

    @rule()
    def begin(self) -> None:
        self.tables.append(Timers(self.schedule))
        self.schedule.add(self.tables[-1])

    @precondition(lambda self: len(self.tables) > 1)
    @rule(data=st.data())
    def end(self, data: st.DataObject) -> None:
        timers = self.pick(data)
        self.tables.remove(timers)
        self.schedule.remove(timers)

    @rule(data=st.data(), timer=TIMERS, due_us=TIMES)
    def arm(self, data: st.DataObject, timer: int, due_us: int) -> None:
        timers = self.pick(data)
        timers.arm(timer, due_us)
        self.armed[timers, timer] = due_us

    @rule(data=st.data(), timer=TIMERS, due_us=TIMES)
    def hasten(self, data: st.DataObject, timer: int, due_us: int) -> None:
        timers = self.pick(data)
        timers.hasten(timer, due_us)
        self.armed[timers, timer] = min(due_us, self.armed.get((timers, timer), NEVER))

    @rule(data=st.data(), timer=TIMERS, delta_us=st.integers(0, 10))
    def postpone(self, data: st.DataObject, timer: int, delta_us: int) -> None:
        timers = self.pick(data)
        timers.postpone(timer, delta_us)
        if (timers, timer) in self.armed:
            self.armed[timers, timer] += delta_us

    @rule(data=st.data(), timer=TIMERS)
    def cancel(self, data: st.DataObject, timer: int) -> None:
        timers = self.pick(data)
        timers.cancel(timer)
        self.armed.pop((timers, timer), None)

    @rule(data=st.data())
    def cancel_all(self, data: st.DataObject) -> None:
        timers = self.pick(data)
        timers.cancel_all()
        self.armed = {key: due for key, due in self.armed.items() if key[0] is not timers}

    @rule()
    def ask(self) -> None:
        assert self.schedule.next_due_us() <= self.earliest()

    @rule(data=st.data(), now=TIMES)
    def end_a_step(self, data: st.DataObject, now: int) -> None:
        own = data.draw(st.sampled_from([None, *self.tables]))
        others = [due for (timers, _), due in self.armed.items() if timers in self.tables and timers is not own]
        if any(due <= now for due in others):
            assert self.schedule.due_elsewhere(own, now)

    @rule()
    def refresh(self) -> None:
        self.schedule.refresh()
        assert self.schedule.next_due_us() == self.earliest()

    @invariant()
    def every_table_says_what_was_armed(self) -> None:
        for timers in self.tables:
            assert list(timers.due) == [self.armed.get((timers, timer), NEVER) for timer in range(PROVE + 1)]


TestTables = Tables.TestCase
TestTables.settings = examples(20)


def scene() -> tuple[Schedule, Timers, Timers]:
    schedule = Schedule()
    first, second = Timers(schedule), Timers(schedule)
    schedule.add(first)
    schedule.add(second)
    schedule.next_due_us()
    return schedule, first, second


def test_what_a_step_arms_and_sees_to_itself_wakes_nobody() -> None:
    schedule, own, _ = scene()
    own.arm(FORGET, 90)
    own.arm(ACKNOWLEDGE, 7)
    assert not schedule.due_elsewhere(own, 7)
    own.cancel(ACKNOWLEDGE)
    assert schedule.next_due_us() == 90
    own.arm(ACKNOWLEDGE, 9)
    assert schedule.next_due_us() == 9


def test_what_a_step_arms_at_another_neighbour_is_seen_to_in_the_same_step() -> None:
    schedule, own, other = scene()
    other.arm(OFFER, 7)
    assert (schedule.due_elsewhere(own, 7), schedule.due_elsewhere(other, 7)) == (True, False)


def test_a_timer_that_was_cancelled_wakes_the_host_at_most_once() -> None:
    schedule, own, other = scene()
    own.arm(OFFER, 5)
    other.arm(FORGET, 90)
    assert schedule.next_due_us() == 5
    own.cancel(OFFER)
    assert schedule.next_due_us() == 5
    schedule.refresh()
    assert schedule.next_due_us() == 90


def test_a_table_that_comes_with_timers_is_heeded_from_then_on_and_one_that_goes_is_not() -> None:
    schedule, own, _ = scene()
    late = Timers(schedule)
    late.arm(OFFER, 5)
    schedule.refresh()
    assert schedule.next_due_us() == NEVER
    schedule.add(late)
    assert schedule.next_due_us() == 5
    schedule.remove(late)
    own.arm(FORGET, 90)
    schedule.refresh()
    assert schedule.next_due_us() == 90
