"""The language of selectors as tables, written from the specification (Jakarta Messaging 3.1, §3.8.1).

Every row is an expression and its value for one message: true (T), false (F) or unknown (U). The cases of the test
suite of Jakarta are among them. Where the specification leaves a choice, `docs/selectors.md` documents it.
"""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from carrypost import Selector
from carrypost.model.selector import DEPTH_MAX, STEPS_MAX, TEXT_MAX
from carrypost.model.selector.tokens import RESERVED
from carrypost.model.selector.tree import HEADERS as HEADER_FIELDS

T, F, U = True, False, None

MESSAGE: dict[str, object] = {
    "JMSDeliveryMode": "PERSISTENT",
    "JMSPriority": 4,
    "JMSMessageID": "ID:abc",
    "JMSTimestamp": 1_700_000_000_000,
    "JMSCorrelationID": None,
    "JMSType": "car",
    "JMSXGroupSeq": 3,
    "JMS_carrypost_Hops": 2,
    "yes": True,
    "no": False,
    "nil": None,
    "age": 17,
    "zero": 0,
    "minus": -7,
    "price": 2.5,
    "nan": float("nan"),
    "infinite": float("inf"),
    "most": 2**63 - 1,
    "least": -(2**63),
    "digits": "2",
    "colour": "blue",
    "empty": "",
    "quote": "it's",
    "word": "lose",
    "phone": "12993",
    "underscored": "_foo",
    "percent": "100%",
    "path": "C:\\tmp",
    "lines": "one\ntwo",
    "weight": 2600,
    "größe": 180,
    "名前": "花子",
    "$cash": 1,
    "_x": 2,
    "a1": 3,
    "Not1": True,
    "android": 1,
    "€": 5,
    "x‿y": 6,
    "smile": "😀x",
}
Row = tuple[str, bool | None]

LITERALS: list[Row] = [
    ("colour = 'blue'", T),
    ("quote = 'it''s'", T),
    ("empty = ''", T),
    ("empty = ''''", F),
    ("名前 = '花子'", T),
    ("lines = 'one\ntwo'", T),
    ("age = 17", T),
    ("age = +17", T),
    ("minus = -7", T),
    ("minus = - 7", T),
    ("age = 17L", T),
    ("age = 17l", T),
    ("age = 0x11", T),
    ("age = 0X11", T),
    ("age = 0x11L", T),
    ("weight = 0xA28", T),
    ("weight = 0xa28", T),
    ("age = 021", T),
    ("age = 021L", T),
    ("age = 0021", T),
    ("age = 0b10001", T),
    ("weight = 2_600", T),
    ("zero = 0", T),
    ("zero = 00", T),
    ("zero = 0x0", T),
    ("zero = -0", T),
    ("zero = -0.0", T),
    ("age = 17.", T),
    ("age = 17.0", T),
    ("age = 1.7e1", T),
    ("age = 1.7E+1", T),
    ("age = 170e-1", T),
    ("age = 17d", T),
    ("age = 17F", T),
    ("age = 17.D", T),
    ("price = .25e1", T),
    ("price = 2.5f", T),
    ("price = 0x1.4p1", T),
    ("price = 0x5p-1d", T),
    ("1.1f = 1.1", F),
    ("1.1f > 1.1", T),
    ("0.1 + 0.2 = 0.3", F),
    ("minus = -0x7", T),
    ("minus = -007", T),
    ("most = 9223372036854775807", T),
    ("most = 0x7fffffffffffffff", T),
    ("least = -9223372036854775808", T),
    ("least = 0x8000000000000000", T),
    ("-1 = 0xFFFFFFFFFFFFFFFF", T),
    ("-1 = 01777777777777777777777", T),
    ("4294967295 = 0xFFFFFFFF", T),
    ("TRUE", T),
    ("true", T),
    ("TrUe", T),
    ("FALSE", F),
    ("yes = TRUE", T),
    ("yes = true", T),
    ("no = FALSE", T),
    ("no <> FALSE", F),
]

