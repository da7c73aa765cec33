"""Discovery: a node asks all nodes that it is connected with for their names of topics and queues (EMMA §3.1.1).

Questions and answers are messages for connected nodes alone, which are not carried: the result is what can be reached
now. It does not enter the directory, which advertisements alone change. A node answers with what it advertises, and
keeps names that are not advertised to itself.

The one invariant: an answer counts from a node that was asked, for the names of that node, until the discovery ends.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from carrypost.application.control import ROOM_BYTES
from carrypost.errors import ResourceAllocationException
from carrypost.gossip.composite import Part
from carrypost.gossip.transfers.budget import Budget
from carrypost.log.events import LayerEvent
from carrypost.messaging import control
from carrypost.messaging.admission import (
    ANSWER_US,
    DISCOVERIES_MAX,
    DISCOVERIES_PER_S,
    DISCOVERY_UNITS,
    SAVED_S,
    Accounts,
)
from carrypost.messaging.control import control_draft
from carrypost.messaging.names.directory import NAMES_MAX, OWNER_MAX, may_say
from carrypost.messaging.names.namespace import Binding, fault_of
from carrypost.model import address
from carrypost.model.descriptor import Ordering
from carrypost.model.ids import NodeId
from carrypost.model.times import NEVER, TIME_US_MAX

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

    from carrypost.gossip.draft import Draft
    from carrypost.messaging.context import MessagingContext
    from carrypost.messaging.names.directory import Directory
    from carrypost.messaging.queues.queues import Queues

_ENVELOPE_BYTES = 64
"""Largest size of an answer without its names, in bytes."""
_NAME_BYTES = 16
"""Largest overhead of a name in an answer beside its two texts, in bytes."""


class Discovered(LayerEvent, frozen=True):
    """The end of a discovery: all nodes answered, or its time is over."""

    number: int
    """Number of the command that began it."""
    names: tuple[Binding, ...] = ()
    """Names of this node and of all that answered, in full: ``NAME@NODE``."""
    silent: tuple[NodeId, ...] = ()
    """The nodes that were asked and did not answer."""


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
    for entry in names:
        size = len(entry[0].encode()) + len(entry[1].encode()) + _NAME_BYTES
        if size > room:
            yield page
            page, room = [], ROOM_BYTES - _ENVELOPE_BYTES
        page.append(entry)
        room -= size
    yield page
