"""Adaptors: the overlay's reactions to changes, apart from the parts that notice them (OVERLAY §3.5).

Parts of the overlay emit notices to an internal *system channel*. An adaptor subscribes to kinds of notices, and
processes those by calling the parts. `TopologyAdaptor` keeps the overlay like the network below it, and
`placement.HomeBrokerAdaptor` the seats of consumers near these. Programs add their own with `host.overlay.add`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, Protocol

from carrypost.errors import LocalError
from carrypost.model.ids import NodeId

if TYPE_CHECKING:
    from collections.abc import Collection

    from carrypost.gossip.outputs import Outputs
    from carrypost.overlay.legs import Legs
    from carrypost.overlay.topology import Topology


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


class NearestBroker(NamedTuple):
    """A consumer of this broker is as near to other brokers as to this one, or nearer."""

    consumer: tuple[NodeId, str, int]
    """Node, channel and subscription."""
    brokers: tuple[tuple[NodeId, int], ...]
    """The other brokers, and the hops from the consumer to each; the nearest first."""
    now_us: int
    placed: bool = False
    """True if the seat moved here upstream (`overlay.placement`)."""


class LoadChanged(NamedTuple):
    """The load of this broker changed, or is too high."""

    load: float
    """Load as it will be, with seats that come and without those that leave (`Load.predicted`)."""
    now_us: int


Notice = Timer | Propagated | BrokerLost | NearestBroker | LoadChanged
NOTICES: tuple[type[Notice], ...] = (Timer, Propagated, BrokerLost, NearestBroker, LoadChanged)


class Adaptor(Protocol):
    """A reaction of the overlay to some kinds of notices."""

    def subscribe(self) -> Collection[type[Notice]]:
        """Return the kinds of notices that this adaptor processes."""

    def process(self, notice: Notice) -> None:
        """Act upon a notice."""


class SystemChannel:
    """The channel by which parts of one node's overlay inform its adaptors."""

    def __init__(self, outputs: Outputs) -> None:
        self._outputs = outputs
        self._adaptors: dict[type[Notice], list[Adaptor]] = {kind: [] for kind in NOTICES}

    def add(self, adaptor: Adaptor) -> None:
        """Add an adaptor, which gets the notices that it subscribes to."""
        kinds = list(adaptor.subscribe())
        strange = [kind for kind in kinds if kind not in self._adaptors]
        if strange or not kinds:
            names = ", ".join(kind.__name__ for kind in NOTICES)
            raise LocalError(f"an adaptor subscribes to one or more kinds of notices ({names}), not to {kinds!r}")
        for kind in kinds:
            self._adaptors[kind].append(adaptor)

    def publish(self, notice: Notice) -> None:
        """Let all adaptors process a notice. One that fails is counted, and does not affect the others."""
        for adaptor in self._adaptors[type(notice)]:
            try:
                adaptor.process(notice)
            except Exception:  # noqa: BLE001 - A program's code, which must not stop the host in the middle of a step.
                self._outputs.refuse("adaptor", type(adaptor).__name__)


class TopologyAdaptor:
    """An adaptor that keeps the overlay like the network below it: dynamic broker networks (OVERLAY §2.3)."""

    def __init__(self, topology: Topology, legs: Legs, channel: SystemChannel) -> None:
        self._topology, self._legs, self._channel = topology, legs, channel
        self._asks = True
        """True until the first look: a new broker asks others for all entries."""

    def subscribe(self) -> Collection[type[Notice]]:
        """Subscribe to looks, to news from other brokers, and to lost brokers."""
        return (Timer, Propagated, BrokerLost)

    def process(self, notice: Notice) -> None:
        """Determine the neighbours and send them what changed; in the first period, pass on news at once.

        Legs on their way to a lost broker are sent along another path.
        """
        topology = self._topology
        if isinstance(notice, Timer):
            lost = topology.look(notice.now_us)
            topology.propagate(asking=self._asks)
            self._asks = not topology.neighbours
            for broker in lost:
                self._channel.publish(BrokerLost(broker))
        elif isinstance(notice, BrokerLost):
            self._legs.reroute(notice.broker)
        elif isinstance(notice, Propagated) and topology.is_learning(notice.now_us):
            topology.propagate_soon(notice.now_us)
