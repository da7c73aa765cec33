"""Legs: a message goes from broker to broker with its author's signature, along routes that are repaired once."""

from __future__ import annotations

import random
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from itertools import pairwise

import pytest
from tests.support import hostile

from carrypost.errors import LocalError, StateError
from carrypost.gossip.outputs import Journal, Retractable
from carrypost.gossip.wire.frames import Offer, OfferEntry
from carrypost.log import events
from carrypost.model.ids import MessageId, NodeId, node_prefix
from carrypost.overlay.legs import LegArrivals, LegArrived
from carrypost.security.identity import Identity
from carrypost.testing import Event, Network, network


class Scene:
    """Brokers, and the legs that arrived."""

    def __init__(self, net: Network) -> None:
        self.net = net
        self.arrived: list[tuple[str, MessageId]] = []
        self.channels: set[str] = set()
        net.watch(self._watch)

    def _watch(self, _: float, node: str, event: Event) -> None:
        if isinstance(event, LegArrived):
            self.arrived.append((node, event.descriptor.id))
            self.channels.add(event.channel)

    def send(self, node: str, brokers: Collection[str], payload: bytes = b"rain") -> MessageId:
        message = self.net.publish(node, "topic/weather", payload, lifetime_s=600)
        ids = [self.net.host(name).node for name in brokers]
        self.net.host(node).overlay.send(message, ids, self.now, channel="weather")
        return message

    def legs(self, node: str) -> list[str]:
        """Return the destinations of the legs that a node has."""
        here = [copy.descriptor for copy in self.net.host(node)._holdings.known_copies() if copy.here]  # noqa: SLF001
        return [each.destination for each in here if each.original is not each]

    @property
    def now(self) -> int:
        return round(self.net.now * 1e6)


@contextmanager
def scene(names: str, links: str, **settings: object) -> Iterator[Scene]:
    """Brokers with capital letters, others without, linked as written; each knows the two nearest brokers."""
    overlay = {"enabled": True, "neighbours_max": 2, "update_s": 5.0, **settings.pop("overlay", {})}  # type: ignore[dict-item]
    net = network(seed=3, island=True, island_s_min=0.2, **settings)  # type: ignore[arg-type]
    for name in names:
        net.add(name, overlay=overlay | {"broker": name.isupper()})
    with net:
        for pair in links.split():
            net.link(*pair)
        net.advance(25)
        yield Scene(net)


LINE = " ".join(one + other for one, other in pairwise("ABCDE"))


@pytest.mark.parametrize("security", ["off", "signed"])
@pytest.mark.parametrize("size", [0, 1, 1_000, 200_000])
def test_a_leg_passes_brokers_and_arrives_as_it_was_published(size: int, security: str) -> None:
    with scene("ABCDE", LINE, security=security) as play:
        path = play.net.overlay("A").path("E")
        assert path is not None
        assert len(path) >= 3
        payload = random.Random(1).randbytes(size)
        message = play.send("A", ["E", "D", "B"], payload)
        play.net.advance(40)
        assert sorted(play.arrived) == [("B", message), ("D", message), ("E", message)]
        assert play.channels == {"weather"}
        assert sum(play.net.overlay(name).legs for name in "BCD") >= 1
        assert not any(play.legs(name) for name in "BCDE"), "legs that were passed on, or arrived, are gone"


@pytest.mark.soak
def test_a_leg_of_16_mib_arrives() -> None:
    with scene("ABC", "AB BC", limits={"link_relay_bytes_per_s": 64 * 1024 * 1024}) as play:
        message = play.send("A", ["C"], random.Random(1).randbytes(16 * 1024 * 1024))
        play.net.advance(120)
        assert play.arrived == [("C", message)]


def test_where_paths_are_direct_no_broker_is_passed() -> None:
    with scene("ABCDE", LINE, overlay={"paths": "direct"}) as play:
        message = play.send("A", ["E"])
        play.net.advance(10)
        assert play.arrived == [("E", message)]
        assert not any(play.net.overlay(name).legs for name in "BCD")


def test_a_leg_leaves_over_the_links_of_this_moment() -> None:
    """A is next to B, and then next to C, which it finds with the next look; B is behind C then."""
    with scene("ABC", "AB BC", overlay={"neighbours_max": 1, "update_s": 600.0}) as play:
        a, c = (play.net.host(name) for name in "AC")
        assert a.overlay.route(c.node) == tuple(play.net.host(name).node for name in "ABC")
        play.net.unlink("A", "B")
        play.net.link("A", "C")
        play.net.advance(15)
        assert play.net.overlay("A").path("C") == ["A", "B", "C"], "there was no look"
        assert a.overlay.route(c.node) == (a.node, c.node)
        message = play.send("A", ["C"])
        play.net.advance(5)
        assert play.arrived == [("C", message)]
        assert play.net.overlay("B").legs == 0


