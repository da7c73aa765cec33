"""Placement of queues: a node asks another one to manage a queue, which accepts or declines (EMMA §3.1.1).

The program that declares a queue gives a policy, which is shown how many messages each node consumed from queues of
that name, and returns a node. This module does the rest: it asks that node (`Place`), decides as the node that is
asked, and reports the answer (`Placed`). After a refusal the program decides whether to ask another node.

The one invariant: an acceptance is sent once the queue and its name are durable. A node that is asked twice for a queue
with the same options accepts twice, and has one queue; so a program that got no answer may ask again.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, NamedTuple

from carrypost.application.control_outbox import UnstoredItem
from carrypost.errors import (
    ConfigError,
    IllegalArgumentException,
    JMSException,
    PatternError,
    ResourceAllocationException,
)
from carrypost.gossip.composite import Part, Stored
from carrypost.gossip.transfers.budget import Budget
from carrypost.log.events import LayerEvent
from carrypost.messaging import control
from carrypost.messaging.admission import (
    PLACE_UNITS,
    PLACED_NAMES_MAX,
    PLACES_MAX,
    PLACES_PER_S,
    REQUEST_US,
    SAVED_S,
    Accounts,
)
from carrypost.messaging.commands import Declare, Redelivery
from carrypost.messaging.dead_letters import DEAD_LETTERS, room_for
from carrypost.messaging.names.namespace import Bind
from carrypost.messaging.queues.queue import OWN
from carrypost.model import address
from carrypost.model.address import Kind
from carrypost.model.ids import NodeId
from carrypost.model.pattern import PatternSet, entry
from carrypost.model.times import NEVER, TIME_US_MAX

if TYPE_CHECKING:
    from carrypost.config import Settings
    from carrypost.messaging.context import MessagingContext
    from carrypost.messaging.names.directory import Directory
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


class PlaceAnswered(LayerEvent, frozen=True):
    """The answer of a node that was asked to manage a queue, or the report that none came in time."""

    number: int
    """Number of the command that asked."""
    accepted: bool = False
    reason: str | None = None
    """The reason why the node declines; None if it accepted, or did not answer."""


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
