"""Messages of queues that are assigned to this node, by other nodes' queues and by its own, until they are answered.

`Assignments` has those of other nodes' queues: a row each, until the answer to it was sent. An assignment is held from
the moment that it is heard of, whether its message is here or not. It ends when its message was acknowledged, when no
program here takes it, or with the message's life. One that was given back is remembered until then, because the
assignment may arrive again.

`DemandedQueues` has the queues of other nodes that this one asked for messages, in this incarnation or an earlier one.
Only a manager that was asked may assign something to this node. Its assignment may arrive long after the demand ended,
and after a restart that forgot the demand itself; so the queue is remembered, in a row that is durable before the
demand leaves. The number of the demand in an assignment is not checked against the row: a manager may name any of its
own.

`LocalTenure` is the right of a consumer on the manager's own node to a message. It is stored in the entry itself.
"""

# Rounds. The manager of a queue and the consumer may never be in contact at the same time, so that an
# assignment, its message and the answer travel alone, out of order, and more than once. Rounds sort
# that out: each time a manager assigns a message anew, the round grows, and an answer names the
# round that it is for. An answer of an old round is of no use.
#
# What must hold. A message that was given back is not taken again because an old assignment arrives
# late: released rows stay until the message's life is over. An answer has the number of times that
# the message was handed over (`count`), so that the next consumer knows that it is not the first.
# An acknowledgement is sent after it is durable here.

from __future__ import annotations

import enum
from collections import Counter
from contextlib import suppress
from operator import attrgetter, itemgetter
from typing import TYPE_CHECKING

import msgspec

from carrypost.application.control_outbox import Subject
from carrypost.application.ledger import Deadlines, Table
from carrypost.errors import RemoteError
from carrypost.gossip.holdings.cache import QUEUES
from carrypost.log.events import Reason
from carrypost.messaging import control
from carrypost.messaging.control import ASKED_MAX, ASKED_US
from carrypost.messaging.queues.entries import EntryState
from carrypost.model import address
from carrypost.model.ids import MessageId, NodeId
from carrypost.model.times import NEVER

if TYPE_CHECKING:
    from carrypost.application.ledger import Ledger
    from carrypost.gossip.holdings.copies import Copy
    from carrypost.gossip.layer import Stored
    from carrypost.messaging.context import MessagingContext
    from carrypost.messaging.control import Item
    from carrypost.messaging.queues.entries import QueueEntry
    from carrypost.messaging.queues.manager import Manager


class Held(enum.IntEnum):
    """The state of an assignment; numbers are part of the store's format."""

    HELD = 0
    """The message is this node's."""
    ACKNOWLEDGED = 1
    RELEASED = 2
    """The message was given back: no program here took it."""
    DEAD = 3
    """The message is dead: no program here could consume it."""


Key = tuple[NodeId, MessageId]
"""The manager and the message. Whether a message belongs to that manager's queue is not known before it is here, so no
other node's assignment may take the place of the manager's."""


class AssignmentRow(msgspec.Struct, array_like=True):
    """An assignment in the store; fields may be appended with a default."""

    queue: str
    """The address of its queue; the destination of a dead letter is another one."""
    round: int
    until_us: int
    """Time from which it is of no use any more."""
    lease_us: int = 0
    """Time until which it is this node's; 0: for good."""
    count: int = 0
    """Number of times that it may have been handed over in all."""
    before: int = 0
    """Number of times that it may have been handed over elsewhere."""
    state: Held = Held.HELD
    owed: int = 0
    """1 while its manager is owed an answer."""
    place: int = 0
    """The place of its claim when it was first handed over; 0 before."""
    deferred_us: int = 0
    """Time until which a program deferred it; 0: it did not."""
    terms: control.Terms | None = None
    """Terms of its message, if it has any."""
    error: str = ""
    """The last error, if it is dead."""
    secret: bytes = b""
    """Secret of its message, if that is sealed."""


_values = attrgetter(*AssignmentRow.__struct_fields__)