IDENTIFIERS: list[Row] = [
    ("yes", T),
    ("no", F),
    ("missing", U),
    ("nil IS NULL", T),
    ("Yes", U),
    ("AGE = 17", U),
    ("$cash = 1", T),
    ("_x = 2", T),
    ("a1 = 3", T),
    ("größe > 100", T),
    ("名前 <> 'x'", T),
    ("€ = 5", T),
    ("x‿y = 6", T),
    ("Not1", T),
    ("android = 1", T),
    ("NOT Not1", F),
    ("\N{LATIN SMALL LETTER DOTLESS I}s = 1", U),
    ("JMSXGroupSeq = 3", T),
    ("JMSXUserID IS NULL", T),
    ("JMS_carrypost_Hops < 3", T),
    ("JMS_other IS NULL", T),
    ("jmspriority IS NULL", T),
    ("JMs = 1", U),
]

HEADERS: list[Row] = [
    ("JMSDeliveryMode = 'PERSISTENT'", T),
    ("JMSDeliveryMode <> 'NON_PERSISTENT'", T),
    ("JMSDeliveryMode = 'persistent'", F),
    ("JMSDeliveryMode IN ('PERSISTENT', 'NON_PERSISTENT')", T),
    ("JMSPriority >= 4", T),
    ("JMSPriority BETWEEN 5 AND 9", F),
    ("JMSPriority + 1 = 5", T),
    ("JMSMessageID = 'ID:abc'", T),
    ("JMSMessageID LIKE 'ID:%'", T),
    ("JMSTimestamp > 1600000000000", T),
    ("JMSCorrelationID IS NULL", T),
    ("JMSCorrelationID = 'x'", U),
    ("NOT JMSCorrelationID = 'x'", U),
    ("JMSType = 'car' AND colour = 'blue' AND weight > 2500", T),
    ("JMSType IN ('car', 'bus')", T),
    ("JMSType NOT LIKE 'c_r'", F),
]

COMPARISONS: list[Row] = [
    ("age > 16", T),
    ("age > 17", F),
    ("age >= 17", T),
    ("age < 17", F),
    ("age <= 17", T),
    ("age <> 17", F),
    ("age <> 18", T),
    ("17 = age", T),
    ("16 < age", T),
    ("18 > age", T),
    ("18 <= age", F),
    ("17 >= age", T),
    ("3 <> age", T),
    ("price > 2", T),
    ("price < 3", T),
    ("price = 2", F),
    ("age = 17.5", F),
    ("age > 16.9", T),
    ("age > price", T),
    ("age = age", T),
    ("price = price", T),
    ("nan = nan", F),
    ("nan <> nan", T),
    ("nan < 1", F),
    ("infinite > 1e308", T),
    ("colour = colour", T),
    ("colour <> 'red'", T),
    ("yes = yes", T),
    ("yes = no", F),
    ("yes <> no", T),
    ("'a' = 'a'", T),
    ("'a' <> 'a'", F),
    ("1 < 2", T),
    ("1.0 < 1.1", T),
    ("TRUE = TRUE", T),
    ("TRUE <> FALSE", T),
    ("most > 9223372036854775806", T),
    # Numeric promotion: a long beside a double becomes a double, and loses its last bits.
    ("most = 9223372036854775808.0", T),
    ("9007199254740993 = 9007199254740992.0", T),
    ("9007199254740993 > 9007199254740992", T),
    # Conditions are booleans, which can be compared.
    ("(age > 3) = TRUE", T),
    ("(age > 3) = yes", T),
    ("(age > 3) <> (price > 3)", T),
    ("(missing > 3) = FALSE", U),
    ("(NOT yes) = no", T),
]

UNLIKE: list[Row] = [
    ("digits > 1", F),
    ("NOT digits > 1", T),
    ("digits = 2", F),
    ("digits <> 2", F),
    ("NOT digits = 2", T),
    ("NOT digits <> 2", T),
    ("age = '17'", F),
    ("age <> '17'", F),
    ("yes = 1", F),
    ("yes <> 1", F),
    ("yes > 0", F),
    ("yes = 'TRUE'", F),
    ("colour = TRUE", F),
    ("colour < age", F),
    ("colour < colour", F),
    ("colour <= colour", F),
    ("yes >= yes", F),
    ("colour = age", F),
    ("colour <> age", F),
    ("digits BETWEEN 1 AND 3", F),
    ("digits NOT BETWEEN 1 AND 3", F),
    ("NOT digits BETWEEN 1 AND 3", T),
    ("age IN ('17')", F),
    ("age NOT IN ('17')", F),
    ("NOT age IN ('17')", T),
    ("age LIKE '17'", F),
    ("age NOT LIKE '18'", F),
    ("yes NOT LIKE 'x'", F),
    ("colour", F),
    ("NOT colour", T),
    ("age", F),
    ("digits + 1 = 3", U),
    ("yes + 1 = 2", U),
    ("-digits < 0", U),
    ("+colour = +colour", U),
]

