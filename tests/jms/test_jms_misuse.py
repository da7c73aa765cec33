"""Misuse by programs: each raises its own exception, whose text says what to do."""

from __future__ import annotations

import asyncio
import gc
import warnings
from collections.abc import Awaitable, Callable, Coroutine
from datetime import timedelta
from typing import Any

import pytest
from tests.support.jms_scenes import NEWS, got, scene

import carrypost
from carrypost import (
    Context,
    IllegalArgumentException,
    IllegalStateException,
    InvalidClientIDException,
    InvalidDestinationException,
    InvalidSelectorException,
    JMSException,
    MessageFormatException,
    MessageNotWriteableException,
    Queue,
    SessionMode,
    StateError,
    TextMessage,
    Topic,
    testing,
)
from carrypost.java_names import is_java_name

CLIENT = SessionMode.CLIENT_ACKNOWLEDGE
Wrong: Any = object()
"""Value that no call accepts."""


class Unknown:
    """A class that is not registered."""


async def listening(context: Context) -> None:
    """The context has a listener."""
    (await context.create_consumer(NEWS)).set_message_listener(lambda _: None)


async def after(first: Awaitable[object], then: Callable[[], Awaitable[object]]) -> None:
    await first
    await then()


async def two_receives(context: Context) -> None:
    consumer = await context.create_consumer(NEWS)
    waiting = asyncio.create_task(consumer.receive())
    await asyncio.sleep(0)
    try:
        await consumer.receive()
    finally:
        waiting.cancel()


async def listener_beside_receive(context: Context) -> None:
    consumer = await context.create_consumer(NEWS)
    waiting = asyncio.create_task(consumer.receive())
    await asyncio.sleep(0)
    try:
        consumer.set_message_listener(lambda _: None)
    finally:
        waiting.cancel()


async def closed_consumer(context: Context) -> None:
    consumer = await context.create_consumer(NEWS)
    await consumer.close()
    await consumer.receive()


async def listener_of_a_closed_consumer(context: Context) -> None:
    consumer = await context.create_consumer(NEWS)
    await consumer.close()
    consumer.set_message_listener(lambda _: None)


async def late_client_id(context: Context) -> None:
    await context.create_consumer(NEWS)
    await context.set_client_id("late")


async def two_durable_consumers(context: Context) -> None:
    await context.set_client_id("me")
    await context.create_durable_consumer(NEWS, "mail")
    await context.create_durable_consumer(NEWS, "mail")


async def unsubscribe_active(context: Context) -> None:
    await context.set_client_id("me")
    await context.create_durable_consumer(NEWS, "mail")
    await context.unsubscribe("mail")


async def receive(context: Context, **how: object) -> None:
    await (await context.create_consumer(NEWS)).receive(**how)  # type: ignore[arg-type]  # it is refused


async def receive_body(context: Context, kind: object) -> None:
    consumer = await context.create_consumer(NEWS)
    await context.create_producer().send(NEWS, "x")
    await consumer.receive_body(kind)  # type: ignore[call-overload]  # it is refused


async def listen_by(context: Context, listener: object) -> None:
    (await context.create_consumer(NEWS)).set_message_listener(listener)  # type: ignore[arg-type]  # it is refused


async def process(context: Context) -> None:
    consumer = await context.create_consumer(NEWS)
    await context.create_producer().send(NEWS, "x")
    async with (await got(consumer)).processing():
        pass


async def iterate_unopened(context: Context) -> None:
    async for _ in context.create_consumer(NEWS):
        pass


async def opened(context: Context) -> None:
    async with context:
        pass


async def made(make: Callable[[], object]) -> None:
    make()


async def change_received(context: Context) -> None:
    consumer = await context.create_consumer(NEWS)
    await context.create_producer().send(NEWS, "x")
    message = await got(consumer)
    assert isinstance(message, TextMessage)
    message.text = "y"


