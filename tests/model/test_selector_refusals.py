"""Refused selectors: each with its place and a text that helps."""

from __future__ import annotations

import copy
import pickle

import pytest

from carrypost import CarrypostError, InvalidSelectorException, JMSException, PatternError, Selector
from carrypost.model.selector import DEPTH_MAX, STEPS_MAX, TEXT_MAX

Row = tuple[str, int, str]
"""A text, the character of its fault, counted from 1, and part of the error."""

OTHER_HEADERS = ("JMSDestination", "JMSReplyTo", "JMSExpiration", "JMSRedelivered", "JMSDeliveryTime")
SYNTAX: list[Row] = [
    # Not whole.
    ("age =", 6, "found the end, expected an identifier, a literal or '('"),
    ("NOT", 4, "found the end"),
    ("yes AND", 8, "found the end"),
    ("(yes", 5, "expected AND, OR, an operator or ')'"),
    ("yes)", 4, "found ')', expected AND, OR, an operator or the end"),
    ("()", 2, "found ')'"),
    ("( OR )", 3, "the reserved word OR"),
    ("x = 'y' AND ( OR )", 15, "the reserved word OR"),
    ("yes no", 5, "found no, expected AND, OR, an operator or the end"),
    ("AND yes", 1, "the reserved word AND"),
    ("age = = 3", 7, "found '='"),
    ("= 3", 1, "found '='"),
    ("age + = 3", 7, "found '='"),
    ("age = 3 +", 10, "found the end"),
    ("age * / 3 = 1", 7, "found '/'"),
    ("age = NOT yes", 7, "the reserved word NOT"),
    ("1 < age < 3", 9, "a second '<': join comparisons with AND"),
    ("age = 1 = yes", 9, "a second '='"),
    ("age, 3", 4, "found ','"),
    # Reserved words are no identifiers.
    *((f"{word} = 0", 1, word) for word in ("AND", "OR", "BETWEEN", "LIKE", "IN", "IS", "ESCAPE", "And", "iS")),
    ("NOT = 0", 5, "found '='"),
    ("NULL = 0", 1, "NULL can only be used in IS NULL"),
    ("age = NULL", 7, "NULL can only be used in IS NULL"),
    ("age <> null", 8, "NULL can only be used in IS NULL"),
    ("age IN ('x') ESCAPE '!'", 14, "the reserved word ESCAPE"),
    # Operators with a form of their own.
    ("age IS", 7, "expected NOT NULL or NULL"),
    ("age IS NOT", 11, "expected NULL"),
    ("age IS TRUE", 8, "expected NOT NULL or NULL"),
    ("age NOT NULL", 9, "expected BETWEEN, IN or LIKE"),
    ("age NOT = 3", 9, "found '=', expected BETWEEN, IN or LIKE"),
    ("age BETWEEN 1", 14, "expected AND"),
    ("age BETWEEN 1 OR 3", 15, "expected AND"),
    ("age BETWEEN AND 3", 13, "the reserved word AND"),
    ("colour IN", 10, "expected '('"),
    ("colour IN 'blue'", 11, "found 'blue', expected '('"),
    ("colour IN ()", 12, "found ')', expected a string"),
    ("colour IN ('a',)", 16, "expected a string"),
    ("colour IN ('a' 'b')", 16, "expected ',' or ')'"),
    ("colour IN ('a'", 15, "expected ',' or ')'"),
    ("colour IN (1, 2)", 12, "found 1, expected a string"),
    ("colour IN (colour)", 12, "found colour, expected a string"),
    ("colour LIKE", 12, "expected a string"),
    ("colour LIKE 7", 13, "found 7, expected a string"),
    ("colour LIKE colour", 13, "expected a string"),
    ("colour LIKE 'a' ESCAPE", 23, "expected a string"),
    ("colour LIKE 'a' ESCAPE ''", 24, "a string of one character"),
    ("colour LIKE 'a' ESCAPE 'ab'", 24, "a string of one character"),
    ("colour LIKE 'a!b' ESCAPE '!'", 13, "the pattern has '!b'; '!' may stand before '_', '%' and itself"),
    ("colour LIKE 'ab!' ESCAPE '!'", 13, "the pattern has '!' at its end"),
    ("colour LIKE '%%%' ESCAPE '%'", 13, "the pattern has '%' at its end"),
    # Literals.
    ("colour = 'blue", 10, "the string that begins here does not end"),
    ("colour = 'it's'", 15, "a quote inside a string is doubled"),
    ("colour = 'a''", 10, "the string that begins here does not end"),
    ("age = 08", 7, "08 is not an octal number"),
    ("age = 0x", 7, "'0x' is neither a number"),
    ("age = 0xg", 7, "'0xg' is neither a number"),
    ("age = 0b2", 7, "'0b2' is neither a number"),
    ("age = 17x", 7, "'17x' is neither a number"),
    ("age = 17and yes", 7, "'17and' is neither a number"),
    ("age = 1_", 7, "'1_' is neither a number"),
    ("age = 1e", 7, "'1e' is neither a number"),
    ("age = 1.2.3", 7, "'1.2.3' is neither a number"),
    ("age = 1.5L", 7, "'1.5L' is neither a number"),
    ("a.b = 3", 2, "'.b' is neither a number nor part of an identifier"),
    ("age = 9223372036854775808", 7, "beyond the range of long"),
    ("age = -(9223372036854775808)", 9, "beyond the range of long"),
    ("age = -9223372036854775809", 8, "beyond the range of long"),
    ("age = 0x10000000000000000", 7, "more than 64 bits"),
    ("age = 02000000000000000000000", 7, "more than 64 bits"),
    ("age = " + "9" * 5_000, 7, "beyond the range of long"),
    ("age = 1e309", 7, "beyond the range of double"),
    ("age = 1e39f", 7, "beyond the range of float"),
    ("age = 0x1p1024", 7, "beyond the range of double"),
    ("age = 1e-400", 7, "too small for a double"),
    ("age = 1e-60f", 7, "too small for a float"),
    # Characters of no selector.
    ("age = 3;", 8, "';' cannot begin an identifier"),
    ("@age = 3", 1, "'@' cannot begin an identifier"),
    ("age # 3", 5, "'#'"),
    ("age\x0b= 3", 4, "'\\x0b' cannot begin an identifier"),
    ("a\xa0b = 3", 2, "NO-BREAK SPACE"),
    ("٣ = 3", 1, "ARABIC-INDIC DIGIT THREE"),
    ("x½ = 3", 2, "VULGAR FRACTION ONE HALF"),
    ("😀 = 3", 1, "GRINNING FACE"),
    ("/* comment */ yes", 1, "found '/'"),
    # Header fields that are none, or none to select by.
    *(
        (f"{name} IS NULL", 1, "not a header field that a selector may use")
        for name in (*OTHER_HEADERS, "JMSFoo", "JMS")
    ),
]

