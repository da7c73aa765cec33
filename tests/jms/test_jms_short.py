"""The short calls of a context: text as destination, `send`, `ask`, `responder`, and related ones."""

from __future__ import annotations

import asyncio
import inspect
import re
from collections.abc import Awaitable, Callable, Coroutine
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from tests.support.jms_encoded import EncodedNetwork
from tests.support.jms_scenes import AT_ONCE, SOON_S, got, scene, texts

from carrypost import (
    Context,
    DeliveryMode,
    DeliveryTimeoutException,
    Destination,
    IllegalArgumentException,
    IllegalStateException,
    InvalidDestinationException,
    InvalidSelectorException,
    JMSException,
    ListenerException,
    Message,
    MessageFormatException,
    Producer,
    Queue,
    ResourceAllocationException,
    SendState,
    SessionMode,
    Topic,
    TransactionInProgressException,
    testing,
)
from carrypost.jms.destinations import ChannelTopic, HeldTopic, NamedQueue, as_destination
from carrypost.model import address
from carrypost.model.descriptor import Ordering
from carrypost.model.ids import NodeId
from carrypost.naming import InitialContext

Scene = Callable[[testing.Network], Coroutine[Any, Any, None]]
Play = Callable[..., None]


@pytest.fixture(params=["direct", "encoded"])
def play(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Play:
    """Runs a scene; once more with everything encoded that programs and node say to each other."""
    if request.param == "encoded":
        monkeypatch.setattr(testing, "Network", EncodedNetwork)

    def run(scene: Scene, *names: str, **options: object) -> None:
        async def entered() -> None:
            async with testing.network(*names, seed=1, **options) as net:  # type: ignore[arg-type]  # as they are
                for other in names[1:]:
                    net.link(names[0], other)
                await scene(net)

        testing.run(entered)

    return run


def text_of(message: Message) -> str:
    return message.get_body(str) or ""


def is_topic(name: str) -> bool:
    """Return True for a name that a topic may have in a subscription."""
    try:
        return bool(address.topic_pattern(name))
    except InvalidDestinationException:
        return False


def is_name(name: str) -> bool:
    """Return True for a name that programs may give."""
    try:
        address.check_name(name, "topic")
    except InvalidDestinationException:
        return False
    return True


# --- text as destination -------------------------------------------------------------------------------------


def test_text_is_a_destination_wherever_one_is_taken(play: Play) -> None:
    async def scene(net: testing.Network) -> None:
        async with net.context("a", client_id="me") as here, net.context("b") as there:
            box = await here.declare_queue("box")
            await net.run(SOON_S)
            heard: list[str] = []
            here.listener("topic/heard")(lambda message: heard.append(text_of(message)))
            await here.start()
            every = await here.create_consumer("topic/village.>")
            assert every.destination == Topic("village.>")
            durable = await here.create_durable_consumer("topic/village.roads", "inbox")
            shared = await here.create_shared_consumer("topic/village.roads", "crew")
            producer = there.create_producer().set_jms_reply_to("queue/box@a")
            await producer.send("topic/village.roads", "closed")
            for consumer in (every, durable, shared):
                message = await got(consumer)
                assert text_of(message) == "closed"
                assert message.jms_reply_to == box
                assert message.jms_destination == Topic("village.roads")
            await there.send("topic/heard", "x")
            await producer.send("queue/box", "a mapping of names")
            await producer.send("queue/box@a", "in full")
            await net.run(SOON_S)
            assert heard == ["x"]
            assert [text_of(each) async for each in here.create_browser("queue/box")] == [
                "a mapping of names",
                "in full",
            ]
            async with there.create_consumer("queue/box") as far:
                assert await texts(far) == ["a mapping of names", "in full"]
            request = await there.request("queue/box", "?", time_to_live=60)
            await here.reply(await got(await here.create_consumer("queue/box")), "!")
            assert text_of(await request.reply()) == "!"
            await InitialContext(here).bind("roads", "topic/village.roads")
            assert await InitialContext(here).lookup("roads") == Topic("village.roads")
        async with net.context("a") as here:
            await here.end_queue("queue/box")
            with pytest.raises(InvalidDestinationException, match="no queue 'box'"):
                await here.send("queue/box", "x")

    play(scene, "a", "b")


@scene("a")
async def test_a_message_takes_text_where_it_is_to_be_replied_to(net: testing.Network) -> None:
    async with net.context("a") as ctx:
        message = ctx.create_text_message("x")
        message.jms_reply_to = "topic/answers"
        assert message.jms_reply_to == Topic("answers")
        for wrong in ("answers", "queue/box"):  # A short name says nothing to others.
            with pytest.raises(IllegalArgumentException, match="jms_reply_to"):
                message.jms_reply_to = wrong
        assert message.jms_reply_to == Topic("answers")


names = (st.text(min_size=1, max_size=8) | st.text("ab/@%.*?=", min_size=1, max_size=8)).filter(is_name)
nodes = names.filter(lambda node: ":" not in node).map(NodeId)
plain = names.filter(lambda name: not address.has_wildcard(name))
destinations = (
    st.builds(Topic, names.filter(is_topic), st.sampled_from(Ordering))
    | st.builds(lambda name, node: HeldTopic(address.queue_name(name, node)), plain, nodes)
    | st.builds(lambda name, node: Queue(address.queue_name(name, node)), plain, nodes)
    | plain.filter(is_topic).map(ChannelTopic)
    | plain.filter(lambda name: "@" not in name).map(NamedQueue)
)


@given(destinations)
@example(Topic("what?"))
@example(Topic("x?order=causal"))
@example(Topic("x?order=causal", "delta-causal"))
@example(Topic("x@n"))
@example(HeldTopic("x@n"))
@example(HeldTopic("x@n%40m?"))
def test_a_destination_prints_as_text_that_names_it(destination: Destination) -> None:
    found = as_destination(str(destination))
    assert (type(found), found) == (type(destination), destination)
    assert str(found) == str(destination)
    assert getattr(found, "ordering", None) is getattr(destination, "ordering", None)


def test_the_text_of_every_kind_of_destination_is_taken_wherever_it_is_printed(play: Play) -> None:
    async def scene(net: testing.Network) -> None:
        async with net.context("a", client_id="me") as here, net.context("b") as there:
            box, held = await here.declare_queue("box"), await here.declare_topic("news")
            made = [
                Topic("plain"), Topic("forum", "causal"), Topic("what?"), held, box,
                await here.create_temporary_queue(), await here.create_temporary_topic(),
            ]  # fmt: skip
            printed = [str(each) for each in made]
            assert printed[:5] == [
                "topic/plain", "topic/forum?order=causal", "topic/what??", "holder/news@a", "queue/box@a",
            ]  # fmt: skip
            for destination, text in zip(made, printed, strict=True):
                async with here.create_consumer(text) as inbox:
                    assert (inbox.destination, str(inbox.destination)) == (destination, text)
                    await net.run(SOON_S)
                    await there.send(text, "hello", jms_reply_to=text, label=text)
                    first = await got(inbox)
                    assert (str(first.jms_destination), first.jms_reply_to) == (text, destination)
                    kept = [each.destination for each in net.host("a").holding() if each.label == text]
                    assert kept == [text] or ("@" in text and not kept)  # Commands print this.
                    await there.send(str(first.jms_destination), "again")
                    assert text_of(await got(inbox)) == "again"
            short = there.create_queue("box")
            assert str(short) == "queue/box"
            await there.send(short, "x")
            assert str(short) == "queue/box@a"  # It is known now.

    play(scene, "a", "b")


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("topic/forum?order=casual", "not 'casual'; did you mean causal?"),
        ("topic/forum?order=", "an ordering must be one of 'none', 'causal', 'delta-causal', not ''"),
        ("topic/forum?ordr=causal", "the option 'ordr' of 'topic/forum?ordr=causal' is unknown; did you mean order?"),
        ("topic/what?", "If the question mark belongs to the name, write one more at the end: 'topic/what??'"),
        ("queue/x@n?order=causal", "only a topic without a holder has an order"),
        ("channel/x?order=causal", "only a topic without a holder has an order"),
        ("holder/x@n?order=causal", "only a topic without a holder has an order"),
        ("topic/?order=causal", "a destination as text must be 'topic/NAME'"),
    ],
)
def test_an_unknown_option_of_a_destination_is_refused_with_the_nearest(text: str, error: str) -> None:
    with pytest.raises(InvalidDestinationException, match=re.escape(error)):
        as_destination(text)


