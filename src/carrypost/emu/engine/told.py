"""Links between hosts as the emulator knows them, which hosts of an ideal emulation may be told."""

from __future__ import annotations

from collections.abc import Collection

from carrypost.model.ids import NodeId


class Told:
    """The links of all hosts, by their ids (`island.routes.Graph`)."""

    def __init__(self) -> None:
        self.version = 0
        self._links: dict[NodeId, set[NodeId]] = {}

    def change(self, one: NodeId, other: NodeId, *, up: bool) -> None:
        """Note that a link begins or ends."""
        self.version += 1
        for here, there in ((one, other), (other, one)):
            links = self._links.setdefault(here, set())
            (links.add if up else links.discard)(there)

    def neighbours_of(self, node: NodeId) -> Collection[NodeId]:
        """Return the other ends of a host's links."""
        return self._links.get(node, ())
