"""Numbers of the last events of producers that are attached here, for brokers with seats of their channels.

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

    from carrypost.model.ids import NodeId
    from carrypost.overlay.tables import Clients
    from carrypost.overlay.topology import Topology


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
