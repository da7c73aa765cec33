"""`TextMessage` and `BytesMessage`: bodies that are one text, or uninterpreted bytes, and the JSON that texts hold.

What a program sends as a dict or a list that no map or stream has room for becomes text in JSON. Only what JSON can say
exactly is taken: dicts whose keys are text, lists, tuples (as lists), texts, numbers that are finite, booleans and
None. Nothing is turned into text silently.

A body of bytes is written, then `reset`, then read from its beginning. The typed calls write and read as Java's
`DataOutput` and `DataInput` do, big-endian, so that programs in Java that know the format can be met. A read that fails
moves nothing.
"""

from __future__ import annotations

import json
import math
import re
import struct
from collections.abc import Callable, Mapping
from typing import ClassVar, NoReturn, TypeVar

from carrypost.errors import (
    MessageEOFException,
    MessageFormatException,
    MessageNotReadableException,
    NullValueException,
)
from carrypost.jms.messages import values
from carrypost.jms.messages.message import Message
from carrypost.jms.messages.values import FORMATS, BodyValue, inferred, plain, typed, value_of
from carrypost.model.headers import BodyType
from carrypost.model.properties import ValueType

JSON_TYPE = "application/json"
"""JMSType of such a text."""
_DEPTH_MAX = 200


def json_text(value: object) -> str:
    """Return a value as JSON; raises `MessageFormatException`, which says where, for what JSON cannot say."""
    checked = _checked(value, "", 0)
    try:
        return json.dumps(checked, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    except ValueError as error:  # A whole number of thousands of digits.
        raise MessageFormatException(f"the body cannot be written as JSON: {error}") from None


def read_json(text: str) -> object:
    """Return what a text says as JSON; raises `MessageFormatException` if it is none."""
    try:
        return json.loads(text, parse_constant=_refuse)
    except (ValueError, RecursionError) as error:
        raise MessageFormatException(f"the text is not JSON: {error}") from None


def _refuse(constant: str) -> NoReturn:
    raise ValueError(f"JSON has no number {constant}")


def _checked(value: object, where: str, depth: int) -> object:
    """Return the value, made of Python's own types alone; `where` it stands is the way to it, as Python writes that."""
    if depth > _DEPTH_MAX:
        raise MessageFormatException(f"a JSON body may nest dicts and lists at most {_DEPTH_MAX} deep")
    if isinstance(value, Mapping):
        for key in value:
            if not isinstance(key, str):
                raise _fault(where, f"keys must be str in JSON, not {type(key).__name__}", "str(key)")
        return {str(key): _checked(each, f"{where}[{key!r:.64}]", depth + 1) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_checked(each, f"{where}[{number}]", depth + 1) for number, each in enumerate(value)]
    found = plain(value)
    if isinstance(found, float) and not math.isfinite(found):
        raise _fault(where, f"JSON has no number {found}", "None, or text")
    if found is not None and not isinstance(found, str | int | float):
        raise _fault(
            where, f"JSON has no {type(value).__name__}", "text, such as str(value), or register a class for the whole"
        )
    return found


def _fault(where: str, what: str, remedy: str) -> MessageFormatException:
    return MessageFormatException(f"body{where}: {what}; send {remedy}")


class TextMessage(Message):
    """A message whose body is text."""

    __slots__ = ("_text",)
    __match_args__: ClassVar[tuple[str, ...]] = ("text",)
    body_type: ClassVar[BodyType] = BodyType.TEXT

    def __init__(self, text: str | None = None) -> None:
        super().__init__()
        self._text: str | None = None
        if text is not None:
            self.text = text

    @property
    def text(self) -> str | None:
        """The text, or None. Raises `MessageFormatException` if what was received is none."""
        if self._text is None and self._payload is not None:
            self._text = values.decode_text(self._payload)
        return self._text

    @text.setter
    def text(self, text: str | None) -> None:
        found = plain(text)
        if found is not None and not isinstance(found, str):
            raise MessageFormatException(f"the body of a TextMessage must be a str or None, not {type(text).__name__}")
        self._write()
        self._text = found

    def set_text(self, text: str | None) -> None:
        """Set the text, as assigning to `text` does."""
        self.text = text

    def clear_body(self) -> None:
        """Make the text None, and let it be set. Properties and header fields stay."""
        super().clear_body()
        self._text = None

    def json(self) -> object:
        """Return what the text says as JSON; None without a text."""
        return None if self.text is None else read_json(self.text)

    def _whole(self) -> str | None:
        return self.text

    def _encoded(self) -> bytes:
        return values.encode_text(self._text)


T = TypeVar("T")
_UNSIGNED_BYTE, _UNSIGNED_SHORT = struct.Struct(">B"), struct.Struct(">H")
_PAIR = struct.Struct(">HH")
_UTF_BYTES_MAX = 0xFFFF
_ASTRAL = re.compile("[\U00010000-\U0010ffff]")


# ruff: noqa: SLF001 - made here are methods of the class below


def _writes(kind: ValueType, of: type[T]) -> Callable[[BytesMessage, T], None]:
    """Return the method of messages that writes a value of this type."""
    return typed(lambda message, value: message._put(kind, value), "Write a value", kind, None, value=of)


def _reads(kind: ValueType, of: type[T]) -> Callable[[BytesMessage], T]:
    """Return the method of messages that reads a value of this type."""
    return typed(lambda message: message._unpack(FORMATS[kind]), "Read a value", kind, of)


class BytesMessage(Message):
    """A message whose body is bytes."""

    __slots__ = ("_at", "_written")
    __match_args__: ClassVar[tuple[str, ...]] = ("data",)
    body_type: ClassVar[BodyType] = BodyType.BYTES

    def __init__(self, data: bytes | bytearray | memoryview = b"") -> None:
        super().__init__()
        self._written = bytearray()
        self._at = 0
        if type(data) is bytes:
            self._written += data
        elif data:
            self.write_bytes(data)

    @property
    def data(self) -> bytes:
        """All bytes, whether the body is being written or read."""
        return self.payload

    @property
    def body_length(self) -> int:
        """The number of bytes in all, whether the body is being written or read."""
        return len(self.payload)

    def reset(self) -> None:
        """Let the body be read, from its beginning, and not be written any more."""
        self._payload, self._read_only = self.payload, True
        self._at = 0

    def clear_body(self) -> None:
        """Empty the body, and let it be written. Properties and header fields stay."""
        super().clear_body()
        self._written, self._at = bytearray(), 0

    # --- writing -------------------------------------------------------------------------------------------

    write_boolean = _writes(ValueType.BOOLEAN, bool)
    """Write a boolean as one byte, 1 or 0."""
    write_byte = _writes(ValueType.BYTE, int)
    """Write a byte, -128 to 127."""
    write_short = _writes(ValueType.SHORT, int)
    """Write a whole number as two bytes."""
    write_char = _writes(ValueType.CHAR, str)
    """Write a character as two bytes."""
    write_int = _writes(ValueType.INT, int)
    """Write a whole number as four bytes."""
    write_long = _writes(ValueType.LONG, int)
    """Write a whole number as eight bytes."""
    write_float = _writes(ValueType.FLOAT, float)
    """Write a number as four bytes, rounded to what these can hold."""
    write_double = _writes(ValueType.DOUBLE, float)
    """Write a number as eight bytes."""

    def write_utf(self, value: str) -> None:
        """Write a text of at most 65,535 bytes, after its length in two bytes, in Java's modified UTF-8."""
        found = value_of(ValueType.STRING, value).value
        self._write()
        self._written += _modified_utf8(str(found))

    def write_bytes(self, value: bytes | bytearray | memoryview) -> None:
        """Write bytes as they are."""
        found = value_of(ValueType.BYTES, value).value
        self._write()
        self._written += found  # type: ignore[arg-type]  # bytes, as `value_of` has seen

    def write_object(self, value: BodyValue) -> None:
        """Write a value with the type of its Python class: boolean, int or else long, double, String, byte[]."""
        kind, found = inferred(value)
        if found is None:
            raise NullValueException("null cannot be written as bytes")
        if isinstance(found, str):
            self.write_utf(found)
        elif isinstance(found, bytes):
            self.write_bytes(found)
        else:
            self._put(kind, found)

    # --- reading -------------------------------------------------------------------------------------------

    read_boolean = _reads(ValueType.BOOLEAN, bool)
    """Read one byte; return False if it is 0, else True."""
    read_byte = _reads(ValueType.BYTE, int)
    """Return one byte, -128 to 127."""

    def read_unsigned_byte(self) -> int:
        """Return one byte, 0 to 255."""
        return self._unpack(_UNSIGNED_BYTE)  # type: ignore[return-value]

    read_short = _reads(ValueType.SHORT, int)
    """Read two bytes as a whole number."""

    def read_unsigned_short(self) -> int:
        """Read two bytes as a whole number, 0 or more."""
        return self._unpack(_UNSIGNED_SHORT)  # type: ignore[return-value]

    def read_char(self) -> str:
        """Read two bytes as a character."""
        return chr(self._unpack(_UNSIGNED_SHORT))  # type: ignore[arg-type]

    read_int = _reads(ValueType.INT, int)
    """Four bytes as a whole number."""
    read_long = _reads(ValueType.LONG, int)
    """Eight bytes as a whole number."""
    read_float = _reads(ValueType.FLOAT, float)
    """Four bytes as a number."""
    read_double = _reads(ValueType.DOUBLE, float)
    """Eight bytes as a number."""

    def read_utf(self) -> str:
        """Return a text as `write_utf` writes it."""
        data = self._readable()
        self._check_left(_UNSIGNED_SHORT.size)
        begin = self._at + _UNSIGNED_SHORT.size
        (nbytes,) = _UNSIGNED_SHORT.unpack_from(data, self._at)
        self._check_left(_UNSIGNED_SHORT.size + nbytes)
        text = _from_modified_utf8(data[begin : begin + nbytes])
        self._at = begin + nbytes
        return text

    def read_bytes(self, size: int | None = None) -> bytes:
        """Return the next bytes: at most `size`, else all that are left. Empty at the end."""
        data = self._readable()
        if size is not None and size < 0:
            raise MessageFormatException(f"a number of bytes must be 0 or more, not {size}")
        part = data[self._at :] if size is None else data[self._at : self._at + size]
        self._at += len(part)
        return part

    # --- body ----------------------------------------------------------------------------------------------

    def get_body(self, kind: type[T]) -> T | None:
        """Return the bytes, after a `reset`; raises `MessageFormatException` for another type."""
        found = super().get_body(kind)
        self.reset()
        return found

    def _put(self, kind: ValueType, value: object) -> None:
        found = value_of(kind, value).value
        self._write()
        self._written += FORMATS[kind].pack(ord(found) if isinstance(found, str) else found)

    def _readable(self) -> bytes:
        if not self._read_only:
            raise MessageNotReadableException("the body is being written: reset() to read it")
        return self.payload

    def _check_left(self, nbytes: int) -> None:
        left = len(self._readable()) - self._at
        if left < nbytes:
            raise MessageEOFException(f"cannot read {nbytes} bytes: only {left} are left")

    def _unpack(self, form: struct.Struct) -> object:
        self._check_left(form.size)
        (found,) = form.unpack_from(self.payload, self._at)
        self._at += form.size
        return found

    def _whole(self) -> bytes:
        return self.payload

    def _encoded(self) -> bytes:
        return bytes(self._written)


def _modified_utf8(text: str) -> bytes:
    """Encode as Java's `DataOutput.writeUTF`: without a zero byte, and with two surrogates beyond 16 bits."""
    try:
        text.encode()
        pairs = _ASTRAL.sub(_surrogates, text)
    except UnicodeEncodeError:
        raise MessageFormatException("a text must be Unicode without lone surrogates") from None
    data = pairs.encode("utf-8", "surrogatepass").replace(b"\0", b"\xc0\x80")
    if len(data) > _UTF_BYTES_MAX:
        raise MessageFormatException(f"write_utf takes up to {_UTF_BYTES_MAX} bytes, not {len(data)}: use write_bytes")
    return _UNSIGNED_SHORT.pack(len(data)) + data


def _surrogates(found: re.Match[str]) -> str:
    return "".join(map(chr, _PAIR.unpack(found[0].encode("utf-16-be"))))


def _from_modified_utf8(data: bytes) -> str:
    try:
        units = data.replace(b"\xc0\x80", b"\0").decode("utf-8", "surrogatepass")
        return units.encode("utf-16-le", "surrogatepass").decode("utf-16-le")
    except UnicodeDecodeError as error:
        raise MessageFormatException(
            f"the bytes are not text in modified UTF-8: {error.reason} at byte {error.start}"
        ) from None
