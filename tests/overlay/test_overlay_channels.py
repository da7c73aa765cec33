"""Channels: events go from producers over home brokers to consumers, once and in order, despite all failures."""

from __future__ import annotations

import random
from itertools import combinations

import pytest
from tests.support.channels import LINKS, Storm, World
from tests.support.examples import soaked

from carrypost.errors import LocalError
from carrypost.log.events import Event, Published
from carrypost.model.headers import Covers, Headers
from carrypost.model.ids import node_bytes
from carrypost.overlay.items import ITEMS, Item, Replay, Sent
from carrypost.testing import network


@pytest.mark.parametrize("security", ["off", "signed"])
def test_events_go_over_two_homes_to_the_consumer(security: str) -> None:
    world = World("ABCpy", security=security)
    with world.net as net:
        world.begin("AB BC pA Cy", "y")
        for _ in range(10):
            world.emit("p")
            net.advance(0.5)
        net.advance(5)
        assert world.faults() == []
        assert world.seen(next(iter(world.since))) == {"p": list(range(1, 11))}
        assert (net.overlay("p").homes, net.overlay("y").homes) == ({"flood": "A"}, {"flood": "C"})
        assert net.overlay("C").seats == [("y", "flood", 1, 10)]
        assert net.deliveries("y")[0].descriptor.original.attributes == {"n": 1}
        here = [copy.descriptor for name in "ABCy" for copy in net.host(name)._holdings.known_copies() if copy.here]  # noqa: SLF001
        assert all(each.original is each for each in here), "legs and results are gone"


def test_an_event_leaves_its_producer_only_when_its_number_is_on_disk() -> None:
    world = World("ABpy", disk_delay_s=0.4)
    with world.net as net:
        world.begin("AB pA By", "y")
        world.emit("p")
        net.advance(5)
        for _ in range(2):  # Without a payload, which could not be sent before it is on disk.
            net.emit("p", "flood")
            net.advance(0.1)
        net.kill("p")
        net.restart("p")
        net.advance(10)
        world.emit("p")
        net.advance(10)
        assert sorted(number for _, number, _ in world.given.values()) == [1, 2, 2, 3]
        assert world.seen(next(iter(world.since))) == {"p": [1, 2]}
        (_, second) = (each for each in net.deliveries("y"))
        assert second.descriptor.original.id in world.stored


@pytest.mark.parametrize("names", ["Ap", "A", "AB"])
def test_roles_combine_freely_on_a_node(names: str) -> None:
    world = World(names)
    with world.net as net:
        world.begin(" ".join(map("".join, combinations(names, 2))), names)
        for _ in range(5):
            for name in names:
                world.emit(name)
            net.advance(1)
        net.advance(5)
        assert world.faults() == []
        assert {len(numbers) for to in world.since for numbers in world.seen(to).values()} == {5}


def test_a_closed_subscription_gets_nothing_more_and_its_seat_ends() -> None:
    world = World("ABpy")
    with world.net as net:
        world.begin("AB pA By", "y")
        world.emit("p")
        net.advance(3)
        (destination,) = world.since
        net.host("y").overlay.close(destination, round(net.now * 1e6))
        net.advance(3)
        world.emit("p")
        net.advance(3)
        assert world.seen(destination) == {"p": [1]}
        assert net.overlay("B").seats == []
        with pytest.raises(LocalError, match="closed"):
            net.host("y").overlay.close(destination, round(net.now * 1e6))


def test_events_that_nobody_has_any_more_are_told_as_lost() -> None:
    world = World("ABpy")
    with world.net as net:
        world.begin("AB pA By", "y")
        world.emit("p")
        net.advance(5)
        net.unlink("p", "A")
        net.advance(10)
        for _ in range(3):
            net.emit("p", "flood", b"short", lifetime_s=5)
        net.advance(20)
        net.link("p", "A")
        net.advance(5)
        world.emit("p")
        net.advance(30)
        assert world.seen("results/y/1") == {"p": [1, 5]}
        assert world.lost == [("results/y/1", "p", 3)]


def test_a_producer_is_asked_once_for_all_seats_of_a_broker() -> None:
    world = World("Apxyz")
    asked = ITEMS.encode([Replay("flood", 1, 9)])
    questions: list[str] = []

    def hear(_: float, node: str, event: Event) -> None:
        if isinstance(event, Published) and event.descriptor.headers == Headers(control=asked):
            questions.append(node)

    with world.net as net:
        world.begin("pA xA yA zA", "xyz")
        net.watch(hear)
        world.emit("p")
        net.advance(5)
        say(world, "p", "A", Sent("flood", (("p", 9),)))  # A lie, which it takes back when it is asked.
        world.emit("p")
        net.advance(5)
        assert world.faults() == []
        assert questions == ["A"]


@pytest.mark.parametrize("seed", [1, *soaked(range(2, 300))])
def test_each_event_comes_once_and_in_order_whatever_fails(seed: int) -> None:
    storm = Storm(seed, World)
    world = storm.world
    with world.net:
        world.begin(LINKS, "yz")
        storm.pass_over(80, "pq")
        world.settle()
        assert world.faults() == []


# --- bad input ---------------------------------------------------------------------------------------------


def say(world: World, author: str, to: str, *said: Item) -> None:
    """Send items to a node."""
    net = world.net
    headers = Headers(control=ITEMS.encode(said))
    net.host(author).publish(f"overlay/{net.host(to).node}", b"", headers=headers, now=round(net.now * 1e6))
    net.advance(3)


