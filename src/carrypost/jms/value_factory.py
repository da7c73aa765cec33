"""Destinations and messages that a context creates by plain calls, which ask no node."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, TypeVar

from carrypost.jms.context_sessions import ContextSessions
from carrypost.jms.destinations import Queue, Topic, queue_of, topic_of
from carrypost.jms.messages import BytesMessage, MapMessage, Message, ObjectMessage, StreamMessage, TextMessage
from carrypost.model.descriptor import Ordering

M = TypeVar("M", bound=Message)


class ValueFactory(ContextSessions):
    """The part of a context that creates values; until the context is closed."""

    def create_topic(
        self,
        name: str,
        *,
        ordering: Ordering | str = Ordering.NONE,
        model: Literal["epidemic", "holder", "channel"] = "epidemic",
        circle: str | None = None,
    ) -> Topic:
        """Return the topic of this name, which need not be declared. ``a.b.*`` and ``a.>`` are patterns for consumers.

        `ordering`: "none", "causal" or "delta-causal"; all users of the topic must choose the same. Raises
        `InvalidDestinationException` for wildcards of other systems, such as ``a/#``, for a space or control character,
        and for an empty level, as in ``a.``.

        `model`: "holder" for a topic that a node holds (`declare_topic`), by its full name, ``news@NODE``; "channel"
        for an event channel of the overlay, whose events brokers forward. Both raise `IllegalArgumentException` with an
        ordering.

        `circle`: a topic of the circle that this node calls so. Its messages are sealed for all members; carriers do
        not even see the name. Raises `IllegalArgumentException` with a `model`.
        """
        self._check_not_closed()
        return topic_of(name, ordering, model, circle)

    def create_queue(self, name: str) -> Queue:
        """Return the queue of this name: in full, ``Alan@NODE``, or short, to be looked up here at its first use.

        This does not create a queue on a node: use `declare_queue`.
        """
        self._check_not_closed()
        return queue_of(name)

    def create_message(self) -> Message:
        """Return a message without a body."""
        return self._new(Message)

    def create_text_message(self, text: str | None = None) -> TextMessage:
        """Return a message with a text."""
        return self._new(TextMessage, text)

    def create_bytes_message(self, data: bytes = b"") -> BytesMessage:
        """Return a message with bytes."""
        return self._new(BytesMessage, data)

    def create_map_message(self, entries: Mapping[str, Any] | None = None) -> MapMessage:
        """Return a message with names and values."""
        return self._new(MapMessage, entries or {})

    def create_stream_message(self) -> StreamMessage:
        """Return a message with values one after the other."""
        return self._new(StreamMessage)

    def create_object_message(self, value: object = None) -> ObjectMessage:
        """Return a message with an object of a registered class."""
        return self._new(ObjectMessage, value)

    def _new(self, kind: type[M], *given: Any) -> M:  # noqa: ANN401 - each has its own
        """Return a message of this class, or of the one that blocking programs have instead."""
        self._check_not_closed()
        return self._connection.callers.kinds.get(kind, kind)(*given)  # type: ignore[no-any-return]  # a subclass
