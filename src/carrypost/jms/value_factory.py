"""Destinations and messages that a context creates by plain calls, which ask no node."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from carrypost.jms.context_sessions import ContextSessions
from carrypost.jms.destinations import Queue, Topic, queue_of, topic_of
from carrypost.jms.messages import BytesMessage, MapMessage, Message, ObjectMessage, StreamMessage, TextMessage
from carrypost.model.descriptor import Ordering


class ValueFactory(ContextSessions):
    """The part of a context that creates values; until the context is closed."""

    def create_topic(
        self,
        name: str,
        *,
        ordering: Ordering | str = Ordering.NONE,
        model: Literal["epidemic", "holder", "channel"] = "epidemic",
    ) -> Topic:
        """Return the topic of this name, which need not be declared. ``a.b.*`` and ``a.>`` are patterns for consumers.

        `ordering`: "none", "causal" or "delta-causal"; all users of the topic must choose the same. Raises
        `InvalidDestinationException` for wildcards of other systems, such as ``a/#``, for a space or control character,
        and for an empty level, as in ``a.``.

        `model`: "holder" for a topic that a node holds (`declare_topic`), by its full name, ``news@NODE``; "channel"
        for an event channel of the overlay, whose events brokers forward. Both raise `IllegalArgumentException` with an
        ordering.
        """
        self._check_not_closed()
        return topic_of(name, ordering, model)

    def create_queue(self, name: str) -> Queue:
        """Return the queue of this name: in full, ``Alan@NODE``, or short, to be looked up here at its first use.

        This does not create a queue on a node: use `declare_queue`.
        """
        self._check_not_closed()
        return queue_of(name)

    def create_message(self) -> Message:
        """Return a message without a body."""
        self._check_not_closed()
        return Message()

    def create_text_message(self, text: str | None = None) -> TextMessage:
        """Return a message with a text."""
        self._check_not_closed()
        return TextMessage(text)

    def create_bytes_message(self, data: bytes = b"") -> BytesMessage:
        """Return a message with bytes."""
        self._check_not_closed()
        return BytesMessage(data)

    def create_map_message(self, entries: Mapping[str, Any] | None = None) -> MapMessage:
        """Return a message with names and values."""
        self._check_not_closed()
        return MapMessage(entries or {})

    def create_stream_message(self) -> StreamMessage:
        """Return a message with values one after the other."""
        self._check_not_closed()
        return StreamMessage()

    def create_object_message(self, value: object = None) -> ObjectMessage:
        """Return a message with an object of a registered class."""
        self._check_not_closed()
        return ObjectMessage(value)
