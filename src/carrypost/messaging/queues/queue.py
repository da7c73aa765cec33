"""One queue at its manager: waiting messages, demands in groups of the same selector, and the next assignment.

Waiting messages are sorted by priority, then by age. A group knows which messages it selects up to some place, so each
message is matched against each selector once, and an assignment examines one message per group, however long the queue
is. The first of these is assigned, to the demand that the policy chooses among nodes that do not have too many
unanswered messages.

There may be ten thousand demands for one correlation id each, one for every program that waits for a reply. They are
not matched against each message one by one: waiting messages are found by their correlation ids, and ids that are both
demanded and present are in a heap (`Correlated`).
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Callable, Sequence
from functools import partial
from heapq import heappop, heappush
from math import inf
from operator import attrgetter
from typing import TYPE_CHECKING

import msgspec

from carrypost.messaging.control import HELD_MAX, HELD_MIN, Tally
from carrypost.model import address
from carrypost.model.descriptor_values import Selectable
from carrypost.model.selector import HEADER_PREFIX, Selector
from carrypost.model.times import NEVER

if TYPE_CHECKING:
    from collections.abc import Iterator

    from carrypost.messaging.commands import Declare
    from carrypost.messaging.queues.entries import QueueEntry
    from carrypost.model.descriptor import Descriptor
    from carrypost.model.ids import NodeId


_FIELD = "JMSCorrelationID"
_rank = attrgetter("rank")
_FIRST, _LAST = (-inf,), (inf,)
"""Before and after every rank."""


class Party(msgspec.Struct, eq=False):
    """A node that asks for messages of a queue, or has some that it did not answer yet."""

    node: NodeId
    turn: int
    """Place of its last assignment among all assignments and demands."""
    demands: int = 0
    """Number of open demands."""
    held: int = 0
    """Number of messages that are assigned to it."""


class Demand(msgspec.Struct, eq=False):
    """An open demand at the manager."""

    party: Party
    number: int
    """Number that its node gave it."""
    group: Group
    began: int
    """Place among all demands, in order of arrival."""
    turn: int
    """Place of its last assignment among all assignments and demands."""
    credit: int = 0
    """Total number of messages that it takes."""
    taken: int = 0
    """Number of messages assigned to it. Of another node's demand, this is the number of its latest assignment."""
    heard: int = 0
    """Number up to which its node knows its assignments."""
    deadline_us: int = NEVER
    key: bytes = b""
    """Sealing key of another node that asks."""
    silent: bool = False
    """True if a lease of its ended in silence: nothing is assigned to it until it is heard of again."""

    @property
    def node(self) -> NodeId:
        """The node that asks."""
        return self.party.node

    def grant(self, credit: int, taken: int = 0) -> None:
        """Raise the total credit, and the number of messages assigned at least; it was heard of."""
        self.credit, self.taken, self.silent = max(self.credit, credit), max(self.taken, taken), False
        self._note()

    def count(self, turn: int) -> None:
        """Count one more assigned message."""
        self.taken += 1
        self.turn = self.party.turn = turn
        self._note()

    def give_back(self) -> None:
        """Give back the credit of a message that never reached its consumer on this node."""
        self.taken -= 1
        self._note()

    def mark_silent(self, *, silent: bool) -> None:
        """Mark it as silent, or as heard of again."""
        self.silent = silent
        self._note()

    def _note(self) -> None:
        self.group.note(self, asks=self.taken < self.credit and not self.silent)


Policy = Callable[[Sequence[Demand], "Descriptor"], Demand]
"""Function that chooses the demand that gets a message (`messaging.policies`)."""


