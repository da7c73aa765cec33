"""Attached programs outlive a restart of their node: contexts, consumers and pending calls, in virtual time."""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress
from itertools import pairwise
from typing import cast

import pytest
from tests.support.jms_reconnecting import ReconnectingNetwork
from tests.support.jms_scenes import scene

from carrypost import (
    Consumer,
    Context,
    DeliveryMode,
    IllegalStateException,
    InvalidClientIDException,
    JMSException,
    Message,
    SendState,
    SessionMode,
    TransactionRolledBackException,
    testing,
)
from carrypost.jms.provider import NODE_ENDED, NODE_LOST
from carrypost.messaging.commands import OpenRequests

SOON_S = 60.0
AUTO, CLIENT, INDIVIDUAL, TRANSACTED = (
    SessionMode.AUTO_ACKNOWLEDGE,
    SessionMode.CLIENT_ACKNOWLEDGE,
    SessionMode.INDIVIDUAL_ACKNOWLEDGE,
    SessionMode.SESSION_TRANSACTED,
)


@pytest.fixture(autouse=True)
def _reconnecting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(testing, "Network", ReconnectingNetwork)


async def away(net: testing.Network, node: str = "a", length_s: float = 10.0) -> None:
    """Kill a node, and restart it after a while."""
    net.kill(node)
    await asyncio.sleep(length_s)
    net.restart(node)


async def consumer_of(ctx: Context, kind: str) -> Consumer:
    """Open a consumer of one of the three kinds of destinations."""
    if kind == "durable":
        return await ctx.create_durable_consumer("topic/news", "all")
    return await ctx.create_consumer("queue/box" if kind == "queue" else "topic/news")


def to(kind: str) -> str:
    return "queue/box" if kind == "queue" else "topic/news"


async def taken(consumer: Consumer, timeout_s: float = SOON_S) -> Message:
    message = await consumer.receive(timeout=timeout_s)
    assert message is not None
    return message


def told(message: Message) -> tuple[str | None, bool]:
    return message.get_body(str), message.jms_redelivered


KINDS = pytest.mark.parametrize("kind", ["live", "durable", "queue"])


# --- receiving ----------------------------------------------------------------------------------------------------


@KINDS
@scene("a")
async def test_a_pending_receive_gets_what_is_sent_after_the_restart(net: testing.Network, kind: str) -> None:
    async with net.context("a", client_id="me") as ctx, net.context("a") as other:
        await ctx.declare_queue("box")
        inbox = await consumer_of(ctx, kind)
        waiting = asyncio.create_task(inbox.receive(timeout=SOON_S))
        await asyncio.sleep(1)
        await away(net)
        await other.send(to(kind), "hello")
        message = await waiting
        assert message is not None
        assert told(message) == ("hello", False)
        await asyncio.sleep(1)  # Until that is acknowledged.
        await away(net)
        assert await inbox.receive(timeout=5) is None, "its acknowledgement was durable"


@KINDS
@pytest.mark.parametrize("mode", [CLIENT, INDIVIDUAL])
@scene("a")
async def test_what_was_not_acknowledged_comes_again_and_its_old_form_cannot_be_acknowledged(
    net: testing.Network, kind: str, mode: SessionMode
) -> None:
    async with net.context("a", mode, client_id="me") as ctx:
        await ctx.declare_queue("box")
        inbox = await consumer_of(ctx, kind)
        for text in ("one", "two", "three"):
            await ctx.send(to(kind), text)
        first = await taken(inbox)
        await first.acknowledge()
        second = await taken(inbox)
        await away(net)
        with pytest.raises(IllegalStateException, match="it comes again, flagged as redelivered") as caught:
            await second.acknowledge()
        assert caught.value.error_code == NODE_LOST
        await first.acknowledge()  # It was, before.
        again = await taken(inbox)
        assert told(again) == ("two", True)
        last = await taken(inbox)
        assert last.get_body(str) == "three"
        await again.acknowledge()
        await last.acknowledge()
        await away(net)
        assert await inbox.receive(timeout=5) is None


@scene("a")
async def test_a_context_is_told_once_that_it_cannot_acknowledge_what_it_had(net: testing.Network) -> None:
    async with net.context("a", CLIENT) as ctx:
        inbox = await ctx.create_consumer("topic/news")
        await ctx.send("topic/news", "one")
        await taken(inbox)
        await away(net)
        with pytest.raises(IllegalStateException, match="comes again"):
            await ctx.acknowledge()
        assert told(await taken(inbox)) == ("one", True)
        await ctx.acknowledge()
        await ctx.recover()
        assert await inbox.receive(timeout=5) is None


