"""Carriers: altruism by pattern, and interests that spread a few hops (N8, N10)."""

from __future__ import annotations

from itertools import pairwise

import pytest

from carrypost import testing
from carrypost.log.events import Dropped, Event, Reason, Received


def meet(net: testing.Network, *pairs: str, seconds: float = 30) -> None:
    """Play contacts one after the other; `ab` is one between a and b."""
    for pair in pairs:
        first, second = tuple(pair)
        net.link(first, second)
        net.advance(seconds)
        net.unlink(first, second)
        net.advance(30)


def delivered(net: testing.Network, node: str) -> list[bytes]:
    return [delivery.payload for delivery in net.deliveries(node)]


def payloads_sent(net: testing.Network, node: str) -> int:
    """Whole messages and fragments."""
    frames = net.sent(node).frames
    return frames["Parcel"] + frames["Data"]


def test_nobody_carries_what_it_does_not_want_unless_told_to() -> None:
    with testing.network("a", "b", "c") as net:
        net.subscribe("c", "news")
        net.publish("a", "news", b"hello")
        meet(net, "ab", "bc")
        assert delivered(net, "c") == []
        assert net.sent("a").frames["Offer"] == 0


@pytest.mark.parametrize(
    ("altruistic", "expected"),
    [
        (True, [b"news", b"sport", b"sportsmen"]),
        (("sport",), [b"sport"]),
        (("sport.*", "weather"), [b"sport", b"sportsmen"]),
        (False, []),
    ],
)
def test_a_carrier_takes_what_its_administrator_named(altruistic: object, expected: list[bytes]) -> None:
    with testing.network("a", "c") as net:
        net.add("b", altruistic=altruistic)
        net.subscribe("c", ".*")
        for destination in ("news", "sport", "sportsmen"):
            net.publish("a", destination, destination.encode())
        meet(net, "ab", "bc")
        assert delivered(net, "b") == []
        assert sorted(delivered(net, "c")) == expected


def test_what_is_interesting_pushes_out_what_is_carried_and_never_the_reverse() -> None:
    dropped: list[str] = []

    def note(_t: float, node: str, event: Event) -> None:
        if node == "b" and isinstance(event, Dropped):
            assert event.reason is Reason.EVICTED
            dropped.extend(descriptor.destination for descriptor in event.descriptors)

    with testing.network("a", "c", shares=False) as net:
        net.add("b", altruistic=True, cache_messages_max=10)
        net.watch(note)
        net.subscribe("b", "mine")
        for _ in range(10):
            net.publish("a", "others", b"", priority=9, persistent=True)
        meet(net, "ab")
        for _ in range(10):
            net.publish("c", "mine", b"", priority=0)
        meet(net, "cb")
        assert len(net.deliveries("b")) == 10
        assert dropped == ["others"] * 10
        meet(net, "ab", "ab")
        assert dropped == ["others"] * 10
        net.add("d", altruistic=True)
        meet(net, "bd")
        assert net.traffic("b", "d").frames["Parcel"] == 10


def test_what_the_neighbour_wants_itself_is_sent_before_what_it_would_carry() -> None:
    order: list[str] = []

    def note(_t: float, node: str, event: Event) -> None:
        if node == "b" and isinstance(event, Received):
            order.extend(reception.descriptor.destination for reception in event.receptions)

    with testing.network("a", "b", altruistic=True, rate_bytes_per_s=20_000) as net:
        net.watch(note)
        net.subscribe("b", "mine")
        for _ in range(20):
            net.publish("a", "others", testing.Blank(1_000), priority=9, persistent=True)
            net.publish("a", "mine", testing.Blank(1_000), priority=0)
        net.link("a", "b")
        net.advance(30)
    assert order == ["mine"] * 20 + ["others"] * 20


def test_a_carrier_that_ends_a_subscription_carries_on_without_favour() -> None:
    with testing.network("a", "c") as net:
        net.add("b", cache_messages_max=5, shares=False)
        number = net.subscribe("b", "old")
        for _ in range(5):
            net.publish("a", "old", b"", priority=9)
        meet(net, "ab")
        net.unsubscribe("b", number)
        net.subscribe("b", "new")
        for _ in range(5):
            net.publish("c", "new", b"", priority=0)
        meet(net, "cb")
        assert [delivery.descriptor.destination for delivery in net.deliveries("b")] == ["old"] * 5 + ["new"] * 5


def chain(horizon_hops: int, length: int) -> list[int]:
    """Publish at the start of a chain, with a subscriber at its end; return the nodes that received the message."""
    received: set[str] = set()

    def note(_t: float, node: str, event: Event) -> None:
        if isinstance(event, Received):
            received.add(node)

    names = [f"n{number}" for number in range(length)]
    with testing.network(*names, horizon_hops=horizon_hops) as net:
        net.watch(note)
        net.subscribe(names[0], "news")
        for first, second in pairwise(names):
            net.link(first, second)
        net.advance(60)
        net.publish(names[-1], "news", b"hello")
        net.advance(60)
        assert len(net.deliveries(names[0])) == (names[0] in received)
    return sorted(int(name[1:]) for name in received)


@pytest.mark.parametrize(
    ("horizon_hops", "length", "receivers"),
    [
        (1, 2, [0]),
        (1, 3, []),
        (2, 3, [0, 1]),
        (2, 4, []),
        (3, 4, [0, 1, 2]),
        (3, 5, []),
        (8, 9, [0, 1, 2, 3, 4, 5, 6, 7]),
        (8, 10, []),
    ],
)
def test_an_interest_spreads_so_many_hops_and_no_further(horizon_hops: int, length: int, receivers: list[int]) -> None:
    assert chain(horizon_hops, length) == receivers


def test_interests_that_meet_in_a_ring_do_not_feed_each_other() -> None:
    names = ("a", "b", "c")
    with testing.network(*names, horizon_hops=8) as net:
        for first, second in ("ab", "bc", "ca"):
            net.link(first, second)
        number = net.subscribe("a", "news")
        net.advance(60)
        net.unsubscribe("a", number)
        net.advance(120)
        net.publish("b", "news", b"nobody wants this")
        net.advance(30)
        assert [payloads_sent(net, name) for name in names] == [0, 0, 0]


def test_a_carrier_forgets_an_interest_when_its_owner_is_gone() -> None:
    with testing.network("a", "b", "c", horizon_hops=2) as net:
        net.subscribe("a", "news")
        net.link("a", "b")
        net.advance(30)
        net.unlink("a", "b")
        net.advance(60)
        net.publish("c", "news", b"hello")
        meet(net, "cb")
        assert payloads_sent(net, "c") == 0


def test_within_the_horizon_messages_are_pulled_and_carried_without_being_delivered() -> None:
    with testing.network("a", "b", "c", horizon_hops=2, push_bytes_max=0) as net:
        net.subscribe("a", "news")
        net.link("a", "b")
        net.link("b", "c")
        net.advance(30)
        net.publish("c", "news", b"hello")
        net.publish("c", "other", b"unwanted")
        net.advance(30)
        assert delivered(net, "a") == [b"hello"]
        assert delivered(net, "b") == []
        assert net.traffic("b", "c").frames["Request"] == 1
        assert net.traffic("c", "b").frames["Parcel"] == 1


def test_altruism_is_not_passed_on() -> None:
    with testing.network("a", "b", "c", horizon_hops=8) as net:
        net.add("z", altruistic=True)
        for first, second in ("az", "ba", "cb"):
            net.link(first, second)
        net.advance(60)
        net.publish("c", "news", b"hello")
        net.advance(60)
        assert payloads_sent(net, "c") == 0