ARITHMETIC: list[Row] = [
    ("age + 3 = 20", T),
    ("age - 3 = 14", T),
    ("age * 2 = 34", T),
    ("age / 2 = 8", T),
    ("age / 2 = 8.5", F),
    ("age / 2. = 8.5", T),
    ("age / 2e0 = 8.5", T),
    ("minus / 2 = -3", T),
    ("7 / -2 = -3", T),
    ("-7 / -2 = 3", T),
    ("-minus = 7", T),
    ("- -minus = minus", T),
    ("-(age + 1) = -18", T),
    ("+minus = -7", T),
    ("-minus < 0 OR +minus < 0", T),
    ("price * 2 = 5", T),
    ("price + age = 19.5", T),
    ("2 + 3 * 4 = 14", T),
    ("(2 + 3) * 4 = 20", T),
    ("20 - 5 - 3 = 12", T),
    ("20 - (5 - 3) = 18", T),
    ("100 / 10 / 2 = 5", T),
    ("100 / (10 / 2) = 20", T),
    ("7 / 2 * 2 = 6", T),
    ("7 * 2 / 2 = 7", T),
    ("2 * -3 = -6", T),
    ("2 - -3 = 5", T),
    ("2--3 = 5", T),
    ("- age + 20 = 3", T),
    ("1 + 2 * 3 - 8 / 4 = 5", T),
    ("most + 1 = least", T),
    ("least - 1 = most", T),
    ("most * 2 = -2", T),
    ("least / -1 = least", T),
    ("-least = least", T),
    ("-(-9223372036854775808) = least", T),
    ("9223372036854775807 + 1 < 0", T),
    ("most + 1.0 > 0", T),
    ("most * most = 1", T),
    ("1e308 * 10 = infinite", T),
    ("1 / 0 = 0", U),
    ("NOT 1 / 0 = 0", U),
    ("age / zero > 0", U),
    ("1.0 / 0 > 0", U),
    ("1 / 0.0 > 0", U),
    ("zero / age = 0", T),
    ("missing + 1 = 1", U),
    ("1 + missing = 1", U),
    ("-missing = 1", U),
    ("missing * 0 = 0", U),
]

RANGES: list[Row] = [
    ("age BETWEEN 15 AND 19", T),
    ("age BETWEEN 17 AND 17", T),
    ("age BETWEEN 18 AND 19", F),
    ("age BETWEEN 19 AND 15", F),
    ("age NOT BETWEEN 15 AND 19", F),
    ("age NOT BETWEEN 18 AND 19", T),
    ("age NOT BETWEEN 19 AND 15", T),
    ("age between 15 and 19", T),
    ("price BETWEEN 2 AND 3", T),
    ("age + 1 BETWEEN 9 * 2 AND 20", T),
    ("17 BETWEEN age AND age", T),
    ("minus BETWEEN -8 AND -6", T),
    ("age BETWEEN 15 AND 19 AND yes", T),
    ("yes AND age BETWEEN 15 AND 19", T),
    ("missing BETWEEN 1 AND 2", U),
    ("missing NOT BETWEEN 1 AND 2", U),
    ("age BETWEEN missing AND 19", U),
    ("age BETWEEN missing AND 10", F),
    ("age BETWEEN 20 AND missing", F),
    ("age NOT BETWEEN missing AND 10", T),
    ("nan BETWEEN 1 AND 2", F),
    ("nan NOT BETWEEN 1 AND 2", F),
]

LISTS: list[Row] = [
    ("colour IN ('blue', 'green')", T),
    ("colour IN ('green','blue')", T),
    ("colour IN ('Blue')", F),
    ("colour IN ('blue')", T),
    ("colour in ('blue', 'blue')", T),
    ("colour NOT IN ('blue', 'green')", F),
    ("colour NOT IN ('red')", T),
    ("quote IN ('it''s')", T),
    ("missing IN ('a')", U),
    ("missing NOT IN ('a')", U),
    ("NOT missing IN ('a')", U),
    ("empty IN ('')", T),
]

