"""The island: the layer that knows which hosts can be reached over several hops now, and sends straight to them.

It joins the parts: what is known of links (`records`), paths (`routes`), datagrams along them (`relaying`), and which
messages go that way (`ways`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from carrypost.gossip.layer import Draft, Layer
from carrypost.island.overview import IslandOverview
from carrypost.island.records import Table
from carrypost.island.relaying import Relaying
from carrypost.island.routes import Routes, distances
from carrypost.island.ways import Ways

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from carrypost.events import Reason
    from carrypost.gossip.acked.acked import Acked
    from carrypost.gossip.holdings.copies import Copy
    from carrypost.gossip.layer import Handler
    from carrypost.gossip.strategy.strategy import Strategy
    from carrypost.gossip.transfers.ground import Ground
    from carrypost.gossip.transfers.link import Link
    from carrypost.island.routes import Graph
    from carrypost.model.ids import NodeId


class Island(Layer):
    """The part of the network that one host can reach."""

    def __init__(self, ground: Ground, strategy: Strategy[Any], acked: Acked) -> None:
        self._acked, self._holdings = acked, ground.holdings
        self._node, self._links = ground.node, ground.links
        self.table = Table(ground.node)
        self._graph: Graph = self.table
        """The table, or what the driver tells instead."""
        self.routes = Routes(ground.node, self.table, ground.settings.island_hops_max)
        self.relaying = Relaying(ground, self.routes)
        self.ways = Ways(ground, strategy, self.routes, self.relaying)
        self._reach: dict[NodeId, int] = {}

    @property
    def handlers(self) -> Mapping[type, Handler]:
        """Take what is relayed."""
        return self.relaying.handlers

    def reach(self) -> dict[NodeId, int]:
        """Return the hosts that can be reached, and over how many hops."""
        return dict(self._reach)

    def tell(self, graph: Graph, now: int) -> None:
        """Take the links between hosts from a driver that knows them, from now on or again: they changed."""
        if graph is not self._graph:
            self._graph = graph
            self.routes.tell(graph)
        self._changed(now)

    def met(self, link: Link, now: int) -> None:  # noqa: ARG002 - as layers have it
        """Begin a contact."""
        self._look(now)

    def parted(self, link: Link, now: int) -> None:  # noqa: ARG002
        """End a contact."""
        self._look(now)

    def _look(self, now: int) -> None:
        if self.table.meet({link.node: frozenset() for link in self._links.usable if not link.route}):
            self._changed(now)

    def _changed(self, now: int) -> None:
        """Compare the island with what it was."""
        before, self._reach = self._reach, distances(self._graph, self._node)
        for node in sorted(before.keys() - self._reach.keys()):
            self.ways.unreachable(node, now)
        for node in sorted(self._reach.keys() - before.keys()):
            self.ways.reachable(node)

    def overview(self) -> IslandOverview:
        """Return how things stand."""
        relaying = self.relaying
        return IslandOverview(len(self.reach()), len(relaying), relaying.relayed_bytes, self.ways.withheld)

    def published(self, copies: Sequence[Copy]) -> None:
        """Choose the way of own messages."""
        self.ways.published(copies)

    def take(self, copies: Sequence[Copy]) -> Sequence[Copy]:
        """Look at messages that came for this host and others."""
        self.ways.received(copies)
        return copies

    def left(self, copies: Sequence[Copy], reason: Reason | None) -> None:
        """Have nothing more to do with copies that left."""
        if reason is not None:
            self.ways.left(copies)

    def expire(self, now: int) -> None:
        """Do what is due."""
        if self.ways.due_us <= now:
            self.ways.expire(now)
        if self.relaying.due_us <= now:
            self.relaying.expire(now)
        self._look_ahead()

    def finish(self, now: int) -> Sequence[Draft]:
        """Send what goes straight to recipients."""
        self.ways.finish(now)
        if self._holdings.reminders:
            self._acked.repeat(self._holdings.take_reminders(), now)
        self._look_ahead()
        return ()

    def _look_ahead(self) -> None:
        self.due_us = min(self.ways.due_us, self.relaying.due_us)
