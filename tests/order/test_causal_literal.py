"""Each repair of causal order, by a schedule that breaks the algorithm of the paper and not ours.

A schedule is data: one event per line, each at its second, for hosts with clocks. It is played twice: by the literal
transcription of the paper's codes, which fails as the table states, and by our order groups. An oracle that knows
happens-before, and no barrier, decides which one is right.

One repair has no line: the paper's loops do not recurse, ours once did. `test_causal_group` tests it.
"""

from __future__ import annotations

from functools import partial
from typing import NamedTuple, Protocol

import pytest
from tests.support.happens_before import History
from tests.support.literal_causal import LiteralHost, Message
from tests.support.order_groups import SECOND_US, GroupHost

from carrypost.model.descriptor import Descriptor, Ordering

EPOCH_S = 10_000
"""Schedules begin at 0; clocks show something later, so that they can be set back."""


class Schedule(NamedTuple):
    repair: str
    """Paragraph of the design, and the fault."""
    ordering: Ordering
    wrong: str
    """Fault of the paper's algorithm, or its exception."""
    right: str
    """A host, and the messages that must be delivered there, in order."""
    events: str
    in_place: bool = False
    """True if code 7 removes entries from the list that it iterates over, as printed."""


CAUSAL, DELTA = Ordering.CAUSAL, Ordering.DELTA_CAUSAL

