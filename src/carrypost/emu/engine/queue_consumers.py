"""Queues of a run: their managers declare them, and a program on each recipient's node consumes at once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import NamedTuple

from carrypost.emu.engine.driver import EmulatedDriver
from carrypost.log.events import Handed
from carrypost.messaging import program_commands as do
from carrypost.messaging.commands import Ack, Declare, Receive, UnitOfWork
from carrypost.model import address
from carrypost.model.ids import NodeId

_CREDIT, _BYTES = 1_000, 1_000_000_000


class EmulatedQueue(NamedTuple):
    """The queue of a node."""

    name: str
    recipient: str
    """Name of the node that consumes it."""
    manager: str
    """Name of the node that manages it."""
    node: NodeId
    """Id of that node."""

    @property
    def destination(self) -> str:
        """The address that messages are sent to."""
        return address.queue(self.name, self.node)


class QueueConsumers:
    """The programs that declare and consume the queues of a run, on all nodes."""

    def __init__(self, queues: Iterable[EmulatedQueue]) -> None:
        self._queues = tuple(queues)
        self._numbers = Counter[str]()
        """The last number of a command, by node."""
        self._sessions: dict[str, int] = {}

    def started(self, driver: EmulatedDriver) -> None:
        """Declare the queues that a node manages and consume its own, on a host that has just started."""
        messaging, now, node = driver.host.messaging, driver.now, driver.name
        messaging.open(now)
        for each in self._queues:
            if each.manager == node:
                messaging.execute(do.DeclareQueue(Declare(each.name)), now, self._next(node))
        connection = messaging.execute(do.Connect(), now)
        self._sessions[node] = session = messaging.execute(do.OpenSession(connection), now)
        for each in self._queues:
            if each.recipient == node:
                consumer = messaging.execute(do.Consume(session, Receive(each.destination)), now, self._next(node))
                messaging.execute(do.Credit(consumer, _CREDIT, _BYTES), now)

    def acknowledge(self, driver: EmulatedDriver, handed: Handed) -> None:
        """Acknowledge a message, and make room for another one."""
        host, now, node = driver.host, driver.now, driver.name
        ack = Ack(self._sessions[node], (handed.number,))
        host.perform(UnitOfWork(self._next(node), acks=(ack,)), now)
        host.messaging.execute(do.Credit(handed.consumer, 1, handed.descriptor.size), now)

    def _next(self, node: str) -> int:
        self._numbers[node] += 1
        return self._numbers[node]