def test_a_node_that_is_no_broker_sends_straight_and_a_leg_to_itself_is_a_call() -> None:
    with scene("ABx", "xA AB") as play:
        message = play.send("x", ["B"])
        play.net.advance(10)
        own = play.send("A", ["A"])
        assert play.arrived == [("B", message)]
        play.net.advance(1)
        assert play.arrived[1:] == [("A", own)]


def test_a_route_is_repaired_once_the_next_broker_cannot_be_reached() -> None:
    """A knows B and C as its neighbours, and D behind either; the broker on the path to D is cut off."""
    with scene("ABCD", "AB AC BD CD", overlay={"topology": "static"}) as play:
        path = play.net.overlay("A").path("D")
        assert path is not None
        assert len(path) == 3
        cut = path[1]
        for other in "AD":
            play.net.unlink(cut, other)
        play.net.advance(20)  # Neighbours are given up after three periods of 5 s, and unreachable a second later.
        assert play.net.overlay("A").path("D") == path
        message = play.send("A", ["D"])
        play.net.advance(10)
        assert play.arrived == [("D", message)]
        assert play.net.overlay("A").repaired == 1
        assert play.net.overlay({"B": "C", "C": "B"}[cut]).legs == 1, "another broker is passed instead"


def test_without_a_path_a_leg_is_carried_to_the_last_broker() -> None:
    with scene("ABx", "AB") as play:
        play.net.unlink("A", "B")
        play.net.advance(20)
        message = play.send("A", ["B"])
        play.net.link("A", "x")
        play.net.advance(10)
        play.net.unlink("A", "x")
        assert play.arrived == []
        play.net.link("x", "B")
        play.net.advance(15)
        assert play.arrived == [("B", message)]
        play.net.link("A", "x")
        play.net.advance(15)
        assert not any(play.legs(name) for name in "ABx"), "all that had a copy hear that it came"


def test_that_a_leg_came_is_told_its_author_alone_if_nobody_else_has_it() -> None:
    with scene("ABCx", "AB BC Bx", overlay={"neighbours_max": 1}) as play:
        for _ in range(5):
            play.send("A", ["C"])
            play.net.advance(2)
        assert len(play.arrived) == 5
        assert not any(play.legs(name) for name in "ABCx")
        known = [play.net.host(name)._acked.known for name in "ABCx"]  # noqa: SLF001 - what a host does not tell
        assert not any(len(each) for each in known)


def test_an_author_hears_in_a_later_contact_that_a_leg_came() -> None:
    """The acknowledgement was lost with the link, and is in no list that hosts compare."""
    with scene("AB", "AB") as play:
        message = play.send("A", ["B"])
        while not play.arrived:
            play.net.advance(0.001)
        play.net.unlink("A", "B")
        play.net.advance(30)
        assert len(play.legs("A")) == 1
        play.net.link("A", "B")
        play.net.advance(10)
        assert play.legs("A") == []
        assert play.arrived == [("B", message)]


def test_offers_of_legs_that_came_bring_each_record_once_and_few_in_all() -> None:
    """Check that one record names many messages, and one offer all of them."""
    with scene("AB", "AB") as play:
        for _ in range(40):
            play.send("A", ["B"])
        play.net.advance(3)
        told = play.net.host("B")._acked._private  # noqa: SLF001 - what A alone is told
        most = 700 * len(set(told.values()))
        assert len(told) >= 40
        before = play.net.sent("B").frame_bytes["AckRecord"]
        offer = Offer(9_999, tuple(OfferEntry(each, 9_000 + at, 10, 0) for at, each in enumerate(told)))
        play.net.inject("B", [offer], "A")
        play.net.advance(0.1)
        assert 0 < play.net.sent("B").frame_bytes["AckRecord"] - before <= most
        for _ in range(100):
            play.net.inject("B", [offer], "A")
        play.net.advance(0.1)
        assert play.net.sent("B").frame_bytes["AckRecord"] - before <= 100 * 700


