"""A real node is killed again and again while messages flow: it keeps every promise that it made before.

The test keeps its own account of promises: sends that were answered, messages that were handed over, acknowledgements
that returned. Whatever was under way when the node died may have happened or not.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import signal
from pathlib import Path

import pytest
from tests.support.loopback import apart
from tests.support.nodes import PATIENCE_S, Node, Nodes, Program, Received, scene, until

from carrypost.errors import JMSException, NoNodeError

SIZES = (0, 20, 20, 20, 900, 5_000, 40_000)
"""One fragment, several, several pieces."""
PACE_S = 0.004
LIFE_S_MAX = 0.4
BOOT_S_MAX = 0.8
"""Approximate time of a start, which may be interrupted, too."""


class Books:
    """The promises to a program at the victim; raises when the victim breaks one."""

    def __init__(self) -> None:
        self.handed: set[bytes] = set()
        self.confirmed: set[bytes] = set()
        """The confirmation returned."""
        self.doubtful: set[bytes] = set()
        """Messages that were under way when the node died."""
        self.again: set[bytes] = set()
        """Of earlier lives, and has to come again."""
        self.redelivered = 0

    def take(self, message: Received) -> None:
        """The program is handed a message."""
        key = message.body
        assert key not in self.confirmed, f"{key[:20]!r} was confirmed, and comes again"
        if key in self.handed:
            assert message.redelivered, f"{key[:20]!r} comes again and does not say so"
            self.redelivered += 1
        self.handed.add(key)
        self.again.discard(key)
        self.doubtful.discard(key)  # Now it is known: the confirmation was not stored.

    def died(self) -> None:
        """The victim is dead."""
        self.again = self.handed - self.confirmed - self.doubtful


class Author:
    """A program that publishes continuously, at one node."""

    def __init__(self, name: str, chance: random.Random) -> None:
        self.name = name
        self.stored: dict[bytes, str] = {}
        """Persistent messages whose send returned: payloads, and the ids."""
        self._ids: set[str] = set()
        self.tried: set[bytes] = set()
        self._chance = chance
        self._padding = chance.randbytes(max(SIZES))

    async def publish(self, program: Program) -> None:
        """One message."""
        payload = f"{self.name} {len(self.tried)} ".encode() + self._padding[: self._chance.choice(SIZES)]
        self.tried.add(payload)
        persistent = self._chance.random() < 0.5
        message = await program.send(f"from.{self.name}", payload, persistent=persistent)
        assert message not in self._ids, f"{message} is given twice"
        self._ids.add(message)
        if persistent:  # Of others it is not promised that they outlive the process.
            self.stored[payload] = message

    async def work(self, program: Program) -> None:
        """Publish until the node is gone."""
        with contextlib.suppress(JMSException):
            while True:
                await self.publish(program)
                await asyncio.sleep(self._chance.uniform(0, 2 * PACE_S))


class Reader:
    """A program at the victim: it confirms some of its messages, late or at once, and ignores the rest."""

    def __init__(self, chance: random.Random) -> None:
        self.books = Books()
        self._chance = chance

    async def work(self, program: Program) -> None:
        """Read until the node is gone."""
        await program.subscribe("from.neighbour", durable=True)
        pending: list[Received] = []
        with contextlib.suppress(JMSException):
            while True:
                message = await program.receive()
                self.books.take(message)
                if self._chance.random() < 0.6:
                    pending.append(message)
                if len(pending) > self._chance.randrange(5):
                    await self.confirm(program, pending)
                    pending = []

    async def confirm(self, program: Program, messages: list[Received]) -> None:
        """Confirm these together."""
        keys = {each.body for each in messages}
        self.books.doubtful |= keys
        await program.acknowledge(*messages)
        self.books.doubtful -= keys
        self.books.confirmed |= keys


class Stage:
    """A victim that dies, its neighbour that does not, and the programs at both."""

    def __init__(self, nodes: Nodes, seed: int) -> None:
        self.nodes = nodes
        self.chance = random.Random(seed)
        self.here = Author("victim", self.chance)
        self.there = Author("neighbour", self.chance)
        self.reader = Reader(self.chance)
        self.arrived: set[bytes] = set()
        """Messages of the victim that the neighbour got."""

    async def live(self) -> None:
        """One life of the victim: it starts, keeps its word, works for a while, and is killed."""
        books = self.reader.books
        (victim,) = await self.nodes.start("victim")
        work = [asyncio.create_task(each(victim.program)) for each in (self.here.work, self.reader.work)]
        try:
            await self.audit(victim)

            async def all_again() -> bool:
                _raise_first(work)
                return not books.again

            await until(all_again)
            await asyncio.sleep(self.chance.uniform(0, LIFE_S_MAX))
        finally:
            await _kill(victim)
            outcomes = await asyncio.gather(*work, return_exceptions=True)
            await victim.disconnect()
        assert outcomes == [None, None]
        books.died()

    async def die_young(self) -> None:
        """A life that ends somewhere in the start."""
        start = asyncio.create_task(self.nodes.start("victim"))
        await asyncio.sleep(self.chance.uniform(0, BOOT_S_MAX))
        await _kill(self.nodes["victim"])
        with contextlib.suppress(
            AssertionError, NoNodeError, JMSException
        ):  # It ended before it was ready, as it was meant to.
            await start
        await self.nodes["victim"].disconnect()

    async def audit(self, victim: Node) -> None:
        """Everything is there that the victim said it had stored; a program that confirms nothing gets all of it."""
        missing = set(self.here.stored)
        async with await Program.connect(victim.control) as auditor, asyncio.timeout(PATIENCE_S):
            await auditor.subscribe("from.victim")
            while missing:
                message = await auditor.receive()
                assert message.id == self.here.stored.get(message.body, message.id)
                missing.discard(message.body)

    async def collect(self, neighbour: Node) -> None:
        """The neighbour reads what the victim wrote."""
        while True:
            message = await neighbour.program.receive()
            assert message.body not in self.arrived, f"{message.body[:20]!r} comes twice"
            assert message.body in self.here.tried
            self.arrived.add(message.body)
            await neighbour.program.acknowledge(message)

    async def finish(self) -> None:
        """The last life: everything arrives, everything is confirmed, and after that nothing comes again."""
        books = self.reader.books
        (victim,) = await self.nodes.start("victim")
        await victim.program.subscribe("from.neighbour", durable=True)
        expected = set(self.there.stored)
        while not expected <= books.confirmed | books.doubtful or books.again:
            message = await victim.program.receive(timeout_s=PATIENCE_S)
            books.take(message)
            await self.reader.confirm(victim.program, [message])

        async def all_arrived() -> bool:
            return set(self.here.stored) <= self.arrived

        await until(all_arrived)
        await victim.end(signal.SIGKILL)
        books.died()
        (victim,) = await self.nodes.start("victim")
        await victim.program.subscribe("from.neighbour", durable=True)
        await self.there.publish(self.nodes["neighbour"].program)
        while (last := await victim.program.receive(timeout_s=PATIENCE_S)).body in books.doubtful:
            books.take(last)
        assert last.body not in expected
        books.take(last)


def _raise_first(work: list[asyncio.Task[None]]) -> None:
    for task in work:
        if task.done():
            task.result()


async def _kill(node: Node) -> None:
    """As a power cut, as far as the process is concerned; the programs find out by themselves."""
    node.process.send_signal(signal.SIGKILL)

    async def ended() -> bool:
        return node.process.poll() is not None

    await until(ended)


async def _killed_often(folder: Path, seed: int, *, times: int) -> None:
    async with Nodes(folder, udp=apart(), messaging={"tries": 1_000}) as nodes:
        (neighbour,) = await nodes.start("neighbour")
        await neighbour.program.subscribe("from.victim", durable=True)
        stage = Stage(nodes, seed)
        async with await Program.connect(neighbour.control) as program:
            writing = asyncio.create_task(stage.there.work(program))
            reading = asyncio.create_task(stage.collect(neighbour))
            try:
                for number in range(5 * times):
                    if number >= times and stage.reader.books.redelivered > times:
                        break  # On a busy machine little happens in a life.
                    await (stage.die_young() if number % 5 == 4 else stage.live())
                    _raise_first([writing, reading])
                writing.cancel()
                await stage.finish()
            finally:
                for task in (writing, reading):
                    task.cancel()
                await asyncio.gather(writing, reading, return_exceptions=True)
        books = stage.reader.books
        # Else the test would be about nothing.
        assert stage.reader.books.redelivered > times
        assert len(books.confirmed) > times
        assert len(stage.here.stored) > times


@scene
async def test_a_node_that_is_killed_five_times_keeps_its_word(tmp_path: Path) -> None:
    await _killed_often(tmp_path, 1, times=5)


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(2))
@scene
async def test_a_node_that_is_killed_fifty_times_keeps_its_word(tmp_path: Path, seed: int) -> None:
    await _killed_often(tmp_path, 100 + seed, times=50)
