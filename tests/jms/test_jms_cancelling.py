"""Calls that are cancelled at every turn of the loop, or while they wait for the disk: done or not, never half.

Whatever is cancelled, no message is lost and none comes twice.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Awaitable, Callable
from functools import partial
from typing import TypeVar

import pytest
from tests.support.jms_scenes import NEWS, SOON_S, got, scene, texts

from carrypost import Consumer, Context, IllegalStateException, JMSException, Message, SessionMode, Topic, testing
from carrypost.emu.engine.driver import EmulatedDriver
from carrypost.jms.provider import NODE_LOST
from carrypost.jms.provider.local import LocalProvider
from carrypost.messaging.commands import CloseConsumer, Command
from carrypost.model.descriptor import Descriptor

R = TypeVar("R")

T = TypeVar("T")
AUTO, CLIENT = SessionMode.AUTO_ACKNOWLEDGE, SessionMode.CLIENT_ACKNOWLEDGE
DUPS_OK, INDIVIDUAL = SessionMode.DUPS_OK_ACKNOWLEDGE, SessionMode.INDIVIDUAL_ACKNOWLEDGE
every_mode = pytest.mark.parametrize("mode", [AUTO, CLIENT, DUPS_OK, INDIVIDUAL], ids=lambda mode: mode.name)
DISK_S = 0.5
MOMENTS: tuple[float, ...] = (*range(9), 0.1, 0.6, 1.1)
"""Moments of cancelling: turns of the loop, or seconds."""
every_moment = pytest.mark.parametrize("moment", MOMENTS)


async def pass_by(moment: float) -> None:
    """Let turns of the loop pass, or time."""
    if moment != int(moment):
        await asyncio.sleep(moment)
        return
    for _ in range(int(moment)):
        await asyncio.sleep(0)


async def cancelled(moment: float, call: Callable[[], Awaitable[T]]) -> T | None:
    """Start a call and cancel it at that moment; return None if it was cancelled, else its result."""
    task = asyncio.ensure_future(call())
    await pass_by(moment)
    task.cancel()
    try:
        return await task
    except asyncio.CancelledError:
        return None


async def send(context: Context, *bodies: str) -> None:
    for body in bodies:
        await context.create_producer().send(NEWS, body)


def claims(net: testing.Network) -> int:
    overview = net.host("a").messaging.overview()
    assert overview is not None
    return overview.claims


# ------------------------------------------------------------------------------------------------- receiving


@every_mode
@pytest.mark.parametrize("turns", range(7))
@scene("a", disk_delay_s=0.01, messaging={"prefetch": 3})
async def test_a_receive_that_is_cancelled_takes_nothing(net: testing.Network, mode: SessionMode, turns: int) -> None:
    async with net.context("a", mode, client_id="me") as context, net.context("a") as sender:
        mail = await context.create_durable_consumer(NEWS, "mail")
        sending = asyncio.create_task(send(sender, *map(str, range(30))))
        found: list[Message] = []
        while not sending.done():
            message = await cancelled(turns, mail.receive)
            if message is not None:
                found.append(message)
            await asyncio.sleep(0.003)
        found += [message async for message in mail.messages(timeout=SOON_S)]
        assert [message.get_body(str) for message in found] == [str(number) for number in range(30)]
        assert {message.get_int_property("JMSXDeliveryCount") for message in found} == {1}
        for message in found:
            await message.acknowledge()
        await net.run(2)
        assert claims(net) == 0


@pytest.mark.parametrize("how", ["wait_for", "timeout", "receive"])
@scene("a", disk_delay_s=0.01)
async def test_whatever_limits_the_time_no_message_is_lost_or_doubled(net: testing.Network, how: str) -> None:
    async with net.context("a", client_id="me") as context, net.context("a") as sender:
        mail = await context.create_durable_consumer(NEWS, "mail")
        chance = random.Random(1)

        async def sends() -> None:
            for number in range(100):
                await send(sender, str(number))
                await asyncio.sleep(chance.choice((0, 0.01, 0.02)))

        async def receive(limit_s: float) -> Message | None:
            try:
                match how:
                    case "wait_for":
                        return await asyncio.wait_for(mail.receive(), limit_s)
                    case "timeout":
                        async with asyncio.timeout(limit_s):
                            return await mail.receive()
                    case _:
                        return await mail.receive(timeout=limit_s)
            except TimeoutError:
                return None

        sending = asyncio.create_task(sends())
        found: list[str | None] = []
        while not sending.done():
            message = await receive(chance.choice((0.0, 0.005, 0.01, 0.03)))
            if message is not None:
                found.append(message.get_body(str))
            else:
                await asyncio.sleep(0.001)
        assert found + list(await texts(mail)) == [str(number) for number in range(100)]
        assert claims(net) == 0


@pytest.mark.parametrize("turns", range(7))
@scene("a")
async def test_a_group_of_tasks_that_fails_takes_nothing_with_it(net: testing.Network, turns: int) -> None:
    async with net.context("a") as context:
        consumers = [await context.create_consumer(Topic(name)) for name in "xyz"]
        tasks: list[asyncio.Task[Message | None]] = []

        async def fail() -> None:
            async with asyncio.TaskGroup() as group:
                tasks.extend(group.create_task(consumer.receive()) for consumer in consumers)
                await asyncio.sleep(1)
                for name in "xyz":
                    await context.create_producer().send(Topic(name), name)
                await pass_by(turns)
                raise RuntimeError

        with pytest.raises(ExceptionGroup):
            await fail()
        found = [None if task.cancelled() else task.result() for task in tasks]
        found += [await consumer.receive(timeout=1) for consumer in consumers]
        assert sorted(message.get_body(str) or "" for message in found if message is not None) == ["x", "y", "z"]


@scene("a")
async def test_closing_a_consumer_wakes_who_waits_and_ends_iterations(net: testing.Network) -> None:
    async with net.context("a") as context:
        consumers = [await context.create_consumer(NEWS) for _ in range(3)]

        async def iterate(consumer: Consumer) -> str:
            async for _ in consumer:
                pass
            return "ended"

        async def iterate_limited(consumer: Consumer) -> str:
            async for _ in consumer.messages(timeout=1_000):
                pass
            return "ended"

        tasks = [
            asyncio.create_task(consumers[0].receive()),
            asyncio.create_task(iterate(consumers[1])),
            asyncio.create_task(iterate_limited(consumers[2])),
        ]
        await send(context, "x")
        await asyncio.sleep(1)
        assert (await tasks[0]).get_body(str) == "x"  # type: ignore[union-attr]
        tasks[0] = asyncio.create_task(consumers[0].receive())
        await asyncio.sleep(1)
        for consumer in consumers:
            await consumer.close()
            await consumer.close()
        assert await asyncio.gather(*tasks) == [None, "ended", "ended"]
        with pytest.raises(IllegalStateException, match="this consumer is closed: create another"):
            await consumers[0].receive()


@scene("a")
async def test_closing_a_consumer_within_its_iteration_ends_it(net: testing.Network) -> None:
    async with net.context("a") as context, context.create_consumer(NEWS) as consumer:
        await send(context, "x", "y")
        found = []
        async for message in consumer:
            found.append(message.get_body(str))
            await consumer.close()
        assert found == ["x"]
        async with context.create_consumer(NEWS) as other:
            assert await texts(other) == ["y"]


@scene("a")
async def test_a_crash_of_the_node_wakes_who_waits_and_says_what_happened(net: testing.Network) -> None:
    context = await net.context("a", CLIENT)
    consumers = [await context.create_consumer(NEWS) for _ in range(2)]
    waiting = [asyncio.create_task(each.receive()) for each in consumers]
    await asyncio.sleep(1)
    net.kill("a")
    for task in waiting:
        with pytest.raises(IllegalStateException, match="was killed: restart it, and create another context"):
            await task
    for call in (context.acknowledge, context.recover, consumers[0].receive):
        with pytest.raises(IllegalStateException, match="was killed"):
            await call()
    with pytest.raises(IllegalStateException, match="was killed"):
        await context.create_consumer(NEWS)
    await consumers[0].close()
    await context.close()


@scene("a", "b")
async def test_a_consumer_that_does_not_read_costs_ids_and_slows_nobody(
    net: testing.Network, monkeypatch: pytest.MonkeyPatch
) -> None:
    read = 0
    payload = EmulatedDriver.payload

    def counted(self: EmulatedDriver, descriptor: Descriptor) -> bytes | None:
        nonlocal read
        read += self.name == "b"
        return payload(self, descriptor)

    monkeypatch.setattr(EmulatedDriver, "payload", counted)
    async with net.context("a") as here, net.context("b") as there:
        lazy = await there.create_consumer(NEWS)
        busy = await there.create_consumer(NEWS)
        times: list[float] = []
        for number in range(250):  # More than twice its prefetch.
            await here.create_producer().send(NEWS, bytes(10_000))
            before = net.now
            assert (await got(busy)).get_body(bytes) == bytes(10_000)
            times.append(net.now - before)
            assert read == number + 1
        assert max(times[100:]) <= max(times[:100])
        assert len([message async for message in lazy.messages(timeout=SOON_S)]) == 250
        assert read == 500


async def answering(context: Context) -> None:
    await context.declare_queue("box")
    context.responder("queue/box")(lambda message: f"to {message.text}")
    await context.start()


@pytest.fixture
def _late_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the node answer late that a consumer is closed."""
    execute = LocalProvider.execute

    async def late(provider: LocalProvider, command: Command[R]) -> R:
        found = await execute(provider, command)
        if isinstance(command, CloseConsumer):
            await asyncio.sleep(DISK_S)
        return found

    monkeypatch.setattr(LocalProvider, "execute", late)


