"""Receipts as programs hear them: of topics that were asked, over carriers, late, and after restarts."""

from __future__ import annotations

import asyncio
import gc
import weakref

import pytest
from tests.support.jms_scenes import NEWS, SOON_S, got, scene

from carrypost import (
    DeliveryMode,
    DeliveryTimeoutException,
    IllegalArgumentException,
    IllegalStateException,
    JMSException,
    SendState,
    Sent,
    SessionMode,
    Topic,
    TransactionRolledBackException,
    testing,
)
from carrypost.log.record import Record

pytestmark = pytest.mark.attached("a receipt may overtake the answer that tells which message it is about")

STORED, CARRIED, EXPIRED, FAILED, DELIVERED = (
    SendState.STORED, SendState.CARRIED, SendState.EXPIRED, SendState.FAILED, SendState.DELIVERED,
)  # fmt: skip


async def states(sent: Sent) -> list[SendState]:
    return [state async for state in sent.states()]


async def states_until(net: testing.Network, sent: Sent, seconds: float) -> list[SendState]:
    """Return the states that are seen in the next while."""
    seen: list[SendState] = []

    async def watch() -> None:
        async for state in sent.states():
            seen.append(state)  # noqa: PERF401 - as they come

    watching = asyncio.create_task(watch())
    await net.run(seconds)
    watching.cancel()
    return seen


@scene("a", "b")
async def test_the_first_delivery_on_a_topic_is_heard_of_if_that_is_asked_for(net: testing.Network) -> None:
    async with net.context("a") as here, net.context("b") as there:
        inbox = await there.create_consumer(NEWS)
        sent = await here.create_producer().send(NEWS, "hello", request_receipt=True)
        rising = asyncio.create_task(states(sent))
        message = await got(inbox)
        assert message.get_boolean_property("JMS_carrypost_Receipt")
        assert await sent.delivered(timeout=SOON_S) is DELIVERED
        assert sent.state is DELIVERED
        assert await rising == [STORED, CARRIED, DELIVERED]
        assert await states(sent) == [DELIVERED]


@pytest.mark.parametrize("mode", DeliveryMode)
@scene("a", "b", altruistic=True)
async def test_a_send_can_wait_for_a_neighbour_that_carries_it_whatever_it_is(
    net: testing.Network, mode: DeliveryMode
) -> None:
    net.unlink("a", "b")
    async with net.context("a") as here:
        sent = await here.create_producer().set_delivery_mode(mode).send(NEWS, "hello")
        with pytest.raises(DeliveryTimeoutException, match="no acknowledgement from a neighbour within 60 s") as late:
            await sent.carried(timeout=SOON_S)
        assert late.value.state is sent.state is STORED
        net.link("a", "b")
        assert await sent.carried(timeout=SOON_S) is sent.state is CARRIED
        assert await sent.carried() is CARRIED
        with pytest.raises(IllegalStateException):
            await sent.delivered()


@scene("a")
async def test_what_nobody_carried_before_its_end_is_not_waited_for_any_longer(net: testing.Network) -> None:
    async with net.context("a") as here:
        sent = await here.create_producer().set_time_to_live(minutes=1).send(NEWS, "hello")
        with pytest.raises(DeliveryTimeoutException, match="last state EXPIRED"):
            await sent.carried()
        assert net.now == 60


@scene("a")
async def test_what_is_for_a_queue_of_its_own_node_needs_no_carrier(net: testing.Network) -> None:
    async with net.context("a") as here, net.context("a", SessionMode.SESSION_TRANSACTED) as tx:
        box = await here.declare_queue("box")
        await (await here.create_producer().send(box, "hello")).carried(timeout=0)
        drafted = await tx.create_producer().send(NEWS, "hello")
        with pytest.raises(IllegalStateException, match="commit first"):
            await drafted.carried()


@scene("a")
async def test_a_program_of_the_same_node_is_a_receiver_like_others(net: testing.Network) -> None:
    async with net.context("a") as ctx:
        inbox = await ctx.create_consumer(NEWS)
        sent = await ctx.create_producer().send(NEWS, "hello", request_receipt=True)
        await got(inbox)
        await sent.delivered(timeout=SOON_S)


@scene("a")
async def test_states_and_modes_are_printed_by_name(net: testing.Network) -> None:
    async with net.context("a") as ctx:
        sent = await ctx.create_producer().send(NEWS, "hello")
        assert [str(sent.state), f"{sent.state}"] == ["STORED", "STORED"]
        assert [str(ctx.session_mode), str(ctx.create_producer().delivery_mode)] == ["AUTO_ACKNOWLEDGE", "PERSISTENT"]
        assert (sent.state, ctx.session_mode) == (1, 1), "they are still numbers"


