"""Bodies of messages: writing and reading them, their bytes, objects, and what strangers may send instead."""

from __future__ import annotations

import math
import pickle
import re
from dataclasses import dataclass, field
from typing import Any

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from tests.support.jms_air import over_the_air, with_payload

import carrypost
from carrypost import (
    BytesMessage,
    IllegalArgumentException,
    MapMessage,
    Message,
    MessageEOFException,
    MessageFormatException,
    MessageNotReadableException,
    MessageNotWriteableException,
    ObjectMessage,
    StreamMessage,
    TextMessage,
)
from carrypost.jms.messages import object_message
from carrypost.jms.messages.values import VALUES_MAX, Value, decode_map, decode_stream, pack
from carrypost.model.properties import ValueType

# ---------------------------------------------------------------------------------------- writing and reading


def test_row_49_a_stream_is_written_then_reset_then_read() -> None:
    stream = StreamMessage()
    stream.write_int(5)
    with pytest.raises(MessageNotReadableException, match="reset"):
        stream.read_int()
    stream.reset()
    with pytest.raises(MessageNotWriteableException, match="clear_body"):
        stream.write_int(6)
    assert stream.read_int() == 5
    with pytest.raises(MessageEOFException, match="all 1 values were read"):
        stream.read_int()
    stream.reset()
    assert stream.read_string() == "5"
    stream.clear_body()
    stream.write_string("new")
    assert stream.values == ["new"]


def test_row_49_bytes_are_written_then_reset_then_read() -> None:
    data = BytesMessage()
    data.write_int(5)
    with pytest.raises(MessageNotReadableException, match="reset"):
        data.read_int()
    assert (data.body_length, data.data) == (4, b"\0\0\0\5")
    data.reset()
    with pytest.raises(MessageNotWriteableException, match="clear_body"):
        data.write_int(6)
    assert (data.body_length, data.read_int()) == (4, 5)
    with pytest.raises(MessageEOFException, match="cannot read 1 bytes: only 0 are left"):
        data.read_byte()
    data.reset()
    assert data.read_bytes() == b"\0\0\0\5"
    data.clear_body()
    data.write_byte(1)
    assert data.data == b"\1"


def test_row_49_a_failed_read_of_bytes_moves_nothing() -> None:
    data = over_the_air(BytesMessage(b"\x00\x03ab"))
    for read in (data.read_long, data.read_double, data.read_utf):
        with pytest.raises(MessageEOFException):
            read()
    assert data.read_bytes() == b"\x00\x03ab"
    bad = over_the_air(BytesMessage(b"\x00\x01\xff"))
    with pytest.raises(MessageFormatException, match="modified UTF-8"):
        bad.read_utf()
    assert bad.read_unsigned_short() == 1


def test_row_49_reset_begins_again_where_a_message_is_being_sent() -> None:
    """Sending takes all of a body, wherever its program is reading."""
    stream = over_the_air(StreamMessage([1, 2]))
    assert stream.read_int() == 1
    assert over_the_air(stream).values == [1, 2]
    assert stream.read_int() == 2


WRITES: list[tuple[str, Any, bytes]] = [
    ("boolean", True, b"\x01"), ("byte", -1, b"\xff"), ("short", -2, b"\xff\xfe"), ("char", "é", b"\x00\xe9"),
    ("int", 1, b"\0\0\0\1"), ("long", -1, b"\xff" * 8), ("float", 1.5, b"\x3f\xc0\0\0"),
    ("double", 1.5, b"\x3f\xf8" + b"\0" * 6), ("utf", "aé", b"\0\3a\xc3\xa9"), ("utf", "\0", b"\0\2\xc0\x80"),
    ("utf", "😀", b"\0\6\xed\xa0\xbd\xed\xb8\x80"), ("bytes", b"\0\1", b"\0\1"),
]  # fmt: skip


@pytest.mark.parametrize(("kind", "value", "wire"), WRITES)
def test_bytes_are_those_of_javas_data_streams(kind: str, value: object, wire: bytes) -> None:
    data = BytesMessage()
    getattr(data, f"write_{kind}")(value)
    assert data.data == wire
    assert getattr(over_the_air(data), f"read_{kind}")() == value


