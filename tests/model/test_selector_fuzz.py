"""Properties of every selector: its meaning, its normal form, the laws of logic, and that it never raises."""

from __future__ import annotations

import decimal
import enum

from hypothesis import example, given
from hypothesis import strategies as st
from tests.support import expressions
from tests.support.expressions import Condition, Message, Number

from carrypost import InvalidSelectorException, Selector
from carrypost.model.selector import tree


class Colour(enum.StrEnum):
    BLUE = "blue"


class Level(enum.IntEnum):
    HIGH = 9


class Length(float):
    pass


class Liar:
    """Says that it is text."""

    __class__ = str  # type: ignore[assignment]

    def __eq__(self, other: object) -> bool:
        raise RuntimeError

    def __hash__(self) -> int:
        raise RuntimeError


anything = st.one_of(
    expressions.values,
    st.integers(-(10**400), 10**400),
    st.binary(max_size=3),
    st.lists(st.integers(), max_size=2),
    st.sampled_from([Colour.BLUE, Level.HIGH, Length(2.5), object(), decimal.Decimal("sNaN"), 3 + 4j, int]),
    st.builds(Liar),
)
any_messages = st.dictionaries(expressions.names, anything)


@given(expressions.conditions, expressions.messages)
def test_a_selector_means_what_its_parts_mean(drawn: Condition, message: Message) -> None:
    text, truth = drawn
    assert Selector(text).evaluate(message) is truth(message)


@given(expressions.conditions, expressions.messages)
def test_the_normal_form_parses_back_to_an_equal_selector(drawn: Condition, message: Message) -> None:
    selector = Selector(drawn[0])
    again = Selector(str(selector))
    assert again == selector
    assert hash(again) == hash(selector)
    assert (str(again), again.weight) == (str(selector), selector.weight)
    assert again.evaluate(message) is selector.evaluate(message)


@given(expressions.conditions, any_messages)
def test_evaluation_never_raises_whatever_the_properties_are(drawn: Condition, message: Message) -> None:
    selector = Selector(drawn[0])
    assert selector.evaluate(message) in (True, False, None)
    assert selector.matches(message) is (selector.evaluate(message) is True)


@given(expressions.conditions, expressions.conditions, expressions.messages)
def test_de_morgan(one: Condition, other: Condition, message: Message) -> None:
    left, right = one[0], other[0]
    for joined, split in (
        (f"NOT (({left}) AND ({right}))", f"NOT ({left}) OR NOT ({right})"),
        (f"NOT (({left}) OR ({right}))", f"NOT ({left}) AND NOT ({right})"),
    ):
        assert Selector(joined).evaluate(message) is Selector(split).evaluate(message)


@given(expressions.numbers, expressions.numbers, expressions.numbers, any_messages)
def test_between_is_two_comparisons(value: Number, low: Number, high: Number, message: Message) -> None:
    found, least, most = value[0], low[0], high[0]
    for between, comparisons in (
        (f"{found} BETWEEN {least} AND {most}", f"{found} >= {least} AND {found} <= {most}"),
        (f"{found} NOT BETWEEN {least} AND {most}", f"{found} < {least} OR {found} > {most}"),
    ):
        assert Selector(between).evaluate(message) is Selector(comparisons).evaluate(message)


@given(
    expressions.names,
    st.lists(expressions.strings, min_size=1, max_size=4),
    any_messages,
)
def test_in_is_a_comparison_with_each_string(name: str, listed: list[str], message: Message) -> None:
    literals = [expressions.quoted(each) for each in listed]
    whole = Selector(f"{name} IN ({', '.join(literals)})")
    each = Selector(" OR ".join(f"{name} = {literal}" for literal in literals))
    assert whole.evaluate(message) is each.evaluate(message)


@given(st.text("ab%_!", max_size=12), st.sampled_from([None, "!", "%", "_", "a"]), st.text("ab%_!", max_size=16))
@example("%a_%_b%", None, "aaabaab")
@example("%ab%ba%", None, "aba")
@example("ab%ba", None, "aba")
def test_like_is_what_a_table_of_prefixes_says(pattern: str, escape: str | None, value: str) -> None:
    try:
        read = tree.read(pattern, escape)
    except ValueError:
        return
    assert tree.matcher(read)(value) is expressions.is_like(pattern, escape, value)


WORDS = [
    "a", "b", "'x'", "'%_'", "'!'", "3", "-1", "0x1f", "2.5", "08", "1e999", "TRUE", "NULL", "NOT", "AND", "OR",
    "BETWEEN", "LIKE", "IN", "IS", "ESCAPE", "JMSType", "JMSPriority", "JMSFoo", "(", ")", ",", "=", "<>", "<", "<=",
    ">", ">=", "+", "-", "*", "/", "'", '"', "==", ".", "$", "é", "½",
]  # fmt: skip


@given(st.lists(st.sampled_from(WORDS), max_size=12).map(" ".join) | st.text(max_size=20))
def test_a_text_is_a_selector_or_is_refused_and_nothing_else_happens(text: str) -> None:
    try:
        selector = Selector(text)
    except InvalidSelectorException as error:
        assert error.position is None or 1 <= error.position <= len(text) + 1  # noqa: PT017 - or it is a selector
        return
    assert Selector(str(selector)) == selector
    assert selector.evaluate({}) in (True, False, None)