@pytest.mark.attached("between the reply and its caller are further calls to the node, each of which may be cancelled")
@pytest.mark.usefixtures("_late_answers")
@pytest.mark.parametrize("waits", [False, True], ids=["comes", "waits"])
@scene("a", disk_delay_s=DISK_S)
async def test_a_reply_whose_caller_is_cancelled_is_left_for_the_next_call(net: testing.Network, waits: bool) -> None:
    async with net.context("a") as context:
        await answering(context)
        outcomes = []
        for moment in (*range(4), *(0.1 + 0.2 * number for number in range(14))):
            request = await context.request("queue/box", str(moment), time_to_live=600)
            if waits:
                await net.run(5)
            first = await cancelled(moment, request.reply)
            again = await request.reply(timeout=10)
            assert again.get_body(str) == f"to {moment}"
            assert first in (None, again)
            outcomes.append(first is None)
            with pytest.raises(IllegalStateException, match="no request"):
                await context.open_request(request.correlation_id)
        assert (outcomes[0], outcomes[-1]) == (True, False)


@pytest.mark.attached("likewise")
@pytest.mark.usefixtures("_late_answers")
@scene("a", disk_delay_s=DISK_S)
async def test_an_ask_that_is_cancelled_keeps_no_reply(net: testing.Network) -> None:
    async with net.context("a") as context:
        await answering(context)
        outcomes = []
        for number in range(22):
            asked = await cancelled(0.1 + 0.2 * number, lambda: context.ask("queue/box", "x", timeout=600))
            outcomes.append(asked is None)
            await net.run(5)
            assert claims(net) == 0
        assert (outcomes[0], outcomes[-1]) == (True, False)