class Assignment(AssignmentRow, Subject, eq=False, kw_only=True):
    """One message of another node's queue that is assigned to this node."""

    everything: Assignments
    message: MessageId
    demand: int = 0
    """Demand that it was assigned to; 0 after a restart."""
    instead: int = 0
    """The demand that it was last assigned to, if the consumer of another one has it."""
    doubtful: bool = False
    """True if it was handed over before a restart, and perhaps caused it."""
    copy: Copy | None = None
    """Copy of the message, once that is here."""
    release_us: int = NEVER
    """Time at which it is given back unless a consumer asks for it."""

    @property
    def manager(self) -> NodeId:
        """The node whose queue it belongs to."""
        return _manager_of(self.queue)

    @property
    def key(self) -> Key:
        """The key under which it is found."""
        return self.manager, self.message

    # --- a tenure ------------------------------------------------------------------------------------------

    @property
    def stands(self) -> bool:
        """True while it is this node's."""
        return self.state is Held.HELD

    def runs(self, now: int) -> bool:
        """Return True if it may be handed over: its manager has not reassigned it."""
        # A lease that ended does not take a message away from a program that has it; it only keeps
        # this node from a new hand-over.
        return self.stands and not 0 < self.lease_us <= now

    @property
    def handed(self) -> bool:
        """True if a program of this node may have seen it."""
        return self.count > self.before

    def keep(self, count: int, place: int, deferred_us: int) -> None:
        """Note how often it was handed over, its place, and the time until which a program deferred it."""
        self.count, self.place, self.deferred_us = count, place, deferred_us
        self.everything.write(self)

    def doubt(self) -> None:
        """Note that a program ended, perhaps because of it."""
        self.doubtful = True

    def done(self) -> None:
        """Note that it was acknowledged."""
        self.everything.answer(self, Held.ACKNOWLEDGED)

    def release(self, *, dead: bool, error: str = "") -> None:
        """Give it back, because no program on this node takes it."""
        if self.stands:
            self.error = error
            self.everything.answer(self, Held.DEAD if dead else Held.RELEASED)

    # --- what is said of it --------------------------------------------------------------------------------

    def item(self) -> Item | None:
        """Return the answer; None if none is owed any more."""
        if not self.owed or self.state is Held.HELD:
            return None
        if self.state is Held.ACKNOWLEDGED:
            return control.Acknowledge(self.message, self.round)
        return control.Release(self.message, self.round, self.count, self.state is Held.DEAD, self.error)

    def mark_sent(self) -> None:
        """Note that the answer was sent."""
        self.owed = 0
        self.everything.write(self)


