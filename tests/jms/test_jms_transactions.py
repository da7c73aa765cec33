"""Transactions: receives and sends count together, or not at all, whenever the node dies."""

from __future__ import annotations

import asyncio
import gc
from contextlib import suppress
from itertools import count

import pytest

from carrypost import (
    Consumer,
    Context,
    IllegalStateException,
    JMSException,
    SendState,
    SessionMode,
    TransactionInProgressException,
    TransactionRolledBackException,
    testing,
)

pytestmark = pytest.mark.attached(
    "drafts and commits are answered later, and what is on its way when a transaction ends is known to neither side"
)

TRANSACTED = SessionMode.SESSION_TRANSACTED


async def bodies(consumer: Consumer, within_s: float = 1.0) -> list[tuple[str | None, bool]]:
    return [(each.get_body(str), each.jms_redelivered) async for each in consumer.messages(within_s)]


async def sent(ctx: Context, topic: str, *texts: str) -> None:
    for text in texts:
        await ctx.create_producer().send(ctx.create_topic(topic), text)


def play(scene: object, **options: object) -> None:
    async def entered() -> None:
        async with testing.network("a", seed=1, **options) as net:  # type: ignore[arg-type]
            await scene(net)  # type: ignore[operator]

    testing.run(entered)


def test_a_commit_sends_and_consumes_and_the_next_transaction_begins() -> None:
    async def scene(net: testing.Network) -> None:
        async with net.context("a") as plain, net.context("a", TRANSACTED, client_id="tx") as tx:
            answers = await plain.create_consumer(plain.create_topic("answers"))
            questions = await tx.create_durable_consumer(tx.create_topic("questions"), "inbox")
            await sent(plain, "questions", "one", "two")
            for text in ("one", "two"):
                assert await questions.receive_body(str) == text
                handle = await tx.create_producer().send(tx.create_topic("answers"), f"to {text}")
                assert handle.state.name == "DRAFTED"
                assert await answers.receive(timeout=5) is None, "it is not sent before the commit"
                await tx.commit()
                assert handle.state is SendState.STORED
                answer = await answers.receive(timeout=5)
                assert answer is not None
                assert (answer.get_body(str), answer.jms_message_id) == (f"to {text}", handle.message_id)
            await tx.rollback()
            assert await bodies(questions) == []

    play(scene)


def test_a_rollback_forgets_what_was_sent_and_lets_come_again_what_was_received() -> None:
    async def scene(net: testing.Network) -> None:
        async with net.context("a") as plain, net.context("a", TRANSACTED, client_id="tx") as tx:
            answers = await plain.create_consumer(plain.create_topic("answers"))
            questions = await tx.create_durable_consumer(tx.create_topic("questions"), "inbox")
            await sent(plain, "questions", "one", "two")
            handle = None
            with suppress(KeyError):
                async with tx.transaction():
                    assert await questions.receive_body(str) == "one"
                    handle = await tx.create_producer().send(tx.create_topic("answers"), "x")
                    raise KeyError
            assert handle is not None
            assert handle.state is SendState.FAILED
            async with tx.transaction():
                assert await bodies(questions) == [("one", True), ("two", False)]
                await sent(tx, "answers", "1", "2", "3")
            assert await bodies(answers) == [("1", False), ("2", False), ("3", False)]
        async with net.context("a", TRANSACTED, client_id="tx") as tx:
            assert await bodies(await tx.create_durable_consumer(tx.create_topic("questions"), "inbox")) == []

    play(scene)


def test_a_context_that_closes_rolls_back() -> None:
    async def scene(net: testing.Network) -> None:
        async with net.context("a") as plain:
            answers = await plain.create_consumer(plain.create_topic("answers"))
            async with net.context("a", TRANSACTED, client_id="tx") as tx:
                questions = await tx.create_durable_consumer(tx.create_topic("questions"), "inbox")
                await sent(plain, "questions", "one")
                assert await questions.receive_body(str) == "one"
                await sent(tx, "answers", "never")
            assert await bodies(answers) == []
            async with net.context("a", client_id="tx") as again:
                inbox = await again.create_durable_consumer(again.create_topic("questions"), "inbox")
                assert await bodies(inbox) == [("one", True)]

    play(scene)


