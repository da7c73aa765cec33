"""Messages as commands print them: a line for people, or a line of JSON for programs."""

from __future__ import annotations

import datetime as dt
import math
from collections.abc import Mapping

import typer

from carrypost.cli import _given, _output
from carrypost.cli._output import styled
from carrypost.errors import MessageFormatException
from carrypost.jms.messages import BytesMessage, MapMessage, Message, StreamMessage, TextMessage
from carrypost.jms.messages.properties import is_given
from carrypost.jms.messages.texts import text_of
from carrypost.model.address import Kind
from carrypost.model.properties import ValueType
from carrypost.printing import many

_SHOWN_MAX = 2_000
"""Characters of a body that a line for people has; JSON has all of them."""


def when(ms: float) -> str:
    """Return a time, in milliseconds since 1970, as JSON has it."""
    return dt.datetime.fromtimestamp(ms / 1_000, dt.UTC).isoformat(timespec="milliseconds")


def local(seconds: float) -> dt.datetime:
    """Return a time, in seconds since 1970, as clocks on the wall show it."""
    return dt.datetime.fromtimestamp(seconds, dt.UTC).astimezone()


def place(destination: str) -> str:
    """Return a destination as ``-t`` or ``-q`` takes it: a topic or a queue by its name, unless that is ambiguous."""
    kind, _, name = destination.partition("/")
    return name if kind in (Kind.TOPIC, Kind.QUEUE) and not name.startswith(_given.KINDS) else destination


def content(message: Message) -> object:
    """Return the body: text, bytes, a dict or a list; of what cannot be read here, the bytes that came."""
    try:
        match message:
            case TextMessage():
                return message.text
            case MapMessage():
                return {name: _finite(value) for name, value in message.entries.items()}
            case StreamMessage():
                return [_finite(value) for value in message.values]
    except MessageFormatException:
        return message.payload
    return None if type(message) is Message else message.payload


def content_text(message: Message) -> str:
    """Return the body in one text, for people."""
    found = content(message)
    if isinstance(found, bytes):
        return f"<{many(len(found), 'byte')}>"
    text = "" if found is None else str(found)
    return text if len(text) <= _SHOWN_MAX else f"{text[:_SHOWN_MAX]}… ({len(text):,} characters)"


def properties(message: Message) -> dict[str, object]:
    """Return the properties that its author gave it, also those of types that JMS has not."""
    try:
        found: Mapping[str, object] = {name: each for name, each in message.properties.items() if not is_given(name)}
    except MessageFormatException:
        found = {} if message.descriptor is None else message.descriptor.attributes
    return {name: _finite(value) for name, value in found.items()}


def _finite(value: object) -> object:
    """Return a value; NaN and infinities, which JSON lacks, as Java writes them."""
    return value if not isinstance(value, float) or math.isfinite(value) else text_of(ValueType.DOUBLE, value)


def _said_here(message: Message, name: str) -> object:
    """Return a property that this node gave a message; None if it has not."""
    try:
        return message.properties.get(name)
    except MessageFormatException:  # It is not there, and those of the author cannot be read.
        return None


def as_json(message: Message) -> Mapping[str, object]:
    """Return a message as one line of JSON has it; bytes are in base64."""
    body = content(message)
    found = {
        "id": message.jms_message_id,
        "destination": str(message.jms_destination),
        "body": None if isinstance(body, bytes) else body,
        "body_base64": body if isinstance(body, bytes) else None,
        "type": "bytes" if isinstance(message, BytesMessage) else message.body_type.name.lower(),
        "properties": properties(message) or None,
        "label": message.descriptor.label if message.descriptor else None,
        "correlation_id": message.jms_correlation_id,
        "reply_to": None if message.jms_reply_to is None else str(message.jms_reply_to),
        "priority": message.jms_priority,
        "sent": when(message.jms_timestamp),
        "expires": when(message.jms_expiration) if message.jms_expiration else None,
        "author": _said_here(message, "JMS_carrypost_Author"),
        "hops": _said_here(message, "JMS_carrypost_Hops"),
        "redelivered": message.jms_redelivered or None,
        "events_lost": _said_here(message, "JMS_carrypost_EventsLost"),
    }
    return {name: value for name, value in found.items() if value not in (None, "")}


def show(message: Message, *, json: bool) -> None:
    """Print a message at once."""
    if json:
        _output.line(as_json(message))
        return
    name = place(str(message.jms_destination))
    text = content_text(message)
    lost = _said_here(message, "JMS_carrypost_EventsLost")
    if lost and isinstance(lost, int):
        _output.say(f"{many(lost, 'event was', 'events were')} lost before the next one")
    head = [styled(f"{local(message.jms_timestamp / 1_000):%H:%M:%S}", dim=True), styled(name, fg="cyan")]
    given = [styled(f"{key}={value}", dim=True) for key, value in properties(message).items()]
    if "\n" in text:
        typer.echo("  ".join([*head, *given]) + styled(f"\n{text}"))
    else:
        typer.echo("  ".join([*head, styled(text), *given]))
