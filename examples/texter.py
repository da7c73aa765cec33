"""Text messages, as in the experiment of JOMS: public ones for everybody, private ones for one person.

Run ``python examples/texter.py NAME`` on two machines of one network, or in two terminals with different names. A line
is a public text. ``@anna See you at eight.`` is a private one: it is sent to a queue on Anna's device, and a line says
when she has it. A user who is away gets all texts of the last day later, from the nodes that carried them.
"""

from __future__ import annotations

import asyncio
import contextlib
import sys
from collections.abc import AsyncIterable, AsyncIterator, Callable

from carrypost import ConnectionFactory, Context, JMSException, Message, Sent

DAY_S = 86_400
Show = Callable[[str], None]


async def texter(ctx: Context, name: str, lines: AsyncIterable[str], show: Show) -> None:
    """Send lines and show what others send, until there are no more lines."""
    async with asyncio.TaskGroup() as tasks:
        inbox = await ctx.declare_queue(name)  # Other nodes find it by its name once they have its advertisement.
        public = ctx.create_durable_consumer(ctx.create_topic("text"), "text", no_local=True)
        async with public as texts, ctx.create_consumer(inbox) as letters:
            showing = [
                tasks.create_task(show_all(texts, "{from}: {text}", show)),
                tasks.create_task(show_all(letters, "{from}, to you alone: {text}", show)),
            ]
            async for line in lines:
                sent = await send(ctx, name, line, show)
                if sent is not None:
                    showing.append(tasks.create_task(follow(sent, line, show)))
            for task in showing:
                task.cancel()


async def send(ctx: Context, name: str, line: str, show: Show) -> Sent | None:
    """Send a line to all users, or to the user that it begins with; return a private one, to be followed."""
    properties = {"from": name}
    if not line.startswith("@"):
        await ctx.send("topic/text", line, properties=properties, time_to_live=DAY_S)
        return None
    person, _, text = line[1:].partition(" ")
    try:
        return await ctx.send(f"queue/{person}", text, properties=properties, time_to_live=DAY_S)
    except JMSException as error:  # No user of that name is known here yet.
        show(f"! {error}")
        return None


async def show_all(messages: AsyncIterable[Message], form: str, show: Show) -> None:
    """Show messages as they arrive."""
    async for message in messages:
        show(form.format_map({"from": message.properties.get("from"), "text": message.get_body(str)}))


async def follow(sent: Sent, line: str, show: Show) -> None:
    """Show the outcome of a private text."""
    state = await sent.delivered()
    show(f"  ({state.name.lower()}: {line})")


async def typed() -> AsyncIterator[str]:
    """Yield the lines that the user types."""
    reader = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    async for line in reader:
        yield line.decode().strip()


async def main(name: str) -> None:
    """Run the texter of one person."""
    factory = ConnectionFactory(data=f"texter-{name}", client_id=name, altruistic=True)
    async with factory.create_context() as ctx:
        print(f"{name} is here; Ctrl-D or Ctrl-C ends", file=sys.stderr)
        await texter(ctx, name, typed(), print)


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(main(sys.argv[1] if len(sys.argv) > 1 else "anonymous"))
