"""Bodies as payload bytes.

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

from collections.abc import Callable, Iterable, Mapping
from typing import Annotated, Any, TypeVar

import msgspec
from msgspec.msgpack import Ext

from carrypost.errors import MessageFormatException
from carrypost.jms.messages.values import FORMATS, NULL, Value, ValueType, inferred
from carrypost.model.properties import fits

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
