"""A real program with a context: it sends or consumes, and prints each result that it was promised, one per line.

``python tests/support/jms_agent.py send FOLDER FIRST COUNT`` sends texts of numbers and says each when `send` returned.
``python tests/support/jms_agent.py hold FOLDER`` says how many messages its node has, acknowledges none, and stays.
``python tests/support/jms_agent.py receive FOLDER`` consumes by a durable subscription and acknowledges each message:
it says
``got ID TEXT COUNT`` before, and ``done ID`` after that returned.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Coroutine
from typing import Any

from carrypost import ConnectionFactory, SessionMode

TOPIC = "village"
QUICK: dict[str, Any] = {"announce_s_min": 0.2, "announce_s_max": 0.5}


def say(*words: object) -> None:
    print(*words, flush=True)  # noqa: T201 - the test reads it


async def send(folder: str, first: int, count: int) -> None:
    async with ConnectionFactory(data=folder, client_id="author", **QUICK).create_context() as ctx:
        topic, producer = ctx.create_topic(TOPIC), ctx.create_producer().set_time_to_live(minutes=10)
        say("ready")
        for number in range(first, first + count):
            await producer.send(topic, str(number))
            say("sent", number)
        await asyncio.sleep(3_600)  # Its node runs as long as the program does.


async def hold(folder: str) -> None:
    factory = ConnectionFactory(data=folder, client_id="author", **QUICK)
    async with (
        factory.create_context(SessionMode.CLIENT_ACKNOWLEDGE) as ctx,
        ctx.create_consumer(ctx.create_topic(TOPIC)) as mine,
    ):
        say("has", len([message async for message in mine.messages(timeout=2)]))
        await asyncio.sleep(3_600)


async def receive(folder: str) -> None:
    factory = ConnectionFactory(data=folder, client_id="reader", **QUICK)
    async with (
        factory.create_context(SessionMode.CLIENT_ACKNOWLEDGE) as ctx,
        ctx.create_durable_consumer(ctx.create_topic(TOPIC), "inbox") as inbox,
    ):
        say("ready")
        async for message in inbox:
            say("got", message.jms_message_id, message.get_body(str), message.get_int_property("JMSXDeliveryCount"))
            await asyncio.sleep(0.01)
            await message.acknowledge()
            say("done", message.jms_message_id)


if __name__ == "__main__":
    what, folder, *numbers = sys.argv[1:]
    programs: dict[str, Callable[..., Coroutine[Any, Any, None]]] = {"send": send, "hold": hold, "receive": receive}
    asyncio.run(programs[what](folder, *map(int, numbers)))
