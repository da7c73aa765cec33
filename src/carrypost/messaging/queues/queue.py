"""One queue at its manager: waiting messages, demands, and the next assignment.

Waiting messages are sorted by priority, then by age. Demands with the same selector are a group (`groups`), so an
assignment examines one message per group, however long the queue is. The first of these is assigned, to the demand that
the policy chooses among nodes that do not have too many unanswered messages.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from functools import partial
from operator import attrgetter
from typing import TYPE_CHECKING

from carrypost.messaging.admission import HELD_MAX, HELD_MIN
from carrypost.messaging.queues.groups import Correlated, Demand, Group, Party
from carrypost.messaging.tally import Tally
from carrypost.model import address

if TYPE_CHECKING:
    from collections.abc import Iterator

    from carrypost.messaging.commands import Declare
    from carrypost.messaging.queues.entries import QueueEntry
    from carrypost.messaging.queues.groups import Policy
    from carrypost.model.ids import NodeId

_rank = attrgetter("rank")
OWN = "$"
"""Prefix of the names of queues that a node made for itself, such as that of replies: no other node receives from
them."""


class Queue:
    """A queue that this node manages."""

    __slots__ = (
        "_askers", "_correlated", "_groups", "_here", "_parties", "_policy", "_demands", "_searching", "_waiting",
        "asked", "destination", "entries", "number", "tally",
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
        self._waiting: list[QueueEntry] = []
        self._demands: dict[tuple[NodeId, int], Demand] = {}
        self._groups: dict[tuple[str, bool], Group] = {}
        """Groups by selector, and by `Group.reads`."""
        self._searching: dict[Group, None] = {}
        """Groups that messages are matched against."""
        self._correlated = Correlated()
        """Groups that ask for a correlation id."""

    @property
    def waiting(self) -> list[QueueEntry]:
        """Waiting messages, in order; read-only."""
        return self._waiting

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
        insort(self._waiting, entry, key=_rank)
        self._correlated.came(entry)
        for group in self._searching:
            group.came(entry)

    def remove(self, entry: QueueEntry) -> None:
        """Remove a message that waits no more."""
        at = bisect_left(self._waiting, entry.rank, key=_rank)
        if at < len(self._waiting) and self._waiting[at] is entry:
            del self._waiting[at]
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
        if not self._waiting:
            return None
        best: QueueEntry | None = None
        asking: list[Demand] = []
        held_max = self._held_max()
        if (correlated := self._correlated.first(partial(self._is_able, held_max=held_max))) is not None:
            best, asking = correlated
        for group in self._searching:
            able = [each for each in group.asking if self._is_able(each, held_max)]
            if not able or (found := group.first(self._waiting)) is None:
                continue
            if found is best:
                asking += able
            elif best is None or found.rank < best.rank:
                best, asking = found, able
        return None if best is None else (best, self._policy(asking, best.descriptor))
