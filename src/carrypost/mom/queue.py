"""One queue at its manager: what waits, who asks for it, and who gets it next.

What waits is in order: the higher priority first, then what was sent earlier. Requests with the same selector are a
group. Those that ask for one correlation id are in `mom.correlated`. Of each other group is known what it selects of
the messages up to some place; so an assignment looks at one message a group, and each message is held against each
selector once, however long the queue is. The first of all these is assigned, to the one request that the policy
chooses, of a node that has not too many unanswered already.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Callable, Sequence
from functools import partial
from math import inf
from operator import attrgetter
from typing import TYPE_CHECKING

from carrypost.model import address
from carrypost.model.selector import HEADER_PREFIX, Selector
from carrypost.model.times import NEVER
from carrypost.model.visible import Selectable
from carrypost.mom.admission import HELD_MAX, HELD_MIN
from carrypost.mom.correlated import Correlated, correlation_asked

if TYPE_CHECKING:
    from collections.abc import Iterator

    from carrypost.model.descriptor import Descriptor
    from carrypost.model.ids import NodeId
    from carrypost.mom.commands import Declare
    from carrypost.mom.entries import QueueEntry

_rank = attrgetter("rank")
_FIRST, _LAST = (-inf,), (inf,)
"""Before and after every rank."""
_OWN = "$"
"""Names of queues begin so that a node made for itself, such as that of replies: nobody else receives from them."""


class Party:
    """A node that asks for messages of a queue, or has some that it did not answer yet."""

    __slots__ = ("held", "node", "requests", "turn")

    def __init__(self, node: NodeId, turn: int) -> None:
        self.node = node
        self.turn = turn
        """When it was given something the last time, as a place among all assignments and requests."""
        self.requests = 0
        """How many stand."""
        self.held = 0
        """Messages that are assigned to it."""


class Standing:
    """A request that stands at the manager."""

    __slots__ = ("began", "credit", "deadline_us", "group", "heard", "number", "party", "silent", "taken", "turn")

    def __init__(self, party: Party, number: int, group: Group, began: int) -> None:
        self.party = party
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

    @property
    def node(self) -> NodeId:
        """The node that asks."""
        return self.party.node

    def grant(self, credit: int, taken: int = 0) -> None:
        """It was heard of, and takes so many in all, of which it was given so many at least."""
        self.credit, self.taken, self.silent = max(self.credit, credit), max(self.taken, taken), False
        self._note()

    def take(self, turn: int) -> None:
        """It is given one more."""
        self.taken += 1
        self.turn = self.party.turn = turn
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
        self.group.note(self, asks=self.taken < self.credit and not self.silent)


Policy = Callable[[Sequence[Standing], "Descriptor"], Standing]
"""Chooses who gets a message, of those who ask for it (`mom.policies`)."""


class Group:
    """Requests with the same selector."""

    __slots__ = (
        "_correlated", "_fields", "_found", "_looked", "_selector", "asking", "correlation", "requests", "selector",
    )  # fmt: skip

    def __init__(self, selector: str, correlated: Correlated) -> None:
        self.selector = selector
        self._selector = Selector(selector) if selector else None
        self._correlated = correlated
        self.correlation = None if self._selector is None else correlation_asked(self._selector)
        """The one correlation id that is asked for: what waits is then found by it, and not here."""
        self._fields = HEADER_PREFIX in selector
        """Whether it may name a header field: to offer them takes longer than most selectors do."""
        self.requests: dict[tuple[NodeId, int], Standing] = {}
        self.asking: dict[Standing, None] = {}
        """Those of them that take another one."""
        self._found: list[QueueEntry] = []
        """What waits and is selected, in order, as far as it was looked at."""
        self._looked: tuple[float, ...] = _FIRST
        """What waits was looked at up to this rank."""

    def note(self, standing: Standing, *, asks: bool) -> None:
        """One of the requests takes another message, or none for now."""
        if not asks:
            self.asking.pop(standing, None)
        elif standing not in self.asking:
            self.asking[standing] = None
            if self.correlation is not None and len(self.asking) == 1:
                self._correlated.asks(self.correlation)

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
        "_askers", "_correlated", "_groups", "_here", "_parties", "_policy", "_requests", "_searching", "_waiting",
        "asked", "bytes", "destination", "entries", "number",
    )  # fmt: skip

    def __init__(self, number: int, destination: str, asked: Declare, policy: Policy) -> None:
        self.number = number
        self.destination = destination
        self.asked = asked
        self._policy = policy
        self._here = address.addressee(destination)
        self._parties: dict[NodeId, Party] = {}
        self._askers = 0
        """Those of them that have requests."""
        self.entries: dict[bytes, QueueEntry] = {}
        """All that are alive, by id: waiting, delayed, or assigned."""
        self._waiting: list[QueueEntry] = []
        self._requests: dict[tuple[NodeId, int], Standing] = {}
        self._groups: dict[str, Group] = {}
        """By selector."""
        self._searching: dict[Group, None] = {}
        """Those that messages are held against."""
        self._correlated = Correlated()
        """The others."""

    @property
    def waiting(self) -> list[QueueEntry]:
        """What waits, in order; only to be read."""
        return self._waiting

    @property
    def is_restricted(self) -> bool:
        """Whether its owner chose who may receive from it."""
        return self.asked.receivers is not None

    def admits(self, node: NodeId) -> bool:
        """Whether a node may receive from it, and look into it. Programs of its own node always may."""
        if node == self._here:
            return True
        receivers = self.asked.receivers
        return not self.asked.name.startswith(_OWN) and (receivers is None or node in receivers)

    def __iter__(self) -> Iterator[Standing]:
        """All requests."""
        return iter(self._requests.values())

    # --- messages ------------------------------------------------------------------------------------------

    def let_wait(self, entry: QueueEntry) -> None:
        """One more waits."""
        insort(self._waiting, entry, key=_rank)
        self._correlated.came(entry)
        for group in self._searching:
            group.came(entry)

    def remove(self, entry: QueueEntry) -> None:
        """One that waited waits no more."""
        at = bisect_left(self._waiting, entry.rank, key=_rank)
        if at < len(self._waiting) and self._waiting[at] is entry:
            del self._waiting[at]
            self._correlated.went(entry)
            for group in self._searching:
                group.went(entry)

    # --- requests ------------------------------------------------------------------------------------------

    def request(self, node: NodeId, number: int, selector: str, began: int) -> Standing:
        """The request of this node and number, which begins now unless it stands already."""
        found = self._requests.get((node, number))
        if found is not None:
            return found
        group = self._groups.get(selector)
        if group is None:
            group = self._groups[selector] = Group(selector, self._correlated)
            if group.correlation is None:
                self._searching[group] = None
            else:
                self._correlated.add(group.correlation, group)
        party = self._party(node, began)
        self._askers += not party.requests
        party.requests += 1
        found = self._requests[node, number] = group.requests[node, number] = Standing(party, number, group, began)
        return found

    def standing(self, node: NodeId, number: int) -> Standing | None:
        """The request of this node and number, if it stands."""
        return self._requests.get((node, number))

    def withdraw(self, standing: Standing) -> None:
        """A request stands no more."""
        group = standing.group
        del self._requests[standing.node, standing.number], group.requests[standing.node, standing.number]
        group.note(standing, asks=False)
        if not group.requests:
            self._end(group)
        standing.party.requests -= 1
        self._askers -= not standing.party.requests
        self._forget_idle(standing.party)

    def _end(self, group: Group) -> None:
        del self._groups[group.selector]
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
        if not party.requests and not party.held:
            del self._parties[party.node]

    # --- assignment ----------------------------------------------------------------------------------------

    def hold(self, node: NodeId) -> None:
        """One more is assigned to a node."""
        self._party(node).held += 1

    def let_go(self, node: NodeId) -> None:
        """One that was assigned to a node is not any more."""
        party = self._parties[node]
        party.held -= 1
        self._forget_idle(party)

    def _held_max(self) -> int:
        """How many a node may have unanswered: an even part of the queue, where several ask for it."""
        if self._askers <= 1:
            return HELD_MAX
        return min(HELD_MAX, max(HELD_MIN, len(self.entries) // self._askers))

    def _is_able(self, standing: Standing, held_max: int) -> bool:
        """Whether a request may be given another message: its node has not too many unanswered, or is this one."""
        return standing.party.held < held_max or standing.party.node == self._here

    def next(self) -> tuple[QueueEntry, Standing] | None:
        """What is to be assigned next, and to whom; None if nobody asks for anything that waits."""
        if not self._waiting:
            return None
        best: QueueEntry | None = None
        asking: list[Standing] = []
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
