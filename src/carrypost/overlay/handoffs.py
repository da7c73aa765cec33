"""Handoffs: seats that move between this broker and others, and the requests of the clients whose seats these are."""

# `overlay.relocation` decides the actions of both sides of a handoff (OVERLAY §2.4, step 3); this
# module performs them.
#
# The source. A row (H) in the batch of the message with the state records that it was sent: from
# then on the seat never works again. If that batch is lost, neither happened, and the seat stays.
# The copy of the seat is dropped when its consumer leaves, because the new seat counts. The broker
# that a seat moved to is remembered for the lease of a client (G). A consumer that does not know
# it, since it crashed before that was on disk, is informed again, and gets no second seat here.
#
# The destination. A broker that is offered a seat lists the client, so that events come, and keeps
# these. When the state comes, the seat continues where it stopped. It is stored in one batch with a
# row (D) as long as the consumer has not confirmed it: after a restart the broker sends `Attached`
# again.
#
# Adoption. The state also comes from the consumer itself, as the payload of its `Attach`, if its
# home is lost. It counts if it is of the epoch that this `Attach` names. The consumer is answered
# once the seat is durable, and again whenever it asks again.
#
# `Attach` of a consumer is more than a request: an active one confirms the seat that it names by
# its epoch, and one by which it leaves ends a seat that does not count any more. So requests of
# clients pass here on their way to the table.

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, cast

import msgspec

from carrypost.log.events import Reason
from carrypost.model.headers import ORIGIN_BYTES_MAX
from carrypost.model.ids import MessageId, NodeId
from carrypost.model.times import NEVER
from carrypost.overlay import items
from carrypost.overlay.clients import ACCEPTED, Refusal
from carrypost.overlay.events import DOWNSTREAM, LOAD, NEARER, UPSTREAM, Relocated
from carrypost.overlay.lanes import name_of
from carrypost.overlay.relocation import (
    VARIANTS,
    Action,
    Actions,
    Destination,
    DestinationInput,
    DestinationState,
    HandoffId,
    Source,
    SourceInput,
    SourceState,
    packed,
    unpacked,
)
from carrypost.overlay.tables import Client
from carrypost.security.identity import check_origin

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from carrypost.application.ledger import KnownRows, Ledger
    from carrypost.gossip.holdings.copies import Copy
    from carrypost.gossip.transfers.link import HostContext
    from carrypost.gossip.wire.pieces import Blank
    from carrypost.overlay.clients import ClientManager
    from carrypost.overlay.items import Outbox, Reader
    from carrypost.overlay.legs import Detours
    from carrypost.overlay.relocation import Snapshot
    from carrypost.overlay.seats import Seats
    from carrypost.overlay.topology import Topology

SENT, GONE, CAME = FAMILIES = b"H", b"G", b"D"
"""First bytes of the names of rows: seats whose state was sent, that moved away, and that came."""
HORIZONTAL = "horizontal"
"""Operation: the seat goes to another broker because of its consumer, or of the work that it makes."""
OPERATIONS: Mapping[items.MoveReason, str] = {
    NEARER: HORIZONTAL, LOAD: HORIZONTAL, UPSTREAM: UPSTREAM, DOWNSTREAM: DOWNSTREAM
}  # fmt: skip
"""Operations by the reasons for them."""
_REFUSED_US = 60_000_000
"""Time for which a broker that refused a seat, or did not answer, is offered none."""
_SETTLED = 4
"""Multiples of `handoff_s` after which the new home of a seat has informed the consumer, if it has the seat."""
MOVED, FAULT = "moved", "fault"
"""Refusals of a broker whose seat moved away, and of one that closed the seat after an error."""
_COUNTERS = 1 << 24
"""Number of relocations of one incarnation with numbers of their own."""


class _Row(msgspec.Struct, frozen=True, array_like=True):
    """A seat that moved, as it is stored."""

    h: HandoffId
    to: NodeId
    reason: items.MoveReason = NEARER
    until_us: int = 0
    """Time until which it is remembered, once the seat works elsewhere."""


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(_Row).decode