@pytest.mark.parametrize("prefetch", [0, 1, 100])
@scene("a")
async def test_a_consumer_goes_on_in_order_whatever_its_prefetch(net: testing.Network, prefetch: int) -> None:
    async with net.context("a") as ctx, net.context("a") as other:
        await ctx.declare_queue("box")
        inbox = await ctx.create_consumer("queue/box", prefetch=prefetch)
        for number in range(6):
            await other.send("queue/box", str(number))
        got = [(await taken(inbox)).get_body(str) for _ in range(2)]
        await asyncio.sleep(1)
        for number in range(6, 9):
            await away(net)
            await other.send("queue/box", str(number))
            got += [(await taken(inbox)).get_body(str) for _ in range(2)]
            await asyncio.sleep(1)
        got += [(await taken(inbox)).get_body(str) for _ in range(1)]
        assert got == [str(number) for number in range(9)]
        assert await inbox.receive(timeout=1) is None


@scene("a")
async def test_a_receive_keeps_its_time_while_the_node_is_gone(net: testing.Network) -> None:
    async with net.context("a") as ctx:
        await ctx.declare_queue("box")
        eager, idle = await ctx.create_consumer("queue/box"), await ctx.create_consumer("queue/box", prefetch=0)
        net.kill("a")
        await asyncio.sleep(0)
        began_s = asyncio.get_running_loop().time()
        for consumer in (eager, idle):
            assert await consumer.receive_no_wait() is None
            assert await consumer.receive(timeout=3) is None
        assert asyncio.get_running_loop().time() - began_s == pytest.approx(6)
        net.restart("a")


@pytest.mark.parametrize("mode", [AUTO, SessionMode.DUPS_OK_ACKNOWLEDGE, CLIENT])
@scene("a", messaging={"redelivery_delay_s": 0.0})
async def test_a_listener_goes_on_and_gets_the_message_that_it_had_once_more(
    net: testing.Network, mode: SessionMode
) -> None:
    got: list[tuple[str | None, bool]] = []
    async with net.context("a", mode) as ctx, net.context("a") as other:
        inbox = await ctx.create_consumer("topic/news")

        async def listen(message: Message) -> None:
            got.append(told(message))
            if message.get_body(str) == "slow" and not message.jms_redelivered:
                await asyncio.sleep(20)  # The node is lost and returns meanwhile.
            if mode is CLIENT:
                with suppress(IllegalStateException):
                    await message.acknowledge()

        inbox.set_message_listener(listen)
        await other.send("topic/news", "quick")
        await asyncio.sleep(2)
        await other.send("topic/news", "slow")
        await asyncio.sleep(1)
        await away(net)
        await other.send("topic/news", "later")
        await asyncio.sleep(30)
        assert got == [("quick", False), ("slow", False), ("slow", True), ("later", False)]
        await away(net)
        await asyncio.sleep(5)
        assert len(got) == 4


@scene("a")
async def test_decorated_listeners_and_responders_return(net: testing.Network) -> None:
    heard: list[str | None] = []
    async with net.context("a") as ctx, net.context("a") as other:
        await ctx.declare_queue("weather")

        @ctx.listener("topic/news")
        def hear(message: Message) -> None:
            heard.append(message.get_body(str))

        @ctx.responder("queue/weather")
        def answer(question: Message) -> str:
            return f"{question.get_body(str)} sunny"

        await ctx.start()
        await away(net)
        await other.send("topic/news", "x")
        reply = await other.ask("queue/weather", "today", timeout=SOON_S)
        assert (reply.get_body(str), heard) == ("today sunny", ["x"])


@pytest.mark.parametrize("fails", [False, True])
@scene("a", messaging={"redelivery_delay_s": 0.0, "tries": 2})
async def test_a_job_that_outlives_the_node_comes_again(net: testing.Network, fails: bool) -> None:
    got: list[tuple[str | None, bool]] = []
    async with net.context("a", INDIVIDUAL) as ctx:
        await ctx.declare_queue("box")
        inbox = await ctx.create_consumer("queue/box")
        for text in ("one", "two"):
            await ctx.send("queue/box", text)
        async for job in inbox.processing(timeout=20):
            with suppress(RuntimeError):
                async with job as message:
                    got.append(told(message))
                    if len(got) == 1:
                        await away(net)
                        if fails:
                            raise RuntimeError
        assert [got[0], got[1], got[2][0]] == [("one", False), ("one", True), "two"]
        assert (len(got), ctx.given_up) == (3, 0)


