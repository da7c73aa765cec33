"""Faults that were found in order by attacks on it: each test failed before its repair."""

from __future__ import annotations

import sys
from collections.abc import Callable
from random import Random
from typing import Any

import pytest
from tests.support.happens_before import History
from tests.support.hostile import Attacker, message
from tests.support.order_groups import SECOND_US as S
from tests.support.order_groups import GroupHost, described, named

from carrypost import testing
from carrypost.config import Settings
from carrypost.errors import DecodeError, PatternError, PayloadError
from carrypost.host import Host
from carrypost.log.events import Delivered, Event
from carrypost.model.descriptor import Barrier, Descriptor, Ordering, Predecessor, decode
from carrypost.model.ids import NodeId
from carrypost.order.causal import Group, WaitingMessage, Watch
from carrypost.security.identity import Identity

ORDERINGS = (Ordering.CAUSAL, Ordering.DELTA_CAUSAL)
GHOST = NodeId("ghost")


def group_of(ordering: Ordering) -> Group:
    return Group("forum", ordering, NodeId("v"))


def labels(net: testing.Network, node: str) -> list[str]:
    return [each.descriptor.label for each in net.deliveries(node)]


# --- tags ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("ordering", ORDERINGS)
def test_what_waits_is_given_up_when_its_author_who_lost_its_store_is_delivered_again(ordering: Ordering) -> None:
    group, until = group_of(ordering), 1_000 * S
    a = described("a", 1, deadline_us=until, ordering=ordering)
    old = described("x", 1, deadline_us=until, ordering=ordering, barrier=(named(a),))
    new = described("x", 1, incarnation=7, deadline_us=until, ordering=ordering)
    answer = described("u", 1, deadline_us=until, ordering=ordering, barrier=(named(new),))
    assert group.receive((old,), 1) == []
    assert group.receive((new,), 1) == [new]
    assert group.receive((a,), 1) == [a]
    assert group.pop_expired() == [old]
    assert group.receive((answer,), 2) == [answer], "what was delivered stays so"


def test_a_lie_about_a_deadline_does_not_let_messages_of_others_overtake_each_other() -> None:
    until = 1_000 * S
    a = described("a", 1, deadline_us=until)
    lie = described("x", 1, deadline_us=until, barrier=(Predecessor("a", 1, 1, 5 * S),))
    writer, reader = group_of(Ordering.DELTA_CAUSAL), group_of(Ordering.DELTA_CAUSAL)
    assert writer.receive((a, lie), S) == [a, lie]
    answer = described("u", 1, deadline_us=until, created_us=6 * S, barrier=writer.barrier(6 * S))
    assert reader.receive((lie, answer), 6 * S) == [lie]
    assert reader.receive((a,), 7 * S) == [a, answer]


# --- messages that join others -------------------------------------------------------------------------------------


@pytest.mark.parametrize("ordering", ORDERINGS)
def test_a_message_that_joins_others_does_not_hide_earlier_ones_of_its_author(ordering: Ordering) -> None:
    history = History()
    author = GroupHost("a", ordering, history, entries_max=3)
    others = [GroupHost(name, ordering, history) for name in "bcde"]
    reader = GroupHost("v", ordering, history)
    author.publish("long", 1_000 * S)
    for each in others:
        author.receive(each.publish(f"of {each.name}", 100 * S))
    author.publish("after", 50 * S)
    joining = [each for each in author.published.values() if each.joins]
    assert [len(each.barrier) for each in joining] == [3, 3]
    theirs = [found for other in others for found in other.published.values()]
    for found in (*theirs, *joining, author.published["after"], author.published["long"]):
        reader.receive(found)
    assert sorted(history.orders["v"][:-1]) == ["long", "of b", "of c", "of d", "of e"]
    assert history.orders["v"][-1] == "after"


def test_what_joins_others_and_dies_before_the_disk_has_it_is_not_told() -> None:
    with testing.network("a", "b", seed=1, limits={"barrier_entries_max": 2}) as net:
        told: list[tuple[str, Event]] = []
        net.watch(lambda _t, node, event: told.append((node, event)))
        for node in "ab":
            net.subscribe(node, "forum")
        net.link("a", "b")
        net.advance(5)
        net._driver("b").disk.delay_us = 90_000_000  # noqa: SLF001
        for number in range(4):
            net.publish("a", "forum", b"x", label=f"m{number}", ordering="delta-causal", lifetime_s=60 - number)
        net.advance(300)
        found = {node: [event for other, event in told if other == node] for node in "ab"}
        assert any(
            each.descriptor.joins for event in found["a"] if isinstance(event, Delivered) for each in event.deliveries
        )
        assert not [event for event in found["b"] if isinstance(event, Delivered)]


