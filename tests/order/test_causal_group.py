"""Order groups: by chance, against an oracle that knows happens-before alone; and by table, rule after rule."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.examples import examples
from tests.support.happens_before import History
from tests.support.order_groups import DESTINATION, SECOND_US, GroupHost, described, named

from carrypost.model.descriptor import Descriptor, Ordering, Predecessor
from carrypost.model.ids import NodeId
from carrypost.model.times import NEVER
from carrypost.order.causal import Group

CAUSAL, DELTA = Ordering.CAUSAL, Ordering.DELTA_CAUSAL
EPOCH_US = 10_000 * SECOND_US
SKEW_S_MAX = 299
"""Clocks that differ by more than ten minutes are refused further up."""

# ---------------------------------------------------------------------------------------------------- by chance
HOSTS = st.integers(0, 7)
MESSAGES = st.integers(0, 30)
LIFETIMES = st.none() | st.sampled_from([10, 20, 30, 60, 60, 120, 300, 600, 86_400]) | st.integers(10, 86_400)
STEPS = st.one_of(
    st.tuples(st.just("publish"), HOSTS, LIFETIMES),
    st.tuples(st.just("publish"), HOSTS, LIFETIMES),
    st.tuples(st.just("receive"), HOSTS, MESSAGES),
    st.tuples(st.just("receive"), HOSTS, MESSAGES),
    st.tuples(st.just("meet"), HOSTS, HOSTS, st.sampled_from(["oldest", "newest", "any"]), st.integers(0, 2**16 - 1)),
    st.tuples(st.just("meet"), HOSTS, HOSTS, st.sampled_from(["oldest", "newest", "any"]), st.just(2**16 - 1)),
    st.tuples(st.just("wait"), st.sampled_from([0, 1, 3, 5, 10, 20, 40, 60, 100, 300])),
    st.tuples(st.just("late"), HOSTS, st.sampled_from([1, 20, 60, 300])),
    st.tuples(st.just("evict"), HOSTS, MESSAGES),
    st.tuples(st.just("store"), HOSTS),
    st.tuples(st.just("restart"), HOSTS),
)
SCHEDULES = st.lists(STEPS, min_size=30, max_size=150)


class World:
    """Hosts of one group that receive each other's messages in any order, or not at all."""

    def __init__(
        self, ordering: Ordering, skews_s: list[int], *, prompt: bool = True, entries_max: int = NEVER
    ) -> None:
        self.history = History()
        self.hosts = [
            GroupHost(
                f"h{index}",
                ordering,
                self.history,
                ahead_us=skew_s * SECOND_US,
                prompt=prompt,
                entries_max=entries_max,
            )
            for index, skew_s in enumerate(skews_s)
        ]
        self.time_us = EPOCH_US
        self.count = 0
        for each in self.hosts:
            each.reach(self.time_us)

    @property
    def messages(self) -> dict[str, Descriptor]:
        return {name: each for host in self.hosts for name, each in host.published.items()}

    def play(self, steps: list[tuple[Any, ...]]) -> Iterator[tuple[Any, ...]]:
        """Perform one step after the other, and yield each after it was checked."""
        for step in steps:
            kind, *rest = step
            getattr(self, kind)(*rest)
            self.check()
            yield step

    def host(self, index: int) -> GroupHost:
        return self.hosts[index % len(self.hosts)]

    # -------------------------------------------------------------------------------------------------- steps
    def publish(self, host: int, lifetime_s: int | None) -> None:
        self.count += 1
        self.host(host).publish(f"m{self.count}", None if lifetime_s is None else lifetime_s * SECOND_US)

    def receive(self, host: int, message: int) -> None:
        """Any message, however old and wherever from; 0 is the newest."""
        receiver = self.host(host)
        others = [each for each in self.messages.values() if each.author != receiver.name]
        if others:
            receiver.receive(others[-1 - message % len(others)])

    def meet(self, host: int, other: int, order: str, kept: int) -> None:
        """Give a host the messages that another one carries, in some order and with some losses."""
        receiver, carrier = self.host(host), self.host(other)
        carried = [each for each in (carrier.published | carrier.copies).values() if each.alive(carrier.now)]
        carried = [each for at, each in enumerate(carried) if kept >> at % 16 & 1 and each.author != receiver.name]
        if order == "newest":
            carried.reverse()
        elif order == "any":
            random.Random(kept).shuffle(carried)
        for each in carried:
            receiver.receive(each)

    def wait(self, seconds: int) -> None:
        """Time passes, and timers ring."""
        self.time_us += seconds * SECOND_US
        for each in self.hosts:
            each.reach(self.time_us)

    def late(self, host: int, seconds: int) -> None:
        """One host's clock goes ahead (within the bound), and a message comes before its timer is looked at."""
        late = self.host(host)
        late.ahead_us = min(late.ahead_us + seconds * SECOND_US, SKEW_S_MAX * SECOND_US)
        late.now = max(late.now, self.time_us + late.ahead_us)
        self.receive(host, seconds)
        late.expire()

    def evict(self, host: int, message: int) -> None:
        holder = self.host(host)
        if holder.copies:
            holder.evict(list(holder.copies)[-1 - message % len(holder.copies)])

    def store(self, host: int) -> None:
        self.host(host).store()

    def restart(self, host: int) -> None:
        self.host(host).restart()

    # ------------------------------------------------------------------------------------------------- checks
    def check(self) -> None:
        """Check that nothing was delivered twice or too early, and that waiting messages have a reason to wait."""
        assert self.history.faults == []
        messages = self.messages
        for host in self.hosts:
            if host.log:
                continue  # The history has yet to hear of it.
            assert host.stuck(messages) == []
            waiting = sum(map(host.alive, host.waiting.values()))
            undelivered = sum(1 for name, each in host.copies.items() if each.joins or not host.delivered(name))
            assert waiting <= host.group.sizes(host.now)[2] <= undelivered
            for name in filter(lambda name: host.alive(host.waiting[name]), host.waiting):
                self.check_timer(host, name, messages)

    def check_timer(self, host: GroupHost, name: str, messages: dict[str, Descriptor]) -> None:
        """Check that a message is examined again before all messages that it waits for are dead."""
        deadlines_us = [messages[each].ends_us for each in host.awaited(name, messages)]
        dates_us = [messages[name].created_us] if host.early(messages[name]) else []
        assert host.group.due_us <= max(deadlines_us + dates_us)

    def run_out(self) -> None:
        """Run only timers, without further messages: then a message may wait only for messages without a deadline."""
        messages = self.messages
        for host in self.hosts:
            host.store()
            rings = 0
            while host.group.due_us < NEVER:
                host.now = max(host.now, host.group.due_us)
                host.expire()
                host.store()
                assert host.group.due_us > host.now
                assert (rings := rings + 1) <= 2 * len(messages), "a timer rings for a death or a date"
            self.check()
            for name, each in host.waiting.items():
                if host.alive(each):
                    assert any(messages[other].deadline_us is None for other in host.awaited(name, messages))


