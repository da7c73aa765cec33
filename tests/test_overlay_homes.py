"""Homes of clients: programs are told which broker works for them, and why."""

from __future__ import annotations

from tests.channels import World

from carrypost.events import Event
from carrypost.overlay import events


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
