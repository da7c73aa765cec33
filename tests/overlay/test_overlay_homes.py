"""Homes of clients: programs learn which broker works for them, and why."""

from __future__ import annotations

from tests.support.channels import World

from carrypost.log.events import Event
from carrypost.overlay import events
from carrypost.testing import network


def test_a_home_is_told_once_with_the_reason_for_it() -> None:
    world = World("ABpy")
    told: list[tuple[str, str, str]] = []

    def watch(_: float, node: str, event: Event) -> None:
        if isinstance(event, events.Homed):
            told.append((node, world.net.name(event.broker), event.reason))

    world.net.watch(watch)
    with world.net as net:
        world.begin("AB pA By", "y")
        world.emit("p")
        net.advance(10)
        assert sorted(told) == [("p", "A", "first"), ("y", "B", "first")]
        net.unlink("p", "A")
        net.link("p", "B")
        net.advance(10)
        assert told[2:] == [("p", "B", "nearer")]
        net.kill("y")
        net.restart("y")
        net.advance(10)
        assert told[3:] == [], "a consumer that is back goes on with its home"
        net.unlink("y", "B")
        net.link("y", "A")
        net.unlink("A", "B")
        net.advance(30)
        assert told[3:] == [("y", "A", "orphan")]


def test_a_producer_leaves_a_home_that_moves_away_before_its_next_look() -> None:
    overlay = {"enabled": True, "discovery_s": 600.0}
    with network("p", "x", seed=1, island=True, island_s_min=0.2, announce_s_max=2.0, overlay=overlay) as net:
        for name in "AB":
            net.add(name, overlay=overlay | {"broker": True})
        for pair in ("AB", "pA", "xA"):
            net.link(*pair)
        net.advance(20)
        net.consume("x", "flood")
        net.emit("p", "flood")
        net.advance(5)
        assert net.overlay("p").homes == net.overlay("x").homes == {"flood": "A"}
        for client in "px":
            net.unlink(client, "A")
            net.link(client, "B")
        net.advance(20)
        assert net.overlay("p").homes == {"flood": "B"}
        assert net.overlay("x").homes == {"flood": "A"}, "a consumer waits, since its seat has to move"