def test_a_disk_that_refuses_a_commit_rolls_it_back() -> None:
    async def scene(net: testing.Network) -> None:
        async with net.context("a") as plain, net.context("a", TRANSACTED, client_id="tx") as tx:
            answers = await plain.create_consumer(plain.create_topic("answers"))
            questions = await tx.create_durable_consumer(tx.create_topic("questions"), "inbox")
            await sent(plain, "questions", "one")
            assert await questions.receive_body(str) == "one"
            await sent(tx, "answers", "lost")
            net.fill_disk("a")
            with pytest.raises(TransactionRolledBackException, match=r"rolled back: .*the disk is full"):
                await tx.commit()
            net.fill_disk("a", full=False)
            assert await bodies(questions, 5) == [("one", True)]
            await sent(tx, "answers", "kept")
            await tx.commit()
            assert await bodies(answers, 5) == [("kept", False)]

    play(scene)


def test_a_refused_commit_is_rolled_back_and_the_next_transaction_is_not_concerned() -> None:
    async def scene(net: testing.Network) -> None:
        async with net.context("a") as plain, net.context("a", TRANSACTED, client_id="tx") as tx:
            bills = await plain.declare_queue("bills")
            orders = await tx.create_durable_consumer(tx.create_topic("orders"), "inbox")
            await sent(plain, "orders", "1", "2")
            assert await orders.receive_body(str) == "1"
            first = await tx.send(bills, "bill of 1")
            await plain.end_queue(bills)
            with pytest.raises(TransactionRolledBackException, match=r"rolled back: .*bills") as refused:
                await tx.commit()
            assert isinstance(refused.value.__cause__, JMSException)
            assert first.state is SendState.FAILED
            bills = await plain.declare_queue("bills")
            inbox = await plain.create_consumer(bills)
            for order, redelivered in (("1", True), ("2", False)):
                async with tx.transaction():
                    message = await orders.receive(timeout=5)
                    assert message is not None
                    assert (message.get_body(str), message.jms_redelivered) == (order, redelivered)
                    await tx.send(bills, f"bill of {order}")
                assert await bodies(inbox) == [(f"bill of {order}", False)]

    play(scene)


def test_a_transaction_with_too_large_a_message_leaves_nothing_to_the_next() -> None:
    async def scene(net: testing.Network) -> None:
        async with net.context("a") as plain, net.context("a", TRANSACTED) as tx:
            answers = await plain.create_consumer(plain.create_topic("answers"))

            async def too_much() -> None:
                async with tx.transaction():
                    for _ in range(3):
                        await tx.send("topic/answers", b"x" * 50_000)

            with pytest.raises(TransactionRolledBackException, match="rolled back: the cache has no room"):
                await too_much()
            async with tx.transaction():
                await tx.send("topic/answers", "small")
            assert await bodies(answers) == [("small", False)]

    play(scene, cache_bytes_max=100_000)


def test_messages_of_an_ordered_topic_get_their_ids_by_the_commit() -> None:
    async def scene(net: testing.Network) -> None:
        async with net.context("a", TRANSACTED) as tx:
            forum = tx.create_topic("forum", ordering="causal")
            message = tx.create_text_message("hello")
            handle = await tx.create_producer().send(forum, message)
            assert handle.message_id is message.jms_message_id is None
            await tx.commit()
            assert handle.message_id == message.jms_message_id
            assert str(handle.message_id).startswith("ID:")

    play(scene)


def test_misuse_is_told() -> None:
    async def scene(net: testing.Network) -> None:
        async with net.context("a") as plain:
            for call in (plain.commit, plain.rollback):
                with pytest.raises(IllegalStateException, match=r"SessionMode\.SESSION_TRANSACTED"):
                    await call()
            with pytest.raises(IllegalStateException, match=r"SessionMode\.SESSION_TRANSACTED"):
                async with plain.transaction():
                    pass
        async with net.context("a", TRANSACTED) as tx:
            with pytest.raises(IllegalStateException, match="rollback"):
                await tx.recover()
            await tx.acknowledge()
            inbox = await tx.create_consumer(tx.create_topic("news"))
            await sent(tx, "news", "x")
            committing = asyncio.create_task(tx.commit())
            await asyncio.sleep(0)
            with pytest.raises(IllegalStateException, match="a commit is in progress"):
                await inbox.receive()
            with pytest.raises(IllegalStateException, match="a commit is in progress"):
                await sent(tx, "news", "y")
            await committing

    play(scene, disk_delay_s=0.01)


async def work(net: testing.Network) -> list[str]:
    """Move messages from queue to queue, one per transaction, as long as the node lives; return the committed ones."""
    committed: list[str] = []
    async with net.context("a", TRANSACTED, client_id="tx") as tx:
        questions = await tx.create_durable_consumer(tx.create_topic("questions"), "inbox")
        while (message := await questions.receive(timeout=0.05)) is not None:
            text = message.get_body(str) or ""
            await sent(tx, "answers", f"{text} first", f"{text} second")
            await tx.commit()
            committed.append(text)
    return committed


