"""Listens for clients of a protocol on this machine: admission, limits, and what `carrypost status` reports of them.

A client is admitted by the passcode in the node's folder, unless the settings admit every client. `carrypost node`
starts the server beside the node, and the server ends with the node.
"""

from __future__ import annotations

import asyncio
import contextlib
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, ClassVar, Final, Protocol, Self

from carrypost.daemon.connection import Client, Connection, Output, Wording
from carrypost.daemon.program import Options
from carrypost.errors import ConfigError, NodeError
from carrypost.log.files import reason

if TYPE_CHECKING:
    from carrypost.jms.provider import Provider
    from carrypost.jms.served_node import ServedNode
    from carrypost.node.settings import NodeSettings

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


class Settings(Protocol):
    """The settings of a port for clients."""

    @property
    def port(self) -> int:
        """The number of the port; 0: there is none."""

    @property
    def host(self) -> str:
        """The address of loopback that it is on."""

    @property
    def open(self) -> bool:
        """True if clients need no passcode."""

    @property
    def declare(self) -> bool:
        """True if a consumer of an unknown queue declares it on this node."""

    @property
    def connections_max(self) -> int:
        """Number of clients at the same time."""


class Server(ABC):
    """The clients of one node that speak one protocol; a subclass has what differs between protocols."""

    name: ClassVar[str]
    """Name of the protocol."""
    table: ClassVar[str]
    """Name of its table of settings, and of the file with the passcode."""
    wording: Wording

    @classmethod
    async def serve(cls, served: ServedNode) -> Self | None:
        """Serve clients at a node, if its settings say so; raises `ConfigError` or `NodeError`."""
        if not cls.settings(served.node.settings).port:
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
        self._settings, self._home = self.settings(served.node.settings), served.node.folder
        self._listening: asyncio.Server | None = None
        self.connections: set[Connection] = set()
        """Clients that sent a valid first command."""
        self._unconnected: dict[Connection, None] = {}
        """Sockets without one, oldest first; also those that are being refused."""
        self._all_gone = asyncio.Event()
        self.token: str | None = None
        """The passcode of clients that connect from now on; None: they need none."""
        self.reload()

    @staticmethod
    @abstractmethod
    def settings(settings: NodeSettings) -> Settings:
        """Return the settings of the port."""

    @abstractmethod
    def client(self, output: Output) -> Client:
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