@scene("a", "b")
async def test_what_is_not_acknowledged_is_not_delivered(net: testing.Network) -> None:
    async with net.context("a") as here, net.context("b", SessionMode.CLIENT_ACKNOWLEDGE) as there:
        inbox = await there.create_consumer(NEWS)
        sent = await here.create_producer().send(NEWS, "hello", request_receipt=True)
        message = await got(inbox)
        with pytest.raises(DeliveryTimeoutException, match="no receipt within 60 s") as late:
            await sent.delivered(timeout=SOON_S)
        assert late.value.state is sent.state is CARRIED
        assert isinstance(late.value, TimeoutError)
        await message.acknowledge()
        await sent.delivered(timeout=SOON_S)


@scene("a", "b")
async def test_a_message_that_its_receiver_gave_up_is_not_delivered(net: testing.Network) -> None:
    async with net.context("a") as here, net.context("b") as there:
        there.set_exception_listener(lambda _: None)

        def fail(message: object) -> None:
            raise ValueError(message)

        (await there.create_consumer(NEWS)).set_message_listener(fail)
        sent = await here.create_producer().send(NEWS, "hello", request_receipt=True)
        await net.run(SOON_S)
        assert there.given_up == 1
        assert sent.state is CARRIED


@scene("a", "b")
async def test_a_commit_that_is_undone_gives_no_receipt(net: testing.Network) -> None:
    async with net.context("a") as here, net.context("b", SessionMode.SESSION_TRANSACTED) as there:
        inbox = await there.create_consumer(NEWS)
        sent = await here.create_producer().send(NEWS, "hello", request_receipt=True)
        await got(inbox)
        await there.create_producer().send(Topic("answers"), "an answer")
        net.fill_disk("b")
        with pytest.raises(TransactionRolledBackException):
            await there.commit()
        net.fill_disk("b", full=False)
        with pytest.raises(DeliveryTimeoutException):
            await sent.delivered(timeout=SOON_S)
        assert (await got(inbox)).jms_redelivered
        await there.commit()
        await sent.delivered(timeout=SOON_S)


@scene("a", "b")
async def test_a_crash_of_the_receiver_right_after_the_acknowledgement_loses_no_receipt(net: testing.Network) -> None:
    async with net.context("a") as here:
        net.unlink("a", "b")
        sent = await here.create_producer().send(NEWS, "hello", request_receipt=True)
        net.link("a", "b")
        async with net.context("b", SessionMode.CLIENT_ACKNOWLEDGE, client_id="b") as there:
            message = await got(await there.create_durable_consumer(NEWS, "inbox"))
            await message.acknowledge()
            net.kill("b")
        net.restart("b")
        await sent.delivered(timeout=SOON_S)


@scene("a", "bus", altruistic=True)
async def test_a_neighbour_that_only_carries_counts_as_well_also_after_a_restart(net: testing.Network) -> None:
    net.unlink("a", "bus")
    for crash in (False, True):
        async with net.context("a") as ctx:
            sent = await ctx.create_producer().send(NEWS, "hello", request_receipt=True)
            name = sent.message_id or ""
            assert await states_until(net, sent, 30) == [STORED]
        if crash:
            net.kill("a")
            net.restart("a")
        async with net.context("a") as ctx:
            found = await ctx.sent(name)
            net.link("a", "bus")
            await net.run(30)
            assert found.state is CARRIED
        net.unlink("a", "bus")
        await net.run(60)


# --- time --------------------------------------------------------------------------------------------------


@scene("a")
async def test_what_nobody_gets_expires(net: testing.Network) -> None:
    async with net.context("a") as ctx:
        sent = await ctx.create_producer().send(NEWS, "hello", request_receipt=True, time_to_live=30)
        with pytest.raises(DeliveryTimeoutException, match="EXPIRED") as over:
            await sent.delivered()
        assert over.value.state is EXPIRED
        assert sent.state is EXPIRED


@scene("a", "b")
async def test_a_delivery_timeout_fails_a_send_and_a_late_receipt_still_counts(net: testing.Network) -> None:
    net.unlink("a", "b")
    async with net.context("a") as here, net.context("b") as there:
        inbox = await there.create_consumer(NEWS)
        producer = here.create_producer().set_delivery_timeout(minutes=1)
        assert producer.delivery_timeout == 60
        sent = await producer.send(NEWS, "hello", request_receipt=True, time_to_live=3600)
        rising = asyncio.create_task(states(sent))
        with pytest.raises(DeliveryTimeoutException) as over:
            await sent.delivered()
        assert over.value.state is sent.state is FAILED
        net.link("a", "b")
        await got(inbox)
        assert await rising == [STORED, FAILED, DELIVERED]
        await sent.delivered()


