"""Programs of the Context API on a node that takes orders (`_worker`): they send and receive, by topics and queues."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable
from typing import Any

from carrypost import Consumer, Context, Destination, JMSException, Topic
from carrypost.jms.connection import Connection
from carrypost.jms.destinations import Queue
from carrypost.jms.modes import SessionMode
from carrypost.jms.provider import Provider
from carrypost.jms.provider.local import LocalProvider
from carrypost.log.events import Event
from carrypost.node.runtime import Node

SEND_STEP = 32
"""Number of messages that are sent at the same time."""
PREFETCH = 4_000
"""Prefetch of receiving programs: a remote queue assigns no more before it has their answers."""

Order = dict[str, Any]


class Source:
    """Source from which a context gets a node that runs."""

    def __init__(self, provider: Provider) -> None:
        self._provider = provider

    async def acquire(self) -> Provider:
        """Return the provider of the node, which runs already."""
        return self._provider

    async def release(self) -> None:
        """Do nothing: the node runs on."""

    def unhandled(self, error: JMSException) -> None:
        """The benchmark waits in vain, and says so."""


class Programs:
    """One context on a node, and what its orders are."""

    def __init__(self, node: Node, arrived: Callable[[int], None]) -> None:
        self._provider = LocalProvider(node.driver)
        self._arrived = arrived
        self._context: Context | None = None
        self._receiving: asyncio.Task[None] | None = None

    @property
    def handlers(self) -> dict[type[Event], Callable[[Any], None]]:
        """Handlers of the events that programs need."""
        return dict(self._provider.handlers)

    async def _opened(self) -> Context:
        if self._context is None:
            self._context = await Context(Connection(Source(self._provider), ""), SessionMode.AUTO_ACKNOWLEDGE)
        return self._context

    async def declare(self, order: Order) -> dict[str, Any]:
        """Declare a queue of this node."""
        return {"queue": (await (await self._opened()).declare_queue(order["name"])).queue_name}

    async def deposit(self, order: Order) -> dict[str, Any]:
        """Send PERSISTENT messages of random bytes to a topic or a queue; answered when all are stored."""
        bodies = [os.urandom(order["size"]) for _ in range(order["count"])]
        producer, to = (await self._opened()).create_producer(), _destination(order)
        began_s = time.monotonic()
        for first in range(0, len(bodies), SEND_STEP):
            await asyncio.gather(*(producer.send(to, body) for body in bodies[first : first + SEND_STEP]))
        return {"began_s": began_s, "stored_s": time.monotonic()}

    async def receive(self, order: Order) -> dict[str, Any]:
        """Let a program receive everything from a topic or a queue."""
        consumer = await (await self._opened()).create_consumer(_destination(order), prefetch=PREFETCH)
        self._receiving = asyncio.get_running_loop().create_task(self._take_all(consumer))
        return {}

    async def _take_all(self, consumer: Consumer) -> None:
        async for message in consumer:
            self._arrived(len(message.get_body(bytes) or b""))


def _destination(order: Order) -> Destination:
    return Queue(order["queue"]) if "queue" in order else Topic(order["topic"])
