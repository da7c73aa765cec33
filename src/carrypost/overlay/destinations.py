"""Destinations: seats that move to this broker (OVERLAY §2.4, step 3).

`relocation.Destination` decides the actions; this module performs them. A broker that is offered a seat lists the
client, so that events come, and keeps these. When the state comes, the seat continues where it stopped. It is stored in
one batch with a row (D) as long as the consumer has not confirmed it: after a restart the broker sends `Homed` again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from carrypost.model.times import NEVER
from carrypost.overlay.clients import ACCEPTED, Refusal
from carrypost.overlay.events import LOAD
from carrypost.overlay.items import Abort, Attach, Handoff, Homed, Ready, Role, Seated, State, items_of
from carrypost.overlay.lanes import name_of
from carrypost.overlay.relocation import (
    VARIANTS,
    Action,
    Actions,
    Destination,
    DestinationInput,
    DestinationState,
    HandoffId,
)
from carrypost.overlay.snapshot import unpacked
from carrypost.overlay.tables import Client
from carrypost.security.origins import check_origin

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from carrypost.gossip.holdings.copies import Copy
    from carrypost.gossip.transfers.host_context import HostContext
    from carrypost.gossip.wire.pieces import Blank
    from carrypost.model.ids import NodeId
    from carrypost.overlay.clients import ClientManager
    from carrypost.overlay.exchanges import Exchanges
    from carrypost.overlay.items import ItemOutbox, MoveReason
    from carrypost.overlay.notices import NearestBroker
    from carrypost.overlay.rows import RevertingRows
    from carrypost.overlay.seats import Seats
    from carrypost.overlay.snapshot import Snapshot
    from carrypost.overlay.sources import Sources

FAMILY = b"D"
"""First byte of the names of rows."""
_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(HandoffId).decode


class _Move(msgspec.Struct, eq=False):
    """A seat that comes, or came."""

    destination: Destination
    client: Client


class Destinations:
    """Seats that move to one broker."""

    def __init__(
        self,
        context: HostContext,
        clients: ClientManager,
        seats: Seats,
        sources: Sources,
        outbox: ItemOutbox,
        *,
        exchanges: Exchanges,
        rows: RevertingRows,
    ) -> None:
        self._holdings, self._outputs, self._limits = context.holdings, context.outputs, context.limits
        self._settings, self._rows, self._signed = context.settings.overlay, rows, context.identity.signed
        self._clients, self._seats, self._sources, self._outbox = clients, seats, sources, outbox
        self._exchanges = exchanges
        self._moves: dict[bytes, _Move] = {}
        """Moves by digest of the client; at most `handoffs_max` expected ones, and one for each seat."""

    # --- an earlier life -----------------------------------------------------------------------------------

    def restore(self, name: bytes, value: bytes, now: int) -> None:
        """Restore a row after a restart; clients and seats are restored already."""
        self._rows.restore(name, value)
        client = self._clients.table.by_digest(name[1:])
        if client is None:
            self._rows.delete(name)
        else:
            destination = Destination(_decode(value), self._settings, now, seated=True)
            self._moves[name[1:]] = _Move(destination, client)

    def start(self, now: int) -> None:
        """Resume the moves after a restart."""
        for move in list(self._moves.values()):
            self._act(move, move.destination.handle(DestinationInput.RESTART, now))

    # --- clients -------------------------------------------------------------------------------------------

    def is_confirmed(self, client: Client) -> bool:
        """Return True if the consumer knows the seat, so that it may move on."""
        move = self._moves.get(client.digest)
        return move is None or move.destination.state is DestinationState.CONFIRMED

    def attached(self, client: Client, now: int) -> bool:
        """Apply the consumer's latest request: it left, has a seat elsewhere, or confirms its seat here.

        Returns True if it confirms a seat that was not confirmed before: that needs no answer.
        """
        move = self._moves.get(client.digest)
        if move is None:
            return False
        epoch = move.destination.handoff.epoch + 1
        if client.active and client.item.epoch == epoch:
            move.client, seated = client, move.destination.state is DestinationState.SEATED
            if move.destination.handle(DestinationInput.CONFIRMED, now) is not None:
                self._rows.delete(FAMILY + client.digest)
            return seated
        if not client.active or client.item.epoch > epoch:
            if move.destination.state is DestinationState.EXPECTING:
                self._clients.forget(move.client, now)
            self.forget(client)
        return False

    def send_on(self, client: Client, to: NodeId, reason: MoveReason, now: int, gain: float = 0.0) -> bool:
        """Begin to move a seat, if its consumer has confirmed it. Returns False if it stays for now."""
        return self.is_confirmed(client) and self._sources.migrate(client, to, reason, now, gain)

    def forget(self, client: Client) -> None:
        """Forget a seat that ended, or is elsewhere."""
        if self._moves.pop(client.digest, None) is not None:
            self._rows.delete(FAMILY + client.digest)

    # --- relocations ---------------------------------------------------------------------------------------

    def offered(self, item: Handoff, copy: Copy, now: int) -> bool:
        """Process the offer of a seat; return False if it does not count. Raises `RemoteError` for a forged client."""
        descriptor = copy.descriptor
        check_origin(descriptor)
        self._prune()
        origin, author = descriptor.original, descriptor.node
        items, _ = items_of(origin)
        if item.h.source != author or len(items) != 1 or not isinstance(items[0], Attach):
            return False
        # The lease counts from the consumer's own request. A broker that passes a seat on cannot
        # prolong it.
        order, until_us = (origin.incarnation, origin.sequence), self._holdings.own_time(origin.ends_us)
        client = Client(origin.node, items[0], order, until_us, origin.wire)
        if not client.seated:
            return False
        move = self._moves.get(client.digest)
        if move is None or move.destination.handoff != item.h:
            full = self._seats.monitor.refuses(item)
            leaving = self._exchanges.options(item, now) if full else []
            refusal = self._refusal(item, client, now) or (Refusal(LOAD) if full and not leaving else None)
            if refusal is None:
                # The seat may have left from here a moment ago. Its old copy must be gone before
                # the new one comes.
                self._sources.returned(client, now)
                refusal = self._clients.expect(client, now)
            if refusal is ACCEPTED and full and not self._make_room(leaving, now):
                self._clients.forget(client, now)
                refusal = Refusal(LOAD)
            if refusal is None:
                return True  # The source asks again, until the module is here.
            if refusal.reason:
                self._outputs.refuse("handoffs", author, descriptor.shown)
                self._outbox.add(author, Ready(item.h, refusal.reason))
                return True
            self._seats.monitor.expect(name_of(client), item.work, now)
            move = self._moves[client.digest] = _Move(Destination(item.h, self._settings, now), client)
            self._rows.delete(FAMILY + client.digest)
        return self._act(move, move.destination.handle_source(author, DestinationInput.HANDOFF, now))

    def _refusal(self, item: Handoff, client: Client, now: int) -> Refusal | None:
        """Return why a seat is refused, apart from load and room for its client; None if it is not.

        A broker could offer a seat by an `Attach` that is not the latest one. A seat that works is left alone then.
        """
        before, seat = self._clients.table.get(client), self._seats.find(client)
        works = seat is not None and not seat.suspended and not seat.awaits_state
        newer = before is None or client.order > before.order or (client.order == before.order and not works)
        if client.until_us <= now or not newer or (seat is not None and seat.row.epoch > item.h.epoch):
            return Refusal("old")
        expected = sum(each.destination.state is DestinationState.EXPECTING for each in self._moves.values())
        if expected >= self._limits.handoffs_max:
            return Refusal("handoffs")
        return None

    def _make_room(self, options: Iterable[NearestBroker], now: int) -> bool:
        """Begin the first of several moves of other seats that is possible. Returns False if none is."""
        for option in options:
            client = self._clients.table.at(option.consumer, Role.CONSUMER, option.channel, option.subscription)
            if client is not None and self.send_on(client, option.broker, LOAD, now):
                self._exchanges.begun(option)
                return True
        return False

    def _find(self, h: HandoffId) -> _Move | None:
        self._prune()
        return next((each for each in self._moves.values() if each.destination.handoff == h), None)

    def aborted(self, item: Abort, author: NodeId, now: int) -> bool:
        """Process the end of an offer; return False if it does not count."""
        move = self._find(item.h)
        return move is not None and self._act(move, move.destination.handle_source(author, DestinationInput.ABORT, now))

    def state(self, item: State, copy: Copy, now: int) -> bool | Callable[[bytes | Blank], bool]:
        """Process the state of a seat: return a function that reads it. One that was read before is answered again.

        Returns False if it does not count.
        """
        move, author = self._find(item.h), copy.descriptor.node
        if move is None or author != item.h.source:
            return False
        if move.destination.state is DestinationState.EXPECTING:
            return lambda payload: self._load(item.h, payload)
        return self._act(move, move.destination.handle_source(author, DestinationInput.STATE, now))

    def _load(self, h: HandoffId, payload: bytes | Blank) -> bool:
        move, snapshot = self._find(h), unpacked(payload, self._limits, signed=self._signed)
        # Only a settled seat moves, so that an honest source sends no repeats.
        if move is None or snapshot.epoch != h.epoch or snapshot.repeats:
            return False
        actions = move.destination.handle_source(h.source, DestinationInput.STATE, self._holdings.now_us)
        return self._act(move, actions, snapshot)

    @property
    def due_us(self) -> int:
        """Time at which `expire` has something to do."""
        return min((move.destination.due_us for move in self._moves.values()), default=NEVER)

    def expire(self, now: int) -> None:
        """End states that lasted too long, and repeat unanswered items."""
        self._prune()
        for move in list(self._moves.values()):
            self._act(move, move.destination.expire(now))

    def _prune(self) -> None:
        """Forget seats that ended."""
        table = self._clients.table
        for move in [each for each in self._moves.values() if table.get(each.client) is None]:
            self.forget(move.client)

    # --- actions -------------------------------------------------------------------------------------------

    def _act(self, move: _Move, actions: Actions | None, snapshot: Snapshot | None = None) -> bool:
        """Perform the actions of the table; return False if it does not list the input."""
        h, client, send = move.destination.handoff, move.client, self._outbox.add
        item = client.item
        for action in actions or ():
            if action is Action.READY:
                send(h.source, Ready(h, last=self._seats.last_events(client)))
            elif action is Action.LOAD and snapshot is not None:
                self._seats.load(client, snapshot, h.epoch + 1, VARIANTS[item.relocation])
                self._clients.keep(client)
            elif action in {Action.HOMED, Action.SEATED}:
                self._keep(move)
                homed = Homed(Role.CONSUMER, item.channel, item.subscription, epoch=h.epoch + 1)
                send(*((client.node, homed) if action is Action.HOMED else (h.source, Seated(h))))
            elif action is Action.FORGET:
                self._clients.forget(client, self._holdings.now_us)
                self.forget(client)
        return actions is not None

    def _keep(self, move: _Move) -> None:
        """Store the seat in the batch of the item about it, if it is not on disk yet."""
        name = FAMILY + move.client.digest
        if move.destination.state is DestinationState.SEATED and self._rows.written(name) is None:
            self._rows.put(name, _encode(move.destination.handoff))
            self._seats.write(move.client)