class Assignments:
    """All assignments to one node."""

    def __init__(self, context: MessagingContext) -> None:
        self._holdings, self._cache = context.holdings, context.holdings.cache
        self._table, self._outbox = Table(context.ledger, b"A", AssignmentRow), context.outbox
        self._keyring = context.keyring
        self._all: dict[Key, Assignment] = {}
        self._counts: Counter[str] = Counter()
        """Number of assignments of each queue."""

    def __len__(self) -> int:
        return len(self._all)

    def get(self, manager: NodeId, message: MessageId) -> Assignment | None:
        """Return a manager's assignment of a message."""
        return self._all.get((manager, message))

    def of(self, copy: Copy) -> Assignment | None:
        """Return the assignment of a message by its queue's manager."""
        manager = address.addressee(copy.descriptor.destination)
        return None if manager is None else self._all.get((manager, copy.id))

    def all(self) -> list[Assignment]:
        """Return every assignment."""
        return list(self._all.values())

    def _enter(self, assignment: Assignment) -> None:
        """Add an assignment in place of any older one of the same message."""
        self._leave(assignment.key)
        self._all[assignment.key] = assignment
        self._counts[assignment.queue] += 1

    def _leave(self, key: Key) -> None:
        known = self._all.pop(key, None)
        if known is not None:
            self._counts[known.queue] -= 1
            if not self._counts[known.queue]:
                del self._counts[known.queue]

    def has_room(self, destination: str, most: int) -> bool:
        """Return True if a queue may assign one more.

        Assignments that were given back, and whose manager knows it, are forgotten for that.
        """
        if self._counts[destination] >= most:
            theirs = [each for each in self._all.values() if each.queue == destination]
            # Rows whose answer is still owed stay: without them the manager would never hear it.
            for each in [each for each in theirs if not each.stands and not each.owed]:
                self.forget(each)
        return self._counts[destination] < most

    def add(self, item: control.Assign, destination: str, *, consumed: bool) -> Assignment | None:
        """Add an assignment; None if it is known already, or is over, as when its message was `consumed` here."""
        message, manager = MessageId(item.message), _manager_of(destination)
        known = self._all.get((manager, message))
        if known is not None and known.round >= item.round:
            # The manager did not hear the answer and asks again for the same round.
            if item.again and known.round == item.round and not known.stands and not known.owed:
                self.answer(known, known.state)
            return None
        # The message's own row remembers that it was consumed, long after the assignment was
        # forgotten.
        if consumed:
            self._answer_again(item, destination)
            return None
        if known is not None and known.stands and known.handed:
            # It was assigned again; other consumers may have seen it meanwhile.
            elsewhere = max(item.count - known.count, 0)
            known.before, known.count = known.before + elsewhere, known.count + elsewhere
            known.round, known.lease_us = item.round, item.lease_us
            known.instead = item.demand if item.demand != known.demand else 0
            self.write(known)
            return None
        assignment = Assignment(
            destination, item.round, item.until_us or NEVER, item.lease_us, item.count, item.count,
            terms=item.terms, secret=self._keyring.unwrap_secrets(item.secret, message),
            everything=self, message=message, demand=item.demand,
        )  # fmt: skip
        self._enter(assignment)
        self._note_need(assignment)
        self.write(assignment)
        return assignment

    def _answer_again(self, item: control.Assign, destination: str) -> None:
        """Repeat the acknowledgement of a consumed message for this round, because the manager had not heard of it."""
        message, until_us = MessageId(item.message), item.until_us or NEVER
        assignment = Assignment(destination, item.round, until_us, count=item.count, everything=self, message=message)
        self._enter(assignment)
        self.answer(assignment, Held.ACKNOWLEDGED)

    def attach(self, assignment: Assignment, copy: Copy) -> None:
        """Note that its message is here."""
        assignment.copy = copy
        self._note_need(assignment)
        if assignment.secret and copy.opened is None and copy.descriptor.is_sealed:
            with suppress(RemoteError):  # Then it stays closed, which its receiver reports.
                self._keyring.open(copy, assignment.secret)
        if copy.descriptor.deadline_us is not None:
            assignment.until_us = self._holdings.own_time(copy.descriptor.deadline_us)
        self._cache.pin((copy,), QUEUES)

    def _note_need(self, assignment: Assignment) -> None:
        """Let its message come, as long as it is this node's and not here, even if this node sent it."""
        self._holdings.need(assignment.message, needed=assignment.stands and assignment.copy is None)

    def answer(self, assignment: Assignment, state: Held) -> None:
        """End an assignment to this node, and send the answer to its manager once that is durable."""
        assignment.state, assignment.owed = state, 1
        self._note_need(assignment)
        self.write(assignment)
        self._outbox.add(assignment.manager, assignment, until_us=assignment.until_us)
        if (copy := assignment.copy) is not None:
            self._cache.unpin((copy,), QUEUES)
            if state is Held.ACKNOWLEDGED and copy.here:
                self._holdings.discard(copy, Reason.PURGED, done=True)

    def write(self, assignment: Assignment) -> None:
        """Write its row. An acknowledged one whose answer was sent needs no row: the message's own row remembers it."""
        if assignment.state is Held.ACKNOWLEDGED and not assignment.owed:
            self.forget(assignment)
            return
        self._table.put(_row_name(assignment.key), AssignmentRow(*_values(assignment)))

    def forget(self, assignment: Assignment) -> None:
        """Delete an assignment and its row."""
        if assignment.copy is not None:
            self._cache.unpin((assignment.copy,), QUEUES)
        self._holdings.need(assignment.message, needed=False)
        if self._all.get(assignment.key) is assignment:
            self._leave(assignment.key)
            self._table.delete(_row_name(assignment.key))

    def read(self, stored: Stored) -> list[Assignment]:
        """Restore the assignments after a restart, and return them."""
        return [self._restore(name, row) for name, row in self._table.read(stored)]

    def _restore(self, name: bytes, row: AssignmentRow) -> Assignment:
        manager = _manager_of(row.queue)
        message = MessageId(name[len(_row_name((manager, MessageId(b"")))) :])
        assignment = Assignment(*msgspec.structs.astuple(row), everything=self, message=message)
        self._enter(assignment)
        assignment.doubtful = assignment.handed and not assignment.deferred_us
        copy = self._cache.get(message)
        if copy is not None and copy.whole and assignment.stands:
            self.attach(assignment, copy)
        self._note_need(assignment)
        if assignment.owed:
            self._outbox.add(assignment.manager, assignment, until_us=assignment.until_us)
        return assignment


