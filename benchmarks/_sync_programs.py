"""The same small programs twice: awaited, on a node in their process, and blocking, by `carrypost.sync`.

CPU time is that of the whole process: the program's thread, the loop's, and the store's. Each program sends or receives
messages one after the other. At the end of every measurement a PERSISTENT message is sent, so that everything before it
is on disk.
"""

from __future__ import annotations

import asyncio
import gc
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final, NamedTuple

from benchmarks._jms_programs import BODY, TOPIC, factory, send, settle

from carrypost import DeliveryMode, Topic, sync

LAST: Final = Topic("bench.last")
_WARM: Final = 20


@contextmanager
def weighed(messages: int) -> Iterator[list[float]]:
    """Put the CPU time of a message, in microseconds, into the list."""
    gc.collect()
    found: list[float] = []
    begun_s = time.process_time()
    yield found
    found.append((time.process_time() - begun_s) / messages * 1e6)


def _blocking(folder: Path, messages: int) -> sync.ConnectionFactory:
    """Return a factory with the settings of `factory`, whose node no other node hears."""
    return sync.ConnectionFactory(
        data=str(folder), cache_messages_max=2 * messages + 1_000, udp={"interfaces": ["lo"]},
        limits={"unconfirmed_max": 2 * messages, "share_queues": 1.0},
    )  # fmt: skip


def sending_awaited(folder: Path, messages: int, mode: DeliveryMode) -> float:
    """Send messages from one coroutine."""

    async def program() -> float:
        async with factory(folder, "signed", messages).create_context() as ctx:
            await send(ctx, _WARM, 1, mode)
            await settle(ctx)
            with weighed(messages) as cost:
                await send(ctx, messages, 1, mode)
                await settle(ctx)
        return cost[0]

    return asyncio.run(program())


def sending_blocking(folder: Path, messages: int, mode: DeliveryMode) -> float:
    """Send messages from one thread."""
    with _blocking(folder, messages).create_context() as ctx:
        producer = ctx.create_producer().set_delivery_mode(mode)
        for _ in range(_WARM):
            producer.send(TOPIC, BODY)
        ctx.send(LAST, None)
        with weighed(messages) as cost:
            for _ in range(messages):
                producer.send(TOPIC, BODY)
            ctx.send(LAST, None)
    return cost[0]


def iterating_awaited(folder: Path, messages: int) -> float:
    """Take messages that wait by ``async for``."""

    async def program() -> float:
        async with factory(folder, "signed", messages).create_context() as ctx:
            await send(ctx, messages, 10, DeliveryMode.NON_PERSISTENT)
            await settle(ctx)
            with weighed(messages) as cost:
                async with ctx.create_consumer(TOPIC) as consumer:
                    left = messages
                    async for _ in consumer:
                        left -= 1
                        if not left:
                            break
                await settle(ctx)
        return cost[0]

    return asyncio.run(program())


def iterating_blocking(folder: Path, messages: int) -> float:
    """Take messages that wait by ``for``."""
    with _blocking(folder, messages).create_context() as ctx:
        producer = ctx.create_producer().set_delivery_mode(DeliveryMode.NON_PERSISTENT)
        for _ in range(messages):
            producer.send(TOPIC, BODY)
        ctx.send(LAST, None)
        with weighed(messages) as cost:
            with ctx.create_consumer(TOPIC) as consumer:
                left = messages
                for _ in consumer:
                    left -= 1
                    if not left:
                        break
            ctx.send(LAST, None)
    return cost[0]


class Case(NamedTuple):
    """A program, and how much more of it the blocking form may cost."""

    what: str
    goal: float
    share: int
    """One out of this many messages of a round is sent: where each waits for the disk, fewer are enough."""
    awaited: Callable[[Path, int], float]
    blocking: Callable[[Path, int], float]


CASES: Final = (
    Case(
        "PERSISTENT", 1.3, 4,
        lambda folder, messages: sending_awaited(folder, messages, DeliveryMode.PERSISTENT),
        lambda folder, messages: sending_blocking(folder, messages, DeliveryMode.PERSISTENT),
    ),
    Case(
        "NON_PERSISTENT", 1.6, 1,
        lambda folder, messages: sending_awaited(folder, messages, DeliveryMode.NON_PERSISTENT),
        lambda folder, messages: sending_blocking(folder, messages, DeliveryMode.NON_PERSISTENT),
    ),
    Case("iteration", 1.3, 1, iterating_awaited, iterating_blocking),
)  # fmt: skip
