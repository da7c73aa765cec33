"""Networks with channels, their events and what became of them, and storms that break them."""

from __future__ import annotations

import random
from itertools import combinations
from typing import Generic, TypeVar

from carrypost.errors import LocalError
from carrypost.log.events import Event, Published, Stored
from carrypost.model.ids import MessageId
from carrypost.overlay.events import EventsLost, SeatFailed
from carrypost.overlay.items import event_of
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
        self.failed: list[tuple[str, SeatFailed]] | None = None
        """Brokers and their seats that failed; None: no seat may fail."""
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
        elif isinstance(event, SeatFailed):
            assert self.failed is not None, f"a seat at {node} failed: {event}"
            self.failed.append((node, event))

    def begin(self, links: str, consumers: str = "") -> None:
        """Link nodes, and let brokers find each other; then let consumers subscribe."""
        self.link(links)
        self.net.advance(20)
        for node in consumers:
            self.consume(node)
        self.net.advance(5 if consumers else 0)

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
        """Return the events that are missing, repeated or out of order, for every consumer and producer."""
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


NODES = "ABCDpqyz"
LINKS = "AB BC CD pA qB yC zD"


W = TypeVar("W", bound=World)


class Storm(Generic[W]):
    """Links that come and go, crashes, full disks, while producers emit."""

    def __init__(self, seed: int, kind: type[W]) -> None:
        chance = random.Random(seed)
        loss = chance.choice([0.0, 0.1, 0.3])
        self.world = kind(
            NODES, seed=seed, loss=loss, duplicate=chance.choice([0.0, 0.1]), reorder=chance.choice([0.0, 0.2]),
            disk_delay_s=chance.choice([0.0, 0.05, 0.4]),
        )  # fmt: skip
        self.chance, self.net = chance, self.world.net

    def pass_over(self, moves: int, last: str) -> None:
        """Break this many things, repair all of them, and let these producers emit the last events."""
        for _ in range(moves):
            self.move()
        self.heal()
        self.net.advance(30)
        for node in last:
            self.world.emit(node)

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
        self.world.link(LINKS)