def test_bytes_can_be_read_as_numbers_without_a_sign_and_by_parts() -> None:
    data = over_the_air(BytesMessage(b"\xff\xff\xffabcde"))
    assert (data.read_unsigned_byte(), data.read_unsigned_short()) == (255, 65535)
    assert [data.read_bytes(2), data.read_bytes(2), data.read_bytes(2), data.read_bytes(2)] == [b"ab", b"cd", b"e", b""]


@pytest.mark.parametrize(
    ("value", "wire"), [(True, b"\1"), (5, b"\0\0\0\5"), (2**40, b"\0\0\1\0\0\0\0\0"), ("a", b"\0\1a"), (b"a", b"a")]
)
def test_bytes_take_values_of_the_type_that_they_tell(value: Any, wire: bytes) -> None:  # noqa: ANN401 - of any type
    data = BytesMessage()
    data.write_object(value)
    assert data.data == wire


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        ("byte", 128), ("char", "ab"), ("char", "😀"), ("char", "\ud800"), ("utf", 5), ("utf", "x" * 65536),
        ("utf", "\ud800"), ("utf", None), ("bytes", "x"), ("object", []), ("object", None),
    ],
    ids=lambda given: str(given)[:10].encode("ascii", "replace").decode(),
)  # fmt: skip
def test_bytes_refuse_what_is_none_of_a_type(kind: str, value: object) -> None:
    data = BytesMessage()
    with pytest.raises(MessageFormatException):
        getattr(data, f"write_{kind}")(value)
    assert data.data == b""


def test_bytes_of_a_stream_can_be_read_by_parts() -> None:
    stream = over_the_air(StreamMessage([b"abcd", b"", None, "next"]))
    assert stream.read_bytes(3) == b"abc"
    with pytest.raises(MessageFormatException, match="in parts"):
        stream.read_string()
    with pytest.raises(MessageFormatException, match="in parts"):
        stream.read_object()
    assert stream.read_bytes(3) == b"d"
    assert stream.read_bytes(1) == b""
    assert stream.read_bytes(1) is None
    assert stream.read_string() == "next"
    stream.reset()
    assert [stream.read_bytes(4), stream.read_bytes(4), stream.read_bytes()] == [b"abcd", b"", b""]


def test_maps_have_what_mappings_have() -> None:
    entries = MapMessage({"a": 1, "b": b"x"})
    entries["c"] = None
    assert (list(entries), entries["b"], "c" in entries, "d" in entries) == (["a", "b", "c"], b"x", True, False)
    assert (entries.item_exists("c"), entries.item_exists("d")) == (True, False)
    assert entries.map_names == ("a", "b", "c")
    with pytest.raises(KeyError):
        _ = entries["d"]
    for name in ("", None, 5):
        with pytest.raises(ValueError, match="the name of a value"):
            entries.set_int(name, 1)  # type: ignore[arg-type]
    for value in ([], {}, object(), 2**63):
        with pytest.raises(MessageFormatException):
            entries.set_object("x", value)  # type: ignore[arg-type]
    assert entries.entries == {"a": 1, "b": b"x", "c": None}


@pytest.mark.parametrize("text", [None, "", "hello", "größe 😀", "\0", "x" * 100_000])
def test_texts_come_back_and_null_is_not_empty(text: str | None) -> None:
    assert over_the_air(TextMessage(text)).text == text


def test_a_text_is_text() -> None:
    message = TextMessage("before")
    for wrong in (5, b"x"):
        with pytest.raises(MessageFormatException, match="str or None"):
            message.text = wrong  # type: ignore[assignment]
    assert message.text == "before"
    message.text = "\ud800"
    with pytest.raises(MessageFormatException, match="surrogates"):
        over_the_air(message)


# ---------------------------------------------------------------------------------------------------- bytes

characters = st.characters(exclude_categories=["Cs"])
texts = st.text(characters, max_size=20)
values = st.one_of(
    st.just(Value(ValueType.NULL, None)),
    st.booleans().map(lambda value: Value(ValueType.BOOLEAN, value)),
    st.integers(-(2**7), 2**7 - 1).map(lambda value: Value(ValueType.BYTE, value)),
    st.integers(-(2**15), 2**15 - 1).map(lambda value: Value(ValueType.SHORT, value)),
    st.integers(-(2**31), 2**31 - 1).map(lambda value: Value(ValueType.INT, value)),
    st.integers(-(2**63), 2**63 - 1).map(lambda value: Value(ValueType.LONG, value)),
    st.floats(width=32, allow_nan=False).map(lambda value: Value(ValueType.FLOAT, value)),
    st.floats(allow_nan=False).map(lambda value: Value(ValueType.DOUBLE, value)),
    texts.map(lambda value: Value(ValueType.STRING, value)),
    st.characters(exclude_categories=["Cs"], max_codepoint=0xFFFF).map(lambda value: Value(ValueType.CHAR, value)),
    st.binary(max_size=20).map(lambda value: Value(ValueType.BYTES, value)),
)


