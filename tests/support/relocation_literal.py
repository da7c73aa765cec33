"""The eight steps of the paper (OVERLAY §2.4), taken literally: without numbers, as if messages came in order.

One producer, its events straight to the brokers. A result is the running sum of a modulator, beside the event.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import pairwise
from typing import NamedTuple

from tests.support.relocation_net import SECOND, Net, Weather

BROKERS = ("A", "B", "C")
PERIOD_US = 20_000


class Message(NamedTuple):
    """One of the items of the paper, an event or a result."""

    kind: str
    value: int = 0
    """The event; with HANDOFF 2: the state."""
    state: int = 0
    to: str = ""


@dataclass
class Producer:
    """The producer, with its routing table: where events go."""

    net: Net
    route: str = "A"
    sent: int = 0
    up: bool = True

    def emit(self) -> None:
        self.sent += 1
        self.net.send("P", self.route, Message("event", self.sent))

    def receive(self, author: str, message: object) -> None:
        assert isinstance(message, Message)  # A DETOUR.
        self.route = message.to  # Step 4.
        for broker in (author, message.to):
            self.net.send("P", broker, Message("ACK"))


@dataclass
class Broker:
    """A broker, which has the modulator or not."""

    net: Net
    name: str
    state: int | None = None
    """The modulator's; None: it is elsewhere."""
    to: str = ""
    """Broker that it moves to."""
    buffers: bool = False
    buffer: list[int] = field(default_factory=list)
    moves: int = 0
    up: bool = True

    def migrate(self, to: str) -> None:
        if self.state is not None and not self.to and to != self.name:
            self.to = to
            self.net.send(self.name, to, Message("HANDOFF 1"))  # Step 1.

    def receive(self, author: str, message: object) -> None:
        assert isinstance(message, Message)
        if message.kind == "HANDOFF 1":
            self.net.send(self.name, author, Message("ready"))  # Step 2.
        elif message.kind == "ready":
            self.net.send(self.name, "P", Message("DETOUR", to=self.to))  # Step 3.
        elif message.kind == "ACK" and self.state is not None and self.to:
            self.net.send(self.name, self.to, Message("HANDOFF 2", self.state))  # Step 7.
            self.state, self.to = None, ""
        elif message.kind == "ACK":
            self.buffers = True  # Step 6.
        elif message.kind == "HANDOFF 2":
            self.state, self.moves = message.value, self.moves + 1  # Step 8.
            for event in self.buffer:
                self.work(event)
            self.buffer, self.buffers = [], False
        elif self.state is not None:
            self.work(message.value)  # Step 5.
        elif self.buffers:
            self.buffer.append(message.value)

    def work(self, event: int) -> None:
        assert self.state is not None
        self.state += event
        self.net.send(self.name, "consumer", Message("result", event, self.state))


@dataclass
class Consumer:
    """The consumer, and its results."""

    results: list[Message] = field(default_factory=list)
    up: bool = True

    def receive(self, _: str, message: object) -> None:
        assert isinstance(message, Message)
        self.results.append(message)


class Harm(NamedTuple):
    """Faults that a consumer saw."""

    relocations: int
    lost: int
    repeated: int
    reordered: int
    wrong_state: int


def play(seed: int, weather: Weather, seconds: int) -> Harm:
    """Send an event every 20 ms, and relocate about every half second."""
    net, consumer = Net(seed, weather), Consumer()
    producer = Producer(net)
    brokers = {name: Broker(net, name) for name in BROKERS}
    brokers["A"].state = 0
    net.nodes.update({"P": producer, "consumer": consumer, **brokers})
    net.every(PERIOD_US, producer.emit, seconds * SECOND)

    def migrate() -> None:
        to = net.rng.choice(BROKERS)
        for broker in brokers.values():
            broker.migrate(to)

    net.every(SECOND // 2, migrate, seconds * SECOND)
    net.run((seconds + 5) * SECOND)
    events = [each.value for each in consumer.results]
    sums = [sum(range(1, each.value + 1)) for each in consumer.results]
    return Harm(
        relocations=sum(broker.moves for broker in brokers.values()),
        lost=producer.sent - len(set(events)),
        repeated=len(events) - len(set(events)),
        reordered=sum(one > other for one, other in pairwise(events)),
        wrong_state=sum(each.state != right for each, right in zip(consumer.results, sums, strict=True)),
    )
