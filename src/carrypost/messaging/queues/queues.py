"""Queues on one node, both sides of them: passes on what arrives, keeps open requests, and browses queues of others.

Questions. The manager is asked for a snapshot (`RemoteBrowses`). The answer contains ids, in order; the messages arrive
like those that any node carries. Messages that are here are reported up to the first missing one; after a while the
rest is reported without those that are missing.

Answers. A browse costs one item, and its answer up to a thousand ids, which travel to every carrier. So a node gets one
answer at a time, and the next one when waiting has paid for the last (`messaging.control`). All nodes together wait
for each other in the same way, in turn. A browse that has to wait is not lost. The number of waiting browses is
bounded, for a node and for all; the node with most of them loses one first.

The manager has the queues of this node, the receiver its consumers; the post sends items to other nodes. Beside them
are the holder of topics and its counterpart, the enrolments at other nodes' topics. Control messages are read here;
their author determines what they may ask for. Consequences of what arrived, such as a message that now goes to a
consumer, are handled by `follow_up`, before the step ends.

Open requests are those whose replies a program waits for: each has a row until its reply was received, or its deadline.
A request may take hours, and its program may restart meanwhile. The row records that the request was made, so that a
program that knows its correlation id can continue to wait. The reply itself is an ordinary message to a queue of this
node, which accepts only replies that a program waits for: others would fill it.
"""

from __future__ import annotations

from contextlib import suppress
from itertools import islice
from typing import TYPE_CHECKING, Any

import msgspec

from carrypost.application.control_outbox import UnstoredItem
from carrypost.application.ledger import Deadlines
from carrypost.errors import (
    IllegalStateException,
    InvalidDestinationException,
    PatternError,
    RemoteError,
    ResourceAllocationException,
)
from carrypost.gossip.interest.matcher import Matcher
from carrypost.gossip.layer import Part, Stored
from carrypost.gossip.transfers.arrivals_and_removals import strike
from carrypost.log.events import Browsed, Reason
from carrypost.messaging import control
from carrypost.messaging.commands import REPLIES, Browsing, Declare, OpenRequest
from carrypost.messaging.control import ANSWER_US, BROWSES_MAX, SNAPSHOT_MAX, items_of
from carrypost.messaging.held_topics import Holder
from carrypost.messaging.namespace import is_of_topic, name_here, source_of
from carrypost.messaging.queues.manager import Manager
from carrypost.messaging.queues.receiver import Receiver
from carrypost.messaging.subscriptions import Enrolments
from carrypost.model import address
from carrypost.model.ids import MessageId
from carrypost.model.pattern import entry
from carrypost.model.selector import Selector
from carrypost.model.times import MICROSECONDS, NEVER
from carrypost.security.sealing import SECRET_BYTES

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from carrypost.config import Limits
    from carrypost.gossip.holdings.copies import Copy
    from carrypost.messaging.claims import Claims
    from carrypost.messaging.commands import Receive
    from carrypost.messaging.context import MessagingContext
    from carrypost.messaging.control import Item
    from carrypost.messaging.namespace import Bind
    from carrypost.messaging.queues.demands import Demands
    from carrypost.messaging.queues.queue import Queue
    from carrypost.messaging.queues.receiver import QueueConsumer
    from carrypost.messaging.receipts import Receipts
    from carrypost.messaging.subscriptions import Topics
    from carrypost.model.descriptor import Descriptor
    from carrypost.model.ids import NodeId


def visible(queue: Queue, selector: str | None, limits: Limits, date_us: int) -> list[Descriptor]:
    """Return the live waiting messages of a queue, in order; delayed messages are not visible before their time."""
    waiting = [each.descriptor for each in queue.waiting if each.descriptor.alive(date_us)]
    if not selector:
        return waiting
    matcher = Matcher((entry(".*", selector),), limits, own=True)
    return [each for each in waiting if matcher.matches(each)]


