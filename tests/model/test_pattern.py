"""Meaning of interest entries, and the encoding of profiles."""

from __future__ import annotations

import importlib
import math
import re
from collections.abc import Mapping

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from carrypost.config import Limits, text_form
from carrypost.errors import DecodeError, InvalidSelectorException, LimitError, PatternError
from carrypost.model.descriptor import AttributeValue, Descriptor, PayloadCodec
from carrypost.model.pattern import (
    DESTINATION,
    Entry,
    PatternSet,
    decode_entries,
    encode_entries,
    entry,
    plain_forms,
    profile_digest,
    text_of,
    weight,
)

LIMITS = Limits()
MEMORY_BYTES = LIMITS.pattern_memory_bytes_max
re2 = importlib.import_module("re2")  # the judge of what a pattern really weighs; it has no stubs


def a_descriptor(
    destination: str = "room", attributes: Mapping[str, AttributeValue] | None = None, label: str = ""
) -> Descriptor:
    return Descriptor(
        author="alan", incarnation=0, sequence=1, created_us=0, deadline_us=None,
        destination=destination, size=0, length=0, codec=PayloadCodec.PLAIN, root=b"", fragment_bytes=1024,
        label=label, attributes=dict(attributes or {}),
    )  # fmt: skip


def test_a_text_is_the_pattern_of_the_destination() -> None:
    assert entry("ChatRoom.*") == Entry(((DESTINATION, "ChatRoom.*"),))


def test_attributes_of_an_entry_are_sorted() -> None:
    made = entry({"language": "English|French", "destination": "news"}, "price > 3")
    assert made == Entry((("destination", "news"), ("language", "English|French")), "price > 3")


@pytest.mark.parametrize(
    ("pattern", "why"),
    [
        ("(", "missing"),
        ("a{1000}{1000}", "repetition"),
        ("[z-a]", "range"),
        ("(?=look)", "operator"),
        (r"(a)\1", "escape"),
        ("trailing\\", "trailing"),
        (r"\pL{1000}", "too large"),
        ("\ud800", "Unicode"),
        ("x" * 257, "256 are allowed"),
        ({}, "at least one attribute"),
        ({"a" * 1025: "x"}, "1024 are allowed"),
        ({f"a{number}": "x" for number in range(65)}, "64 are allowed"),
    ],
)
def test_an_invalid_pattern_is_refused_with_a_reason_and_without_noise(
    pattern: str | dict[str, str], why: str, capfd: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(PatternError, match=re.escape(why)):
        entry(pattern)
    assert capfd.readouterr() == ("", "")


def test_a_pattern_that_is_no_text_is_refused() -> None:
    wrong: dict[str, str] = {"price": 5}  # type: ignore[dict-item]  # the caller's mistake
    with pytest.raises(PatternError, match="text"):
        entry(wrong)


def test_a_selector_that_is_too_long_is_refused() -> None:
    assert entry("news", "x" * 1024).selector == "x" * 1024
    with pytest.raises(PatternError, match="selector"):
        entry("news", "x" * 1025)


@pytest.mark.parametrize(
    "selector", ["((( no selector", "price >", "price > 'three'", "JMSExpiration > 0", "a\ud800", 3]
)
def test_a_text_that_is_no_selector_is_refused_when_the_entry_is_made(selector: str) -> None:
    with pytest.raises(InvalidSelectorException):
        entry("news", selector)


@pytest.mark.parametrize("blank", ["", " \t\f\r\n"])
def test_a_blank_text_means_no_selector(blank: str) -> None:
    assert entry("news", blank) == entry("news")


def test_a_strangers_selector_that_does_not_parse_is_kept() -> None:
    foreign = Entry(((DESTINATION, "news"),), "((( of a later version")
    assert decode_entries(encode_entries([foreign]), LIMITS) == (foreign,)


@pytest.mark.parametrize("pattern", ["(a+)+$", "", "^a$", "(?i)news", "a\0b", "日本.*", r"\pL+", "[^/]+/.*"])
def test_patterns_of_every_kind_are_taken(pattern: str) -> None:
    assert entry(pattern).patterns == ((DESTINATION, pattern),)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (True, "true"), (False, "false"), (0, "0"), (-12, "-12"), (2**63, "9223372036854775808"),
        (1.0, "1.0"), (0.1, "0.1"), (1e30, "1e+30"), (math.inf, "inf"), ("", ""), ("true", "true"),
    ],
)  # fmt: skip
def test_every_value_has_a_text_form(value: AttributeValue, text: str) -> None:
    assert text_form(value) == text


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("destination", "room"), ("language", "English"), ("price", "7"), ("persistent", "false"),
        ("priority", "4"), ("author", "alan"), ("label", None), ("size", None), ("missing", None),
    ],
)  # fmt: skip
def test_names_are_looked_up_in_attributes_then_in_a_few_fields(name: str, text: str | None) -> None:
    assert text_of(a_descriptor(attributes={"language": "English", "price": 7}), name) == text