SCHEDULES = (
    Schedule(
        "1 tags go back: a shorter lifetime",
        DELTA,
        "inversion",
        "c: m1 m2 m3",
        """
        0 a publishes m1 for 100
        1 a publishes m2 for 10
        2 a publishes m3 for 100
        3 c receives m1 m3 m2
        """,
    ),
    Schedule(
        "1 tags go back: a shorter lifetime, and the registry with it",
        DELTA,
        "stuck",
        "c: m1 m2 m3",
        """
        0 a publishes m1 for 100
        0 b receives m1
        1 b publishes m3 for 100
        1 a publishes m2 for 10
        2 c receives m1 m2 m3
        """,
    ),
    Schedule(
        "1 tags go back: a clock that is set back for a while",
        DELTA,
        "inversion",
        "c: m1 m2 m3",
        """
        0 a publishes m1 for 100
        1 a steps -50
        1 a publishes m2 for 100
        2 a steps 50
        2 a publishes m3 for 100
        3 c receives m1 m3 m2
        """,
    ),
    Schedule(
        "1 tags go back: a clock that is set back for good",
        DELTA,
        "stuck",
        "c: m1 m2 m3",
        """
        0 a publishes m1 for 100
        1 a steps -50
        1 a publishes m2 for 100
        2 a publishes m3 for 100
        3 c receives m1 m3 m2
        """,
    ),
    Schedule(
        "1 tags go back: two sends in one tick",
        DELTA,
        "inversion",
        "c: m1 m2 m3",
        """
        0 a publishes m1 for 100
        0 a publishes m2 for 100
        1 a publishes m3 for 100
        2 c receives m1 m3 m2
        """,
    ),
    Schedule(
        "2 transitive hole: an answer that dies before what it answers",
        DELTA,
        "inversion",
        "c: m1 m3",
        """
        0 a publishes m1 for 100
        1 b receives m1
        1 b publishes m2 for 50
        2 b publishes m3 for 100
        60 c receives m3 m1
        """,
    ),
    Schedule(
        "2 transitive hole: own broadcasts",
        DELTA,
        "inversion",
        "c: m1 m3",
        """
        0 a publishes m1 for 100
        1 a publishes m2 for 50
        2 a publishes m3 for 100
        60 c receives m3 m1
        """,
    ),
    Schedule(
        "2 transitive hole: an answer that is dead when the next is sent",
        DELTA,
        "inversion",
        "c: m1 m3",
        """
        0 a publishes m1 for 100
        1 b receives m1
        1 b publishes m2 for 20
        30 b publishes m3 for 100
        31 c receives m3 m1
        """,
    ),
    Schedule(
        "3 re-reception after eviction: the message itself",
        CAUSAL,
        "duplicate",
        "b: m1",
        """
        0 a publishes m1
        1 b receives m1
        2 b evicts m1
        3 b receives m1
        """,
    ),
    Schedule(
        "3 re-reception after eviction: its successors",
        CAUSAL,
        "duplicate stuck",
        "b: m1 m2 m3",
        """
        0 a publishes m1
        0 a publishes m2
        0 a publishes m3
        1 b receives m1 m2
        2 b evicts m1
        3 b receives m1 m3
        """,
    ),
    Schedule(
        "3 re-reception after eviction: with lifetimes",
        DELTA,
        "duplicate stuck",
        "b: m1 m2 m3",
        """
        0 a publishes m1 for 100
        1 a publishes m2 for 100
        2 a publishes m3 for 100
        3 b receives m1 m2
        4 b evicts m1
        5 b receives m1 m3
        """,
    ),
    Schedule(
        "4 untimed wait: for what never comes",
        DELTA,
        "stuck",
        "c: m2",
        """
        0 a publishes m1 for 50
        1 b receives m1
        1 b publishes m2 for 200
        2 c receives m2
        60 ticks
        """,
    ),
    Schedule(
        "4 untimed wait: one after the other",
        DELTA,
        "stuck",
        "c: m3 m4",
        """
        0 a publishes m1 for 50
        0 d publishes m2 for 80
        1 b receives m1 m2
        1 b publishes m3 for 200
        2 b publishes m4 for 200
        3 c receives m4 m3
        90 ticks
        """,
    ),
    Schedule(
        "5 eviction: forgets a dependency if the group is told as of an expiry",
        DELTA,
        "inversion",
        "c: m1 m2 m3",
        """
        0 a publishes m1 for 100
        1 a publishes m2 for 100
        2 a publishes m3 for 100
        3 c receives m3 m2
        4 c evicts m2
        5 c receives m1 m2
        """,
    ),
    Schedule(
        "5 eviction: leaves a message without bytes if the group is not told",
        CAUSAL,
        "KeyError",
        "c: m1 m2 m3",
        """
        0 a publishes m1
        0 a publishes m2
        0 a publishes m3
        1 c receives m3 m2
        2 c evicts m2 untold
        3 c receives m1 m2
        """,
    ),
    Schedule(
        "6 one expiry predicate: who is gone at its deadline is not awaited at its deadline",
        DELTA,
        "stuck",
        "c: m2 x",
        """
        0 a publishes m1 for 50
        1 b receives m1
        1 b publishes m2 for 200
        2 c receives m2
        3 d publishes x for 200
        50 c receives m1 x
        """,
    ),
    Schedule(
        "6 one expiry predicate: nor named in a barrier",
        DELTA,
        "stuck",
        "c: m2",
        """
        0 a publishes m1 for 50
        1 b receives m1
        50 b publishes m2 for 200
        50 c receives m1 m2
        """,
    ),
    Schedule(
        "6 ready queue: messages that come newest first",
        CAUSAL,
        "RuntimeError",
        "c: m1 m2 m3",
        """
        0 a publishes m1
        0 a publishes m2
        0 a publishes m3
        1 c receives m3 m2 m1
        """,
        in_place=True,
    ),
    Schedule(
        "6 ready queue: a broadcast inside a delivery",
        DELTA,
        "RuntimeError",
        "c: m1 m2 r",
        """
        0 a publishes m1 for 100
        0 a publishes m2 for 100
        0 c answers m2 with r for 100
        1 c receives m2 m1
        """,
        in_place=True,
    ),
    Schedule(
        "6 ready queue: an application that goes on broadcasting in its deliveries",
        CAUSAL,
        "RecursionError",
        "b: " + " ".join(f"m{each}" for each in range(2_000)),
        "\n".join(f"0 a answers m{each} with m{each + 1}" for each in range(1_999))
        + "\n0 a publishes m0\n1 b receives "
        + " ".join(f"m{each}" for each in range(2_000)),
    ),
    Schedule(
        "6 restart: a sender that begins anew knows nothing of what it has sent",
        CAUSAL,
        "inversion",
        "c: m1 m2",
        """
        0 a publishes m1
        1 a restarts
        2 a publishes m2
        3 c receives m2 m1
        """,
    ),
    Schedule(
        "6 restart: its new tags are taken for old ones",
        CAUSAL,
        "inversion",
        "c: m1 m2 m3 m4",
        """
        0 a publishes m1
        0 a publishes m2
        1 c receives m1 m2
        2 a restarts
        3 a publishes m3
        3 a publishes m4
        4 c receives m4 m3
        """,
    ),
    Schedule(
        "6 restart: a receiver waits for what it was delivered before",
        CAUSAL,
        "stuck",
        "c: m1 m2",
        """
        0 a publishes m1
        0 a publishes m2
        1 c receives m1
        2 c restarts
        3 c receives m1 m2
        """,
    ),
    Schedule(
        "6 restart: a receiver forgets who waits",
        DELTA,
        "stuck",
        "c: m1 m2",
        """
        0 a publishes m1 for 100
        1 a publishes m2 for 100
        2 c receives m2
        3 c restarts
        4 c receives m1 m2
        """,
    ),
    Schedule(
        "7 skewed clocks: a fast sender leaves out what a slow receiver accepts",
        DELTA,
        "inversion",
        "c: m1 m2",
        """
        0 b steps 60
        0 a publishes m1 for 100
        10 b receives m1
        50 b publishes m2 for 100
        55 c receives m2
        60 c receives m1
        106 c receives m1
        """,
    ),
    Schedule(
        "7 skewed clocks: a slow sender makes a transitive hole, with equal lifetimes",
        DELTA,
        "inversion",
        "c: m1 m2 m3",
        """
        0 b steps -60
        0 b publishes m0 for 400
        0 a publishes m1 for 400
        1 b receives m1
        2 b publishes m2 for 400
        3 b steps 60
        4 b publishes m3 for 400
        350 c receives m3 m1 m2
        """,
    ),
    Schedule(
        "7 skewed clocks: a clock that was fast and is set right",
        DELTA,
        "inversion",
        "c: m1 m2",
        """
        0 a publishes m1 for 100
        1 b receives m1
        2 b steps 120
        3 b publishes m2 for 100
        4 b steps -120
        5 c receives m2 m1
        119 c receives m1
        """,
    ),
    Schedule(
        "8 crash: after a send that was not durable",
        CAUSAL,
        "inversion",
        "c: m1 m3",
        """
        0 a publishes m1
        1 a saves
        2 a publishes m2
        3 a restarts
        4 a publishes m3
        5 a saves
        6 c receives m3 m2 m1
        6 c saves
        """,
    ),
    Schedule(
        "8 crash: after a delivery that was not durable",
        DELTA,
        "inversion",
        "c: m1 m2",
        """
        0 b publishes m1 for 100
        1 b saves
        2 a receives m1
        3 a restarts
        4 a publishes m2 for 100
        5 a saves
        6 c receives m2 m1
        6 c saves
        """,
    ),
)


