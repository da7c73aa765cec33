"""Messages of another implementation: anything that has the attributes of a message can be sent (JMS §3.12).

What is needed are `properties` (a mapping), the three header fields that programs set, and at most one of the bodies'
own attributes: `text`, `data`, `entries`, `values`, `object`. Values are of the types that they tell, as Python has no
others.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol, runtime_checkable

from carrypost.errors import MessageFormatException
from carrypost.jms.destinations import Destination, Queue, Topic
from carrypost.jms.messages.bytes_message import BytesMessage
from carrypost.jms.messages.map_message import MapMessage
from carrypost.jms.messages.message import Message
from carrypost.jms.messages.object_message import ObjectMessage
from carrypost.jms.messages.properties import SETTABLE
from carrypost.jms.messages.stream_message import StreamMessage
from carrypost.jms.messages.text_message import TextMessage


@runtime_checkable
class ForeignMessage(Protocol):
    """The attributes that every message has."""

    properties: Mapping[str, Any]
    jms_correlation_id: str | bytes | None
    jms_reply_to: Any
    jms_type: str | None


_BODIES: Mapping[str, Callable[[Any], Message]] = {
    "text": TextMessage, "data": BytesMessage, "entries": MapMessage, "values": StreamMessage, "object": ObjectMessage,
}  # fmt: skip
_DEFINED_PREFIXES = ("JMSX", "JMS_")


def converted(message: object) -> Message:
    """Return the message as one of ours, unchanged if it is one. Raises `MessageFormatException` for other objects."""
    if isinstance(message, Message):
        return message
    if not isinstance(message, ForeignMessage):
        raise MessageFormatException(
            f"a {type(message).__name__} cannot be sent as a message: it lacks properties or jms_… header "
            "fields; see docs/messaging.md on messages of other implementations"
        )
    bodies = [name for name in _BODIES if hasattr(message, name)]
    if len(bodies) > 1:
        raise MessageFormatException(f"a message must have one body, and this {type(message).__name__} has {bodies}")
    made = _BODIES[bodies[0]](getattr(message, bodies[0])) if bodies else Message()
    for name, value in message.properties.items():
        if name in SETTABLE or not str(name).startswith(_DEFINED_PREFIXES):  # What its own provider said stays there.
            made.properties[name] = value
    made.jms_correlation_id = message.jms_correlation_id
    made.jms_reply_to = _destination(message.jms_reply_to)
    made.jms_type = message.jms_type
    return made


def _destination(given: Any) -> Destination | None:  # noqa: ANN401 - another implementation's
    """Return the same topic or queue as one of ours; what is neither is refused where it is set."""
    if isinstance(given, Destination):
        return given
    if hasattr(given, "topic_name"):
        return Topic(given.topic_name)
    return Queue(given.queue_name) if hasattr(given, "queue_name") else given
