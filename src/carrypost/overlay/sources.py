"""Sources: seats of this broker that move away (OVERLAY §2.4, step 3).

`relocation.Source` decides the actions; this module performs them. A row (H) in the batch of the message with the state
records that it was sent: from then on the seat never works again. If that batch is lost, neither happened, and the seat
stays. The broker that a seat moved to is remembered for the lease of a client (G). A consumer that does not know it,
since it crashed before that was on disk, is informed again, and gets no second seat here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

import msgspec

from carrypost.model.ids import MessageId, NodeId, node_prefix
from carrypost.model.times import NEVER
from carrypost.overlay.events import DOWNSTREAM, LOAD, NEARER, UPSTREAM, Relocated
from carrypost.overlay.items import (
    ITEMS,
    Abort,
    Detour,
    Detoured,
    Handoff,
    Homed,
    MoveReason,
    Moving,
    Ready,
    Seated,
    State,
)
from carrypost.overlay.lanes import name_of
from carrypost.overlay.relocation import VARIANTS, Action, Actions, HandoffId, Source, SourceInput, SourceState
from carrypost.overlay.snapshot import packed
from carrypost.overlay.tables import Client

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from carrypost.gossip.holdings.copies import Copy
    from carrypost.gossip.transfers.host_context import HostContext
    from carrypost.local.ledger import Ledger
    from carrypost.overlay.clients import ClientManager
    from carrypost.overlay.items import ItemOutbox
    from carrypost.overlay.rows import RevertingRows
    from carrypost.overlay.seats import Seats
    from carrypost.overlay.topology import Topology

FAMILY, GONE = b"H", b"G"
"""First bytes of the names of rows: seats whose state was sent, and seats that moved away."""
HORIZONTAL = "horizontal"
"""Operation: the seat goes to another broker because of its consumer, or of the work that it makes."""
OPERATIONS: Mapping[MoveReason, str] = {
    NEARER: HORIZONTAL, LOAD: HORIZONTAL, UPSTREAM: UPSTREAM, DOWNSTREAM: DOWNSTREAM
}  # fmt: skip
"""Operations by the reasons for them."""
_REFUSED_US = 60_000_000
"""Time for which a broker that refused a seat, or did not answer, is offered none."""
_SETTLED = 4
"""Multiples of `handoff_s` after which the new home of a seat has informed the consumer, if it has the seat."""
MOVED = "moved"
"""Refusal of a broker whose seat moved away."""
_COUNTERS = 1 << 24
"""Number of relocations of one life with numbers of their own."""


class _Row(msgspec.Struct, frozen=True, array_like=True):
    """A seat that moved, as it is stored."""

    h: HandoffId
    to: NodeId
    reason: MoveReason
    until_us: int = 0
    """Time until which it is remembered, once the seat works elsewhere."""


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(_Row).decode


class _Move(msgspec.Struct, eq=False):
    """A seat that moves away."""

    source: Source
    client: Client
    reason: MoveReason
    size: int = 0
    """Bytes of the state."""
    message: MessageId | None = None
    """The message that has the state."""
    refusal: str = ""
    """Reason why the destination refused; empty if it did not."""
    gain: float = 0.0
    """Hops by which paths would become shorter, if the destination has to make room."""


class Sources:
    """Seats of one broker that move away."""

    def __init__(
        self,
        context: HostContext,
        topology: Topology,
        clients: ClientManager,
        seats: Seats,
        outbox: ItemOutbox,
        *,
        rows: RevertingRows,
        ledger: Ledger,
    ) -> None:
        self._node, self._holdings, self._outputs = context.node, context.holdings, context.outputs
        self._settings, self._limits = context.settings.overlay, context.limits
        self._topology, self._clients, self._seats, self._outbox = topology, clients, seats, outbox
        self._rows, self._ledger = rows, ledger
        self._moves: dict[bytes, _Move] = {}
        """By digest of the client; at most `handoffs_max`."""
        self._gone: dict[bytes, _Row] = {}
        """Seats that moved away, the latest last; at most `clients_max`."""
        self._refused: dict[tuple[NodeId, bool], int] = {}
        """Brokers that are offered no seats, or none to make room for, and until when; at most two for each broker."""
        self._counter = 0
        self._update_us, self._discovery_us = (
            round(each * 1e6) for each in (self._settings.update_s, self._settings.discovery_s)
        )
        self._lease_us = topology.lease_us
        self._settled_us = round(_SETTLED * self._settings.handoff_s * 1e6)

    # --- an earlier life -----------------------------------------------------------------------------------

    def restore(self, name: bytes, value: bytes, now: int) -> None:
        """Restore a row after a restart; clients and seats are restored already."""
        digest, row = name[1:], _decode(value)
        if name.startswith(GONE):
            self._gone[digest] = row
            return
        self._rows.restore(name, value)
        client = self._clients.table.by_digest(digest)
        if client is None or self._seats.find(client) is None:  # Its modulator is not registered any more.
            self._gone[digest] = msgspec.structs.replace(row, until_us=now + self._lease_us)
            return
        source = Source(row.h, row.to, VARIANTS[client.item.relocation], self._settings, now, moved=True)
        self._moves[digest] = _Move(source, client, row.reason)
        self._seats.suspend(client)

    def start(self, incarnation: int, now: int) -> None:
        """Resume the moves after a restart."""
        self._counter = incarnation * _COUNTERS
        for move in list(self._moves.values()):
            self._act(move, move.source.handle(SourceInput.RESTART, now))

    # --- clients -------------------------------------------------------------------------------------------

    def has_moved(self, client: Client, now: int) -> bool:
        """Inform a consumer that asks for a seat that moved away of its place; return False if it did not move.

        The new home informs the consumer, too. If it has not done so after a while, it does not have the seat.
        """
        move, gone, item = self._moves.get(client.digest), self._gone.get(client.digest), client.item
        if move is not None and move.source.state is SourceState.MOVED:
            h, to, reason, fresh = move.source.handoff, move.source.to, move.reason, True
        elif gone is not None:
            h, to, reason, fresh = gone.h, gone.to, gone.reason, gone.until_us > now + self._lease_us - self._settled_us
        else:
            return False
        # A higher epoch shows that the consumer knows of a later seat, wherever that is: this
        # record of the move is out of date.
        if not item.active or item.epoch > h.epoch:
            return False
        if fresh:
            self._outbox.add(client.node, Moving(item.channel, item.subscription, item.epoch, to, reason))
        else:
            self._disown(client)
        return True

    def attached(self, client: Client, now: int) -> None:
        """Apply the consumer's latest request: it left, has a seat elsewhere, or wants another modulator."""
        move = self._moves.get(client.digest)
        if move is None:
            return
        if not client.active or client.item.epoch > move.source.handoff.epoch:
            if client.item.epoch == move.source.handoff.epoch + 1 and move.source.state is SourceState.MOVED:
                self._notify(move, now)  # The consumer knows of the new seat before this broker does.
            if not self._act(move, move.source.handle(SourceInput.ELSEWHERE, now)):
                self._end(move)
        elif client.item.modulator != move.client.item.modulator:
            self._end(move)  # The destination has the modulator that it was offered.
        else:
            move.client = client

    def _end(self, move: _Move) -> None:
        """Let the seat stay."""
        actions = move.source.handle(SourceInput.DESTINATION_LOST, self._holdings.now_us)
        self._act(move, actions)

    # --- relocations ---------------------------------------------------------------------------------------

    def migrate(self, client: Client, to: NodeId, reason: MoveReason, now: int, gain: float = 0.0) -> bool:
        """Begin to move a seat, which the consumer has confirmed; return False if it stays for now.

        `gain`: hops by which paths would become shorter, if the other broker has to make room.
        """
        seat = self._seats.find(client)
        busy = client.digest in self._moves or len(self._moves) >= self._limits.handoffs_max
        # A broker that refused is left alone for a while. The reasons for a move persist, and it
        # would be asked again at every look.
        fits = to != self._node and to in self._topology.brokers and self._refused.get((to, gain > 0), 0) <= now
        # Without the consumer's own signed `Attach` the destination could not distinguish a real
        # offer from a forged one, so that such a seat stays. One that has not settled would take an
        # unfinished state along.
        if busy or not fits or not client.origin or seat is None or not seat.is_settled:
            return False
        self._counter += 1
        h, variant = HandoffId(self._node, seat.row.epoch, self._counter), VARIANTS[client.item.relocation]
        move = self._moves[client.digest] = _Move(
            Source(h, to, variant, self._settings, now), client, reason, gain=gain
        )
        self._seats.monitor.leave(name_of(client))
        self._act(move, move.source.handle(SourceInput.MIGRATE, now))
        return True

    def handle_item(self, item: Ready | Detoured | Seated, author: NodeId, now: int) -> bool:
        """Process an answer of the destination, or of a home; return False if it does not count."""
        move = next((each for each in self._moves.values() if each.source.handoff == item.h), None)
        if move is None:
            return False
        source = move.source
        if isinstance(item, Detoured):
            actions = source.detoured(author, {NodeId(each): number for each, number in item.last}, now)
        elif isinstance(item, Seated):
            actions = source.answered(author, SourceInput.SEATED, now)
            if actions is not None:
                self._notify(move, now)
        elif item.refusal:
            move.refusal = item.refusal
            actions = source.answered(author, SourceInput.REFUSED, now)
        else:
            last = None if item.last is None else {NodeId(each): number for each, number in item.last}
            actions = source.ready(author, self._homes(move.client.item.channel), now, last)
        return self._act(move, actions)

    def returned(self, client: Client, now: int) -> None:
        """Forget a seat that is offered here again: the broker that it moved to had it, though `Seated` is late.

        Otherwise `Seated`, or the end of waiting for it, would end the seat that comes.
        """
        move = self._moves.get(client.digest)
        if move is not None and move.source.state is SourceState.MOVED:
            self._notify(move, now)
            self._forget(move, now)
            del self._moves[client.digest]
        elif move is not None:
            self._end(move)

    def _homes(self, channel: str) -> list[NodeId]:
        """Return the homes of a channel's producers, by the present rosters."""
        found = []
        for prefix, served in self._topology.rosters.serving(channel).items():
            info = self._topology.brokers.at(prefix)
            if served.producers and prefix == node_prefix(self._node):
                found.append(self._node)
            elif served.producers and info is not None and self._topology.can_reach(info.node):
                found.append(info.node)
        return found

    def _notify(self, move: _Move, now: int) -> None:
        seat, client = self._seats.find(move.client), move.client
        pause_us = now - seat.spoke_us if seat is not None and seat.spoke_us else 0
        fields = client.node, client.item.channel, client.item.subscription, move.source.to, OPERATIONS[move.reason]
        self._outputs.emit(Relocated(*fields, move.size, pause_us))

    def lost(self, broker: NodeId, now: int) -> None:
        """Note that a broker cannot be reached any more."""
        for move in list(self._moves.values()):
            self._act(move, move.source.lost(broker, now))

    def work(self, now: int) -> None:
        """Send the states of seats that processed their last events."""
        for move in list(self._moves.values()):
            seat = self._seats.find(move.client)
            if move.source.state is SourceState.DRAINING and seat is not None:
                self._act(move, move.source.worked(cast("Mapping[NodeId, int]", seat.row.cursors), now))

    @property
    def due_us(self) -> int:
        """Time at which `expire` has something to do."""
        return min((move.source.due_us for move in self._moves.values()), default=NEVER)

    def expire(self, now: int) -> None:
        """End states that lasted too long, and repeat unanswered items; forget seats that ended."""
        self._moves = {
            digest: move for digest, move in self._moves.items() if self._seats.find(move.client) is not None
        }
        for move in list(self._moves.values()):
            was_moved = move.source.state is SourceState.MOVED
            self._act(move, move.source.expire(now))
            if was_moved and move.source.state is SourceState.GONE:
                self._disown(move.client)

    def forget(self, client: Client) -> None:
        """Forget the move of a seat that ended. Other brokers stop to wait for it by themselves."""
        if self._moves.pop(client.digest, None) is not None:
            self._rows.delete(FAMILY + client.digest)

    def _disown(self, client: Client) -> None:
        """Inform a consumer that its seat is not here, and perhaps nowhere: it has another broker adopt it."""
        item = client.item
        self._outbox.add(client.node, Homed(item.role, item.channel, item.subscription, MOVED))

    # --- actions -------------------------------------------------------------------------------------------

    def _act(self, move: _Move, actions: Actions | None) -> bool:
        """Perform the actions of the table; return False if it does not list the input."""
        source, item, outbox, load = move.source, move.client.item, self._outbox, self._seats.monitor
        h, to = source.handoff, source.to
        for action in actions or ():
            if action is Action.HANDOFF:
                work = load.work(name_of(move.client))
                offer = Handoff(h, work, load.percent_with(work), round(100 * move.gain))
                outbox.add(to, offer, origin=move.client.origin)
            elif action is Action.MOVING:
                outbox.add(move.client.node, Moving(item.channel, item.subscription, h.epoch, to, move.reason))
            elif action is Action.DETOUR:
                outbox.broadcast(sorted(source.waiting), Detour(h, item.channel, to))
            elif action is Action.DETOUR_BACK:
                outbox.broadcast(sorted(source.homes), Detour(h, item.channel, self._node))
            elif action is Action.ABORT:
                outbox.add(to, Abort(h))
            else:
                self._change(move, action)
        if source.is_over:
            self._moves.pop(move.client.digest, None)
            if source.state is SourceState.SEATED:
                self._seats.stop_at(move.client, None)
                load.leave(name_of(move.client), stays=True)
        return actions is not None

    def _change(self, move: _Move, action: Action) -> None:
        """Change the seat. `PASS_ON` needs nothing: results are messages, which any node passes on."""
        now = self._holdings.now_us
        if action is Action.NOTE_REFUSAL:
            self._refused = {each: until_us for each, until_us in self._refused.items() if until_us > now}
            # Loads change, and brokers exchange them with every look. Distances change sooner.
            load_us = self._discovery_us if move.gain else self._update_us
            self._refused[move.source.to, move.gain > 0] = now + (load_us if move.refusal == LOAD else _REFUSED_US)
        elif action is Action.STOP_AT_LAST:
            self._seats.stop_at(move.client, move.source.last)
        elif action is Action.STATE:
            self._send(move)
        elif action is Action.SUSPEND:
            self._seats.suspend(move.client)
            self._clients.update_roster(now)
        elif action is Action.FORGET:
            self._forget(move, now)

    def _send(self, move: _Move) -> None:
        """Send the state, unless the message with it is still on its way."""
        copy = None if move.message is None else self._holdings.cache.get(move.message)
        seat, source = self._seats.find(move.client), move.source
        if seat is None or (copy is not None and copy.here):
            return
        payload = packed(seat.snapshot(state=source.variant.state))
        move.size = len(payload)
        # In the batch of the message: after a crash there is either a seat that works here, or a
        # state that is on its way, never both.
        self._rows.put(FAMILY + move.client.digest, _encode(_Row(source.handoff, source.to, move.reason)))
        self._outbox.add(source.to, State(source.handoff), payload=payload)

    def published(self, copies: Sequence[Copy]) -> None:
        """Note the messages that have states."""
        waiting = [each for each in self._moves.values() if each.source.state is SourceState.MOVED]
        for copy in copies if waiting else ():
            items = ITEMS.items_of(copy.descriptor)[0] if copy.descriptor.size else []
            for move in waiting:
                if items == [State(move.source.handoff)]:
                    move.message = copy.id

    def _forget(self, move: _Move, now: int) -> None:
        """Forget the copy of a seat, and remember where it moved to."""
        digest = move.client.digest
        self._clients.forget(move.client, now)
        self._rows.delete(FAMILY + digest)
        self._gone.pop(digest, None)
        gone = self._gone[digest] = _Row(move.source.handoff, move.source.to, move.reason, now + self._lease_us)
        self._ledger.put(GONE + digest, _encode(gone))
        # The dict is in the order of time, so that the search ends with the first row that may
        # stay.
        for oldest, row in list(self._gone.items()):
            if len(self._gone) <= self._limits.clients_max and row.until_us > now:
                break
            del self._gone[oldest]
            self._ledger.delete(GONE + oldest)

    def reverted(self, names: Iterable[bytes]) -> None:
        """Let seats stay whose states could not be written, and so were not sent."""
        for name in names:
            move = self._moves.get(name[1:]) if name.startswith(FAMILY) else None
            moved = move is not None and move.source.state is SourceState.MOVED
            if move is not None and moved and self._rows.written(name) is None:
                del self._moves[name[1:]]
                self._seats.resume(move.client)
                self._clients.update_roster(self._holdings.now_us)
