"""Rows 18, 22, 45 and 48: what a value may be read as, cell by cell, here, over the air and after a redelivery."""

from __future__ import annotations

import math
import struct
from collections.abc import Callable
from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.jms_air import over_the_air
from tests.support.jms_scenes import pair, scene

from carrypost import (
    MapMessage,
    Message,
    MessageEOFException,
    MessageFormatException,
    NullValueException,
    NumberFormatException,
    StreamMessage,
    testing,
)
from carrypost.jms.messages.values import BODY_TABLE, PROPERTY_TABLE, parsed, text_of
from carrypost.model.properties import ValueType

# As the specification draws them (§3.5.4 and §3.11.3): rows are what was written, columns what is read.
PROPERTIES = """
         boolean byte short int long float double string
boolean     X                                       X
byte              X     X    X    X                 X
short                   X    X    X                 X
int                          X    X                 X
long                              X                 X
float                                  X     X      X
double                                       X      X
string      X     X     X    X    X    X     X      X
"""
BODIES = """
         boolean byte short char int long float double string bytes
boolean     X                                            X
byte              X     X         X    X                 X
short                   X         X    X                 X
char                         X                           X
int                               X    X                 X
long                                   X                 X
float                                       X     X      X
double                                            X      X
string      X     X     X         X    X    X     X      X
bytes                                                          X
"""


def cells(drawn: str) -> list[tuple[str, str, bool]]:
    head, *rows = drawn.strip("\n").splitlines()
    columns = [(name, head.index(f" {name}") + 1) for name in head.split()]
    found = []
    for row in rows:
        for name, at in columns:
            marked = "X" in row[at - 1 : at + len(name)]
            found.append((row.split()[0], name, marked))
    return found


PROPERTY_CELLS, BODY_CELLS = cells(PROPERTIES), cells(BODIES)

WRITTEN: dict[str, object] = {
    "boolean": True, "byte": 7, "short": 7, "char": "7", "int": 7, "long": 7, "float": 1.1, "double": 1.1,
    "string": "7", "bytes": b"7",
}  # fmt: skip
SINGLE = struct.unpack("f", struct.pack("f", 1.1))[0]
READ: dict[tuple[str, str], object] = {
    ("boolean", "boolean"): True, ("boolean", "string"): "true", ("char", "char"): "7", ("char", "string"): "7",
    ("float", "float"): SINGLE, ("float", "double"): SINGLE, ("float", "string"): "1.1",
    ("double", "double"): 1.1, ("double", "string"): "1.1",
    ("string", "boolean"): False, ("string", "float"): 7.0, ("string", "double"): 7.0, ("bytes", "bytes"): b"7",
}  # fmt: skip


def expected(written: str, read: str) -> object:
    return READ.get((written, read), "7" if read == "string" else 7)


def here(message: Message) -> Message:
    if isinstance(message, StreamMessage):
        message.reset()
    return message


PLACES: dict[str, Callable[[Message], Message]] = {
    "here": here,
    "over the air": over_the_air,
    "redelivered": lambda message: over_the_air(message, count=2),
    "forwarded": lambda message: over_the_air(over_the_air(message)),
}
everywhere = pytest.mark.parametrize("place", PLACES)


def test_row_18_the_table_of_properties_has_the_29_cells_of_the_specification() -> None:
    legal = {(written, read) for written, read, marked in PROPERTY_CELLS if marked}
    table = {(written.name.lower(), read.name.lower()) for written, all_ in PROPERTY_TABLE.items() for read in all_}
    assert (len(PROPERTY_CELLS), len(legal)) == (64, 29)
    assert table == legal


def test_row_48_the_table_of_bodies_has_the_32_cells_of_the_specification() -> None:
    legal = {(written, read) for written, read, marked in BODY_CELLS if marked}
    table = {(written.name.lower(), read.name.lower()) for written, all_ in BODY_TABLE.items() for read in all_}
    assert (len(BODY_CELLS), len(legal)) == (100, 32)
    assert table == legal


