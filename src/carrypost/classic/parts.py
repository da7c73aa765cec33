"""Producers, consumers and browsers of a session, with errors in the words of the classic API.

JMS has them three times: for any destination, for queues and for topics. Those for one kind add the names that JMS 1.0
had; they check nothing that the session has not checked.

The classic API has sessions where the engine has contexts, so that errors of the engine are reworded.
"""

# ruff: noqa: SLF001 - parts of the same API

from __future__ import annotations

import copy
import re
from collections.abc import AsyncIterator, Callable, Coroutine
from datetime import timedelta
from functools import wraps
from typing import TYPE_CHECKING, Any, ParamSpec, Protocol, Self, TypeVar, cast

from carrypost.errors import IllegalArgumentException, IllegalStateException, JMSException, MessageFormatException
from carrypost.java_names import JavaNamed
from carrypost.jms import consumer, producer
from carrypost.jms.consumer import MessageListener
from carrypost.jms.destinations import Destination, Queue, Topic, as_destination
from carrypost.jms.durations import whole_milliseconds
from carrypost.jms.intake import Listener
from carrypost.jms.messages import Message, headers_and_properties
from carrypost.jms.modes import DeliveryMode

if TYPE_CHECKING:
    import threading

    from carrypost.jms.sent import Sent


P = ParamSpec("P")
T = TypeVar("T")
_WORDS = (
    (r"\(ctx\.create_context\(\)\)", "(connection.create_session())"),
    (r"SessionMode\.SESSION_TRANSACTED", "create_session(True)"),
    (r"InitialContext\(ctx\)(.*)timeout=SECONDS", r"InitialContext()\1timeout=MILLISECONDS"),
    (r"\bctx\b", "session"),
    (r"\bcontext(s?)\b", r"session\1"),
)


def reworded(error: JMSException) -> JMSException:
    """Return an error whose text speaks of sessions."""
    if error.args and isinstance(error.args[0], str):
        text = error.args[0]
        for pattern, words in _WORDS:
            text = re.sub(pattern, words, text)
        error.args = (text, *error.args[1:])
    return error


def wording(method: Callable[P, Coroutine[Any, Any, T]]) -> Callable[P, Coroutine[Any, Any, T]]:
    """Let the errors of an async method speak of sessions."""

    @wraps(method)
    async def worded(*given: P.args, **named: P.kwargs) -> T:
        try:
            return await method(*given, **named)
        except JMSException as error:
            raise reworded(error) from error.__cause__

    return worded


Milliseconds = int | timedelta
_OPTIONS = 3
"""Delivery mode, priority and time to live: a send has all of them, or none."""


class PartOwner(Protocol):
    """The session that parts belong to."""

    _receiving: threading.Lock
    """Held by the one call that receives in the session; a lock, as threads may be the callers."""

    def _check(self) -> None:
        """Raise `IllegalStateException` if the session is closed, or belongs to another event loop."""

    def _of_domain(self, destination: Any) -> Any:  # noqa: ANN401 - callers are not all checked
        """Return a destination that a session of this domain may use; raises `InvalidDestinationException`."""


class Closing(JavaNamed):
    """An object that is closed at the end of an ``async with`` block."""

    async def close(self) -> None:
        """Close it."""
        raise NotImplementedError

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()


class Part(Closing):
    """A part of a session that can be closed."""

    _called = "object"

    def __init__(self, session: PartOwner) -> None:
        self._session = session
        self._is_closed = False

    def _use(self) -> PartOwner:
        if self._is_closed:
            raise IllegalStateException(f"this {self._called} is closed: create another in its session")
        self._session._check()
        return self._session

    async def close(self) -> None:
        """Close it, and only it. Idempotent."""
        self._is_closed = True


# --- sending -----------------------------------------------------------------------------------------------------


