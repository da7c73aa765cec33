"""Listens for OpenWire clients, if the settings say so."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from carrypost.daemon import server
from carrypost.daemon.connection import Output, Wording
from carrypost.daemon.copies import Copies
from carrypost.daemon.openwire.client import Client
from carrypost.daemon.openwire.mapping import Copy, received
from carrypost.daemon.openwire.shared import Shared

if TYPE_CHECKING:
    from carrypost.jms.served_node import ServedNode
    from carrypost.model.descriptor import Descriptor
    from carrypost.node.settings import NodeSettings, OpenwireSettings


class Server(server.Server):
    """The OpenWire clients of one node."""

    name: ClassVar[str] = "OpenWire"
    table: ClassVar[str] = "openwire"
    wording = Wording("WireFormatInfo", "command")

    def __init__(self, served: ServedNode) -> None:
        super().__init__(served)
        held = served.node.host.holding()
        self._shared = Shared(
            (f"ID:{each.message.removeprefix('ID:')}", each.label) for each in held if each.role == "own" and each.label
        )
        self._copies = Copies(self.provider, self._copy)

    def _copy(self, sent: Descriptor, payload: bytes, version: int) -> Copy:
        return Copy(received(sent, payload, self._shared.labels), version)

    @staticmethod
    def settings(settings: NodeSettings) -> OpenwireSettings:
        """Return the settings of the port."""
        return settings.openwire

    def client(self, output: Output) -> Client:
        """Return a new client."""
        return Client(self.provider, output, self.options, self._copies, self._shared)
