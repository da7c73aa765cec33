"""The island: the layer that knows which hosts can be reached over several hops now, and how far away they are."""

from __future__ import annotations

from typing import TYPE_CHECKING

from carrypost.gossip.layer import Layer
from carrypost.island.records import Table

if TYPE_CHECKING:
    from carrypost.gossip.transfers.ground import Ground
    from carrypost.gossip.transfers.link import Link
    from carrypost.model.ids import NodeId


class Island(Layer):
    """The part of the network that one host can reach."""

    def __init__(self, ground: Ground) -> None:
        self._node, self._links = ground.node, ground.links
        self.table = Table(ground.node)

    def reach(self) -> dict[NodeId, int]:
        """Return the hosts that can be reached, and over how many hops."""
        return {node: hops for node, hops in self.table.distances(self._node).items() if hops}

    def met(self, link: Link, now: int) -> None:  # noqa: ARG002 - as layers have it
        """Begin a contact."""
        self._look()

    def parted(self, link: Link, now: int) -> None:  # noqa: ARG002
        """End a contact."""
        self._look()

    def _look(self) -> None:
        self.table.meet({link.node: frozenset() for link in self._links.usable})
