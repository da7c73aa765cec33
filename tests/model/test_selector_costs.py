"""Costs of strangers' selectors: time linear in their length, and a weight that predicts it."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable
from types import FrameType

import pytest

from carrypost import InvalidSelectorException, Selector
from carrypost.model.selector import TEXT_MAX

VALUE = 1_024
"""Characters of the longest value of an attribute, by default."""
INSTRUCTIONS_PER_STEP = 50
Trace = Callable[[FrameType, str, object], object] | None


def instructions(call: Callable[[], object]) -> int:
    """Count the instructions of the package that a call runs."""
    count = 0

    def local(_: FrameType, event: str, __: object) -> Trace:
        nonlocal count
        count += event == "opcode"
        return local

    def enter(frame: FrameType, _: str, __: object) -> Trace:
        if "selector" not in frame.f_code.co_filename:
            return None
        frame.f_trace_opcodes = True
        return local

    before = sys.gettrace()
    sys.settrace(enter)  # type: ignore[arg-type]  # who is asked for no more may be asked nothing
    try:
        call()
    finally:
        sys.settrace(before)
    return count


def attempt(text: str) -> None:
    """Parse a selector, valid or not."""
    with contextlib.suppress(InvalidSelectorException):
        Selector(text)


TEXTS: dict[str, Callable[[int], str]] = {
    "AND": lambda size: " AND ".join(["a > 1"] * size),
    "OR in AND": lambda size: " AND ".join(["(a > 1 OR b LIKE 'x%')"] * size),
    "sums": lambda size: " + ".join(["a"] * size) + " = 1",
    "sums of products": lambda size: " + ".join(["a * b"] * size) + " = 1",
    "lists": lambda size: f"a IN ({', '.join(repr(str(each)) for each in range(size))})",
    "patterns of many": lambda size: "a LIKE '" + "%a" * size + "'",
    "patterns of one": lambda size: "a LIKE '%" + "_a" * size + "%'",
    "escapes": lambda size: "a LIKE '" + "!_" * size + "' ESCAPE '!'",
    "parentheses": lambda size: "(" * size + "a" + ")" * size,
    "negations": lambda size: "NOT " * size + "a",
    "signs": lambda size: "-" * size + "a = 1",
    "closing": lambda size: "a" + ")" * size,
    "one name": lambda size: "é" * size,
    "quotes": lambda size: "a = " + "'" * (2 * size + 1),
    "blanks": lambda size: " " * size,
}


@pytest.mark.parametrize("make", TEXTS.values(), ids=TEXTS)
def test_reading_a_text_takes_time_linear_in_its_length(make: Callable[[int], str]) -> None:
    assert instructions(lambda: attempt(make(400))) <= 2.1 * instructions(lambda: attempt(make(200)))


@pytest.mark.parametrize(
    "text",
    [
        "'" * (TEXT_MAX - 1),
        "'" * (TEXT_MAX - 2) + "a'",
        "a = '" + "''" * (TEXT_MAX // 2 - 3),
        "1" * TEXT_MAX,
        "1_" * (TEXT_MAX // 2),
        "0x" + "f" * (TEXT_MAX - 2),
        "0x1." + "f" * (TEXT_MAX - 4),
        "1." + "0" * (TEXT_MAX - 3) + "x",
        ".1" * (TEXT_MAX // 2),
        "1e" * (TEXT_MAX // 2),
        "a" * TEXT_MAX,
        "$\x80" * (TEXT_MAX // 2),
        " " * (TEXT_MAX - 1) + "?",
        "a" + " " * (TEXT_MAX - 1),
        "- " * (TEXT_MAX // 2),
        "<>" * (TEXT_MAX // 2),
        "a,".join(["("] * (TEXT_MAX // 3)),
    ],
    ids=lambda text: f"{text[:4]}...{text[-2:]}",
)
def test_the_longest_texts_of_any_kind_are_read_at_once(text: str) -> None:
    attempt(text)  # Of 65,536 characters; were anything read again and again, this would take minutes.


LIKES: dict[str, Callable[[int], str]] = {
    "many": lambda size: "%a" * size + "%b",
    "many with one": lambda size: "%_a" * size + "%b",
    "many and ones": lambda size: "%" + "_" * size + "b",
    "nearly everywhere": lambda size: "%" + "a" * size + "_b%",
    "alternating": lambda size: "%" + "a_" * size + "b%",
    "apart": lambda size: "%a" + "_" * size + "b%",
    "only ones": lambda size: "_" * size,
    "ends": lambda size: "a_" * size + "%" + "_a" * size,
}
"""Patterns for values of nothing but a."""


@pytest.mark.parametrize("pattern", LIKES.values(), ids=LIKES)
def test_the_worst_patterns_take_time_linear_in_the_value(pattern: Callable[[int], str]) -> None:
    selector = Selector(f"a LIKE '{pattern(50)}'")

    def cost(size: int) -> int:
        return instructions(lambda: selector.matches({"a": "a" * size}))

    assert cost(800) <= 2.1 * cost(400)


@pytest.mark.parametrize("pattern", LIKES.values(), ids=LIKES)
def test_the_worst_patterns_take_time_at_most_linear_in_the_pattern(pattern: Callable[[int], str]) -> None:
    def cost(size: int) -> int:
        return instructions(lambda: Selector(f"a LIKE '{pattern(size)}'").matches({"a": "a" * VALUE}))

    assert cost(100) <= 2.1 * cost(50)


MESSAGE: dict[str, object] = {"a": "a" * VALUE, "n": 2**62, "x": 0.5, "flag": True}
WORST = {
    **{f"LIKE, {name}": f"a LIKE '{pattern(3)}'" for name, pattern in LIKES.items()},
    **{f"LIKE, long, {name}": f"a LIKE '{pattern(30)}'" for name, pattern in LIKES.items()},
    "LIKE among others": " AND ".join(["a NOT LIKE '%_b%'"] * 5),
    "a flag": "flag",
    "flags": " AND ".join(["flag"] * 50),
    "comparisons": " AND ".join(["n > 1"] * 50),
    "promotion": " AND ".join(["n > 0.5"] * 50),
    "unlike types": " OR ".join(["a > 1"] * 50),
    "of two": " AND ".join(["n > x"] * 50),
    "sums": " + ".join(["n"] * 50) + " <> 0",
    "quotients": " / ".join(["n"] * 50) + " <> 0",
    "mixed": " * ".join(["n", "x"] * 25) + " <> 0",
    "signs": " + ".join(["-n"] * 50) + " <> 0",
    "ranges": " AND ".join(["n * x BETWEEN x AND n"] * 20),
    "lists": f"a NOT IN ({', '.join(repr(str(each)) for each in range(100))})",
    "nulls": " AND ".join(["n IS NOT NULL"] * 50),
    "negations": "NOT " * 30 + "flag",
    "nested": "(" * 15 + "NOT (flag AND flag" + ")" * 16,
}


@pytest.mark.parametrize("text", WORST.values(), ids=WORST)
def test_the_weight_of_a_selector_bounds_what_it_costs(text: str) -> None:
    selector = Selector(text)
    assert instructions(lambda: selector.evaluate(MESSAGE)) <= INSTRUCTIONS_PER_STEP * selector.weight


def test_weight_grows_with_what_is_evaluated() -> None:
    weights = [
        Selector(text).weight
        for text in ("", "a", "a = 1", "a + 1 = 1", "a BETWEEN 1 AND 2", "a LIKE 'abcdef%'", "a LIKE '%abcdef%'")
    ]
    assert weights == sorted(set(weights))
    assert Selector("a IN ('a', 'b', 'c')").weight > Selector("a IN ('a')").weight
    assert VALUE < Selector("a LIKE '%a_b%'").weight < 2 * VALUE
    assert Selector(f"a LIKE '%{'_b' * 500}%'").weight > 4 * VALUE  # Wide integers: 33 words for each character.
    assert Selector("a AND b OR c").weight == Selector("(a AND b) OR (c)").weight == 5
