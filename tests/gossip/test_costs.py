"""The cost of a contact grows with new messages, not with held ones, counted in datagrams on the air."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from tests.support.proofs import tell

from carrypost import testing
from carrypost.config import Settings
from carrypost.gossip.transfers.outbox import SMALL_HEADER_BYTES
from carrypost.gossip.transfers.sending import AGE_MS_MAX, HOPS_MAX
from carrypost.gossip.wire import codec
from carrypost.gossip.wire.frames import Announce, Data, OpenParcel
from carrypost.host import Host
from carrypost.log.events import Event
from carrypost.model.ids import NodeId, node_prefix
from carrypost.security.identity import Identity

CONTACT_S = 20


@pytest.fixture(params=[3_000, pytest.param(10_000, marks=pytest.mark.soak)])
def held(request: pytest.FixtureRequest) -> int:
    """Return the number of messages that both hold before a contact."""
    count: int = request.param
    return count


class Meter:
    """The traffic of both sides since it was made."""

    def __init__(self, net: testing.Network) -> None:
        self._net = net
        self._before = self._now()

    def _now(self) -> tuple[int, Counter[str]]:
        sent = [self._net.sent(name) for name in "ab"]
        return sum(each.datagrams for each in sent), sum((each.frames for each in sent), Counter[str]())

    @property
    def frames(self) -> Counter[str]:
        return self._now()[1] - self._before[1]

    @property
    def datagrams(self) -> int:
        """Datagrams besides those with an announcement."""
        return self._now()[0] - self._before[0] - self.frames["Announce"]


@contextmanager
def held_by_both(count: int, *, same: bool, push_bytes_max: int = 0) -> Iterator[testing.Network]:
    """Two hosts, out of reach, that hold the same messages; `same`: and have the same profile."""
    with testing.network("a", "b", push_bytes_max=push_bytes_max) as net:
        for name in "ab":
            net.subscribe(name, "news")
        if not same:
            net.subscribe("a", "weather")
            net.subscribe("b", "sport")
        for _ in range(count):
            net.publish("a", "news", testing.Blank(100))
        net.link("a", "b")
        net.advance(60)
        net.unlink("a", "b")
        net.advance(60)
        assert len(net.deliveries("b")) == count
        yield net


@pytest.mark.parametrize("same", [True, pytest.param(False, marks=pytest.mark.soak)])
def test_thousands_of_messages_that_both_hold_cost_three_datagrams(held: int, same: bool) -> None:
    with held_by_both(held, same=same) as net:
        meter = Meter(net)
        net.link("a", "b")
        net.advance(CONTACT_S)
        assert meter.datagrams <= 3
        assert set(meter.frames) <= {"Announce", "Profile", "Digest"}


def cost_of_ten_new(author: str, held: int, *, same: bool) -> int:
    """Return the number of datagrams that they take besides their data."""
    with held_by_both(held, same=same) as net:
        for _ in range(10):
            net.publish(author, "news", testing.Blank(1_000))
        meter = Meter(net)
        net.link("a", "b")
        net.advance(CONTACT_S)
        assert len(net.deliveries("a")) == len(net.deliveries("b")) == held + 10
        assert meter.frames["Parcel"] == 10
        # Each has a datagram of its own.
        return meter.datagrams - meter.frames["Parcel"]


@pytest.mark.parametrize(("author", "same"), [("a", True), ("b", False)])
def test_ten_new_ones_among_thousands_cost_ten_datagrams_besides_their_data(author: str, held: int, same: bool) -> None:
    assert cost_of_ten_new(author, held, same=same) <= 10


def test_ten_new_ones_from_one_who_only_publishes_cost_ten_datagrams_besides_their_data(held: int) -> None:
    with testing.network("a", "b") as net:
        net.subscribe("b", "news")
        for _ in range(held):
            net.publish("a", "news", testing.Blank(100))
        net.link("a", "b")
        net.advance(60)
        net.unlink("a", "b")
        net.advance(60)
        for _ in range(10):
            net.publish("a", "news", testing.Blank(1_000))
        meter = Meter(net)
        net.link("a", "b")
        net.advance(CONTACT_S)
        assert len(net.deliveries("b")) == held + 10
        assert meter.datagrams - meter.frames["Parcel"] <= 10


def test_one_new_message_each_way_costs_little(held: int) -> None:
    with held_by_both(held, same=True) as net:
        for name in "ab":
            net.publish(name, "news", b"new")
        meter = Meter(net)
        net.link("a", "b")
        net.advance(CONTACT_S)
        assert len(net.deliveries("a")) == len(net.deliveries("b")) == held + 2
        assert meter.datagrams <= 12


@pytest.mark.parametrize("held", [0, 100, 1_000, pytest.param(5_000, marks=pytest.mark.soak)])
@pytest.mark.parametrize(
    ("push_bytes_max", "frames"),
    [(1_000, Counter(Parcel=1)), (0, Counter(Offer=1, Request=1, Parcel=1, Ack=1))],
)
def test_an_increment_costs_the_same_whatever_is_held(held: int, push_bytes_max: int, frames: Counter[str]) -> None:
    with held_by_both(held, same=True, push_bytes_max=push_bytes_max) as net:
        net.link("a", "b")
        net.advance(CONTACT_S)
        meter = Meter(net)
        net.publish("a", "news", b"new")
        net.advance(1)
        assert len(net.deliveries("b")) == held + 1
        # Descriptor and data in one; without pushes an offer, a request and an acknowledgement, too.
        assert meter.datagrams == frames.total()
        assert meter.frames - Counter(Announce=10) == frames


def test_a_first_contact_costs_a_few_per_cent_of_the_data() -> None:
    with testing.network("a", "b") as net:
        net.subscribe("b", "news")
        for _ in range(2_000):
            net.publish("a", "news", testing.Blank(1_000))
        meter = Meter(net)
        net.link("a", "b")
        net.advance(CONTACT_S)
        assert len(net.deliveries("b")) == 2_000
        assert meter.frames["Parcel"] == 2_000
        assert meter.frames["Ack"] + meter.frames["Request"] + meter.frames["Offer"] < 250


def test_quiet_neighbours_send_announcements_and_now_and_then_compare_digests() -> None:
    with held_by_both(1_000, same=True) as net:
        net.link("a", "b")
        net.advance(CONTACT_S)
        meter = Meter(net)
        net.advance(600)
        assert set(meter.frames) == {"Announce", "Digest"}
        assert 2 * 600 / 5 <= meter.frames["Announce"] < 2 * 600 / 4
        # One question and its answer after every twelfth announcement.
        assert meter.frames["Digest"] <= 2 * (600 // 50)


def test_an_unchanged_beacon_makes_no_batch_no_event_and_no_answer() -> None:
    told: list[Event] = []
    with held_by_both(100, same=True) as net:
        net.link("a", "b")
        net.advance(CONTACT_S)
        net.watch(lambda _t, _node, event: told.append(event))
        for _ in range(300):
            net.advance(0.1)
            for name in "ab":
                assert net.host(name).changes() is None
        assert told == []


def test_a_host_takes_an_unchanged_beacon_without_a_word() -> None:
    host = Host(Identity.plain("a"), Settings.emulated(), _chance())
    host.start(0)
    batch = host.changes()
    assert batch is not None
    host.durable(batch.serial, 0)
    host.tick(1_000_000)
    (first,) = host.outgoing()
    (announced, *_) = first.frames
    assert isinstance(announced, Announce)
    heard = (node_prefix(NodeId("a")),)
    for counter in range(1, 4):
        said = Announce(NodeId("b"), 1, counter, 5_000, announced.profile, heard)
        tell(host, said, "b", 1_000_000 + counter)
        host.outgoing()
        host.events()
    now = 1_100_000
    host.tick(now)
    host.outgoing()
    for counter in range(4, 8):
        now += 1
        said = Announce(NodeId("b"), 1, counter, 5_000, announced.profile, heard)
        tell(host, said, "b", now)
        assert (host.outgoing(), host.events(), host.changes()) == ([], [], None)


def test_data_adds_at_most_twenty_bytes_to_its_body() -> None:
    with testing.network("a", "b", security="signed", compress=False) as net:
        net.subscribe("b", "news")
        net.publish("a", "news", bytes(200_000))
        net.link("a", "b")
        net.advance(CONTACT_S)
        sent = net.sent("a")
        assert len(net.deliveries("b")) == 1
        assert sent.frame_bytes["Data"] - 200_000 <= 20 * sent.frames["Data"]
    largest = Data(2**32 - 1, 2**32 - 1, 2**14, last=True, body=bytes(1_024))
    assert codec.wire_size(largest) - 1_024 <= 20


def test_a_parcel_adds_at_most_forty_six_bytes_to_descriptor_and_payload() -> None:
    with testing.network("a", "b", security="signed", compress=False) as net:
        net.subscribe("b", "news")
        for _ in range(100):
            net.publish("a", "news", bytes(500))
        net.link("a", "b")
        net.advance(CONTACT_S)
        sent = net.sent("a")
        given = sum(len(each.descriptor.wire) + 500 for each in net.deliveries("b"))
        assert len(net.deliveries("b")) == sent.frames["Parcel"] == 100
        assert sent.frame_bytes["Parcel"] - given <= SMALL_HEADER_BYTES * 100
    largest = OpenParcel(2**63 - 1, 2**63 - 1, HOPS_MAX, AGE_MS_MAX, True, net.deliveries("b")[0].descriptor)
    assert codec.wire_size(largest) - len(largest.descriptor.wire) - 500 <= SMALL_HEADER_BYTES


def _chance() -> random.Random:
    return random.Random(1)
