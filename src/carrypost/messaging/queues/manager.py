"""The manager: the queues that this node declared, and all decisions about their messages.

A message that arrives for one of them becomes an entry, which is pinned, and is assigned to one receiver: to a consumer
of this node, or to another node that asked for it. A message beyond the bounds of a queue is turned away and comes
again when there is room; meanwhile its carriers keep it. A message for a queue that is not here fails.
"""

# The problem. A queue gives each message to exactly one consumer. With a broker that is a pop. Here
# consumers and their queue may never be in contact at the same time: an assignment, its message and
# the answer each travel for hours, may be lost, doubled or overtaken, and a consumer may be gone
# for good. A consensus among nodes that never meet does not exist, so one node, the *manager*,
# decides, and everything it says can be repeated without harm.
#
# What must hold.
# 1. An entry is assigned to one receiver at a time. Each assignment begins a new *round*, and an
#    acknowledgement or release counts only from that receiver and for that round: a late answer to
#    an earlier round must not end a message that another consumer has by now.
# 2. Nothing is said before it is durable (`application.control_outbox`). A manager that crashed after saying "it is
#    yours" and forgot it would give the message to a second node.
# 3. With `redelivery="never"` an assigned message is never assigned again, at the price that it is
#    lost with its receiver. With leases it is assigned again after the lease, at the price that two
#    consumers may see it. There is no third way; the program chooses.
# 4. An entry that ends without an answer gives its receiver back the credit that it had spent
#    (`unanswered`). Otherwise a consumer with a prefetch of one is silent for ever after one lost
#    message.
# 5. Whatever a stranger may ask for is bounded and paid for (`messaging.control`): demands, assignments
#    without an answer, looks, bytes.
#
# Read on: `queue` (order, policy and selectors), `demands` (credit), `unanswered` (lost words),
# `receiver` (the other side), `entries` (receipts).

from __future__ import annotations

from typing import TYPE_CHECKING

from carrypost.gossip.layer import Part, Stored
from carrypost.log.events import Assigned, Reason
from carrypost.messaging import control
from carrypost.messaging.commands import Declare, Redelivery
from carrypost.messaging.namespace import DEAD_LETTERS, history, letters_of_topic
from carrypost.messaging.queues.declared_queues import DeclaredQueues, LiveEntries
from carrypost.messaging.queues.demands import Demands
from carrypost.messaging.queues.entries import (
    ASSIGN,
    HAND_OVER,
    OUTCOME,
    REMIND,
    ClosedEntries,
    EntryNotice,
    EntryState,
    QueueEntry,
)
from carrypost.messaging.queues.reminders_and_gaps import Gaps, Reminders
from carrypost.model import address
from carrypost.model.ids import MessageId
from carrypost.model.times import NEVER

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from carrypost.gossip.draft import Draft
    from carrypost.gossip.holdings.copies import Copy
    from carrypost.messaging.context import MessagingContext
    from carrypost.messaging.queues.queue import Demand, Queue
    from carrypost.model.ids import NodeId

_AFTERWARDS_US = 86_400_000_000
"""Time by which a notice of an assignment outlives its message: where none came, another is asked for."""
_HAND_OVER_US = 200_000
"""Delay before a sender is informed that the manager has a message: usually it is consumed by then, which says both."""


