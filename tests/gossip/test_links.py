"""Links that work both ways, one way or not any more, and nodes that sleep (N3, N12, N13)."""

from __future__ import annotations

import random
from itertools import pairwise

import pytest
from tests.support.proofs import proven, tell

from carrypost import testing
from carrypost.config import Settings
from carrypost.gossip.discovery.announcing import Announcing
from carrypost.gossip.discovery.neighbour import NEIGHBOUR_TABLE, SERIES, Neighbour, NeighbourInput, NeighbourState
from carrypost.gossip.wire.frames import Announce, Frame, Request
from carrypost.host import Host
from carrypost.log.events import Event, NeighbourDown, NeighbourUp, OneWay
from carrypost.model.ids import NodeId, node_prefix
from carrypost.security.identity import Identity

SECOND = 1_000_000


class Log:
    """The reports of hosts about their neighbours."""

    def __init__(self, net: testing.Network) -> None:
        self.rows: list[tuple[float, str, str]] = []
        net.watch(self._note)

    def _note(self, t: float, node: str, event: Event) -> None:
        if isinstance(event, NeighbourUp | NeighbourDown | OneWay):
            self.rows.append((t, node, f"{type(event).__name__} {event.node}"))

    def of(self, node: str) -> list[str]:
        return [what for _, who, what in self.rows if who == node]


class Alone:
    """One host, driven by hand, and the frames that it sends."""

    def __init__(self, **settings: object) -> None:
        self.host = Host(Identity.plain("a"), Settings.emulated(**settings), random.Random(1))
        self.host.start(0)
        batch = self.host.changes()
        assert batch is not None
        self.host.durable(batch.serial, 0)
        self.now = 0
        self.counter = 0

    def run(self, seconds: float) -> list[tuple[int, Frame]]:
        """Let time pass; return the frames that were sent, and when."""
        end = self.now + round(seconds * SECOND)
        sent: list[tuple[int, Frame]] = self._taken()
        while (due := self.host.next_deadline()) is not None and due <= end:
            self.now = max(due, self.now)
            self.host.tick(self.now)
            sent += self._taken()
        self.now = end
        return sent

    def _taken(self) -> list[tuple[int, Frame]]:
        return [(self.now, frame) for each in self.host.outgoing() for frame in each.frames]

    def hears(self, *names: str, node: str = "b", period_ms: int = 1_000) -> None:
        """An announcement of `node`, which hears `names`."""
        self.counter += 1
        heard = tuple(node_prefix(NodeId(name)) for name in names)
        announced = Announce(NodeId(node), 1, self.counter, period_ms, bytes(8), heard)
        tell(self.host, announced, node, self.now)

    def events(self) -> list[Event]:
        return [event for event in self.host.events() if isinstance(event, NeighbourUp | NeighbourDown | OneWay)]


def test_a_link_is_used_once_each_side_lists_the_other() -> None:
    alone = Alone()
    alone.hears("x", "y")
    assert alone.events() == []
    alone.hears("x", "a", "y")
    assert alone.events() == [NeighbourUp(NodeId("b"))]
    alone.hears("x")
    assert alone.events() == [NeighbourDown(NodeId("b"))]


def test_an_announcement_lists_who_was_heard() -> None:
    alone = Alone()
    alone.hears()
    alone.hears(node="c")
    (_, announced), *_ = [row for row in alone.run(2) if isinstance(row[1], Announce) and not row[1].token]
    assert isinstance(announced, Announce)
    assert set(announced.heard) == {node_prefix(NodeId("b")), node_prefix(NodeId("c"))}


def test_a_request_that_names_this_host_counts_as_being_listed_where_the_address_is_proven() -> None:
    alone = Alone()
    alone.host.receive([Announce(NodeId("b"), 1, 0, 1_000, bytes(8))], "b", alone.now)
    alone.host.receive([Request(node_prefix(NodeId("a")), ())], "b", alone.now)
    assert alone.events() == []
    alone.hears("x")
    alone.host.receive([Request(node_prefix(NodeId("somebody else")), ())], "b", alone.now)
    assert alone.events() == []
    alone.host.receive([Request(node_prefix(NodeId("a")), ())], "b", alone.now)
    assert alone.events() == [NeighbourUp(NodeId("b"))]


@pytest.mark.parametrize("period_ms", [500, 2_000, 20_000])
def test_a_link_ends_after_three_silent_periods_of_the_neighbour(period_ms: int) -> None:
    alone = Alone()
    alone.hears("a", period_ms=period_ms)
    alone.run(3 * period_ms / 1_000 - 0.001)
    assert alone.events() == [NeighbourUp(NodeId("b"))]
    alone.run(0.002)
    assert alone.events() == [NeighbourDown(NodeId("b"))]