TAKERS: dict[str, Callable[[Context, str], object]] = {
    "ask": lambda c, to: c.ask(to, "x", timeout=1),
    "create_browser": lambda c, to: c.create_browser(to),
    "create_consumer": lambda c, to: c.create_consumer(to),
    "create_durable_consumer": lambda c, to: c.create_durable_consumer(to, "x"),
    "create_shared_consumer": lambda c, to: c.create_shared_consumer(to, "x"),
    "create_shared_durable_consumer": lambda c, to: c.create_shared_durable_consumer(to, "x"),
    "end_queue": lambda c, to: c.end_queue(to),
    "listener": lambda c, to: c.listener(to),
    "producer": lambda c, to: c.create_producer().send(to, "x"),
    "request": lambda c, to: c.request(to, "x", time_to_live=1),
    "responder": lambda c, to: c.responder(to),
    "send": lambda c, to: c.send(to, "x"),
    "send with a jms_reply_to": lambda c, to: c.send("topic/x", "x", jms_reply_to=to),
}


@pytest.mark.parametrize("taker", TAKERS)
@scene("a")
async def test_text_that_names_no_destination_is_refused(net: testing.Network, taker: str) -> None:
    async with net.context("a", client_id="me") as ctx:
        for text in ("", "news", "Topic/news", "topic/", "queue/", "/news", "control/a", "topics/news"):
            with pytest.raises(InvalidDestinationException, match="'circle/CIRCLE/NAME', 'queue/NAME' or"):
                await begun(TAKERS[taker](ctx, text))
        with pytest.raises(InvalidDestinationException, match="must be NAME@NODE"):
            await begun(TAKERS[taker](ctx, "queue/@a"))
        with pytest.raises(InvalidDestinationException, match="is not a valid wildcard"):
            await begun(TAKERS[taker](ctx, "topic/sensors/#"))


