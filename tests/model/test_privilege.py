"""Privilege: messages that matter more go first and stay longer; the application may say which (N11, N14)."""

from __future__ import annotations

import itertools
import random

import pytest

from carrypost import testing
from carrypost.config import Settings
from carrypost.errors import ConfigError, StateError
from carrypost.gossip.wire.frames import Frame, Offer
from carrypost.host import Host
from carrypost.log.events import Dropped, Event, Reason, Received
from carrypost.model.descriptor import Descriptor
from carrypost.model.descriptor_values import privilege
from carrypost.security.identity import Identity

LEVELS = [(persistent, priority) for persistent in (True, False) for priority in range(9, -1, -1)]


def level(descriptor: Descriptor) -> tuple[bool, int]:
    return descriptor.persistent, descriptor.priority


def test_a_contact_transfers_the_most_privileged_first_and_the_oldest_of_equals() -> None:
    order: list[Descriptor] = []

    def note(_t: float, node: str, event: Event) -> None:
        if node == "b" and isinstance(event, Received):
            order.extend(reception.descriptor for reception in event.receptions)

    with testing.network("a", "b", rate_bytes_per_s=20_000) as net:
        net.watch(note)
        net.subscribe("b", "news")
        for round_ in range(2):
            for persistent, priority in random.Random(round_).sample(LEVELS, len(LEVELS)):
                net.publish("a", "news", testing.Blank(900), persistent=persistent, priority=priority)
            net.advance(1)
        net.link("a", "b")
        net.advance(60)
    assert [level(descriptor) for descriptor in order] == [each for each in LEVELS for _ in range(2)]
    for first, second in zip(order[::2], order[1::2], strict=True):
        assert first.created_us < second.created_us


def got_in_order(seed: int) -> list[tuple[int, int]]:
    """Return numbers of messages and their priorities, as they came over a slow link in random order."""
    with testing.network("a", "b", seed=seed, rate_bytes_per_s=20_000, send_order="random") as net:
        net.subscribe("b", "news")
        for number in range(60):
            net.publish("a", "news", b"%d" % number + bytes(900), priority=3 + number % 2)
        net.link("a", "b")
        net.advance(60)
        return [(int(each.payload.rstrip(b"\0")), each.descriptor.priority) for each in net.deliveries("b")]


def test_a_random_sending_order_keeps_the_privilege_and_repeats_with_the_seed() -> None:
    order = got_in_order(1)
    numbers = [number for number, _ in order]
    assert sorted(numbers) == list(range(60))
    assert [priority for _, priority in order] == [4] * 30 + [3] * 30
    assert numbers[:30] != sorted(numbers[:30])
    later = sum(a > b for a, b in itertools.pairwise(numbers[:30]))
    assert 8 < later < 21  # About half of the neighbours in the list are not in order of age.
    assert order == got_in_order(1) != got_in_order(2)


def test_hosts_that_have_to_agree_on_an_order_refuse_a_random_one() -> None:
    with pytest.raises(ConfigError, match=r'send_order must be "rank" with strategy = "anti-entropy".*not "random"'):
        Settings(strategy="anti-entropy", send_order="random")


def test_a_short_contact_brings_what_matters_most() -> None:
    with testing.network("a", "b", rate_bytes_per_s=10_000) as net:
        net.subscribe("b", "news")
        for persistent, priority in reversed(LEVELS):
            for _ in range(5):
                net.publish("a", "news", testing.Blank(1_000), persistent=persistent, priority=priority)
        net.link("a", "b")
        while len(net.deliveries("b")) < 25:
            net.advance(0.1)
        net.unlink("a", "b")
        got = [level(delivery.descriptor) for delivery in net.deliveries("b")]
        assert got == [each for each in LEVELS for _ in range(5)][: len(got)]


def test_something_urgent_overtakes_what_is_waiting() -> None:
    with testing.network("a", "b", rate_bytes_per_s=20_000, window_bytes_max=4_096) as net:
        net.subscribe("b", "news")
        for _ in range(200):
            net.publish("a", "news", testing.Blank(1_000), priority=1)
        net.link("a", "b")
        net.advance(3)
        before = len(net.deliveries("b"))
        net.publish("a", "news", testing.Blank(1_000), priority=9)
        net.advance(2)
        got = [delivery.descriptor.priority for delivery in net.deliveries("b")]
        assert 0 < before < 100
        assert got.index(9) < before + 15


def test_a_full_cache_drops_the_least_privileged_first_and_the_oldest_of_equals() -> None:
    dropped: list[tuple[bool, int]] = []

    def note(_t: float, _node: str, event: Event) -> None:
        if isinstance(event, Dropped) and event.reason is Reason.EVICTED:
            dropped.extend(level(descriptor) for descriptor in event.descriptors)

    with testing.network("a", "b") as net:
        net.add("c", cache_messages_max=len(LEVELS), altruistic=True, shares=False)
        net.watch(note)
        for persistent, priority in random.Random(1).sample(LEVELS, len(LEVELS)):
            net.publish("a", "news", b"", persistent=persistent, priority=priority)
        net.link("a", "c")
        net.advance(20)
        for _ in range(12):
            net.publish("b", "news", b"", persistent=True, priority=9)
        net.link("b", "c")
        net.advance(20)
    assert dropped == list(reversed(LEVELS))[:12]


