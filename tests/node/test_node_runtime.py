"""The life of a node in one process: released resources, warnings, and kept state."""

from __future__ import annotations

import asyncio
import os
import socket
import sqlite3
import time
from contextlib import closing
from logging import WARNING
from pathlib import Path
from types import SimpleNamespace

import pytest
from tests.support.loopback import apart
from tests.support.node_programs import Programs
from tests.support.nodes import scene

from carrypost.errors import IllegalStateException, NodeError
from carrypost.log.events import Reason
from carrypost.node.folder import NodeFolder
from carrypost.node.runtime import Node
from carrypost.node.settings import NodeSettings, parse

HOUR_US = 3_600_000_000


def settings(folder: Path, **keywords: object) -> NodeSettings:
    return parse("", {}, {"udp": apart(), "node.data": str(folder), **keywords})


@scene
async def test_what_was_sent_just_before_the_end_is_there_after_it(tmp_path: Path) -> None:
    node = Node(settings(tmp_path))
    await node.start()
    programs = Programs(node)
    ctx = await programs.context()
    sends = [asyncio.create_task(ctx.send("topic/news", str(number))) for number in range(3)]
    await asyncio.sleep(0)
    await node.stop()
    messages = [(await send).message_id for send in sends]
    await node.stop()
    programs.provider.end("the node has ended")
    await ctx.close()
    async with Node(settings(tmp_path)) as again, Programs(again).context() as ctx:
        reader = await ctx.create_consumer("topic/news")
        got = [await reader.receive(timeout=10) for _ in range(3)]
        assert [each.jms_message_id for each in got if each is not None] == messages
        assert [each.get_body(str) for each in got if each is not None] == ["0", "1", "2"]


@pytest.mark.parametrize("payload", [b"", b"x", os.urandom(16_384), os.urandom(16_385)], ids=len)
@scene
async def test_payloads_of_every_shape_arrive_as_they_were_sent(tmp_path: Path, payload: bytes) -> None:
    quick = {"announce_s_min": 0.1, "announce_s_max": 0.3, "udp": apart()}
    async with (
        Node(settings(tmp_path / "a", **quick)) as a,
        Node(settings(tmp_path / "b", **quick)) as b,
        Programs(a).context() as here,
        Programs(b).context() as there,
        there.create_consumer("topic/news") as reader,
    ):
        sent = await here.send("topic/news", payload)
        got = await reader.receive(timeout=10)
        assert got is not None
        assert (got.jms_message_id, got.get_body(bytes)) == (sent.message_id, payload)
        assert await reader.receive(timeout=0) is None


