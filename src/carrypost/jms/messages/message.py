"""`Message`: header fields, properties, and what all bodies have in common (JMS §3).

A message that a program makes is written freely, and sent as often as it likes: what is sent is what the message is at
that moment. One that it receives is made of bytes that never change, so that a redelivery equals the first delivery;
its properties and its body are read-only until they are cleared.
"""

from __future__ import annotations

import reprlib
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from typing import ClassVar, Generic, Protocol, Self, TypeVar

import msgspec

from carrypost.errors import (
    IllegalArgumentException,
    IllegalStateException,
    JMSException,
    MessageFormatException,
    MessageNotWriteableException,
)
from carrypost.java_names import JavaNamed, add_java_names
from carrypost.jms.destinations import destination_at
from carrypost.jms.durations import Duration, microseconds
from carrypost.jms.messages import headers_and_properties
from carrypost.jms.messages.headers_and_properties import (
    DestinationHeader,
    Header,
    Properties,
    PropertyValue,
    headers_of,
)
from carrypost.jms.messages.values import typed
from carrypost.jms.modes import DeliveryMode, SessionMode
from carrypost.model import descriptor_values
from carrypost.model.descriptor import Descriptor
from carrypost.model.headers import BodyType
from carrypost.model.properties import Property, ValueType

T = TypeVar("T")
B = TypeVar("B")


class Acknowledger(Protocol):
    """The session that handed a message over."""

    @property
    def mode(self) -> SessionMode:
        """The acknowledgement mode of its session."""

    async def acknowledge(self, number: int) -> None:
        """Do what the session's mode says, of the message that was handed over under this number."""

    async def release(self, number: int, delay_us: int) -> None:
        """Redeliver the message that was handed over under this number, after this delay at the earliest."""

    async def failed(self, number: int, message: Message, error: BaseException, tries: int) -> None:
        """Note that the program failed with this message: it is redelivered, unless that happened too often."""


def check_individual(session: Acknowledger | None, call: str) -> Acknowledger:
    """Return a session that acknowledges each message for itself; raises `IllegalStateException` for any other."""
    if session is None or session.mode is not SessionMode.INDIVIDUAL_ACKNOWLEDGE:
        raise IllegalStateException(
            f"{call} requires a consumer that acknowledges messages individually: create it with "
            'acknowledge="individual", or its context with SessionMode.INDIVIDUAL_ACKNOWLEDGE'
        )
    return session


class Origin(msgspec.Struct, frozen=True, kw_only=True):
    """The parts of a received message."""

    descriptor: Descriptor
    payload: bytes
    redelivered: bool = False
    given: Mapping[str, Property] = {}
    """Properties that this node gives it."""
    number: int = 0
    """By which it is acknowledged."""
    tries: int = 0
    """Number of deliveries that its queue allows; 0: as the settings say."""
    acknowledger: Acknowledger | None = None


def _sets(kind: ValueType, of: type[T]) -> Callable[[Message, str, T], None]:
    """Return the method of messages that sets a property of this type."""
    return typed(
        lambda message, name, value: message.properties.set(name, kind, value),
        "Set a property",
        kind,
        None,
        name=str,
        value=of,
    )


def _gets(kind: ValueType, of: type[T]) -> Callable[[Message, str], T]:
    """Return the method of messages that returns a property as this type."""
    return typed(lambda message, name: message.properties.get_as(name, kind), "Return a property", kind, of, name=str)


