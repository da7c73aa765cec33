"""Deadlines of hosts: never too late, after any input, and seldom without need."""

from __future__ import annotations

import random
from collections import Counter

import pytest
from tests.support import timers
from tests.support.proofs import tell

from carrypost import testing
from carrypost.config import Settings
from carrypost.gossip.wire.frames import Announce
from carrypost.host import Host
from carrypost.log.events import NeighbourDown
from carrypost.model.ids import NodeId, node_prefix
from carrypost.security.identity import Identity

SECOND = 1_000_000


def busy(host: Host) -> bool:
    """Return True if the host is busy; a call, because mypy would treat the attribute as constant."""
    return host.busy


class Neighboured:
    """A host with one neighbour that announces itself and its interests."""

    def __init__(self) -> None:
        self.now = 0
        self.host = Host(Identity.plain("a"), Settings.emulated(), random.Random(1))
        self.host.start(0)
        batch = self.host.changes()
        assert batch is not None
        self.host.durable(batch.serial, 0)
        self.host.tick(SECOND)
        (first,) = self.host.outgoing()
        announced = first.frames[0]
        assert isinstance(announced, Announce)
        self.profile = announced.profile
        self.counter = 0
        self.now = SECOND

    def hears(self, period_ms: int, node: str = "b") -> bool:
        """Make an announcement; return whether it contained anything new."""
        self.counter += 1
        heard = (node_prefix(NodeId("a")),)
        said = Announce(NodeId(node), 1, self.counter, period_ms, self.profile, heard)
        return tell(self.host, said, node, self.now)

    def passes(self, seconds: float) -> list[tuple[int, object]]:
        """Let time pass as for a driver; return the events, and when they came."""
        end = self.now + round(seconds * SECOND)
        told: list[tuple[int, object]] = []
        while True:
            due = self.host.next_deadline()
            timers.check(self.host, due)
            if due is None or due > end:
                break
            self.now = max(self.now, due)
            self.host.tick(self.now)
            self.host.outgoing()
            told += [(self.now, event) for event in self.host.events()]
        self.now = end
        return told


def test_a_neighbour_that_announces_faster_than_before_is_missed_by_its_new_period() -> None:
    scene = Neighboured()
    assert scene.hears(60_000)
    scene.passes(10)
    assert not scene.hears(60_000)
    scene.passes(10)
    assert scene.hears(1_000)  # Nothing new, but it will be missed sooner: a driver has to look at its timer.
    last = scene.now
    told = scene.passes(100)
    assert [t - last for t, event in told if isinstance(event, NeighbourDown)] == [3 * SECOND]


def test_a_neighbour_that_announces_more_slowly_than_before_is_given_the_time() -> None:
    scene = Neighboured()
    scene.hears(1_000)
    scene.passes(1)
    scene.hears(20_000)
    last = scene.now
    told = scene.passes(100)
    assert [t - last for t, event in told if isinstance(event, NeighbourDown)] == [60 * SECOND]


def test_a_host_says_whether_what_came_was_news_and_whether_there_is_anything_to_take() -> None:
    scene = Neighboured()
    host = scene.host
    assert not busy(host)
    assert scene.hears(5_000)
    assert busy(host)
    host.outgoing()
    host.events()
    while (batch := host.changes()) is not None:
        host.durable(batch.serial, scene.now)
    scene.passes(1)
    assert not busy(host)
    assert not scene.hears(5_000)
    assert not busy(host)
    assert host.next_deadline() is not None


def test_what_is_refused_is_something_to_take() -> None:
    scene = Neighboured()
    assert not scene.host.receive([Announce(NodeId("a"), 1, 1, 1_000, bytes(8))], "x", scene.now)
    host = scene.host
    assert not busy(host)
    host.refused({"frame": 2}, "x", scene.now)
    assert busy(host)
    (refused,) = host.events()
    assert (refused.__class__.__name__, busy(host)) == ("Refused", False)


@pytest.mark.parametrize(
    ("paper_mode", "loss"),
    [
        (False, 0.3),
        (True, 0.0),
        pytest.param(False, 0.0, marks=pytest.mark.soak),
        pytest.param(True, 0.3, marks=pytest.mark.soak),
    ],
)
def test_no_host_of_a_busy_network_is_woken_too_late(paper_mode: bool, loss: float) -> None:
    names = ("a", "b", "c", "d")
    chance = random.Random(7)
    with (
        timers.checked(),
        testing.network(*names, seed=3, paper_mode=paper_mode, loss=loss, altruistic=True, coalesce_s=0.1) as net,
    ):
        for name in names:
            net.subscribe(name, "news")
        for _ in range(60):
            a, b = chance.sample(names, 2)
            if net.linked(a, b):
                net.unlink(a, b)
            else:
                net.link(a, b)
            net.publish(chance.choice(names), "news", testing.Blank(chance.choice((0, 500, 5_000, 40_000))))
            net.advance(chance.choice((0.01, 0.3, 2, 7)))
        for a, b in ("ab", "bc", "cd"):
            if not net.linked(a, b):
                net.link(a, b)
        net.advance(200)
        assert {len(net.deliveries(name)) for name in names} == {60}


def test_a_quiet_host_is_seldom_woken_for_nothing() -> None:
    ticks: Counter[str] = Counter()
    original = Host.tick

    def counted(host: Host, now: int) -> None:
        ticks[host.node] += 1
        original(host, now)

    with pytest.MonkeyPatch.context() as patch, testing.network("a", "b") as net:
        net.subscribe("b", "news")
        net.publish("a", "news", b"hello")
        net.link("a", "b")
        net.advance(100)
        before = {name: net.sent(name).frames["Announce"] for name in "ab"}
        patch.setattr(Host, "tick", counted)
        net.advance(1_000)
        for name in "ab":
            said = net.sent(name).frames["Announce"] - before[name]
            assert said <= ticks[net.host(name).node] <= 2 * said


def test_a_host_that_made_its_offers_does_not_ask_to_be_woken_for_them() -> None:
    with testing.network("a", "b", push_bytes_max=0) as net:
        net.subscribe("b", "news")
        net.link("a", "b")
        net.advance(10)
        net.publish("a", "news", b"hello")
        now, due = round(net.now * SECOND), net.host("a").next_deadline()
        assert net.sent("a").frames["Offer"] == 1
        assert due is not None
        assert due > now
