"""A real program with queues: it manages one, sends to one, works one off, or moves messages in transactions.

``python tests/support/queue_agent.py manage FOLDER`` declares the queue ``jobs``, says ``queue NAME``, and stays.
``python tests/support/queue_agent.py send FOLDER QUEUE FIRST COUNT`` sends texts of numbers: it says ``sent NUMBER``
when `send` returned, and ``delivered NUMBER`` when it heard so.
``python tests/support/queue_agent.py work FOLDER QUEUE`` consumes and acknowledges each message: it says ``got ID TEXT
COUNT`` before, and ``done ID`` after that returned.
``python tests/support/queue_agent.py move FOLDER COUNT`` fills the queue ``in`` with COUNT numbers, once, and moves
them, each by one transaction, odd ones to the queue ``out``, even ones to the topic ``out``: it says ``moved NUMBER``
after each.
``python tests/support/queue_agent.py count FOLDER`` says what is in all three, ``in NUMBER``, ``queue NUMBER``,
``topic NUMBER``, and ``counted``.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Coroutine
from typing import Any

from carrypost import ConnectionFactory, Context, Queue, Sent, SessionMode

QUICK: dict[str, Any] = {"announce_s_min": 0.2, "announce_s_max": 0.5}
LIFE_S = 600.0


def say(*words: object) -> None:
    print(*words, flush=True)  # noqa: T201 - the test reads it


def factory(folder: str, **settings: object) -> ConnectionFactory:
    return ConnectionFactory(data=folder, client_id="agent", **QUICK, **settings)  # type: ignore[arg-type]


async def manage(folder: str) -> None:
    async with factory(folder).create_context() as ctx:
        queue = await ctx.declare_queue("jobs")
        say("queue", queue.queue_name)
        await asyncio.sleep(3_600)


async def send(folder: str, queue: str, first: str, count: str) -> None:
    async with factory(folder).create_context() as ctx, asyncio.TaskGroup() as group:
        producer = ctx.create_producer().set_time_to_live(LIFE_S)
        for number in range(int(first), int(first) + int(count)):
            sent = await producer.send(ctx.create_queue(queue), str(number))
            say("sent", number, sent.message_id)
            group.create_task(_tell(sent, number))
        await asyncio.sleep(3_600)


async def _tell(sent: Sent, number: int) -> None:
    await sent.delivered()
    say("delivered", number)


async def work(folder: str, queue: str) -> None:
    async with (
        factory(folder).create_context(SessionMode.CLIENT_ACKNOWLEDGE) as ctx,
        ctx.create_consumer(ctx.create_queue(queue), prefetch=5) as consumer,
    ):
        say("ready")
        async for message in consumer:
            say("got", message.jms_message_id, message.get_body(str), message.get_int_property("JMSXDeliveryCount"))
            await asyncio.sleep(0.01)
            await message.acknowledge()
            say("done", message.jms_message_id)


async def _fill(ctx: Context, into: Queue, filled: Queue, count: int) -> None:
    """Send all messages in one transaction, so that either all of them are there or none."""
    async with ctx.create_context(SessionMode.SESSION_TRANSACTED) as tx, tx.transaction():
        for number in range(count):
            await tx.create_producer().send(into, str(number))
        await tx.create_producer().send(filled, "yes")


async def move(folder: str, count: str) -> None:
    made = factory(folder, udp={"interfaces": ["lo"]})
    async with made.create_context(SessionMode.SESSION_TRANSACTED) as ctx:
        topic = ctx.create_topic("out")
        async with ctx.create_context(SessionMode.AUTO_ACKNOWLEDGE) as other:
            filled = await other.declare_queue("filled")
            into, out = await other.declare_queue("in"), await other.declare_queue("out")
            async with other.create_browser(filled) as browser:
                if not [message async for message in browser]:
                    await _fill(other, into, filled, int(count))
            keeper = await other.create_durable_consumer(topic, "kept")
            await keeper.close()
        say("ready")
        async with ctx.create_consumer(into, prefetch=3) as consumer:
            producer = ctx.create_producer()
            while True:
                message = await consumer.receive()
                assert message is not None
                number = str(message.get_body(str))
                await producer.send(out if int(number) % 2 else topic, number)
                await ctx.commit()
                say("moved", number)


async def count(folder: str) -> None:
    async with factory(folder, udp={"interfaces": ["lo"]}).create_context() as ctx:
        for word, name in (("in", "in"), ("queue", "out")):
            async with ctx.create_consumer(await ctx.declare_queue(name)) as consumer:
                async for message in consumer.messages(timeout=1):
                    say(word, message.get_body(str))
        async with ctx.create_durable_consumer(ctx.create_topic("out"), "kept") as consumer:
            async for message in consumer.messages(timeout=1):
                say("topic", message.get_body(str))
        say("counted")
        await asyncio.sleep(3_600)


if __name__ == "__main__":
    what, *arguments = sys.argv[1:]
    programs: dict[str, Callable[..., Coroutine[Any, Any, None]]] = {
        "manage": manage, "send": send, "work": work, "move": move, "count": count,
    }  # fmt: skip
    asyncio.run(programs[what](*arguments))
