"""Links that are slow, busy, lossy, narrow or half forgotten: the exchange goes on, at the expected cost."""

from __future__ import annotations

import random
from collections.abc import Iterable

import pytest

from carrypost import testing
from carrypost.config import Settings
from carrypost.gossip.wire.pieces import Blank
from carrypost.host import Host
from carrypost.log.events import Delivered, Event, NeighbourUp, Received
from carrypost.security.identity import Identity


@pytest.mark.parametrize(
    ("rate_bytes_per_s", "same"),
    [
        (2_500, True),
        (20_000, False),
        pytest.param(2_500, False, marks=pytest.mark.soak),
        pytest.param(20_000, True, marks=pytest.mark.soak),
    ],
)
def test_a_review_that_takes_long_comes_to_its_end(rate_bytes_per_s: int, same: bool) -> None:
    with testing.network("a", "b", seed=1, rate_bytes_per_s=rate_bytes_per_s) as net:
        for name in "ab":
            net.subscribe(name, "news")
            if not same:
                net.subscribe(name, f"only/{name}")
            for _ in range(600):
                net.publish(name, "news", testing.Blank(10))
        net.link("a", "b")
        net.advance(300)
        assert [len(net.deliveries(name)) for name in "ab"] == [1_200, 1_200]


def test_a_lost_request_is_repeated_although_other_messages_come_all_the_time() -> None:
    with testing.network("a", "b", seed=1, loss=0.1) as net:
        net.subscribe("b", "news")
        net.link("a", "b")
        for _ in range(300):
            net.publish("a", "news", testing.Blank(1))
            net.advance(0.5)
        sent_s = {each.message: each.descriptor.created_us / 1e6 for each in net.deliveries("b")}
        late = [each.time - sent_s[each.message] for each in net.deliveries("b")]
        assert max(late) < 40
        assert len(late) >= 295
        net.advance(60)
        assert len(net.deliveries("b")) == 300


def test_offers_do_not_drown_a_slow_link_in_their_own_repetitions() -> None:
    with testing.network("a", "b", seed=1, rate_bytes_per_s=5_000) as net:
        net.subscribe("b", "news")
        for _ in range(1_000):
            net.publish("a", "news", testing.Blank(10))
        net.link("a", "b")
        net.advance(200)
        assert len(net.deliveries("b")) == 1_000
        assert net.sent("a").frame_bytes["Offer"] < 60_000


def repeated(
    size: int,
    count: int,
    within_s: float,
    *,
    mtu_bytes: int,
    delay_s: float = 0.001,
    rate_bytes_per_s: int | None = None,
) -> float:
    """Both want the other's messages, which arrive in time: transfer bytes that went out for each byte of theirs."""
    with testing.network(
        "a", "b", seed=1, mtu_bytes=mtu_bytes, delay_s=delay_s, rate_bytes_per_s=rate_bytes_per_s
    ) as net:
        for name in "ab":
            net.subscribe(name, "news")
            for _ in range(count):
                net.publish(name, "news", testing.Blank(size))
        net.link("a", "b")
        net.advance(within_s)
        assert [len(net.deliveries(name)) for name in "ab"] == [2 * count, 2 * count]
        sent = [net.sent(name).frame_bytes[kind] for name in "ab" for kind in ("Parcel", "DescriptorPart", "Data")]
        return sum(sent) / (2 * size * count)


@pytest.mark.parametrize(
    ("mtu_bytes", "rate_bytes_per_s", "within_s"),
    [(9_000, 3_000, 150), (9_000, 1_400, 360), (9_000, 10_000, 60), (1_200, 1_000, 400)],
)
@pytest.mark.parametrize(("size", "count"), [(100_000, 1), (8_000, 12), (500, 200)])
def test_on_a_slow_link_little_goes_out_twice_though_acknowledgements_queue_behind_data(
    mtu_bytes: int, rate_bytes_per_s: int, within_s: float, size: int, count: int
) -> None:
    factor = repeated(size, count, within_s, mtu_bytes=mtu_bytes, rate_bytes_per_s=rate_bytes_per_s)
    assert factor < 2.5


