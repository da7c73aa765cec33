"""OpenWire clients that only write and read bytes, at a separate node: their cost for that node.

They say what ActiveMQ's client says: a message at a time, and one acknowledgement for each that comes.
"""

from __future__ import annotations

import asyncio
import itertools
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final

from benchmarks._attached_programs import node
from benchmarks._processes import cpu_s

from benchmarks import _stomp_clients as stomp
from carrypost.daemon.openwire import codec
from carrypost.daemon.openwire import commands as wire

_VERSION: Final = 12
_BODY: Final = stomp.BODY
_TOPIC: Final = wire.TopicName("bench")
_DISPATCH: Final = wire.number_of(wire.MessageDispatch)


class Client(stomp.Client):
    """A client that counts the commands that come, and acknowledges messages."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self._name, self._buffer, self._numbers = name, bytearray(), itertools.count(1)

    def data_received(self, data: bytes) -> None:
        """Count, and acknowledge."""
        self._buffer += data
        while len(self._buffer) >= 4 and len(self._buffer) >= (end := 4 + int.from_bytes(self._buffer[:4], "big")):
            self.frames += 1
            if self._buffer[4] == _DISPATCH:
                found = codec.decode(bytes(self._buffer[4:end]), _VERSION)
                assert isinstance(found, wire.MessageDispatch)
                assert found.message is not None
                ack = wire.MessageAck(consumer=found.consumer, kind=2, last=found.message.id, count=1)
                self.transport.write(codec.encode(ack, _VERSION))
            del self._buffer[:end]
        self.count()

    async def connect(self, *, consumes: bool) -> None:
        """Connect, and perhaps consume from the topic."""
        await self.say(codec.encode(wire.WireFormatInfo(version=_VERSION)), 2)
        connection = wire.ConnectionInfo(connection=wire.ConnectionId(self._name), answered=True)
        await self.say(codec.encode(connection, _VERSION))
        if consumes:
            id_ = wire.ConsumerId(self._name, 1, 1)
            info = wire.ConsumerInfo(consumer=id_, destination=_TOPIC, prefetch=32_766, answered=True)
            await self.say(codec.encode(info, _VERSION))

    def message(self, *, persistent: bool, answered: bool) -> bytes:
        """Return the next message."""
        producer = wire.ProducerId(self._name, 1, 1)
        id_ = wire.MessageId(None, producer, next(self._numbers))
        made = wire.BytesMessage(
            producer=producer, destination=_TOPIC, id=id_, persistent=persistent, answered=answered, content=_BODY
        )
        return codec.encode(made, _VERSION)


@asynccontextmanager
async def served(
    folder: Path, messages: int, clients: int, *, consume: bool
) -> AsyncIterator[tuple[int, list[Client]]]:
    """Run a node with clients; yield the process and the clients, of which the last one only sends."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = int(probe.getsockname()[1])
    with node(folder, messages, f"openwire.port={port}", "openwire.open=true") as pid:
        made: list[Client] = []
        for number in range(clients + 1):
            _, client = await asyncio.get_running_loop().create_connection(
                lambda number=number: Client(f"ID:bench-{number}"), "127.0.0.1", port  # type: ignore[misc]
            )  # fmt: skip
            made.append(client)
            await client.connect(consumes=consume and number < clients)
        try:
            yield pid, made
        finally:
            for client in made:
                client.transport.abort()


async def sending(folder: Path, messages: int, clients: int, *, persistent: bool) -> float:
    """Return the node's CPU time for a message, if each client waits for the response before the next one."""
    async with served(folder, messages, clients, consume=False) as (pid, made):

        async def some(client: Client, count: int) -> None:
            for _ in range(count):
                await client.say(client.message(persistent=persistent, answered=True))

        await some(made[-1], stomp.WARM)
        begun_s = cpu_s(pid)
        async with asyncio.TaskGroup() as group:
            for number, client in enumerate(made[:-1]):
                group.create_task(some(client, (messages + number) // clients))
        await made[-1].say(made[-1].message(persistent=True, answered=True))
        return (cpu_s(pid) - begun_s) / messages * 1e6


async def receiving(folder: Path, messages: int, clients: int) -> float:
    """Return the node's CPU time for a copy, if one client sends and this many others receive each message."""
    async with served(folder, messages * clients, clients, consume=True) as (pid, made):
        *receivers, author = made

        async def send(count: int) -> None:
            for first in range(0, count, stomp.BURST):
                burst = min(stomp.BURST, count - first)
                frames = [author.message(persistent=False, answered=each == burst - 1) for each in range(burst)]
                await author.say(b"".join(frames))

        before = receivers[0].frames
        await send(stomp.WARM)
        await asyncio.gather(*(client.until(before + stomp.WARM) for client in receivers))
        begun_s = cpu_s(pid)
        await send(messages)
        await asyncio.gather(*(client.until(before + stomp.WARM + messages) for client in receivers))
        await author.say(author.message(persistent=True, answered=True))
        return (cpu_s(pid) - begun_s) / (messages * clients) * 1e6