def typed(found: list[Value]) -> list[tuple[ValueType, type, object]]:
    return [(kind, type(value), value) for kind, value in found]


def write(stream: StreamMessage, value: Value) -> None:
    name = "string" if value.type is ValueType.NULL else value.type.name.lower()
    getattr(stream, f"write_{name}")(value.value)


@given(st.lists(values, max_size=10))
def test_row_47_streams_come_back_with_every_value_and_type(given_values: list[Value]) -> None:
    stream = StreamMessage()
    for value in given_values:
        write(stream, value)
    found = over_the_air(stream)
    assert typed(decode_stream(found.payload)) == typed(given_values)
    assert [found.read_object() for _ in given_values] == [value.value for value in given_values] == found.values
    assert over_the_air(found).payload == stream.payload


@given(st.dictionaries(texts.filter(bool), values, max_size=10))
def test_row_47_maps_come_back_with_every_value_and_type(given_values: dict[str, Value]) -> None:
    entries = MapMessage()
    for name, value in given_values.items():
        kind = "string" if value.type is ValueType.NULL else value.type.name.lower()
        getattr(entries, f"set_{kind}")(name, value.value)
    found = over_the_air(entries)
    assert found.map_names == tuple(given_values)
    assert typed(list(decode_map(found.payload).values())) == typed(list(given_values.values()))


def test_not_a_number_comes_back() -> None:
    stream = StreamMessage()
    stream.write_float(math.nan)
    stream.write_double(math.nan)
    assert all(math.isnan(value) for value in over_the_air(stream).values)  # type: ignore[arg-type]  # floats


GOLDEN: list[tuple[Message, str]] = [
    (Message(), ""), (TextMessage("é"), "c3a9"), (TextMessage(), "ff"), (TextMessage(""), ""),
    (BytesMessage(b"\0\1"), "0001"), (MapMessage(), "0180"), (MapMessage({"a": 5, "b": None}), "0182a16105a162c0"),
    (StreamMessage([True, -1, 2**31, 1.5, "a", b"b"]), "0196c3ffce80000000cb3ff8000000000000a161d40a62"),
    (ObjectMessage(), "01c0"),
]  # fmt: skip


@pytest.mark.parametrize(("message", "payload"), GOLDEN)
def test_the_bytes_of_bodies_stay_as_they_are(message: Message, payload: str) -> None:
    assert message.payload.hex() == payload


def test_the_bytes_of_narrow_types_are_extensions_of_messagepack() -> None:
    stream = StreamMessage()
    for value in (Value(ValueType.BYTE, -1), Value(ValueType.SHORT, 2), Value(ValueType.LONG, 3),
                  Value(ValueType.FLOAT, 1.5), Value(ValueType.CHAR, "é")):  # fmt: skip
        write(stream, value)
    assert stream.payload.hex() == "0195d402ffd5030002d7050000000000000003d6063fc00000d50900e9"


# ------------------------------------------------------------------------------------------------ strangers

KINDS: dict[type[Message], str] = {
    TextMessage: "text",
    MapMessage: "entries",
    StreamMessage: "values",
    ObjectMessage: "object",
}
HOSTILE: list[bytes] = [
    b"", b"\x00", b"\x01", b"\x02\x80", b"\x01\xc1", b"\x01\xdf\xff\xff\xff\xff", b"\x01\xdd\xff\xff\xff\xff",
    b"\x01\xdd\x00\x04\x00\x01" + b"\xc0" * (2**18 + 1), b"\x01" + b"\x91" * 100_000, b"\x01" + b"\x81\xa1a" * 100_000,
    b"\x01\x91\xc6\xff\xff\xff\xff", b"\x01\x91\xd4\x02", b"\x01\x91\xd4\x03\x01", b"\x01\x91\xd4\x63\x01",
    b"\x01\x91\xd5\x09\xd8\x00", b"\x01\x91\xcf" + b"\xff" * 8, b"\x01\x81\xc0\xc0", b"\x01\x90\x90",
    b"\x01\x91\xa1\xff", b"\x01\x92\xa1x", b"\x01\x92\xa7unknown\xc1", b"\x01\x91\xa5short", b"\xff\xfe",
    b"\x01\x91\xc4\x01a",
]  # fmt: skip


