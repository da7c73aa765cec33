"""Attached programs that are killed: only messages that their code may have got count as delivered."""

from __future__ import annotations

import asyncio

import pytest
from tests.support.jms_attached import AttachedNetwork, VirtuallyAttached
from tests.support.jms_scenes import got, scene

from carrypost import IllegalStateException, Message, SessionMode, testing

JOBS = "queue/jobs"
LONG = "queue/long"
COUNT = 80


@pytest.fixture(autouse=True)
def _attached(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(testing, "Network", AttachedNetwork)


async def filled(net: testing.Network) -> None:
    async with net.context("a", SessionMode.SESSION_TRANSACTED) as boss:
        await boss.declare_queue("jobs")
        await boss.declare_queue("long")
        for number in range(COUNT):
            await boss.send(JOBS, str(number))
        await boss.commit()


async def kill(net: testing.Network) -> None:
    """End the connection of all programs on the node, as the system does for a program that is killed."""
    provider = net.provider("a")
    assert isinstance(provider, VirtuallyAttached)
    provider.line.cut_off()
    await net.run(1)


async def delivered_again(net: testing.Network) -> list[str]:
    """Return the messages that come with a count of 2; all others come as for the first time."""
    again = []
    async with net.context("a") as ctx, ctx.create_consumer(JOBS) as inbox:
        found = [message async for message in inbox.messages(timeout=5)]
    for message in found:
        count = message.get_int_property("JMSXDeliveryCount")
        assert (count, message.jms_redelivered) in {(1, False), (2, True)}
        if count > 1:
            again.append(message.get_body(str) or "")
    assert sorted(int(message.get_body(str) or "") for message in found) == list(range(COUNT))
    return again


@pytest.mark.parametrize("prefetch", [0, 1, 100])
@scene("a")
async def test_jobs_that_a_killed_worker_never_began_come_as_for_the_first_time(
    net: testing.Network, prefetch: int
) -> None:
    await filled(net)
    worker = await net.context("a", SessionMode.INDIVIDUAL_ACKNOWLEDGE)
    inbox = await worker.create_consumer(JOBS, prefetch=prefetch)
    for number in range(3):
        await net.run(1)
        assert (await got(inbox)).get_body(str) == str(number)
    await kill(net)
    assert await delivered_again(net) == ["0", "1", "2"]


@scene("a")
async def test_a_listener_that_is_killed_in_its_first_call_has_seen_one_message(net: testing.Network) -> None:
    await filled(net)
    worker = await net.context("a")
    calls: list[Message] = []

    async def work(message: Message) -> None:
        calls.append(message)
        await asyncio.sleep(3_600)

    (await worker.create_consumer(JOBS)).set_message_listener(work)
    await net.run(10)
    await kill(net)
    assert [message.get_body(str) for message in calls] == ["0"]
    assert await delivered_again(net) == ["0"]


@pytest.mark.parametrize("taken", [1, 3, 40])
@scene("a")
async def test_all_that_a_quick_program_took_counts_and_at_most_as_many_more(net: testing.Network, taken: int) -> None:
    await filled(net)
    worker = await net.context("a", SessionMode.INDIVIDUAL_ACKNOWLEDGE)
    inbox = await worker.create_consumer(JOBS)
    await net.run(1)
    for _ in range(taken):
        await got(inbox)
    await kill(net)
    again = await delivered_again(net)
    assert again == [str(number) for number in range(len(again))]
    assert taken <= len(again) <= 2 * taken


@scene("a")
async def test_a_quick_program_that_pauses_has_seen_what_it_took(net: testing.Network) -> None:
    await filled(net)
    worker = await net.context("a", SessionMode.INDIVIDUAL_ACKNOWLEDGE)
    inbox = await worker.create_consumer(JOBS)
    await net.run(1)
    for _ in range(20):
        await got(inbox)
    await net.run(0.2)
    await kill(net)
    assert await delivered_again(net) == [str(number) for number in range(20)]


@scene("a")
async def test_a_thread_is_given_no_more_messages_ahead_than_were_announced(net: testing.Network) -> None:
    await filled(net)
    sizes = []
    async with net.context("a", SessionMode.INDIVIDUAL_ACKNOWLEDGE) as worker:
        inbox = await worker.create_consumer(JOBS)
        for pause_s in (1, 1, 0, 0, 0, 0, 0, 1):
            await net.run(pause_s)
            batch = await inbox._intake.read_ahead(1, None, 32)  # noqa: SLF001 - as `carrypost.sync` does
            assert batch is not None
            while batch.pop() is not None:
                pass
            batch.close()
            sizes.append(len(batch.messages))
    assert sizes == [1, 1, 2, 4, 8, 16, 32, 1]


@scene("a")
async def test_what_was_returned_unread_and_handed_over_again_is_forgotten(net: testing.Network) -> None:
    await filled(net)
    worker = await net.context("a", SessionMode.CLIENT_ACKNOWLEDGE)
    inbox = await worker.create_consumer(JOBS)
    for _ in range(3):
        await net.run(1)
        await worker.recover()
    await net.run(1)
    assert (await got(inbox)).get_body(str) == "0"
    await kill(net)
    assert await delivered_again(net) == ["0"]


@scene("a")
async def test_jobs_on_their_way_when_another_consumer_closes_come_as_for_the_first_time(net: testing.Network) -> None:
    await filled(net)
    worker = await net.context("a", SessionMode.INDIVIDUAL_ACKNOWLEDGE)
    await worker.declare_queue("others")
    other = await worker.create_consumer("queue/others")
    await worker.create_consumer(JOBS)
    await other.close()
    await net.run(1)
    await kill(net)
    assert await delivered_again(net) == []


@scene("a")
async def test_jobs_on_their_way_when_another_one_is_returned_come_as_for_the_first_time(net: testing.Network) -> None:
    await filled(net)
    worker = await net.context("a", SessionMode.INDIVIDUAL_ACKNOWLEDGE)
    inbox = await worker.create_consumer(JOBS, prefetch=10)
    first = await got(inbox)
    second = await worker.create_context(SessionMode.INDIVIDUAL_ACKNOWLEDGE)
    await second.create_consumer(JOBS)
    await first.release()
    await net.run(1)
    await kill(net)
    assert await delivered_again(net) == ["0"]


@scene("a")
async def test_a_program_that_waits_for_a_body_hears_that_its_node_has_ended(net: testing.Network) -> None:
    await filled(net)
    async with net.context("a") as boss:
        await boss.send(LONG, "x" * 300_000)
    program = await net.context("a")
    inbox = await program.create_consumer(LONG)
    await net.run(1)
    provider = net.provider("a")
    assert isinstance(provider, VirtuallyAttached)
    receiving = asyncio.ensure_future(inbox.receive())
    await asyncio.sleep(0)
    provider.line.cut_off()
    with pytest.raises(IllegalStateException, match="the node at virtual ended"):
        await asyncio.wait_for(receiving, 60)