async def begun(result: object) -> None:
    if isinstance(result, Awaitable):
        await result


# --- send ----------------------------------------------------------------------------------------------------


def test_send_says_all_that_a_producer_says(play: Play) -> None:
    async def scene(net: testing.Network) -> None:
        async with net.context("a") as here, net.context("b") as there:
            mine = await here.declare_queue("mine")
            inbox = await there.create_consumer("topic/news")
            sent = await here.send(
                "topic/news", "hello", properties={"urgency": 5, "place": None}, jms_correlation_id="c",
                jms_reply_to="queue/mine", jms_type="report", priority=7, time_to_live=timedelta(hours=1),
                delivery_delay=30.0, delivery_mode=DeliveryMode.PERSISTENT, request_receipt=True, label="first",
            )  # fmt: skip
            assert sent.state is SendState.STORED
            begun_s = net.now
            message = await got(inbox)
            assert 30 <= net.now - begun_s < 31
            assert text_of(message) == "hello"
            assert message.properties["urgency"] == 5
            assert message.get_object_property("place") is None
            assert (message.jms_correlation_id, message.jms_reply_to) == ("c", mine)
            assert (message.jms_type, message.jms_priority) == ("report", 7)
            assert message.jms_expiration - message.jms_timestamp == 3_600_000
            assert message.jms_delivery_time - message.jms_timestamp == 30_000
            assert message.jms_message_id == sent.message_id
            assert message.descriptor is not None
            assert message.descriptor.label == "first"
            assert await sent.delivered(timeout=SOON_S) is SendState.DELIVERED
            quick = await here.send("topic/news", b"x", delivery_mode=DeliveryMode.NON_PERSISTENT, request_receipt=True)
            assert not quick.is_tracked
            assert (await got(inbox)).jms_delivery_mode is DeliveryMode.NON_PERSISTENT

    play(scene, "a", "b")


