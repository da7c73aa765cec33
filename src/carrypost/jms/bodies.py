"""Messages made of what a program gives to be sent: a message, or a body whose type follows from its value."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from carrypost.errors import MessageFormatException
from carrypost.jms.caller import SAME, Kinds
from carrypost.jms.messages import BytesMessage, MapMessage, Message, ObjectMessage, StreamMessage, TextMessage
from carrypost.jms.messages.foreign import ForeignMessage
from carrypost.jms.messages.json_text import JSON_TYPE, json_text

_BODIES: tuple[tuple[tuple[type, ...], type[Any]], ...] = (
    ((str,), TextMessage),
    ((bytes, bytearray, memoryview), BytesMessage),
)


def message_of(given: object, kinds: Kinds = SAME) -> object:
    """Return the message that was given, which may be of another implementation, or one with this body.

    `kinds`: classes in the place of those of the asyncio API.
    """
    if given is None:
        return kinds.get(Message, Message)()
    for types, kind in _BODIES:
        if isinstance(given, types):
            return kinds.get(kind, kind)(given)
    if isinstance(given, Mapping | list | tuple):
        return _structured(given, kinds)
    if isinstance(given, Message | ForeignMessage):
        return given
    if isinstance(given, set | frozenset | int | float):
        raise MessageFormatException(
            "a body must be str, bytes, dict, list or an object of a registered class, not "
            f"{type(given).__name__}: send str(value) or [value]"
        )
    return kinds.get(ObjectMessage, ObjectMessage)(given)


def _structured(given: Mapping[str, Any] | Sequence[Any], kinds: Kinds) -> object:
    """Make a map or a stream; of what these cannot hold, a text in JSON."""
    kind = MapMessage if isinstance(given, Mapping) else StreamMessage
    try:
        return kinds.get(kind, kind)(given)
    except MessageFormatException:
        made = kinds.get(TextMessage, TextMessage)(json_text(given))
        made.jms_type = JSON_TYPE
        return made