@scene("a")
async def test_what_is_stopped_stays_stopped(net: testing.Network) -> None:
    async with net.context("a") as ctx, net.context("a") as other:
        inbox = await ctx.create_consumer("topic/news")
        net.kill("a")
        await asyncio.sleep(1)
        await ctx.stop()
        net.restart("a")
        await other.send("topic/news", "x")
        assert await inbox.receive(timeout=5) is None
        await ctx.start()
        assert await inbox.receive_body(str, timeout=5) == "x"


# --- sending ------------------------------------------------------------------------------------------------------


@scene("a")
async def test_a_send_that_was_not_begun_waits(net: testing.Network) -> None:
    async with net.context("a") as ctx:
        await ctx.declare_queue("box")
        net.kill("a")
        await asyncio.sleep(1)
        sends = [asyncio.create_task(ctx.send("queue/box", str(number))) for number in range(3)]
        quick = asyncio.create_task(ctx.send("queue/box", "3", delivery_mode=DeliveryMode.NON_PERSISTENT))
        cancelled = asyncio.create_task(ctx.send("queue/box", "never"))
        await asyncio.sleep(5)
        assert not any(each.done() for each in (*sends, quick))
        cancelled.cancel()
        net.restart("a")
        assert [(await each).state for each in (*sends, quick)] == [SendState.STORED] * 4
        inbox = await ctx.create_consumer("queue/box")
        assert [(await taken(inbox)).get_body(str) for _ in range(4)] == ["0", "1", "2", "3"]
        assert await inbox.receive(timeout=1) is None


@pytest.mark.parametrize("how", ["kill", "stop", "cut"])
@scene("a", disk_delay_s=1.0)
async def test_a_send_that_was_not_confirmed_raises(net: testing.Network, how: str) -> None:
    async with net.context("a") as ctx:
        sending = asyncio.create_task(ctx.send("topic/news", "x"))
        await asyncio.sleep(0.5)
        assert not sending.done()
        getattr(net, how)("a")
        with pytest.raises(IllegalStateException) as caught:
            await sending
        assert caught.value.error_code == NODE_LOST
        if how != "cut":
            net.restart("a")
        assert (await ctx.send("topic/news", "y")).state is SendState.STORED


@scene("a", disk_delay_s=1.0)
async def test_what_fails_after_its_call_returned_is_reported_if_it_was_a_send(net: testing.Network) -> None:
    heard: list[JMSException] = []
    async with net.context("a") as ctx:
        ctx.set_exception_listener(heard.append)
        inbox = await ctx.create_consumer("topic/news")
        await ctx.send("topic/news", "x")
        await taken(inbox)
        net.kill("a")  # Its acknowledgement is not durable.
        await asyncio.sleep(1)
        assert [each.error_code for each in heard] == [NODE_LOST]
        net.restart("a")
        assert told(await taken(inbox)) == ("x", True)
        await ctx.send("topic/y", "y", delivery_mode=DeliveryMode.NON_PERSISTENT)
        heard.clear()
        net.kill("a")
        await asyncio.sleep(1)
        assert sorted(str(each).partition(":")[0] for each in heard) == [
            "the node at virtual ended", "the node at virtual ended; trying to reach it again"
        ]  # fmt: skip
        net.restart("a")


@scene("a", "b")
async def test_the_progress_of_messages_is_heard_further_on(net: testing.Network) -> None:
    async with net.context("a") as ctx, net.context("b") as far:
        queue = await far.declare_queue("box")
        net.unlink("a", "b")
        followed = await ctx.send(queue, "x")
        plain = await ctx.send("topic/news", "y")
        waiting = asyncio.create_task(followed.delivered(timeout=600))
        carried = asyncio.create_task(plain.carried(timeout=600))
        await away(net)
        with pytest.raises(IllegalStateException, match="does not track this message any more"):
            await carried
        net.link("a", "b")
        inbox = await far.create_consumer(queue)
        assert await inbox.receive_body(str, timeout=SOON_S) == "x"
        assert await waiting is SendState.DELIVERED


# --- transactions -------------------------------------------------------------------------------------------------


