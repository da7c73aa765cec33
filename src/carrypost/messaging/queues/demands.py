"""Demands at this manager, of consumers here and of other nodes: rows, bounds, and withdrawn ones.

A demand of another node is remembered until its deadline, also after it was withdrawn: the message that made it may
arrive again. The number of demands is limited, for one node and for all together (`messaging.control`). The node that
has most of them loses one first, so a node that floods uses up its own share; demands at queues that name their
receivers have room in any case. A demand of a node's later incarnation ends those of its earlier ones, which nothing
there waits for any more.
"""

from __future__ import annotations

import functools
from collections import Counter
from typing import TYPE_CHECKING

import msgspec

from carrypost.application.ledger import Table
from carrypost.errors import CarrypostError
from carrypost.gossip.layer import Part, Stored
from carrypost.messaging import control
from carrypost.messaging.control import incarnation_of
from carrypost.messaging.queues.entries import EntryState
from carrypost.model import address
from carrypost.model.ids import NodeId
from carrypost.model.selector import Selector
from carrypost.model.times import NEVER

if TYPE_CHECKING:
    from carrypost.messaging.context import MessagingContext
    from carrypost.messaging.control import Ask, Gone, Withdraw
    from carrypost.messaging.queues.declared_queues import DeclaredQueues
    from carrypost.messaging.queues.entries import QueueEntry
    from carrypost.messaging.queues.queue import Demand, Queue
    from carrypost.messaging.queues.reminders_and_gaps import Gaps

_QUEUE_BYTES, _NUMBER_BYTES = 8, 8

Key = tuple[int, NodeId, int]
"""Queue, node and number."""


class DemandRow(msgspec.Struct, frozen=True, array_like=True):
    """A demand in the store; fields may be appended with a default."""

    credit: int
    taken: int
    deadline_us: int
    selector: str
    withdrawn: bool = False
    gone: tuple[int, ...] = ()
    """Numbers of assignments that ended without an answer (`messaging.queues.reminders_and_gaps`)."""
    key: bytes = b""
    """Sealing key of the node that asks."""


