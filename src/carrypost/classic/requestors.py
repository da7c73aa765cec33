"""Requestors: one request, one reply, as JMS 1.1 has them; but the wait for the reply has an end."""

# ruff: noqa: SLF001 - parts of the same API

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import ClassVar, Self

from carrypost.classic.parts import MessageConsumer, Milliseconds
from carrypost.classic.sessions import Domain, Session
from carrypost.classic.wording import wording
from carrypost.errors import (
    DeliveryTimeoutException,
    IllegalArgumentException,
    IllegalStateException,
    InvalidDestinationException,
    JMSException,
)
from carrypost.java_names import JavaNamed
from carrypost.jms.destinations import Destination, Queue, Topic, as_destination
from carrypost.jms.durations import whole_milliseconds
from carrypost.jms.messages import Message
from carrypost.jms.temporary import Temporary, TemporaryQueue


class Requestor(JavaNamed):
    """The common part of requestors: a temporary queue, to which replies come."""

    _kind: ClassVar[type[Destination]]
    _domain: ClassVar[Domain]

    def __init__(self, session: Session, destination: Destination | str) -> None:
        if not isinstance(session, Session):
            raise IllegalArgumentException(f"a requestor must have a session of this API, not {session!r}"[:200])
        context, found = session._use(self._domain), as_destination(destination)
        if session.transacted:
            raise IllegalStateException(
                "a transacted session sends requests only with its commit: create another session for requests"
            )
        if not isinstance(found, self._kind):
            raise InvalidDestinationException(
                f"a {type(self).__name__} must have a {self._domain}, not {destination!r}"[:200]
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
        lives until then. Raises `DeliveryTimeoutException` when it is over. Further replies to an earlier request are
        discarded: those that wait when this is called, and those whose correlation id is the id of another message.
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
        while await replies._receive(0.0) is not None:
            pass  # A further reply to an earlier request.
        message.jms_reply_to = queue
        try:
            sent = await self._context.create_producer().send(self._destination, message, time_to_live=limit_s)
            if (reply := await _reply(message, replies, until)) is not None:
                return reply
            was_closed = replies._inner_consumer.closed
        except BaseException:
            await self._drop()
            raise
        await self._drop()
        if was_closed:
            raise IllegalStateException("the session was closed while a request waited for its reply")
        raise DeliveryTimeoutException(f"no reply came within {limit_s:g} s", state=sent.state)

    async def _open(self) -> tuple[TemporaryQueue, MessageConsumer]:
        queue = await self._context.create_temporary_queue()
        self._replies = queue, MessageConsumer(self._session, await self._context.create_consumer(queue))
        return self._replies

    async def _drop(self) -> None:
        """Drop the temporary queue: a late reply must not be taken for that of the next request."""
        if self._replies is not None:
            (queue, replies), self._replies = self._replies, None
            with suppress(JMSException):  # The session may be closed, or the node gone, and the queue with it.
                await replies.close()
                await Temporary.delete(queue)  # Awaited also where the queue is that of a program that blocks.

    async def close(self) -> None:
        """Close the requestor and its session, as in Java. Idempotent."""
        self._replies = None
        await self._session.close()


async def _reply(message: Message, replies: MessageConsumer, until: float) -> Message | None:
    """Return the reply to a message; one that names another message as its request belongs to an earlier one."""
    while True:
        reply = await replies._receive(max(0.0, until - asyncio.get_running_loop().time()))
        named = None if reply is None else reply.jms_correlation_id
        ours = (message.jms_message_id, message.jms_correlation_id)
        if not isinstance(named, str) or not named.startswith("ID:") or named in ours:
            return reply


class QueueRequestor(Requestor):
    """Sends requests to a queue, in a session that is not transacted."""

    _kind, _domain = Queue, "queue"

    def __init__(self, session: Session, queue: Queue | str) -> None:
        super().__init__(session, queue)


class TopicRequestor(Requestor):
    """Sends requests to a topic, in a session that is not transacted; the first reply counts."""

    _kind, _domain = Topic, "topic"

    def __init__(self, session: Session, topic: Topic | str) -> None:
        super().__init__(session, topic)
