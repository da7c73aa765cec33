"""`BytesMessage`: a body of uninterpreted bytes.

It is written, then `reset`, then read from its beginning. The typed calls write and read as Java's `DataOutput` and
`DataInput` do, big-endian, so that programs in Java that know the format can be met. A read that fails moves nothing.
"""

from __future__ import annotations

import re
import struct
from typing import ClassVar, TypeVar

from carrypost.errors import (
    MessageEOFException,
    MessageFormatException,
    MessageNotReadableException,
    NullValueException,
)
from carrypost.jms.messages.message import Message
from carrypost.jms.messages.values import FORMATS, BodyValue, ValueType, inferred, value_of
from carrypost.model.headers import BodyType

T = TypeVar("T")
_UNSIGNED_BYTE, _UNSIGNED_SHORT = struct.Struct(">B"), struct.Struct(">H")
_PAIR = struct.Struct(">HH")
_UTF_BYTES_MAX = 0xFFFF
_ASTRAL = re.compile("[\U00010000-\U0010ffff]")


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

    def write_boolean(self, value: bool) -> None:
        """Write a boolean as one byte, 1 or 0."""
        self._put(ValueType.BOOLEAN, value)

    def write_byte(self, value: int) -> None:
        """Write a byte, -128 to 127."""
        self._put(ValueType.BYTE, value)

    def write_short(self, value: int) -> None:
        """Write a whole number as two bytes."""
        self._put(ValueType.SHORT, value)

    def write_char(self, value: str) -> None:
        """Write a character as two bytes."""
        self._put(ValueType.CHAR, value)

    def write_int(self, value: int) -> None:
        """Write a whole number as four bytes."""
        self._put(ValueType.INT, value)

    def write_long(self, value: int) -> None:
        """Write a whole number as eight bytes."""
        self._put(ValueType.LONG, value)

    def write_float(self, value: float) -> None:
        """Write a number as four bytes, rounded to what these can hold."""
        self._put(ValueType.FLOAT, value)

    def write_double(self, value: float) -> None:
        """Write a number as eight bytes."""
        self._put(ValueType.DOUBLE, value)

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

    def read_boolean(self) -> bool:
        """Read one byte; return False if it is 0, else True."""
        return self._unpack(FORMATS[ValueType.BOOLEAN])  # type: ignore[return-value]  # by the format, as below

    def read_byte(self) -> int:
        """Return one byte, -128 to 127."""
        return self._unpack(FORMATS[ValueType.BYTE])  # type: ignore[return-value]

    def read_unsigned_byte(self) -> int:
        """Return one byte, 0 to 255."""
        return self._unpack(_UNSIGNED_BYTE)  # type: ignore[return-value]

    def read_short(self) -> int:
        """Read two bytes as a whole number."""
        return self._unpack(FORMATS[ValueType.SHORT])  # type: ignore[return-value]

    def read_unsigned_short(self) -> int:
        """Read two bytes as a whole number, 0 or more."""
        return self._unpack(_UNSIGNED_SHORT)  # type: ignore[return-value]

    def read_char(self) -> str:
        """Read two bytes as a character."""
        return chr(self._unpack(_UNSIGNED_SHORT))  # type: ignore[arg-type]

    def read_int(self) -> int:
        """Four bytes as a whole number."""
        return self._unpack(FORMATS[ValueType.INT])  # type: ignore[return-value]

    def read_long(self) -> int:
        """Eight bytes as a whole number."""
        return self._unpack(FORMATS[ValueType.LONG])  # type: ignore[return-value]

    def read_float(self) -> float:
        """Four bytes as a number."""
        return self._unpack(FORMATS[ValueType.FLOAT])  # type: ignore[return-value]

    def read_double(self) -> float:
        """Eight bytes as a number."""
        return self._unpack(FORMATS[ValueType.DOUBLE])  # type: ignore[return-value]

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
