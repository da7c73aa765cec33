"""Programs of the Context API on a real node, in this process: their cost, with its disk and all its threads.

CPU time is that of the whole process, so the store's writer is in it. In the end of every measurement a PERSISTENT
message is sent: when that is on disk, so is everything before it.
"""

from __future__ import annotations

import asyncio
import gc
import random
import sqlite3
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from benchmarks._direct import Direct

from carrypost import ConnectionFactory, Context, DeliveryMode
from carrypost.attach import provider
from carrypost.jms.destinations import Destination, Topic
from carrypost.log.events import Delivery
from carrypost.node.runtime import Node

SIZE_BYTES: Final = 1_000
BODY: Final = random.Random(1).randbytes(SIZE_BYTES)
TOPIC: Final = Topic("bench")
_LAST: Final = Topic("bench.last")
_WARM: Final = 20

Rows = dict[str, list[tuple[object, ...]]]
"""Number of rows in each table of a store."""


@dataclass(frozen=True, slots=True)
class Cost:
    """The cost of a message."""

    cpu_us: float
    wall_us: float
    per_commit: float
    """Messages per transaction of the store."""


class Meter:
    """Weighs this process while messages pass."""

    def __init__(self, node: Node) -> None:
        self._store = node.store
        gc.collect()
        self._commits = self._committed()
        self._wall_s, self._cpu_s = time.perf_counter(), time.process_time()

    @contextmanager
    def aside(self) -> Iterator[None]:
        """Exclude the work inside from the measurement."""
        wall_s, cpu_s = time.perf_counter(), time.process_time()
        yield
        self._wall_s += time.perf_counter() - wall_s
        self._cpu_s += time.process_time() - cpu_s

    def _committed(self) -> int:
        return int(str(self._store.status()["commits"]))

    def cost(self, messages: int) -> Cost:
        """Return the cost of each of this many messages, since this was made."""
        cpu_s, wall_s = time.process_time() - self._cpu_s, time.perf_counter() - self._wall_s
        commits = max(1, self._committed() - self._commits)
        return Cost(cpu_s / messages * 1e6, wall_s / messages * 1e6, messages / commits)


def factory(folder: Path, security: str, messages: int) -> ConnectionFactory:
    """Return the factory of a node that no other node hears, with room for this many messages."""
    return ConnectionFactory(
        data=str(folder), security=security, cache_messages_max=2 * messages + 1_000, udp={"interfaces": ["lo"]},
        limits={"unconfirmed_max": 2 * messages, "share_queues": 1.0},
    )  # fmt: skip


@asynccontextmanager
async def opened(made: ConnectionFactory) -> AsyncIterator[tuple[Context, Node]]:
    """Yield a context, and the node that it runs on."""
    async with made.create_context() as ctx:
        uses = provider._uses[asyncio.get_running_loop()]  # noqa: SLF001 - programs do not see it
        yield ctx, uses[made.settings.data.absolute()].opened.node


async def settle(ctx: Context) -> None:
    """Wait until everything before is on disk."""
    await ctx.create_producer().send(_LAST, None)


async def send(ctx: Context, messages: int, tasks: int, mode: DeliveryMode, to: Destination = TOPIC) -> None:
    """Send messages in several tasks, each of which sends one after the other."""
    producer = ctx.create_producer().set_delivery_mode(mode)

    async def some(count: int) -> None:
        for _ in range(count):
            await producer.send(to, BODY)

    async with asyncio.TaskGroup() as group:
        for number in range(tasks):
            group.create_task(some((messages + number) // tasks))


async def sending(made: ConnectionFactory, messages: int, tasks: int, mode: DeliveryMode) -> Cost:
    """Return the cost of messages that several tasks send, each one after the other."""
    async with opened(made) as (ctx, node):
        await send(ctx, _WARM, 1, mode)
        await settle(ctx)
        meter = Meter(node)
        await send(ctx, messages, tasks, mode)
        if mode is DeliveryMode.NON_PERSISTENT:
            await settle(ctx)
        return meter.cost(messages)


async def fan_out(made: ConnectionFactory, messages: int, consumers: int, *, together: bool) -> Cost:
    """Return the cost if one program sends, and each consumer gets every message, in one context or one each."""
    async with opened(made) as (ctx, node), AsyncExitStack() as stack:
        contexts = [await stack.enter_async_context(ctx.create_context()) for _ in range(1 if together else consumers)]

        async def take(number: int) -> None:
            async with contexts[number % len(contexts)].create_consumer(TOPIC) as consumer:
                ready.release()
                for _ in range(messages):
                    await consumer.receive()

        ready = asyncio.Semaphore(0)
        async with asyncio.TaskGroup() as group:
            for number in range(consumers):
                group.create_task(take(number))
            for _ in range(consumers):
                await ready.acquire()
            meter = Meter(node)
            await send(ctx, messages, 1, DeliveryMode.NON_PERSISTENT)
        await settle(ctx)
        return meter.cost(messages)


async def receiving(
    made: ConnectionFactory, messages: int, mode: DeliveryMode = DeliveryMode.NON_PERSISTENT, *, queue: bool = False
) -> Cost:
    """Let a program receive what waits on its node, in a topic or a queue, and acknowledge each message."""
    async with opened(made) as (ctx, node):
        place = await ctx.declare_queue("bench") if queue else TOPIC
        await send(ctx, messages, 10, mode, place)
        await settle(ctx)
        meter = Meter(node)
        async with ctx.create_consumer(place) as consumer:
            for _ in range(messages):
                await consumer.receive()
        await settle(ctx)
        return meter.cost(messages)


async def delivering(made: ConnectionFactory, messages: int) -> Cost:
    """Measure the same messages by the host's own deliver and confirm, on such a node, without messaging."""
    async with opened(made) as (ctx, _):
        await send(ctx, messages, 10, DeliveryMode.NON_PERSISTENT)
        await settle(ctx)
    async with Node(made.settings) as node:
        confirmed: list[asyncio.Future[None]] = []
        all_came = asyncio.Event()

        def take(deliveries: Sequence[Delivery]) -> None:
            for delivery in deliveries:
                assert node.driver.payload(delivery.descriptor) is not None
                confirmed.append(direct.confirm((delivery,)))
            if len(confirmed) == messages:
                all_came.set()

        direct = Direct(node, take)
        node.attach(direct.handlers)
        meter = Meter(node)
        direct.subscribe(TOPIC.address)
        await all_came.wait()
        await asyncio.gather(*confirmed)
        return meter.cost(messages)


def rows_of(folder: Path) -> Rows:
    """Return the rows of messages in the store of a node that has ended."""
    (file,) = folder.rglob("*.sqlite")
    queries = {table: f"SELECT * FROM {table} ORDER BY n" for table in ("message", "piece")}  # noqa: S608 - our own names
    with closing(sqlite3.connect(file)) as connection:
        return {table: connection.execute(query).fetchall() for table, query in queries.items()}
