"""The matcher against plain sense: an independent oracle, strangers' patterns, and its bounds."""

from __future__ import annotations

import re
from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from carrypost.config import Limits
from carrypost.gossip.interest.matcher import Matcher
from carrypost.model.descriptor import AttributeValue, Descriptor, PayloadCodec
from carrypost.model.pattern import Entry, entry

LIMITS = Limits()
TIGHT = Limits(pattern_memory_bytes_max=64 * 1024)


def a_descriptor(destination: str, attributes: Mapping[str, AttributeValue] | None = None) -> Descriptor:
    return Descriptor(
        author="alan", incarnation=0, sequence=1, created_us=0, deadline_us=None,
        destination=destination, size=0, length=0, codec=PayloadCodec.PLAIN, root=b"", fragment_bytes=1024,
        attributes=dict(attributes or {}),
    )  # fmt: skip


def matching(pattern: str | Mapping[str, str], destination: str, **attributes: AttributeValue) -> bool:
    return Matcher([entry(pattern)], LIMITS).matches(a_descriptor(destination, attributes))


def foreign(*patterns: str) -> list[Entry]:
    """Return entries as a stranger may send them, with unchecked patterns."""
    return [Entry((("destination", pattern),)) for pattern in patterns]


# A sub-language on which RE2 and `re` agree, and on which `re` cannot explode.
pieces = st.sampled_from(
    ["a", "b", "1", "true", ".", ".*", "[ab]", "[^a]", "a+", "b?", r"\.", r"\d", "(a|b1)", "a{2}", "-"]
)
safe_patterns = st.lists(st.lists(pieces, max_size=4).map("".join), min_size=1, max_size=3).map("|".join)
names = st.sampled_from(["destination", "language", "price", "persistent", "other"])
profiles = st.lists(st.dictionaries(names, safe_patterns, min_size=1, max_size=3).map(entry), max_size=6)
words = st.text("ab1.-\n", max_size=4)
values = st.one_of(words, st.booleans(), st.integers(-1, 12), st.sampled_from([0.5, 1.0, -11.0]))
descriptors = st.builds(
    a_descriptor,
    words,
    st.dictionaries(st.sampled_from(["language", "price", "other", "persistent"]), values),
)


def naive(one: Entry, descriptor: Descriptor) -> bool:
    for name, pattern in one.patterns:
        value: AttributeValue
        if name == "destination":
            value = descriptor.destination
        elif name in descriptor.attributes:
            value = descriptor.attributes[name]
        elif name == "persistent":
            value = descriptor.persistent
        else:
            return False
        text = str(value).lower() if isinstance(value, bool) else str(value)
        if re.fullmatch(pattern, text, re.DOTALL) is None:
            return False
    return True


@given(profiles, st.lists(descriptors, min_size=1, max_size=6))
def test_a_matcher_agrees_with_the_naive_oracle(profile: list[Entry], found: list[Descriptor]) -> None:
    matcher, own = Matcher(profile, LIMITS), Matcher(profile, TIGHT, own=True)
    assert matcher.over_forwards == own.over_forwards == 0
    for descriptor in [*found, *found]:
        expected = tuple(index for index, one in enumerate(profile) if naive(one, descriptor))
        assert matcher.which_of(descriptor) == expected
        assert own.which_of(descriptor) == expected
        assert matcher.matches(descriptor) == bool(expected)


@given(profiles, st.lists(descriptors, min_size=1, max_size=4))
def test_a_matcher_short_of_memory_says_yes_too_often_but_never_no(
    profile: list[Entry], found: list[Descriptor]
) -> None:
    heavy = [Entry((("destination", f"[ab]*a[ab]{{{size}}}"), ("price", "a+1|.+x"))) for size in range(30, 36)]
    matcher = Matcher([*profile, *heavy], TIGHT)
    for descriptor in found:
        expected = {index for index, one in enumerate(profile) if naive(one, descriptor)}
        assert expected <= set(matcher.which_of(descriptor))
        assert matcher.matches(descriptor) or not expected