def _manager_of(destination: str) -> NodeId:
    """Return the node that manages a queue."""
    found = address.addressee(destination)
    assert found is not None  # The address was made of the node that assigned.
    return found


def _row_name(key: Key) -> bytes:
    manager, message = key
    return len(manager.encode()).to_bytes(2, "big") + manager.encode() + message


_RENEWED_US = ASKED_US // 30
"""A row is written again when it would last this much longer: demands are renewed much more often."""


class DemandedQueues(Deadlines):
    """The destinations of queues that one node asked; the one asked longest ago comes first."""

    def __init__(self, ledger: Ledger) -> None:
        super().__init__(ledger, b"M")

    def add(self, destination: str, now: int) -> None:
        """Note that a queue is asked."""
        known_us, until_us = self._until_us.pop(destination, 0), now + ASKED_US
        if until_us - known_us < _RENEWED_US:
            self._until_us[destination] = known_us
            return
        self._put(destination, until_us)
        if len(self._until_us) > ASKED_MAX:
            self.forget(next(iter(self._until_us)))

    def restore(self, stored: Stored, now: int) -> None:
        """Restore the rows after a restart, the one asked longest ago first."""
        super().restore(stored, now)
        self._until_us = dict(sorted(self._until_us.items(), key=itemgetter(1)))


class LocalTenure:
    """An entry that a consumer of the manager's own node has, in one round."""

    __slots__ = ("_manager", "_round", "entry")
    count = property(attrgetter("entry.count"))
    lease_us = property(attrgetter("entry.lease_us"))
    doubtful = property(attrgetter("entry.doubtful"))
    deferred_us = property(attrgetter("entry.deferred_us"))
    terms = property(attrgetter("entry.terms"))
    copy = property(attrgetter("entry.copy"))
    """All of these are in the entry itself."""

    def __init__(self, manager: Manager, entry: QueueEntry) -> None:
        self._manager, self.entry = manager, entry
        self._round = entry.round

    @property
    def handed(self) -> bool:
        """True if a program of this node may have seen it."""
        return self.entry.count > 0

    @property
    def place(self) -> int:
        """The place of its claim, if a consumer here was handed it."""
        return self.entry.claim_place if self.entry.count else 0

    def doubt(self) -> None:
        """Note that a program ended, perhaps because of it."""
        self.entry.doubtful = True

    @property
    def queue(self) -> str:
        """The address of its queue."""
        return address.queue(self.entry.queue, self.entry.receiver)

    @property
    def stands(self) -> bool:
        """True while no other node has it."""
        return self.entry.round == self._round and self.entry.state is not EntryState.CLOSED

    def runs(self, now: int) -> bool:
        """Return True if it may be handed over: it was not reassigned."""
        entry = self.entry
        return self.stands and entry.state is EntryState.ASSIGNED and not 0 < entry.lease_us <= now

    def keep(self, count: int, place: int, deferred_us: int) -> None:
        """Note how often it was handed over, its place, and the time until which a program deferred it."""
        if self.stands:
            self.entry.count, self.entry.claim_place, self.entry.deferred_us = count, place, deferred_us
            self.entry.write()

    def done(self) -> None:
        """Close the entry, because its consumer acknowledged it."""
        self._manager.close(self.entry)

    def release(self, *, dead: bool, error: str = "") -> None:
        """Return the entry, because its consumer does not take it or gave up."""
        if self.stands:
            self._manager.requeue(self.entry, dead=dead, error=error)
