"""OpenWire as bytes: commands in the loose encoding, without cached values, of versions 9 to 12; typed values; frames.

Pure: bytes in, values out. All that differs between commands is in `commands`; of each class and version a plan is made
once, in which neighbouring numbers are read and written together. Any fault of the bytes is an `OpenWireError`, and
nothing is allotted that was not received: lengths are compared with what is there.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Iterator, Mapping
from types import NoneType
from typing import Any, Final, NamedTuple, TypeVar, get_args, get_type_hints

from carrypost.daemon.openwire import commands
from carrypost.daemon.openwire.commands import NEWER, Structure, WireFormatInfo
from carrypost.errors import JMSException, MessageFormatException
from carrypost.jms.messages.codec import VALUES_MAX
from carrypost.jms.messages.values import FORMATS, NULL, Value, ValueType
from carrypost.model.properties import fits

VERSION_MIN, VERSION_MAX = 9, 12
MAGIC: Final = b"ActiveMQ"
HEAD_BYTES_MAX: Final = 64 * 1024
"""Bytes of a command besides a body, and of any command of a client that is not connected."""
_LENGTH = struct.Struct(">i")
_TEXT_BYTES_MAX = 0xFFFF
_FIXED, _TEXT, _DATA, _NESTED, _ARRAY, _FAILURE = range(6)
S = TypeVar("S", bound=Structure)


class OpenWireError(JMSException):
    """Bytes that are no command, or a command that must not come now; the connection ends with it."""


# --- plans -----------------------------------------------------------------------------------------------------------


class _Step(NamedTuple):
    """One or more fields of a class, as they are read and written."""

    kind: int
    fixed: struct.Struct
    """Numbers that follow each other."""
    allowed: frozenset[int] = frozenset()
    """Types of structures that may be there."""
    width: int = 1
    """Number of fields."""


_NO_NUMBERS = struct.Struct("")
TYPES: Final[Mapping[int, type[Structure]]] = {
    each.number: each
    for each in vars(commands).values()
    if isinstance(each, type) and issubclass(each, Structure) and each.number
}
"""Classes by the numbers of their types."""
_plans: dict[tuple[type[Structure], int], list[_Step]] = {}


def _plan(kind: type[Structure], version: int) -> list[_Step]:
    found = _plans.get((kind, version))
    if found is None:
        found = _plans[kind, version] = list(_steps(kind, version))
    return found


def _steps(kind: type[Structure], version: int) -> Iterator[_Step]:
    hints = get_type_hints(kind, include_extras=True)
    numbers = ""
    for name in kind.__struct_fields__:
        plain, *marks = (
            (hints[name].__origin__, *hints[name].__metadata__) if _annotated(hints[name]) else (hints[name],)
        )
        if NEWER in marks and version < NEWER:
            continue
        number = "?" if plain is bool else "".join(each for each in marks if each in ("b", "i", "q", "8s"))
        if number:
            numbers += number
            continue
        if numbers:
            yield _numbers(numbers)
            numbers = ""
        yield _step(plain, marks)
    if numbers:
        yield _numbers(numbers)


def _annotated(hint: Any) -> bool:  # noqa: ANN401 - any annotation
    return hasattr(hint, "__metadata__")


def _numbers(forms: str) -> _Step:
    made = struct.Struct(f">{forms}")
    return _Step(_FIXED, made, width=len(made.unpack(bytes(made.size))))


def _step(plain: Any, marks: list[object]) -> _Step:  # noqa: ANN401 - any annotation
    inner = [each for each in get_args(plain) if each is not NoneType]
    if "throwable" in marks:
        return _Step(_FAILURE, _NO_NUMBERS)
    if inner in ([str], [bytes]):
        return _Step(_TEXT if inner == [str] else _DATA, _NO_NUMBERS)
    if inner and get_args(inner[0]):  # A tuple of structures.
        return _Step(_ARRAY, _NO_NUMBERS, _numbers_of(get_args(inner[0])[:1]))
    return _Step(_NESTED, _NO_NUMBERS, _numbers_of(inner))


def _numbers_of(kinds: Iterable[type[Structure]]) -> frozenset[int]:
    """Return the types of classes, and of those derived from them."""
    return frozenset(number for number, kind in TYPES.items() if issubclass(kind, tuple(kinds)))


# --- reading ---------------------------------------------------------------------------------------------------------


def decode(data: bytes, version: int = VERSION_MIN) -> Structure:
    """Return the command in a frame, its length left out; raises `OpenWireError`."""
    try:
        kind = TYPES.get(data[0])
        if kind is None:
            raise OpenWireError(f"the command is of the type {data[0]}, which this node does not know")
        found, at = _read(data, 1, kind, version)
    except (struct.error, IndexError, UnicodeError) as error:
        raise OpenWireError(f"the bytes are no command: {error}") from None
    if at != len(data):
        raise OpenWireError(f"{len(data) - at} bytes follow the command {kind.__name__}")
    return found


def _read(data: bytes, at: int, kind: type[S], version: int) -> tuple[S, int]:
    values: list[Any] = []
    for form, fixed, allowed, _ in _plan(kind, version):
        if form == _FIXED:
            values += fixed.unpack_from(data, at)
            at += fixed.size
        elif not data[at]:
            values.append(None)
            at += 1
        elif form == _TEXT:
            found, at = _read_text(data, at + 1)
            values.append(found)
        elif form == _DATA:
            (length,) = _LENGTH.unpack_from(data, at + 1)
            values.append(_cut(data, at + 5, length))
            at += 5 + length
        elif form == _NESTED:
            nested, at = _read_nested(data, at + 1, allowed, version)
            values.append(nested)
        elif form == _ARRAY:
            array, at = _read_array(data, at + 1, allowed, version)
            values.append(array)
        else:
            failure, at = _read_failure(data, at + 1)
            values.append(failure)
    if version < NEWER:
        values = _filled(kind, values)
    return kind(*values), at


def _filled(kind: type[Structure], values: list[Any]) -> list[Any]:
    """Return the values of all fields: those that the version lacks have their defaults."""
    if len(values) == len(kind.__struct_fields__):
        return values
    hints = get_type_hints(kind, include_extras=True)
    given, made = iter(values), kind()
    return [
        getattr(made, name) if _annotated(hints[name]) and NEWER in hints[name].__metadata__ else next(given)
        for name in kind.__struct_fields__
    ]


def _cut(data: bytes, at: int, length: int) -> bytes:
    if not 0 <= length <= len(data) - at:
        raise IndexError(f"a length of {length} bytes, where {len(data) - at} follow")
    return data[at : at + length]


def _read_text(data: bytes, at: int) -> tuple[str, int]:
    length = data[at] << 8 | data[at + 1]
    return java_text(_cut(data, at + 2, length)), at + 2 + length


def _read_nested(data: bytes, at: int, allowed: frozenset[int], version: int) -> tuple[Structure, int]:
    if data[at] not in allowed:
        raise OpenWireError(f"a value of the type {data[at]}, which must not be there")
    return _read(data, at + 1, TYPES[data[at]], version)


def _read_array(data: bytes, at: int, allowed: frozenset[int], version: int) -> tuple[tuple[Structure, ...], int]:
    count, at, found = data[at] << 8 | data[at + 1], at + 2, []
    for _ in range(count):
        if not data[at]:
            raise OpenWireError("an array with a null")
        each, at = _read_nested(data, at + 1, allowed, version)
        found.append(each)
    return tuple(found), at


def _read_failure(data: bytes, at: int) -> tuple[tuple[str, str], int]:
    texts = []
    for _ in range(2):  # Its class and its message. A stack trace would follow, which was not agreed upon.
        text = ""
        if data[at]:
            text, at = _read_text(data, at + 1)
        else:
            at += 1
        texts.append(text)
    return (texts[0], texts[1]), at


def java_text(data: bytes) -> str:
    """Return a text as Java writes it: in UTF-8, but NUL as two bytes, and beyond U+FFFF two surrogates."""
    if data.isascii():
        return data.decode()
    if b"\xc0" not in data and b"\xed" not in data:
        return data.decode()
    text = data.replace(b"\xc0\x80", b"\0").decode("utf-8", "surrogatepass")
    return text.encode("utf-16", "surrogatepass").decode("utf-16")


# --- writing ---------------------------------------------------------------------------------------------------------


def encode(value: Structure, version: int = VERSION_MIN) -> bytes:
    """Return a command as a frame, with its length."""
    data = _written(value, version)
    return _LENGTH.pack(len(data)) + data


def nested(value: Structure, version: int = VERSION_MIN) -> bytes:
    """Return a value as it stands in another one."""
    return b"\1" + _written(value, version)


def _written(value: Structure, version: int) -> bytes:
    parts = [bytes([value.number])]
    _write(parts, value, version)
    return b"".join(parts)


def _write(parts: list[bytes], value: Structure, version: int) -> None:
    kind = type(value)
    fields = iter(_fields(kind, version))
    for form, fixed, _, width in _plan(kind, version):
        if form == _FIXED:
            parts.append(fixed.pack(*(getattr(value, next(fields)) for _ in range(width))))
            continue
        found = getattr(value, next(fields))
        if found is None:
            parts.append(b"\0")
        elif form == _TEXT:
            parts += b"\1", _text(found)
        elif form == _DATA:
            parts += b"\1", _LENGTH.pack(len(found)), found
        elif form == _NESTED:
            parts.append(nested(found, version))
        elif form == _ARRAY:
            parts += b"\1", len(found).to_bytes(2, "big"), *(nested(each, version) for each in found)
        else:
            parts += b"\1", *(b"\1" + _text(each) for each in found)


def _fields(kind: type[Structure], version: int) -> Iterator[str]:
    hints = get_type_hints(kind, include_extras=True) if version < NEWER else {}
    for name in kind.__struct_fields__:
        if version >= NEWER or not (_annotated(hints[name]) and NEWER in hints[name].__metadata__):
            yield name


def _text(text: str) -> bytes:
    data = java_bytes(text)
    if len(data) > _TEXT_BYTES_MAX:
        raise MessageFormatException(f"a name or header has at most {_TEXT_BYTES_MAX} bytes in Java, not {len(data)}")
    return len(data).to_bytes(2, "big") + data


def java_bytes(text: str) -> bytes:
    """Return a text in the bytes that `java_text` reads."""
    if text.isascii():
        return text.encode().replace(b"\0", b"\xc0\x80")
    units = text.encode("utf-16-be", "surrogatepass")
    if len(units) > 2 * len(text):  # It has characters of two units.
        text = "".join(map(chr, struct.unpack(f">{len(units) // 2}H", units)))
    return text.encode("utf-8", "surrogatepass").replace(b"\0", b"\xc0\x80")


# --- typed values ----------------------------------------------------------------------------------------------------

_BIG_TEXT = 13
_KINDS: Final[Mapping[int, ValueType]] = {
    0: ValueType.NULL, 1: ValueType.BOOLEAN, 2: ValueType.BYTE, 3: ValueType.CHAR, 4: ValueType.SHORT,
    5: ValueType.INT, 6: ValueType.LONG, 7: ValueType.DOUBLE, 8: ValueType.FLOAT, 9: ValueType.STRING,
    10: ValueType.BYTES, _BIG_TEXT: ValueType.STRING,
}  # fmt: skip
_NUMBERS: Final = {kind: bytes([number]) for number, kind in _KINDS.items() if number != _BIG_TEXT}
_SHORT_TEXT_MAX = 8_191


def read_map(data: bytes | None) -> dict[str, Value]:
    """Return a map of typed values; raises `MessageFormatException`."""
    if not data:
        return {}
    found: dict[str, Value] = {}
    try:
        (count,) = _LENGTH.unpack_from(data)
        _check_count(count)
        at = 4
        for _ in range(count):
            name, at = _read_text(data, at)
            found[name], at = _read_value(data, at)
    except (struct.error, IndexError, UnicodeError) as error:
        raise MessageFormatException(f"the bytes are no map: {error}") from None
    return found


def read_stream(data: bytes | None) -> list[Value]:
    """Return typed values in order; raises `MessageFormatException`."""
    found, at, data = [], 0, data or b""
    try:
        while at < len(data):
            value, at = _read_value(data, at)
            found.append(value)
            _check_count(len(found))
    except (struct.error, IndexError, UnicodeError) as error:
        raise MessageFormatException(f"the bytes are no stream: {error}") from None
    return found


def _check_count(count: int) -> None:
    if not 0 <= count <= VALUES_MAX:
        raise MessageFormatException(f"a map or stream has at most {VALUES_MAX} values, not {count}")


def _read_value(data: bytes, at: int) -> tuple[Value, int]:
    number = data[at]
    kind = _KINDS.get(number)
    at += 1
    if kind is None:
        raise MessageFormatException(f"a value of the type {number}: maps and lists inside of messages are not JMS's")
    if kind is ValueType.NULL:
        return NULL, at
    if kind is ValueType.STRING and number != _BIG_TEXT:
        text, at = _read_text(data, at)
        return Value(kind, text), at
    if kind in (ValueType.STRING, ValueType.BYTES):
        (length,) = _LENGTH.unpack_from(data, at)
        found = _cut(data, at + 4, length)
        return Value(kind, found if kind is ValueType.BYTES else java_text(found)), at + 4 + length
    form = FORMATS[kind]
    (plain,) = form.unpack_from(data, at)
    if kind is ValueType.CHAR:
        plain = chr(plain)
    if not fits(kind, plain):
        raise MessageFormatException(f"no {kind.text}: {plain!r}")
    return Value(kind, plain), at + form.size


def map_bytes(values: Mapping[str, Value | tuple[ValueType, Any]]) -> bytes:
    """Return a map as bytes."""
    parts = [_LENGTH.pack(len(values))]
    for name, (kind, value) in values.items():
        # Java reads these short texts as UTF-8, although it writes them as `java_bytes` does.
        parts += _text(name), _value(kind, value, str.encode)
    return b"".join(parts)


def stream_bytes(values: Iterable[Value]) -> bytes:
    """Return typed values in order as bytes."""
    return b"".join(_value(kind, value, java_bytes) for kind, value in values)


def _value(kind: ValueType, value: Any, short: Callable[[str], bytes]) -> bytes:  # noqa: ANN401 - as the kind says
    if kind is ValueType.NULL or value is None:
        return _NUMBERS[ValueType.NULL]
    if kind is ValueType.BYTES:
        return b"".join((_NUMBERS[kind], _LENGTH.pack(len(value)), value))
    if kind is ValueType.STRING:
        data = java_bytes(value)
        if len(data) < _SHORT_TEXT_MAX:
            data = short(value)
            return _NUMBERS[kind] + len(data).to_bytes(2, "big") + data
        return bytes([_BIG_TEXT]) + _LENGTH.pack(len(data)) + data
    packed: bytes = FORMATS[kind].pack(ord(value) if kind is ValueType.CHAR else value)
    return _NUMBERS[kind] + packed


def long_text(data: bytes | None) -> str | None:
    """Return the text in the body of a message; raises `MessageFormatException`."""
    if data is None:
        return None
    try:
        (length,) = _LENGTH.unpack_from(data)
        return None if length < 0 else java_text(_cut(data, 4, length))
    except (struct.error, IndexError, UnicodeError) as error:
        raise MessageFormatException(f"the bytes are no text: {error}") from None


def long_text_bytes(text: str | None) -> bytes | None:
    """Return the body of a message that is a text."""
    if text is None:
        return None
    data = java_bytes(text)
    return _LENGTH.pack(len(data)) + data


# --- frames ----------------------------------------------------------------------------------------------------------


class Decoder:
    """The bytes of a client as commands; the first one must be a `WireFormatInfo`."""

    def __init__(self, body_bytes_max: int) -> None:
        self._body_bytes_max = body_bytes_max
        self._buffer = bytearray()
        self.version = 0
        """The version that was agreed upon; 0 before that."""
        self.is_connected = False
        """True once the client may send messages."""

    def feed(self, data: bytes) -> None:
        """Take bytes."""
        self._buffer += data

    def next(self) -> Structure | None:
        """Return the next command; None if more bytes are needed. Raises `OpenWireError`."""
        buffer = self._buffer
        if len(buffer) < _LENGTH.size:
            return None
        (length,) = _LENGTH.unpack_from(buffer)
        bytes_max = HEAD_BYTES_MAX + (self._body_bytes_max if self.is_connected else 0)
        if not 0 < length <= bytes_max:
            raise OpenWireError(f"a command of {length:,} bytes, where at most {bytes_max:,} are taken")
        if not self.version and len(buffer) > _LENGTH.size + len(MAGIC) and buffer[4:13] != b"\1" + MAGIC:
            raise OpenWireError("the first bytes are no WireFormatInfo of OpenWire")
        end = _LENGTH.size + length
        if len(buffer) < end:
            return None
        data = bytes(memoryview(buffer)[_LENGTH.size : end])
        del buffer[:end]
        found = decode(data, self.version or VERSION_MIN)
        if isinstance(found, WireFormatInfo) == bool(self.version):
            raise OpenWireError(f"a {type(found).__name__} must not come now")
        return found
