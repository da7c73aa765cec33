"""One node of the network: composes the layers, adds nothing of its own.

A host has no clock, no socket and no disk. Whatever happens is told to it with the time, in integer microseconds that
never decrease; what it wants is taken from it: `changes()` first, then `outgoing()`, then `events()`. It says nothing
before its incarnation is durable. `peer` is an opaque link address; which node is behind it is learnt by announcements.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from carrypost import journal as keys
from carrypost.errors import LocalError, StateError
from carrypost.events import Delivery, Published, Reason
from carrypost.gossip.desk import Desk
from carrypost.gossip.discovery.dispatch import Dispatch
from carrypost.gossip.discovery.neighbours import Neighbours
from carrypost.gossip.holdings.lives import CopyState, state_of
from carrypost.gossip.strategy.exchange import Exchange
from carrypost.gossip.transfers.accounts import FRAME
from carrypost.gossip.transfers.link import LINKED
from carrypost.gossip.transfers.receptions import Receptions
from carrypost.gossip.wire import frames as fr
from carrypost.host.overview import Overview, overview
from carrypost.host.recovery import Recovery
from carrypost.journal import Durability
from carrypost.local.deliveries import Deliveries
from carrypost.local.publishing import Publisher
from carrypost.model.descriptor import Ordering
from carrypost.model.pattern import entry, whole_destination
from carrypost.model.privilege import Privilege, privilege
from carrypost.model.times import NEVER
from carrypost.order.groups import Order

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence
    from random import Random

    from carrypost.config import Settings
    from carrypost.events import Event
    from carrypost.gossip.transfers.link import Link
    from carrypost.gossip.wire.pieces import Blank
    from carrypost.journal import Batch, Key, Value
    from carrypost.model.descriptor import AttributeValue, Descriptor
    from carrypost.model.ids import MessageId, NodeId
    from carrypost.model.pattern import Entry
    from carrypost.order.groups import Registry
    from carrypost.security.identity import Identity


_UNREAD_BYTES = 64
"""As many bytes that cannot be read are charged as one unit of waste."""


def _nothing() -> None:
    pass


class Host:
    """A node, sans I/O."""

    def __init__(
        self, identity: Identity, settings: Settings, rng: Random, *, privilege: Privilege = privilege
    ) -> None:
        if identity.signed != (settings.security == "signed"):
            level = "a plain name" if settings.security == "signed" else "a key"
            raise LocalError(f'the settings say security = "{settings.security}", but the identity is {level}')
        self._desk = desk = Desk(identity, settings, rng, privilege)
        self._deadlines = desk.cache.deadlines
        self._deliveries = Deliveries(desk)
        self._order = Order(desk, self._deliveries)
        self._deliveries.in_order, self._deliveries.waits_no_more = self._order.take, self._order.left
        self._receptions = Receptions(desk, self._deliveries)
        self._receptions.told = self._order.tell
        self._exchange = Exchange(desk, self._deliveries, self._receptions)
        self._neighbours = Neighbours(desk, self._deliveries, self._exchange.up, self._exchange.down)
        self._dispatch = Dispatch(desk, self._neighbours, self._exchange)
        self._publisher = Publisher(desk)
        self._recovery = Recovery(desk, self._deliveries)
        self._started = False
        self._ready = False
        self._first_batches: set[int] = set()

    # --- life ----------------------------------------------------------------------------------------------

    @property
    def node(self) -> NodeId:
        """This node's id."""
        return self._desk.node

    def state_of(self, message: MessageId) -> CopyState:
        """What this host has of a message: for people who ask where it is."""
        return state_of(self._desk.cache, message)

    @property
    def copies(self) -> int:
        """How many messages are in the cache."""
        return self._desk.cache.messages

    def overview(self) -> Overview:
        """How things stand: neighbours, cache, counters."""
        return overview(self._desk, self._neighbours.places, len(self._deliveries.unconfirmed))

    def registries(self, now: int) -> list[Registry]:
        """How much every order group remembers."""
        return self._order.registries(now)

    def start(self, now: int) -> None:
        """A new node, with nothing in its store."""
        self.restore((), now)

    def restore(self, state: Iterable[tuple[Key, Value]], now: int) -> None:
        """A node that had an earlier life: what its batches add up to, less payloads."""
        if self._started:
            raise StateError("a host is started or restored once")
        self._started = True
        state = list(state)
        incarnation = self._recovery.restore(state, now) + 1
        self._order.restore((key, value) for key, value in state if key[0] == keys.ORDER and isinstance(value, bytes))
        self._publisher.incarnation = self._desk.incarnation = incarnation
        self._desk.journal.put(keys.INCARNATION, incarnation, Durability.FULL)
        self._settle(now)

    def close(self) -> None:
        """The driver is done with it: what refers to each other lets go, so that the memory is free at once."""
        self._dispatch.close()
        self._deliveries.close()
        self._receptions.told = _nothing
        self._exchange.handlers.clear()
        self._desk.close()

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
    ) -> MessageId:
        """Store a message and offer it to whoever wants it; `Stored` or `Failed` follows."""
        self._require_start()
        self._expire(now)
        copy = self._publisher.publish(
            destination, payload, attributes or {}, now=now, lifetime_us=lifetime_us, label=label,
            persistent=persistent, priority=priority, ordering=ordering, prepare=self._order.prepare,
        )  # fmt: skip
        self._desk.events.append(Published(copy.descriptor))
        if ordering:
            self._order.published(copy, now)
            self._desk.keep(copy)
        elif self._deliveries.deliver(copy):
            self._desk.keep(copy)
        self._exchange.gained(now, own=True)
        self._settle(now)
        return copy.id

    def subscribe(
        self, pattern: str | Mapping[str, str], selector: str | None = None, *, ordered: bool = False, now: int
    ) -> int:
        """Want what matches, from now on and of what is here; returns the subscription's number.

        `ordered`: the messages have an order. Then all of the destination are taken, and only at delivery is looked
        at what else the pattern asks for: what is not taken would be waited for by those that follow it.
        """
        self._require_start()
        self._expire(now)
        asked = entry(pattern, selector)
        taken = whole_destination(asked) if ordered else asked
        number = self._deliveries.subscribe(taken, asked)
        self._interests_changed((taken,), now)
        return number

    def unsubscribe(self, subscriptions: int | Collection[int], now: int) -> None:
        """Want it no longer, one or several together: all of them, or none if one does not exist."""
        numbers = (subscriptions,) if isinstance(subscriptions, int) else subscriptions
        self._interests_changed(self._deliveries.unsubscribe(numbers), now)

    def asking(self, descriptor: Descriptor) -> tuple[int, ...]:
        """The subscriptions that ask for a message, ascending."""
        return self._deliveries.subscriptions.asking(descriptor)

    def confirm(self, deliveries: Iterable[Delivery | MessageId], now: int) -> None:
        """The consumer has them, named by themselves or by their ids; told back by `Confirmed` once that is durable."""
        self._expire(now)
        self._deliveries.confirm(tuple([each.message if isinstance(each, Delivery) else each for each in deliveries]))
        if self._desk.cache.loosened:
            self._exchange.room_appeared(now)

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

    def receive(self, frames: Sequence[fr.Frame], peer: str, now: int, *, nbytes: int = 0) -> bool:
        """Frames from one link address; `nbytes`: what came over the link for them, to be charged to it.

        False: they said nothing new, and there is nothing to do.
        """
        if not self._ready:
            return False
        desk = self._desk
        if self._expire(now):
            self._settle(now)
        accounts = self._dispatch.accounts
        link = desk.links.get(peer)
        if not accounts.listens(peer, now, neighbour=link is not None and link.state is LINKED):
            desk.refuse_many("muted", peer, len(frames))
            return False
        if link is not None:
            if not link.budgets.volume.take(len(frames), nbytes, now):
                desk.refuse_many("link-budget", peer, len(frames))
                accounts.settle(peer, FRAME * len(frames), now)
                return False
            first = frames[0] if len(frames) == 1 else None
            if isinstance(first, fr.Announce) and link.repeats(first, desk.prefix, now):
                return False
        if not self._dispatch.take(link, frames, peer, now):
            return False
        link = desk.links.get(peer)
        if link is not None and link.state is LINKED:
            link.heard(now)
        self._settle(now, link)
        if link is not None:
            self._neighbours.wake_for(link)
        return True

    def listens(self, peer: str, now: int) -> bool:
        """Whether a datagram from a link address is worth decoding; else the driver drops it unread."""
        link = self._desk.links.get(peer)
        return self._dispatch.accounts.listens(peer, now, neighbour=link is not None and link.state is LINKED)

    def muted_until(self, peer: str) -> int:
        """Until when an address is not listened to, because it caused too much work for nothing."""
        return self._dispatch.accounts.muted_us(peer)

    def refused(self, reasons: Mapping[str, int], peer: str, now: int, *, nbytes: int = 0) -> None:
        """What the driver could not read of what came from a link address, by reason (`codec.Decoded.refused`)."""
        cost = nbytes // _UNREAD_BYTES
        for reason, count in reasons.items():
            self._desk.refuse_many(reason, peer, count)
            cost += FRAME * count
        self._dispatch.accounts.settle(peer, cost, now)

    def link(self, peer: str, up: bool, now: int) -> None:
        """A contact that the driver knows of begins or ends."""
        self._expire(now)
        self._neighbours.told(peer, up=up, now=now)
        link = self._desk.links.get(peer)
        self._settle(now, link)
        if link is not None:
            self._neighbours.wake_for(link)

    def tick(self, now: int) -> bool:
        """Do what is due, if anything is. False: at most an announcement came of it; nothing else is to be taken."""
        desk, recovery = self._desk, self._recovery
        if self._expire(now):
            self._settle(now)
        if recovery.notes_us <= now or recovery.relief_us <= now:
            recovery.tick(now)
            self._order.write_again()
            self._settle(now)
        if not self._ready:
            return True
        if desk.wake_us <= now:
            self._neighbours.look_ahead()  # What was due may have come to pass meanwhile.
        if desk.wake_us <= now:
            self._neighbours.tick(now)
            self._exchange.tick(now)
            self._settle(now)
            self._neighbours.look_ahead()
        more, neighbours = self.busy, self._neighbours
        if neighbours.beacon.due_us <= now:
            neighbours.announce(now)
            if desk.settings.paper_mode:
                self._exchange.announced(now)
                self._settle(now)
                more = True
            if desk.wake_us < neighbours.beacon.due_us:
                neighbours.look_ahead()  # Else what is no longer due would wake it before the next announcement.
        return more

    def next_deadline(self) -> int | None:
        """When the next tick is due."""
        desk, recovery = self._desk, self._recovery
        due = self._deadlines.due_us
        if self._order.due_us < due:
            due = self._order.due_us
        if self._ready:
            if desk.wake_us < due:
                due = desk.wake_us
            if self._neighbours.beacon.due_us < due:
                due = self._neighbours.beacon.due_us
        if recovery.notes_us < due:
            due = recovery.notes_us
        if recovery.relief_us < due:
            due = recovery.relief_us
        return None if due >= NEVER else due

    @property
    def busy(self) -> bool:
        """Whether there is anything to take: changes, what is to be sent, events."""
        desk = self._desk
        journal = desk.journal
        return bool(desk.outgoing or desk.events or journal.puts or journal.deletes or desk.refusals)

    def durable(self, serial: int, now: int) -> None:
        """The batch is on disk."""
        self._expire(now)  # What expired while its batch was written is not delivered any more.
        self._order.durable(serial)
        self._desk.journal.durable(serial)
        if self._desk.journal.permitted and self._publisher.permitted(self._deliveries.unconfirmed):
            self._exchange.gained(now, own=True)
            self._settle(now)
        if serial in self._first_batches and not self._ready:
            self._ready = self._desk.ready = True
            self._neighbours.start(self._desk.incarnation, now)
            self._neighbours.look_ahead()

    def lost(self, serial: int, reason: str, now: int) -> None:
        """The batch could not be written."""
        self._expire(now)
        self._recovery.lost(serial, reason, now, self._order.lost(serial))
        self._settle(now)
        self._neighbours.look_ahead()

    def clock_stepped(self, delta_us: int) -> None:
        """The clock was set forward by so much: that much silence was not silence."""
        self._neighbours.clock_stepped(delta_us)
        self._neighbours.look_ahead()

    # --- what it wants -------------------------------------------------------------------------------------

    def changes(self) -> Batch | None:
        """What is to be stored; None if nothing."""
        journal = self._desk.journal
        if not (journal.puts or journal.deletes):
            return None
        registries = self._order.write()
        batch = journal.take()
        if batch is not None and registries:
            self._order.written(batch.serial, registries)
        if batch is not None and not self._ready and keys.INCARNATION in batch.puts:
            self._first_batches.add(batch.serial)
        return batch

    def outgoing(self) -> list[fr.Transmission]:
        """What is to be sent."""
        taken = self._desk.outgoing
        if not taken:
            return []
        self._desk.outgoing = []
        return taken if len(taken) == 1 else fr.joined(taken)

    def events(self) -> list[Event]:
        """What happened."""
        desk = self._desk
        return desk.take_events() if desk.events or desk.refusals else []

    # --- joints --------------------------------------------------------------------------------------------

    def _require_start(self) -> None:
        if not self._started:
            raise StateError("start or restore the host first")

    def _interests_changed(self, entries: Sequence[Entry], now: int) -> None:
        self._exchange.interests_changed(entries)
        if self._ready:
            self._neighbours.interests_changed(now)
        self._settle(now)
        self._neighbours.look_ahead()

    def _expire(self, now: int) -> bool:
        """The begin of every step: deadlines. Whether `_settle` has to follow."""
        desk, changed = self._desk, False
        desk.now_us = now
        if self._deadlines.due_us <= now:
            # Of all that a step may end with, only what was on its way to somebody can have changed.
            changed = desk.expire_due(now) and bool(desk.sending)
            if desk.cache.loosened:
                self._exchange.room_appeared(now)
        if self._order.due_us <= now:
            self._order.expire(now)
            changed = True
        return changed

    def _settle(self, now: int, link: Link | None = None) -> None:
        """The end of every step: answer, acknowledge, offer, send; tell what happened. `link`: whom it was with."""
        desk = self._desk
        if self._receptions.untold:
            self._receptions.tell()
            self._exchange.gained(now)
        if desk.grown:
            desk.grown = False
            self._exchange.gained(now, partial=True)
        if self._order.unsettled:
            self._order.settle()
        if desk.cache.changed:
            desk.sweep()
        if self._deliveries.burst:
            self._deliveries.flush()
        if self._ready:
            if self._neighbours.lacking:
                self._neighbours.ask_profiles(now)
            self._exchange.settle(now, link)
