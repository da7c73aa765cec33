"""Placement: seats that shorten events move to where the paths of producers meet, and back; others stay."""

from __future__ import annotations

import random

import pytest
from tests.support.channels import OVERLAY
from tests.support.relocating import Relocating

from carrypost.overlay.lanes import Flow
from carrypost.overlay.modulators.modulator import Modulator
from carrypost.overlay.placement import share_of

TENTH, ALL = Modulator.named("synthetic", ratio=0.1), Modulator.named("synthetic", ratio=1.0)
RAIN = random.Random(1).randbytes(4_000)
"""Payload that does not become shorter where it is compressed."""


@pytest.mark.parametrize(
    ("ratio", "most", "placed", "share"),
    [
        (None, 0.5, True, 1), (0.1, 0.5, False, 0.1), (0.1, 0.05, False, 1), (0.1, None, True, 1),
        (0.7, 0.5, True, 0.7), (0.7, 0.5, False, 1), (0.9, 0.5, False, 1), (0.9, 0.5, True, 1.01),
    ],
)  # fmt: skip
def test_hops_after_a_seat_count_by_the_bytes_that_travel_them(
    ratio: float | None,
    most: float | None,
    placed: bool,
    share: float,
) -> None:
    assert share_of(ratio, most, placed=placed) == share


def test_a_flow_is_known_after_some_events_and_forgets_old_ones() -> None:
    flow = Flow()
    for _ in range(8):
        assert flow.ratio is None
        flow.got(1_000)
        flow.sent(100)
    assert flow.ratio == pytest.approx(0.1)
    for _ in range(200):
        flow.got(1_000)
        flow.sent(1_000)
    assert (flow.ratio or 0) > 0.95


class Placing(Relocating):
    """A world with events of 4,000 bytes, whose consumer y has a modulator that shortens them."""

    def add(self, brokers: str, **settings: object) -> None:
        for name in brokers:
            self.net.add(name, overlay=OVERLAY | {"broker": True} | settings)

    def subscribe(self, modulator: Modulator | None = TENTH) -> str:
        return self.net.consume("y", "flood", modulator)

    def feed(self, producers: str, events: int) -> None:
        for _ in range(events):
            for node in producers:
                self.net.emit(node, "flood", RAIN)
            self.net.advance(2)

    def moves(self) -> list[tuple[str, str]]:
        return [(self.net.name(each.broker), each.operation) for each in self.relocated]

    def covered(self, producer: str) -> list[int]:
        """Return the numbers of the events that results covered, in the order of the results."""
        node, found = self.net.host(producer).node, list[int]()
        for each in self.net.deliveries("y"):
            assert each.descriptor.headers is not None
            covers = each.descriptor.headers.covers
            assert covers is not None
            for index, after, upto in covers.runs:
                if covers.producers[index] == node:
                    found += range(after + 1, upto + 1)
        return found


def test_a_seat_that_shortens_events_moves_to_the_producers_home_and_back_when_it_does_not() -> None:
    world = Placing("ABCpy")
    with world.net as net:
        world.begin("AB BC pA yC")
        results = world.subscribe()
        world.feed("p", 15)
        assert world.moves() == [("A", "upstream")]
        world.feed("p", 15)  # The consumer reports C again and again, and the seat stays.
        assert world.moves() == [("A", "upstream")]
        net.host("y").overlay.change(results, ALL, round(net.now * 1e6))
        world.feed("p", 25)
        assert world.moves() == [("A", "upstream"), ("C", "downstream")]
        assert [each for each in world.homed if each[1] != "first"] == [("A", "upstream"), ("C", "downstream")]
        world.feed("p", 15)
        assert len(world.moves()) == 2
        assert world.covered("p") == list(range(1, 71))
        assert world.lost == []


def test_a_seat_of_several_producers_moves_to_where_their_paths_meet() -> None:
    world = Placing("pqy")
    with world.net as net:
        world.add("ABCD", vicinity_hops=1)  # The overlay is like the network.
        world.begin("AB BC DB pA qD yC")
        world.subscribe()
        world.feed("pq", 15)
        assert world.moves() == [("B", "upstream")]
        # One of them leaves: the seat goes on to the home of the other.
        net.host("q").overlay.close("channel/flood", round(net.now * 1e6))
        world.feed("p", 15)
        assert world.moves() == [("B", "upstream"), ("A", "upstream")]
        # It comes back: the seat returns to where paths meet, towards the consumer.
        world.feed("pq", 15)
        assert world.moves()[2:] == [("B", "downstream")]
        assert world.covered("p") == list(range(1, 46))
        assert world.covered("q") == list(range(1, 31))


@pytest.mark.soak
def test_a_seat_that_moved_towards_most_producers_stays_while_its_ratio_is_not_known_again_or_varies() -> None:
    world = Placing("pqrsty")
    with world.net as net:
        world.add("ABCD", vicinity_hops=1)
        world.begin("AB BC CD pA qA rA sA tD yD")  # In full hops, paths through D are the shortest ones.
        results = world.subscribe()
        world.feed("pqrst", 15)
        assert world.moves() == [("A", "upstream")]
        net.host("y").overlay.change(results, Modulator.named("synthetic", ratio=0.5), round(net.now * 1e6))
        world.feed("pqrst", 15)
        assert world.moves() == [("A", "upstream")]
        net.host("y").overlay.change(results, ALL, round(net.now * 1e6))
        world.feed("pqrst", 15)
        assert world.moves() == [("A", "upstream"), ("D", "downstream")]
        assert [world.covered(each) for each in "pqrst"] == [list(range(1, 46))] * 5


@pytest.mark.parametrize(
    ("modulator", "settings"),
    [
        (ALL, {}),
        (None, {}),
        (TENTH, {"placement": False}),
        (TENTH, {"homing": "static"}),
        (TENTH, {"placement_ratio": 0.05}),
    ],
)
def test_other_seats_stay(modulator: Modulator | None, settings: dict[str, object]) -> None:
    world = Placing("py")
    with world.net:
        world.add("ABC", **settings)
        world.begin("AB BC pA yC")
        world.subscribe(modulator)
        world.feed("p", 15)
        assert world.moves() == []
        assert world.covered("p") == list(range(1, 16))


def test_a_producer_that_is_a_broker_itself_may_have_the_seat() -> None:
    world = Placing("ABCy")
    with world.net as net:
        world.begin("AB BC yC")
        world.subscribe()
        world.feed("A", 15)
        assert world.moves() == [("A", "upstream")]
        assert net.overlay("A").seats
