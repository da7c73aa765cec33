"""The world of a test of the classic API: connections to one node, awaited in virtual time, or blocking.

A test is an async function that gets a `World`. Blocking programs run the same function, since their calls are wrapped
so that they can be awaited (`Blocked`).
"""

# ruff: noqa: ANN401 - objects of either API

from __future__ import annotations

import itertools
from collections.abc import Awaitable, Callable
from typing import Any, Protocol

from carrypost import DeliveryMode, SessionMode
from carrypost.errors import JMSException

AUTO, CLIENT = SessionMode.AUTO_ACKNOWLEDGE, SessionMode.CLIENT_ACKNOWLEDGE
DUPS_OK, TRANSACTED = SessionMode.DUPS_OK_ACKNOWLEDGE, SessionMode.SESSION_TRANSACTED
PERSISTENT, NON_PERSISTENT = DeliveryMode.PERSISTENT, DeliveryMode.NON_PERSISTENT
WITHIN_MS = 30_000
"""Longer than anything takes."""
_numbers = itertools.count()


def fresh(kind: str) -> str:
    """Return a name that no other test has."""
    return f"{kind}-{next(_numbers)}"


class World(Protocol):
    """Connections to one node, and what depends on the way in which a program reaches it."""

    async def connect(self, client_id: str | None = None, domain: Any = None) -> Any:
        """Open a connection, which is closed with the test."""

    def begin(self, work: Callable[[], Awaitable[Any]]) -> Callable[[], Awaitable[Any]]:
        """Begin something beside the test, in a task or a thread; the result waits for its outcome."""

    async def until(self, true: Callable[[], bool]) -> None:
        """Wait until something is true."""

    async def pause(self, seconds: float) -> None:
        """Wait."""

    def requestor(self, domain: str) -> Any:
        """Return the class of requestors."""

    def names(self, environment: Any) -> Any:
        """Return an `InitialContext` for the node."""


class Scene:
    """One connection that is started, with sessions for a test."""

    def __init__(self, world: World, connection: Any) -> None:
        self.world, self.connection = world, connection
        self.spare: Any = None
        self.queues: list[Any] = []

    @classmethod
    async def open(cls, world: World, *, client_id: str | None = None, domain: Any = None) -> Scene:
        made = cls(world, await world.connect(client_id, domain))
        made.spare = await (await world.connect()).create_session(False, AUTO)
        await made.connection.start()
        return made

    async def session(self, mode: SessionMode = AUTO) -> Any:
        return await self.connection.create_session(mode is TRANSACTED, mode)

    async def queue(self) -> Any:
        return await self.spare.declare_queue(fresh("queue"))

    def topic(self) -> Any:
        return self.spare.create_topic(fresh("topic"))

    async def settle(self) -> None:
        """Wait until all earlier messages were handed over: a later one is on disk."""
        await self.spare.create_producer(self.topic()).send(self.spare.create_message())

    async def send(self, to: Any, *bodies: str, session: Any = None, **properties: int) -> list[Any]:
        """Send texts, and return the messages."""
        session = session or self.spare
        producer, sent = session.create_producer(to), []
        for body in bodies:
            message = session.create_text_message(body)
            for name, value in properties.items():
                message.set_int_property(name, value)
            await producer.send(message)
            sent.append(message)
        return sent

    async def got(self, consumer: Any) -> Any:
        """Return the next message, which has to come."""
        message = await consumer.receive(WITHIN_MS)
        assert message is not None, "nothing came"
        return message

    async def texts(self, consumer: Any) -> list[str]:
        """Return the texts of all messages that are there."""
        found = []
        await self.settle()
        while (message := await consumer.receive_no_wait()) is not None:
            found.append(message.text)
        return found


async def raised(call: Callable[[], Any], *kinds: type[Exception]) -> str:
    """Return the text of the exception that a call raises, plain or awaited."""
    try:
        result = call()
        if hasattr(result, "__await__"):
            await result
    except JMSException as error:
        found: JMSException | None = error
    else:
        found = None
    assert isinstance(found, kinds or JMSException), repr(found)
    return str(found)
