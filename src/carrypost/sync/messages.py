"""Messages and temporary destinations whose calls block. In all else they are those of the asyncio API."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Self, TypeVar

from carrypost.errors import ListenerException
from carrypost.jms import messages, temporary
from carrypost.sync.methods import blocking, documented, entered

T = TypeVar("T")
_acknowledge = blocking(messages.Message.acknowledge)
_release = blocking(messages.Message.release)
_delete = blocking(temporary.Temporary.delete)


@documented(messages.Message)
class Message(messages.Message):
    __slots__ = ()

    @property
    def _inner(self) -> Self:
        return self

    acknowledge = _acknowledge  # type: ignore[assignment]  # it blocks, as those below
    release = _release  # type: ignore[assignment]

    @documented(messages.Message.processing)
    def processing(self) -> AbstractContextManager[Self]:  # type: ignore[override]
        return entered(super().processing())


@documented(messages.TextMessage)
class TextMessage(Message, messages.TextMessage):
    __slots__ = ()


@documented(messages.BytesMessage)
class BytesMessage(Message, messages.BytesMessage):
    __slots__ = ()


@documented(messages.MapMessage)
class MapMessage(Message, messages.MapMessage):
    __slots__ = ()


@documented(messages.StreamMessage)
class StreamMessage(Message, messages.StreamMessage):
    __slots__ = ()


@documented(messages.ObjectMessage)
class ObjectMessage(Message, messages.ObjectMessage):
    __slots__ = ()


@documented(temporary.TemporaryQueue)
class TemporaryQueue(temporary.TemporaryQueue):
    __slots__ = ()

    @property
    def _inner(self) -> Self:
        return self

    delete = _delete  # type: ignore[assignment]


@documented(temporary.TemporaryTopic)
class TemporaryTopic(temporary.TemporaryTopic):
    __slots__ = ()

    @property
    def _inner(self) -> Self:
        return self

    delete = _delete  # type: ignore[assignment]


_KINDS: dict[type, type] = {
    messages.Message: Message,
    messages.TextMessage: TextMessage,
    messages.BytesMessage: BytesMessage,
    messages.MapMessage: MapMessage,
    messages.StreamMessage: StreamMessage,
    messages.ObjectMessage: ObjectMessage,
    temporary.TemporaryQueue: TemporaryQueue,
    temporary.TemporaryTopic: TemporaryTopic,
}
"""By class of the asyncio API."""


def as_blocking(value: T) -> T:
    """Let the calls of a message or a temporary destination block, and return it; leave all else as it is.

    The object stays the same, whatever refers to it. Both classes have the same attributes.
    """
    kind = _KINDS.get(type(value))
    if kind is not None:
        value.__class__ = kind
    elif isinstance(value, ListenerException):
        as_blocking(value.message)
    return value


def as_message(message: messages.Message) -> Message:
    """Let the calls of a message block."""
    return as_blocking(message)  # type: ignore[return-value]  # its class is changed


def as_queue(queue: temporary.TemporaryQueue) -> TemporaryQueue:
    """Let the calls of a temporary queue block."""
    return as_blocking(queue)  # type: ignore[return-value]  # likewise


def as_topic(topic: temporary.TemporaryTopic) -> TemporaryTopic:
    """Let the calls of a temporary topic block."""
    return as_blocking(topic)  # type: ignore[return-value]  # likewise
