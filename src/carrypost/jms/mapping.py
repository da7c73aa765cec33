"""Conversion of messages: of what a program sends to drafts, and of what the host hands over to messages.

A program sends a message, or a body whose type follows from its value. It may also send a message of another
implementation: anything that has the attributes of a message (JMS §3.12). Those that are needed are `properties` (a
mapping), the three header fields that programs set, and at most one of the bodies' own attributes: `text`, `data`,
`entries`, `values`, `object`. Values are of the types that they tell, as Python has no others.

All conversions are pure. A draft is a snapshot: later changes of the program's message do not change what is sent. A
received message is made anew each time from a descriptor and immutable bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

import msgspec

from carrypost.config import Limits
from carrypost.errors import IllegalArgumentException, MessageFormatException
from carrypost.gossip.draft import Draft
from carrypost.jms.destinations import ChannelTopic, Destination, Queue, Topic, check_one
from carrypost.jms.listener_calls import SAME, Kinds
from carrypost.jms.messages import BytesMessage, MapMessage, Message, ObjectMessage, StreamMessage, TextMessage
from carrypost.jms.messages.headers_and_properties import SETTABLE, delivery_time_ms, expiration_ms
from carrypost.jms.messages.message import Acknowledger, Origin
from carrypost.jms.messages.text_and_bytes import JSON_TYPE, json_text
from carrypost.jms.modes import DeliveryMode
from carrypost.log.events import Handed
from carrypost.model import descriptor_values
from carrypost.model.address import is_channel
from carrypost.model.descriptor import Descriptor, Ordering
from carrypost.model.headers import Headers
from carrypost.model.properties import Property, ValueType, untyped


@runtime_checkable
class ForeignMessage(Protocol):
    """The attributes that every message has."""

    properties: Mapping[str, Any]
    jms_correlation_id: str | bytes | None
    jms_reply_to: Any
    jms_type: str | None


_FOREIGN_BODIES: Mapping[str, Callable[[Any], Message]] = {
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
    bodies = [name for name in _FOREIGN_BODIES if hasattr(message, name)]
    if len(bodies) > 1:
        raise MessageFormatException(f"a message must have one body, and this {type(message).__name__} has {bodies}")
    made = _FOREIGN_BODIES[bodies[0]](getattr(message, bodies[0])) if bodies else Message()
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


_KINDS: Mapping[int, type[Message]] = {
    int(kind.body_type): kind for kind in (Message, TextMessage, BytesMessage, MapMessage, StreamMessage, ObjectMessage)
}
"""Classes by type of body. Payloads of an unknown type, or of a later version's, are bytes."""
_MILLISECOND_US = 1_000
_PERSISTENT = DeliveryMode.PERSISTENT
_INT, _LONG, _STRING = ValueType.INT, ValueType.LONG, ValueType.STRING


