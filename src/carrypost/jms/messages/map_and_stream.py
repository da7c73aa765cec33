"""`MapMessage` and `StreamMessage`: bodies of values, each of which keeps its type.

A map has values under names. A stream has them one after the other: it is written, then `reset`, then read from its
beginning. A read of a stream that fails moves nothing: the same value can be read again as another type.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import ClassVar, TypeVar

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
    typed,
    value_of,
    value_or_null,
)
from carrypost.model.headers import BodyType
from carrypost.model.properties import ValueType

T = TypeVar("T")


# ruff: noqa: SLF001 - made here are methods of the classes below


def _sets(kind: ValueType, of: type[T]) -> Callable[[MapMessage, str, T], None]:
    """Return the method of maps that sets a value of this type."""
    return typed(
        lambda message, name, value: message._set(name, value_of(kind, value)),
        "Set a value",
        kind,
        None,
        name=str,
        value=of,
    )


def _gets(kind: ValueType, of: type[T]) -> Callable[[MapMessage, str], T]:
    """Return the method of maps that returns a value as this type."""
    return typed(lambda message, name: message._as(name, kind), "Return a value", kind, of, name=str)


def _writes(kind: ValueType, of: type[T]) -> Callable[[StreamMessage, T], None]:
    """Return the method of streams that writes a value of this type."""
    return typed(lambda message, value: message._append(value_of(kind, value)), "Write a value", kind, None, value=of)


def _reads(kind: ValueType, of: type[T]) -> Callable[[StreamMessage], T]:
    """Return the method of streams that reads the next value as this type."""
    return typed(lambda message: message._next(kind), "Read the next value", kind, of)


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

    set_boolean = _sets(ValueType.BOOLEAN, bool)
    """Set a boolean."""
    set_byte = _sets(ValueType.BYTE, int)
    """Set a byte: a whole number of 8 bits, -128 to 127."""
    set_short = _sets(ValueType.SHORT, int)
    """Set a short: a whole number of 16 bits."""
    set_char = _sets(ValueType.CHAR, str)
    """Set a char: one character of up to 16 bits."""
    set_int = _sets(ValueType.INT, int)
    """Set an int: a whole number of 32 bits."""
    set_long = _sets(ValueType.LONG, int)
    """Set a long: a whole number of 64 bits."""
    set_float = _sets(ValueType.FLOAT, float)
    """Set a float: it is rounded to 32 bits."""
    set_double = _sets(ValueType.DOUBLE, float)
    """Set a double: what Python calls a float."""

    def set_string(self, name: str, value: str | None) -> None:
        """Set a text, or null."""
        self._set(name, value_or_null(ValueType.STRING, value))

    def set_bytes(self, name: str, value: bytes | bytearray | memoryview | None) -> None:
        """Set bytes, or null. They are copied."""
        self._set(name, value_or_null(ValueType.BYTES, value))

    def set_object(self, name: str, value: BodyValue | None) -> None:
        """Set a value with the type of its Python class, as ``message[name] = value`` does."""
        self[name] = value

    get_boolean = _gets(ValueType.BOOLEAN, bool)
    """Return a value as boolean; one that is not there is false."""
    get_byte = _gets(ValueType.BYTE, int)
    """Return a value as byte."""
    get_short = _gets(ValueType.SHORT, int)
    """Return a value as short."""
    get_char = _gets(ValueType.CHAR, str)
    """Return a value as char."""
    get_int = _gets(ValueType.INT, int)
    """Return a value as int."""
    get_long = _gets(ValueType.LONG, int)
    """Return a value as long."""
    get_float = _gets(ValueType.FLOAT, float)
    """Return a value as float."""
    get_double = _gets(ValueType.DOUBLE, float)
    """Return a value as double."""

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

    write_boolean = _writes(ValueType.BOOLEAN, bool)
    """Write a boolean."""
    write_byte = _writes(ValueType.BYTE, int)
    """Write a byte: a whole number of 8 bits, -128 to 127."""
    write_short = _writes(ValueType.SHORT, int)
    """Write a short: a whole number of 16 bits."""
    write_char = _writes(ValueType.CHAR, str)
    """Write a char: one character of up to 16 bits."""
    write_int = _writes(ValueType.INT, int)
    """Write an int: a whole number of 32 bits."""
    write_long = _writes(ValueType.LONG, int)
    """Write a long: a whole number of 64 bits."""
    write_float = _writes(ValueType.FLOAT, float)
    """Write a float: it is rounded to 32 bits."""
    write_double = _writes(ValueType.DOUBLE, float)
    """Write a double: what Python calls a float."""

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

    read_boolean = _reads(ValueType.BOOLEAN, bool)
    """Return the next value as boolean."""
    read_byte = _reads(ValueType.BYTE, int)
    """Return the next value as byte."""
    read_short = _reads(ValueType.SHORT, int)
    """Return the next value as short."""
    read_char = _reads(ValueType.CHAR, str)
    """Return the next value as char."""
    read_int = _reads(ValueType.INT, int)
    """Return the next value as int."""
    read_long = _reads(ValueType.LONG, int)
    """Return the next value as long."""
    read_float = _reads(ValueType.FLOAT, float)
    """Return the next value as float."""
    read_double = _reads(ValueType.DOUBLE, float)
    """Return the next value as a double."""

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