# --------------------------------------------------------------------------------------------------- sending


@every_moment
@scene("a", disk_delay_s=DISK_S)
async def test_a_send_that_is_cancelled_is_done_or_not_and_the_next_call_waits_for_that(
    net: testing.Network, moment: float
) -> None:
    async with net.context("a") as context, context.create_consumer(NEWS) as consumer:
        producer = context.create_producer()
        await send(context, "first")
        sends = [await cancelled(moment, partial(producer.send, NEWS, body)) for body in ("0", "1", "2")]
        returned = [str(number) for number, sent in enumerate(sends) if sent is not None]
        before = net.now
        await producer.send(NEWS, "last")
        assert net.now > before
        found = await texts(consumer)
        assert Counter(found) == Counter(set(found))
        assert set(found) >= {"first", *returned, "last"}
        assert found == sorted(found, key=["first", "0", "1", "2", "last"].index)


@pytest.mark.parametrize("moment", [1, 3, 0.1])
@scene("a", disk_delay_s=DISK_S)
async def test_the_failure_of_a_send_that_was_cancelled_is_reported(net: testing.Network, moment: float) -> None:
    async with net.context("a") as context:
        reported: list[JMSException] = []
        context.set_exception_listener(reported.append)
        assert await cancelled(moment, lambda: context.create_producer().send(NEWS, "x")) is None
        net.fail_disk("a")
        await net.run(5)
        assert [each.error_code for each in reported] == [NODE_LOST, NODE_LOST]  # The node, and the send.
        assert await texts(await context.create_consumer(NEWS)) == []


