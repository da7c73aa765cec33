"""Transactions on queues and topics: all or nothing, whichever node dies, at any moment."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from itertools import count

import pytest

from carrypost import Context, JMSException, Queue, SessionMode, Topic, TransactionRolledBackException, testing

TRANSACTED = SessionMode.SESSION_TRANSACTED
WORK = ("one", "two", "three")
LOG = Topic("log")
STEP_S = {"worker": 0.0002, "shop": 0.001}
"""Step between crashes, by the node that manages the queue: over the air everything takes longer."""
WAIT_S = 2.0


async def sent(ctx: Context, to: Queue | Topic, *texts: str) -> None:
    for text in texts:
        await ctx.create_producer().send(to, text)


async def received(ctx: Context, queue: Queue) -> list[str | None]:
    async with ctx.create_consumer(queue) as inbox:
        return [each.get_body(str) async for each in inbox.messages(timeout=WAIT_S)]


async def work(net: testing.Network, manager: str) -> None:
    """Pass on each message to a queue and to a topic, in one transaction."""
    async with net.context("worker", TRANSACTED) as tx:
        inbox = await tx.create_consumer(Queue(f"in@{manager}"), prefetch=1)
        while (message := await inbox.receive(timeout=WAIT_S)) is not None:
            text = message.get_body(str) or ""
            await sent(tx, Queue("out@worker"), f"{text} done")
            await sent(tx, LOG, f"{text} logged")
            await tx.commit()


async def prepared(net: testing.Network, manager: str) -> None:
    net.link("worker", "shop")
    async with net.context(manager) as ctx, net.context("worker", client_id="log") as worker:
        await ctx.declare_queue("in", advertise=False)
        await worker.declare_queue("out", advertise=False)
        await (await worker.create_durable_consumer(LOG, "log")).close()
        await sent(ctx, Queue(f"in@{manager}"), *WORK)


async def outcome(net: testing.Network) -> tuple[list[str | None], list[str | None]]:
    async with net.context("worker", client_id="log") as ctx:
        out = await received(ctx, Queue("out@worker"))
        log = await ctx.create_durable_consumer(LOG, "log")
        return out, [each.get_body(str) async for each in log.messages(timeout=WAIT_S)]


def crashed_after(steps: int, manager: str, victim: str) -> bool:
    """Play the scene and kill a node after this many steps; return True if the work was not over by then."""
    reached = False

    async def scene() -> None:
        nonlocal reached
        async with testing.network("worker", "shop", seed=1, disk_delay_s=0.002) as net:
            await prepared(net, manager)
            working = asyncio.create_task(work(net, manager))
            for _ in range(steps):
                await asyncio.sleep(STEP_S[manager])
            async with net.context("worker") as ctx:
                browser = ctx.create_browser(Queue("out@worker"))
                reached = len([each async for each in browser]) < len(WORK)
            net.kill(victim)
            await net.run(0.5)
            net.restart(victim)
            with suppress(JMSException):
                await working
            await work(net, manager)  # What is left.
            out, log = await outcome(net)
        assert sorted(map(str, out)) == sorted(f"{each} done" for each in WORK), steps
        assert sorted(map(str, log)) == sorted(f"{each} logged" for each in WORK), steps

    testing.run(scene)
    return reached


@pytest.mark.parametrize("every", [6, pytest.param(1, marks=pytest.mark.soak)])
@pytest.mark.parametrize(("manager", "victim"), [("worker", "worker"), ("shop", "worker"), ("shop", "shop")], ids=str)
def test_a_crash_at_any_moment_leaves_all_of_a_transaction_or_nothing(manager: str, victim: str, every: int) -> None:
    for steps in count(step=every):
        if not crashed_after(steps, manager, victim):
            break
    assert steps > 20


def test_a_disk_that_refuses_a_commit_leaves_both_queues_as_they_were() -> None:
    async def scene() -> None:
        async with testing.network("worker", "shop", seed=1) as net:
            await prepared(net, "shop")
            async with net.context("worker", TRANSACTED) as tx:
                inbox = await tx.create_consumer(Queue("in@shop"))
                message = await inbox.receive(timeout=60)
                assert message is not None
                await sent(tx, Queue("out@worker"), "lost")
                net.fill_disk("worker")
                with pytest.raises(TransactionRolledBackException, match=r"rolled back: .*the disk is full"):
                    await tx.commit()
                net.fill_disk("worker", full=False)
                again = [each async for each in inbox.messages(timeout=10)]
                assert [each.get_body(str) for each in again] == list(WORK)
                assert again[0].jms_redelivered
                await sent(tx, Queue("out@worker"), "kept")
                await tx.commit()
            assert (await outcome(net))[0] == ["kept"]

    testing.run(scene)