def test_an_option_is_called_as_the_setter_of_a_producer() -> None:
    def options(method: Callable[..., object]) -> set[str]:
        return {name for name, each in inspect.signature(method).parameters.items() if each.kind is each.KEYWORD_ONLY}

    setters = {name.removeprefix("set_") for name in dir(Producer) if name.startswith("set_")}
    hints = {"async", "disable_message_id", "disable_message_timestamp"}
    assert {"property" if name == "properties" else name for name in options(Context.send)} == {
        name for name in setters - hints if not name.endswith("_ms")
    }
    assert all(isinstance(getattr(Producer, name), property) for name in options(Context.send))
    assert options(Producer.send) < options(Context.send)


def test_setters_of_a_producer_and_options_of_send_mean_the_same(play: Play) -> None:
    async def scene(net: testing.Network) -> None:
        async with net.context("a") as ctx, net.context("b") as there:
            inbox = await there.create_consumer("topic/news")
            given: dict[str, object] = {
                "jms_correlation_id": "c", "jms_reply_to": "topic/back", "jms_type": "t", "priority": 7,
                "time_to_live": 60, "delivery_delay": 5, "delivery_mode": DeliveryMode.PERSISTENT,
                "request_receipt": True, "label": "x", "recipients": [there.node_id],
            }  # fmt: skip
            producer = ctx.create_producer().set_property("urgency", 5)
            for name, value in given.items():
                assert getattr(producer, f"set_{name}")(value) is producer
                assert getattr(producer, name) in (value, Topic("back"), (there.node_id,))
            await ctx.send("topic/news", "hello", properties={"urgency": 5}, **given)  # type: ignore[arg-type]
            await producer.send("topic/news", "hello")
            first, second = await got(inbox), await got(inbox)
            assert first.properties["urgency"] == second.properties["urgency"] == 5
            assert first.descriptor is not None
            assert second.descriptor is not None
            assert all(
                getattr(first, name) == getattr(second, name)
                for name in ("jms_correlation_id", "jms_reply_to", "jms_type", "jms_priority", "jms_delivery_mode")
            )
            for each in (first, second):
                assert each.jms_expiration - each.jms_timestamp == 60_000
                assert each.jms_delivery_time - each.jms_timestamp == 5_000
                assert each.get_boolean_property("JMS_carrypost_Receipt")
                assert each.descriptor is not None
                assert (each.descriptor.label, each.descriptor.listed) == ("x", (there.node_id,))

    play(scene, "a", "b")


@pytest.mark.parametrize("by", ["option", "setter"])
@scene("a")
async def test_a_delivery_timeout_is_an_option_too(net: testing.Network, by: str) -> None:
    async with net.context("a") as ctx:
        producer = ctx.create_producer().set_request_receipt(request=True)
        if by == "option":
            sent = await ctx.send("topic/x", "x", request_receipt=True, delivery_timeout=10)
        else:
            sent = await producer.set_delivery_timeout(10).send("topic/x", "x")
        with pytest.raises(DeliveryTimeoutException):
            await sent.delivered()
        assert net.now == pytest.approx(10, abs=1)


def test_keywords_win_over_a_message_that_is_sent(play: Play) -> None:
    async def scene(net: testing.Network) -> None:
        async with net.context("a") as ctx:
            inbox = await ctx.create_consumer("topic/news")
            message = ctx.create_text_message("x")
            message.properties["level"], message.properties["mine"] = 1, True
            message.jms_type = "own"
            await ctx.send(Topic("news"), message, properties={"level": 2})
            found = await got(inbox)
            assert (found.properties["level"], found.properties["mine"], found.jms_type) == (2, True, "own")
            assert message.jms_message_id == found.jms_message_id

    play(scene, "a")


def test_send_in_a_transaction_waits_for_the_commit(play: Play) -> None:
    async def scene(net: testing.Network) -> None:
        async with net.context("a") as ctx, net.context("a", SessionMode.SESSION_TRANSACTED) as tx:
            inbox = await ctx.create_consumer("topic/news")
            sent = await tx.send("topic/news", "x")
            assert sent.state is SendState.DRAFTED
            assert await inbox.receive(timeout=1) is None
            await tx.commit()
            assert await texts(inbox) == ["x"]

    play(scene, "a")


