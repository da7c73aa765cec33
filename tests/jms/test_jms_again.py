"""Redeliveries after the end of a program, and of its node: in their place, one at a time, and not for ever."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager

import pytest
from tests.support.jms_scenes import NEWS, SOON_S, got, scene, texts

from carrypost import Consumer, Context, JMSException, ListenerException, Message, Queue, SessionMode, testing

CLIENT, INDIVIDUAL = SessionMode.CLIENT_ACKNOWLEDGE, SessionMode.INDIVIDUAL_ACKNOWLEDGE
TRANSACTED = SessionMode.SESSION_TRANSACTED
BOX = Queue("box@m")
every_place = pytest.mark.parametrize("place", ["topic", "own queue", "other queue"])
"""The program is on node "a"; node "m" manages the queue, or "a" does."""


@pytest.fixture(autouse=True)
def _quiet(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.CRITICAL, "carrypost.jms")


def queue_of(place: str) -> Queue:
    return Queue("box@a") if place == "own queue" else BOX


async def prepare(net: testing.Network, place: str, *bodies: str, priorities: tuple[int, ...] = ()) -> None:
    """Send what a program on node "a" is to receive."""
    async with net.context("a", client_id="me") as here, net.context("m") as there:
        if place == "topic":
            await (await here.create_durable_consumer(NEWS, "mail")).close()
        else:
            await (here if place == "own queue" else there).declare_queue("box")
        for at, body in enumerate(bodies):
            producer = (here if place == "own queue" else there).create_producer()
            if priorities:
                producer.set_priority(priorities[at])
            await producer.send(NEWS if place == "topic" else queue_of(place), body)
        await net.run(SOON_S)


@asynccontextmanager
async def program(
    net: testing.Network, place: str, mode: SessionMode = CLIENT, prefetch: int | None = None
) -> AsyncIterator[tuple[Context, Consumer]]:
    """Yield a program that receives it."""
    async with net.context("a", mode, client_id="me") as context:
        if place == "topic":
            yield context, await context.create_durable_consumer(NEWS, "mail", prefetch=prefetch)
        else:
            yield context, await context.create_consumer(queue_of(place), prefetch=prefetch)


def count_of(message: Message) -> int:
    return message.get_int_property("JMSXDeliveryCount")


def crash(net: testing.Network) -> None:
    net.kill("a")
    net.restart("a")


@every_place
@scene("a", "m")
async def test_a_message_that_ends_its_program_each_time_is_given_up_and_no_other(
    net: testing.Network, place: str
) -> None:
    bodies = ["poison", *map(str, range(9))]
    await prepare(net, place, *bodies)
    for life in range(1, 7):
        async with program(net, place) as (_, inbox):
            message = await got(inbox)
            assert (message.get_body(str), count_of(message)) == ("poison", life)
            await net.run(5)  # All of the others are handed over, ahead of the program, in the first life.
            crash(net)
    told: list[JMSException] = []
    async with program(net, place) as (context, inbox):
        context.set_exception_listener(told.append)
        counts = []
        for body in bodies[1:]:
            message = await got(inbox)
            counts.append(count_of(message))
            assert message.get_body(str) == body
            await message.acknowledge()
        assert counts == [2] * 9, "they were handed over once, ahead of the program"
        assert await inbox.receive(timeout=SOON_S) is None
        assert context.given_up == 1
        assert [type(each) for each in told] == [ListenerException]
        assert "delivered 6 times and never acknowledged" in str(told[0])
        owner = "m" if place == "other queue" else "a"
        async with net.context(owner) as other:
            dead = await other.create_consumer(Queue(f"DLQ.{'topic/news' if place == 'topic' else 'box'}@{owner}"))
            assert await texts(dead) == ["poison"]


@every_place
@scene("a", "m")
async def test_what_comes_again_after_a_crash_is_in_its_place(net: testing.Network, place: str) -> None:
    bodies = [str(number) for number in range(20)]
    await prepare(net, place, *bodies, priorities=(4, 9) * 10)
    first: list[str] = []
    for life in range(3):
        async with program(net, place) as (_, inbox):
            if life:
                again = [(await got(inbox)).get_body(str) or "" for _ in range(4)]
                assert again == first[:4]
            else:
                first = await texts(inbox, quiet_s=5)
                assert sorted(first) == sorted(bodies)
            crash(net)
    async with program(net, place) as (_, inbox):
        assert await texts(inbox) == first


@every_place
@pytest.mark.parametrize("mode", [CLIENT, INDIVIDUAL, TRANSACTED], ids=lambda mode: mode.name)
@scene("a", "m")
async def test_a_program_that_needs_several_messages_at_once_gets_them_after_a_crash(
    net: testing.Network, place: str, mode: SessionMode
) -> None:
    await prepare(net, place, *"abcdef")
    for _ in range(2):
        async with program(net, place, mode) as (_, inbox):
            assert await texts(inbox, quiet_s=5) == [*"abcdef"]
            crash(net)
    async with program(net, place, mode) as (_, inbox):
        found = []
        await net.run(1)
        while (message := await inbox.receive_no_wait()) is not None:
            found.append(message.get_body(str))
        assert found == [*"abcdef"]
    async with program(net, place, mode) as (_, inbox):
        heard: list[str | None] = []
        inbox.set_message_listener(lambda message: heard.append(message.get_body(str)))
        await net.run(5)
        assert heard == [*"abcdef"]


@scene("a")
async def test_consumers_that_share_a_subscription_get_everything_one_after_the_other_after_a_crash(
    net: testing.Network,
) -> None:
    bodies = {str(number) for number in range(20)}
    for life in range(3):
        async with net.context("a", CLIENT, client_id="me") as context:
            topic = context.create_topic("jobs")
            consumers = [await context.create_shared_durable_consumer(topic, "jobs") for _ in range(3)]
            for body in () if life else sorted(bodies):
                await context.send(topic, body)
            found = [text for consumer in consumers for text in await texts(consumer, quiet_s=0.5)]
            assert set(found) == bodies
            assert len(found) == len(bodies)
            crash(net)


@every_place
@scene("a", "m")
async def test_without_prefetch_or_with_one_what_comes_again_comes_as_well(net: testing.Network, place: str) -> None:
    await prepare(net, place, *"abc")
    for prefetch in (1, 1) if place == "topic" else (0, 1, 0):
        async with program(net, place, CLIENT, prefetch) as (_, inbox):
            assert await texts(inbox, quiet_s=5) == [*"abc"]
            crash(net)


@every_place
@scene("a", "m", disk_delay_s=0.05)
async def test_each_further_try_of_a_listener_is_counted_before_it_begins(net: testing.Network, place: str) -> None:
    await prepare(net, place, "x", "y")
    heard: list[tuple[str | None, int]] = []

    async def fail(message: Message) -> None:
        heard.append((message.get_body(str), count_of(message)))
        if len(heard) in (2, 4):
            net.kill("a")
            await asyncio.sleep(1)
        raise ValueError

    for _ in range(3):
        async with program(net, place, SessionMode.AUTO_ACKNOWLEDGE) as (context, inbox):
            context.set_exception_listener(lambda _: None)
            inbox.set_message_listener(fail)
            await net.run(SOON_S)
        if len(heard) <= 4:
            net.restart("a")
    assert [count for body, count in heard if body == "x"] == [1, 2, 3, 4, 5, 6]
    assert [count for body, count in heard if body == "y"] == [2, 3, 4, 5, 6]


@scene("a", "m", messaging={"tries": 3})
async def test_what_is_rolled_back_again_and_again_is_a_dead_letter_as_well(net: testing.Network) -> None:
    await prepare(net, "other queue", "x", "y")
    async with program(net, "other queue", TRANSACTED, prefetch=1) as (context, inbox):
        context.set_exception_listener(lambda _: None)
        for count in (1, 2, 3):
            message = await got(inbox)
            assert (message.get_body(str), count_of(message)) == ("x", count)
            await context.rollback()
        assert await texts(inbox, quiet_s=5) == ["y"]
        assert context.given_up == 1
        await context.commit()
        await net.run(SOON_S)
    async with net.context("m") as there:
        assert await texts(await there.create_consumer(Queue("DLQ.box@m"))) == ["x"]


FAR = [f"n{number}" for number in range(7)]


@scene("m", *FAR)
async def test_leases_that_end_far_away_make_no_dead_letter(net: testing.Network) -> None:
    async with AsyncExitStack() as stack:
        here = await stack.enter_async_context(net.context("m"))
        await here.declare_queue("box", redelivery="after_lease", lease_s=10)
        for name in FAR:
            await (await stack.enter_async_context(net.context(name))).create_consumer(BOX)
        await net.run(SOON_S)
        for name in FAR:
            net.unlink("m", name)
        await here.create_producer().send(BOX, "x")
        await net.run(10 * len(FAR) + 1)
        message = await got(await here.create_consumer(BOX))
        assert (message.get_body(str), count_of(message)) == ("x", 2)


@every_place
@scene("a", "m")
async def test_a_message_that_came_out_of_order_is_flagged_after_a_restart_as_well(
    net: testing.Network, place: str
) -> None:
    await prepare(net, place)
    net.unlink("a", "m")
    async with net.context("m") as sender:
        producer = sender.create_producer()
        for number in range(6):
            await producer.send(NEWS if place == "topic" else queue_of(place), str(number), priority=number)
    net.link("a", "m")
    async with program(net, place) as (_, inbox):
        first = await got(inbox)
        assert first.get_body(str) == "5", "what matters most comes first"
        await first.acknowledge()
        await net.run(5)
    crash(net)
    async with program(net, place) as (_, inbox):
        found = [message async for message in inbox.messages(timeout=SOON_S)]
        assert [message.get_body(str) for message in found] == ["4", "3", "2", "1", "0"]
        assert all(message.property_exists("JMS_carrypost_OutOfOrder") for message in found)