def refused(world: World, node: str, reason: str) -> int:
    return world.net.host(node).overview().refused.get(reason, 0)


def test_forged_results_are_not_accepted_and_counted() -> None:
    world = World("ABpyx", security="signed")
    with world.net as net:
        world.begin("AB pA By Bx", "y")
        world.emit("p")
        net.advance(5)
        (destination,) = world.since
        event = net.deliveries("y")[0].descriptor.original
        named = (node_bytes(event.node),)

        def forge(author: str, covers: Covers | None, origin: bytes = b"", payload: bytes = b"flood!") -> None:
            headers = Headers(covers=covers, origin=origin)
            net.host(author).publish(destination, payload, headers=headers, now=round(net.now * 1e6))
            net.advance(3)

        forge("x", Covers(1, 2, named, ((0, 1, 2),)))
        forge("A", Covers(7, 2, named, ((0, 1, 2),)))
        forge("B", None)
        assert refused(world, "y", "result") == 3
        forge("B", Covers(0, 2, named, ((0, 1, 2),)))
        assert refused(world, "y", "overlay-old") == 1
        forge("B", Covers(1, 2, named, ((0, 1, 2),)), event.wire)
        assert refused(world, "y", "origin") == 1, "the payload is not that of the event"
        world.emit("p")
        net.advance(5)
        assert world.faults() == []
        assert len(net.deliveries("y")) == 2


def test_what_others_say_of_a_producers_events_changes_nothing() -> None:
    world = World("ABpyx")
    with world.net as net:
        world.begin("AB pA By Bx", "y")
        world.emit("p")
        net.advance(3)
        say(world, "x", "B", Sent("flood", (("p", 9),), 20_000_000, 9, ((1, 9),)))
        say(world, "A", "B", Sent("flood", (("p", 9),), 20_000_000, 9, ((1, 9),)))
        for _ in range(4):
            world.emit("p")
            net.advance(1)
        net.advance(10)
        assert world.faults() == []
        assert world.seen("results/y/1") == {"p": [1, 2, 3, 4, 5]}
        assert world.lost == []
        before = refused(world, "p", "overlay")
        say(world, "x", "p", Replay("flood", 0, 5))
        assert refused(world, "p", "overlay") == before + 1, "x is no broker"
        say(world, "A", "p", Replay("flood", 0, 5), Replay("flood", 0, 2**40))
        assert refused(world, "p", "replays") == 1
        say(world, "A", "p", Replay("flood", 0, 5), *[Replay(f"made-up-{number}", 0, 5) for number in range(4)])
        assert refused(world, "p", "replays") == 1 + 3, "channels of which p has no events count as one"
        assert world.seen("results/y/1") == {"p": [1, 2, 3, 4, 5]}


def test_events_that_are_still_on_their_way_are_not_sent_twice() -> None:
    world = World("ABy", rate_bytes_per_s=20_000)
    legs: list[str] = []
    with world.net as net:
        world.begin("AB By", "y")
        net.watch(lambda _, node, event: legs.append(node) if is_leg(event) else None)
        for _ in range(6):
            net.emit("A", "flood", random.Random(1).randbytes(20_000))
        net.advance(2)
        say(world, "B", "A", Replay("flood", 3, 6))
        net.advance(20)
        assert legs == ["A"] * 6
        assert world.seen("results/y/1") == {"A": [1, 2, 3, 4, 5, 6]}


def is_leg(event: Event) -> bool:
    """Return True if a leg was published that passes on an event."""
    if not isinstance(event, Published):
        return False
    return event.descriptor.destination.startswith("overlay/") and event.descriptor.original is not event.descriptor


def test_a_broker_keeps_nothing_of_channels_without_seats() -> None:
    world = World("Ay")
    with world.net as net:
        world.begin("Ay")
        for number in range(5):
            destination = net.consume("y", f"channel{number}")
            net.advance(2)
            net.host("y").overlay.close(destination, round(net.now * 1e6))
            net.advance(1)
        commands = net.host("A")._overlay  # noqa: SLF001
        assert commands is not None
        assert commands._overlay.seats._of_channels == {}  # noqa: SLF001


def test_a_node_has_so_many_seats_at_a_broker() -> None:
    world = World("ABy")
    with world.net as net:
        world.begin("AB By")
        for _ in range(10):
            world.consume("y")
            net.advance(1)
        net.advance(10)
        seats = [len(net.overlay(name).seats) for name in "AB"]
        assert seats == [2, 8]
        assert refused(world, "B", "clients") == 1
        world.emit("A")
        net.advance(10)
        assert world.faults() == []


def test_a_client_that_was_restarted_late_still_knows_its_home() -> None:
    overlay = {"enabled": True, "update_s": 200.0, "discovery_s": 100.0}
    with network("y", seed=1, island=True, announce_s_min=20.0, announce_s_max=20.0, overlay=overlay) as net:
        net.add("A", overlay=overlay | {"broker": True})
        net.link("A", "y")
        net.advance(700)  # Longer than announcements of brokers live.
        net.consume("y", "flood")
        net.advance(50)
        net.kill("y")
        net.restart("y")
        net.advance(1)
        assert net.overlay("y").homes == {"flood": "A"}
        assert len(net.overlay("A").seats) == 1
