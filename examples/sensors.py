"""Sensors that publish readings, and watchers that choose among them by a selector.

``python examples/sensors.py measure mill`` publishes a temperature every second (a simulated one).
``python examples/sensors.py watch "place = 'mill' AND celsius > 20"`` shows readings that match a condition. The
selector is sent to the neighbours, which do not send readings that match no selector.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import sys
from collections.abc import AsyncIterable, AsyncIterator, Callable
from datetime import timedelta

from carrypost import ConnectionFactory, Context

LIFE = timedelta(minutes=10)
"""Lifetime of a reading; old temperatures are useless."""


async def measure(ctx: Context, place: str, readings: AsyncIterable[float]) -> None:
    """Publish readings. Their values are properties, which selectors can use; there is no body."""
    topic = ctx.create_topic("sensors.temperature")
    async for celsius in readings:
        await ctx.send(topic, None, properties={"place": place, "celsius": celsius}, time_to_live=LIFE)


async def watch(ctx: Context, selector: str, show: Callable[[str], None]) -> None:
    """Show readings that match the selector."""
    async with ctx.create_consumer("topic/sensors.temperature", selector) as readings:
        async for reading in readings:
            show(f"{reading.properties['place']}: {reading.properties['celsius']:.1f} °C")


async def thermometer(pause_s: float = 1.0) -> AsyncIterator[float]:
    """Yield temperatures that drift."""
    celsius = 20.0
    while True:
        celsius += random.uniform(-1, 1)
        yield round(celsius, 1)
        await asyncio.sleep(pause_s)


async def main(what: str, given: str) -> None:
    """Measure or watch."""
    async with ConnectionFactory(data=f"sensors-{what}", altruistic=True).create_context() as ctx:
        if what == "measure":
            await measure(ctx, given, thermometer())
        else:
            await watch(ctx, given, print)


if __name__ == "__main__":
    if len(sys.argv) != 3 or sys.argv[1] not in ("measure", "watch"):
        sys.exit(__doc__)
    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(main(*sys.argv[1:]))
