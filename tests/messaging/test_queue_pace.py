"""Queues, message by message: how long a program waits, and how often its node writes."""

from __future__ import annotations

import asyncio
import random
from itertools import count

import pytest
from tests.support.jms_scenes import scene
from tests.support.programs import Program, declare

from carrypost import testing
from carrypost.config import Settings
from carrypost.gossip.draft import Draft
from carrypost.host import Host
from carrypost.log.events import Event, Handed, Receipt, SendState
from carrypost.log.journal import Batch
from carrypost.messaging.commands import (
    Ack,
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

PLENTY = 2**40
SECOND = 1_000_000
COALESCE_S = Settings.emulated().coalesce_s


@scene("a", "b")
async def test_who_waits_for_each_receipt_before_the_next_send_does_not_wait_for_company(net: testing.Network) -> None:
    async with net.context("a") as here, net.context("b") as there:
        queue = await here.declare_queue("box")
        async with here.create_consumer(queue) as inbox:
            inbox.set_message_listener(lambda _: None)
            producer = there.create_producer()
            await (await producer.send(queue, "first")).delivered()
            began_s = asyncio.get_running_loop().time()
            for number in range(10):
                await (await producer.send(queue, str(number))).delivered()
            assert asyncio.get_running_loop().time() - began_s < 10 * COALESCE_S / 2


@scene("a", "b")
async def test_what_becomes_of_many_messages_is_said_in_few(net: testing.Network) -> None:
    async with net.context("a") as here, net.context("b") as there:
        queue = await here.declare_queue("box")
        async with here.create_consumer(queue) as inbox:
            inbox.set_message_listener(lambda _: None)
            said = 0

            def count_said(_seconds: float, node: str, event: Event) -> None:
                nonlocal said
                if node == "b" and isinstance(event, testing.Received):
                    said += sum(each.descriptor.destination.startswith("control/") for each in event.receptions)

            net.watch(count_said)
            producer = there.create_producer()
            sent = [await producer.send(queue, str(number)) for number in range(200)]
            for each in sent:
                await each.delivered()
            assert 0 < said < len(sent) / 10


def test_what_lets_messages_be_consumed_overtakes_those_that_wait_for_a_slow_link() -> None:
    with testing.network("m", "x", "r", seed=1) as net:
        net.open_messaging()
        queue = declare(net, "m", "jobs")
        net.link("x", "r", rate_bytes_per_s=50_000)
        net.link("m", "x", rate_bytes_per_s=50_000)
        program = Program(net, "r", queue)
        net.advance(10)
        chance = random.Random(1)
        for _ in range(500):
            net.publish("m", queue, chance.randbytes(500).hex().encode(), persistent=True)
        net.advance(4)  # About half of what they take.
        assert 100 < len(program.got) < 400


class Node:
    """A host that manages a queue, and has a program on it."""

    def __init__(self, **settings: object) -> None:
        self.numbers = count(1)
        self.host = Host(Identity.plain("m"), Settings.emulated(beacons=False, **settings), random.Random(1))
        self.host.start(0)
        self.host.messaging.open(0)
        self.session = self.host.messaging.execute(OpenSession(self.host.messaging.execute(Connect(), 0)), 0)
        self.queue = self.host.messaging.execute(DeclareQueue(Declare("jobs")), 0, next(self.numbers))
        self.consumer = self.host.messaging.execute(Consume(self.session, Receive(self.queue)), 0, next(self.numbers))
        self.host.messaging.execute(Credit(self.consumer, PLENTY, PLENTY), 0)
        self.settle(0)

    def settle(self, now: int) -> tuple[list[Batch], list[Event]]:
        """Do everything that follows, while no time passes; return the batches and events."""
        batches: list[Batch] = []
        events: list[Event] = []
        while self.host.busy or (self.host.next_deadline() or now + 1) <= now:
            if not self.host.busy:
                self.host.tick(now)
            while (batch := self.host.changes()) is not None:
                batches.append(batch)
                self.host.durable(batch.serial, now)
            self.host.outgoing()
            events += self.host.events()
        return batches, events

    def handed(self, messages: int, body: bytes = b"") -> list[int]:
        drafts = tuple(Draft(self.queue, body, persistent=True) for _ in range(messages))
        self.host.perform(UnitOfWork(next(self.numbers), sends=drafts), 0)
        return [event.number for event in self.settle(0)[1] if isinstance(event, Handed)]


def test_that_a_message_of_this_node_was_consumed_is_written_once_and_told_with_that() -> None:
    node = Node()
    (number,) = node.handed(1)
    node.host.perform(UnitOfWork(next(node.numbers), acks=(Ack(node.session, (number,)),)), 1)
    batches, events = node.settle(1)
    assert [event.state for event in events if isinstance(event, Receipt)] == [SendState.DELIVERED]
    assert len(batches) == 1


def commit(node: Node, number: int, now: int, body: bytes = b"") -> int:
    """Acknowledge a message and send another one to a topic; return the number of batches."""
    sends = (Draft("topic", body),)
    node.host.perform(UnitOfWork(next(node.numbers), sends=sends, acks=(Ack(node.session, (number,)),)), now)
    return len(node.settle(now)[0])


def test_a_commit_after_the_other_takes_a_batch_each_with_which_leaves_what_it_acknowledged() -> None:
    node = Node()
    numbers = node.handed(10)
    told: list[Receipt] = []
    for now, number in enumerate(numbers, 1):
        acks = (Ack(node.session, (number,)),)
        node.host.perform(UnitOfWork(next(node.numbers), sends=(Draft("topic", b""),), acks=acks), now)
        batches, events = node.settle(now)
        told += [event for event in events if isinstance(event, Receipt)]
        assert len(batches) == 1
        assert node.host.overview().messages == len(numbers)  # For each one consumed there is one in the topic.
    assert [each.state for each in told] == [SendState.DELIVERED] * 10
    assert node.settle(SECOND)[0] == []


def test_what_commits_acknowledged_does_not_fill_the_cache_where_messages_are_large() -> None:
    node = Node()
    numbers = node.handed(20, random.Random(1).randbytes(20_000))
    for at, number in enumerate(numbers, 1):
        commit(node, number, at * 100)
        assert node.host.overview().messages - len(numbers) <= 5


@pytest.mark.parametrize(
    ("settings", "size"), [({"cache_messages_max": 12}, 10), ({"cache_bytes_max": 60_000}, 10_000)]
)
def test_what_commits_acknowledged_does_not_take_the_room_of_what_they_send(
    settings: dict[str, int], size: int
) -> None:
    node, chance = Node(**settings, limits={"share_queues": 1.0}), random.Random(1)
    numbers = node.handed(2, chance.randbytes(size))
    for now in range(1, 100):
        sends = (Draft(node.queue, chance.randbytes(size), persistent=True),)
        acks = (Ack(node.session, (numbers.pop(0),)),)
        node.host.perform(UnitOfWork(next(node.numbers), sends=sends, acks=acks), now)
        numbers += [event.number for event in node.settle(now)[1] if isinstance(event, Handed)]
        assert len(numbers) == 2
