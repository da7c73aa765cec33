"""Listens for STOMP clients, if the settings say so."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Final

from carrypost.daemon import server
from carrypost.daemon.connection import Output, Wording
from carrypost.daemon.copies import Copies
from carrypost.daemon.stomp.client import Client
from carrypost.daemon.stomp.mapping import rest

if TYPE_CHECKING:
    from carrypost.jms.served_node import ServedNode
    from carrypost.node.settings import NodeSettings, StompSettings

TOKEN_FILE: Final = "stomp.token"  # noqa: S105 - its name is no secret


class Server(server.Server):
    """The STOMP clients of one node."""

    name: ClassVar[str] = "STOMP"
    table: ClassVar[str] = "stomp"
    wording = Wording("CONNECT", "frame")

    def __init__(self, served: ServedNode) -> None:
        super().__init__(served)
        self._heart_beat_ms = round(1_000 * self.settings(served.node.settings).heart_beat_s)
        self._copies = Copies(self.provider, rest)

    @staticmethod
    def settings(settings: NodeSettings) -> StompSettings:
        """Return the settings of the port."""
        return settings.stomp

    def client(self, output: Output) -> Client:
        """Return a new client."""
        options = self.options._replace(heart_beat_ms=self._heart_beat_ms)
        return Client(self.provider, output, options, self._copies)
