"""Typed values of bodies and properties, reading one as another type (JMS §3.11.3), and bodies as payload bytes.

A value is one of ten types, or null. Python has fewer types than Java, so a value goes with its type: what a program
wrote as a short is read as one by the receiver. The types are those of properties and two more (`model.properties`).

Numbers become text, and texts numbers, as by Java's `toString` and `valueOf` (JMS §3.5.4). Both take time that is
linear in the length of a text, whatever it holds: it may be a stranger's.

Which type may be read as which other is a table, one for the values of maps and streams and one for properties. What a
legal pair gives is the same for both.

==========  ==================================================================================
text        UTF-8; the one byte FF, which is no UTF-8, where the text is null
bytes       as they are
map         the version, 1, in one byte; then MessagePack: a map from names to values
stream      the version; then MessagePack: an array of values
object      the version; then MessagePack: an array of the class's name and its fields, or nil
==========  ==================================================================================

Of values, null, boolean, int, double and String are MessagePack's own, and so are longs beyond 32 bits. All others are
extensions whose number is that of their type (`ValueType`), big-endian: byte (2) of 1 byte, short (3) of 2, long (5) of
8, float (6) of 4, char (9) of 2 (UTF-16), bytes (10). So every type is kept exactly, and the frequent ones are short.
Payloads are strangers': whatever they hold, a body or `MessageFormatException` comes of it, and never more than
`VALUES_MAX` values.
"""

from __future__ import annotations

import math
import re
import struct
from collections.abc import Callable, Iterable, Mapping
from typing import Annotated, Any, NamedTuple, TypeVar

import msgspec
from msgspec.msgpack import Ext

from carrypost.errors import MessageFormatException, NullValueException, NumberFormatException
from carrypost.model.properties import ValueType, fits, nearest_float

C = TypeVar("C", bound=Callable[..., object])
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


def typed(method: C, does: str, kind: ValueType, returns: type | None, **takes: type) -> C:
    """Return a function as a method of messages that does this with values of a type, and takes and returns these."""
    method.__doc__, method.__annotations__ = f"{does} as {kind.text}.", takes | {"return": returns}
    return method


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


_WHOLE_TEXT = re.compile(r"[+-]?\d++")
_WHOLE_MAX = 20
"""More digits than a long has."""
_DECIMAL = r"(?:[0-9]++(?:\.[0-9]*+)?|\.[0-9]++)(?:[eE][+-]?[0-9]++)?"
_HEXADECIMAL = r"0[xX](?:[0-9a-fA-F]++(?:\.[0-9a-fA-F]*+)?|\.[0-9a-fA-F]++)[pP][+-]?[0-9]++"
_NUMBER = re.compile(rf"(?P<sign>[+-]?)(?:(?P<name>NaN|Infinity)|(?P<digits>{_HEXADECIMAL}|{_DECIMAL})[fFdD]?)")
_SPACE = "".join(map(chr, range(0x21)))
_PLAIN_EXPONENTS = range(-3, 7)
"""Of numbers that Java writes without one."""
_DIGITS_MAX = 17
"""Enough for every double."""


