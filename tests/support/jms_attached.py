"""Contexts in virtual time that are attached to their node by a real socket: every call is sent over it as frames.

Both ends are in this process. Bytes that one end writes are read by the other in a later turn of the loop, so runs are
reproducible. Only greeting and listening are left out.
"""

from __future__ import annotations

import asyncio
import socket
from pathlib import Path

import msgspec

from carrypost import testing
from carrypost.attach import calls
from carrypost.attach.line import Line
from carrypost.attach.provider import AttachedProvider
from carrypost.attach.service import SocketProgram, SocketService
from carrypost.errors import LocalError
from carrypost.jms.provider import Provider


class SocketTransport(asyncio.Transport):
    """One end of a pair of sockets; the other end is notified when there are bytes to read."""

    other: SocketTransport

    def __init__(self, end: socket.socket, line: Line) -> None:
        super().__init__()
        self._end, self._line = end, line
        self._reads, self._closing, self._waits = True, False, False
        self._unsent = b""
        self._high = self._low = 0
        end.setblocking(False)

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        self._high, self._low = high or 0, low or 0

    def get_write_buffer_size(self) -> int:
        return len(self._unsent)

    def is_closing(self) -> bool:
        return self._closing

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self._unsent += bytes(data)
        self._send()
        if len(self._unsent) > self._high and not self._waits:
            self._waits = True
            self._line.pause_writing()

    def _send(self) -> None:
        try:
            while self._unsent:
                self._unsent = self._unsent[self._end.send(self._unsent) :]
        except (BlockingIOError, BrokenPipeError):
            pass
        except OSError:
            return  # The network is left.
        asyncio.get_running_loop().call_soon(self.other.look)

    def look(self) -> None:
        """Read the bytes that are there, if reading is enabled, and let the other end continue to write."""
        if self._closing or not self._reads:
            return
        try:
            data = self._end.recv(256 * 1024)
        except OSError:
            return
        if not data:
            self.abort()
            return
        self._line.data_received(data)
        asyncio.get_running_loop().call_soon(self.look)
        self.other.go_on()

    def go_on(self) -> None:
        if self._unsent and not self._closing:
            self._send()
        if self._waits and len(self._unsent) <= self._low:
            self._waits = False
            self._line.resume_writing()

    def pause_reading(self) -> None:
        self._reads = False

    def resume_reading(self) -> None:
        if not self._reads:
            self._reads = True
            asyncio.get_running_loop().call_soon(self.look)

    def write_eof(self) -> None:
        self._end.shutdown(socket.SHUT_WR)

    def close(self) -> None:
        self.abort()

    def abort(self) -> None:
        if not self._closing:
            self._closing = True
            self._end.close()
            loop = asyncio.get_running_loop()
            loop.call_soon(self._line.connection_lost, None)
            loop.call_soon(self.other.look)


class NodeSide(Line):
    """The node's end of a line."""

    def __init__(self, native: SocketService) -> None:
        super().__init__(calls.decode_call, calls.ReplyPart)
        self.parts.bytes_max = native.parts_bytes_max
        self._guest: SocketProgram = native.join(self)

    def receive(self, frame: calls.AnyCall) -> None:
        assert isinstance(frame, calls.Call)
        self._guest.receive(frame)

    def resumed(self) -> None:
        self._guest.read_on()

    def wrong(self, error: LocalError) -> None:
        self.hang_up(calls.Refusal(calls.UNKNOWN, type(error).__name__, str(error)), linger=True)

    def lost(self) -> None:
        self._guest.leave()


class VirtuallyAttached(AttachedProvider):
    """A provider over such a line, with the time of its network."""

    inner: Provider
    ends: tuple[socket.socket, socket.socket]
    transports: tuple[SocketTransport, SocketTransport]

    def now_us(self) -> int:
        return self.inner.now_us()

    @classmethod
    def to(cls, inner: Provider) -> VirtuallyAttached:
        """Attach to a provider."""
        made, native = cls(Path("virtual")), SocketService(inner, system_us=None)
        made.inner = inner
        made.begin(calls.Welcome(calls.VERSION, "", msgspec.Raw(native.place), inner.now_us(), inner.now_us()))
        node = NodeSide(native)
        mine, theirs = socket.socketpair()
        here, there = SocketTransport(mine, made.line), SocketTransport(theirs, node)
        here.other, there.other = there, here
        made.line.connection_made(here)
        node.connection_made(there)
        made.ends, made.transports = (mine, theirs), (here, there)
        return made


class AttachedNetwork(testing.Network):
    """A network whose contexts are attached to their nodes, each node by one connection."""

    _attached: dict[str, VirtuallyAttached] | None = None
    _all: tuple[VirtuallyAttached, ...] = ()

    async def __aexit__(self, *raised: object) -> None:
        await super().__aexit__(*raised)
        for each in self._all:
            for end in each.ends:
                end.close()

    def provider(self, node: str) -> Provider:
        if self._attached is None:
            self._attached = {}
        inner = super().provider(node)
        found = self._attached.get(node)
        if found is None or found.inner is not inner or found.line.ended is not None:
            found = self._attached[node] = VirtuallyAttached.to(inner)
            self._all += (found,)
        return found
