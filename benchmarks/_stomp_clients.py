"""STOMP clients that only write and read bytes, at a separate node: their cost for that node.

The clients are in this process and the node is in another, so its CPU time is the cost of serving them. They ignore
headers, and only count frames, whose bodies contain no NUL.
"""

from __future__ import annotations

import asyncio
import gc
import random
import re
import socket
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final

from benchmarks._attached_programs import node
from benchmarks._jms_programs import SIZE_BYTES
from benchmarks._processes import BenchmarkError, cpu_s

from carrypost.daemon.stomp.codec import Decoder, Version

BODY: Final = bytes(random.Random(1).choices(range(1, 256), k=SIZE_BYTES))
WARM: Final = 20
_RECEIVE_BYTES: Final = 64 * 1024
BURST: Final = 16
_FILLING: Final = 300
"""Messages that are more than sockets keep for a client that does not read."""
_WAIT_S: Final = 120.0
_CONNECT: Final = b"CONNECT\naccept-version:1.2\nhost:x\n\n\0"
_SUBSCRIBE: Final = b"SUBSCRIBE\nid:1\ndestination:/topic/bench\nreceipt:s\n\n\0"
_SUBSCRIBE_CLIENT: Final = _SUBSCRIBE.replace(b"receipt", b"ack:client-individual\nprefetch-count:10000\nreceipt")
_ACK: Final = re.compile(rb"\nack:([0-9]+)\n")


def send_frame(*, persistent: bool, receipt: bool) -> bytes:
    """Return a SEND as a client of some library writes it."""
    headers = b"persistent:true\n" * persistent + b"receipt:77\n" * receipt
    head = b"destination:/topic/bench\ncontent-type:application/octet-stream\n%bcontent-length:%d\n"
    return b"SEND\n" + head % (headers, len(BODY)) + b"\n" + BODY + b"\0"


# --- frames --------------------------------------------------------------------------------------------------------

_FRAMES: Final = 64
_CUTS: Final = 4_096


def _stream() -> list[bytes]:
    data = send_frame(persistent=True, receipt=True) * _FRAMES
    return [data[at : at + _CUTS] for at in range(0, len(data), _CUTS)]


def _cut(chunks: list[bytes]) -> Iterator[tuple[str, dict[str, str], bytes]]:
    """Cut bytes into lines and dictionaries, without any check."""
    buffer = bytearray()
    for chunk in chunks:
        buffer += chunk
        while (end := buffer.find(b"\n\n")) >= 0:
            command, *lines = bytes(buffer[:end]).decode().split("\n")
            headers: dict[str, str] = {}
            for line in lines:
                name, _, value = line.partition(":")
                headers[name] = value
            length = int(headers["content-length"])
            if len(buffer) <= end + 2 + length:
                break
            body = bytes(buffer[end + 2 : end + 2 + length])
            del buffer[: end + 3 + length]
            yield command, headers, body


def _decoded(chunks: list[bytes]) -> int:
    decoder, count = Decoder(10**7, version=Version.V1_2), 0
    for chunk in chunks:
        decoder.feed(chunk)
        while decoder.next() is not None:
            count += 1
    return count