@scene("a", "b")
async def test_a_receipt_that_comes_after_the_end_of_the_message_counts(net: testing.Network) -> None:
    async with net.context("a") as here, net.context("b", SessionMode.CLIENT_ACKNOWLEDGE) as there:
        inbox = await there.create_consumer(NEWS)
        sent = await here.create_producer().send(NEWS, "hello", request_receipt=True, time_to_live=60)
        message = await got(inbox)
        net.unlink("a", "b")
        await message.acknowledge()
        with pytest.raises(DeliveryTimeoutException):
            await sent.delivered()
        await net.run(600)
        net.link("a", "b")
        await net.run(SOON_S)
        assert sent.state is DELIVERED


@scene("a")
async def test_a_timeout_of_zero_asks_how_things_stand(net: testing.Network) -> None:
    async with net.context("a") as ctx:
        sent = await ctx.create_producer().send(NEWS, "hello", request_receipt=True)
        with pytest.raises(DeliveryTimeoutException) as late:
            await sent.delivered(timeout=0)
        assert late.value.state is STORED


# --- what cannot be asked ----------------------------------------------------------------------------------


@scene("a")
async def test_calls_that_could_only_wait_for_ever_raise_at_once(net: testing.Network) -> None:
    async with net.context("a") as ctx:
        producer = ctx.create_producer()
        for asked in (False, True):
            sent = await producer.send(
                NEWS, "x", delivery_mode=DeliveryMode.NON_PERSISTENT, request_receipt=asked
            )  # fmt: skip
            for call in (sent.delivered, sent.handed_over):
                with pytest.raises(IllegalStateException, match="send it PERSISTENT"):
                    await call()
            assert await states(sent) == [STORED]
        sent = await producer.send(NEWS, "x")
        for call in (sent.delivered, sent.handed_over):
            with pytest.raises(IllegalStateException, match="request_receipt=True"):
                await call()
        sent = await producer.send(NEWS, "x", request_receipt=True)
        with pytest.raises(IllegalStateException, match="a topic has no manager"):
            await sent.handed_over()
        with pytest.raises(IllegalArgumentException, match="request_receipt"):
            await producer.send(NEWS, "x", request_receipt="yes")  # type: ignore[arg-type]
        with pytest.raises(IllegalArgumentException, match="a timeout"):
            await sent.delivered(timeout=-1)
        with pytest.raises(IllegalArgumentException, match="the delivery timeout"):
            producer.set_delivery_timeout(-1)


# --- transactions ------------------------------------------------------------------------------------------


@scene("a", "b")
async def test_a_send_in_a_transaction_is_heard_of_from_the_commit_on(net: testing.Network) -> None:
    async with net.context("a", SessionMode.SESSION_TRANSACTED) as here, net.context("b") as there:
        ordered = Topic("ordered", "causal")
        for topic in (NEWS, ordered):
            inbox = await there.create_consumer(topic)
            sent = await here.create_producer().send(topic, "hello", request_receipt=True)
            rising = asyncio.create_task(states(sent))
            with pytest.raises(IllegalStateException, match="commit first"):
                await sent.delivered()
            await here.commit()
            await got(inbox)
            await sent.delivered(timeout=SOON_S)
            assert await rising == [SendState.DRAFTED, STORED, CARRIED, DELIVERED]


@scene("a")
async def test_a_send_that_is_rolled_back_has_failed(net: testing.Network) -> None:
    async with net.context("a", SessionMode.SESSION_TRANSACTED) as ctx:
        sent = await ctx.create_producer().send(NEWS, "hello", request_receipt=True)
        rising = asyncio.create_task(states(sent))
        await ctx.rollback()
        assert await rising == [FAILED]
        with pytest.raises(JMSException, match="rolled back") as failed:
            await sent.delivered()
        assert failed.value.error_code == "FAILED"
        assert not isinstance(failed.value, TimeoutError)


# --- ends and restarts -------------------------------------------------------------------------------------


