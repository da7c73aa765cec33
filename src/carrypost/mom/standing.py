"""Requests of other nodes that stand at this manager: rows, bounds, and those that were withdrawn.

A request is remembered until its deadline, also after it was withdrawn: the message that made it may come again. A node
has so many at most, and all nodes together; who floods uses up its own share. A request of a node's later life ends all
those of its earlier lives: nobody there waits for them any more.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

import msgspec

from carrypost.errors import CarrypostError
from carrypost.model.ids import NodeId
from carrypost.model.selector import STEPS_MAX, Selector
from carrypost.model.times import NEVER
from carrypost.mom.entries import EntryState

if TYPE_CHECKING:
    from carrypost.gossip.transfers.ground import Ground
    from carrypost.mom.control import Gone, Request
    from carrypost.mom.declared import Declared
    from carrypost.mom.entries import QueueEntry
    from carrypost.mom.gaps import Gaps
    from carrypost.mom.ledger import Ledger
    from carrypost.mom.queue import Queue, Standing

FAMILY = b"R"
LIFE_BITS = 32
"""A request's number is the life of its node, and so many bits of its place in it."""
_NODE_MAX = 256
"""Requests of one node. A program that opens and closes consumers leaves one each time until it lapses."""
_ALL_MAX = 4_096
_WEIGHT_ALL_MAX = 8 * STEPS_MAX
"""Of all selectors together, which may be held against each message that comes; those of one node have an eighth."""
_QUEUE_BYTES, _NUMBER_BYTES = 8, 8

Key = tuple[int, NodeId, int]
"""Queue, node and number."""


class RequestRow(msgspec.Struct, frozen=True, array_like=True):
    """A request in the store; fields may be appended with a default."""

    credit: int
    taken: int
    deadline_us: int
    selector: str
    withdrawn: bool = False
    gone: tuple[int, ...] = ()
    """Numbers of assignments that ended without an answer (`mom.gaps`)."""


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(RequestRow).decode