FINE: dict[type[Message], list[bytes]] = {
    TextMessage: [b"", b"\x00", b"\x01"], StreamMessage: [b"\x01\x91\xa5short"], MapMessage: [], ObjectMessage: [],
}  # fmt: skip
"""Bytes that are valid bodies, by type."""


@pytest.mark.parametrize("payload", HOSTILE, ids=lambda payload: payload[:12].hex() + f"-{len(payload)}")
@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_a_strangers_payload_that_is_no_body_is_refused_and_can_be_read_as_bytes(
    kind: type[Message], payload: bytes
) -> None:
    found = with_payload(kind(), payload)
    if payload not in FINE[kind]:
        with pytest.raises(MessageFormatException) as refused:
            getattr(found, KINDS[kind])
        assert len(str(refused.value)) < 400
        assert not found.is_body_assignable_to(object)
        with pytest.raises(MessageFormatException):
            found.get_body(object)
    else:
        getattr(found, KINDS[kind])
    assert found.payload == payload
    assert repr(found)


@given(st.sampled_from(list(KINDS)), st.binary(max_size=60))
@example(MapMessage, b"\x01\x81\xa0\xc0")
def test_whatever_bytes_come_a_body_is_made_or_refused(kind: type[Message], payload: bytes) -> None:
    for each in (payload, b"\x01" + payload):
        found = with_payload(kind(), each)
        try:
            body = getattr(found, KINDS[kind])
        except MessageFormatException:
            continue
        again = over_the_air(found)  # What can be read can be sent on.
        assert repr(getattr(again, KINDS[kind])) == repr(body)


def test_a_map_or_stream_has_as_many_values_as_receivers_take() -> None:
    stream = StreamMessage([None] * VALUES_MAX)
    assert len(over_the_air(stream).values) == VALUES_MAX
    stream.write_int(1)
    with pytest.raises(MessageFormatException, match="at most 262144 values, not 262145"):
        over_the_air(stream)


def test_a_stream_that_is_none_raises_whatever_is_read_of_it() -> None:
    found = with_payload(StreamMessage(), b"\x01\x91\x90")
    assert isinstance(found, StreamMessage)
    for read in (found.read_int, found.read_object, found.read_bytes):
        with pytest.raises(MessageFormatException, match="not a stream"):
            read()


# --------------------------------------------------------------------------------------------------- objects


class Point(msgspec.Struct):
    x: int
    y: float = 0.0


@dataclass
class Walk:
    name: str
    points: list[Point] = field(default_factory=list)
    next: Walk | None = None


@dataclass
class Loud:
    volume: int

    def __post_init__(self) -> None:
        if self.volume > 10:
            raise ZeroDivisionError(self.volume)


carrypost.register(Point, name="tests.Point")
carrypost.register(Walk, name="tests.Walk")
carrypost.register(Loud, name="tests.Loud")
WALK = Walk("round", [Point(1), Point(2, 0.5)], Walk("back"))


@pytest.mark.parametrize("value", [Point(1, 2.5), WALK, Loud(3), None])
def test_row_55_registered_dataclasses_and_structs_travel(value: object) -> None:
    message = ObjectMessage(value)
    assert message.get_object() == value
    found = over_the_air(message)
    assert found.get_object() == found.object == value
    assert value is None or found.get_object() is not found.get_object()


def test_row_55_a_class_that_nobody_registered_does_not_travel() -> None:
    @dataclass
    class Stranger:
        x: int

    for value in (Stranger(1), {"a": 1}, [1], "text", print, object()):
        with pytest.raises(MessageFormatException, match=r"with carrypost\.register"):
            ObjectMessage(value)


