"""The island: the layer that knows which hosts can be reached over several hops now, and sends straight to them.

It joins the parts: exchanging records of links (`survey`), paths (`routes`), datagrams along them (`relaying`), and the
choice of messages that go that way (`ways`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from carrypost.gossip.draft import Draft
from carrypost.gossip.layer import Layer
from carrypost.gossip.wire.cloud_frames import LinkRecord, LinkState
from carrypost.island.overview import IslandOverview
from carrypost.island.records import Table
from carrypost.island.relaying import Relaying
from carrypost.island.routes import Routes, distances
from carrypost.island.survey import Survey
from carrypost.island.ways import Ways
from carrypost.log.events import Reachable, Unreachable
from carrypost.model.times import NEVER

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from random import Random

    from carrypost.gossip.acked.acked import Acked
    from carrypost.gossip.holdings.copies import Copy
    from carrypost.gossip.layer import Handler
    from carrypost.gossip.strategy.strategy import Strategy
    from carrypost.gossip.transfers.host_context import HostContext
    from carrypost.gossip.transfers.link import Link
    from carrypost.gossip.wire.frames import Frame
    from carrypost.island.routes import Graph
    from carrypost.log.events import Reason
    from carrypost.model.ids import NodeId


_SURE_US = 1_000_000
"""Time after which a change of a host's reachability is reported. A driver's word counts at once."""


class Island(Layer):
    """The part of the network that one host can reach."""

    def __init__(self, context: HostContext, strategy: Strategy[Any], acked: Acked, rng: Random) -> None:
        self._acked, self._holdings = acked, context.holdings
        self._node, self._outputs = context.node, context.outputs
        self.table = Table(context.node)
        self.survey = Survey(context, self.table, rng)
        self._graph: Graph = self.table
        """The table, or the driver's graph instead."""
        self._hops_max = context.settings.island_hops_max
        self.routes = Routes(context.node, self.table, self._hops_max)
        self.relaying = Relaying(context, self.routes)
        self.ways = Ways(context, strategy, self.routes, self.relaying)
        self._reach: tuple[int, Mapping[NodeId, int]] = -1, {}
        """Version of the driver's links, and the hosts in reach by them."""
        self._in_reach = context.links.in_reach
        """Hosts that were reported to be in reach."""
        self._unsure: dict[NodeId, int] = {}
        """Hosts for which the opposite is true now, and since when."""
        self._sure_us = NEVER
        """Time at which the first of these is certain."""

    @property
    def handlers(self) -> Mapping[type, Handler]:
        """Handlers of frames about links, and of relayed ones."""
        return {LinkState: self._receive_state, LinkRecord: self._receive_record, **self.relaying.handlers}

    def reach(self) -> Mapping[NodeId, int]:
        """Return the reachable hosts, with the number of hops to each."""
        if not self._has_graph:
            return self._within(self.table.distances(self._node))
        version, found = self._reach
        if version != self._graph.version:
            found = self._within(distances(self._graph, self._node))
            self._reach = self._graph.version, found
        return found

    def _within(self, found: Mapping[NodeId, int]) -> Mapping[NodeId, int]:
        return {node: hops for node, hops in found.items() if 0 < hops <= self._hops_max}

    def paths(self) -> dict[NodeId, tuple[NodeId, ...]]:
        """Return the path to each host that has one: the relays between, then that host."""
        now = self._holdings.now_us
        return {node: path for node in self.reach() if (path := self.routes.path(node, now)) is not None}

    def set_links(self, graph: Graph, now: int) -> None:
        """Use the links between hosts that a driver knows, from now on or again after a change."""
        if graph is not self._graph:
            self._graph, self._reach = graph, (-1, {})
            self.routes.set_graph(graph)
        self._changed(now)

    @property
    def _has_graph(self) -> bool:
        """True if the driver provides the links: then hosts do not exchange them."""
        return self._graph is not self.table

    # --- links ---------------------------------------------------------------------------------------------

    def started(self, incarnation: int, now: int) -> None:
        """Exchange records of links from now on."""
        self.survey.started(incarnation, now)
        self._look_ahead()

    def met(self, link: Link, now: int) -> None:
        """Begin a contact: what could not go over the link before may go now."""
        self.routes.use(self._node, link.node)
        if not self._has_graph:
            self.survey.met(link, now)
            self._look_ahead()

    def parted(self, link: Link, now: int) -> None:
        """End a contact."""
        self.ways.parted(link)
        if not self._has_graph:
            self.survey.parted(link, now)
            self._look_ahead()

    def heard(self, link: Link, now: int) -> None:
        """Handle a neighbour's new list of nodes that it hears."""
        if not self._has_graph:
            self.survey.heard(link, now)
            self._look_ahead()

    def companions(self, now: int, link: Link | None) -> Sequence[Frame]:
        """Return link states to send beside announcements."""
        found = () if self._has_graph else self.survey.companions(now, link)
        self._look_ahead()
        return found

    def _receive_state(self, link: Link, frame: LinkState, now: int) -> bool:
        due_us = self.due_us
        self.survey.receive_state(link, frame, now)
        self._look_ahead()
        return self.due_us < due_us

    def _receive_record(self, link: Link, record: LinkRecord, now: int) -> bool:
        due_us = self.due_us
        entry = self.survey.receive_record(link, record, now)
        if entry is not None and entry.restarted:
            self.ways.restarted(entry.node, now)
        self._look_ahead()
        return entry is not None or self.due_us < due_us

    def _changed(self, now: int) -> None:
        """Compare the island with its previous state."""
        self.routes.changed()
        contrary = self.reach().keys() ^ self._in_reach
        self._unsure = {node: self._unsure.get(node, now) for node in sorted(contrary)}
        self._report_reach(now)
        self.ways.changed(now)

    def _report_reach(self, now: int) -> None:
        """Report hosts that are in reach, or not any more, once that is certain."""
        since_us = now if self._has_graph else now - _SURE_US
        sure = [node for node, unsure_us in self._unsure.items() if unsure_us <= since_us]
        reach = self.reach() if sure else {}
        for node in sure:
            del self._unsure[node]
            hops = reach.get(node)
            if (hops is None) is (node not in self._in_reach):
                continue  # A record that came since then made it untrue again; `_changed` has yet to see it.
            if hops is None:
                self._in_reach.discard(node)
                self._outputs.emit(Unreachable(node))
                self.ways.unreachable(node, now)
            else:
                self._in_reach.add(node)
                self._outputs.emit(Reachable(node, hops))
                self.ways.reachable(node)
        self._sure_us = min(self._unsure.values(), default=NEVER) + _SURE_US

    # --- messages ------------------------------------------------------------------------------------------

    def overview(self) -> IslandOverview:
        """Return an overview."""
        relaying = self.relaying
        return IslandOverview(
            len(self.reach()), len(self.table), len(relaying), relaying.relayed_bytes, self.ways.withheld
        )

    def published(self, copies: Sequence[Copy]) -> None:
        """Choose the way of own messages."""
        self.ways.published(copies)

    def receive(self, copies: Sequence[Copy]) -> Sequence[Copy]:
        """Examine messages that arrived for this host and others."""
        self.ways.received(copies)
        return copies

    def left(self, copies: Sequence[Copy], reason: Reason | None) -> None:
        """Drop copies that left."""
        if reason is not None:
            self.ways.left(copies)

    def expire(self, now: int) -> None:
        """Do what is due."""
        if not self._has_graph and self.survey.due_us <= now and self.survey.expire(now):
            self._changed(now)
        if self._sure_us <= now:
            self._report_reach(now)
        if self.ways.due_us <= now:
            self.ways.expire(now)
        if self.relaying.due_us <= now:
            self.relaying.expire(now)
        self._look_ahead()

    def finish(self, now: int) -> Sequence[Draft]:
        """Send messages that go straight to recipients."""
        self.ways.finish(now)
        if self._holdings.reminders:
            self._acked.repeat(self._holdings.pop_reminders(), now)
        self._look_ahead()
        return ()

    def follow_up(self, now: int) -> Sequence[Draft]:
        """Send messages that layers published in this step and that no batch has to be written for."""
        self.ways.push_momentary(now)
        self._look_ahead()
        return ()

    def _look_ahead(self) -> None:
        survey_us = NEVER if self._has_graph else self.survey.due_us
        self.due_us = min(survey_us, self._sure_us, self.ways.due_us, self.relaying.due_us)