Refused = tuple[dict[str, Any], type[JMSException], str]
WRONG: dict[str, Refused] = {
    "properties": ({"properties": [1]}, IllegalArgumentException, "properties must be a mapping of names to values"),
    "name of a property": ({"properties": {"a b": 1}}, IllegalArgumentException, "cannot be the name of a property"),
    "value of a property": ({"properties": {"a": [1]}}, MessageFormatException, "list"),
    "correlation": ({"jms_correlation_id": 5}, IllegalArgumentException, "jms_correlation_id must be a str"),
    "reply_to": ({"jms_reply_to": 5}, IllegalArgumentException, "jms_reply_to must be a Topic or a Queue"),
    "unknown reply_to": ({"jms_reply_to": "queue/nobody"}, InvalidDestinationException, "no queue 'nobody'"),
    "type": ({"jms_type": b"x"}, IllegalArgumentException, "jms_type must be a str"),
    "priority": ({"priority": 10}, IllegalArgumentException, "priority must be 0 to 9"),
    "time to live": ({"time_to_live": -1}, IllegalArgumentException, "time_to_live must be a number of seconds"),
    "delay": ({"delivery_delay": "1"}, IllegalArgumentException, "delivery_delay must be a number of seconds"),
    "delay beyond its life": (
        {"delivery_delay": 5, "time_to_live": 5},
        IllegalArgumentException,
        "would expire before delivery",
    ),
    "timeout": ({"delivery_timeout": -1}, IllegalArgumentException, "delivery_timeout must be a number of seconds"),
    "mode": ({"delivery_mode": 3}, IllegalArgumentException, "delivery_mode must be a DeliveryMode"),
    "receipt": ({"request_receipt": "yes"}, IllegalArgumentException, "request_receipt must be True or False"),
    "label": ({"label": 5}, IllegalArgumentException, "label must be a str"),
    "long label": ({"label": "é" * 129}, IllegalArgumentException, "a label has at most 256 bytes"),
}


@pytest.mark.parametrize("what", WRONG)
@scene("a")
async def test_what_send_is_told_wrongly_is_refused(net: testing.Network, what: str) -> None:
    given, kind, text = WRONG[what]
    async with net.context("a") as ctx:
        inbox = await ctx.create_consumer("topic/news")
        with pytest.raises(kind, match=text):
            await ctx.send("topic/news", "x", **given)
        assert await inbox.receive(timeout=1) is None


@scene("a")
async def test_send_to_many_or_to_nothing_is_refused(net: testing.Network) -> None:
    async with net.context("a") as ctx:
        with pytest.raises(InvalidDestinationException, match="contains wildcards"):
            await ctx.send("topic/a.*", "x")
        with pytest.raises(InvalidDestinationException, match="or text such as"):
            await ctx.send(5, "x")  # type: ignore[arg-type]
        with pytest.raises(MessageFormatException, match=r"a body must be .*, not int"):
            await ctx.send("topic/a", 5)
        with pytest.raises(TypeError, match="'colour'"):
            await ctx.send("topic/a", "x", colour="red")  # type: ignore[call-arg]


# --- receive_body and prefetch -------------------------------------------------------------------------------


def test_receive_body_has_a_default(play: Play) -> None:
    async def scene(net: testing.Network) -> None:
        async with net.context("a") as ctx:
            inbox = await ctx.create_consumer("topic/news")
            assert await inbox.receive_body(str, timeout=1) is None
            assert await inbox.receive_body(str, 1, default="nothing") == "nothing"
            await ctx.send("topic/news", "something")
            assert await inbox.receive_body(str, timeout=1, default="nothing") == "something"
            await ctx.send("topic/news", {"a": 1})
            with pytest.raises(MessageFormatException, match="is not a str"):
                await inbox.receive_body(str, timeout=1, default="nothing")
            assert await inbox.receive_body(dict, timeout=1, default={}) == {"a": 1}

    play(scene, "a")


