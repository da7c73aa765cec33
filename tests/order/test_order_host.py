"""Order on whole hosts: waiting, restarts, disks that are slow or full, bounds, hostile authors, subscriptions."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from random import Random
from typing import Any

import pytest
from tests.support.hostile import Attacker, Message, message

from carrypost import testing
from carrypost.config import Settings
from carrypost.errors import (
    DecodeError,
    LocalError,
    OrderError,
    PatternError,
    PayloadError,
    ResourceAllocationException,
    StoreError,
)
from carrypost.host import Host
from carrypost.log.events import Delivered, Delivery, Dropped, Event, Expired, Reason, Stored
from carrypost.model.descriptor import Ordering, Predecessor, decode
from carrypost.model.ids import node_of
from carrypost.order.groups import Registry
from carrypost.security.identity import Identity

LARGE = 200_000


def labels(net: testing.Network, node: str) -> list[str]:
    return [each.descriptor.label for each in net.deliveries(node)]


def registry(net: testing.Network, node: str, destination: str = "forum") -> Registry:
    found = net.host(node).registries(round(net.now * 1e6))
    return next(each for each in found if each.destination == destination)


class _Events:
    def __init__(self, net: testing.Network) -> None:
        self._all: list[tuple[str, Event]] = []
        net.watch(lambda _, node, event: self._all.append((node, event)))

    def of(self, node: str, kind: type[Any]) -> list[Any]:
        return [event for where, event in self._all if where == node and isinstance(event, kind)]

    def deliveries(self, node: str) -> list[Delivery]:
        return [each for event in self.of(node, Delivered) for each in event.deliveries]


def say(net: testing.Network, node: str, label: str, **changes: object) -> bytes:
    usual: dict[str, Any] = {"ordering": "delta-causal", "lifetime_s": 600, "label": label, "payload": b"x"}
    return net.publish(node, "forum", **usual | changes)


@pytest.fixture
def forum() -> Iterator[testing.Network]:
    """Three nodes that read the forum; a and b are in contact, c is not."""
    with testing.network("a", "b", "c", seed=1, compress=False) as net:
        for node in "abc":
            net.subscribe(node, "forum")
        net.link("a", "b")
        net.advance(5)
        yield net


def half_a_contact(net: testing.Network, **changes: object) -> None:
    """Let b's answer to a's large message reach c, and end the contact before the large message does."""
    say(net, "a", "large", payload=bytes(LARGE), **changes)
    net.advance(30)
    say(net, "b", "answer", priority=9, **changes | {"lifetime_s": 600})
    net.advance(1)
    net.link("b", "c", rate_bytes_per_s=20_000)
    net.advance(4)
    net.unlink("b", "c")


def test_a_message_waits_for_one_that_it_depends_on(forum: testing.Network) -> None:
    half_a_contact(forum)
    assert labels(forum, "c") == []
    assert registry(forum, "c") == Registry("forum", Ordering.DELTA_CAUSAL, 0, 0, 1)
    forum.link("a", "c")
    forum.advance(30)
    assert labels(forum, "c") == ["large", "answer"]
    assert registry(forum, "c").pending == 0


def test_it_is_delivered_at_the_death_of_what_it_waits_for_though_nothing_else_happens(forum: testing.Network) -> None:
    half_a_contact(forum, lifetime_s=100)
    forum.advance(200)
    delivery = forum.deliveries("c")[0]
    assert delivery.descriptor.label == "answer"
    assert delivery.time == 105.0
    assert registry(forum, "c").pending == 0


def test_in_causal_order_too_and_then_it_says_that_something_is_missing(forum: testing.Network) -> None:
    events = _Events(forum)
    half_a_contact(forum, lifetime_s=100, ordering="causal")
    assert labels(forum, "c") == []
    forum.advance(90)
    forum.kill("c")
    forum.restart("c")
    say(forum, "b", "more", ordering="causal")
    forum.link("b", "c")
    forum.advance(30)
    found = [(each.descriptor.label, each.predecessors_lost) for each in events.deliveries("c")]
    assert found == [("answer", 1), ("more", 0)]


@pytest.mark.parametrize("ordering", ["causal", "delta-causal"])
def test_no_stranger_silences_a_member_by_a_message_that_only_she_gets(ordering: str) -> None:
    with testing.network("anna", "ben", seed=1) as net:
        events = _Events(net)
        for node in ("anna", "ben"):
            net.subscribe(node, "forum")
        mallory = Attacker(net)
        mallory.meet("anna", "forum")
        net.advance(5)
        brief = message(
            mallory.identity, b"x", destination="forum", ordering=Ordering.named(ordering),
            created_us=round(net.now * 1e6), deadline_us=round(net.now * 1e6) + 2_000_000,
        )  # fmt: skip
        mallory.give("anna", brief)
        net.advance(1)
        assert len(labels(net, "anna")) == 1
        say(net, "anna", "first", ordering=ordering)
        net.advance(10)
        net.link("anna", "ben")
        net.advance(10)
        say(net, "anna", "second", ordering=ordering)
        net.advance(10)
        say(net, "ben", "answer", ordering=ordering)
        net.advance(10)
        assert labels(net, "ben") == ["first", "second", "answer"]
        marks = [each.predecessors_lost for each in events.deliveries("ben")]
        assert marks == [int(ordering == "causal"), 0, 0]


def test_what_dies_while_it_waits_is_told_as_expired_and_not_as_dropped(forum: testing.Network) -> None:
    events = _Events(forum)
    say(forum, "a", "large", payload=bytes(LARGE))
    forum.advance(30)
    say(forum, "b", "answer", priority=9, lifetime_s=20)
    forum.advance(1)
    forum.link("b", "c", rate_bytes_per_s=20_000)
    forum.advance(4)
    forum.unlink("b", "c")
    forum.advance(30)
    assert [each.label for event in events.of("c", Expired) for each in event.descriptors] == ["answer"]
    assert [each.label for event in events.of("c", Dropped) for each in event.descriptors] == []
    assert registry(forum, "c").pending == 0


def test_groups_are_independent_of_each_other(forum: testing.Network) -> None:
    forum.subscribe("c", "other")
    half_a_contact(forum)
    forum.publish("b", "other", b"x", ordering="delta-causal", label="other", priority=9)
    forum.link("b", "c", rate_bytes_per_s=20_000)
    forum.advance(4)
    assert labels(forum, "c") == ["other"]
    assert registry(forum, "c", "other").pending == 0
    assert registry(forum, "c").pending == 1


def test_who_only_publishes_has_an_order_too() -> None:
    with testing.network("a", "b", seed=1, compress=False) as net:
        net.subscribe("b", "forum")
        say(net, "a", "large", payload=bytes(LARGE))
        say(net, "a", "small", priority=9)
        net.link("a", "b", rate_bytes_per_s=20_000)
        net.advance(60)
        assert labels(net, "b") == ["large", "small"]


def test_an_application_may_publish_inside_a_delivery(forum: testing.Network) -> None:
    answered: list[str] = []

    def answer(_t: float, node: str, event: Event) -> None:
        if node == "b" and isinstance(event, testing.Delivered):
            for each in event.deliveries:
                if each.descriptor.node == "a":
                    answered.append(each.descriptor.label)
                    say(forum, "b", f"re {each.descriptor.label}")

    forum.watch(answer)
    for number in range(5):
        say(forum, "a", f"m{number}")
    forum.advance(10)
    assert answered == [f"m{number}" for number in range(5)]
    forum.link("b", "c")
    forum.advance(10)
    found = labels(forum, "c")
    assert sorted(found) == sorted([*answered, *(f"re {each}" for each in answered)])
    assert all(found.index(each) < found.index(f"re {each}") for each in answered)


# --- disks and restarts ------------------------------------------------------------------------------------------


def test_an_ordered_message_leaves_only_once_it_is_durable() -> None:
    with testing.network("a", "b", seed=1, disk_delay_s=5.0) as net:
        net.subscribe("b", "forum")
        net.link("a", "b")
        net.advance(30)
        net.publish("a", "forum", b"x", label="unordered")
        say(net, "a", "ordered")
        net.advance(2)
        assert net.host("b").copies == 1
        net.advance(5)
        assert net.host("b").copies == 2


def test_what_a_crash_took_before_it_was_durable_is_named_by_nobody() -> None:
    with testing.network("a", "b", seed=1, disk_delay_s=5.0) as net:
        net.subscribe("b", "forum")
        net.link("a", "b")
        net.advance(30)
        say(net, "a", "lost")
        net.advance(2)
        net.kill("a")
        net.restart("a")
        net.advance(30)
        say(net, "a", "first")
        net.advance(30)
        assert labels(net, "b") == ["first"]
        assert net.deliveries("b")[0].descriptor.barrier == ()


def test_after_a_restart_nothing_comes_twice_and_nothing_is_forgotten(forum: testing.Network) -> None:
    half_a_contact(forum)
    say(forum, "a", "later")
    forum.advance(5)
    for node in "abc":
        before = registry(forum, node)
        forum.kill(node)
        forum.restart(node)
        assert registry(forum, node) == before
    say(forum, "b", "last")
    forum.advance(10)
    forum.link("b", "c")
    forum.advance(30)
    assert labels(forum, "c") == ["large", "answer", "later", "last"]
    assert labels(forum, "b") == ["large", "answer", "later", "last"]


def test_what_was_not_confirmed_comes_again_in_order() -> None:
    with testing.network("a", "b", seed=1, confirm=False) as net:
        net.subscribe("b", "forum")
        say(net, "a", "m0", payload=bytes(LARGE))
        for number in range(1, 20):
            say(net, "a", f"m{number}", priority=number % 10)
        net.link("a", "b")
        net.advance(60)
        expected = [f"m{number}" for number in range(20)]
        assert labels(net, "b") == expected
        net.kill("b")
        net.restart("b")
        net.advance(5)
        again = net.deliveries("b")[20:]
        assert [each.descriptor.label for each in again] == expected
        assert all(each.redelivered for each in again)


def test_a_send_that_the_disk_does_not_take_fails_and_is_named_by_nobody(forum: testing.Network) -> None:
    events = _Events(forum)
    say(forum, "a", "before")
    forum.advance(5)
    forum.fill_disk("a")
    with pytest.raises(ResourceAllocationException):
        say(forum, "a", "lost")
    forum.advance(2)
    forum.fill_disk("a", full=False)
    forum.advance(5)
    kept = say(forum, "a", "after")
    forum.advance(10)
    assert kept in [event.message for event in events.of("a", Stored)]
    assert labels(forum, "b") == ["before", "after"]
    assert [each.sequence for each in forum.deliveries("b")[-1].descriptor.barrier] == [1]


def test_a_delivery_that_the_disk_does_not_take_comes_later_and_in_order(forum: testing.Network) -> None:
    half_a_contact(forum)
    forum.fill_disk("c")
    forum.link("a", "c")
    forum.advance(10)
    assert labels(forum, "c") == []
    forum.fill_disk("c", full=False)
    forum.advance(120)
    assert labels(forum, "c") == ["large", "answer"]
    say(forum, "c", "mine")
    forum.advance(10)
    assert labels(forum, "a")[-1] == "mine"
    assert {each.source for each in forum.deliveries("a")[-1].descriptor.barrier} == {"b"}


def test_a_registry_that_cannot_be_read_is_told() -> None:
    host = Host(Identity.plain("a"), Settings.emulated(), Random(1))
    with pytest.raises(StoreError, match="a registry of an order group that cannot be read"):
        host.restore([(("order", b"\x93\x02\xa1f\xa0", 0), b"\xc1")], 0)


# --- bounds ------------------------------------------------------------------------------------------------------


def forged(attacker: Attacker, number: int, **changes: object) -> Message:
    """Return a message that depends on one that does not exist."""
    until_us: Any = changes.pop("until_us", 3_000_000_000)
    missing = Predecessor("nobody", 1, number + 1, until_us)
    usual: dict[str, Any] = {"destination": "forum", "ordering": Ordering.DELTA_CAUSAL, "barrier": (missing,)}
    return message(attacker.identity, f"forged {number}".encode(), **usual | changes)


def test_a_forged_barrier_costs_its_author_s_share_and_no_more() -> None:
    with testing.network("a", "b", seed=1, cache_messages_max=80) as net:
        events = _Events(net)
        for node in "ab":
            net.subscribe(node, "forum")
        net.link("a", "b")
        net.advance(5)
        mallory = Attacker(net)
        mallory.meet("b", "forum")
        for number in range(60):
            mallory.give("b", forged(mallory, number), handle=number + 1)
            net.advance(0.1)
        assert registry(net, "b").pending == 10  # a quarter of the half of the cache
        dropped = [event for event in events.of("b", Dropped) if event.reason is Reason.PENDING]
        assert len(dropped) == 50
        for number in range(40):
            say(net, "a", f"m{number}")
        net.advance(30)
        assert labels(net, "b") == [f"m{number}" for number in range(40)]
        net.advance(3_600)
        assert registry(net, "b").pending == 0


def test_copies_that_wait_do_not_give_way() -> None:
    with testing.network("a", "b", "c", seed=1, compress=False, cache_messages_max=10) as net:
        for node in "abc":
            net.subscribe(node, "forum")
        net.subscribe("c", "news")
        net.link("a", "b")
        net.advance(5)
        half_a_contact(net)
        assert registry(net, "c").pending == 1
        for number in range(30):
            net.publish("c", "news", b"x", label=f"n{number}", priority=9, persistent=True, lifetime_s=5)
            net.advance(0.1)
        assert net.host("c").copies == 10
        assert registry(net, "c").pending == 1
        net.advance(10)
        net.link("a", "c")
        net.advance(60)
        assert [each for each in labels(net, "c") if not each.startswith("n")] == ["large", "answer"]


def test_own_messages_give_way_to_later_ones_once_they_are_sent() -> None:
    with testing.network("a", seed=1, cache_bytes_max=1_000, compress=False) as net:
        net.subscribe("a", "forum")
        for number in range(40):
            net.advance(1)
            say(net, "a", f"m{number}", payload=bytes(350 if number % 4 else 100))
        assert labels(net, "a") == [f"m{number}" for number in range(40)]


def test_a_barrier_that_names_what_cannot_live_so_long_is_refused() -> None:
    with testing.network("a", "b", seed=1, lifetime_s_default=60, lifetime_s_max=600) as net:
        net.subscribe("b", "forum")
        net.link("a", "b")
        net.advance(5)
        mallory = Attacker(net)
        mallory.meet("b", "forum")
        far = forged(mallory, 1, until_us=10**12, deadline_us=500_000_000)
        near = forged(mallory, 2, until_us=5 * 10**8, deadline_us=500_000_000)
        for handle, each in enumerate((far, near), 1):
            mallory.give("b", each, handle=handle)
        assert net.host("b").overview().refused["barrier"] == 1
        assert registry(net, "b").pending == 1


def joining(net: testing.Network, events: _Events, node: str) -> list[int]:
    """Return the number of predecessors of each message here that joins some."""
    found = [each.descriptor for each in events.deliveries(node)]
    assert not [each for each in net.deliveries(node) if each.descriptor.joins], "programs see none"
    return [len(each.barrier) for each in found if each.joins]


@pytest.mark.parametrize("ordering", ["causal", "delta-causal"])
@pytest.mark.parametrize(("limit", "joins"), [(5, [5]), (4, [4, 3]), (3, [3, 3]), (2, [2, 2, 2, 2])])
def test_predecessors_beyond_the_limit_are_joined(ordering: str, limit: int, joins: list[int]) -> None:
    names = [f"n{number}" for number in range(6)]
    with testing.network(*names, seed=1, limits={"barrier_entries_max": limit}) as net:
        events = _Events(net)
        for number, name in enumerate(names):
            net.subscribe(name, "forum")
            say(net, name, f"of {name}", ordering=ordering, lifetime_s=600 + 10 * number)
        for other in names[1:]:
            net.link(names[0], other)
        net.advance(20)
        say(net, names[0], "after all", ordering=ordering, lifetime_s=1_000)
        net.advance(20)
        for name in names:
            assert sorted(labels(net, name)[:-1]) == [f"of {each}" for each in names]
            assert labels(net, name)[-1] == "after all"
            assert joining(net, events, name) == joins
        last = events.deliveries("n3")[-1].descriptor
        assert len(last.barrier) <= limit
        assert registry(net, "n3").c_barrier == 1
        say(net, "n3", "answer", ordering=ordering, lifetime_s=1_000)
        net.advance(20)
        assert [len(each.descriptor.barrier) for each in events.deliveries("n0")[-1:]] == [1]


def test_two_hundred_strangers_do_not_keep_anybody_from_publishing() -> None:
    with testing.network("a", "b", seed=1) as net:
        events = _Events(net)
        for node in "ab":
            net.subscribe(node, "forum")
        net.link("a", "b")
        mallory = Attacker(net)
        mallory.meet("a", "forum")
        net.advance(5)
        for number in range(201):
            stranger = Identity.plain(f"stranger {number}")
            mallory.give("a", message(stranger, b"x", destination="forum", ordering=Ordering.CAUSAL), number + 1)
            net.advance(0.1)
        net.advance(60)
        assert registry(net, "a").c_barrier == registry(net, "b").c_barrier == 201
        say(net, "b", "after all", ordering="causal")
        net.advance(60)
        assert labels(net, "a")[-1] == labels(net, "b")[-1] == "after all"
        assert joining(net, events, "a") == [102, 100]
        assert registry(net, "a").c_barrier == registry(net, "b").c_barrier == 2, "all, and those that outlive it"


def test_what_waits_for_a_message_that_joins_others_waits_for_these() -> None:
    with testing.network("a", "b", "c", seed=1, compress=False, limits={"barrier_entries_max": 2}) as net:
        for node in "abc":
            net.subscribe(node, "forum")
        say(net, "a", "large", payload=bytes(LARGE))
        net.link("a", "b")
        net.advance(30)
        for lifetime_s in (500, 400, 300):  # None of them replaces the one before.
            say(net, "b", f"lives for {lifetime_s}", lifetime_s=lifetime_s)
        say(net, "b", "answer", priority=9)
        net.advance(1)
        net.unlink("a", "b")
        net.link("b", "c", rate_bytes_per_s=20_000)
        net.advance(5)
        net.unlink("b", "c")
        assert labels(net, "c") == []
        net.link("a", "c")
        net.advance(30)
        assert labels(net, "c")[:1] == ["large"]
        net.link("b", "c")
        net.advance(30)
        assert labels(net, "c") == ["large", *(f"lives for {each}" for each in (500, 400, 300)), "answer"]


def test_joining_messages_and_what_follows_are_published_together_or_not_at_all() -> None:
    with testing.network("a", seed=1, compress=False, cache_messages_max=8, limits={"barrier_entries_max": 2}) as net:
        net.subscribe("a", "forum")
        for lifetime_s in (900, 800, 700):
            say(net, "a", f"lives for {lifetime_s}", lifetime_s=lifetime_s)
        net.advance(5)
        net.fill_disk("a")
        with pytest.raises(ResourceAllocationException):
            say(net, "a", "lost", lifetime_s=600)
        net.fill_disk("a", full=False)
        net.advance(5)
        assert labels(net, "a")[-1] == "lives for 700"
        say(net, "a", "kept", lifetime_s=600)
        net.advance(5)
        assert labels(net, "a")[-1] == "kept"


def test_there_are_only_so_many_groups_and_dead_ones_make_room() -> None:
    with testing.network("a", seed=1, limits={"groups_max": 3}) as net:
        for number in range(3):
            net.publish("a", f"topic {number}", b"x", ordering="delta-causal", lifetime_s=10)
        with pytest.raises(OrderError, match="3 order groups, the maximum"):
            net.publish("a", "topic 3", b"x", ordering="delta-causal")
        net.advance(20)
        net.publish("a", "topic 3", b"x", ordering="delta-causal")
        assert [each.destination for each in net.host("a").registries(round(net.now * 1e6))] == ["topic 3"]


def test_what_may_not_be_published_begins_no_group(forum: testing.Network) -> None:
    with pytest.raises(PayloadError, match="a destination must have 1 to 256 bytes"):
        forum.publish("a", "", b"x", ordering="causal")
    assert forum.host("a").registries(0) == []


def test_a_message_published_at_the_beginning_of_time_is_dated_by_it() -> None:
    with testing.network("a", seed=1) as net:
        net.subscribe("a", "forum")
        say(net, "a", "first")
        net.advance(1)
        assert net.deliveries("a")[0].descriptor.created_us == 0


def test_an_unknown_ordering_is_told_with_those_that_there_are(forum: testing.Network) -> None:
    with pytest.raises(LocalError, match="'none', 'causal', 'delta-causal', not 'fifo'"):
        forum.publish("a", "forum", b"x", ordering="fifo")


# --- subscriptions -----------------------------------------------------------------------------------------------


def test_an_ordered_subscription_filters_at_delivery_only() -> None:
    with testing.network("a", "b", seed=1) as net:
        net.subscribe("b", {"destination": "forum", "language": "en"}, ordered=True)
        net.link("a", "b")
        net.advance(5)
        for number, language in enumerate(("en", "fr", "en", "de", "fr", "en")):
            say(net, "a", f"m{number}", attributes={"language": language})
        net.advance(20)
        assert labels(net, "b") == ["m0", "m2", "m5"]
        assert net.host("b").copies == 6
        assert registry(net, "b").pending == 0


def test_an_ordered_subscription_names_its_destination(forum: testing.Network) -> None:
    with pytest.raises(PatternError, match="an ordered subscription must name only its destination"):
        forum.subscribe("a", {"language": "en"}, ordered=True)


def test_who_unsubscribes_waits_no_more_and_who_subscribes_again_waits_again(forum: testing.Network) -> None:
    number = forum.subscribe("c", "forum")
    half_a_contact(forum)
    forum.unsubscribe("c", number)
    assert registry(forum, "c").pending == 1  # The first subscription is there still.
    forum.unsubscribe("c", 1)
    assert registry(forum, "c").pending == 0
    forum.subscribe("c", "forum")
    assert registry(forum, "c").pending == 1
    forum.link("a", "c")
    forum.advance(30)
    assert labels(forum, "c") == ["large", "answer"]


def test_dates_rise_along_the_order_though_clocks_are_the_same(forum: testing.Network) -> None:
    say(forum, "a", "m0")
    forum.advance(5)
    for number in range(1, 4):
        say(forum, "b", f"m{number}")
    forum.advance(5)
    found = [each.descriptor for each in forum.deliveries("a")]
    assert all((one.created_us, one.tag) < (two.created_us, two.tag) for one, two in pairwise(found))


# --- with keys ---------------------------------------------------------------------------------------------------


def test_signed_messages_name_their_predecessors_by_the_bytes_of_ids() -> None:
    with testing.network("a", "b", "c", seed=1, security="signed", lifetime_s_default=600, lifetime_s_max=600) as net:
        for node in "abc":
            net.subscribe(node, "forum")
        net.link("a", "b")
        net.advance(5)
        say(net, "a", "first")
        net.advance(5)
        say(net, "b", "second")
        net.link("b", "c")
        net.advance(5)
        assert labels(net, "c") == ["first", "second"]
        (named,) = net.deliveries("c")[-1].descriptor.barrier
        assert isinstance(named.source, bytes)
        assert node_of(named.source) == net.host("a").node
        net.kill("c")
        net.restart("c")
        say(net, "c", "third")
        net.advance(5)
        assert labels(net, "a") == ["first", "second", "third"]


@pytest.mark.parametrize("source", ["a", b"too short", b"", 7], ids=repr)
def test_a_barrier_that_names_nodes_in_another_way_than_the_author_is_no_descriptor(source: object) -> None:
    identity = Identity.derived("test", "author")
    barrier = (Predecessor(source, 1, 1, None),)  # type: ignore[arg-type]
    forged = message(identity, ordering=Ordering.CAUSAL, barrier=barrier).descriptor
    with pytest.raises(DecodeError, match="names nodes in another way"):
        decode(forged.wire)
