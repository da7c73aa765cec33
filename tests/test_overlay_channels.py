"""Channels: events go from producers over home brokers to consumers, once and in order, whatever fails."""

from __future__ import annotations

import random
from itertools import combinations

import pytest
from tests.examples import soaked

from carrypost.errors import LocalError
from carrypost.events import Event, Published, Stored
from carrypost.model.headers import Covers, Headers
from carrypost.model.ids import MessageId, node_bytes
from carrypost.overlay.consumer import EventsLost
from carrypost.overlay.items import ITEMS, Gone, Item, Replay, Sent, Start
from carrypost.overlay.numbers import event_of
from carrypost.testing import Network, network

OVERLAY = {"enabled": True, "neighbours_max": 2, "update_s": 4.0, "discovery_s": 2.0, "orphan_s": 8.0, "gap_s": 40.0}


class World:
    """Brokers with capital letters, producers p to s and consumers x to z, all events and what became of them."""

    def __init__(self, names: str, *, seed: int = 1, **options: object) -> None:
        self.names, self.chance = names, random.Random(seed)
        self.net: Network = network(seed=seed, island=True, island_s_min=0.2, announce_s_max=2.0, **options)  # type: ignore[arg-type]
        for name in names:
            self.net.add(name, overlay=OVERLAY | {"broker": name.isupper()})
        self.given: dict[MessageId, tuple[str, int, float]] = {}
        self.stored: dict[MessageId, tuple[str, int, float]] = {}
        """Events that are durable: producer, number, time."""
        self.lost: list[tuple[str, str, int]] = []
        """Events that are missing: destination, producer, how many."""
        self.since: dict[str, tuple[str, float]] = {}
        """Destinations of results: consumer, time of the subscription."""
        self.down: set[str] = set()
        self.net.watch(self._watch)

    def _watch(self, _: float, node: str, event: Event) -> None:
        if isinstance(event, Published) and event.descriptor.destination.startswith("channel/"):
            number = event_of(event.descriptor)
            self.given[event.descriptor.id] = node, number, event.descriptor.created_us / 1e6
        elif isinstance(event, Stored) and event.message in self.given:
            self.stored[event.message] = self.given[event.message]
        elif isinstance(event, EventsLost):
            self.lost.append((event.destination, self.net.name(event.producer), event.events))

    def link(self, links: str) -> None:
        for pair in links.split():
            self.net.link(*pair)

    def emit(self, node: str) -> None:
        if node not in self.down:
            try:
                self.net.emit(node, "flood", f"{node}{self.net.now}".encode(), attributes={"n": 1})
            except LocalError:  # After a disk was full the cache is smaller for a while.
                self.net.fill_disk(node, full=False)

    def consume(self, node: str) -> None:
        self.since[self.net.consume(node, "flood")] = node, self.net.now

    def seen(self, destination: str) -> dict[str, list[int]]:
        """Return the numbers of the events that a subscription was given, in order, by producer."""
        consumer, _ = self.since[destination]
        found: dict[str, list[int]] = {}
        known: set[MessageId] = set()
        for each in self.net.deliveries(consumer):
            if each.descriptor.destination == destination and each.message not in known:
                known.add(each.message)
                event = each.descriptor.original
                assert event.destination == "channel/flood"
                found.setdefault(self.net.name(event.node), []).append(event_of(event))
        return found

    def faults(self) -> list[str]:
        """Return what is missing, repeated or out of order, for every consumer and producer."""
        found = []
        for destination, (consumer, since) in self.since.items():
            seen = self.seen(destination)
            for producer in {node for node, _, _ in self.stored.values()}:
                expected = [number for node, number, t in self.stored.values() if node == producer and t >= since]
                numbers = seen.get(producer, [])
                lost = sum(count for to, by, count in self.lost if (to, by) == (destination, producer))
                if numbers != sorted(set(numbers)):
                    found.append(f"{consumer} from {producer}: repeated or out of order: {numbers}")
                missing = sorted(set(expected) - set(numbers))
                if len(missing) > lost:
                    found.append(f"{consumer} from {producer}: {missing} missing, {lost} told of; {numbers}")
                surplus = set(numbers) - {number for node, number, _ in self.stored.values() if node == producer}
                if surplus:
                    found.append(f"{consumer} from {producer}: {surplus} never stored")
        return found

    def settle(self, seconds: int = 400) -> None:
        """Wait until everything has arrived."""
        for _ in range(seconds // 10):
            self.net.advance(10)
            if not self.faults():
                return


@pytest.mark.parametrize("security", ["off", "signed"])
def test_events_go_over_two_homes_to_the_consumer(security: str) -> None:
    world = World("ABCpy", security=security)
    with world.net as net:
        world.link("AB BC pA Cy")
        net.advance(20)
        world.consume("y")
        net.advance(5)
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


@pytest.mark.parametrize("names", ["Ap", "A", "AB"])
def test_roles_combine_freely_on_a_node(names: str) -> None:
    world = World(names)
    with world.net as net:
        world.link(" ".join(map("".join, combinations(names, 2))))
        net.advance(20)
        for name in names:
            world.consume(name)
        net.advance(5)
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
        world.link("AB pA By")
        net.advance(20)
        world.consume("y")
        net.advance(5)
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
        world.link("AB pA By")
        net.advance(20)
        world.consume("y")
        net.advance(5)
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


NODES = "ABCDpqyz"


class Storm:
    """Links that come and go, crashes, full disks, while producers emit."""

    def __init__(self, seed: int, kind: type[World] = World) -> None:
        chance = random.Random(seed)
        loss = chance.choice([0.0, 0.1, 0.3])
        self.world = kind(
            NODES, seed=seed, loss=loss, duplicate=chance.choice([0.0, 0.1]), reorder=chance.choice([0.0, 0.2]),
            disk_delay_s=chance.choice([0.0, 0.05, 0.4]),
        )  # fmt: skip
        self.chance, self.net = chance, self.world.net

    def move(self) -> None:
        chance, net, down = self.chance, self.net, self.world.down
        roll = chance.random()
        if roll < 0.45:
            self.world.emit(chance.choice("ppqqA"))
        elif roll < 0.75:
            one, other = chance.sample(NODES, 2)
            if net.linked(one, other):
                net.unlink(one, other)
            else:
                net.link(one, other)
        elif roll < 0.85:
            node = chance.choice(NODES)
            if node in down:
                net.restart(node)
                down.discard(node)
            else:
                net.kill(node)
                down.add(node)
        elif roll < 0.9:
            net.fill_disk(chance.choice(NODES), full=chance.random() < 0.5)
        net.advance(chance.choice([0.01, 0.1, 0.5, 2.0]))

    def heal(self) -> None:
        for node in sorted(self.world.down):
            self.net.restart(node)
        self.world.down.clear()
        for node in NODES:
            self.net.fill_disk(node, full=False)
        for one, other in combinations(NODES, 2):
            if self.net.linked(one, other):
                self.net.unlink(one, other)
        for pair in ("AB", "BC", "CD", "pA", "qB", "yC", "zD"):
            self.net.link(*pair)


@pytest.mark.parametrize("seed", [*range(1, 4), *soaked(range(4, 300))])
def test_each_event_comes_once_and_in_order_whatever_fails(seed: int) -> None:
    storm = Storm(seed)
    world = storm.world
    with world.net as net:
        world.link("AB BC CD pA qB yC zD")
        net.advance(20)
        world.consume("y")
        world.consume("z")
        net.advance(5)
        for _ in range(80):
            storm.move()
        storm.heal()
        net.advance(30)
        for node in "pq":
            world.emit(node)
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
        world.link("AB pA By Bx")
        net.advance(20)
        world.consume("y")
        net.advance(5)
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
        world.link("AB pA By Bx")
        net.advance(20)
        world.consume("y")
        net.advance(5)
        world.emit("p")
        net.advance(3)
        say(world, "x", "B", Start("flood", 20_000_000, 9), Gone("flood", ((1, 9),)), Sent("flood", (("p", 9),)))
        say(world, "A", "B", Start("flood", 20_000_000, 9), Gone("flood", ((1, 9),)), Sent("flood", (("p", 9),)))
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
        assert world.seen("results/y/1") == {"p": [1, 2, 3, 4, 5]}


def test_a_node_has_so_many_seats_at_a_broker() -> None:
    world = World("ABy")
    with world.net as net:
        world.link("AB By")
        net.advance(20)
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