class MessageProducer(Part):
    """A producer for one destination, or for any; made by `Session.create_producer`.

    What JMS counts in milliseconds is a whole number of milliseconds, or a `timedelta`.
    """

    _called = "producer"

    def __init__(self, session: PartOwner, inner: producer.Producer, destination: Destination | None) -> None:
        super().__init__(session)
        self._inner_producer, self._destination = inner, destination
        self._disable_message_id = self._disable_message_timestamp = False

    def _settings(self) -> producer.Producer:
        self._use()
        return self._inner_producer

    @property
    def destination(self) -> Destination | None:
        """The destination of all its messages; None if each send names one."""
        self._use()
        return self._destination

    async def send(self, *given: Any) -> Sent:  # noqa: ANN401 - of several kinds, as in Java
        """Send a message; returns a `Sent` when this node has it.

        ::

            await producer.send(message)
            await producer.send(message, DeliveryMode.PERSISTENT, 4, 60_000)

        A producer without a destination of its own has the destination as one more argument, before these. After all of
        them may come a completion listener: then this returns as soon as the node has the message, and the listener is
        called when it is stored. What is raised is as with `Producer.send`.
        """
        self._use()
        to, message, options, listener = self._parsed(given)
        sender = self._inner_producer if listener is None else copy.copy(self._inner_producer).set_async(listener)
        try:
            if not options:
                return await sender.send(to, message)
            mode, priority, life = options
            if mode is None or priority is None:  # Which would be the producer's own for the engine.
                raise IllegalArgumentException("delivery mode and priority must be given with a lifetime, not None")
            life_s = whole_milliseconds(life, "the time to live")
            return await sender.send(to, message, delivery_mode=mode, priority=priority, time_to_live=life_s)
        except JMSException as error:
            raise reworded(error) from error.__cause__

    def _parsed(self, given: tuple[Any, ...]) -> tuple[Any, Any, tuple[Any, ...], Any]:
        """Return destination, message, options and completion listener of a send."""
        listener = None
        if len(given) > 1 and hasattr(given[-1], "on_completion"):
            given, listener = given[:-1], given[-1]
        to = self._destination
        if to is None:
            if not given or _is_message(given[0]):
                raise IllegalStateException(
                    "this producer has no destination of its own: name one before the message, send(destination, "
                    "message), or create the producer with one"
                )
            to, given = self._session._of_domain(given[0]), given[1:]
        elif given and isinstance(given[0], Destination):
            raise IllegalStateException(
                f"this producer sends to {to} alone: leave the destination out, or use create_producer(None)"
            )
        message, options = (given[0], given[1:]) if given else (None, ())
        if not _is_message(message):
            raise MessageFormatException(
                f"a message must be one that the session created, such as create_text_message(…), not {message!r}"[:200]
            )
        if len(options) not in (0, _OPTIONS):
            raise IllegalArgumentException(
                "after the message come delivery mode, priority and time to live, all three or none, not "
                f"{len(options)} arguments"
            )
        return to, message, options, listener

    def set_delivery_mode(self, mode: DeliveryMode) -> None:
        """Set the delivery mode: PERSISTENT, the default, or NON_PERSISTENT."""
        self._settings().set_delivery_mode(mode)

    @property
    def delivery_mode(self) -> DeliveryMode:
        """The delivery mode that was set."""
        return self._settings().delivery_mode

    def set_priority(self, priority: int) -> None:
        """Set the priority: 0 to 9; 4 is the default, and 9 the highest."""
        self._settings().set_priority(priority)

    @property
    def priority(self) -> int:
        """The priority that was set."""
        return self._settings().priority

    def set_time_to_live(self, time_to_live: Milliseconds) -> None:
        """Set the lifetime of messages in milliseconds; 0: as long as the node's settings say."""
        life_s = whole_milliseconds(time_to_live, "the time to live")
        self._settings().set_time_to_live(seconds=life_s)

    @property
    def time_to_live(self) -> int:
        """The lifetime that was set, in milliseconds."""
        return round(self._settings().time_to_live * 1_000)

    def set_delivery_delay(self, delivery_delay: Milliseconds) -> None:
        """Set the delay in milliseconds before which messages are not delivered."""
        delay_s = whole_milliseconds(delivery_delay, "the delivery delay")
        self._settings().set_delivery_delay(seconds=delay_s)

    @property
    def delivery_delay(self) -> int:
        """The delay that was set, in milliseconds."""
        return round(self._settings().delivery_delay * 1_000)

    def set_disable_message_id(self, value: bool) -> None:
        """Note a hint without effect, as JMS lets providers do: every message has an id here."""
        self._use()
        self._disable_message_id = headers_and_properties.flag("disable_message_id", value)

    @property
    def disable_message_id(self) -> bool:
        """The hint that was set."""
        self._use()
        return self._disable_message_id

    def set_disable_message_timestamp(self, value: bool) -> None:
        """Note a hint without effect, as JMS lets providers do: every message has a time here."""
        self._use()
        self._disable_message_timestamp = headers_and_properties.flag("disable_message_timestamp", value)

    @property
    def disable_message_timestamp(self) -> bool:
        """The hint that was set."""
        self._use()
        return self._disable_message_timestamp


class QueueSender(MessageProducer):
    """A producer for queues; made by `QueueSession.create_sender`."""

    @property
    def queue(self) -> Queue | None:
        """The queue of all its messages; None if each send names one."""
        return cast("Queue | None", self.destination)


class TopicPublisher(MessageProducer):
    """A producer for topics; made by `TopicSession.create_publisher`."""

    @property
    def topic(self) -> Topic | None:
        """The topic of all its messages; None if each of them has its own."""
        return cast("Topic | None", self.destination)

    async def publish(self, *given: Any) -> Sent:  # noqa: ANN401 - of several kinds, as in Java
        """Send a message to the topic; with the arguments of `send`."""
        return await self.send(*given)


# --- receiving ---------------------------------------------------------------------------------------------------


