"""The entries of queues at their manager: messages, each with its state and the items still to be sent about it.

An entry waits, is assigned to a receiver, perhaps again, and is closed: consumed, or failed. The row of a closed entry
stays until everything was sent that has to be. The manager has something to send on four matters; a `EntryNotice` of an
entry on one of them is an item for the post, which asks for it when it may leave.

`ClosedEntries` has the entries whose outcome has still to be sent, and the copies that they leave behind. Their authors
are informed that they were consumed, or failed. Authors on this node are informed without a control message, in the
batch that makes it final. All nodes learn by an acknowledgement that copies are of no use any more (`gossip.acked`).
"""

from __future__ import annotations

import enum
from operator import attrgetter
from typing import TYPE_CHECKING, Final

import msgspec

from carrypost.application.control_outbox import Subject
from carrypost.gossip.holdings.cache import QUEUES
from carrypost.gossip.layer import Part
from carrypost.log.events import DeadLetter, Reason
from carrypost.messaging import control
from carrypost.model import address
from carrypost.model.ids import NodeId
from carrypost.model.times import NEVER

if TYPE_CHECKING:
    from collections.abc import Container

    from carrypost.application.keyring import Keyring
    from carrypost.application.ledger import Table
    from carrypost.gossip.holdings.copies import Copy
    from carrypost.gossip.timers import HostTime
    from carrypost.messaging.context import MessagingContext
    from carrypost.messaging.control import Item
    from carrypost.model.descriptor import Descriptor
    from carrypost.model.ids import MessageId


ASSIGN: Final = 1
HAND_OVER: Final = 2
OUTCOME: Final = 4
REMIND: Final = 16
"""`ASSIGN` once more: the first one was sent."""
NOTICE: Final = 8
"""Rows of earlier versions owe a notice to all nodes: an acknowledgement replaces it now."""


class EntryState(enum.IntEnum):
    """State of an entry; numbers are part of the store's format."""

    WAITING = 0
    """Waits for its delivery time, or for a demand."""
    ASSIGNED = 1
    """Assigned to a receiver."""
    CLOSED = 2
    """Consumed, or failed."""


class EntryRow(msgspec.Struct, array_like=True):
    """An entry in the store; fields may be appended with a default."""

    place: int
    state: EntryState = EntryState.WAITING
    receiver: NodeId = NodeId("")
    """The node that it is, or was last, assigned to."""
    demand: int = 0
    """The demand that it is assigned to."""
    round: int = 0
    """Number of times that it was assigned."""
    count: int = 0
    """Number of times that it may have been handed over."""
    lease_us: int = 0
    """Time until which it is assigned; 0: for good."""
    owed: int = 0
    """The matters on which something has to be sent."""
    outcome: int = control.DELIVERED
    reason: str = ""
    author: NodeId = NodeId("")
    """Stored only for a closed entry, whose copy is gone."""
    until_us: int = NEVER
    """Stored likewise: the time from which nothing has to be sent about it."""
    assigned_us: int = 0
    """Time at which it was assigned the last time."""
    reminders: int = 0
    """Number of times that its receiver was reminded."""
    claim_place: int = 0
    """Place among the messages that consumers of this node were handed; 0 if none was."""
    number: int = 0
    """Number among the assignments to its demand."""
    deferred_us: int = 0
    """Time until which a program of this node deferred it; 0: it did not."""
    letter: DeadLetter | None = None
    """History of the message, if it is a dead letter."""
    reader: bytes = b""
    """Sealing key of the node that it is assigned to, if the message is sealed."""


_values = attrgetter(*EntryRow.__struct_fields__)


class QueueEntry(EntryRow, eq=False, kw_only=True):
    """One message of a queue: its stored state, and what only this incarnation knows."""

    table: Table[EntryRow]
    queue_number: int
    message: MessageId
    queue: str = ""
    """The name of its queue; empty if it entered none."""
    copy: Copy | None = None
    rank: tuple[int, int, int] = (0, 0, 0)
    """Place among those that wait: priority, date, and order of arrival."""
    before: int = 0
    """Number of times that it may have been handed over before this round."""
    doubtful: bool = False
    """True if it was handed over before a restart, and perhaps caused it."""
    elsewhere: bool = True
    """True if other nodes may have copies."""
    due_us: int = 0
    """Time at which it may be handed over."""
    tries: int = 0
    """Number of deliveries that its queue allows; 0: as the settings say."""

    @property
    def terms(self) -> control.Terms | None:
        """Terms that its receiver has to know, if there are any."""
        return control.Terms(self.tries, self.letter) if self.tries or self.letter is not None else None

    def fill(self, copy: Copy, times: HostTime) -> None:
        """Fill the entry with its copy."""
        descriptor = copy.readable
        self.copy = copy
        self.author = descriptor.node
        self.until_us, self.due_us = times.own_time(descriptor.deadline_us), times.own_time(descriptor.due_us)
        self.rank = (-descriptor.priority, descriptor.created_us, self.place)

    @property
    def descriptor(self) -> Descriptor:
        """Descriptor of the message, with its plain fields."""
        copy = self.copy
        assert copy is not None  # Asked of entries that are alive; of closed ones, `author` and `until_us` are.
        return copy.opened or copy.descriptor  # `Copy.readable`, which costs a call: this is asked ten times a message.

    def is_addressed(self, node: NodeId) -> bool:
        """Return True if the message was sent to a queue of this node: dead letters of topics were not."""
        return address.addressee(self.descriptor.destination) == node

    def owes_receipt(self, node: NodeId, *, here: bool = False) -> bool:
        """Return True if its author is owed a receipt; `here`: also if that is this node."""
        if not self.is_addressed(node) or (self.author == node and not here):
            return False
        headers = self.descriptor.headers
        return self.descriptor.persistent or (headers is not None and headers.receipt)

    # --- the row -------------------------------------------------------------------------------------------

    def write(self) -> None:
        """Write the entry, or delete it if nothing is left to do about it."""
        closed = self.state is EntryState.CLOSED
        if closed and not self.owed:
            self.delete()
            return
        row = EntryRow(*_values(self))
        if not closed:  # Its copy knows.
            row.author, row.until_us = NodeId(""), NEVER
        self.table.put(self._row_name, row)

    def delete(self) -> None:
        """Delete the entry's row."""
        self.table.delete(self._row_name)

    @property
    def _row_name(self) -> bytes:
        return self.queue_number.to_bytes(8, "big") + self.message