def text_of(kind: ValueType, value: BodyValue) -> str:
    """Return a value as text."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float):
        return _text_of_float(value, single=kind is ValueType.FLOAT)
    return str(value)


def _text_of_float(value: float, *, single: bool) -> str:
    """Return the fewest digits that give the number back, but at least one after the point."""
    if not math.isfinite(value):
        return "NaN" if math.isnan(value) else ("Infinity" if value > 0 else "-Infinity")
    found = ""
    for places in range(1, _DIGITS_MAX):
        found = f"{value:.{places}e}"
        read = float(found)
        if value == (nearest_float(read) if single else read):
            break
    digits, _, exponent = found.partition("e")
    power = int(exponent)
    if value and power not in _PLAIN_EXPONENTS:
        return f"{digits}E{power}"
    places = max(1, len(digits.partition(".")[2].rstrip("0")) - power)
    return f"{float(found):.{places}f}"


def parsed(kind: ValueType, text: str) -> BodyValue:
    """Return the value of a text in this type, which is not text; raises `NumberFormatException`."""
    return _PARSERS[kind](kind, text)


def _boolean(_: ValueType, text: str) -> bool:
    """Return True for "true", in any case; False for everything else, as Java does."""
    return text.lower() == "true"


def _whole(kind: ValueType, text: str) -> int:
    digits = text.lstrip("+-").lstrip("0") or "0"
    if not _WHOLE_TEXT.fullmatch(text) or len(digits) > _WHOLE_MAX:
        raise _no(kind, text)
    value = -int(digits) if text[0] == "-" else int(digits)
    if not fits(kind, value):
        raise _no(kind, text)
    return value


def _float(kind: ValueType, text: str) -> float:
    found = _NUMBER.fullmatch(text.strip(_SPACE))
    if found is None:
        raise _no(kind, text)
    if found["name"]:
        value = math.nan if found["name"] == "NaN" else math.inf
    elif found["digits"][:2] in ("0x", "0X"):
        try:
            value = float.fromhex(found["digits"])
        except OverflowError:
            value = math.inf
    else:
        value = float(found["digits"])
    value = -value if found["sign"] == "-" else value
    return nearest_float(value) if kind is ValueType.FLOAT else value


def _no(kind: ValueType, text: str) -> NumberFormatException:
    shown = repr(text[:64]) + ("…" if len(text) > 64 else "")  # noqa: PLR2004 - enough to know it by
    return NumberFormatException(f"the text {shown} cannot be read as {kind.text}")


_PARSERS: dict[ValueType, Callable[[ValueType, str], BodyValue]] = {
    ValueType.BOOLEAN: _boolean,
    **dict.fromkeys((ValueType.BYTE, ValueType.SHORT, ValueType.INT, ValueType.LONG), _whole),
    **dict.fromkeys((ValueType.FLOAT, ValueType.DOUBLE), _float),
}


Table = Mapping[ValueType, tuple[ValueType, ...]]
"""By the type as which a value was written: the types as which it may be read."""
_BOOLEAN, _CHAR, _STRING, _BYTES = ValueType.BOOLEAN, ValueType.CHAR, ValueType.STRING, ValueType.BYTES
_BYTE, _SHORT, _INT, _LONG = ValueType.BYTE, ValueType.SHORT, ValueType.INT, ValueType.LONG
_FLOAT, _DOUBLE = ValueType.FLOAT, ValueType.DOUBLE
BODY_TABLE: Table = {
    _BOOLEAN: (_BOOLEAN,                                                     _STRING),
    _BYTE:    (          _BYTE, _SHORT,        _INT, _LONG,                  _STRING),
    _SHORT:   (                 _SHORT,        _INT, _LONG,                  _STRING),
    _CHAR:    (                         _CHAR,                               _STRING),
    _INT:     (                                _INT, _LONG,                  _STRING),
    _LONG:    (                                      _LONG,                  _STRING),
    _FLOAT:   (                                             _FLOAT, _DOUBLE, _STRING),
    _DOUBLE:  (                                                     _DOUBLE, _STRING),
    _STRING:  (_BOOLEAN, _BYTE, _SHORT,        _INT, _LONG, _FLOAT, _DOUBLE, _STRING),
    _BYTES:   (                                                                       _BYTES,),
}  # fmt: skip
"""Values of maps and streams, 32 of 100 pairs (JMS §3.11.3): types as themselves, as wider ones and as text, and text
as anything but a char and bytes."""
PROPERTY_TABLE: Table = {kind: types for kind, types in BODY_TABLE.items() if kind not in (_CHAR, _BYTES)}
"""Properties, 29 of 64 pairs (JMS §3.5.4): the same types, but for chars and bytes, which no property has."""
_WHOLE = (_BYTE, _SHORT, _INT, _LONG)
_WITHOUT_NULL = (_FLOAT, _DOUBLE, _CHAR)


def read(value: Value, to: ValueType, table: Table, what: str) -> BodyValue | None:
    """Return a value as a type; raises `MessageFormatException` if the table lacks the pair. Errors name it `what`."""
    kind, found = value
    if found is None:
        return _null_as(to, what)
    if to is kind:
        return found
    if to not in table[kind]:
        others = " or ".join(each.text for each in table[kind])
        raise MessageFormatException(f"{what} is of type {kind.text}, which can be read as {others}, not as {to.text}")
    if to is _STRING:
        return text_of(kind, found)
    if isinstance(found, str):
        return parsed(to, found)
    return found  # A wider type has the same value.


def _null_as(to: ValueType, what: str) -> BodyValue | None:
    """Null as a type: what Java's `valueOf(null)` does."""
    if to is _BOOLEAN:
        return False
    if to in _WHOLE:
        raise NumberFormatException(f"{what} is null or missing, and cannot be read as {to.text}")
    if to in _WITHOUT_NULL:
        raise NullValueException(f"{what} is null or missing, and cannot be read as {to.text}")
    return None


