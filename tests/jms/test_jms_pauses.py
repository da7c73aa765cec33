"""Pauses before a message comes again that a program failed with."""

from __future__ import annotations

import pytest
from tests.support.jms_scenes import AT_ONCE, NEWS, SOON_S, got, scene, texts

from carrypost import JMSException, ListenerException, Message, Queue, SessionMode, Topic, testing

TRANSACTED, INDIVIDUAL = SessionMode.SESSION_TRANSACTED, SessionMode.INDIVIDUAL_ACKNOWLEDGE
TRIES = [0.0, 0.5, 1.5, 3.5, 7.5, 15.5]
"""Times of a message that a program fails with each time: pauses of half a second, a second, two, and so on."""


def at(net: testing.Network, since_s: float) -> float:
    return round(net.now - since_s, 1)


@scene("a")
async def test_what_is_rolled_back_comes_again_after_longer_and_longer_pauses_and_is_given_up(
    net: testing.Network,
) -> None:
    async with net.context("a") as plain, net.context("a", TRANSACTED, client_id="me") as context:
        told: list[JMSException] = []
        context.set_exception_listener(told.append)
        box = await plain.declare_queue("box")
        inbox = await context.create_consumer(box)
        await plain.create_producer().send(box, "bad")
        await plain.create_producer().send(box, "good")
        since_s, came = net.now, []
        for _ in TRIES:
            assert (await got(inbox)).get_body(str) == "bad", "order stays"
            came.append(at(net, since_s))
            await context.rollback()
        assert came == TRIES
        assert (await got(inbox)).get_body(str) == "good"
        await context.commit()
        assert [type(each) for each in told] == [ListenerException]
        assert await texts(await plain.create_consumer(Queue("DLQ.box@a"))) == ["bad"]


@scene("a", messaging=AT_ONCE | {"tries": 2})
async def test_what_a_program_rolled_back_too_often_does_not_fail_its_test(net: testing.Network) -> None:
    async with net.context("a", TRANSACTED) as context:  # Without an exception listener.
        inbox = await context.create_consumer(NEWS)
        async with net.context("a") as plain:
            await plain.create_producer().send(NEWS, "bad")
        for _ in range(2):
            await got(inbox)
            await context.rollback()
        assert await inbox.receive(timeout=SOON_S) is None
        assert context.given_up == 1


@scene("a", messaging={"tries": 100})
async def test_a_pause_lasts_a_minute_at_most_and_is_short_again_after_a_commit(net: testing.Network) -> None:
    async with net.context("a") as plain, net.context("a", TRANSACTED) as context:
        inbox = await context.create_consumer(NEWS)
        await plain.create_producer().send(NEWS, "x")
        pauses, since_s = [], net.now
        for _ in range(10):
            assert await inbox.receive(timeout=61) is not None
            pauses.append(at(net, since_s))
            since_s = net.now
            await context.rollback()
            assert await inbox.receive_no_wait() is None
        assert pauses == [0, 0.5, 1, 2, 4, 8, 16, 32, 60, 60]
        assert await inbox.receive(timeout=61) is not None
        await context.commit()
        await plain.create_producer().send(NEWS, "y")
        await got(inbox)
        since_s = net.now
        await context.rollback()
        await got(inbox)
        assert at(net, since_s) == 0.5


@scene("a")
async def test_a_transaction_that_received_nothing_pauses_nothing(net: testing.Network) -> None:
    async with net.context("a") as plain, net.context("a", TRANSACTED) as context:
        inbox = await context.create_consumer(NEWS)
        await context.create_producer().send(Topic("other"), "x")
        await context.rollback()
        await plain.create_producer().send(NEWS, "x")
        await got(inbox)
        assert net.now == 0


@scene("a")
async def test_a_listener_that_fails_is_called_again_after_pauses_and_gets_nothing_else_meanwhile(
    net: testing.Network,
) -> None:
    async with net.context("a") as context, net.context("a") as sender:
        context.set_exception_listener(lambda _: None)
        came: list[tuple[str, float]] = []

        def fail(message: Message) -> None:
            body = message.get_body(str) or ""
            came.append((body, round(net.now, 1)))
            if body == "bad":
                raise ValueError

        (await context.create_consumer(NEWS)).set_message_listener(fail)
        await sender.create_producer().send(NEWS, "bad")
        await sender.create_producer().send(NEWS, "good")
        await net.run(SOON_S)
        assert came == [*(("bad", when_s) for when_s in TRIES), ("good", TRIES[-1])]


@scene("a")
async def test_closing_does_not_wait_for_the_next_try_of_a_listener(net: testing.Network) -> None:
    async with net.context("a", client_id="me") as context:
        inbox = await context.create_durable_consumer(NEWS, "mail")

        def fail(message: Message) -> None:
            raise ValueError(message)

        inbox.set_message_listener(fail)
        await context.create_producer().send(NEWS, "x")
        await net.run(0.1)
    assert net.now == 0.1
    async with net.context("a", client_id="me") as context:
        again = await got(await context.create_durable_consumer(NEWS, "mail"))
        assert again.jms_redelivered


@scene("a")
async def test_after_a_failed_block_of_processing_only_that_message_waits(net: testing.Network) -> None:
    async with net.context("a", INDIVIDUAL) as context:
        inbox = await context.create_consumer(NEWS)
        for body in ("bad", "good"):
            await context.create_producer().send(NEWS, body)
        for count, when_s in ((1, 0.0), (2, 0.5)):
            message = await got(inbox)
            assert (message.get_body(str), round(net.now, 1)) == ("bad", when_s)
            assert message.get_int_property("JMSXDeliveryCount") == count
            with pytest.raises(ValueError, match="no"):
                async with message.processing():
                    raise ValueError("no")
            if count == 1:
                good = await got(inbox)
                assert (good.get_body(str), net.now) == ("good", 0.0)
                await good.acknowledge()


@scene("a")
async def test_recover_lets_everything_come_again_at_once(net: testing.Network) -> None:
    async with net.context("a", SessionMode.CLIENT_ACKNOWLEDGE) as context:
        inbox = await context.create_consumer(NEWS)
        await context.create_producer().send(NEWS, "x")
        await got(inbox)
        await context.recover()
        await got(inbox)
        assert net.now == 0
