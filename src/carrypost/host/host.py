"""One node of the network: composes the layers, adds nothing of its own.

A host has no clock, no socket and no disk. Every input comes with the time, in integer microseconds that never
decrease; its outputs are taken from it: `changes()` first, then `outgoing()`, then `events()`. It sends nothing before
its incarnation is durable. `peer` is an opaque link address; the node behind it is learnt from announcements.
"""
# Why a host does no input or output. The same object runs in an emulation of thousands of nodes
# under a virtual clock, on a real device with sockets and a disk, and in tests that crash it
# between any two steps. With a clock or a socket inside, each of these would need a double of it,
# and runs could not be repeated from a seed.
#
# Why outputs are taken in one order. `changes()` comes first because the frames and the events that
# follow may claim that something is stored; drivers write the batch, and the host itself keeps back
# what must wait until the batch is durable.
#
# What must hold. Time never decreases between two inputs. Nothing is sent before the incarnation is
# durable: two incarnations of one number could give two messages the same id.

from __future__ import annotations

from typing import TYPE_CHECKING, Final, TypeVar

from carrypost.application.circles import CircleCommands
from carrypost.errors import LocalError, StateError
from carrypost.gossip.discovery.neighbour import LINKED
from carrypost.gossip.draft import Draft
from carrypost.gossip.holdings.cache import CopyState, state_of
from carrypost.gossip.layer import Layer
from carrypost.gossip.transfers.accounts import FRAME
from carrypost.gossip.transfers.link import HostContext
from carrypost.gossip.wire import frames as fr
from carrypost.host.overview import HeldCopy, Overview, holding, overview
from carrypost.host.parts import Parts
from carrypost.log.events import Delivery, Reason
from carrypost.messaging.messaging import MessagingCommands
from carrypost.model.address import as_given
from carrypost.model.descriptor import Ordering
from carrypost.model.descriptor_values import Privilege, privilege
from carrypost.model.pattern import entry, whole_destination
from carrypost.overlay.commands import OverlayCommands
from carrypost.security.identity import from_system

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
    from contextlib import AbstractContextManager
    from random import Random

    from carrypost.config import Settings
    from carrypost.gossip.wire.pieces import Blank
    from carrypost.island.links import Graph
    from carrypost.log.events import Event
    from carrypost.log.journal import Batch, Key, Value
    from carrypost.messaging.commands import UnitOfWork
    from carrypost.model.descriptor import AttributeValue, Descriptor
    from carrypost.model.headers import Headers
    from carrypost.model.ids import MessageId, NodeId
    from carrypost.order.groups import Registry
    from carrypost.overlay.modulators.modulator import Meter
    from carrypost.security.identity import Entropy, Identity


T = TypeVar("T")
_UNREAD_BYTES: Final = 64
"""Number of undecodable bytes that are charged as one unit of waste."""
_HEARD_US: Final = 10_000
"""Time within which relayed datagrams do not prove anew that a neighbour is there."""


