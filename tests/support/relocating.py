"""Worlds in which seats move, and an oracle for the results that consumers get.

The modulator `chain` hashes all earlier events, of all producers, and gives no result for about every third event. A
result names the events since the previous result. It is right only if the seat processed exactly these events, in that
order: a sequential run over the events in the results must give the same hashes.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator

import msgspec
from tests.support.channels import World

from carrypost.errors import LocalError
from carrypost.log.events import Event
from carrypost.model.ids import MessageId
from carrypost.overlay import events
from carrypost.overlay.modulators.modulator import Modulator
from carrypost.overlay.modulators.registry import Event as Input
from carrypost.overlay.modulators.registry import Result, modulator

DIGEST = 8
OPEN = 12
"""Number of last events that may have no result: a longer run without one has a probability of 3 ** -12."""


def hashed(state: bytes, event: str) -> bytes:
    return hashlib.blake2b(state + event.encode(), digest_size=DIGEST).digest()


def number(event: str) -> int:
    return int(event[1:])


@modulator("chain")
class Chain:
    """Hash all events, and make a result of two in three."""

    def __init__(self) -> None:
        self.hash = b""
        self.open: list[str] = []

    def process(self, event: Input) -> list[Input | Result]:
        assert isinstance(event.payload, bytes)
        name = event.payload.decode()
        self.hash = hashed(self.hash, name)
        self.open.append(name)
        if self.hash[0] % 3 == 0:
            return []
        told, self.open = self.open, []
        return [Result(msgspec.msgpack.encode((self.hash, told)))]

    def save(self) -> bytes:
        return msgspec.msgpack.encode((self.hash, self.open))

    def load(self, state: bytes) -> None:
        self.hash, self.open = msgspec.msgpack.decode(state, type=tuple[bytes, list[str]])


class Relocating(World):
    """A world in which one consumer has the modulator `chain`, and its seat moves."""

    def __init__(self, names: str, **options: object) -> None:
        super().__init__(names, **options)  # type: ignore[arg-type]
        self.named: dict[MessageId, str] = {}
        self.relocated: list[events.Relocated] = []
        self.homed: list[tuple[str, str]] = []
        self.emitted: dict[str, float] = {}

    def _watch(self, at: float, node: str, event: Event) -> None:
        super()._watch(at, node, event)
        if isinstance(event, events.Relocated):
            self.relocated.append(event)
        elif isinstance(event, events.Homed):
            self.homed.append((self.net.name(event.broker), event.reason))

    def emit(self, node: str) -> None:
        if node not in self.down:
            name = f"{node}{len(self.named) + 1}"
            try:
                self.named[self.net.emit(node, "flood", name.encode())] = name
                self.emitted[name] = self.net.now
            except LocalError:  # After a disk was full the cache is smaller for a while.
                self.net.fill_disk(node, full=False)

    def chain(self, node: str, relocation: str = "strict") -> str:
        """Subscribe with the modulator; returns the destination of the results."""
        destination = self.net.consume(node, "flood", Modulator.named("chain"), relocation=relocation)
        self.since[destination] = node, self.net.now
        return destination

    def seats(self) -> list[str]:
        """Return the brokers that have a seat, of any epoch."""
        up = [name for name in self.names if name.isupper() and name not in self.down]
        return [name for name in up if self.net.overlay(name).seats]

    def migrate(self, broker: str, consumer: str, to: str) -> bool:
        """Have a seat moved, as an adaptor does."""
        if {broker, consumer, to} & self.down:
            return False
        commands, now = self.net.host(broker).overlay, round(self.net.now * 1e6)
        client = self.net.host(consumer).node, "flood", 1
        overlay = commands._overlay  # noqa: SLF001
        with commands._steps.step(now):  # noqa: SLF001
            begun = overlay.handoffs.migrate(client, self.net.host(to).node, "nearer", now)
            overlay._look_ahead()  # noqa: SLF001 - as after everything that adaptors do in a step
        return begun

    def results(self, destination: str) -> list[tuple[bytes, list[str]]]:
        """Return the results that a subscription was given, once each: hash and events."""
        found: dict[MessageId, bytes] = {}
        for each in self.net.deliveries(self.since[destination][0]):
            if each.descriptor.destination == destination:
                found.setdefault(each.message, each.payload)
        return [msgspec.msgpack.decode(each, type=tuple[bytes, list[str]]) for each in found.values()]

    def wrong(self, destination: str, *, closed: float = 0.0) -> list[str]:
        """Return results that are missing, repeated, out of order, or of a wrong state.

        Of the last events of a producer some may have no result yet, unless they are of a time before `closed`.
        """
        found: list[str] = []
        results = self.results(destination)
        state = b""
        for at, (told, names) in enumerate(results):
            for name in names:
                state = hashed(state, name)
            if told != state:
                found.append(f"wrong state after {at} of {len(results)} results, at {names}")
                break
        seen = [name for _, names in results for name in names]
        if len(set(seen)) < len(seen):
            found.append(f"repeated: {seen}")
        for producer in {node for node, _, _ in self.stored.values()}:
            found += self._missing(destination, producer, seen, closed)
        return found

    def _missing(self, destination: str, producer: str, seen: list[str], closed: float) -> Iterator[str]:
        _, since = self.since[destination]
        stored = [
            self.named[message]
            for message, (node, _, t) in sorted(self.stored.items(), key=lambda each: each[1][1])
            if node == producer and t >= since
        ]
        mine = [name for name in seen if name.startswith(producer)]  # Those of a crash may be durable without a word.
        lost = sum(count for to, by, count in self.lost if (to, by) == (destination, producer))
        missing = [name for name in stored if name not in mine]
        if mine != sorted(mine, key=number):
            yield f"out of order: {mine}"
        last = number(mine[-1]) if mine else 0
        tail = [name for name in stored if number(name) > last and self.emitted[name] >= closed]
        if len(missing) - (len(tail) if len(tail) <= OPEN else 0) > lost:
            yield f"from {producer} missing: {missing}, {lost} told of"
