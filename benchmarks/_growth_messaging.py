"""Loads of messaging whose cost must grow with their size and no faster.

Each function prepares one load of the given size and returns the work that is to be timed.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from itertools import count
from typing import Final

from benchmarks._growth_core import copies

from carrypost.application.control_outbox import ControlOutbox, UnstoredItem
from carrypost.config import Settings
from carrypost.errors import NameNotFoundException
from carrypost.gossip.draft import Draft
from carrypost.gossip.holdings.eviction import INTEREST_FIRST
from carrypost.gossip.holdings.holdings import Holdings
from carrypost.gossip.interest.own_interests import OwnInterests
from carrypost.gossip.outputs import Outputs
from carrypost.gossip.transfers.link import HostContext, Links
from carrypost.host import Host
from carrypost.log.events import Delivered, Event, Handed
from carrypost.log.journal import META
from carrypost.messaging import commands
from carrypost.messaging.claim_and_claimant import Backlog, Claim, Subscription
from carrypost.messaging.commands import (
    REPLIES,
    Ack,
    CloseConsumer,
    Connect,
    Consume,
    Credit,
    Declare,
    DeclareQueue,
    OpenSession,
    Receive,
    RememberRequest,
    Subscribe,
)
from carrypost.messaging.control import CONTROL, Withdraw
from carrypost.messaging.namespace import Entry, Namespace
from carrypost.model.descriptor_values import privilege
from carrypost.model.headers import Headers
from carrypost.model.ids import NodeId
from carrypost.model.pattern import entry
from carrypost.security.identity import Identity

Work = Callable[[], None]

_STEP: Final = 100
"""Number of messages that are sent in one work."""
_PLENTY: Final = 2**40
_HERE: Final = NodeId("here")
_numbers = count(1)


def backlog(size: int) -> Work:
    """Hand claims over one by one, let them come back one by one, and hand them over again."""
    limits = Settings.emulated().limits
    subscription = Subscription(1, Subscribe(entry("news")), 1, "", limits)
    claims = [Claim(subscription, copy, place, 0) for place, copy in enumerate(copies(size))]
    waiting: Backlog[Claim] = Backlog()
    for claim in claims:
        waiting.add(claim)

    def work() -> None:
        handed = [waiting.next() for _ in claims]
        for claim in reversed(handed):
            waiting.put_back((claim,))
        assert [waiting.next() for _ in claims] == claims

    return work


def post(size: int) -> Work:
    """Owe a note to each of this many nodes, while the disk is slow; then let batches become durable one by one."""
    settings = Settings.emulated()
    outputs = Outputs(settings.limits)
    holdings = Holdings(settings, outputs.journal, privilege, random.Random(1), _HERE, ranking=INTEREST_FIRST)
    ground = HostContext(
        Identity.plain(_HERE), settings, holdings, outputs, OwnInterests(settings, _HERE), Links(settings, outputs)
    )
    made = ControlOutbox(ground, CONTROL)
    journal = outputs.journal

    def work() -> None:
        serials = []
        for number in range(size):
            journal.put((META, b"row", number), b"")
            made.add(NodeId(f"n{number}"), UnstoredItem(Withdraw("queue", number)))
            batch = journal.pop_batch()
            assert batch is not None
            serials.append(batch.serial)
            assert not made.drafts(0)
        sent = 0
        for serial in serials:
            journal.durable(serial)
            sent += len(made.drafts(0))
        assert sent == size

    return work


def names(size: int) -> Work:
    """Look up as many names in vain as there are."""
    namespace = Namespace(_HERE)
    for number in range(size):
        name = f"{random.Random(number).getrandbits(32):x}"
        namespace.add(Entry(NodeId("there"), name, f"topic/{name}"))

    def work() -> None:
        for number in range(size):
            name = f"{random.Random(-number).getrandbits(32):x}z"
            assert namespace.lookup(name) is None
            assert isinstance(namespace.missing(name), NameNotFoundException)

    return work


# --- programs ----------------------------------------------------------------------------------------------


def _host(messages: int) -> Host:
    settings = Settings.emulated(
        beacons=False, cache_messages_max=2 * messages + 1_000,
        limits={"queue_messages_max": messages, "unconfirmed_max": 2 * messages},
    )  # fmt: skip
    host = Host(Identity.plain(_HERE), settings, random.Random(1))
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


def stalling(size: int) -> Work:
    """Publish messages for a subscription and a consumer while the disk stalls, and let all of them expire."""
    host = _host(size)
    messaging = host.messaging
    host.subscribe("news", now=0)
    session = messaging.execute(OpenSession(messaging.execute(Connect(), 0)), 0)
    consumer = messaging.execute(Consume(session, Subscribe(entry("news"))), 0, next(_numbers))
    messaging.execute(Credit(consumer, size, _PLENTY), 0)
    _drain(host)
    for _ in range(size):
        host.publish("news", b"", now=0, lifetime_us=1)
    host.changes()  # The batch is never answered.
    host.events()

    def work() -> None:
        host.tick(1)
        assert host.copies == 0
        assert not any(isinstance(event, Delivered | Handed) for event in host.events())

    return work


def replies(size: int) -> Work:
    """Keep this many requests open, each of which waits for its reply, until all replies come."""
    host = _host(size)
    messaging = host.messaging
    queue = messaging.execute(DeclareQueue(Declare(REPLIES)), 0, next(_numbers))
    session = messaging.execute(OpenSession(messaging.execute(Connect(), 0)), 0)
    taken: list[int] = []

    def take(event: Event) -> None:
        if isinstance(event, Handed):
            taken.append(event.number)

    def work() -> None:
        consumers = []
        for number in range(size):
            messaging.execute(RememberRequest(f"c{number}", _PLENTY), 0, next(_numbers))
            asked = Receive(queue, f"JMSCorrelationID = 'c{number}'")
            consumers.append(messaging.execute(Consume(session, asked), 0, next(_numbers)))
            messaging.execute(Credit(consumers[-1], 1, _PLENTY), 0)
            _drain(host, take)
        for first in range(0, size, _STEP):
            drafts = tuple(
                Draft(queue, b"", headers=Headers(correlation=f"c{number}"))
                for number in range(first, min(first + _STEP, size))
            )
            host.perform(commands.UnitOfWork(next(_numbers), sends=drafts), 0)
            _drain(host, take)
        assert len(taken) == size
        for consumer, number in zip(consumers, taken, strict=True):
            host.perform(commands.UnitOfWork(next(_numbers), acks=(Ack(session, (number,)),)), 0)
            messaging.execute(CloseConsumer(consumer), 0)
            _drain(host, take)

    return work
