"""One queue at its manager: what waits, who asks for it, and who gets it next.

What waits is in order: the higher priority first, then what was sent earlier. Requests with the same selector are a
group. Of each group is known what it selects of the messages up to some place; so an assignment looks at one message a
group, and each message is held against each selector once, however long the queue is. The first of all these is
assigned, to the one request that the policy chooses.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Callable, Sequence
from math import inf
from operator import attrgetter
from typing import TYPE_CHECKING

from carrypost.model.selector import HEADER_PREFIX, Selector
from carrypost.model.times import NEVER
from carrypost.model.visible import Selectable

if TYPE_CHECKING:
    from collections.abc import Iterator

    from carrypost.model.descriptor import Descriptor
    from carrypost.model.ids import NodeId
    from carrypost.mom.commands import Declare
    from carrypost.mom.entries import QueueEntry

_rank = attrgetter("rank")
_FIRST, _LAST = (-inf,), (inf,)
"""Before and after every rank."""


class Standing:
    """A request that stands at the manager."""

    __slots__ = ("began", "credit", "deadline_us", "group", "heard", "node", "number", "silent", "taken", "turn")

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
        """How many it was given. Of another node's request, this is the number of its latest assignment."""
        self.heard = 0
        """Up to which number its node knows its assignments."""
        self.deadline_us = NEVER
        self.silent = False
        """Whether a lease of its ended, and nothing was heard of it since: it is given nothing more meanwhile."""

    def grant(self, credit: int, taken: int = 0) -> None:
        """It was heard of, and takes so many in all, of which it was given so many at least."""
        self.credit, self.taken, self.silent = max(self.credit, credit), max(self.taken, taken), False
        self._note()

    def take(self, turn: int) -> None:
        """It is given one more."""
        self.taken += 1
        self.turn = turn
        self._note()

    def give_back(self) -> None:
        """One that a consumer of this node was given did not come to it, and never will: it takes another instead."""
        self.taken -= 1
        self._note()

    def mark_silent(self, *, silent: bool) -> None:
        """Nothing is heard of it, or something is again."""
        self.silent = silent
        self._note()

    def _note(self) -> None:
        if self.taken < self.credit and not self.silent:
            self.group.asking[self] = None
        else:
            self.group.asking.pop(self, None)


Policy = Callable[[Sequence[Standing], "Descriptor"], Standing]
"""Chooses who gets a message, of those who ask for it (`mom.policies`)."""


class Group:
    """Requests with the same selector."""

    __slots__ = ("_fields", "_found", "_looked", "_selector", "asking", "requests", "selector")

    def __init__(self, selector: str) -> None:
        self.selector = selector
        self._selector = Selector(selector) if selector else None
        self._fields = HEADER_PREFIX in selector
        """Whether it may name a header field: to offer them takes longer than most selectors do."""
        self.requests: dict[tuple[NodeId, int], Standing] = {}
        self.asking: dict[Standing, None] = {}
        """Those of them that take another one."""
        self._found: list[QueueEntry] = []
        """What waits and is selected, in order, as far as it was looked at."""
        self._looked: tuple[float, ...] = _FIRST
        """What waits was looked at up to this rank."""

    def _selects(self, descriptor: Descriptor) -> bool:
        return self._selector is None or self._selector.matches(
            Selectable(descriptor) if self._fields else descriptor.attributes
        )

    def came(self, entry: QueueEntry) -> None:
        """One more waits."""
        if entry.rank <= self._looked and self._selects(entry.descriptor):
            insort(self._found, entry, key=_rank)

    def went(self, entry: QueueEntry) -> None:
        """One waits no more."""
        found = self._found
        if found and found[0].rank <= entry.rank <= found[-1].rank:
            at = bisect_left(found, entry.rank, key=_rank)
            if found[at] is entry:
                del found[at]

    def first(self, waiting: list[QueueEntry]) -> QueueEntry | None:
        """The first that waits and is selected; it is looked for where none is known."""
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
                group.went(entry)

    # --- requests ------------------------------------------------------------------------------------------

    def request(self, node: NodeId, number: int, selector: str, began: int) -> Standing:
        """The request of this node and number, which begins now unless it stands already."""
        group = self._groups.get(selector)
        if group is None:
            group = self._groups[selector] = Group(selector)
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
        group.asking.pop(standing, None)
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
            if not group.asking or (found := group.first(self._waiting)) is None:
                continue
            if found is best:
                asking += group.asking
            elif best is None or found.rank < best.rank:
                best, asking = found, list(group.asking)
        return None if best is None else (best, self._policy(asking, best.descriptor))
