"""Requests and replies: `Requestor` sends requests and receives their replies, `Responder` sends replies.

Requests and replies go over hours, by any carriers, and over restarts. Replies come to one queue of this node, whose
full address every request has as JMSReplyTo: a responder needs no directory. The correlation id assigns replies to
requests. An open request is recorded on the node before it is sent, until its reply was received or its time is over.

A responder receives a request and sends its reply in one transaction: on disk are both the reply and the consumption of
the request, or neither. So a program that is killed in between gets the request again, and exactly one reply leaves the
node.
"""

# A reply may come days later, when the program that asked has been restarted. So a request is a row
# on the node, recorded before it is sent: a reply to a request that no node remembers would be
# lost, while a row without a request only waits for its deadline.
#
# All requests of all programs on a node share one queue of replies, and each takes its own by a
# selector on the correlation id. A temporary queue for each request would be gone after a restart.

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from carrypost.errors import (
    DeliveryTimeoutException,
    IllegalArgumentException,
    IllegalStateException,
    InvalidDestinationException,
    JMSException,
)
from carrypost.java_names import JavaNamed
from carrypost.jms.consumer import Consumer
from carrypost.jms.consumer_options import ConsumerOptions
from carrypost.jms.destinations import Destination, Queue
from carrypost.jms.durations import Duration, seconds
from carrypost.jms.mapping import Sending
from carrypost.jms.messages import Message, headers_and_properties
from carrypost.jms.messages.headers_and_properties import PropertyValue
from carrypost.jms.modes import SessionMode
from carrypost.jms.producer import Body, send_options
from carrypost.jms.provider import is_lost
from carrypost.messaging.commands import REPLIES, Declare, DeclareQueue, ForgetRequest, OpenRequests, RememberRequest
from carrypost.model import address
from carrypost.model.selector.tree import quoted
from carrypost.model.times import MICROSECONDS

if TYPE_CHECKING:
    from carrypost.jms.connection import Connection
    from carrypost.jms.sent import Sent
    from carrypost.jms.session import Session
    from carrypost.jms.transactions import Transaction


_MILLISECOND_US = 1_000
_CLOSED = "this context is closed: create another, and open the request there"


class Request(JavaNamed):
    """A request that was sent, and whose reply is awaited; made by `Context.request` and `Context.open_request`."""

    def __init__(self, requestor: Requestor, correlation_id: str, deadline_us: int, sent: Sent | None = None) -> None:
        self._requestor = requestor
        self._correlation_id = correlation_id
        self._deadline_us = deadline_us
        self._sent = sent
        self._reply: Message | None = None
        self._waiting = False
        self._finishing: asyncio.Future[None] | None = None
        """The end of the request, from the moment at which a caller gets the reply."""

    @property
    def correlation_id(self) -> str:
        """The correlation id of the reply, by which `Context.open_request` finds the request after a restart."""
        return self._correlation_id

    @property
    def deadline(self) -> float:
        """The time until which a reply counts, in seconds since 1970."""
        return self._deadline_us / MICROSECONDS

    @property
    def sent(self) -> Sent | None:
        """The progress of the request itself; None if it was sent by an earlier life of the program."""
        return self._sent

    async def reply(self, timeout: Duration | None = None) -> Message:
        """Return the reply, waiting for it at most for `timeout`, and not beyond the deadline.

        When the time is over `DeliveryTimeoutException` is raised, whose `state` is the progress of the request, if
        this program sent it; before the deadline the reply may be awaited again. If there are several replies, the
        first one counts, and every further call returns the same. A cancelled call leaves the reply for the next one.
        """
        limit_s = None if timeout is None else seconds(timeout, "a timeout")
        found = self._reply or await self._receive(limit_s)
        # Shielded: a cancelled caller must not leave a reply that is acknowledged and a request
        # that is still open.
        if not self._finish().done():
            await asyncio.shield(self._finish())
        return found

    async def _receive(self, limit_s: float | None) -> Message:
        if self._waiting:
            raise IllegalStateException("another task waits for this reply")
        self._waiting = True
        try:
            consumer = await self._requestor.consumer(self._correlation_id)
            try:
                # Stored at once: a caller that is cancelled while the consumer is closed must not
                # lose the reply.
                self._reply = await consumer.receive(self._requestor.left_s(self._deadline_us, limit_s))
            finally:
                closed = consumer.closed
                await consumer.close()
        finally:
            self._waiting = False
        if self._reply is not None:
            return self._reply
        if closed:
            raise IllegalStateException(_CLOSED)
        state = None if self._sent is None else self._sent.state
        far = "" if state is None else f": the request is {state}"
        text = f"no reply to the request {self._correlation_id!r} arrived in time{far}"
        raise DeliveryTimeoutException(text, state=state)

    def _finish(self) -> asyncio.Future[None]:
        """End the request: consume its reply, if there is one. Idempotent."""
        if self._finishing is None:
            self._finishing = asyncio.ensure_future(self._requestor.finish(self._correlation_id, self._reply))
        return self._finishing

    def __repr__(self) -> str:
        state = "answered" if self._reply is not None else "open"
        return f"<Request {self._correlation_id!r}, {state}>"


