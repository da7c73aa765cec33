"""The queues that this node declared, and their rows. A temporary queue has none: it ends with its connection."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from carrypost.application.tables import Table
from carrypost.errors import InvalidDestinationException, JMSException
from carrypost.gossip.composite import Part, Stored
from carrypost.messaging.admission import RECEIVERS_MAX
from carrypost.messaging.commands import Declare, Redelivery
from carrypost.messaging.dead_letters import DEAD_LETTERS, name_here, source_of
from carrypost.messaging.policies import fair, policy_named, policy_names
from carrypost.messaging.queues.queue import Queue
from carrypost.model import address

if TYPE_CHECKING:
    from collections.abc import Iterator

    from carrypost.messaging.context import MessagingContext


class QueueRow(msgspec.Struct, frozen=True, array_like=True):
    """A queue in the store; fields may be appended with a default."""

    asked: Declare


class DeclaredQueues(Part):
    """The queues of one node."""

    def __init__(self, context: MessagingContext) -> None:
        self._node, self._table = context.node, Table(context.ledger, b"Q", QueueRow)
        self._queues: dict[str, Queue] = {}
        self._by_number: dict[int, Queue] = {}
        self._number = 0

    def __iter__(self) -> Iterator[Queue]:
        return iter(self._queues.values())

    def get(self, destination: str) -> Queue | None:
        """Return the queue of this address."""
        return self._queues.get(destination)

    def numbered(self, number: int) -> Queue | None:
        """Return the queue of this number."""
        return self._by_number.get(number)

    def managed(self, destination: str) -> Queue:
        """Return the queue of this address; raises `InvalidDestinationException` if there is none."""
        found = self._queues.get(destination)
        if found is None:
            name, node = address.name_of(destination) or destination, address.addressee(destination)
            remedy = (
                "declare it first" if node in (None, self._node) else f"use it on the node {node}, which manages it"
            )
            raise InvalidDestinationException(f"this node manages no queue {name!r}: {remedy}")
        return found

    def letters_of(self, queue: Queue) -> Queue:
        """Return the queue for dead letters of a queue. It has the same receivers."""
        name = DEAD_LETTERS + queue.asked.name
        known = self._queues.get(address.queue(name, self._node))
        return known or self.declare(Declare(name, receivers=queue.asked.receivers))[0]

    def reach(self, destination: str) -> Queue | None:
        """Return the queue of this address, made if it is for dead letters of a queue that is here.

        So programs can wait for dead letters before there are any. Other nodes may ask for it, too: they make no more
        of these queues than there are others.
        """
        found = self._queues.get(destination)
        if found is None and (name := source_of(name_here(destination, self._node))):
            source = self._queues.get(address.queue(name, self._node))
            if source is not None and not source.asked.connection:
                return self.letters_of(source)
        return found

    def declare(self, asked: Declare) -> tuple[Queue, bool]:
        """Return the queue of this name, and True if it is new; raises `JMSException` if it has other options."""
        policy = policy_named(asked.policy)
        if policy is None:
            raise JMSException(f"there is no policy {asked.policy!r}; there are {', '.join(policy_names())}")
        if asked.receivers is not None and len(asked.receivers) > RECEIVERS_MAX:
            raise JMSException(f"a queue names at most {RECEIVERS_MAX} receivers, not {len(asked.receivers):,}")
        destination = address.queue(asked.name, self._node)
        known = self._queues.get(destination)
        if known is not None:
            if known.asked != asked:
                raise JMSException(
                    f"the queue {asked.name!r} exists with other options ({_options(known.asked)}): declare it with "
                    "the same, or end it first"
                )
            return known, False
        self._number += 1
        queue = Queue(self._number, destination, asked, policy)
        self._enter(queue)
        if not asked.connection:
            self._table.put(_row_name(queue.number), QueueRow(asked))
        return queue, True

    def _enter(self, queue: Queue) -> None:
        self._queues[queue.destination] = self._by_number[queue.number] = queue

    def remove(self, queue: Queue) -> None:
        """Remove a queue."""
        del self._queues[queue.destination], self._by_number[queue.number]
        self._table.delete(_row_name(queue.number))

    def restore(self, stored: Stored, now: int) -> None:  # noqa: ARG002 - queues do not end by themselves
        """Restore the queues after a restart."""
        for name, row in self._table.read(stored):
            number, asked = int.from_bytes(name, "big"), row.asked
            policy = policy_named(asked.policy) or fair  # A program registered it, and has not yet in this incarnation.
            self._number = max(self._number, number)
            self._enter(Queue(number, address.queue(asked.name, self._node), asked, policy))


def _row_name(number: int) -> bytes:
    return number.to_bytes(8, "big")


def _options(asked: Declare) -> str:
    """Return the options of a queue, as a program would write them."""
    lease = f", lease_s={asked.lease_us / 1e6:g}" if asked.redelivery is Redelivery.AFTER_LEASE else ""
    receivers = '"anyone"' if asked.receivers is None else list(asked.receivers)
    tries = f", tries={asked.tries}" if asked.tries else ""
    sealed = ", sealed=True" if asked.sealed else ""
    return f'redelivery="{asked.redelivery}"{lease}, policy="{asked.policy}", receivers={receivers}{tries}{sealed}'
