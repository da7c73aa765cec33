"""Calls of one context that overtake each other: in any order each call ends, and nothing is left over."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from typing import TypeVar

import pytest
from tests.support.jms_scenes import NEWS, got, scene, texts

from carrypost import Consumer, Context, IllegalStateException, Message, SessionMode, Topic, testing
from carrypost.jms.provider import Program
from carrypost.jms.provider.local import LocalProvider
from carrypost.messaging.commands import (
    CloseConsumer,
    CloseSession,
    Command,
    Consume,
    Disconnect,
    OpenSession,
    Unsubscribe,
)

R = TypeVar("R")
LATE = (Disconnect, OpenSession, CloseSession, Consume, CloseConsumer, Unsubscribe)

CLIENT = SessionMode.CLIENT_ACKNOWLEDGE
DISK_S = 0.5
every_moment = pytest.mark.parametrize("moment", [0, 1, 2, 3, 5, 0.1, 0.6])


@pytest.fixture(autouse=True, params=["at once", "later"])
def _answers(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the node answer in the same turn of the loop, or some turns later, as one that starts or is attached."""
    if request.param == "at once":
        return
    connect, execute = LocalProvider.connect, LocalProvider.execute

    async def connect_later(provider: LocalProvider, client: str, program: Program) -> int:
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        return await connect(provider, client, program)

    async def execute_later(provider: LocalProvider, command: Command[R]) -> R:
        if isinstance(command, LATE):
            await asyncio.sleep(0)
            await asyncio.sleep(0)
        return await execute(provider, command)

    monkeypatch.setattr(LocalProvider, "connect", connect_later)
    monkeypatch.setattr(LocalProvider, "execute", execute_later)


async def begun(moment: float, call: Callable[[], Awaitable[object]]) -> asyncio.Task[object]:
    """Something that is under way since then."""

    async def run() -> object:
        return await call()

    task = asyncio.create_task(run())
    if moment != int(moment):
        await asyncio.sleep(moment)
    else:
        for _ in range(int(moment)):
            await asyncio.sleep(0)
    return task


def consumers(net: testing.Network) -> int:
    overview = net.host("a").messaging.overview()
    assert overview is not None
    return overview.consumers


@every_moment
@scene("a", disk_delay_s=DISK_S)
async def test_a_consumer_that_is_being_made_while_its_context_closes_is_not_there(
    net: testing.Network, moment: float
) -> None:
    context = await net.context("a", client_id="me")
    making = await begun(moment, lambda: context.create_durable_consumer(NEWS, "mail"))
    await context.close()
    try:
        made = await making
    except IllegalStateException as error:
        assert "closed" in str(error)  # noqa: PT017 - or it was made before
    else:
        assert isinstance(made, Consumer)
        with pytest.raises(IllegalStateException, match="closed"):
            await made.receive(timeout=1)
        await made.close()
    await net.run(2)
    assert consumers(net) == 0
    async with net.context("a", client_id="me") as again, again.create_durable_consumer(NEWS, "mail") as mail:
        await again.create_producer().send(NEWS, "x")
        assert await texts(mail) == ["x"]


@every_moment
@scene("a", disk_delay_s=DISK_S)
async def test_a_send_that_is_under_way_while_its_context_closes_is_finished_or_refused(
    net: testing.Network, moment: float
) -> None:
    context = await net.context("a")
    sending = await begun(moment, lambda: context.create_producer().send(NEWS, "x"))
    await context.close()
    try:
        await sending
    except IllegalStateException as error:
        assert "closed" in str(error)  # noqa: PT017 - or it was sent
        expected = []
    else:
        expected = ["x"]
    async with net.context("a") as other:
        assert await texts(await other.create_consumer(NEWS)) == expected


@every_moment
@scene("a", disk_delay_s=DISK_S)
async def test_an_acknowledgement_that_is_under_way_while_its_context_closes_counts(
    net: testing.Network, moment: float
) -> None:
    context = await net.context("a", CLIENT, client_id="me")
    mail = await context.create_durable_consumer(NEWS, "mail")
    await context.create_producer().send(NEWS, "x")
    message = await got(mail)
    acknowledging = await begun(moment, message.acknowledge)
    await context.close()
    try:
        await acknowledging
    except IllegalStateException as error:
        assert "closed" in str(error)  # noqa: PT017 - or it was done
        expected = ["x"]
    else:
        expected = []
    await net.run(2)
    async with net.context("a", client_id="me") as again, again.create_durable_consumer(NEWS, "mail") as mail:
        assert await texts(mail) == expected


@pytest.mark.parametrize(
    "call", ["send", "acknowledge", "create", "unsubscribe", "receive", "recover", "close", "drain"]
)
@every_moment
@scene("a", disk_delay_s=DISK_S)
async def test_a_crash_ends_every_call_and_the_next_life_goes_on(
    net: testing.Network, call: str, moment: float
) -> None:
    context = await net.context("a", CLIENT, client_id="me")
    mail = await context.create_durable_consumer(NEWS, "mail")
    async with context.create_durable_consumer(NEWS, "other"):
        pass
    await context.create_producer().send(NEWS, "x")
    message = await got(mail)
    calls: dict[str, Callable[[], Awaitable[object]]] = {
        "send": lambda: context.create_producer().send(NEWS, "y"),
        "acknowledge": message.acknowledge,
        "create": lambda: context.create_durable_consumer(NEWS, "third"),
        "unsubscribe": lambda: context.unsubscribe("other"),
        "receive": mail.receive,
        "recover": context.recover,
        "close": context.close,
        "drain": context.drain,
    }
    calling = await begun(moment, calls[call])
    net.kill("a")
    done = await asyncio.wait_for(asyncio.gather(calling, return_exceptions=True), 5)
    if isinstance(done[0], BaseException):
        assert isinstance(done[0], IllegalStateException)
        assert "was killed" in str(done[0])
    await context.close()
    net.restart("a")
    async with net.context("a", client_id="me") as again, again.create_durable_consumer(NEWS, "mail") as mail:
        found = [each async for each in mail.messages(timeout=5)]
        assert [each.get_body(str) for each in found][:1] in (["x"], [] if call == "acknowledge" else ["x"])
        assert all(each.jms_redelivered for each in found if each.get_body(str) == "x")


