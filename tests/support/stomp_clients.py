"""STOMP clients that only write and read bytes, and nodes in this process that serve them."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import subprocess
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, NamedTuple, Self

import msgspec
from tests.support.copies import copy
from tests.support.loopback import apart
from tests.support.nodes import PATIENCE_S, QUICK, node_main

from carrypost.attach.served_node import ServedNode
from carrypost.cli._settings import NodeCommand
from carrypost.daemon.stomp.codec import SERVER, Decoder, Frame, Version
from carrypost.daemon.stomp.server import Server
from carrypost.node.settings import NodeSettings, parse


def free_port() -> int:
    """Return a TCP port of loopback that no process uses."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def settings(folder: Path, stomp: dict[str, object] | None = None, **more: object) -> NodeSettings:
    """Return the settings of a node that no other node hears, with STOMP open to all unless `stomp` says otherwise."""
    given = {"port": free_port(), "open": True, **(stomp or {})}
    place = {"data": str(folder)}
    return parse("", {}, {**QUICK, "udp": apart(), "node": place, "stomp": given, **more})


@asynccontextmanager
async def serving(
    folder: Path, stomp: dict[str, object] | None = None, **more: object
) -> AsyncIterator[tuple[Server, ServedNode]]:
    """Run a node in this process that serves STOMP clients."""
    served = await ServedNode.start(settings(folder, stomp, **more), stopping=asyncio.Event())
    try:
        server = await Server.serve(served)
        assert server is not None
        yield server, served
    finally:
        Raw.close_all()
        await served.stop()


class Process(NamedTuple):
    """A `carrypost node` that serves STOMP clients."""

    port: int
    token: str
    data: Path
    pid: int


@contextmanager
def node_process(folder: Path, **stomp: Any) -> Iterator[Process]:  # noqa: ANN401 - as the settings have them
    """Run a node in a process of its own, with its folder where a user has it whose home folder this is."""
    data, port = folder / ".local" / "share" / "carrypost", stomp.setdefault("port", free_port())
    given = {"udp": apart(), "stomp": stomp}
    changes = (f"{table}.{key}={json.dumps(value)}" for table, keys in given.items() for key, value in keys.items())
    order = NodeCommand(config=None, data=str(data), changes=tuple(changes), json=True, verbose=False)
    environment = {key: value for key, value in os.environ.items() if not key.startswith("CARRYPOST_")}
    program = partial(node_main, msgspec.json.encode(order).decode())
    with (
        (folder / "stderr").open("ab+") as said,
        copy(program, stdout=subprocess.PIPE, stderr=said, env=environment) as process,
    ):
        try:
            assert process.stdout is not None
            ready = json.loads(process.stdout.readline() or "{}")
            assert ready.get("stomp") == f"127.0.0.1:{port}", (folder / "stderr").read_text()
            file = data / "stomp.token"
            yield Process(port, file.read_text().strip() if file.exists() else "", data, process.pid)
            process.terminate()
            assert process.wait(PATIENCE_S) == 0
            assert "Traceback" not in (folder / "stderr").read_text()
        finally:
            process.kill()


class Raw:
    """A client of a few lines; those that a test leaves open are closed with its node."""

    _all: ClassVar[list[Raw]] = []

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer
        self._all.append(self)
        self._decoder = Decoder(10**8, version=Version.V1_2, commands=SERVER)

    @classmethod
    async def reach(cls, address: str, *, read_bytes: int = 2**16) -> Self:
        """Open a socket, and say nothing. `read_bytes`: the system's buffer for what comes."""
        host, _, port = address.rpartition(":")
        made = socket.socket()
        made.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, read_bytes)
        made.setblocking(False)
        try:
            await asyncio.get_running_loop().sock_connect(made, (host, int(port)))
        except OSError:
            made.close()
            raise
        return cls(*await asyncio.open_connection(sock=made, limit=read_bytes))

    @classmethod
    async def connect(cls, address: str, more: str = "", *, version: str = "1.2", **options: Any) -> Self:  # noqa: ANN401 - as `reach` has them
        """Open a socket and CONNECT, with more headers."""
        made = await cls.reach(address, **options)
        made.write(f"CONNECT\naccept-version:{version}\nhost:x\n{more}\n^")
        frame = await made.next()
        assert frame.command == "CONNECTED", frame
        return made

    def write(self, text: str | bytes) -> None:
        """Send frames: lines, an empty line, a body; ^ is NUL."""
        self.writer.write(text if isinstance(text, bytes) else text.replace("^", "\0").encode())

    async def next(self) -> Frame:
        """Return the next frame, which comes."""
        frame = await self._next()
        assert frame is not None, "the connection ended"
        return frame

    async def _next(self) -> Frame | None:
        async with asyncio.timeout(PATIENCE_S):
            while (frame := self._decoder.next()) is None:
                data = await self.reader.read(65_536)
                if not data:
                    return None
                self._decoder.feed(data)
        return frame

    async def rest(self) -> list[Frame]:
        """Return all frames that come until the connection ends."""
        found: list[Frame] = []
        with suppress(ConnectionError):
            while (frame := await self._next()) is not None:
                found.append(frame)
        return found

    async def take(self, command: str) -> Frame:
        """Return the next frame, which must be one of these commands."""
        frame = await self.next()
        assert frame.command == command, frame
        return frame

    async def error(self, expected: str) -> Frame:
        """Return the ERROR that comes next and ends the connection."""
        found = await self.take("ERROR")
        assert expected in found.headers["message"]
        await self.gone()
        return found

    async def gone(self) -> None:
        """Wait for the end, before which nothing comes, and hang up."""
        async with asyncio.timeout(PATIENCE_S):
            assert not (await self.reader.read()).strip(b"\n")
        self.close()

    def close(self) -> None:
        """Hang up."""
        self.writer.close()

    @classmethod
    def close_all(cls) -> None:
        """Close all connections that a test has made, at once."""
        while cls._all:
            cls._all.pop().writer.transport.abort()
