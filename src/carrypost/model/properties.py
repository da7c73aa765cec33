"""Types of properties (JMS §3.5.2): distinctions that Python's types lack travel beside the attributes.

Java has four widths of integers and two of other numbers, and a property may be null. `inferred` returns the default
type of a value; a message lists only the types that differ, by name, in its headers, so most list none. A null property
is listed, too, and is no attribute: to patterns and selectors it is absent, as JMS demands.
"""

from __future__ import annotations

import enum
import math
import struct
from collections.abc import Mapping
from typing import NamedTuple

from carrypost.config import Limits
from carrypost.errors import MessageFormatException

AttributeValue = bool | int | float | str


class ValueType(enum.IntEnum):
    """The types of JMS; numbers are part of the wire format. Bodies have all of them, properties those up to STRING."""

    NULL = 0
    BOOLEAN = 1
    BYTE = 2
    SHORT = 3
    INT = 4
    LONG = 5
    FLOAT = 6
    DOUBLE = 7
    STRING = 8
    CHAR = 9
    BYTES = 10

    @property
    def text(self) -> str:
        """The name of the type in Java."""
        return _JAVA.get(self) or self.name.lower()


_JAVA = {ValueType.STRING: "String", ValueType.BYTES: "byte[]"}


class Property(NamedTuple):
    """A property: its type, and its value, None if it is null."""

    type: ValueType
    value: AttributeValue | None


_BITS = {ValueType.BYTE: 8, ValueType.SHORT: 16, ValueType.INT: 32, ValueType.LONG: 64}
_PYTHON: dict[ValueType, type] = {
    ValueType.NULL: type(None), ValueType.BOOLEAN: bool, ValueType.FLOAT: float, ValueType.DOUBLE: float,
    ValueType.STRING: str, ValueType.CHAR: str, ValueType.BYTES: bytes, **dict.fromkeys(_BITS, int),
}  # fmt: skip
_KNOWN = {int(kind): kind for kind in ValueType if kind <= ValueType.STRING}
_CHARS = 1 << 16
_SURROGATES = range(0xD800, 0xE000)


def inferred(value: object) -> ValueType:
    """Return the default type of a value; raises `MessageFormatException` if JMS has none for it."""
    kind = type(value)
    if kind is int:
        for found in (ValueType.INT, ValueType.LONG):
            if fits(found, value):
                return found
        raise MessageFormatException(f"a property has at most 64 bits, not {value}"[:200])
    if kind is float:
        return ValueType.DOUBLE
    for found in (ValueType.STRING, ValueType.BOOLEAN, ValueType.NULL):
        if kind is _PYTHON[found]:
            return found
    raise MessageFormatException(f"a property must be a bool, int, float, str or None, not {kind.__name__}")


def fits(kind: ValueType, value: object) -> bool:
    """Return True if a value is exactly of this type."""
    if type(value) is not _PYTHON[kind]:
        return False
    if isinstance(value, int) and kind in _BITS:
        most = 1 << _BITS[kind] - 1
        return -most <= value < most
    if kind is ValueType.FLOAT and isinstance(value, float):
        return math.isnan(value) or nearest_float(value) == value
    if kind is ValueType.CHAR and isinstance(value, str):
        return len(value) == 1 and ord(value) < _CHARS and ord(value) not in _SURROGATES
    return True


def nearest_float(value: float) -> float:
    """Return a double rounded to Java's float: to 32 bits, infinite if it is too large."""
    try:
        (rounded,) = struct.unpack("<f", struct.pack("<f", value))
    except OverflowError:
        return math.copysign(math.inf, value)
    return float(rounded)


def typed(attributes: Mapping[str, AttributeValue], types: Mapping[str, int]) -> dict[str, Property]:
    """Return the properties of a message with their types; raises `MessageFormatException` if JMS has no type.

    A type number of a later version counts as not given.
    """
    found: dict[str, Property] = {}
    for name, value in attributes.items():
        kind = _KNOWN.get(types[name]) if name in types else None
        found[name] = Property(inferred(value) if kind is None else kind, value)
    for name, number in types.items():
        if number == ValueType.NULL:
            found[name] = Property(ValueType.NULL, None)
    return found


def untyped(properties: Mapping[str, Property], limits: Limits) -> tuple[dict[str, AttributeValue], dict[str, int]]:
    """Return the attributes of properties, and the types that have to be listed; raises `MessageFormatException`.

    JMS has no such limits; so the text names the one that was exceeded.
    """
    if len(properties) > limits.attributes_max:
        raise MessageFormatException(f"a message has at most {limits.attributes_max} properties, not {len(properties)}")
    attributes: dict[str, AttributeValue] = {}
    types: dict[str, int] = {}
    for name, (kind, value) in properties.items():
        if not fits(kind, value):
            raise MessageFormatException(f"property {name!r} must be of type {kind.text}, not {value!r}"[:200])
        _check_length(f"the name {name[:64]!r} of a property", name, limits.attribute_bytes_max)
        if isinstance(value, str):
            _check_length(f"property {name!r}", value, limits.attribute_bytes_max)
        if value is not None:
            attributes[name] = value
        if value is None or kind is not inferred(value):
            types[name] = int(kind)
    return attributes, types


def _check_length(what: str, text: str, bytes_max: int) -> None:
    try:
        nbytes = len(text.encode())
    except UnicodeEncodeError:
        raise MessageFormatException(f"{what} is not Unicode text: it has lone surrogates") from None
    if nbytes > bytes_max:
        raise MessageFormatException(f"{what} has {nbytes} bytes; {bytes_max} are allowed")


def misfit(attributes: Mapping[str, AttributeValue], types: Mapping[str, int]) -> str | None:
    """Return the fault of the types that a message declares, or None. Unknown numbers are a later version's."""
    for name, number in types.items():
        kind = _KNOWN.get(number)
        if kind is None:
            continue
        if (name in attributes) is (kind is ValueType.NULL):
            return f"property {name!r} is {'null and has a value' if name in attributes else 'not there'}"
        if name in attributes and not fits(kind, attributes[name]):
            return f"property {name!r} must be of type {kind.text}, not {attributes[name]!r}"[:200]
    return None
