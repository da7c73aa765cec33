"""A STOMP client of a node in virtual time: its frames in, frames out."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from carrypost import testing
from carrypost.daemon.client import Copies, Options
from carrypost.daemon.stomp.codec import SERVER, Decoder, Frame, StompError, Version
from carrypost.daemon.stomp.mapping import rest
from carrypost.daemon.stomp.server import Client


class Wire:
    """A client of a node, and the bytes between them."""

    def __init__(self, net: testing.Network, node: str, **options: Any) -> None:  # noqa: ANN401 - as `Options` has them
        self.net = net
        self._written = Decoder(10**8, version=Version.V1_2, commands=SERVER)
        provider = net.provider(node)
        self.client = Client(provider, self, Options(**options), Copies(provider, rest))
        self.frames: list[Frame] = []
        self.ended = False
        self.reads = asyncio.Event()
        """Cleared: the client reads nothing."""
        self.reads.set()

    # --- an output -----------------------------------------------------------------------------------------

    def admit(self) -> str:
        return ""

    def write(self, data: bytes) -> None:
        self._written.feed(data)
        while (frame := self._written.next()) is not None:
            self.frames.append(frame)

    @property
    def is_full(self) -> bool:
        return not self.reads.is_set()

    async def drained(self) -> None:
        await self.reads.wait()

    def end(self) -> None:
        self.ended = True

    # --- a client ------------------------------------------------------------------------------------------

    async def feed(self, text: str | bytes) -> None:
        """Send frames: lines, an empty line, a body; ^ is NUL."""
        self.client.decoder.feed(text if isinstance(text, bytes) else text.replace("^", "\0").encode())
        try:
            while (frame := self.client.decoder.next()) is not None:
                await self.client.carry_out(frame)
        except StompError as error:
            self.client.fail(error)

    async def connect(self, version: str = "1.2", more: str = "") -> None:
        await self.feed(f"CONNECT\naccept-version:{version}\nhost:x\n{more}\n^")
        self._written.version = self.client.version
        assert self.take("CONNECTED").headers["version"] == version

    def take(self, command: str) -> Frame:
        """Return the next frame, which must be one of these commands."""
        assert self.frames, f"no {command} came"
        assert self.frames[0].command == command, self.frames[0]
        return self.frames.pop(0)

    async def message(self) -> Frame:
        """Return the next MESSAGE, which has to come."""
        await self.until(lambda: bool(self.frames))
        return self.take("MESSAGE")

    async def until(self, condition: Callable[[], bool]) -> None:
        for _ in range(600):
            if condition():
                return
            await self.net.run(0.1)
        raise AssertionError("it did not happen")

    async def error(self, text: str, expected: str) -> Frame:
        """Send frames that end the connection."""
        await self.feed(text)
        await self.until(lambda: bool(self.frames))
        found = self.take("ERROR")
        assert expected in found.headers["message"]
        assert self.client.closed
        assert self.ended
        return found
