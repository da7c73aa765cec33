"""Messages made of what a program gives to be sent: a message, or a body whose type follows from its value."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from carrypost.errors import MessageFormatException
from carrypost.jms.messages import BytesMessage, MapMessage, Message, ObjectMessage, StreamMessage, TextMessage
from carrypost.jms.messages.foreign import ForeignMessage
from carrypost.jms.messages.json_text import JSON_TYPE, json_text


def message_of(given: object) -> object:
    """Return the message that was given, which may be of another implementation, or one with this body."""
    if given is None:
        return Message()
    for kinds, made in _BODIES:
        if isinstance(given, kinds):
            return made(given)
    if isinstance(given, Message | ForeignMessage):
        return given
    if isinstance(given, set | frozenset | int | float):
        raise MessageFormatException(
            "a body must be str, bytes, dict, list or an object of a registered class, not "
            f"{type(given).__name__}: send str(value) or [value]"
        )
    return ObjectMessage(given)


def _structured(given: Mapping[str, Any] | Sequence[Any]) -> Message:
    """Make a map or a stream; of what these cannot hold, a text in JSON."""
    try:
        return MapMessage(given) if isinstance(given, Mapping) else StreamMessage(given)
    except MessageFormatException:
        made = TextMessage(json_text(given))
        made.jms_type = JSON_TYPE
        return made


_BODIES: tuple[tuple[tuple[type, ...], Callable[[Any], Message]], ...] = (
    ((str,), TextMessage),
    ((bytes, bytearray, memoryview), BytesMessage),
    ((Mapping, list, tuple), _structured),
)
