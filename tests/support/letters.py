"""Random networks with letters, and the question what nodes without a key ever held or heard of them."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

import msgspec

from carrypost import Consumer, Context, testing
from carrypost.emu.engine.radio import Radio
from carrypost.log.journal import StoredMessage
from carrypost.model.descriptor import Descriptor

SIGNED: dict[str, Any] = {
    "security": "signed", "lifetime_s_max": 30 * 86_400.0, "lifetime_s_default": 86_400.0, "mtu_bytes": 1_200,
    "altruistic": True,
}  # fmt: skip
NODES = tuple(f"n{at}" for at in range(8))
MANAGERS, REMOTE, LISTED, SENDERS = ("n0", "n1"), "n2", ("n3", "n4"), ("n5", "n6", "n1", "n3")
"""`n7` is a stranger that only carries."""


async def next_text(inbox: Consumer) -> str | None:
    """Return the text of the next message, which has to come."""
    message = await inbox.receive(timeout=60)
    assert message is not None
    return message.text


def stored(net: testing.Network, node: str) -> bytes:
    """Return everything that the store of a node holds, as bytes."""
    disk = net._driver(node).store._disk  # noqa: SLF001 - the whole disk, payloads included
    return b"\n".join(_bytes_of(value) for value in disk.values())


def _bytes_of(value: object) -> bytes:
    if isinstance(value, StoredMessage):
        return value.descriptor.wire
    if isinstance(value, Descriptor):
        return value.wire
    return value if isinstance(value, bytes) else msgspec.msgpack.encode(value)


@contextmanager
def on_air() -> Iterator[list[bytes]]:
    """Collect every datagram that arrives anywhere; the network must be `encoded`."""
    found: list[bytes] = []
    read = Radio._read  # noqa: SLF001 - all bytes of the emulator pass here

    def spy(self: Radio, encoded: bytes, size: int) -> object:
        found.append(encoded)
        return read(self, encoded, size)

    with mock.patch.object(Radio, "_read", spy):
        yield found


class Letters:
    """One random network: who may read each letter, and who did."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.readers: dict[str, set[str]] = {}
        """Nodes that may read each letter, by its mark."""
        self.got: Counter[tuple[str, str]] = Counter()
        """Number of times that each node was handed each letter."""

    async def play(self, seed: int) -> None:
        """Send letters while nodes meet, lose datagrams and crash; then let everybody meet, and check."""
        with on_air() as datagrams:
            async with testing.network(*NODES, seed=seed, loss=0.05, encoded=True, **SIGNED) as net:
                await self._play(net)
                for mark, readers in self.readers.items():
                    for node in NODES:
                        assert self.got[mark, node] <= 1
                    for text in (f"body {mark}", f"property {mark}", f"label {mark}", f"type {mark}"):
                        for node in set(NODES) - readers:
                            assert text.encode() not in stored(net, node), (text, node)
                        assert not any(text.encode() in each for each in datagrams), text
                assert all(sum(self.got[mark, node] for node in NODES) for mark in self.readers)

    async def _play(self, net: testing.Network) -> None:
        contexts = {node: await net.context(node) for node in NODES[:-1]}
        queues = [(await contexts[node].declare_queue(f"q-{node}", sealed=True)).queue_name for node in MANAGERS]
        consumers = {
            "n0": await contexts["n0"].create_consumer(contexts["n0"].create_queue(queues[0])),
            REMOTE: await contexts[REMOTE].create_consumer(contexts[REMOTE].create_queue(queues[1]), "urgent = TRUE"),
        }
        for node in LISTED:
            topic = contexts[node].create_topic("plans")
            consumers[node] = await contexts[node].create_consumer(topic, "urgent = TRUE")
        self._mingle(net, every=True)
        await net.run(60)
        for number in range(12):
            await self._send(contexts, queues, f"mark{number:02}")
            self._mingle(net)
            await net.run(self.rng.randrange(5, 60))
            if self.rng.random() < 0.2:
                net.kill("n7")
                await net.run(5)
                net.restart("n7")
        self._mingle(net, every=True)
        await net.run(240)
        for node, consumer in consumers.items():
            while (message := await consumer.receive(timeout=1)) is not None:
                mark = (message.text or "").removeprefix("body ")
                assert message.sealed == "letter"
                assert message.get_string_property("secret") == f"property {mark}"
                assert message.jms_type == f"type {mark}"
                self.got[mark, node] += 1
        for context in contexts.values():
            await context.close()

    async def _send(self, contexts: dict[str, Context], queues: list[str], mark: str) -> None:
        sender, to = self.rng.choice(SENDERS), self.rng.randrange(3)
        listed: list[str] | None = None
        if to < len(queues):
            destination = f"queue/{queues[to]}"
            readers = {MANAGERS[to]} | ({REMOTE} if to else set())
        else:
            destination, readers = "topic/plans", set(LISTED) - {sender}
            listed = [contexts[each].node_id for each in sorted(readers)]
        self.readers[mark] = readers | {sender}
        sent = await contexts[sender].send(
            destination, f"body {mark}", properties={"secret": f"property {mark}", "urgent": True},
            jms_type=f"type {mark}", label=f"label {mark}", recipients=listed, sealed=True,
        )  # fmt: skip
        assert sent.sealed == "letter"

    def _mingle(self, net: testing.Network, *, every: bool = False) -> None:
        """Let some nodes meet, or a line of all, and end other contacts."""
        for at, one in enumerate(NODES):
            for two in NODES[at + 1 :]:
                meet = NODES.index(two) == at + 1 if every else self.rng.random() < 0.2
                if meet is not net.linked(one, two):
                    (net.link if meet else net.unlink)(one, two)
