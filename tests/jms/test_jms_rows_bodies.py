"""Rows 47 to 56 of the checklist: bodies, as programs on both sides see them, the first time and again."""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import dataclass, field

import msgspec
import pytest
from tests.support.jms_air import with_payload
from tests.support.jms_scenes import NEWS, copies_of, got, pair, scene

import carrypost
from carrypost import (
    BytesMessage,
    MapMessage,
    Message,
    MessageEOFException,
    MessageFormatException,
    MessageNotReadableException,
    MessageNotWriteableException,
    NullValueException,
    ObjectMessage,
    StreamMessage,
    TextMessage,
    Topic,
    testing,
)
from carrypost.jms.messages.values import pack

ROWS = range(47, 57)


@carrypost.register
@dataclass
class Parcel:
    to: str
    items: list[str] = field(default_factory=list)


class Stamp(msgspec.Struct):
    value: int


carrypost.register(Stamp, name="stamps.Stamp")


MADE: dict[str, Callable[[], Message]] = {
    "bodiless": Message,
    "text": lambda: TextMessage("hello ü"),
    "bytes": lambda: BytesMessage(b"\x00\xff"),
    "map": lambda: MapMessage({"a": 1, "b": b"x", "c": None}),
    "stream": lambda: StreamMessage([1, "x", None, b"y"]),
    "object": lambda: ObjectMessage(Parcel("Anna", ["book"])),
}
every_kind = pytest.mark.parametrize("kind", MADE)


def body_of(message: Message) -> object:
    match message:
        case TextMessage(text):
            return text
        case BytesMessage(data):
            return data
        case MapMessage(entries):
            return entries
        case StreamMessage(values):
            return values
        case ObjectMessage(value):
            return value
    return None


@every_kind
def test_row_47_the_type_of_a_body_and_what_is_in_it_are_preserved(kind: str) -> None:
    message = MADE[kind]()
    for copy in copies_of(message):
        assert type(copy) is type(message)
        assert body_of(copy) == body_of(message)


def test_row_48_values_are_read_as_the_types_that_their_own_converts_to() -> None:
    message = StreamMessage()
    message.write_short(7)
    message.write_float(1.1)
    message.write_object(None)
    for copy in copies_of(message):
        assert isinstance(copy, StreamMessage)
        with pytest.raises(MessageFormatException):
            copy.read_byte()
        assert copy.read_long() == 7  # The failed read moved nothing.
        assert copy.read_double() == struct.unpack("f", struct.pack("f", 1.1))[0]
        with pytest.raises(NullValueException) as null:
            copy.read_char()
        assert isinstance(null.value, TypeError)


@pytest.mark.parametrize("kind", ["bytes", "stream"])
def test_row_49_what_is_written_is_reset_and_then_read(kind: str) -> None:
    message = MADE[kind]()
    assert isinstance(message, BytesMessage | StreamMessage)
    with pytest.raises(MessageNotReadableException, match="reset"):
        message.read_byte()
    for copy in copies_of(message):
        assert isinstance(copy, BytesMessage | StreamMessage)
        with pytest.raises(MessageNotWriteableException):
            copy.write_byte(1)
        for _ in range(2):
            assert copy.read_bytes() if isinstance(copy, BytesMessage) else copy.read_int()
            copy.reset()
        last = copy.read_bytes if isinstance(copy, BytesMessage) else copy.read_object
        for _ in range(1 if isinstance(copy, BytesMessage) else 4):
            last()
        with pytest.raises(MessageEOFException):
            copy.read_byte()


@every_kind
def test_row_50_clearing_a_received_body_empties_it_and_keeps_properties(kind: str) -> None:
    message = MADE[kind]()
    message.properties["a"] = 1
    copies = copies_of(message)
    copies.there.clear_body()
    assert not body_of(copies.there)
    assert copies.there.properties["a"] == 1
    assert body_of(copies.there_again) == body_of(message)