@pytest.mark.parametrize(("prefetch", "taken"), [(None, 10), (25, 25), (0, 0)])
@scene("hub", "b", "c")
async def test_a_device_takes_few_messages_of_another_ones_queue_along(
    net: testing.Network, prefetch: int | None, taken: int
) -> None:
    async with net.context("hub") as hub, net.context("b") as away, net.context("c") as other:
        await hub.declare_queue("jobs")
        for number in range(30):
            await hub.send("queue/jobs", str(number))
        await away.create_consumer("queue/jobs@hub", prefetch=prefetch)
        await net.run(SOON_S)
        net.unlink("hub", "b")
        net.unlink("b", "c")
        assert len(await texts(await other.create_consumer("queue/jobs@hub"))) == 30 - taken


@scene("hub", "b", messaging={"prefetch_remote": 3})
async def test_prefetch_remote_is_a_setting_and_is_not_for_own_queues(net: testing.Network) -> None:
    async with net.context("hub") as hub, net.context("b") as away:
        await hub.declare_queue("jobs")
        await away.create_consumer("queue/jobs@hub")
        await net.run(SOON_S)
        for number in range(50):
            await hub.send("queue/jobs", str(number))
        await net.run(SOON_S)
        async with hub.create_context() as near:
            await near.create_consumer("queue/jobs")
            assert [each async for each in hub.create_browser("queue/jobs")] == []


# --- ask and responder ---------------------------------------------------------------------------------------


def test_ask_gets_what_a_responder_returns(play: Play) -> None:
    async def scene(net: testing.Network) -> None:
        async with net.context("a") as here, net.context("b") as there:
            await there.declare_queue("sums")
            await net.run(SOON_S)

            @there.responder("queue/sums", "kind = 'sum'")
            async def total(request: Message) -> dict[str, int]:
                await asyncio.sleep(1)
                return {"total": sum((request.get_body(dict) or {}).values())}

            there.responder("queue/sums", "kind = 'text'")(lambda request: f"not {text_of(request)}")
            await there.start()
            asks = [
                here.ask("queue/sums", {"a": n, "b": 1}, timeout=SOON_S, properties={"kind": "sum"}) for n in (1, 2)
            ]
            replies = await asyncio.gather(
                *asks, here.ask("queue/sums@b", "x", timeout=60, properties={"kind": "text"})
            )
            assert [each.get_body(dict) for each in replies[:2]] == [{"total": 2}, {"total": 3}]
            assert text_of(replies[2]) == "not x"
            assert [each async for each in there.create_browser("queue/sums")] == []

    play(scene, "a", "b")


def test_ask_gives_up_when_its_time_is_over(play: Play) -> None:
    async def scene(net: testing.Network) -> None:
        async with net.context("a") as ctx, ctx.create_context() as other:
            seen: list[Message] = []
            await ctx.declare_queue("box")
            ctx.responder("queue/box")(seen.append)  # It returns None, which is no reply.
            await ctx.start()
            begun_s = net.now
            with pytest.raises(DeliveryTimeoutException, match="arrived in time"):
                await ctx.ask("queue/box", "x", timeout=20)
            assert net.now - begun_s == pytest.approx(20, abs=0.1)
            waiting = asyncio.create_task(ctx.ask("queue/box", "y", timeout=20))
            await net.run(1)
            waiting.cancel()
            with pytest.raises(asyncio.CancelledError):
                await waiting
            assert [text_of(each) for each in seen] == ["x", "y"]
            for each in seen:
                with pytest.raises(IllegalStateException, match=r"no request .* is open here"):
                    await ctx.open_request(str(each.jms_correlation_id))
            late = await other.reply(seen[1], "too late")
            with pytest.raises(JMSException):  # Nobody waits for it any more.
                await late.delivered(timeout=SOON_S)
            with pytest.raises(IllegalStateException, match="the request has expired"):
                await other.reply(seen[0], "too late")

    play(scene, "a")


