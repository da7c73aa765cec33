"""Requestors: one request, one reply, as JMS 1.1 has them; but the wait for the reply has an end."""

# ruff: noqa: SLF001 - parts of the same API

from __future__ import annotations

import asyncio
from typing import Self

from carrypost.classic.parts import MessageConsumer, Milliseconds
from carrypost.classic.sessions import Session
from carrypost.classic.wording import wording
from carrypost.errors import (
    DeliveryTimeoutException,
    IllegalArgumentException,
    IllegalStateException,
    InvalidDestinationException,
)
from carrypost.java_names import JavaNamed
from carrypost.jms.destinations import Destination, Queue, Topic, as_destination
from carrypost.jms.durations import whole_milliseconds
from carrypost.jms.messages import Message
from carrypost.jms.temporary import Temporary, TemporaryQueue


class Requestor(JavaNamed):
    """The common part of requestors: a temporary queue, to which replies come."""

    _kind: type[Destination] = Destination

    def __init__(self, session: Session, destination: Destination | str) -> None:
        if not isinstance(session, Session):
            raise IllegalArgumentException(f"a requestor must have a session of this API, not {session!r}"[:200])
        context, found = session._use(), as_destination(destination)
        if session.transacted:
            raise IllegalStateException(
                "a transacted session sends requests only with its commit: create another session for requests"
            )
        if not isinstance(found, self._kind):
            raise InvalidDestinationException(
                f"a {type(self).__name__} must have a {self._kind.__name__.lower()}, not {destination!r}"[:200]
            )
        self._session, self._context, self._destination = session, context, found
        self._replies: tuple[TemporaryQueue, MessageConsumer] | None = None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    @wording
    async def request(self, message: Message, timeout: Milliseconds | None = None) -> Message:
        """Send a message, and return its reply, which has to come within so many milliseconds.

        Java waits without end. Here a reply may be days away or lost, so a deadline must be given, and the request
        lives until then. Raises `DeliveryTimeoutException` when it is over.
        """
        self._session._check()
        if timeout is None or not (limit_s := whole_milliseconds(timeout, "a timeout")):
            raise IllegalArgumentException(
                "a request must have a deadline, as its reply may never come: request(message, 5000)"
            )
        if not isinstance(message, Message):
            raise IllegalArgumentException(f"a request must be a message, not {message!r}"[:200])
        until = asyncio.get_running_loop().time() + limit_s
        queue, replies = self._replies or await self._open()
        message.jms_reply_to = queue
        sent = await self._context.create_producer().send(self._destination, message, time_to_live=limit_s)
        left_s = max(0.0, until - asyncio.get_running_loop().time())
        reply = await replies._receive(left_s)
        if reply is not None:
            return reply
        if replies._inner_consumer.closed:
            raise IllegalStateException("the session was closed while a request waited for its reply")
        await self._drop()
        raise DeliveryTimeoutException(f"no reply came within {limit_s:g} s", state=sent.state)

    async def _open(self) -> tuple[TemporaryQueue, MessageConsumer]:
        queue = await self._context.create_temporary_queue()
        self._replies = queue, MessageConsumer(self._session, await self._context.create_consumer(queue))
        return self._replies

    async def _drop(self) -> None:
        """Drop the temporary queue: a late reply must not be taken for that of the next request."""
        if self._replies is not None:
            (queue, replies), self._replies = self._replies, None
            await replies.close()
            await Temporary.delete(queue)  # Awaited also where the queue is that of a program that blocks.

    async def close(self) -> None:
        """Close the requestor and its session, as in Java. Idempotent."""
        self._replies = None
        await self._session.close()


class QueueRequestor(Requestor):
    """Sends requests to a queue, in a session that is not transacted."""

    _kind = Queue

    def __init__(self, session: Session, queue: Queue | str) -> None:
        super().__init__(session, queue)


class TopicRequestor(Requestor):
    """Sends requests to a topic, in a session that is not transacted; the first reply counts."""

    _kind = Topic

    def __init__(self, session: Session, topic: Topic | str) -> None:
        super().__init__(session, topic)
