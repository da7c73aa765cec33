"""Rows 57 to 77 of the checklist: connections and sessions."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sized
from pathlib import Path

import pytest
from tests.support.jms_scenes import NEWS, SOON_S, got, pair, scene, texts

from carrypost import (
    ConnectionFactory,
    Context,
    DeliveryMode,
    IllegalStateException,
    InvalidClientIDException,
    JMSException,
    JMSSecurityException,
    ListenerException,
    Message,
    ResourceAllocationException,
    SessionMode,
    Topic,
    testing,
)
from carrypost.errors import IllegalArgumentException
from carrypost.jms.provider import NODE_ENDED, NODE_LOST

pytestmark = pytest.mark.attached("what is acknowledged, recovered or closed may be on its way meanwhile")

ROWS = (*range(57, 62), *range(63, 72), *range(74, 78))
AUTO, CLIENT = SessionMode.AUTO_ACKNOWLEDGE, SessionMode.CLIENT_ACKNOWLEDGE
DUPS_OK, INDIVIDUAL = SessionMode.DUPS_OK_ACKNOWLEDGE, SessionMode.INDIVIDUAL_ACKNOWLEDGE
MODES = (AUTO, CLIENT, DUPS_OK, INDIVIDUAL)
every_mode = pytest.mark.parametrize("mode", MODES, ids=lambda mode: mode.name)


async def send(context: Context, *bodies: str, to: Topic = NEWS) -> None:
    for body in bodies:
        await context.create_producer().send(to, body)


def await_nothing(_: Context) -> None:
    """Do not await it: it is made, and not opened."""


def counted(message: Message) -> tuple[str | None, int]:
    return message.get_body(str), message.get_int_property("JMSXDeliveryCount")


# ------------------------------------------------------------------------------------------------ connections


def test_row_57_a_factory_makes_contexts_and_takes_no_password(tmp_path: Path) -> None:
    factory = ConnectionFactory(data=str(tmp_path / "node"), client_id="me")
    context = factory.create_context(CLIENT)
    assert (context.session_mode, context.client_id) == (CLIENT, "me")
    assert not (tmp_path / "node").exists()  # Nothing runs before a context is opened.
    for credentials in ({"user": "anna"}, {"password": "secret"}, {"user": "anna", "password": "secret"}):
        with pytest.raises(
            JMSSecurityException, match="no passwords: access is governed by the permissions of the node's folder"
        ):
            await_nothing(factory.create_context(**credentials))  # type: ignore[arg-type]  # texts
        with pytest.raises(
            JMSSecurityException, match="no passwords: access is governed by the permissions of the node's folder"
        ):
            ConnectionFactory(data=str(tmp_path / "node"), **credentials)  # type: ignore[arg-type]  # likewise
    with pytest.raises(
        IllegalArgumentException, match=r"there is no server to connect to.* ConnectionFactory\(data=FOLDER\)"
    ):
        ConnectionFactory("tcp://localhost:61616")


@scene("a")
async def test_row_57_a_context_says_whether_it_has_transactions(net: testing.Network) -> None:
    for mode in SessionMode:
        async with net.context("a", mode) as context:
            assert context.transacted is (mode is SessionMode.SESSION_TRANSACTED)


@scene("a")
async def test_row_57_the_defaults_of_producers_are_those_of_messages(net: testing.Network) -> None:
    async with net.context("a") as context:
        producer = context.create_producer()
        assert producer.delivery_mode is Message.DEFAULT_DELIVERY_MODE is DeliveryMode.PERSISTENT
        assert producer.priority == Message.DEFAULT_PRIORITY == Message().jms_priority == 4
        assert producer.time_to_live == Message.DEFAULT_TIME_TO_LIVE == 0
        assert producer.delivery_delay == Message.DEFAULT_DELIVERY_DELAY == 0


@scene("a", "b")
async def test_row_58_a_client_id_belongs_to_one_connection_of_a_node_and_is_set_first(net: testing.Network) -> None:
    async with net.context("a", client_id="me") as first, net.context("b", client_id="me") as elsewhere:
        assert first.client_id == elsewhere.client_id == "me"
        with pytest.raises(InvalidClientIDException, match="'me' is in use on this node: close the connection"):
            async with net.context("a", client_id="me"):
                pass
        with pytest.raises(IllegalStateException, match="has the client id 'me' already"):
            await first.set_client_id("other")
        async with net.context("a") as late:
            with pytest.raises(InvalidClientIDException):
                await late.set_client_id("me")
            await late.set_client_id("other")
            async with late.create_durable_consumer(NEWS, "mail"):
                await send(late, "x")
        async with net.context("a") as used:
            await send(used, "x")
            with pytest.raises(IllegalStateException, match="must be set before any other call"):
                await used.set_client_id("third")
    async with net.context("a", client_id="me") as again:
        assert again.client_id == "me"


@pytest.mark.parametrize("use", ["producer", "context", "consumer", "start"])
@scene("a")
async def test_row_58_the_client_id_comes_before_any_use(net: testing.Network, use: str) -> None:
    async with net.context("a") as context:
        match use:
            case "producer":
                context.create_producer()
            case "context":
                await_nothing(context.create_context())
            case "consumer":
                await context.create_consumer(NEWS)
            case _:
                await context.start()
        with pytest.raises(IllegalStateException, match="must be set before any other call"):
            await context.set_client_id("me")


@scene("a", "b")
async def test_row_59_nothing_is_delivered_while_stopped_and_timers_and_sends_go_on(net: testing.Network) -> None:
    async with net.context("a") as here, net.context("b") as there:
        there.set_auto_start(False)
        far = await there.create_consumer(NEWS)
        await send(here, "x")
        before = net.now
        assert await far.receive(timeout=30) is None
        assert net.now == before + 30
        await there.start()
        await there.start()
        assert (await got(far)).get_body(str) == "x"
        await there.stop()
        await there.stop()
        waiting = asyncio.create_task(far.receive(timeout=SOON_S))
        await send(there, "y")
        await net.run(5)
        assert not waiting.done()
        await there.start()
        assert (await waiting).get_body(str) == "y"  # type: ignore[union-attr]


@scene("a")
async def test_row_59_the_first_consumer_starts_a_connection_that_was_born_stopped(net: testing.Network) -> None:
    async with net.context("a") as context:
        assert context.auto_start
        heard = context.create_context()
        async with heard:
            heard.set_auto_start(False)
            consumer = await heard.create_consumer(NEWS)
            await send(context, "x")
            assert await consumer.receive(timeout=5) is None
            await context.create_consumer(NEWS)
            assert (await got(consumer)).get_body(str) == "x"


@scene("a")
async def test_row_59_stop_waits_for_the_listener_that_is_being_called(net: testing.Network) -> None:
    async with net.context("a") as context:
        done: list[str | None] = []

        async def slow(message: Message) -> None:
            await asyncio.sleep(10)
            done.append(message.get_body(str))

        consumer = await context.create_consumer(NEWS)
        consumer.set_message_listener(slow)
        await send(context, "x", "y")
        await net.run(1)
        await context.stop()
        assert (net.now, done) == (10, ["x"])
        await net.run(30)
        assert done == ["x"]
        await context.start()
        await net.run(30)
        assert done == ["x", "y"]


@every_mode
@scene("a")
async def test_row_60_closing_ends_receives_keeps_what_was_not_acknowledged_and_is_done_once(
    net: testing.Network, mode: SessionMode
) -> None:
    context = await net.context("a", mode, client_id="me")
    mail = await context.create_durable_consumer(NEWS, "mail")
    other = await context.create_consumer(Topic("other"))
    await send(context, "x", "y")
    first = await got(mail)
    third = await context.create_consumer(Topic("third"))
    waiting = [asyncio.create_task(other.receive()), asyncio.create_task(anext(aiter(third), None))]
    await net.run(1)
    await context.close()
    await context.close()
    assert await asyncio.gather(*waiting) == [None, None]
    for use in (context.recover, context.acknowledge, first.acknowledge, mail.receive, context.start, context.stop):
        with pytest.raises(IllegalStateException, match="is closed: create another"):
            await use()
    for make in (context.create_producer, context.create_context):
        with pytest.raises(IllegalStateException, match="is closed: create another"):
            make()
    async with net.context("a", client_id="me") as again:
        mail = await again.create_durable_consumer(NEWS, "mail")
        left = [counted(message) async for message in mail.messages(timeout=5)]
    assert left == ([("y", 1)] if mode in (AUTO, DUPS_OK) else [("x", 2), ("y", 1)])


CALLS: dict[str, Callable[[Context], object]] = {
    "close": lambda context: context.close(),
    "drain": lambda context: context.drain(),
    "stop": lambda context: context.stop(),
}


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("kind", ["set", "decorated"])
@pytest.mark.parametrize("by", ["itself", "a task"])
@scene("a")
async def test_row_61_a_listener_does_not_end_what_waits_for_it(
    net: testing.Network, call: str, kind: str, by: str
) -> None:
    async with net.context("a") as context:
        found: list[BaseException] = []

        async def ends(_: Message) -> None:
            try:
                ending = CALLS[call](context)
                await (ending if by == "itself" else asyncio.wait_for(ending, SOON_S))  # type: ignore[misc,arg-type]
            except IllegalStateException as error:
                found.append(error)

        if kind == "set":
            (await context.create_consumer(NEWS)).set_message_listener(ends)
        else:
            context.listener(NEWS)(ends)
        await context.start()
        async with net.context("a") as sender:
            await send(sender, "x")
        await net.run(5)
        (error,) = found
        assert "it would wait for itself" in str(error)
        assert call in str(error)


@scene("a")
async def test_row_61_a_task_that_a_listener_left_behind_may_close_its_context(net: testing.Network) -> None:
    context = await net.context("a")
    tasks: list[asyncio.Task[None]] = []
    consumer = await context.create_consumer(NEWS)
    consumer.set_message_listener(lambda _: tasks.append(asyncio.create_task(context.close())))
    async with net.context("a") as sender:
        await send(sender, "x")
    await net.run(5)
    assert [task.exception() for task in tasks] == [None]
    with pytest.raises(IllegalStateException, match="closed"):
        await context.recover()


@scene("a")
async def test_row_63_the_exception_listener_hears_that_the_node_ended(net: testing.Network) -> None:
    context = await net.context("a")
    heard: list[JMSException] = []
    context.set_exception_listener(heard.append)
    net.kill("a")
    await net.run(1)
    assert [str(each) for each in heard] == ["the node 'a' was killed: restart it, and create another context"]
    assert [each.error_code for each in heard] == ["NODE_ENDED"]
    await context.close()


@scene("a", "b", cache_messages_max=10, limits={"unconfirmed_max": 5})
async def test_row_63_the_exception_listener_hears_that_a_durable_subscription_lost_messages(
    net: testing.Network,
) -> None:
    async with net.context("a") as sender, net.context("b", client_id="me") as context:
        heard: list[JMSException] = []
        context.set_exception_listener(heard.append)
        async with context.create_durable_consumer(NEWS, "mail"):
            pass
        for number in range(20):
            await sender.create_producer().send(NEWS, str(number))
            await net.run(5)
        lost = net.host("b").messaging.overview()
        assert lost is not None
        assert lost.lost > 2
        assert {type(each) for each in heard} == {ResourceAllocationException}
        assert all("the durable subscription" in str(each) for each in heard)
        assert len(heard) == lost.lost.bit_length()  # The first, the second, the fourth, …


@scene("a", disk_delay_s=0.1)
async def test_row_63_the_exception_listener_hears_of_what_no_call_can_raise_and_of_nothing_else(
    net: testing.Network,
) -> None:
    async with net.context("a") as context:
        heard: list[JMSException] = []
        busy = 0

        async def hear(error: JMSException) -> None:
            nonlocal busy
            assert not busy  # One at a time.
            busy += 1
            await asyncio.sleep(1)
            busy -= 1
            heard.append(error)

        context.set_exception_listener(hear)
        await net.run(SOON_S)  # No neighbour is near.
        net.fill_disk("a")
        producer = context.create_producer()
        for _ in range(2):
            with pytest.raises(ResourceAllocationException):
                await producer.send(NEWS, "told to the caller")
        assert heard == []
        net.fill_disk("a", full=False)
        producer.set_delivery_mode(producer.delivery_mode.NON_PERSISTENT)
        for _ in range(2):
            await producer.send(NEWS, "told to the listener")
        net.fail_disk("a")
        await net.run(10)
        node, *sends = heard
        assert node.error_code in {NODE_LOST, NODE_ENDED}
        assert {each.error_code for each in sends} == {NODE_LOST}


@scene("a")
async def test_row_63_an_exception_listener_may_close_its_context(net: testing.Network) -> None:
    context = await net.context("a", CLIENT)
    closed = asyncio.Event()

    async def give_up(_: JMSException) -> None:
        await context.close()
        closed.set()

    context.set_exception_listener(give_up)
    async with net.context("a") as other:
        consumer = await context.create_consumer(NEWS)
        consumer.set_message_listener(lambda _: None)
        context._connection.reports.report(ListenerException("a test says so"))  # noqa: SLF001 - whatever it is about
        await asyncio.wait_for(closed.wait(), 10)
        await send(other, "x")
    with pytest.raises(IllegalStateException):
        await context.recover()


@scene("a")
async def test_row_64_consumers_of_a_context_are_waited_on_together_and_each_by_one_task(net: testing.Network) -> None:
    async with net.context("a") as context:
        consumers = [await context.create_consumer(Topic(name)) for name in "xyz"]
        async with asyncio.TaskGroup() as group:
            waiting = [group.create_task(each.receive(timeout=SOON_S)) for each in consumers]
            await net.run(1)
            with pytest.raises(IllegalStateException, match="another task receives from this consumer: create one"):
                await consumers[0].receive()
            for name in "zyx":
                await send(context, name, to=Topic(name))
        assert [each.result().get_body(str) for each in waiting] == ["x", "y", "z"]  # type: ignore[union-attr]


# --------------------------------------------------------------------------------------------------- sessions


@scene("a")
async def test_row_65_there_are_five_modes(net: testing.Network) -> None:
    for mode in SessionMode:
        async with net.context("a", mode) as context:
            assert context.session_mode is mode
            async with context.create_context(CLIENT) as other:
                assert other.session_mode is CLIENT
    with pytest.raises(IllegalArgumentException, match="must be a SessionMode, not 7"):
        await_nothing(net.context("a", 7))  # type: ignore[arg-type]  # it is refused


@scene("a")
async def test_row_66_auto_acknowledges_what_receive_returned(net: testing.Network) -> None:
    async with net.context("a", client_id="me") as context:
        async with context.create_durable_consumer(NEWS, "mail") as mail:
            await send(context, "x", "y", "z")
            await got(mail)
            async for message in mail:
                assert message.get_body(str) == "y"
                break
        await net.run(1)
        net.kill("a")
    net.restart("a")
    async with net.context("a", client_id="me") as context, context.create_durable_consumer(NEWS, "mail") as mail:
        assert counted(await got(mail)) == ("z", 1)
        assert await mail.receive(timeout=5) is None


@scene("a")
async def test_row_66_auto_acknowledges_when_the_listener_returned(net: testing.Network) -> None:
    async with net.context("a", client_id="me") as context:
        mail = await context.create_durable_consumer(NEWS, "mail")
        begun: list[str | None] = []

        async def listener(message: Message) -> None:
            begun.append(message.get_body(str))
            await asyncio.sleep(10)

        mail.set_message_listener(listener)
        await send(context, "x", "y")
        await net.run(15)  # In the middle of the second.
        net.kill("a")
    net.restart("a")
    assert begun == ["x", "y"]
    async with net.context("a", client_id="me") as context, context.create_durable_consumer(NEWS, "mail") as mail:
        assert counted(await got(mail)) == ("y", 2)
        assert await mail.receive(timeout=5) is None


@scene("a", disk_delay_s=0.5)
async def test_row_67_client_acknowledges_all_that_the_context_got_so_far(net: testing.Network) -> None:
    async with net.context("a", CLIENT, client_id="me") as context:
        mail = await context.create_durable_consumer(NEWS, "mail")
        more = await context.create_durable_consumer(Topic("more"), "more")
        await send(context, "x", "y", "z")
        await send(context, "m", to=Topic("more"))
        first, _, _ = await got(mail), await got(mail), await got(more)
        before = net.now
        await first.acknowledge()
        assert net.now == before + 0.5  # It is on disk.
        await got(mail)
        net.kill("a")
    net.restart("a")
    async with net.context("a", CLIENT, client_id="me") as context:
        mail = await context.create_durable_consumer(NEWS, "mail")
        more = await context.create_durable_consumer(Topic("more"), "more")
        assert [counted(message) async for message in mail.messages(timeout=5)] == [("z", 2)]
        assert await more.receive(timeout=5) is None


@scene("a")
async def test_row_67_there_is_a_limit_to_what_is_not_acknowledged(
    net: testing.Network, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("carrypost.jms.acknowledgement.UNACKNOWLEDGED_MAX", 3)
    async with net.context("a", CLIENT) as context:
        consumer = await context.create_consumer(NEWS)
        await send(context, "1", "2", "3", "4")
        for _ in range(3):
            await got(consumer)
        with pytest.raises(
            IllegalStateException, match="3 messages are not acknowledged: acknowledge, commit or recover"
        ):
            await consumer.receive()
        await context.acknowledge()
        assert (await got(consumer)).get_body(str) == "4"


@scene("a")
async def test_row_68_dups_ok_acknowledges_in_groups_or_after_a_second(net: testing.Network) -> None:
    async with net.context("a", DUPS_OK, client_id="me") as context:
        mail = await context.create_durable_consumer(NEWS, "mail")
        await send(context, *map(str, range(120)))
        for _ in range(60):
            await got(mail)
        await asyncio.sleep(0.5)
        overview = net.host("a").messaging.overview()
        assert overview is not None
        assert overview.claims == 70  # A group of 50 is done with.
        await asyncio.sleep(0.6)
        overview = net.host("a").messaging.overview()
        assert overview is not None
        assert overview.claims == 60
        for _ in range(10):
            await got(mail)
        net.kill("a")
    net.restart("a")
    async with net.context("a", client_id="me") as context, context.create_durable_consumer(NEWS, "mail") as mail:
        again = [counted(message) async for message in mail.messages(timeout=5)]
        assert again[:11] == [*((str(each), 2) for each in range(60, 70)), ("70", 2)]
        assert [text for text, _ in again] == [str(each) for each in range(60, 120)]


@every_mode
@scene("a", messaging={"prefetch": 4})
async def test_row_69_recover_restarts_at_the_first_that_was_not_acknowledged(
    net: testing.Network, mode: SessionMode
) -> None:
    async with net.context("a", mode) as context:
        consumer = await context.create_consumer(NEWS)
        await send(context, *map(str, range(10)))
        first = [counted(await got(consumer)) for _ in range(3)]
        assert first == [("0", 1), ("1", 1), ("2", 1)]
        await context.recover()
        again = [counted(await got(consumer)) for _ in range(7)]
        if mode in (AUTO, DUPS_OK):
            assert again == [(str(each), 1) for each in range(3, 10)]
        else:
            assert again == [*((str(each), 2) for each in range(3)), *((str(each), 1) for each in range(3, 7))]


@scene("a")
async def test_row_69_what_expired_meanwhile_does_not_come_again(net: testing.Network) -> None:
    async with net.context("a", CLIENT) as context:
        consumer = await context.create_consumer(NEWS)
        producer = context.create_producer()
        await producer.send(NEWS, "short", time_to_live=10)
        await producer.send(NEWS, "long")
        assert [await got(consumer) for _ in range(2)]
        await net.run(11)
        await context.recover()
        assert await texts(consumer) == ["long"]


@scene("a", "b", duplicate=0.5, loss=0.2)
async def test_row_70_what_was_acknowledged_never_comes_again(net: testing.Network) -> None:
    """Neither by another neighbour, nor after closing, nor after a crash."""
    async with pair(net, AUTO, b="me") as both:
        async with both.there.create_durable_consumer(NEWS, "mail") as mail:
            await send(both.here, *map(str, range(20)))
            assert sorted(map(int, await texts(mail))) == list(range(20))
            await both.there.recover()
            assert await mail.receive(timeout=5) is None
        net.unlink("a", "b")
        await net.run(5)
        net.kill("b")
    net.restart("b")
    net.link("a", "b")
    async with net.context("b", client_id="me") as there:
        mail = await there.create_durable_consumer(NEWS, "mail")
        live = await there.create_consumer(NEWS)
        assert await texts(mail) + await texts(live) == []


@scene("a", "b")
async def test_row_71_a_message_is_sent_once_and_again_only_by_sending_it_again(net: testing.Network) -> None:
    async with pair(net) as both, both.there.create_consumer(NEWS) as far:
        message = both.here.create_text_message("x")
        producer = both.here.create_producer()
        ids = [(await producer.send(NEWS, message)).message_id for _ in range(2)]
        net.unlink("a", "b")
        await net.run(5)
        net.link("a", "b")
        found = [each.jms_message_id async for each in far.messages(timeout=SOON_S)]
        assert sorted(map(str, found)) == sorted(map(str, ids))
        assert len(set(ids)) == 2


@scene("a", "b")
async def test_row_74_a_session_is_heard_in_its_order_here_and_flagged_where_it_is_not(net: testing.Network) -> None:
    net.unlink("a", "b")
    async with pair(net, AUTO) as both:
        near, far = await both.here.create_consumer(NEWS), await both.there.create_consumer(NEWS)
        producer = both.here.create_producer()
        for number in range(10):
            await producer.send(NEWS, str(number), priority=number)
        assert await texts(near, quiet_s=1) == [str(number) for number in range(10)]
        net.link("a", "b")
        found = [message async for message in far.messages(timeout=SOON_S)]
        numbers = [int(message.get_body(str) or "") for message in found]
        assert sorted(numbers) == list(range(10))
        flagged = [message.property_exists("JMS_carrypost_OutOfOrder") for message in found]
        assert flagged == [number < max(numbers[: place + 1]) for place, number in enumerate(numbers)]
        assert any(flagged)  # What matters most comes first.


@scene("a", "b")
async def test_a_session_that_answers_many_destinations_remembers_none_of_them(net: testing.Network) -> None:
    async with pair(net, AUTO) as both:
        far = await both.there.create_consumer(NEWS)
        await net.run(5)
        producer = both.here.create_producer()
        for number in range(40):
            await producer.send(Topic(f"reply.{number}"), "an answer", delivery_mode=DeliveryMode.NON_PERSISTENT)
            if number % 10 == 0:
                await producer.send(NEWS, str(number))
                await net.run(5)
        found = [message async for message in far.messages(timeout=SOON_S)]
        assert [message.get_body(str) for message in found] == ["0", "10", "20", "30"]
        assert not any(message.property_exists("JMS_carrypost_OutOfOrder") for message in found)
        kept = vars(both.here._opened()).values()  # noqa: SLF001 - what it keeps is seen nowhere else
        assert max(len(each) for each in kept if isinstance(each, Sized)) < 40


@scene("a", "b", "c", altruistic=True)
async def test_row_74_a_topic_with_an_order_is_heard_in_it(net: testing.Network) -> None:
    forum = Topic("forum", "causal")
    async with net.context("a") as anna, net.context("b") as ben, net.context("c") as cleo:
        hears = await ben.create_consumer(forum)
        all_of_it = await cleo.create_consumer(forum)
        await net.run(10)
        net.unlink("a", "c")
        await send(anna, "question", to=forum)
        assert (await got(hears)).get_body(str) == "question"
        await send(ben, "answer", to=forum)
        assert await texts(all_of_it) == ["question", "answer"]


@scene("a")
async def test_row_75_listeners_of_a_context_are_called_one_at_a_time_and_those_of_others_beside_them(
    net: testing.Network,
) -> None:
    async with net.context("a") as context:
        calls: list[tuple[str, float, float]] = []

        def listener(name: str) -> Callable[[Message], object]:
            async def called(_: Message) -> None:
                begun = net.now
                await asyncio.sleep(10)
                calls.append((name, begun, net.now))

            return called

        for name in "xy":
            (await context.create_consumer(NEWS)).set_message_listener(listener(name))  # type: ignore[arg-type]
        context.listener(NEWS)(listener("z"))
        await context.start()
        await send(context, "1", "2")
        await net.run(50)
        together = sorted(each[1:] for each in calls if each[0] != "z")
        assert together == [(0, 10), (10, 20), (20, 30), (30, 40)]
        assert sorted(each[1:] for each in calls if each[0] == "z") == [(0, 10), (10, 20)]


@scene("a")
async def test_row_76_a_context_with_a_listener_has_no_receive_and_the_other_way_round(net: testing.Network) -> None:
    async with net.context("a") as context:
        one, other = await context.create_consumer(NEWS), await context.create_consumer(NEWS)
        waiting = asyncio.create_task(one.receive())
        await net.run(1)
        with pytest.raises(IllegalStateException, match="create another context for listeners"):
            other.set_message_listener(lambda _: None)
        await one.close()
        assert await waiting is None
        other.set_message_listener(lambda _: None)
        third = await context.create_consumer(NEWS)
        for call in (third.receive(), third.receive_no_wait(), anext(aiter(third)), other.receive(timeout=1)):
            with pytest.raises(IllegalStateException, match="receive in another context"):
                await call
        other.set_message_listener(None)
        assert other.message_listener is None
        await send(context, "x")
        assert (await got(third)).get_body(str) == "x"


@every_mode
@scene("a")
async def test_row_77_what_a_session_did_not_acknowledge_a_durable_subscription_has_again(
    net: testing.Network, mode: SessionMode
) -> None:
    async with net.context("a", mode, client_id="me") as context:
        session = await context.create_context(mode)
        mail = await session.create_durable_consumer(NEWS, "mail")
        live = await session.create_consumer(NEWS)
        await send(context, "x", "y")
        await got(mail)
        await session.close()
        mail = await context.create_durable_consumer(NEWS, "mail")
        left = [counted(message) async for message in mail.messages(timeout=5)]
        assert left == ([("y", 1)] if mode in (AUTO, DUPS_OK) else [("x", 2), ("y", 1)])
        with pytest.raises(IllegalStateException):
            await live.receive()