class EntryNotice(Subject):
    """One item to send about an entry to a node, on one matter."""

    __slots__ = ("_entry", "_keyring", "_matter", "_to")

    def __init__(self, entry: QueueEntry, matter: int, to: NodeId, keyring: Keyring) -> None:
        self._entry, self._matter, self._to, self._keyring = entry, matter, to, keyring

    def item(self) -> Item | None:
        """Return the item to send; None if it no longer applies."""
        entry, matter = self._entry, self._matter
        if not entry.owed & matter or (entry.state is EntryState.CLOSED) is not (matter == OUTCOME):
            return None
        if matter == OUTCOME:
            return control.Outcome(entry.message, entry.outcome, entry.reason)
        if matter == HAND_OVER:
            return control.Outcome(entry.message, control.HANDED_OVER)
        if entry.state is not EntryState.ASSIGNED or not entry.queue or self._to != entry.receiver:
            return None
        until_us = 0 if entry.until_us == NEVER else entry.until_us
        return control.Assign(
            entry.queue, entry.message, entry.demand, entry.round, entry.count, entry.lease_us, until_us,
            again=matter == REMIND, number=entry.number, terms=entry.terms,
            secret=self._wrapped_secret(),
        )  # fmt: skip

    def _wrapped_secret(self) -> bytes:
        """Return the secret of a sealed message, for its receiver; empty if the message is not sealed."""
        unsealed = self._entry.descriptor.unsealed
        if unsealed is None or not self._entry.reader:
            return b""
        return self._keyring.wrap_secrets(self._entry.reader, unsealed.secret, self._entry.message)

    def mark_sent(self) -> None:
        """Note that it was sent."""
        self._entry.owed &= ~self._matter
        self._entry.write()


_SWEEP_US = 60_000_000
"""Interval of the search for entries whose outcome needs not be sent any more."""


class ClosedEntries(Part):
    """The closed entries of one node, by the ids of their messages."""

    def __init__(self, context: MessagingContext) -> None:
        self._node, self._holdings = context.node, context.holdings
        self._ledger, self._outbox, self._keyring = context.ledger, context.outbox, context.keyring
        self._receipt_us = round(context.settings.messaging.receipt_s * 1e6)
        """Time after its end for which the author of a message may be informed."""
        self._entries: dict[MessageId, QueueEntry] = {}
        self.own: list[EntryNotice] = []
        """Outcomes of messages that programs of this node sent."""

    def __contains__(self, message: MessageId) -> bool:
        return message in self._entries

    def add(self, entry: QueueEntry, now: int) -> None:
        """Add an entry, whose author is informed once that is durable."""
        if not self._entries:
            self.due_us = now + _SWEEP_US
        self._entries[entry.message] = entry
        if not entry.owed & OUTCOME:
            return
        notice = EntryNotice(entry, OUTCOME, entry.author, self._keyring)
        if entry.author == self._node:
            self.own.append(notice)
        else:
            self._outbox.add(entry.author, notice, until_us=self._ends_us(entry))

    def resume(self, entry: QueueEntry, now: int) -> None:
        """Resume an entry after a restart."""
        if entry.owed & NOTICE:
            self._holdings.acknowledge(entry.message, self._holdings.date_of(entry.until_us))
            entry.owed &= ~NOTICE
            entry.write()
        if entry.owed:
            self.add(entry, now)

    def pop_own(self) -> list[Item]:
        """Return the outcomes of messages of this node, once."""
        own, self.own = self.own, []
        items = [item for notice in own if (item := notice.item()) is not None]
        for notice in own:
            notice.mark_sent()
        return items

    def drop(self, copy: Copy, reason: Reason) -> None:
        """Drop a copy that no queue needs any more, and never accept its message again."""
        self._holdings.cache.unpin((copy,), QUEUES)
        if not self._holdings.is_confirmed(copy):  # Else its consumer is on this node.
            self._holdings.confirm((copy,))
            self._ledger.confirmed(copy)
        self._drop(copy, reason)

    def drop_consumed(self, alive: Container[MessageId]) -> None:
        """Drop copies that were consumed before a restart, and not dropped then."""
        for copy in [each for each in self._holdings.cache.copies if each is not None and each.here]:
            if self._holdings.is_confirmed(copy) and copy.id not in alive:
                self._drop(copy, Reason.PURGED)

    def _drop(self, copy: Copy, reason: Reason) -> None:
        if address.addressee(copy.descriptor.destination) == self._node:  # Others want what was sent to a topic.
            self._holdings.discard(copy, reason, done=True)

    def expire(self, now: int) -> None:
        """Forget entries whose outcome was sent, or is of no use any more."""
        for entry in list(self._entries.values()):
            if self._ends_us(entry) <= now:
                entry.owed = 0
                entry.write()
            if not entry.owed:
                del self._entries[entry.message]
        self.due_us = now + _SWEEP_US if self._entries else NEVER

    def _ends_us(self, entry: QueueEntry) -> int:
        return NEVER if entry.until_us == NEVER else entry.until_us + self._receipt_us