VERSION = b"\x01"
VALUES_MAX = 1 << 18
"""Values of a map or stream. A payload of 16 MiB could hold as many millions, of a hundred bytes each in memory."""
NULL_TEXT = b"\xff"
T = TypeVar("T")
Item = bool | int | float | str | Ext | None
"""A value in MessagePack."""
_LENGTH = msgspec.Meta(max_length=VALUES_MAX)
_ENCODER = msgspec.msgpack.Encoder()
_MAP = msgspec.msgpack.Decoder(Annotated[dict[str, Item], _LENGTH])
_STREAM = msgspec.msgpack.Decoder(Annotated[list[Item], _LENGTH])
_EXTENDED: Mapping[int, ValueType] = {
    int(each): each
    for each in (ValueType.BYTE, ValueType.SHORT, ValueType.LONG, ValueType.FLOAT, ValueType.CHAR, ValueType.BYTES)
}
"""Types that MessagePack does not have, by number."""


def encode_text(text: str | None) -> bytes:
    """Return a text as payload."""
    if text is None:
        return NULL_TEXT
    try:
        return text.encode()
    except UnicodeEncodeError:
        raise MessageFormatException("a text must be Unicode without lone surrogates") from None


def decode_text(payload: bytes) -> str | None:
    """Return the text of a payload."""
    if payload == NULL_TEXT:
        return None
    try:
        return payload.decode()
    except UnicodeDecodeError as error:
        raise MessageFormatException(
            f"the payload is not text in UTF-8: {error.reason} at byte {error.start}"
        ) from None


def encode_map(values: Mapping[str, Value]) -> bytes:
    """Return a map as payload."""
    _check_count(len(values))
    return pack({name: _item(value) for name, value in values.items()})


def decode_map(payload: bytes) -> dict[str, Value]:
    """Return the map in a payload."""
    return {name: _value(item) for name, item in unpack(_MAP.decode, payload, "map").items()}


def encode_stream(values: Iterable[Value]) -> bytes:
    """Return a stream as payload."""
    items = [_item(value) for value in values]
    _check_count(len(items))
    return pack(items)


def decode_stream(payload: bytes) -> list[Value]:
    """Return the stream in a payload."""
    return [_value(item) for item in unpack(_STREAM.decode, payload, "stream")]


def _check_count(count: int) -> None:
    if count > VALUES_MAX:
        raise MessageFormatException(f"a map or stream has at most {VALUES_MAX} values, not {count}")


# ---------------------------------------------------------------------------------------------- versions


def pack(content: object) -> bytes:
    """Return the version and the content; raises `MessageFormatException` for what cannot be encoded."""
    try:
        return VERSION + _ENCODER.encode(content)
    except UnicodeEncodeError:
        raise MessageFormatException("texts must be Unicode without lone surrogates") from None
    except (TypeError, ValueError, OverflowError, RecursionError, NotImplementedError) as error:
        raise MessageFormatException(f"a value that cannot be encoded: {error}") from error


def unpack(decode: Callable[[Any], T], payload: bytes, what: str) -> T:
    """Return the content after the version; raises `MessageFormatException` for what is none."""
    if not payload.startswith(VERSION):
        how = f"of version {payload[0]}, and this package reads version {VERSION[0]}" if payload else "empty"
        raise MessageFormatException(f"the payload is not a {what}: it is {how}")
    try:
        return decode(memoryview(payload)[len(VERSION) :])
    except (ValueError, RecursionError, OverflowError) as error:  # ValueError: msgspec's own, and what is not UTF-8
        raise MessageFormatException(f"the payload is not a {what}: {error}") from error


# ------------------------------------------------------------------------------------------------ values


def _item(value: Value) -> Item:
    """Return a value in MessagePack: unchanged if that determines its type."""
    kind, found = value
    if isinstance(found, bytes):
        return Ext(int(kind), found)
    if kind not in _EXTENDED or (kind is ValueType.LONG and not fits(ValueType.INT, found)):
        return found
    return Ext(int(kind), FORMATS[kind].pack(ord(found) if isinstance(found, str) else found))


def _value(item: Item) -> Value:
    if not isinstance(item, Ext):
        return NULL if item is None else inferred(item)
    kind = _EXTENDED.get(item.code)
    if kind is None:
        raise MessageFormatException(f"a value of type {item.code}, which this version does not know")
    data = bytes(item.data)
    if kind is ValueType.BYTES:
        return Value(kind, data)
    form = FORMATS[kind]
    if len(data) != form.size:
        raise MessageFormatException(f"a {kind.text} has {form.size} bytes, not {len(data)}")
    (found,) = form.unpack(data)
    if kind is ValueType.CHAR:
        found = chr(found)
    if not fits(kind, found):
        raise MessageFormatException(f"no {kind.text}: {found!r}")
    return Value(kind, found)
