"""Queues on one node, both sides of them: passes on what arrives, and does what is due.

The manager has the queues of this node, the receiver its consumers; the post sends items to other nodes. Beside them
are the holder of topics and its counterpart, the enrolments at other nodes' topics. Control messages are read here;
their author determines what they may ask for. Consequences of what arrived, such as a message that now goes to a
consumer, are handled by `follow_up`, before the step ends.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from carrypost.errors import IllegalStateException, InvalidDestinationException
from carrypost.gossip.composite import Part, Stored
from carrypost.gossip.transfers.purging import strike
from carrypost.log.events import Reason
from carrypost.messaging import control
from carrypost.messaging.commands import Browsing, Declare
from carrypost.messaging.control import items_of
from carrypost.messaging.dead_letters import is_of_topic, name_here, source_of
from carrypost.messaging.enrolments import Enrolments
from carrypost.messaging.holder import Holder
from carrypost.messaging.queues.manager import Manager
from carrypost.messaging.queues.open_requests import OpenRequests
from carrypost.messaging.queues.receiver import Receiver
from carrypost.messaging.queues.remote_browses import RemoteBrowses
from carrypost.messaging.queues.snapshots import Snapshots, visible
from carrypost.model import address
from carrypost.model.ids import MessageId
from carrypost.model.pattern import entry
from carrypost.model.times import NEVER

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from carrypost.gossip.holdings.copies import Copy
    from carrypost.messaging.claims import Claims
    from carrypost.messaging.commands import Receive
    from carrypost.messaging.context import MessagingContext
    from carrypost.messaging.control import Item
    from carrypost.messaging.names.namespace import Bind
    from carrypost.messaging.queues.queue import Queue
    from carrypost.messaging.queues.queue_consumer import QueueConsumer
    from carrypost.messaging.receipts import Receipts
    from carrypost.messaging.topic import Topics
    from carrypost.model.ids import NodeId

_QUEUE, _CONTROL, _HOLDER, _NOTICE = address.BETWEEN_NODES
ADDRESSED = address.BETWEEN_NODES
"""Prefixes of destinations of queues."""


class Queues(Part):
    """The queues that one node manages, and those that it receives from."""

    def __init__(self, context: MessagingContext, claims: Claims, receipts: Receipts, topics: Topics) -> None:
        self._host_context, self._node, self._limits = context.host_context, context.node, context.limits
        self._holdings, self._outputs, self._interests = context.holdings, context.outputs, context.interests
        self._deliveries, self._claims = context.deliveries, claims
        self.outbox = context.outbox
        self.manager = Manager(context)
        self.receiver = Receiver(context, claims, self.manager)
        self._browsings = RemoteBrowses(context, self.receiver)
        self._showing = Snapshots(context, self.manager.demands)
        self.calls = OpenRequests(context)
        self.holder, self.enrolling = Holder(context), Enrolments(context, topics)
        self.parts = (
            self, *self.manager.parts, *self.receiver.parts, self._browsings, self._showing, self.calls,
            self.holder.enrolled, self.holder, self.enrolling,
        )  # fmt: skip
        demands, enrolled = self.manager.demands, self.holder.enrolled
        self.handlers: dict[type[Item], Callable[[Any, NodeId, int, int], object]] = {
            control.Ask: lambda item, node, _, now: demands.ask(item, node, now),
            control.Withdraw: lambda item, node, until_us, now: demands.withdraw(item, node, now, until_us),
            control.Acknowledge: lambda item, node, *_: self.manager.answered(item, node),
            control.Release: lambda item, node, *_: self.manager.answered(item, node),
            control.Assign: lambda item, node, _, now: self.receiver.assigned(item, node, now),
            control.Gone: self._gone,
            control.Outcome: lambda item, node, *_: receipts.handle_outcome(item, node),
            control.Browse: lambda item, node, _, now: self._showing.ask(item, node, now),
            control.Snapshot: lambda item, node, _, now: self._browsings.handle_snapshot(item, node, now),
            control.Enrol: lambda item, node, _, now: enrolled.enrol(item, node, now),
            control.Leave: enrolled.leave,
        }
        """Handlers of each kind of item: item, author, end of its message, now. Other parts add some."""
        self._read: list[Copy] = []
        """Control messages to this node that were processed: they are not needed any more."""

    def overview(self) -> dict[str, int]:
        """Return an overview of queues."""
        queues = list(self.manager.declared)
        entries = sum(len(queue.entries) for queue in queues)
        return {"queues": len(queues), "entries": entries, "receiving": len(self.receiver)}

    def unattended(self) -> Iterator[str]:
        """Yield the queues of this node in which messages wait without a receiver."""
        return (address.written(each.destination) for each in self.manager.declared if each.waiting and not any(each))

    def having(self, message: MessageId) -> list[str]:
        """Return the queues of this node that contain a message."""
        return [address.written(address.queue(name, self._node)) for name in self.manager.having(message)]

    def restore(self, stored: Stored, now: int) -> None:  # noqa: ARG002 - its parts have rows
        """Carry messages for queues of all nodes, and want those for this node."""
        self._interests.carry([entry(f"{prefix}.*") for prefix in ADDRESSED])
        self._deliveries.want(entry(address.EVERYBODY), advertised=False)
        me = address.exactly(address.control(self._node))
        mine = [address.exactly(made("x", self._node)[:-1]) + ".*" for made in (address.queue, address.holder)]
        for pattern in (me, *mine):
            self._deliveries.want(entry(pattern), advertised=False)

    # --- a layer's part ------------------------------------------------------------------------------------

    def receive(self, copy: Copy, now: int) -> bool:
        """Handle a message between nodes; return True if subscriptions to topics may have it."""
        if not copy.here:
            return False  # A notice that came with it says that it is of no use.
        destination = copy.descriptor.destination
        if destination.startswith(_NOTICE):
            return self.enrolling.admits(copy)
        if destination.startswith(_HOLDER):
            return address.addressee(destination) == self._node and self.holder.arrived(copy)
        if destination.startswith(_CONTROL):
            self._read_control(copy, now)
        elif address.addressee(destination) == self._node:
            self.manager.arrived(copy, now, self.calls.refusal(copy.readable))
        else:
            self.receiver.arrived(copy)
            self._browsings.arrived(copy)
        return False

    def decline(self, copy: Copy) -> None:
        """Drop a message that `receive` offered to subscriptions and that none of them wants."""
        if copy.descriptor.destination.startswith(_NOTICE):
            self.enrolling.decline(copy)

    def forsake(self, destination: str) -> None:
        """Drop notifications of a topic without subscriptions on this node any more."""
        notice = address.notice_of(destination)
        for copy in self._holdings.known_copies():
            wanted = copy.here and copy.descriptor.destination == notice and self._node in copy.descriptor.listed
            if wanted and not self._claims.of(copy.id):
                self.enrolling.decline(copy)

    def _read_control(self, copy: Copy, now: int) -> None:
        descriptor = copy.descriptor
        for_all = descriptor.destination == address.EVERYBODY
        if for_all:  # From now on it is only carried, for nodes that did not read it yet.
            self._holdings.cache.set_interesting(copy, False)
        if self._holdings.is_confirmed(copy) or descriptor.node == self._node:
            return
        if not for_all and address.addressee(descriptor.destination) != self._node:
            return
        items, unread = items_of(descriptor, self._holdings.lead_us)
        if unread:
            self._outputs.refuse("control", descriptor.node, descriptor.shown, count=unread)
        until_us = NEVER if descriptor.deadline_us is None else descriptor.deadline_us
        if for_all:
            purged = [MessageId(item.message) for item in items if isinstance(item, control.Purge)]
            strike(self._host_context, purged, descriptor.node, until_us)
            items = [item for item in items if not isinstance(item, control.Purge)]
        for item in items:
            if for_all or isinstance(item, control.Purge):
                self._outputs.refuse("control", descriptor.node, descriptor.shown)
            else:
                self._act(item, descriptor.node, self._holdings.own_time(until_us), now)
        if not for_all:
            self._read.append(copy)
            self._holdings.acknowledge(copy.id, until_us)

    def _act(self, item: Item, node: NodeId, until_us: int, now: int) -> None:
        """Pass an item to its handler; `until_us` is the end of its message."""
        self.handlers[type(item)](item, node, until_us, now)

    def _gone(self, item: control.Gone, node: NodeId, _: int, now: int) -> None:
        if item.known:
            self.manager.demands.handle_gone(item, node)
        else:
            self.receiver.gone(item, node, now)

    def follow_up(self, now: int) -> None:
        """Handle the consequences of what arrived, was requested or was due."""
        if self.manager.lapsed:
            self.receiver.withdraw_lapsed()
        for item in self.outbox.pop_own(now):
            self._act(item, self._node, NEVER, now)
        self.receiver.adopt_returned()
        for entry_, demand in self.manager.assign(now):
            self.receiver.assign_local(entry_, demand)

    def finish(self, now: int) -> None:
        """End a step."""
        if self.manager.closed.own:
            for item in self.manager.closed.pop_own():
                self._act(item, self._node, NEVER, now)
        if self._read:
            read, self._read = self._read, []
            for copy in read:
                if copy.here:
                    self._holdings.discard(copy, Reason.PURGED, done=True)
        if self.holder.enrolled.connected:
            self.holder.enrolled.drop_unreachable(now)

    # --- commands ------------------------------------------------------------------------------------------

    def declare(self, asked: Declare) -> Queue:
        """Return a queue of this node, declared now unless it is here already."""
        return self.manager.declared.declare(asked)[0]

    def asks(self, destination: str) -> bool:
        """Return True if a consumer of this node receives from a queue."""
        return self.receiver.asks(destination)

    def counts(self, destination: str) -> tuple[tuple[NodeId, int], ...]:
        """Return the nodes that consumed most from a queue of this node, and how much; empty for anything else."""
        queue = self.manager.declared.get(destination)
        return () if queue is None else queue.tally.most()

    def described(self, asked: Bind) -> Bind:
        """Return a request to bind a name, completed with what others may know of its queue if that is here."""
        queue = self.manager.declared.get(asked.destination)
        return asked if queue is None else msgspec.structs.replace(asked, receivers=queue.asked.receivers)

    def end(self, destination: str) -> None:
        """End a queue of this node."""
        queue = self.manager.declared.managed(destination)
        if any(demand.node == self._node for demand in queue):
            raise IllegalStateException(f"the queue {queue.asked.name!r} has consumers on this node: close them first")
        self.manager.end(queue, "its queue ended")
        self.receiver.queue_ended(destination)

    def open(self, asked: Receive, connection: int, now: int) -> QueueConsumer:
        """Open a consumer of a queue, here or elsewhere."""
        return self.receiver.open(asked, self._manager_of(asked.destination, connection), now)

    def _manager_of(self, destination: str, connection: int) -> NodeId:
        """Return the manager of a queue that a connection may receive from."""
        manager = address.addressee(destination)
        if manager is None or not destination.startswith(_QUEUE):
            raise InvalidDestinationException(f"no queue has the address {destination!r}")
        queue = self.manager.declared.reach(destination)
        if queue is None and is_of_topic(name := name_here(destination, self._node)):
            queue, _ = self.manager.declared.declare(Declare(name))
        if queue is not None and queue.asked.connection not in (0, connection):
            raise InvalidDestinationException(
                f"{queue.asked.name!r} is a temporary queue of another connection, which alone may receive from it"
            )
        return manager

    def letters_named(self, name: str) -> str | None:
        """Return the address of the queue for dead letters that this node has, or may have, by a bare name."""
        source = source_of(name)
        if not source:
            return None
        destination = address.queue(name, self._node)
        known = (destination, address.queue(source, self._node))
        return destination if is_of_topic(name) or any(map(self.manager.declared.get, known)) else None

    def end_temporary(self, connection: int) -> None:
        """End the temporary queues of a connection that is closed."""
        for queue in [each for each in self.manager.declared if each.asked.connection == connection]:
            self.manager.end(queue, "its queue ended")
            self.receiver.queue_ended(queue.destination)

    def browse(self, destination: str, selector: str | None, connection: int, now: int) -> Browsing:
        """Return the messages in a queue or, for another node's queue, the number under which they are reported."""
        manager = self._manager_of(destination, connection)
        if manager != self._node:
            return Browsing(self._browsings.open(destination, manager, selector, now))
        queue = self.manager.declared.managed(destination)
        date_us = self._holdings.date_of(now)
        return Browsing(0, date_us, tuple(visible(queue, selector, self._limits, date_us)))
