"""Receipts: those that report the progress of this node's own messages, and those that it owes to other authors.

Messages of this node are tracked for PERSISTENT sends to queues, and for others on request (`Receipts`).

This node owes receipts to the authors of messages to topics that asked for them (`OwedReceipts`). The first
acknowledgement on a node leads to its receipt. The receipt is a row, in the batch with that acknowledgement, until it
was sent; so it is never sent for something that a crash takes back, and a crash does not lose it.
"""

# A send that asks for receipts has a row, in the batch with its message. Reports about the message
# make its state rise, and never fall: carried, expired, failed, delivered. The row outlives the message by
# `messaging.receipt_s`, so that the receiver's report finds the way back, and a delivery counts
# even if it is heard of after the message was given up. A program is informed by a `Receipt`, once
# the row with that state is durable; so a state that it saw is still true after a crash.
#
# Which reports count. A message that lists its recipients is delivered when all of them have it, by
# their acknowledgements (`gossip.acked`). For a message to a queue only the manager's word counts.
# For any other message to a topic any node may report that it was delivered, and the first report
# counts: no node knows the subscribers of a topic. If a node holds the topic, each such report is
# passed on, and the holder may report that it has the message, or that it failed.

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from carrypost.application.control_outbox import Subject
from carrypost.application.ledger import Agenda, Table
from carrypost.gossip.layer import Part, Stored
from carrypost.log.events import TIMEOUT, Reason, Receipt, SendState
from carrypost.messaging.commands import Followed
from carrypost.messaging.control import DELIVERED, FAILED, HANDED_OVER, Outcome
from carrypost.model import address, ids
from carrypost.model.ids import MessageId, NodeId
from carrypost.model.times import NEVER

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from carrypost.gossip.draft import Draft
    from carrypost.gossip.holdings.copies import Copy
    from carrypost.messaging.context import MessagingContext
    from carrypost.model.descriptor import Descriptor


class OwedRow(msgspec.Struct, frozen=True, array_like=True):
    """A receipt that is owed, in the store; fields may be appended with a default."""

    author: NodeId
    until_us: int
    """Time from which it is of no use any more."""


class _OwedReceipt(Subject):
    """One receipt that is owed."""

    __slots__ = ("_message", "_table")

    def __init__(self, table: Table[OwedRow], message: MessageId) -> None:
        self._table, self._message = table, message

    def item(self) -> Outcome:
        """Return the outcome that the message was delivered."""
        return Outcome(self._message, DELIVERED)

    def mark_sent(self) -> None:
        """Delete its row."""
        self._table.delete(self._message)


class OwedReceipts(Part):
    """The receipts that one node owes."""

    def __init__(self, context: MessagingContext) -> None:
        self._holdings = context.holdings
        self._table, self._outbox = Table(context.ledger, b"O", OwedRow), context.outbox
        self._outlive_us = round(context.settings.messaging.receipt_s * 1e6)

    def acknowledged(self, copy: Copy) -> None:
        """Owe a receipt for a message that was acknowledged for the first time on this node."""
        descriptor = copy.original
        headers = descriptor.headers
        if headers is None or not headers.receipt:
            return
        held = address.is_held(descriptor.destination)
        if not held and (headers.recipients or address.addressee(descriptor.destination) is not None):
            return  # For a queue its manager speaks, and listed recipients acknowledge.
        until_us = min(self._holdings.own_time(descriptor.deadline_us) + self._outlive_us, NEVER)
        self._table.put(descriptor.id, OwedRow(descriptor.node, until_us))
        self._send(descriptor.id, descriptor.node, until_us)

    def restore(self, stored: Stored, now: int) -> None:
        """Restore the receipts after a restart; forget those that are of no use any more."""
        for name, row in self._table.read(stored):
            if row.until_us <= now:
                self._table.delete(name)
            else:
                self._send(MessageId(name), row.author, row.until_us)

    def _send(self, message: MessageId, author: NodeId, until_us: int) -> None:
        self._outbox.add(author, _OwedReceipt(self._table, message), until_us=until_us)


SENDS_MAX = 65_536
"""Number of sends that are tracked: 310 bytes each (measured), so 20 MB. Only programs of this node make them, but one
that sends all day has a week of them. Delivered ones are dropped first, then the oldest."""
SUBSCRIBERS_MAX = 1_000
"""Subscribers that are reported to a publisher, of one message to a held topic: any report is believed."""
_MEANS = {HANDED_OVER: SendState.CARRIED, DELIVERED: SendState.DELIVERED, FAILED: SendState.FAILED}
"""State that a message has at least reached, by what is reported of it. A manager elsewhere is reached by carriers
only."""