def test_an_empty_profile_matches_nothing() -> None:
    matcher = Matcher([], LIMITS)
    assert not matcher.matches(a_descriptor("news"))
    assert matcher.which_of(a_descriptor("news")) == ()


def test_exact_destinations_match_exactly() -> None:
    matcher = Matcher([entry("news"), entry("sport|news"), entry(r"a\.b")], LIMITS)
    assert matcher.which_of(a_descriptor("news")) == (0, 1)
    assert matcher.which_of(a_descriptor("a.b")) == (2,)
    assert matcher.matches(a_descriptor("sport"))
    assert not matcher.matches(a_descriptor("a-b"))
    assert not matcher.matches(a_descriptor("newsroom"))


def test_the_paper_s_example_matches_by_destination_and_language() -> None:
    interest = {"destination": "ChatRoom.*", "language": "English|Chinese|German"}
    assert matching(interest, "ChatRoom7", language="German", other=1)
    assert not matching(interest, "ChatRoom7", language="French")
    assert not matching(interest, "ChatRoom7")
    assert not matching(interest, "Room7", language="German")


@pytest.mark.parametrize(
    ("pattern", "value", "expected"),
    [
        ("", "", True),
        ("", "a", False),
        ("^a$", "a", True),
        ("a$", "ba", False),
        ("a$", "a\n", False),
        ("a", "a\n", False),
        ("a.*", "a\nb", True),
        ("a.b", "a\nb", True),
        ("a[^\n]*", "a\nb", False),
        ("(?-s)a.b", "a\nb", False),
        ("NEWS", "news", False),
        ("(?i)NEWS", "news", True),
        ("a.b", "a\0b", True),
        ("a\0b", "a\0b", True),
        ("a\0b", "a", False),
        ("x.", "x😀", True),
        (r"\w+", "日本", False),
        (r"\pL+", "日本", True),
        ("(a+)+$", "a" * 200 + "!", False),
    ],
)
def test_a_pattern_matches_the_whole_value(pattern: str, value: str, expected: bool) -> None:
    assert matching(pattern, value) is expected
    assert matching({"subject": pattern}, "news", subject=value) is expected


def test_values_that_are_no_text_match_by_their_text_form() -> None:
    assert matching({"urgent": "true"}, "news", urgent=True)
    assert not matching({"urgent": "1"}, "news", urgent=True)
    assert matching({"price": "[0-9]+"}, "news", price=120)
    assert matching({"price": r"1\.5"}, "news", price=1.5)
    assert matching({"priority": "4"}, "news")
    assert matching({"author": "alan"}, "news")


def test_a_selector_decides_after_the_patterns_and_is_carried_as_it_was_written() -> None:
    matcher = Matcher([entry("news", "price  >  100")], LIMITS)
    assert not matcher.matches(a_descriptor("news", {"price": 1}))
    assert matcher.matches(a_descriptor("news", {"price": 101}))
    assert not matcher.matches(a_descriptor("sport", {"price": 101}))
    assert matcher.entries[0].selector == "price  >  100"


def test_an_entry_that_re2_does_not_take_over_forwards_alone_and_silently(
    capfd: pytest.CaptureFixture[str],
) -> None:
    profile = foreign("(", "a{1000}{1000}", "[ab]+", "news", "\ud800+")
    matcher = Matcher(profile, LIMITS)
    assert matcher.over_forwards == 3
    assert matcher.which_of(a_descriptor("news")) == (0, 1, 3, 4)
    assert matcher.which_of(a_descriptor("ab")) == (0, 1, 2, 4)
    assert matcher.matches(a_descriptor("else"))
    assert capfd.readouterr() == ("", "")