def _glimpse(queue: Queue, selector: str, limits: Limits, date_us: int) -> tuple[list[Descriptor], int]:
    """Return the messages shown to a node, within its bounds, and the steps that its selector took."""
    try:
        weight = Selector(selector).weight if selector else 0
        matcher = Matcher((entry(".*", selector),), limits, own=True) if weight else None
    except PatternError:
        return [], 0  # Programs get errors for such selectors on their own node: this is a stranger's.
    seen = queue.waiting[: control.BROWSE_STEPS_MAX // weight] if weight else queue.waiting
    alive = (each.descriptor for each in seen if each.descriptor.alive(date_us))
    matching = (each for each in alive if matcher is None or matcher.matches(each))
    return list(islice(matching, control.SNAPSHOT_MAX)), weight * len(seen)


class Snapshots(Part):
    """The snapshots of this node's queues for other nodes."""

    def __init__(self, context: MessagingContext, demands: Demands) -> None:
        self._holdings, self._outputs, self._limits = context.holdings, context.outputs, context.limits
        self._demands, self._outbox, self._keyring = demands, context.outbox, context.keyring
        self._waiting: dict[NodeId, dict[int, control.Browse]] = {}
        """Browses by node, in turn, and by their numbers."""
        self._free_us: dict[NodeId, int] = {}
        """Times at which the next browse of each node may be answered."""
        self._all_free_us = 0
        """Time at which the next browse of any node may be answered."""

    def ask(self, item: control.Browse, node: NodeId, now: int) -> None:
        """Queue a node's browse of a queue."""
        if self._demands.open_to(item.queue, node) is None:
            return
        mine = self._waiting.get(node, {})
        if item.number not in mine and not self._has_room(node, len(mine)):
            self._outputs.refuse("looks", node)
            return
        self._waiting.setdefault(node, {})[item.number] = item
        self.expire(now)

    def _has_room(self, node: NodeId, mine: int) -> bool:
        if mine >= control.BROWSES_MAX:
            return False
        if sum(map(len, self._waiting.values())) < control.BROWSES_ALL_MAX:
            return True
        other = control.greediest(self._waiting, node)
        if other is None:
            return False
        self._waiting[other].popitem()
        self._outputs.refuse("looks", other)
        return True

    def expire(self, now: int) -> None:
        """Answer the browses whose turn has come."""
        self._free_us = {node: at for node, at in self._free_us.items() if at > now}
        while self._all_free_us <= now:
            node = next((each for each in self._waiting if each not in self._free_us), None)
            if node is None:
                break
            browses = self._waiting.pop(node)
            units = self._show(browses.pop(next(iter(browses))), node, now)
            if browses:
                self._waiting[node] = browses  # The others are next.
            self._free_us[node] = now + units * MICROSECONDS // control.UNITS_PER_S
            self._all_free_us = now + units * MICROSECONDS // control.UNITS_ALL_PER_S
        dues = [self._free_us.get(node, 0) for node in self._waiting]
        self.due_us = max(min(dues), self._all_free_us) if dues else NEVER

    def _wrapped_secrets(self, part: Sequence[Descriptor], key: bytes) -> bytes:
        """Return the secrets of these messages for the node that asked; empty if none is sealed, or it has no key."""
        if not key or all(each.unsealed is None for each in part):
            return b""
        secrets = [bytes(SECRET_BYTES) if each.unsealed is None else each.unsealed.secret for each in part]
        return self._keyring.wrap_secrets(key, b"".join(secrets))

    def _show(self, item: control.Browse, node: NodeId, now: int) -> int:
        """Answer one browse; return its cost."""
        queue = self._demands.open_to(item.queue, node)
        if queue is None:
            return control.ITEM_UNITS  # It ended meanwhile.
        date_us = self._holdings.date_of(now)
        found, steps = _glimpse(queue, item.selector, self._limits, date_us)
        for first in range(0, len(found) or 1, control.SNAPSHOT_PART):
            part = found[first : first + control.SNAPSHOT_PART]
            shown, secrets = tuple([each.id for each in part]), self._wrapped_secrets(part, item.key)
            listed = control.Snapshot(item.queue, item.number, date_us, first, len(found), shown, secrets)
            self._outbox.add(node, UnstoredItem(listed), until_us=now + control.ANSWER_US)
        read = control.ITEM_UNITS + control.SELECTOR_UNITS * len(item.selector)
        return read + steps // control.STEPS_PER_UNIT + control.ID_UNITS * len(found)


_PATIENCE_US = 10_000_000
"""Time that a snapshot waits for missing messages after the last one arrived."""


class RemoteBrowse:
    """One browse of another node's queue."""

    __slots__ = ("destination", "due_us", "manager", "messages", "number", "reported", "secrets", "taken_us", "total")

    def __init__(self, number: int, destination: str, manager: NodeId, due_us: int) -> None:
        self.number, self.destination, self.manager, self.due_us = number, destination, manager, due_us
        self.messages: dict[int, MessageId] = {}
        """Ids by place, as far as they are known."""
        self.secrets: dict[MessageId, bytes] = {}
        """Secrets of messages that are sealed, as far as they are known."""
        self.taken_us = 0
        """Time at which the manager took the snapshot; 0 before its answer."""
        self.reported = 0
        """Number of messages that were reported, or are not awaited any more."""
        self.total = 0
        """Number of messages in the snapshot, once it is known."""


class RemoteBrowses(Part):
    """Browses of other nodes' queues by the programs of one node."""

    def __init__(self, context: MessagingContext, receiver: Receiver) -> None:
        self._get, self._emit = context.holdings.cache.get, context.outputs.emit
        self._receiver, self._outbox, self._keyring = receiver, context.outbox, context.keyring
        self._open: dict[int, RemoteBrowse] = {}
        self._number = 0

    def open(self, destination: str, manager: NodeId, selector: str | None, now: int) -> int:
        """Ask a manager; return the number under which its answer is reported."""
        found = address.address(destination)
        assert found is not None  # A program named it, and it was found to be a queue.
        if len(self._open) >= BROWSES_MAX:
            self._give_up(next(iter(self._open.values())))
        # From the clock, so that a late answer to an earlier incarnation is not taken for one to this.
        self._number = max(self._number + 1, now)
        browse = RemoteBrowse(self._number, destination, manager, now + ANSWER_US)
        self._open[browse.number] = browse
        self._receiver.begin_browse(destination)
        asked = control.Browse(found.name, browse.number, selector or "", self._keyring.public)
        self._outbox.add(manager, UnstoredItem(asked), until_us=browse.due_us)
        self.due_us = min(self.due_us, browse.due_us)
        return browse.number

    def handle_snapshot(self, item: control.Snapshot, node: NodeId, now: int) -> None:
        """Handle a part of an answer."""
        browse = self._open.get(item.number)
        if browse is None or browse.manager != node or browse.taken_us not in (0, item.taken_us):
            return
        browse.taken_us = item.taken_us
        # A manager may claim any total; all up to it is looked for at each step.
        browse.total = min(item.total, SNAPSHOT_MAX)
        for place, message in enumerate(item.messages, item.first):
            if place < browse.total:
                browse.messages[place] = MessageId(message)  # If it is none, no copy has it.
        secrets = self._keyring.unwrap_secrets(item.secrets)
        for at, message in enumerate(item.messages if secrets else ()):
            browse.secrets[MessageId(message)] = secrets[at * SECRET_BYTES : (at + 1) * SECRET_BYTES]
        self._wait(browse, now)
        self._emit_next(browse)

    def arrived(self, copy: Copy) -> None:
        """Handle a message of another node's queue."""
        for browse in list(self._open.values()):
            if browse.taken_us and browse.messages.get(browse.reported) == copy.id:
                self._emit_next(browse)

    def _wait(self, browse: RemoteBrowse, now: int) -> None:
        browse.due_us = now + _PATIENCE_US
        self.due_us = min(self.due_us, browse.due_us)

    def _emit_next(self, browse: RemoteBrowse) -> None:
        """Report messages that are here, up to the first missing one."""
        found: list[Descriptor] = []
        while browse.reported < browse.total and (descriptor := self._descriptor(browse, browse.reported)) is not None:
            found.append(descriptor)
            browse.reported += 1
        complete = browse.reported >= browse.total
        if found or complete:
            self._emit(Browsed(browse.number, tuple(found), browse.taken_us, complete))
        if complete:
            self._close(browse)

    def _descriptor(self, browse: RemoteBrowse, place: int) -> Descriptor | None:
        message = browse.messages.get(place)
        copy = None if message is None else self._get(message)
        whole = copy is not None and copy.whole and address.addressee(copy.descriptor.destination) == browse.manager
        if not whole or copy is None:
            return None
        if copy.descriptor.is_sealed and copy.opened is None:
            with suppress(RemoteError):  # Then it is left out.
                self._keyring.open(copy, browse.secrets.get(copy.id, b""))
            return copy.opened
        return copy.readable

    def _close(self, browse: RemoteBrowse) -> None:
        del self._open[browse.number]
        self._receiver.end_browse(browse.destination)

    def expire(self, now: int) -> None:
        """Stop waiting for missing messages."""
        for browse in [each for each in self._open.values() if each.due_us <= now]:
            self._give_up(browse)
        self.due_us = min([each.due_us for each in self._open.values()], default=NEVER)

    def _give_up(self, browse: RemoteBrowse) -> None:
        """Report the messages that are here, without the missing ones."""
        places = range(browse.reported, browse.total)
        here = tuple([found for place in places if (found := self._descriptor(browse, place)) is not None])
        self._emit(Browsed(browse.number, here, browse.taken_us, complete=True))
        self._close(browse)


CALLS_MAX = 10_000
"""Number of open requests; a program that never receives replies gets an exception."""


class OpenRequests(Deadlines):
    """The open requests of one node, by correlation id."""

    def __init__(self, context: MessagingContext) -> None:
        super().__init__(context.ledger, b"P")
        self._replies = address.queue(REPLIES, context.node)

    def all_open(self) -> tuple[OpenRequest, ...]:
        """Return the calls without a reply whose time is not over."""
        return tuple(OpenRequest(correlation, due_us) for correlation, due_us in self._until_us.items())

    def refusal(self, descriptor: Descriptor) -> str:
        """Return the reason to reject a message to this node's queue of replies; empty if there is none."""
        if descriptor.destination != self._replies:
            return ""
        correlation = None if descriptor.headers is None else descriptor.headers.correlation
        return "" if correlation in self._until_us else "nobody waits for this reply"

    def remember(self, correlation: str, deadline_us: int) -> None:
        """Open a request that is about to be sent."""
        if correlation in self._until_us:
            raise IllegalStateException(
                f"a request with the correlation id {correlation!r} is open on this node: choose another"
            )
        if len(self._until_us) >= CALLS_MAX:
            raise ResourceAllocationException(
                f"{len(self._until_us):,} requests are open on this node: receive their replies first"
            )
        self._put(correlation, deadline_us)


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
        return [address.written(address.queue(each.queue, self._node)) for each in self.manager.entries_of(message)]

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
            queue = self.manager.declared.declare(Declare(name))
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
