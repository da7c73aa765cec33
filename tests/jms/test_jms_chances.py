"""Programs that do anything at any time, while nodes crash and disks are full: nothing is lost, nothing fails silently.

A reader keeps a durable subscription through contexts of every mode, and receives in every way; it is cancelled,
recovered, closed and killed at random. In the end every message whose `send` returned was delivered, every redelivery
was flagged, and durably acknowledged messages were never redelivered.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from contextlib import suppress

import pytest
from tests.support.examples import soaked
from tests.support.jms_scenes import NEWS

from carrypost import Consumer, Context, JMSException, Message, SessionMode, testing

AUTO, CLIENT = SessionMode.AUTO_ACKNOWLEDGE, SessionMode.CLIENT_ACKNOWLEDGE
DUPS_OK, INDIVIDUAL = SessionMode.DUPS_OK_ACKNOWLEDGE, SessionMode.INDIVIDUAL_ACKNOWLEDGE
MESSAGES = 60
DISK_S = 0.05


class Author:
    """A sender that knows which messages were certainly sent."""

    def __init__(self, chance: random.Random) -> None:
        self.chance = chance
        self.sent: set[str] = set()
        self.tried: set[str] = set()

    async def run(self, context: Context) -> None:
        for number in range(MESSAGES):
            await asyncio.sleep(self.chance.choice((0.0, 0.01, 0.1, 1.0)))
            self.tried.add(str(number))
            with suppress(TimeoutError, JMSException):
                async with asyncio.timeout(self.chance.choice((0.01, 10.0, 10.0))):
                    await context.create_producer().send(NEWS, str(number))
                    self.sent.add(str(number))


class Reader:
    """One program after the other on one node, each with the same durable subscription."""

    def __init__(self, net: testing.Network, chance: random.Random) -> None:
        self.net, self.chance = net, chance
        self.deliveries: Counter[str] = Counter()
        self.done: set[str] = set()
        """Messages whose acknowledgement is durable."""

    def take(self, message: Message) -> str:
        body = message.get_body(str) or ""
        count = message.get_int_property("JMSXDeliveryCount")
        assert body not in self.done, f"{body} was acknowledged, and came again"
        assert count > (body in self.deliveries), f"{body} came again, and was not flagged"
        assert message.jms_redelivered is (count > 1)
        self.deliveries[body] += 1
        return body

    async def live(self, mode: SessionMode, seconds: float) -> None:
        """One life of the program."""
        with suppress(JMSException):
            async with self.net.context("b", mode, client_id="me") as context:
                consumer = await context.create_durable_consumer(
                    NEWS, "mail", prefetch=self.chance.choice((None, 1, 3))
                )
                if self.chance.random() < 0.3:
                    await self._listen(context, consumer, seconds)
                else:
                    await self._receive(context, consumer, seconds)

    async def _listen(self, context: Context, consumer: Consumer, seconds: float) -> None:
        async def listener(message: Message) -> None:
            body = self.take(message)
            await asyncio.sleep(self.chance.choice((0.0, 0.01, 0.2)))
            if self.chance.random() < 0.1:
                raise RuntimeError
            if context.session_mode in (CLIENT, INDIVIDUAL):
                await message.acknowledge()
                self.done.add(body)

        consumer.set_message_listener(listener)
        await asyncio.sleep(seconds)
        if self.chance.random() < 0.5:
            await context.drain(timeout=self.chance.choice((0, 0.01, 10)))

    async def _receive(self, context: Context, consumer: Consumer, seconds: float) -> None:
        until = self.net.now + seconds
        held: list[tuple[str, Message]] = []
        while self.net.now < until:
            message = await self._try(consumer)
            if message is not None:
                held.append((self.take(message), message))
            choice = self.chance.random()
            if context.session_mode is CLIENT and choice < 0.3:
                await self._acknowledge(context, held)
            elif context.session_mode is INDIVIDUAL and held and choice < 0.5:
                body, one = held.pop(self.chance.randrange(len(held)))
                await one.acknowledge()
                self.done.add(body)
            elif choice > 0.95:
                held.clear()
                await context.recover()

    async def _acknowledge(self, context: Context, held: list[tuple[str, Message]]) -> None:
        try:
            async with asyncio.timeout(self.chance.choice((0.01, 10.0))):
                await context.acknowledge()
        except TimeoutError:
            return
        self.done |= {body for body, _ in held}
        held.clear()

    async def _try(self, consumer: Consumer) -> Message | None:
        limit_s = self.chance.choice((0.0, 0.001, 0.05, 1.0))
        match self.chance.randrange(4):
            case 0:
                return await consumer.receive(timeout=limit_s)
            case 1:
                with suppress(TimeoutError):
                    return await asyncio.wait_for(consumer.receive(), limit_s)
            case 2:
                async for message in consumer.messages(timeout=limit_s):
                    return message
            case _:
                task = asyncio.create_task(consumer.receive())
                for _ in range(self.chance.randrange(6)):
                    await asyncio.sleep(0)
                task.cancel()
                with suppress(asyncio.CancelledError):
                    return await task
        await asyncio.sleep(0.01)
        return None


async def faults(net: testing.Network, chance: random.Random) -> None:
    """The reader's node crashes and its disk is full, now and then; the nodes meet and part."""
    while True:
        await asyncio.sleep(chance.uniform(1, 10))
        match chance.randrange(4):
            case 0:
                net.kill("b")
                net.restart("b")
            case 1:
                net.fill_disk("b")
                await asyncio.sleep(chance.uniform(0, 3))
                net.fill_disk("b", full=False)
            case _:
                if net.linked("a", "b"):
                    net.unlink("a", "b")
                else:
                    net.link("a", "b")


async def play(seed: int) -> None:
    chance = random.Random(seed)
    async with testing.network("a", "b", seed=seed, disk_delay_s=DISK_S, messaging={"tries": 50}) as net:
        net.link("a", "b")
        author, reader = Author(chance), Reader(net, chance)
        async with net.context("b", client_id="me") as first, first.create_durable_consumer(NEWS, "mail"):
            await net.run(10)
        async with net.context("a") as context:
            sending = asyncio.create_task(author.run(context))
            wrong = asyncio.create_task(faults(net, chance))
            while not sending.done():
                await reader.live(chance.choice((AUTO, CLIENT, DUPS_OK, INDIVIDUAL)), chance.uniform(0, 10))
                await asyncio.sleep(chance.choice((0, 1)))
            wrong.cancel()
            with suppress(asyncio.CancelledError):
                await wrong
            await sending
            net.fill_disk("b", full=False)
            if not net.linked("a", "b"):
                net.link("a", "b")
            await net.run(60)
            for _ in range(10):
                await reader.live(CLIENT, 5)
            await net.run(5)
        assert author.sent <= set(reader.deliveries) <= author.tried
        assert len(author.sent) > MESSAGES / 2
        overview = net.host("b").messaging.overview()
        assert overview is not None
        assert overview.lost == 0


@pytest.mark.parametrize("seed", [*range(3), *soaked(range(3, 6))])
def test_whatever_programs_and_nodes_do_nothing_is_lost_doubled_or_silent(seed: int) -> None:
    testing.run(lambda: play(seed))
