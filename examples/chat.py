"""A chat for whoever is near: every line goes to all who have the same room open, now or later, by whoever passes.

Run ``python examples/chat.py NAME`` on two machines of one network, or in two terminals with different names. A friend
who is away gets what was said when you meet again, for a day: the room is a durable subscription.
"""

from __future__ import annotations

import asyncio
import sys

from carrypost import ConnectionFactory, Context, TextMessage


async def listen(ctx: Context) -> None:
    """Print what others say."""
    async with ctx.create_durable_consumer(ctx.create_topic("chat.lobby"), "lobby", no_local=True) as lobby:
        async for message in lobby:
            match message:
                case TextMessage(str(line)):
                    print(f"{message.properties.get('from')}: {line}")


async def talk(ctx: Context, name: str) -> None:
    """Send what is typed."""
    lobby = ctx.create_topic("chat.lobby")
    producer = ctx.create_producer().set_property("from", name).set_time_to_live(days=1)
    while line := await asyncio.to_thread(sys.stdin.readline):
        await producer.send(lobby, line.rstrip("\n"))


async def main(name: str) -> None:
    """Listen and talk until the end of the input."""
    factory = ConnectionFactory(data=f"chat-{name}", client_id=name, altruistic=True)
    async with asyncio.TaskGroup() as tasks, factory.create_context() as ctx:
        tasks.create_task(listen(ctx))  # Ends with the context.
        print(f"{name} is here as {ctx.node_id}; Ctrl-D ends", file=sys.stderr)
        await talk(ctx, name)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1] if len(sys.argv) > 1 else "anonymous"))