async def browsed(context: Context, queue: Queue | str) -> None:
    async for _ in context.create_browser(queue):
        pass


ELSEWHERE = Queue("box@b")
State, Argument, Format = IllegalStateException, IllegalArgumentException, MessageFormatException
Row = tuple[Callable[[Context], Awaitable[object]], type[JMSException], str]

MISUSES: dict[str, Row] = {
    # Contexts and consumers in a wrong state.
    "opened twice": (opened, State, "is open already"),
    "two receives": (two_receives, State, "another task receives from this consumer: create one consumer per task"),
    "receive beside a listener": (
        lambda c: after(listening(c), lambda: receive(c)), State, "receive in another context"),
    "listener beside receive": (listener_beside_receive, State, "create another context for listeners"),
    "closed consumer": (closed_consumer, State, "this consumer is closed: create another"),
    "listener of a closed consumer": (listener_of_a_closed_consumer, State, "this consumer is closed: create another"),
    "consumer not awaited": (
        lambda c: c.create_consumer(NEWS).receive(), State,  # type: ignore[operator]  # it is refused
        r"create_consumer must be awaited first: `consumer = await ctx.create_consumer\(…\)`"),
    "iteration of a consumer not awaited": (iterate_unopened, State, "create_consumer must be awaited first"),
    "processing in another mode": (process, State, 'create it with acknowledge="individual", or'),
    "change of a received message": (change_received, MessageNotWriteableException, r"clear_body\(\) first"),
    # Client ids and subscriptions.
    "late client id": (late_client_id, State, "set it first, or give it to the connection factory"),
    "durable without client id": (
        lambda c: c.create_durable_consumer(NEWS, "mail"), State, "give one to the connection factory, or share"),
    "two consumers of a durable subscription": (two_durable_consumers, JMSException, "has a consumer: close it first"),
    "unsubscribe in use": (unsubscribe_active, State, "close it before you unsubscribe"),
    "unsubscribe unknown": (
        lambda c: c.unsubscribe("mail"), InvalidDestinationException, "there is no durable subscription 'mail' here"),
    "name of a subscription": (
        lambda c: c.create_shared_consumer(NEWS, "a b"), JMSException, "1 to 128 letters, digits or characters of"),
    "no name": (lambda c: made(lambda: c.create_shared_consumer(NEWS, "")), Argument, "must be text that is not empty"),
    "None for a name": (
        lambda c: made(lambda: c.create_durable_consumer(NEWS, None)), Argument,  # type: ignore[arg-type]  # refused
        "must be text that is not empty, not None"),
    "client id that is none": (lambda c: c.set_client_id(""), Argument, "a client id must be text that is not empty"),
    # What consumers are asked for.
    "selector": (lambda c: c.create_consumer(NEWS, "a ="), InvalidSelectorException, "expected an identifier"),
    "selector that is no text": (lambda c: c.create_consumer(NEWS, Wrong), Argument, "a selector must be a str"),
    "consumer of nothing": (lambda c: c.create_consumer(Wrong), InvalidDestinationException, "must be a topic"),
    "consumer of a queue that is not there": (
        lambda c: c.create_consumer(Queue("Alan@a")), InvalidDestinationException, "'Alan@a': declare it first"),
    "durable consumer of a queue": (
        lambda c: c.create_durable_consumer(ELSEWHERE, "mail"), InvalidDestinationException, "use create_consumer"),
    "shared consumer of a queue": (
        lambda c: c.create_shared_consumer(ELSEWHERE, "crew"), InvalidDestinationException, "use create_consumer"),
    "no_local of a queue": (
        lambda c: c.create_consumer(ELSEWHERE, no_local=True), Argument, "no_local requires a topic"),
    "patterns of a queue": (
        lambda c: c.create_consumer(ELSEWHERE, patterns={"a": "b"}), Argument, "use a selector"),
    "selector of a queue": (lambda c: c.create_consumer(ELSEWHERE, "a ="), InvalidSelectorException, "an identifier"),
    "selector of a queue that is no text": (
        lambda c: c.create_consumer(ELSEWHERE, Wrong), Argument, "a selector must be a str"),
    "prefetch of a queue": (
        lambda c: made(lambda: c.create_consumer(ELSEWHERE, prefetch=-1)), Argument, "0 or more, not -1"),
    "consumer of an unknown name": (
        lambda c: c.create_consumer(c.create_queue("Alan")), InvalidDestinationException, "there is no queue 'Alan'"),
    "browser of a topic": (
        lambda c: made(lambda: c.create_browser(NEWS)), InvalidDestinationException, "a browser requires a queue"),  # type: ignore[arg-type]
    "selector of a browser": (
        lambda c: made(lambda: c.create_browser(ELSEWHERE, "a =")), InvalidSelectorException, "an identifier"),
    "browser of a queue that is not there": (
        lambda c: browsed(c, Queue("Alan@a")), InvalidDestinationException, "'Alan@a': declare it first"),
    # Queues, requests and replies.
    "queue without a name": (lambda c: made(lambda: c.create_queue("")), Argument, "must be text that is not empty"),
    "name of a queue": (lambda c: made(lambda: c.create_queue("@x")), InvalidDestinationException, "must be NAME@NODE"),
    "declaring without a name": (lambda c: c.declare_queue(Wrong), Argument, "must be text that is not empty"),
    "declaring a queue of another node": (
        lambda c: c.declare_queue("Alan@b"), InvalidDestinationException, "this node is added to it: declare 'Alan'"),
    "declaring a reserved name": (
        lambda c: c.declare_queue("$replies"), InvalidDestinationException, "are reserved"),
    "declaring a queue of dead letters": (
        lambda c: c.declare_queue("DLQ.x"), InvalidDestinationException, "are reserved"),
    "declaring a long name": (
        lambda c: c.declare_queue("x" * 300), InvalidDestinationException, "at most 244 characters here, not 300"),
    "ending no queue": (lambda c: c.end_queue(Wrong), InvalidDestinationException, "requires a queue"),
    "ending another node's queue": (
        lambda c: c.end_queue(Queue("box@b")), InvalidDestinationException, "use it on the node b"),
    "redelivery": (lambda c: c.declare_queue("x", redelivery="soon"), Argument, '"never" or "after_lease"'),
    "lease of what never comes again": (
        lambda c: c.declare_queue("x", lease_s=60), Argument, 'lease_s requires redelivery="after_lease"'),
    "lease that is none": (
        lambda c: c.declare_queue("x", redelivery="after_lease", lease_s=0), Argument, "must be greater than 0"),
    "lease that is no number": (
        lambda c: c.declare_queue("x", redelivery="after_lease", lease_s=Wrong), Argument, "must be a number of"),
    "policy": (lambda c: c.declare_queue("x", policy="mine"), JMSException, "no policy 'mine'; there are .*fair"),
    "policy that is no text": (lambda c: c.declare_queue("x", policy=Wrong), Argument, "a policy must be text"),
    "receivers that are no list": (
        lambda c: c.declare_queue("x", receivers="b"), Argument, 'receivers must be "anyone" or a list of node ids'),
    "receivers that are no nodes": (
        lambda c: c.declare_queue("x", receivers=["b", ""]), Argument, "receivers must be node ids, not ''"),
    "receivers of no kind": (
        lambda c: c.declare_queue("x", receivers=Wrong), Argument, 'receivers must be "anyone" or a list'),
    "too many receivers": (
        lambda c: c.declare_queue("x", receivers=list(map(str, range(65)))), Argument, "at most 64 receivers, not 65"),
    "placement that is no function": (
        lambda c: c.declare_queue("x", placement=Wrong), Argument, "placement must be a function of receive counts"),
    "placement at no node": (
        lambda c: c.declare_queue("x", placement=lambda _, __: Wrong), Argument, "must return the id of a node, not"),
    "placement in no time": (
        lambda c: c.declare_queue("x", placement=lambda _, here: here, timeout=0), Argument, "greater than 0"),
    "timeout that is none": (
        lambda c: c.declare_queue("x", placement=lambda _, here: here, timeout=Wrong), Argument, "timeout must be a n"),
    "timeout without a placement": (
        lambda c: c.declare_queue("x", timeout=1), Argument, "timeout requires placement"),
    "declared otherwise before": (
        lambda c: after(c.declare_queue("x", redelivery="after_lease"), lambda: c.declare_queue("x")), JMSException,
        "exists with other options"),
    "request to nothing": (
        lambda c: c.request(Wrong, "x", time_to_live=1), InvalidDestinationException, "must be a topic"),
    "request without end": (lambda c: c.request(NEWS, "x", time_to_live=0), Argument, "greater than 0"),
    "correlation of a request": (
        lambda c: c.request(NEWS, "x", time_to_live=1, correlation_id=b"x"), Argument, "correlation_id must be a str"),  # type: ignore[arg-type]
    "empty correlation of a request": (
        lambda c: c.request(NEWS, "x", time_to_live=1, correlation_id=""), Argument, "must be text that is not empty"),
    "body of a request": (lambda c: c.request(NEWS, 5, time_to_live=1), Format, r"a body must be .*, not int"),
    "request that is not open": (lambda c: c.open_request("x"), State, "no request 'x' is open here"),
    "reply to a text": (lambda c: c.reply("x", "y"), Argument, "requires a received message"),  # type: ignore[arg-type]
    "reply to what wants none": (
        lambda c: c.reply(TextMessage("x"), "y"), InvalidDestinationException, "the message has no jms_reply_to"),
    "consumer of a text": (
        lambda c: made(lambda: c.create_consumer("news")), InvalidDestinationException, "as text must be 'topic/NAME'"),
    "prefetch of none": (lambda c: made(lambda: c.create_consumer(NEWS, prefetch=0)), Argument, "1 or more, not 0"),
    "prefetch that is no number": (
        lambda c: made(lambda: c.create_consumer(NEWS, prefetch="many")), Argument, "1 or more"),  # type: ignore[arg-type]
    "pattern": (
        lambda c: c.create_consumer(NEWS, patterns={"a": "("}), InvalidSelectorException, "pattern .* is not valid"),
    "pattern of the destination": (
        lambda c: c.create_consumer(NEWS, patterns={"destination": "x"}), Argument, "must not name the destination"),
    "negative timeout": (lambda c: receive(c, timeout=-1), Argument, "must be a number of seconds, or a timedelta"),
    "endless timeout": (lambda c: receive(c, timeout=float("inf")), Argument, "a timeout must be a number of seconds"),
    "timeout that is no number": (lambda c: receive(c, timeout="1"), Argument, "a timeout must be a number of seconds"),
    "body of no type": (lambda c: receive_body(c, "str"), Argument, "a class, such as str, bytes or dict"),
    "listener": (lambda c: listen_by(c, 5), Argument, "a listener must be a function or have on_message"),
    "exception listener": (
        lambda c: made(lambda: c.set_exception_listener(Wrong)), Argument, "must be a function or have on_exception"),
    # What is sent, and how.
    "wildcard": (
        lambda c: c.create_producer().send(Topic("a.*"), "x"), InvalidDestinationException, "contains wildcards"),
    "wildcard of others": (
        lambda c: made(lambda: c.create_topic("sensors/#")), InvalidDestinationException, r"as in 'sensors\.>'"),
    "wildcard of others, consumed": (
        lambda c: c.create_consumer(Topic("sensors/+/t")), InvalidDestinationException, r"as in 'sensors\.\*\.t'"),
    "wildcard of others, sent to": (
        lambda c: c.create_producer().send(Topic("a.+"), "x"), InvalidDestinationException, "is not a valid wildcard"),
    "to a queue that is not there": (
        lambda c: c.create_producer().send(Queue("A@a"), "x"), InvalidDestinationException, "'A@a': declare it first"),
    "to an unknown name": (
        lambda c: c.create_producer().send(c.create_queue("A"), "x"), InvalidDestinationException,
        r"no queue 'A'.* `await ctx\.declare_queue\('A'\)`.*lookup\('A', timeout=SECONDS\)`.* NAME@NODE"),
    "listener's selector": (
        lambda c: made(lambda: c.listener(NEWS, "((( bad")), InvalidSelectorException, "bad"),
    "listener's destination": (
        lambda c: made(lambda: c.listener(Wrong)), InvalidDestinationException, "must be a topic"),
    "to nothing": (lambda c: c.create_producer().send(Wrong, "x"), InvalidDestinationException, "must be a topic"),
    "topic with a space": (
        lambda c: c.send("topic/village roads", "x"), InvalidDestinationException, r"Did you mean 'village\.roads'\?"),
    "topic with an empty level": (
        lambda c: made(lambda: c.create_topic("village.")), InvalidDestinationException, "none may be empty"),
    "subscription with an empty level": (
        lambda c: c.create_consumer("topic/village..>"), InvalidDestinationException, r"Did you mean 'village\.>'\?"),
    "held topic with a space": (
        lambda c: c.declare_topic("village roads"), InvalidDestinationException, "of a topic: it must not contain"),
    "held topic with a wildcard": (
        lambda c: c.create_consumer("holder/a.>@b"), InvalidDestinationException, "must be named without wildcards"),
    "channel with a space": (
        lambda c: c.send("channel/village roads", "x"), InvalidDestinationException, "of a channel: it must not"),
    "queue with a space": (
        lambda c: c.declare_queue("my jobs"), InvalidDestinationException, r"Did you mean 'my\.jobs'\?"),
    "queue with an empty level": (
        lambda c: c.send("queue/jobs.@b", "x"), InvalidDestinationException, "'jobs.' cannot be the name of a queue"),
    "queue with a wildcard": (
        lambda c: c.create_consumer("queue/jobs.*"), InvalidDestinationException, "a queue must be named without wild"),
    "queue with a control character, browsed": (
        lambda c: browsed(c, "queue/jo\0bs"), InvalidDestinationException, "spaces or control characters"),
    "reply to a topic with a space": (
        lambda c: c.send(NEWS, "x", jms_reply_to="topic/my answers"), InvalidDestinationException,
        "spaces or control characters"),
    "name of a topic": (lambda c: made(lambda: c.create_topic("")), InvalidDestinationException, "that is not empty"),
    "ordering": (lambda c: made(lambda: c.create_topic("a", ordering="strict")), Argument, "one of 'none', 'causal'"),
    "body that is a set": (lambda c: c.create_producer().send(NEWS, {1}), Format, r"not set: send .* \[value\]"),
    "body that is a number": (lambda c: c.create_producer().send(NEWS, 5), Format, r"not int: send str\(value\)"),
    "unregistered object": (lambda c: c.create_producer().send(NEWS, Unknown()), Format, r"carrypost\.register"),
    "value of a map": (
        lambda c: c.create_producer().send(NEWS, {"a": [1, Wrong]}), Format, r"body\['a'\]\[1\]: JSON has no object"),
    "value of a map message": (
        lambda c: made(lambda: c.create_map_message({"a": [1]})), Format, "'a' of a MapMessage must .* as JSON"),
    "key of a nested map": (
        lambda c: c.create_producer().send(NEWS, {"a": {1: 2}}), Format, r"\['a'\]: keys must be str in JSON, not int"),
    "value that JSON has not": (
        lambda c: c.create_producer().send(NEWS, [[float("nan")]]), Format, r"body\[0\]\[0\]: JSON has no number nan"),
    "name of a map": (lambda c: c.create_producer().send(NEWS, {1: 2}), Argument, "the name of a value must be text"),
    "body beyond the limit": (
        lambda c: c.create_producer().send(NEWS, "x" * 1001), Format, "the 1000 of limits.message_bytes_max"),
    "priority": (lambda c: made(lambda: c.create_producer().set_priority(10)), Argument, "0 to 9"),
    "priority of a send": (lambda c: c.create_producer().send(NEWS, "x", priority=-1), Argument, "0 to 9"),
    "delivery mode": (
        lambda c: made(lambda: c.create_producer().set_delivery_mode(3)), Argument, "DeliveryMode"),  # type: ignore[arg-type]
    "delivery mode of a send": (
        lambda c: c.create_producer().send(NEWS, "x", delivery_mode="fast"), Argument, "DeliveryMode"),  # type: ignore[arg-type]
    "time to live": (
        lambda c: made(lambda: c.create_producer().set_time_to_live(-1)), Argument, "live must be a number of seconds"),
    "time to live that is none": (
        lambda c: made(lambda: c.create_producer().set_time_to_live(float("nan"))), Argument, "a number of seconds"),
    "time to live of a send": (
        lambda c: c.create_producer().send(NEWS, "x", time_to_live="1"), Argument, "a number of seconds"),  # type: ignore[arg-type]
    "time to live in milliseconds": (
        lambda c: made(lambda: c.create_producer().set_time_to_live_ms("1")), Argument, "a number of milliseconds"),  # type: ignore[arg-type]
    "time to live beyond all bounds": (
        lambda c: c.create_producer().set_time_to_live(1e300).send(NEWS, "x"), Argument, "time to live"),
    "days beyond all bounds": (
        lambda c: made(lambda: c.create_producer().set_time_to_live(days=1e300)), Argument, "days|time to live"),
    "time to live of a send beyond all bounds": (
        lambda c: c.create_producer().send(NEWS, "x", time_to_live=1e300), Argument, "time_to_live"),
    "delivery delay": (
        lambda c: made(lambda: c.create_producer().set_delivery_delay(timedelta(-1))), Argument, "the delivery delay"),
    "delivery delay in milliseconds": (
        lambda c: made(lambda: c.create_producer().set_delivery_delay_ms(None)), Argument, "a number of milliseconds"),  # type: ignore[arg-type]
    "delivery delay beyond all bounds": (
        lambda c: c.create_producer().set_delivery_delay(1e300).send(NEWS, "x"), Argument, "delivery delay"),
    "name of a property": (
        lambda c: made(lambda: c.create_producer().set_property("a b", 1)), Argument, "the name of a property"),
    "value of a property": (
        lambda c: made(lambda: c.create_producer().set_property("a", [1])), Format, "'a'|property|list"),  # type: ignore[arg-type]
    "correlation": (
        lambda c: made(lambda: c.create_producer().set_jms_correlation_id(5)), Argument, "must be a str"),  # type: ignore[arg-type]
    "place for replies": (
        lambda c: made(lambda: c.create_producer().set_jms_reply_to("x")), Argument, "jms_reply_to"),
    "completion listener": (
        lambda c: made(lambda: c.create_producer().set_async(Wrong)), Argument, "must have on_completion"),
    "negative time to drain": (lambda c: c.drain(timeout=-1), Argument, "a timeout must be a number of seconds"),
}  # fmt: skip


