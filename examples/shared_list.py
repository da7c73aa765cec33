"""A shared shopping list, which becomes the same for all users, in whatever order their devices meet.

Run ``python examples/shared_list.py NAME`` on two machines of one network, or in two terminals with different names.
``+ milk`` adds an entry, ``- milk`` removes it; an empty line shows the list. Changes are sent to a topic with causal
order, so no device removes an entry before it has been added.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import sys
from collections.abc import AsyncIterator, Callable
from datetime import timedelta

from carrypost import ConnectionFactory, Context, Message

LIFE = timedelta(days=30)


class SharedList:
    """The list as one person knows it."""

    def __init__(self, ctx: Context) -> None:
        self._ctx = ctx
        self._topic = ctx.create_topic("shopping", ordering="causal")
        self._entries: dict[str, str] = {}
        """Entries by the ids of the messages that added them: two people may add the same."""

    @property
    def entries(self) -> list[str]:
        """Return the entries of the list."""
        return sorted(set(self._entries.values()))

    async def add(self, entry: str) -> None:
        """Add an entry. It is on the list once `follow` receives it, on this device as on all others."""
        await self._tell({"add": entry})

    async def strike(self, entry: str) -> None:
        """Remove the known entries of this name; one that another user adds at the same time stays."""
        await self._tell({"strike": [added for added, known in self._entries.items() if known == entry]})

    async def _tell(self, change: dict[str, object]) -> None:
        await self._ctx.send(self._topic, json.dumps(change), time_to_live=LIFE)

    async def follow(self, changed: Callable[[list[str]], None]) -> None:
        """Apply the changes of all users, including own ones, and show the list after each."""
        async with self._ctx.create_consumer(self._topic) as changes:
            async for message in changes:
                self._apply(message)
                changed(self.entries)

    def _apply(self, message: Message) -> None:
        change = json.loads(message.get_body(str) or "{}")
        if "add" in change:
            self._entries[str(message.jms_message_id)] = change["add"]
        for struck in change.get("strike", ()):
            self._entries.pop(struck, None)


def show(entries: list[str]) -> None:
    """Print the list in one line."""
    print(", ".join(entries) or "the list is empty")


async def typed() -> AsyncIterator[str]:
    """Yield the lines that the user types."""
    reader = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    async for line in reader:
        yield line.decode().strip()


async def main(name: str) -> None:
    """Change the list by typed lines, and show it whenever it changes."""
    async with ConnectionFactory(data=f"list-{name}").create_context() as ctx, asyncio.TaskGroup() as tasks:
        shopping = SharedList(ctx)
        following = tasks.create_task(shopping.follow(show))
        print("+ ENTRY adds, - ENTRY strikes off; Ctrl-D or Ctrl-C ends", file=sys.stderr)
        async for line in typed():
            sign, entry = line[:1], line[1:].strip()
            if sign == "+":
                await shopping.add(entry)
            elif sign == "-":
                await shopping.strike(entry)
            else:
                show(shopping.entries)
        following.cancel()


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(main(sys.argv[1] if len(sys.argv) > 1 else "anonymous"))