ORDERINGS = pytest.mark.parametrize("ordering", [CAUSAL, DELTA], ids=lambda each: each.text)
ENTRIES_MAX = st.sampled_from([2, 3, NEVER])
SKEWS = st.lists(st.integers(-SKEW_S_MAX, SKEW_S_MAX), min_size=2, max_size=8)


@ORDERINGS
@examples(25)
@given(skews_s=SKEWS, steps=SCHEDULES, entries_max=ENTRIES_MAX)
def test_no_schedule_breaks_the_order(
    ordering: Ordering, skews_s: list[int], steps: list[tuple[Any, ...]], entries_max: int
) -> None:
    world = World(ordering, skews_s, entries_max=entries_max)
    for _ in world.play(steps):
        pass
    world.run_out()


@ORDERINGS
@examples(20)
@given(skews_s=SKEWS, steps=SCHEDULES, entries_max=ENTRIES_MAX)
def test_nor_do_crashes_before_what_happened_is_stored(
    ordering: Ordering, skews_s: list[int], steps: list[tuple[Any, ...]], entries_max: int
) -> None:
    world = World(ordering, skews_s, prompt=False, entries_max=entries_max)
    for _ in world.play(steps):
        pass
    world.run_out()


@ORDERINGS
@examples(15)
@given(lifetime_s=LIFETIMES, skews_s=SKEWS, steps=SCHEDULES)
def test_with_equal_lifetimes_the_barrier_after_a_broadcast_is_that_broadcast(
    ordering: Ordering, lifetime_s: int | None, skews_s: list[int], steps: list[tuple[Any, ...]]
) -> None:
    world = World(ordering, skews_s)
    for kind, host, *_ in world.play([(*step[:2], lifetime_s) if step[0] == "publish" else step for step in steps]):
        if kind == "publish":
            author = world.host(host)
            assert author.group.barrier(author.now) == (named(author.published[f"m{world.count}"]),)


