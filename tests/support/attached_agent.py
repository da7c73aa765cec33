"""A program on the node of a folder, in its own process; prints each result that it was promised, one per line.

``python tests/support/attached_agent.py WHAT FOLDER SETTINGS …``, with the node's settings as JSON. `node` and `embed`
have the node, as `carrypost node` or inside of a program. The others are attached. `send` sends texts to the queue box,
`move` takes them to the queue out, each in a transaction, `read` reads a topic, `fall` crashes by a message, `share`
attaches or embeds and meets others. All that wait say ``ended`` and why when the node ends. `keep-sending`,
`keep-moving` and `keep-moving-blocking` do as `send` and `move`, and outlive their node.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import Callable, Coroutine
from typing import Any

from carrypost import ConnectionFactory, Context, JMSException, SessionMode, sync
from carrypost.cli import serve
from carrypost.cli._settings import NodeCommand


def say(*words: object) -> None:
    print(*words, flush=True)  # noqa: T201 - the test reads it


def attached(folder: str, **options: Any) -> ConnectionFactory:  # noqa: ANN401 - as a factory has them
    return ConnectionFactory(data=folder, attach=True, reconnect=False, **options)


async def embed(folder: str, settings: str) -> None:
    async with ConnectionFactory(data=folder, attach=False, **json.loads(settings)).create_context():
        say("ready")
        await asyncio.sleep(3_600)


async def send(folder: str, _: str, life: str) -> None:
    async with attached(folder).create_context() as ctx:
        box = await ctx.declare_queue("box")
        for number in range(1_000_000):
            text = f"{life}-{number}"
            say("trying", text)
            await ctx.send(box, text)
            say("sent", text)
            await asyncio.sleep(0.01)  # Else queues are full before the last kill.


async def move(folder: str, _: str) -> None:
    async with attached(folder, client_id="mover").create_context(SessionMode.SESSION_TRANSACTED) as ctx:
        box, out = await ctx.declare_queue("box"), await ctx.declare_queue("out")
        inbox = await ctx.create_consumer(box)
        say("ready")
        while True:
            message = await inbox.receive()
            assert message is not None
            text = message.get_body(str)
            await ctx.send(out, text)
            await ctx.commit()
            say("moved", text)


async def keep_sending(folder: str, _: str) -> None:
    async with ConnectionFactory(data=folder, attach=True).create_context() as ctx:
        box = await ctx.declare_queue("box")
        for number in range(1_000_000):
            say("trying", number)
            try:
                await ctx.send(box, str(number))
                say("sent", number)
            except JMSException as error:
                check_lost(error)
            await asyncio.sleep(0.01)


async def keep_moving(folder: str, _: str) -> None:
    factory = ConnectionFactory(data=folder, attach=True, client_id="mover")
    async with factory.create_context(SessionMode.SESSION_TRANSACTED) as ctx:
        box, out = await ctx.declare_queue("box"), await ctx.declare_queue("out")
        inbox = await ctx.create_consumer(box)
        async for message in inbox:
            try:
                await ctx.send(out, message.get_body(str) or "")
                await ctx.commit()
                say("moved", message.get_body(str))
            except JMSException as error:
                check_lost(error)


def keep_moving_blocking(folder: str, _: str) -> None:
    factory = sync.ConnectionFactory(data=folder, attach=True, client_id="mover")
    with factory.create_context(SessionMode.SESSION_TRANSACTED) as ctx:
        box, out = ctx.declare_queue("box"), ctx.declare_queue("out")
        for message in ctx.create_consumer(box):
            try:
                ctx.send(out, message.get_body(str) or "")
                ctx.commit()
                say("moved", message.get_body(str))
            except JMSException as error:
                check_lost(error)


def check_lost(error: JMSException) -> None:
    """Raise an error that is not the loss of the node."""
    if error.error_code != "NODE_LOST":
        raise error
    say("lost")


async def read(folder: str, _: str, count: str) -> None:
    async with attached(folder).create_context() as ctx, ctx.create_consumer("topic/news", prefetch=10_000) as consumer:
        say("ready")
        for number in range(int(count)):
            body = await consumer.receive_body(bytes)
            assert body is not None
            assert int.from_bytes(body[:4], "big") == number
        say("read", count)
        await asyncio.sleep(3_600)


async def fall(folder: str, _: str) -> None:
    """End because of the first message of the queue box, without a word to the node."""
    async with attached(folder).create_context(SessionMode.CLIENT_ACKNOWLEDGE) as ctx:
        inbox = await ctx.create_consumer(await ctx.declare_queue("box"))
        message = await inbox.receive()
        assert message is not None
        say("fell", message.get_body(str))
        await asyncio.sleep(0.2)  # More comes ahead of the program.
        os._exit(1)


async def share(folder: str, settings: str, name: str, others: str) -> None:
    factory = ConnectionFactory(data=folder, **json.loads(settings))
    async with factory.create_context() as ctx, ctx.create_consumer("topic/news") as consumer:
        say("mode", factory.mode)
        await meet(ctx, name, {*others.split(","), name})
        say("met")
        async for _ in consumer:
            pass


async def meet(ctx: Context, name: str, all_: set[str]) -> None:
    """Call until all the others were heard."""
    pause_s = max(0.1, len(all_) ** 2 / 2_000)  # All of them hear every call.

    async def call() -> None:
        while True:
            await ctx.send("topic/here", name, time_to_live=5)
            await asyncio.sleep(pause_s)

    async with ctx.create_consumer("topic/here") as inbox:
        calling = asyncio.ensure_future(call())
        while all_:
            all_.discard(await inbox.receive_body(str) or "")
        calling.cancel()
        await ctx.send("topic/here", name, time_to_live=5)  # Those who were heard listen.


def node(folder: str, settings: str) -> None:
    changes = [
        f"{table}.{name}={json.dumps(value)}"
        for table, of in json.loads(settings).items()
        for name, value in of.items()
    ]
    sys.exit(serve.run(NodeCommand(None, folder, tuple(changes), json=True, verbose=False)))


if __name__ == "__main__":
    what, *arguments = sys.argv[1:]
    if what == "node":
        node(*arguments)
    programs: dict[str, Callable[..., Coroutine[Any, Any, None]]] = {
        "embed": embed, "send": send, "move": move, "read": read, "fall": fall, "share": share,
        "keep-sending": keep_sending, "keep-moving": keep_moving,
    }  # fmt: skip
    try:
        if what == "keep-moving-blocking":
            keep_moving_blocking(*arguments)
        else:
            asyncio.run(programs[what](*arguments))
    except JMSException as error:
        say("ended", *str(error).split())
