"""Header fields of a message: what a program set, else what the message was sent with, else JMS's defaults.

Programs set three of them (correlation, where to reply, type); the others are set by sending, which overwrites whatever
a program gave them (JMS §3.4.11). They may be set nevertheless, as in JMS, on received messages, too.
"""

# ruff: noqa: SLF001 - header fields are parts of messages

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar, overload

from carrypost.errors import IllegalArgumentException, InvalidDestinationException
from carrypost.jms.destinations import Destination, NamedQueue, as_destination
from carrypost.jms.messages.values import plain
from carrypost.jms.modes import DeliveryMode
from carrypost.model import visible
from carrypost.model.headers import DESTINATION_MAX, TEXT_MAX, Headers

if TYPE_CHECKING:
    from carrypost.model.descriptor import Descriptor

T = TypeVar("T")
PRIORITY_MAX = 9
_MILLISECOND_US = 1_000
_NONE = Headers()


class Headed(Protocol):
    """The attributes of a message that header fields need."""

    _header_values: dict[str, object]
    """By field, what was set."""

    _descriptor: Descriptor | None
    """The descriptor that it was sent with, if it was."""


class Header(Generic[T]):
    """A header field, as an attribute of messages."""

    def __init__(self, default: T, read: Callable[[Descriptor], T], check: Callable[[str, object], T]) -> None:
        self._default, self._read, self._check = default, read, check

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    @overload
    def __get__(self, message: None, owner: type) -> Header[T]: ...
    @overload
    def __get__(self, message: Headed, owner: type) -> T: ...
    def __get__(self, message: Headed | None, owner: type) -> Header[T] | T:
        if message is None:
            return self
        values, descriptor = message._header_values, message._descriptor
        if self._name in values:
            return values[self._name]  # type: ignore[return-value]  # as `check` gave it
        return self._default if descriptor is None else self._read(descriptor)

    def __set__(self, message: Headed, value: T) -> None:
        message._header_values[self._name] = self._check(self._name, value)

    def setter(self, field: str) -> Callable[[Any, T], None]:
        """Return the method that JMS has for setting the field, which it calls so."""

        def set_header(message: Headed, value: T) -> None:
            self.__set__(message, value)

        set_header.__doc__ = f"Set {field}, as assigning to the attribute does."
        return set_header


class DestinationHeader(Header[Destination | None]):
    """A header field that is a destination, and may be set as text."""

    def __init__(self, read: Callable[[Descriptor], Destination | None]) -> None:
        super().__init__(None, read, destination)

    def __set__(self, message: Headed, value: Destination | str | None) -> None:
        message._header_values[self._name] = self._check(self._name, value)


# ------------------------------------------------------------------------------------------- of a descriptor


def headers_of(descriptor: Descriptor) -> Headers:
    """Return the headers of messaging of a message; by default, none."""
    return descriptor.headers or _NONE


def correlation_of(descriptor: Descriptor) -> str | bytes | None:
    """JMSCorrelationID."""
    headers = headers_of(descriptor)
    return headers.correlation if headers.correlation is not None else headers.correlation_bytes


def expiration_ms(descriptor: Descriptor) -> int:
    """JMSExpiration; 0 if it does not expire."""
    return 0 if descriptor.deadline_us is None else descriptor.deadline_us // _MILLISECOND_US


def delivery_time_ms(descriptor: Descriptor) -> int:
    """JMSDeliveryTime: when it was sent, if it is not delayed."""
    due_us = headers_of(descriptor).delivery_time_us
    return visible.timestamp_ms(descriptor) if due_us is None else due_us // _MILLISECOND_US


def delivery_mode_of(descriptor: Descriptor) -> DeliveryMode:
    """JMSDeliveryMode."""
    return DeliveryMode.PERSISTENT if descriptor.persistent else DeliveryMode.NON_PERSISTENT


# --------------------------------------------------------------------------------------------------- checks


def text_or_none(name: str, value: object) -> str | None:
    """Text that fits into a header."""
    found = plain(value)
    if found is None:
        return None
    if not isinstance(found, str):
        raise IllegalArgumentException(f"{name} must be a str, not {type(value).__name__}")
    if len(found) > TEXT_MAX:
        raise IllegalArgumentException(f"{name} has at most {TEXT_MAX} characters, not {len(found)}")
    try:
        found.encode()
    except UnicodeEncodeError:
        raise IllegalArgumentException(f"{name} must be Unicode text without lone surrogates") from None
    return found


def correlation(name: str, value: object) -> str | bytes | None:
    """Text or bytes that fit into a header."""
    found = plain(value)
    if not isinstance(found, bytes):
        return text_or_none(name, found)
    if len(found) > TEXT_MAX:
        raise IllegalArgumentException(f"{name} has at most {TEXT_MAX} bytes, not {len(found)}")
    return found


def destination(name: str, value: object) -> Destination | None:
    """Return a destination that fits into a header."""
    try:
        found = as_destination(value)
    except InvalidDestinationException as error:
        raise IllegalArgumentException(f"{name}: {error}") from None
    if found is None:
        return None
    if not isinstance(found, Destination):
        raise IllegalArgumentException(
            f"{name} must be a Topic or a Queue, not {type(value).__name__}: {value!r}"[:200]
        )
    if isinstance(found, NamedQueue):
        raise IllegalArgumentException(
            f"{name} must be a full name, NAME@NODE, since other nodes cannot look up {value!r} in this "
            "node's directory"
        )
    if len(found.address) > DESTINATION_MAX:
        raise IllegalArgumentException(f"{name} has at most {DESTINATION_MAX} characters: {found!r}")
    return found


def whole(name: str, value: object) -> int:
    """Return a whole number, of milliseconds."""
    found = plain(value)
    if type(found) is not int:
        raise IllegalArgumentException(f"{name} must be a whole number of milliseconds, not {type(value).__name__}")
    return found


def priority(name: str, value: object) -> int:
    """Return a priority of JMS."""
    found = plain(value)
    if type(found) is not int or not 0 <= found <= PRIORITY_MAX:
        raise IllegalArgumentException(f"{name} must be 0 to {PRIORITY_MAX}, not {value!r}"[:200])
    return found


def mode(name: str, value: object) -> DeliveryMode:
    """Return a delivery mode, or its number."""
    try:
        return DeliveryMode(value)  # type: ignore[arg-type]  # whatever it is
    except ValueError:
        raise IllegalArgumentException(f"{name} must be a DeliveryMode, not {value!r}"[:200]) from None


def flag(name: str, value: object) -> bool:
    """Return the value if it is true or false; raises otherwise."""
    if not isinstance(value, bool):
        raise IllegalArgumentException(f"{name} must be True or False, not {type(value).__name__}")
    return value
