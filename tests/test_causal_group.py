"""Order groups: by chance, against an oracle that knows happens-before alone; and by table, rule after rule."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.examples import examples
from tests.happens_before import History
from tests.order_groups import DESTINATION, SECOND_US, GroupHost, described, named

from carrypost.model.descriptor import ENDLESS_US, Descriptor, Ordering
from carrypost.model.ids import NodeId
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
    st.tuples(st.just("lose"), HOSTS),
    st.tuples(st.just("restart"), HOSTS),
)
SCHEDULES = st.lists(STEPS, min_size=30, max_size=150)


class World:
    """Hosts of one group, who hear of each other's messages in any order, or not at all."""

    def __init__(self, ordering: Ordering, skews_s: list[int], *, prompt: bool = True) -> None:
        self.history = History()
        self.hosts = [
            GroupHost(f"h{index}", ordering, self.history, ahead_us=skew_s * SECOND_US, prompt=prompt)
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
        """Do one step after the other, and hand each out when it is done and was found right."""
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
        """One host gets from another what that one carries, in some order, and with some losses."""
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

    def lose(self, host: int) -> None:
        self.host(host).lose()

    def restart(self, host: int) -> None:
        self.host(host).restart()

    # ------------------------------------------------------------------------------------------------- checks
    def check(self) -> None:
        """Nothing was delivered twice or too early, and whatever waits has something to wait for."""
        assert self.history.faults == []
        messages = self.messages
        for host in self.hosts:
            if host.log:
                continue  # The history has yet to hear of it.
            assert host.stuck(messages) == []
            waiting = sum(map(host.alive, host.waiting.values()))
            undelivered = sum(1 for name in host.copies if not host.delivered(name))
            assert waiting <= host.group.sizes(host.now).pending <= undelivered
            for name in host.waiting:
                self.check_timer(host, name, messages)

    def check_timer(self, host: GroupHost, name: str, messages: dict[str, Descriptor]) -> None:
        """Δ-causal: it is looked at again before all that it waits for is dead."""
        if host.ordering is DELTA and host.alive(messages[name]):
            ends = [messages[each].deadline_us for each in host.awaited(name, messages)]
            assert host.group.due_us <= max(ENDLESS_US if end is None else end for end in ends)

    def run_out(self) -> None:
        """Nothing comes any more, and only timers ring: in the end what waits, waits for what has no deadline."""
        messages = self.messages
        for host in self.hosts:
            host.store()
            rings = 0
            while host.group.due_us < ENDLESS_US:
                host.now = max(host.now, host.group.due_us)
                host.expire()
                host.store()
                assert host.group.due_us > host.now
                assert (rings := rings + 1) <= len(messages), "a timer rings for a death"
            self.check()
            for name, each in host.waiting.items():
                if host.alive(each):
                    assert None in [messages[other].deadline_us for other in host.awaited(name, messages)]


SKEWS = st.lists(st.integers(-SKEW_S_MAX, SKEW_S_MAX), min_size=2, max_size=8)


@pytest.mark.parametrize("ordering", [CAUSAL, DELTA], ids=lambda each: each.text)
@examples(150)
@given(skews_s=SKEWS, steps=SCHEDULES)
def test_no_schedule_breaks_the_order(ordering: Ordering, skews_s: list[int], steps: list[tuple[Any, ...]]) -> None:
    world = World(ordering, skews_s)
    for _ in world.play(steps):
        pass
    world.run_out()
