"""Commands that programs give to the overlay of a host, and the overlay as they see it: `host.overlay`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from carrypost.errors import IllegalArgumentException, InvalidSelectorException, LocalError
from carrypost.gossip.draft import Draft
from carrypost.log.events import OverlayState
from carrypost.model import address
from carrypost.model.ids import NodeId, node_prefix
from carrypost.model.times import NEVER
from carrypost.overlay.homes import check_channel
from carrypost.overlay.items import Role
from carrypost.overlay.modulators.modulator import Instance, Modulator

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence

    from carrypost.gossip.layer import Steps
    from carrypost.gossip.wire.pieces import Blank
    from carrypost.model.ids import MessageId
    from carrypost.model.properties import AttributeValue
    from carrypost.overlay.overlay import OverlayLayer
    from carrypost.overlay.placement import Adaptor
    from carrypost.overlay.tables import Served

# --- view --------------------------------------------------------------------------------------------------

# The overlay as programs and `carrypost status` see it.


class OverlayView(msgspec.Struct, frozen=True):
    """The overlay as one node knows it, at one moment."""

    broker: bool
    """True if this node is a broker."""
    brokers: tuple[NodeId, ...]
    """Other brokers that it knows."""
    neighbours: dict[NodeId, int]
    """Neighbours in the overlay, and the hops to each."""
    paths: dict[NodeId, tuple[NodeId, ...]]
    """By broker that a path leads to: brokers from this one to that one, both included."""
    load: float
    """Load: work of its seats that arrived in `load_window_s`, as a share of what it can do."""
    topology_bytes: int
    """Bytes of the messages by which it informed other brokers of the overlay: descriptors and signatures."""
    legs: int
    """Legs that it passed on."""
    arrived: int
    """Messages that came to it along the overlay, as the last broker of a route, in this incarnation."""
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
    seats: tuple[tuple[NodeId, str, int, int], ...]
    """Seats of consumers that it has: node, channel, epoch, and the number of the last result."""
    faults: int
    """Events that the modulators of these seats failed with, in this incarnation."""
    busy_us: int
    """Execution time of the modulators of these seats, in this incarnation, as measured; in emulation as declared."""
    failed: int
    """Seats that it closed because of an error, in this incarnation."""
    last_fault: str
    """The last of these errors, for people; empty if there was none."""
    emitted: int
    """Events that it sent, in all its incarnations."""
    consumed: int
    """Events that results for its open subscriptions covered."""
    lost: int
    """Events that were missing for its subscriptions, in this incarnation."""
    discarded: int
    """Results for its open subscriptions that modulators refused to keep while this node could not be reached."""


class ChannelView(msgspec.Struct, frozen=True):
    """A producer or a consumer of this node, or a seat of a consumer that this node works for as a broker."""

    channel: str
    role: str
    """producer, consumer, or broker: of a seat here."""
    client: NodeId
    """Node of the client: this one, or the one whose seat it is."""
    home: NodeId | None
    hops: int | None = None
    """Hops to the home; None if it cannot be reached."""
    since_us: int | None = None
    """Date since which it is the home; None if it was the home before this node was started."""
    modulator: str = ""
    events: int = 0
    """Events sent or, of a consumer, covered by results."""
    results: int = 0
    lost: int = 0
    """Events that were missing, in this incarnation."""
    faults: int = 0
    busy_us: int = 0
    discarded: int = 0
    refusal: str = ""
    """Reason why the broker that was asked last refused, for people; empty if it did not."""
    fault: str = ""
    """The last error of the modulator."""


class OverlayCommands:
    """Commands that programs give to the overlay of one host; each is a step."""

    def __init__(self, overlay: OverlayLayer, steps: Steps) -> None:
        self._overlay, self._steps, self._step = overlay, steps, steps.step

    def view(self) -> OverlayView:
        """Return the overlay as this node knows it."""
        overlay = self._overlay
        topology, seats = overlay.topology, overlay.seats
        return OverlayView(
            broker=overlay.broker,
            brokers=tuple(sorted(each.node for each in topology.brokers)),
            neighbours=dict(topology.neighbours),
            paths={each.node: path for each in topology.brokers if (path := self.path(each.node)) is not None},
            load=overlay.load.measured,
            topology_bytes=topology.topology_bytes,
            legs=overlay.legs.passed,
            arrived=overlay.legs.arrivals.count,
            repaired=overlay.legs.repaired,
            homes=overlay.homes.of_channels(),
            clients=sum(each.active for each in overlay.clients.table),
            channels=len({each.item.channel for each in overlay.clients.table if each.active}),
            rosters=len(topology.rosters.table),
            seats=tuple((*each.client.key[::2], each.row.epoch, each.row.number) for each in seats),
            faults=sum(each.faults for each in seats.instances),
            busy_us=sum(each.busy_us for each in seats.instances),
            failed=seats.failed,
            last_fault=seats.last_fault,
            emitted=overlay.producer.numbers.total,
            consumed=sum(each.row.events for each in overlay.consumers),
            lost=overlay.consumers.coverage.missed,
            discarded=sum(each.row.discarded for each in overlay.consumers),
        )

    def channels(self) -> list[ChannelView]:
        """Return the clients of this node, and the seats that it has as a broker."""
        overlay = self._overlay
        found = [self._client(*each) for each in overlay.homes.clients()]
        for seat in overlay.seats:
            item, instance = seat.client.item, seat.processing.instance
            found.append(ChannelView(
                item.channel, "broker", seat.client.node, overlay.topology.node, 0, None, _label(item.modulator),
                results=seat.row.number, **({} if instance is None else _work(instance)),
            ))  # fmt: skip
        return found

    def _client(self, key: tuple[Role, str, int], home: NodeId | None, since_us: int) -> ChannelView:
        overlay, (role, channel, number) = self._overlay, key
        hops = None if home is None else overlay.topology.hops(home)
        since = None if since_us >= NEVER else overlay.date_of(since_us)
        refusal = ": ".join(filter(None, overlay.homes.refusal(*key)))
        node = overlay.topology.node
        common = ChannelView(channel, role.name.lower(), node, home, hops, since, refusal=refusal)
        found = overlay.consumers.at(number) if role is Role.CONSUMER else None
        if found is None:
            return msgspec.structs.replace(common, events=overlay.producer.numbers.last(channel))
        row = found.row
        return msgspec.structs.replace(
            common, modulator=_label(row.modulator), events=row.events, results=row.number, lost=found.missed,
            faults=row.faults, busy_us=row.busy_us, discarded=row.discarded, fault=row.fault,
        )  # fmt: skip

    def path(self, broker: NodeId) -> tuple[NodeId, ...] | None:
        """Return the brokers from this one to another, both included, by the BRT; None if no path is known."""
        topology = self._overlay.topology
        way = topology.routes.way(node_prefix(broker)) if broker in topology.brokers else None
        return None if way is None else (topology.node, *self._named(way.path))

    def route(self, broker: NodeId) -> tuple[NodeId, ...]:
        """Return the brokers that a leg to another broker would pass now, both included."""
        *between, _ = self._overlay.legs.route(node_prefix(broker))
        return (self._overlay.topology.node, *self._named(between), broker)

    def _named(self, path: Iterable[bytes]) -> list[NodeId]:
        brokers = self._overlay.topology.brokers
        return [info.node for prefix in path if (info := brokers.at(prefix)) is not None]

    def homes(self, role: Role) -> dict[str, NodeId]:
        """Return the home brokers of this node's producers, or of its consumers, by channel."""
        return self._overlay.homes.of_channels(role)

    def subscriptions(self) -> dict[str, str]:
        """Return the channels of this node's subscriptions, by the destinations of their results."""
        return {each.destination: each.row.channel for each in self._overlay.consumers}

    def serving(self, channel: str) -> dict[NodeId, Served]:
        """Return the brokers that have producers or seats of a channel, as far as this node knows, itself included."""
        topology = self._overlay.topology
        found = topology.rosters.serving(channel)
        own = found.pop(topology.prefix, None)
        served = {
            info.node: each for prefix, each in found.items() if (info := topology.brokers.at(prefix)) is not None
        }
        return served if own is None else served | {topology.node: own}

    def emit(
        self, channel: str, payload: bytes | Blank, now: int,
        *, attributes: Mapping[str, AttributeValue] | None = None, lifetime_us: int | None = None,
    ) -> MessageId:  # fmt: skip
        """Send an event to a channel; returns its id. The node becomes a producer of the channel.

        Raises `LocalError` if the event cannot be sent.
        """
        check_channel(channel)
        draft = Draft(address.channel(channel), payload, attributes or {}, lifetime_us)
        return self._steps.publish(draft, now)

    def consume(self, channel: str, now: int, modulator: Modulator | None = None, *, relocation: str = "strict") -> str:
        """Subscribe to a channel, from now on; returns the destination of the results, to which programs subscribe.

        The home broker runs the modulator, if there is one, on every event. `relocation`: the protocol by which its
        seat moves to another broker ("strict", "stateless", "lossy" or "light"). Raises `LocalError` for a channel
        without a name, for any other relocation, and beyond `limits.clients_max`.
        """
        with self._step(now):
            return self._overlay.consume(channel, now, modulator, relocation=relocation)

    def change(self, destination: str, modulator: Modulator | None, now: int) -> None:
        """Give a subscription, named by the destination of its results, another modulator, or none.

        The home exchanges it between two events; its state begins anew. Raises `LocalError` if there is no such
        subscription.
        """
        with self._step(now):
            self._overlay.change(destination, modulator, now)

    def compiled(self, digest: bytes, now: int, *, code: bytes = b"", refusal: str = "", took_us: int = 0) -> None:
        """Accept a module that the driver compiled (`CompileWanted`), or the reason why it could not."""
        with self._step(now):
            self._overlay.compiled(digest, code, refusal, took_us)

    def close(self, destination: str, now: int) -> None:
        """End a subscription, named by the destination of its results, or a producer, by `channel/NAME`.

        Raises `LocalError` if there is no such subscription.
        """
        with self._step(now):
            self._overlay.close(destination)

    def add(self, adaptor: Adaptor) -> None:
        """Add an adaptor to this node's overlay; raises `LocalError` for an object that is not an adaptor."""
        if not callable(getattr(adaptor, "subscribe", None)) or not callable(getattr(adaptor, "process", None)):
            raise LocalError(f"an adaptor has the methods subscribe() and process(notice), which {adaptor!r} has not")
        self._overlay.channel.add(adaptor)

    def send(self, message: MessageId, brokers: Collection[NodeId], now: int, *, channel: str = "") -> None:
        """Pass on a whole message that is here to some brokers, along the overlay.

        Raises `LocalError` if it is not here, too large beside its body, or one of them is not known as a broker.
        """
        with self._step(now):
            self._overlay.send(message, brokers, channel)


