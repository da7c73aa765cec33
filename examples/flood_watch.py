"""Flood watch: a broker computes the runoff of rain from a feed, for watchers of an area.

Run it in three terminals, on one machine or on three in range of each other, until Ctrl-C:

``python examples/flood_watch.py broker`` runs a broker, which computes for watchers.
``python examples/flood_watch.py watch 60 60 92 92`` shows the water between columns 60 and 92, rows 60 and 92.
``python examples/flood_watch.py storm rain.dat`` draws a storm, and ``python examples/flood_watch.py feed rain.dat``
sends it, five minutes of it each second.

Each event is the rain on 100 × 100 cells, 80,000 bytes. The watcher's modulator, `modulators/runoff.py`, turns it into
water at the broker, and only the watched area is sent on. ``watch --wat`` sends the same modulator to the broker as a
WebAssembly module (``pip install 'carrypost[wasm]'``), which any broker that allows modules can run. The nodes are in
the folders ``flood-broker``, ``flood-watch`` and ``flood-feed``. The paper on opportunistic overlays has this program.
"""

from __future__ import annotations

import argparse
import asyncio
import math
import random
import sys
from array import array
from collections.abc import AsyncIterable, AsyncIterator, Callable, Iterable, Iterator, Sequence
from pathlib import Path

from carrypost import CarrypostError, ConnectionFactory, Consumer, Context, Message, Modulator, Sent

sys.path.append(str(Path(__file__).resolve().parents[1]))
from examples.modulators.runoff import BLOCK, Runoff, packed, slopes

CHANNEL = "flood"
SIDE = 100
"""Cells in a row, and rows."""
MINUTES = 5
"""Time that one image of the rain covers."""
LOSS_MM = 0.5
"""Water that seeps away on each cell in this time."""
FLOODED_M = 0.1


def storm(seed: int, images: int = 60) -> Iterator[bytes]:
    """Yield images of a storm as radars give them: tenths of a millimetre per hour, 16 bits for each cell."""
    chance = random.Random(seed)
    wind = chance.uniform(1, 2), chance.uniform(1, 2)
    showers = [
        (chance.uniform(-40, 20), chance.uniform(-40, 20), chance.uniform(6, 18), chance.uniform(100, 600))
        for _ in range(5)
    ]
    for image in range(images):
        rain = [0.0] * (SIDE * SIDE)
        for x, y, radius, strength in showers:
            across = [math.exp(-(((cell - x - wind[0] * image) / radius) ** 2)) for cell in range(SIDE)]
            for row in range(SIDE):
                here = strength * math.exp(-(((row - y - wind[1] * image) / radius) ** 2))
                if here >= 1:
                    for cell, part in enumerate(across, row * SIDE):
                        rain[cell] += here * part
        yield array("H", map(int, rain)).tobytes()


def normalized(image: bytes) -> bytes:
    """Return the rain of an image as doubles, in millimetres."""
    return array("d", (tenths / 10 * MINUTES / 60 for tenths in array("H", image))).tobytes()


