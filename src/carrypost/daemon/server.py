"""Listens for clients of a protocol on this machine, and serves each socket: admission, limits, bytes in and out.

A client is admitted by the passcode in the node's folder, unless the settings admit every client. `carrypost node`
starts the server beside the node, and the server ends with the node; `carrypost status` shows what it reports.

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
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any, ClassVar, Final, Self

from carrypost.daemon.client import ClientProgram, Options, Output
from carrypost.errors import CarrypostError, ConfigError, JMSException, NodeError
from carrypost.log.files import reason

if TYPE_CHECKING:
    from carrypost.attach.served_node import ServedNode
    from carrypost.jms.provider import Provider
    from carrypost.node.settings import OpenwireSettings, StompSettings


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


class Connection(asyncio.Protocol):
    """The socket of one client: an `Output` to that."""

    _transport: asyncio.Transport

    def __init__(self, server: Server) -> None:
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
        client, server = self._client, self._server
        try:
            try:
                async with asyncio.timeout(CONNECT_S):
                    command = await self._next()
            except TimeoutError:
                raise JMSException(f"no {server.first} arrived within {CONNECT_S:.0f} s") from None
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
            _log.exception("the %s of a client could not be processed", server.command)
            client.fail(
                JMSException(f"the node failed on this {server.command}: please report it, with the node's log")
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


SLOW_S: Final = 10.0
"""Time after which a client that does not read is reported."""
UNCONNECTED_MAX: Final = 64
"""Sockets that may be open without a valid first command."""
# Beyond that the oldest is closed, not the newest: any user of this machine can open sockets and say
# nothing, and refusing new ones would let such sockets keep all places taken. An honest client sends
# its first command as soon as its socket is open, and needs a place only until the node has read it. That
# takes about four turns of the loop, in which no more than `_ACCEPTED` others are accepted each. If
# sockets are opened faster than the node accepts them, they wait with the system, and a client sends
# its first command meanwhile.
_ACCEPTED, _BACKLOG = 8, 4_096
"""Sockets that are accepted in one turn of the loop, and that may wait for it."""
_HANG_UP_S = 1.0
"""Time for which clients are waited for when the node ends."""


class Server(ABC):
    """The clients of one node that speak one protocol; a subclass has what differs between protocols."""

    name: ClassVar[str]
    """Name of the protocol."""
    table: ClassVar[str]
    """Name of its table of settings, and of the file with the passcode."""
    first: ClassVar[str]
    """The first command of a client."""
    command: ClassVar[str]
    """A command, as texts of errors call it."""

    @classmethod
    async def serve(cls, served: ServedNode) -> Self | None:
        """Serve clients at a node, if its settings say so; raises `ConfigError` or `NodeError`."""
        if not cls.settings(served).port:
            return None
        made = cls(served)
        await made.open()
        served.add(cls.table, made)
        return made

    def __init__(self, served: ServedNode) -> None:
        if served.provider is None:
            raise ConfigError(
                f"{self.table}.port requires messaging: set messaging.enabled = true, or {self.table}.port = 0"
            )
        self.provider: Provider = served.provider
        self._settings, self._home = self.settings(served), served.node.folder
        self._listening: asyncio.Server | None = None
        self.connections: set[Connection] = set()
        """Clients that sent a valid first command."""
        self._unconnected: dict[Connection, None] = {}
        """Sockets without one, oldest first; also those that are being refused."""
        self._all_gone = asyncio.Event()
        self.token: str | None = None
        """The passcode of clients that connect from now on; None: they need none."""
        self.reload()

    @classmethod
    def settings(cls, served: ServedNode) -> StompSettings | OpenwireSettings:
        """Return the settings of the port."""
        found: StompSettings | OpenwireSettings = getattr(served.node.settings, cls.table)
        return found

    @abstractmethod
    def client(self, output: Output) -> ClientProgram[Any, Any]:
        """Return a new client."""

    @property
    def options(self) -> Options:
        """The settings of a new client."""
        return Options(self.token, self._settings.declare)

    @property
    def token_file(self) -> str:
        """Path of the file with the passcode; empty: clients need none."""
        return "" if self._settings.open else str(self._home.folder / self._token_name)

    @property
    def access(self) -> str:
        """The rule for access, in words."""
        return f"their passcode is in {self.token_file}" if self.token_file else "they need no passcode"

    @property
    def _token_name(self) -> str:
        return f"{self.table}.token"

    def reload(self) -> None:
        """Read the passcode anew, for clients that connect later; raises `NodeError`, and then the old one stays."""
        self.token = None if self._settings.open else self._home.token(self._token_name)

    async def open(self) -> None:
        """Listen; raises `NodeError`."""
        host, port = self._settings.host, self._settings.port
        try:
            loop = asyncio.get_running_loop()
            self._listening = await loop.create_server(lambda: Connection(self), host, port, backlog=_ACCEPTED)
            for each in self._listening.sockets:
                with each.dup() as same:  # For asyncio both numbers are one.
                    same.listen(_BACKLOG)
        except OSError as error:
            raise NodeError(
                f"cannot listen for {self.name} clients at {host}:{port}: {reason(error)}; choose another "
                f"{self.table}.port, or {self.table}.port = 0 for none"
            ) from None

    @property
    def address(self) -> str:
        """The address that it listens on."""
        host = self._settings.host
        return f"[{host}]:{self._settings.port}" if ":" in host else f"{host}:{self._settings.port}"

    def status(self) -> dict[str, object]:
        """Return where it listens, how many clients there are, and how many of them do not read."""
        slow = sum(each.unread_s >= SLOW_S for each in self.connections)
        return {"address": self.address, "clients": len(self.connections), "slow": slow}

    def add(self, connection: Connection) -> None:
        """Note a socket that was opened; of too many without a first command, the oldest is closed at once."""
        self._unconnected[connection] = None
        if self._listening is None or not self._listening.is_serving():
            connection.cut_off()  # It was accepted just before.
        elif len(self._unconnected) > UNCONNECTED_MAX:
            oldest = next(iter(self._unconnected))
            del self._unconnected[oldest]
            oldest.cut_off()

    def admit(self, connection: Connection) -> str:
        """Note one more client; return why it cannot be served, or an empty text."""
        most = self._settings.connections_max
        if connection not in self._unconnected:
            return "the connection is closed"  # What came before its end is processed after it.
        if len(self.connections) >= most:
            return (
                f"the node has all {most:,} clients that {self.table}.connections_max allows: close one of them first"
            )
        del self._unconnected[connection]
        self.connections.add(connection)
        return ""

    def remove(self, connection: Connection) -> None:
        """Forget a socket, with its client."""
        self._unconnected.pop(connection, None)
        self.connections.discard(connection)
        self._all_gone.set()

    def leave(self) -> None:
        """Let no more clients in; those that are connected stay."""
        if self._listening is not None:
            self._listening.close()

    async def close(self) -> None:
        """End all connections."""
        self.leave()
        for connection in self._unconnected:
            connection.cut_off()
        for connection in self.connections:
            connection.end()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_HANG_UP_S):
                while self.connections or self._unconnected:
                    self._all_gone.clear()
                    await self._all_gone.wait()
        for connection in self.connections:
            connection.cut_off()
