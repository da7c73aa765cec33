"""Reports about events: answers of producers, and numbers of last events that homes of producers send (`Sent`).

A broker can report of as many producers as its roster lists for the channel. Rosters travel from broker to broker, so
that a report may be faster: it waits for the roster, at most `gap_s`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from carrypost.model.ids import node_prefix
from carrypost.overlay.items import Sent

if TYPE_CHECKING:
    from carrypost.gossip.transfers.host_context import HostContext
    from carrypost.model.ids import NodeId
    from carrypost.overlay.seats import Seats
    from carrypost.overlay.topology import Topology

_WAITING_MAX = 8
"""Number of reports of one broker that wait for its roster."""


class Reports:
    """Reports about events for the seats of one broker."""

    def __init__(self, context: HostContext, topology: Topology, seats: Seats) -> None:
        self._node, self._outputs = context.node, context.outputs
        self._topology, self._seats = topology, seats
        self._all, self._gap_us = context.limits.clients_max, round(context.settings.overlay.gap_s * 1e6)
        self._waiting: dict[tuple[NodeId, Sent], int] = {}
        """Reports that wait for the rosters of their authors, and until when; a few of each known broker."""
        self._version = 0
        """Version of all rosters when they were last compared with the reports that wait."""

    def handle_item(self, item: Sent, author: NodeId, now: int) -> None:
        """Process what producers, and homes of producers, report about their events."""
        listed = self._listed(item.channel, author)
        self._seats.handle_item(item, author, listed=listed)
        others = sum(producer != author for producer, _ in item.last)
        if others > listed and author in self._topology.brokers:
            waiting = sum(each == author for each, _ in self._waiting)
            if waiting < _WAITING_MAX:
                self._waiting[author, item] = now + self._gap_us
            else:
                self._outputs.refuse("lanes", author)

    def _listed(self, channel: str, author: NodeId) -> int:
        """Return the number of producers of a channel that a broker lists; 0 for a node that is not a known broker."""
        if author == self._node:
            return self._all
        served = self._topology.rosters.serving(channel).get(node_prefix(author))
        return 0 if served is None or author not in self._topology.brokers else served.producers

    def work(self, now: int) -> None:
        """Process reports whose authors' rosters have come."""
        if not self._waiting or self._version == self._topology.rosters.table.version:
            return
        self._version = self._topology.rosters.table.version
        waiting, self._waiting = self._waiting, {}
        for (author, item), until_us in waiting.items():
            if until_us > now:
                self.handle_item(item, author, now)
                if (author, item) in self._waiting:
                    self._waiting[author, item] = until_us
            else:
                self._outputs.refuse("lanes", author)
