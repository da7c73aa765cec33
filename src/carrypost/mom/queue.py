"""One queue at its manager: what waits, who asks for it, and who gets it next.

What waits is in order: the higher priority first, then what was sent earlier. Requests with the same selector are a
group. Of each group the first message is known that it selects; so an assignment looks at one message a group, and each
message is held against each selector once, however long the queue is. The first of all these is assigned, to the one
request that the policy chooses.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from operator import attrgetter
from typing import TYPE_CHECKING

from carrypost.gossip.interest.matcher import Matcher
from carrypost.model.pattern import DESTINATION, Entry
from carrypost.model.times import NEVER

if TYPE_CHECKING:
    from collections.abc import Iterator

    from carrypost.config import Limits
    from carrypost.model.descriptor import Descriptor
    from carrypost.model.ids import NodeId
    from carrypost.mom.commands import Declare
    from carrypost.mom.entries import QueueEntry
    from carrypost.mom.policies import Policy

_rank = attrgetter("rank")


class Standing:
    """A request that stands at the manager."""

    __slots__ = ("began", "credit", "deadline_us", "group", "node", "number", "silent", "taken", "turn")

    def __init__(self, node: NodeId, number: int, group: Group, began: int) -> None:
        self.node = node
        self.number = number
        """Its node's own."""
        self.group = group
        self.began = began
        """Its place among all requests, as they came."""
        self.turn = began
        """When it was given something the last time, as a place among all assignments and requests."""
        self.credit = 0
        """How many it takes in all."""
        self.taken = 0
        """How many it was given."""
        self.deadline_us = NEVER
        self.silent = False
        """Whether a lease of its ended, and nothing was heard of it since: it is given nothing more meanwhile."""

    @property
    def open(self) -> bool:
        """Whether it takes another one."""
        return self.taken < self.credit and not self.silent


class Group:
    """Requests with the same selector."""

    __slots__ = ("_matcher", "_scanned", "first", "requests", "selector")

    def __init__(self, selector: str, limits: Limits) -> None:
        self.selector = selector
        self._matcher = Matcher((Entry(((DESTINATION, ".*"),), selector),), limits) if selector else None
        self.requests: dict[tuple[NodeId, int], Standing] = {}
        self.first: QueueEntry | None = None
        """The first that waits and is selected, as far as `scan` has seen."""
        self._scanned = False
        """Whether all that waits was looked at up to `first`."""

    def selects(self, descriptor: Descriptor) -> bool:
        """Whether a message is for them."""
        return self._matcher is None or self._matcher.matches(descriptor)

    def came(self, entry: QueueEntry) -> None:
        """One more waits."""
        if self._scanned and (self.first is None or entry.rank < self.first.rank) and self.selects(entry.descriptor):
            self.first = entry

    def went(self, entry: QueueEntry, waiting: list[QueueEntry]) -> None:
        """One waits no more."""
        if entry is self.first:
            self._scan(waiting, bisect_right(waiting, entry.rank, key=_rank))

    def scan(self, waiting: list[QueueEntry]) -> QueueEntry | None:
        """The first that waits and is selected."""
        if not self._scanned:
            self._scan(waiting, 0)
        return self.first

    def _scan(self, waiting: list[QueueEntry], start: int) -> None:
        self._scanned = True
        for at in range(start, len(waiting)):
            if self.selects(waiting[at].descriptor):
                self.first = waiting[at]
                return
        self.first = None


class Queue:
    """A queue that this node manages."""

    __slots__ = (
        "_groups", "_policy", "_waiting", "asked", "bytes", "destination", "entries", "number",
    )  # fmt: skip

    def __init__(self, number: int, destination: str, asked: Declare, policy: Policy) -> None:
        self.number = number
        self.destination = destination
        self.asked = asked
        self._policy = policy
        self.entries: dict[bytes, QueueEntry] = {}
        """All that are alive, by id: waiting, delayed, or assigned."""
        self.bytes = 0
        self._waiting: list[QueueEntry] = []
        self._groups: dict[str, Group] = {}

    @property
    def waiting(self) -> list[QueueEntry]:
        """What waits, in order; only to be read."""
        return self._waiting

    def __iter__(self) -> Iterator[Standing]:
        """All requests."""
        for group in self._groups.values():
            yield from group.requests.values()

    # --- messages ------------------------------------------------------------------------------------------

    def let_wait(self, entry: QueueEntry) -> None:
        """One more waits."""
        insort(self._waiting, entry, key=_rank)
        for group in self._groups.values():
            group.came(entry)

    def remove(self, entry: QueueEntry) -> None:
        """One that waited waits no more."""
        at = bisect_left(self._waiting, entry.rank, key=_rank)
        if at < len(self._waiting) and self._waiting[at] is entry:
            del self._waiting[at]
            for group in self._groups.values():
                group.went(entry, self._waiting)

    # --- requests ------------------------------------------------------------------------------------------

    def request(self, node: NodeId, number: int, selector: str, began: int, limits: Limits) -> Standing:
        """The request of this node and number, which begins now unless it stands already."""
        group = self._groups.get(selector)
        if group is None:
            group = self._groups[selector] = Group(selector, limits)
        found = group.requests.get((node, number))
        if found is None:
            found = group.requests[node, number] = Standing(node, number, group, began)
        return found

    def standing(self, node: NodeId, number: int) -> Standing | None:
        """The request of this node and number, if it stands."""
        groups = self._groups.values()
        return next((found for group in groups if (found := group.requests.get((node, number))) is not None), None)

    def withdraw(self, standing: Standing) -> None:
        """A request stands no more."""
        group = standing.group
        del group.requests[standing.node, standing.number]
        if not group.requests:
            del self._groups[group.selector]

    # --- assignment ----------------------------------------------------------------------------------------

    def next(self) -> tuple[QueueEntry, Standing] | None:
        """What is to be assigned next, and to whom; None if nobody asks for anything that waits."""
        if not self._waiting:
            return None
        best: QueueEntry | None = None
        asking: list[Standing] = []
        for group in self._groups.values():
            found = group.scan(self._waiting)
            if found is None or (best is not None and found.rank > best.rank):
                continue
            with_credit = [each for each in group.requests.values() if each.open]
            if with_credit:
                asking = asking + with_credit if found is best else with_credit
                best = found
        return None if best is None else (best, self._policy(asking, best.descriptor))