@ORDERINGS
@examples(15)
@given(steps=SCHEDULES, chance=st.randoms(use_true_random=False), sizes=st.lists(st.integers(1, 10), min_size=1))
def test_it_does_not_matter_which_messages_come_together(
    ordering: Ordering, steps: list[tuple[Any, ...]], chance: random.Random, sizes: list[int]
) -> None:
    world = World(ordering, [0, 30, -30])
    for _ in world.play(steps):
        pass
    arrivals = list(world.messages.values())
    chance.shuffle(arrivals)
    single, burst = (Group(DESTINATION, ordering, me=NodeId("z")) for _ in range(2))
    one_by_one = [each for arrival in arrivals for each in single.receive((arrival,), world.time_us)]
    together: list[Descriptor] = []
    while arrivals:
        size = chance.choice(sizes)
        together += burst.receive(arrivals[:size], world.time_us)
        arrivals = arrivals[size:]
    assert together == one_by_one
    assert burst.pop_expired() == single.pop_expired()
    assert burst.sizes(world.time_us) == single.sizes(world.time_us)


# ------------------------------------------------------------------------------------------------------ by table
def message(
    author: str,
    sequence: int = 1,
    *predecessors: Descriptor,
    created: int = 0,
    deadline: int | None = 100,
    incarnation: int = 1,
    ordering: Ordering = DELTA,
) -> Descriptor:
    """Return a message with times in seconds."""
    return described(
        author,
        sequence,
        created_us=created * SECOND_US,
        deadline_us=None if deadline is None else deadline * SECOND_US,
        ordering=ordering,
        barrier=tuple(map(named, predecessors)),
        incarnation=incarnation,
    )


class Seconds:
    """A group on host z, with times in seconds."""

    def __init__(self, ordering: Ordering = DELTA) -> None:
        self.group = Group(DESTINATION, ordering, me=NodeId("z"))

    def receive(self, *messages: Descriptor, at: int) -> list[Descriptor]:
        return [found for each in messages for found in self.group.receive((each,), at * SECOND_US)]

    def expire(self, at: int) -> list[Descriptor]:
        return self.group.expire(at * SECOND_US)

    def sizes(self, at: int) -> tuple[int, int, int]:
        return self.group.sizes(at * SECOND_US)

    def barrier(self, at: int) -> set[Predecessor]:
        return set(self.group.barrier(at * SECOND_US))

    @property
    def due(self) -> float:
        return self.group.due_us / SECOND_US

    @property
    def clock(self) -> float:
        return self.group.clock_us / SECOND_US


def test_a_barrier_forgets_the_dead_and_a_causal_one_does_not() -> None:
    first, second, endless = message("a", deadline=50), message("b", deadline=60), message("c", deadline=None)
    forgetful, faithful = Seconds(DELTA), Seconds(CAUSAL)
    for each in (forgetful, faithful):
        each.receive(first, second, endless, at=10)
        assert each.barrier(49) == {named(first), named(second), named(endless)}
    assert forgetful.barrier(50) == {named(second), named(endless)}
    assert forgetful.barrier(60) == {named(endless)}
    assert faithful.barrier(1_000) == {named(first), named(second), named(endless)}
    faithful.receive(message("d", 1, first, second, endless, created=70, deadline=2_000), at=70)
    assert len(faithful.barrier(1_000)) == 2, "it takes the place of the dead, and not of one that outlives it"


def test_a_message_takes_the_place_of_what_it_depends_on_only_where_it_lives_as_long() -> None:
    first, second = message("a", deadline=100), message("b", deadline=50)
    for deadline, left in ((40, 3), (50, 2), (99, 2), (100, 1), (None, 1)):
        for ordering in (CAUSAL, DELTA):
            group = Seconds(ordering)
            last = message("c", 1, first, second, deadline=deadline)
            group.receive(first, second, last, at=0)
            assert len(group.barrier(0)) == left, deadline
            assert named(last) in group.barrier(0)


