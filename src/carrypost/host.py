"""One node of the network: composes the layers, adds nothing of its own.

A host has no clock, no socket and no disk. Whatever happens is told to it with the time, in integer microseconds that
never decrease; what it wants is taken from it: `changes()` first, then `outgoing()`, then `events()`. It says nothing
before its incarnation is durable. `peer` is an opaque link address; which node is behind it is learnt by announcements.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from carrypost.errors import LocalError, RemoteError, StateError
from carrypost.events import Delivery, Reason, Received, Reception
from carrypost.gossip import frames as fr
from carrypost.gossip import journal as keys
from carrypost.gossip.deliveries import Deliveries
from carrypost.gossip.desk import Desk
from carrypost.gossip.exchange import Exchange
from carrypost.gossip.journal import Durability
from carrypost.gossip.link import NEVER, LinkState
from carrypost.gossip.lives import CopyState, state_of
from carrypost.gossip.neighbours import Neighbours
from carrypost.gossip.overview import Overview, overview
from carrypost.gossip.publishing import Publisher
from carrypost.gossip.recovery import Recovery
from carrypost.model.pattern import entry
from carrypost.model.privilege import Privilege, privilege

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from random import Random

    from carrypost.config import Settings
    from carrypost.events import Event
    from carrypost.gossip.cache import Copy
    from carrypost.gossip.journal import Batch, Key, Value
    from carrypost.gossip.link import Link
    from carrypost.gossip.pieces import Blank
    from carrypost.model.descriptor import AttributeValue
    from carrypost.model.ids import MessageId, NodeId
    from carrypost.security.identity import Identity

_BEFORE_LINKED = (fr.Profile, fr.ProfileRequest, fr.Request)
"""Kinds that are taken from who does not list this host (yet); a request that names it is as good as a list."""


class Host:
    """A node, sans I/O."""

    def __init__(
        self, identity: Identity, settings: Settings, rng: Random, *, privilege: Privilege = privilege
    ) -> None:
        if identity.signed != (settings.security == "signed"):
            level = "a plain name" if settings.security == "signed" else "a key"
            raise LocalError(f'the settings say security = "{settings.security}", but the identity is {level}')
        self._desk = desk = Desk(identity, settings, rng, privilege)
        self._deliveries = Deliveries(desk)
        self._exchange = Exchange(desk, self._deliveries, self._whole)
        self._neighbours = Neighbours(desk, self._deliveries, self._exchange.up, self._exchange.down)
        self._publisher = Publisher(desk)
        self._recovery = Recovery(desk, self._deliveries)
        self._started = False
        self._ready = False
        self._first_batches: set[int] = set()
        self._receptions: dict[NodeId, list[Reception]] = {}
        self._handlers: dict[type, Callable[..., None]] = {
            fr.Profile: self._neighbours.take_profile,
            fr.ProfileRequest: self._neighbours.answer_profile,
            fr.Request: self._request,
            **self._exchange.handlers,
        }

    # --- life ----------------------------------------------------------------------------------------------

    @property
    def node(self) -> NodeId:
        """This node's id."""
        return self._desk.node

    def state_of(self, message: MessageId) -> CopyState:
        """What this host has of a message: for people who ask where it is."""
        return state_of(self._desk.cache, message)

    def overview(self) -> Overview:
        """How things stand: neighbours, cache, counters."""
        return overview(self._desk, self._deliveries.unconfirmed)

    def start(self, now: int) -> None:
        """A new node, with nothing in its store."""
        self.restore((), now)

    def restore(self, state: Iterable[tuple[Key, Value]], now: int) -> None:
        """A node that had an earlier life: what its batches add up to, less payloads."""
        if self._started:
            raise StateError("a host is started or restored once")
        self._started = True
        incarnation = self._recovery.restore(state, now) + 1
        self._publisher.incarnation = self._desk.incarnation = incarnation
        self._desk.journal.put(keys.INCARNATION, incarnation, Durability.FULL)
        self._settle(now)

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
    ) -> MessageId:
        """Store a message and offer it to whoever wants it; `Stored` or `Failed` follows."""
        self._require_start()
        self._desk.expire_due(now)
        copy = self._publisher.publish(
            destination, payload, attributes or {}, now=now, lifetime_us=lifetime_us, label=label,
            persistent=persistent, priority=priority,
        )  # fmt: skip
        if self._deliveries.deliver(copy):
            self._desk.keep(copy)
        self._exchange.gained(now, own=True)
        self._settle(now)
        return copy.id

    def subscribe(self, pattern: str | Mapping[str, str], selector: str | None = None, *, now: int) -> int:
        """Want what matches, from now on and of what is here; returns the subscription's number."""
        self._require_start()
        self._desk.expire_due(now)
        number = self._deliveries.subscribe(entry(pattern, selector))
        self._profile_changed(now)
        return number

    def unsubscribe(self, subscription: int, now: int) -> None:
        """Want it no longer."""
        self._deliveries.unsubscribe(subscription)
        self._profile_changed(now)

    def confirm(self, deliveries: Iterable[Delivery | MessageId], now: int) -> None:
        """The consumer has them, named by themselves or by their ids; told back by `Confirmed` once that is durable."""
        self._deliveries.confirm(tuple(each.message if isinstance(each, Delivery) else each for each in deliveries))
        self._settle(now)

    def discard(self, message: MessageId, reason: Reason, now: int) -> None:
        """Take a copy out of the cache, for good."""
        copy = self._desk.cache.get(message)
        if copy is not None and copy.here:
            self._desk.discard(copy, reason, done=True)
        self._settle(now)

    def unreadable(self, message: MessageId, reason: str, now: int) -> None:
        """The consumer could not expand a payload (`pieces.unpack`): it is refused after all, for good."""
        copy = self._desk.cache.get(message)
        if copy is not None and copy.here:
            self._desk.refuse(reason, copy.giver or "", copy.descriptor.shown)
            self._desk.discard(copy, Reason.UNREADABLE, done=True)
        self._settle(now)

    def payload_gone(self, message: MessageId, now: int) -> None:
        """The driver no longer has the bytes of a message."""
        copy = self._desk.cache.get(message)
        if copy is not None and copy.here:
            self._desk.discard(copy, Reason.PAYLOAD_GONE)
        self._settle(now)

    # --- what happens --------------------------------------------------------------------------------------

    def receive(self, frames: Sequence[fr.Frame], peer: str, now: int, *, nbytes: int = 0) -> None:
        """Frames from one link address; `nbytes`: what came over the link for them, to be charged to it."""
        if not self._ready:
            return
        desk = self._desk
        desk.expire_due(now)
        link = desk.links.get(peer)
        if link is not None and not (
            link.budgets.frames.take(len(frames), now) and link.budgets.bytes.take(nbytes, now)
        ):
            desk.refuse_many("link-budget", peer, len(frames))
            return
        quiet = True
        for frame in frames:
            if type(frame) is fr.Announce:
                quiet = not self._neighbours.announced(frame, peer, now) and quiet
                link = desk.links.get(peer)
                continue
            # What a stranger says changes nothing, so it must not cost a round over all neighbours.
            if link is None or not link.node:
                desk.refuse("unannounced", peer)
            elif link.state is not LinkState.LINKED and type(frame) not in _BEFORE_LINKED:
                desk.refuse("not-linked", peer)
            else:
                quiet = False
                self._take(link, frame, now)
        if not quiet:
            if link is not None:
                self._neighbours.heard(link, now)
            self._settle(now)

    def _take(self, link: Link, frame: fr.Frame, now: int) -> None:
        try:
            self._handlers[type(frame)](link, frame, now)
        except RemoteError as error:
            self._desk.refuse(error.reason, link.peer)

    def hears(self, peer: str) -> bool:
        """Whether a link address is that of a neighbour: what comes from it goes before what strangers send."""
        link = self._desk.links.get(peer)
        return link is not None and link.usable

    def refused(self, reasons: Mapping[str, int], peer: str) -> None:
        """What the driver could not read of what came from a link address, by reason (`codec.Decoded.refused`)."""
        for reason, count in reasons.items():
            self._desk.refuse_many(reason, peer, count)

    def link(self, peer: str, up: bool, now: int) -> None:
        """A contact that the driver knows of begins or ends."""
        self._desk.expire_due(now)
        self._neighbours.told(peer, up=up, now=now)
        self._settle(now)

    def tick(self, now: int) -> None:
        """Do what is due."""
        desk = self._desk
        desk.expire_due(now)
        self._recovery.tick(now)
        if self._ready:
            if self._neighbours.tick(now):
                self._exchange.announced(now)
            self._exchange.tick(now)
        self._settle(now)

    def next_deadline(self) -> int | None:
        """When the next tick is due."""
        due = min(self._recovery.due_us, self._desk.cache.next_deadline() or NEVER)
        if self._ready:
            due = min(due, self._neighbours.next_due())
        return None if due >= NEVER else due

    def durable(self, serial: int, now: int) -> None:
        """The batch is on disk."""
        self._desk.expire_due(now)  # What expired while its batch was written is not delivered any more.
        self._desk.journal.durable(serial)
        if serial in self._first_batches and not self._ready:
            self._ready = self._desk.ready = True
            self._neighbours.start(self._desk.incarnation, now)

    def lost(self, serial: int, reason: str, now: int) -> None:
        """The batch could not be written."""
        self._desk.expire_due(now)
        self._recovery.lost(serial, reason, now)
        self._settle(now)

    def clock_stepped(self, delta_us: int) -> None:
        """The clock was set forward by so much: that much silence was not silence."""
        self._neighbours.clock_stepped(delta_us)

    # --- what it wants -------------------------------------------------------------------------------------

    def changes(self) -> Batch | None:
        """What is to be stored; None if nothing."""
        batch = self._desk.journal.take()
        if batch is not None and not self._ready and keys.INCARNATION in batch.puts:
            self._first_batches.add(batch.serial)
        return batch

    def outgoing(self) -> list[fr.Transmission]:
        """What is to be sent."""
        taken, self._desk.outgoing = self._desk.outgoing, []
        return fr.joined(taken)

    def events(self) -> list[Event]:
        """What happened."""
        return self._desk.take_events()

    # --- joints --------------------------------------------------------------------------------------------

    def _require_start(self) -> None:
        if not self._started:
            raise StateError("start or restore the host first")

    def _profile_changed(self, now: int) -> None:
        self._exchange.interests_changed()
        if self._ready:
            self._neighbours.refresh_profile(now)
        self._settle(now)

    def _request(self, link: Link, frame: fr.Request, now: int) -> None:
        if frame.to != self._desk.prefix:
            self._desk.refuse("not-for-me", link.peer)
            return
        self._neighbours.named(link, now)
        self._exchange.request(link, frame, now)

    def _whole(self, copy: Copy, link: Link, reception: Reception) -> None:
        if self._desk.cache.evicted:
            # Events come in order of happening: what came before, what had to go, and then this one.
            self._tell_receptions()
            self._desk.sweep()
        self._receptions.setdefault(link.node, []).append(reception)
        if copy.interesting:
            self._deliveries.deliver(copy)
        self._desk.keep(copy)

    def _tell_receptions(self) -> None:
        for peer, receptions in self._receptions.items():
            self._desk.events.append(Received(peer, tuple(receptions)))
        self._receptions = {}

    def _settle(self, now: int) -> None:
        """The end of every step: answer, acknowledge, offer, send; tell what happened."""
        if self._receptions:
            self._tell_receptions()
            self._exchange.gained(now)
        if self._desk.grown:
            self._desk.grown = False
            self._exchange.gained(now, partial=True)
        self._desk.sweep()
        self._deliveries.flush()
        if self._ready:
            self._neighbours.ask_profiles(now)
            self._exchange.settle(now)