def legal_in(cells: list[tuple[str, str, bool]], written: str) -> list[tuple[str, bool]]:
    """Return a row of a table."""
    return [(read, marked) for row, read, marked in cells if row == written]


def check(written: str, read: str, legal: bool, get: Callable[[], object]) -> None:
    """One cell: the value as the specification has it, of the right type, or a refusal."""
    if legal:
        found, wanted = get(), expected(written, read)
        assert (found, type(found)) == (wanted, type(wanted)), f"{written} as {read}"
        return
    with pytest.raises(
        MessageFormatException, match=rf"is of type .*, which can be read as .*, not as (?i:{read}|byte\[\])$"
    ) as no:
        get()
    assert not isinstance(no.value, ValueError | TypeError)  # It is no text that could have been better, and no null.


@everywhere
@pytest.mark.parametrize("written", PROPERTY_TABLE)
def test_row_18_a_property_is_read_as_the_table_says(written: ValueType, place: str) -> None:
    name = written.name.lower()
    message = Message()
    getattr(message, f"set_{name}_property")("x", WRITTEN[name])
    found = PLACES[place](message)
    for read, legal in legal_in(PROPERTY_CELLS, name):
        check(name, read, legal, partial(getattr(found, f"get_{read}_property"), "x"))


@everywhere
@pytest.mark.parametrize("written", BODY_TABLE)
def test_row_48_a_value_of_a_map_is_read_as_the_table_says(written: ValueType, place: str) -> None:
    name = written.name.lower()
    message = MapMessage()
    getattr(message, f"set_{name}")("x", WRITTEN[name])
    found = PLACES[place](message)
    for read, legal in legal_in(BODY_CELLS, name):
        check(name, read, legal, partial(getattr(found, f"get_{read}"), "x"))


@everywhere
@pytest.mark.parametrize("written", BODY_TABLE)
def test_row_48_a_value_of_a_stream_is_read_as_the_table_says_and_a_failed_read_moves_nothing(
    written: ValueType, place: str
) -> None:
    name = written.name.lower()
    message = StreamMessage()
    for _ in BODY_TABLE:
        getattr(message, f"write_{name}")(WRITTEN[name])
    found = PLACES[place](message)
    assert isinstance(found, StreamMessage)
    for read, legal in legal_in(BODY_CELLS, name):
        check(name, read, legal, getattr(found, f"read_{read}"))
        if not legal:
            assert found.read_object() == (SINGLE if name == "float" else WRITTEN[name])
    with pytest.raises(MessageEOFException):
        found.read_object()


@scene("a", "b")
async def test_rows_18_and_48_programs_read_every_cell_on_both_nodes_and_again(net: testing.Network) -> None:
    """Check the values that contexts return: the first time, and after `recover`."""
    async with pair(net) as both:
        for name in (kind.name.lower() for kind in PROPERTY_TABLE):
            message = Message()
            getattr(message, f"set_{name}_property")("x", WRITTEN[name])
            for copy in await both.sent(message):
                for read, legal in legal_in(PROPERTY_CELLS, name):
                    check(name, read, legal, partial(getattr(copy, f"get_{read}_property"), "x"))
        for name in (kind.name.lower() for kind in BODY_TABLE):
            entries, stream = MapMessage(), StreamMessage()
            getattr(entries, f"set_{name}")("x", WRITTEN[name])
            getattr(stream, f"write_{name}")(WRITTEN[name])
            for copy in await both.sent(entries):
                for read, legal in legal_in(BODY_CELLS, name):
                    check(name, read, legal, partial(getattr(copy, f"get_{read}"), "x"))
            for copy in await both.sent(stream):
                assert isinstance(copy, StreamMessage)
                for read, legal in legal_in(BODY_CELLS, name):
                    copy.reset()
                    check(name, read, legal, getattr(copy, f"read_{read}"))