class Sending(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """The options of a producer and its session for a message.

    Header fields and properties win over the message's own.
    """

    delivery_mode: DeliveryMode = DeliveryMode.PERSISTENT
    priority: int = 4
    lifetime_us: int | None = None
    """Lifetime; None: as the node's settings say."""
    deadline_us: int | None = None
    """The end of the lifetime, if the sender named a date."""
    delay_us: int = 0
    """Time for which it is not delivered."""
    correlation_id: str | bytes | None = None
    reply_to: Destination | None = None
    type: str | None = None
    properties: Mapping[str, Property] = {}
    """Properties of the producer, which passes those that are `travelling`."""
    receipt: bool = False
    receipt_timeout_us: int | None = None
    label: str = ""
    recipients: tuple[str, ...] | None = None
    """Ids of its recipients; None: it is for all consumers."""
    sealed: bool | None = None
    """Seal it for its readers; None: as the node's settings say."""
    client: str | None = None
    connection: int = 0
    session: int = 0
    number: int = 0


_PLAIN = Sending()


# ---------------------------------------------------------------------------------------------------- sending


def to_draft(message: object, to: Destination, sending: Sending = _PLAIN, limits: Limits | None = None) -> Draft:
    """Return the draft that the host is to publish: the message as it is now.

    `message` may be of another implementation. Raises `MessageFormatException` for what has no room in a message, and
    `InvalidDestinationException` for a topic that stands for many.
    """
    own, bounds = converted(message), limits or Limits()
    if isinstance(to, Topic):
        check_one(to)
    if isinstance(to, ChannelTopic) and sending.recipients is not None:
        raise IllegalArgumentException(
            "events of a channel have no recipients: leave them out, or send to another topic"
        )
    payload = own.payload
    if len(payload) > bounds.message_bytes_max:
        raise MessageFormatException(
            f"the body has {len(payload)} bytes, more than the {bounds.message_bytes_max} of limits.message_bytes_max"
        )
    if len(sending.label.encode()) > bounds.label_bytes_max:
        raise IllegalArgumentException(f"a label has at most {bounds.label_bytes_max} bytes (limits.label_bytes_max)")
    properties = own.properties.travelling()
    if sending.properties:
        properties |= sending.properties
    attributes, types = untyped(properties, bounds) if properties else ({}, {})
    return Draft(
        to.address, payload, attributes, sending.lifetime_us, sending.label,
        persistent=sending.delivery_mode is _PERSISTENT, priority=sending.priority,
        ordering=to.ordering if isinstance(to, Topic) else Ordering.NONE, headers=_headers(own, sending, types),
        receipt=sending.receipt, receipt_timeout_us=sending.receipt_timeout_us, recipients=sending.recipients,
        deadline_us=sending.deadline_us, delay_us=sending.delay_us, sealed=sending.sealed,
    )  # fmt: skip


def _headers(message: Message, sending: Sending, types: dict[str, int]) -> Headers:
    correlation = message.jms_correlation_id if sending.correlation_id is None else sending.correlation_id
    reply_to = sending.reply_to or message.jms_reply_to
    return Headers(
        body_type=message.body_type, property_types=types,
        correlation=correlation if isinstance(correlation, str) else None,
        correlation_bytes=correlation if isinstance(correlation, bytes) else None,
        reply_to=None if reply_to is None else reply_to.address,
        type=message.jms_type if sending.type is None else sending.type,
        receipt=sending.receipt, client=sending.client, connection=sending.connection, session=sending.session,
        number=sending.number,
    )  # fmt: skip


def stamp(message: object, descriptor: Descriptor, to: Destination) -> None:
    """Set the header fields that sending sets on a message of any implementation."""
    if isinstance(message, Message):
        message._stamp(descriptor)  # noqa: SLF001 - programs do not call it
        return
    mode = DeliveryMode.PERSISTENT if descriptor.persistent else DeliveryMode.NON_PERSISTENT
    for name, value in {
        "jms_message_id": descriptor.id_text, "jms_timestamp": descriptor_values.timestamp_ms(descriptor),
        "jms_destination": to, "jms_delivery_mode": mode, "jms_priority": descriptor.priority,
        "jms_expiration": expiration_ms(descriptor), "jms_delivery_time": delivery_time_ms(descriptor),
    }.items():  # fmt: skip
        setattr(message, name, value)


# --------------------------------------------------------------------------------------------------- receiving


def from_handed(
    handed: Handed,
    payload: bytes,
    received_us: int,
    acknowledger: Acknowledger | None = None,
    wanted: Destination | None = None,
    *,
    kinds: Kinds = SAME,
) -> Message:
    """Return the message for a consumer. No content of a stranger's message raises here; reading it may raise.

    `wanted`: the destination of the consumer, which becomes the destination of a modulator's result. `kinds`: classes
    in the place of those of the asyncio API.
    """
    descriptor = handed.descriptor.original
    made = _received(
        Origin(
            descriptor=descriptor, payload=payload, redelivered=handed.count > 1, given=_given(handed, received_us),
            number=handed.number, tries=handed.tries, acknowledger=acknowledger,
        ),
        kinds,
    )  # fmt: skip
    if isinstance(wanted, ChannelTopic) and not is_channel(descriptor.destination):
        made.jms_destination = wanted
    return made


def from_browsed(descriptor: Descriptor, payload: bytes, kinds: Kinds = SAME) -> Message:
    """Return the message for a browser, without the properties of a hand-over."""
    shown = descriptor.original
    return _received(Origin(descriptor=shown, payload=payload, given=_sent_by(shown)), kinds)


def _received(origin: Origin, kinds: Kinds) -> Message:
    """Make a message of the type that its headers name; of an unknown type, a message of bytes."""
    headers = origin.descriptor.headers
    kind = _KINDS.get(0 if headers is None else headers.body_type, BytesMessage)
    return kinds.get(kind, kind)._received(origin)  # type: ignore[no-any-return]  # noqa: SLF001 - as programs never do


def _sent_by(descriptor: Descriptor) -> dict[str, Property]:
    """Return the properties by which this node names the sender of the message, and whether it wants a receipt."""
    author = Property(_STRING, descriptor.node)
    found = {"JMS_carrypost_Author": author}
    if descriptor.signed:
        found["JMSXUserID"] = author
    if descriptor.headers is not None and descriptor.headers.receipt:
        found["JMS_carrypost_Receipt"] = _TRUE
    return found


def _given(handed: Handed, received_us: int) -> dict[str, Property]:
    """Return the properties by which this node describes how the message came."""
    found = _sent_by(handed.descriptor.original) | {
        "JMSXDeliveryCount": Property(_INT, handed.count),
        "JMSXRcvTimestamp": Property(_LONG, received_us // _MILLISECOND_US),
        "JMS_carrypost_Hops": Property(_INT, handed.hops),
    }
    if handed.giver is not None:
        found["JMS_carrypost_Carrier"] = Property(_STRING, handed.giver)
    if handed.out_of_order:
        found["JMS_carrypost_OutOfOrder"] = _TRUE
    if handed.unordered:
        found["JMS_carrypost_Unordered"] = _TRUE
    if handed.predecessors_lost:
        found["JMS_carrypost_PredecessorsLost"] = Property(_INT, handed.predecessors_lost)
    if handed.events_lost:
        found["JMS_carrypost_EventsLost"] = Property(_LONG, handed.events_lost)
    if handed.letter is not None:
        found["JMS_carrypost_DeadSource"] = Property(_STRING, handed.letter.source)
        found["JMS_carrypost_DeadTries"] = Property(_INT, min(handed.letter.tries, 2**31 - 1))
        found["JMS_carrypost_DeadError"] = Property(_STRING, handed.letter.error)
    return found


_TRUE = Property(ValueType.BOOLEAN, True)
