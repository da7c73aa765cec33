"""Messaging on real nodes: awake unless it is switched off, kept by the store, and no trouble to other programs."""

from __future__ import annotations

import asyncio
import contextlib
import sqlite3
import time
from collections.abc import Callable
from functools import partial
from itertools import count
from pathlib import Path

import pytest
from tests.loopback import apart
from tests.nodes import scene

from carrypost.events import Delivery, Done, Event, Handed
from carrypost.model.ids import MessageId
from carrypost.model.pattern import entry
from carrypost.mom.commands import Ack, Subscribe, Work
from carrypost.mom.overview import MessagingOverview
from carrypost.node.control.client import Client
from carrypost.node.control.control import Control
from carrypost.node.runtime import Node
from carrypost.node.settings import parse

WITHIN_S = 30.0


class WatchedNode(Node):
    """A node that keeps what its host tells."""

    def __init__(self, folder: Path, **keywords: object) -> None:
        super().__init__(parse("", {}, {"udp": apart(), "node.data": str(folder), **keywords}))
        self.told: list[Event] = []
        self.numbers = count(1)
        self.session = 0

    def _take(self, event: Event) -> None:
        self.told.append(event)
        super()._take(event)

    @property
    def handed(self) -> list[Handed]:
        return [event for event in self.told if isinstance(event, Handed)]

    @property
    def overview(self) -> MessagingOverview:
        found = self.host.messaging.overview()
        assert found is not None
        return found

    async def until(self, condition: Callable[[], object]) -> None:
        deadline_s = time.monotonic() + WITHIN_S
        while not condition():
            assert time.monotonic() < deadline_s, self.told
            await asyncio.sleep(0.005)

    async def consume(self, topic: str, *, credit: int = 1_000, **asked: object) -> int:
        """A consumer of a durable subscription, once that is durable."""
        messaging, now, number = self.host.messaging, self.driver.now(), next(self.numbers)
        self.session = messaging.open_session(messaging.connect(now, client="me"), now)
        wish = Subscribe(entry(topic), **({"name": "mail", "durable": True} | asked))  # type: ignore[arg-type]
        consumer = messaging.consume(number, self.session, wish, now)
        messaging.credit(consumer, credit, 1_000_000, now)
        self.driver.drain()
        await self.until(lambda: Done(number) in self.told)
        return consumer

    async def acknowledge(self, *handed: Handed) -> None:
        number = next(self.numbers)
        acks = (Ack(self.session, tuple(each.number for each in handed)),)
        self.host.perform(Work(number, acks=acks), self.driver.now())
        self.driver.drain()
        await self.until(lambda: Done(number) in self.told)


def rows(folder: Path) -> list[bytes]:
    """The families of the rows that messaging has in a store."""
    with contextlib.closing(sqlite3.connect(folder / "store.sqlite")) as connection:
        found = connection.execute("SELECT name FROM layer WHERE kind = 'mom' ORDER BY name").fetchall()
    return [name[:1] for (name,) in found]


@scene
async def test_a_restart_keeps_durable_subscriptions_and_what_is_owed_to_them(tmp_path: Path) -> None:
    async with WatchedNode(tmp_path) as node:
        await node.consume("news")
        sent = [await node.publish("news", b"%d" % number) for number in range(3)]
        await node.until(lambda: len(node.handed) == 3)
        await node.acknowledge(node.handed[1])
    assert rows(tmp_path) == [b"C", b"C", b"S"]
    async with WatchedNode(tmp_path, messaging={"enabled": False}) as asleep:
        assert not asleep.host.messaging.is_open
        sent.append(await asleep.publish("news", b"3"))
    assert rows(tmp_path) == [b"C", b"C", b"S"]
    async with WatchedNode(tmp_path) as again:
        assert again.overview[:4] == (1, 1, 0, 3)
        await again.consume("news")
        for number in range(3):  # What was handed over before comes one at a time.
            await again.until(partial(lambda least: len(again.handed) > least, number))
            await again.acknowledge(again.handed[number])
        assert [(each.message, each.count) for each in again.handed] == [(sent[0], 2), (sent[2], 2), (sent[3], 1)]
        assert again.payload(again.handed[2].descriptor) == b"3"
        assert again.overview.claims == 0
    assert rows(tmp_path) == [b"S"]


class Reader:
    """A consumer at the control socket's level."""

    def __init__(self) -> None:
        self.got: list[Delivery] = []

    def take(self, delivery: Delivery) -> None:
        self.got.append(delivery)


@scene
async def test_what_only_messaging_has_a_claim_to_is_no_delivery_to_other_programs(tmp_path: Path) -> None:
    async with WatchedNode(tmp_path) as node:
        reader, other = Reader(), Reader()
        node.subscribe(reader, "both")
        node.subscribe(other, "other")
        await node.consume(".*")
        claimed, both, last = [await node.publish(topic, b"x") for topic in ("claimed", "both", "other")]
        await node.until(lambda: len(node.handed) == 3 and other.got)
        assert not node.consumers.waits(claimed)
        assert [each.message for each in reader.got] == [both]
        await node.confirm(reader, [both])
        await node.acknowledge(*node.handed)
        assert node.consumers.waits(last)
        await node.confirm(other, [last])
        late = Reader()
        node.subscribe(late, ".*")
        await node.publish("other", b"y")
        await node.until(lambda: late.got)
        assert {each.descriptor.destination for each in late.got} == {"other"}


@scene
async def test_a_program_at_the_control_socket_gets_what_it_asks_for_beside_messaging(tmp_path: Path) -> None:
    async with WatchedNode(tmp_path) as node:
        control = Control(node)
        await control.open()
        try:
            async with await Client.connect(node.settings.control) as client:
                await client.subscribe("news")
                await node.consume(".*", credit=0)
                await client.publish("sport", b"")
                await client.publish("news", b"hello")
                delivery = await client.next_delivery(WITHIN_S)
                assert delivery.payload == b"hello"
                await client.confirm(delivery)
                status = await client.status()
                assert status["messaging"] == {
                    "subscriptions": 1, "durable": 1, "consumers": 1, "claims": 2, "pinned": 2, "lost": 0,
                    "queues": 0, "entries": 0, "receiving": 0,
                }  # fmt: skip
        finally:
            await control.close()


def test_messages_that_subscriptions_lose_are_told_more_and_more_seldom(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def scene() -> None:
        async with WatchedNode(tmp_path, cache_messages_max=10, limits={"unconfirmed_max": 3}) as node:
            await node.consume("news", credit=0)
            sent: list[MessageId] = [await node.publish("news", b"%d" % number) for number in range(30)]
            assert len(set(sent)) == 30
            assert node.overview.lost == 20

    asyncio.run(scene())
    told = [record.getMessage() for record in caplog.records]
    assert [text.split("; ")[1].split(":")[0] for text in told] == [f"{n} lost so far" for n in (1, 2, 4, 8, 16)]
    assert told[0].startswith("the subscription mail lost the message ")
