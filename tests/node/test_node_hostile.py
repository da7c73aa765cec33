"""Real nodes under a flood of hostile datagrams from another process: they stay small, answer, and go on exchanging.

The flood (`tests.support.flood`) is one third each of noise, of damaged datagrams and of valid but meaningless frames.
It goes to the victim's own port, to the group and to the broadcast address, so its friend gets half of it, too. The
system drops noise; of the rest, a node reads only as much as does not keep it from its neighbours. If more arrives than
can be read from the sockets, the system drops datagrams of honest nodes as well, and those are sent again.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
import pytest
from tests.support.loopback import apart
from tests.support.nodes import PATIENCE_S, FreshNodes, Node, scene, until

ROOT = Path(__file__).parents[2]
MIB = 1024 * 1024
ARRIVAL_S_MAX = 20.0
"""Longest time from publication at one honest node to delivery at the other, during the flood."""
STATUS_S_MAX = 2.0
GROWTH_BYTES_MAX = 30 * MIB
IDLE_SHARE_MAX = 0.2
"""Largest share of one processor, once the flood is over."""
SAID_BYTES_MAX = 2_000
"""A node does not fill its log with what strangers send."""
LARGE_BYTES = 100_000
_log = logging.getLogger(__name__)


@dataclass
class Talk:
    """Two nodes that publish for each other, and how long each message took."""

    nodes: tuple[Node, Node]
    published_s: dict[bytes, float] = field(default_factory=dict)
    took_s: dict[bytes, float] = field(default_factory=dict)

    async def publish(self) -> None:
        """Both publish, again and again; every tenth message is large."""
        number = 0
        while True:
            for node in self.nodes:
                payload = f"{node.name} {number} ".encode() + bytes(LARGE_BYTES if number % 10 == 9 else 0)
                self.published_s[payload] = time.monotonic()
                await node.program.send("news", payload)
            number += 1
            await asyncio.sleep(0.2)

    async def receive(self, node: Node, other: Node) -> None:
        """Wait until one of them has read its message, skipping messages that strangers published."""
        while True:
            message = await node.program.receive()
            await node.program.acknowledge(message)
            if message.source == other.id:
                assert message.body not in self.took_s, "delivered twice"
                self.took_s[message.body] = time.monotonic() - self.published_s[message.body]

    async def done(self) -> bool:
        """Return True if all have arrived."""
        return self.took_s.keys() == self.published_s.keys()

    @contextlib.asynccontextmanager
    async def going_on(self) -> AsyncIterator[None]:
        """Let them talk; in the end everything has arrived."""
        one, other = self.nodes
        for node in self.nodes:
            await node.program.subscribe("news")
        readers = [asyncio.create_task(self.receive(*pair)) for pair in ((one, other), (other, one))]
        writer = asyncio.create_task(self.publish())
        try:
            yield
            await _cancelled(writer)
            await until(self.done, ARRIVAL_S_MAX)
        finally:
            await _cancelled(writer, *readers)


async def _cancelled(*tasks: asyncio.Task[None]) -> None:
    for task in tasks:
        task.cancel()
    for outcome in await asyncio.gather(*tasks, return_exceptions=True):
        if isinstance(outcome, Exception):
            raise outcome


async def _flood(orders: dict[str, Any]) -> dict[str, float]:
    """Run the flood in its own process; return its report."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "tests.support.flood", json.dumps(orders), cwd=ROOT, stdout=subprocess.PIPE
    )
    try:
        said, _ = await process.communicate()
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    assert process.returncode == 0
    done: dict[str, float] = json.loads(said)
    return done


async def _slowest_status_s(node: Node, until_done: asyncio.Task[dict[str, float]]) -> float:
    """Return the longest time that it took to answer."""
    slowest_s = 0.0
    while not until_done.done():
        asked_s = time.monotonic()
        await node.client.status()
        slowest_s = max(slowest_s, time.monotonic() - asked_s)
        await asyncio.sleep(0.1)
    return slowest_s


async def _idle(process: psutil.Process) -> bool:
    """Return True if it has little to do for a second."""
    before = process.cpu_times()
    await asyncio.sleep(1)
    after = process.cpu_times()
    return after.user + after.system - before.user - before.system < IDLE_SHARE_MAX


async def _flooded(folder: Path, **orders: object) -> None:
    udp = apart()
    async with FreshNodes(folder, udp=udp, announce_s_max=2.0) as nodes:
        victim, friend = await nodes.start("victim", "friend")
        await victim.meet(friend)
        process = psutil.Process(victim.process.pid)
        port = int((await victim.client.status())["addresses"][0].rpartition(":")[2])
        talk = Talk((victim, friend))
        async with talk.going_on():
            before = process.memory_info().rss, process.cpu_times()
            flood = asyncio.create_task(_flood({"unicast": port, "shared": udp["port"], "node": victim.id, **orders}))
            slowest_s = await _slowest_status_s(victim, flood)
            done = await flood
            after = process.memory_info().rss, process.cpu_times()
        status = await victim.client.status()
        _log.info(
            "%s; received %d, unread %d, refused %s; %.1f s of processor; grown by %.1f MB; status took %.2f s; "
            "%d honest messages took %.2f s at worst",
            done, status["udp"]["counters"]["received"], status["unread"], status["refused"],
            sum(after[1][:2]) - sum(before[1][:2]), (after[0] - before[0]) / 1e6, slowest_s,
            len(talk.took_s), max(talk.took_s.values()),
        )  # fmt: skip
        assert max(talk.took_s.values()) < ARRIVAL_S_MAX
        assert slowest_s < STATUS_S_MAX
        assert process.memory_info().rss - before[0] < GROWTH_BYTES_MAX
        await until(lambda: _idle(process), PATIENCE_S)
        # Else the test would be about nothing.
        assert {"datagram", "frame"} <= status["refused"].keys()
        assert sum(status["refused"].values()) + status["unread"] > done["offered"] / 100
        assert all(len(node.said) < SAID_BYTES_MAX for node in (victim, friend))


@pytest.mark.parametrize("sources", [2_000, pytest.param(1, marks=pytest.mark.soak)])
@scene
async def test_a_flood_of_hostile_datagrams_neither_stops_nor_swells_a_node(tmp_path: Path, sources: int) -> None:
    await _flooded(tmp_path, count=40_000, per_s=20_000, s_max=3, sources=sources)


@pytest.mark.soak
@pytest.mark.parametrize("sources", [1, 5_000])
@scene
async def test_ten_million_hostile_datagrams_neither_stop_nor_swell_a_node(tmp_path: Path, sources: int) -> None:
    # More a second than this, and the system itself has no room for the datagrams of the honest.
    per_s = 40_000 if sources == 1 else 20_000
    await _flooded(tmp_path, count=5_000_000, per_s=per_s, sources=sources, pool=100_000, seed=sources)