@pytest.mark.parametrize("what", MISUSES)
@scene("a", limits={"message_bytes_max": 1000})
async def test_misuse_is_told_by_an_exception_that_says_what_to_do(net: testing.Network, what: str) -> None:
    call, kind, text = MISUSES[what]
    async with net.context("a") as context:
        with pytest.raises(kind, match=text) as refused:
            await call(context)
        assert type(refused.value) is kind
        assert len(str(refused.value)) < 400
        async with context.create_context() as unharmed, unharmed.create_consumer(Topic("other")) as consumer:
            await unharmed.create_producer().send(Topic("other"), "x")
            assert (await got(consumer)).get_body(str) == "x"


USES: dict[str, Callable[[Context], object]] = {
    "acknowledge": lambda c: c.acknowledge(),
    "add_card": lambda c: c.add_card("CEAL5"),
    "ask": lambda c: c.ask(NEWS, "x", timeout=1),
    "card": lambda c: c.card(),
    "circles": lambda c: c.circles.found("rescue"),
    "commit": lambda c: c.commit(),
    "create_browser": lambda c: c.create_browser(ELSEWHERE),
    "create_consumer": lambda c: c.create_consumer(NEWS),
    "create_context": lambda c: c.create_context(),
    "create_durable_consumer": lambda c: c.create_durable_consumer(NEWS, "mail"),
    "create_producer": lambda c: c.create_producer(),
    "create_shared_consumer": lambda c: c.create_shared_consumer(NEWS, "crew"),
    "create_shared_durable_consumer": lambda c: c.create_shared_durable_consumer(NEWS, "crew"),
    "create_temporary_queue": lambda c: c.create_temporary_queue(),
    "create_temporary_topic": lambda c: c.create_temporary_topic(),
    "declare_queue": lambda c: c.declare_queue("box"),
    "declare_topic": lambda c: c.declare_topic("news"),
    "drain": lambda c: c.drain(),
    "end_queue": lambda c: c.end_queue(Queue("box@a")),
    "end_topic": lambda c: c.end_topic("holder/news@a"),
    "listener": lambda c: c.listener(NEWS),
    "node_id": lambda c: c.node_id,
    "open_request": lambda c: c.open_request("x"),
    "recover": lambda c: c.recover(),
    "reply": lambda c: c.reply(TextMessage("x"), "y"),
    "request": lambda c: c.request(NEWS, "x", time_to_live=1),
    "responder": lambda c: c.responder(NEWS),
    "rollback": lambda c: c.rollback(),
    "send": lambda c: c.send(NEWS, "x"),
    "sent": lambda c: c.sent("ID:a:1:1"),
    "set_client_id": lambda c: c.set_client_id("me"),
    "set_exception_listener": lambda c: c.set_exception_listener(None),
    "start": lambda c: c.start(),
    "stop": lambda c: c.stop(),
    "transaction": lambda c: c.transaction().__aenter__(),
    "unsubscribe": lambda c: c.unsubscribe("mail"),
}
EARLY: dict[str, Callable[[Context], object]] = {
    "auto_start": lambda c: c.auto_start,
    "client_id": lambda c: c.client_id,
    "create_bytes_message": lambda c: c.create_bytes_message(),
    "create_map_message": lambda c: c.create_map_message(),
    "create_message": lambda c: c.create_message(),
    "create_object_message": lambda c: c.create_object_message(),
    "create_queue": lambda c: c.create_queue("box"),
    "create_stream_message": lambda c: c.create_stream_message(),
    "create_text_message": lambda c: c.create_text_message(),
    "create_topic": lambda c: c.create_topic("news"),
    "session_mode": lambda c: c.session_mode,
    "set_auto_start": lambda c: c.set_auto_start(False),
    "transacted": lambda c: c.transacted,
}
"""Calls that need no node, and so no open context, but fail on a closed one."""
HARMLESS = {"close", "given_up"}
"""Calls that are allowed in any state."""


