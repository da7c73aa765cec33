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
from carrypost.local.ledger import Ledger
from carrypost.model import address
from carrypost.model.ids import NodeId, node_prefix, shown
from carrypost.model.pattern import entry
from carrypost.overlay import arrivals, clients, producer
from carrypost.overlay.adaptor import BrokerLost, LegAdaptor, Propagated, SystemChannel, Timer, TopologyAdaptor
from carrypost.overlay.clients import LEASE_US, ClientManager
from carrypost.overlay.homes import Homes
from carrypost.overlay.items import ITEMS, Attach, Broker, Homed, Item, Pass, Role, may_say
from carrypost.overlay.items import Topology as TopologyItem
from carrypost.overlay.legs import Legs
from carrypost.overlay.producer import Numbers
from carrypost.overlay.rosters import Served
from carrypost.overlay.topology import Topology

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Sequence
    from random import Random

    from carrypost.events import Event
    from carrypost.gossip.holdings.copies import Copy
    from carrypost.gossip.layer import Draft, Rows, Steps
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
    arrived: int
    """Messages that came to it along the overlay, as the last broker of a route, in this life."""
    repaired: int
    """Routes of legs that it changed, because the next broker could not be reached."""
    homes: dict[str, NodeId]
    """Home brokers of its clients, by channel."""
    clients: int
    """Clients that it is the home broker of."""
    channels: int
    """Channels of which these are."""
    rosters: int
    """Brokers whose rosters it knows, itself included."""


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
        self.channel.add(LegAdaptor(self.legs))
        self._ledger = Ledger(ground.outputs.journal, self.kind)
        self.clients = ClientManager(ground, self.topology, self._ledger)
        self.homes = Homes(ground, island, self.topology, self.clients)
        self.numbers = Numbers(ground.outputs.journal, self.kind)
        self.topology_bytes = 0
        self._said: list[Draft] = []
        """Answers to clients that are to be published."""
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
            arrived=self.legs.arrivals.count,
            repaired=self.legs.repaired,
            homes=self.homes.of_channels(),
            clients=sum(each.active for each in self.clients.table),
            channels=len({each.channel for each in self.clients.table if each.active}),
            rosters=len(topology.rosters.table),
        )

    def serving(self, channel: str) -> dict[NodeId, Served]:
        """Return the brokers that have clients of a channel, as far as this node knows, this node included."""
        found = self.topology.rosters.serving(channel)
        own = found.pop(node_prefix(self._node), None)
        served = {
            info.node: each for prefix, each in found.items() if (info := self.topology.brokers.at(prefix)) is not None
        }
        return served if own is None else served | {self._node: own}

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

    def restore(self, rows: Iterable[tuple[Key, Value]]) -> None:
        """Carry for everybody what is for overlays, and want what is for this node; take in rows of an earlier life."""
        families: dict[bytes, list[tuple[bytes, bytes]]] = {}
        for (_, name, _), row in rows:
            if isinstance(row, bytes):
                families.setdefault(name[:1], []).append((name, row))
        self.clients.restore([row for _, row in families.get(clients.FAMILY, ())])
        self.numbers.restore(families.get(producer.FAMILY, ()))
        self.legs.restore(families.get(arrivals.FAMILY, ()))
        self._deliveries.carry([entry(f"{prefix}.*") for prefix in address.BETWEEN_OVERLAYS])
        for destination in (address.OVERLAYS, address.overlay(self._node)):
            self._deliveries.want(entry(address.exactly(destination)), told=False)

    def started(self, incarnation: int, now: int) -> None:
        """Begin to announce this node, and to look for brokers."""
        self.topology.start(incarnation, now)
        self.clients.start(now)
        self.homes.start(incarnation)
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
            self._act(item, copy)
        if len(passed) == 1 and len(items) == 1:
            self.legs.arrived(copy, passed[0])
        elif not to_all:
            if passed:  # A leg has one item, or nobody could tell what it passes on.
                self._outputs.refuse("overlay", author, descriptor.shown)
            self._read.append(copy)
            self._holdings.acknowledge(copy.id, descriptor.ends_us)

    def _act(self, item: Item, copy: Copy) -> None:
        now, descriptor, author = self._holdings.now_us, copy.descriptor, copy.descriptor.node
        if isinstance(item, Broker):
            self.topology.announced(item, descriptor, copy.hops, now)
            if (info := self.topology.brokers.get(author)) is not None:
                self.homes.announced(info, now)
        elif isinstance(item, TopologyItem):
            if self.topology.told(item, author, now):
                self.channel.tell(Propagated(author, now))
        elif isinstance(item, Attach):
            self._attach(item, descriptor, now)
        elif isinstance(item, Homed) and not self.homes.homed(item, author, now):
            self._outputs.refuse("overlay", author, descriptor.shown)

    def _attach(self, item: Attach, descriptor: Descriptor, now: int) -> None:
        """Enter a client, and answer it once that is durable."""
        order = descriptor.incarnation, descriptor.sequence
        accepted = self.clients.attach(item, descriptor.node, order, descriptor.ends_us, now)
        if item.active and accepted is not None:
            answer = Homed(item.role, item.channel, item.subscription, accepted)
            self._said.append(ITEMS.draft(descriptor.node, [answer], LEASE_US, withheld=True))

    def expire(self, now: int) -> None:
        """Do what is due."""
        for broker in self.topology.expire(now):
            self.homes.lost(broker, now)
            self.channel.tell(BrokerLost(broker))
        if self.clients.due_us <= now:
            self.clients.expire(now)
        if self.homes.due_us <= now:
            self.homes.expire(now)
        if self._ledger.due_us <= now:
            self._ledger.write_again()
        if self.topology.look_us <= now and self.topology.takes_a_look(now):
            self.channel.tell(Timer(now))

    def published(self, copies: Sequence[Copy]) -> None:
        """Note messages of this node that were admitted."""
        self.numbers.published(copies)
        self.legs.published(copies)
        for copy in copies:
            headers = copy.descriptor.headers
            if headers is not None and headers.connected and copy.descriptor.destination.startswith("overlay/"):
                self.topology_bytes += copy.descriptor.wire_bytes

    def last_event(self, destination: str) -> int | None:
        """Return the number of this node's last event to a channel."""
        return self.numbers.last(destination)

    def left(self, copies: Sequence[Copy], reason: Reason | None) -> None:
        """Note copies that are gone."""
        if reason is not None:
            self.legs.left(copies, reason)
            self.due_us = min(self.due_us, self.legs.due_us)

    def finish(self, now: int) -> Sequence[Draft]:
        """Return what is to be published, and drop what was read. Every step that changes anything ends with it."""
        read, self._read = self._read, []
        for copy in read:
            if copy.here:
                self._holdings.discard(copy, Reason.PURGED, done=True)
        said, self._said = self._said, []
        drafts = [*self.topology.drafts(), *self.homes.drafts(), *said, *self.legs.drafts(now)]
        self._look_ahead()
        return drafts

    def rows(self, serial: int) -> Rows:
        """Note that rows that were put are in the batch of this number."""
        self._ledger.batched(serial)
        return {}

    def durable(self, serial: int) -> None:
        """Note that a batch is on disk."""
        self._ledger.durable(serial)
        self.numbers.durable(serial)
        self.legs.durable(serial)

    def lost(self, serial: int, held: Sequence[Event]) -> Sequence[Descriptor]:
        """Note that a batch could not be written; returns the events that fail with it."""
        self._ledger.lost(serial, self._holdings.now_us)
        self.legs.lost(serial, held)
        self._look_ahead()
        return self.numbers.lost(serial)

    def _look_ahead(self) -> None:
        self.due_us = min(
            self.topology.due_us, self.legs.due_us, self.clients.due_us, self.homes.due_us, self._ledger.due_us
        )  # fmt: skip


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

    def serving(self, channel: str) -> dict[NodeId, Served]:
        """Return the brokers that have producers or seats of a channel, as far as this node knows."""
        return self._overlay.serving(channel)

    def attach(self, role: Role, channel: str, now: int) -> None:
        """Attach this node as a producer or consumer of a channel to the nearest broker, its home from then on.

        Raises `LocalError` for a channel without a name, and `ResourceAllocationException` beyond `limits.clients_max`.
        """
        with self._step(now):
            self._overlay.homes.attach(Role(role), channel)
            self._overlay.homes.expire(now)

    def detach(self, role: Role, channel: str, now: int) -> None:
        """Let this node leave its home as a producer or consumer of a channel; idempotent."""
        with self._step(now):
            self._overlay.homes.detach(Role(role), channel, 0, now)

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