def test_a_newcomer_that_is_least_privileged_is_refused() -> None:
    with testing.network("a") as net:
        net.add("b", cache_messages_max=5, shares=False)
        net.subscribe("b", "news")
        for _ in range(5):
            net.publish("a", "news", b"", priority=5)
        net.link("a", "b")
        net.advance(20)
        net.publish("a", "news", b"", priority=4)
        net.advance(60)
        assert [delivery.descriptor.priority for delivery in net.deliveries("b")] == [5] * 5
        assert net.sent("a").frames["Parcel"] == 6  # It was pushed once, then offered, and not asked for.
        net.advance(600)
        assert net.sent("a").frames["Parcel"] == 6
        net.publish("a", "news", b"", priority=6)
        net.advance(60)
        assert [delivery.descriptor.priority for delivery in net.deliveries("b")] == [5] * 5 + [6]


def test_a_publication_that_is_least_privileged_in_a_full_cache_is_refused_to_its_author() -> None:
    with testing.network("a", cache_messages_max=3) as net:
        for _ in range(3):
            net.publish("a", "news", b"", priority=5)
        with pytest.raises(StateError, match="cache is full"):
            net.publish("a", "news", b"", priority=4)
        net.publish("a", "news", b"", priority=6)


def test_a_sociable_node_with_a_larger_cache_carries_more() -> None:
    with testing.network("a", "d") as net:
        net.add("shy", cache_messages_max=10, altruistic=True)
        net.add("sociable", cache_messages_max=1_000, altruistic=True, announce_s_max=2)
        net.subscribe("d", "news")
        for _ in range(200):
            net.publish("a", "news", b"")
        for carrier, expected in (("shy", 10), ("sociable", 200)):
            for other in "ad":
                net.link(other, carrier)
                net.advance(30)
                net.unlink(other, carrier)
                net.advance(30)
            assert len(net.deliveries("d")) == expected
        assert net.sent("sociable").frames["Announce"] > 1.5 * net.sent("shy").frames["Announce"]


def test_a_cache_is_limited_in_bytes_too() -> None:
    with testing.network("a") as net:
        net.add("b", cache_bytes_max=100_000, altruistic=True, shares=False)
        net.add("c")
        net.subscribe("c", "news")
        for _ in range(30):
            net.publish("a", "news", testing.Blank(10_000))
        for first, second in (("a", "b"), ("b", "c")):
            net.link(first, second)
            net.advance(30)
            net.unlink(first, second)
            net.advance(30)
        assert len(net.deliveries("c")) == 10


@pytest.mark.parametrize(
    ("persistent", "priority", "expected"), [(False, 0, 0), (False, 9, 9), (True, 0, 10), (True, 9, 19)]
)
def test_the_rule_of_the_papers(persistent: bool, priority: int, expected: int) -> None:
    descriptor = Descriptor("a", 1, 1, 0, None, "news", 0, 0, 0, b"", 1_024, priority, persistent)  # type: ignore[arg-type]
    assert privilege(descriptor) == expected


@pytest.mark.parametrize(
    ("rule", "expected"),
    [
        (privilege, ["urgent", "plain", "long name"]),
        (lambda descriptor: len(descriptor.label), ["long name", "urgent", "plain"]),
        (lambda descriptor: -5 if descriptor.label == "urgent" else 10**9, ["plain", "long name", "urgent"]),
    ],
)
def test_an_application_may_replace_the_rule(rule: object, expected: list[str]) -> None:
    host = Host(Identity.plain("a"), Settings.emulated(beacons=False), random.Random(1), privilege=rule)  # type: ignore[arg-type]
    host.start(0)
    batch = host.changes()
    assert batch is not None
    host.durable(batch.serial, 0)
    labels = {}
    for label, priority in (("plain", 4), ("long name", 1), ("urgent", 9)):
        labels[host.publish("news", b"x", now=0, label=label, priority=priority)] = label
    other = Host(Identity.plain("b"), Settings.emulated(beacons=False), random.Random(1))
    other.start(0)
    batch = other.changes()
    assert batch is not None
    other.durable(batch.serial, 0)
    other.subscribe("news", now=0)
    host.link("b", True, 0)
    other.link("a", True, 0)
    offers: list[Offer] = []
    now = 0
    while not offers:
        now += 1_000
        host.tick(now)
        other.tick(now)
        sent: list[Frame] = [frame for each in host.outgoing() for frame in each.frames]
        offers = [frame for frame in sent if isinstance(frame, Offer)]
        other.receive(sent, "a", now)
        host.receive([frame for each in other.outgoing() for frame in each.frames], "b", now)
    (offer,) = offers
    assert [labels[entry.message] for entry in offer.entries] == expected
    assert all(0 <= entry.privilege <= 255 for entry in offer.entries)
