"""Receipts of queues as programs hear them: of hand-over and delivery, over carriers, with managers that are off."""

from __future__ import annotations

import asyncio

import pytest
from tests.support.jms_scenes import NEWS, SOON_S, got, scene

from carrypost import (
    DeliveryMode,
    DeliveryTimeoutException,
    IllegalStateException,
    JMSException,
    Queue,
    SendState,
    Sent,
    SessionMode,
    testing,
)
from carrypost.log.record import Record
from carrypost.messaging import control
from carrypost.messaging.control import Outcome
from carrypost.naming import InitialContext

pytestmark = pytest.mark.attached("a receipt may overtake the answer that tells which message it is about")

STORED, CARRIED, EXPIRED, FAILED, DELIVERED = (
    SendState.STORED, SendState.CARRIED, SendState.EXPIRED, SendState.FAILED, SendState.DELIVERED,
)  # fmt: skip


async def states(sent: Sent) -> list[SendState]:
    return [state async for state in sent.states()]


@scene("a", "m")
async def test_hand_over_and_delivery_of_a_message_to_a_queue_are_heard_of(net: testing.Network) -> None:
    async with net.context("a") as here, net.context("m") as there:
        mail = await there.declare_queue("mail")
        sent = await here.create_producer().send(mail, "hello")
        rising = asyncio.create_task(states(sent))
        assert await sent.handed_over(timeout=SOON_S) is CARRIED
        with pytest.raises(DeliveryTimeoutException) as late:
            await sent.delivered(timeout=SOON_S)
        assert late.value.state is CARRIED
        await got(await there.create_consumer(mail))
        await sent.delivered(timeout=SOON_S)
        await sent.handed_over()
        assert await rising == [STORED, CARRIED, DELIVERED]


@scene("a", "m", "r")
async def test_a_receiver_on_a_third_node_delivers(net: testing.Network) -> None:
    async with net.context("a") as here, net.context("m") as there, net.context("r") as far:
        mail = await there.declare_queue("mail")
        inbox = await far.create_consumer(mail)
        sent = await here.create_producer().send(mail, "hello")
        await got(inbox)
        await sent.delivered(timeout=SOON_S)


@scene("m")
async def test_a_queue_of_the_same_node_has_what_is_stored(net: testing.Network) -> None:
    async with net.context("m") as ctx:
        mail = await ctx.declare_queue("mail")
        sent = await ctx.create_producer().send(mail, "hello")
        assert await sent.handed_over(timeout=0) is STORED
        await got(await ctx.create_consumer(mail))
        assert await sent.delivered(timeout=SOON_S) is DELIVERED


@scene("a", "m")
async def test_nothing_is_heard_of_what_is_not_persistent(net: testing.Network) -> None:
    async with net.context("a") as here, net.context("m") as there:
        mail = await there.declare_queue("mail")
        sent = await here.create_producer().send(mail, "x", delivery_mode=DeliveryMode.NON_PERSISTENT)
        for call in (sent.delivered, sent.handed_over):
            with pytest.raises(IllegalStateException, match="send it PERSISTENT"):
                await call()


@scene("a", "m")
async def test_a_message_to_a_queue_that_is_not_there_fails_with_the_reason(net: testing.Network) -> None:
    async with net.context("a") as here, net.context("m"):
        sent = await here.create_producer().send(Queue("nothing@m"), "hello")
        for call in (sent.delivered, sent.handed_over):
            with pytest.raises(JMSException, match="there is no such queue") as failed:
                await call(SOON_S)
            assert not isinstance(failed.value, TimeoutError)
        assert sent.state is FAILED


@scene("a", "m")
async def test_what_becomes_of_a_queue_or_its_consumers_is_heard(net: testing.Network) -> None:
    async with net.context("a") as here, net.context("m") as there:
        there.set_exception_listener(lambda _: None)

        def fail(message: object) -> None:
            raise ValueError(message)

        mail = await there.declare_queue("mail")
        consumer = await there.create_consumer(mail)
        consumer.set_message_listener(fail)
        sent = await here.create_producer().send(mail, "hello")
        with pytest.raises(JMSException, match="dead letter"):
            await sent.delivered(timeout=SOON_S)
        await consumer.close()
        sent = await here.create_producer().send(mail, "hello")
        await sent.handed_over(timeout=SOON_S)
        await InitialContext(there).unbind("mail")
        with pytest.raises(JMSException, match="its queue ended"):
            await sent.delivered(timeout=SOON_S)


