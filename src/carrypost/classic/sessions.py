"""`Session`: one thread of work of a connection, with requestors, which send one request and wait for one reply.

A session holds a `Context`, which has all rules of messaging. Requestors are those of JMS 1.1, but the wait for the
reply has an end.
"""

# ruff: noqa: SLF001 - parts of the same API

from __future__ import annotations

import asyncio
import threading
from asyncio import AbstractEventLoop
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any, ClassVar, Literal, NoReturn, Protocol, TypeVar

from carrypost.classic.parts import (
    Closing,
    MessageConsumer,
    MessageProducer,
    Milliseconds,
    QueueBrowser,
    QueueReceiver,
    QueueSender,
    TopicPublisher,
    TopicSubscriber,
    destination_or_none,
    wording,
)
from carrypost.errors import (
    DeliveryTimeoutException,
    IllegalArgumentException,
    IllegalStateException,
    InvalidDestinationException,
    JMSException,
)
from carrypost.jms.context import Context
from carrypost.jms.context_sessions import Openable
from carrypost.jms.declarations import Temporary, TemporaryQueue
from carrypost.jms.destinations import Destination, Queue, Topic, as_destination, named
from carrypost.jms.durations import whole_milliseconds
from carrypost.jms.messages import BytesMessage, MapMessage, Message, ObjectMessage, StreamMessage, TextMessage
from carrypost.jms.modes import SessionMode

if TYPE_CHECKING:
    from carrypost.jms.consumer import Consumer
    from carrypost.jms.declarations import TemporaryTopic


C = TypeVar("C", bound=MessageConsumer)
Domain = Literal["queue", "topic"]
_SUBSCRIPTION = "the name of a subscription"


class SessionOwner(Protocol):
    """The connection that sessions belong to."""

    def _forget(self, session: Session) -> None:
        """Note that a session is closed."""


def not_offered(what: str) -> JMSException:
    """Return the error for a part of JMS that application servers alone use."""
    return JMSException(
        f"{what} not offered, as JMS permits: for work side by side, create several sessions, each with a listener; "
        "for work that is done as a whole, create a transacted session"
    )