@pytest.mark.parametrize("every", [4, pytest.param(1, marks=pytest.mark.soak)])
def test_a_crash_at_any_moment_leaves_all_of_a_transaction_or_nothing(every: int) -> None:
    """Let the node die after every n-th turn of the loop, for every n until that is not reached any more."""

    def crashed_after(turns: int) -> bool:
        reached = False

        async def scene(net: testing.Network) -> None:
            nonlocal reached
            async with net.context("a", client_id="plain") as plain:
                await (await plain.create_durable_consumer(plain.create_topic("answers"), "answers")).close()
                async with net.context("a", client_id="tx") as tx:
                    await (await tx.create_durable_consumer(tx.create_topic("questions"), "inbox")).close()
                await sent(plain, "questions", "one", "two", "three")
            working = asyncio.create_task(work(net))
            for _ in range(turns):
                if working.done():
                    break
                await asyncio.sleep(0.001)
            if not working.done():
                reached = True
                net.kill("a")
                net.restart("a")
                with suppress(JMSException):
                    await working
            await work(net)  # What is left.
            async with net.context("a", client_id="plain") as plain:
                inbox = await plain.create_durable_consumer(plain.create_topic("answers"), "answers")
                got = [text for text, _ in await bodies(inbox)]
            assert got == [f"{each} {half}" for each in ("one", "two", "three") for half in ("first", "second")], turns

        play(scene, disk_delay_s=0.004)
        return reached

    for turns in count(step=every):
        if not crashed_after(turns):
            break
    assert turns > 20


def test_a_commit_that_is_cancelled_is_done_or_not_and_the_next_call_waits_for_it() -> None:
    for turns in range(12):

        async def scene(net: testing.Network, turns: int = turns) -> None:
            async with net.context("a") as plain, net.context("a", TRANSACTED, client_id="tx") as tx:
                answers = await plain.create_consumer(plain.create_topic("answers"))
                questions = await tx.create_durable_consumer(tx.create_topic("questions"), "inbox")
                await sent(plain, "questions", "one")
                assert await questions.receive_body(str) == "one"
                await sent(tx, "answers", "1", "2")
                committing = asyncio.create_task(tx.commit())
                for _ in range(turns):
                    await asyncio.sleep(0.001)
                committing.cancel()
                with suppress(asyncio.CancelledError):
                    await committing
                await tx.rollback()  # Waits for the outcome.
                got = [text for text, _ in await bodies(answers)]
                again = await bodies(questions)
                assert (got, again) in ((["1", "2"], []), ([], [("one", True)])), turns

        play(scene, disk_delay_s=0.004)


def test_a_receive_waits_for_a_commit_that_was_cancelled() -> None:
    async def scene(net: testing.Network) -> None:
        async with net.context("a", TRANSACTED) as tx:
            inbox = await tx.create_consumer(tx.create_topic("news"))
            for receive in (inbox.receive, inbox.receive_no_wait, lambda: anext(inbox.messages(timeout=1))):
                await sent(tx, "news", "x")
                committing = asyncio.create_task(tx.commit())
                await asyncio.sleep(0.001)
                committing.cancel()
                with suppress(asyncio.CancelledError):
                    await committing
                message = await receive()
                assert message is not None
                await tx.commit()

    play(scene, disk_delay_s=0.01)


def test_a_commit_that_is_dropped_while_it_waits_leaves_nothing_behind_that_was_to_be_awaited() -> None:
    async def scene(net: testing.Network) -> None:
        async with net.context("a", TRANSACTED) as tx:
            await sent(tx, "news", "x")
            commit = tx.commit()
            commit.send(None)
            commit.close()
            gc.collect()
            await net.run(1)

    play(scene, disk_delay_s=0.01)


def test_a_context_has_one_transaction_at_a_time() -> None:
    async def scene(net: testing.Network) -> None:
        async with net.context("a", TRANSACTED) as tx:
            async with tx.transaction():
                with pytest.raises(TransactionInProgressException, match="leave its block first"):
                    async with tx.transaction():
                        pass
                with pytest.raises(TransactionInProgressException, match="sends requests only with the commit"):
                    await tx.request(tx.create_topic("questions"), "?", time_to_live=60)
            async with tx.transaction():
                pass

    play(scene)