@scene
async def test_what_became_of_a_body_that_is_not_there_is_said_where_it_matters(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with Node(settings(tmp_path)) as node, Programs(node).context() as ctx:
        await ctx.create_consumer("topic/news")
        bodies = [ctx.create_text_message(text) for text in ("lost", "left")]
        for each in bodies:
            await ctx.send("topic/news", each)
        lost, left = (each.descriptor for each in bodies)
        assert lost is not None
        assert left is not None
        node.host.discard(left.id, Reason.PURGED, node.driver.now)
        node.driver.drain()
        node.store.read = lambda *_, **__: None  # type: ignore[method-assign]  # the disk gives nothing back
        assert [node.driver.payload(each) for each in (left, lost)] == [None, None]
    told = [each.getMessage() for each in caplog.records if each.name == "carrypost.node" and each.levelno >= WARNING]
    (one,) = [each for each in told if "body" in each]
    assert one.startswith(f"the body of the message {lost.shown} is missing in the store: it is not delivered")


@scene
async def test_what_the_disk_did_not_answer_before_the_end_is_not_called_sent(tmp_path: Path) -> None:
    node = Node(settings(tmp_path))
    await node.start()
    programs = Programs(node)
    ctx = await programs.context()
    node.store.answers = list  # type: ignore[method-assign]
    send = asyncio.create_task(ctx.send("topic/news", b""))
    await asyncio.sleep(0)
    await node.stop()
    programs.provider.end("the node has ended")
    with pytest.raises(IllegalStateException, match="the node has ended"):
        await send
    await ctx.close()


@scene
async def test_a_start_that_fails_gives_everything_back(tmp_path: Path) -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as other:
        other.bind(("", 0))
        taken = {**apart(), "unicast_port": other.getsockname()[1]}
        record = {"folder": str(tmp_path / "rows")}
        node = Node(settings(tmp_path / "n", udp=taken, record=record))
        with pytest.raises(NodeError, match="is in use by another program or node"):
            await node.start()
        with NodeFolder(node.settings).locked():
            pass
    async with Node(settings(tmp_path / "n", udp=taken, record=record)) as again, Programs(again).context() as ctx:
        await ctx.send("topic/news", b"")
    assert [path.suffix for path in (tmp_path / "rows").iterdir()] == [".jsonl"]


def test_a_store_with_a_damaged_row_leaves_no_record(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def damaged(_: object) -> None:
        raise NodeError("a row does not decode")

    monkeypatch.setattr("carrypost.node.store.store.Store.state", damaged)

    async def scene() -> None:
        await Node(settings(tmp_path / "n", record={"folder": str(tmp_path / "rows")})).start()

    with pytest.raises(NodeError, match="a row does not decode"):
        asyncio.run(scene())
    assert not (tmp_path / "rows").exists()


def test_a_key_that_others_can_read_is_warned_of(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def scene() -> None:
        for _ in range(2):
            async with Node(settings(tmp_path)) as node:
                node.folder.key_file.chmod(0o644)

    asyncio.run(scene())
    assert [record.getMessage() for record in caplog.records] == [
        f"other users of this machine can read the key: chmod 600 {tmp_path / 'node.key'}"
    ]


def test_a_system_clock_that_is_days_behind_the_store_is_warned_of_and_not_followed(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def scene() -> None:
        async with Node(settings(tmp_path)):
            pass
        with closing(sqlite3.connect(tmp_path / "store.sqlite")) as store, store:
            changed = store.execute("UPDATE meta SET value = value + ? WHERE name = ?", (48 * HOUR_US, b"date"))
            assert changed.rowcount == 1
        async with Node(settings(tmp_path)) as node:
            assert 47.9 * 3_600 < node.clock.ahead_us / 1e6 <= 48 * 3_600
            async with Programs(node).context() as ctx:
                await ctx.send("topic/news", b"")

    asyncio.run(scene())
    (record,) = caplog.records
    told = record.getMessage()
    assert told == "the system's clock is 172799 s behind this node's store, and is not believed until it is set"


def test_a_system_clock_that_was_ahead_for_a_moment_is_logged_and_shown_and_followed(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    ahead_us = 0
    wall = SimpleNamespace(time_ns=lambda: time.time_ns() + 1_000 * ahead_us, monotonic_ns=time.monotonic_ns)
    monkeypatch.setattr("carrypost.node.driver.time", wall)

    async def scene() -> None:
        nonlocal ahead_us
        async with Node(settings(tmp_path)) as node:
            assert node.driver.date
            ahead_us = HOUR_US
            assert node.driver.date - time.time_ns() // 1_000 > 3_590_000_000
            ahead_us = 0
            assert abs(node.driver.date - time.time_ns() // 1_000) < 1_000_000
            now = node.driver.now
            assert now - node.host.date_of(now) == node.clock.lead_us > 3_590_000_000

    asyncio.run(scene())
    assert "the system's clock was set back by 3600 s: the dates of this node follow it" in caplog.messages


@scene
async def test_a_node_warns_of_a_pattern_that_no_topic_matches(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with Node(settings(tmp_path, altruistic=["village/.*", "topic/roads"])):
        (warned,) = [each.getMessage() for each in caplog.records if "altruistic" in each.getMessage()]
        assert warned.startswith("altruistic: 'village/.*' matches no topic or queue and has no effect")
        assert r"'topic/village\..*'" in warned