@scene("a", disk_delay_s=DISK_S)
async def test_a_context_that_is_opened_while_the_last_one_closes_stands(net: testing.Network) -> None:
    for turns in range(6):
        first = await net.context("a", client_id="me")
        second = first.create_context()
        closing = await begun(turns, first.close)
        async with second:
            await closing
            assert second.client_id == "me"
            async with second.create_consumer(NEWS) as consumer:
                await second.create_producer().send(NEWS, str(turns))
                assert await texts(consumer) == [str(turns)]


@scene("a")
async def test_a_context_is_opened_once_however_many_ask(net: testing.Network) -> None:
    context = net.context("a", client_id="me")

    async def opens() -> Context:
        return await context

    done = await asyncio.gather(opens(), opens(), return_exceptions=True)
    assert [each for each in done if each is context] == [context]
    (refused,) = [each for each in done if each is not context]
    assert isinstance(refused, IllegalStateException)
    await context.close()
    async with net.context("a", client_id="me"):
        pass


@pytest.mark.parametrize("turns", range(6))
@scene("a")
async def test_a_context_that_is_closed_while_it_opens_is_closed(net: testing.Network, turns: int) -> None:
    context = net.context("a", client_id="me")

    async def opens() -> Context:
        return await context

    opening = await begun(turns, opens)
    await context.close()
    (done,) = await asyncio.gather(opening, return_exceptions=True)
    assert done is context or isinstance(done, IllegalStateException)
    with pytest.raises(IllegalStateException, match="this context is closed: create another"):
        context.create_producer()
    await context.close()
    async with net.context("a", client_id="me"):
        pass


@scene("a")
async def test_contexts_of_one_connection_close_side_by_side(net: testing.Network) -> None:
    first = await net.context("a", client_id="me")
    others = [await first.create_context(CLIENT) for _ in range(3)]
    waiting = []
    for each in (first, *others):
        consumer = await each.create_consumer(NEWS)
        waiting.append(asyncio.create_task(consumer.receive()))
    await asyncio.sleep(1)
    await asyncio.gather(*(each.close() for each in (first, *others)))
    assert await asyncio.gather(*waiting) == [None] * 4
    async with net.context("a", client_id="me"):
        pass


@scene("a", disk_delay_s=DISK_S)
async def test_sends_of_many_tasks_are_one_batch_and_each_is_answered(net: testing.Network) -> None:
    async with net.context("a") as context, context.create_consumer(NEWS) as consumer:
        producer = context.create_producer()
        before = net.now
        sent = await asyncio.gather(*(producer.send(NEWS, str(number)) for number in range(100)))
        assert net.now == before + DISK_S
        assert len({each.message_id for each in sent}) == 100
        assert await texts(consumer) == [str(number) for number in range(100)]


@scene("a")
async def test_listeners_come_and_go_while_messages_come(net: testing.Network) -> None:
    async with net.context("a") as context, net.context("a") as sender:
        consumer = await context.create_consumer(NEWS)
        heard: list[str | None] = []

        async def listener(message: Message) -> None:
            await asyncio.sleep(0.01)
            heard.append(message.get_body(str))

        for number in range(20):
            consumer.set_message_listener(listener if number % 3 else None)
            await sender.create_producer().send(NEWS, str(number))
            await asyncio.sleep(0.015 * (number % 2))
        consumer.set_message_listener(None)
        await asyncio.sleep(1)
        heard += await texts(consumer)
        assert heard == [str(number) for number in range(20)]


@scene("a")
async def test_a_node_that_is_suspended_refuses_and_goes_on_afterwards(net: testing.Network) -> None:
    async with net.context("a") as context, context.create_consumer(NEWS) as consumer:
        net.suspend("a")
        with pytest.raises(Exception, match="suspended"):
            await context.create_producer().send(NEWS, "x")
        net.resume("a")
        await context.create_producer().send(Topic("news"), "y")
        assert await texts(consumer) == ["y"]


@pytest.mark.parametrize("turns", range(12))
@scene("a", messaging={"prefetch_bytes": 1_000})
async def test_what_comes_while_a_consumer_without_prefetch_asks_is_not_asked_for_twice(
    net: testing.Network, turns: int
) -> None:
    """A second request would have the bytes of the first one: too few for the next message, which then never comes."""
    async with net.context("a") as context:
        queue, producer = await context.declare_queue("jobs"), context.create_producer()
        consumer = await context.create_consumer(queue, prefetch=0)
        await producer.send(queue, b"")
        assert await consumer.receive_no_wait() is not None
        assert await consumer.receive_no_wait() is None
        sending = asyncio.create_task(producer.send(queue, random.Random(1).randbytes(2_000)))
        for _ in range(turns):
            await asyncio.sleep(0)
        found = [await consumer.receive_no_wait()]
        await sending
        await producer.send(queue, b"last")
        found += [message async for message in consumer.messages(timeout=5)]
        assert [len(each.get_body(bytes) or b"") for each in found if each is not None] == [2_000, 4]