class MessageConsumer(Part):
    """A consumer; made by the `create_…` methods of a session. Nothing comes before its connection is started."""

    _called = "consumer"

    def __init__(self, session: PartOwner, inner: consumer.Consumer) -> None:
        super().__init__(session)
        self._inner_consumer = inner

    @property
    def message_selector(self) -> str | None:
        """The selector of its messages; None if there is none."""
        self._use()
        return self._inner_consumer.message_selector

    async def receive(self, timeout: Milliseconds | None = None) -> Message | None:
        """Return the next message, waiting for it at most so many milliseconds; without end for 0, or without a number.

        Returns None when the time is over, or the consumer is closed meanwhile. A session receives by one call at a
        time: a second one raises `IllegalStateException`.
        """
        return await self._receive(self._limit_s(timeout))

    async def receive_no_wait(self) -> Message | None:
        """Return the next message if one is here already, else None."""
        return await self._receive(0.0)

    @staticmethod
    def _limit_s(timeout: Milliseconds | None) -> float | None:
        """Return a limit in seconds; None: there is none."""
        return None if timeout is None else whole_milliseconds(timeout, "a timeout") or None

    def _begin_receiving(self) -> threading.Lock:
        """Return the session's lock, which the caller holds from now on."""
        receiving = self._use()._receiving
        if not receiving.acquire(blocking=False):
            raise IllegalStateException(
                "another call receives in this session, which is for one task or thread: create one session for each"
            )
        return receiving

    async def _receive(self, limit_s: float | None) -> Message | None:
        receiving = self._begin_receiving()
        try:
            return await self._inner_consumer.receive(timeout=limit_s)
        except JMSException as error:
            raise reworded(error) from error.__cause__
        finally:
            receiving.release()

    @property
    def message_listener(self) -> object:
        """The listener; None if none is set."""
        self._use()
        return self._inner_consumer.message_listener

    def set_message_listener(self, listener: Listener | MessageListener | None) -> None:
        """Set a function, an async function or an object with `on_message` that gets every message; None removes it.

        All listeners of a session are called one at a time. A listener that raises gets the message again, up to
        `messaging.tries` times; if acknowledging is left to the program, or to a commit, it gets the next one.
        """
        self._use()
        try:
            self._inner_consumer.set_message_listener(listener)
        except JMSException as error:
            raise reworded(error) from error.__cause__

    @wording
    async def close(self) -> None:
        """Close the consumer: a pending `receive` returns None, and unread messages are returned. Idempotent."""
        await self._inner_consumer.close()
        self._is_closed = True


class QueueReceiver(MessageConsumer):
    """A consumer of a queue; made by `QueueSession.create_receiver`."""

    @property
    def queue(self) -> Queue:
        """The queue that it receives from."""
        self._use()
        return cast("Queue", self._inner_consumer.destination)


class TopicSubscriber(MessageConsumer):
    """A consumer of a topic; made by `create_durable_subscriber`, and by `TopicSession.create_subscriber`."""

    @property
    def topic(self) -> Topic:
        """The topic that it is subscribed to."""
        self._use()
        return cast("Topic", self._inner_consumer.destination)

    @property
    def no_local(self) -> bool:
        """True if it leaves out messages that its own connection sent."""
        self._use()
        return self._inner_consumer.no_local


# --- browsing ----------------------------------------------------------------------------------------------------


class QueueBrowser(Part):
    """A view of the messages that wait in a queue; made by `Session.create_browser`."""

    _called = "browser"

    def __init__(self, session: PartOwner, inner: consumer.QueueBrowser) -> None:
        super().__init__(session)
        self._inner_browser = inner

    @property
    def queue(self) -> Queue:
        """The queue that it browses."""
        self._use()
        return self._inner_browser.queue

    @property
    def message_selector(self) -> str | None:
        """The selector that its messages fulfil; None if there is none."""
        self._use()
        return self._inner_browser.message_selector

    @property
    def enumeration(self) -> Enumeration:
        """The messages, from the first one: every access looks anew."""
        self._use()
        return Enumeration(self._inner_browser.messages())

    async def close(self) -> None:
        """Close the browser. Idempotent."""
        await self._inner_browser.close()
        self._is_closed = True


class Enumeration(JavaNamed):
    """The messages that a browser sees, by ``async for`` or one by one."""

    def __init__(self, messages: AsyncIterator[Message]) -> None:
        self._messages = messages
        self._next: Message | None = None

    @wording
    async def has_more_elements(self) -> bool:
        """Return True if there is another message."""
        if self._next is None:
            self._next = await anext(self._messages, None)
        return self._next is not None

    async def next_element(self) -> Message:
        """Return the next message; raises `IllegalStateException` if there is none."""
        if not await self.has_more_elements():
            raise IllegalStateException("there are no more messages: ask has_more_elements() first")
        return await anext(self)

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Message:
        if not await self.has_more_elements():
            raise StopAsyncIteration
        found, self._next = self._next, None
        return found  # type: ignore[return-value]  # there is one


def _is_message(given: object) -> bool:
    """Return True for a message, also of another implementation."""
    return isinstance(given, Message) or hasattr(given, "jms_message_id")


def destination_or_none(given: object) -> Destination | None:
    """Return the destination of a producer, which text may name; None: each send names one."""
    found = as_destination(given)
    if found is not None and not isinstance(found, Destination):
        raise IllegalArgumentException(f"a producer must have a topic, a queue or None, not {given!r}"[:200])
    return found
