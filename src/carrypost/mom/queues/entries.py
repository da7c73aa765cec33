"""The entries of queues at their manager: messages, each with what became of it and what is still to be said of it.

An entry waits, is assigned to a receiver, perhaps again, and is closed: consumed, or failed. The row of a closed one
stays until everything was said that has to be. What the manager has to say is on five matters; an entry knows which
items those are, and the post asks for them when they may leave.
"""

from __future__ import annotations

import enum
from operator import attrgetter
from typing import TYPE_CHECKING, Final

import msgspec

from carrypost.model import address
from carrypost.model.ids import NodeId
from carrypost.model.times import NEVER
from carrypost.mom import control

if TYPE_CHECKING:
    from carrypost.gossip.holdings.copies import Copy
    from carrypost.model.descriptor import Descriptor
    from carrypost.model.ids import MessageId
    from carrypost.mom.control import Item
    from carrypost.mom.rows import Table

ASSIGN: Final = 1
HAND_OVER: Final = 2
OUTCOME: Final = 4
PURGE: Final = 8
REMIND: Final = 16
"""What `ASSIGN` said, once more: that its receiver was told once is known meanwhile."""


class EntryState(enum.IntEnum):
    """Where an entry stands; numbers are part of the store's format."""

    WAITING = 0
    """For its delivery time, or for somebody who asks for it."""
    ASSIGNED = 1
    """A receiver has it, or will."""
    CLOSED = 2
    """Consumed, or failed."""


class EntryRow(msgspec.Struct, array_like=True):
    """An entry in the store; fields may be appended with a default."""

    place: int
    state: EntryState = EntryState.WAITING
    receiver: NodeId = NodeId("")
    demand: int = 0
    round: int = 0
    count: int = 0
    lease_us: int = 0
    owed: int = 0
    outcome: int = control.DELIVERED
    reason: str = ""
    author: NodeId = NodeId("")
    """Of a closed one, whose copy is gone."""
    until_us: int = NEVER
    """Likewise: when there is nothing to be said of it any more."""
    assigned_us: int = 0
    reminders: int = 0
    claim_place: int = 0
    number: int = 0


_FIELDS = EntryRow.__struct_fields__
_values = attrgetter(*_FIELDS)


class QueueEntry:
    """One message of a queue."""

    __slots__ = (
        "_table", "assigned_us", "author", "before", "claim_place", "copy", "count", "doubtful", "elsewhere",
        "lease_us", "message", "number", "outcome", "owed", "place", "queue", "queue_number", "rank", "reason",
        "receiver", "reminders", "demand", "round", "state", "until_us",
    )  # fmt: skip

    def __init__(self, table: Table[EntryRow], queue_number: int, message: MessageId, place: int) -> None:
        self._table = table
        self.queue_number = queue_number
        self.message = message
        self.place = place
        self.queue = ""
        """The name of its queue; empty if it was let into none."""
        self.copy: Copy | None = None
        self.author = NodeId("")
        self.until_us = NEVER
        self.rank = (0, 0, place)
        """Its place among those that wait: priority, date, and the order of coming."""
        self.state = EntryState.WAITING
        self.receiver = NodeId("")
        """The node that it is assigned to, or was the last time."""
        self.demand = self.number = 0
        """The demand that it is assigned to, and its number among the assignments to that."""
        self.round = 0
        """How often it was assigned."""
        self.before = self.count = 0
        """How often it may have been handed over before this round, and in all."""
        self.claim_place = 0
        """Its place among what consumers of this node were handed; 0 if none was."""
        self.doubtful = False
        """An earlier life of this node was handed it, and perhaps ended because of it."""
        self.lease_us = 0
        """Until when it is assigned; 0: for good."""
        self.assigned_us = self.reminders = 0
        """When it was assigned the last time, and how often its receiver was told that again."""
        self.owed = 0
        """The matters on which something is to be said."""
        self.outcome, self.reason = control.DELIVERED, ""
        self.elsewhere = True
        """Whether other nodes may have copies."""

    def fill(self, copy: Copy) -> None:
        """It is the entry of this copy."""
        descriptor = copy.descriptor
        self.copy = copy
        self.author = descriptor.node
        self.until_us = NEVER if descriptor.deadline_us is None else descriptor.deadline_us
        self.rank = (-descriptor.priority, descriptor.created_us, self.place)

    def restore(self, row: EntryRow) -> None:
        """Set what the store has of it."""
        for field in _FIELDS:
            setattr(self, field, getattr(row, field))

    @property
    def descriptor(self) -> Descriptor:
        """What the message says of itself."""
        assert self.copy is not None  # Asked of entries that are alive; of closed ones, `author` and `until_us` are.
        return self.copy.descriptor

    @property
    def due_us(self) -> int:
        """When it may be handed over."""
        headers = self.descriptor.headers
        return 0 if headers is None or headers.delivery_time_us is None else headers.delivery_time_us

    def is_addressed(self, node: NodeId) -> bool:
        """Return True if the message was sent to a queue of this node: dead letters of topics were not."""
        return address.addressee(self.descriptor.destination) == node

    def owes_receipt(self, node: NodeId, *, here: bool = False) -> bool:
        """Return True if its author is to hear of it; `here`: also if that is this node."""
        if not self.is_addressed(node) or (self.author == node and not here):
            return False
        headers = self.descriptor.headers
        return self.descriptor.persistent or (headers is not None and headers.receipt)

    # --- the row -------------------------------------------------------------------------------------------

    def write(self) -> None:
        """Keep it, or forget it if nothing is to be done about it any more."""
        closed = self.state is EntryState.CLOSED
        if closed and not self.owed:
            self.delete()
            return
        row = EntryRow(*_values(self))
        if not closed:  # Its copy knows.
            row.author, row.until_us = NodeId(""), NEVER
        self._table.put(self._row_name, row)

    def delete(self) -> None:
        """Forget it."""
        self._table.delete(self._row_name)

    @property
    def _row_name(self) -> bytes:
        return self.queue_number.to_bytes(8, "big") + self.message

    # --- what is said of it --------------------------------------------------------------------------------

    def item(self, matter: int, to: NodeId | None) -> Item | None:
        """What is to be said to a node, or to all, on a matter; None if that no longer holds."""
        if not self.owed & matter:
            return None
        if matter in (ASSIGN, REMIND):
            if self.state is not EntryState.ASSIGNED or not self.queue or to != self.receiver:
                return None
            until_us = 0 if self.until_us == NEVER else self.until_us
            return control.Assign(
                self.queue, self.message, self.demand, self.round, self.count, self.lease_us, until_us,
                again=matter == REMIND, number=self.number,
            )  # fmt: skip
        closed = self.state is EntryState.CLOSED
        if matter == HAND_OVER:
            return None if closed else control.Outcome(self.message, control.HANDED_OVER)
        if not closed:
            return None
        return (
            control.Purge(self.message) if matter == PURGE else control.Outcome(self.message, self.outcome, self.reason)
        )

    def said(self, matter: int) -> None:
        """It is on its way."""
        self.owed &= ~matter
        self.write()

    def unsaid(self, matter: int, to: NodeId | None) -> None:
        """It could not be written that it was said: it is said again, if it still holds."""
        self.owed |= matter
        if self.item(matter, to) is None:
            self.owed &= ~matter
        self.write()