def valley() -> list[list[float]]:
    """Return the height of each block of cells: hills on both sides of a river that runs to the lower right corner."""
    blocks = range(SIDE // BLOCK)
    river = [column + 3 * math.sin(column / 4) for column in blocks]
    return [[3 * abs(row - river[column]) - column - row for column in blocks] for row in blocks]


def runoff(area: Sequence[int], *, wat: bool = False) -> Modulator:
    """Return the modulator that turns rain into water in this area: left, top, right, bottom."""
    if max(area) > SIDE:
        raise ValueError(f"the land has {SIDE} columns and rows: {area}")
    wanted = Runoff(LOSS_MM, SIDE, area, slopes(valley()))  # Raises here what a broker would refuse.
    if wat:
        text = (Path(__file__).parent / "modulators" / "runoff.wat").read_text(encoding="utf-8")
        return Modulator.wat(text, packed(LOSS_MM, SIDE, area, wanted.terrain))
    return Modulator.named("runoff", loss=LOSS_MM, columns=SIDE, area=list(area), terrain=wanted.terrain)


async def feed(ctx: Context, images: AsyncIterable[bytes], say: Callable[[str], None]) -> None:
    """Send the rain of each image, and wait until neighbours have all of it."""
    channel, sent = ctx.create_topic(CHANNEL, model="channel"), list[Sent]()
    async for image in images:
        rain, minute = normalized(image), MINUTES * len(sent)
        sent.append(await ctx.send(channel, rain, properties={"minute": minute}))
        say(f"{clock(minute)}  rain on the land: {sum(array('d', rain)) / SIDE**2:.2f} mm in {MINUTES} minutes")
    say("that was the storm; waiting until a neighbour has all of it")
    for each in sent:
        await each.carried()


async def watch(ctx: Context, area: Sequence[int], modulator: Modulator, say: Callable[[str], None]) -> None:
    """Show the water in an area as results arrive, and the broker that computes it whenever that changes."""
    told = ""
    async with ctx.create_consumer(ctx.create_topic(CHANNEL, model="channel"), modulator=modulator) as water:
        while True:
            message = await water.receive(timeout=1)
            if water.closed:
                return
            if (now := served(water)) != told:
                told = now
                say(told)
            if message is not None:
                say(shown(message, area))


def served(water: Consumer) -> str:
    """Return the state of a consumer for people."""
    state = water.overlay
    if state.home is not None:
        return f"broker {state.home} computes the water"
    if state.refusal:
        return f"a broker refused: {state.detail or state.refusal}"
    return "waiting for a broker"


def shown(message: Message, area: Sequence[int]) -> str:
    """Return the deepest place of the area, and how much of it is flooded."""
    depths = array("d", message.get_body(bytes) or b"")
    deepest = max(range(len(depths)), key=depths.__getitem__)
    row, column = divmod(deepest, area[2] - area[0])
    flooded = sum(depth >= FLOODED_M * 1000 for depth in depths) / len(depths)
    place = f"deepest {depths[deepest] / 1000:.2f} m in column {area[0] + column}, row {area[1] + row}"
    found = f"{place}; {flooded:.0%} flooded" if depths[deepest] else "dry"
    lost = message.properties.get("JMS_carrypost_EventsLost", 0)
    return f"{clock(message.get_int_property('minute'))}  {found}" + (f"; {lost} lost before it" if lost else "")


def clock(minutes: int) -> str:
    """Return a time of the storm."""
    return f"{minutes // 60}:{minutes % 60:02}"


def recorded(file: Path) -> list[bytes]:
    """Return the images in a file."""
    content, size = file.read_bytes(), 2 * SIDE * SIDE
    if not content or len(content) % size:
        raise ValueError(f"{file} has no images of {size:,} bytes: draw some with the command storm")
    return [content[at : at + size] for at in range(0, len(content), size)]


async def paced(images: Iterable[bytes], pause_s: float = 1.0) -> AsyncIterator[bytes]:
    """Yield images with pauses."""
    for image in images:
        yield image
        await asyncio.sleep(pause_s)


async def main(chosen: argparse.Namespace) -> None:
    """Run one of the three programs on a node of its own."""
    images = recorded(chosen.file) if chosen.what == "feed" else []
    modulator = runoff(chosen.area, wat=chosen.wat) if chosen.what == "watch" else None
    broker = {"broker": True, "modulators": "any"} if chosen.what == "broker" else {}
    factory = ConnectionFactory(data=f"flood-{chosen.what}", island=True, overlay={"enabled": True, **broker})
    async with factory.create_context() as ctx:
        if images:
            await feed(ctx, paced(images), print)
        elif modulator is not None:
            await watch(ctx, chosen.area, modulator, print)
        else:
            print("a broker, ready to compute for others")
            await asyncio.Event().wait()


def arguments() -> argparse.Namespace:
    """Return the words of the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    programs = parser.add_subparsers(dest="what", required=True)
    programs.add_parser("broker")
    watcher = programs.add_parser("watch")
    watcher.add_argument("area", nargs=4, type=int, metavar="CELL", help="left, top, right and bottom of the area")
    watcher.add_argument("--wat", action="store_true", help="bring the modulator along as a WebAssembly module")
    drawn = programs.add_parser("storm")
    drawn.add_argument("file", type=Path)
    drawn.add_argument("--seed", type=int, default=1, help="another one draws another storm")
    programs.add_parser("feed").add_argument("file", type=Path)
    return parser.parse_args()


if __name__ == "__main__":
    words = arguments()
    try:
        if words.what == "storm":
            images = list(storm(words.seed))
            words.file.write_bytes(b"".join(images))
            print(f"{words.file} has {len(images)} images of a storm")
        else:
            asyncio.run(main(words))
    except (CarrypostError, OSError, ValueError) as error:
        sys.exit(f"flood_watch: {error}")
    except KeyboardInterrupt:
        pass
