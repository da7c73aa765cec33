"""Types of properties: Java's, given back as they were sent; what fits none is refused with the limit."""

from __future__ import annotations

import math

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from carrypost.config import Limits
from carrypost.errors import MessageFormatException, PayloadError
from carrypost.model.descriptor import Descriptor, PayloadCodec, decode
from carrypost.model.descriptor_values import typed_properties
from carrypost.model.headers import Headers
from carrypost.model.properties import Property, ValueType, inferred, nearest_float, typed, untyped

BARE = Descriptor("alan", 1, 7, 5, None, "news", 0, 0, PayloadCodec.PLAIN, b"", 1024)
BYTE, SHORT, INT, LONG = ValueType.BYTE, ValueType.SHORT, ValueType.INT, ValueType.LONG
FLOAT, DOUBLE, STRING, BOOLEAN = ValueType.FLOAT, ValueType.DOUBLE, ValueType.STRING, ValueType.BOOLEAN


def whole(kind: ValueType, bits: int) -> st.SearchStrategy[Property]:
    return st.integers(-(2 ** (bits - 1)), 2 ** (bits - 1) - 1).map(lambda value: Property(kind, value))


any_property = st.one_of(
    st.just(Property(ValueType.NULL, None)), st.booleans().map(lambda value: Property(BOOLEAN, value)),
    whole(BYTE, 8), whole(SHORT, 16), whole(INT, 32), whole(LONG, 64),
    st.floats(width=32, allow_nan=False).map(lambda value: Property(FLOAT, value)),
    st.floats(allow_nan=False).map(lambda value: Property(DOUBLE, value)),
    st.text(st.characters(exclude_categories=["Cs"]), max_size=10).map(lambda value: Property(STRING, value)),
)  # fmt: skip


@given(st.dictionaries(st.text("abc", min_size=1), any_property, max_size=8))
def test_properties_come_back_with_the_types_that_they_were_sent_with(properties: dict[str, Property]) -> None:
    attributes, types = untyped(properties, Limits())
    sent = msgspec.structs.replace(BARE, attributes=attributes, headers=Headers(property_types=types))
    found = typed_properties(decode(sent.wire))
    assert found == properties
    assert {name: type(each.value) for name, each in found.items()} == {
        name: type(each.value) for name, each in properties.items()
    }


def test_types_that_values_tell_do_not_travel() -> None:
    properties = {
        "a": Property(INT, 5),
        "b": Property(LONG, 2**40),
        "c": Property(DOUBLE, 1.5),
        "d": Property(STRING, ""),
    }
    assert untyped(properties | {"e": Property(BOOLEAN, True)}, Limits())[1] == {}
    assert untyped({"a": Property(LONG, 5)}, Limits()) == ({"a": 5}, {"a": LONG})


@pytest.mark.parametrize(
    ("value", "kind"),
    [
        (True, BOOLEAN), (2**31 - 1, INT), (-(2**31), INT), (2**31, LONG), (-(2**63), LONG), (2**63 - 1, LONG),
        (1.0, DOUBLE), (math.nan, DOUBLE), ("", STRING), (None, ValueType.NULL),
    ],
)  # fmt: skip
def test_a_value_of_which_no_type_is_said_has_the_one_that_it_tells(value: object, kind: ValueType) -> None:
    assert inferred(value) is kind


@pytest.mark.parametrize("value", [2**63, -(2**63) - 1, b"x", [1], {}, object(), 1j])
def test_what_no_type_of_properties_has_room_for_is_refused(value: object) -> None:
    with pytest.raises(MessageFormatException, match="a property"):
        inferred(value)


def test_a_strangers_number_beyond_64_bits_is_refused_when_it_is_looked_at() -> None:
    found = decode(msgspec.structs.replace(BARE, attributes={"a": 2**64 - 1}).wire)
    with pytest.raises(MessageFormatException, match="64 bits"):
        typed_properties(found)


def test_a_type_of_a_later_version_counts_as_not_said() -> None:
    assert typed({"a": 5}, {"a": 77, "photo": 78}) == {"a": Property(INT, 5)}


@pytest.mark.parametrize(
    ("one", "why"),
    [
        (Property(BYTE, 128), "of type byte, not 128"), (Property(BYTE, -129), "of type byte"),
        (Property(SHORT, 2**15), "of type short"),
        (Property(INT, 2**31), "of type int"), (Property(LONG, 2**63), "of type long"),
        (Property(INT, True), "of type int, not True"),
        (Property(BOOLEAN, 1), "of type boolean, not 1"), (Property(FLOAT, 1.1), "of type float, not 1.1"),
        (Property(FLOAT, 1), "of type float"),
        (Property(DOUBLE, 1), "of type double, not 1"), (Property(STRING, 1), "of type String, not 1"),
        (Property(STRING, None), "of type String"),
        (Property(ValueType.NULL, 0), "of type null, not 0"),
        (Property(STRING, "x" * 1025), "1025 bytes; 1024 are allowed"),
        (Property(STRING, "ä" * 513), "1026 bytes; 1024 are allowed"), (Property(STRING, "\ud800"), "surrogates"),
    ],
)  # fmt: skip
def test_a_property_that_does_not_fit_is_refused_with_the_limit(one: Property, why: str) -> None:
    with pytest.raises(MessageFormatException, match=why) as refused:
        untyped({"a": one}, Limits())
    assert isinstance(refused.value, PayloadError)


def test_too_many_properties_are_refused_with_the_limit() -> None:
    many = {f"a{number}": Property(ValueType.NULL, None) for number in range(65)}
    with pytest.raises(MessageFormatException, match="at most 64 properties, not 65"):
        untyped(many, Limits())
    with pytest.raises(MessageFormatException, match="1025 bytes; 1024 are allowed"):
        untyped({"x" * 1025: Property(INT, 1)}, Limits())


@pytest.mark.parametrize(
    ("value", "rounded"), [(1.1, 1.100000023841858), (1e300, math.inf), (-1e300, -math.inf), (0.5, 0.5), (1e-60, 0.0)]
)
def test_a_float_is_rounded_as_java_does(value: float, rounded: float) -> None:
    assert nearest_float(value) == rounded
    assert untyped({"a": Property(FLOAT, rounded)}, Limits()) == ({"a": rounded}, {"a": FLOAT})
