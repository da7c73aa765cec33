"""OpenWire's bytes: every class of command, typed values, frames, and whatever else comes."""

from __future__ import annotations

import random
import zlib
from typing import Any, get_args, get_type_hints

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.openwire_wire import TRANSCRIPTS, transcript

from carrypost.daemon.openwire import codec
from carrypost.daemon.openwire import commands as wire
from carrypost.daemon.openwire.codec import Decoder, OpenWireError
from carrypost.daemon.openwire.mapping import sent
from carrypost.errors import JMSException, MessageFormatException
from carrypost.jms.messages.values import Value
from carrypost.model.properties import ValueType

VERSIONS = 9, 10, 11, 12
CLASSES = sorted(codec.TYPES.values(), key=wire.number_of)
TEXT = "Grüße \0 \U0001f600"


def filled(kind: type[wire.Structure], chance: random.Random) -> wire.Structure:
    """Return a value with random fields, some of which are null."""
    made = kind()
    hints = get_type_hints(kind, include_extras=True)
    for name in kind.__struct_fields__:
        plain = getattr(hints[name], "__origin__", hints[name])
        marks = getattr(hints[name], "__metadata__", ())
        setattr(made, name, _value(plain, marks, chance, getattr(made, name)))
    return made


def _value(  # noqa: PLR0911 - a case for each form
    plain: Any,  # noqa: ANN401
    marks: tuple[Any, ...],
    chance: random.Random,
    usual: object,
) -> object:
    if plain is bool:
        return chance.random() < 0.5
    if plain is int:
        bits = {"b": 7, "i": 31, "q": 63}[marks[0]]
        return chance.randrange(-(1 << bits), 1 << bits)
    inner = [each for each in get_args(plain) if each is not type(None)]
    if not inner or chance.random() < 0.3:
        return usual
    if "throwable" in marks:
        return "java.io.IOException", "broken"
    if wire.Destination in inner:
        return wire.TemporaryQueueName(f"ID:x:{chance.randrange(9)}")
    if inner == [str]:
        return chance.choice(("", "name", TEXT))
    if inner == [bytes]:
        return chance.randbytes(5)
    if get_args(inner[0]):
        return (filled(get_args(inner[0])[0], chance),)
    kinds = [
        each
        for each in CLASSES
        if each in inner or (wire.Destination in inner and wire.number_of(each) in range(100, 104))
    ]
    return filled(chance.choice(kinds), chance)


@pytest.mark.parametrize("kind", CLASSES, ids=lambda each: each.__name__)
@pytest.mark.parametrize("version", VERSIONS)
def test_each_class_of_command_is_read_as_it_was_written(kind: type[wire.Structure], version: int) -> None:
    for seed in range(3):
        value = filled(kind, random.Random(seed))
        data = codec.encode(value, version)
        found = codec.decode(data[4:], version)
        assert codec.encode(found, version) == data
        assert type(found) is kind
        if version > 9:
            assert found == value


@given(st.dictionaries(st.text(max_size=9), st.one_of(
    st.text(), st.integers(-(2**31), 2**31 - 1), st.booleans(), st.floats(allow_nan=False), st.binary(), st.none()
), max_size=5))  # fmt: skip
def test_maps_are_read_as_they_were_written(values: dict[str, Any]) -> None:
    kinds = {str: ValueType.STRING, int: ValueType.INT, bool: ValueType.BOOLEAN, float: ValueType.DOUBLE,
             bytes: ValueType.BYTES, type(None): ValueType.NULL}  # fmt: skip
    typed = {name: Value(kinds[type(value)], value) for name, value in values.items()}
    assert codec.read_map(codec.map_bytes(typed)) == typed
    assert codec.read_stream(codec.stream_bytes(typed.values())) == list(typed.values())


def test_long_texts_and_all_numbers_keep_their_types() -> None:
    values = [Value(ValueType.STRING, TEXT * 5_000), Value(ValueType.BYTE, -1), Value(ValueType.SHORT, 2),
              Value(ValueType.CHAR, "ü"), Value(ValueType.LONG, 2**40), Value(ValueType.FLOAT, 0.5)]  # fmt: skip
    assert codec.read_stream(codec.stream_bytes(values)) == values
    assert codec.long_text(codec.long_text_bytes(TEXT)) == TEXT
    assert codec.long_text(None) is None
    assert codec.long_text_bytes(None) is None
    assert codec.long_text(b"\xff\xff\xff\xff") is None


