"""Values in bodies: one of ten types, or null (JMS §3.11.3).

Python has fewer types than Java, so a value goes with its type: what a program wrote as a short is read as one by the
receiver. The types are those of properties and two more (`model.properties`).
"""

from __future__ import annotations

import struct
from typing import NamedTuple

from carrypost.errors import MessageFormatException
from carrypost.model.properties import ValueType as ValueType  # noqa: PLC0414 - part of this interface
from carrypost.model.properties import fits, nearest_float

BodyValue = bool | int | float | str | bytes
"""A value of a body in Python; null is None."""
_BITS_SHOWN_MAX = 128


FORMATS = {
    ValueType.BOOLEAN: struct.Struct(">?"), ValueType.BYTE: struct.Struct(">b"), ValueType.SHORT: struct.Struct(">h"),
    ValueType.CHAR: struct.Struct(">H"), ValueType.INT: struct.Struct(">i"), ValueType.LONG: struct.Struct(">q"),
    ValueType.FLOAT: struct.Struct(">f"), ValueType.DOUBLE: struct.Struct(">d"),
}  # fmt: skip
"""Bytes of values that always have as many, as Java's `DataOutput` writes them."""
_FLOATS = frozenset({ValueType.FLOAT, ValueType.DOUBLE})
_INFERRED = {
    bool: ValueType.BOOLEAN, int: ValueType.LONG, float: ValueType.DOUBLE, str: ValueType.STRING,
    bytes: ValueType.BYTES, type(None): ValueType.NULL,
}  # fmt: skip


class Value(NamedTuple):
    """A value and its type; None if it is null."""

    type: ValueType
    value: BodyValue | None


NULL = Value(ValueType.NULL, None)


def plain(value: object) -> object:
    """Return the value as one of Python's own types; values of derived types, such as an `IntEnum`, become these."""
    if type(value) in _INFERRED:
        return value
    if isinstance(value, str):
        return str.__str__(value)
    if isinstance(value, int):
        return int.__int__(value)
    if isinstance(value, float):
        return float.__float__(value)
    return bytes(value) if isinstance(value, (bytes, bytearray, memoryview)) else value


def value_of(kind: ValueType, given: object) -> Value:
    """Return a value of this type; raises `MessageFormatException` if it is none. Floats are rounded to 32 bits."""
    found = plain(given)
    if kind in _FLOATS:
        if type(found) is int:
            found = _as_float(found)
        if kind is ValueType.FLOAT and isinstance(found, float):
            found = nearest_float(found)
    if not fits(kind, found):
        raise MessageFormatException(f"{_shown(given)} cannot be stored as {kind.text}")
    return Value(kind, found)  # type: ignore[arg-type]  # `fits` has seen that


def value_or_null(kind: ValueType, given: object) -> Value:
    """Return a value of this type as `value_of` does, or null for None."""
    return NULL if given is None else value_of(kind, given)


def inferred(given: object, what: str = "a value") -> Value:
    """Return a value whose type is not given: boolean, int or else long, double, String, byte[] or null.

    Raises `MessageFormatException` for anything else, which calls it `what`.
    """
    found = plain(given)
    kind = _INFERRED.get(type(found))
    if kind is ValueType.LONG:
        kind = next((each for each in (ValueType.INT, ValueType.LONG) if fits(each, found)), None)
    if kind is not None:
        return Value(kind, found)  # type: ignore[arg-type]  # likewise
    raise MessageFormatException(
        f"{what} must be a bool, an int of up to 64 bits, a float, str, bytes or None, not "
        f"{_shown(given)}{_remedy(given)}"
    )


def _as_float(number: int) -> float:
    try:
        return float(number)
    except OverflowError:
        raise MessageFormatException(f"beyond the range of double: {_shown(number)}") from None


def _remedy(given: object) -> str:
    """Return advice on what to do instead."""
    return (
        "; to send a nested dict or list, make it the whole body, which is sent as JSON"
        if isinstance(given, dict | list)
        else ""
    )


def _shown(given: object) -> str:
    """Return a short description of a value: printing may take long, or not be safe."""
    kind = f"of type {type(given).__name__}"
    if isinstance(given, int):
        return f"{given} ({kind})" if given.bit_length() <= _BITS_SHOWN_MAX else f"{given.bit_length()} bits ({kind})"
    return f"{given[:32]!r} ({kind})" if isinstance(given, str | bytes) else f"a value {kind}"