def test_so_it_is_where_several_of_one_source_stand() -> None:
    long, short = message("a", 1, deadline=100), message("a", 2, deadline=50)
    middle = message("b", 1, long, short, deadline=70)
    group = Seconds()
    group.receive(long, short, middle, at=0)
    assert group.barrier(0) == {named(long), named(middle)}
    last = message("a", 3, long, middle, deadline=80)
    group.receive(last, at=0)
    assert group.barrier(0) == {named(long), named(last)}


def test_what_was_delivered_is_forgotten_when_all_of_its_source_is_dead() -> None:
    long, short = message("a", 1, deadline=100), message("a", 2, deadline=50)
    group = Seconds()
    assert group.receive(long, short, at=0) == [long, short]
    assert [group.sizes(at)[1] for at in (0, 50, 99, 100)] == [1, 1, 1, 0]
    assert group.receive(long, at=60) == []  # The later one is dead, but this one may still come again.
    causal = Seconds(CAUSAL)
    causal.receive(long, short, at=0)
    assert causal.sizes(1_000)[1] == 1


def test_a_group_that_meets_ever_new_sources_does_not_grow() -> None:
    group = Seconds()
    for at in range(1_000):
        group.receive(message(f"n{at}", deadline=at + 10), at=at)
        group.group.mark()  # What is written is swept.
    assert group.sizes(999) == (10, 10, 0)
    assert len(group.group.head[2]) <= 10 + 1
    assert sum(group.group.last(NodeId(f"n{at}")) is not None for at in range(1_000)) < 300


@ORDERINGS
def test_what_depends_on_a_message_that_died_undelivered_comes_then_and_says_so_in_causal_order(
    ordering: Ordering,
) -> None:
    dead = message("a", deadline=50)
    second = message("b", 1, dead, deadline=None)
    third = message("c", 1, second, deadline=None)
    late = message("d", 1, dead, third, deadline=None)
    group = Seconds(ordering)
    assert group.receive(third, second, at=10) == []
    assert group.due == 50
    assert group.expire(50) == [second, third]
    assert group.group.pop_lost() == ({second.id: 1} if ordering is CAUSAL else {})
    assert group.receive(late, at=51) == [late]
    assert group.group.pop_lost() == ({late.id: 1} if ordering is CAUSAL else {})
    assert group.group.pop_expired() == []


def test_one_that_died_undelivered_does_not_end_the_waiting_for_another() -> None:
    missing, dead = message("a", deadline=None), message("b", deadline=50)
    last = message("c", 1, missing, dead, deadline=None)
    group = Seconds(CAUSAL)
    assert group.receive(last, at=60) == []
    assert group.receive(missing, at=61) == [missing, last]
    assert group.group.pop_lost() == {last.id: 1}


def test_no_message_overtakes_one_that_outlives_what_came_between() -> None:
    """m1 → m2 → m3, and m2 is the first to die: in causal order, too, m3 has to name m1."""
    m1, m2 = message("a", deadline=100), message("b", 1, message("a", deadline=100), deadline=50)
    writer, reader = Seconds(CAUSAL), Seconds(CAUSAL)
    assert writer.receive(m1, m2, at=1) == [m1, m2]
    m3 = described("c", 1, ordering=CAUSAL, barrier=writer.group.barrier(2 * SECOND_US))
    assert reader.receive(m3, at=2) == []
    assert reader.expire(50) == []
    assert reader.receive(m1, at=60) == [m1, m3]


def test_what_is_dead_by_the_clock_of_the_group_is_never_delivered() -> None:
    for ordering in (CAUSAL, DELTA):
        group = Seconds(ordering)
        fast, late = message("a", created=104, deadline=200), message("b", created=0, deadline=101)
        assert group.receive(fast, late, at=100) == [fast]
        assert group.group.pop_expired() == [late]


def test_a_message_is_dead_from_its_deadline_on() -> None:
    for at, delivered in ((99, True), (100, False)):
        group, lone = Seconds(), message("a", deadline=100)
        assert group.receive(lone, at=at) == [lone] * delivered
        assert group.group.pop_expired() == [lone] * (not delivered)


