"""Bodies that `send` accepts, and its result before it is awaited."""

from __future__ import annotations

import asyncio
import json
import weakref
from typing import Any

import pytest
from tests.support.jms_scenes import NEWS, got, scene

from carrypost import (
    BytesMessage,
    IllegalArgumentException,
    MapMessage,
    Message,
    MessageFormatException,
    ObjectMessage,
    SendState,
    SessionMode,
    StreamMessage,
    TextMessage,
    Topic,
    testing,
)
from carrypost.jms.messages.text_and_bytes import json_text

NESTED: tuple[Any, ...] = (
    {"order": {"lines": [{"article": "tea", "count": 2}]}},
    {"lines": []},
    [{"a": 1}, [1, [2.5, None, True]], "ü"],
    [2**70],
    ["", {}],
)
FLAT: dict[str, tuple[Any, type[Message]]] = {
    "dict": ({"a": 1, "b": "two", "c": None}, MapMessage),
    "empty dict": ({}, MapMessage),
    "list": ([1, "two", 3.5, None], StreamMessage),
    "empty list": ([], StreamMessage),
}


@pytest.mark.parametrize("body", NESTED, ids=json.dumps)
@scene("a", "b")
async def test_nested_values_are_sent_as_text_in_json(net: testing.Network, body: object) -> None:
    async with net.context("a") as here, net.context("b") as there:
        inbox = await there.create_consumer(NEWS, "JMSType = 'application/json'")
        await here.create_producer().send(NEWS, body)
        message = await got(inbox)
        assert isinstance(message, TextMessage)
        assert message.jms_type == "application/json"
        assert json.loads(message.text or "") == message.json() == body


@pytest.mark.parametrize("case", FLAT)
@scene("a", "b")
async def test_what_maps_and_streams_hold_is_sent_as_such_and_read_alike(net: testing.Network, case: str) -> None:
    body, kind = FLAT[case]
    async with net.context("a") as here, net.context("b") as there:
        inbox = await there.create_consumer(NEWS)
        await here.create_producer().send(NEWS, body)
        message = await got(inbox)
        assert (type(message), message.jms_type, message.json()) == (kind, None, body)


def test_tuples_are_lists_in_json_and_enumerations_are_numbers() -> None:
    assert json_text({"a": (1, SendState.STORED)}) == '{"a":[1,1]}'


@pytest.mark.parametrize("body", [[[b"x"]], {"a": {"b": {1, 2}}}, [10**5_000, []], {"a": [float("inf")]}], ids=range(4))
@scene("a")
async def test_what_json_has_not_is_refused_and_nothing_is_sent(net: testing.Network, body: object) -> None:
    async with net.context("a") as here, here.create_consumer(NEWS) as inbox:
        with pytest.raises(MessageFormatException, match="JSON"):
            await here.create_producer().send(NEWS, body)
        assert await inbox.receive_no_wait() is None


def test_endless_values_are_refused() -> None:
    endless: list[object] = []
    endless.append(endless)
    with pytest.raises(MessageFormatException, match="at most 200 deep"):
        json_text(endless)


@pytest.mark.parametrize("text", ["", "{", "NaN", "[" * 100_000, "1" * 5_000, "{'a': 1}"], ids=lambda text: text[:8])
def test_a_text_that_is_no_json_says_so(text: str) -> None:
    with pytest.raises(MessageFormatException, match="the text is not JSON"):
        TextMessage(text).json()


def test_other_bodies_are_no_json() -> None:
    for message in (Message(), BytesMessage(b"{}"), ObjectMessage()):
        with pytest.raises(MessageFormatException, match="has no JSON body"):
            message.json()
    assert TextMessage().json() is None


@pytest.mark.parametrize("kind", [Message, TextMessage, BytesMessage, MapMessage, StreamMessage, ObjectMessage])
def test_a_misspelt_attribute_is_refused(kind: type[Any]) -> None:
    message = kind()
    with pytest.raises(AttributeError, match="txt"):
        message.txt = "hello"
    with pytest.raises(AttributeError):
        message.jms_corelation_id = "x"
    assert weakref.ref(message)() is message


@scene("a")
async def test_a_send_is_awaited_in_every_way_that_a_coroutine_is(net: testing.Network) -> None:
    async with net.context("a") as ctx:
        producer = ctx.create_producer()
        states = [(await producer.send(NEWS, "x")).state, (await asyncio.create_task(producer.send(NEWS, "x"))).state]
        states += [each.state for each in await asyncio.gather(producer.send(NEWS, "x"), producer.send(NEWS, "x"))]
        states.append((await asyncio.wait_for(producer.send(NEWS, "x"), 1)).state)
        async with asyncio.TaskGroup() as tasks:
            task = tasks.create_task(producer.send(NEWS, "x"))
            assert "Producer.send" in repr(task)
        assert [*states, task.result().state] == [SendState.STORED] * 6
        never = asyncio.create_task(producer.send(NEWS, "y"))
        never.cancel()
        with pytest.raises(asyncio.CancelledError):
            await never


@scene("a")
async def test_a_send_that_is_never_awaited_is_warned_of(net: testing.Network) -> None:
    async with net.context("a") as ctx:
        with pytest.warns(RuntimeWarning, match=r"coroutine 'Producer\.send' was never awaited"):
            ctx.create_producer().send(NEWS, "x")  # type: ignore[unused-coroutine]


@scene("a", "b", lifetime_s_max=30 * 86_400.0)
async def test_a_lifetime_beyond_the_nodes_is_refused_by_every_call_with_the_limit(net: testing.Network) -> None:
    refused = pytest.raises(
        IllegalArgumentException, match=r"at most 30 days on this node .lifetime_s_max., not 60 days"
    )
    async with net.context("a") as ctx, net.context("a", SessionMode.SESSION_TRANSACTED) as transacted:
        producer = ctx.create_producer().set_time_to_live(days=60)
        for send in (
            lambda: ctx.send(NEWS, "x", time_to_live=60 * 86_400),
            lambda: producer.send(NEWS, "x"),
            lambda: transacted.send(NEWS, "x", time_to_live=60 * 86_400),
            lambda: ctx.request(NEWS, "x", time_to_live=60 * 86_400),
        ):
            with refused:
                await send()
        assert net.host("a").copies == 0
        sent = await producer.send(NEWS, "x", time_to_live=30 * 86_400)
        assert sent.expiration == pytest.approx(net.now + 30 * 86_400)


@scene("a", "b", lifetime_s_max=3_600.0, skew_s_max=60.0)
async def test_a_reply_to_a_node_whose_clock_is_ahead_lives_as_long_as_this_node_allows(net: testing.Network) -> None:
    async with net.context("a") as here, net.context("b") as there:
        net._driver("a").step_clock(30_000_000)  # noqa: SLF001 - clocks go wrong in emulations, and no program sets them
        asked = await there.create_consumer(NEWS)
        request = await here.request(NEWS, "how are you?", time_to_live=3_600)
        await there.reply(await got(asked), "fine")
        assert (await request.reply()).get_body(str) == "fine"


@scene("a", "b")
async def test_a_name_that_programs_may_not_give_is_read_in_a_message_of_another_node(net: testing.Network) -> None:
    async with net.context("b") as there:
        inbox = await there.create_consumer("topic/>")
        for destination in ("topic/village roads", "topic/village.", "topic/a.*", "topic/\0"):
            net.publish("a", destination, b"")
            message = await got(inbox)
            assert isinstance(message.jms_destination, Topic)
            assert (message.jms_destination.address, str(message.jms_destination)) == (destination, destination)
            message.jms_reply_to = message.jms_destination
