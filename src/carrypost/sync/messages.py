"""Messages and temporary destinations whose calls block. In all else they are those of the asyncio API."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Self

from carrypost.jms import messages, temporary
from carrypost.jms.caller import Kinds
from carrypost.sync.methods import blocking, documented, entered

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


KINDS: Kinds = {
    messages.Message: Message,
    messages.TextMessage: TextMessage,
    messages.BytesMessage: BytesMessage,
    messages.MapMessage: MapMessage,
    messages.StreamMessage: StreamMessage,
    messages.ObjectMessage: ObjectMessage,
    temporary.TemporaryQueue: TemporaryQueue,
    temporary.TemporaryTopic: TemporaryTopic,
}
"""Classes of messages and temporary destinations for programs that block, by those of the asyncio API."""


def as_message(message: messages.Message) -> Message:
    """Return a message as what it is: made for a program that blocks."""
    return message  # type: ignore[return-value]  # a connection makes it so, as those below


def as_queue(queue: temporary.TemporaryQueue) -> TemporaryQueue:
    """Return a temporary queue as what it is: made for a program that blocks."""
    return queue  # type: ignore[return-value]


def as_topic(topic: temporary.TemporaryTopic) -> TemporaryTopic:
    """Return a temporary topic as what it is: made for a program that blocks."""
    return topic  # type: ignore[return-value]
