"""`MapMessage` and `StreamMessage`: bodies of values, each of which keeps its type.

A map has values under names. A stream has them one after the other: it is written, then `reset`, then read from its
beginning. A read of a stream that fails moves nothing: the same value can be read again as another type.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import ClassVar

from carrypost.errors import MessageEOFException, MessageFormatException, MessageNotReadableException
from carrypost.jms.destinations import named
from carrypost.jms.messages.message import Bodied
from carrypost.jms.messages.values import (
    BODY_TABLE,
    NULL,
    BodyValue,
    Value,
    decode_map,
    decode_stream,
    encode_map,
    encode_stream,
    inferred,
    read,
    value_of,
    value_or_null,
)
from carrypost.model.headers import BodyType
from carrypost.model.properties import ValueType


class MapMessage(Bodied[dict[str, Value]]):
    """A message whose body is a map from names to values. Values are not nested."""

    __slots__ = ()
    __match_args__: ClassVar[tuple[str, ...]] = ("entries",)
    body_type: ClassVar[BodyType] = BodyType.MAP

    def __init__(self, entries: Mapping[str, BodyValue | None] | None = None) -> None:
        super().__init__()
        for name, value in (entries or {}).items():
            self[name] = value

    @property
    def entries(self) -> dict[str, BodyValue | None]:
        """All of it, as a dict of one's own."""
        return {name: value for name, (_, value) in self._get().items()}

    @property
    def map_names(self) -> tuple[str, ...]:
        """Names of all values."""
        return tuple(self._get())

    def item_exists(self, name: str) -> bool:
        """Return True if there is a value of this name; it may be null."""
        return name in self._get()

    def __contains__(self, name: object) -> bool:
        return name in self._get()

    def __iter__(self) -> Iterator[str]:
        return iter(self.map_names)

    def __getitem__(self, name: str) -> BodyValue | None:
        return self._get()[name].value

    def __setitem__(self, name: str, value: BodyValue | None) -> None:
        """Set a value with the type of its Python class: boolean, int or else long, double, String, byte[], null."""
        self._set(name, inferred(value, f"the value {name!r:.64} of a MapMessage"))

    # --- typed ---------------------------------------------------------------------------------------------

    def set_boolean(self, name: str, value: bool) -> None:
        """Set a boolean."""
        self._set(name, value_of(ValueType.BOOLEAN, value))

    def set_byte(self, name: str, value: int) -> None:
        """Set a byte: a whole number of 8 bits, -128 to 127."""
        self._set(name, value_of(ValueType.BYTE, value))

    def set_short(self, name: str, value: int) -> None:
        """Set a short: a whole number of 16 bits."""
        self._set(name, value_of(ValueType.SHORT, value))

    def set_char(self, name: str, value: str) -> None:
        """Set a char: one character of up to 16 bits."""
        self._set(name, value_of(ValueType.CHAR, value))

    def set_int(self, name: str, value: int) -> None:
        """Set an int: a whole number of 32 bits."""
        self._set(name, value_of(ValueType.INT, value))

    def set_long(self, name: str, value: int) -> None:
        """Set a long: a whole number of 64 bits."""
        self._set(name, value_of(ValueType.LONG, value))

    def set_float(self, name: str, value: float) -> None:
        """Set a float: it is rounded to 32 bits."""
        self._set(name, value_of(ValueType.FLOAT, value))

    def set_double(self, name: str, value: float) -> None:
        """Set a double: what Python calls a float."""
        self._set(name, value_of(ValueType.DOUBLE, value))

    def set_string(self, name: str, value: str | None) -> None:
        """Set a text, or null."""
        self._set(name, value_or_null(ValueType.STRING, value))

    def set_bytes(self, name: str, value: bytes | bytearray | memoryview | None) -> None:
        """Set bytes, or null. They are copied."""
        self._set(name, value_or_null(ValueType.BYTES, value))

    def set_object(self, name: str, value: BodyValue | None) -> None:
        """Set a value with the type of its Python class, as ``message[name] = value`` does."""
        self[name] = value

    def get_boolean(self, name: str) -> bool:
        """Return a value as boolean; one that is not there is false."""
        return self._as(name, ValueType.BOOLEAN)  # type: ignore[return-value]  # by the table, as below

    def get_byte(self, name: str) -> int:
        """Return a value as byte."""
        return self._as(name, ValueType.BYTE)  # type: ignore[return-value]

    def get_short(self, name: str) -> int:
        """Return a value as short."""
        return self._as(name, ValueType.SHORT)  # type: ignore[return-value]

    def get_char(self, name: str) -> str:
        """Return a value as char."""
        return self._as(name, ValueType.CHAR)  # type: ignore[return-value]

    def get_int(self, name: str) -> int:
        """Return a value as int."""
        return self._as(name, ValueType.INT)  # type: ignore[return-value]

    def get_long(self, name: str) -> int:
        """Return a value as long."""
        return self._as(name, ValueType.LONG)  # type: ignore[return-value]

    def get_float(self, name: str) -> float:
        """Return a value as float."""
        return self._as(name, ValueType.FLOAT)  # type: ignore[return-value]

    def get_double(self, name: str) -> float:
        """Return a value as double."""
        return self._as(name, ValueType.DOUBLE)  # type: ignore[return-value]

    def get_string(self, name: str) -> str | None:
        """Return a value as text; one that is not there is None."""
        return self._as(name, ValueType.STRING)  # type: ignore[return-value]

    def get_bytes(self, name: str) -> bytes | None:
        """Return a value that is bytes; one that is not there is None."""
        return self._as(name, ValueType.BYTES)  # type: ignore[return-value]

    def get_object(self, name: str) -> BodyValue | None:
        """Return a value as it was set; one that is not there is None."""
        return self._get().get(name, NULL).value

    # --- body ----------------------------------------------------------------------------------------------

    def _as(self, name: str, kind: ValueType) -> BodyValue | None:
        return read(self._get().get(name, NULL), kind, BODY_TABLE, f"the value {name!r:.64}")

    def _set(self, name: str, value: Value) -> None:
        checked = named(name, "the name of a value")
        self._write()
        self._get()[checked] = value

    def json(self) -> object:
        """Return all entries; those that are bytes stay bytes."""
        return self.entries

    def _whole(self) -> dict[str, BodyValue | None]:
        return self.entries

    def _empty(self) -> dict[str, Value]:
        return {}

    def _decoded(self, payload: bytes) -> dict[str, Value]:
        return decode_map(payload)

    def _encoded(self) -> bytes:
        return encode_map(self._get())