@scene("a")
async def test_who_waits_hears_that_the_context_closes_or_the_node_ends(net: testing.Network) -> None:
    for end in ("close", "kill"):
        ctx = await net.context("a")
        sent = await ctx.create_producer().send(NEWS, "hello", request_receipt=True)
        waiting, rising = asyncio.create_task(sent.delivered()), asyncio.create_task(states(sent))
        await asyncio.sleep(1)
        if end == "close":
            await ctx.close()
        else:
            net.kill("a")
        with pytest.raises(IllegalStateException, match=r"closed|killed"):
            await waiting
        assert await rising == [STORED]
        assert sent.state is STORED


@scene("a", "b")
async def test_a_program_that_starts_again_finds_what_it_sent(net: testing.Network) -> None:
    net.unlink("a", "b")
    async with net.context("a") as here:
        sent = await here.create_producer().send(NEWS, "hello", request_receipt=True, time_to_live=3600)
        name, expiration = sent.message_id, sent.expiration
    assert name is not None
    net.kill("a")
    net.restart("a")
    async with net.context("b") as there, net.context("a") as here:
        found = await here.sent(name)
        assert (found.message_id, found.expiration, found.state) == (name, expiration, STORED)
        net.link("a", "b")
        await got(await there.create_consumer(NEWS))
        await found.delivered(timeout=SOON_S)
        again = await here.sent(name)
        assert again is found
    async with net.context("a") as here:
        later = await here.sent(name)
        assert later.state is DELIVERED
        assert [state async for state in later.states()] == [DELIVERED]
        with pytest.raises(IllegalStateException, match="a topic has no manager"):
            await later.handed_over()
        for unknown in ("ID:a:1:99", "ID:mfrggzdf", "hello", "ID:1!"):
            with pytest.raises(IllegalArgumentException, match="this node does not track the message"):
                await here.sent(unknown)


@scene("a", "b", messaging={"receipt_s": 60})
async def test_a_message_is_found_as_far_as_it_came_in_any_life(net: testing.Network) -> None:
    async with net.context("b") as there, net.context("a") as here:
        inbox = await there.create_consumer(NEWS)
        sent = await here.create_producer().send(NEWS, "hello", request_receipt=True, time_to_live=3600)
        name = sent.message_id or ""
        assert (await here.sent(name)).state is STORED
        await got(inbox)
        await sent.delivered(timeout=SOON_S)
        for _ in range(2):
            async with net.context("a") as other:
                assert (await other.sent(name)).state is DELIVERED
            net.kill("a")
            net.restart("a")
    async with net.context("a") as here:
        found = await here.sent(name)
        await net.run(7200)
        assert await here.sent(name) is found, "its row is gone, and the program has it"
        assert found.state is DELIVERED
        del found
        gc.collect()
        with pytest.raises(IllegalArgumentException, match="this node does not track the message"):
            await here.sent(name)


@scene("a")
async def test_several_tasks_wait_and_one_that_is_cancelled_disturbs_nobody(net: testing.Network) -> None:
    async with net.context("a") as ctx:
        sent = await ctx.create_producer().send(NEWS, "hello", request_receipt=True)
        tasks = [asyncio.create_task(sent.delivered()) for _ in range(3)]
        await asyncio.sleep(1)
        tasks[0].cancel()
        await got(await ctx.create_consumer(NEWS))
        assert await asyncio.gather(*tasks[1:]) == [DELIVERED, DELIVERED]
        assert tasks[0].cancelled()


@scene("a")
async def test_nothing_is_kept_for_a_program_that_does_not_look(net: testing.Network) -> None:
    async with net.context("a") as ctx:
        sent = await ctx.create_producer().send(NEWS, "hello", request_receipt=True)
        seen = weakref.ref(sent)
        del sent
        gc.collect()
        assert seen() is None
        await got(await ctx.create_consumer(NEWS))
        await net.run(SOON_S)


def test_receipts_are_recorded() -> None:
    record = Record()

    async def play() -> None:
        async with testing.network("a", "b", seed=1, record=record) as net:
            net.link("a", "b")
            async with net.context("a") as here, net.context("b") as there:
                producer = here.create_producer()
                lost = await producer.send(Topic("nobody"), "hello", request_receipt=True, time_to_live=30)
                inbox = await there.create_consumer(NEWS)
                sent = await producer.send(NEWS, "hello", request_receipt=True)
                await got(inbox)
                await sent.delivered()
                await net.run(60)
            rows = [row for row in record.rows() if row["kind"] in ("receipt", "failure")]
            assert [(row["kind"], row["node"], row["source"], row["message"], row["detail"]) for row in rows] == [
                ("receipt", "a", "a", (sent.message_id or "").removeprefix("ID:"), None),
                ("failure", "a", "a", (lost.message_id or "").removeprefix("ID:"), "expired"),
            ]

    testing.run(play)