def test_what_waits_is_not_delivered_when_it_dies_with_what_it_waits_for() -> None:
    first = message("a", deadline=50)
    second = message("b", 1, first, deadline=50)
    third = message("c", 1, first, second, deadline=60)
    for ordering in (CAUSAL, DELTA):
        group = Seconds(ordering)
        assert group.receive(third, second, at=1) == []
        assert group.expire(50) == [third]
        assert group.group.pop_expired() == [second]


def test_a_date_ahead_of_the_local_clock_buries_what_others_wait_for() -> None:
    dead = message("a", deadline=100)
    waiting = message("b", 1, dead, created=10, deadline=300)
    fast = message("c", created=100, deadline=300)
    group = Seconds()
    assert group.receive(waiting, at=20) == []
    assert group.receive(fast, at=95) == [fast, waiting]


def test_the_clock_of_a_group_follows_what_is_delivered_and_never_goes_back() -> None:
    group, until = Seconds(), 1_000
    group.receive(message("a", created=10, deadline=until), at=20)
    assert group.clock == 20
    group.receive(message("b", created=70, deadline=until), at=21)
    assert group.clock == 70
    group.receive(message("c", 1, message("d"), created=90, deadline=until), at=22)
    assert group.clock == 70  # It only waits, and may yet turn out not to count.
    group.receive(message("e", created=60, deadline=until), at=23)
    assert group.clock == 70
    group.expire(80)
    group.receive(message("f", created=30, deadline=until), at=60)
    assert group.clock == 80


@ORDERINGS
def test_a_date_far_ahead_delays_its_own_message_and_no_other(ordering: Ordering) -> None:
    far = message("x", created=699, deadline=1_000)
    brief = [message("a", each, created=100 + each, deadline=160 + each) for each in range(1, 4)]
    group = Seconds(ordering)
    assert group.receive(brief[0], far, brief[1], at=102) == brief[:2]
    assert group.clock == 102
    assert group.group.stamp(103 * SECOND_US) == 103 * SECOND_US
    assert group.due == 699 - 15
    assert group.receive(brief[2], at=103) == [brief[2]]
    assert group.expire(683) == []
    assert group.expire(684) == [far]
    assert group.clock == 699


def test_a_date_may_be_ahead_by_a_quarter_of_the_shortest_lifetime_or_by_five_seconds() -> None:
    for lifetimes, ahead in (((), 5), ((8,), 5), ((40,), 10), ((400, 40, 4_000), 10), ((4_000, 4_000), 300)):
        group = Seconds()
        group.group = Group(DESTINATION, DELTA, me=NodeId("z"), ahead_us_max=300 * SECOND_US)
        for number, lifetime in enumerate(lifetimes):
            group.receive(message(f"n{number}", deadline=100 + lifetime, created=100), at=100)
        assert group.receive(message("x", created=100 + ahead + 1, deadline=9_000), at=100) == []
        assert group.due == 101
        assert len(group.receive(message("y", created=100 + ahead, deadline=9_000), at=100)) == 1


def test_dates_do_not_advance_the_clock_step_by_step() -> None:
    group = Seconds()
    some = [message(f"x{step}", created=100 + 5 * step, deadline=120 + 5 * step) for step in range(1, 20)]
    assert group.receive(*some, at=100) == some[:1]
    assert group.clock == 105


def test_the_shortest_lifetime_is_remembered_for_a_day() -> None:
    group, day = Seconds(), 86_400
    group.receive(message("a", created=0, deadline=40), at=0)
    group.receive(message("a", 2, created=1_000, deadline=1_070), at=1_000)
    group.receive(message("b", created=day, deadline=9 * day), at=day)
    assert group.receive(message("x", created=day + 11, deadline=9 * day), at=day) == []
    later = day + 1_070
    group.receive(message("b", 2, created=later, deadline=9 * day), at=later)
    assert len(group.receive(message("y", created=later + 3_600, deadline=9 * day), at=later)) == 1


def test_a_broadcast_is_dated_after_everything_that_it_depends_on() -> None:
    group = Seconds()
    assert group.group.stamp(5 * SECOND_US) == 5 * SECOND_US
    group.receive(message("a", created=70), at=65)
    assert group.group.stamp(66 * SECOND_US) == 70 * SECOND_US + 1
    assert group.group.stamp(80 * SECOND_US) == 80 * SECOND_US
    own = message("z", created=90, deadline=200)
    assert group.group.published(own, 80 * SECOND_US) == [own]
    assert group.group.stamp(81 * SECOND_US) == 90 * SECOND_US