PATTERNS: list[Row] = [
    ("phone LIKE '12%3'", T),
    ("phone LIKE '12%4'", F),
    ("phone NOT LIKE '12%3'", F),
    ("phone LIKE '12993'", T),
    ("phone LIKE '1299'", F),
    ("phone LIKE '%'", T),
    ("empty LIKE '%'", T),
    ("empty LIKE ''", T),
    ("empty LIKE '_'", F),
    ("phone LIKE ''", F),
    ("word LIKE 'l_se'", T),
    ("word LIKE 'lo_se'", F),
    ("word LIKE '____'", T),
    ("word LIKE '___'", F),
    ("word LIKE '_%_'", T),
    ("word LIKE '%_____%'", F),
    ("word LIKE '_o%'", T),
    ("word LIKE '%s_'", T),
    ("word LIKE '%o_e%'", T),
    ("word LIKE '%o_o%'", F),
    ("word LIKE 'L%'", F),
    ("word LIKE '%%os%%'", T),
    ("word LIKE '%l%o%s%e%'", T),
    ("word LIKE '%e%l%'", F),
    ("word LIKE 'lo%ose'", F),
    ("underscored LIKE '\\_%' ESCAPE '\\'", T),
    ("colour LIKE '\\_%' ESCAPE '\\'", F),
    ("underscored LIKE '!_f%' ESCAPE '!'", T),
    ("percent LIKE '100!%' ESCAPE '!'", T),
    ("phone LIKE '129!%' ESCAPE '!'", F),
    ("percent LIKE '%!%' ESCAPE '!'", T),
    ("percent LIKE '%%%%' ESCAPE '%'", F),
    ("percent LIKE '___%%' ESCAPE '%'", T),
    ("underscored LIKE '__foo' ESCAPE '_'", T),
    ("path LIKE 'C:\\\\%' ESCAPE '\\'", T),
    ("path LIKE 'C:\\tmp'", T),
    ("quote LIKE 'it''_'", T),
    ("lines LIKE 'one%two'", T),
    ("lines LIKE 'one_two'", T),
    ("lines LIKE 'one.two'", F),
    ("smile LIKE '_x'", T),
    ("名前 LIKE '花_'", T),
    ("missing LIKE 'a'", U),
    ("missing NOT LIKE 'a'", U),
    ("word LIKE 'x' ESCAPE 'y'", F),
]

NULLS: list[Row] = [
    ("missing IS NULL", T),
    ("missing IS NOT NULL", F),
    ("nil IS NOT NULL", F),
    ("age IS NULL", F),
    ("age IS NOT NULL", T),
    ("empty IS NULL", F),
    ("no IS NULL", F),
    ("nan IS NULL", F),
    ("age is not null", T),
    ("NOT age IS NULL", T),
    ("missing = 1", U),
    ("missing <> 1", U),
    ("missing = missing", U),
    ("missing = 'x'", U),
    ("missing = TRUE", U),
]

LOGIC: list[Row] = [
    ("yes AND yes", T),
    ("yes AND no", F),
    ("yes AND missing", U),
    ("no AND yes", F),
    ("no AND no", F),
    ("no AND missing", F),
    ("missing AND yes", U),
    ("missing AND no", F),
    ("missing AND missing", U),
    ("yes OR yes", T),
    ("yes OR no", T),
    ("yes OR missing", T),
    ("no OR yes", T),
    ("no OR no", F),
    ("no OR missing", U),
    ("missing OR yes", T),
    ("missing OR no", U),
    ("missing OR missing", U),
    ("NOT yes", F),
    ("NOT no", T),
    ("NOT missing", U),
    ("NOT NOT yes", T),
    ("NOT NOT missing", U),
    ("NOT (missing = 1)", U),
    ("NOT (missing = 1 AND no)", T),
    ("NOT (missing = 1 OR yes)", F),
    ("missing AND missing AND no", F),
    ("missing OR missing OR yes", T),
    # NOT before AND before OR.
    ("NOT yes AND no", F),
    ("NOT (yes AND no)", T),
    ("yes OR yes AND no", T),
    ("(yes OR yes) AND no", F),
    ("no AND no OR yes", T),
    ("no AND (no OR yes)", F),
    ("NOT no OR no", T),
    ("NOT age > 20", T),
    ("NOT age = 17 OR yes", T),
    ("NOT (yes OR no) AND yes", F),
    ("yes AND NOT no", T),
    ("(yes OR no) AND (no OR yes)", T),
    ("((((yes))))", T),
    ("(age) = (17)", T),
    ("(colour) LIKE 'b%'", T),
    # What each form of writing is worth.
    ("yes and not no or missing", T),
    ("colour='blue'AND(yes)", T),
    ("\tage\f=\r\n17\n", T),
    ("(age+1)*2=36", T),
    ("", T),
    (" \t\f\r\n", T),
    ("nil is null and word like 'lo!_%' escape '!' or colour in ('a', 'blue') and age not between 0 and 10", T),
]

