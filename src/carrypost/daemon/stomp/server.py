"""Listens for STOMP clients, if the settings say so."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Final

from carrypost.daemon import server
from carrypost.daemon.connection import Output, Wording
from carrypost.daemon.copies import Copies
from carrypost.daemon.stomp.client import Client, Options
from carrypost.daemon.stomp.mapping import rest

if TYPE_CHECKING:
    from carrypost.jms.served_node import ServedNode

TOKEN_FILE: Final = "stomp.token"  # noqa: S105 - its name is no secret


async def serve(served: ServedNode) -> Server | None:
    """Serve STOMP clients at a node, if its settings say so; raises `ConfigError` or `NodeError`."""
    if not served.node.settings.stomp.port:
        return None
    made = Server(served)
    await made.open()
    served.add("stomp", made)
    return made


class Server(server.Server):
    """The STOMP clients of one node."""

    name: ClassVar[str] = "STOMP"
    table: ClassVar[str] = "stomp"
    wording = Wording("CONNECT", "frame")

    def __init__(self, served: ServedNode) -> None:
        settings = served.node.settings.stomp
        super().__init__(served, settings)
        self._declares, self._heart_beat_ms = settings.declare, round(1_000 * settings.heart_beat_s)
        self._copies = Copies(self.provider, rest)

    def client(self, output: Output) -> Client:
        """Return a new client."""
        options = Options(self.token, self._declares, self._heart_beat_ms)
        return Client(self.provider, output, options, self._copies)
