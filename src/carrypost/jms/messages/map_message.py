"""`MapMessage`: a body of names with values, each of which keeps its type."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import ClassVar

from carrypost.jms.destinations import named
from carrypost.jms.messages import codec
from carrypost.jms.messages.conversions import BODY_TABLE, read
from carrypost.jms.messages.message import Bodied
from carrypost.jms.messages.values import NULL, BodyValue, Value, ValueType, inferred, value_of, value_or_null
from carrypost.model.headers import BodyType


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
        return codec.decode_map(payload)

    def _encoded(self) -> bytes:
        return codec.encode_map(self._get())