class _Leaving(msgspec.Struct, eq=False):
    """A seat that moves away."""

    source: Source
    client: Client
    reason: items.MoveReason
    size: int = 0
    """Bytes of the state."""
    message: MessageId | None = None
    """The message that has the state."""
    arrived: bool = False
    """True if the destination acknowledged that message."""
    refusal: str = ""
    """Reason why the destination refused; empty if it did not."""

    def row(self, until_us: int = 0) -> _Row:
        """Return the seat as it is stored."""
        return _Row(self.source.handoff, self.source.to, self.reason, until_us)


class _Coming(msgspec.Struct, eq=False):
    """A seat that is expected, or that its consumer has not confirmed yet."""

    destination: Destination
    client: Client


class Handoffs:
    """The handoffs of seats that one broker has a part in."""

    def __init__(
        self, context: HostContext, topology: Topology, clients: ClientManager, seats: Seats, detours: Detours,
        *, outbox: Outbox, rows: KnownRows, ledger: Ledger,
    ) -> None:  # fmt: skip
        self._node, self._holdings, self._outputs = context.node, context.holdings, context.outputs
        self._settings, self._limits, self._signed = context.settings.overlay, context.limits, context.identity.signed
        self._topology, self._clients, self._seats, self._detours = topology, clients, seats, detours
        self._outbox, self._rows, self._ledger = outbox, rows, ledger
        self._leaving: dict[bytes, _Leaving] = {}
        """Seats that leave, by digest of the client; at most `handoffs_max`."""
        self._coming: dict[bytes, _Coming] = {}
        """Seats that come, by digest of the client; at most `handoffs_max` expected ones, and one for each seat."""
        self._gone: dict[bytes, _Row] = {}
        """Seats that moved away, the latest last; at most `clients_max`."""
        self._refused: dict[NodeId, int] = {}
        """Brokers that are offered no seats, and until when."""
        self._incarnation = self._counter = 0
        self._lease_us, self._settled_us = topology.lease_us, round(_SETTLED * self._settings.handoff_s * 1e6)

    # --- an earlier incarnation ----------------------------------------------------------------------------

    def restore(self, name: bytes, value: bytes) -> None:
        """Restore a row after a restart; clients and seats are restored already."""
        family, digest, row, now = name[:1], name[1:], _decode(value), self._holdings.now_us
        if family == GONE:
            self._gone[digest] = row
            return
        self._rows.restore(name, value)
        client = self._clients.table.by_digest(digest)
        has_seat = client is not None and self._seats.at(client) is not None
        if client is not None and has_seat and family == SENT:
            source = Source(row.h, row.to, VARIANTS[client.item.relocation], self._settings, now, moved=True)
            self._leaving[digest] = _Leaving(source, client, row.reason)
            self._seats.suspend(client)
        elif family == SENT:  # Its modulator is not registered any more.
            self._gone[digest] = msgspec.structs.replace(row, until_us=now + self._lease_us)
        elif client is None:
            self._rows.delete(name)
        else:
            self._coming[digest] = _Coming(Destination(row.h, self._settings, now, seated=True), client)

    def start(self, incarnation: int, now: int) -> None:
        """Resume handoffs that a restart interrupted."""
        self._incarnation, self._counter = incarnation, incarnation * _COUNTERS
        for leaving in list(self._leaving.values()):
            self._leave(leaving, leaving.source.handle(SourceInput.RESTART, now))
        for coming in list(self._coming.values()):
            self._come(coming, coming.destination.handle(DestinationInput.RESTART, now))

    # --- clients -------------------------------------------------------------------------------------------

    def attach(self, item: items.Attach, copy: Copy, now: int) -> bool | Reader:
        """Process the request of a client; return False if a state is missing, or comes with a request without one.

        Returns a function that reads the state, if there is one and it counts.
        """
        descriptor = copy.descriptor
        if item.adopts != bool(descriptor.size):
            return False
        # A message with a state lives shorter than the lease, and `Handoff` could not pass it on.
        ends_us = descriptor.created_us + self._lease_us if item.adopts else descriptor.ends_us
        fits = not item.adopts and descriptor.wire_bytes <= ORIGIN_BYTES_MAX
        order, until_us = (descriptor.incarnation, descriptor.sequence), self._holdings.own_time(ends_us)
        client = Client(descriptor.node, item, order, until_us, descriptor.wire if fits else b"")
        return partial(self._adopt, client) if self._enter(client, now) else True

    def attach_own(self, item: items.Attach, payload: bytes, now: int) -> None:
        """Process the request of a client of this node."""
        client = Client(self._node, item, (self._incarnation, now), now + self._lease_us)
        if self._enter(client, now):
            self._adopt(client, payload)

    def _enter(self, client: Client, now: int) -> bool:
        """Enter a client, or let it leave, and answer it; return True if its seat begins with a state that it sends."""
        confirms = False
        if client.item.role is items.Role.CONSUMER and self._clients.is_news(client):
            if self._redirect(client, now):
                return False
            confirms = self._follow(client, now)
        refusal = self._clients.attach(client, now)
        if refusal is not None and not (confirms and refusal is ACCEPTED):
            self._clients.answer(client, refusal)
        return refusal is ACCEPTED and client.item.adopts

    def _adopt(self, client: Client, payload: bytes | Blank) -> bool:
        """Begin a seat with the state that its consumer sent; return False if it does not expect that."""
        snapshot, item = unpacked(payload, self._limits, signed=self._signed), client.item
        seat = self._seats.find(client)
        expects = seat is not None and seat.client.item.adopts and seat.client.item.epoch == item.epoch
        if not expects or snapshot.epoch != item.epoch or snapshot.runs:
            return False
        self._seats.adopt(client, snapshot)
        self._outbox.add(client.node, items.Attached(item.role, item.channel, item.subscription, epoch=item.epoch))
        return True

    def _redirect(self, client: Client, now: int, *, arrived: bool = True) -> bool:
        """Inform a consumer that asks for a seat that moved away of its place; return False if it did not move.

        The new home informs the consumer, too. If it has not done so after a while, or the state has not `arrived`
        there, it does not have the seat.
        """
        leaving, gone, item = self._leaving.get(client.digest), self._gone.get(client.digest), client.item
        if leaving is not None and leaving.source.state is SourceState.MOVED:
            row, fresh = leaving.row(), True
        elif gone is not None:
            row, fresh = gone, arrived and gone.until_us > now + self._lease_us - self._settled_us
        else:
            return False
        # A higher epoch shows that the consumer knows of a later seat, wherever that is: this
        # record of the move is out of date.
        if not item.active or item.epoch > row.h.epoch:
            return False
        if fresh:
            self._outbox.add(client.node, items.Moving(item.channel, item.subscription, item.epoch, row.to, row.reason))
        else:
            self._disown(client)
        return True

    def _follow(self, client: Client, now: int) -> bool:
        """Apply a consumer's request to the handoff of its seat: it left, has a seat elsewhere, or confirms this one.

        Returns True if it confirms a seat that came: that needs no answer.
        """
        item, leaving, coming = client.item, self._leaving.get(client.digest), self._coming.get(client.digest)
        if leaving is not None:
            source = leaving.source
            if not item.active or item.epoch > source.handoff.epoch:
                if item.epoch == source.handoff.epoch + 1 and source.state is SourceState.MOVED:
                    self._report(leaving, now)
                if not self._leave(leaving, source.handle(SourceInput.ELSEWHERE, now)):
                    self._stay(leaving)
            elif item.modulator != leaving.client.item.modulator:
                self._stay(leaving)  # The destination has the modulator that it was offered.
            else:
                leaving.client = client
        if coming is None:
            return False
        destination, epoch = coming.destination, coming.destination.handoff.epoch + 1
        if not item.active or item.epoch > epoch:
            self._come(coming, destination.handle(DestinationInput.ELSEWHERE, now))
        elif item.epoch == epoch:
            coming.client = client
            return self._come(coming, destination.handle(DestinationInput.CONFIRMED, now))
        return False

    def _forget_failed(self, client: Client, fault: str) -> None:
        """Forget the client of a seat that failed, and inform it: it attaches elsewhere, or again."""
        if self._leaving.pop(client.digest, None) is not None:
            self._rows.delete(SENT + client.digest)
        self._drop(client)
        self._clients.forget(client, self._holdings.now_us)
        self._clients.answer(client, Refusal(FAULT, fault))

    def _disown(self, client: Client) -> None:
        """Inform a consumer that its seat is not here, and perhaps nowhere: it has another broker adopt it."""
        self._clients.answer(client, Refusal(MOVED))

    # --- seats that leave ----------------------------------------------------------------------------------

    def migrate(self, consumer: tuple[NodeId, str, int], to: NodeId, reason: items.MoveReason, now: int) -> bool:
        """Begin to move the seat of a consumer (node, channel, subscription). Returns False if it stays for now."""
        node, channel, subscription = consumer
        client = self._clients.table.at(node, items.Role.CONSUMER, channel, subscription)
        seat = None if client is None else self._seats.find(client)
        if client is None or seat is None or not client.seated:
            return False
        # A seat that its consumer has not confirmed stays, and so does one that moves already.
        busy = client.digest in self._leaving or client.digest in self._coming
        # A broker that refused is left alone for a while. The reasons for a move persist, and it
        # would be asked again at every look.
        fits = to != self._node and to in self._topology.brokers and self._refused.get(to, 0) <= now
        # Without the consumer's own signed `Attach` the destination could not distinguish a real
        # offer from a forged one, so that such a seat stays. One that has not settled would take an
        # unfinished state along.
        full = len(self._leaving) >= self._limits.handoffs_max
        if busy or full or not fits or not client.origin or not seat.is_settled:
            return False
        self._counter += 1
        h, variant = HandoffId(self._node, seat.row.epoch, self._counter), VARIANTS[client.item.relocation]
        source = Source(h, to, variant, self._settings, now)
        leaving = self._leaving[client.digest] = _Leaving(source, client, reason)
        self._seats.monitor.leave(name_of(client))
        self._leave(leaving, source.handle(SourceInput.MIGRATE, now))
        return True

    def answered(self, item: items.Ready | items.Detoured, author: NodeId, now: int) -> bool:
        """Process an answer of the destination, or of a home; return False if it does not count."""
        leaving = next((each for each in self._leaving.values() if each.source.handoff == item.h), None)
        if leaving is None:
            return False
        source, last = leaving.source, {NodeId(each): number for each, number in item.last or ()}
        if isinstance(item, items.Detoured):
            actions = source.detoured(author, last, now)
        elif item.refusal:
            leaving.refusal = item.refusal
            actions = source.answered(author, SourceInput.REFUSED, now)
        else:
            producing = self._topology.producing(leaving.client.item.channel)
            homes = [each for each in producing if self._topology.can_reach(each)]
            actions = source.ready(author, homes, now, None if item.last is None else last)
        return self._leave(leaving, actions)

    def _return(self, client: Client, now: int) -> None:
        """Forget a seat that is offered here again: the broker that it moved to had it, though its consumer is late.

        Otherwise its leaving, or the end of waiting for it, would end the seat that comes.
        """
        leaving = self._leaving.get(client.digest)
        if leaving is not None and leaving.source.state is SourceState.MOVED:
            self._report(leaving, now)
            self._forget(leaving, now)
            del self._leaving[client.digest]
        elif leaving is not None:
            self._stay(leaving)

    def _stay(self, leaving: _Leaving) -> None:
        self._leave(leaving, leaving.source.handle(SourceInput.DESTINATION_LOST, self._holdings.now_us))

    def _report(self, leaving: _Leaving, now: int) -> None:
        seat, client = self._seats.find(leaving.client), leaving.client
        pause_us = now - seat.spoke_us if seat is not None and seat.spoke_us else 0
        fields = client.node, client.item.channel, client.item.subscription, leaving.source.to
        self._outputs.emit(Relocated(*fields, OPERATIONS[leaving.reason], leaving.size, pause_us))

    def lost(self, broker: NodeId) -> None:
        """Note that a broker cannot be reached any more."""
        for leaving in list(self._leaving.values()):
            self._leave(leaving, leaving.source.lost(broker, self._holdings.now_us))

    def work(self, now: int) -> None:
        """Send the states of seats that processed their last events, and forget seats that failed."""
        for leaving in list(self._leaving.values()) if self._leaving else ():
            seat = self._seats.at(leaving.client) if leaving.source.state is SourceState.DRAINING else None
            if seat is not None:
                self._leave(leaving, leaving.source.worked(cast("Mapping[NodeId, int]", seat.row.cursors), now))
        while self._seats.failures:
            self._forget_failed(*self._seats.failures.pop(0))

    def _leave(self, leaving: _Leaving, actions: Actions | None) -> bool:
        """Perform the actions of the source; return False if its table does not list the input."""
        source, client, outbox, load = leaving.source, leaving.client, self._outbox, self._seats.monitor
        h, to, item = source.handoff, source.to, client.item
        for action in actions or ():
            if action is Action.HANDOFF:
                work = load.work(name_of(client))
                offer = items.Handoff(h, work, load.percent(work))
                outbox.add(to, offer, origin=client.origin)
            elif action is Action.MOVING:
                outbox.add(client.node, items.Moving(item.channel, item.subscription, h.epoch, to, leaving.reason))
            elif action is Action.DETOUR:
                outbox.broadcast(sorted(source.waiting), items.Detour(h, item.channel, to))
            elif action is Action.DETOUR_BACK:
                outbox.broadcast(sorted({*source.homes, to}), items.Detour(h, item.channel, self._node))
            else:
                self._change(leaving, action)
        if source.is_over:
            self._leaving.pop(client.digest, None)
            if source.state is SourceState.SEATED:
                load.leave(name_of(client), stays=True)
                if (seat := self._seats.find(client)) is not None:
                    seat.stops = None
        return actions is not None

    def _change(self, leaving: _Leaving, action: Action) -> None:
        """Change a seat that leaves."""
        now, source, seat = self._holdings.now_us, leaving.source, self._seats.find(leaving.client)
        if action is Action.NOTE_REFUSAL:
            self._refused = {each: until_us for each, until_us in self._refused.items() if until_us > now}
            # Loads change, and brokers exchange them with every look. Distances change sooner.
            pause_us = round(self._settings.update_s * 1e6) if leaving.refusal == LOAD else _REFUSED_US
            self._refused[source.to] = now + pause_us
        elif action is Action.STOP_AT_LAST and seat is not None:
            seat.stops = source.last
        elif action is Action.STATE:
            self._send(leaving)
        elif action is Action.SUSPEND:
            self._seats.suspend(leaving.client)
            self._clients.update_roster(now)
        elif action is Action.FORGET:
            self._forget(leaving, now)

    def _send(self, leaving: _Leaving) -> None:
        """Send the state, unless the message with it is still on its way, or arrived."""
        copy = None if leaving.message is None else self._holdings.cache.get(leaving.message)
        seat, source = self._seats.find(leaving.client), leaving.source
        if seat is None or leaving.arrived or (copy is not None and copy.here):
            return
        payload = packed(seat.snapshot(state=source.variant.state))
        leaving.size = len(payload)
        # In the batch of the message: after a crash there is either a seat that works here, or a
        # state that is on its way, never both.
        self._rows.put(SENT + leaving.client.digest, _encode(leaving.row()))
        self._outbox.add(source.to, items.State(source.handoff), payload=payload)

    def published(self, copies: Sequence[Copy]) -> None:
        """Note the messages that have states."""
        if not self._leaving:
            return
        waiting = [each for each in self._leaving.values() if each.source.state is SourceState.MOVED]
        for copy in copies if waiting else ():
            found = items.ITEMS.items_of(copy.descriptor)[0] if copy.descriptor.size else []
            for leaving in waiting:
                if found == [items.State(leaving.source.handoff)]:
                    leaving.message = copy.id

    def left(self, copies: Sequence[Copy], reason: Reason) -> None:
        """Note states that their destinations acknowledged."""
        if reason is Reason.PURGED and self._leaving:
            gone = {copy.id for copy in copies}
            for leaving in self._leaving.values():
                leaving.arrived = leaving.arrived or leaving.message in gone

    def _forget(self, leaving: _Leaving, now: int) -> None:
        """Forget the copy of a seat, and remember where it moved to."""
        digest = leaving.client.digest
        self._clients.forget(leaving.client, now)
        self._rows.delete(SENT + digest)
        self._gone.pop(digest, None)
        self._gone[digest] = leaving.row(now + self._lease_us)
        self._ledger.put(GONE + digest, _encode(self._gone[digest]))
        # The dict is in the order of time, so that the search ends with the first row that may
        # stay.
        for oldest, row in list(self._gone.items()):
            if len(self._gone) <= self._limits.clients_max and row.until_us > now:
                break
            del self._gone[oldest]
            self._ledger.delete(GONE + oldest)

    # --- seats that come -----------------------------------------------------------------------------------

    def offered(self, item: items.Handoff, copy: Copy, now: int) -> bool:
        """Process the offer of a seat; return False if it does not count. Raises `RemoteError` for a forged client."""
        descriptor = copy.descriptor
        check_origin(descriptor)
        self._prune()
        origin, author = descriptor.original, descriptor.node
        found, _ = items.items_of(origin)
        if item.h.source != author or len(found) != 1 or not isinstance(found[0], items.Attach):
            return False
        # The lease counts from the consumer's own request. A broker that passes a seat on cannot
        # prolong it.
        order, until_us = (origin.incarnation, origin.sequence), self._holdings.own_time(origin.ends_us)
        client = Client(origin.node, found[0], order, until_us, origin.wire)
        if not client.seated:
            return False
        coming = self._coming.get(client.digest)
        if coming is None or coming.destination.handoff != item.h:
            refusal = self._expect(item, client, now)
            if refusal is None:
                return True  # The source asks again, until the module is here.
            if refusal.reason:
                self._outputs.refuse("handoffs", author, descriptor.shown)
                self._outbox.add(author, items.Ready(item.h, refusal.reason))
                return True
            self._seats.monitor.expect(name_of(client), item.work, now)
            coming = self._coming[client.digest] = _Coming(Destination(item.h, self._settings, now), client)
            self._rows.delete(CAME + client.digest)
        return self._come(coming, coming.destination.handle_source(author, DestinationInput.HANDOFF, now))

    def _expect(self, item: items.Handoff, client: Client, now: int) -> Refusal | None:
        """List the client of a seat that is offered, unless it is refused; return None if its module has to come."""
        if (refusal := self._refusal(item, client, now)) is not None:
            return refusal
        # The seat may have left from here a moment ago. Its old copy must be gone before the new
        # one comes.
        self._return(client, now)
        return self._clients.expect(client, now)

    def _refusal(self, item: items.Handoff, client: Client, now: int) -> Refusal | None:
        """Return why a seat is refused, apart from room for its client; None if it is not.

        A broker could offer a seat by an `Attach` that is not the latest one. A seat that works is left alone then.
        """
        before, seat = self._clients.table.get(client), self._seats.find(client)
        works = seat is not None and not seat.suspended and not seat.awaits_state
        newer = before is None or client.order > before.order or (client.order == before.order and not works)
        if client.until_us <= now or not newer or (seat is not None and seat.row.epoch > item.h.epoch):
            return Refusal("old")
        expected = sum(each.destination.state is DestinationState.EXPECTING for each in self._coming.values())
        if expected >= self._limits.handoffs_max:
            return Refusal("handoffs")
        return Refusal(LOAD) if self._seats.monitor.refuses(item) else None

    def _find(self, h: HandoffId) -> _Coming | None:
        self._prune()
        return next((each for each in self._coming.values() if each.destination.handoff == h), None)

    def detour(self, item: items.Detour, author: NodeId, now: int) -> bool:
        """Begin or end a detour, and forget a seat that stays at its source; return False if that does not count."""
        answers = self._detours.asked(item, author, self._clients.last_events.of(item.channel), now)
        for answer in answers or ():
            self._outbox.add(author, answer)
        coming = self._find(item.h) if item.to == author else None
        if coming is None:
            return answers is not None
        return self._come(coming, coming.destination.handle_source(author, DestinationInput.DETOUR_BACK, now))

    def state(self, item: items.State, copy: Copy, now: int) -> bool | Reader:
        """Process the state of a seat: return a function that reads it, False if it does not count."""
        coming, author = self._find(item.h), copy.descriptor.node
        if coming is None or author != item.h.source:
            return False
        if coming.destination.state is DestinationState.EXPECTING:
            return partial(self._load, item.h)
        return self._come(coming, coming.destination.handle_source(author, DestinationInput.STATE, now))

    def _load(self, h: HandoffId, payload: bytes | Blank) -> bool:
        coming, snapshot = self._find(h), unpacked(payload, self._limits, signed=self._signed)
        # Only a settled seat moves, so that an honest source sends no repeats.
        if coming is None or snapshot.epoch != h.epoch or snapshot.repeats:
            return False
        actions = coming.destination.handle_source(h.source, DestinationInput.STATE, self._holdings.now_us)
        return self._come(coming, actions, snapshot)

    def _come(self, coming: _Coming, actions: Actions | None, snapshot: Snapshot | None = None) -> bool:
        """Perform the actions of the destination; return False if its table does not list the input."""
        destination, client = coming.destination, coming.client
        h, item = destination.handoff, client.item
        for action in actions or ():
            if action is Action.READY:
                self._outbox.add(h.source, items.Ready(h, last=self._seats.last_events(client)))
            elif action is Action.LOAD and snapshot is not None:
                self._seats.load(client, snapshot, h.epoch + 1, VARIANTS[item.relocation])
                self._clients.keep(client)
            elif action is Action.ATTACHED:
                name = CAME + client.digest
                if self._rows.get(name) is None:  # In the batch of the item about it.
                    self._rows.put(name, _encode(_Row(h, self._node)))
                    self._seats.write(client)
                homed = items.Attached(item.role, item.channel, item.subscription, epoch=h.epoch + 1)
                self._outbox.add(client.node, homed)
            elif action is Action.FORGET:
                self._clients.forget(client, self._holdings.now_us)
        if destination.is_over:
            self._drop(client)
        return actions is not None

    def _drop(self, client: Client) -> None:
        """Forget that a seat came: its consumer has confirmed it, or it ended, or is elsewhere."""
        if self._coming.pop(client.digest, None) is not None:
            self._rows.delete(CAME + client.digest)

    def _prune(self) -> None:
        """Forget seats that ended."""
        table = self._clients.table
        for coming in [each for each in self._coming.values() if table.get(each.client) is None]:
            self._drop(coming.client)

    # --- time ----------------------------------------------------------------------------------------------

    @property
    def due_us(self) -> int:
        """Time at which `expire` has something to do."""
        if not self._leaving and not self._coming:
            return NEVER
        leaving = [each.source.due_us for each in self._leaving.values()]
        return min(leaving + [each.destination.due_us for each in self._coming.values()])

    def expire(self, now: int) -> None:
        """End states that lasted too long, and repeat unanswered items; forget seats that ended."""
        self._leaving = {
            digest: each for digest, each in self._leaving.items() if self._seats.at(each.client) is not None
        }
        for leaving in list(self._leaving.values()):
            was_moved = leaving.source.state is SourceState.MOVED
            self._leave(leaving, leaving.source.expire(now))
            if was_moved and leaving.source.state is SourceState.GONE:
                self._redirect(leaving.client, now, arrived=leaving.arrived)
        self._prune()
        for coming in list(self._coming.values()):
            self._come(coming, coming.destination.expire(now))