def test_a_later_message_of_a_source_stands_for_the_earlier_ones() -> None:
    first, second, third = (message("a", each) for each in (1, 2, 3))
    answer = message("b", 1, second)
    group = Seconds()
    assert group.receive(answer, at=1) == []
    assert group.receive(third, at=1) == [third, answer]
    assert group.receive(first, second, third, at=2) == []
    assert group.sizes(2)[2] == 0


def test_messages_of_one_source_need_not_be_numbered_without_gaps() -> None:
    group, some = Seconds(), [message("a", each) for each in (7, 8, 100)]
    assert group.receive(*some, at=1) == some


def test_a_later_life_of_a_source_comes_after_an_earlier_one() -> None:
    old, new = message("a", 1_000, incarnation=1), message("a", 1, incarnation=2)
    group = Seconds()
    assert group.receive(message("b", 1, new), old, at=1) == [old]
    assert [each.author for each in group.receive(new, at=1)] == ["a", "b"]
    assert group.receive(old, at=1) == []


def test_a_copy_that_left_is_waited_for_and_comes_again() -> None:
    first = message("a", 1)
    second = message("a", 2, first)
    third = message("a", 3, second)
    group = Seconds()
    group.receive(third, second, at=1)
    group.group.discard(second)
    group.group.discard(second)
    assert group.sizes(1)[2] == 1
    assert group.receive(first, at=2) == [first]
    assert group.receive(second, at=3) == [second, third]
    assert group.group.pop_expired() == []


def test_a_copy_that_left_is_not_delivered_by_what_it_waited_for() -> None:
    first = message("a", 1, deadline=50)
    second = message("b", 1, first)
    group = Seconds()
    group.receive(second, at=1)
    group.group.discard(second)
    assert group.expire(50) == []
    assert group.sizes(50) == (0, 0, 0)
    assert group.receive(second, at=51) == [second]


def test_a_message_received_twice_while_it_waits_is_delivered_once() -> None:
    first = message("a", 1)
    second = message("b", 1, first)
    group = Seconds()
    assert group.receive(second, second, at=1) == []
    assert group.receive(first, second, at=1) == [first, second]


def test_who_lies_about_a_deadline_deceives_only_those_who_read_it() -> None:
    first = message("a", 1, deadline=100)
    honest, liar = message("b", 1, first), message("c", 1, message("a", 1, deadline=50))
    for arrivals in ((honest, liar), (liar, honest)):
        group = Seconds()
        assert group.receive(*arrivals, at=1) == []
        assert group.expire(50) == [liar]
        assert group.receive(first, at=60) == [first, honest]


def test_waiting_for_several_ends_with_the_last_of_them() -> None:
    missing = [message(f"n{each}", deadline=20 + 10 * each) for each in range(5)]
    last = message("a", 1, *missing, deadline=200)
    group = Seconds()
    assert group.receive(last, at=1) == []
    rung = []
    while group.group.due_us < NEVER:
        rung += group.group.expire(group.group.due_us)
    assert (rung, group.clock) == ([last], 60)


def chain(length: int, ordering: Ordering, *, deadline: int | None = None) -> list[Descriptor]:
    found = [message("n0", deadline=deadline, ordering=ordering)]
    for each in range(1, length):
        found.append(message(f"n{each % 50}", each, found[-1], deadline=None, ordering=ordering))
    return found


@ORDERINGS
def test_thousands_of_messages_that_come_newest_first_are_delivered_from_a_queue(ordering: Ordering) -> None:
    messages = chain(3_000, ordering)
    group = Seconds(ordering)
    assert group.receive(*reversed(messages[1:]), at=1) == []
    assert group.receive(messages[0], at=2) == messages
    assert group.sizes(2)[2] == 0


@ORDERINGS
def test_thousands_of_messages_that_wait_for_a_dead_one_are_delivered_from_a_queue(ordering: Ordering) -> None:
    messages = chain(3_000, ordering, deadline=50)
    group = Seconds(ordering)
    group.receive(*reversed(messages[1:]), at=1)
    assert group.expire(50) == messages[1:]
    assert group.group.pop_expired() == []
    assert group.sizes(50)[2] == 0
