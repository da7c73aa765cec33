"""A real program on a small disk: it fills a queue, moves messages in transactions, or only consumes.

``python tests/support/disk_agent.py fill FOLDER PORT TOPIC`` sends TOPIC messages to a topic with a durable
subscription, and then more to the queue ``jobs`` until sends are refused: it says ``sent`` for each of those,
``filled``, and stays.
``python tests/support/disk_agent.py move FOLDER PORT`` takes messages out of the queue and sends longer ones there,
each by one transaction, until commits are rolled back: it says ``moved`` for each, ``stuck``, and stays.
``python tests/support/disk_agent.py drain FOLDER PORT QUEUE TOPIC`` consumes QUEUE messages of the queue
and TOPIC messages of the topic, says ``drained``, leaves the context, and fills the queue again.
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Callable, Coroutine
from typing import Any

from carrypost import (
    ConnectionFactory,
    Context,
    Queue,
    ResourceAllocationException,
    SessionMode,
    TransactionRolledBackException,
)

SIZE, LONGER = 90_000, 150_000
REFUSED = 3
"""Number of refusals in a row."""


def say(*words: object) -> None:
    print(*words, flush=True)  # noqa: T201 - the test reads it


def context(folder: str, port: str, mode: SessionMode = SessionMode.AUTO_ACKNOWLEDGE) -> Context:
    made = ConnectionFactory(data=folder, client_id="agent", udp={"interfaces": ["lo"], "port": int(port)})
    return made.create_context(mode)


async def fill(folder: str, port: str, on_topic: str) -> None:
    async with context(folder, port) as ctx:
        queue, topic, producer = await ctx.declare_queue("jobs"), ctx.create_topic("news"), ctx.create_producer()
        async with ctx.create_durable_consumer(topic, "kept"):
            pass
        for _ in range(int(on_topic)):
            await producer.send(topic, os.urandom(SIZE))
        refused = 0
        while refused < REFUSED:
            try:
                await producer.send(queue, os.urandom(SIZE))
            except ResourceAllocationException:
                refused += 1
            else:
                refused = 0
                say("sent")
        say("filled")
        await asyncio.sleep(3_600)


async def move(folder: str, port: str) -> None:
    async with context(folder, port, SessionMode.SESSION_TRANSACTED) as ctx:
        queue, producer, refused = Queue(f"jobs@{ctx.node_id}"), ctx.create_producer(), 0
        async with ctx.create_consumer(queue) as consumer:
            while refused < REFUSED:
                await consumer.receive()
                await producer.send(queue, os.urandom(LONGER))
                try:
                    await ctx.commit()
                except TransactionRolledBackException:
                    refused += 1
                else:
                    refused = 0
                    say("moved")
            say("stuck")
            await asyncio.sleep(3_600)


async def drain(folder: str, port: str, on_queue: str, on_topic: str) -> None:
    async with context(folder, port) as ctx:
        topic = ctx.create_topic("news")
        async with (
            ctx.create_consumer(Queue(f"jobs@{ctx.node_id}")) as jobs,
            ctx.create_durable_consumer(topic, "kept") as news,
        ):
            for consumer, count in ((jobs, on_queue), (news, on_topic)):
                for _ in range(int(count)):
                    await consumer.receive()
        say("drained")
    await fill(folder, port, "0")


if __name__ == "__main__":
    what, *arguments = sys.argv[1:]
    programs: dict[str, Callable[..., Coroutine[Any, Any, None]]] = {"fill": fill, "move": move, "drain": drain}
    asyncio.run(programs[what](*arguments))