def test_silence_is_counted_from_the_last_word() -> None:
    alone = Alone()
    for _ in range(10):
        alone.hears("a")
        alone.run(2.9)
    assert alone.events() == [NeighbourUp(NodeId("b"))]


def test_a_one_way_link_is_told_once_by_the_side_that_hears_and_carries_nothing() -> None:
    with testing.network("a", "b") as net:
        log = Log(net)
        net.subscribe("b", "news")
        net.publish("a", "news", b"hello")
        net.link("a", "b", one_way=True)
        net.advance(300)
        assert (log.of("a"), log.of("b")) == ([], ["OneWay a"])
        assert log.rows[0][0] <= 15.1
        assert set(net.sent("a").frames) | set(net.sent("b").frames) <= {"Announce", "Profile"}
        net.link("b", "a", one_way=True)
        net.advance(30)
        assert (log.of("a"), log.of("b")) == (["NeighbourUp b"], ["OneWay a", "NeighbourUp a"])
        assert len(net.deliveries("b")) == 1


def test_a_link_that_becomes_one_way_is_noticed_on_both_sides() -> None:
    with testing.network("a", "b") as net:
        log = Log(net)
        net.link("a", "b")
        net.advance(60)
        net.unlink("b", "a", one_way=True)
        net.advance(120)
        assert log.of("a") == ["NeighbourUp b", "NeighbourDown b"]
        assert log.of("b") == ["NeighbourUp a", "NeighbourDown a", "OneWay a"]


def test_a_one_way_link_that_ends_may_be_told_again_when_it_comes_back() -> None:
    with testing.network("a", "b") as net:
        log = Log(net)
        for _ in range(2):
            net.link("a", "b", one_way=True)
            net.advance(60)
            net.unlink("a", "b", one_way=True)
            net.advance(60)
        assert log.of("b") == ["OneWay a"] * 2


def test_one_way_contacts_are_rows_of_the_record() -> None:
    record = testing.Record("one")
    with testing.network("a", "b", record=record) as net:
        net.link("a", "b", one_way=True)
        net.advance(60)
    rows = [(row["kind"], row["node"], row["peer"]) for row in record.rows() if row["kind"] in ("up", "oneway")]
    assert rows == [("oneway", "b", "a")]


def test_the_beacon_period_adapts_between_its_bounds() -> None:
    alone = Alone(announce_s_min=1, announce_s_max=8)
    times = [t for t, frame in alone.run(120) if isinstance(frame, Announce)]
    gaps = [(after - before) / SECOND for before, after in pairwise(times)]
    expected = [1, 2, 4] + [8] * 20
    for gap, period in zip(gaps, expected, strict=False):
        assert 0.9 * period <= gap <= period
    assert len(gaps) > 14
    alone.hears()
    times = [t - alone.now for t, frame in alone.run(3) if isinstance(frame, Announce)]
    assert len(times) >= 2


def test_an_announcement_says_when_the_next_one_is_due() -> None:
    alone = Alone(announce_s_min=1, announce_s_max=8)
    said = [(t, frame.period_ms) for t, frame in alone.run(120) if isinstance(frame, Announce)]
    for (before, period_ms), (after, _) in pairwise(said):
        assert (after - before) / 1_000 <= period_ms


def test_paper_mode_announces_with_a_fixed_period() -> None:
    alone = Alone(paper_mode=True, announce_s_max=5)
    times = [t for t, frame in alone.run(120) if isinstance(frame, Announce)]
    assert all(4.5 <= (after - before) / SECOND <= 5 for before, after in pairwise(times))
    assert len(times) >= 24


def test_a_contact_is_found_within_a_period() -> None:
    with testing.network("a", "b") as net:
        log = Log(net)
        net.advance(100)
        net.link("a", "b")
        net.advance(6)
        assert all(t < 105.2 for t, _, _ in log.rows)
        assert sorted(node for _, node, _ in log.rows) == ["a", "b"]


def test_a_node_that_sleeps_through_three_periods_finds_its_neighbour_anew() -> None:
    with testing.network("a", "b") as net:
        log = Log(net)
        for name in "ab":
            net.subscribe(name, "news")
        net.link("a", "b")
        net.advance(30)
        net.suspend("b")
        net.advance(120)
        net.publish("a", "news", b"while you slept")
        net.resume("b")
        net.publish("b", "news", b"on waking up")
        net.advance(10)
        assert log.of("a") == ["NeighbourUp b", "NeighbourDown b", "NeighbourUp b"]
        for name in "ab":
            assert {delivery.payload for delivery in net.deliveries(name)} == {b"while you slept", b"on waking up"}


