"""Sends to recipients as programs follow them: acknowledgements one by one, all of them, or not all in time."""

from __future__ import annotations

import asyncio

import pytest
from tests.support.jms_scenes import NEWS, SOON_S, got, scene

from carrypost import (
    Context,
    DeliveryMode,
    DeliveryTimeoutException,
    IllegalStateException,
    SendState,
    Sent,
    SessionMode,
    testing,
)

pytestmark = pytest.mark.attached("an acknowledgement may overtake the answer that tells which message it is about")


class Listening:
    """A task that notes the recipients that acknowledge a message."""

    def __init__(self, net: testing.Network, sent: Sent) -> None:
        self.nodes: list[str] = []
        self._net, self._sent = net, sent
        self.task = asyncio.create_task(self._listen())

    async def _listen(self) -> None:
        async for node in self._sent.acknowledgements():
            self.nodes.append(self._net.name(node))


async def send(net: testing.Network, here: Context, to: str, **how: object) -> Sent:
    producer = here.create_producer()
    if timeout := how.pop("timeout", None):
        producer.set_delivery_timeout(timeout)  # type: ignore[arg-type]
    return await producer.send(NEWS, "hello", recipients=[net.host(name).node for name in to], **how)  # type: ignore[arg-type]


@scene("a", "b", "c")
async def test_each_recipient_is_heard_of_and_all_of_them_are_a_delivery(net: testing.Network) -> None:
    async with (
        net.context("a") as here,
        net.context("b") as b,
        net.context("c", SessionMode.CLIENT_ACKNOWLEDGE) as c,
    ):
        inboxes = [await each.create_consumer(NEWS) for each in (b, c)]
        sent = await send(net, here, "bc")
        listening = Listening(net, sent)
        await got(inboxes[0])
        message = await got(inboxes[1])
        await net.run(30)
        assert (listening.nodes, listening.task.done()) == (["b"], False)
        assert sent.state is SendState.CARRIED
        with pytest.raises(DeliveryTimeoutException, match="within 5 s"):
            await sent.delivered(timeout=5)
        await message.acknowledge()
        assert await sent.delivered(timeout=SOON_S) is SendState.DELIVERED
        await listening.task
        assert listening.nodes == ["b", "c"]
        assert [net.name(node) async for node in sent.acknowledgements()] == ["b", "c"]
        assert sent.message_id is not None
        again = await here.sent(sent.message_id)
        assert again is not None
        assert await again.delivered(timeout=SOON_S) is SendState.DELIVERED


@scene("a", "b", "c")
async def test_the_rest_fails_when_the_time_is_over_and_counts_if_it_comes_late(net: testing.Network) -> None:
    async with net.context("a") as here, net.context("b") as b:
        inbox = await b.create_consumer(NEWS)
        sent = await send(net, here, "bc", timeout=40)
        listening = Listening(net, sent)
        await got(inbox)
        await net.run(60)
        with pytest.raises(DeliveryTimeoutException) as raised:
            await listening.task
        assert raised.value.state is SendState.FAILED
        assert listening.nodes == ["b"]
        with pytest.raises(DeliveryTimeoutException):
            await sent.delivered()
        async with net.context("c") as c:
            await got(await c.create_consumer(NEWS))
            await net.run(30)
        assert await sent.delivered() is SendState.DELIVERED


@scene("a", "b")
async def test_nothing_is_heard_of_what_is_not_persistent_or_lists_nobody(net: testing.Network) -> None:
    async with net.context("a") as here, net.context("b") as b:
        inbox = await b.create_consumer(NEWS)
        unheard = here.create_producer().set_delivery_mode(DeliveryMode.NON_PERSISTENT)
        sent = await unheard.send(NEWS, "hello", recipients=[net.host("b").node])
        await got(inbox)
        await net.run(30)
        assert not sent.is_tracked
        with pytest.raises(IllegalStateException, match="NON_PERSISTENT"):
            await Listening(net, sent).task
        with pytest.raises(IllegalStateException, match="NON_PERSISTENT"):
            await sent.delivered()
        asked = await here.create_producer().send(NEWS, "hello", request_receipt=True)
        with pytest.raises(IllegalStateException, match="lists no recipients"):
            await Listening(net, asked).task


@scene("a", "b")
async def test_it_is_known_in_another_life_of_the_sender(net: testing.Network) -> None:
    async with net.context("b") as b:
        inbox = await b.create_consumer(NEWS)
        async with net.context("a") as here:
            sent = await send(net, here, "b")
            name = sent.message_id
            await net.run(10)
        net.kill("a")
        await got(inbox)
        await net.run(30)
        net.restart("a")
        async with net.context("a") as here:
            assert name is not None
            found = await here.sent(name)
            assert found is not None
            assert await found.delivered(timeout=SOON_S) is SendState.DELIVERED
            assert [net.name(node) async for node in found.acknowledgements()] == ["b"]