# ------------------------------------------------------------------------------------------------------- null

NULLS = {
    "boolean": False, "string": None, "bytes": None,
    **dict.fromkeys(("byte", "short", "int", "long"), NumberFormatException),
    **dict.fromkeys(("float", "double", "char"), NullValueException),
}  # fmt: skip


@everywhere
@pytest.mark.parametrize("read", [read for read in NULLS if read not in ("char", "bytes")])
def test_rows_18_and_22_null_and_missing_properties_are_what_valueof_makes_of_null(read: str, place: str) -> None:
    message = Message()
    message.set_string_property("nothing", None)
    message = PLACES[place](message)
    for name in ("nothing", "missing"):
        _check_null(partial(getattr(message, f"get_{read}_property"), name), NULLS[read])
        assert message.get_object_property(name) is None
    assert (message.property_exists("nothing"), message.property_exists("missing")) == (True, False)


@everywhere
@pytest.mark.parametrize("read", NULLS)
def test_row_48_null_in_maps_and_streams_is_what_valueof_makes_of_null(read: str, place: str) -> None:
    entries = PLACES[place](MapMessage({"nothing": None}))
    for name in ("nothing", "missing"):
        _check_null(partial(getattr(entries, f"get_{read}"), name), NULLS[read])
    stream = PLACES[place](StreamMessage([None, 5]))
    assert isinstance(stream, StreamMessage)
    _check_null(getattr(stream, f"read_{read}"), NULLS[read])
    if isinstance(NULLS[read], type):
        assert stream.read_object() is None  # The failed read moved nothing.
    assert stream.read_int() == 5


def _check_null(get: Callable[[], object], outcome: object) -> None:
    if isinstance(outcome, type) and issubclass(outcome, Exception):
        with pytest.raises(outcome, match="null"):
            get()
    else:
        assert get() is outcome


def test_row_48_null_is_no_char_which_is_a_type_error() -> None:
    with pytest.raises(TypeError, match="null or missing, and cannot be read as char"):
        MapMessage().get_char("missing")


# ------------------------------------------------------------------------------------------------ text to values

WHOLE, OTHER = ("byte", "short", "int", "long"), ("float", "double")


@pytest.mark.parametrize(
    ("text", "value"),
    [("7", 7), ("-7", -7), ("+7", 7), ("007", 7), ("\u0667", 7), ("-0", 0), ("0" * 9999 + "5", 5)],
)
@pytest.mark.parametrize("kind", WHOLE)
def test_row_18_texts_are_whole_numbers_as_in_java(kind: str, text: str, value: int) -> None:
    assert parsed(ValueType[kind.upper()], text) == value


@pytest.mark.parametrize("text", ["", " ", " 7", "7 ", "7.0", "1_0", "0x7", "--7", "+", "seven", "9" * 5000, "7L"])
@pytest.mark.parametrize("kind", WHOLE)
def test_row_18_what_is_no_whole_number_in_java_is_none_here(kind: str, text: str) -> None:
    message = Message()
    message.set_string_property("x", text)
    with pytest.raises(NumberFormatException, match=f"cannot be read as {kind}") as refused:
        getattr(message, f"get_{kind}_property")("x")
    assert isinstance(refused.value, ValueError)
    assert len(str(refused.value)) < 200


@pytest.mark.parametrize(("kind", "bits"), [("byte", 8), ("short", 16), ("int", 32), ("long", 64)])
def test_row_18_texts_of_numbers_beyond_the_range_of_a_type_are_refused(kind: str, bits: int) -> None:
    most = 2 ** (bits - 1)
    entries = MapMessage({"least": str(-most), "most": str(most - 1), "below": str(-most - 1), "above": str(most)})
    get = getattr(entries, f"get_{kind}")
    assert (get("least"), get("most")) == (-most, most - 1)
    for name in ("below", "above"):
        with pytest.raises(NumberFormatException):
            get(name)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("7", 7.0), ("7.", 7.0), (".5", 0.5), ("-1e3", -1000.0), ("1.5f", 1.5), ("1.5D", 1.5), ("  2 \n", 2.0),
        ("0x1.8p1", 3.0), ("-0X.8P1d", -1.0), ("Infinity", math.inf), ("-Infinity", -math.inf), ("1e999", math.inf),
        ("0x1p99999", math.inf), ("1e-999", 0.0),
    ],
)  # fmt: skip
@pytest.mark.parametrize("kind", OTHER)
def test_row_18_texts_are_other_numbers_as_in_java(kind: str, text: str, value: float) -> None:
    assert parsed(ValueType[kind.upper()], text) == value