@pytest.mark.parametrize(("round_trip_s", "within_s"), [(1, 30), (5, 120), (20, 400), (60, 1_200)])
@pytest.mark.parametrize("mtu_bytes", [1_200, 9_000])
@pytest.mark.parametrize(("size", "count"), [(200_000, 1), (500, 20)])
def test_long_round_trips_are_waited_for(
    round_trip_s: int, within_s: float, mtu_bytes: int, size: int, count: int
) -> None:
    assert repeated(size, count, within_s, mtu_bytes=mtu_bytes, delay_s=round_trip_s / 2) < 2


@pytest.mark.parametrize("mtu_bytes", [576, 640, 1_200])
def test_narrow_datagrams_carry_a_review_as_well(mtu_bytes: int) -> None:
    with testing.network("a", "b", seed=1, mtu_bytes=mtu_bytes) as net:
        for name in "ab":
            net.subscribe(name, "news")
        for _ in range(300):
            net.publish("a", "news", testing.Blank(10))
        net.link("a", "b")
        net.advance(30)
        net.unlink("a", "b")
        net.advance(60)
        for name in "ab":
            for _ in range(100):
                net.publish(name, "news", testing.Blank(10))
        net.link("a", "b")
        net.advance(30)
        assert [len(net.deliveries(name)) for name in "ab"] == [500, 500]


@pytest.mark.parametrize("seed", range(6))
def test_a_contact_that_only_one_side_forgot_begins_anew_for_both(seed: int) -> None:
    arrived: list[float] = []

    def watch(t: float, node: str, event: Event) -> None:
        if node == "b" and isinstance(event, Delivered):
            arrived.extend(t for _ in event.deliveries)

    with testing.network("a", "b", "x", seed=seed, rate_bytes_per_s=100_000) as net:
        net.subscribe("b", "news")
        net.link("a", "b")
        net.advance(60)
        net.link("a", "x")  # Now a announces itself often, and b soon notices that it does not any more.
        net.advance(3)
        net.publish("a", "news", testing.Blank(1_000_000))
        net.advance(0.6)
        net.unlink("a", "b")
        net.advance(6)
        net.link("a", "b")
        net.publish("a", "news", b"small")
        net.watch(watch)
        began = net.now
        net.advance(60)
        assert len(arrived) == 2
        assert max(arrived) - began < 40


def test_waiting_for_other_requesters_is_not_taken_for_loss() -> None:
    with testing.network("a", "b", "c", seed=1) as net:
        for number, name in enumerate("bc"):
            net.subscribe(name, "news")
            net.link("a", name, delay_s=0.03 + number * 0.004)
        net.advance(30)
        before = net.sent("a").frames["Parcel"]
        for _ in range(20):
            net.publish("a", "news", testing.Blank(500))
            net.advance(2)
        assert net.sent("a").frames["Parcel"] - before == 20
        assert [len(net.deliveries(name)) for name in "bc"] == [20, 20]


# ------------------------------------------------------------------------- contacts that the driver tells


