"""Header fields and properties of a message: what programs set, what it was sent with, and JMS's defaults.

Programs set three of them (correlation, where to reply, type); the others are set by sending, which overwrites whatever
a program gave them (JMS §3.4.11). They may be set nevertheless, as in JMS, on received messages, too.

A program sets its own, and the two that JMS lets it set. Facts that this node adds to a message that it hands over
(delivery count, time of arrival, signer) are given beside them: they can be read like properties and do not travel.
"""

# ruff: noqa: SLF001 - header fields are parts of messages

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Generic, Protocol, TypeVar, overload

from carrypost.errors import (
    IllegalArgumentException,
    InvalidDestinationException,
    MessageFormatException,
    MessageNotWriteableException,
)
from carrypost.jms.destinations import Destination, NamedQueue, as_destination, named
from carrypost.jms.messages.values import PROPERTY_TABLE, Value, inferred, plain, read, value_of, value_or_null
from carrypost.jms.modes import DeliveryMode
from carrypost.model import descriptor_values
from carrypost.model.descriptor import Descriptor
from carrypost.model.descriptor_values import typed_properties
from carrypost.model.headers import DESTINATION_MAX, TEXT_MAX, Headers
from carrypost.model.properties import Property, ValueType
from carrypost.model.selector.tokens import RESERVED, stranger

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
    return descriptor_values.timestamp_ms(descriptor) if due_us is None else due_us // _MILLISECOND_US


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


PropertyValue = bool | int | float | str
_RESERVED_PREFIX = "JMS"
_GIVEN_PREFIX = "JMS_carrypost_"
_GIVEN_NAMES = ("JMSXDeliveryCount", "JMSXRcvTimestamp", "JMSXUserID")
SETTABLE = {"JMSXGroupID": ValueType.STRING, "JMSXGroupSeq": ValueType.INT}
"""Properties that JMS defines and programs set, and their types."""
JMSX_NAMES = tuple(sorted((*SETTABLE, *_GIVEN_NAMES)))
"""Properties that JMS defines and messages may have."""
_ABSENT = Property(ValueType.NULL, None)
_NAME_SHOWN_MAX = 64


class Properties(Mapping[str, PropertyValue | None]):
    """The properties of one message. There is no way to remove one alone: JMS has none."""

    __slots__ = ("_descriptor", "_given", "_own", "_read_only")

    def __init__(self, descriptor: Descriptor | None = None, given: Mapping[str, Property] | None = None) -> None:
        self._descriptor = descriptor
        """Descriptor of a received message, until the first access: a stranger's may have types that JMS lacks."""
        self._own: dict[str, Property] = {}
        self._given = dict(given) if given else {}
        self._read_only = descriptor is not None

    def travelling(self) -> dict[str, Property]:
        """Return the properties that are sent with the message: all but those that this node sets."""
        return dict(self._loaded())

    def clear(self) -> None:
        """Forget all, and let new ones be set."""
        self._descriptor, self._read_only = None, False
        self._own, self._given = {}, {}

    def set(self, name: str, kind: ValueType, value: object) -> None:
        """Set a property of this type; raises `MessageFormatException` if the value is none of it."""
        self._set(name, value_or_null(kind, value) if kind is ValueType.STRING else value_of(kind, value))

    def get_as(self, name: str, kind: ValueType) -> object:
        """Return a property as this type; raises `MessageFormatException` where it cannot be read so."""
        found = self._find(name) or _ABSENT
        return read(Value(*found), kind, PROPERTY_TABLE, f"property {_shown(name)}")

    def type_of(self, name: str) -> ValueType:
        """Return the type with which a property was set; raises `KeyError`."""
        found = self._find(name)
        if found is None:
            raise KeyError(name)
        return found.type

    def update(self, values: Mapping[str, object]) -> None:
        """Set several, or none if one of them cannot be."""
        made = {name: _property(name, inferred(value)) for name, value in values.items()}
        self._check_writable()
        self._loaded().update(made)

    def __setitem__(self, name: str, value: PropertyValue | None) -> None:
        """Set a property with the type of its value's class: boolean, int or else long, double, String, null."""
        self._set(name, inferred(value))

    def __getitem__(self, name: str) -> PropertyValue | None:
        found = self._find(name)
        if found is None:
            raise KeyError(name)
        return found.value

    def __iter__(self) -> Iterator[str]:
        return iter(self._loaded() | self._given)

    def __len__(self) -> int:
        return len(self._loaded() | self._given)

    def __repr__(self) -> str:
        return f"Properties({dict(self)!r})"

    def _set(self, name: str, value: Value) -> None:
        made = _property(name, value)
        self._check_writable()
        self._loaded()[name] = made

    def _check_writable(self) -> None:
        if self._read_only:
            raise MessageNotWriteableException(
                "the properties of a received message are read-only: call clear_properties() first"
            )

    def _find(self, name: str) -> Property | None:
        return self._given.get(name) or self._loaded().get(name)

    def _loaded(self) -> dict[str, Property]:
        if self._descriptor is not None:
            found = typed_properties(self._descriptor)
            self._own = {name: each for name, each in found.items() if not is_given(name)}
            self._descriptor = None
        return self._own


def is_given(name: str) -> bool:
    """Return True if only the receiving node may set this: as an attribute it would be an unverified claim."""
    return name in _GIVEN_NAMES or name.startswith(_GIVEN_PREFIX)


def _property(name: str, value: Value) -> Property:
    check_name(name)
    if value.type is ValueType.BYTES or isinstance(value.value, bytes):
        raise MessageFormatException(
            f"property {_shown(name)}: a property must be a bool, int, float, str or None, not bytes"
        )
    wanted = SETTABLE.get(name, value.type)
    if value.type not in (wanted, ValueType.NULL):
        raise MessageFormatException(f"property {name} is of type {wanted.text}, not {value.type.text}")
    return Property(value.type, value.value)


def check_name(name: object) -> None:
    """Raise `IllegalArgumentException` for what is no name of a property that a program may set."""
    fault = _fault_of(named(name, "the name of a property"))
    if fault:
        raise IllegalArgumentException(f"{_shown(name)} cannot be the name of a property: {fault}")


@functools.lru_cache(maxsize=1024)
def _fault_of(name: str) -> str:
    """Return the fault of a name; empty if there is none. Programs have few names, and use them all the time."""
    if name.upper() in RESERVED:
        return "it is a reserved word of selectors"
    at = stranger(name)
    if at is not None:
        return (
            f"{name[at]!r} is not allowed there; names consist of letters, digits, _ and $, and do not begin "
            "with a digit"
        )
    if name.startswith(_RESERVED_PREFIX) and name not in SETTABLE:
        return f"names that begin with JMS are reserved, and programs may set only {' and '.join(SETTABLE)}"
    return ""


def _shown(name: object) -> str:
    return repr(name)[:_NAME_SHOWN_MAX]