def test_row_51_what_goes_in_and_comes_out_is_copied() -> None:
    parcel = Parcel("Anna", ["book"])
    message = ObjectMessage(parcel)
    parcel.items.append("letter")
    for copy in copies_of(message):
        first = copy.get_body(Parcel)
        assert first == Parcel("Anna", ["book"])
        assert first is not None
        first.items.append("pen")
        assert copy.get_body(Parcel) == Parcel("Anna", ["book"])
    entries: dict[str, object] = {"a": 1}
    made = MapMessage(entries)  # type: ignore[arg-type]  # a dict is invariant
    entries["a"] = 2
    found = copies_of(made).there.get_body(dict)
    assert found == {"a": 1}


@scene("a", "b", disk_delay_s=0.5)
async def test_row_52_what_was_sent_is_as_it_was_then(net: testing.Network) -> None:
    """Also while `send` waits for the disk."""
    async with pair(net) as both, both.there.create_consumer(NEWS) as far:
        message = MapMessage()
        producer = both.here.create_producer()
        for number in range(3):
            message["n"] = number
            await producer.send(NEWS, message)
            message["n"] = 99
        assert [(await got(far)).get_body(dict) for _ in range(3)] == [{"n": 0}, {"n": 1}, {"n": 2}]


@every_kind
@scene("a", "b")
async def test_row_53_a_redelivery_knows_nothing_of_what_a_program_did(net: testing.Network, kind: str) -> None:
    async with pair(net) as both, both.there.create_consumer(NEWS) as far:
        message = MADE[kind]()
        message.properties["a"] = 1
        await both.here.create_producer().send(NEWS, message)
        for _ in range(3):
            found = await got(far)
            assert body_of(found) == body_of(message)
            assert (found.properties["a"], found.jms_type) == (1, None)
            found.clear_body()
            found.clear_properties()
            found.jms_type = "changed"
            if isinstance(found, TextMessage):
                found.text = "changed"
            await both.there.recover()


@pytest.mark.parametrize(
    ("kind", "fits", "other"),
    [("text", str, dict), ("bytes", bytes, str), ("map", dict, Parcel), ("object", Parcel, Stamp)],
)
def test_row_54_a_body_is_given_as_its_type_and_as_no_other(kind: str, fits: type, other: type) -> None:
    message = MADE[kind]()
    for copy in copies_of(message):
        assert copy.is_body_assignable_to(fits)
        assert copy.get_body(fits) == body_of(message)
        assert not copy.is_body_assignable_to(other)
        with pytest.raises(MessageFormatException):
            copy.get_body(other)


def test_row_55_registered_classes_travel_and_an_unknown_one_can_be_read_as_bytes() -> None:
    for value in (Parcel("x"), Stamp(5)):
        assert [each.get_body(object) for each in copies_of(value)] == [value] * 4
    with pytest.raises(MessageFormatException, match="register"):
        copies_of(object())
    unknown = with_payload(ObjectMessage(), pack(("elsewhere.Thing", {"x": 1})))
    for copy in copies_of(unknown):
        assert isinstance(copy, ObjectMessage)
        with pytest.raises(MessageFormatException, match="here: register one"):
            copy.get_object()
        assert (copy.object_name, copy.payload) == ("elsewhere.Thing", unknown.payload)


class Theirs:
    """A message of another implementation."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.properties = {"a": 1}
        self.jms_correlation_id, self.jms_type, self.jms_reply_to = "c", "t", Topic("answers")
        self.jms_message_id = self.jms_destination = None


def test_row_56_a_message_of_another_implementation_is_sent_and_told_its_id() -> None:
    theirs = Theirs("hello")
    for copy in copies_of(theirs):
        assert isinstance(copy, TextMessage)
        assert (copy.text, copy.properties["a"], copy.jms_type) == ("hello", 1, "t")
        assert copy.jms_message_id == theirs.jms_message_id
    assert theirs.jms_destination == NEWS