class Host:
    """A node, sans I/O.

    Every command and every input is one step: what is due by then expires, then the command or input is carried out,
    then the resulting frames are sent and events reported. `layers` stand between order and the application.
    `meter`: returns the CPU time of this thread so far in microseconds, by which modulators and useless frames are
    charged; without it modulators are charged what they declare, or their fuel, and frames their prices.
    `entropy`: the source of keys and salts, the operating system's unless runs must repeat.
    """

    def __init__(
        self,
        identity: Identity,
        settings: Settings,
        rng: Random,
        *,
        privilege: Privilege = privilege,
        layers: Sequence[Callable[[HostContext], Layer]] = (),
        meter: Meter | None = None,
        entropy: Entropy = from_system,
    ) -> None:
        parts = Parts(identity, settings, rng, privilege, layers, meter=meter, entropy=entropy)
        self._host_context = host_context = parts.context
        self._outputs, self._holdings, self._links = host_context.outputs, host_context.holdings, host_context.links
        self._deliveries, self._order, self._layers = parts.deliveries, parts.order, parts.layers
        self._acked, self._island = parts.acked, parts.island
        self._neighbours, self._units, self._recovery = parts.neighbours, parts.units, parts.recovery
        self._steps, self._begin, self._finish = parts.steps, parts.steps.begin, parts.steps.finish
        self._announced_receipts = parts.strategy.announced_receipts
        self.messaging = MessagingCommands(self._steps, host_context, self._deliveries, parts.circles, parts.channels)
        """Topics and queues for programs; dormant until it is opened."""
        self.circles, self._labels = CircleCommands(parts.circles, self._steps), parts.circles.keyring.labels
        """Commands about circles, which require that messaging is open."""
        self._commands = self._layers.commands(self._steps)
        self._overlay = None if parts.overlay is None else OverlayCommands(parts.overlay, self._steps)
        self._prefix, self.closed = host_context.prefix, host_context.links.closed
        self._started = False

    # --- life ----------------------------------------------------------------------------------------------

    @property
    def node(self) -> NodeId:
        """The id of this node."""
        return self._host_context.node

    @property
    def incarnation(self) -> int:
        """The incarnation of this host; 0 before it began."""
        return self._steps.incarnation

    @property
    def ready(self) -> bool:
        """True once the incarnation is durable: until then it sends nothing."""
        return self._steps.ready

    def commands(self, kind: type[T]) -> T:
        """Return the commands of a layer, by their class."""
        found = self._commands.get(kind)
        if not isinstance(found, kind):
            raise LocalError(f"no layer of this host has the commands {kind.__name__}: give it by `Host(layers=)`")
        return found

    @property
    def overlay(self) -> OverlayCommands:
        """The commands of the overlay; raises `StateError` if it is off."""
        if self._overlay is None:
            raise StateError("this host has no overlay: set overlay.enabled = true")
        return self._overlay

    def state_of(self, message: MessageId) -> CopyState:
        """Return the state of a message on this host, for diagnosis."""
        return state_of(self._holdings.cache, message)

    @property
    def copies(self) -> int:
        """Number of messages in the cache."""
        return self._holdings.cache.messages

    def overview(self) -> Overview:
        """Return an overview: neighbours, cache, acknowledgements, the island, the overlay, counters."""
        overlay = None if self._overlay is None else self._overlay.view()
        return overview(
            self._host_context, self._neighbours, self._acked, self._island, self.incarnation, overlay=overlay
        )  # fmt: skip

    def holding(self, *, after: int = 0, names: Collection[str] = ()) -> Iterator[HeldCopy]:
        """Yield the state of every message here, the oldest first. The host must not change meanwhile.

        `after`: only those with a greater serial. `names`: only those with one of these as their id or label.
        """
        return holding(self._holdings, self._neighbours, self.messaging.owed_to, after, names, labels=self._labels)

    def awaited(self) -> dict[MessageId, list[NodeId]]:
        """Return the remaining recipients of each own message here that lists any. Reads all copies."""
        return {
            copy.id: self._holdings.recipients.left(copy.descriptor)
            for copy in self._holdings.cache.copies
            if copy is not None and copy.own and copy.here and copy.descriptor.listed
        }

    def reach(self) -> dict[NodeId, int]:
        """Return the hosts that can be reached now, and the number of hops; empty without `island`."""
        return {} if self._island is None else dict(self._island.reach())

    def paths(self) -> dict[NodeId, tuple[NodeId, ...]]:
        """Return the path to each host that can be reached: the relays between, then that host."""
        return {} if self._island is None else self._island.paths()

    def registries(self, now: int) -> list[Registry]:
        """Return the sizes of every order group's registries."""
        return self._order.registries(now)

    def start(self, now: int) -> None:
        """Start a new node, with an empty store."""
        self.restore((), now)

    def restore(self, state: Iterable[tuple[Key, Value]], now: int) -> None:
        """Start a node from the state that its earlier batches add up to, without payloads."""
        if self._started:
            raise StateError("a host can be started or restored only once")
        self._started = True
        rows = list(state)
        self._holdings.begin(now)
        incarnation = self._recovery.restore(rows, now) + 1
        self._layers.restore(rows)
        self._steps.start(incarnation)
        self._finish(now)

    def trace(self) -> None:
        """Report from now on which neighbour has which message (`events.Passed`)."""
        self._outputs.trace()

    def close(self) -> None:
        """Break reference cycles when the driver is done with the host, so that memory is freed at once."""
        self._links.close()
        self._layers.close()
        self._holdings.close()

    # --- commands ------------------------------------------------------------------------------------------

    def publish(
        self,
        destination: str,
        payload: bytes | Blank,
        *,
        now: int,
        attributes: Mapping[str, AttributeValue] | None = None,
        lifetime_us: int | None = None,
        label: str = "",
        persistent: bool = False,
        priority: int = 4,
        ordering: Ordering = Ordering.NONE,
        headers: Headers | None = None,
        recipients: Collection[str] | None = None,
        sealed: bool | None = None,
    ) -> MessageId:
        """Store a message and offer it to all that want it; `Stored` follows.

        `recipients`: ids of the other nodes that it is for; it is delivered there alone, to subscriptions that match.
        `sealed`: seal it for its readers; None: as the settings say.
        """
        self._require_start()
        draft = Draft(
            destination, payload, attributes or {}, lifetime_us, label, persistent, priority, ordering, headers,
            recipients=None if recipients is None else as_given(recipients), sealed=sealed,
        )  # fmt: skip
        # No context manager here, as in `receive`: both run for every message, and a generator
        # costs time.
        self._begin(now)
        try:
            return self._units.publish(draft, now).id
        finally:
            self._finish(now)

    def draft(self, session: int, draft: Draft, now: int) -> tuple[int, Descriptor | None]:
        """Keep a message for a unit of work of this session; return the number of the draft, and its descriptor if any.

        A message with an order gets its descriptor from the unit that sends it. This is no step: it changes nothing
        that is stored, sent or reported.
        """
        self._require_start()
        return self._units.draft(session, draft, now)

    def perform(self, work: UnitOfWork, now: int) -> tuple[Descriptor, ...]:
        """Perform a unit of work atomically; `Done` follows. If this raises, nothing has changed.

        Returns the descriptors of its messages, without drafts that expired meanwhile.
        """
        self._require_start()
        with self.step(now, number=work.number):
            return self._units.perform(work, now)

    def subscribe(
        self,
        pattern: str | Mapping[str, str],
        selector: str | None = None,
        *,
        ordered: bool = False,
        confirmed: bool = False,
        now: int,
    ) -> int:
        """Subscribe to messages that match, including those here; return the subscription's number.

        `ordered`: the messages have an order. Then all messages of the destination are accepted, and the rest of the
        pattern is applied at delivery: messages that were not accepted would be awaited by those that follow.
        `confirmed`: deliveries confirm themselves, in the batch that records them. They need no `confirm`, and do not
        come again after a crash, unless another subscription asked for the same and is not confirmed so.
        """
        self._require_start()
        with self.step(now):
            asked = entry(pattern, selector, limits=self._host_context.limits)
            accepted = whole_destination(asked) if ordered else asked
            number = self._deliveries.subscribe(accepted, asked, confirmed=confirmed)
            self._steps.apply_interest_changes(now)
        return number

    def unsubscribe(self, subscriptions: int | Collection[int], now: int) -> None:
        """End one or several subscriptions: all of them, or none if one does not exist."""
        numbers = (subscriptions,) if isinstance(subscriptions, int) else subscriptions
        with self.step(now):
            self._deliveries.unsubscribe(numbers)
            self._steps.apply_interest_changes(now)

    def confirm(self, deliveries: Iterable[Delivery | MessageId], now: int) -> None:
        """Confirm deliveries, by themselves or by their ids; `Confirmed` follows once that is durable."""
        messages = tuple([each.message if isinstance(each, Delivery) else each for each in deliveries])
        self._begin(now)
        self._deliveries.confirm(messages)
        for layer in self._layers.having[Layer.confirmed]:
            layer.confirmed(messages)
        self._finish(now, links=False)

    def discard(self, message: MessageId, reason: Reason, now: int) -> None:
        """Remove a copy from the cache for good."""
        with self.step(now):
            self._discard(message, reason, done=True)

    def purge(self, messages: Iterable[MessageId], now: int) -> None:
        """Remove copies from the cache for good, at a person's request."""
        with self.step(now):
            for message in messages:
                self._discard(message, Reason.WITHDRAWN, done=True)

    def unreadable(self, message: MessageId, reason: str, now: int) -> None:
        """Drop a message whose payload the consumer could not expand (`pieces.unpack`), for good."""
        with self.step(now):
            self._discard(message, Reason.UNREADABLE, done=True, refused=reason)

    def payload_gone(self, message: MessageId, now: int) -> None:
        """Drop a message whose bytes the driver no longer has."""
        with self.step(now):
            self._discard(message, Reason.PAYLOAD_GONE)

    def payload_read(self, message: MessageId, payload: bytes | Blank, now: int) -> None:
        """Pass a payload to the layers, one of which requested it (`PayloadWanted`), if the message is still here."""
        with self.step(now):
            if (copy := self._holdings.here(message)) is not None:
                for layer in self._layers.having[Layer.payload_read]:
                    layer.payload_read(copy, payload)

    def _discard(self, message: MessageId, reason: Reason, *, done: bool = False, refused: str = "") -> None:
        if (copy := self._holdings.here(message)) is not None:
            if refused:
                self._outputs.refuse(refused, copy.giver or "", copy.descriptor.shown)
            self._holdings.discard(copy, reason, done=done)

    # --- what happens --------------------------------------------------------------------------------------

    def receive(self, frames: Sequence[fr.Frame], peer: str, now: int, *, nbytes: int = 0, read_us: int = 0) -> bool:
        """Process frames from one link address, and charge it for the time that they waste.

        `nbytes`: the bytes received for them. `read_us`: the time that the driver took to decode them (`clock_us`).
        Returns False if they contained nothing new, and there is nothing to take.
        """
        if not self._steps.ready:
            return False
        # What is due expires before the frames are seen: they must meet the state of now, not that
        # of the last step.
        if self._begin(now):
            self._finish(now)
        neighbour = self._neighbours.get(peer)
        accounts = self._links.accounts
        # Muted addresses are refused before their frames are looked at: otherwise muting would save
        # no work.
        if not accounts.listens(peer, now, neighbour=neighbour is not None and neighbour.state is LINKED):
            self._outputs.refuse("muted", peer, count=len(frames))
            return False
        began_us = accounts.begin_step() - read_us
        if neighbour is not None:
            first, link = frames[0] if frames else None, neighbour.link
            link.received(frames, nbytes)
            listening = bool(self._layers.having[Layer.heard])
            # In a quiet cloud most datagrams are announcements that repeat the last one: these skip
            # the state machine of the link.
            if type(first) is fr.Announce and neighbour.repeats(first, self._prefix, now, listening=listening):
                new = bool(link.unconfirmed.slots) and self._announced_receipts(link, first.receipts, now)
                new = (len(frames) > 1 and link.receive(frames[1:], now, began_us=began_us)) or new
            else:
                new = link.receive(frames, now, began_us=began_us)
        else:
            new = self._neighbours.receive(frames, peer, now, nbytes=nbytes, began_us=began_us)
            neighbour = self._neighbours.get(peer)
        if not new:
            return False
        if neighbour is not None and neighbour.state is LINKED:
            neighbour.heard(now)
        self._finish(now, None if neighbour is None else neighbour.link)
        accounts.end_step(now)
        return True

    def pass_on(self, datagram: bytes, peer: str, now: int) -> tuple[str, bytes] | None:
        """Return an address and a datagram to send at once, for a datagram that only passes through this host.

        None: it has to be decoded, and passed to `receive`. Drivers without bytes need not call this: `receive` passes
        frames on as well.
        """
        passed = None if self._island is None else self._island.relaying.flows.pass_on(datagram, peer, now)
        neighbour = None if passed is None else self._neighbours.get(peer)
        # Relayed datagrams pass by the thousand; noting each of them would cost more than passing
        # it on.
        if neighbour is not None and now - neighbour.heard_us >= _HEARD_US:
            neighbour.heard(now)
        return passed

    def listens(self, peer: str, now: int) -> bool:
        """Return True if a datagram from a link address is worth decoding; else the driver drops it unread."""
        link = self._links.get(peer)
        return self._links.accounts.listens(peer, now, neighbour=link is not None and link.usable)

    def muted_until(self, peer: str) -> int:
        """Return the time until which an address is muted for causing too much useless work."""
        return self._links.accounts.muted_us(peer)

    def refused(self, reasons: Mapping[str, int], peer: str, now: int, *, nbytes: int = 0, read_us: int = 0) -> None:
        """Count what the driver could not decode of a datagram, by reason (`frames.Decoded.refused`).

        Its sender is charged for the time that this took, or for its bytes and frames if nothing is measured.
        """
        for reason, count in reasons.items():
            self._outputs.refuse(reason, peer, count=count)
        units = nbytes // _UNREAD_BYTES + FRAME * sum(reasons.values())
        self._links.accounts.charge(peer, read_us or units, now)

    def clock_us(self) -> int:
        """Return the CPU time of this thread so far, by which addresses are charged; 0 if nothing is measured."""
        return self._links.accounts.clock_us()

    def link(self, peer: str, up: bool, now: int) -> None:
        """Begin or end a contact that the driver asserts."""
        self._begin(now)
        self._neighbours.driver_link(peer, up=up, now=now)
        self._finish(now, self._links.get(peer))

    def set_links(self, graph: Graph, now: int) -> None:
        """Set all links between hosts, if the driver knows them, at first and whenever they change."""
        if self._island is None:
            raise StateError("this host has no island: set island = true")
        with self.step(now):
            self._island.set_links(graph, now)

    def carry(self, datagram_bytes: int, now: int) -> None:
        """Set the longest datagram that the driver's interfaces carry; 0: not known. Neighbours are informed."""
        with self.step(now):
            self._neighbours.announcing.carry(datagram_bytes, now)

    def tick(self, now: int) -> bool:
        """Do what is due, if anything is; return False if that was an announcement at most, with no other output."""
        steps = self._steps
        steps.tick(now)
        if not steps.ready:
            return True
        more = self.busy
        return steps.announce(now) or more

    def next_deadline(self) -> int | None:
        """Return the time of the next tick."""
        return self._steps.next_deadline()

    @property
    def busy(self) -> bool:
        """True if there is anything to take: changes, transmissions, events."""
        outputs, journal = self._outputs, self._outputs.journal
        return bool(outputs.outgoing or outputs.events or journal.puts or journal.deletes or outputs.refusals)

    def durable(self, serial: int, now: int) -> None:
        """Note that a batch is on disk."""
        self._steps.durable(serial, now)

    def room(self, nbytes: int, now: int) -> None:
        """Set how many bytes of new messages the disk takes: it is told again whenever that changes otherwise.

        Beyond it sends raise, and messages of others are declined, unless less privileged copies can be evicted for
        them: the room of copies that leave is used again. Acknowledgements, deletions, marks and control messages are
        never refused.
        """
        if self._holdings.cache.limit(nbytes):
            self._begin(now)
            self._finish(now)

    def clock_stepped(self, delta_us: int) -> None:
        """Note that the clock was set forward or, by a negative amount, back.

        Dates follow at once, in either direction. `now` follows forward, as far as dates overtake it: that much silence
        was none. It does not follow back.
        """
        self._steps.clock_stepped(delta_us)

    def date_of(self, now: int) -> int:
        """Return the date at a time of this host: the two differ after the clock was set back."""
        return self._holdings.date_of(now)

    # --- what it wants -------------------------------------------------------------------------------------

    def changes(self) -> Batch | None:
        """Return the changes to store; None if there are none."""
        return self._steps.changes()

    def outgoing(self) -> list[fr.Transmission]:
        """Return the transmissions to send."""
        return self._outputs.pop_outgoing() if self._outputs.outgoing else []

    def events(self) -> list[Event]:
        """Return the events since the last call."""
        outputs = self._outputs
        return outputs.pop_events() if outputs.events or outputs.refusals else []

    def step(self, now: int, *, links: bool = True, number: int | None = None) -> AbstractContextManager[None]:
        """Return one step as a context; `number`: it is a command, which `Done` answers."""
        return self._steps.step(now, links=links, number=number)

    def _require_start(self) -> None:
        if not self._started:
            raise StateError("start or restore the host first")
