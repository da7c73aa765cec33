"""Receiving on behalf of `carrypost sub`, `receive` and `browse`."""

from __future__ import annotations

import asyncio
import functools
import sys
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, NamedTuple

from carrypost.cli import _given, _output, _shown
from carrypost.cli._exit import Exit
from carrypost.errors import JMSException
from carrypost.jms.destinations import ChannelTopic
from carrypost.jms.provider import NODE_LOST
from carrypost.printing import many, printable

if TYPE_CHECKING:
    from carrypost.cli._joining import Joined
    from carrypost.cli._message_options import Wanted
    from carrypost.jms.consumer import Consumer
    from carrypost.jms.context import Context
    from carrypost.jms.messages import Message
    from carrypost.jms.openable import Openable
    from carrypost.log.events import OverlayState
    from carrypost.overlay.modulators.modulator import Modulator

_ANSWER_S = 30.0
"""Time for which `browse` waits for another node, unless the user sets another."""
_CHECK_S = 5.0
"""Interval at which `sub` checks that a home broker works for a consumer of a channel."""
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
    return ctx.create_consumer(_given.queue(queue), selector, prefetch=ahead)


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
        came += 1
        try:
            await message.acknowledge()
        except JMSException as error:
            if error.error_code != NODE_LOST:  # Else the message comes again, flagged, when the node is back.
                raise
    return came


async def subscribe(joined: Joined, wish: SubscribeOptions, *, count: int | None, limit_s: float | None) -> int:
    """Print what comes on a topic; returns the exit code."""
    return await _print(joined, subscriber(joined.ctx, wish), count, limit_s)


async def unsubscribe(joined: Joined, name: str) -> int:
    """End a durable subscription; returns the exit code."""
    await joined.ctx.unsubscribe(name)
    return Exit.DONE


async def receive(joined: Joined, queue: str, wanted: Wanted, count: int) -> int:
    """Take messages from a queue and print them; returns the exit code."""
    return await _print(joined, receiver(joined.ctx, queue, wanted.select, count), count, wanted.limit_s)


async def _print(joined: Joined, opening: Openable[Consumer], count: int | None, limit_s: float | None) -> int:
    async with opening as consumer:
        if sys.stderr.isatty():
            _output.say("waiting; press Ctrl-C to stop")
        show = functools.partial(_shown.show, json=joined.json)
        watching = asyncio.ensure_future(report_trouble(consumer))
        try:
            came = await read(consumer, show, count=count, limit_s=limit_s)
        finally:
            watching.cancel()
    if count is None:
        if not came and limit_s is not None and sys.stderr.isatty():
            _output.say(f"no message came within {_output.duration(limit_s)}")
        return Exit.DONE
    if came == count:
        return Exit.DONE
    wanted = "no message" if not came else f"{came:,} of {count:,} messages"
    _output.say(f"{wanted} came within {_output.duration(limit_s or 0)}")
    return Exit.TIMEOUT


async def report_trouble(consumer: Consumer) -> None:
    """Report the trouble of a consumer of a channel with its home broker, whenever that changes.

    A number of faults is reported when it has grown tenfold.
    """
    reported, faults = "", 0
    while isinstance(consumer.destination, ChannelTopic):
        await asyncio.sleep(_CHECK_S)
        if consumer.closed:
            return
        state = consumer.overlay
        trouble = _trouble(state)
        if trouble != reported and not (state.home is not None and faults < state.faults < 10 * faults):
            _output.say(trouble or f"broker {state.home} is the home now")
            reported, faults = trouble, state.faults


def _trouble(state: OverlayState) -> str:
    """Return the reason why a consumer of a channel gets no results, or not all; empty if there is none."""
    if state.home is not None:
        if not state.faults:
            return ""
        them = "it" if state.faults == 1 else "them"
        last = f": {printable(state.fault)}" if state.fault else ""
        return f"the modulator failed with {many(state.faults, 'event')}, and gave no results for {them}{last}"
    if state.refusal == "modulator":
        return f"a broker refused the modulator: {state.detail}"
    if state.refusal in {"channels", "clients", "seats"}:
        return f"a broker refused: it has no room left for {state.refusal}"
    return (
        "no home broker yet: check that a node with overlay.broker = true is in reach; a broker that has to compile a "
        "module first may take a while"
    )


async def browse(joined: Joined, queue: str, wanted: Wanted, count: int | None) -> int:
    """Print what waits in a queue, and take nothing; returns the exit code."""
    limit_s, came = _ANSWER_S if wanted.limit_s is None else wanted.limit_s, 0
    async with joined.ctx.create_browser(_given.queue(queue), wanted.select) as browser:
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
