"""OpenWire as bytes: commands in the loose encoding, without cached values, of versions 9 to 12; typed values; frames.

Pure: bytes in, values out. All that differs between commands is in `commands`; of each class and version a plan is made
once, in which neighbouring numbers are read and written together. Any fault of the bytes is an `OpenWireError`, and
nothing is allotted that was not received: lengths are compared with what is there.
"""

from __future__ import annotations

import functools
import struct
from collections.abc import Callable, Iterable, Mapping
from types import NoneType
from typing import Annotated, Any, Final, NamedTuple, TypeVar, get_args, get_origin, get_type_hints

from carrypost.daemon.openwire import commands
from carrypost.daemon.openwire.commands import NEWER, Name, Structure, WireFormatInfo, number_of
from carrypost.errors import JMSException, MessageFormatException
from carrypost.jms.messages.values import FORMATS, NULL, VALUES_MAX, Value
from carrypost.model.properties import ValueType, fits

VERSION_MIN, VERSION_MAX = 9, 12
MAGIC: Final = b"ActiveMQ"
HEAD_BYTES_MAX: Final = 64 * 1024
"""Bytes of a command besides a body, and of any command of a client that is not connected."""
_LENGTH = struct.Struct(">i")
_TEXT_BYTES_MAX = 0xFFFF
_NAMES_KEPT, _NAME_BYTES_MAX = 4_096, 256
"""Names that are not decoded again, and the size of each."""
_FIXED, _TEXT, _DATA, _NESTED, _ARRAY, _FAILURE = range(6)
S = TypeVar("S", bound=Structure)


class OpenWireError(JMSException):
    """Bytes that are no command, or a command that must not come now; the connection ends with it."""


# --- plans -----------------------------------------------------------------------------------------------------------


class _Step(NamedTuple):
    """One field of a class, or neighbouring numbers, as they are read and written."""

    kind: int
    names: tuple[str, ...]
    numbers: struct.Struct = struct.Struct("")
    allowed: frozenset[int] = frozenset()
    """Types of structures that may be there."""


TYPES: Final[Mapping[int, type[Structure]]] = {
    number_of(each): each
    for each in vars(commands).values()
    if isinstance(each, type) and issubclass(each, Structure) and number_of(each)
}
"""Classes by the numbers of their types."""


@functools.cache
def _plan(kind: type[Structure], version: int) -> tuple[_Step, ...]:
    steps: list[_Step] = []
    for name, hint in get_type_hints(kind, include_extras=True).items():
        if name not in kind.__struct_fields__:
            continue
        plain, *marks = (hint.__origin__, *hint.__metadata__) if get_origin(hint) is Annotated else (hint,)
        number = "?" if plain is bool else "".join(each for each in marks if each in ("b", "i", "q", "8s"))
        if NEWER in marks and version < NEWER:
            continue
        if not number:
            steps.append(_step(name, plain, marks))
        elif steps and steps[-1].kind == _FIXED:
            before = steps.pop()
            steps.append(_Step(_FIXED, (*before.names, name), struct.Struct(f"{before.numbers.format}{number}")))
        else:
            steps.append(_Step(_FIXED, (name,), struct.Struct(f">{number}")))
    return tuple(steps)


def _step(name: str, plain: Any, marks: list[object]) -> _Step:  # noqa: ANN401 - any annotation
    inner = [each for each in get_args(plain) if each is not NoneType]
    if "throwable" in marks:
        return _Step(_FAILURE, (name,))
    if inner in ([str], [bytes]):
        return _Step(_TEXT if inner == [str] else _DATA, (name,))
    array = bool(inner and get_args(inner[0]))  # A tuple of structures.
    kinds = get_args(inner[0])[:1] if array else tuple(inner)
    allowed = frozenset(number for number, each in TYPES.items() if issubclass(each, kinds))
    return _Step(_ARRAY if array else _NESTED, (name,), allowed=allowed)