def test_all_uses_of_a_context_are_tried() -> None:
    names = {name for name in dir(Context) if not name.startswith("_") and not is_java_name(Context, name)}
    assert names == {*USES, *EARLY, *HARMLESS}


@pytest.mark.parametrize("use", EARLY)
@scene("a")
async def test_what_needs_no_node_works_until_the_context_is_closed(net: testing.Network, use: str) -> None:
    context = net.context("a")
    EARLY[use](context)
    async with context:
        EARLY[use](context)
    with pytest.raises(IllegalStateException, match="this context is closed: create another"):
        EARLY[use](context)


async def used(context: Context, use: str) -> None:
    result = USES[use](context)
    if isinstance(result, Coroutine):
        await result


@pytest.mark.parametrize("use", USES)
@scene("a")
async def test_a_context_is_used_while_it_is_open(net: testing.Network, use: str) -> None:
    context = net.context("a", client_id="me")
    with pytest.raises(IllegalStateException, match="not open yet: enter it with `async with`, or await it"):
        await used(context, use)
    async with context:
        pass
    with pytest.raises(IllegalStateException, match="this context is closed: create another"):
        await used(context, use)
    with pytest.raises(IllegalStateException, match="this context is closed: create another"):
        await opened(context)
    never = net.context("a")
    await never.close()
    with pytest.raises(IllegalStateException, match="closed"):
        await used(never, use)
    with pytest.raises(IllegalStateException, match="this context is closed: create another"):
        await opened(never)