@pytest.mark.parametrize(
    "data",
    [
        b"\x7f\xff\xff\xff", b"\xff\xff\xff\xff", b"\0\0\0\1\0\1a\x0b\0\0\0\0", b"\0\0\0\1\0\1a\x0d\x7f\xff\xff\xff",
        b"\0\0\0\1\0\1a\x03\xd8\0", b"\0\0\0\1\0\1\xff\0", b"\0\0\0\1\0\1a\x09\0\2\xed\xa0", b"\0\0",
    ],
    ids=["many", "negative", "nested", "2 GiB", "surrogate", "name", "text", "short"],
)  # fmt: skip
def test_maps_that_are_none_are_refused(data: bytes) -> None:
    with pytest.raises(JMSException):
        codec.read_map(data)


@pytest.mark.parametrize(
    ("data", "match"),
    [
        (b"GET / HTTP/1.1\r\n\r\n", "a command of 1,195,725,856 bytes"),
        (b"\x7f\xff\xff\xff\1ActiveMQ", "a command of 2,147,483,647 bytes"),
        (b"\xff\xff\xff\xff", "a command of -1 bytes"),
        (b"\0\0\0\x10\1ActiveMX", "no WireFormatInfo"),
        (codec.encode(wire.KeepAliveInfo()), "a KeepAliveInfo must not come now"),
        (b"\0\0\0\2\x63\0", "of the type 99"),
        (b"\0\0\0\x0d\1ActiveMQ\0\0\0\x0c", "no command"),
        (
            codec.encode(wire.WireFormatInfo())[:3] + b"\x10" + codec.encode(wire.WireFormatInfo())[4:] + b"\0\0",
            "follow",
        ),
    ],
)
def test_what_is_no_beginning_of_a_client_is_refused(data: bytes, match: str) -> None:
    decoder = Decoder(10**6)
    decoder.feed(data)
    with pytest.raises(OpenWireError, match=match):
        decoder.next()


def test_values_are_only_where_their_class_has_them_so_that_nothing_is_nested_deeply() -> None:
    nested = b"\1\x0c\0\0\0\1\0" * 1_000  # Each a RemoveInfo, as what another one removes.
    with pytest.raises(OpenWireError, match="a value of the type 12, which must not be there"):
        codec.decode(b"\x0c\0\0\0\1\0" + nested, 12)
    with pytest.raises(OpenWireError, match="no command"):
        codec.decode(b"\x0c\0\0\0\1\0" + b"\1\x78\1\0\1\xff" + bytes(8), 12)


def message(content: bytes, *, counted: bool = False) -> wire.Message:
    kind = wire.BytesMessage if counted else wire.TextMessage
    return kind(destination=wire.QueueName("x"), content=content, compressed=True)


def test_compressed_bodies_that_lie_about_their_size_are_refused_within_the_limit() -> None:
    whole = zlib.compress(b"x" * 100)
    assert sent(message(b"\0\0\0\x64" + whole, counted=True), 0, 1_000).message.payload == b"x" * 100
    assert sent(message(b"\0\0\0\x05" + whole, counted=True), 0, 1_000).message.payload == b"x" * 5
    bomb = zlib.compress(bytes(10**7))
    for wrong, match in (
        (message(b"\0\0\0\x65" + whole, counted=True), "shorter"),
        (message(b"\x7f\0\0\0" + bomb, counted=True), "more"),
        (message(bomb), "more"), (message(whole[:-3]), "shorter"), (message(b"nothing"), "not compressed"),
        (message(whole), "no text"),
    ):  # fmt: skip
        with pytest.raises(MessageFormatException, match=match):
            sent(wrong, 0, 1_000)


@pytest.mark.parametrize("name", sorted(each.stem for each in TRANSCRIPTS.glob("*.bin")))
def test_each_byte_of_a_session_changed_cut_or_repeated_gives_commands_or_one_error(name: str) -> None:
    chance = random.Random(name)
    frames = [each.data for each in transcript(name) if each.is_clients and len(each.data) < 2_000]
    data = b"".join(frames)
    for at in range(chance.randrange(9), len(data), max(len(data) // 60, 1)):
        for broken in (
            data[:at] + bytes([data[at] ^ 1 << chance.randrange(8)]) + data[at + 1 :],
            data[:at] + data[at + 1 :],
            data[:at] + data[at : at + 1] + data[at:],
        ):
            decoder = Decoder(10**6)
            decoder.feed(broken[: at + 600])
            try:
                while (found := decoder.next()) is not None:
                    if isinstance(found, wire.WireFormatInfo):
                        decoder.version, decoder.is_connected = 12, True
            except OpenWireError:
                pass
