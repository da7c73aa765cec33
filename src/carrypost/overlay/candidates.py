"""Candidates: other brokers as homes of this broker's consumers, compared with this one (OVERLAY §2.4).

A broker compares paths as it knows the overlay, and loads as they would become. Loads that other brokers announced may
be old. So a broker adds the seats that it sent since; the candidate, which knows best, may refuse.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from carrypost.model.ids import node_prefix
from carrypost.overlay.home_choice import Home, mean_hops
from carrypost.overlay.items import Role
from carrypost.overlay.lanes import name_of
from carrypost.overlay.load import DIGITS

if TYPE_CHECKING:
    from carrypost.gossip.transfers.host_context import HostContext
    from carrypost.overlay.clients import ClientManager
    from carrypost.overlay.load import Load
    from carrypost.overlay.notices import NearestBroker
    from carrypost.overlay.topology import Topology

_WEIGHT_MAX = 64
"""Producers of one home that count in the mean length of paths."""


class Candidates:
    """Other brokers that could be homes of one broker's consumers."""

    def __init__(self, context: HostContext, topology: Topology, clients: ClientManager, load: Load) -> None:
        self._topology, self._clients, self._load = topology, clients, load
        self._discovery_us = round(context.settings.overlay.discovery_s * 1e6)
        self._sent: dict[bytes, tuple[int, float]] = {}
        """By broker: the version of its entry, and the load of the seats that were sent to it since that version."""

    def compare(self, notice: NearestBroker) -> tuple[Home, Home]:
        """Return this broker and another one as homes: loads, and distances from producers and to the consumer."""
        topology, other = self._topology, node_prefix(notice.broker)
        near, far = topology.routes.distances(topology.prefix), topology.routes.distances(other)
        # Only homes that both can reach count. Otherwise the broker that knows less of the overlay
        # would seem to have the shorter paths.
        weights = {
            prefix: min(served.producers, _WEIGHT_MAX)
            for prefix, served in topology.rosters.serving(notice.channel).items()
            if prefix in near and prefix in far
        }
        here, there = mean_hops(near, weights), mean_hops(far, weights)
        return (
            Home(topology.node, self._load.ahead, notice.home_hops, here, notice.share),
            Home(notice.broker, self.load_after(notice), notice.hops, there, notice.share),
        )

    def load_after(self, notice: NearestBroker) -> float:
        """Return the load that another broker would have with the seat of a consumer."""
        other = node_prefix(notice.broker)
        return round(self._topology.load(other) + self._sent_since(other) + self._load_there(notice, other), DIGITS)

    def is_early(self, notice: NearestBroker) -> bool:
        """Return True if the seat of a consumer came less than `discovery_s` ago, so that it may not go on for load."""
        # A seat that was just sent here because of load must not be sent on before both brokers
        # know their new loads: two busy brokers would pass it to and fro.
        name = self._name(notice)
        return name is None or notice.now_us - self._load.since_us(name) < self._discovery_us

    def share(self, notice: NearestBroker) -> float:
        """Return the part of this broker's load that the seat of a consumer causes."""
        name = self._name(notice)
        return 0.0 if name is None else self._load.share(name)

    def load_of(self, work: float, other: bytes) -> float:
        """Return the load that work, in thousandths of a processor, is at another broker; as here if it is unknown."""
        info = self._topology.brokers.at(other)
        # The same work is a larger share of a smaller broker.
        return work / (self._load.power if info is None or not info.capacity else info.capacity)

    def _load_there(self, notice: NearestBroker, other: bytes) -> float:
        """Return the load that the seat of a consumer would be at another broker."""
        return self.load_of(self.share(notice) * self._load.power, other)

    def sent(self, notice: NearestBroker) -> None:
        """Note that the seat of a consumer is offered to another broker."""
        other = node_prefix(notice.broker)
        self._sent[other] = self._version(other), self._sent_since(other) + self._load_there(notice, other)
        self._sent = {prefix: each for prefix, each in self._sent.items() if self._version(prefix) == each[0]}

    def _name(self, notice: NearestBroker) -> bytes | None:
        """Return the name of a consumer's seat; None if it has none here."""
        client = self._clients.table.at(notice.consumer, Role.CONSUMER, notice.channel, notice.subscription)
        return name_of(client) if client is not None and client.seated else None

    def _version(self, prefix: bytes) -> int:
        entry = self._topology.table.get(prefix)
        return 0 if entry is None else entry.version

    def _sent_since(self, prefix: bytes) -> float:
        version, load = self._sent.get(prefix, (0, 0.0))
        return load if version == self._version(prefix) else 0.0