def test_row_55_an_unknown_name_raises_when_the_object_is_asked_for_and_its_bytes_can_be_read() -> None:
    payload = pack(("elsewhere.Thing", {"x": 1}))
    found = with_payload(ObjectMessage(), payload)
    assert isinstance(found, ObjectMessage)
    with pytest.raises(MessageFormatException, match=r"no class is registered as 'elsewhere.Thing' here: register one"):
        found.get_object()
    assert found.object_name == "elsewhere.Thing"
    assert msgspec.msgpack.decode(found.payload[1:]) == ["elsewhere.Thing", {"x": 1}]
    assert over_the_air(found).payload == payload  # It can be sent on.


def test_row_55_there_is_no_pickle() -> None:
    class Evil:
        def __reduce__(self) -> tuple[Any, ...]:
            raise AssertionError("somebody pickles")

    with pytest.raises(MessageFormatException):
        ObjectMessage(Evil())
    with pytest.raises(MessageFormatException):
        with_payload(ObjectMessage(), pickle.dumps(Point(1))).get_body(object)


@pytest.mark.parametrize(
    "fields",
    [{"x": "1"}, {}, [1], None, {"x": 2**70 % 2**64, "y": "a"}, {"x": 1, "y": None}],
)
def test_row_55_fields_of_another_type_are_refused(fields: object) -> None:
    found = with_payload(ObjectMessage(), pack(("tests.Point", fields)))
    with pytest.raises(MessageFormatException, match="the payload is not a Point"):
        found.get_body(Point)


def test_row_55_what_a_receiver_would_refuse_is_refused_when_it_is_set() -> None:
    message = ObjectMessage(Point(1))
    for wrong in (Point("x"), Walk("x", ["no point"]), Walk("x", [object()]), Walk("\ud800")):  # type: ignore[arg-type,list-item]
        with pytest.raises(MessageFormatException):
            message.set_object(wrong)
    assert message.get_object() == Point(1)


def test_row_55_whatever_a_class_itself_raises_is_told() -> None:
    found = with_payload(ObjectMessage(), pack(("tests.Loud", {"volume": 11})))
    with pytest.raises(MessageFormatException, match="not a Loud") as refused:
        found.get_body(Loud)
    assert isinstance(refused.value.__cause__, ZeroDivisionError)
    assert not found.is_body_assignable_to(Loud)


def test_row_55_classes_of_two_versions_understand_each_other() -> None:
    newer = pack(("tests.Point", {"x": 1, "y": 2.0, "z": 3.0}))
    older = pack(("tests.Point", {"x": 1}))
    assert with_payload(ObjectMessage(), newer).get_body(Point) == Point(1, 2.0)
    assert with_payload(ObjectMessage(), older).get_body(Point) == Point(1)


def test_row_55_an_object_that_refers_to_itself_is_refused() -> None:
    walk = Walk("round")
    walk.next = walk
    with pytest.raises(MessageFormatException):
        ObjectMessage(walk)


def test_registering_again_is_fine_and_a_name_belongs_to_one_class() -> None:
    assert carrypost.register(Point, name="tests.Point") is Point
    for cls in (int, object(), "Point", list[int]):
        with pytest.raises(IllegalArgumentException, match="dataclasses and"):
            carrypost.register(cls)  # type: ignore[call-overload]
    with pytest.raises(
        IllegalArgumentException, match=re.escape("is the name of tests.jms.test_jms_bodies.Point") + "|Point"
    ):
        carrypost.register(Walk, name="tests.Point")
    for name in ("", "x" * 257):
        with pytest.raises(IllegalArgumentException, match="name of a class"):
            carrypost.register(Walk, name=name)

    @dataclass
    class Holder:
        thing: memoryview | complex

    with pytest.raises(IllegalArgumentException, match="cannot be encoded"):
        carrypost.register(Holder)


def test_a_class_made_anew_takes_the_place_of_the_old_one() -> None:
    def make(default: int) -> type:
        @carrypost.register(name="tests.Again")
        class Again(msgspec.Struct):
            x: int = default

        return Again

    make(1)
    second = make(2)
    assert type(with_payload(ObjectMessage(), pack(("tests.Again", {}))).get_body(object)) is second


def test_the_name_of_a_class_is_its_own_unless_another_is_given() -> None:
    @carrypost.register
    class OnlyInThisTest(msgspec.Struct):
        x: int = 1

    assert ObjectMessage(OnlyInThisTest()).object_name == "OnlyInThisTest"
    assert ObjectMessage().object_name is None
    assert object_message.object_name(ObjectMessage(Point(1)).payload) == "tests.Point"