def decoding(frames: int) -> tuple[float, float]:
    """Return the CPU time of a frame that is decoded, and of one that is only cut, in microseconds."""
    chunks, costs = _stream(), []
    for work in (_decoded, lambda chunks: sum(1 for _ in _cut(chunks))):
        rounds = max(1, frames // _FRAMES)
        gc.collect()
        begun_s = time.process_time()
        for _ in range(rounds):
            if work(chunks) != _FRAMES:
                raise BenchmarkError("frames were lost")
        costs.append((time.process_time() - begun_s) / (rounds * _FRAMES) * 1e6)
    return costs[0], costs[1]


# --- clients -------------------------------------------------------------------------------------------------------


class Client(asyncio.Protocol):
    """A client that counts the frames that come."""

    transport: asyncio.Transport

    def __init__(self) -> None:
        self.frames = 0
        self.acknowledges = False
        self._cut = b""
        """The end of what came, in which a header may be cut off."""
        self._awaited, self._all = 0, asyncio.Event()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin."""
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        """Count, and perhaps acknowledge."""
        self.frames += data.count(0)
        if self.acknowledges:
            whole = self._cut + data
            numbers = list(_ACK.finditer(whole))
            self._cut = whole[numbers[-1].end() - 1 :] if numbers else whole
            for each in numbers:
                self.transport.write(b"ACK\nid:%b\n\n\0" % each[1])
        self.count()

    def count(self) -> None:
        """Note that frames came."""
        if self.frames >= self._awaited:
            self._all.set()

    async def until(self, frames: int) -> None:
        """Wait until this many frames have come since the beginning."""
        self._awaited = frames
        if self.frames < frames:
            self._all.clear()
            async with asyncio.timeout(_WAIT_S):
                await self._all.wait()

    async def say(self, data: bytes, answers: int = 1) -> None:
        """Write data, and wait for this many frames."""
        self.transport.write(data)
        await self.until(self.frames + answers)


class Served:
    """A node, and clients that are connected to it."""

    def __init__(self, pid: int, port: int) -> None:
        self.pid, self._port = pid, port
        self._made: list[Client] = []

    async def connect(self, count: int, *frames: bytes) -> list[Client]:
        """Connect clients, each of which sends these frames and gets an answer to each."""
        made = []
        for _ in range(count):
            made_socket = socket.socket()
            made_socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _RECEIVE_BYTES)
            made_socket.connect(("127.0.0.1", self._port))
            _, client = await asyncio.get_running_loop().create_connection(Client, sock=made_socket)
            self._made.append(client)
            for frame in (_CONNECT, *frames):
                await client.say(frame)
            made.append(client)
        return made

    def close(self) -> None:
        """Hang up."""
        for client in self._made:
            client.transport.abort()


@asynccontextmanager
async def served(folder: Path, messages: int, *settings: str) -> AsyncIterator[Served]:
    """Run a node with room for this many messages, and with more settings."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = int(probe.getsockname()[1])
    more = (f"stomp.port={port}", "stomp.open=true", "stomp.connections_max=1000", *settings)
    with node(folder, messages, *more) as pid:
        made = Served(pid, port)
        try:
            yield made
        finally:
            made.close()


async def _settle(client: Client) -> None:
    """Wait until everything before is on disk."""
    await client.say(b"SEND\ndestination:/topic/bench.last\npersistent:true\nreceipt:1\n\n\0")


async def sending(folder: Path, messages: int, clients: int, *settings: str, persistent: bool) -> float:
    """Return the node's CPU time for a SEND with receipt, if each client waits for the receipt before the next one."""
    frame = send_frame(persistent=persistent, receipt=True)
    async with served(folder, messages, *settings) as place:
        made = await place.connect(clients)

        async def some(client: Client, count: int) -> None:
            for _ in range(count):
                await client.say(frame)

        await some(made[0], WARM)
        await _settle(made[0])
        begun_s = cpu_s(place.pid)
        async with asyncio.TaskGroup() as group:
            for number, client in enumerate(made):
                group.create_task(some(client, (messages + number) // clients))
        await _settle(made[0])
        return (cpu_s(place.pid) - begun_s) / messages * 1e6


async def receiving(folder: Path, messages: int, clients: int, *, acknowledges: bool = False) -> float:
    """Return the node's CPU time for a copy, if one client sends and this many others receive each message."""
    async with served(folder, messages * clients) as place:
        made = await place.connect(clients, _SUBSCRIBE_CLIENT if acknowledges else _SUBSCRIBE)
        for client in made:
            client.acknowledges = acknowledges
        (author,) = await place.connect(1)
        await _send(author, WARM)
        await asyncio.gather(*(client.until(2 + WARM) for client in made))
        await _settle(author)
        begun_s = cpu_s(place.pid)
        await _send(author, messages)
        await asyncio.gather(*(client.until(2 + WARM + messages) for client in made))
        await _settle(author)
        return (cpu_s(place.pid) - begun_s) / (messages * clients) * 1e6


async def _send(author: Client, messages: int) -> None:
    """Send, with a receipt for every few: the author is not far ahead of the node."""
    frame, last = send_frame(persistent=False, receipt=False), send_frame(persistent=False, receipt=True)
    for first in range(0, messages, BURST):
        await author.say(frame * (min(BURST, messages - first) - 1) + last)


async def beside_slow(folder: Path, messages: int, healthy: int, slow: int) -> float:
    """Return the copies that healthy clients get per CPU second of the node, beside slow ones with full buffers."""
    async with served(folder, (messages + _FILLING) * healthy) as place:
        made = await place.connect(healthy, _SUBSCRIBE)
        for client in await place.connect(slow, _SUBSCRIBE):
            client.transport.pause_reading()
        (author,) = await place.connect(1)
        await _send(author, _FILLING)
        await asyncio.gather(*(client.until(2 + _FILLING) for client in made))
        begun_s = cpu_s(place.pid)
        await _send(author, messages)
        await asyncio.gather(*(client.until(2 + _FILLING + messages) for client in made))
        return messages * healthy / (cpu_s(place.pid) - begun_s)