@KINDS
@scene("a", messaging={"redelivery_delay_s": 0.0})
async def test_a_transaction_of_before_cannot_be_committed(net: testing.Network, kind: str) -> None:
    async with net.context("a", TRANSACTED, client_id="me") as ctx, net.context("a") as other:
        await other.declare_queue("box")
        await other.declare_queue("out")
        inbox, out = await consumer_of(ctx, kind), await other.create_consumer("queue/out")
        for text in ("one", "two"):
            await other.send(to(kind), text)
        await ctx.send("queue/out", (await taken(inbox)).get_body(str) or "")
        await away(net)
        assert told(await taken(inbox)) == ("one", True)  # In the same transaction.
        await ctx.send("queue/out", "in vain")
        with pytest.raises(TransactionRolledBackException, match="the connection to the node was lost"):
            await ctx.commit()
        for text in ("one", "two"):
            message = await taken(inbox)
            assert message.get_body(str) == text
            await ctx.send("queue/out", text)
        await ctx.commit()
        assert [(await taken(out)).get_body(str) for _ in range(2)] == ["one", "two"]
        await asyncio.sleep(1)
        await away(net)
        assert (await inbox.receive(timeout=5), await out.receive(timeout=5)) == (None, None)


@scene("a")
async def test_a_transaction_ends_while_the_node_is_gone(net: testing.Network) -> None:
    async with net.context("a", TRANSACTED) as ctx:
        sent = await ctx.send("topic/news", "x")
        net.kill("a")
        await asyncio.sleep(1)
        with pytest.raises(TransactionRolledBackException):
            await ctx.commit()
        assert sent.state is SendState.FAILED
        await ctx.commit()  # The next one, which is empty.
        await ctx.rollback()
        net.restart("a")
        await ctx.send("topic/news", "y")
        await ctx.commit()


@pytest.mark.parametrize("how", ["kill", "stop"])
@scene("a", disk_delay_s=1.0)
async def test_a_commit_that_was_not_answered_is_in_doubt(net: testing.Network, how: str) -> None:
    async with net.context("a", TRANSACTED) as ctx, net.context("a") as other:
        inbox = await ctx.create_consumer("topic/news")
        await other.send("topic/news", "x")
        await taken(inbox)
        await ctx.send("topic/out", "y")
        committing = asyncio.create_task(ctx.commit())
        await asyncio.sleep(0.5)
        getattr(net, how)("a")
        with pytest.raises(IllegalStateException) as caught:
            await committing
        assert caught.value.error_code == NODE_LOST
        net.restart("a")
        assert told(await taken(inbox)) == ("x", True)
        await ctx.commit()


# --- other objects ------------------------------------------------------------------------------------------------


@scene("a", "b")
async def test_a_temporary_queue_has_the_same_address_afterwards(net: testing.Network) -> None:
    async with net.context("a") as ctx, net.context("b") as far:
        queue = await ctx.create_temporary_queue()
        inbox = await ctx.create_consumer(queue)
        await away(net)
        await ctx.send("topic/x", "waits for the node")
        await far.send(f"queue/{queue.queue_name}", "reply")
        assert await inbox.receive_body(str, timeout=SOON_S) == "reply"
        await inbox.close()
        await queue.delete()
        await away(net)
        await ctx.send("topic/x", "it was not declared again")
        with pytest.raises(JMSException):
            await ctx.send(queue, "x")


@scene("a")
async def test_requests_wait_on(net: testing.Network) -> None:
    async with net.context("a") as ctx, net.context("a") as other:
        await other.declare_queue("weather")
        asking = asyncio.create_task(ctx.ask("queue/weather", "today", timeout=600))
        await asyncio.sleep(1)
        await away(net)
        inbox = await other.create_consumer("queue/weather")
        question = await taken(inbox)
        await away(net)
        await other.reply(question, "sunny")
        assert (await asking).get_body(str) == "sunny"
        assert not await ctx._requestor._connection.opened.provider.execute(OpenRequests())  # noqa: SLF001 - it is over


@scene("a")
async def test_a_browser_looks_anew(net: testing.Network) -> None:
    async with net.context("a") as ctx:
        await ctx.declare_queue("box")
        await ctx.send("queue/box", "x")
        browser = ctx.create_browser("queue/box")
        assert [each.get_body(str) async for each in browser] == ["x"]
        await away(net)
        assert [each.get_body(str) async for each in browser] == ["x"]
        net.kill("a")
        await asyncio.sleep(1)
        looking = asyncio.ensure_future(anext(browser.messages()))
        await asyncio.sleep(1)
        net.restart("a")
        assert (await looking).get_body(str) == "x"


