"""The receiving side of queues: consumers of this node, their demands, and the messages assigned to them.

Every consumer of a queue has a demand of its own at the queue's manager, here or elsewhere, with the credit that it was
given (`QueueConsumer`); the demand is renewed while the consumer is open, and withdrawn when it closes. A message is
handed out when it was assigned and is here, in whichever order that happens.

A message that a program may have seen stays with this node: it comes again, flagged, to the next consumer here. A
message that no program saw is given back when its consumer closes; after a restart, when no consumer asked for it for a
while.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from carrypost.application.control_outbox import Subject, UnstoredItem
from carrypost.gossip.interest.matcher import Matcher
from carrypost.gossip.layer import Part, Stored
from carrypost.log.events import Reason
from carrypost.messaging import control
from carrypost.messaging.claim_and_claimant import Claimant, ClaimState
from carrypost.messaging.control import ASSIGNED_MAX, REQUEST_US
from carrypost.messaging.namespace import DEAD_LETTERS
from carrypost.messaging.queues.received_assignments import Assignment, Assignments, DemandedQueues, LocalTenure
from carrypost.messaging.queues.reminders_and_gaps import HeardNumbers, Ranges
from carrypost.model import address, pattern
from carrypost.model.ids import MessageId
from carrypost.model.times import NEVER

if TYPE_CHECKING:
    from collections.abc import Sequence

    from carrypost.application.keyring import Keyring
    from carrypost.config import Limits
    from carrypost.gossip.holdings.copies import Copy
    from carrypost.messaging.claim_and_claimant import Tenure
    from carrypost.messaging.claims import Claims
    from carrypost.messaging.commands import Receive
    from carrypost.messaging.context import MessagingContext
    from carrypost.messaging.control import Item
    from carrypost.messaging.queues.entries import QueueEntry
    from carrypost.messaging.queues.manager import Manager
    from carrypost.messaging.queues.queue import Demand, Queue
    from carrypost.model.descriptor import Descriptor
    from carrypost.model.ids import NodeId


class Returned:
    """Messages that consumers of queues missed or gave back, until the receiver processes them."""

    __slots__ = ("late", "tenures", "unserved")

    def __init__(self) -> None:
        self.unserved: list[QueueConsumer] = []
        """Consumers that missed a message, and take another one instead."""
        self.tenures: list[Tenure] = []
        """Messages that sessions gave back."""
        self.late: list[QueueConsumer] = []
        """Consumers whose programs answered after a lease: they live, and their managers take them for silent."""


class QueueConsumer(Claimant, Subject):
    """A consumer of a queue: its demand, and the messages that wait for it."""

    __slots__ = (
        "_keyring", "_matcher", "_returned", "asking", "credit", "deadline_us", "heard", "local", "manager", "queue",
        "selector",
    )  # fmt: skip

    def __init__(
        self, number: int, asked: Receive, manager: NodeId, limits: Limits, returned: Returned, *, keyring: Keyring
    ) -> None:
        super().__init__(number, asked.destination, address.name_of(asked.destination) or asked.destination)
        found = address.address(asked.destination)
        assert found is not None  # A program named it, and it was found to be a queue.
        self.queue, self.manager = found.name, manager
        """The name of its queue, and the node that manages it."""
        self.selector = asked.selector or ""
        # Dead letters keep the destination that they were sent to.
        self._matcher = Matcher((pattern.entry(".*", asked.selector, limits=limits),), limits, own=True)
        self._returned, self._keyring = returned, keyring
        self.credit = 0
        """Total number of messages that it takes."""
        self.heard = HeardNumbers()
        self.deadline_us = 0
        """Time until which its demand was last extended."""
        self.asking = False
        """True if an item to the manager is on its way to the post."""
        self.local: tuple[Queue, Demand] | None = None
        """Demand of the consumer, if this node is the manager."""

    @property
    def destination(self) -> str:
        """The address of its queue."""
        return self.pattern

    def selects(self, descriptor: Descriptor) -> bool:
        """Return True for a message of its queue that it takes."""
        return not self.selector or self._matcher.matches(descriptor)

    def miss(self) -> None:
        """Note that the consumer does not get a message that was assigned to it."""
        self._returned.unserved.append(self)

    def answer_late(self) -> None:
        """Note that its program acknowledged or returned a message after its lease."""
        self._returned.late.append(self)

    def give_back(self, tenure: Tenure) -> None:
        """Return a message that none of its sessions has any more."""
        self._returned.tenures.append(tenure)

    def item(self) -> Item | None:
        """Return the demand to send to the manager; None if the consumer is closed."""
        self.asking = False
        if self.ended:
            return None
        return control.Ask(
            self.queue, self.number, self.credit, self.deadline_us, self.selector, self.heard.through,
            self._keyring.public,
        )  # fmt: skip


_IDLE_US = 60_000_000
"""Time after a restart for which assigned messages wait for a consumer before they are given back."""


class Receiver(Part):
    """The consumers of queues of one node."""

    def __init__(self, context: MessagingContext, claims: Claims, manager: Manager) -> None:
        self._node, self._limits, self._outputs = context.node, context.limits, context.outputs
        self._holdings, self._keyring = context.holdings, context.keyring
        self._deliveries, self._claims, self._manager, self._outbox = (
            context.deliveries,
            claims,
            manager,
            context.outbox,
        )
        self._assignments = Assignments(context)
        self._incarnation = context.incarnation
        self._demand = control.last_before(context.incarnation)
        self._open: dict[int, QueueConsumer] = {}
        """Open consumers by the numbers of their demands."""
        self._asked = DemandedQueues(context.ledger)
        self._idle: dict[str, dict[Tenure, Copy]] = {}
        """Messages that are this node's and that no consumer has, by queue."""
        self._interests: dict[str, list[int]] = {}
        """Interests of this node because of queues of other nodes."""
        self._browses: Counter[str] = Counter()
        """Number of programs that browse queues of other nodes."""
        self._returned = Returned()
        self.parts = self, self._asked

    def __len__(self) -> int:
        return len(self._open)

    # --- consumers -----------------------------------------------------------------------------------------

    def of(self, claimant: Claimant) -> QueueConsumer | None:
        """Return the demand of a claimant, if it is a consumer of a queue."""
        return self._open.get(claimant.number)

    def open(self, asked: Receive, manager: NodeId, now: int) -> QueueConsumer:
        """Open a consumer, which has no credit yet."""
        pattern.entry(address.exactly(asked.destination), limits=self._limits)  # Raises for too long an address.
        self._demand += 1
        receiving = QueueConsumer(self._demand, asked, manager, self._limits, self._returned, keyring=self._keyring)
        if manager == self._node:
            queue, place = self._manager.declared.managed(asked.destination), self._manager.demands.next_place()
            receiving.local = queue, queue.demand(self._node, self._demand, receiving.selector, place)
        else:
            self._want(asked.destination)
            receiving.deadline_us = now + REQUEST_US
            self._asked.add(asked.destination, now)
        self._open[self._demand] = receiving
        idle = self._idle.get(asked.destination, {})
        mine = [(each, copy) for each, copy in idle.items() if receiving.selects(copy.readable)]
        for tenure, copy in sorted(mine, key=_in_turn):
            del idle[tenure]
            self._give(receiving, tenure, copy)
        return receiving

    def grant(self, receiving: QueueConsumer, messages: int, now: int) -> None:
        """Raise the credit of a consumer."""
        receiving.credit += messages
        if receiving.local is not None:
            self._manager.demands.grant(*receiving.local, receiving.credit)
        else:
            self._ask(receiving, now)

    def _ask(self, receiving: QueueConsumer, now: int) -> None:
        receiving.deadline_us = now + REQUEST_US
        self._asked.add(receiving.destination, now)
        if not receiving.asking:
            receiving.asking = True
            self._outbox.add(receiving.manager, receiving, until_us=receiving.deadline_us)
        self.due_us = min(self.due_us, receiving.deadline_us - REQUEST_US // 2)

    def close(self, receiving: QueueConsumer) -> None:
        """Close a consumer: messages that wait for it are given back, or stay for the next one."""
        receiving.ended = True
        del self._open[receiving.number]
        if receiving.local is not None:
            self._manager.demands.leave(*receiving.local)
        else:
            self._withdraw(receiving.manager, receiving.queue, receiving.number, receiving.deadline_us)
        for claim in self._claims.unhanded(receiving):
            tenure = claim.tenure
            assert tenure is not None  # Claims to messages of queues have one each.
            copy = claim.copy
            self._claims.withdraw(claim)
            self._set_aside(tenure, copy)
        self._forget_interest(receiving.destination)

    def _set_aside(self, tenure: Tenure, copy: Copy) -> None:
        """Give a message without a consumer to another consumer of this node, give it back, or let it wait."""
        if not tenure.runs(self._holdings.now_us):
            if isinstance(tenure, Assignment) and tenure.stands:
                self._drop(tenure)
            return
        for other in self._open.values():
            if other.destination == tenure.queue and other.selects(copy.readable):
                self._give(other, tenure, copy)
                return
        if tenure.handed or (isinstance(tenure, Assignment) and tenure.release_us != NEVER):
            self._idle.setdefault(tenure.queue, {})[tenure] = copy
        else:
            tenure.release(dead=False)

    def adopt_returned(self) -> None:
        """Ask again for consumers that missed something, or were late; find other consumers for returned messages."""
        returned = self._returned
        unserved, returned.unserved = returned.unserved, []
        tenures, returned.tenures = returned.tenures, []
        late, returned.late = returned.late, []
        for each in late:
            self._show_up(each.number, self._holdings.now_us)
        for each in unserved:
            self._ask_instead(each.number, self._holdings.now_us)
        for tenure in tenures:
            if tenure.copy is not None:
                self._set_aside(tenure, tenure.copy)

    def _give(self, receiving: QueueConsumer, tenure: Tenure, copy: Copy) -> None:
        if isinstance(tenure, Assignment):
            tenure.release_us = NEVER
        self._claims.assign(copy, receiving, tenure)
        if not tenure.count:
            self._deliveries.claimed(copy)

    # --- queues of this node -------------------------------------------------------------------------------

    def assign_local(self, entry: QueueEntry, demand: Demand) -> None:
        """Take a message that a queue of this node assigned to a consumer here."""
        assert entry.copy is not None  # It was assigned in this step.
        receiving = self._open.get(demand.number)
        if receiving is not None:
            self._give(receiving, LocalTenure(self._manager, entry), entry.copy)

    def withdraw_lapsed(self) -> None:
        """Withdraw messages from consumers here whose leases are over and that they were not handed yet."""
        lapsed, self._manager.lapsed = self._manager.lapsed, []
        for entry in lapsed:
            for claim in [each for each in self._claims.of(entry.message) if each.state is not ClaimState.HANDED]:
                if isinstance(claim.tenure, LocalTenure) and claim.tenure.entry is entry:
                    self._claims.withdraw(claim)
            for idle in self._idle.values():
                for tenure in [each for each in idle if isinstance(each, LocalTenure) and each.entry is entry]:
                    del idle[tenure]

    def _keep_handed(self) -> None:
        """Keep messages that consumers here were handed before a restart for the next one."""
        handed, self._manager.handed = self._manager.handed, []
        for entry in handed:
            assert entry.copy is not None  # Entries without a copy are not restored.
            tenure = LocalTenure(self._manager, entry)
            self._claims.reserve(tenure.place)
            self._idle.setdefault(tenure.queue, {})[tenure] = entry.copy

    def queue_ended(self, destination: str) -> None:
        """Drop what belongs to a queue of this node that ended."""
        self._idle.pop(destination, None)

    # --- queues of other nodes -----------------------------------------------------------------------------

    def assigned(self, item: control.Assign, node: NodeId, now: int) -> None:
        """Process another node's assignment of a message to this node, or its repetition for lack of an answer."""
        destination, message = address.queue(item.queue, node), MessageId(item.message)
        known = self._assignments.get(node, message)
        if not self._may_assign(item.demand, destination, known):
            self._outputs.refuse("assignment", node)
            return
        repeated = known is not None and known.round >= item.round
        new = self._is_new(item, repeated=repeated)
        if 0 < item.lease_us <= now or 0 < item.until_us <= now:
            if new:  # It came too late; what was said before was seen to then.
                self._ask_instead(item.demand, now)
            return
        copy = self._holdings.cache.get(message)
        consumed = copy is not None and self._is_consumed(copy)
        if known is not None and known.stands and not known.handed and known.round < item.round:
            self._drop(known)  # Its lease was over by the manager's clock.
        self.due_us = min(self.due_us, item.lease_us or NEVER)
        assignment = self._assignments.add(item, destination, consumed=consumed)
        if assignment is not None:
            self._accept(assignment, item.queue, copy, now)
            return
        if item.again:
            self._show_up(item.demand, now)  # What else was said meanwhile may be lost as well.
        if not repeated:  # A session has it, or is done with it.
            self._claims.recount(message)
        if new:
            self._ask_instead(item.demand, now)

    def _is_new(self, item: control.Assign, *, repeated: bool) -> bool:
        """Record an assignment's number; return True if its demand has not heard of it before."""
        receiving = self._open.get(item.demand)
        if receiving is None or not 0 < item.number <= receiving.credit:  # An earlier version says no number.
            return not (repeated or item.again)
        return receiving.heard.note(item.number, item.number) > 0

    def gone(self, item: control.Gone, node: NodeId, now: int) -> None:
        """Process assignments of another node's queue that ended; ask for others in place of those that never came."""
        destination = address.queue(item.queue, node)
        receiving = self._open.get(item.demand)
        if receiving is not None and receiving.destination == destination:
            credit, heard = receiving.credit, receiving.heard
            ranges = [(first, last) for first, last in Ranges(item.numbers) if 0 < first <= last <= credit]
            if new := sum(heard.note(*each) for each in ranges):
                self.grant(receiving, new, now)
            else:
                known = control.Gone(item.queue, item.demand, item.numbers, known=True)
                self._outbox.add(node, UnstoredItem(known), until_us=now + REQUEST_US)
        elif destination in self._asked and item.demand <= self._demand:
            self._withdraw(node, item.queue, item.demand, now + REQUEST_US)
        else:
            self._outputs.refuse("assignment", node)

    def _withdraw(self, manager: NodeId, queue: str, demand: int, until_us: int) -> None:
        """Inform a manager that no consumer waits for a demand's messages any more."""
        self._outbox.add(manager, UnstoredItem(control.Withdraw(queue, demand)), until_us=until_us)

    def _is_consumed(self, copy: Copy) -> bool:
        """Return True if a consumer here acknowledged it.

        Confirmed messages that were never claimed had a plain subscription.
        """
        return not self._claims.claimable(copy) and (self._holdings.is_claimed(copy) or not copy.here)

    def _accept(self, assignment: Assignment, queue: str, copy: Copy | None, now: int) -> None:
        """Take a message of a queue that was assigned to this node, whether it is here or not."""
        self._want(assignment.queue)
        if control.incarnation_of(assignment.demand) != self._incarnation:
            # An earlier incarnation asked for it, and no consumer waits for more.
            assignment.release_us = now + _IDLE_US
            self._withdraw(assignment.manager, queue, assignment.demand, now + REQUEST_US)
        if copy is not None and copy.finished and not copy.here:
            self._holdings.cache.remove(copy, Reason.EXPIRED)  # It was published here, and is wanted again.
        if copy is not None and copy.whole:
            self._attach(assignment, copy)
        elif assignment.release_us == NEVER and not self.asks(assignment.queue):
            assignment.release(dead=False)
        self.due_us = min(self.due_us, assignment.until_us, assignment.release_us)

    def _ask_instead(self, demand: int, now: int) -> None:
        """Ask for another message for a consumer whose assignment does not reach it."""
        if (receiving := self._open.get(demand)) is not None:
            self.grant(receiving, 1, now)

    def _may_assign(self, demand: int, destination: str, known: Assignment | None) -> bool:
        """Return True if this node may have made that demand to that queue, and has room for the assignment."""
        receiving = self._open.get(demand)
        if (receiving is not None and receiving.destination != destination) or demand > self._demand:
            return False
        if known is not None and known.queue == destination:
            return True
        return destination in self._asked and self._assignments.has_room(destination, ASSIGNED_MAX)

    def asks(self, destination: str) -> bool:
        """Return True if a consumer of this node receives from a queue."""
        return any(each.destination == destination for each in self._open.values())

    def arrived(self, copy: Copy) -> None:
        """Attach a message of another node's queue to its assignment, if there is one."""
        assignment = self._assignments.of(copy)
        if assignment is not None and assignment.copy is None and assignment.stands:
            self._attach(assignment, copy)

    def _attach(self, assignment: Assignment, copy: Copy) -> None:
        if address.addressee(copy.descriptor.destination) != assignment.manager:
            self._outputs.refuse("assignment", assignment.manager)
            self._assignments.forget(assignment)
            return
        self._assignments.attach(assignment, copy)
        if copy.descriptor.is_sealed and copy.opened is None:
            # The manager brought no secret that opens it: it keeps the message as a dead letter.
            self._outputs.refuse("seal", assignment.manager, copy.descriptor.shown)
            assignment.release(dead=True, error="the message could not be opened")
            return
        receiving = self._open.get(assignment.demand)
        if receiving is not None and receiving.destination == assignment.queue:
            self._give(receiving, assignment, copy)
        else:
            self._set_aside(assignment, copy)

    def begin_browse(self, destination: str) -> None:
        """Want the messages of another node's queue, without receiving any of them."""
        self._browses[destination] += 1
        self._want(destination)

    def end_browse(self, destination: str) -> None:
        """Note that a program stopped browsing a queue."""
        self._browses[destination] -= 1
        self._browses = +self._browses
        self._forget_interest(destination)

    def _want(self, destination: str) -> None:
        if destination in self._interests:
            return
        found = address.address(destination)
        assert found is not None  # The address of a queue that a program named, or that its manager was asked for.
        assert found.node is not None
        wanted = [destination]
        if found.name.startswith(DEAD_LETTERS) and found.name != DEAD_LETTERS:
            wanted.append(address.queue(found.name.removeprefix(DEAD_LETTERS), found.node))
        self._interests[destination] = [
            self._deliveries.want(pattern.entry(address.exactly(each)), advertised=False) for each in wanted
        ]

    def _forget_interest(self, destination: str) -> None:
        if destination not in self._interests or self._browses[destination] or self.asks(destination):
            return
        if any(each.queue == destination and each.stands for each in self._assignments.all()):
            return
        self._deliveries.unsubscribe(self._interests.pop(destination))

    def left(self, copies: Sequence[Copy], reason: Reason) -> None:  # noqa: ARG002 - whatever the reason is
        """Handle copies that are gone before they were consumed."""
        for copy in copies if len(self._assignments) or self._idle else ():
            assignment = self._assignments.of(copy)
            if assignment is not None and assignment.copy is copy and assignment.stands:
                self._assignments.forget(assignment)
                if not assignment.handed:
                    self._ask_instead(assignment.demand, self._holdings.now_us)
            for idle in self._idle.values():
                for tenure in [each for each, other in idle.items() if other is copy]:
                    del idle[tenure]

    # --- time ----------------------------------------------------------------------------------------------

    def expire(self, now: int) -> None:
        """Renew demands, give back what no consumer asks for, and drop what is not this node's any more."""
        for receiving in self._open.values():
            if receiving.local is None and receiving.deadline_us - now <= REQUEST_US // 2:
                self._ask(receiving, now)
        for each in self._assignments.all():
            lapsed = each.stands and 0 < each.lease_us <= now
            if lapsed and (each.instead or each.deferred_us):
                self._show_up(each.instead or each.demand, now)
                each.instead = each.deferred_us = 0
            if each.until_us <= now or (lapsed and not self._is_handed_now(each)):
                self._drop(each)
            elif each.stands and each.release_us <= now:
                self._forget_idle(each)
                each.release_us = NEVER
                each.release(dead=False)
        self._look_ahead()

    def _show_up(self, demand: int, now: int) -> None:
        """Show the manager that a consumer is alive, after a missing answer or a lease that ended."""
        if (receiving := self._open.get(demand)) is not None:
            self.grant(receiving, 0, now)

    def _is_handed_now(self, assignment: Assignment) -> bool:
        """Return True if a session has it, and may still acknowledge it."""
        return any(claim.state is ClaimState.HANDED for claim in self._claims.of(assignment.message))

    def _drop(self, assignment: Assignment) -> None:
        if assignment.stands and not assignment.handed:
            self._ask_instead(assignment.demand, self._holdings.now_us)
        for claim in [each for each in self._claims.of(assignment.message) if each.tenure is assignment]:
            if claim.state is not ClaimState.HANDED:
                self._claims.withdraw(claim)
        self._forget_idle(assignment)
        self._assignments.forget(assignment)
        self._forget_interest(assignment.queue)

    def _forget_idle(self, assignment: Assignment) -> None:
        self._idle.get(assignment.queue, {}).pop(assignment, None)

    def _look_ahead(self) -> None:
        now = self._holdings.now_us
        dues = [each.deadline_us - REQUEST_US // 2 for each in self._open.values() if each.local is None]
        for each in self._assignments.all():
            dues += [each.until_us, each.release_us]
            if each.lease_us and each.stands and (each.lease_us > now or not self._is_handed_now(each)):
                dues.append(each.lease_us)
        self.due_us = min(dues, default=NEVER)

    # --- the store -----------------------------------------------------------------------------------------

    def restore(self, stored: Stored, now: int) -> None:
        """Restore the assignments to this node after a restart."""
        self._keep_handed()
        for assignment in self._assignments.read(stored):
            if not assignment.stands:
                continue
            self._claims.reserve(assignment.place)
            if not assignment.handed:
                assignment.release_us = now + _IDLE_US
            self._want(assignment.queue)
            if assignment.copy is not None:
                self._idle.setdefault(assignment.queue, {})[assignment] = assignment.copy
        self._look_ahead()


def _in_turn(waiting: tuple[Tenure, Copy]) -> tuple[bool, int, int, int, bytes]:
    """Return the sort key of a message that no consumer has: those handed over first, then by priority and age."""
    tenure, copy = waiting
    descriptor = copy.descriptor
    return not tenure.handed, tenure.place, -descriptor.priority, descriptor.created_us, copy.id
