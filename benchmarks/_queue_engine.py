"""Work of a queue's manager per message, in CPU time of a host without disk and network.

*Assignment*: messages wait, and consumers ask, each with a selector for one kind of message, of which there are equally
many. Each consumer is granted one message, in turn; the time from the credit until the message is handed over is
measured.
"""

from __future__ import annotations

import gc
import random
import time
from collections.abc import Callable
from dataclasses import dataclass
from itertools import count
from typing import Final

from carrypost.config import Settings
from carrypost.gossip.draft import Draft
from carrypost.host import Host
from carrypost.log.events import Event, Handed
from carrypost.messaging.commands import (
    Connect,
    Consume,
    Credit,
    Declare,
    DeclareQueue,
    OpenSession,
    Receive,
    UnitOfWork,
)
from carrypost.security.identity import Identity

MANY: Final = (10_000, 100)
"""Numbers of waiting messages, and of requests."""
FEW: Final = (100, 1)
_STEP: Final = 100
"""Number of messages that are sent in one unit of work."""
_TIMED: Final = 50
"""Assignments, while about as much waits as in the beginning."""
_PLENTY: Final = 2**40
_numbers = count(1)


@dataclass(frozen=True, slots=True)
class Assigning:
    """The cost of an assignment."""

    waiting: int
    requests: int
    cpu_us: float


def _host(messages: int) -> Host:
    settings = Settings.emulated(
        beacons=False, cache_messages_max=2 * messages + 1_000,
        limits={"queue_messages_max": messages, "share_queues": 1.0, "unconfirmed_max": 2 * messages},
    )  # fmt: skip
    host = Host(Identity.plain("bench"), settings, random.Random(1))
    host.start(0)
    host.messaging.open(0)
    _drain(host)
    return host


def _drain(host: Host, take: Callable[[Event], None] = lambda _: None) -> None:
    while host.busy:
        while (batch := host.changes()) is not None:
            host.durable(batch.serial, 0)
        host.outgoing()
        for event in host.events():
            take(event)


def _fill(host: Host, queue: str, messages: int, kinds: int) -> None:
    for first in range(0, messages, _STEP):
        drafts = tuple(
            Draft(queue, b"", attributes={"kind": number % kinds})
            for number in range(first, min(first + _STEP, messages))
        )
        host.perform(UnitOfWork(next(_numbers), sends=drafts), 0)
        _drain(host)


def assigning(waiting: int, requests: int) -> Assigning:
    """Measure assignments to consumers, each of which asks for another kind of message."""
    host = _host(waiting)
    queue = host.messaging.execute(DeclareQueue(Declare("jobs")), 0, next(_numbers))
    session = host.messaging.execute(OpenSession(host.messaging.execute(Connect(), 0)), 0)
    _fill(host, queue, waiting, requests)
    consumers = [
        host.messaging.execute(Consume(session, Receive(queue, f"kind = {number}")), 0, next(_numbers))
        for number in range(requests)
    ]
    handed = 0

    def take(event: Event) -> None:
        nonlocal handed
        handed += isinstance(event, Handed)

    def grant(consumer: int) -> None:
        host.messaging.execute(Credit(consumer, 1, _PLENTY), 0)
        _drain(host, take)

    for consumer in consumers:
        grant(consumer)
    gc.collect()
    handed = 0
    began_s = time.process_time()
    for number in range(_TIMED):
        grant(consumers[number % requests])
    spent_s = time.process_time() - began_s
    assert handed == _TIMED
    return Assigning(waiting, requests, spent_s / handed * 1e6)