_NAME_ENDS: Final = {
    number: sum(step.numbers.size for step in _plan(kind, VERSION_MIN)[1:])
    for number, kind in TYPES.items()
    if issubclass(kind, Name)
}
"""By type, the size of the numbers behind the text of a name."""


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
    plan = _plan(kind, version)
    values: list[Any] = []
    for form, _, numbers, allowed in plan:
        if form == _FIXED:
            values += numbers.unpack_from(data, at)
            at += numbers.size
            continue
        at += 1
        if not data[at - 1]:
            values.append(None)
            continue
        if form == _NESTED:
            found, at = _read_nested(data, at, allowed, version)
        elif form == _TEXT:
            found, at = _read_text(data, at)
        elif form == _DATA:
            found, at = _read_data(data, at)
        elif form == _ARRAY:
            found, at = _read_array(data, at, allowed, version)
        else:
            found, at = _read_failure(data, at)
        values.append(found)
    if version >= NEWER:
        return kind(*values), at
    names = (name for step in plan for name in step.names)
    return kind(**dict(zip(names, values, strict=True))), at


def _cut(data: bytes, at: int, length: int) -> bytes:
    if not 0 <= length <= len(data) - at:
        raise IndexError(f"a length of {length} bytes, where {len(data) - at} follow")
    return data[at : at + length]


def _read_text(data: bytes, at: int) -> tuple[str, int]:
    length = data[at] << 8 | data[at + 1]
    return java_text(_cut(data, at + 2, length)), at + 2 + length


def _read_data(data: bytes, at: int) -> tuple[bytes, int]:
    (length,) = _LENGTH.unpack_from(data, at)
    at += _LENGTH.size
    return _cut(data, at, length), at + length


def _read_nested(data: bytes, at: int, allowed: frozenset[int], version: int) -> tuple[Any, int]:
    number = data[at]
    if number not in allowed:
        raise OpenWireError(f"a value of the type {number}, which must not be there")
    if number in _NAME_ENDS and data[at + 1]:
        end = at + 4 + (data[at + 2] << 8 | data[at + 3]) + _NAME_ENDS[number]
        if end <= min(len(data), at + _NAME_BYTES_MAX):
            return _name(data[at:end]), end
    return _read(data, at + 1, TYPES[number], version)


@functools.lru_cache(_NAMES_KEPT)
def _name(data: bytes) -> Structure:
    """Return the name in these bytes. Clients say the same names again and again."""
    return _read(data, 1, TYPES[data[0]], VERSION_MAX)[0]


def _read_array(data: bytes, at: int, allowed: frozenset[int], version: int) -> tuple[tuple[Structure, ...], int]:
    count, at, found = data[at] << 8 | data[at + 1], at + 2, []
    for _ in range(count):
        if not data[at]:
            raise OpenWireError("an array with a null")
        each, at = _read_nested(data, at + 1, allowed, version)
        found.append(each)
    return tuple(found), at


def _read_failure(data: bytes, at: int) -> tuple[tuple[str, ...], int]:
    texts = []
    for _ in range(2):  # Its class and its message. A stack trace would follow, which was not agreed upon.
        text, at = _read_text(data, at + 1) if data[at] else ("", at + 1)
        texts.append(text)
    return tuple(texts), at


def java_text(data: bytes) -> str:
    """Return a text as Java writes it: in UTF-8, but NUL as two bytes, and beyond U+FFFF two surrogates."""
    if data.isascii() or (b"\xc0" not in data and b"\xed" not in data):
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
    parts = [bytes([number_of(type(value))])]
    for form, names, numbers, _ in _plan(type(value), version):
        if form == _FIXED:
            parts.append(numbers.pack(*[getattr(value, name) for name in names]))
            continue
        found = getattr(value, names[0])
        if found is None:
            parts.append(b"\0")
        elif form == _NESTED:
            parts.append(nested(found, version))
        elif form == _TEXT:
            parts += b"\1", _text(found)
        elif form == _DATA:
            parts += b"\1", _LENGTH.pack(len(found)), found
        elif form == _ARRAY:
            parts += b"\1", len(found).to_bytes(2, "big"), *(nested(each, version) for each in found)
        else:
            parts += b"\1", *(b"\1" + _text(each) for each in found)
    return b"".join(parts)


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
        found, at = _read_data(data, at)
        return Value(kind, found if kind is ValueType.BYTES else java_text(found)), at
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
        return None if data[0] >> 7 else java_text(_read_data(data, 0)[0])  # A length below 0 is no text.
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