@scene("a")
async def test_ask_refuses_what_request_refuses(net: testing.Network) -> None:
    async with net.context("a") as ctx, net.context("a", SessionMode.SESSION_TRANSACTED) as tx:
        for timeout in (0, timedelta(0)):
            with pytest.raises(IllegalArgumentException, match="a request requires timeout greater than 0"):
                await ctx.ask("topic/x", "x", timeout=timeout)
        with pytest.raises(IllegalArgumentException, match="timeout must be a number of seconds"):
            await ctx.ask("topic/x", "x", timeout=None)  # type: ignore[arg-type]
        with pytest.raises(TypeError, match="timeout"):
            await ctx.ask("topic/x", "x")  # type: ignore[call-arg]
        with pytest.raises(IllegalArgumentException, match="properties must be a mapping of names to values"):
            await ctx.ask("topic/x", "x", timeout=1, properties=5)  # type: ignore[arg-type]
        with pytest.raises(TransactionInProgressException, match="in a context of another mode"):
            await tx.ask("topic/x", "x", timeout=1)
        with pytest.raises(InvalidSelectorException):
            ctx.responder("topic/x", "((( bad")
        with pytest.raises(IllegalArgumentException, match="must be applied to a function, not to 5"):
            ctx.responder("topic/x")(5)  # type: ignore[type-var]


@scene("a")
async def test_a_listener_may_ask(net: testing.Network) -> None:
    async with net.context("a") as ctx:
        await ctx.declare_queue("box")
        ctx.responder("queue/box")(lambda request: text_of(request).upper())
        answers: list[str] = []

        @ctx.listener("topic/news")
        async def on_news(message: Message) -> None:
            answers.append(text_of(await ctx.ask("queue/box", text_of(message), timeout=10)))

        await ctx.start()
        await ctx.send("topic/news", "x")
        await net.run(5)
        assert answers == ["X"]


def test_a_responder_that_fails_gets_the_request_again(play: Play) -> None:
    async def scene(net: testing.Network) -> None:
        async with net.context("a") as ctx:
            await ctx.declare_queue("box")
            counts: list[int] = []

            @ctx.responder("queue/box")
            def answer(request: Message) -> object:
                counts.append(request.get_int_property("JMSXDeliveryCount"))
                if len(counts) == 1:
                    raise ValueError("not yet")
                return 5 if len(counts) == 2 else "done"  # A number is no body.

            await ctx.start()
            assert text_of(await ctx.ask("queue/box", "x", timeout=SOON_S)) == "done"
            assert counts == [1, 2, 3]
            assert [each async for each in ctx.create_browser("queue/box")] == []

    play(scene, "a")


def test_a_request_that_a_responder_fails_with_too_often_is_a_dead_letter(play: Play) -> None:
    async def scene(net: testing.Network) -> None:
        async with net.context("a") as ctx:
            told: list[JMSException] = []
            ctx.set_exception_listener(told.append)
            await ctx.declare_queue("box")

            @ctx.responder("queue/box")
            def answer(_: Message) -> str:
                raise ValueError("never")

            await ctx.start()
            with pytest.raises(DeliveryTimeoutException, match="FAILED"):
                await ctx.ask("queue/box", "x", timeout=SOON_S)
            assert ctx.given_up == 1
            assert [type(each) for each in told] == [ListenerException]

    play(scene, "a", messaging=AT_ONCE)


def test_a_reply_that_does_not_fit_stops_its_own_request_alone(play: Play) -> None:
    async def scene(net: testing.Network) -> None:
        async with net.context("a") as here, net.context("b") as there:
            await there.declare_queue("box")
            there.responder("queue/box")(lambda request: b"x" * int(text_of(request)))
            await there.start()
            large = await here.request("queue/box@b", "90000", time_to_live=3600)
            small = await here.ask("queue/box@b", "10", timeout=SOON_S)
            assert small.get_body(bytes) == b"x" * 10
            with pytest.raises(DeliveryTimeoutException, match="FAILED"):
                await large.reply(timeout=SOON_S)
            assert there.given_up == 1

    play(scene, "a", "b", messaging=AT_ONCE, cache_bytes_max=80_000)


