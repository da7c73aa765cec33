"""Rows 98 to 103 of the checklist: contexts, producers and consumers of the simplified API."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

import pytest
from tests.support.jms_scenes import AT_ONCE, NEWS, got, pair, scene, texts

import carrypost
from carrypost import (
    BytesMessage,
    Context,
    DeliveryMode,
    IllegalStateException,
    JMSException,
    ListenerException,
    MapMessage,
    Message,
    MessageFormatException,
    ObjectMessage,
    Producer,
    SendState,
    SessionMode,
    TextMessage,
    Topic,
    TransactionRolledBackException,
    testing,
)
from carrypost.jms.provider import NODE_LOST

ROWS = range(98, 104)
AUTO, CLIENT = SessionMode.AUTO_ACKNOWLEDGE, SessionMode.CLIENT_ACKNOWLEDGE
DUPS_OK, INDIVIDUAL = SessionMode.DUPS_OK_ACKNOWLEDGE, SessionMode.INDIVIDUAL_ACKNOWLEDGE
NON_PERSISTENT = DeliveryMode.NON_PERSISTENT


async def send(context: Context, *bodies: str) -> None:
    for body in bodies:
        await context.create_producer().send(NEWS, body)


@scene("a", "b")
async def test_row_98_contexts_share_a_connection_which_the_last_of_them_closes(net: testing.Network) -> None:
    first = await net.context("a", client_id="me")
    second = await first.create_context(CLIENT)
    assert second.client_id == "me"
    await first.close()
    async with second.create_consumer(NEWS) as consumer:
        producer = (
            second.create_producer().set_priority(7).set_time_to_live(hours=1).set_delivery_mode(NON_PERSISTENT)
            .set_property("a", 1).set_jms_type("t").set_jms_correlation_id("c").set_jms_reply_to(Topic("answers"))
            .set_delivery_delay(5).set_disable_message_id(False).set_disable_message_timestamp(False).set_async(None)
        )  # fmt: skip
        sent = await producer.send(NEWS, "hello")
        found = await got(consumer)
        assert (sent.message_id, sent.state) == (found.jms_message_id, SendState.STORED)
        assert (found.jms_priority, found.jms_type, found.jms_correlation_id) == (7, "t", "c")
        assert found.jms_expiration == 3_600_000
        assert (producer.priority, producer.time_to_live, producer.delivery_delay) == (7, 3_600, 5)
    with pytest.raises(carrypost.InvalidClientIDException):
        async with net.context("a", client_id="me"):
            pass
    await second.close()
    async with net.context("a", client_id="me"):
        pass


@scene("a")
async def test_row_98_a_listener_waits_for_start_where_the_program_starts_the_connection(net: testing.Network) -> None:
    async with net.context("a") as context:
        context.set_auto_start(False)
        heard: list[Message] = []
        context.listener(NEWS)(heard.append)
        await context.create_producer().send(NEWS, "x")
        await net.run(10)
        assert heard == []
        await context.start()
        await net.run(1)
        assert [each.get_body(str) for each in heard] == ["x"]


@carrypost.register
@dataclass
class Point:
    x: int
    y: int


@pytest.mark.parametrize(
    ("body", "kind"),
    [
        ("text", TextMessage), (b"data", BytesMessage), (bytearray(b"data"), BytesMessage), ({"a": 1}, MapMessage),
        (Point(1, 2), ObjectMessage), (None, Message),
    ],
)  # fmt: skip
@scene("a", "b")
async def test_row_99_a_body_alone_is_sent_with_what_the_producer_says(
    net: testing.Network, body: object, kind: type[Message]
) -> None:
    async with pair(net) as both:
        for copy in await both.sent(body, both.here.create_producer().set_property("a", 1).set_jms_type("t")):
            assert type(copy) is kind
            assert (copy.properties["a"], copy.jms_type) == (1, "t")
            assert body is None or copy.get_body(object) == body


@scene("a", "b")
async def test_row_99_what_the_producer_says_wins_over_the_message(net: testing.Network) -> None:
    message = TextMessage("x")
    message.properties.update({"a": "message", "b": "message"})
    message.jms_type, message.jms_correlation_id = "message", "message"
    async with pair(net) as both:
        producer = both.here.create_producer().set_property("a", "producer").set_jms_type("producer")
        for copy in await both.sent(message, producer):
            assert (copy.properties["a"], copy.properties["b"]) == ("producer", "message")
            assert (copy.jms_type, copy.jms_correlation_id) == ("producer", "message")
        assert dict(message.properties) == {"a": "message", "b": "message"}
        producer.clear_properties().set_jms_type(None)
        assert (await both.sent(message, producer)).there.properties["a"] == "message"


class Completion:
    """A completion listener that records its calls; both methods take a while."""

    def __init__(self, context: Context, wait_s: float = 0.0) -> None:
        self.context, self.wait_s = context, wait_s
        self.told: list[tuple[str, str]] = []
        self.raised: list[Exception] = []
        self.ends: str = ""
        self.by_a_task = False
        self.inside = 0

    async def on_completion(self, message: Message) -> None:
        await self._hear("stored", message)

    async def on_exception(self, message: Message, exception: JMSException) -> None:
        await self._hear(type(exception).__name__, message)

    async def _hear(self, what: str, message: Message) -> None:
        assert not self.inside
        self.inside += 1
        await asyncio.sleep(self.wait_s)
        self.told.append((what, message.get_body(str) or ""))
        if self.ends:
            try:
                ending = getattr(self.context, self.ends)()
                await (asyncio.create_task(ending) if self.by_a_task else ending)
            except IllegalStateException as error:
                self.raised.append(error)
        self.inside -= 1


@scene("a", disk_delay_s=0.5)
async def test_row_100_completion_listeners_are_told_in_order_one_at_a_time_and_close_waits_for_them(
    net: testing.Network,
) -> None:
    context = await net.context("a")
    heard = Completion(context, wait_s=2.0)
    producer = context.create_producer().set_async(heard)  # type: ignore[arg-type]  # it takes messages
    for number in range(3):
        sent = await producer.send(NEWS, str(number))
        assert str(sent.message_id).startswith("ID:")
    assert net.now == 0
    assert heard.told == []
    await context.close()
    assert heard.told == [("stored", "0"), ("stored", "1"), ("stored", "2")]
    assert net.now == 6.5


@scene("a", disk_delay_s=0.5)
async def test_row_100_a_completion_listener_hears_of_what_could_not_be_stored(net: testing.Network) -> None:
    async with net.context("a") as context:
        heard = Completion(context)
        reported: list[JMSException] = []
        context.set_exception_listener(reported.append)
        producer = context.create_producer().set_async(heard)  # type: ignore[arg-type]  # it takes messages
        await producer.send(NEWS, "good")
        await net.run(1)
        await producer.send(NEWS, "bad")
        net.fail_disk("a")
        await net.run(5)
        await producer.send(NEWS, "good again")
        await net.run(5)
        assert heard.told == [
            ("stored", "good"), (IllegalStateException.__name__, "bad"), ("stored", "good again"),
        ]  # fmt: skip
        (node,) = reported
        assert node.error_code == NODE_LOST
        assert await texts(await context.create_consumer(NEWS)) == ["good", "good again"]


@scene("a", disk_delay_s=0.5)
async def test_row_100_in_a_transaction_completion_listeners_are_told_when_it_ends(net: testing.Network) -> None:
    context = await net.context("a", SessionMode.SESSION_TRANSACTED)
    heard = Completion(context)
    producer = context.create_producer().set_async(heard)  # type: ignore[arg-type]  # it takes messages
    rolled_back = TransactionRolledBackException.__name__
    for number in range(2):
        await producer.send(NEWS, f"good {number}")
    await net.run(5)
    assert heard.told == []
    await context.commit()
    await net.run(1)
    assert heard.told == [("stored", "good 0"), ("stored", "good 1")]
    heard.told.clear()
    await producer.send(NEWS, "rolled back")
    await context.rollback()
    await producer.send(NEWS, "lost")
    net.fill_disk("a")
    with pytest.raises(TransactionRolledBackException):
        await context.commit()
    net.fill_disk("a", full=False)
    await producer.send(NEWS, "never committed")
    await context.close()
    assert heard.told == [(rolled_back, "rolled back"), (rolled_back, "lost"), (rolled_back, "never committed")]


@pytest.mark.parametrize("by", ["itself", "a task"])
@pytest.mark.parametrize("call", ["close", "drain", "stop"])
@scene("a")
async def test_row_100_a_completion_listener_does_not_end_what_waits_for_it(
    net: testing.Network, call: str, by: str
) -> None:
    async with net.context("a") as context:
        heard = Completion(context)
        heard.ends, heard.by_a_task = call, by == "a task"
        await context.create_producer().set_async(heard).send(NEWS, "x")  # type: ignore[arg-type]  # it takes messages
        await net.run(1)
        (error,) = heard.raised
        assert f"a completion listener cannot {call}" in str(error)


@scene("a")
async def test_row_100_asynchronous_sends_in_a_loop_let_others_go_on(net: testing.Network) -> None:
    async with net.context("a") as context:
        turns = 0

        async def other() -> None:
            nonlocal turns
            while True:
                turns += 1
                await asyncio.sleep(0)

        task = asyncio.create_task(other())
        producers: list[Producer] = [
            context.create_producer().set_async(Completion(context)),  # type: ignore[arg-type]  # it takes messages
            context.create_producer().set_delivery_mode(NON_PERSISTENT),
        ]
        for producer in producers:
            before = turns
            for number in range(100):
                await producer.send(NEWS, str(number))
            assert turns >= before + 3
        task.cancel()


@scene("a")
async def test_row_101_a_body_of_another_type_stays_where_the_context_acknowledges_by_itself(
    net: testing.Network,
) -> None:
    for mode in (AUTO, DUPS_OK):
        async with net.context("a", mode) as context, context.create_consumer(NEWS) as consumer:
            await send(context, "x", "y")
            assert await consumer.receive_body(str) == "x"
            for kind in (bytes, dict, Point):
                with pytest.raises(MessageFormatException, match=r"call receive\(\) to get the message"):
                    await consumer.receive_body(kind)
            message = await got(consumer)
            assert (message.get_body(str), message.get_int_property("JMSXDeliveryCount")) == ("y", 1)
            assert not message.jms_redelivered
            assert await consumer.receive_body(str, timeout=5) is None


@scene("a")
async def test_row_101_where_the_program_acknowledges_it_has_got_such_a_message(net: testing.Network) -> None:
    for mode in (CLIENT, INDIVIDUAL):
        async with net.context("a", mode) as context, context.create_consumer(NEWS) as consumer:
            await send(context, "x", "y")
            with pytest.raises(MessageFormatException):
                await consumer.receive_body(bytes)
            assert await consumer.receive_body(str) == "y"
            await context.recover()
            assert [(await got(consumer)).get_int_property("JMSXDeliveryCount") for _ in range(2)] == [2, 2]
            await context.acknowledge()


@scene("a")
async def test_row_101_a_message_without_a_body_has_none_to_give(net: testing.Network) -> None:
    async with net.context("a") as context, context.create_consumer(NEWS) as consumer:
        await context.create_producer().send(NEWS, None)
        with pytest.raises(MessageFormatException):
            await consumer.receive_body(str)
        assert type(await got(consumer)) is Message


@pytest.mark.parametrize("mode", [AUTO, DUPS_OK], ids=lambda mode: mode.name)
@scene("a", messaging=AT_ONCE)
async def test_row_102_a_message_with_which_a_listener_fails_comes_six_times_and_is_given_up(
    net: testing.Network, mode: SessionMode
) -> None:
    async with net.context("a", mode, client_id="me") as context:
        counts: list[tuple[str | None, int, bool]] = []
        reported: list[JMSException] = []
        context.set_exception_listener(reported.append)

        def fails(message: Message) -> None:
            count = message.get_int_property("JMSXDeliveryCount")
            counts.append((message.get_body(str), count, message.jms_redelivered))
            if message.get_body(str) == "bad":
                raise RuntimeError(f"try {count}")

        async with context.create_durable_consumer(NEWS, "mail") as mail:
            mail.set_message_listener(fails)
            await send(context, "bad", "good")
            await net.run(5)
        assert counts == [*(("bad", count, count > 1) for count in range(1, 7)), ("good", 1, False)]
        (error,) = reported
        assert isinstance(error, ListenerException)
        assert isinstance(error.message, TextMessage)
        assert error.message.text == "bad"
        assert str(error.__cause__) == "try 6"
        assert context.given_up == 1
        overview = net.host("a").messaging.overview()
        assert overview is not None
        assert overview.claims == 0


@pytest.mark.parametrize("mode", [CLIENT, INDIVIDUAL], ids=lambda mode: mode.name)
@scene("a")
async def test_row_102_where_the_program_acknowledges_the_next_message_comes(
    net: testing.Network, mode: SessionMode
) -> None:
    async with net.context("a", mode) as context:
        counts: list[tuple[str | None, int]] = []

        def fails(message: Message) -> None:
            counts.append((message.get_body(str), message.get_int_property("JMSXDeliveryCount")))
            raise RuntimeError

        (await context.create_consumer(NEWS)).set_message_listener(fails)
        await send(context, "x", "y")
        await net.run(5)
        assert counts == [("x", 1), ("y", 1)]
        await context.recover()
        await net.run(5)
        assert counts[2:] == [("x", 2), ("y", 2)]
        assert context.given_up == 0


@scene("a")
async def test_row_103_every_error_is_a_jms_exception_with_a_code_and_its_cause(net: testing.Network) -> None:
    async with net.context("a") as context:
        with pytest.raises(JMSException) as selector:
            await context.create_consumer(NEWS, "a =")
        assert isinstance(selector.value, carrypost.PatternError)
        with pytest.raises(JMSException) as pattern:
            await context.create_consumer(NEWS, patterns={"a": "("})
        assert type(pattern.value.__cause__) is carrypost.PatternError
        with pytest.raises(JMSException) as body:
            await context.create_producer().send(NEWS, 5)
        assert isinstance(body.value, carrypost.PayloadError)
        with pytest.raises(JMSException) as large:  # The node refuses this one.
            await context.create_producer().send(context.create_topic("x" * 500, ordering="causal"), "x")
        assert isinstance(large.value.__cause__, carrypost.CarrypostError)
        assert not isinstance(large.value.__cause__, JMSException)
        assert (selector.value.error_code, body.value.error_code) == ("selector-syntax", None)
    assert carrypost.IllegalStateRuntimeException is IllegalStateException