class Group:
    """Demands with the same selector."""

    __slots__ = (
        "_correlated", "_fields", "_found", "_looked", "_selector", "asking", "correlation", "demands", "reads",
        "selector",
    )  # fmt: skip

    def __init__(self, selector: str, correlated: Correlated, *, reads: bool) -> None:
        self.selector = selector
        self.reads = reads
        """True if the nodes that ask can be given sealed messages; False for nodes without a known key."""
        self._selector = Selector(selector) if selector else None
        self._correlated = correlated
        self.correlation = None if self._selector is None or not reads else correlation_asked(self._selector)
        """The one correlation id that is demanded: waiting messages are then found by it, and not here."""
        self._fields = HEADER_PREFIX in selector
        """True if it may name a header field: providing these takes longer than most selectors do."""
        self.demands: dict[tuple[NodeId, int], Demand] = {}
        self.asking: dict[Demand, None] = {}
        """Demands of the group that take another message."""
        self._found: list[QueueEntry] = []
        """Selected waiting messages, in order, as far as they were examined."""
        self._looked: tuple[float, ...] = _FIRST
        """Rank up to which waiting messages were examined."""

    def note(self, demand: Demand, *, asks: bool) -> None:
        """Note that a demand takes another message, or none for now."""
        if not asks:
            self.asking.pop(demand, None)
        elif demand not in self.asking:
            self.asking[demand] = None
            if self.correlation is not None and len(self.asking) == 1:
                self._correlated.note(self.correlation)

    def _selects(self, descriptor: Descriptor) -> bool:
        if not self.reads and descriptor.unsealed is not None:
            return False
        return self._selector is None or self._selector.matches(
            Selectable(descriptor) if self._fields else descriptor.attributes
        )

    def came(self, entry: QueueEntry) -> None:
        """Add a waiting message."""
        if entry.rank <= self._looked and self._selects(entry.descriptor):
            insort(self._found, entry, key=_rank)

    def went(self, entry: QueueEntry) -> None:
        """Remove a message that waits no more."""
        found = self._found
        if found and found[0].rank <= entry.rank <= found[-1].rank:
            at = bisect_left(found, entry.rank, key=_rank)
            if found[at] is entry:
                del found[at]

    def first(self, waiting: list[QueueEntry]) -> QueueEntry | None:
        """Return the first selected waiting message, searching for it if none is known."""
        found = self._found
        if not found and self._looked < _LAST:
            for at in range(bisect_right(waiting, self._looked, key=_rank), len(waiting)):
                if self._selects(waiting[at].descriptor):
                    found.append(waiting[at])
                    self._looked = waiting[at].rank
                    break
            else:
                self._looked = _LAST
        return found[0] if found else None


def correlation_asked(selector: Selector) -> str | None:
    """Return the one correlation id that a selector asks for; None if it asks for anything else."""
    found = selector.equality
    return found[1] if found is not None and found[0] == _FIELD else None


def _correlation_of(descriptor: Descriptor) -> str | None:
    return None if descriptor.headers is None else descriptor.headers.correlation


