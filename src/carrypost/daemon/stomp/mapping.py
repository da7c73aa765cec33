"""STOMP frames as messages of JMS, and back: destinations, header fields, properties with their types, bodies.

All of it is pure. `sent` reads a SEND, `received` makes a MESSAGE. Headers that STOMP or JMS give a meaning to are
fields; all others are properties, of text unless `carrypost-types` says otherwise. A property has the name of an
identifier, so a hyphen in a header's name is ``_HYPHEN_`` there and a dot ``_DOT_``, as ActiveMQ has it, both ways.

What a client says wrong raises a `JMSException`. What a stranger's message has wrong raises nothing: a body that cannot
be read goes as bytes, and properties that cannot be read, or whose names are no identifiers, are left out.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping
from typing import Final, NamedTuple

from carrypost.daemon.stomp.codec import Frame, Version, encode
from carrypost.errors import IllegalArgumentException, InvalidDestinationException, MessageFormatException
from carrypost.jms.destinations import Destination, SealedTopic, Topic, as_destination, as_queue, named
from carrypost.jms.mapping import Sending
from carrypost.jms.messages import BytesMessage, MapMessage, Message, StreamMessage, TextMessage
from carrypost.jms.messages.headers_and_properties import (
    check_name,
    correlation_of,
    expiration_ms,
    headers_of,
    is_given,
)
from carrypost.jms.messages.text_and_bytes import JSON_TYPE, json_text, read_json
from carrypost.jms.messages.values import decode_map, decode_stream, decode_text, parsed, text_of
from carrypost.jms.modes import DeliveryMode
from carrypost.model import address
from carrypost.model.descriptor import Descriptor
from carrypost.model.descriptor_values import timestamp_ms, typed_properties
from carrypost.model.headers import BodyType
from carrypost.model.properties import Property, ValueType
from carrypost.model.selector.tokens import stranger

TOPIC, QUEUE, TEMPORARY, CIRCLE = "/topic/", "/queue/", "/temp-queue/", "/circle/"
TYPES_HEADER: Final = "carrypost-types"
BODY_HEADER: Final = "carrypost-body"
_CONTENT_TYPE = "content-type"
_FIELDS = frozenset({
    "destination", "content-length", "receipt", "transaction", "persistent", "priority", "expires", "correlation-id",
    "reply-to", "type", "ordering", "amq-msg-type", TYPES_HEADER, BODY_HEADER,
    "ack", "id", "message-id", "redelivered", "subscription", "timestamp",
})  # fmt: skip
"""Headers that are no properties. Those of the last line say something of a MESSAGE, and nothing of a SEND."""
_TYPES = {kind.name.lower(): kind for kind in ValueType if kind <= ValueType.STRING}
_BOOLEANS = {"true": True, "false": False}
_TEXT_TYPES = ("text/", JSON_TYPE, "application/xml")
_PRIORITY_MAX = 9
_MILLISECOND_US = 1_000
_DIGITS_MAX = 18


class Temporary(NamedTuple):
    """A temporary queue of the client, by the name that it gave it."""

    name: str


class Sent(NamedTuple):
    """The send that a SEND frame asks for."""

    to: Destination | Temporary
    message: Message
    sending: Sending
    """All but where to reply."""
    reply_to: Destination | Temporary | None


# --- destinations ----------------------------------------------------------------------------------------------------


def destination(text: str, ordering: str | None = None) -> Destination | Temporary:
    """Return what a header names: a topic, a queue by its full or short name, or a temporary queue of the client.

    Topics and queues are named as by all programs, with a leading slash. The order of a topic is in its name, or in the
    header `ordering`.
    """
    if (text.startswith(TOPIC) and len(text) > len(TOPIC)) or text.startswith(CIRCLE):
        found = as_destination(text[1:])
        assert isinstance(found, Topic)  # Its kind is in the text.
        if ordering is None:
            return found
        if found.ordering and found.ordering.text != ordering:
            raise IllegalArgumentException(f"the header ordering:{ordering} contradicts {text!r}"[:200])
        if isinstance(found, SealedTopic):
            return SealedTopic(found.circle, found.topic_name, ordering)
        return Topic(found.topic_name, ordering)
    if ordering is not None:
        raise IllegalArgumentException(f"ordering requires a topic, not {text!r}"[:200])
    if text.startswith(QUEUE) and len(text) > len(QUEUE):
        return as_queue(text[1:], "a destination")
    if text.startswith(TEMPORARY) and len(text) > len(TEMPORARY):
        return Temporary(text.removeprefix(TEMPORARY))
    raise InvalidDestinationException(
        f"a destination must be {TOPIC}NAME, {QUEUE}NAME, {QUEUE}NAME@NODE, {CIRCLE}CIRCLE/NAME or {TEMPORARY}NAME, "
        f"not {text!r:.100}"
    )


def destination_text(at: Destination | str) -> str:
    """Return a destination as clients name it; one that is neither topic nor queue as it is."""
    text = at if isinstance(at, str) else at.address
    found = address.address(text)
    if found is not None and found.kind in (address.Kind.TOPIC, address.Kind.QUEUE, address.Kind.CIRCLE):
        return f"/{address.written(text)}"
    return text


# --- SEND ------------------------------------------------------------------------------------------------------------


def sent(frame: Frame, now_us: int) -> Sent:
    """Return what a SEND asks for; raises a `JMSException` that says which header is wrong."""
    headers = frame.headers
    reply_to = headers.get("reply-to")
    persistent = _boolean(headers, "persistent")
    sending = Sending(
        delivery_mode=DeliveryMode.PERSISTENT if persistent else DeliveryMode.NON_PERSISTENT,
        priority=_priority(headers.get("priority")),
        lifetime_us=_lifetime_us(headers.get("expires"), now_us),
        correlation_id=headers.get("correlation-id"),
        type=headers.get("type"),
        properties=_properties(headers),
    )
    to = destination(headers["destination"], headers.get("ordering"))
    return Sent(to, _message(frame), sending, None if reply_to is None else destination(reply_to))


def _boolean(headers: Mapping[str, str], name: str) -> bool:
    found = _BOOLEANS.get(headers.get(name, "false").lower())
    if found is None:
        raise IllegalArgumentException(f"{name} must be true or false, not {headers[name]!r}"[:200])
    return found


def _number(name: str, text: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) <= _DIGITS_MAX):
        raise IllegalArgumentException(f"{name} must be a whole number, not {text!r}"[:200])
    return int(text)


def _priority(text: str | None) -> int:
    found = 4 if text is None else _number("priority", text)
    if found > _PRIORITY_MAX:
        raise IllegalArgumentException(f"priority must be from 0 to {_PRIORITY_MAX}, not {found}")
    return found


def _lifetime_us(text: str | None, now_us: int) -> int | None:
    """Return how long a message lives that expires at a time, in milliseconds since 1970; 0: as the node has it."""
    expires_ms = 0 if text is None else _number("expires", text)
    if expires_ms and expires_ms * _MILLISECOND_US <= now_us:
        raise IllegalArgumentException(f"expires must be in the future, not {expires_ms}")
    return expires_ms * _MILLISECOND_US - now_us if expires_ms else None


def _properties(headers: Mapping[str, str]) -> dict[str, Property]:
    types = _types(headers.get(TYPES_HEADER, ""))
    found: dict[str, Property] = {}
    for name, value in headers.items():
        if name in _FIELDS:
            continue
        called = _as_property(name)
        check_name(called)
        kind = types.pop(name, ValueType.STRING)
        if kind is ValueType.STRING:
            found[called] = Property(kind, value)
        elif kind is ValueType.NULL:
            found[called] = Property(kind, None)
        else:
            found[called] = Property(kind, parsed(kind, value))  # type: ignore[arg-type]  # a number, or a boolean
    if types:
        raise IllegalArgumentException(
            f"{TYPES_HEADER} names {', '.join(types)}: the frame must have headers of these names"[:200]
        )
    return found


def _types(text: str) -> dict[str, ValueType]:
    """Return the types of headers that are no text."""
    found: dict[str, ValueType] = {}
    for each in text.split(",") if text else ():
        name, _, kind = each.strip().partition("=")
        if not name or kind not in _TYPES:
            raise IllegalArgumentException(
                f"{TYPES_HEADER} must be NAME=TYPE, with commas, not {each[:60]!r}; types are {', '.join(_TYPES)}"
            )
        found[name] = _TYPES[kind]
    return found


def _as_property(name: str) -> str:
    return name.replace("-", "_HYPHEN_").replace(".", "_DOT_")


def _as_header(name: str) -> str:
    return name.replace("_HYPHEN_", "-").replace("_DOT_", ".")


def _is_identifier(name: str) -> bool:
    return (name.isascii() and name.isidentifier()) or (bool(name) and stranger(name) is None)


def _message(frame: Frame) -> Message:
    headers, body = frame.headers, frame.body
    form = headers.get(BODY_HEADER)
    if form is not None:
        return _structured(named(form, BODY_HEADER), body)
    stated = headers.get("amq-msg-type")
    if stated not in (None, "text", "bytes"):
        raise IllegalArgumentException(
            f"amq-msg-type must be text or bytes, not {stated!r}; for maps use {BODY_HEADER}"[:200]
        )
    kind = headers.get(_CONTENT_TYPE)
    if stated is None and kind is not None:
        stated = "text" if kind.startswith(_TEXT_TYPES) or "+json" in kind or "+xml" in kind else "bytes"
    try:
        text = None if stated == "bytes" or (stated is None and b"\0" in body) else body.decode()
    except UnicodeDecodeError as error:
        if stated == "text":
            raise MessageFormatException(f"the body must be text in UTF-8: {error.reason}") from None
        text = None
    return BytesMessage(body) if text is None else TextMessage(text)


def _structured(form: str, body: bytes) -> Message:
    try:
        value = read_json(body.decode())
    except UnicodeDecodeError as error:
        raise MessageFormatException(f"the body must be JSON in UTF-8: {error.reason}") from None
    if form == "map" and isinstance(value, dict):
        return MapMessage(value)
    if form == "stream" and isinstance(value, list):
        return StreamMessage(value)
    raise MessageFormatException(
        f'{BODY_HEADER} must be "map" for a JSON object, or "stream" for an array, not {form[:60]!r} for '
        f"a {type(value).__name__}"
    )


# --- MESSAGE ---------------------------------------------------------------------------------------------------------


def received(sent: Descriptor, payload: bytes) -> Frame:
    """Return the MESSAGE that clients get, less what differs between them: subscription, `ack` and `redelivered`."""
    stated = headers_of(sent)
    headers = {
        "message-id": sent.id_text,
        "destination": destination_text(sent.destination),
        "priority": str(sent.priority),
        "persistent": "true" if sent.persistent else "false",
        "timestamp": str(timestamp_ms(sent)),
        "expires": str(expiration_ms(sent)),
    }
    correlation = correlation_of(sent)
    if correlation is not None:
        headers["correlation-id"] = correlation if isinstance(correlation, str) else correlation.hex()
    if stated.reply_to is not None:
        headers["reply-to"] = destination_text(stated.reply_to)
    if stated.type is not None:
        headers["type"] = stated.type
    body, form = _body(sent, payload)
    if sent.attributes or stated.property_types:
        form |= _property_headers(sent)
    return Frame("MESSAGE", headers | form, body)  # Properties last: of a repeated header, the first counts.


def beginning(subscription: str, version: Version) -> bytes:
    """Return what each MESSAGE of a subscription begins with."""
    return encode(Frame("MESSAGE", {"subscription": subscription}), version).removesuffix(b"\n\0")


def rest(sent: Descriptor, payload: bytes, version: Version) -> bytes:
    """Return the MESSAGE as bytes, less its beginning, and what a copy has of its own."""
    return encode(received(sent, payload), version).removeprefix(b"MESSAGE\n")


def _property_headers(sent: Descriptor) -> dict[str, str]:
    """Return the properties as headers, and the types of those that are no text."""
    try:
        properties = typed_properties(sent)
    except MessageFormatException:
        return {}
    found: dict[str, str] = {}
    types: list[str] = []
    for name, (kind, value) in properties.items():
        header = _as_header(name)
        # A stranger may choose any name. As a header it could be one of STOMP's own or, with a colon in a version
        # without escapes, begin with one.
        if header in _FIELDS or is_given(name) or not _is_identifier(_as_property(header)):
            continue
        found[header] = "" if value is None else text_of(kind, value)
        if kind is not ValueType.STRING:
            types.append(f"{header}={kind.name.lower()}")
    return found | ({TYPES_HEADER: ",".join(types)} if types else {})


def _body(sent: Descriptor, payload: bytes) -> tuple[bytes, dict[str, str]]:
    """Return the body as bytes, and the headers that say what it is, unless its sender did."""
    kind = headers_of(sent).body_type
    try:
        if kind == BodyType.MESSAGE:
            return b"", {}
        if kind == BodyType.TEXT:
            return (decode_text(payload) or "").encode(), {_CONTENT_TYPE: "text/plain"}
        if kind == BodyType.MAP:
            entries = {name: _plain(value) for name, (_, value) in decode_map(payload).items()}
            return json_text(entries).encode(), {_CONTENT_TYPE: JSON_TYPE, BODY_HEADER: "map"}
        if kind == BodyType.STREAM:
            values = [_plain(value) for _, value in decode_stream(payload)]
            return json_text(values).encode(), {_CONTENT_TYPE: JSON_TYPE, BODY_HEADER: "stream"}
    except (MessageFormatException, UnicodeEncodeError):
        pass  # Bytes, as they came.
    stated = {BODY_HEADER: "object"} if kind == BodyType.OBJECT else {}
    return payload, {_CONTENT_TYPE: "application/octet-stream", **stated}


def _plain(value: object) -> object:
    """Return a value as JSON has it: bytes are text in base64."""
    return base64.b64encode(value).decode() if isinstance(value, bytes) else value
