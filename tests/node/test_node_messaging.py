"""Messaging on real nodes: awake unless it is switched off, kept by the store, and no trouble to other programs."""

from __future__ import annotations

import asyncio
import contextlib
import re
import sqlite3
import time
from collections.abc import Callable
from functools import partial
from itertools import count
from pathlib import Path

import pytest
from benchmarks._direct import Direct
from tests.support.loopback import apart
from tests.support.nodes import scene

from carrypost.log.events import Delivery, Done, Event, Handed, Stored
from carrypost.messaging.commands import Ack, Connect, Consume, Credit, OpenSession, Subscribe, UnitOfWork
from carrypost.messaging.overview import MessagingOverview
from carrypost.model.ids import MessageId
from carrypost.model.pattern import entry
from carrypost.node.runtime import Node
from carrypost.node.settings import parse
from carrypost.overlay.events import ModulatorFault
from carrypost.overlay.modulators.modulator import Modulator
from carrypost.overlay.modulators.registry import Event as ChannelEvent
from carrypost.overlay.modulators.registry import Result, modulator

WITHIN_S = 30.0


class WatchedNode(Node):
    """A node that keeps the events of its host."""

    def __init__(self, folder: Path, **keywords: object) -> None:
        super().__init__(parse("", {}, {"udp": apart(), "node.data": str(folder), **keywords}))
        self.told: list[Event] = []
        self.delivered: list[Delivery] = []
        self.direct = Direct(self, self.delivered.extend)
        self.attach(self.direct.handlers)
        self.numbers = count(1)
        self.session = 0

    def _handle_event(self, event: Event) -> None:
        self.told.append(event)
        super()._handle_event(event)

    @property
    def handed(self) -> list[Handed]:
        return [event for event in self.told if isinstance(event, Handed)]

    @property
    def overview(self) -> MessagingOverview:
        found = self.host.messaging.overview()
        assert found is not None
        return found

    async def publish(self, destination: str, payload: bytes) -> MessageId:
        """Send, as a driver of the host does; returns the id once the message is stored."""
        message = self.host.publish(destination, payload, now=self.driver.now)
        self.driver.drain()
        await self.until(lambda: Stored(message) in self.told)
        return message

    async def until(self, condition: Callable[[], object]) -> None:
        deadline_s = time.monotonic() + WITHIN_S
        while not condition():
            assert time.monotonic() < deadline_s, self.told
            await asyncio.sleep(0.005)

    async def consume(self, topic: str, *, credit: int = 1_000, **asked: object) -> int:
        """Return a consumer of a durable subscription, once that is durable."""
        messaging, now, number = self.host.messaging, self.driver.now, next(self.numbers)
        self.session = messaging.execute(OpenSession(messaging.execute(Connect("me"), now)), now)
        wish = Subscribe(entry(topic), **({"name": "mail", "durable": True} | asked))  # type: ignore[arg-type]
        consumer = messaging.execute(Consume(self.session, wish), now, number)
        messaging.execute(Credit(consumer, credit, 1_000_000), now)
        self.driver.drain()
        await self.until(lambda: Done(number) in self.told)
        return consumer

    async def acknowledge(self, *handed: Handed) -> None:
        number = next(self.numbers)
        acks = (Ack(self.session, tuple(each.number for each in handed)),)
        self.host.perform(UnitOfWork(number, acks=acks), self.driver.now)
        self.driver.drain()
        await self.until(lambda: Done(number) in self.told)


def rows(folder: Path) -> list[bytes]:
    """Return the families of the rows that messaging has in a store."""
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
        assert again.driver.payload(again.handed[2].descriptor) == b"3"
        assert again.overview.claims == 0
    assert rows(tmp_path) == [b"S"]


@scene
async def test_what_only_messaging_has_a_claim_to_is_no_delivery_to_who_uses_the_host_itself(tmp_path: Path) -> None:
    async with WatchedNode(tmp_path) as node:
        for topic in ("both", "other"):
            node.direct.subscribe(topic)
        await node.consume("claimed|both|other")
        _, both, last = [await node.publish(topic, b"x") for topic in ("claimed", "both", "other")]
        await node.until(lambda: len(node.handed) == 3 and len(node.delivered) == 2)
        assert [each.message for each in node.delivered] == [both, last]
        await node.direct.confirm(node.delivered[:1])
        await node.acknowledge(*node.handed)
        await node.direct.confirm(node.delivered[1:])
        node.direct.subscribe("other.*")
        await node.publish("other", b"y")
        await node.until(lambda: len(node.delivered) == 3)
        assert node.delivered[2].descriptor.destination == "other"


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


@modulator("fails-on-odd")
class FailsOnOdd:
    def process(self, event: ChannelEvent) -> list[ChannelEvent | Result]:
        if event.payload == b"odd":
            raise KeyError("no such thing")
        return [event]


def test_a_broker_logs_what_a_modulator_raised_and_where(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def scene() -> list[ModulatorFault]:
        async with WatchedNode(tmp_path, overlay={"enabled": True, "broker": True, "discovery_s": 0.1}) as node:
            node.host.overlay.consume("flood", node.driver.now, Modulator.named("fails-on-odd"))
            for payload in (b"odd", b"even", b"odd", b"odd"):
                node.host.overlay.emit("flood", payload, node.driver.now)
                node.driver.drain()
            await node.until(lambda: sum(isinstance(each, ModulatorFault) for each in node.told) == 3)
            return [each for each in node.told if isinstance(each, ModulatorFault)]

    first, second, _ = asyncio.run(scene())
    warnings = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert [each.split(" with ")[1].split(" on ")[0] for each in warnings] == [
        f"event {each.number} of {each.producer}" for each in (first, second)
    ], "of equal faults, the first, the second, the fourth and so on"
    assert re.search(r"on channel flood: KeyError: 'no such thing' \(test_node_messaging\.py, line \d+\)$", warnings[0])
