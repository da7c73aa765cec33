"""A chat: every line reaches all users of the same room, at once or carried by passing nodes.

Run ``python examples/chat.py NAME`` on two machines of one network, or in two terminals with different names. The room
is a durable subscription: a friend who is away gets the lines of the last day when you meet again.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
import sys
import threading
from collections.abc import AsyncIterator

from carrypost import ConnectionFactory, Consumer, Context, TextMessage


async def listen(lobby: Consumer) -> None:
    """Print the lines of others."""
    async for message in lobby:
        match message:
            case TextMessage(str(line)):
                print(f"{message.properties.get('from')}: {line}")


async def talk(ctx: Context, name: str) -> None:
    """Send the lines that the user types."""
    lobby = ctx.create_topic("chat.lobby")
    producer = ctx.create_producer().set_property("from", name).set_time_to_live(days=1)
    async for line in typed():
        await producer.send(lobby, line)


async def typed() -> AsyncIterator[str]:
    """Give every line of the input, until its end.

    A read from a terminal cannot be cancelled. So it is left to a thread that nobody waits for, and that has the input
    to itself: Python could not close `sys.stdin` at the end while a thread reads from it.
    """
    loop, lines = asyncio.get_running_loop(), asyncio.Queue[str | None]()

    def read() -> None:
        with open(0, encoding=sys.stdin.encoding, closefd=False) as keyboard:
            for line in keyboard:
                loop.call_soon_threadsafe(lines.put_nowait, line.rstrip("\n"))
        loop.call_soon_threadsafe(lines.put_nowait, None)

    threading.Thread(target=read, daemon=True).start()
    while (line := await lines.get()) is not None:
        yield line


def close_on_sigterm() -> None:
    """Let SIGTERM end the program as Ctrl-C does: by cancelling it, so that the node is closed."""
    program = asyncio.current_task()
    assert program is not None
    with contextlib.suppress(NotImplementedError):  # Windows has no such signals.
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, program.cancel)


async def main(name: str) -> None:
    """Listen and talk until the end of the input."""
    close_on_sigterm()
    factory = ConnectionFactory(data=f"chat-{name}", client_id=name, altruistic=True)
    async with (
        factory.create_context() as ctx,
        ctx.create_durable_consumer(ctx.create_topic("chat.lobby"), "lobby", no_local=True) as lobby,
        asyncio.TaskGroup() as tasks,
    ):
        listening = tasks.create_task(listen(lobby))
        print(f"{name} is here as {ctx.node_id}; Ctrl-D or Ctrl-C ends", file=sys.stderr)
        await talk(ctx, name)
        listening.cancel()


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt, asyncio.CancelledError):
        asyncio.run(main(sys.argv[1] if len(sys.argv) > 1 else "anonymous"))