def test_over_forwarding_concerns_one_attribute_the_others_still_have_to_match() -> None:
    matcher = Matcher([Entry((("destination", "news"), ("language", "(")))], LIMITS)
    assert matcher.over_forwards == 1
    assert matcher.matches(a_descriptor("news", {"language": "any"}))
    assert not matcher.matches(a_descriptor("sport", {"language": "any"}))
    assert not matcher.matches(a_descriptor("news"))


@pytest.mark.parametrize(
    "pattern", [r"\pL{%d}", "[ab]*a[ab]{%d}", "(?:(?:.{0,30}){0,30}){0,%d}", "(?i)[Ā-ỹ]{%d}", "(x+x+)+y{%d}"]
)
def test_strangers_patterns_cost_little_and_hide_nothing(pattern: str, capfd: pytest.CaptureFixture[str]) -> None:
    profile = foreign(*(pattern % (900 - number % 800) for number in range(2_000)), "news[0-9]")
    matcher = Matcher(profile, LIMITS)
    assert matcher.over_forwards < len(profile), "the light pattern is still evaluated"
    assert 2_000 in matcher.which_of(a_descriptor("news1"))
    assert 2_000 not in matcher.which_of(a_descriptor("sport"))
    for value in ("ab" * 128, "abba" * 40, "x" * 256, "é" * 128):
        matcher.which_of(a_descriptor(value))
    assert capfd.readouterr() == ("", "")


def test_a_value_too_long_for_the_weight_of_the_patterns_over_forwards() -> None:
    profile = [entry({"note": f"[ab]*a[ab]{{{size}}}"}) for size in range(100, 150)] + [entry({"note": "ab|c.*"})]
    matcher = Matcher(profile, LIMITS)
    assert matcher.over_forwards == 0
    assert matcher.which_of(a_descriptor("news", {"note": "c" * 10})) == (50,)
    assert matcher.which_of(a_descriptor("news", {"note": "d" * 1_000})) == tuple(range(50))


def test_a_matcher_of_own_entries_is_exact_at_whatever_cost() -> None:
    profile = [entry({"note": f"[ab]*a[ab]{{{size}}}"}, limits=TIGHT) for size in range(300, 400)]
    profile += [entry({"note": f"[{letter}é]*"}) for letter in "cd"]
    assert Matcher(profile, TIGHT).over_forwards == 100
    matcher = Matcher(profile, TIGHT, own=True)
    assert matcher.over_forwards == 0
    assert matcher.which_of(a_descriptor("news", {"note": "d" * 1_000})) == (101,)
    assert matcher.which_of(a_descriptor("news", {"note": "b" * 100 + "a" + "b" * 320})) == (20,)


def test_ordinary_patterns_are_evaluated_on_the_longest_values() -> None:
    profile = [entry({"note": f"[a-z]+/{number}/.*"}) for number in range(40)]
    assert Matcher(profile, LIMITS).which_of(a_descriptor("x", {"note": "ab/7/" + "é" * 509})) == (7,)


def test_a_value_that_is_no_unicode_is_matched_like_any_other() -> None:
    matcher = Matcher([entry("[ab]+"), entry("a.*"), entry("a.")], LIMITS)
    assert matcher.which_of(a_descriptor("a\ud800")) == (1, 2)


def test_answers_stay_right_when_more_values_come_than_are_remembered() -> None:
    matcher = Matcher([entry("a[0-9]*7"), entry("a1.*")], LIMITS)
    for _ in range(2):
        found = [index for number in range(5_000) for index in matcher.which_of(a_descriptor(f"a{number}"))]
        assert (found.count(0), found.count(1)) == (500, 1_111)


def test_many_entries_with_many_attributes_are_told_apart() -> None:
    profile = [entry({f"name{number % 50}": f"v{number}|w.*{number}"}) for number in range(1_000)]
    matcher = Matcher(profile, LIMITS)
    assert matcher.which_of(a_descriptor("x", {"name7": "v57", "name8": "w-58", "name9": "v57"})) == (8, 57, 58)