class Told:
    """Hosts without beacons, joined as the ideal emulation does it."""

    def __init__(self, names: Iterable[str]) -> None:
        settings = Settings.emulated(beacons=False, coalesce_s=0.0)
        self.hosts = {name: Host(Identity.plain(name), settings, random.Random(name)) for name in names}
        self.links: set[tuple[str, str]] = set()
        self.received: list[tuple[str, str]] = []
        for host in self.hosts.values():
            host.start(0)

    def pump(self, now: int, *, but: str = "") -> None:
        """Let them exchange datagrams until there are no more; `but`: the disk of this one does not answer."""
        busy = True
        while busy:
            busy = False
            for name in self.hosts:
                busy = (name != but and self._step(name, now)) or busy

    def _step(self, name: str, now: int) -> bool:
        host = self.hosts[name]
        busy = False
        while (batch := host.changes()) is not None:
            host.durable(batch.serial, now)
            busy = True
        for sent in host.outgoing():
            busy = True
            for other in self.hosts:
                if (name, other) in self.links and sent.to in (None, other):
                    self.hosts[other].receive(sent.frames, name, now)
        for event in host.events():
            busy = True
            if isinstance(event, Received):
                self.received.extend((name, each.descriptor.shown) for each in event.receptions)
        due = host.next_deadline()
        if due is not None and due <= now:
            host.tick(now)
            busy = True
        return busy

    def contact(self, a: str, b: str, now: int) -> None:
        self.links |= {(a, b), (b, a)}
        self.hosts[a].link(b, True, now)
        self.hosts[b].link(a, True, now)


def test_a_told_neighbour_learns_every_change_of_a_profile_however_fast_they_come() -> None:
    told = Told("abc")
    told.pump(0)
    for other in "bc":
        told.contact("a", other, 1_000)
    told.pump(1_000)
    for number, topic in enumerate(("x", "y")):
        told.hosts["a"].subscribe(topic, now=2_000 + number)
        told.pump(2_000 + number)
    for other in "bc":
        told.hosts[other].publish("y", Blank(1), now=3_000, label=f"from {other}")
    told.pump(3_000)
    assert sorted(told.received) == [("a", "from b"), ("a", "from c")]


def test_a_contact_told_before_a_host_may_speak_counts_when_it_may() -> None:
    told = Told("ab")
    batch = told.hosts["a"].changes()
    assert batch is not None
    told.pump(0, but="a")
    told.contact("a", "b", 10)
    told.hosts["a"].subscribe("x", now=10)
    told.hosts["b"].publish("x", Blank(1), now=10, label="m")
    told.pump(10, but="a")
    told.hosts["a"].durable(batch.serial, 20)
    told.pump(20)
    assert told.received == [("a", "m")]


@pytest.mark.parametrize("delay_s", [1.5, 2.6])
def test_a_long_round_trip_does_not_make_two_hosts_begin_anew_for_ever(delay_s: float) -> None:
    ups: list[float] = []

    def watch(t: float, _: str, event: Event) -> None:
        if isinstance(event, NeighbourUp):
            ups.append(t)

    with testing.network("a", "b", seed=1, delay_s=delay_s) as net:
        net.watch(watch)
        net.subscribe("b", "news")
        net.publish("a", "news", b"hello")
        net.link("a", "b")
        net.advance(120)
        assert len(net.deliveries("b")) == 1
        assert len(ups) <= 6


@pytest.mark.parametrize("count", [1_000, pytest.param(6_000, marks=pytest.mark.soak)])
def test_a_review_of_very_many_differences_in_narrow_datagrams_ends(count: int) -> None:
    with testing.network("a", "b", seed=1, mtu_bytes=576, delay_s=0.05) as net:
        for name in "ab":
            net.subscribe(name, "news")
            for _ in range(count):
                net.publish(name, "news", testing.Blank(1))
        net.link("a", "b")
        net.advance(120)
        assert [len(net.deliveries(name)) for name in "ab"] == [2 * count, 2 * count]


def test_who_had_no_room_to_carry_a_message_gets_it_once_it_wants_it() -> None:
    with testing.network("a", "b", seed=1) as net:
        net.add("c", altruistic=True, cache_messages_max=2, shares=False)
        net.publish("a", "x", testing.Blank(1), priority=0)
        net.link("a", "c")
        net.advance(20)
        for _ in range(2):
            net.publish("a", "y", testing.Blank(1), priority=9)
        net.advance(20)
        net.subscribe("c", "x")
        net.advance(60)
        assert [each.descriptor.destination for each in net.deliveries("c")] == ["x"]
