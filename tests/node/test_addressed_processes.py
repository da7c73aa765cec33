"""Messages with recipients between five real nodes in a line, signed, with losses; all nodes are killed."""

from __future__ import annotations

import asyncio
import functools
import random
from collections.abc import Iterator, Sequence
from contextlib import suppress
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from tests.support.nodes import Node, Nodes, Program, scene, until
from tools.netns import Net
from tools.radio_hub import Radio, Rule

from carrypost import JMSException, JMSSecurityException, SendState
from tools import netns

pytestmark = pytest.mark.skipif(bool(netns.available()), reason=f"no network namespaces: {netns.available()}")

LINE = "abcde"
LOSS = 0.1
ROADS = "roads"


@pytest.fixture
def net() -> Iterator[Net]:
    with Net() as made:
        yield made


async def _send_sealed(program: Program, body: bytes, **options: Any) -> str | None:  # noqa: ANN401 - of `send`
    """Send a message if no key of its recipients is known, or all are; they come one by one."""
    with suppress(JMSSecurityException):
        return await program.send(ROADS, body, **options)
    return None


class Author:
    """Programs that send, one after the other, each until its node is killed."""

    def __init__(self, recipients: Sequence[Sequence[str]], size: int = 1) -> None:
        self._recipients = list(enumerate(recipients))
        self._size = size
        self.recipients = {self._body(number): set(each) for number, each in self._recipients}
        self.sent: dict[bytes, str] = {}
        """Messages that `send` returned of, by their bodies."""

    def _body(self, number: int) -> bytes:
        return str(number).encode().ljust(self._size)

    async def live(self, node: Node) -> None:
        program = node.program
        while self._recipients:
            number, recipients = self._recipients.pop(0)  # What is sent in the midst of a kill is not sent again.
            body = self._body(number)
            self.sent[body] = await until(
                functools.partial(_send_sealed, program, body, persistent=True, recipients=recipients)
            )
            await asyncio.sleep(0.02)


class Reader:
    """Programs that read with one durable subscription, one after the other."""

    def __init__(self) -> None:
        self.got: dict[bytes, str] = {}
        self.done: set[str] = set()

    async def live(self, node: Node) -> None:
        program = node.program
        await program.subscribe(ROADS, durable=True)
        while True:
            message = await program.receive()
            assert message.id not in self.done, "what was acknowledged came again"
            assert message.body not in self.got or message.redelivered, "it came again, and did not say so"
            assert self.got.setdefault(message.body, message.id) == message.id, "two messages say the same"
            await asyncio.sleep(0.01)
            await program.acknowledge(message)
            self.done.add(message.id)


class Line:
    """The nodes, with a program on each: the first one sends, the others read."""

    def __init__(self, nodes: Nodes) -> None:
        self._nodes = nodes
        self._lives: dict[str, asyncio.Task[None]] = {}
        self.readers = {name: Reader() for name in LINE[1:]}

    async def start(self) -> dict[str, str]:
        """Start all nodes; returns their ids."""
        started = await self._nodes.start(*LINE)
        for name, reader in self.readers.items():
            self._lives[name] = asyncio.ensure_future(reader.live(self._nodes[name]))
        return {node.name: node.id for node in started}

    def send(self, author: Author) -> None:
        self.author = author
        self._lives["a"] = asyncio.ensure_future(author.live(self._nodes["a"]))

    async def kill(self, name: str) -> None:
        """Kill a node, and start it and its program again."""
        await self._nodes[name].kill()
        with suppress(JMSException, TimeoutError):  # Its program heard of it.
            await self._lives[name]
        (node,) = await self._nodes.start(name)
        program = self.author if name == "a" else self.readers[name]
        self._lives[name] = asyncio.ensure_future(program.live(node))

    async def settle(self) -> None:
        """Wait until all messages are acknowledged to their author, and no node has a copy."""
        await self._lives.pop("a")
        for body, message in self.author.sent.items():
            sent = await self._nodes["a"].program.sent(message)
            assert await sent.delivered(timeout=90) is SendState.DELIVERED
            assert {node async for node in sent.acknowledgements()} == self.author.recipients[body]
        for name in LINE:
            await until(functools.partial(self._is_empty, name), 90)

    async def _is_empty(self, name: str) -> bool:
        if name in self._lives and self._lives[name].done():
            await self._lives[name]  # It found a fault.
        return bool((await self._nodes[name].client.status())["cache"]["bytes"] == 0)  # Keys of nodes have none.

    async def end(self) -> None:
        for each in self._lives.values():
            each.cancel()
        await asyncio.gather(*self._lives.values(), return_exceptions=True)


async def play(net: Net, folder: Path, victims: Sequence[tuple[str, int]], messages: int, **settings: object) -> None:
    """Kill these nodes in turn, each after this many more receptions; every message must arrive exactly once."""
    net.add(*LINE)
    radio = Radio(net, *LINE)
    for one, other in pairwise(LINE):
        radio.link(one, other, Rule(heard=True, loss=LOSS))
    async with Nodes(folder, net, altruistic=True, acked_s=0.3, **settings) as nodes:
        line = Line(nodes)
        ids = await line.start()
        lists = [[ids[name] for name in ("ce", "e", "bde")[number % 3]] for number in range(messages)]
        line.send(Author(lists))
        for victim, more in victims:
            wanted = min(sum(len(each.done) for each in line.readers.values()) + more, messages)

            async def came(wanted: int = wanted) -> bool:
                return sum(len(each.done) for each in line.readers.values()) >= wanted

            await until(came)
            await line.kill(victim)
        await line.settle()
        author = line.author
        for name, reader in line.readers.items():
            own = {body for body, recipients in author.recipients.items() if ids[name] in recipients}
            assert author.sent.keys() & own <= reader.got.keys() <= own
            assert all(reader.got[body] == author.sent.get(body, reader.got[body]) for body in reader.got)
        assert len(author.sent) >= messages - sum(victim == "a" for victim, _ in victims)
        await line.end()


@scene
async def test_each_message_comes_once_to_each_recipient_whoever_is_killed(net: Net, tmp_path: Path) -> None:
    await play(net, tmp_path, [("a", 0), ("d", 2), ("e", 2)], 9)


@pytest.mark.soak
@pytest.mark.parametrize("strategy", ["exchange", "anti-entropy"])
@pytest.mark.parametrize("seed", range(3))
@scene
async def test_each_message_comes_once_to_each_recipient_over_many_kills(
    net: Net, tmp_path: Path, seed: int, strategy: str
) -> None:
    chance = random.Random(seed)
    victims = [(victim, chance.randrange(4)) for _ in range(5) for victim in chance.sample(LINE, len(LINE))]
    await play(net, tmp_path, victims, 150, strategy=strategy)
