"""A drop for files: passing nodes carry files from one device to the folders of others.

``python examples/file_drop.py receive FOLDER`` writes every file that is sent, now or later, to a folder.
``python examples/file_drop.py send FILE...`` sends files, and ends once a neighbour has them all. The nodes are in the
folders ``drop-receive`` and ``drop-send``. A file has at most 16 MB, and a lifetime of a week.
"""

from __future__ import annotations

import asyncio
import contextlib
import sys
from collections.abc import Callable, Iterable
from datetime import timedelta
from pathlib import Path

from carrypost import ConnectionFactory, Context, SessionMode

TOPIC = "files"


async def drop(ctx: Context, files: Iterable[Path], say: Callable[[str], None]) -> None:
    """Send files, and wait until a neighbour has each of them."""
    topic = ctx.create_topic(TOPIC)
    sent = []
    for file in files:
        sent.append(await ctx.send(topic, read(file), properties={"name": file.name}, time_to_live=timedelta(days=7)))
        say(f"{file.name} is stored; it leaves when somebody is near")
    for each in sent:
        await each.carried()
    say("a neighbour has everything")


async def collect(ctx: Context, folder: Path, say: Callable[[str], None]) -> None:
    """Write files as they arrive. Each is acknowledged once it is written, so that a crash loses none."""
    async with ctx.create_durable_consumer(ctx.create_topic(TOPIC), "drop") as files:
        async for message in files:
            name, content = str(message.properties.get("name")), message.get_body(bytes) or b""
            target = write(folder, name, content)
            await message.acknowledge()
            say(f"{target.name} is here")


def read(file: Path) -> bytes:
    """Return the contents of a file."""
    return file.read_bytes()


def write(folder: Path, name: str, content: bytes) -> Path:
    """Write a file atomically, under a name that does not lead out of the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    target = folder / (Path(name).name or "unnamed")
    part = target.with_name(f".{target.name}.part")
    part.write_bytes(content)
    return part.replace(target)


async def main(what: str, *paths: str) -> None:
    """Send or receive."""
    factory = ConnectionFactory(data=f"drop-{what}", client_id="drop", altruistic=True)
    async with factory.create_context(SessionMode.INDIVIDUAL_ACKNOWLEDGE) as ctx:
        if what == "send":
            await drop(ctx, map(Path, paths), print)
        else:
            await collect(ctx, Path(paths[0]), print)


if __name__ == "__main__":
    if len(sys.argv) < 3 or sys.argv[1] not in ("send", "receive"):
        sys.exit(__doc__)
    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(main(*sys.argv[1:]))