class Manager(Part):
    """The queues of one node."""

    def __init__(self, context: MessagingContext) -> None:
        self._node, self._outputs = context.node, context.outputs
        self._holdings, self._cache = context.holdings, context.holdings.cache
        self._outbox, self._keyring = context.outbox, context.keyring
        self.declared = DeclaredQueues(context)
        self._stock = LiveEntries(context)
        self.timers = self._stock.delays, self._stock.leases
        self.closed = ClosedEntries(context)
        self._gaps = Gaps(context.outbox)
        self.demands = Demands(context, self.declared, self._gaps)
        """Demands for messages of the queues."""
        self._reminders = Reminders(context, self.declared)
        self._ready: dict[Queue, None] = {}
        """Queues that may have something to assign."""
        self.bounds = self._stock.bounds
        self.lapsed: list[QueueEntry] = []
        """Entries of consumers of this node whose leases are over: the receiver withdraws them."""
        self.handed: list[QueueEntry] = []
        """Entries that consumers of this node were handed before a restart, and did not consume."""
        self.parts = (
            self.declared, self.demands, self, self._reminders, self._gaps, self.closed, self.bounds
        )  # fmt: skip

    # --- queues --------------------------------------------------------------------------------------------

    def end(self, queue: Queue, reason: str) -> None:
        """End a queue, and inform the senders of the messages in it."""
        for entry in list(queue.entries.values()):
            self.close(entry, control.FAILED, reason)
        self.demands.end_queue(queue)
        for each in list(queue):
            queue.withdraw(each)
        self.declared.remove(queue)
        self.bounds.ended(queue)
        self._ready.pop(queue, None)

    def check(self, drafts: Iterable[Draft]) -> None:
        """Raise unless messages to queues of this node may be sent."""
        sends: dict[Queue, list[Draft]] = {}
        for draft in drafts:
            if draft.destination.startswith("queue/") and address.addressee(draft.destination) == self._node:
                sends.setdefault(self.declared.managed(draft.destination), []).append(draft)
        if sends:
            self.bounds.check(sends)

    def entries_of(self, message: MessageId) -> Sequence[QueueEntry]:
        """Return the entries of a message."""
        return self._stock.of(message)

    # --- messages ------------------------------------------------------------------------------------------

    def arrived(self, copy: Copy, now: int, refusal: str) -> None:
        """Enter a message that arrived for a queue of this node; `refusal`: the reason to reject it, if any."""
        if copy.id in self._stock or copy.id in self.closed or self._holdings.is_confirmed(copy):
            return
        queue = self.declared.get(copy.descriptor.destination)
        if queue is None or refusal:
            self._fail(copy, refusal or "there is no such queue")
        elif copy.descriptor.is_sealed and copy.opened is None:
            self._fail(copy, "it is sealed for a key that its reader does not have")
        elif queue.asked.sealed and copy.opened is None:
            self._fail(copy, "the queue takes sealed messages alone")
        elif self.bounds.admits(queue, copy):
            self._add(queue, copy, now)
        elif copy.own:  # Not by a unit of work, which would have raised (`check`).
            self._fail(copy, "its queue is full")
        else:
            self.bounds.turn_away(queue, copy)

    def _fail(self, copy: Copy, reason: str) -> None:
        entry = self._stock.make(0, copy)
        self.close(entry, control.FAILED, reason)

    def _add(self, queue: Queue, copy: Copy, now: int) -> QueueEntry:
        entry = self._stock.make(queue.number, copy)
        if not entry.is_addressed(self._node):
            entry.elsewhere = False  # A dead letter of a topic: copies elsewhere are none of this queue's business.
        elif copy.own:
            entry.elsewhere = False
            self._holdings.watch(copy)
        self._stock.enter(queue, entry)
        if queue.destination == copy.descriptor.destination and entry.owes_receipt(self._node):
            entry.owed = HAND_OVER
            self._send_notice(entry.author, entry, HAND_OVER, after_us=now + _HAND_OVER_US)
        entry.write()
        self._enqueue(entry, now)
        return entry

    def _queue_of(self, entry: QueueEntry) -> Queue:
        """Return the queue of an entry that is not closed."""
        queue = self.declared.numbered(entry.queue_number)
        assert queue is not None  # A queue that ends closes its entries first.
        return queue

    def _enqueue(self, entry: QueueEntry, now: int) -> None:
        queue = self._queue_of(entry)
        if entry.state is EntryState.ASSIGNED:
            queue.unassign(entry.receiver)
        entry.state = EntryState.WAITING
        if entry.due_us > now:
            self._stock.delays.add(entry, entry.due_us)
        else:
            queue.enqueue(entry)
            self._ready[queue] = None

    def carried(self, copy: Copy) -> None:
        """Note that a neighbour has a copy of a message."""
        for entry in self._stock.of(copy.id):
            entry.elsewhere = True

    def bury(self, copy: Copy, pattern: str, now: int, count: int, error: str) -> bool:
        """Make a message that a subscription could not consume a dead letter; return False if their queue is full.

        It was handed over `count` times: answers to these do not count for the letter.
        """
        name = letters_of_topic(pattern, self._node)
        letters = self.declared.get(address.queue(name, self._node)) or self.declared.declare(Declare(name))
        if copy.id in letters.entries:
            return True
        if not self.bounds.admits(letters, copy):
            return False
        letter = self._add(letters, copy, now)
        letter.count, letter.letter = count, history(name.removeprefix(DEAD_LETTERS), count, error)
        letter.write()
        return True

    # --- assignment ----------------------------------------------------------------------------------------

    def assign(self, now: int) -> list[tuple[QueueEntry, Demand]]:
        """Assign waiting messages to demands; return those for consumers of this node."""
        ready, self._ready = self._ready | self.demands.pop_ready(), {}
        local: list[tuple[QueueEntry, Demand]] = []
        for queue in ready:
            while (found := queue.next()) is not None:
                entry, demand = found
                self._assign(queue, entry, demand, now)
                if demand.node == self._node:
                    local.append(found)
        return local

    def _assign(self, queue: Queue, entry: QueueEntry, demand: Demand, now: int) -> None:
        queue.remove(entry)
        entry.state = EntryState.ASSIGNED
        entry.receiver, entry.demand = demand.node, demand.number
        queue.hold(demand.node)
        entry.round += 1
        entry.before, entry.lease_us, entry.deferred_us = entry.count, 0, 0
        if queue.asked.redelivery is Redelivery.AFTER_LEASE:
            entry.lease_us = now + queue.asked.lease_us
            self._stock.leases.add(entry, entry.lease_us)
        demand.count(self.demands.next_place())
        if demand.node != self._node:
            entry.owed |= ASSIGN
            entry.assigned_us, entry.reminders, entry.number = now, 0, demand.taken
            entry.reader = demand.key if entry.descriptor.unsealed is not None else b""
            self._reminders.expect(entry)
            self.demands.write(queue, demand)
            self._send_notice(demand.node, entry, ASSIGN)
            entry.write()  # For a consumer here it is written when it is handed over; until then it waits.
        self._outputs.journal.hold(Assigned(entry.descriptor, demand.node))

    def requeue(self, entry: QueueEntry, *, dead: bool = False, error: str = "") -> None:
        """Return an entry that its receiver does not take to its queue, or make it a dead letter."""
        entry.owed &= ~(ASSIGN | REMIND)
        self._stock.end_lease(entry)
        if dead:
            self._move_to_dead_letters(entry, error)
        else:
            self._enqueue(entry, self._holdings.now_us)
            entry.write()

    def _move_to_dead_letters(self, entry: QueueEntry, error: str) -> None:
        queue = self._queue_of(entry)
        if queue.asked.name.startswith(DEAD_LETTERS):
            self._enqueue(entry, self._holdings.now_us)
            entry.write()
            return
        copy = entry.copy
        assert copy is not None
        letters = self.declared.letters_of(queue)
        if not self.bounds.admits(letters, copy, moved=True):
            full = "nobody could consume it, and the queue of its dead letters is full"
            self.close(entry, control.FAILED, full, drop=Reason.DEAD_LETTER)
            return
        self.close(entry, control.FAILED, "nobody could consume it: it is a dead letter", letter=True)
        letter = self._add(letters, copy, self._holdings.now_us)
        letter.round, letter.count = entry.round, entry.count  # Answers to this entry are none to the letter.
        letter.letter = history(address.written(queue.destination), entry.count, error)
        letter.write()

    # --- the end -------------------------------------------------------------------------------------------

    def close(
        self,
        entry: QueueEntry,
        outcome: int = control.DELIVERED,
        reason: str = "",
        *,
        letter: bool = False,
        drop: Reason = Reason.PURGED,
    ) -> None:
        """Close an entry that was consumed, or failed, inform its author if asked to, and drop the copy.

        `letter`: another queue of this node has the message from now on.
        """
        queue, copy = self.declared.numbered(entry.queue_number), entry.copy
        assert copy is not None  # It is alive.
        if queue is not None:
            self._part(queue, entry)
        entry.state, entry.outcome, entry.reason = EntryState.CLOSED, outcome, reason
        if queue is not None:
            self._stock.leave(queue, entry)
            if outcome == control.DELIVERED:
                queue.tally.add(entry.receiver)
        if entry.elsewhere and not letter:
            self._holdings.acknowledge(entry.message, entry.until_us)
        entry.owed = OUTCOME if entry.owes_receipt(self._node, here=True) else 0
        entry.write()
        if entry.owed:
            self.closed.add(entry, self._holdings.now_us)
        if not letter and copy.here and copy.id not in self._stock:  # Else another queue has it.
            self.closed.drop(copy, drop)

    def left(self, copies: Sequence[Copy], reason: Reason) -> None:
        """Remove entries whose copies are gone before they were consumed: they expired, or gave way."""
        for copy in copies:
            for entry in self._stock.of(copy.id):
                self._spare(entry)
                if reason is Reason.EXPIRED:
                    self._remove(entry)
                else:
                    self.close(entry, control.FAILED, f"the manager lost it ({reason})")

    def _remove(self, entry: QueueEntry) -> None:
        queue = self._queue_of(entry)
        self._part(queue, entry)
        entry.state, entry.owed = EntryState.CLOSED, 0
        self._stock.leave(queue, entry)
        entry.write()

    def _part(self, queue: Queue, entry: QueueEntry) -> None:
        """Detach an entry that is about to be closed from its receiver, or from the waiting ones."""
        if entry.state is EntryState.WAITING:
            queue.remove(entry)
        elif entry.state is EntryState.ASSIGNED:
            queue.unassign(entry.receiver)
            if entry.receiver != self._node:
                self._ready[queue] = None  # It may have had as many as it may.

    def _spare(self, entry: QueueEntry) -> bool:
        """Give back the credit of an entry that ends unanswered; return True if its receiver gets another at once."""
        queue = self._queue_of(entry)
        spared = self.demands.spare(queue, entry, self._holdings.now_us)
        if spared:
            self._ready[queue] = None
        return spared

    # --- what receivers say --------------------------------------------------------------------------------

    def answered(self, item: control.Acknowledge | control.Release, node: NodeId) -> None:
        """Process an answer: a node consumed a message, or does not take it.

        It counts after its lease, too, unless reassigned.
        """
        alive = self._stock.of(MessageId(item.message))
        if not alive:
            return  # It is closed, or expired.
        entry = next((each for each in alive if each.receiver == node and each.round == item.round), None)
        if entry is None:
            self._outputs.refuse("assignee", node)
            return
        self._note_answer(entry)
        if isinstance(item, control.Acknowledge):
            self.close(entry)
        elif entry.state is EntryState.ASSIGNED:
            entry.count = max(entry.count, item.count)
            self.requeue(entry, dead=item.dead, error=item.error)

    def _note_answer(self, entry: QueueEntry, *, silent: bool = False) -> None:
        """Note that the receiver of an entry answered, or let its lease end in silence."""
        queue = self._queue_of(entry)
        demand = queue.find(entry.receiver, entry.demand)
        if demand is not None and demand.silent is not silent:
            demand.mark_silent(silent=silent)
            self._ready[queue] = None

    # --- time ----------------------------------------------------------------------------------------------

    def expire(self, now: int) -> None:
        """End delays and leases that are over."""
        for entry in self._stock.delays.pop_due(now):
            self._enqueue(entry, now)
        for entry in self._stock.leases.pop_due(now):
            if entry.receiver == self._node:
                self.lapsed.append(entry)
            else:
                entry.count = max(entry.count, 1)  # It may have been seen; far nodes do not make it a dead letter.
            entry.lease_us = 0
            informed = not entry.owed & ASSIGN and not entry.deferred_us
            if not self._spare(entry) and informed:
                self._note_answer(entry, silent=True)
            self.requeue(entry)

    def _send_notice(self, to: NodeId, entry: QueueEntry, matter: int, *, after_us: int = 0) -> None:
        until_us = entry.until_us + (_AFTERWARDS_US if matter == ASSIGN else 0)
        self._outbox.add(
            to, EntryNotice(entry, matter, to, self._keyring), after_us=after_us, until_us=min(until_us, NEVER)
        )

    # --- the store -----------------------------------------------------------------------------------------

    def restore(self, stored: Stored, now: int) -> None:
        """Restore the entries of the queues after a restart."""
        self.handed = [entry for entry in self._stock.read(stored) if self._restore(entry, now)]
        self.closed.drop_consumed(self._stock)

    def _restore(self, entry: QueueEntry, now: int) -> bool:
        """Restore an entry after a restart; return True if a consumer of this node was handed it."""
        entry.doubtful = entry.count > 0 and entry.receiver == self._node and not entry.deferred_us
        copy, queue = self._cache.get(entry.message), self.declared.numbered(entry.queue_number)
        if entry.state is EntryState.CLOSED:
            self.closed.resume(entry, now)
            return False
        if copy is None or not copy.whole:
            if queue is not None:
                self.demands.spare(queue, entry, now)
            entry.delete()
            return False
        entry.fill(copy, self._holdings)
        if queue is None:
            self.close(entry, control.FAILED, "its queue ended")
            return False
        self._stock.enter(queue, entry)
        if entry.owed & HAND_OVER:
            self._send_notice(entry.author, entry, HAND_OVER, after_us=now + _HAND_OVER_US)
        if entry.state is EntryState.WAITING or (entry.receiver == self._node and not entry.count):
            self._enqueue(entry, now)
            return False
        if entry.owed & ASSIGN:
            self._send_notice(entry.receiver, entry, ASSIGN)
        if entry.lease_us:
            self._stock.leases.add(entry, entry.lease_us)
        if entry.receiver == self._node:
            return True
        self._reminders.expect(entry)
        return False
