"""Consumers with an acknowledgement mode of their own, and loops over jobs that go on after a failure."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Literal

import pytest
from tests.support.jms_scenes import SOON_S, got, scene, texts

from carrypost import (
    Consumer,
    Context,
    IllegalArgumentException,
    IllegalStateException,
    JMSException,
    Job,
    SessionMode,
    testing,
)
from carrypost.jms.context_sessions import Openable

pytestmark = pytest.mark.attached("a consumer has a session of its own, whose calls are interleaved with others")
INDIVIDUAL = SessionMode.INDIVIDUAL_ACKNOWLEDGE
ORDERS = "topic/orders"


async def sent(ctx: Context, *bodies: str, to: str = ORDERS) -> None:
    for body in bodies:
        await ctx.send(to, body)


# --- a mode for one consumer ---------------------------------------------------------------------------------


@scene("a")
async def test_one_consumer_acknowledges_one_by_one_beside_one_that_does_so_by_itself(net: testing.Network) -> None:
    async with net.context("a") as ctx:
        plain = await ctx.create_consumer(ORDERS)
        inbox = await ctx.create_consumer(ORDERS, acknowledge="individual")
        await sent(ctx, "tea", "salt")
        assert await texts(plain) == ["tea", "salt"]
        tea, salt = await got(inbox), await got(inbox)
        await salt.acknowledge()
        await tea.release()
        assert [(each.text, each.jms_redelivered) async for each in inbox.messages(timeout=1)] == [("tea", True)]
        assert ctx.session_mode is SessionMode.AUTO_ACKNOWLEDGE


@pytest.mark.parametrize("kind", ["queue", "durable", "shared", "shared durable"])
@scene("a")
async def test_a_closed_consumer_with_its_own_mode_returns_what_is_not_acknowledged(
    net: testing.Network, kind: str
) -> None:
    async with net.context("a", client_id="me") as ctx:
        await ctx.declare_queue("orders")
        kinds: dict[str, Callable[[], Openable[Consumer]]] = {
            "queue": lambda: ctx.create_consumer("queue/orders", acknowledge="client"),
            "durable": lambda: ctx.create_durable_consumer(ORDERS, "box", acknowledge="client"),
            "shared": lambda: ctx.create_shared_consumer(ORDERS, "box", acknowledge="client"),
            "shared durable": lambda: ctx.create_shared_durable_consumer(ORDERS, "box", acknowledge="client"),
        }
        opened = kinds[kind]
        async with opened() as inbox:
            await sent(ctx, "tea", "salt", "rice", to="queue/orders" if kind == "queue" else ORDERS)
            await got(inbox)
            await (await got(inbox)).acknowledge()  # Both.
            rice = await got(inbox)
        with pytest.raises(IllegalStateException, match="this consumer is closed"):
            await rice.acknowledge()
        async with opened() as inbox:
            again = await got(inbox)
            assert (again.text, again.jms_redelivered) == ("rice", True)
            await again.acknowledge()
            assert await inbox.receive(timeout=1) is None


@scene("a")
async def test_sessions_of_consumers_end_with_them_or_with_the_context(net: testing.Network) -> None:
    async with net.context("a") as ctx:
        opened = len(ctx._all)  # noqa: SLF001 - nothing else shows them
        for _ in range(3):
            async with ctx.create_consumer(ORDERS, acknowledge="individual"):
                pass
        with pytest.raises(JMSException):
            await ctx.create_durable_consumer(ORDERS, "x", acknowledge="individual")  # There is no client id.
        assert len(ctx._all) == opened  # noqa: SLF001
        left = await ctx.create_consumer(ORDERS, acknowledge="individual")
        await sent(ctx, "tea")
        await got(left)
    assert left.closed
    await left.close()
    async with net.context("a") as ctx:
        assert await texts(await ctx.create_consumer(ORDERS)) == ["tea"]


@pytest.mark.parametrize("acknowledge", [None, "dups-ok"])
@pytest.mark.parametrize("turns", range(12))
@scene("a")
async def test_the_context_may_be_closed_while_a_consumer_is_opened_and_another_closed(
    net: testing.Network, turns: int, acknowledge: Literal["dups-ok"] | None
) -> None:
    async with net.context("a", client_id="me") as ctx:
        inbox = await ctx.create_consumer(ORDERS, acknowledge="individual")

        async def opened() -> bool:
            found = await ctx.create_consumer(ORDERS, acknowledge=acknowledge)
            await closing
            return found.closed

        async def closed() -> None:
            for _ in range(turns):
                await asyncio.sleep(0)
            await ctx.close()

        closing = asyncio.ensure_future(closed())
        opening, _ = await asyncio.gather(opened(), inbox.close(), return_exceptions=True)
        assert opening is True or isinstance(opening, IllegalStateException)
    async with net.context("a", client_id="me"):
        pass  # Nothing has the client id any more: all sessions are closed.


@pytest.mark.parametrize("turns", range(1, 8))
@scene("a")
async def test_a_consumer_whose_close_is_cancelled_returns_what_is_not_acknowledged(
    net: testing.Network, turns: int
) -> None:
    async with net.context("a", client_id="me") as ctx:
        inbox = await ctx.create_durable_consumer(ORDERS, "box", acknowledge="client")
        await sent(ctx, "tea", "salt")
        await got(inbox)
        closing = asyncio.ensure_future(inbox.close())
        for _ in range(turns):
            await asyncio.sleep(0)
        closing.cancel()
        await asyncio.wait({closing})
        await inbox.close()
        assert inbox.closed
        async with ctx.create_durable_consumer(ORDERS, "box", acknowledge="auto") as again:
            assert await texts(again) == ["tea", "salt"]
    async with net.context("a", client_id="me"):
        pass  # The context has closed all sessions.


@scene("a")
async def test_a_mode_that_does_not_exist_or_does_not_fit_is_refused(net: testing.Network) -> None:
    async with net.context("a") as ctx, net.context("a", SessionMode.SESSION_TRANSACTED) as transacted:
        for wrong in ("individually", "transacted", INDIVIDUAL, 1, ""):
            with pytest.raises(
                IllegalArgumentException, match="must be one of 'auto', 'client', 'dups-ok', 'individual', not "
            ):
                await ctx.create_consumer(ORDERS, acknowledge=wrong)  # type: ignore[arg-type]
        with pytest.raises(IllegalArgumentException, match="did you mean individual"):
            await ctx.create_consumer(ORDERS, acknowledge="individually")  # type: ignore[arg-type]
        with pytest.raises(IllegalStateException, match="acknowledged by its commit: leave acknowledge out"):
            await transacted.create_consumer(ORDERS, acknowledge="individual")


# --- jobs ----------------------------------------------------------------------------------------------------


async def processed(ctx: Context, failures: dict[str, int]) -> list[str]:
    """Return what a loop processed, until nothing comes; each text fails so often before."""
    done: list[str] = []
    inbox = await ctx.create_consumer("queue/orders", acknowledge="individual")
    async for job in inbox.processing(timeout=SOON_S * 3):
        async with job as message:
            text = message.text or ""
            if failures.get(text, 0) >= message.get_int_property("JMSXDeliveryCount"):
                raise KeyError(text)
            done.append(text)
    return done


@scene("a")
async def test_a_loop_over_jobs_goes_on_after_failures_which_are_counted_logged_and_retried(
    net: testing.Network, caplog: pytest.LogCaptureFixture
) -> None:
    async with net.context("a") as ctx:
        await ctx.declare_queue("orders")
        await sent(ctx, "tea", "salt", "rice", to="queue/orders")
        with caplog.at_level(logging.WARNING, "carrypost.jms"):
            assert await processed(ctx, {"tea": 2, "rice": 6}) == ["salt", "tea"]
        assert ctx.given_up == 1
        assert [each.text async for each in ctx.create_browser("queue/DLQ.orders")] == ["rice"]
        assert sum("a program failed with TextMessage(text='tea'" in each for each in caplog.messages) == 2
        assert await texts(await ctx.create_consumer("queue/orders")) == []


@scene("a")
async def test_jobs_run_side_by_side_in_tasks(net: testing.Network) -> None:
    async with net.context("a") as ctx:
        inbox = await ctx.create_consumer(ORDERS, acknowledge="individual")
        await sent(ctx, "tea", "salt")
        done: list[str] = []

        async def work(job: Job) -> None:
            async with job as message:
                await asyncio.sleep(10 if message.text == "tea" else 5)
                done.append(message.text or "")

        async with asyncio.TaskGroup() as tasks:
            async for job in inbox.processing(timeout=1):
                tasks.create_task(work(job))
        assert done == ["salt", "tea"]
        assert net.now < 15


@scene("a")
async def test_a_cancelled_job_ends_the_loop_and_its_message_comes_again(net: testing.Network) -> None:
    async with net.context("a") as ctx:
        inbox = await ctx.create_consumer(ORDERS, acknowledge="individual")
        await sent(ctx, "tea")

        async def loop() -> None:
            async for job in inbox.processing():
                async with job:
                    await asyncio.sleep(3600)

        running = asyncio.ensure_future(loop())
        await net.run(1)
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        again = await got(inbox)
        assert (again.text, again.jms_redelivered) == ("tea", True)


@scene("a")
async def test_a_loop_may_be_left_in_a_job_whose_message_is_acknowledged(net: testing.Network) -> None:
    async with net.context("a", INDIVIDUAL) as ctx:
        inbox = await ctx.create_consumer(ORDERS)
        await sent(ctx, "tea", "salt")
        async for job in inbox.processing():
            async with job:
                break
        await ctx.recover()
        assert await texts(inbox) == ["salt"]


@scene("a")
async def test_a_job_whose_message_cannot_be_acknowledged_fails_and_comes_again(
    net: testing.Network, caplog: pytest.LogCaptureFixture
) -> None:
    async with net.context("a") as ctx:
        queue = await ctx.declare_queue("orders", redelivery="after_lease", lease_s=10)
        inbox = await ctx.create_consumer(queue, acknowledge="individual")
        await ctx.send(queue, "tea")
        counts: list[int] = []
        async for job in inbox.processing(timeout=1):
            async with job as message:
                counts.append(message.get_int_property("JMSXDeliveryCount"))
                await net.run(20 if len(counts) == 1 else 5)
        assert counts == [1, 2]
        assert caplog.text.count("a program failed with") == 1
        assert "the lease of the message is over" in caplog.text
        assert await texts(await ctx.create_consumer(queue)) == []


@scene("a")
async def test_misuse_of_jobs_says_what_to_do(net: testing.Network) -> None:
    async with net.context("a") as ctx:
        inbox = await ctx.create_consumer(ORDERS)
        with pytest.raises(IllegalStateException, match='create it with acknowledge="individual", or its context'):
            inbox.processing()
        other = await ctx.create_consumer(ORDERS, acknowledge="individual")
        await sent(ctx, "tea", "salt")
        jobs = other.processing()
        job = await anext(jobs)
        assert repr(job).startswith("<Job of TextMessage(text='tea'")
        async with job:
            pass
        with pytest.raises(IllegalStateException, match="was entered before"):
            async with job:
                pass
        unused = [await anext(jobs)]
        with pytest.warns(RuntimeWarning, match="was never entered"):
            unused.clear()
