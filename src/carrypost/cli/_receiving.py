"""Receiving on behalf of `carrypost sub`, `receive` and `browse`."""

from __future__ import annotations

import asyncio
import sys
from typing import TYPE_CHECKING

from carrypost.cli import _output, _shown
from carrypost.cli._exit import Exit

if TYPE_CHECKING:
    from carrypost.cli._joining import Joined
    from carrypost.jms.consumer import Consumer

_ANSWER_S = 30.0
"""How long `browse` waits for another node, unless it is told otherwise."""
AHEAD_MAX = 10
"""Messages that `receive` lets the node take from a queue ahead of it."""


async def subscribe(
    joined: Joined, topic: str, selector: str | None, *, durable: str | None, count: int | None, limit_s: float | None
) -> int:
    """Print what comes on a topic; returns the exit code."""
    if durable is None:
        opening = joined.ctx.create_consumer(topic, selector)
    else:
        # Shared, since a durable subscription that is not belongs to one program with a client id.
        opening = joined.ctx.create_shared_durable_consumer(topic, durable, selector)
    async with opening as consumer:
        return await _read(joined, consumer, count, limit_s)


async def unsubscribe(joined: Joined, name: str) -> int:
    """End a durable subscription; returns the exit code."""
    await joined.ctx.unsubscribe(name)
    return Exit.DONE


async def receive(joined: Joined, queue: str, selector: str | None, count: int, limit_s: float | None) -> int:
    """Take messages from a queue and print them; returns the exit code."""
    ahead = 0 if count == 1 else min(count, AHEAD_MAX)  # What is not read goes back to the queue's manager, later.
    async with joined.ctx.create_consumer(joined.ctx.create_queue(queue), selector, prefetch=ahead) as consumer:
        return await _read(joined, consumer, count, limit_s)


async def _read(joined: Joined, consumer: Consumer, count: int | None, limit_s: float | None) -> int:
    if sys.stderr.isatty():
        _output.say("waiting; Ctrl-C ends it")
    loop = asyncio.get_running_loop()
    until_s, came = None if limit_s is None else loop.time() + limit_s, 0
    while came != count:
        message = await consumer.receive(None if until_s is None else max(0.0, until_s - loop.time()))
        if message is None:
            break
        _shown.show(message, json=joined.json)
        await message.acknowledge()  # What could not be printed, as the reader was gone, comes again.
        came += 1
    if count is None or came == count:
        return Exit.DONE
    wanted = "no message" if not came else f"{came:,} of {count:,} messages"
    _output.say(f"{wanted} came within {_output.duration(limit_s or 0)}")
    return Exit.TIMEOUT


async def browse(joined: Joined, queue: str, selector: str | None, count: int | None, limit_s: float | None) -> int:
    """Print what waits in a queue, and take nothing; returns the exit code."""
    limit_s, came = _ANSWER_S if limit_s is None else limit_s, 0
    async with joined.ctx.create_browser(joined.ctx.create_queue(queue), selector) as browser:
        async for message in browser.messages(limit_s):
            _shown.show(message, json=joined.json)
            came += 1
            if came == count:
                return Exit.DONE
        if browser.taken_at is None:
            _output.say(f"the node that manages {queue} did not answer within {_output.duration(limit_s)}")
            return Exit.TIMEOUT
    if not came:
        _output.say(f"nothing waits in {queue}")
    if count is None:
        return Exit.DONE
    return Exit.TIMEOUT
