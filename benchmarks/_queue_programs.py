"""Programs of the Context API that use queues on real nodes, in this process, with their disks, sockets and threads."""

from __future__ import annotations

import time
from collections.abc import Callable, Coroutine
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any, Final

from benchmarks._jms_programs import BODY, TOPIC, Cost, Meter, opened, send, settle

from carrypost import ConnectionFactory, DeliveryMode, SessionMode
from carrypost.jms.destinations import Queue

_WARM: Final = 10
_PATIENCE_S: Final = 60.0


async def sending(made: ConnectionFactory, messages: int) -> Cost:
    """Let one producer send PERSISTENT messages to a queue of its node, each after the last is on disk."""
    async with opened(made) as (ctx, node):
        queue = await ctx.declare_queue("out")
        await send(ctx, _WARM, 1, DeliveryMode.PERSISTENT, queue)
        meter = Meter(node)
        await send(ctx, messages, 1, DeliveryMode.PERSISTENT, queue)
        return meter.cost(messages)


async def committing(made: ConnectionFactory, messages: int) -> Cost:
    """Return the cost if a program receives a message from a queue, sends one to another, and commits both, repeatedly.

    Receiving is measured elsewhere (`receiving`), and does not count here.
    """
    async with opened(made) as (ctx, node):
        work, out = await ctx.declare_queue("work"), await ctx.declare_queue("out")
        await send(ctx, _WARM + messages, 10, DeliveryMode.PERSISTENT, work)
        await settle(ctx)
        async with ctx.create_context(SessionMode.SESSION_TRANSACTED) as session:
            producer = session.create_producer()
            async with session.create_consumer(work) as consumer:
                meter = Meter(node)
                for number in range(_WARM + messages):
                    if number == _WARM:
                        meter = Meter(node)
                    with meter.aside():
                        await consumer.receive()
                    await producer.send(out, BODY)
                    await session.commit()
                return meter.cost(messages)


class Hop:
    """Two nodes on loopback: one has a queue and its consumer, and a consumer of a topic; the other sends."""

    def __init__(self, folder: Path, port: int) -> None:
        self._folder, self._port = folder, port

    def _node(self, name: str) -> ConnectionFactory:
        return ConnectionFactory(
            data=str(self._folder / name), udp={"interfaces": ["lo"], "port": self._port}, announce_s_min=0.1,
            announce_s_max=0.5,
        )  # fmt: skip

    async def latencies_s(self, messages: int) -> tuple[list[float], list[float]]:
        """Seconds from a send until its receipt, and until a message to a topic is received; in turn."""
        async with AsyncExitStack() as stack:
            near, _ = await stack.enter_async_context(opened(self._node("near")))
            far, _ = await stack.enter_async_context(opened(self._node("far")))
            queue = await far.declare_queue("bench")
            inbox = await stack.enter_async_context(far.create_consumer(queue))
            topic = await stack.enter_async_context(far.create_consumer(TOPIC))
            producer = near.create_producer()

            async def receipt() -> None:
                sent = await producer.send(Queue(queue.queue_name), BODY)
                await inbox.receive(_PATIENCE_S)
                await sent.delivered(_PATIENCE_S)

            async def delivery() -> None:
                await producer.send(TOPIC, BODY)
                await topic.receive(_PATIENCE_S)

            for each in (delivery, receipt):
                await each()
            rounds = [(await _timed(receipt), await _timed(delivery)) for _ in range(messages)]
        return [each[0] for each in rounds], [each[1] for each in rounds]


async def _timed(do: Callable[[], Coroutine[Any, Any, None]]) -> float:
    began_s = time.perf_counter()
    await do()
    return time.perf_counter() - began_s