class Requests:
    """The requests of other nodes."""

    def __init__(self, ground: Ground, ledger: Ledger, gaps: Gaps) -> None:
        self._node, self._outputs, self._ledger = ground.node, ground.outputs, ledger
        self._gaps = gaps
        self._standing: dict[Key, tuple[Queue, Standing]] = {}
        self._withdrawn: dict[Key, int] = {}
        """Until when each is remembered."""
        self._by_node: dict[NodeId, set[Key]] = {}
        self._began = 0
        self.due_us = NEVER

    def next_place(self) -> int:
        """The next place among all requests and assignments."""
        self._began += 1
        return self._began

    def request(self, queue: Queue, node: NodeId, asked: Request, now: int) -> Standing | None:
        """A request came, for the first time or with more credit; None if it stands no more, or is one too many."""
        key = queue.number, node, asked.number
        if key in self._withdrawn or asked.deadline_us <= now:
            return None
        known = self._standing.get(key)
        if known is None:
            self._end_earlier_lives(node, asked.number >> LIFE_BITS)
            mine = self._by_node.get(node, ())
            latest = max((number for _, _, number in mine), default=0) >> LIFE_BITS
            if latest > asked.number >> LIFE_BITS:
                return None  # An earlier life asked, and comes late.
            if len(mine) >= _NODE_MAX or len(self._standing) + len(self._withdrawn) >= _ALL_MAX:
                self._outputs.refuse("requests", node)
                return None
            if not self._affords(node, asked.selector):
                self._outputs.refuse("selector", node)
                return None
            known = self._enter(key, queue, asked.selector)
        standing = known[1]
        standing.grant(asked.credit)
        standing.heard = max(standing.heard, min(asked.heard, standing.taken))
        self._gaps.heard(standing, (1, standing.heard))
        standing.deadline_us = max(0 if standing.deadline_us == NEVER else standing.deadline_us, asked.deadline_us)
        self.due_us = min(self.due_us, standing.deadline_us)
        self.write(queue, standing)
        return standing

    def _affords(self, node: NodeId, selector: str) -> bool:
        """Whether it is a selector, and within what this node, and all of them, may make this one do for a message."""
        weight = _weight_of(selector)
        if weight is None:
            return False
        mine = sum(_weight_of(standing.group.selector) or 0 for standing in self._of(node))
        every = sum(_weight_of(standing.group.selector) or 0 for _, standing in self._standing.values())
        return not weight or (mine + weight <= STEPS_MAX and every + weight <= _WEIGHT_ALL_MAX)

    def _of(self, node: NodeId) -> list[Standing]:
        keys = self._by_node.get(node, ())
        return [known[1] for key in keys if (known := self._standing.get(key)) is not None]

    def _enter(self, key: Key, queue: Queue, selector: str) -> tuple[Queue, Standing]:
        _, node, number = key
        found = self._standing[key] = queue, queue.request(node, number, selector, self.next_place())
        self._by_node.setdefault(node, set()).add(key)
        return found

    def _end_earlier_lives(self, node: NodeId, life: int) -> None:
        for key in [key for key in self._by_node.get(node, ()) if key[2] >> LIFE_BITS < life]:
            self._forget(key)

    def withdraw(self, queue: Queue, node: NodeId, number: int, now: int, until_us: int) -> None:
        """A request stands no more; one that is not known yet may still come."""
        key = queue.number, node, number
        known = self._standing.pop(key, None)
        if known is None:
            if key in self._withdrawn or len(self._by_node.get(node, ())) >= _NODE_MAX:
                return
            self._by_node.setdefault(node, set()).add(key)
        else:
            until_us = known[1].deadline_us
            self._end(queue, known[1])
        self._withdrawn[key] = until_us
        self.due_us = min(self.due_us, max(until_us, now))
        self._ledger.put(_row_name(key), _encode(RequestRow(0, 0, until_us, "", withdrawn=True)))

    def spare(self, queue: Queue, entry: QueueEntry, now: int) -> bool:
        """See to a receiver whose entry ends, or its lease, without an answer: if it never came, another is due.

        Another node is told, as only it knows whether it heard of the assignment. Return True for a consumer of this
        node to which another one is due.
        """
        request = queue.standing(entry.receiver, entry.request)
        if request is None or entry.state is not EntryState.ASSIGNED:
            return False
        if request.node != self._node:
            if self._gaps.add(queue.asked.name, request, entry.number, now):
                self.write(queue, request)
            return False
        if entry.count > entry.before:
            return False
        request.give_back()
        return True

    def heard(self, queue: Queue, node: NodeId, answer: Gone) -> None:
        """Note that a receiver knew the numbers of assignments that ended without an answer."""
        if (known := self._standing.get((queue.number, node, answer.request))) is not None:
            self._gaps.heard(known[1], answer.numbers)
            self.write(*known)

    def write(self, queue: Queue, standing: Standing) -> None:
        """Keep a request as it is."""
        row = RequestRow(
            standing.credit, standing.taken, standing.deadline_us, standing.group.selector,
            gone=self._gaps.numbers(standing),
        )  # fmt: skip
        self._ledger.put(_row_name((queue.number, standing.node, standing.number)), _encode(row))

    def expire(self, now: int) -> None:
        """Forget those whose deadline has come."""
        for key in [key for key, (_, standing) in self._standing.items() if standing.deadline_us <= now]:
            self._forget(key)
        for key in [key for key, until_us in self._withdrawn.items() if until_us <= now]:
            self._forget(key)
        dues = [standing.deadline_us for _, standing in self._standing.values()]
        self.due_us = min([*dues, *self._withdrawn.values()], default=NEVER)

    def end_queue(self, number: int) -> None:
        """A queue is gone, and with it all that was asked of it."""
        for key in [key for key in (*self._standing, *self._withdrawn) if key[0] == number]:
            self._forget(key)

    def _forget(self, key: Key) -> None:
        known = self._standing.pop(key, None)
        if known is not None:
            self._end(*known)
        self._withdrawn.pop(key, None)
        mine = self._by_node[key[1]]
        mine.discard(key)
        if not mine:
            del self._by_node[key[1]]
        self._ledger.delete(_row_name(key))

    def _end(self, queue: Queue, standing: Standing) -> None:
        queue.withdraw(standing)
        self._gaps.forget(standing)

    def restore(self, name: bytes, value: bytes, queues: Declared, now: int) -> None:
        """A row of an earlier life."""
        row, key = _decode(value), _key_of(name)
        queue = queues.numbered(key[0])
        if queue is None or row.deadline_us <= now:
            self._ledger.delete(name)
            return
        self.due_us = min(self.due_us, row.deadline_us)
        if row.withdrawn:
            self._withdrawn[key] = row.deadline_us
            self._by_node.setdefault(key[1], set()).add(key)
            return
        standing = self._enter(key, queue, row.selector)[1]
        standing.grant(row.credit, row.taken)
        standing.deadline_us = row.deadline_us
        self._gaps.restore(queue.asked.name, standing, row.gone, now)


@functools.lru_cache(maxsize=_ALL_MAX)
def _weight_of(text: str) -> int | None:
    try:
        return Selector(text).weight
    except CarrypostError:
        return None


def _row_name(key: Key) -> bytes:
    queue, node, number = key
    return FAMILY + queue.to_bytes(_QUEUE_BYTES, "big") + number.to_bytes(_NUMBER_BYTES, "big") + node.encode()


def _key_of(name: bytes) -> Key:
    queue, number = name[1 : 1 + _QUEUE_BYTES], name[1 + _QUEUE_BYTES : 1 + _QUEUE_BYTES + _NUMBER_BYTES]
    node = NodeId(name[1 + _QUEUE_BYTES + _NUMBER_BYTES :].decode())
    return int.from_bytes(queue, "big"), node, int.from_bytes(number, "big")
