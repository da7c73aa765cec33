"""Assignments by other nodes' queues to this node: a row each, until all was said about it.

An assignment is held from the moment that it is heard of, whether its message is here or not. It ends when its message
was acknowledged, when nobody here takes it, or with the message's life. One that was given back is remembered until
then, as what assigned it may come again.
"""

from __future__ import annotations

import enum
from collections import Counter
from operator import attrgetter
from typing import TYPE_CHECKING

import msgspec

from carrypost.events import Reason
from carrypost.gossip.holdings.owners import QUEUES
from carrypost.local.post import Subject
from carrypost.model import address
from carrypost.model.ids import MessageId, NodeId
from carrypost.model.times import NEVER
from carrypost.mom import control
from carrypost.mom.rows import Table

if TYPE_CHECKING:
    from carrypost.gossip.holdings.copies import Copy
    from carrypost.mom.context import Context
    from carrypost.mom.control import Item
    from carrypost.mom.rows import Stored


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
"""The manager and the message: whether a message is of that manager's queue is not known before it is here, so nobody
else's word is in the way of the manager's."""


class AssignmentRow(msgspec.Struct, array_like=True):
    """An assignment in the store; fields may be appended with a default."""

    queue: str
    """The address of the queue that it is of: the destination of a dead letter is another."""
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
    """The place of its claim when it was handed over the first time; 0 before."""
    deferred_us: int = 0
    """Time until which a program lets it wait; 0: it does not."""


_values = attrgetter(*AssignmentRow.__struct_fields__)


class Assignment(AssignmentRow, Subject, eq=False, kw_only=True):
    """One message of another node's queue that is this node's."""

    everything: Assignments
    message: MessageId
    demand: int = 0
    """Demand that it was assigned to; 0 after a restart."""
    instead: int = 0
    """The demand that it was given to the last time, if the consumer of another one has it."""
    doubtful: bool = False
    """An earlier life was handed it, and perhaps ended because of it."""
    copy: Copy | None = None
    """Copy of the message, once that is here."""
    release_us: int = NEVER
    """Time at which it is given back unless a consumer asks for it."""

    @property
    def manager(self) -> NodeId:
        """The node whose queue it is of."""
        return _manager_of(self.queue)

    @property
    def key(self) -> Key:
        """The key that it is found by."""
        return self.manager, self.message

    # --- a tenure ------------------------------------------------------------------------------------------

    @property
    def stands(self) -> bool:
        """True if it is this node's."""
        return self.state is Held.HELD

    def runs(self, now: int) -> bool:
        """Return True if it may be handed over: its manager gave it to no other node."""
        return self.stands and not 0 < self.lease_us <= now

    @property
    def handed(self) -> bool:
        """True if a program of this node may have seen it."""
        return self.count > self.before

    def keep(self, count: int, place: int, deferred_us: int) -> None:
        """Note that it was handed over so often, at this place, and waits until then if a program lets it wait."""
        self.count, self.place, self.deferred_us = count, place, deferred_us
        self.everything.write(self)

    def doubt(self) -> None:
        """Note that a program ended, perhaps because of it."""
        self.doubtful = True

    def done(self) -> None:
        """Note that it was acknowledged."""
        if self.stands:
            self.everything.answer(self, Held.ACKNOWLEDGED)

    def undone(self, count: int) -> None:
        """The commit that acknowledged it was lost."""
        if self.state is Held.ACKNOWLEDGED:
            self.state, self.owed = Held.HELD, 0
            self.keep(count, self.place, 0)

    def finish(self) -> None:
        """Note that it was acknowledged for good."""
        if self.state is Held.ACKNOWLEDGED:
            self.everything.discard(self)

    def release(self, *, dead: bool) -> None:
        """Give it back: no program on this node takes it."""
        if self.stands:
            self.everything.answer(self, Held.DEAD if dead else Held.RELEASED)

    # --- what is said of it --------------------------------------------------------------------------------

    def item(self) -> Item | None:
        """The answer; None if there is none any more."""
        if not self.owed or self.state is Held.HELD:
            return None
        if self.state is Held.ACKNOWLEDGED:
            return control.Acknowledge(self.message, self.round)
        return control.Release(self.message, self.round, self.count, self.state is Held.DEAD)

    def said(self) -> None:
        """Note that the answer is on its way."""
        self.owed = 0
        self.everything.write(self)

    def unsaid(self) -> None:
        """Note that the answer is to be said again, if it still holds."""
        if self.state is not Held.HELD:
            self.owed = 1
            self.everything.keep(self)


