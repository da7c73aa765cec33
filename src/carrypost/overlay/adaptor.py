"""Adaptors: the overlay's reactions to changes, apart from the parts that notice them (OVERLAY §3.5).

Parts of the overlay emit notices to an internal *system channel*. An adaptor subscribes to kinds of notices, and
processes those by calling the parts. `TopologyAdaptor` keeps the overlay like the network below it. Programs add their
own with `host.overlay.add`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from carrypost.errors import LocalError
from carrypost.overlay.notices import NOTICES, BrokerLost, NearestBroker, Notice, Propagated, Timer

if TYPE_CHECKING:
    from collections.abc import Collection

    from carrypost.gossip.outputs import Outputs
    from carrypost.overlay.handoffs import Handoffs
    from carrypost.overlay.legs import Legs
    from carrypost.overlay.rehoming import Rehoming
    from carrypost.overlay.topology import Topology


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

    def __init__(self, topology: Topology, channel: SystemChannel) -> None:
        self._topology, self._channel = topology, channel
        self._asks = True
        """True until the first look: a new broker asks others for all entries."""

    def subscribe(self) -> Collection[type[Notice]]:
        """Subscribe to looks, and to news from other brokers."""
        return (Timer, Propagated)

    def process(self, notice: Notice) -> None:
        """Determine the neighbours and send them what changed; in the first period, pass on news at once."""
        topology = self._topology
        if isinstance(notice, Timer):
            lost = topology.look(notice.now_us)
            topology.propagate(asking=self._asks)
            self._asks = not topology.neighbours
            for broker in lost:
                self._channel.publish(BrokerLost(broker))
        elif isinstance(notice, Propagated) and topology.is_learning(notice.now_us):
            topology.propagate_soon(notice.now_us)


class LegAdaptor:
    """An adaptor that looks for other paths for legs on their way to a broker that is lost."""

    def __init__(self, legs: Legs) -> None:
        self._legs = legs

    def subscribe(self) -> Collection[type[Notice]]:
        """Subscribe to lost brokers."""
        return (BrokerLost,)

    def process(self, notice: Notice) -> None:
        """Send legs on their way to the lost broker along another path."""
        if isinstance(notice, BrokerLost):
            self._legs.reroute(notice.broker)


class HomeBrokerAdaptor:
    """An adaptor that lets seats follow their consumers: opportunistic home brokers (OVERLAY §2.4)."""

    def __init__(self, rehoming: Rehoming, moves: Handoffs) -> None:
        self._rehoming, self._moves = rehoming, moves

    def subscribe(self) -> Collection[type[Notice]]:
        """Subscribe to brokers that are nearer to consumers, and to lost brokers."""
        return (NearestBroker, BrokerLost)

    def process(self, notice: Notice) -> None:
        """Move a seat to a broker that is a better home; end relocations that wait for a lost broker."""
        if isinstance(notice, BrokerLost):
            self._moves.lost(notice.broker)
        elif isinstance(notice, NearestBroker):
            self._rehoming.try_moves(notice.each)
