"""The interface below the APIs: every call of a program goes through values that can be encoded."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any

import pytest
from tests.support.jms_encoded import EncodedNetwork, EncodedProvider
from tests.support.jms_scenes import AT_ONCE

from carrypost import (
    Context,
    DeliveryMode,
    DeliveryTimeoutException,
    InvalidClientIDException,
    InvalidDestinationException,
    InvalidSelectorException,
    JMSException,
    MessageFormatException,
    ResourceAllocationException,
    Sent,
    SessionMode,
    TextMessage,
    Topic,
    testing,
)
from carrypost.jms.provider import Perform, Performed, Provider

Scene = Callable[[testing.Network], Coroutine[Any, Any, None]]


@pytest.fixture(params=["direct", "encoded"])
def play(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    if request.param == "encoded":
        monkeypatch.setattr(testing, "Network", EncodedNetwork)

    def run(scene: Scene, *names: str, security: str = "off", **options: object) -> None:
        async def entered() -> None:
            async with testing.network(*names, seed=1, security=security, **options) as net:  # type: ignore[arg-type]
                await scene(net)

        testing.run(entered)

    return run


def test_a_message_keeps_all_that_it_has(play: Callable[..., None]) -> None:
    async def scene(net: testing.Network) -> None:
        net.link("a", "b")
        async with net.context("a", client_id="one") as here, net.context("b") as there:
            topic = here.create_topic("news")
            inbox = await there.create_consumer(topic, "urgency > 3")
            message = here.create_map_message({"x": 1.5, "y": None})
            message.set_short_property("urgency", 4)
            producer = here.create_producer().set_jms_type("report").set_jms_correlation_id(b"\x00\x01")
            sent = await producer.set_jms_reply_to(here.create_topic("answers")).send(topic, message)
            got = await inbox.receive(timeout=60)
            assert got is not None
            assert got.jms_message_id == sent.message_id == message.jms_message_id
            assert (got.jms_type, got.jms_correlation_id) == ("report", b"\x00\x01")
            assert got.jms_reply_to == here.create_topic("answers")
            assert got.get_body(dict) == {"x": 1.5, "y": None}
            assert got.get_short_property("urgency") == 4
            assert got.get_string_property("JMSXUserID") == here.node_id
            assert await inbox.receive(timeout=10) is None

    play(scene, "a", "b", security="signed")


def test_errors_are_what_they_are_on_both_sides(play: Callable[..., None]) -> None:
    async def scene(net: testing.Network) -> None:
        async with net.context("a", client_id="one") as ctx:
            topic = ctx.create_topic("news")
            with pytest.raises(InvalidSelectorException, match="urgency"):
                await ctx.create_consumer(topic, "urgency >")
            with pytest.raises(InvalidClientIDException, match="in use"):
                _ = await net.context("a", client_id="one")
            with pytest.raises(InvalidDestinationException, match="no durable subscription 'x'"):
                await ctx.unsubscribe("x")
            with pytest.raises(JMSException, match="letters"):
                await ctx.create_durable_consumer(topic, "a b")
            with pytest.raises(MessageFormatException, match="message_bytes_max"):
                await ctx.create_producer().send(topic, bytes(20_000_000))
            net.fill_disk("a")
            with pytest.raises(ResourceAllocationException, match="the disk is full"):
                await ctx.create_producer().send(topic, "x")
            net.fill_disk("a", full=False)
            await ctx.create_producer().send(topic, "y")

    play(scene, "a")


@pytest.mark.parametrize("mode", [mode for mode in SessionMode if mode is not SessionMode.SESSION_TRANSACTED])
def test_what_is_not_acknowledged_comes_again(play: Callable[..., None], mode: SessionMode) -> None:
    automatic = mode in {SessionMode.AUTO_ACKNOWLEDGE, SessionMode.DUPS_OK_ACKNOWLEDGE}

    async def scene(net: testing.Network) -> None:
        async with net.context("a") as here:
            topic = here.create_topic("news")
            async with net.context("a", mode, client_id="b") as there:
                inbox = await there.create_durable_consumer(topic, "inbox")
                for number in range(3):
                    await here.create_producer().send(topic, f"{number}")
                assert await inbox.receive_body(str) == "0"
                await there.recover()
                again = await inbox.receive()
                assert again is not None
                assert again.get_body(str) == ("1" if automatic else "0")
                assert again.jms_redelivered is not automatic
                await again.acknowledge()
                assert await inbox.receive_body(str) == ("2" if automatic else "1")
            async with net.context("a", client_id="b") as there:
                inbox = await there.create_durable_consumer(topic, "inbox")
                left = [message async for message in inbox.messages(timeout=1)]
                assert [(each.get_body(str), each.jms_redelivered) for each in left] == (
                    [] if automatic else [("1", True), ("2", False)]
                )

    play(scene, "a")


@pytest.mark.parametrize("mode", [SessionMode.CLIENT_ACKNOWLEDGE, SessionMode.SESSION_TRANSACTED])
def test_what_is_on_its_way_when_everything_comes_again_comes_once(
    play: Callable[..., None], mode: SessionMode
) -> None:
    async def scene(net: testing.Network) -> None:
        async with net.context("a") as here, net.context("a", mode, client_id="b") as there:
            topic = here.create_topic("news")
            inbox = await there.create_durable_consumer(topic, "inbox", prefetch=4)
            for number in range(12):
                await here.create_producer().send(topic, str(number))
            again = there.rollback if mode is SessionMode.SESSION_TRANSACTED else there.recover
            for taken in range(7):
                for number in range(taken):
                    assert await inbox.receive_body(str) == str(number)
                await again()
            assert [message.get_body(str) async for message in inbox.messages(timeout=1)] == list(map(str, range(12)))

    play(scene, "a", messaging={"tries": 7} | AT_ONCE)


def test_listeners_and_tasks_side_by_side(play: Callable[..., None]) -> None:
    async def receive(ctx: Context, got: list[str]) -> None:
        async with ctx.create_consumer(ctx.create_topic("news")) as consumer:
            got += [message.get_body(str) or "" async for message in consumer.messages(timeout=5)]

    async def scene(net: testing.Network) -> None:
        heard: list[str] = []
        got: list[list[str]] = [[], []]
        async with net.context("a") as ctx:

            @ctx.listener(ctx.create_topic("news"))
            async def on_news(message: TextMessage) -> None:
                await asyncio.sleep(0.5)
                heard.append(message.text or "")

            await ctx.start()
            async with asyncio.TaskGroup() as tasks:
                for each in got:
                    tasks.create_task(receive(ctx, each))
                await asyncio.sleep(0)
                await net.run(1)
                producer = ctx.create_producer().set_delivery_mode(DeliveryMode.NON_PERSISTENT)
                for number in range(4):
                    await producer.send(ctx.create_topic("news"), str(number))
            await ctx.drain()
        assert got == [["0", "1", "2", "3"]] * 2
        assert heard == ["0", "1", "2", "3"]

    play(scene, "a")


def test_queues_are_used_through_values(play: Callable[..., None]) -> None:
    async def scene(net: testing.Network) -> None:
        net.link("a", "b")
        async with net.context("a") as here, net.context("b", SessionMode.CLIENT_ACKNOWLEDGE) as there:
            box = await here.declare_queue("box", redelivery="after_lease", lease_s=600)
            with pytest.raises(JMSException, match="exists with other options"):
                await here.declare_queue("box")
            for number in range(4):
                await there.create_producer().set_property("number", number).send(box, str(number))
            await net.run(10)
            for context in (here, there):
                browser = context.create_browser(box, "number > 1")
                assert [each.get_body(str) async for each in browser.messages(timeout=60)] == ["2", "3"]
                assert browser.age is not None
            far = await there.create_consumer(box, "number < 2", prefetch=0)
            near = await here.create_consumer(box, "number >= 2")
            for text in ("0", "1"):
                assert await far.receive_body(str, timeout=60) == text
            await there.acknowledge()
            assert [each.get_body(str) async for each in near.messages(timeout=60)] == ["2", "3"]
            assert [each async for each in here.create_browser(box)] == []

    play(scene, "a", "b", security="signed")


def test_requests_replies_and_temporary_queues_go_through_values(play: Callable[..., None]) -> None:
    async def scene(net: testing.Network) -> None:
        net.link("a", "b")
        async with net.context("a") as here, net.context("b") as there:
            box = await here.create_temporary_queue()
            service = await here.create_consumer(box)
            asked = await there.request(there.create_queue(box.queue_name), "?", time_to_live=600, correlation_id="x")
            again = await there.open_request("x")
            question = await service.receive(timeout=60)
            assert question is not None
            await here.reply(question, "!")
            assert (await again.reply(timeout=60)).get_body(str) == "!"
            with pytest.raises(DeliveryTimeoutException):
                await asked.reply(timeout=10)
            await service.close()
            await box.delete()

    play(scene, "a", "b", security="signed")


def test_what_is_given_up_goes_through_values(play: Callable[..., None]) -> None:
    async def scene(net: testing.Network) -> None:
        async with net.context("a") as ctx:
            told: list[JMSException] = []
            ctx.set_exception_listener(told.append)
            box = await ctx.declare_queue("box")

            def fail(message: object) -> None:
                raise ValueError(message)

            (await ctx.create_consumer(box)).set_message_listener(fail)
            await ctx.create_producer().send(box, "x")
            await net.run(60)
            dead = ctx.create_browser(ctx.create_queue(f"DLQ.{box.queue_name}"))
            assert [each.get_body(str) async for each in dead] == ["x"]
            assert len(told) == 1

    play(scene, "a")


def test_receipts_come_through_and_messages_are_found_again(play: Callable[..., None]) -> None:
    async def scene(net: testing.Network) -> None:
        net.link("a", "m")
        async with net.context("a") as here, net.context("m") as there:
            mail = await there.declare_queue("mail")
            inbox = await there.create_consumer(mail)
            sent = await here.create_producer().send(mail, "hello")
            lost = await here.create_producer().send(here.create_queue(f"nothing@{there.node_id}"), "hello")
            assert await inbox.receive_body(str, timeout=60) == "hello"
            await sent.delivered(timeout=60)
            with pytest.raises(JMSException, match="there is no such queue"):
                await lost.delivered(timeout=60)
        async with net.context("a") as here:
            found = await here.sent(sent.message_id or "")
            await found.delivered(timeout=1)
            await found.handed_over(timeout=0)

    play(scene, "a", "m", security="signed")


class LateProvider(EncodedProvider):
    """A provider whose answers take a second; reports that the node sends unasked overtake them."""

    def perform(self, asked: Perform) -> Performed:
        loop = asyncio.get_running_loop()
        performed = super().perform(asked)
        late = Performed(loop.create_future(), loop.create_future())
        for inner, outer in ((performed.sent, late.sent), (performed.done, late.done)):
            inner.add_done_callback(partial(self._pass_on, outer))
        return late

    def _pass_on(self, outer: asyncio.Future[Any], inner: asyncio.Future[Any]) -> None:
        asyncio.get_running_loop().call_later(1, outer.set_result, inner.result())


@pytest.mark.parametrize("mode", [SessionMode.AUTO_ACKNOWLEDGE, SessionMode.SESSION_TRANSACTED])
def test_a_receipt_that_overtakes_the_id_of_its_message_is_heard(
    monkeypatch: pytest.MonkeyPatch, mode: SessionMode
) -> None:
    class LateNetwork(testing.Network):
        def provider(self, node: str) -> Provider:
            return LateProvider.of(super().provider(node)) if node == "a" else super().provider(node)

    monkeypatch.setattr(testing, "Network", LateNetwork)

    async def send(ctx: Context, news: Topic) -> Sent:
        sent = await ctx.create_producer().send(news, "hello", request_receipt=True)
        if mode is SessionMode.SESSION_TRANSACTED:
            await ctx.commit()
        return sent

    async def scene() -> None:
        async with testing.network("a", "b", seed=1) as net:
            net.link("a", "b")
            async with net.context("a", mode) as here, net.context("b") as there:
                news = there.create_topic("news", ordering="causal")
                inbox = await there.create_consumer(news)
                await net.run(30)
                sending = asyncio.create_task(send(here, news))
                assert await inbox.receive_body(str, timeout=0.5) == "hello"
                sent = await sending
                await sent.delivered(timeout=1)

    testing.run(scene)


def test_a_commit_whose_tasks_are_all_cancelled_is_not_under_way_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    class LateNetwork(testing.Network):
        def provider(self, node: str) -> Provider:
            return LateProvider.of(super().provider(node))

    monkeypatch.setattr(testing, "Network", LateNetwork)

    async def scene() -> None:
        async with testing.network("a", seed=1) as net, net.context("a", SessionMode.SESSION_TRANSACTED) as here:
            producer, others = here.create_producer(), asyncio.all_tasks()
            await producer.send(Topic("news"), "x")
            committing = asyncio.create_task(here.commit())
            await net.run(0.5)
            for task in asyncio.all_tasks() - others:
                task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await committing
            await net.run(5)
            await here.rollback()
            await producer.send(Topic("news"), "y")
            await here.commit()

    testing.run(scene)


@pytest.mark.attached("this test asks for it")
def test_a_test_that_is_marked_so_runs_once_more_with_attached_programs(request: pytest.FixtureRequest) -> None:
    over = request.node.callspec.params["provider_over"]
    assert testing.Network.__name__ == {"local": "Network", "socket": "AttachedNetwork"}[over]