@scene("a", "m", "x", security="signed")
async def test_what_others_than_the_manager_say_changes_nothing_and_is_counted(net: testing.Network) -> None:
    async with net.context("a") as here, net.context("m") as there:
        mail = await there.declare_queue("mail")
        sent = await here.create_producer().send(mail, "hello")
        asked = await here.create_producer().send(NEWS, "hello", request_receipt=True)
        await sent.handed_over(timeout=SOON_S)
        assert sent.descriptor is not None
        assert asked.descriptor is not None
        lies = [Outcome(sent.descriptor.id, kind) for kind in (control.HANDED_OVER, control.DELIVERED, control.FAILED)]
        lies += [Outcome(asked.descriptor.id, kind) for kind in (control.HANDED_OVER, control.FAILED)]
        forged = control.control_draft(here.node_id, lies, None)
        net.host("x").publish(forged.destination, b"", headers=forged.headers, now=round(net.now * 1e6))
        await net.run(SOON_S)
        assert (sent.state, asked.state) == (CARRIED, STORED)
        assert net.host("a").overview().refused["receipt"] == len(lies)


@scene("a", "m")
async def test_a_manager_that_is_off_is_waited_for_and_a_late_receipt_counts(net: testing.Network) -> None:
    async with net.context("m") as there:
        mail = await there.declare_queue("mail")
    net.kill("m")
    async with net.context("a") as here:
        sent = await here.create_producer().set_delivery_timeout(60).send(mail, "hello", time_to_live=3600)
        rising = asyncio.create_task(states(sent))
        for call in (sent.delivered, sent.handed_over):
            with pytest.raises(DeliveryTimeoutException) as over:
                await call()
            assert over.value.state is FAILED
        net.restart("m")
        async with net.context("m") as there:
            await got(await there.create_consumer(mail))
        await net.run(SOON_S)
        await sent.delivered()
        assert await rising == [STORED, FAILED, DELIVERED]


@scene("a", "m")
async def test_a_sender_that_was_off_finds_what_it_sent_and_what_became_of_it(net: testing.Network) -> None:
    async with net.context("a") as here, net.context("m") as there:
        mail = await there.declare_queue("mail")
        net.unlink("a", "m")
        sent = await here.create_producer().send(mail, "hello", time_to_live=3600)
        net.kill("a")
        await net.run(60)
        net.restart("a")
        net.link("a", "m")
        await got(await there.create_consumer(mail))
    async with net.context("a") as here:
        found = await here.sent(sent.message_id or "")
        assert (found.message_id, found.expiration) == (sent.message_id, sent.expiration)
        await found.delivered(timeout=SOON_S)
        await found.handed_over(timeout=0)


@scene("a", "m")
async def test_what_a_transaction_sends_and_consumes_is_heard_of_from_the_commit_on(net: testing.Network) -> None:
    transacted = SessionMode.SESSION_TRANSACTED
    async with net.context("a", transacted) as here, net.context("m", transacted) as there:
        mail = await there.declare_queue("mail")
        inbox = await there.create_consumer(mail)
        sent = await here.create_producer().send(mail, "hello")
        with pytest.raises(IllegalStateException, match="commit first"):
            await sent.handed_over()
        await here.commit()
        await got(inbox)
        with pytest.raises(DeliveryTimeoutException):
            await sent.delivered(timeout=SOON_S)
        await there.rollback()
        await got(inbox)
        with pytest.raises(DeliveryTimeoutException):
            await sent.delivered(timeout=SOON_S)
        await there.commit()
        await sent.delivered(timeout=SOON_S)


def test_assignments_and_receipts_are_recorded() -> None:
    record = Record()

    async def play() -> None:
        async with testing.network("a", "m", "r", seed=1, record=record) as net:
            for other in "ar":
                net.link("m", other)
            async with net.context("a") as here, net.context("m") as there, net.context("r") as far:
                mail = await there.declare_queue("mail")
                inbox = await far.create_consumer(mail)
                producer = here.create_producer()
                sent = await producer.send(mail, "hello")
                lost = await producer.send(Queue("nothing@m"), "hello")
                await got(inbox)
                await sent.delivered(timeout=SOON_S)
                with pytest.raises(JMSException):
                    await lost.delivered(timeout=SOON_S)
            names = [(each.message_id or "").removeprefix("ID:") for each in (sent, lost)]
            rows = [row for row in record.rows() if row["kind"] in ("receipt", "failure", "assign")]
            told = {(row["kind"], row["node"], row["source"], row["message"], row["detail"]) for row in rows}
            assert told == {
                ("assign", "m", "a", names[0], "r"),
                ("receipt", "a", "a", names[0], None),
                ("failure", "a", "a", names[1], "there is no such queue"),
            }
            assert len(rows) == 3

    testing.run(play)
