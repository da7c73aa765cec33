"""Sensors that publish readings, and watchers that choose among them by a selector.

``python examples/sensors.py measure mill`` publishes a temperature every second (made up, for want of a thermometer).
``python examples/sensors.py watch "place = 'mill' AND celsius > 20"`` shows readings that fulfil a condition. The
selector travels to the neighbours: a reading that nobody asked for is not sent.
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
"""An old temperature is of no use to anybody."""


async def measure(ctx: Context, place: str, readings: AsyncIterable[float]) -> None:
    """Publish readings. What selectors can look at is in the properties; there is no body."""
    topic = ctx.create_topic("sensors.temperature")
    async for celsius in readings:
        await ctx.send(topic, None, properties={"place": place, "celsius": celsius}, time_to_live=LIFE)


async def watch(ctx: Context, selector: str, show: Callable[[str], None]) -> None:
    """Show readings that fulfil the selector."""
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