# ------------------------------------------------------------------------------------------------ how it is played
class Side(Protocol):
    """One of the two algorithms, on all hosts; these are there as soon as they are named."""

    def reach(self, time_us: int) -> None: ...
    def step(self, host: str, delta_us: int) -> None: ...
    def publish(self, host: str, name: str, lifetime_us: int | None) -> None: ...
    def receive(self, host: str, name: str) -> None: ...
    def evict(self, host: str, name: str, *, told: bool) -> None: ...
    def restart(self, host: str) -> None: ...
    def save(self, host: str) -> None: ...
    def answer(self, host: str, name: str, reply: str, lifetime_us: int | None) -> None: ...


def play(schedule: Schedule, side: Side) -> None:
    for line in filter(None, map(str.strip, schedule.events.splitlines())):
        time, *event = line.split()
        side.reach((EPOCH_S + int(time)) * SECOND_US)
        happen(event, side)


def happen(event: list[str], side: Side) -> None:
    match event:
        case ["ticks"]:
            pass
        case [host, "steps", seconds]:
            side.step(host, int(seconds) * SECOND_US)
        case [host, "publishes", name, *lifetime]:
            side.publish(host, name, lifetime_of(lifetime))
        case [host, "receives", *names]:
            for name in names:
                side.receive(host, name)
        case [host, "evicts", name, *untold]:
            side.evict(host, name, told=not untold)
        case [host, "restarts"]:
            side.restart(host)
        case [host, "saves"]:
            side.save(host)
        case [host, "answers", name, "with", reply, *lifetime]:
            side.answer(host, name, reply, lifetime_of(lifetime))
        case _:
            pytest.fail(f"no such event: {event}")


def lifetime_of(words: list[str]) -> int | None:
    match words:
        case ["for", seconds]:
            return int(seconds) * SECOND_US
        case _:
            return None


