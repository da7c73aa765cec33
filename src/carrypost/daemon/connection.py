"""The socket of one client of a protocol: bytes come from it and go to it as fast as both sides can.

A client is read as fast as its commands are processed, and written to as fast as it reads. While it does not read,
messages wait at the node within the credit of its subscriptions, nothing more is read from it, and others notice
nothing of it. The one invariant: for each client no more is kept here than one command, 64 KiB of input and little more
than 64 KiB of output.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
from typing import Any, Final, NamedTuple, Protocol

from carrypost.errors import CarrypostError, JMSException

_log = logging.getLogger("carrypost.daemon")
CONNECT_S: Final = 5.0
"""Time within which a client has to send its first command."""
_BUFFER_BYTES = 64 * 1024
_LINGER_S = 5.0
"""Time after which a client that was sent an error, and does not disconnect, is cut off."""
_COMMANDS = 16
"""Number of commands of one client that are processed before others have their turn."""
_BEATS = 3
"""Number of checks of a connection between two heart-beats."""


class Output(Protocol):
    """The connection to a client, which takes the bytes for it."""

    def admit(self) -> str:
        """Count the client, whose first command is valid; return why it cannot be served, or an empty text."""

    def write(self, data: bytes) -> None:
        """Write bytes, in order."""

    @property
    def is_full(self) -> bool:
        """True while the client does not read what was written."""

    async def drained(self) -> None:
        """Wait while the client does not read."""

    def end(self) -> None:
        """Close the connection, once everything is written."""


class Decoder(Protocol):
    """The bytes of a client as commands."""

    def feed(self, data: bytes) -> None:
        """Take bytes."""

    def next(self) -> Any:  # noqa: ANN401 - a command of the protocol
        """Return the next command; None if more bytes are needed. Raises a `CarrypostError` for invalid bytes."""


class Client(Protocol):
    """A client, by the commands of its protocol."""

    closed: bool
    """True if the connection is to end: nothing more is read or written."""
    beats_ms: tuple[int, int]
    """Times after which something has to be written, and has to have come; 0: never."""

    @property
    def decoder(self) -> Decoder:
        """The decoder of its bytes."""

    async def carry_out(self, command: Any) -> None:  # noqa: ANN401 - as the decoder returns it
        """Process a command; a fault ends the connection."""

    def fail(self, error: CarrypostError) -> None:
        """Send the client an error, and end the connection."""

    def beat(self) -> None:
        """Write a heart-beat."""

    async def settled(self) -> None:
        """Wait until everything that the client asked for is durable, and confirmed."""

    async def close(self) -> None:
        """End what the client has at the node."""


class Wording(NamedTuple):
    """A protocol, in the texts of errors."""

    first: str
    """The first command of a client."""
    command: str
    """A command."""


class Sockets(Protocol):
    """The sockets of all clients of a protocol."""

    wording: Wording

    def client(self, output: Output) -> Client:
        """Return a new client."""

    def add(self, connection: Connection) -> None:
        """Add a socket that was opened."""

    def admit(self, connection: Connection) -> str:
        """Add its client, whose first command is valid; return the reason why it cannot be served, or an empty text."""

    def remove(self, connection: Connection) -> None:
        """Forget a socket, with its client."""


class Connection(asyncio.Protocol):
    """The socket of one client: an `Output` to that."""

    _transport: asyncio.Transport

    def __init__(self, server: Sockets) -> None:
        self._server = server
        self._loop = asyncio.get_running_loop()
        self._client = server.client(self)
        self._decoder = self._client.decoder
        self._serving: asyncio.Task[None] | None = None
        self._came, self._room = asyncio.Event(), asyncio.Event()
        """Something came from the client, or its end; the client has read enough for more to be written."""
        self._room.set()
        self._unread_bytes = 0
        """Bytes that came while commands were processed."""
        self._out: list[bytes] = []
        self._out_bytes = 0
        self._read_s = self._wrote_s = self._full_s = self._loop.time()
        """Times at which something came, was written, and at which the client stopped reading."""
        self._is_over = self._is_ended = False
        """Flags: the client sends nothing more; it is sent nothing more."""
        self._timer: asyncio.TimerHandle | None = None

    # --- life ----------------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Serve a client."""
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        transport.set_write_buffer_limits(high=_BUFFER_BYTES)
        # What is with the system counts as written: the less that is, the less is lost with a client that ends.
        transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _BUFFER_BYTES)
        self._serving = self._loop.create_task(self._serve())
        self._server.add(self)

    def admit(self) -> str:
        """Count the client; return the reason why it cannot be served, or an empty text."""
        return self._server.admit(self)

    def connection_lost(self, _error: Exception | None) -> None:
        """Forget the client."""
        self._is_over = self._is_ended = True
        self._out.clear()
        self._came.set()
        self._room.set()
        if self._timer is not None:
            self._timer.cancel()
        self._server.remove(self)

    def end(self) -> None:
        """Close, once everything queued for the client is written."""
        if self._is_ended:
            return
        self._flush()
        self._is_ended = True
        self._came.set()
        if self._timer is not None:
            self._timer.cancel()
        if not self._room.is_set():  # It does not read.
            self._transport.abort()
        elif self._is_over:
            self._transport.close()
        else:  # It may be in the middle of a command, and would not see the error if its bytes were refused.
            with contextlib.suppress(OSError):  # It is gone, which is reported later.
                self._transport.write_eof()
            self._transport.resume_reading()
            self._timer = self._loop.call_later(_LINGER_S, self._transport.abort)

    def cut_off(self) -> None:
        """Close at once."""
        self._transport.abort()

    # --- reading -------------------------------------------------------------------------------------------

    def data_received(self, data: bytes) -> None:
        """Handle bytes; while commands are processed, only few more are read."""
        if self._is_ended:
            return
        self._read_s = self._loop.time()
        self._decoder.feed(data)
        self._unread_bytes += len(data)
        if self._unread_bytes >= _BUFFER_BYTES:
            self._transport.pause_reading()
        self._came.set()

    def eof_received(self) -> bool:
        """Process what came before; the client may still read."""
        self._is_over = True
        self._came.set()
        return not self._is_ended

    async def _serve(self) -> None:
        client, wording = self._client, self._server.wording
        try:
            try:
                async with asyncio.timeout(CONNECT_S):
                    command = await self._next()
            except TimeoutError:
                raise JMSException(f"no {wording.first} arrived within {CONNECT_S:.0f} s") from None
            carried_out = 0
            while command is not None:
                await client.carry_out(command)
                if not self._room.is_set():
                    await self._room.wait()
                if not carried_out:
                    self._beat()
                carried_out += 1
                if not carried_out % _COMMANDS:
                    await asyncio.sleep(0)
                command = None if client.closed else await self._next()
            if not client.closed:
                await client.settled()
        except CarrypostError as error:
            client.fail(error)
        except Exception:  # noqa: BLE001 - A mistake of ours with one client must not end the others.
            _log.exception("the %s of a client could not be processed", wording.command)
            client.fail(
                JMSException(f"the node failed on this {wording.command}: please report it, with the node's log")
            )
        finally:
            try:
                await client.close()
            finally:
                self.end()

    async def _next(self) -> Any:  # noqa: ANN401 - a command of the protocol
        """Return the next command; None if no more will come."""
        while (command := self._decoder.next()) is None:
            self._unread_bytes = 0
            if self._is_over or self._is_ended:
                return None
            self._transport.resume_reading()
            self._came.clear()
            await self._came.wait()
        return command

    # --- writing -------------------------------------------------------------------------------------------

    def write(self, data: bytes) -> None:
        """Write bytes, with all others of this turn of the loop."""
        if self._is_ended:
            return
        if not self._out:
            self._loop.call_soon(self._flush)
        self._out.append(data)
        self._out_bytes += len(data)
        if self._out_bytes >= _BUFFER_BYTES:
            self._flush()

    def _flush(self) -> None:
        if self._out and not self._is_ended:
            self._transport.write(self._out[0] if len(self._out) == 1 else b"".join(self._out))
            self._wrote_s = self._loop.time()
            self._out.clear()
            self._out_bytes = 0

    @property
    def is_full(self) -> bool:
        """True while the client does not read what was written."""
        return not self._room.is_set()

    async def drained(self) -> None:
        """Wait while the client does not read."""
        await self._room.wait()

    def pause_writing(self) -> None:
        """Note that the client does not read."""
        self._full_s = self._loop.time()
        self._room.clear()

    def resume_writing(self) -> None:
        """Note that it reads again."""
        self._room.set()

    @property
    def unread_s(self) -> float:
        """Time for which the client has not read what was written."""
        return self._loop.time() - self._full_s if self.is_full else 0.0

    # --- heart-beats ---------------------------------------------------------------------------------------

    def _beat(self) -> None:
        """Write a beat if nothing was written lately, and disconnect a client that was silent for too long."""
        writes_s, reads_s = (each / 1_000 for each in self._client.beats_ms)
        pause_s = min(filter(None, (writes_s, reads_s)), default=0.0) / _BEATS
        if not pause_s or self._is_ended:
            return
        now_s = self._loop.time()
        if writes_s and now_s - self._wrote_s >= pause_s and not self.is_full:
            self._client.beat()
        # Of a client that is not read because it does not read, beats cannot be seen.
        if reads_s and now_s - self._read_s > 2 * reads_s and self._transport.is_reading() and not self.is_full:
            self._client.fail(JMSException(f"nothing was received for {2 * reads_s:g} s, not even a heart-beat"))
            return
        self._timer = self._loop.call_later(pause_s, self._beat)
