"""OpenWire's messages and destinations as those of JMS here, and back.

Pure. `sent` reads a message of a client, `received` makes the bytes that clients get. The id that a client gives its
message is the message's label: it travels, so every Java program sees the same JMSMessageID as the sender.

What a client says wrong raises a `JMSException`. A stranger's message never does: a body that cannot be read goes as
bytes, and properties that cannot be read are left out.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from typing import Final, NamedTuple

import msgspec

from carrypost.daemon.openwire import codec
from carrypost.daemon.openwire import commands as wire
from carrypost.errors import (
    CarrypostError,
    InvalidDestinationException,
    MessageFormatException,
    NamingException,
)
from carrypost.jms import messages as jms
from carrypost.jms.destinations import Destination, as_destination
from carrypost.jms.mapping import Sending
from carrypost.jms.messages import values as bodies
from carrypost.jms.messages.headers_and_properties import (
    check_name,
    correlation_of,
    expiration_ms,
    headers_of,
    is_given,
)
from carrypost.jms.modes import DeliveryMode
from carrypost.model import address
from carrypost.model.descriptor import Descriptor
from carrypost.model.descriptor_values import timestamp_ms, typed_properties
from carrypost.model.headers import BodyType
from carrypost.model.properties import Property, ValueType

ADVISORY: Final = "ActiveMQ.Advisory."
"""Beginning of the names of topics by which a broker tells clients of itself."""
JAVA_OBJECT: Final = "java"
"""Name of the class of all objects of Java programs: their bytes pass through unread."""
_LENGTH_BYTES = 4
_MILLISECOND_US = 1_000
_GROUP, _GROUP_SEQUENCE = "JMSXGroupID", "JMSXGroupSeq"
_BEGIN_BYTES, _PLACE_BYTES = 8, 8
"""Size of what comes before the destination of a message, and of `MessageId.place`."""
_ENVELOPE = msgspec.msgpack.Decoder(tuple[str, bytes])


# --- destinations ----------------------------------------------------------------------------------------------------


def destination(meant: wire.Destination | None) -> Destination:
    """Return the destination that a client names: a topic, or a queue by its full or its short name."""
    name = "" if meant is None else meant.name or ""
    if not name or "," in name:
        raise InvalidDestinationException(f"a destination must be one topic or queue with a name, not {name!r}"[:200])
    found = as_destination(f"{'queue' if isinstance(meant, wire.QueueName) else 'topic'}/{name}")
    assert isinstance(found, Destination)  # Its kind is in the text.
    return found


def named(text: str) -> wire.Destination:
    """Return an address as clients name it. Temporary destinations are told by their names."""
    found = address.address(text)
    name = address.name_of(text) or text
    temporary = found is not None and found.name.startswith("$temporary.")
    if found is not None and found.kind is address.Kind.QUEUE:
        return wire.TemporaryQueueName(name) if temporary else wire.QueueName(name)
    return wire.TemporaryTopicName(name) if temporary else wire.TopicName(name)


# --- messages of clients ---------------------------------------------------------------------------------------------


class Sent(NamedTuple):
    """A message as a client sends it."""

    message: jms.Message
    sending: Sending
    """All but where to reply."""


def sent(message: wire.Message, now_us: int, bytes_max: int) -> Sent:
    """Return what a client sends, with a body of at most `bytes_max`; raises a `JMSException`."""
    deadline_us = message.expiration * _MILLISECOND_US or None
    sending = Sending(
        delivery_mode=DeliveryMode.PERSISTENT if message.persistent else DeliveryMode.NON_PERSISTENT,
        priority=min(max(message.priority, 0), 9),
        lifetime_us=None if deadline_us is None else deadline_us - now_us,
        deadline_us=deadline_us,
        correlation_id=message.correlation,
        type=message.type,
        properties=_properties(message),
        label=id_text(message.id),
    )
    return Sent(_body(message, bytes_max), sending)


def id_text(given: wire.MessageId | None) -> str:
    """Return an id as Java shows it."""
    if given is None or given.producer is None:
        return ""
    return given.text or f"{given.producer.text}:{given.sequence}"


def _properties(message: wire.Message) -> dict[str, Property]:
    found: dict[str, Property] = {}
    for name, (kind, value) in codec.read_map(message.properties).items():
        if is_given(name):  # A client passes on what it received, with what its node said of that.
            continue
        check_name(name)
        if isinstance(value, bytes) or kind is ValueType.CHAR:
            raise MessageFormatException(f"the property {name!r} must not be a {kind.text}: JMS has none"[:200])
        found[name] = Property(kind, value)
    if message.group is not None:
        found[_GROUP] = Property(ValueType.STRING, message.group)
        found[_GROUP_SEQUENCE] = Property(ValueType.INT, message.group_sequence)
    return found


def _body(message: wire.Message, bytes_max: int) -> jms.Message:
    content = message.content
    if message.compressed and content is not None:
        content = _inflated(content, bytes_max, counted=isinstance(message, wire.BytesMessage))
    if isinstance(message, wire.BytesMessage):
        return jms.BytesMessage(content or b"")
    if isinstance(message, wire.TextMessage):
        return jms.TextMessage(codec.long_text(content))
    made: jms.Message
    if isinstance(message, wire.MapMessage):
        made, payload = jms.MapMessage(), bodies.encode_map(codec.read_map(content))
    elif isinstance(message, wire.StreamMessage):
        made, payload = jms.StreamMessage(), bodies.encode_stream(codec.read_stream(content))
    elif isinstance(message, wire.ObjectMessage):
        made, payload = jms.ObjectMessage(), bodies.pack(None if content is None else (JAVA_OBJECT, content))
    else:
        return jms.Message()
    made._payload = payload  # noqa: SLF001 - programs cannot set it
    return made


def _inflated(content: bytes, bytes_max: int, *, counted: bool) -> bytes:
    """Return a compressed body, of which no more is expanded than a message may have."""
    # Clients compress the unused end of their buffer along with bytes, so these say how many count.
    stated = int.from_bytes(content[:_LENGTH_BYTES], "big") if counted else bytes_max + 1
    inflating = zlib.decompressobj()
    try:
        found = inflating.decompress(content[_LENGTH_BYTES if counted else 0 :], min(stated, bytes_max) + 1)
    except zlib.error as error:
        raise MessageFormatException(f"the body is not compressed, as its message says: {error}") from None
    found = found[:stated]
    if len(found) > bytes_max:
        raise MessageFormatException(f"the body has more than the {bytes_max:,} bytes of limits.message_bytes_max")
    if len(found) < stated if counted else not inflating.eof:
        raise MessageFormatException("the compressed body is shorter than its message says")
    return found


# --- messages for clients --------------------------------------------------------------------------------------------


class Copy:
    """The bytes of a message, in pieces: each client has a destination and a place of its own between them."""

    __slots__ = ("begin", "destination", "end", "middle")

    def __init__(self, message: wire.Message, version: int) -> None:
        data = codec.nested(message, version)
        self.destination = b"" if message.destination is None else codec.nested(message.destination, version)
        """The destination of the message itself."""
        identified = b"" if message.id is None else codec.nested(message.id, version)
        after = _BEGIN_BYTES + len(self.destination)
        place = data.index(identified, after) + len(identified) - _PLACE_BYTES
        self.begin, self.middle, self.end = data[:_BEGIN_BYTES], data[after:place], data[place + _PLACE_BYTES :]

    def __len__(self) -> int:
        return len(self.middle) + len(self.end)


def received(sent: Descriptor, payload: bytes, labels: Mapping[str, str]) -> wire.Message:
    """Return the message that clients get. `labels`: by ids of the node, what their Java senders call messages."""
    stated = headers_of(sent)
    given = correlation_of(sent)
    correlation = given.hex() if isinstance(given, bytes) else labels.get(given or "", given)
    form, content = _content(sent, payload)
    properties = _visible(sent)
    group = properties.pop(_GROUP, None)
    sequence = properties.pop(_GROUP_SEQUENCE, None)
    return form(
        destination=named(sent.destination), id=message_id(sent), correlation=correlation, persistent=sent.persistent,
        expiration=expiration_ms(sent), priority=sent.priority, timestamp=timestamp_ms(sent), type=stated.type,
        reply_to=None if stated.reply_to is None else named(stated.reply_to), content=content,
        properties=codec.map_bytes(properties) if properties else None, user=sent.node if sent.signed else None,
        group=None if group is None else str(group.value),
        group_sequence=int(sequence.value or 0) if sequence is not None else 0,
    )  # fmt: skip


def message_id(sent: Descriptor, place: int = 0) -> wire.MessageId:
    """Return the id of a message: as its Java sender named it, else the node's."""
    own = sent.id_text
    text = sent.label if sent.label.startswith("ID:") else own
    # Clients forget duplicates by producer and number, and would lose messages that come late. So
    # each message has a producer of its own.
    return wire.MessageId(text, wire.ProducerId(own, 1, 1), 1, place)