# --- dates ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("ordering", ["causal", "delta-causal"])
def test_a_message_dated_ten_minutes_ahead_does_not_kill_those_of_others(ordering: str) -> None:
    with testing.network("a", "b", "v", seed=1) as net:
        for node in "abv":
            net.subscribe(node, "forum")
        mallory = Attacker(net)
        mallory.meet("v", "forum")
        net.advance(5)
        ahead_us = round(net.now * 1e6) + 599 * S
        far = message(
            mallory.identity, b"x", destination="forum", ordering=Ordering.named(ordering), label="far",
            created_us=ahead_us, deadline_us=ahead_us + 3_600 * S,
        )  # fmt: skip
        mallory.give("v", far)
        net.link("a", "v")
        for number in range(3):
            net.publish("a", "forum", b"x", label=f"a{number}", ordering=ordering, lifetime_s=60)
            net.advance(30)
        assert labels(net, "v") == ["a0", "a1", "a2"]
        net.publish("v", "forum", b"x", label="v", ordering=ordering, lifetime_s=60)
        net.advance(5)
        assert net.deliveries("a")[-1].descriptor.created_us < net.now * 1e6
        net.advance(700)
        assert labels(net, "v")[-1] == "far"


# --- memory --------------------------------------------------------------------------------------------------------


def waiting(number: int, predecessor: tuple[NodeId, int, int]) -> WaitingMessage:
    predecessors: Barrier = (predecessor,)
    return WaitingMessage(described("x", number), predecessors, 0)


def test_names_of_what_does_not_exist_are_forgotten_when_it_is_dead() -> None:
    watch = Watch()
    for number in range(1_000):
        watch.file(waiting(number, (NodeId(f"ghost {number}"), 1, number)))
        assert len(watch.dead(number)) == 1
    assert len(watch.tags) <= 65


def test_who_tells_another_deadline_each_time_leaves_nothing_behind() -> None:
    watch = Watch()
    stays = waiting(0, (GHOST, 1, 10**9))
    watch.file(stays)
    for number in range(1, 1_000):
        one = waiting(number, (GHOST, 1, 10**9 + number))
        watch.file(one)
        watch.leave(one)
    assert len(watch._due) <= 70  # noqa: SLF001
    assert watch.dead(10**9) == [stays]


def test_what_was_waited_for_and_came_leaves_no_timer_behind() -> None:
    watch = Watch()
    for number in range(1_000):
        watch.file(waiting(number, (GHOST, number, 10**9 + number)))
        assert len(watch.delivered(GHOST, number)) == 1
    assert len(watch._due) <= 65  # noqa: SLF001


# --- nothing is stuck ------------------------------------------------------------------------------------------------


class Alone:
    """A host without neighbours; its disk answers at once, except for held batches."""

    def __init__(self, **settings: object) -> None:
        self.host = Host(Identity.plain(NodeId("v")), Settings.emulated(**settings), Random(1))
        self.told: list[Event] = []
        self.host.start(0)
        self.go(0)

    def go(self, now: int) -> None:
        while self.host.busy:
            while (batch := self.host.changes()) is not None:
                self.host.durable(batch.serial, now)
            self.host.outgoing()
            self.told += self.host.events()

    def receive(self, descriptor: Descriptor, now: int) -> None:
        """A message came, however."""
        holdings, layers = self.host._holdings, self.host._layers  # noqa: SLF001
        copy: Any = holdings.admit(descriptor, nbytes=0, interesting=True, held=1, now=now)
        layers.receive([copy])
        holdings.keep((copy,))

    def delivered(self) -> list[str]:
        found = [each for each in self.told if isinstance(each, Delivered)]
        return [each.descriptor.label for event in found for each in event.deliveries]


@pytest.mark.parametrize("step", ["confirm", "durable", "refused publication", "refused subscription"])
def test_what_a_death_lets_through_is_told_whatever_the_host_is_doing_then(step: str) -> None:
    alone = Alone()
    host = alone.host
    host.subscribe("forum", now=0)
    missing = Predecessor("ghost", 1, 1, 10 * S)
    alone.receive(described("x", 1, deadline_us=1_000 * S, barrier=(missing,), label="answer"), 0)
    batch = host.changes()
    assert batch is not None
    if step != "durable":
        host.durable(batch.serial, 0)
    alone.go(0)
    if step == "durable":
        host.durable(batch.serial, 10 * S)
    elif step == "confirm":
        host.confirm([], 10 * S)
    elif step == "refused publication":
        with pytest.raises(PayloadError, match="priority"):
            host.publish("forum", b"x", now=10 * S, priority=77)
    else:
        with pytest.raises(PatternError):
            host.subscribe({"language": "en"}, ordered=True, now=10 * S)
    alone.go(10 * S)
    assert alone.delivered() == ["answer"]