@scene("a")
async def test_what_a_closed_context_made_says_so(net: testing.Network) -> None:
    async with net.context("a", CLIENT) as context:
        producer, consumer = context.create_producer(), await context.create_consumer(NEWS)
        await producer.send(NEWS, "x")
        message = await got(consumer)
    for call in (lambda: producer.send(NEWS, "y"), consumer.receive, message.acknowledge):
        with pytest.raises(IllegalStateException, match="this context is closed: create another"):
            await call()
    with pytest.raises(IllegalStateException, match="this context is closed: create another"):
        consumer.set_message_listener(None)
    await consumer.close()


@scene("a")
async def test_a_client_id_in_use_says_where(net: testing.Network) -> None:
    async with net.context("a", client_id="me"):
        with pytest.raises(
            InvalidClientIDException, match="'me' is in use on this node: close the connection that has"
        ):
            async with net.context("a", client_id="me"):
                pass
        async with net.context("a") as other:
            with pytest.raises(InvalidClientIDException, match="or choose another"):
                await other.set_client_id("me")
            await other.create_producer().send(NEWS, "unharmed")


@scene("a")
async def test_a_context_that_is_not_closed_warns(net: testing.Network) -> None:
    context: Context | None = await net.context("a", CLIENT)
    left = [context]
    context = None
    with pytest.warns(ResourceWarning, match="Context CLIENT_ACKNOWLEDGE, open> was not closed: use `async with`"):
        left.clear()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        context = net.context("a")
        context = await net.context("a")
        await context.close()
        context = await net.context("a")
        net.kill("a")
        context = None
        gc.collect()
    assert context is None


@scene("a")
async def test_a_consumer_that_was_never_awaited_warns(net: testing.Network) -> None:
    async with net.context("a") as context:
        left = [context.create_consumer(NEWS)]
        with pytest.warns(RuntimeWarning, match="create_consumer was never awaited"):
            left.clear()


def test_contexts_need_virtual_time() -> None:
    with testing.network("a") as net, pytest.raises(StateError, match=r"that testing\.run runs"):
        str(net.context("a"))


def test_every_public_name_is_documented() -> None:
    for kind in (
        carrypost.Context,
        carrypost.Consumer,
        carrypost.Producer,
        carrypost.Sent,
        carrypost.ConnectionFactory,
    ):
        assert kind.__doc__
        for name, each in vars(kind).items():
            if not name.startswith("_") and (callable(each) or isinstance(each, property)):
                assert each.__doc__, f"{kind.__name__}.{name}"
                function = each.fget if isinstance(each, property) else each
                assert "return" in getattr(function, "__annotations__", {}), f"{kind.__name__}.{name}"
