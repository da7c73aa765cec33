"""Topics that a node holds, between real nodes, signed, with losses: publisher, holder, and subscribers near and far.

The five are in a line. The first one publishes, the second one holds the topic, the third and the last one subscribe.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Collection, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from itertools import pairwise
from pathlib import Path

import pytest
from tests.support.nodes import Node, Nodes, scene, until
from tools.netns import Net
from tools.radio_hub import Radio, Rule

from carrypost import JMSException, Topic
from tools import netns

pytestmark = pytest.mark.skipif(bool(netns.available()), reason=f"no network namespaces: {netns.available()}")

PUBLISHER, HOLDER, NEAR, RELAY, FAR = LINE = "abcde"
LOSS = 0.1
PATIENCE_S = 20.0
"""Longer than losses, or a busy machine, keep a message from being acknowledged."""


@pytest.fixture
def net() -> Iterator[Net]:
    with Net() as made:
        yield made


@asynccontextmanager
async def line(net: Net, folder: Path) -> AsyncIterator[tuple[Nodes, Radio, Topic]]:
    """Yield the nodes, once all know of each other, and the topic."""
    net.add(*LINE)
    radio = Radio(net, *LINE)
    for pair in pairwise(LINE):
        radio.link(*pair, Rule(heard=True, loss=LOSS))
    async with Nodes(folder, net, acked_s=0.3, announce_s_max=1.0, island_patience_s=PATIENCE_S) as nodes:
        await nodes.start(*LINE)

        async def is_whole() -> bool:
            return all([(await nodes[name].client.status())["island"]["hosts"] == len(LINE) - 1 for name in LINE])

        await until(is_whole, 90)
        yield nodes, radio, await nodes[HOLDER].program.hold("news")


async def heard_of(node: Node, message: str, count: int) -> set[str]:
    """Return the subscribers that the publisher of a message knows of, once there are this many."""
    found: set[str] = set()
    async with asyncio.timeout(90):
        async for each in (await node.program.sent(message)).acknowledgements():
            found.add(each)
            if len(found) == count:
                break
    return found


async def come(node: Node, messages: Mapping[str, bytes], source: Node, problems: Collection[JMSException]) -> bool:
    """Receive these messages, and whatever else there is; returns False once a problem is reported."""
    missing = dict(messages)
    async with asyncio.timeout(60):
        while missing and not problems:
            with suppress(TimeoutError):
                message = await node.receive(2)
                if message.id in messages:
                    assert (message.body, message.source) == (missing.pop(message.id), source.id)
    return not missing


@scene
async def test_subscribers_get_what_is_published_over_several_hops_until_there_is_no_path(
    net: Net, tmp_path: Path
) -> None:
    async with line(net, tmp_path) as (nodes, radio, topic):
        near, far, publisher = nodes[NEAR], nodes[FAR], nodes[PUBLISHER]
        await near.program.subscribe(topic, durable=True)

        async def subscribed() -> bool:
            with suppress(JMSException):  # Losses may hide the path for a moment.
                await far.program.subscribe(topic)
                return True
            return False

        async def send(*bodies: bytes) -> dict[str, bytes]:
            return {
                await publisher.program.send(topic, each, persistent=True, request_receipt=True): each
                for each in bodies
            }

        async def served() -> dict[str, bytes] | None:
            """Send to both; None if the machine was so busy that the path was lost, and the subscription with it."""
            far.program.problems.clear()
            await until(subscribed, 60)
            for node in (near, far):  # Both are enrolled once something reaches them.

                async def reached(node: Node = node) -> bool:
                    await send(b"first")
                    with suppress(TimeoutError):
                        return (await node.receive(2)).body == b"first"
                    return bool(far.program.problems)

                await until(reached, 60)
            sent = await send(*(bytes([number]) * 2_000 for number in range(4)))
            whole = [await come(node, sent, publisher, far.program.problems) for node in (near, far)]
            return sent if all(whole) else None

        sent = await until(served, 180)
        for each in sent:
            assert await heard_of(nodes[PUBLISHER], each, 2) == {near.id, far.id}
        assert (await nodes[RELAY].client.status())["island"]["relayed_bytes"] > 0
        radio.unlink(RELAY, FAR)

        async def told() -> bool:
            return bool(far.program.problems)

        await until(told, 60)
        assert "receives no more messages: the path" in str(far.program.problems[0])
        assert not near.program.problems


class Reader:
    """Programs that read with one durable subscription, one after the other."""

    def __init__(self, topic: Topic) -> None:
        self._topic = topic
        self.got: dict[bytes, str] = {}
        self.done: set[str] = set()

    async def live(self, node: Node) -> None:
        program = node.program
        await program.subscribe(self._topic, durable=True)
        while True:
            message = await program.receive()
            assert message.id not in self.done, "what was acknowledged came again"
            assert self.got.setdefault(message.body, message.id) == message.id, "two messages say the same"
            await program.acknowledge(message)
            self.done.add(message.id)


class Readers:
    """The programs of both subscribers."""

    def __init__(self, nodes: Nodes, topic: Topic) -> None:
        self._nodes = nodes
        self.of = {name: Reader(topic) for name in (NEAR, FAR)}
        self._lives = {name: asyncio.ensure_future(reader.live(nodes[name])) for name, reader in self.of.items()}

    async def kill(self, name: str) -> None:
        """Kill a node, and start it and its program again."""
        await self._nodes[name].kill()
        if name in self.of:
            with suppress(JMSException, TimeoutError):  # Its program heard of it.
                await self._lives[name]
        (node,) = await self._nodes.start(name)
        if name in self.of:
            self._lives[name] = asyncio.ensure_future(self.of[name].live(node))

    async def have(self, bodies: Collection[bytes]) -> bool:
        """Return True if all of this came to both."""
        for each in self._lives.values():
            if each.done():
                await each  # It found a fault.
        return all(reader.got.keys() >= set(bodies) for reader in self.of.values())

    async def end(self) -> None:
        for each in self._lives.values():
            each.cancel()
        await asyncio.gather(*self._lives.values(), return_exceptions=True)


@pytest.mark.soak
@pytest.mark.parametrize("victims", ["bdceb", "ebbdcbec"])
@scene
async def test_each_publication_comes_once_to_each_subscriber_whoever_is_killed(
    net: Net, tmp_path: Path, victims: Sequence[str]
) -> None:
    async with line(net, tmp_path) as (nodes, _, topic):
        readers = Readers(nodes, topic)
        sent: dict[bytes, str] = {}

        async def publish(body: bytes) -> None:
            sent[body] = await nodes[PUBLISHER].program.send(topic, body, persistent=True, request_receipt=True)

        async def enrolled() -> bool:
            await publish(b"first %d" % len(sent))
            await asyncio.sleep(1)
            return all(reader.got for reader in readers.of.values())

        await until(enrolled, 60)
        sent.clear()  # Of those each got what came after its enrolment.
        for number, victim in enumerate(victims):
            for each in range(3):
                await publish(b"%d %d" % (number, each))
            await readers.kill(victim)
        await publish(b"last")
        await until(lambda: readers.have(sent), 180)
        for reader in readers.of.values():
            assert {body: reader.got[body] for body in sent} == sent
        for message in sent.values():
            assert await heard_of(nodes[PUBLISHER], message, 2) == {nodes[NEAR].id, nodes[FAR].id}
        await readers.end()