ROWS = [
    *LITERALS, *IDENTIFIERS, *HEADERS, *COMPARISONS, *UNLIKE, *ARITHMETIC, *RANGES, *LISTS, *PATTERNS, *NULLS, *LOGIC,
]  # fmt: skip
_IDS = [text for text, _ in ROWS]


def test_the_tables_are_long_and_say_nothing_twice() -> None:
    assert len(ROWS) >= 300
    assert len(set(_IDS)) == len(ROWS)


@pytest.mark.parametrize(("text", "expected"), ROWS, ids=_IDS)
def test_an_expression_is_true_false_or_unknown(text: str, expected: bool | None) -> None:
    selector = Selector(text)
    assert selector.evaluate(MESSAGE) is expected
    assert selector.matches(MESSAGE) is (expected is True)


def test_the_normal_form_of_an_expression_says_the_same() -> None:
    for text, expected in ROWS:
        selector = Selector(text)
        again = Selector(str(selector))
        assert (again, str(again), again.evaluate(MESSAGE)) == (selector, str(selector), expected), text


def test_the_negation_of_an_expression_is_the_opposite_and_of_unknown_unknown() -> None:
    opposite = {True: False, False: True, None: None}
    for text, expected in ROWS:
        negation = f"NOT ({text})" if text.strip() else "FALSE"
        assert Selector(negation).evaluate(MESSAGE) is opposite[expected], text


# -------------------------------------------------------------------------------------------- the document

DOCUMENT = (Path(__file__).resolve().parents[2] / "docs" / "selectors.md").read_text(encoding="utf-8")
EXAMPLES = re.findall(r"^\|[^|]*\| `([^|]+)` \| `(\{[^|]*\})` \| (true|false|unknown) \|$", DOCUMENT, re.MULTILINE)


@pytest.mark.parametrize(("text", "message", "expected"), EXAMPLES)
def test_an_example_of_the_document_is_what_it_says(text: str, message: str, expected: str) -> None:
    truths = {"true": True, "false": False, "unknown": None}
    assert Selector(text).evaluate(ast.literal_eval(message)) is truths[expected]


def test_the_document_has_every_operator_reserved_word_header_field_and_bound() -> None:
    assert len(EXAMPLES) > 30
    shown = " ".join(text for text, _, _ in EXAMPLES)
    assert all(f" {operator} " in shown for operator in ("=", "<>", "<", ">=", "+", "*", "/"))
    assert all(word in DOCUMENT for word in RESERVED)
    assert all(f"`{field}`" in DOCUMENT for field in HEADER_FIELDS)
    for name, bound in (("TEXT_MAX", TEXT_MAX), ("DEPTH_MAX", DEPTH_MAX), ("STEPS_MAX", STEPS_MAX)):
        assert re.search(rf"^\| `{name}`[^|]*\| {bound:,}[ ;]", DOCUMENT, re.MULTILINE)


def test_the_literals_of_the_document_are_literals() -> None:
    rows = re.findall(r"^\| (string|whole number|other number|boolean) \| (.*) \|$", DOCUMENT, re.MULTILINE)
    assert len(rows) == 4
    for _, examples in rows:
        for literal in re.findall(r"`([^`]+)`", examples):
            assert Selector(f"{literal} = {literal}").evaluate({}) is True