class Session(Closing):
    """A session of a connection; made by `Connection.create_session`, and used by one task at a time."""

    SESSION_TRANSACTED: ClassVar[SessionMode] = SessionMode.SESSION_TRANSACTED
    AUTO_ACKNOWLEDGE: ClassVar[SessionMode] = SessionMode.AUTO_ACKNOWLEDGE
    CLIENT_ACKNOWLEDGE: ClassVar[SessionMode] = SessionMode.CLIENT_ACKNOWLEDGE
    DUPS_OK_ACKNOWLEDGE: ClassVar[SessionMode] = SessionMode.DUPS_OK_ACKNOWLEDGE
    INDIVIDUAL_ACKNOWLEDGE: ClassVar[SessionMode] = SessionMode.INDIVIDUAL_ACKNOWLEDGE

    _domain: ClassVar[Domain | None] = None
    """Kind of destinations that it is for; None: both."""

    def __init__(self, connection: SessionOwner, context: Context) -> None:
        self._connection, self._context = connection, context
        self._loop: AbstractEventLoop = asyncio.get_running_loop()
        self._is_closed = ""
        self._mode = context.session_mode
        self._receiving = threading.Lock()
        """Held by the one call that receives in the session."""

    def _use(self, domain: Domain | None = None) -> Context:
        """Return the context of the session, for a call of this domain; raises `IllegalStateException`."""
        self._check()
        if self._domain is not None and domain not in (None, self._domain):
            raise IllegalStateException(
                f"a {type(self).__name__} is for {self._domain}s alone, and this call is about {domain}s: create a "
                "session with ConnectionFactory.create_connection()"
            )
        return self._context

    def _check(self) -> None:
        """Raise `IllegalStateException` if the session is closed, or belongs to another event loop."""
        if self._is_closed:
            raise IllegalStateException(self._is_closed)
        running = asyncio._get_running_loop()  # Called outside of any loop, the others say what is wrong.
        if running is not self._loop and running is not None:
            raise IllegalStateException(
                "this session belongs to another event loop: use it in the loop that created it, or create a "
                "connection in this one"
            )

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self._mode.name}{', closed' if self._is_closed else ''}>"

    # --- what it is ----------------------------------------------------------------------------------------

    @property
    def transacted(self) -> bool:
        """True if it has transactions."""
        return self.acknowledge_mode is SessionMode.SESSION_TRANSACTED

    @property
    def acknowledge_mode(self) -> SessionMode:
        """The acknowledgement mode; SESSION_TRANSACTED if it has transactions."""
        self._check()
        return self._mode

    # --- the end -------------------------------------------------------------------------------------------

    def _check_not_listening(self, what: str) -> None:
        """Raise `IllegalStateException` if one of its listeners calls, and would wait for itself."""
        self._context._check_not_listening(what)

    async def close(self) -> None:
        """Close the session with all its parts, and roll its transaction back. Idempotent.

        Listeners finish the message that they have, and may use the session meanwhile. A pending `receive` returns
        None, and unacknowledged messages are returned.
        """
        await self._end("this session is closed: create another with connection.create_session()")

    @wording
    async def _end(self, reason: str) -> None:
        """Close the session; later calls raise the `reason`."""
        if not self._is_closed:
            self._check_not_listening("close its own session")
            await self._context.close()
            self._is_closed = reason
            self._connection._forget(self)

    # --- transactions and acknowledging --------------------------------------------------------------------

    @wording
    async def commit(self) -> None:
        """Commit the transaction: messages received in it are consumed, messages sent are sent; the next one begins.

        All of it is on disk when this returns, or none of it happened: then `TransactionRolledBackException` is raised.
        """
        await self._use().commit()

    @wording
    async def rollback(self) -> None:
        """Roll the transaction back: nothing was sent, and received messages come again, flagged."""
        await self._use().rollback()

    @wording
    async def recover(self) -> None:
        """Have every message redelivered that this session received and did not acknowledge, flagged as redelivered."""
        await self._use().recover()

    # --- sending and receiving -----------------------------------------------------------------------------

    def create_producer(self, destination: Destination | str | None = None) -> MessageProducer:
        """Return a producer for a topic or a queue, or for any if it is None."""
        return MessageProducer(self, self._use().create_producer(), self._of_domain(destination_or_none(destination)))

    def create_consumer(
        self, destination: Destination | str, message_selector: str | None = None, no_local: bool = False
    ) -> Openable[MessageConsumer]:
        """Return a consumer of a topic or a queue, to be awaited or entered by ``async with``; it lasts while open."""
        return self._consuming(MessageConsumer, "create_consumer", destination, message_selector, no_local=no_local)

    def create_durable_subscriber(
        self, topic: Topic | str, name: str, message_selector: str | None = None, no_local: bool = False
    ) -> Openable[TopicSubscriber]:
        """Return a consumer of a durable subscription, which collects messages while it has none, until `unsubscribe`.

        It belongs to the connection's client id and has one consumer at a time. Opening it with another topic or
        selector creates it anew.
        """
        create, of = Context.create_durable_consumer, (topic, name, message_selector)
        return self._subscribing(TopicSubscriber, create, of, "create_durable_subscriber", no_local=no_local)

    def create_durable_consumer(
        self, topic: Topic | str, name: str, message_selector: str | None = None, no_local: bool = False
    ) -> Openable[MessageConsumer]:
        """Return a consumer of a durable subscription, as `create_durable_subscriber` does."""
        create, of = Context.create_durable_consumer, (topic, name, message_selector)
        return self._subscribing(MessageConsumer, create, of, "create_durable_consumer", no_local=no_local)

    def create_shared_consumer(
        self, topic: Topic | str, name: str, message_selector: str | None = None
    ) -> Openable[MessageConsumer]:
        """Return one of several consumers of a subscription, on this node: each message goes to one of them."""
        create, of = Context.create_shared_consumer, (topic, name, message_selector)
        return self._subscribing(MessageConsumer, create, of, "create_shared_consumer")

    def create_shared_durable_consumer(
        self, topic: Topic | str, name: str, message_selector: str | None = None
    ) -> Openable[MessageConsumer]:
        """Return one of several consumers of a durable subscription, on this node: each message goes to one of them."""
        create, of = Context.create_shared_durable_consumer, (topic, name, message_selector)
        return self._subscribing(MessageConsumer, create, of, "create_shared_durable_consumer")

    def _consuming(
        self, kind: type[C], call: str, destination: object, selector: str | None, **options: object
    ) -> Openable[C]:
        """Return a consumer without a subscription of its own, which is opened later."""
        context, found = self._use(), self._of_domain(as_destination(destination))
        return self._opening(kind, call, context.create_consumer, found, selector, **options)

    def _subscribing(
        self, kind: type[C], create: Callable[..., Openable[Consumer]], of: tuple[object, str, str | None], call: str,
        **options: object,
    ) -> Openable[C]:  # fmt: skip
        """Return a consumer of a topic by name of a subscription and selector, which is opened later."""
        topic, name, selector = of
        subscription = named(name, _SUBSCRIPTION)
        return self._opening(kind, call, create, self._use("topic"), topic, subscription, selector, **options)

    def _opening(
        self, kind: type[C], call: str, create: Callable[..., Openable[Consumer]], *given: object, **options: object
    ) -> Openable[C]:
        """Return a part that is opened later."""

        @wording
        async def opened() -> C:
            self._check()
            return kind(self, await create(*given, **options))

        return Openable(opened, call, "consumer = await session")

    def _of_domain(self, destination: Any) -> Any:  # noqa: ANN401 - callers are not all checked
        """Return a destination that a session of this domain may use; raises `InvalidDestinationException`."""
        other = None if self._domain is None else {"queue": Topic, "topic": Queue}[self._domain]
        if other is not None and isinstance(as_destination(destination), other):
            raise InvalidDestinationException(
                f"a {type(self).__name__} is for {self._domain}s alone, and {destination} is none"
            )
        return destination

    @wording
    async def unsubscribe(self, name: str) -> None:
        """End a durable subscription of this client id, with everything that waits for it.

        Raises `InvalidDestinationException` if there is none of this name, `IllegalStateException` if it has a consumer
        or unacknowledged messages.
        """
        await self._use("topic").unsubscribe(name)

    def create_browser(self, queue: Queue | str, message_selector: str | None = None) -> QueueBrowser:
        """Return a browser: it sees the messages that wait in a queue, and takes none."""
        return QueueBrowser(self, self._use("queue").create_browser(queue, message_selector))

    # --- destinations --------------------------------------------------------------------------------------

    def create_queue(self, queue_name: str) -> Queue:
        """Return the queue of this name: in full, ``Alan@NODE``, or short, to be looked up here at its first use.

        This does not create a queue on a node: use `declare_queue`, or the key ``queue.NAME`` of `InitialContext`.
        """
        return self._use("queue").create_queue(queue_name)

    def create_topic(self, topic_name: str) -> Topic:
        """Return the topic of this name, which need not be declared."""
        return self._use("topic").create_topic(topic_name)

    @wording
    async def create_temporary_queue(self) -> TemporaryQueue:
        """Create a queue that lives as long as this connection; others may send to it, as to a `jms_reply_to`."""
        return await self._use("queue").create_temporary_queue()

    @wording
    async def create_temporary_topic(self) -> TemporaryTopic:
        """Create a topic that lives as long as this connection; others may send to it, as to a `jms_reply_to`."""
        return await self._use("topic").create_temporary_topic()

    @wording
    async def declare_queue(self, queue_name: str) -> Queue:
        """Make this node the manager of a queue, ``NAME@NODE``; again, and it finds what waits there.

        JMS leaves this to administrators. `Context.declare_queue` has options.
        """
        return await self._use("queue").declare_queue(queue_name)

    # --- messages ------------------------------------------------------------------------------------------

    def create_message(self) -> Message:
        """Return a message without a body."""
        return self._use().create_message()

    def create_text_message(self, text: str | None = None) -> TextMessage:
        """Return a message with a text."""
        return self._use().create_text_message(text)

    def create_bytes_message(self, data: bytes = b"") -> BytesMessage:
        """Return a message with bytes."""
        return self._use().create_bytes_message(data)

    def create_map_message(self, entries: Mapping[str, Any] | None = None) -> MapMessage:
        """Return a message with names and values."""
        return self._use().create_map_message(entries)

    def create_stream_message(self) -> StreamMessage:
        """Return a message with values one after the other."""
        return self._use().create_stream_message()

    def create_object_message(self, value: object = None) -> ObjectMessage:
        """Return a message with an object of a registered class."""
        return self._use().create_object_message(value)

    # --- not offered ---------------------------------------------------------------------------------------

    @property
    def message_listener(self) -> None:
        """None, as sessions have no listeners here: consumers have them."""
        self._check()

    def set_message_listener(self, listener: object) -> NoReturn:
        """Raise `JMSException`: sessions of application servers alone have listeners."""
        self._check()
        raise not_offered(f"listeners of sessions, such as {listener!r}, are"[:200])

    def run(self) -> NoReturn:
        """Raise `JMSException`: application servers alone run sessions."""
        self._check()
        raise not_offered("sessions that application servers run are")


