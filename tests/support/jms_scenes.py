"""Scenes with contexts, in virtual time: programs on nodes that are in reach of each other, unless a scene says other.

::

    @scene("a", "b")
    async def test_…(net: testing.Network) -> None:
"""

from __future__ import annotations

import inspect
import os
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager
from functools import wraps
from itertools import combinations
from typing import Any, NamedTuple

from tests.support.letters import SIGNED

from carrypost import Consumer, Context, Message, Producer, SessionMode, Topic, testing
from carrypost.jms.destinations import SealedTopic
from carrypost.security.identity import Identity

MODE = os.environ.get("TESTS_SEALED", "")
"""Messages that are sealed in all scenes: "letters", "circle", or nothing (`tests/security/test_sealed_rows.py`)."""
SEALED: dict[str, Any] = {}
if MODE:
    SEALED = SIGNED | {"altruistic": False, "sealing": {"letters": "always"}}
NEWS = SealedTopic("rescue", "news") if MODE == "circle" else Topic("news")


def node_id(name: str) -> str:
    """Return the id of a node of a scene."""
    return Identity.derived(1, name).node if MODE else name


AT_ONCE = {"redelivery_delay_s": 0.0}
"""Settings of messaging for tests in which programs fail often: messages come again at once."""
SOON_S = 60.0
"""Longer than two nodes in reach of each other need for anything."""


def scene(*names: str, **options: object) -> Callable[[Callable[..., Coroutine[Any, Any, None]]], Callable[..., None]]:
    """Make a test of an async function whose first argument is a network of these nodes, all in reach of each other."""

    def decorate(function: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
        @wraps(function)
        def test(**given: object) -> None:
            async def play() -> None:
                async with testing.network(*names, **{"seed": 1} | SEALED | options) as net:
                    for a, b in combinations(names, 2):
                        net.link(a, b)
                    await _sealed(net, names)
                    await function(net, **given)

            testing.run(play)

        signature = inspect.signature(function)
        first, *others = signature.parameters.values()
        assert first.name == "net"
        vars(test)["__signature__"] = signature.replace(parameters=others)
        return test

    return decorate


async def _sealed(net: testing.Network, names: Sequence[str]) -> None:
    """Let nodes learn each other's keys, and join a circle, where everything is sealed."""
    if MODE:
        net.open_messaging()
    if MODE == "circle":
        net.found(names[0], "rescue")
        code = net.invite(names[0], "rescue")
        for each in names[1:]:
            net.join(each, code)
    if MODE:
        await net.run(SOON_S)


async def got(consumer: Consumer) -> Message:
    """Return the next message, which has to come."""
    message = await consumer.receive(timeout=SOON_S)
    assert message is not None, "nothing came"
    return message


async def texts(consumer: Consumer, *, quiet_s: float = SOON_S) -> list[str]:
    """Return the bodies of all messages, until none comes for a while."""
    return [message.get_body(str) or "" async for message in consumer.messages(timeout=quiet_s)]


class Copies(NamedTuple):
    """One message as consumers get it."""

    here: Message
    """On the node that sent it."""
    there: Message
    """The message on the other node."""
    here_again: Message
    """Redelivered."""
    there_again: Message


class Pair:
    """A program on each of two nodes, which acknowledges messages on request."""

    def __init__(self, net: testing.Network, here: Context, there: Context) -> None:
        self.net, self.here, self.there = net, here, there

    async def sent(self, message: object, producer: Producer | None = None, to: Topic = NEWS) -> Copies:
        """Send a message, and see how consumers get it, twice."""
        async with self.here.create_consumer(to) as near, self.there.create_consumer(to) as far:
            await (producer or self.here.create_producer()).send(to, message)
            first = await got(near), await got(far)
            await self.here.recover()
            await self.there.recover()
            copies = Copies(*first, await got(near), await got(far))
            await self.here.acknowledge()
            await self.there.acknowledge()
            return copies

    async def selected(self, selector: str, messages: list[Message]) -> list[Message]:
        """Return the messages that a selector matches: on both nodes the same."""
        async with self.here.create_consumer(NEWS, selector) as near, self.there.create_consumer(NEWS, selector) as far:
            producer = self.here.create_producer()
            for message in messages:
                await producer.send(NEWS, message)
            found = [[each.jms_message_id async for each in one.messages(timeout=SOON_S)] for one in (near, far)]
            await self.here.acknowledge()
            await self.there.acknowledge()
        assert sorted(map(str, found[0])) == sorted(map(str, found[1]))
        return [message for message in messages if message.jms_message_id in found[0]]


@asynccontextmanager
async def pair(
    net: testing.Network, mode: SessionMode = SessionMode.CLIENT_ACKNOWLEDGE, **client_ids: str
) -> AsyncIterator[Pair]:
    """Programs on nodes "a" and "b"."""
    here = net.context("a", mode, client_id=client_ids.get("a"))
    there = net.context("b", mode, client_id=client_ids.get("b"))
    async with here, there:
        yield Pair(net, here, there)


def copies_of(message: object) -> Copies:
    """Return a message as consumers get it; for tests that are no scenes."""

    async def play() -> Copies:
        async with testing.network("a", "b", seed=1, **SEALED) as net:
            net.link("a", "b")
            await _sealed(net, ("a", "b"))
            async with pair(net) as both:
                return await both.sent(message)

    return testing.run(play)