def test_an_attribute_hides_the_field_of_its_name_except_for_the_destination() -> None:
    descriptor = a_descriptor(attributes={"priority": "urgent", "destination": "elsewhere"}, label="mine")
    assert text_of(descriptor, "priority") == "urgent"
    assert text_of(descriptor, "destination") == "room"
    assert text_of(descriptor, "label") == "mine"


# ---------------------------------------------------------------------------------------------- the wire

texts = st.text(max_size=12)
entries = st.builds(
    Entry,
    st.dictionaries(texts, texts, min_size=1, max_size=4).map(lambda found: tuple(sorted(found.items()))),
    st.none() | texts,
    st.integers(0, 8),
)


@given(st.lists(entries, max_size=8))
def test_a_profile_survives_the_wire_as_a_set(profile: list[Entry]) -> None:
    encoded = encode_entries(profile)
    decoded = decode_entries(encoded, LIMITS)
    assert set(decoded) == set(profile)
    assert len(decoded) == len(set(profile))
    assert encode_entries([*reversed(profile), *profile]) == encoded
    assert len(profile_digest(encoded)) == 8


@given(st.binary(max_size=64) | st.lists(entries, max_size=3).map(encode_entries))
def test_bytes_that_are_no_profile_raise_a_remote_error(data: bytes) -> None:
    for damaged in (data, data[:-1], data + b"\0", b"\x91" + data):
        try:
            decode_entries(damaged, LIMITS)
        except (DecodeError, LimitError) as error:
            assert error.reason == "profile"  # noqa: PT017 - most of these decode to nothing, some are fine


def test_a_field_that_a_newer_version_appends_is_ignored() -> None:
    newer = msgspec.msgpack.encode([[[["destination", "news"]], None, 1, "later"]])
    assert decode_entries(newer, LIMITS) == (Entry((("destination", "news"),), None, 1),)


@pytest.mark.parametrize(
    "raw",
    [
        [[[], None, 0]],
        [[[["b", "x"], ["a", "x"]], None, 0]],
        [[[["a", "x"], ["a", "y"]], None, 0]],
        [[[["a", "x"]], None, -1]],
        [[[["a", "x"]], None, 9]],
        [[[["a", 5]], None, 0]],
        {"no": "list"},
    ],
)
def test_a_malformed_entry_is_refused(raw: object) -> None:
    with pytest.raises(DecodeError):
        decode_entries(msgspec.msgpack.encode(raw), LIMITS)


def test_text_that_is_not_utf8_is_refused() -> None:
    good = encode_entries([Entry((("a", "xyz"),))])
    with pytest.raises(DecodeError):
        decode_entries(good.replace(b"xyz", b"x\xff\xfe"), LIMITS)


@pytest.mark.parametrize(
    "profile",
    [
        [Entry((("a", str(number)),)) for number in range(2049)],
        [Entry((("a", f"{number:0250}"),)) for number in range(300)],
    ],
)
def test_a_profile_over_a_limit_is_refused(profile: list[Entry]) -> None:
    with pytest.raises(LimitError):
        decode_entries(encode_entries(profile), LIMITS)


@pytest.mark.parametrize(
    ("costly", "widened"),
    [
        (Entry((("a", "x" * 257),)), Entry((("destination", ".*"),))),
        (Entry((("a" * 1025, "x"),), "b = 1", 2), Entry((("destination", ".*"),), "b = 1", 2)),
        (Entry((("a", "x"), ("destination", "y" * 257))), Entry((("a", "x"),))),
        (Entry((("a", "x"),), "x" * 1025), Entry((("a", "x"),))),
        (Entry(tuple((f"a{number:02}", "x") for number in range(65))), Entry((("destination", ".*"),))),
        (Entry((*((f"a{number:02}", "x") for number in range(65)), ("destination", "news"))), entry("news")),
    ],
)
def test_an_entry_over_a_limit_is_widened_and_does_not_void_the_others(costly: Entry, widened: Entry) -> None:
    assert set(decode_entries(encode_entries([costly, entry("sport")]), LIMITS)) == {widened, entry("sport")}


def test_as_many_attributes_as_a_descriptor_may_have_can_be_asked_for_beside_the_destination() -> None:
    patterns = {f"a{number:02}": "x" for number in range(64)}
    asked = entry({"destination": "news", **patterns})
    assert decode_entries(encode_entries([asked]), LIMITS) == (asked,)
    with pytest.raises(PatternError, match="65 attributes; 64 are allowed"):
        entry({"one more": "x", **patterns})


