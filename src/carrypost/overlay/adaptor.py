"""Adaptors: what the overlay does about changes, apart from what notices them (OVERLAY §3.5).

Parts of the overlay tell notices to an internal *system channel*. An adaptor says which kinds it subscribes to, and
processes those, by calling what the parts offer. `TopologyAdaptor` keeps the overlay like the network below it.
Programs add their own with `host.overlay.add`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, Protocol

from carrypost.errors import LocalError
from carrypost.model.ids import NodeId, node_prefix
from carrypost.overlay.events import NEARER
from carrypost.overlay.homing import LOAD_MAX, Home, choose_home

if TYPE_CHECKING:
    from collections.abc import Collection

    from carrypost.gossip.outputs import Outputs
    from carrypost.overlay.legs import Legs
    from carrypost.overlay.moves import Moves
    from carrypost.overlay.topology import Topology

_WEIGHT_MAX = 64
"""Producers of one home that count in the mean length of paths."""


class Timer(NamedTuple):
    """A look is due."""

    now_us: int


class Propagated(NamedTuple):
    """A broker told something about the overlay that was not known here."""

    broker: NodeId
    now_us: int


class BrokerLost(NamedTuple):
    """A broker cannot be reached any more, or did not announce itself again."""

    broker: NodeId


class NearestBroker(NamedTuple):
    """A consumer, whose home this broker is, is as near to another broker, or nearer."""

    consumer: NodeId
    channel: str
    subscription: int
    broker: NodeId
    """The other broker."""
    hops: int
    """Hops from the consumer to it."""
    home_hops: int
    """Hops from the consumer to this broker."""
    now_us: int
    placed: bool = False
    """True if the seat moved here upstream or downstream (`overlay.placement`)."""
    share: float = 1.0
    """Bytes that the seat passes on of each byte that it gets; 1 unless that is little enough to move it upstream."""


Notice = Timer | Propagated | BrokerLost | NearestBroker
NOTICES: tuple[type[Notice], ...] = (Timer, Propagated, BrokerLost, NearestBroker)


class Adaptor(Protocol):
    """Something that adapts the overlay to what happens."""

    def subscribe(self) -> Collection[type[Notice]]:
        """Return the kinds of notices that it processes."""

    def process(self, notice: Notice) -> None:
        """Act upon a notice."""


class SystemChannel:
    """The channel by which parts of one node's overlay tell its adaptors what happened."""

    def __init__(self, outputs: Outputs) -> None:
        self._outputs = outputs
        self._adaptors: dict[type[Notice], list[Adaptor]] = {kind: [] for kind in NOTICES}

    def add(self, adaptor: Adaptor) -> None:
        """Let one more adaptor process the notices that it subscribes to."""
        kinds = list(adaptor.subscribe())
        strange = [kind for kind in kinds if kind not in self._adaptors]
        if strange or not kinds:
            names = ", ".join(kind.__name__ for kind in NOTICES)
            raise LocalError(f"an adaptor subscribes to one or more kinds of notices ({names}), not to {kinds!r}")
        for kind in kinds:
            self._adaptors[kind].append(adaptor)

    def tell(self, notice: Notice) -> None:
        """Let all adaptors process a notice. One that fails is counted, and costs others nothing."""
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
        """True until the first look: whoever is new among brokers asks them for all entries."""

    def subscribe(self) -> Collection[type[Notice]]:
        """Process looks, and what other brokers tell."""
        return (Timer, Propagated)

    def process(self, notice: Notice) -> None:
        """Look, and tell neighbours what changed; in the first period, tell what others tell at once."""
        topology = self._topology
        if isinstance(notice, Timer):
            lost = topology.look(notice.now_us)
            topology.propagate(asking=self._asks)
            self._asks = not topology.neighbours
            for broker in lost:
                self._channel.tell(BrokerLost(broker))
        elif isinstance(notice, Propagated) and topology.is_learning(notice.now_us):
            topology.propagate_soon(notice.now_us)


class LegAdaptor:
    """An adaptor that looks for other paths for legs on their way to a broker that is lost."""

    def __init__(self, legs: Legs) -> None:
        self._legs = legs

    def subscribe(self) -> Collection[type[Notice]]:
        """Process brokers that are lost."""
        return (BrokerLost,)

    def process(self, notice: Notice) -> None:
        """Send the legs along another path."""
        if isinstance(notice, BrokerLost):
            self._legs.reroute(notice.broker)


class HomeBrokerAdaptor:
    """An adaptor that lets seats follow their consumers: opportunistic home brokers (OVERLAY §2.4)."""

    def __init__(self, topology: Topology, moves: Moves) -> None:
        self._topology, self._moves = topology, moves

    def subscribe(self) -> Collection[type[Notice]]:
        """Process nearer brokers of consumers, and brokers that are lost."""
        return (NearestBroker, BrokerLost)

    def process(self, notice: Notice) -> None:
        """Move a seat to a broker that is a better home; let go relocations that wait for a broker in vain."""
        if isinstance(notice, BrokerLost):
            self._moves.lost(notice.broker)
        elif isinstance(notice, NearestBroker) and notice.broker in self._topology.brokers:
            here, there = self._homes(notice)
            if choose_home(here, there, LOAD_MAX) is there:
                consumer = notice.consumer, notice.channel, notice.subscription
                self._moves.migrate(consumer, notice.broker, NEARER, notice.now_us)

    def _homes(self, notice: NearestBroker) -> tuple[Home, Home]:
        """Return this broker and the other one as homes: loads, and distances from producers and to the consumer."""
        topology, other = self._topology, node_prefix(notice.broker)
        near, far = topology.routes.distances(topology.prefix), topology.routes.distances(other)
        homes = [
            prefix
            for prefix, served in topology.rosters.serving(notice.channel).items()
            for _ in range(min(served.producers, _WEIGHT_MAX))
            if prefix in near and prefix in far
        ]
        here, there = tuple(near[each] for each in homes), tuple(far[each] for each in homes)
        return (
            Home(topology.node, topology.load(topology.prefix), notice.home_hops, here, notice.share),
            Home(notice.broker, topology.load(other), notice.hops, there, notice.share),
        )