def _label(modulator: Modulator | None) -> str:
    """Return a modulator, for people."""
    return "" if modulator is None else f"{modulator.name}:{modulator.version}"


def _work(instance: Instance) -> dict[str, Any]:
    """Return what a modulator did since it runs here."""
    names = "events", "faults", "busy_us", "fault"
    return {name: getattr(instance, name) for name in names}


# --- topics ------------------------------------------------------------------------------------------------

# Channels as messaging uses them: subscriptions that it opens for its programs (`messaging.context`).
#
# Messaging and the overlay are layers beside each other, and neither knows the other. The host
# gives messaging this part of the overlay. All values are such as messaging keeps in its own rows:
# a modulator is the bytes of a `Modulator`.


_decode = msgspec.msgpack.Decoder(Modulator).decode
_SELECTOR = "selector"


class ChannelTopics:
    """Subscriptions to channels for the programs of one layer above."""

    def __init__(self, overlay: OverlayLayer, owner: str) -> None:
        self._overlay, self._owner = overlay, owner

    def open(self, channel: str, selector: str | None, modulator: bytes, relocation: str, now: int) -> str:
        """Subscribe to a channel; returns the destination of the results.

        Raises `LocalError` for a name that no channel can have, for a modulator that is none, and beyond the limits.
        """
        decoded = _modulator(selector, modulator)
        return self._overlay.consume(channel, now, decoded, relocation=relocation, owner=self._owner)

    def change(self, destination: str, modulator: bytes, now: int) -> None:
        """Give a subscription another modulator, or none; raises `LocalError` if there is no such subscription."""
        self._overlay.change(destination, _modulator(None, modulator), now)

    def close(self, destination: str, now: int) -> None:  # noqa: ARG002 - other commands of messaging need it
        """End a subscription; raises `LocalError` if there is none."""
        self._overlay.close(destination)

    def opened(self) -> Sequence[str]:
        """Return the destinations of all its subscriptions, those of an earlier incarnation included."""
        return [each.destination for each in self._overlay.consumers if each.row.owner == self._owner]

    def lost_before(self, message: MessageId) -> int:
        """Return how many events are missing before a result that came with the present step."""
        return self._overlay.consumers.lost_before(message)

    def state(self, destination: str) -> OverlayState:
        """Return the state of a subscription; raises `LocalError` if there is none."""
        found = self._overlay.consumers.find(destination)
        home, row = self._overlay.homes.home(*found.key), found.row
        hops = None if home is None else self._overlay.topology.hops(home)
        refusal = self._overlay.homes.refusal(*found.key)
        counts = row.events, row.faults, row.busy_us
        return OverlayState(home, hops, row.epoch, *counts, *refusal, discarded=row.discarded, fault=row.fault)


def _modulator(selector: str | None, encoded: bytes) -> Modulator | None:
    if selector is not None:
        try:
            return Modulator.named(_SELECTOR, text=selector)
        except LocalError as error:
            raise InvalidSelectorException(
                f"the selector of a channel's consumer is a parameter of the modulator {_SELECTOR!r}, and this one has "
                f"{len(selector.encode()):,} bytes: shorten it. {error}"
            ) from error
    try:
        return _decode(encoded) if encoded else None
    except (msgspec.MsgspecError, RecursionError) as error:
        raise IllegalArgumentException(f"invalid modulator: {error}") from None