@scene("a")
async def test_messages_of_the_own_connection_are_left_out_further_on(net: testing.Network) -> None:
    async with net.context("a") as first, net.context("a") as ctx:
        inbox = await ctx.create_consumer("topic/news", no_local=True)
        await first.close()  # So the numbers of connections differ after the restart.
        await away(net)
        async with net.context("a") as other:
            await ctx.send("topic/news", "own")
            await other.send("topic/news", "other")
            assert await inbox.receive_body(str, timeout=5) == "other"


@scene("a")
async def test_a_client_id_that_another_program_took_ends_its_connection_alone(net: testing.Network) -> None:
    lasting = cast("ReconnectingNetwork", net)
    async with net.context("a") as plain:
        ctx = await net.context("a", client_id="me")
        inbox = await ctx.create_durable_consumer("topic/news", "all")
        net.kill("a")
        await asyncio.sleep(10)
        lasting.taken_client = "me"
        net.restart("a")
        with pytest.raises(IllegalStateException, match=r"the connection could not be opened again: .*'me'"):
            await inbox.receive(timeout=SOON_S)
        with pytest.raises(IllegalStateException, match="Create a new context"):
            await ctx.send("topic/news", "x")
        assert (await plain.send("topic/news", "x")).state is SendState.STORED
        await ctx.close()
        with pytest.raises(InvalidClientIDException):
            _ = await net.context("a", client_id="me")


# --- trying -------------------------------------------------------------------------------------------------------


@scene("a")
async def test_it_tries_less_and_less_often_and_logs_the_loss_and_the_return(
    net: testing.Network, caplog: pytest.LogCaptureFixture
) -> None:
    lasting = cast("ReconnectingNetwork", net)
    heard: list[JMSException] = []
    caplog.set_level(logging.INFO, "carrypost.jms")
    async with net.context("a") as ctx, net.context("a"):
        ctx.set_exception_listener(heard.append)
        await asyncio.sleep(60)
        began_s = asyncio.get_running_loop().time()
        await away(net, length_s=30)
        await ctx.send("topic/news", "x")
        pauses = [each - began_s for each in lasting.attempts]
        assert pauses == pytest.approx([0, 0.1, 0.3, 0.7, 1.5, 3.1, 6.3, 11.3, 16.3, 21.3, 26.3, 31.3], abs=0.01)
        logged = [(each.levelname, each.getMessage()) for each in caplog.records]
        assert logged == [
            (
                "WARNING",
                "lost the connection to the node at a (the node at virtual ended); trying to reach it again",
            ),
            ("INFO", "reached the node at a again after 31.3 s"),
        ]
        assert [(each.error_code, str(each)) for each in heard] == [
            (NODE_LOST, "the node at virtual ended; trying to reach it again")
        ]


@scene("a")
async def test_only_what_a_program_took_counts_as_delivered_when_it_is_cut_off_again_and_again(
    net: testing.Network,
) -> None:
    lasting = cast("ReconnectingNetwork", net)
    async with net.context("a", INDIVIDUAL) as ctx:
        await ctx.declare_queue("box")
        for number in range(10):
            await ctx.send("queue/box", str(number))
        inbox = await ctx.create_consumer("queue/box")
        for took in (1, 2):
            for _ in range(took):
                await asyncio.sleep(1)
                await taken(inbox)
            await asyncio.sleep(1)
            lasting.cut("a")
            await asyncio.sleep(1)
        counts = []
        for _ in range(10):
            counts.append((message := await taken(inbox)).get_int_property("JMSXDeliveryCount"))
            await message.acknowledge()
        assert counts == [3, 2, *[1] * 8]


@scene("a")
async def test_a_node_that_ends_again_and_again_is_not_asked_ever_more_often(net: testing.Network) -> None:
    lasting = cast("ReconnectingNetwork", net)
    async with net.context("a") as ctx:
        await asyncio.sleep(60)
        for _ in range(10):
            lasting.cut("a")
            await asyncio.sleep(0.001)
            await ctx.send("topic/news", "x")
        pauses = [later - earlier for earlier, later in pairwise(lasting.attempts)]
        assert pauses == pytest.approx([0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 5, 5, 5], abs=0.1)


@pytest.mark.parametrize("how", ["kill", "stop", "cut"])
@pytest.mark.parametrize("others", [0, 1])
@scene("a")
async def test_a_context_that_its_node_leaves_while_it_opens_is_open_when_the_node_is_back(
    net: testing.Network, how: str, others: int
) -> None:
    for turns in range(1, 20):
        before = [await net.context("a") for _ in range(others)]
        opening = asyncio.ensure_future(net.context("a"))
        for _ in range(turns):
            await asyncio.sleep(0)
        getattr(net, how)("a")
        await asyncio.sleep(1)
        if how != "cut":
            net.restart("a")
        for ctx in (*before, await asyncio.wait_for(opening, SOON_S)):
            await ctx.send("topic/news", "x")
            await ctx.close()