def reply_id(correlation: str) -> str:
    """Return the id that a reply names: clients of version 9 know it by its producer."""
    return correlation.removesuffix(":1:1:1")


def _visible(sent: Descriptor) -> dict[str, Property]:
    try:
        found = typed_properties(sent)
    except MessageFormatException:
        return {}
    return {name: each for name, each in found.items() if not is_given(name)}


def _content(sent: Descriptor, payload: bytes) -> tuple[type[wire.Message], bytes | None]:
    """Return the class of a message, and its body."""
    kind = headers_of(sent).body_type
    try:
        if kind == BodyType.TEXT:
            return wire.TextMessage, codec.long_text_bytes(bodies.decode_text(payload))
        if kind == BodyType.MAP:
            return wire.MapMessage, codec.map_bytes(bodies.decode_map(payload))
        if kind == BodyType.STREAM:
            return wire.StreamMessage, codec.stream_bytes(bodies.decode_stream(payload))
        if kind == BodyType.OBJECT:
            name, content = bodies.unpack(_ENVELOPE.decode, payload, "object")
            if name == JAVA_OBJECT:
                return wire.ObjectMessage, content
        if kind == BodyType.MESSAGE:
            return wire.Message, None
    except (MessageFormatException, UnicodeEncodeError):
        pass  # Bytes, as they came.
    return wire.BytesMessage, payload


# --- errors ----------------------------------------------------------------------------------------------------------

_JAVA_ERRORS: Final = frozenset({
    "IllegalStateException", "InvalidClientIDException", "InvalidDestinationException", "InvalidSelectorException",
    "JMSException", "JMSSecurityException", "MessageFormatException", "ResourceAllocationException",
    "TransactionInProgressException", "TransactionRolledBackException",
})  # fmt: skip
"""Exceptions of `javax.jms` that a node raises."""
_ERROR_MAX = 2_000


def failure(error: CarrypostError) -> tuple[str, str]:
    """Return an error as a Java exception: the nearest class of JMS, and the text."""
    name = next((each.__name__ for each in type(error).__mro__ if each.__name__ in _JAVA_ERRORS), "JMSException")
    text = str(error)
    if isinstance(error, InvalidDestinationException) and isinstance(error.__cause__, NamingException):
        text = (
            f"{error.__cause__}. A consumer, or `carrypost bind queue/NAME`, declares a queue on this node. The name "
            "NAME@NODE needs no directory"
        )
    return f"javax.jms.{name}", text[:_ERROR_MAX]