class Correlated:
    """Waiting messages of one queue by correlation id, and the groups of demands for one."""

    __slots__ = ("_groups", "_heap", "_noted", "_waiting")

    def __init__(self) -> None:
        self._waiting: dict[str, list[QueueEntry]] = {}
        """Waiting messages by correlation id, in order."""
        self._groups: dict[str, dict[Group, None]] = {}
        self._heap: list[tuple[tuple[int, int, int], str]] = []
        """Ranks of the first message for each demanded id. Some do not wait, or are not demanded any more."""
        self._noted: set[tuple[tuple[int, int, int], str]] = set()
        """Messages in the heap, each once."""

    # --- messages ------------------------------------------------------------------------------------------

    def came(self, entry: QueueEntry) -> None:
        """Add a waiting message."""
        correlation = _correlation_of(entry.descriptor)
        if correlation is not None:
            insort(self._waiting.setdefault(correlation, []), entry, key=_rank)
            self.note(correlation)

    def went(self, entry: QueueEntry) -> None:
        """Remove a message that waits no more."""
        correlation = _correlation_of(entry.descriptor)
        waiting = self._waiting.get(correlation or "", [])
        at = bisect_left(waiting, entry.rank, key=_rank)
        if correlation is None or at >= len(waiting) or waiting[at] is not entry:
            return
        del waiting[at]
        if waiting:
            self.note(correlation)
        else:
            del self._waiting[correlation]

    # --- demands ------------------------------------------------------------------------------------------

    def add(self, correlation: str, group: Group) -> None:
        """Add a group of demands for this id."""
        self._groups.setdefault(correlation, {})[group] = None

    def remove(self, correlation: str, group: Group) -> None:
        """Remove a group."""
        groups = self._groups[correlation]
        del groups[group]
        if not groups:
            del self._groups[correlation]

    def note(self, correlation: str) -> None:
        """Note that messages with this id wait, or are demanded."""
        waiting = self._waiting.get(correlation)
        if waiting and self._asking(correlation) and (note := (waiting[0].rank, correlation)) not in self._noted:
            self._noted.add(note)
            heappush(self._heap, note)

    def _asking(self, correlation: str) -> list[Demand]:
        return [demand for group in self._groups.get(correlation, ()) for demand in group.asking]

    # --- assignment ----------------------------------------------------------------------------------------

    def first(self, is_able: Callable[[Demand], bool]) -> tuple[QueueEntry, list[Demand]] | None:
        """Return the first waiting message whose correlation id is demanded, and its demands that `is_able` accepts."""
        heap, passed_over, found = self._heap, [], None
        while heap and found is None:
            rank, correlation = heap[0]
            waiting, asking = self._waiting.get(correlation), self._asking(correlation)
            if not waiting or waiting[0].rank != rank or not asking:
                self._noted.discard(heappop(heap))
            elif able := [each for each in asking if is_able(each)]:
                found = waiting[0], able
            else:
                passed_over.append(heappop(heap))
        for each in passed_over:
            heappush(heap, each)
        return found


OWN = "$"
"""Prefix of the names of queues that a node made for itself, such as that of replies: no other node receives from
them."""


