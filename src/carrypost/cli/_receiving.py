"""Receiving on behalf of `carrypost sub`, `receive` and `browse`."""

from __future__ import annotations

import asyncio
import functools
import sys
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, NamedTuple

from carrypost.cli import _output, _shown
from carrypost.cli._exit import Exit
from carrypost.jms.destinations import ChannelTopic

if TYPE_CHECKING:
    from carrypost.cli._joining import Joined
    from carrypost.jms.consumer import Consumer
    from carrypost.jms.context import Context
    from carrypost.jms.messages import Message
    from carrypost.jms.openable import Openable
    from carrypost.overlay.modulator import Modulator

_ANSWER_S = 30.0
"""Time for which `browse` waits for another node, unless the user sets another."""
_HOMELESS_S = 5.0
"""Time after which `sub` reports that a consumer of a channel has no home broker."""
_AHEAD_MAX = 10
"""Messages that the node takes from a queue ahead of the command; what is not read goes back, which may take long."""


class SubscribeOptions(NamedTuple):
    """A subscription that is asked for."""

    destination: str
    selector: str | None = None
    durable: str | None = None
    """Name of a durable subscription."""
    modulator: Modulator | None = None
    patterns: Mapping[str, str] | None = None


def subscriber(ctx: Context, wish: SubscribeOptions) -> Openable[Consumer]:
    """Return a consumer of a topic, which is to be opened."""
    destination, selector, durable, modulator, patterns = wish
    if durable is None:
        return ctx.create_consumer(destination, selector, patterns=patterns, modulator=modulator)
    # Shared, since a durable subscription that is not belongs to one program with a client id.
    return ctx.create_shared_durable_consumer(destination, durable, selector, patterns=patterns, modulator=modulator)


def receiver(ctx: Context, queue: str, selector: str | None, count: int) -> Openable[Consumer]:
    """Return a consumer of a queue for so many messages, which is to be opened."""
    ahead = 0 if count == 1 else min(count, _AHEAD_MAX)
    return ctx.create_consumer(ctx.create_queue(queue), selector, prefetch=ahead)


async def read(consumer: Consumer, show: Callable[[Message], None], *, count: int | None, limit_s: float | None) -> int:
    """Show messages until there were `count` or the time is over; return their number.

    A message is acknowledged once it is shown. A message that could not be shown, because the reader of stdout was
    gone, is redelivered.
    """
    loop = asyncio.get_running_loop()
    until_s, came = None if limit_s is None else loop.time() + limit_s, 0
    while came != count:
        message = await consumer.receive(None if until_s is None else max(0.0, until_s - loop.time()))
        if message is None:
            break
        show(message)
        await message.acknowledge()
        came += 1
    return came


async def subscribe(joined: Joined, wish: SubscribeOptions, *, count: int | None, limit_s: float | None) -> int:
    """Print what comes on a topic; returns the exit code."""
    return await _print(joined, subscriber(joined.ctx, wish), count, limit_s)


async def unsubscribe(joined: Joined, name: str) -> int:
    """End a durable subscription; returns the exit code."""
    await joined.ctx.unsubscribe(name)
    return Exit.DONE


async def receive(joined: Joined, queue: str, selector: str | None, count: int, limit_s: float | None) -> int:
    """Take messages from a queue and print them; returns the exit code."""
    return await _print(joined, receiver(joined.ctx, queue, selector, count), count, limit_s)


async def _print(joined: Joined, opening: Openable[Consumer], count: int | None, limit_s: float | None) -> int:
    async with opening as consumer:
        if sys.stderr.isatty():
            _output.say("waiting; press Ctrl-C to stop")
        show = functools.partial(_shown.show, json=joined.json)
        homeless = asyncio.ensure_future(_warn_homeless(consumer))
        try:
            came = await read(consumer, show, count=count, limit_s=limit_s)
        finally:
            homeless.cancel()
    if count is None:
        if not came and limit_s is not None and sys.stderr.isatty():
            _output.say(f"no message came within {_output.duration(limit_s)}")
        return Exit.DONE
    if came == count:
        return Exit.DONE
    wanted = "no message" if not came else f"{came:,} of {count:,} messages"
    _output.say(f"{wanted} came within {_output.duration(limit_s or 0)}")
    return Exit.TIMEOUT


async def _warn_homeless(consumer: Consumer) -> None:
    """Tell after a while if no broker works for a consumer of a channel."""
    if isinstance(consumer.destination, ChannelTopic):
        await asyncio.sleep(_HOMELESS_S)
        if not consumer.closed and consumer.overlay.home is None:
            refusal = consumer.overlay.refusal
            if refusal == "modulator":
                _output.say(f"a broker refused the modulator: {consumer.overlay.detail}")
            elif refusal:
                _output.say(f"a broker refused: it has no room left for {refusal}")
            else:
                _output.say("no home broker was found yet: check that a node with overlay.broker = true is in reach")


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
        _output.say(f"{queue} is empty")
    return Exit.DONE
