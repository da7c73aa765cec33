"""Programs on one real node exchange messages, and none can harm another."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from unittest.mock import Mock

import pytest
from tests.support.loopback import apart
from tests.support.node_programs import Programs
from tests.support.nodes import QUICK, scene, until

from carrypost import BytesMessage, Consumer, Context, DeliveryMode, Message
from carrypost.errors import (
    IllegalArgumentException,
    IllegalStateException,
    InvalidDestinationException,
    InvalidSelectorException,
    JMSException,
    MessageFormatException,
)
from carrypost.node.runtime import Node
from carrypost.node.settings import parse

KIB = 1024
MIB = 1024 * KIB
WITHIN_S = 10.0


@asynccontextmanager
async def running(folder: Path, name: str = "n", **keywords: object) -> AsyncIterator[tuple[Node, Programs]]:
    """Yield a node on loopback, and its programs."""
    settings = parse("", {}, {**QUICK, "udp": apart(), **keywords, "node.data": str(folder / name)})
    async with Node(settings) as node:
        yield node, Programs(node)


async def received(consumer: Consumer, timeout_s: float = WITHIN_S) -> Message:
    message = await consumer.receive(timeout=timeout_s)
    assert message is not None
    return message


@scene
async def test_two_programs_on_one_node_exchange_messages(tmp_path: Path) -> None:
    async with running(tmp_path) as (node, programs), programs.context() as a, programs.context() as b:
        inbox = await b.create_consumer("topic/news.>", patterns={"language": "en|fr"})
        how: dict[str, bool | float | str] = {"language": "en", "urgent": True, "count": -3, "ratio": 0.5}
        sent = await a.send("topic/news.local", b"\0hello", properties=how, label="x", priority=9, time_to_live=60)
        await a.send("topic/news.local", b"", properties={"language": "de"})
        got = await received(inbox)
        assert isinstance(got, BytesMessage)
        assert (got.jms_message_id, got.get_body(bytes)) == (sent.message_id, b"\0hello")
        assert got.jms_destination == a.create_topic("news.local")
        assert str(got.jms_message_id).startswith("ID:")
        assert {name: got.properties[name] for name in how} == how
        assert (got.jms_delivery_mode, got.jms_priority) == (DeliveryMode.PERSISTENT, 9)
        assert got.jms_expiration - got.jms_timestamp == 60_000
        assert got.descriptor is not None
        assert (got.descriptor.label, got.descriptor.node) == ("x", node.host.node)
        assert (got.get_int_property("JMS_carrypost_Hops"), got.jms_redelivered) == (0, False)
        await got.acknowledge()
        assert await inbox.receive(timeout=0.01) is None
        await inbox.close()
        await a.send("topic/news.local", b"", properties=how)
        overview = node.host.messaging.overview()
        assert overview is not None
        assert overview.subscriptions == 0


REFUSED: list[tuple[Callable[[Context], Awaitable[object]], type[JMSException], str]] = [
    (lambda c: c.send("", b""), InvalidDestinationException, ""),
    (lambda c: c.send("topic/x", b"", priority=10), IllegalArgumentException, "10"),
    (lambda c: c.send("topic/x", b"", time_to_live=-1), IllegalArgumentException, "-1"),
    (lambda c: c.send("topic/x", b"", time_to_live=float("nan")), IllegalArgumentException, "nan"),
    (lambda c: c.send("topic/x", b"", time_to_live=float("inf")), IllegalArgumentException, "inf"),
    (
        lambda c: c.send("topic/x", bytes(MIB + 1)),
        MessageFormatException,
        "the body has 1048577 bytes, more than the",
    ),
    (lambda c: c.send("topic/x", b"", properties={"a": 2**70}), MessageFormatException, "a"),
    (lambda c: c.send("topic/x", b"", properties={"a": object()}), MessageFormatException, "a"),  # type: ignore[dict-item]
    (lambda c: c.send("topic/\udc80", b""), MessageFormatException, "without lone surrogates"),
    (lambda c: c.create_consumer("topic/x", "("), InvalidSelectorException, ""),
    (lambda c: c.create_consumer("topic/x", patterns={"a": "("}), InvalidSelectorException, ""),
]


@pytest.mark.parametrize("number", range(len(REFUSED)))
def test_a_mistake_is_told_to_who_made_it_and_to_nobody_else(
    tmp_path: Path, number: int, caplog: pytest.LogCaptureFixture
) -> None:
    act, kind, text = REFUSED[number]

    async def play() -> None:
        async with (
            running(tmp_path, limits={"message_bytes_max": MIB}) as (_, programs),
            programs.context() as one,
            programs.context() as other,
        ):
            async with asyncio.timeout(WITHIN_S):
                with pytest.raises(kind) as caught:
                    await act(one)
            assert text in str(caught.value)
            await other.send("topic/x", b"")
            await one.send("topic/x", b"")

    asyncio.run(play())
    assert [record.getMessage() for record in caplog.records] == []


@scene
async def test_a_disk_that_loses_the_message_fails_the_send(tmp_path: Path) -> None:
    async with running(tmp_path) as (node, programs), programs.context() as ctx:
        await ctx.send("topic/news", b"")
        answers = node.store.answers

        def full() -> list[tuple[int, str | None]]:
            return [(serial, "the disk is full") for serial, _ in answers()]

        node.store.answers = full  # type: ignore[method-assign]
        with pytest.raises(IllegalStateException, match="could not store its last changes: the disk is full"):
            await ctx.send("topic/news", b"")


@scene
async def test_what_a_program_did_not_acknowledge_goes_to_the_next_one(tmp_path: Path) -> None:
    async with running(tmp_path) as (_, programs):
        async with programs.context("reader") as first:
            inbox = await first.create_durable_consumer("topic/news", "inbox")
            sent = [(await first.send("topic/news", str(number))).message_id for number in range(3)]
            got = [await received(inbox) for _ in range(3)]
            assert [each.jms_message_id for each in got] == sent
            await got[1].acknowledge()
        async with programs.context("reader") as second:
            inbox = await second.create_durable_consumer("topic/news", "inbox")
            got = [await received(inbox) for _ in range(2)]
            assert [each.jms_message_id for each in got] == [sent[0], sent[2]]
            assert all(each.jms_redelivered for each in got)
            for each in got:
                await each.acknowledge()
    async with running(tmp_path) as (_, programs), programs.context("reader") as third:
        inbox = await third.create_durable_consumer("topic/news", "inbox")
        assert await inbox.receive(timeout=0.05) is None


@scene
async def test_what_was_not_acknowledged_comes_again_after_the_node_did(tmp_path: Path) -> None:
    async with running(tmp_path) as (_, programs), programs.context("reader") as ctx:
        inbox = await ctx.create_durable_consumer("topic/news", "inbox")
        kept, done = [(await ctx.send("topic/news", b"")).message_id for _ in range(2)]
        got = {each.jms_message_id: each for each in [await received(inbox) for _ in range(2)]}
        for _ in range(2):
            await got[done].acknowledge()
    async with running(tmp_path) as (_, programs), programs.context("reader") as ctx:
        inbox = await ctx.create_durable_consumer("topic/news", "inbox")
        again = await received(inbox)
        assert (again.jms_message_id, again.jms_redelivered) == (kept, True)
        assert await inbox.receive(timeout=0.05) is None


@scene
async def test_a_program_may_stop_waiting_and_misses_nothing(tmp_path: Path) -> None:
    async with running(tmp_path) as (_, programs), programs.context() as ctx:
        inbox = await ctx.create_consumer("topic/news")
        waiting = asyncio.create_task(inbox.receive())
        await asyncio.sleep(0)
        waiting.cancel()
        sent = await ctx.send("topic/news", b"")
        assert (await received(inbox)).jms_message_id == sent.message_id
        for _ in range(2):
            await ctx.send("topic/news", b"")
        assert len({(await received(inbox)).jms_message_id for _ in range(2)}) == 2


@scene
async def test_a_large_message_goes_through_to_another_node(tmp_path: Path) -> None:
    udp = apart()
    body = random.Random(5).randbytes(5 * MIB)
    async with (
        running(tmp_path, "a", udp=udp) as (_, here),
        running(tmp_path, "b", udp=udp) as (_, there),
        here.context() as anna,
        there.context() as bert,
        bert.create_consumer("topic/film") as inbox,
    ):
        await anna.send("topic/film", body)
        got = await received(inbox, 30)
        assert got.get_body(bytes) == body
        assert got.get_int_property("JMS_carrypost_Hops") == 1
        await got.acknowledge()


@scene
async def test_a_program_that_does_not_read_holds_nobody_up(tmp_path: Path) -> None:
    count, body = 40, bytes(256 * KIB)
    async with (
        running(tmp_path) as (node, programs),
        programs.context() as slow,
        programs.context() as good,
        slow.create_consumer("topic/film") as unread,
        good.create_consumer("topic/film") as inbox,
    ):
        payload = Mock(side_effect=node.driver.payload)
        node.driver.payload = payload  # type: ignore[method-assign]
        for number in range(count):
            await good.send("topic/film", number.to_bytes(4, "big") + body)
            await (await received(inbox)).acknowledge()
        overview = node.host.messaging.overview()
        assert overview is not None
        assert overview.claims == count
        assert payload.call_count <= count + 4, "what nobody reads yet stays on disk"
        numbers = [int.from_bytes((await received(unread)).payload[:4], "big") for _ in range(count)]
        assert numbers == list(range(count))


@scene
async def test_a_program_that_reads_nothing_does_not_fill_the_memory(tmp_path: Path) -> None:
    async with (
        running(tmp_path, compress=False) as (node, programs),
        programs.context() as ctx,
        ctx.create_consumer("topic/news") as unread,
    ):
        for _ in range(8):
            sends = (ctx.send("topic/news", bytes(30_000), time_to_live=0.2) for _ in range(16))
            await asyncio.gather(*sends)

            async def over() -> bool:
                return node.host.overview().messages == 1  # The sealing key of the node.

            await until(over)
        overview = node.host.messaging.overview()
        assert overview is not None
        assert overview.claims == 0
        assert await unread.receive(timeout=0) is None


@scene
async def test_a_program_that_sends_faster_than_the_disk_writes_has_to_wait(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running(tmp_path) as (node, programs), programs.context() as ctx:
        slow = [True]
        monkeypatch.setattr(type(node.driver), "overloaded", property(lambda _: slow[0]), raising=False)
        sends = [asyncio.create_task(ctx.send("topic/news", bytes(100))) for _ in range(100)]
        for _ in range(10):
            await asyncio.sleep(0)
        assert node.host.overview().messages == 1  # The sealing key of the node.
        slow[0] = False
        node._answered()  # noqa: SLF001 - a disk that was behind answers when it has caught up
        await asyncio.wait_for(asyncio.gather(*sends), WITHIN_S)
        assert node.host.overview().messages == 101


@scene
async def test_receiving_very_much_leaves_the_node_time_for_the_rest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running(tmp_path) as (node, programs), programs.context() as ctx:
        await asyncio.gather(*(ctx.send("topic/news", b"") for _ in range(200)))
        payload, run, longest = node.driver.payload, 0, 0

        def counted(descriptor: object) -> bytes | None:
            nonlocal run
            run += 1
            return payload(descriptor)  # type: ignore[arg-type]

        async def others() -> None:
            nonlocal run, longest
            while True:
                longest, run = max(longest, run), 0
                await asyncio.sleep(0)

        monkeypatch.setattr(node.driver, "payload", counted)
        turns = asyncio.create_task(others())
        inbox = await ctx.create_consumer("topic/news")
        for _ in range(200):
            await (await received(inbox)).acknowledge()
        turns.cancel()
        assert 0 < longest <= 16