def test_a_responder_consumes_what_nobody_waits_for(play: Play) -> None:
    async def scene(net: testing.Network) -> None:
        async with net.context("a") as ctx:
            await ctx.declare_queue("box")
            seen: list[str] = []

            @ctx.responder("queue/box")
            async def answer(request: Message) -> str:
                seen.append(text_of(request))
                await asyncio.sleep(5)
                return "answer"

            await ctx.start()
            await ctx.send("queue/box", "no place for a reply")
            await ctx.request("queue/box", "too short", time_to_live=8)  # Its time ends while it is being answered.
            await net.run(SOON_S)
            assert seen == ["no place for a reply", "too short"]
            assert [each async for each in ctx.create_browser("queue/box")] == []
            assert ctx.given_up == 0

    play(scene, "a")


def test_reply_and_acknowledgement_are_one_commit(play: Play) -> None:
    async def scene(net: testing.Network) -> None:
        async with net.context("a") as here, net.context("b") as there:
            await there.declare_queue("box")
            counts: list[int] = []

            @there.responder("queue/box")
            def answer(request: Message) -> str:
                counts.append(request.get_int_property("JMSXDeliveryCount"))
                if len(counts) == 1:
                    net.fill_disk("b")
                return f"answer {len(counts)}"

            await there.start()
            request = await here.request("queue/box@b", "x", time_to_live=3600)
            await net.run(2)
            net.fill_disk("b", full=False)
            assert text_of(await request.reply(timeout=600)) == f"answer {len(counts)}"
            assert len(counts) > 1

    play(scene, "a", "b")


@pytest.mark.parametrize("killed_after_s", [0.0, 0.0005, 0.3, 0.999, 1.0, 1.0001, 1.001, 1.01, 1.05, 2.0])
def test_a_responder_that_is_killed_gives_exactly_one_reply(play: Play, killed_after_s: float) -> None:
    """Killed while it answers, while that is committed, and after that."""

    async def scene(net: testing.Network) -> None:
        lives: list[int] = []

        async def respond(context: Context) -> asyncio.Event:
            begun = asyncio.Event()

            @context.responder("queue/box")
            async def answer(_: Message) -> str:
                lives.append(len(lives))
                begun.set()
                await asyncio.sleep(1)
                return f"reply {len(lives)}"

            await context.start()
            return begun

        async with net.context("a") as here:
            replies = await here.create_temporary_queue()
            inbox = await here.create_consumer(replies)
            first = await net.context("b")
            await first.declare_queue("box")
            begun = await respond(first)
            await here.send("queue/box@b", "x", jms_reply_to=replies, jms_correlation_id="c")
            await begun.wait()
            await net.run(killed_after_s)
            net.kill("b")
            await net.run(10)
            net.restart("b")
            async with net.context("b") as second:
                await respond(second)
                found = await texts(inbox)
                assert len(found) == 1
                assert len(lives) in (1, 2)
                assert [each async for each in second.create_browser("queue/box")] == []

    play(scene, "a", "b")


@scene("a")
async def test_a_context_that_closes_lets_its_responder_finish(net: testing.Network) -> None:
    async with net.context("a") as asking, net.context("a") as ctx:
        await ctx.declare_queue("box")
        begun = asyncio.Event()

        @ctx.responder("queue/box")
        async def answer(_: Message) -> str:
            with pytest.raises(IllegalStateException, match="it would wait for itself"):
                await ctx.close()
            begun.set()
            await asyncio.sleep(5)
            return "done"

        await ctx.start()
        waiting = asyncio.create_task(asking.ask("queue/box", "x", timeout=SOON_S))
        await begun.wait()
        await ctx.close()
        assert text_of(await waiting) == "done"
        assert isinstance(await asking.declare_queue("box"), Queue)


@scene("a")
async def test_a_full_disk_tells_who_asks(net: testing.Network) -> None:
    async with net.context("a") as ctx:
        await ctx.declare_queue("box")
        net.fill_disk("a")
        with pytest.raises(ResourceAllocationException, match="the disk is full"):
            await ctx.ask("queue/box", "x", timeout=5)
