"""Candidates: other brokers as homes of this broker's consumers, and moves to those that are better (OVERLAY §2.4).

A broker compares itself with a candidate by `choose_home`: paths as it knows the overlay, and loads as they would
become. Loads that other brokers announced may be old. So a broker adds the seats that it sent since; the candidate,
which knows best, may refuse.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from carrypost.model.ids import node_prefix
from carrypost.overlay.events import LOAD, NEARER
from carrypost.overlay.home_choice import Home, choose_home, mean_hops
from carrypost.overlay.items import MoveReason, Role
from carrypost.overlay.lanes import name_of
from carrypost.overlay.load import DIGITS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from carrypost.gossip.transfers.host_context import HostContext
    from carrypost.overlay.clients import ClientManager
    from carrypost.overlay.load import Load
    from carrypost.overlay.moves import Moves
    from carrypost.overlay.notices import NearestBroker
    from carrypost.overlay.topology import Topology

_WEIGHT_MAX = 64
"""Producers of one home that count in the mean length of paths."""


class Candidates:
    """Other brokers that could be homes of one broker's consumers."""

    def __init__(
        self, context: HostContext, topology: Topology, clients: ClientManager, load: Load, moves: Moves
    ) -> None:
        self._topology, self._clients, self._load, self._moves = topology, clients, load, moves
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
        return round(self._topology.load(other) + self._sent_since(other) + self._share(notice, other), DIGITS)

    def try_moves(self, notices: Sequence[NearestBroker]) -> None:
        """Move the seat of a consumer to the best of several brokers that is a better home."""
        known = [each for each in notices if each.broker in self._topology.brokers]
        for each in sorted(known, key=self._path) if len(known) > 1 else known:
            if self.try_move(each):
                return

    def _path(self, notice: NearestBroker) -> float:
        return self.compare(notice)[1].path

    def try_move(self, notice: NearestBroker) -> bool:
        """Move the seat of a consumer to a broker that is a better home. Returns False if it stays.

        Because of load no seat moves that came less than `discovery_s` ago.
        """
        name = self._name(notice)
        if name is None or notice.broker not in self._topology.brokers:
            return False
        here, there = self.compare(notice)
        reason: MoveReason = LOAD if here.load > self._load.load_max else NEARER
        # A seat that was just sent here because of load must not be sent on before both brokers
        # know their new loads: two busy brokers would pass it to and fro.
        early = reason is LOAD and notice.now_us - self._load.since_us(name) < self._discovery_us
        if early or choose_home(here, there, self._load.load_max) is not there:
            return False
        other, consumer = node_prefix(notice.broker), (notice.consumer, notice.channel, notice.subscription)
        share = self._share(notice, other)
        if not self._moves.migrate(consumer, notice.broker, reason, notice.now_us):
            return False
        self._sent[other] = self._version(other), self._sent_since(other) + share
        self._sent = {prefix: each for prefix, each in self._sent.items() if self._version(prefix) == each[0]}
        return True

    def _name(self, notice: NearestBroker) -> bytes | None:
        """Return the name of a consumer's seat; None if it has none here."""
        client = self._clients.table.at(notice.consumer, Role.CONSUMER, notice.channel, notice.subscription)
        return name_of(client) if client is not None and client.seated else None

    def _share(self, notice: NearestBroker, other: bytes) -> float:
        """Return the load that a seat would be at another broker; as here if its capacity is unknown."""
        name, info = self._name(notice), self._topology.brokers.at(other)
        share = 0.0 if name is None else self._load.share(name)
        # The same work is a larger share of a smaller broker.
        return share if info is None or not info.capacity else share * self._load.power / info.capacity

    def _version(self, prefix: bytes) -> int:
        entry = self._topology.table.get(prefix)
        return 0 if entry is None else entry.version

    def _sent_since(self, prefix: bytes) -> float:
        version, load = self._sent.get(prefix, (0, 0.0))
        return load if version == self._version(prefix) else 0.0
