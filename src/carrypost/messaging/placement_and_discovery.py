"""Placement of queues at other nodes, and discovery of other nodes' names: questions between nodes, and answers.

Placement (EMMA §3.1.1). A node asks another one to manage a queue, which accepts or declines. The program that declares
a queue gives a policy, which is shown how many messages each node consumed from queues of that name, and returns a
node. `Placements` does the rest: it asks that node (`Place`), decides as the node that is asked, and reports the answer
(`Placed`). After a refusal the program decides whether to ask another node.

The one invariant of placement: an acceptance is sent once the queue and its name are durable. A node that is asked
twice for a queue with the same options accepts twice, and has one queue; so a program that got no answer may ask again.

Discovery (EMMA §3.1.1). A node asks all nodes that it is connected with for their names of topics and queues
(`Discoveries`). Questions and answers are messages for connected nodes alone, which are not carried: the result is what
can be reached now. It does not enter the directory, which advertisements alone change. A node answers with what it
advertises, and keeps names that are not advertised to itself.

The one invariant of discovery: an answer counts from a node that was asked, for the names of that node, until the
discovery ends.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, NamedTuple

from carrypost.application.control import ROOM_BYTES
from carrypost.application.control_outbox import UnstoredItem
from carrypost.errors import (
    ConfigError,
    IllegalArgumentException,
    JMSException,
    PatternError,
    ResourceAllocationException,
)
from carrypost.gossip.layer import Part, Stored
from carrypost.gossip.transfers.accounts import Budget
from carrypost.messaging import control
from carrypost.messaging.commands import Declare, Discovered, PlaceAnswered, Redelivery
from carrypost.messaging.control import (
    ANSWER_US,
    DISCOVERIES_MAX,
    DISCOVERIES_PER_S,
    DISCOVERY_UNITS,
    PLACE_UNITS,
    PLACED_NAMES_MAX,
    PLACES_MAX,
    PLACES_PER_S,
    REQUEST_US,
    SAVED_S,
    Accounts,
    control_draft,
)
from carrypost.messaging.directory import NAMES_MAX, OWNER_MAX, may_say
from carrypost.messaging.namespace import DEAD_LETTERS, Bind, Binding, fault_of, room_for
from carrypost.messaging.queues.queue import OWN
from carrypost.model import address
from carrypost.model.address import Kind
from carrypost.model.descriptor import Ordering
from carrypost.model.ids import NodeId
from carrypost.model.pattern import PatternSet, entry
from carrypost.model.times import NEVER, TIME_US_MAX

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

    from carrypost.config import Settings
    from carrypost.gossip.draft import Draft
    from carrypost.messaging.context import MessagingContext
    from carrypost.messaging.directory import Directory
    from carrypost.messaging.queues.queues import Queues


Policy = Callable[[Mapping[NodeId, int], NodeId], NodeId | Awaitable[NodeId]]
"""Function that chooses the manager of a queue, from the messages that each node consumed and the id of the asking
node."""


def here(_: Mapping[NodeId, int], here: NodeId) -> NodeId:
    """Choose the node whose program declares the queue."""
    return here


def most_receiving(counts: Mapping[NodeId, int], here: NodeId) -> NodeId:
    """Choose the node that consumed most from queues of this name; if none did, the node that asks."""
    return max(counts, key=lambda node: (counts[node], node == here, node)) if counts else here


class _Question(NamedTuple):
    """A question that this node asked."""

    command: int
    node: NodeId
    """The node that was asked, and that alone may answer."""
    until_us: int


class Placements(Part):
    """The queues that this node asks others to manage, and those that others ask it to manage."""

    def __init__(self, context: MessagingContext, queues: Queues, directory: Directory) -> None:
        self._node, self._outputs, self._outbox = context.node, context.outputs, context.outbox
        self._queues, self._directory = queues, directory
        self._bytes_max = context.limits.destination_bytes_max
        self._manages = _manages(context.settings)
        self._accounts, self._budget = Accounts(), Budget(PLACES_PER_S, SAVED_S)
        self._open: dict[int, _Question] = {}
        """Questions by number; at most `PLACES_MAX`."""
        self._number = 0
        queues.handlers[control.Place] = self._asked
        queues.handlers[control.Placed] = self._answered

    def restore(self, stored: Stored, now: int) -> None:  # noqa: ARG002 - the rows are those of names
        """Continue the counts that were advertised before a restart."""
        for queue in self._queues.manager.declared:
            for name in self._directory.names.bound_to(queue.destination):
                queue.tally.restore(name.counts)

    def counts(self, name: str) -> dict[NodeId, int]:
        """Return how many messages nodes consumed from the queues of a name, as far as this node knows."""
        found = {each.destination: each.counts for each in self._directory.names.find(name, Kind.QUEUE)}
        own = address.queue(name, self._node)
        total: Counter[NodeId] = Counter()
        for destination, counts in (found | {own: ()}).items():
            total.update(dict(self._queues.counts(destination) if destination == own else counts))
        return dict(total)

    # --- asking --------------------------------------------------------------------------------------------

    def ask(self, command: int, asked: Declare, node: NodeId, until_us: int, now: int, *, advertise: bool) -> None:
        """Ask a node to manage a queue; `PlaceAnswered` of this command follows, by `until_us` at the latest."""
        if len(self._open) >= PLACES_MAX:
            raise ResourceAllocationException(f"{PLACES_MAX} nodes are being asked to manage queues: wait for answers")
        until_us = min(until_us, TIME_US_MAX)
        # From the clock, so that a late answer to an earlier incarnation is not taken for one to this.
        self._number = max(self._number + 1, now)
        place = control.Place(
            asked.name, self._number, until_us, asked.lease_us, asked.policy, asked.receivers, advertise,
            asked.tries, asked.sealed,
        )  # fmt: skip
        addressable = node and len(address.control(node).encode()) <= self._bytes_max
        if not addressable or not control.is_readable(place):
            raise IllegalArgumentException(f"the node {node!r} cannot be asked to manage {asked!r}"[:300])
        self._open[self._number] = _Question(command, node, until_us)
        self.due_us = min(self.due_us, until_us)
        self._outbox.add(node, UnstoredItem(place), until_us=until_us)

    def _answered(self, item: control.Placed, node: NodeId, *_: int) -> None:
        """Report the answer of the node that was asked; any other answer is ignored."""
        question = self._open.get(item.number)
        if question is None or question.node != node:
            self._outputs.refuse("placement", node)
            return
        del self._open[item.number]
        reason = None if item.accepted else item.reason
        self._outputs.emit(PlaceAnswered(question.command, item.accepted, reason))

    def expire(self, now: int) -> None:
        """Give up questions that were not answered in time."""
        for number, question in [each for each in self._open.items() if each[1].until_us <= now]:
            del self._open[number]
            self._outputs.emit(PlaceAnswered(question.command))
        self.due_us = min([each.until_us for each in self._open.values()], default=NEVER)

    # --- being asked ---------------------------------------------------------------------------------------

    def _asked(self, item: control.Place, node: NodeId, _: int, now: int) -> None:
        """Manage a queue at the request of another node, or decline."""
        if item.until_us <= now:
            return  # No program waits for the answer.
        if not self._accounts.pay(node, PLACE_UNITS, now) or not self._budget.try_spend(1, now):
            self._outputs.refuse("placement", node)
            return
        try:
            self._manage(item, now)
            answer = control.Placed(item.number, accepted=True)
        except JMSException as error:
            answer = control.Placed(item.number, accepted=False, reason=str(error)[: control.REASON_MAX])
        self._outbox.add(node, UnstoredItem(answer), until_us=min(item.until_us, now + REQUEST_US))

    def _manage(self, item: control.Place, now: int) -> None:
        """Declare the queue and bind its name; raise a `JMSException` to decline, before anything changed."""
        name, directory = item.queue, self._directory
        if not self._manages(name):
            raise JMSException("its settings do not let it manage this queue for others (messaging.manage)")
        if name.startswith((OWN, DEAD_LETTERS)) or len(name) > room_for(self._node):
            raise JMSException(f"no queue can have this name there: {name!r}")
        address.check_name(name, "queue")
        destination = address.queue(name, self._node)
        receivers = None if item.receivers is None else tuple(sorted({*item.receivers} - {self._node}))
        bound = directory.names.bound.get(name)
        bind = Bind(name, destination, advertise=item.advertised, receivers=receivers)
        if bound is None or bound.destination != destination:
            directory.check(bind)
        if bound is None and len(directory.names.bound) >= PLACED_NAMES_MAX:
            raise JMSException("it manages as many queues for other nodes as it allows")
        lease = Redelivery.AFTER_LEASE if item.lease_us else Redelivery.NEVER
        asked = Declare(
            name, lease, item.lease_us, item.policy, receivers=receivers, tries=item.tries, sealed=item.sealed
        )
        self._queues.manager.declared.declare(asked)
        if bound is None:
            directory.enter(bind, now)


def _manages(settings: Settings) -> Callable[[str], bool]:
    """Return the function that decides by its name whether a queue is managed for others; raises `ConfigError`."""
    wanted, limits = settings.messaging.manage, settings.limits
    if isinstance(wanted, bool):
        return lambda _: wanted
    try:
        for pattern in wanted:
            entry(pattern, limits=limits)
    except PatternError as error:
        raise ConfigError(f"messaging.manage: {error}") from None
    patterns = PatternSet(wanted, limits.pattern_memory_bytes_max)
    return lambda name: any(each < len(wanted) for each in patterns.match(name.encode()) or ())


_ENVELOPE_BYTES = 64
"""Largest size of an answer without its names, in bytes."""
_NAME_BYTES = 16
"""Largest overhead of a name in an answer beside its two texts, in bytes."""


class _Asking:
    """A discovery that waits for answers."""

    def __init__(self, command: int, nodes: Collection[NodeId], until_us: int) -> None:
        self.command, self.until_us = command, until_us
        self.waiting: dict[NodeId, dict[int, Binding]] = {node: {} for node in nodes}
        """Nodes that have not answered in full, with the parts of their answers, by place."""
        self.names: list[Binding] = []
        """Names of the nodes that have answered."""

    def has_room(self, more: int) -> bool:
        """Return True if this many more names are within `NAMES_MAX`."""
        return len(self.names) + sum(map(len, self.waiting.values())) + more <= NAMES_MAX


class Discoveries(Part):
    """The questions of this node to others, and its answers to theirs."""

    def __init__(self, context: MessagingContext, queues: Queues, directory: Directory) -> None:
        self._node, self._outputs, self._directory = context.node, context.outputs, directory
        self._holdings, self._island = context.holdings, context.settings.island
        """False if this node knows of no connected nodes, and can answer none."""
        self._accounts, self._budget = Accounts(), Budget(DISCOVERIES_PER_S, SAVED_S)
        self._open: dict[int, _Asking] = {}
        """Open discoveries by number; at most `DISCOVERIES_MAX`."""
        self._number = 0
        self._drafts: list[Draft] = []
        """Questions and answers that leave with this step."""
        queues.handlers[control.Discover] = self._asked
        queues.handlers[control.Found] = self._found

    def drafts(self, now: int) -> list[Draft]:  # noqa: ARG002 - all of them leave at once
        """Return the questions and answers to publish."""
        drafts, self._drafts = self._drafts, []
        self._look_ahead()
        return drafts

    def _look_ahead(self) -> None:
        self.due_us = min([each.until_us for each in self._open.values()], default=NEVER)

    def _send(self, node: NodeId, item: control.Discover | control.Found, until_us: int, now: int) -> None:
        lead_us = self._holdings.lead_us
        self._drafts.append(control_draft(node, [item], max(until_us - now, 1), connected=True, lead_us=lead_us))
        self.due_us = 0

    # --- asking --------------------------------------------------------------------------------------------

    def ask(self, command: int, nodes: Collection[NodeId], until_us: int, now: int) -> None:
        """Ask these nodes for their names; `Discovered` of this command follows, by `until_us` at the latest."""
        if len(self._open) >= DISCOVERIES_MAX:
            raise ResourceAllocationException(f"{DISCOVERIES_MAX} discoveries wait for answers already: wait for them")
        until_us = min(until_us, TIME_US_MAX)
        # From the clock, so that a late answer to an earlier incarnation is not taken for one to this.
        self._number = max(self._number + 1, now)
        asking = self._open[self._number] = _Asking(command, nodes, until_us)
        asking.names += [_binding(self._node, *entry) for entry in self._own()]
        for node in nodes:
            self._send(node, control.Discover(self._number, until_us), until_us, now)
        self.due_us = min(self.due_us, until_us)
        self._end_if_all_answered(self._number)

    def _found(self, item: control.Found, node: NodeId, *_: int) -> None:
        """Handle a part of an answer, if its node was asked and owns these names."""
        asking = self._open.get(item.number)
        parts = None if asking is None else asking.waiting.get(node)
        sound = item.first + len(item.names) <= item.total <= OWNER_MAX
        if asking is None or parts is None or not sound or not asking.has_room(len(item.names)):
            self._outputs.refuse("discovery", node)
            return
        for name, destination, _ordering in item.names:
            if fault_of(name) is not None or not may_say(node, destination):
                self._outputs.refuse("discovery", node)
                return
        parts |= {place: _binding(node, *entry) for place, entry in enumerate(item.names, item.first)}
        if len(parts) >= item.total:
            asking.names += asking.waiting.pop(node).values()
            self._end_if_all_answered(item.number)

    def _end_if_all_answered(self, number: int) -> None:
        if not self._open[number].waiting:
            self._end(number)

    def _end(self, number: int) -> None:
        asking = self._open.pop(number)
        names = tuple(sorted(asking.names, key=lambda each: each.name))
        self._outputs.emit(Discovered(asking.command, names, tuple(sorted(asking.waiting))))

    def expire(self, now: int) -> None:
        """End discoveries whose time is over."""
        for number in [number for number, asking in self._open.items() if asking.until_us <= now]:
            self._end(number)
        self._look_ahead()

    # --- being asked ---------------------------------------------------------------------------------------

    def _asked(self, item: control.Discover, node: NodeId, _: int, now: int) -> None:
        """Answer with the names that this node advertises."""
        paid = self._accounts.pay(node, DISCOVERY_UNITS, now) and self._budget.try_spend(1, now)
        if not paid or not self._island:
            self._outputs.refuse("discovery", node)
            return
        names = self._own()
        until_us, first = min(item.until_us, now + ANSWER_US), 0
        for page in _pages(names):
            self._send(node, control.Found(item.number, first, len(names), tuple(page)), until_us, now)
            first += len(page)

    def _own(self) -> list[control.NameEntry]:
        bound = self._directory.names.bound.values()
        return [(each.name, each.destination, each.ordering) for each in bound if each.advertised and each.destination]


def _binding(node: NodeId, name: str, destination: str, ordering: Ordering) -> Binding:
    return Binding(address.queue_name(name, node), destination, ordering)


def _pages(names: list[control.NameEntry]) -> Iterator[list[control.NameEntry]]:
    """Yield the names in parts that fit into one control message each; one part if there are none."""
    page: list[control.NameEntry] = []
    room = ROOM_BYTES - _ENVELOPE_BYTES
    for name in names:
        size = len(name[0].encode()) + len(name[1].encode()) + _NAME_BYTES
        if size > room:
            yield page
            page, room = [], ROOM_BYTES - _ENVELOPE_BYTES
        page.append(name)
        room -= size
    yield page