class LiteralSide:
    """The algorithm of the paper."""

    def __init__(self, schedule: Schedule) -> None:
        self.history = History()
        self.schedule = schedule
        self.hosts: dict[str, LiteralHost] = {}
        self.ahead_us: dict[str, int] = {}
        self.air: dict[str, Message] = {}
        self.received: set[tuple[str, str]] = set()
        self.answers: dict[tuple[str, str], tuple[str, int | None]] = {}
        self.time_us = 0

    def host(self, name: str) -> LiteralHost:
        if name not in self.hosts:
            self.hosts[name] = LiteralHost(
                name,
                self.air,
                partial(self.deliver, name),
                delta=self.schedule.ordering is DELTA,
                in_place=self.schedule.in_place,
            )
            self.hosts[name].now = self.time_us
        return self.hosts[name]

    def reach(self, time_us: int) -> None:
        self.time_us = time_us
        for name, host in self.hosts.items():
            host.now = time_us + self.ahead_us.get(name, 0)
            host.expire()

    def step(self, host: str, delta_us: int) -> None:
        self.host(host).now += delta_us
        self.ahead_us[host] = self.ahead_us.get(host, 0) + delta_us

    def publish(self, host: str, name: str, lifetime_us: int | None) -> None:
        self.history.publish(host, name)
        self.host(host).lifetime = lifetime_us or 0
        self.host(host).co_broadcast(name)

    def deliver(self, host: str, name: str) -> None:
        self.history.deliver(host, name)
        if (host, name) in self.answers:
            self.publish(host, *self.answers.pop((host, name)))

    def receive(self, host: str, name: str) -> None:
        self.received.add((host, name))
        self.host(host).arrive(self.air[name])

    def evict(self, host: str, name: str, *, told: bool) -> None:
        self.received.discard((host, name))
        self.host(host).evict(name, told=told)

    def restart(self, host: str) -> None:
        self.host(host).restart()

    def save(self, host: str) -> None:
        self.host(host).save()

    def answer(self, host: str, name: str, reply: str, lifetime_us: int | None) -> None:
        self.answers[host, name] = reply, lifetime_us

    def stuck(self) -> list[str]:
        return [name for host, name in self.received if self.hosts[host].alive(name) and not self.awaited(host, name)]

    def awaited(self, host: str, name: str) -> list[str]:
        """Return the messages that it may wait for; none, too, if it was delivered."""
        if self.history.delivered(host, name):
            return [name]
        missing = self.history.missing(host, name)
        return (
            missing if self.schedule.ordering is CAUSAL else [each for each in missing if self.hosts[host].alive(each)]
        )


class GroupSide:
    """Ours."""

    def __init__(self, schedule: Schedule) -> None:
        self.history = History()
        self.schedule = schedule
        self.hosts: dict[str, GroupHost] = {}
        self.prompt = " saves" not in schedule.events
        self.time_us = 0

    @property
    def messages(self) -> dict[str, Descriptor]:
        return {name: each for host in self.hosts.values() for name, each in host.published.items()}

    def host(self, name: str) -> GroupHost:
        if name not in self.hosts:
            self.hosts[name] = GroupHost(name, self.schedule.ordering, self.history, prompt=self.prompt)
            self.hosts[name].reach(self.time_us)
        return self.hosts[name]

    def reach(self, time_us: int) -> None:
        self.time_us = time_us
        for host in self.hosts.values():
            host.reach(time_us)

    def step(self, host: str, delta_us: int) -> None:
        if host in self.hosts:
            self.hosts[host].ahead_us += delta_us
        else:
            self.hosts[host] = GroupHost(host, self.schedule.ordering, self.history, ahead_us=delta_us)
        self.hosts[host].reach(self.time_us)

    def publish(self, host: str, name: str, lifetime_us: int | None) -> None:
        self.host(host).publish(name, lifetime_us)

    def receive(self, host: str, name: str) -> None:
        for author in list(self.hosts.values()):
            if name in author.published:  # Else it never left.
                self.host(host).receive(author.published[name])

    def evict(self, host: str, name: str, *, told: bool) -> None:
        del told  # Ours tells why a message left.
        self.host(host).evict(name)

    def restart(self, host: str) -> None:
        self.host(host).restart()

    def save(self, host: str) -> None:
        self.host(host).store()

    def answer(self, host: str, name: str, reply: str, lifetime_us: int | None) -> None:
        self.host(host).answers[name] = reply, lifetime_us

    def stuck(self) -> list[str]:
        messages = self.messages
        return [name for host in self.hosts.values() for name in host.stuck(messages)]


# --------------------------------------------------------------------------------------------------------- tests
each_schedule = pytest.mark.parametrize("schedule", SCHEDULES, ids=[each.repair for each in SCHEDULES])


@each_schedule
def test_the_paper_s_algorithm_fails(schedule: Schedule) -> None:
    side = LiteralSide(schedule)
    exceptions = {"KeyError": KeyError, "RuntimeError": RuntimeError, "RecursionError": RecursionError}
    expected = exceptions.get(schedule.wrong)
    if expected is not None:
        with pytest.raises(expected) as raised:
            play(schedule, side)
        assert raised.type is expected
        return
    play(schedule, side)
    assert sorted({*side.history.faults, *(["stuck"] if side.stuck() else [])}) == schedule.wrong.split()


@each_schedule
def test_ours_does_not(schedule: Schedule) -> None:
    side = GroupSide(schedule)
    play(schedule, side)
    assert side.history.faults == []
    assert side.stuck() == []
    host, _, names = schedule.right.partition(": ")
    assert side.history.orders[host] == names.split()


def test_every_repair_has_a_schedule() -> None:
    assert {each.repair[0] for each in SCHEDULES} == set("12345678")