class Queue:
    """A queue that this node manages."""

    __slots__ = (
        "_askers", "_correlated", "_groups", "_here", "_parties", "_policy", "_demands", "_searching",
        "asked", "destination", "entries", "number", "tally", "waiting",
    )  # fmt: skip

    def __init__(self, number: int, destination: str, asked: Declare, policy: Policy) -> None:
        self.number = number
        self.destination = destination
        self.asked = asked
        self.tally = Tally()
        """Number of messages consumed from it, by node."""
        self._policy = policy
        self._here = address.addressee(destination)
        self._parties: dict[NodeId, Party] = {}
        self._askers = 0
        """Number of nodes with demands."""
        self.entries: dict[bytes, QueueEntry] = {}
        """All entries that are alive, by id: waiting, delayed, or assigned."""
        self.waiting: list[QueueEntry] = []
        """Waiting messages, in order; changed here alone."""
        self._demands: dict[tuple[NodeId, int], Demand] = {}
        self._groups: dict[tuple[str, bool], Group] = {}
        """Groups by selector, and by `Group.reads`."""
        self._searching: dict[Group, None] = {}
        """Groups that messages are matched against."""
        self._correlated = Correlated()
        """Groups that ask for a correlation id."""

    @property
    def is_restricted(self) -> bool:
        """True if its owner listed its receivers."""
        return self.asked.receivers is not None

    def admits(self, node: NodeId) -> bool:
        """Return True if a node may receive from it, and browse it. Programs of its own node always may."""
        if node == self._here:
            return True
        receivers = self.asked.receivers
        return not self.asked.name.startswith(OWN) and (receivers is None or node in receivers)

    def __iter__(self) -> Iterator[Demand]:
        """Iterate over all demands."""
        return iter(self._demands.values())

    # --- messages ------------------------------------------------------------------------------------------

    def enqueue(self, entry: QueueEntry) -> None:
        """Add a waiting message."""
        insort(self.waiting, entry, key=_rank)
        self._correlated.came(entry)
        for group in self._searching:
            group.came(entry)

    def remove(self, entry: QueueEntry) -> None:
        """Remove a message that waits no more."""
        at = bisect_left(self.waiting, entry.rank, key=_rank)
        if at < len(self.waiting) and self.waiting[at] is entry:
            del self.waiting[at]
            self._correlated.went(entry)
            for group in self._searching:
                group.went(entry)

    # --- demands ------------------------------------------------------------------------------------------

    def demand(self, node: NodeId, number: int, selector: str, began: int, *, reads: bool = True) -> Demand:
        """Return the demand of this node and number, opened now unless it is open already.

        `reads`: the node can be given sealed messages.
        """
        found = self._demands.get((node, number))
        if found is not None:
            return found
        group = self._groups.get((selector, reads))
        if group is None:
            group = self._groups[selector, reads] = Group(selector, self._correlated, reads=reads)
            if group.correlation is None:
                self._searching[group] = None
            else:
                self._correlated.add(group.correlation, group)
        party = self._party(node, began)
        self._askers += not party.demands
        party.demands += 1
        made = Demand(party, number, group, began, turn=began)
        self._demands[node, number] = group.demands[node, number] = made
        return made

    def find(self, node: NodeId, number: int) -> Demand | None:
        """Return the demand of this node and number, if it is open."""
        return self._demands.get((node, number))

    def withdraw(self, demand: Demand) -> None:
        """Close a demand."""
        group = demand.group
        del self._demands[demand.node, demand.number], group.demands[demand.node, demand.number]
        group.note(demand, asks=False)
        if not group.demands:
            self._end(group)
        demand.party.demands -= 1
        self._askers -= not demand.party.demands
        self._forget_idle(demand.party)

    def _end(self, group: Group) -> None:
        del self._groups[group.selector, group.reads]
        if group.correlation is None:
            del self._searching[group]
        else:
            self._correlated.remove(group.correlation, group)

    def _party(self, node: NodeId, turn: int = 0) -> Party:
        found = self._parties.get(node)
        if found is None:
            found = self._parties[node] = Party(node, turn)
        return found

    def _forget_idle(self, party: Party) -> None:
        if not party.demands and not party.held:
            del self._parties[party.node]

    # --- assignment ----------------------------------------------------------------------------------------

    def hold(self, node: NodeId) -> None:
        """Count a message assigned to a node."""
        self._party(node).held += 1

    def unassign(self, node: NodeId) -> None:
        """Remove a message from those assigned to a node."""
        party = self._parties[node]
        party.held -= 1
        self._forget_idle(party)

    def held(self) -> Iterator[tuple[NodeId, int]]:
        """Yield the nodes that ask or have messages, and the number of messages that are assigned to each."""
        return ((each.node, each.held) for each in self._parties.values())

    def _held_max(self) -> int:
        """Return the number of unanswered messages allowed to a node: an even part of the queue, if several ask."""
        if self._askers <= 1:
            return HELD_MAX
        return min(HELD_MAX, max(HELD_MIN, len(self.entries) // self._askers))

    def _is_able(self, demand: Demand, held_max: int) -> bool:
        """Return True if a demand may get another message: its node is this one, or has few unanswered."""
        return demand.party.held < held_max or demand.party.node == self._here

    def next(self) -> tuple[QueueEntry, Demand] | None:
        """Return the next assignment, message and demand; None if nothing that waits is asked for."""
        if not self.waiting:
            return None
        best: QueueEntry | None = None
        asking: list[Demand] = []
        held_max = self._held_max()
        if (correlated := self._correlated.first(partial(self._is_able, held_max=held_max))) is not None:
            best, asking = correlated
        for group in self._searching:
            able = [each for each in group.asking if self._is_able(each, held_max)]
            if not able or (found := group.first(self.waiting)) is None:
                continue
            if found is best:
                asking += able
            elif best is None or found.rank < best.rank:
                best, asking = found, able
        return None if best is None else (best, self._policy(asking, best.descriptor))