class QueueSession(Session):
    """A session for queues alone; made by `QueueConnection.create_queue_session`."""

    _domain = "queue"

    def create_sender(self, queue: Queue | str | None) -> QueueSender:
        """Return a producer for a queue, or for any if it is None."""
        return QueueSender(self, self._use().create_producer(), self._of_domain(destination_or_none(queue)))

    def create_receiver(self, queue: Queue | str, message_selector: str | None = None) -> Openable[QueueReceiver]:
        """Return a consumer of a queue, to be awaited or entered by ``async with``."""
        return self._consuming(QueueReceiver, "create_receiver", queue, message_selector)


class TopicSession(Session):
    """A session for topics alone; made by `TopicConnection.create_topic_session`."""

    _domain = "topic"

    def create_publisher(self, topic: Topic | str | None) -> TopicPublisher:
        """Return a producer for a topic, or for any if it is None."""
        return TopicPublisher(self, self._use().create_producer(), self._of_domain(destination_or_none(topic)))

    def create_subscriber(
        self, topic: Topic | str, message_selector: str | None = None, no_local: bool = False
    ) -> Openable[TopicSubscriber]:
        """Return a consumer of a topic, to be awaited or entered by ``async with``; it lasts while open."""
        return self._consuming(TopicSubscriber, "create_subscriber", topic, message_selector, no_local=no_local)


class Requestor(Closing):
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