def test_a_short_sleep_in_the_middle_of_a_transfer_costs_nothing_twice() -> None:
    with testing.network("a", "b", rate_bytes_per_s=50_000) as net:
        net.subscribe("b", "news")
        for _ in range(100):
            net.publish("a", "news", testing.Blank(1_000))
        net.link("a", "b")
        net.advance(1)
        net.suspend("b")
        net.advance(2)
        net.resume("b")
        net.advance(20)
        assert len(net.deliveries("b")) == 100


def test_deadlines_that_passed_in_sleep_are_handled_before_anything_is_exchanged() -> None:
    with testing.network("a", "b") as net:
        net.subscribe("b", "news")
        net.publish("a", "news", b"short", lifetime_s=60)
        net.publish("a", "news", b"long", lifetime_s=600)
        net.suspend("a")
        net.link("a", "b")
        net.advance(100)
        net.resume("a")
        net.advance(30)
        assert [delivery.payload for delivery in net.deliveries("b")] == [b"long"]


def test_a_step_of_the_clock_is_no_silence() -> None:
    alone = Alone()
    alone.hears("a")
    alone.run(1)
    alone.host.clock_stepped(3_600 * SECOND)
    alone.now += 3_600 * SECOND
    alone.run(1)
    assert alone.events() == [NeighbourUp(NodeId("b"))]
    alone.run(5)
    assert alone.events() == [NeighbourDown(NodeId("b"))]


def test_told_contacts_need_no_announcements_and_end_when_told() -> None:
    with testing.network("a", "b", beacons=False) as net:
        log = Log(net)
        net.subscribe("b", "news")
        net.publish("a", "news", b"hello")
        net.link("a", "b")
        net.advance(3_600)
        assert (net.sent("a").datagrams, log.rows) == (0, [])
        for name, other in ("ab", "ba"):
            net.host(name).link(other, True, round(net.now * SECOND))
        net.advance(0.2)
        assert [delivery.payload for delivery in net.deliveries("b")] == [b"hello"]
        announcements = net.sent("a").frames["Announce"]
        net.advance(3_600)
        assert net.sent("a").frames["Announce"] == announcements <= 3
        net.publish("a", "news", b"again")
        net.advance(1)
        assert len(net.deliveries("b")) == 2
        assert log.of("a") == ["NeighbourUp b"]
        for name, other in ("ab", "ba"):
            net.host(name).link(other, False, round(net.now * SECOND))
        net.publish("a", "news", b"too late")
        net.advance(60)
        assert len(net.deliveries("b")) == 2
        assert log.of("a") == ["NeighbourUp b", "NeighbourDown b"]


def test_a_restarted_neighbour_is_recognised_and_an_old_announcement_is_not() -> None:
    alone = Alone()
    old = Announce(NodeId("b"), 1, 7, 1_000, bytes(8), (node_prefix(NodeId("a")),))
    new = Announce(NodeId("b"), 2, 1, 1_000, bytes(8), (node_prefix(NodeId("a")),))
    shown = proven(alone.host, old, "b", 0)
    assert shown is not None
    alone.host.receive([shown], "b", 0)
    alone.host.receive([shown], "b", 1)
    alone.host.receive([new], "b", 2)
    assert alone.events() == [NeighbourUp(NodeId("b"))]
    tell(alone.host, new, "b", 3)
    alone.host.receive([shown], "b", 4)
    assert alone.events() == [NeighbourDown(NodeId("b")), NeighbourUp(NodeId("b"))]


def test_a_node_that_comes_back_soon_need_not_prove_its_address_again(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []
    challenge = Announcing.challenge

    def challenged(announcing: Announcing, now: int, to: Neighbour) -> None:
        asked.append(to.link.peer)
        challenge(announcing, now, to)

    monkeypatch.setattr(Announcing, "challenge", challenged)
    with testing.network("a", "b") as net:
        log = Log(net)
        for _ in range(2):
            net.link("a", "b")
            net.advance(10)
            assert log.of("a")[-1] == "NeighbourUp b"
            assert sorted(asked) == ["a", "b"]
            net.unlink("a", "b")
            net.advance(30)
            assert log.of("a")[-1] == "NeighbourDown b"


def test_a_link_lasts_when_a_series_of_stamps_ends() -> None:
    with testing.network("a", "b", seed=1, announce_s_max=1) as net:
        log = Log(net)
        net.link("a", "b")
        net.advance(3 * SERIES)
        assert net.sent("a").frames["Announce"] > 2 * SERIES
        assert log.of("a") == ["NeighbourUp b"]
        assert log.of("b") == ["NeighbourUp a"]


@pytest.mark.parametrize("state", list(NeighbourState))
@pytest.mark.parametrize("sign", list(NeighbourInput))
def test_the_table_of_links_is_total_and_only_being_listed_makes_one_usable(
    state: NeighbourState, sign: NeighbourInput
) -> None:
    assert (NEIGHBOUR_TABLE[state, sign] is NeighbourState.LINKED) == (sign is NeighbourInput.LISTS_ME)