@scene("a")
async def test_it_gives_up_when_its_time_is_over(net: testing.Network) -> None:
    cast("ReconnectingNetwork", net).limit_s = 20.0
    heard: list[JMSException] = []
    ctx = await net.context("a")
    ctx.set_exception_listener(heard.append)
    inbox = await ctx.create_consumer("topic/news")
    net.kill("a")
    began_s = asyncio.get_running_loop().time()
    sending = asyncio.create_task(ctx.send("topic/news", "x"))
    with pytest.raises(IllegalStateException, match=r"was not back within 20 s: create a new context"):
        await inbox.receive()
    assert asyncio.get_running_loop().time() - began_s == pytest.approx(20, abs=0.1)
    for call in (sending, ctx.send("topic/news", "x")):
        with pytest.raises(IllegalStateException, match="was not back"):
            await call
    await asyncio.sleep(1)
    assert [each.error_code for each in heard] == [NODE_LOST, NODE_ENDED]
    await ctx.close()
    net.restart("a")
    async with net.context("a") as another:
        await another.send("topic/news", "x")


@scene("a", "b")
async def test_another_node_is_refused(net: testing.Network) -> None:
    lasting = cast("ReconnectingNetwork", net)
    ctx = await net.context("a")
    async with net.context("b") as other:
        inbox = await ctx.create_consumer("topic/news")
        net.kill("a")
        await asyncio.sleep(1)
        lasting.answered = other._opened().units.provider.node_info  # noqa: SLF001 - of the other node
        net.restart("a")
        with pytest.raises(IllegalStateException, match=r"another node, b, is now at a: .* was attached to a"):
            await inbox.receive()
        await ctx.close()


@scene("a")
async def test_a_node_that_does_not_speak_with_it_any_more_is_given_up(net: testing.Network) -> None:
    lasting = cast("ReconnectingNetwork", net)
    ctx = await net.context("a")
    inbox = await ctx.create_consumer("topic/news")
    net.kill("a")
    await asyncio.sleep(1)
    lasting.refusal = JMSException("this node speaks version 7")
    net.restart("a")
    with pytest.raises(IllegalStateException, match="the node is back, and cannot be used: this node speaks version 7"):
        await inbox.receive()
    await ctx.close()


@scene("a")
async def test_programs_that_close_meanwhile_wait_for_nothing(net: testing.Network) -> None:
    lasting = cast("ReconnectingNetwork", net)
    ctx, other = await net.context("a", TRANSACTED), await net.context("a")
    inbox = await ctx.create_consumer("topic/news")
    waiting = asyncio.create_task(inbox.receive())
    net.kill("a")
    await asyncio.sleep(1)
    sending = asyncio.create_task(ctx.send("topic/news", "x"))
    declaring = asyncio.create_task(ctx.declare_queue("box"))
    await asyncio.sleep(1)
    began_s = asyncio.get_running_loop().time()
    await inbox.close()
    assert await waiting is None
    await ctx.close()
    with pytest.raises(IllegalStateException):
        await sending
    await other.drain()
    assert asyncio.get_running_loop().time() == began_s
    tried = len(lasting.attempts)
    await lasting.close_program("a")
    await asyncio.sleep(60)
    assert len(lasting.attempts) == tried
    with pytest.raises(IllegalStateException):
        await declaring
    net.restart("a")


@scene("a")
async def test_what_closes_while_it_is_restored_is_closed(net: testing.Network) -> None:
    lasting = cast("ReconnectingNetwork", net)
    async with net.context("a") as ctx, net.context("a", client_id="other") as other:
        consumers = [await ctx.create_consumer("topic/news") for _ in range(20)]
        inbox = await other.create_durable_consumer("topic/news", "all")
        for turns in range(0, 120, 10):
            await away(net)
            await lasting.attached.wait()
            for _ in range(turns):
                await asyncio.sleep(0)
            await consumers.pop().close()
            await ctx.send("topic/news", str(turns))
            for each in (*consumers, inbox):
                assert await each.receive_body(str, timeout=5) == str(turns)
            assert lasting.consumers("a") == len(consumers) + 1
            await asyncio.sleep(1)