class StreamMessage(Bodied[list[Value]]):
    """A message whose body is a stream of values."""

    __slots__ = ("_at", "_within")
    __match_args__: ClassVar[tuple[str, ...]] = ("values",)
    body_type: ClassVar[BodyType] = BodyType.STREAM

    def __init__(self, values: Iterable[BodyValue | None] = ()) -> None:
        super().__init__()
        self._at = 0
        self._within = 0
        """Number of the bytes at that place that were read, in parts; 0 unless they are being read so."""
        for number, value in enumerate(values, 1):
            self._append(inferred(value, f"value {number} of a StreamMessage"))

    @property
    def values(self) -> list[BodyValue | None]:
        """All values, as a list of one's own, whether the body is being written or read."""
        return [value for _, value in self._get()]

    def reset(self) -> None:
        """Let the body be read, from its beginning, and not be written any more."""
        self._read_only = True
        self._at = self._within = 0

    def clear_body(self) -> None:
        """Empty the body, and let it be written. Properties and header fields stay."""
        super().clear_body()
        self._at = self._within = 0

    # --- writing -------------------------------------------------------------------------------------------

    def write_boolean(self, value: bool) -> None:
        """Write a boolean."""
        self._append(value_of(ValueType.BOOLEAN, value))

    def write_byte(self, value: int) -> None:
        """Write a byte: a whole number of 8 bits, -128 to 127."""
        self._append(value_of(ValueType.BYTE, value))

    def write_short(self, value: int) -> None:
        """Write a short: a whole number of 16 bits."""
        self._append(value_of(ValueType.SHORT, value))

    def write_char(self, value: str) -> None:
        """Write a char: one character of up to 16 bits."""
        self._append(value_of(ValueType.CHAR, value))

    def write_int(self, value: int) -> None:
        """Write an int: a whole number of 32 bits."""
        self._append(value_of(ValueType.INT, value))

    def write_long(self, value: int) -> None:
        """Write a long: a whole number of 64 bits."""
        self._append(value_of(ValueType.LONG, value))

    def write_float(self, value: float) -> None:
        """Write a float: it is rounded to 32 bits."""
        self._append(value_of(ValueType.FLOAT, value))

    def write_double(self, value: float) -> None:
        """Write a double: what Python calls a float."""
        self._append(value_of(ValueType.DOUBLE, value))

    def write_string(self, value: str | None) -> None:
        """Write a text, or null."""
        self._append(value_or_null(ValueType.STRING, value))

    def write_bytes(self, value: bytes | bytearray | memoryview | None) -> None:
        """Write bytes as one value, or null. They are copied."""
        self._append(value_or_null(ValueType.BYTES, value))

    def write_object(self, value: BodyValue | None) -> None:
        """Write a value with the type of its Python class: boolean, int or else long, double, String, byte[], null."""
        self._append(inferred(value))

    # --- reading -------------------------------------------------------------------------------------------

    def read_boolean(self) -> bool:
        """Return the next value as boolean."""
        return self._next(ValueType.BOOLEAN)  # type: ignore[return-value]  # by the table, as below

    def read_byte(self) -> int:
        """Return the next value as byte."""
        return self._next(ValueType.BYTE)  # type: ignore[return-value]

    def read_short(self) -> int:
        """Return the next value as short."""
        return self._next(ValueType.SHORT)  # type: ignore[return-value]

    def read_char(self) -> str:
        """Return the next value as char."""
        return self._next(ValueType.CHAR)  # type: ignore[return-value]

    def read_int(self) -> int:
        """Return the next value as int."""
        return self._next(ValueType.INT)  # type: ignore[return-value]

    def read_long(self) -> int:
        """Return the next value as long."""
        return self._next(ValueType.LONG)  # type: ignore[return-value]

    def read_float(self) -> float:
        """Return the next value as float."""
        return self._next(ValueType.FLOAT)  # type: ignore[return-value]

    def read_double(self) -> float:
        """Return the next value as a double."""
        return self._next(ValueType.DOUBLE)  # type: ignore[return-value]

    def read_string(self) -> str | None:
        """Return the next value as text."""
        return self._next(ValueType.STRING)  # type: ignore[return-value]

    def read_bytes(self, size: int | None = None) -> bytes | None:
        """Return the next value, which is bytes, or None if it is null.

        With a `size` the value is read in parts of that many bytes: the one that is shorter, or empty, is the last, and
        until then nothing else can be read.
        """
        value = self._current()
        found = read(value, ValueType.BYTES, BODY_TABLE, self._what())
        if not isinstance(found, bytes):
            self._at += 1
            return None
        if size is not None and size < 1:
            raise MessageFormatException(f"bytes must be read in parts of at least 1, not {size}")
        end = len(found) if size is None else self._within + size
        part = found[self._within : end]
        if size is None or len(part) < size:
            self._at, self._within = self._at + 1, 0
        else:
            self._within = end
        return part

    def read_object(self) -> BodyValue | None:
        """Return the next value as it was written."""
        value = self._whole_current()
        self._at += 1
        return value.value

    # --- body ----------------------------------------------------------------------------------------------

    def _append(self, value: Value) -> None:
        self._write()
        self._get().append(value)

    def _current(self) -> Value:
        if not self._read_only:
            raise MessageNotReadableException("the body is being written: reset() to read it")
        values = self._get()
        if self._at >= len(values):
            raise MessageEOFException(f"the end of the stream was reached: all {len(values)} values were read")
        return values[self._at]

    def _whole_current(self) -> Value:
        value = self._current()
        if self._within:
            raise MessageFormatException(
                "a bytes value is being read in parts: call read_bytes until a part is shorter than asked for"
            )
        return value

    def _next(self, kind: ValueType) -> BodyValue | None:
        found = read(self._whole_current(), kind, BODY_TABLE, self._what())
        self._at += 1
        return found

    def _what(self) -> str:
        return f"value {self._at + 1} of the stream"

    def json(self) -> object:
        """Return all values; those that are bytes stay bytes."""
        return self.values

    def _whole(self) -> object:
        raise MessageFormatException("a StreamMessage has no single body: read its values one by one, or use `values`")

    def _shown(self) -> object:
        return self.values

    def _empty(self) -> list[Value]:
        return []

    def _decoded(self, payload: bytes) -> list[Value]:
        return decode_stream(payload)

    def _encoded(self) -> bytes:
        return encode_stream(self._get())
