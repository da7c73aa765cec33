"""Deadlines: alive iff now < deadline, everywhere; expired messages are refused, dropped and reported (N7)."""

from __future__ import annotations

import pytest

from carrypost import testing
from carrypost.log.events import Dropped, Event, Reason, Received, Refused


class Log:
    """Drops and receptions, by node."""

    def __init__(self, net: testing.Network) -> None:
        self.drops: list[tuple[float, str, Reason, list[str]]] = []
        self.refusals: list[tuple[str, str]] = []
        self.received: list[tuple[str, str]] = []
        net.watch(self._note)

    def _note(self, t: float, node: str, event: Event) -> None:
        if isinstance(event, Dropped):
            self.drops.append((t, node, event.reason, [each.label for each in event.descriptors]))
        elif isinstance(event, Refused):
            self.refusals.append((node, event.reason))
        elif isinstance(event, Received):
            self.received.extend((node, each.descriptor.label) for each in event.receptions)


def test_an_expired_message_leaves_every_cache_at_its_deadline_and_that_is_told() -> None:
    with testing.network("a", "b", "c") as net:
        log = Log(net)
        for name in "bc":
            net.subscribe(name, "news")
            net.link("a", name)
        net.publish("a", "news", b"hello", lifetime_s=40, label="m")
        net.advance(60)
        assert log.drops == [(40.0, name, Reason.EXPIRED, ["m"]) for name in "abc"]


def test_what_has_expired_is_not_offered() -> None:
    with testing.network("a", "b") as net:
        net.subscribe("b", "news")
        net.publish("a", "news", b"hello", lifetime_s=40)
        net.advance(40)
        net.link("a", "b")
        net.advance(60)
        assert net.deliveries("b") == []
        assert net.sent("a").frames["Offer"] == 0


@pytest.mark.parametrize("lifetime_s", [0.001, 0.02, 0.021, 0.05, 0.11, 0.12])
@pytest.mark.parametrize(("push_bytes_max", "takes_s"), [(1_000, 0.02), (0, 0.06)])
def test_nothing_is_delivered_at_or_after_its_deadline(lifetime_s: float, push_bytes_max: int, takes_s: float) -> None:
    with testing.network("a", "b", delay_s=0.02, coalesce_s=0.0, push_bytes_max=push_bytes_max) as net:
        log = Log(net)
        net.subscribe("b", "news")
        net.link("a", "b")
        net.advance(30)
        net.publish("a", "news", b"hello", lifetime_s=lifetime_s, label="m")
        net.advance(30)
        for delivery in net.deliveries("b"):
            assert delivery.time < 30 + lifetime_s
        assert len(net.deliveries("b")) == (lifetime_s > takes_s)
        assert [drop[1] for drop in log.drops if drop[1] == "a"] == ["a"]


def test_a_message_that_expires_on_the_way_is_refused_on_receipt() -> None:
    with testing.network("a", "b", delay_s=0.2) as net:
        log = Log(net)
        net.subscribe("b", "news")
        net.link("a", "b")
        net.advance(30)
        net.publish("a", "news", b"hello", lifetime_s=0.1, label="m")
        net.advance(10)
        assert net.sent("a").frames["Parcel"] == 1
        assert (log.received, net.deliveries("b")) == ([], [])
        assert ("b", "expired") in log.refusals


def test_half_of_a_message_leaves_with_its_deadline_too() -> None:
    with testing.network("a", "b", rate_bytes_per_s=20_000) as net:
        log = Log(net)
        net.subscribe("b", "film")
        net.publish("a", "film", testing.Blank(500_000), lifetime_s=15, label="m")
        net.link("a", "b")
        net.advance(60)
        assert log.drops == [(15.0, "a", Reason.EXPIRED, ["m"]), (15.0, "b", Reason.EXPIRED, ["m"])]


def test_a_deadline_beyond_the_longest_lifetime_and_skew_is_refused() -> None:
    with testing.network("a", lifetime_s_max=10_000) as net:
        log = Log(net)
        net.add("b", lifetime_s_max=1_000, skew_s_max=100)
        net.subscribe("b", "news")
        for lifetime_s in (1_050, 1_200):
            net.publish("a", "news", b"", lifetime_s=lifetime_s, label=str(lifetime_s))
        net.link("a", "b")
        net.advance(30)
        assert [delivery.descriptor.label for delivery in net.deliveries("b")] == ["1050"]
        assert ("b", "deadline") in log.refusals


def test_a_message_without_end_is_refused_where_lifetimes_end() -> None:
    with testing.network("a") as net:
        log = Log(net)
        net.add("b", lifetime_s_max=1_000)
        net.subscribe("b", "news")
        net.publish("a", "news", b"")
        net.link("a", "b")
        net.advance(30)
        assert net.deliveries("b") == []
        assert ("b", "deadline") in log.refusals


def test_a_seen_message_is_remembered_until_its_deadline() -> None:
    with testing.network("a", "b", "c", cache_messages_max=1) as net:
        for name in "bc":
            net.subscribe(name, "news")
        net.publish("a", "news", b"first", lifetime_s=300)
        for first, second in ("ab", "ac"):
            net.link(first, second)
            net.advance(20)
            net.unlink(first, second)
            net.advance(20)
        net.publish("b", "news", b"second", lifetime_s=300, priority=9)  # Pushes the first one out.
        net.link("b", "c")
        net.advance(100)
        assert [delivery.payload for delivery in net.deliveries("b")] == [b"first", b"second"]


def test_what_expired_while_its_node_was_down_is_told_when_it_is_back() -> None:
    with testing.network("a") as net:
        log = Log(net)
        net.publish("a", "news", b"hello", lifetime_s=40, label="m")
        net.advance(10)
        net.kill("a")
        net.advance(60)
        net.restart("a")
        assert log.drops == [(70.0, "a", Reason.EXPIRED, ["m"])]