class Demands(Part):
    """All demands at the queues of one node."""

    def __init__(self, context: MessagingContext, queues: DeclaredQueues, gaps: Gaps) -> None:
        self._node, self._outputs, self._queues = context.node, context.outputs, queues
        self._table = Table(context.ledger, b"R", DemandRow)
        self._gaps, self._signed = gaps, context.keyring.signed
        self._skew_us = round(context.settings.skew_s_max * 1e6)
        self._accounts = control.Accounts()
        self._standing: dict[Key, tuple[Queue, Demand]] = {}
        self._withdrawn: dict[Key, int] = {}
        """Withdrawn demands, and the time until which each is remembered."""
        self._by_node: dict[NodeId, dict[Key, None]] = {}
        """Open and withdrawn demands by node, in the order of arrival."""
        self._shared: dict[NodeId, dict[Key, None]] = {}
        """Demands at queues without named receivers."""
        self._weights: Counter[NodeId] = Counter()
        """Weights of the selectors of each node."""
        self._began = 0
        self._ready: dict[Queue, None] = {}
        """Queues with more credit than before, or with a demand that ended: others may take its messages."""

    def next_place(self) -> int:
        """Return the next place among all demands and assignments."""
        self._began += 1
        return self._began

    def pop_ready(self) -> dict[Queue, None]:
        """Return the queues that may have something to assign since the last call."""
        ready, self._ready = self._ready, {}
        return ready

    # --- consumers of this node ----------------------------------------------------------------------------

    def grant(self, queue: Queue, demand: Demand, credit: int) -> None:
        """Set the total credit of a demand."""
        demand.grant(credit)
        self._ready[queue] = None

    def leave(self, queue: Queue, demand: Demand) -> None:
        """Remove a demand."""
        if queue is self._queues.numbered(queue.number):
            queue.withdraw(demand)
            self._ready[queue] = None

    # --- other nodes ---------------------------------------------------------------------------------------

    def open_to(self, name: str, node: NodeId) -> Queue | None:
        """Return the queue of this name if another node may receive from it; else count a refusal."""
        queue = self._queues.reach(address.queue(name, self._node))
        if queue is None or queue.asked.connection:
            self._outputs.refuse("queue", node)
            return None
        if not queue.admits(node):
            self._outputs.refuse("receiver", node)
            return None
        return queue

    def ask(self, asked: Ask, node: NodeId, now: int) -> None:
        """Handle a demand: a new one, more credit, or a renewal."""
        queue = self.open_to(asked.queue, node)
        if queue is None:
            return
        key = queue.number, node, asked.number
        # A withdrawn demand may arrive again with a copy of its message; it must not come back to
        # life.
        if key in self._withdrawn or asked.deadline_us <= now:
            return
        known = self._standing.get(key) or self._begin(key, queue, asked, now)
        if known is None:
            return
        demand = known[1]
        demand.key = asked.key or demand.key
        demand.grant(asked.credit)
        # The count that a node says it heard of is bounded by what was assigned to it: it is the
        # other side's claim.
        demand.heard = max(demand.heard, min(asked.heard, demand.taken))
        self._gaps.forget_known(demand, (1, demand.heard))
        until_us = control.deadline_us(asked.deadline_us, now, self._skew_us)
        demand.deadline_us = max(0 if demand.deadline_us == NEVER else demand.deadline_us, until_us)
        self.due_us = min(self.due_us, demand.deadline_us)
        self.write(queue, demand)
        self._ready[queue] = None

    def withdraw(self, asked: Withdraw, node: NodeId, now: int, until_us: int) -> None:
        """Withdraw a demand; an unknown one may still arrive, until its message expires at `until_us`."""
        queue = self._queues.get(address.queue(asked.queue, self._node))
        if queue is None or queue.asked.connection or not queue.admits(node):
            return
        key = queue.number, node, asked.number
        known = self._standing.pop(key, None)
        if known is not None:
            until_us = known[1].deadline_us
            self._end(*known)
        elif key in self._withdrawn:
            return
        elif self._accounts.pay(node, control.ITEM_UNITS, now) and self._make_room(queue, node):
            until_us = control.deadline_us(until_us, now, self._skew_us)
            self._note(key, queue)
        else:
            self._outputs.refuse("requests", node)
            return
        self._withdrawn[key] = until_us
        self.due_us = min(self.due_us, max(until_us, now))
        self._table.put(_row_name(key), DemandRow(0, 0, until_us, "", withdrawn=True))

    # --- bounds --------------------------------------------------------------------------------------------

    def _begin(self, key: Key, queue: Queue, asked: Ask, now: int) -> tuple[Queue, Demand] | None:
        """Open a new demand, if there is room for it."""
        _, node, number = key
        selector = asked.selector
        incarnation = incarnation_of(number)
        self._end_earlier(node, incarnation)
        # Incarnations are compared because messages overtake each other: a demand of an earlier incarnation may
        # arrive after its restart.
        if any(incarnation_of(other) > incarnation for _, _, other in self._by_node.get(node, ())):
            return None  # An earlier incarnation asked, and comes late.
        # The work is paid for before a selector is parsed: parsing is what a flood of demands would
        # cost this manager.
        if not self._accounts.pay(node, control.ITEM_UNITS + control.SELECTOR_UNITS * len(selector), now):
            self._outputs.refuse("requests", node)
            return None
        if not self._affords(queue, node, selector, now):
            self._outputs.refuse("selector", node)
            return None
        if not self._make_room(queue, node):
            self._outputs.refuse("requests", node)
            return None
        return self._enter(key, queue, selector, asked.key)

    def _affords(self, queue: Queue, node: NodeId, selector: str, now: int) -> bool:
        """Return True if a selector is valid, and within the work per message of this node, and of all nodes."""
        weight = _weight_of(selector)
        if weight is None or self._weights[node] + weight > control.WEIGHT_NODE_MAX:
            return False
        if not weight:
            return True
        if not self._accounts.pay(node, weight * len(queue.waiting) // control.STEPS_PER_UNIT, now):
            return False
        # The heaviest node gives way first, and only to a lighter one: two nodes cannot push each
        # other out in turns.
        while not queue.is_restricted and self._weights.total() + weight > control.WEIGHT_MAX:
            heaviest = max(self._weights, key=self._weights.__getitem__)
            if self._weights[heaviest] <= self._weights[node] + weight:
                return False
            standing = [key for key in self._by_node[heaviest] if key in self._standing]
            self._forget(max(standing, key=lambda each: _weight_of(self._standing[each][1].group.selector) or 0))
        return True

    def _make_room(self, queue: Queue, node: NodeId) -> bool:
        """Return True if one more demand of this node may be remembered.

        Another is forgotten for it if there are too many.
        """
        mine = self._by_node.get(node, {})
        # Of its own demands a node may lose withdrawn ones alone: open ones are waited for by its
        # programs.
        if len(mine) >= control.REQUESTS_NODE_MAX and not self._give_way(mine, standing=False):
            return False
        if queue.is_restricted or sum(map(len, self._shared.values())) < control.REQUESTS_MAX:
            return True
        other = control.greediest(self._shared, node)
        return other is not None and self._give_way(self._shared[other], standing=True)

    def _give_way(self, keys: dict[Key, None], *, standing: bool) -> bool:
        """Forget the oldest of these demands: a withdrawn one or, if there are none, an open one."""
        found = next((key for key in keys if key in self._withdrawn), None)
        if found is None and standing:
            found = next(iter(keys))
        if found is not None:
            self._forget(found)
        return found is not None

    # --- what is known -------------------------------------------------------------------------------------

    def _enter(self, key: Key, queue: Queue, selector: str, sealing_key: bytes) -> tuple[Queue, Demand]:
        _, node, number = key
        reads = bool(sealing_key) or not self._signed
        found = self._standing[key] = queue, queue.demand(node, number, selector, self.next_place(), reads=reads)
        found[1].key = sealing_key
        self._weights[node] += _weight_of(selector) or 0
        self._note(key, queue)
        return found

    def _note(self, key: Key, queue: Queue) -> None:
        self._by_node.setdefault(key[1], {})[key] = None
        if not queue.is_restricted:
            self._shared.setdefault(key[1], {})[key] = None

    def _end_earlier(self, node: NodeId, incarnation: int) -> None:
        for key in [key for key in self._by_node.get(node, ()) if incarnation_of(key[2]) < incarnation]:
            self._forget(key)

    def _end(self, queue: Queue, demand: Demand) -> None:
        queue.withdraw(demand)
        self._gaps.forget(demand)
        self._ready[queue] = None
        self._weights[demand.node] -= _weight_of(demand.group.selector) or 0
        if not self._weights[demand.node]:
            del self._weights[demand.node]

    def spare(self, queue: Queue, entry: QueueEntry, now: int) -> bool:
        """Give back the credit of an entry that ended, or whose lease ended, without an answer.

        Another node is informed, as only it knows whether it heard of the assignment. Returns True for a consumer of
        this node that is due another message.
        """
        demand = queue.find(entry.receiver, entry.demand)
        if demand is None or entry.state is not EntryState.ASSIGNED:
            return False
        if demand.node != self._node:
            if self._gaps.add(queue.asked.name, demand, entry.number, now):
                self.write(queue, demand)
            return False
        # A program here may have seen it: the credit is used, although no answer came.
        if entry.count > entry.before:
            return False
        demand.give_back()
        return True

    def handle_gone(self, answer: Gone, node: NodeId) -> None:
        """Forget assignments that ended without an answer and that their receiver had heard of."""
        queue = self._queues.get(address.queue(answer.queue, self._node))
        if queue is not None and (known := self._standing.get((queue.number, node, answer.demand))) is not None:
            self._gaps.forget_known(known[1], answer.numbers)
            self.write(*known)

    def write(self, queue: Queue, demand: Demand) -> None:
        """Write a demand."""
        row = DemandRow(
            demand.credit, demand.taken, demand.deadline_us, demand.group.selector,
            gone=self._gaps.numbers(demand), key=demand.key,
        )  # fmt: skip
        self._table.put(_row_name((queue.number, demand.node, demand.number)), row)

    def expire(self, now: int) -> None:
        """Forget demands whose deadline has passed."""
        for key in [key for key, (_, demand) in self._standing.items() if demand.deadline_us <= now]:
            self._forget(key)
        for key in [key for key, until_us in self._withdrawn.items() if until_us <= now]:
            self._forget(key)
        dues = [demand.deadline_us for _, demand in self._standing.values()]
        self.due_us = min([*dues, *self._withdrawn.values()], default=NEVER)

    def end_queue(self, queue: Queue) -> None:
        """Drop all demands at a queue that is gone."""
        for key in [key for key in (*self._standing, *self._withdrawn) if key[0] == queue.number]:
            self._forget(key)
        self._ready.pop(queue, None)

    def _forget(self, key: Key) -> None:
        known = self._standing.pop(key, None)
        if known is not None:
            self._end(*known)
        self._withdrawn.pop(key, None)
        for keys in (self._by_node, self._shared):
            if (mine := keys.get(key[1])) is not None:
                mine.pop(key, None)
                if not mine:
                    del keys[key[1]]
        self._table.delete(_row_name(key))

    def restore(self, stored: Stored, now: int) -> None:
        """Restore the demands after a restart."""
        for name, row in self._table.read(stored):
            self._restore(name, row, now)

    def _restore(self, name: bytes, row: DemandRow, now: int) -> None:
        key = _key_of(name)
        queue, until_us = self._queues.numbered(key[0]), control.deadline_us(row.deadline_us, now, self._skew_us)
        if queue is None or until_us <= now or len(self._by_node.get(key[1], ())) >= control.REQUESTS_NODE_MAX:
            self._table.delete(name)
            return
        self.due_us = min(self.due_us, until_us)
        if row.withdrawn:
            self._withdrawn[key] = until_us
            self._note(key, queue)
            return
        demand = self._enter(key, queue, row.selector, row.key)[1]
        demand.grant(row.credit, row.taken)
        demand.deadline_us = until_us
        self._gaps.resume(queue.asked.name, demand, row.gone, now)


@functools.lru_cache(maxsize=control.REQUESTS_MAX)
def _weight_of(text: str) -> int | None:
    try:
        return Selector(text).weight
    except CarrypostError:
        return None


def _row_name(key: Key) -> bytes:
    queue, node, number = key
    return queue.to_bytes(_QUEUE_BYTES, "big") + number.to_bytes(_NUMBER_BYTES, "big") + node.encode()


def _key_of(name: bytes) -> Key:
    queue, number = name[:_QUEUE_BYTES], name[_QUEUE_BYTES : _QUEUE_BYTES + _NUMBER_BYTES]
    node = NodeId(name[_QUEUE_BYTES + _NUMBER_BYTES :].decode())
    return int.from_bytes(queue, "big"), node, int.from_bytes(number, "big")