class Message(JavaNamed):
    """A message without a body, and what all messages are. An attribute that it has not cannot be set by mistake."""

    __slots__ = (
        "__weakref__", "_acknowledger", "_descriptor", "_header_values", "_number", "_payload", "_properties",
        "_read_only", "_tries",
    )  # fmt: skip
    __match_args__: ClassVar[tuple[str, ...]] = ()
    body_type: ClassVar[BodyType] = BodyType.MESSAGE
    """Type of message that receivers make of its payload."""

    DEFAULT_DELIVERY_MODE: ClassVar[DeliveryMode] = DeliveryMode.PERSISTENT
    """Delivery mode of producers by default, as are the following."""
    DEFAULT_PRIORITY: ClassVar[int] = 4
    DEFAULT_TIME_TO_LIVE: ClassVar[int] = 0
    """As long as the node's settings say."""
    DEFAULT_DELIVERY_DELAY: ClassVar[int] = 0

    jms_message_id = Header[str | None](None, lambda sent: sent.id_text, headers_and_properties.text_or_none)
    """JMSMessageID: ``ID:`` and more, the same wherever the message goes; None until it is sent."""
    jms_timestamp = Header[int](0, descriptor_values.timestamp_ms, headers_and_properties.whole)
    """JMSTimestamp: when it was sent, in milliseconds since 1970 by its author's clock."""
    jms_destination = DestinationHeader(lambda sent: destination_at(sent.destination, sent.ordering))
    """JMSDestination: where it was sent."""
    jms_delivery_mode = Header[DeliveryMode](
        DEFAULT_DELIVERY_MODE, headers_and_properties.delivery_mode_of, headers_and_properties.mode
    )
    """JMSDeliveryMode, as its producer said."""
    jms_priority = Header[int](DEFAULT_PRIORITY, lambda sent: sent.priority, headers_and_properties.priority)
    """JMSPriority: 0 to 9, where 9 matters most."""
    jms_expiration = Header[int](0, headers_and_properties.expiration_ms, headers_and_properties.whole)
    """JMSExpiration: when it ends, in milliseconds since 1970; 0 if it does not. A node may have shortened it."""
    jms_delivery_time = Header[int](0, headers_and_properties.delivery_time_ms, headers_and_properties.whole)
    """JMSDeliveryTime: not delivered before, in milliseconds since 1970."""
    jms_redelivered = Header[bool](False, lambda _: False, headers_and_properties.flag)
    """JMSRedelivered: whether it was probably handed over before."""
    jms_correlation_id = Header[str | bytes | None](
        None, headers_and_properties.correlation_of, headers_and_properties.correlation
    )
    """JMSCorrelationID: what it belongs to, as text or bytes; often the id of another message."""
    jms_reply_to = DestinationHeader(
        lambda sent: None if (to := headers_of(sent).reply_to) is None else destination_at(to)
    )
    """JMSReplyTo: where its author waits for replies."""
    jms_type = Header[str | None](None, lambda sent: headers_of(sent).type, headers_and_properties.text_or_none)
    """JMSType: what kind of message it is, to its application."""

    set_jms_message_id = jms_message_id.setter("JMSMessageID")
    set_jms_timestamp = jms_timestamp.setter("JMSTimestamp")
    set_jms_destination = jms_destination.setter("JMSDestination")
    set_jms_delivery_mode = jms_delivery_mode.setter("JMSDeliveryMode")
    set_jms_priority = jms_priority.setter("JMSPriority")
    set_jms_expiration = jms_expiration.setter("JMSExpiration")
    set_jms_delivery_time = jms_delivery_time.setter("JMSDeliveryTime")
    set_jms_redelivered = jms_redelivered.setter("JMSRedelivered")
    set_jms_correlation_id = jms_correlation_id.setter("JMSCorrelationID")
    set_jms_reply_to = jms_reply_to.setter("JMSReplyTo")
    set_jms_type = jms_type.setter("JMSType")

    def __init__(self) -> None:
        self._header_values: dict[str, object] = {}
        """Header fields that were set since the message was made, sent or received."""
        self._descriptor: Descriptor | None = None
        self._properties = Properties()
        self._read_only = False
        self._payload: bytes | None = None
        """As it was received, while the body is unchanged."""
        self._number = self._tries = 0
        self._acknowledger: Acknowledger | None = None

    @classmethod
    def _received(cls, origin: Origin) -> Self:
        """Return the message as a consumer gets it."""
        self = cls()
        self._descriptor, self._payload = origin.descriptor, origin.payload
        self._properties = Properties(origin.descriptor, origin.given)
        self._read_only = True
        self._number, self._tries, self._acknowledger = origin.number, origin.tries, origin.acknowledger
        if origin.redelivered:
            self.jms_redelivered = True
        return self

    def _stamp(self, descriptor: Descriptor) -> None:
        """Take on the header fields with which the message was sent."""
        self._header_values.clear()
        self._descriptor = descriptor

    @property
    def descriptor(self) -> Descriptor | None:
        """The descriptor of the message; None until it is sent."""
        return self._descriptor

    @property
    def sealed(self) -> str | None:
        """The circle that it was sealed for, or ``letter`` if for nodes: carriers could not read it. Else None."""
        return None if self._descriptor is None else self._descriptor.sealed

    @property
    def payload(self) -> bytes:
        """The body as it travels, also where it cannot be read."""
        return self._encoded() if self._payload is None else self._payload

    async def acknowledge(self) -> None:
        """Tell the session that the message is done with; what else that covers, the session's mode says.

        Of a message that was not received, or whose session acknowledges by itself, it does nothing.
        """
        if self._acknowledger is not None:
            await self._acknowledger.acknowledge(self._number)

    async def release(self, delay: Duration = 0) -> None:
        """Give the message back unacknowledged: it comes again, flagged, when `delay` has passed.

        ::

            await message.release(delay=300)  # Its printer is off: try again in five minutes.

        The `delay` is seconds, or a `timedelta`. Until then no consumer gets the message, and other messages are
        delivered. That holds over a restart of program and node, but not beyond the end of a subscription that is not
        durable. Each time counts for `messaging.tries`. A message that was acknowledged or released before stays as it
        is.

        For contexts that acknowledge each message for itself (`SessionMode.INDIVIDUAL_ACKNOWLEDGE`).
        """
        await check_individual(self._acknowledger, "release()").release(self._number, microseconds(delay, "delay"))

    @asynccontextmanager
    async def processing(self) -> AsyncIterator[Self]:
        """Acknowledge the message when the block ends; if it raises, the message comes again, flagged.

        What was handed over `messaging.tries` times by then is given up, as with listeners.

        For contexts that acknowledge each message for itself (`SessionMode.INDIVIDUAL_ACKNOWLEDGE`).
        """
        session = check_individual(self._acknowledger, "processing()")
        try:
            yield self
        except BaseException as error:
            with suppress(JMSException):  # Its session is gone: what was not acknowledged comes again anyway.
                await session.failed(self._number, self, error, self._tries)
            raise
        await session.acknowledge(self._number)

    # --- body ----------------------------------------------------------------------------------------------

    @property
    def text(self) -> str | None:
        """The text of a `TextMessage`; None of every other message, whose body is no text."""
        return None

    def clear_body(self) -> None:
        """Empty the body, and let it be written. Properties and header fields stay."""
        self._payload, self._read_only = None, False

    def get_body(self, kind: type[T]) -> T | None:
        """Return the body as a whole: str, bytes, dict or the object; None if there is none.

        Raises `MessageFormatException` if it is no `kind`, or cannot be read at all.
        """
        body = self._whole()
        if body is None or _is_a(body, kind):
            return body  # type: ignore[return-value]  # that it is one, `_is_a` has seen
        raise MessageFormatException(
            f"the body of a {type(self).__name__} is a {type(body).__name__}, not a {kind.__name__}"
        )

    def is_body_assignable_to(self, kind: type) -> bool:
        """Return True if `get_body` would return it as this type."""
        try:
            body = self._whole()
        except MessageFormatException:
            return False
        return body is None or _is_a(body, kind)

    def json(self) -> object:
        """Return the body as dicts, lists, texts, numbers, booleans and None: what was sent as such a value.

        Of a text that is what it says as JSON, of a map its entries, of a stream its values. Raises
        `MessageFormatException` for a text that is no JSON, and for other bodies.
        """
        raise MessageFormatException(f"a {type(self).__name__} has no JSON body: read it with get_body()")

    def _whole(self) -> object:
        """Return the body for `get_body`; a copy, if it could be changed."""
        return None

    def _encoded(self) -> bytes:
        """Return the body as it stands, as payload."""
        return b""

    def _write(self) -> None:
        """Begin to change the body."""
        if self._read_only:
            raise MessageNotWriteableException(
                "the body is read-only, since it was received or reset: call clear_body() first"
            )
        self._payload = None

    # --- properties ----------------------------------------------------------------------------------------

    @property
    def properties(self) -> Properties:
        """All properties by name. ``properties[name] = value`` sets one with the type of the value's class."""
        return self._properties

    @property
    def property_names(self) -> tuple[str, ...]:
        """Names of all properties; header fields are none."""
        return tuple(self._properties)

    def property_exists(self, name: str) -> bool:
        """Return True if there is a property of this name; it may be null."""
        return name in self._properties

    def clear_properties(self) -> None:
        """Remove all properties, so that new ones can be set. Body and header fields stay."""
        self._properties.clear()

    set_boolean_property = _sets(ValueType.BOOLEAN, bool)
    """Set a boolean."""
    set_byte_property = _sets(ValueType.BYTE, int)
    """Set a byte: a whole number of 8 bits, -128 to 127."""
    set_short_property = _sets(ValueType.SHORT, int)
    """Set a short: a whole number of 16 bits."""
    set_int_property = _sets(ValueType.INT, int)
    """Set an int: a whole number of 32 bits."""
    set_long_property = _sets(ValueType.LONG, int)
    """Set a long: a whole number of 64 bits."""
    set_float_property = _sets(ValueType.FLOAT, float)
    """Set a float: it is rounded to 32 bits."""
    set_double_property = _sets(ValueType.DOUBLE, float)
    """Set a double: what Python calls a float."""

    def set_string_property(self, name: str, value: str | None) -> None:
        """Set a text, or null."""
        self._properties.set(name, ValueType.STRING, value)

    def set_object_property(self, name: str, value: PropertyValue | None) -> None:
        """Set a property with the type of its value's class: boolean, int or else long, double, String, null."""
        self._properties[name] = value

    get_boolean_property = _gets(ValueType.BOOLEAN, bool)
    """Return a property as boolean; one that is not there is false."""
    get_byte_property = _gets(ValueType.BYTE, int)
    """Return a property as byte."""
    get_short_property = _gets(ValueType.SHORT, int)
    """Return a property as short."""
    get_int_property = _gets(ValueType.INT, int)
    """Return a property as int."""
    get_long_property = _gets(ValueType.LONG, int)
    """Return a property as long."""
    get_float_property = _gets(ValueType.FLOAT, float)
    """Return a property as float."""
    get_double_property = _gets(ValueType.DOUBLE, float)
    """Return a property as double."""

    def get_string_property(self, name: str) -> str | None:
        """Return a property as text; one that is not there is None."""
        return self._properties.get_as(name, ValueType.STRING)  # type: ignore[return-value]

    def get_object_property(self, name: str) -> PropertyValue | None:
        """Return a property as it was set; one that is not there is None."""
        return self._properties.get(name)

    def __repr__(self) -> str:
        named = [f"{name}={self._represented()}" for name in self.__match_args__]
        if self.jms_message_id is not None:
            named.append(f"jms_message_id={self.jms_message_id!r}")
        return f"{type(self).__name__}({', '.join(named)})"

    def _represented(self) -> str:
        try:
            return reprlib.repr(self._shown())
        except MessageFormatException:  # A stranger's body that is none.
            return f"<{len(self.payload)} bytes>"

    def _shown(self) -> object:
        """Return the representation of the body for people."""
        return self._whole()


add_java_names(
    Message,
    {
        "getJMSCorrelationIDAsBytes": "the attribute jms_correlation_id, which may be bytes",
        "setJMSCorrelationIDAsBytes": "set_jms_correlation_id(…) with bytes",
    },
)


class Bodied(Message, ABC, Generic[B]):
    """A message whose body is made of its payload at the first access, and kept."""

    __slots__ = ("_body",)

    def __init__(self) -> None:
        super().__init__()
        self._body: B | None = None
        """None: it is still to be made."""

    @abstractmethod
    def _empty(self) -> B:
        """Return the body of a new message."""

    @abstractmethod
    def _decoded(self, payload: bytes) -> B:
        """Return the body that a payload holds; raises `MessageFormatException`."""

    def clear_body(self) -> None:
        """Empty the body, and let it be written. Properties and header fields stay."""
        super().clear_body()
        self._body = None

    def _get(self) -> B:
        if self._body is None:
            self._body = self._empty() if self._payload is None else self._decoded(self._payload)
        return self._body


def _is_a(body: object, kind: type) -> bool:
    if not isinstance(kind, type):
        raise IllegalArgumentException(f"the type of a body must be a class, such as str, bytes or dict, not {kind!r}")
    return isinstance(body, kind)