HINTS: list[Row] = [
    ("price > 3 AN yes", 11, "did you mean AND?"),
    ("price > 3 orr yes", 11, "did you mean OR?"),
    ("price BETWEN 1 AND 2", 7, "did you mean BETWEEN?"),
    ("price BETWEEN 1 ADN 2", 17, "did you mean AND?"),
    ("colour lke 'b%'", 8, "did you mean LIKE?"),
    ("colour NOT LIEK 'b%'", 12, "did you mean LIKE?"),
    ("colour LIKE 'b' ESCAP '!'", 17, "did you mean ESCAPE?"),
    ("colour IS NUL", 11, "did you mean NULL?"),
    ("JMSPriorty > 3", 1, "did you mean JMSPriority?"),
    ("JMSMessageId = 'x'", 1, "did you mean JMSMessageID?"),
    ("age == 3", 5, "write '='"),
    ("age != 3", 5, "write '<>'"),
    ("yes && no", 5, "write 'AND'"),
    ("yes || no", 5, "write 'OR'"),
    ("!yes", 1, "write 'NOT'"),
    ('colour = "blue"', 10, 'write "\'"'),
    ("colour = \N{LEFT SINGLE QUOTATION MARK}blue", 10, 'write "\'"'),
    ("age \N{EN DASH} 3 > 1", 5, "write '-'"),
    ("age ≥ 3", 5, "write '>='"),
]