class Assignments:
    """All that were assigned to one node."""

    def __init__(self, context: Context) -> None:
        self._holdings, self._cache = context.holdings, context.holdings.cache
        self._table, self._post = Table(context.ledger, b"A", AssignmentRow), context.post
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
        """Every one."""
        return list(self._all.values())

    def _enter(self, made: Assignment) -> None:
        """Know of it, and no more of what was known of the same message."""
        self._leave(made.key)
        self._all[made.key] = made
        self._counts[made.queue] += 1

    def _leave(self, key: Key) -> None:
        known = self._all.pop(key, None)
        if known is not None:
            self._counts[known.queue] -= 1
            if not self._counts[known.queue]:
                del self._counts[known.queue]

    def has_room(self, destination: str, most: int) -> bool:
        """Return True if a queue may assign one more.

        Assignments that it knows to be given back are forgotten for that.
        """
        if self._counts[destination] >= most:
            theirs = [each for each in self._all.values() if each.queue == destination]
            for each in [each for each in theirs if not each.stands and not each.owed]:
                self.forget(each)
        return self._counts[destination] < most

    def add(self, item: control.Assign, destination: str, *, consumed: bool) -> Assignment | None:
        """A message is this node's now; None if that is known already, or is over, as when it was `consumed` here."""
        message, manager = MessageId(item.message), _manager_of(destination)
        known = self._all.get((manager, message))
        if known is not None and known.round >= item.round:
            if item.again and known.round == item.round and not known.stands and not known.owed:
                self.answer(known, known.state)
            return None
        if consumed:
            self._answer_again(item, destination)
            return None
        if known is not None and known.stands and known.handed:
            # It came back to whoever has it; others may have seen it meanwhile.
            elsewhere = max(item.count - known.count, 0)
            known.before, known.count = known.before + elsewhere, known.count + elsewhere
            known.round, known.lease_us = item.round, item.lease_us
            known.instead = item.demand if item.demand != known.demand else 0
            self.write(known)
            return None
        made = Assignment(
            destination, item.round, item.until_us or NEVER, item.lease_us, item.count, item.count,
            everything=self, message=message, demand=item.demand,
        )  # fmt: skip
        self._enter(made)
        self._note_need(made)
        self.write(made)
        return made

    def _answer_again(self, item: control.Assign, destination: str) -> None:
        """A program here is done with it; that was heard too late, or not yet: it is said for this round, too."""
        message, until_us = MessageId(item.message), item.until_us or NEVER
        made = Assignment(destination, item.round, until_us, count=item.count, everything=self, message=message)
        self._enter(made)
        self.answer(made, Held.ACKNOWLEDGED)

    def attach(self, assignment: Assignment, copy: Copy) -> None:
        """Note that its message is here."""
        assignment.copy = copy
        self._note_need(assignment)
        if copy.descriptor.deadline_us is not None:
            assignment.until_us = copy.descriptor.deadline_us
        self._cache.pin((copy,), QUEUES)

    def detach(self, assignment: Assignment) -> None:
        """Note that its message is not here any more, and may come again."""
        assignment.copy = None
        self._note_need(assignment)

    def _note_need(self, assignment: Assignment) -> None:
        """Let its message come as long as it is this node's and not here, even if this node sent it."""
        self._holdings.need(assignment.message, needed=assignment.stands and assignment.copy is None)

    def answer(self, assignment: Assignment, state: Held) -> None:
        """End an assignment to this node; its manager is told, once that is durable."""
        assignment.state, assignment.owed = state, 1
        self._note_need(assignment)
        self.write(assignment)
        self._post.add(assignment.manager, assignment, until_us=assignment.until_us)
        if state is not Held.ACKNOWLEDGED and assignment.copy is not None:
            self._cache.unpin((assignment.copy,), QUEUES)

    def discard(self, assignment: Assignment) -> None:
        """Discard its message, which was consumed."""
        copy = assignment.copy
        if copy is not None:
            self._cache.unpin((copy,), QUEUES)
            if copy.here:
                self._holdings.discard(copy, Reason.PURGED, done=True)

    def write(self, assignment: Assignment) -> None:
        """Keep it; one that was acknowledged, and of which that was said, needs no row: the message's own note does."""
        if assignment.state is Held.ACKNOWLEDGED and not assignment.owed:
            self.forget(assignment)
            return
        self._table.put(_row_name(assignment.key), AssignmentRow(*_values(assignment)))

    def keep(self, assignment: Assignment) -> None:
        """Keep one that was perhaps forgotten, unless its manager said something else of the message since."""
        known = self._all.get(assignment.key)
        if known is not None and known is not assignment:
            assignment.owed = 0
            return
        self._enter(assignment)
        self.write(assignment)

    def forget(self, assignment: Assignment) -> None:
        """There is nothing to be known of it any more."""
        if assignment.copy is not None:
            self._cache.unpin((assignment.copy,), QUEUES)
        self._holdings.need(assignment.message, needed=False)
        if self._all.get(assignment.key) is assignment:
            self._leave(assignment.key)
            self._table.delete(_row_name(assignment.key))

    def restore(self, stored: Stored) -> list[Assignment]:
        """Take in what was assigned to an earlier life; return all of it."""
        return [self._restore(name, row) for name, row in self._table.read(stored)]

    def _restore(self, name: bytes, row: AssignmentRow) -> Assignment:
        manager = _manager_of(row.queue)
        message = MessageId(name[len(_row_name((manager, MessageId(b"")))) :])
        made = Assignment(*msgspec.structs.astuple(row), everything=self, message=message)
        self._enter(made)
        made.doubtful = made.handed and not made.deferred_us
        copy = self._cache.get(message)
        if copy is not None and copy.whole and made.stands:
            self.attach(made, copy)
        self._note_need(made)
        if made.owed:
            self._post.add(made.manager, made, until_us=made.until_us)
        return made


def _manager_of(destination: str) -> NodeId:
    """The node that a queue is of."""
    found = address.addressee(destination)
    assert found is not None  # The address was made of the node that assigned.
    return found


def _row_name(key: Key) -> bytes:
    manager, message = key
    return len(manager.encode()).to_bytes(2, "big") + manager.encode() + message