@pytest.mark.parametrize("text", ["", "nan", "inf", "1_0", "e5", ".", "0x1", "1.5L", "1 2", "1e", "\u0667", "infinity"])
@pytest.mark.parametrize("kind", OTHER)
def test_row_18_what_is_no_other_number_in_java_is_none_here(kind: str, text: str) -> None:
    with pytest.raises(NumberFormatException):
        parsed(ValueType[kind.upper()], text)


def test_row_18_not_a_number_is_one() -> None:
    assert math.isnan(parsed(ValueType.DOUBLE, "-NaN"))  # type: ignore[arg-type]  # a float


@pytest.mark.parametrize(("text", "value"), [("true", True), ("TrUe", True), ("1", False), ("yes", False), ("", False)])
def test_row_18_a_text_is_true_if_it_says_so(text: str, value: bool) -> None:
    message = Message()
    message.properties["x"] = text
    assert message.get_boolean_property("x") is value


# ------------------------------------------------------------------------------------------------ values to text


@pytest.mark.parametrize(
    ("value", "text"),
    [  # What Java prints.
        (0.0, "0.0"), (-0.0, "-0.0"), (1.0, "1.0"), (100.0, "100.0"), (0.001, "0.001"), (0.00123, "0.00123"),
        (9999999.0, "9999999.0"), (1e7, "1.0E7"), (1.25e7, "1.25E7"), (0.0009, "9.0E-4"), (1.1, "1.1"),
        (2e23, "2.0E23"),        (math.pi, "3.141592653589793"), (1234567.125, "1234567.125"), (5e-324, "4.9E-324"),
        (1.7976931348623157e308, "1.7976931348623157E308"), (-1e21, "-1.0E21"),
        (math.nan, "NaN"), (math.inf, "Infinity"), (-math.inf, "-Infinity"),
    ],
)  # fmt: skip
def test_row_18_doubles_are_written_as_in_java(value: float, text: str) -> None:
    message = Message()
    message.set_double_property("x", value)
    assert message.get_string_property("x") == text


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (1.1, "1.1"), (0.1, "0.1"), (16777216.0, "1.6777216E7"), (3.4028235e38, "3.4028235E38"), (1e-45, "1.4E-45"),
        (1e39, "Infinity"),
    ],
)  # fmt: skip
def test_row_18_floats_are_written_with_as_many_digits_as_32_bits_need(value: float, text: str) -> None:
    message = Message()
    message.set_float_property("x", value)
    assert message.get_string_property("x") == text


@given(st.floats(allow_nan=False))
def test_row_18_a_double_as_text_gives_the_same_double_back(value: float) -> None:
    assert parsed(ValueType.DOUBLE, text_of(ValueType.DOUBLE, value)) == value


@given(st.floats(allow_nan=False, width=32))
def test_row_18_a_float_as_text_gives_the_same_float_back(value: float) -> None:
    assert parsed(ValueType.FLOAT, text_of(ValueType.FLOAT, value)) == value


def test_row_45_a_float_is_rounded_when_it_is_set() -> None:
    message = Message()
    message.set_float_property("x", 1.1)
    assert message.get_float_property("x") == message.properties["x"] == SINGLE != 1.1
    assert over_the_air(message).get_double_property("x") == SINGLE