@every_moment
@scene("a", disk_delay_s=DISK_S)
async def test_an_acknowledgement_that_is_cancelled_is_whole_or_not_at_all(net: testing.Network, moment: float) -> None:
    async with net.context("a", CLIENT, client_id="me") as context:
        mail = await context.create_durable_consumer(NEWS, "mail")
        await send(context, "x", "y", "z")
        for _ in range(3):
            await got(mail)
        await cancelled(moment, context.acknowledge)
        await context.recover()
        again = [(await mail.receive(timeout=5)) for _ in range(3)]
        bodies = [message.get_body(str) for message in again if message is not None]
        assert bodies == (["x", "y", "z"] if moment == 0 else [])
        await net.run(5)
        assert claims(net) == len(bodies)
        net.kill("a")
    net.restart("a")
    async with net.context("a", client_id="me") as context, context.create_durable_consumer(NEWS, "mail") as mail:
        assert await texts(mail) == bodies


@every_moment
@scene("a", disk_delay_s=DISK_S)
async def test_processing_that_is_cancelled_gives_the_message_back_or_has_acknowledged_it(
    net: testing.Network, moment: float
) -> None:
    async with net.context("a", INDIVIDUAL) as context, context.create_consumer(NEWS) as consumer:
        await send(context, "x")

        async def work() -> None:
            message = await got(consumer)
            async with message.processing():
                await asyncio.sleep(0)
                await asyncio.sleep(0)

        await cancelled(moment, work)
        await net.run(5)
        left = [message async for message in consumer.messages(timeout=5)]
        assert claims(net) == len(left) <= 1


# --------------------------------------------------------------------------------------- opening and closing


@every_moment
@pytest.mark.parametrize("fails", [False, True])
@scene("a", disk_delay_s=DISK_S)
async def test_a_consumer_whose_creation_is_cancelled_is_not_there(
    net: testing.Network, moment: float, fails: bool
) -> None:
    async with net.context("a", client_id="me") as context:

        async def opened() -> Consumer:
            return await context.create_durable_consumer(NEWS, "mail")

        try:
            made = await cancelled(moment, opened)
        except JMSException:
            made = None
        if made is not None:
            await made.close()
        if fails:
            net.fail_disk("a")
        await net.run(3)
        overview = net.host("a").messaging.overview()
        assert overview is not None
        assert overview.consumers == 0
        async with context.create_durable_consumer(NEWS, "mail") as mail:
            await send(context, "x")
            assert await texts(mail) == ["x"]
        await context.unsubscribe("mail")


@pytest.mark.attached("what was opened is known here when the answer comes, and nobody waits for that any more")
@every_moment
@scene("a", disk_delay_s=DISK_S)
async def test_a_context_whose_opening_is_cancelled_is_not_there(net: testing.Network, moment: float) -> None:
    context = net.context("a", client_id="me")
    made = await cancelled(moment, lambda: context)
    if made is not None:
        await made.close()
    async with net.context("a", client_id="me") as again:
        await send(again, "x")


@every_mode
@every_moment
@scene("a", disk_delay_s=DISK_S)
async def test_a_close_that_is_cancelled_goes_on_and_another_waits_for_it(
    net: testing.Network, mode: SessionMode, moment: float
) -> None:
    context = await net.context("a", mode, client_id="me")
    mail = await context.create_durable_consumer(NEWS, "mail")

    async def slow(_: Message) -> None:
        await asyncio.sleep(2)

    listening = await context.create_context(mode)
    (await listening.create_consumer(NEWS)).set_message_listener(slow)
    await send(context, "x", "y")
    await got(mail)
    waiting = asyncio.create_task(mail.receive())
    await asyncio.sleep(0)
    await cancelled(moment, listening.close)
    await cancelled(moment, context.close)
    await listening.close()
    await context.close()
    assert waiting.done()
    async with net.context("a", client_id="me") as again, again.create_durable_consumer(NEWS, "mail") as mail:
        left = await texts(mail)
        assert left[-1:] in (["y"], [])
        assert Counter(left) == Counter(set(left))
