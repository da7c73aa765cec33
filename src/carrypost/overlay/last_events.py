"""Numbers of the last events of producers: of those attached here, and as other brokers report them.

A seat notices that an event is missing when a later one comes. For the last event of a producer it would not: the home
may have passed it on before it knew of the seat, as after a restart. So the home of producers sends the numbers of
their last events (`Sent`) to a broker with seats of a channel, when its roster may show new ones, and to all of them
whenever a producer attaches or attaches again, unless it only changed to a nearer home. Seats ask producers for what
they lack.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from carrypost.model.ids import node_prefix
from carrypost.overlay.items import CURSORS_MAX, Item, Role, Sent
from carrypost.overlay.tables import channel_hash

if TYPE_CHECKING:
    from collections.abc import Iterable

    from carrypost.gossip.transfers.host_context import HostContext
    from carrypost.model.ids import NodeId
    from carrypost.overlay.seats import Seats
    from carrypost.overlay.tables import Clients
    from carrypost.overlay.topology import Topology

_WAITING_MAX = 8
"""Number of reports of one broker that wait for its roster."""


class LastEvents:
    """Last events of the producers of one broker."""

    def __init__(self, node: NodeId, topology: Topology, clients: Clients) -> None:
        self._node, self._topology, self._clients = node, topology, clients
        self._last: dict[tuple[NodeId, str], int] = {}
        """By producer and channel; of those that are attached."""
        self._unseen: set[str] = set()
        """Channels of which a producer attached, or attached again, and has sent events."""

    def passed(self, producer: NodeId, channel: str, number: int) -> None:
        """Note that an event was passed on."""
        key = producer, channel
        # Events of producers that are attached elsewhere pass here, too, and their homes report
        # them.
        if key in self._last:
            self._last[key] = max(self._last[key], number)

    def attached(self, producer: NodeId, channel: str, number: int, *, passed_on: bool = False) -> None:
        """Note the last event of a producer that attached, or attached again; `passed_on`: another home sent it."""
        key = producer, channel
        # A producer that only moved to a nearer home has left no gap, and seats need no news of it.
        if number and not passed_on:
            self._unseen.add(channel)
        self._last[key] = max(self._last.get(key, 0), number)

    def of(self, channel: str) -> list[tuple[NodeId, int]]:
        """Return the producers of a channel that are attached, and the numbers of their last events."""
        return self._of_channels().get(channel, [])

    def pop_items(self) -> list[tuple[NodeId, Item]]:
        """Return the items for brokers with seats, since rosters or producers changed."""
        news, unseen, self._unseen = self._topology.rosters.pop_news(), self._unseen, set()
        if not news and not unseen:
            return []
        last = self._of_channels()
        hashes = {channel: channel_hash(channel) for channel in last}
        fresh = {channel: each for channel, each in hashes.items() if channel in unseen}
        found: list[tuple[NodeId, Item]] = []
        for roster in self._topology.rosters.table:
            for channel, each in (hashes if roster.prefix in news else fresh).items():
                served = roster.channels.get(each)
                if served is not None and served.seats:
                    found += self._items_for(roster.prefix, channel, last[channel])
        return found

    def _of_channels(self) -> dict[str, list[tuple[NodeId, int]]]:
        """Return the last events of producers that are attached, by channel, and forget those of others."""
        attached = {
            (each.node, each.item.channel)
            for each in self._clients
            if each.active and each.item.role is Role.PRODUCER
        }  # fmt: skip
        self._last = {key: number for key, number in self._last.items() if key in attached}
        found: dict[str, list[tuple[NodeId, int]]] = {}
        for (producer, channel), number in sorted(self._last.items()):
            if number:
                found.setdefault(channel, []).append((producer, number))
        return found

    def _items_for(
        self, prefix: bytes, channel: str, numbers: list[tuple[NodeId, int]]
    ) -> Iterable[tuple[NodeId, Item]]:
        info = self._topology.brokers.at(prefix)
        node = self._node if prefix == node_prefix(self._node) else None if info is None else info.node
        for at in range(0, len(numbers) if node is not None else 0, CURSORS_MAX):
            assert node is not None
            yield node, Sent(channel, tuple(numbers[at : at + CURSORS_MAX]))


class Reports:
    """Reports about events for the seats of one broker: answers of producers, and numbers of last events (`Sent`).

    A broker can report of as many producers as its roster lists for the channel. Rosters travel from broker to broker,
    so that a report may be faster: it waits for the roster, at most `gap_s`.
    """

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