class Send(msgspec.Struct, array_like=True, gc=False):
    """A send that asks, as it is in its row; fields may be appended with a default."""

    destination: str
    sent_us: int
    deadline_us: int | None
    fail_us: int | None
    """Time at which it counts as failed without a report of its delivery."""
    state: SendState = SendState.STORED
    handed_over: bool = False
    reason: str = ""
    label: str = ""
    left: tuple[NodeId, ...] = ()
    """Recipients without an acknowledgement, if it lists any."""
    acknowledged: tuple[NodeId, ...] = ()
    """Recipients that acknowledged it, in order."""


class Receipts(Part):
    """The sends of one node that are followed."""

    def __init__(self, context: MessagingContext) -> None:
        self._node, self._holdings, self._outputs = context.node, context.holdings, context.outputs
        self._journal = context.journal
        self._holdings.follows = True
        self._table = Table(context.ledger, b"W", Send)
        self._outlive_us = round(context.settings.messaging.receipt_s * 1e6)
        self._sends: dict[MessageId, Send] = {}
        """Tracked sends, oldest first."""
        self._delivered: dict[MessageId, None] = {}
        """Delivered messages, the earliest first."""
        self._agenda = Agenda(self._is_due)
        """Times at which something changes without a report."""
        self.timers = (self._agenda,)
        self._lead_us = self._holdings.lead_us
        """Time by which this host was ahead of dates when these times were determined."""

    def __len__(self) -> int:
        return len(self._sends)

    def newest(self) -> Iterator[tuple[MessageId, Send]]:
        """Yield the sends that are followed, the newest first."""
        return reversed(self._sends.items())

    # --- coming --------------------------------------------------------------------------------------------

    def sent(self, draft: Draft, descriptor: Descriptor) -> None:
        """Track a message that was sent in this step, if that is asked for."""
        manager = _manager(descriptor.destination)
        self._watch(descriptor.id)
        if not descriptor.persistent or (manager is None and not draft.receipt and not descriptor.listed):
            return
        now, timeout_us = self._holdings.now_us, draft.receipt_timeout_us
        send = Send(
            descriptor.destination, now, descriptor.deadline_us, None if timeout_us is None else now + timeout_us,
            handed_over=manager == self._node, label=descriptor.label, left=descriptor.listed,
        )  # fmt: skip
        while len(self._sends) >= SENDS_MAX:
            self._give_way()
        self._sends[descriptor.id] = send
        self._table.put(descriptor.id, send)
        self._schedule(descriptor.id, send)

    def restore(self, stored: Stored, now: int) -> None:  # noqa: ARG002 - `expire` handles what fell due since
        """Restore the sends after a restart."""
        found = [(MessageId(name), send) for name, send in self._table.read(stored)]
        for message, send in sorted(found, key=lambda each: each[1].sent_us):
            self._sends[message] = send
            self._schedule(message, send)
            if send.state is SendState.DELIVERED:
                self._delivered[message] = None
            elif send.state is SendState.STORED:
                self._watch(message)
            if send.left and (copy := self._holdings.cache.get(message)) is not None:
                left = self._holdings.recipients.left(copy.descriptor)  # While messaging was not open, too.
                for node in [each for each in send.left if each not in left]:
                    self.acknowledged(message, node)

    def _watch(self, message: MessageId) -> None:
        if (copy := self._holdings.here(message)) is not None:
            self._holdings.watch(copy)

    # --- what is heard -------------------------------------------------------------------------------------

    def carried(self, copy: Copy) -> None:
        """Note that a neighbour has a message, or a leg of it. For a send without a row this is the only report.

        It is valid in this incarnation only.
        """
        message = copy.descriptor.original.id
        if message != copy.id and (passed_on := self._holdings.cache.get(message)) is not None:
            self._holdings.unwatch(passed_on)
        if message in self._sends:
            self._rise(message, SendState.CARRIED)
        else:
            self._outputs.emit(Receipt(message, SendState.CARRIED, rose=False, last=True))

    def acknowledged(self, message: MessageId, node: NodeId) -> None:
        """Note that a recipient has a message that lists it; with the last one it is delivered."""
        send = self._sends.get(message)
        if send is None or node not in send.left:
            return
        send.left = tuple([each for each in send.left if each != node])
        send.acknowledged = (*send.acknowledged, node)
        if not send.left:
            self._rise(message, SendState.DELIVERED)
        else:
            self._emit(message, send, rose=False)

    def handle_outcome(self, item: Outcome, node: NodeId) -> None:
        """Handle a node's report about a message; a report that it may not make is refused."""
        message = MessageId(item.message)
        send, state = self._sends.get(message), _MEANS.get(item.kind)
        if send is None or state is None:
            return  # Its row has given way, or its life is over; or a later version says more.
        manager, held = _manager(send.destination), address.is_held(send.destination)
        listed = bool(send.left or send.acknowledged) and not held
        has_a_say = item.kind == DELIVERED and not listed if manager is None else node == manager
        if held and item.kind == DELIVERED:
            self._delivered_to(message, send, node)
        elif has_a_say or (held and node == address.addressee(send.destination)):
            self._rise(message, state, item.reason, handed_over=(manager is not None or held) and item.kind != FAILED)
        else:
            self._outputs.refuse("receipt", node, send.label or ids.shown(message))

    def _delivered_to(self, message: MessageId, send: Send, node: NodeId) -> None:
        """Note a subscriber of a held topic; with the first one the message is delivered."""
        if node in send.acknowledged or len(send.acknowledged) >= SUBSCRIBERS_MAX:
            return
        send.acknowledged = (*send.acknowledged, node)
        if send.state is not SendState.DELIVERED:
            self._rise(message, SendState.DELIVERED, handed_over=True)
        else:
            self._emit(message, send, rose=False)

    def followed(self, message: MessageId) -> Followed | None:
        """Return the state of a message, None if it is unknown; its progress is reported, once that is durable."""
        send = self._sends.get(message)
        if send is None:
            return None
        self._journal.hold(_receipt(message, send, rose=False))
        listed = bool(send.left or send.acknowledged) and not address.is_held(send.destination)
        return Followed(message, send.destination, send.deadline_us, listed)

    def _rise(self, message: MessageId, state: SendState, reason: str = "", *, handed_over: bool = False) -> None:
        send = self._sends.get(message)
        if send is None:
            return
        rose, handed = state > send.state, handed_over and not send.handed_over
        if rose:
            send.state, send.reason = state, reason
        if handed:
            send.handed_over = True
        if rose or handed:
            if send.state is SendState.DELIVERED:
                self._delivered[message] = None
            self._schedule(message, send)
            self._agenda.note_ended()
            self._emit(message, send, rose=rose)

    def _emit(self, message: MessageId, send: Send, *, rose: bool) -> None:
        self._table.put(message, send)
        self._journal.hold(_receipt(message, send, rose=rose))

    # --- time ----------------------------------------------------------------------------------------------

    def follow_clock(self) -> None:
        """Determine all times anew if the clock was set, as deadlines are dates."""
        if self._lead_us != self._holdings.lead_us:
            self._lead_us = self._holdings.lead_us
            for message, send in self._sends.items():
                self._schedule(message, send)
            self._agenda.next_us()

    def _is_due(self, message: MessageId, due_us: int) -> bool:
        return message in self._sends and self._due_us(self._sends[message]) == due_us

    def _due_us(self, send: Send) -> int:
        """Return the time at which something changes without a report: its deadline, or the end of its row."""
        deadline_us = self._holdings.own_time(send.deadline_us)
        if send.state < SendState.EXPIRED:
            return deadline_us if send.fail_us is None else min(deadline_us, send.fail_us)
        return min(deadline_us + self._outlive_us, NEVER)

    def _schedule(self, message: MessageId, send: Send) -> None:
        if (due_us := self._due_us(send)) < NEVER:
            self._agenda.add(message, due_us)

    def expire(self, now: int) -> None:
        """Let messages expire or fail whose time is over, and forget those without further reports."""
        for message in self._agenda.pop_due(now):
            send = self._sends[message]
            if send.state >= SendState.EXPIRED:
                self._end(message)
            elif self._holdings.own_time(send.deadline_us) <= now:
                self._rise(message, SendState.EXPIRED, Reason.EXPIRED)
            else:
                self._rise(message, SendState.FAILED, TIMEOUT)

    # --- going ---------------------------------------------------------------------------------------------

    def _give_way(self) -> None:
        self._end(next(iter(self._delivered or self._sends)))

    def _end(self, message: MessageId) -> None:
        """End the tracking of a message."""
        send = self._sends.pop(message)
        self._delivered.pop(message, None)
        self._table.delete(message)
        self._agenda.note_ended()
        if (copy := self._holdings.cache.get(message)) is not None:
            self._holdings.unwatch(copy)
        if not _receipt(message, send, rose=False).last:
            self._journal.hold(_receipt(message, send, rose=False, last=True))

    def left(self, copies: Sequence[Copy], reason: Reason) -> None:
        """Handle copies that are gone."""
        watched = self._holdings.watched
        for copy in copies if watched or self._sends else ():
            if not copy.own or copy.descriptor.original is not copy.descriptor:
                continue
            if copy.id not in self._sends and watched >> copy.slot & 1:  # A program may wait for a carrier.
                state = SendState.EXPIRED if reason is Reason.EXPIRED else SendState.FAILED
                self._outputs.emit(Receipt(copy.id, state, reason=reason, rose=False, last=True))


def _receipt(message: MessageId, send: Send, *, rose: bool, last: bool = False) -> Receipt:
    last = last or (send.state is SendState.DELIVERED and not address.is_held(send.destination))
    return Receipt(
        message, send.state, send.handed_over, send.reason, send.label, rose=rose, last=last,
        acknowledged=send.acknowledged,
    )  # fmt: skip


def _manager(destination: str) -> NodeId | None:
    """Return the node that manages the queue of a destination; None if it is no queue."""
    return None if address.is_held(destination) else address.addressee(destination)