def test_what_was_turned_away_comes_again_when_its_turn_comes_though_the_room_stays_full() -> None:
    with testing.network("v", seed=1, compress=False, cache_messages_max=80) as net:
        net.subscribe("v", "forum")
        mallory = Attacker(net)
        mallory.meet("v", "forum")
        net.advance(1)
        author, handle = Identity.plain(NodeId("x")), 0
        chain = [
            message(
                author, b"x", destination="forum", sequence=number, ordering=Ordering.DELTA_CAUSAL, label=f"m{number}",
                barrier=(Predecessor("x", 1, number - 1, 3_600 * S),) if number > 1 else (),
            )
            for number in range(1, 15)
        ]  # fmt: skip
        for each in (*chain[:0:-1], chain[0]):
            handle += 1
            mallory.give("v", each, handle=handle)
            net.advance(0.1)
        assert labels(net, "v") == ["m1"]
        assert len(net.host("v")._order._waiting.copies) == 10  # noqa: SLF001
        for _ in range(3):
            net.advance(11)
            for each in chain[1:4]:
                handle += 1
                mallory.give("v", each, handle=handle)
                net.advance(0.1)
        assert labels(net, "v") == [f"m{number}" for number in range(1, 15)]


# --- the store -----------------------------------------------------------------------------------------------------


def test_an_author_without_a_name_is_no_author() -> None:
    nobody = message(Identity.plain(NodeId("x")), author="", destination="forum", ordering=Ordering.DELTA_CAUSAL)
    with pytest.raises(DecodeError, match="no name"):
        decode(nobody.descriptor.wire)


# --- groups --------------------------------------------------------------------------------------------------------


def test_to_look_for_dead_groups_does_not_write_the_living() -> None:
    alone = Alone(limits={"groups_max": 3})
    host = alone.host
    for number in range(3):
        host.publish(f"forum/{number}", b"x", now=0, ordering=Ordering.DELTA_CAUSAL, lifetime_us=1_000 * S)
    alone.go(0)
    for now in range(S, 5 * S, S):
        host.tick(now)
        host._holdings.now_us = now  # noqa: SLF001
        assert host._order._group("more", Ordering.DELTA_CAUSAL, host.node) is None  # noqa: SLF001
        assert not host._order._touched  # noqa: SLF001


# --- costs ---------------------------------------------------------------------------------------------------------


def calls(act: Callable[[], object]) -> int:
    """Return the number of function calls that an action takes, those of built-in functions included."""
    counted = 0

    def count(_frame: object, event: str, _arg: object) -> None:
        nonlocal counted
        counted += event in {"call", "c_call"}

    sys.setprofile(count)
    try:
        act()
    finally:
        sys.setprofile(None)
    return counted


@pytest.mark.parametrize("ordering", ORDERINGS)
def test_a_message_that_names_a_dead_one_costs_the_same_whatever_waits(ordering: Ordering) -> None:
    dead, until = Predecessor("ghost", 1, 1, S), 1_000 * S
    costs: list[int] = []
    for waiting_messages in (10, 1_000):
        group = group_of(ordering)
        for number in range(waiting_messages):
            missing = Predecessor("nobody", 1, number + 1, until)
            group.receive(
                (described(f"x{number}", 1, deadline_us=until, ordering=ordering, barrier=(missing,)),), 2 * S
            )
        assert len(group.pending) == waiting_messages
        late = described("late", 1, deadline_us=until, ordering=ordering, barrier=(dead,))
        costs.append(calls(lambda group=group, late=late: group.receive((late,), 3 * S)))  # type: ignore[misc]
    assert costs[1] <= costs[0]


@pytest.mark.pure("inherits from what is compiled")
def test_a_copy_leaves_at_the_same_cost_whatever_waits_for_the_same_message() -> None:
    class Compared(WaitingMessage):
        compared = 0

        def __eq__(self, other: object) -> bool:
            Compared.compared += 1
            return self is other

        __hash__ = WaitingMessage.__hash__

    watch = Watch()
    some = [Compared(described("x", number), ((GHOST, 1, 10**9),), 0) for number in range(500)]
    for each in some:
        watch.file(each)
    for each in reversed(some):
        watch.leave(each)
    assert Compared.compared < 1_000


def test_in_causal_order_too_what_waits_goes_on_where_it_stopped() -> None:
    class Counted(dict[NodeId, int]):
        asked = 0

        def get(self, key: NodeId, default: int | None = None) -> int | None:  # type: ignore[override]
            self.asked += 1
            return super().get(key, default)

    group, entries = group_of(Ordering.CAUSAL), 100
    counted = group._tags = Counted()  # noqa: SLF001
    sources = [described(f"s{number}", 1, deadline_us=1_000 * S, ordering=Ordering.CAUSAL) for number in range(entries)]
    barrier = tuple(named(each) for each in sources)
    last = described("x", 1, deadline_us=1_000 * S, ordering=Ordering.CAUSAL, barrier=barrier)
    assert group.receive((last,), 1) == []
    for each in sources[:-1]:
        assert group.receive((each,), 1) == [each]
    assert group.receive((sources[-1],), 1) == [sources[-1], last]
    assert counted.asked < 10 * entries