TYPES: list[Row] = [
    ("3 + 5", 1, "a selector needs a condition; this is a number"),
    ("  'yes'", 3, "a selector needs a condition; 'yes' is a string"),
    ("-age", 1, "needs a condition"),
    ("JMSType", 1, "JMSType is a string"),
    ("yes AND 3 + 5", 9, "AND needs a condition"),
    ("age BETWEEN (1 AND 3)", 14, "AND needs a condition; 1 is a number"),
    ("5 OR yes", 1, "OR needs a condition; 5 is a number"),
    ("NOT 5", 5, "NOT needs a condition; 5 is a number"),
    ("NOT 'x'", 5, "NOT needs a condition"),
    ("TRUE = 0", 8, "'=' must compare values of the same type; TRUE is a condition, and 0 is a number"),
    ("FALSE <> 0", 10, "must compare values of the same type"),
    ("1 = 'a'", 5, "1 is a number, and 'a' is a string"),
    ("(age > 1) = 3", 13, "this is a condition, and 3 is a number"),
    ("JMSPriority = '4'", 15, "JMSPriority is a number, and '4' is a string"),
    ("JMSDeliveryMode = 2", 19, "JMSDeliveryMode is a string, and 2 is a number"),
    ("JMSType = JMSPriority", 11, "JMSType is a string, and JMSPriority is a number"),
    ("age > 'foo'", 7, "'>' needs numbers; 'foo' is a string"),
    ("age >= 'foo'", 8, "'>=' needs numbers"),
    ("'foo' < age", 1, "'<' needs numbers"),
    ("'foo' <= TRUE", 1, "'<=' needs numbers"),
    ("age > TRUE", 7, "TRUE is a condition"),
    ("JMSType > 3", 1, "JMSType is a string"),
    ("(yes AND no) > 1", 1, "this is a condition"),
    ("age + 'x' = 2", 7, "'+' needs numbers; 'x' is a string"),
    ("'x' * 2 = 2", 1, "'*' needs numbers"),
    ("age / TRUE = 2", 7, "'/' needs numbers"),
    ("-'x' = 2", 2, "'-' needs numbers"),
    ("+TRUE", 2, "'+' needs numbers"),
    ("age - (yes AND no) = 2", 7, "'-' needs numbers; this is a condition"),
    ("JMSType + 1 = 2", 1, "'+' needs numbers; JMSType is a string"),
    ("age BETWEEN 'a' AND 'z'", 13, "BETWEEN needs numbers; 'a' is a string"),
    ("age BETWEEN 1 AND 'z'", 19, "BETWEEN needs numbers; 'z' is a string"),
    ("'m' BETWEEN 1 AND 2", 1, "BETWEEN needs numbers"),
    ("JMSType NOT BETWEEN 1 AND 2", 1, "BETWEEN needs numbers"),
    ("JMSPriority IN ('4')", 1, "IN needs strings; JMSPriority is a number"),
    ("JMSTimestamp NOT LIKE '1%'", 1, "LIKE needs strings"),
    ("'a' IN ('a')", 1, "IN needs an identifier before it; 'a' is a string"),
    ("'a' LIKE 'a'", 1, "LIKE needs an identifier before it"),
    ("3 IS NULL", 1, "IS needs an identifier before it"),
    ("age + 1 IS NULL", 1, "IS needs an identifier before it; this is a number"),
    ("NOT age + 1 LIKE 'x'", 5, "LIKE needs an identifier before it"),
]