def test_a_pattern_that_this_re2_does_not_take_may_travel() -> None:
    profile = (Entry((("a", "(?=later)"),)),)
    assert decode_entries(encode_entries(profile), LIMITS) == profile


# ------------------------------------------------------------------------------------- reading a pattern


@pytest.mark.parametrize(
    ("pattern", "values", "prefixes"),
    [
        ("", {""}, set()),
        ("news", {"news"}, set()),
        (r"a\.b", {"a.b"}, set()),
        (r"a\|b", {"a|b"}, set()),
        (r"a\\|b", {"a\\", "b"}, set()),
        ("English|French", {"English", "French"}, set()),
        ("a|", {"a", ""}, set()),
        ("ChatRoom.*", set(), {"ChatRoom"}),
        (".*", set(), {""}),
        (r"a\.b.*|日本", {"日本"}, {"a.b"}),
        ("a b-c\nd", {"a b-c\nd"}, set()),
    ],
)
def test_an_alternation_of_values_and_prefixes_is_recognised(
    pattern: str, values: set[str], prefixes: set[str]
) -> None:
    assert plain_forms(pattern) == (frozenset(values), frozenset(prefixes))


@pytest.mark.parametrize(
    "pattern",
    [r"a\.*", "a.*?", "a.*b", "a.b", "a+", "^a", "a$", "(a)", "[a]", "a{2}", "a\\", r"\d", "(?i)a", "*"],
)  # fmt: skip
def test_other_patterns_are_left_to_re2(pattern: str) -> None:
    assert plain_forms(pattern) is None


patterns = st.lists(
    st.sampled_from(
        [
            "a", "k", "é", "😀", ".", "[a-z]", "[^/]", r"\d", r"\W", r"\pN", r"\p{Greek}", "[é-😀]",
            r"[\w.-]", "*", "+", "?", "{3}", "{2,}", "{0,20}", "(", "(?:", "(?i)", "(?i:", ")", ")", "|", "^",
            "$", r"\b", r"\Q[{\E", r"\.", r"\x41", r"\|", "\\\\", r"\ ", "{", "]", "-", "\n", "\0", ".*", "|",
            "ab", "AB",
        ]
    ),
    max_size=8,
).map("".join)  # fmt: skip


@given(patterns, st.lists(st.text("aAbkB.|\\ -{]\n\0é", max_size=4), max_size=6))
def test_a_recognised_pattern_means_what_re2_takes_it_for(pattern: str, values: list[str]) -> None:
    forms = plain_forms(pattern)
    if forms is None:
        return
    judge = PatternSet([pattern], MEMORY_BYTES)
    assert judge.taken == [pattern]
    for value in [*values, *forms[0], *forms[1]]:
        expected = value in forms[0] or value.startswith(tuple(forms[1]))
        assert (0 in (judge.match(value.encode()) or [])) == expected


@given(patterns)
def test_a_pattern_never_makes_more_instructions_than_it_weighs(pattern: str) -> None:
    options = re2.Options()
    options.log_errors = False
    options.dot_nl = True
    try:
        compiled = re2.compile(pattern, options)
    except re2.error:
        return
    assert compiled.programsize <= weight(pattern)


@pytest.mark.parametrize("pattern", [r"\pL{1000}", "(?:.{0,30}){30}", "((((x{9}){9}){9}){9}){9}", r"[\pL]{99}"])
def test_a_short_pattern_of_a_huge_program_weighs_much(pattern: str) -> None:
    assert weight(pattern) > 8_000


# --------------------------------------------------------------------------------------- running patterns


def test_a_set_leaves_out_what_re2_does_not_take_without_noise(capfd: pytest.CaptureFixture[str]) -> None:
    running = PatternSet(["(", "[ab]+", "\ud800", "a.*"], MEMORY_BYTES)
    assert running.taken == ["[ab]+", "a.*"]
    assert sorted(running.match(b"ab") or []) == [0, 1, 2]
    assert running.match(b"c") == [2]
    assert capfd.readouterr() == ("", "")


def test_a_set_that_does_not_fit_its_memory_takes_nothing_and_tells_nothing(
    capfd: pytest.CaptureFixture[str],
) -> None:
    running = PatternSet(["[ab]*a[ab]{900}"], 16_384)
    assert running.taken == []
    assert running.match(b"ab") is None
    assert capfd.readouterr() == ("", "")


def test_a_set_tells_no_match_from_not_knowing() -> None:
    running = PatternSet(["[ab]+"], MEMORY_BYTES)
    assert running.match(b"c") == [1]
    assert running.match(b"\xff") is None