class Requestor:
    """The requests of one context, in a session of their own, whatever else the context does."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._opening = asyncio.Lock()
        self._opened: Session | None = None
        self._closed = False
        self._queue: Queue | None = None
        self._count = 0

    async def _session(self) -> Session:
        async with self._opening:
            if self._closed:
                raise IllegalStateException(_CLOSED)
            if self._opened is None:
                self._opened = await self._connection.open_session(SessionMode.INDIVIDUAL_ACKNOWLEDGE)
            return self._opened

    async def close(self) -> None:
        """Close its context; requests stay open."""
        self._closed = True
        async with self._opening:
            session, self._opened = self._opened, None
            if session is not None:
                await self._connection.close_session(session)

    async def _replies(self) -> Queue:
        """Return the queue of replies."""
        if self._queue is None:
            found = await self._connection.opened.provider.execute(DeclareQueue(Declare(REPLIES)))
            self._queue = Queue(address.name_of(found) or found)
        return self._queue

    async def send(
        self,
        destination: Destination | str,
        body: Body,
        life_s: float,
        *,
        correlation_id: str | None = None,
        properties: Mapping[str, PropertyValue | None] | None = None,
    ) -> Request:
        """Record a request, and send it; its reply is awaited for `life_s`."""
        sending = send_options(Sending(), properties=properties, time_to_live=life_s)
        session, provider = await self._session(), self._connection.opened.provider
        deadline_us = provider.now_us() + round(life_s * MICROSECONDS)
        correlation = self._correlation(correlation_id)
        sending = send_options(sending, jms_correlation_id=correlation, jms_reply_to=await self._replies())
        await provider.execute(RememberRequest(correlation, deadline_us))
        try:
            sent = await session.send(destination, body, sending)
        # A cancelled task may have sent the request, and so may one whose node was lost: the request
        # stays recorded. Any other error means that it was not sent.
        except JMSException as error:
            if not is_lost(error):
                await provider.execute(ForgetRequest(correlation))
            raise
        return Request(self, correlation, deadline_us, sent)

    async def answer(self, request: Request) -> Message:
        """Wait for the reply to a request that only the caller knows.

        When the time is over, or the caller is cancelled, the request is forgotten.
        """
        try:
            return await request.reply()
        except (DeliveryTimeoutException, asyncio.CancelledError):
            with suppress(JMSException):  # Its node is gone, or has no room: the deadline ends the request.
                await asyncio.shield(request._finish())  # noqa: SLF001 - programs never end a request without a reply
            raise

    def _correlation(self, given: str | None) -> str:
        """Return the id that was given, or one that no other request has."""
        if given is None:
            self._count += 1
            provider = self._connection.opened.provider
            # The time is part of the id, as counts begin anew after a restart and an old reply must
            # not fit a new request.
            return f"{provider.node_info.node}-{provider.now_us():x}-{self._connection.opened.number}-{self._count}"
        found = headers_and_properties.text_or_none("correlation_id", given)
        if not found:
            raise IllegalArgumentException("correlation_id must be text that is not empty")
        return found

    async def open(self, correlation_id: str) -> Request:
        """Return a request that was sent earlier."""
        for each in await self._connection.opened.provider.execute(OpenRequests()):
            if each.correlation == correlation_id:
                return Request(self, each.correlation, each.deadline_us)
        raise IllegalStateException(
            f"no request {correlation_id!r} is open here: its reply was received, it timed out, or it was never sent"
        )

    async def consumer(self, correlation: str, prefetch: int = 1) -> Consumer:
        """Open a consumer of the replies to one request."""
        session = await self._session()
        selector = f"JMSCorrelationID = {quoted(correlation)}"
        # One message at a time: further replies stay in the queue, and are not handed over in vain.
        wanted = ConsumerOptions(destination=await self._replies(), selector=selector, prefetch=prefetch)
        return Consumer(session, await session.consume(wanted))

    def left_s(self, deadline_us: int, limit_s: float | None) -> float:
        """Return the time for which a reply is awaited: until the deadline, and at most for `limit_s`."""
        left_s = max(0, deadline_us - self._connection.opened.provider.now_us()) / MICROSECONDS
        return left_s if limit_s is None else min(left_s, limit_s)

    async def finish(self, correlation: str, reply: Message | None) -> None:
        """Consume the reply, if there is one, and close its request, in one batch."""
        while True:
            # Both calls in one turn of the loop, so that the node writes them in one batch.
            forgotten = self._connection.opened.provider.execute(ForgetRequest(correlation))
            try:
                await asyncio.gather(*([] if reply is None else [Message.acknowledge(reply)]), forgotten)
            except JMSException as error:
                if not is_lost(error):
                    raise
                reply = await self._again(correlation)
            else:
                return

    async def _again(self, correlation: str) -> Message | None:
        """Return the reply that a node hands over again because it was lost before it was acknowledged, if it does."""
        async with await self.consumer(correlation, prefetch=0) as consumer:
            return await consumer.receive_no_wait()


async def reply(session: Session, request: object, body: Body, time_to_live: Duration | None) -> Sent:
    """Reply to a message, for as long as that lives unless `time_to_live` is given; callers are not all checked."""
    if not isinstance(request, Message):
        raise IllegalArgumentException(f"a reply requires a received message, not {request!r}"[:200])
    if request.jms_reply_to is None:
        raise InvalidDestinationException(f"the message has no jms_reply_to, so it expects no reply: {request!r}"[:200])
    if time_to_live is None:
        time_to_live = _remaining_s(request, session.units.provider.now_us())
        if time_to_live == 0:
            raise IllegalStateException("the request has expired, so its reply is not sent")
        most_s = session.units.provider.node_info.lifetime_s_max
        # The author's clock may be ahead, and the request may live longer than this node allows.
        if time_to_live is not None and most_s is not None:
            time_to_live = min(time_to_live, most_s)
    correlation_id = request.jms_correlation_id or request.jms_message_id
    sending = send_options(Sending(), jms_correlation_id=correlation_id, time_to_live=time_to_live)
    return await session.send(request.jms_reply_to, body, sending)


def waiting_s(given: Duration, keyword: str) -> float:
    """Return the time to wait for a reply; raises `IllegalArgumentException` if it has no end."""
    found_s = seconds(given, keyword)
    if not found_s:
        raise IllegalArgumentException(f"a request requires {keyword} greater than 0")
    return found_s


def _remaining_s(request: Message, now_us: int) -> float | None:
    """Return the time for which a reply to a message is useful: as long as the message lives; None: for ever."""
    if not request.jms_expiration:
        return None
    return max(0, request.jms_expiration * _MILLISECOND_US - now_us) / MICROSECONDS


class Responder:
    """A message listener of a session with transactions, which replies for a function."""

    def __init__(self, session: Session, transaction: Transaction, function: Callable[[Any], object]) -> None:
        self._session, self._transaction, self._function = session, transaction, function

    async def on_message(self, request: Message) -> None:
        """Handle a request, and reply to it. If that fails, the request comes again, and this raises."""
        error, answer = await self._session.caller.called(self, self._function, request)
        remaining_s = _remaining_s(request, self._session.units.provider.now_us())
        if error is None and answer is not None and request.jms_reply_to is not None and remaining_s != 0:
            error = await self._reply(request, answer)
        if error is not None:
            with suppress(JMSException):  # A session that is closed has rolled back.
                await self._transaction.rollback()
            raise error
        await self._transaction.commit()

    async def _reply(self, request: Message, answer: object) -> JMSException | None:
        """Keep a reply for the commit; returns what is wrong with it."""
        try:
            await reply(self._session, request, answer, None)
        except JMSException as error:
            return error
        return None