@pytest.mark.parametrize(("text", "position", "reason"), [*SYNTAX, *HINTS, *TYPES])
def test_a_text_that_is_no_selector_is_refused_where_it_goes_wrong(text: str, position: int, reason: str) -> None:
    with pytest.raises(InvalidSelectorException) as caught:
        Selector(text)
    assert caught.value.position == position
    assert f"character {position}: " in str(caught.value)
    assert reason in str(caught.value)
    assert caught.value.error_code == ("selector-type" if (text, position, reason) in TYPES else "selector-syntax")


def test_the_message_shows_the_text_around_the_fault_however_long_the_text_is() -> None:
    with pytest.raises(InvalidSelectorException) as caught:
        Selector("a = 1 OR " * 1_000 + "a ? 1" + " OR a = 1" * 1_000)
    assert "a = 1 OR a ? 1 OR a = 1" in str(caught.value)
    assert len(str(caught.value)) < 250
    assert caught.value.position == 9_003


def test_the_exception_is_what_jms_and_this_package_call_it() -> None:
    with pytest.raises(PatternError) as caught:
        Selector("(")
    assert isinstance(caught.value, JMSException)
    assert isinstance(caught.value, CarrypostError)
    again = pickle.loads(pickle.dumps(caught.value))  # noqa: S301 - our own, as the laboratory's workers send errors
    assert (str(again), again.error_code, again.position) == (str(caught.value), "selector-syntax", 2)
    assert JMSException("why").error_code is None
    assert JMSException("why", "E1").error_code == "E1"


def test_what_is_no_text_is_refused() -> None:
    for value in (None, 3, b"yes"):
        with pytest.raises(InvalidSelectorException, match="a selector must be a str, not"):
            Selector(value)  # type: ignore[arg-type]


# ------------------------------------------------------------------------------------------------- bounds


@pytest.mark.parametrize(("opening", "closing", "end"), [("(", ")", ""), ("NOT ", "", ""), ("-", "", " = 1")])
def test_what_nests_as_deep_as_allowed_works_and_what_nests_deeper_is_refused(
    opening: str, closing: str, end: str
) -> None:
    deepest = Selector(opening * DEPTH_MAX + "a" + closing * DEPTH_MAX + end)
    assert deepest.evaluate({"a": 1 if end else True}) is True
    assert Selector(str(deepest)) == deepest
    with pytest.raises(InvalidSelectorException, match=f"nest more than {DEPTH_MAX} deep") as caught:
        Selector(opening * 10_000 + "a" + closing * 10_000 + end)
    assert caught.value.error_code == "selector-bound"
    assert caught.value.position == len(opening) * DEPTH_MAX + 1


@pytest.mark.parametrize("joint", [" AND ", " OR ", " + ", " * ", " - "])
def test_what_is_only_long_does_not_count_as_deep(joint: str) -> None:
    text = joint.join(["a"] * 2_000) + ("" if joint.strip().isalpha() else " = 2")
    selector = Selector(text)
    assert selector.evaluate({"a": 1}) is False
    assert Selector(str(selector)) == selector


def test_a_text_that_is_too_long_is_refused_unread() -> None:
    assert Selector(" " * (TEXT_MAX - 1) + "a").matches({"a": True})
    with pytest.raises(InvalidSelectorException, match=f"65,537 characters; {TEXT_MAX:,} are allowed") as caught:
        Selector("(" * (TEXT_MAX + 1))
    assert caught.value.error_code == "selector-bound"


def test_a_selector_that_weighs_too_much_is_refused_with_the_bound() -> None:
    heavy = "a LIKE '%b_%'"
    count = STEPS_MAX // (Selector(heavy).weight + 1)
    assert Selector(" OR ".join([heavy] * count)).weight <= STEPS_MAX
    with pytest.raises(InvalidSelectorException, match=f"steps; {STEPS_MAX:,} are allowed") as caught:
        Selector(" OR ".join([heavy] * (count + 1)))
    assert caught.value.error_code == "selector-bound"
    assert caught.value.position is None


def test_a_copy_of_a_selector_is_equal() -> None:
    selector = Selector("a > 1")
    assert copy.deepcopy([selector]) == pickle.loads(pickle.dumps([selector])) == [selector]  # noqa: S301 - our own
