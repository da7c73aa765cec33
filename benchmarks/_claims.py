"""Claims that wait: memory for each, without copies, descriptors and rows on disk; and the CPU time to consume them.

A host holds many messages. A durable subscription without a consumer's credit claims all of them, and the additional
memory of Python is divided by their number. Then a consumer takes all of them and acknowledges each by itself, which is
compared in CPU time with the host's own deliver and confirm of as many.
"""

from __future__ import annotations

import gc
import random
import time
import tracemalloc
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from carrypost.config import Settings
from carrypost.gossip.wire.pieces import Blank
from carrypost.host import Host
from carrypost.log.events import Delivered, Event, Handed
from carrypost.messaging.commands import Ack, Connect, Consume, Credit, OpenSession, Subscribe, UnitOfWork
from carrypost.model.pattern import entry
from carrypost.security.identity import Identity

CLAIMS: Final = 100_000
BYTES_GOAL: Final = 500
TAKEN: Final = 5_000


@dataclass(frozen=True, slots=True)
class Waiting:
    """Claims that no consumer takes."""

    claims: int
    bytes_each: float

    @property
    def met(self) -> bool:
        """True if they are small enough."""
        return self.bytes_each <= BYTES_GOAL


@dataclass(frozen=True, slots=True)
class Taking:
    """The cost of one message, from its claim or delivery until its consumption is durable."""

    subscription: str
    messaging_us: float
    host_us: float

    @property
    def times(self) -> float:
        """Ratio to the cost of the host's own way."""
        return self.messaging_us / self.host_us


def _host(messages: int) -> Host:
    settings = Settings.emulated(cache_messages_max=2 * messages, beacons=False, limits={"unconfirmed_max": messages})
    host = Host(Identity.plain("bench"), settings, random.Random(1))
    host.start(0)
    host.messaging.open(0)
    _drain(host)
    for _ in range(messages):
        host.publish("topic", Blank(100), now=0)
    _drain(host)
    return host


def _drain(host: Host, take: Callable[[Event], None] = lambda _: None) -> None:
    while host.busy:
        while (batch := host.changes()) is not None:
            host.durable(batch.serial, 0)
        host.outgoing()
        for event in host.events():
            take(event)


def waiting(claims: int = CLAIMS) -> Waiting:
    """Measure the memory of claims that wait."""
    host = _host(claims)
    session = host.messaging.execute(OpenSession(host.messaging.execute(Connect("bench"), 0)), 0)
    gc.collect()
    tracemalloc.start()
    before, _ = tracemalloc.get_traced_memory()
    host.messaging.execute(Consume(session, Subscribe(entry("topic"), name="all", durable=True)), 0, 1)
    _drain(host)
    gc.collect()
    after, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    made = host.messaging.overview()
    assert made is not None
    assert made.claims == claims
    return Waiting(claims, (after - before) / claims)


def _acknowledging(*, durable: bool) -> float:
    host = _host(TAKEN)
    messaging = host.messaging
    session = messaging.execute(OpenSession(messaging.execute(Connect("bench"), 0)), 0)
    number = 1

    def take(event: Event) -> None:
        nonlocal number
        if isinstance(event, Handed):
            number += 1
            host.perform(UnitOfWork(number, acks=(Ack(session, (event.number,)),)), 0)

    start_s = time.process_time()
    asked = Subscribe(entry("topic"), name="all" if durable else "", durable=durable)
    consumer = messaging.execute(Consume(session, asked), 0, 1)
    messaging.execute(Credit(consumer, TAKEN, TAKEN * 1_000), 0)
    _drain(host, take)
    assert number == TAKEN + 1
    return (time.process_time() - start_s) / TAKEN * 1e6


def _confirming() -> float:
    host = _host(TAKEN)
    taken = 0

    def take(event: Event) -> None:
        nonlocal taken
        if isinstance(event, Delivered):
            for delivery in event.deliveries:
                host.confirm((delivery,), 0)
            taken += len(event.deliveries)

    start_s = time.process_time()
    host.subscribe("topic", now=0)
    _drain(host, take)
    assert taken == TAKEN
    return (time.process_time() - start_s) / TAKEN * 1e6


def taking(repeats: int) -> list[Taking]:
    """Measure both ways in turn; the least of each counts."""
    rounds = [(_acknowledging(durable=False), _acknowledging(durable=True), _confirming()) for _ in range(repeats)]
    live_us, durable_us, host_us = (min(each) for each in zip(*rounds, strict=True))
    return [Taking("live", live_us, host_us), Taking("durable", durable_us, host_us)]
