"""Notices: changes that parts of an overlay report to its adaptors (OVERLAY §3.5)."""

from __future__ import annotations

from typing import NamedTuple

from carrypost.model.ids import NodeId


class Timer(NamedTuple):
    """The time has come to look for neighbours and better places."""

    now_us: int


class Propagated(NamedTuple):
    """Another broker sent news of the overlay."""

    broker: NodeId
    now_us: int


class BrokerLost(NamedTuple):
    """A broker cannot be reached any more, or did not announce itself again."""

    broker: NodeId


Option = tuple[NodeId, str, int, NodeId]
"""Node, channel and subscription of a consumer, and a broker that could be its home."""


class NearestBroker(NamedTuple):
    """A consumer of this broker is as near to another broker as to this one, or nearer."""

    consumer: NodeId
    channel: str
    subscription: int
    broker: NodeId
    """The other broker."""
    hops: int
    """Hops from the consumer to that broker."""
    home_hops: int
    """Hops from the consumer to this broker."""
    now_us: int
    placed: bool = False
    """True if the seat moved here upstream or downstream (`overlay.placement`)."""
    share: float = 1.0
    """Bytes that the seat passes on of each byte that it gets; 1 unless that is little enough to move it upstream."""
    others: tuple[tuple[NodeId, int], ...] = ()
    """Brokers that are as near as this one, too, and the hops from the consumer to them."""

    @property
    def option(self) -> Option:
        """The consumer and the other broker."""
        return self[:4]

    @property
    def each(self) -> list[NearestBroker]:
        """A notice of each broker."""
        others = [self._replace(broker=broker, hops=hops, others=()) for broker, hops in self.others]
        return [self._replace(others=()), *others]


class LoadChanged(NamedTuple):
    """The load of this broker changed, or is too high."""

    load: float
    """Load as it will be, with seats that come and without those that leave (`Load.ahead`)."""
    now_us: int


Notice = Timer | Propagated | BrokerLost | NearestBroker | LoadChanged
NOTICES: tuple[type[Notice], ...] = (Timer, Propagated, BrokerLost, NearestBroker, LoadChanged)