def test_a_leg_on_its_way_to_a_broker_that_dies_takes_another_path() -> None:
    with scene("ABCD", "AB AC BD CD") as play:
        path = play.net.overlay("A").path("D")
        assert path is not None
        assert len(path) == 3
        play.net.kill(path[1])
        message = play.send("A", ["D"])
        play.net.advance(1)
        assert len(play.legs("A")) == 1
        assert not play.arrived, "nobody knows yet that the broker is dead"
        play.net.advance(30)
        assert play.arrived == [("D", message)]
        assert play.net.overlay("A").repaired == 1
        assert not play.legs("A")


def test_a_leg_that_was_repaired_once_is_carried_if_the_other_broker_dies_too() -> None:
    with scene("ABCDx", "AB AC BD CD Ax", overlay={"topology": "static"}) as play:
        for other in "BC":
            play.net.kill(other)
        play.net.advance(15)
        message = play.send("A", ["D"])
        play.net.advance(5)
        assert play.legs("A") == play.legs("x") == ["overlay/D"], "it goes straight to the last broker"
        play.net.unlink("A", "x")
        play.net.link("x", "D")
        play.net.advance(15)
        assert play.arrived == [("D", message)]


def test_a_path_that_is_too_long_for_a_leg_is_not_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    with scene("ABC", "AB BC", overlay={"neighbours_max": 1}) as play:
        topology = play.net.host("A").overlay._overlay.topology  # noqa: SLF001 - what only a liar could bring about
        far = topology.routes.way(node_prefix(NodeId("C")))
        assert far is not None
        assert len(far.path) == 2
        monkeypatch.setattr(topology.routes, "leg_way", lambda *_, **__: far._replace(path=far.path * 17))
        message = play.send("A", ["C"])
        play.net.advance(10)
        assert play.arrived == [("C", message)]
        assert play.net.overlay("B").legs == 0


@pytest.mark.parametrize("after_s", [0.05, 0.25, 0.45, 0.9])
@pytest.mark.parametrize("victim", ["B", "C"])
def test_a_crash_loses_no_leg_and_repeats_none(victim: str, after_s: float) -> None:
    """A write takes 0.2 s, so that the victim dies before and after each of its batches."""
    with scene("ABC", "AB BC", disk_delay_s=0.2, overlay={"neighbours_max": 1}) as play:
        message = play.send("A", ["C"])
        play.net.advance(after_s)
        play.net.kill(victim)
        play.net.advance(5)
        play.net.restart(victim)
        play.net.advance(30)
        assert play.net.overlay("A").path("C") == ["A", "B", "C"]
        assert play.arrived == [("C", message)]


def test_messages_that_were_told_are_remembered_within_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("carrypost.overlay.legs.TOLD_MAX", 100)
    told: list[events.Event | Retractable] = []
    journal, author = Journal(told), Identity.plain("a")
    arrivals = LegArrivals(journal)
    for number in (*range(1, 111), 100):
        arrivals.report(LegArrived(hostile.message(author, b"", sequence=number).descriptor, "", 1), now=0)
    rows = dict(journal.puts)
    assert len(rows) == 100
    batch = journal.pop_batch()
    assert batch is not None
    journal.durable(batch.serial)
    assert len(told) == 110, "the last one was told before"
    again = LegArrivals(Journal(told))
    again.restore([(name, value) for (_, name, _), value in rows.items() if isinstance(value, bytes)])
    again.report(LegArrived(hostile.message(author, b"", sequence=100).descriptor, "", 1), now=0)
    assert len(told) == 110, "nor does a later life tell it"


def test_a_full_disk_of_a_broker_delays_legs_and_loses_none() -> None:
    with scene("ABC", "AB BC") as play:
        play.net.fill_disk("B")
        message = play.send("A", ["C"])
        play.net.advance(20)
        play.net.fill_disk("B", full=False)
        play.net.advance(60)
        assert ("C", message) in play.arrived


def test_misuse_raises_and_says_what_to_do() -> None:
    with scene("ABx", "AB Bx") as play:
        overlay = play.net.host("A").overlay
        with pytest.raises(StateError, match="is not here"):
            overlay.send(MessageId(b"nothing"), [play.net.host("B").node], play.now)
        message = play.net.publish("A", "channel/x", b"")
        with pytest.raises(LocalError, match="not known here as a broker"):
            overlay.send(message, [play.net.host("x").node], play.now)
        large = play.net.publish("A", "news", b"", attributes={f"a{at}": "x" * 900 for at in range(3)})
        with pytest.raises(LocalError, match="bytes beside its body"):
            overlay.send(large, [play.net.host("B").node], play.now)
