"""The overlay on one host, as a layer between order and messaging.

It reads what is for `overlay/N` and `overlay/all`, and gives each item to its part, if its author may say it. Programs
use it by `host.overlay`. A host whose settings do not enable it has no such layer.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from carrypost.errors import LocalError, StateError
from carrypost.events import Reason
from carrypost.gossip.layer import Layer
from carrypost.model import address
from carrypost.model.ids import NodeId, node_prefix, shown
from carrypost.model.pattern import entry
from carrypost.overlay.adaptor import BrokerLost, Propagated, SystemChannel, Timer, TopologyAdaptor
from carrypost.overlay.items import ITEMS, Broker, Pass, may_say
from carrypost.overlay.items import Topology as TopologyItem
from carrypost.overlay.legs import Legs
from carrypost.overlay.topology import Topology

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Sequence
    from random import Random

    from carrypost.events import Event
    from carrypost.gossip.holdings.copies import Copy
    from carrypost.gossip.layer import Draft, Steps
    from carrypost.gossip.transfers.ground import Ground
    from carrypost.island.island import Island
    from carrypost.journal import Key, Value
    from carrypost.local.deliveries import Deliveries
    from carrypost.model.descriptor import Descriptor
    from carrypost.model.ids import MessageId
    from carrypost.overlay.adaptor import Adaptor


class OverlayView(msgspec.Struct, frozen=True):
    """The overlay as one node knows it, at one moment."""

    broker: bool
    """True if this node is a broker."""
    brokers: tuple[NodeId, ...]
    """Other brokers that it knows."""
    neighbours: dict[NodeId, int]
    """Its neighbours in the overlay, and over how many hops they are reached."""
    paths: dict[NodeId, tuple[NodeId, ...]]
    """By broker that a path leads to: brokers from this one to that one, both included."""
    topology_bytes: int
    """Bytes of the messages by which it told other brokers of the overlay: descriptors and signatures."""
    legs: int
    """Legs that it passed on."""
    repaired: int
    """Routes of legs that it changed, because the next broker could not be reached."""


class _Eligible:
    """Nodes that may be brokers: those that are listed, or all."""

    def __init__(self, listed: Collection[str]) -> None:
        self._listed = frozenset(listed)

    def __contains__(self, node: object) -> bool:
        return not self._listed or node in self._listed


class Overlay(Layer):
    """The overlay of one host."""

    kind = "overlay"

    def __init__(self, ground: Ground, deliveries: Deliveries, island: Island, rng: Random) -> None:
        self._node, self._broker = ground.node, ground.settings.overlay.broker
        self._holdings, self._outputs, self._deliveries = ground.holdings, ground.outputs, deliveries
        self._eligible = _Eligible(ground.settings.overlay.brokers)
        self.topology = Topology(ground, island, rng)
        self.legs = Legs(ground, self.topology)
        self.channel = SystemChannel(ground.outputs)
        self.channel.add(TopologyAdaptor(self.topology, self.channel))
        self.topology_bytes = 0
        self._read: list[Copy] = []
        """Messages to this node that were acted upon: nobody needs them any more."""

    def commands(self, steps: Steps) -> OverlayCommands:
        """Return what programs may ask of it."""
        return OverlayCommands(self, steps)

    def view(self) -> OverlayView:
        """Return how things stand."""
        topology = self.topology
        paths = {each.node: path for each in topology.brokers if (path := self.path(each.node)) is not None}
        return OverlayView(
            broker=self._broker,
            brokers=tuple(sorted(each.node for each in topology.brokers)),
            neighbours={node: each.hops for node, each in topology.neighbours.items()},
            paths=paths,
            topology_bytes=self.topology_bytes,
            legs=self.legs.passed,
            repaired=self.legs.repaired,
        )

    def path(self, node: NodeId) -> tuple[NodeId, ...] | None:
        """Return the brokers from this one to another, both included; None if no path is known."""
        way = self.topology.routes.way(node_prefix(node)) if node in self.topology.brokers else None
        if way is None:
            return None
        passed = [info.node for prefix in way.path if (info := self.topology.brokers.at(prefix)) is not None]
        return (self._node, *passed)

    def send(self, message: MessageId, brokers: Collection[NodeId], channel: str) -> None:
        """Pass on a message that is here; raises `LocalError` if it cannot be."""
        copy = self._holdings.cache.get(message)
        if copy is None or not copy.here or not copy.whole:
            raise StateError(f"the message {shown(message)} is not here, or not whole: publish it, or wait for it")
        self.legs.send(copy, brokers, channel)

    # --- a layer -------------------------------------------------------------------------------------------

    def restore(self, rows: Iterable[tuple[Key, Value]]) -> None:  # noqa: ARG002 - there are none yet
        """Carry for everybody what is for overlays, and want what is for this node."""
        self._deliveries.carry([entry(f"{prefix}.*") for prefix in address.BETWEEN_OVERLAYS])
        for destination in (address.OVERLAYS, address.overlay(self._node)):
            self._deliveries.want(entry(address.exactly(destination)), told=False)

    def started(self, incarnation: int, now: int) -> None:
        """Begin to announce this node, and to look for brokers."""
        self.topology.start(incarnation, now)
        self._look_ahead()

    def take(self, copies: Sequence[Copy]) -> Sequence[Copy]:
        """Read what is for overlays; all copies go on."""
        for copy in copies:
            destination = copy.descriptor.destination
            if copy.here and destination.startswith(address.BETWEEN_OVERLAYS[0]):
                to_all = destination == address.OVERLAYS
                if to_all:  # From now on it is only carried, for those that did not read it yet.
                    self._holdings.cache.set_interesting(copy, False)
                mine = to_all or address.addressee(destination) == self._node
                if mine and copy.descriptor.node != self._node and not self._holdings.is_confirmed(copy):
                    self._read_items(copy, to_all=to_all)
        self._look_ahead()
        return copies

    def _read_items(self, copy: Copy, *, to_all: bool) -> None:
        descriptor, author = copy.descriptor, copy.descriptor.node
        items, unread = ITEMS.items_of(descriptor)
        allowed = [
            item
            for item in items
            if may_say(item, author, to_all=to_all, eligible=self._eligible, known=self.topology.brokers)
        ]
        if unread or len(allowed) < len(items):
            refused = unread + len(items) - len(allowed)
            self._outputs.refuse("overlay", author, descriptor.shown, count=refused)
        passed = [item for item in allowed if isinstance(item, Pass)]
        for item in allowed:
            self._act(item, descriptor)
        if len(passed) == 1 and len(items) == 1:
            self.legs.arrived(copy, passed[0])
        elif not to_all:
            if passed:  # A leg has one item, or nobody could tell what it passes on.
                self._outputs.refuse("overlay", author, descriptor.shown)
            self._read.append(copy)
            self._holdings.acknowledge(copy.id, descriptor.ends_us)

    def _act(self, item: Broker | TopologyItem | Pass, descriptor: Descriptor) -> None:
        now = self._holdings.now_us
        if isinstance(item, Broker):
            self.topology.announced(item, descriptor, now)
        elif isinstance(item, TopologyItem) and self.topology.told(item, descriptor.node):
            self.channel.tell(Propagated(descriptor.node, now))

    def expire(self, now: int) -> None:
        """Do what is due."""
        for broker in self.topology.expire(now):
            self.channel.tell(BrokerLost(broker))
        if self.topology.look_us <= now and self.topology.takes_a_look(now):
            self.channel.tell(Timer(now))
        self._look_ahead()

    def published(self, copies: Sequence[Copy]) -> None:
        """Note messages of this node that were admitted."""
        self.legs.published(copies)
        for copy in copies:
            headers = copy.descriptor.headers
            if headers is not None and headers.connected and copy.descriptor.destination.startswith("overlay/"):
                self.topology_bytes += copy.descriptor.wire_bytes

    def left(self, copies: Sequence[Copy], reason: Reason | None) -> None:
        """Note copies that are gone."""
        if reason is not None:
            self.legs.left(copies, reason)
            self._look_ahead()

    def finish(self, now: int) -> Sequence[Draft]:
        """Return what is to be published, and drop what was read."""
        read, self._read = self._read, []
        for copy in read:
            if copy.here:
                self._holdings.discard(copy, Reason.PURGED, done=True)
        drafts = [*self.topology.drafts(), *self.legs.drafts(now)]
        self._look_ahead()
        return drafts

    def durable(self, serial: int) -> None:
        """Note that a batch is on disk."""
        self.legs.durable(serial)

    def lost(self, serial: int, held: Sequence[Event]) -> Sequence[Descriptor]:  # noqa: ARG002 - none is its own
        """Note that a batch could not be written."""
        self.legs.lost(serial)
        return ()

    def _look_ahead(self) -> None:
        self.due_us = min(self.topology.due_us, self.legs.due_us)


class OverlayCommands:
    """Commands that programs give to the overlay: `host.overlay`."""

    def __init__(self, overlay: Overlay, steps: Steps) -> None:
        self._overlay, self._step = overlay, steps.step

    def view(self) -> OverlayView:
        """Return the overlay as this node knows it."""
        return self._overlay.view()

    def path(self, broker: NodeId) -> tuple[NodeId, ...] | None:
        """Return the brokers from this one to another, both included; None if no path is known."""
        return self._overlay.path(broker)

    def add(self, adaptor: Adaptor) -> None:
        """Let an adaptor process notices of this node's overlay; raises `LocalError` for one that is none."""
        if not callable(getattr(adaptor, "subscribe", None)) or not callable(getattr(adaptor, "process", None)):
            raise LocalError(f"an adaptor has the methods subscribe() and process(notice), which {adaptor!r} has not")
        self._overlay.channel.add(adaptor)

    def send(self, message: MessageId, brokers: Collection[NodeId], now: int, *, channel: str = "") -> None:
        """Pass on a whole message that is here to some brokers, along the overlay.

        Raises `LocalError` if it is not here, too large beside its body, or one of them is not known as a broker.
        """
        with self._step(now):
            self._overlay.send(message, brokers, channel)
