"""Random selectors, each with its meaning computed by other means, and messages to try them on.

An expression is drawn as its text and a function that evaluates it for a message. The functions use nothing of the
package: truth is a number from 0 to 1 with unknown in the middle, longs are `ctypes`, LIKE is a table of prefixes.
"""

from __future__ import annotations

import ctypes
import operator
from collections.abc import Callable, Mapping
from fractions import Fraction

from hypothesis import strategies as st

Message = Mapping[str, object]
Truth = bool | None
Condition = tuple[str, Callable[[Message], Truth]]
Number = tuple[str, Callable[[Message], int | float | None]]

NAMES = ("a", "b", "flag", "größe", "$x", "JMSXGroupID")
STRINGS = ("", "a", "ab", "it's", "%", "_", "a%", "blue", "x\ny", "花")
LEAST, MOST = -(2**63), 2**63 - 1
_RELATIONS = {
    "=": operator.eq, "<>": operator.ne, "<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge,
}  # fmt: skip

names = st.sampled_from(NAMES)
strings = st.sampled_from(STRINGS) | st.text(max_size=5)
longs = st.integers(-5, 5) | st.integers(LEAST, MOST) | st.sampled_from([LEAST, MOST, 2**53 + 1])
doubles = st.floats(allow_nan=False, allow_infinity=False)
values = st.none() | st.booleans() | longs | st.floats() | strings
messages = st.dictionaries(names, values)


def quoted(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


# ------------------------------------------------------------------------------------------ what things mean


def compared(symbol: str, left: object, right: object) -> Truth:
    if left is None or right is None:
        return None
    kinds = {type(left), type(right)}
    if kinds == {int, float}:
        left, right = float(left), float(right)  # type: ignore[arg-type]
    elif len(kinds) > 1 or (kinds & {str, bool} and symbol not in ("=", "<>")):
        return False
    return bool(_RELATIONS[symbol](left, right))  # type: ignore[arg-type]  # of one type, which has an order


def conjunction(*truths: Truth) -> Truth:
    return _truth(min(map(_degree, truths)))


def disjunction(*truths: Truth) -> Truth:
    return _truth(max(map(_degree, truths)))


def negation(truth: Truth) -> Truth:
    return _truth(1 - _degree(truth))


def _degree(truth: Truth) -> float:
    return 0.5 if truth is None else float(truth)


def _truth(degree: float) -> Truth:
    return {0.0: False, 0.5: None, 1.0: True}[degree]


def calculated(symbol: str, left: object, right: object) -> int | float | None:
    if type(left) not in (int, float) or type(right) not in (int, float):
        return None
    assert isinstance(left, int | float)
    assert isinstance(right, int | float)
    if symbol == "/":
        if right == 0:
            return None
        if isinstance(left, int) and isinstance(right, int):
            return ctypes.c_int64(int(Fraction(left, right))).value  # `int` goes toward zero.
        return left / right
    result = {"+": operator.add, "-": operator.sub, "*": operator.mul}[symbol](left, right)
    return ctypes.c_int64(result).value if isinstance(result, int) else result


def is_like(pattern: str, escape: str | None, value: str) -> bool:
    """Compute LIKE by a table: `ends` are the lengths of the prefixes of the value that match the pattern so far."""
    ends = {0}
    characters = iter(pattern)
    for character in characters:
        if character == "%" != escape:
            ends = set(range(min(ends, default=len(value) + 1), len(value) + 1))
            continue
        anything = character == "_" != escape
        wanted = next(characters) if character == escape else character
        ends = {end + 1 for end in ends if end < len(value) and (anything or value[end] == wanted)}
    return len(value) in ends


# ----------------------------------------------------------------------------------------------- expressions


def _number_leaf() -> st.SearchStrategy[Number]:
    literals = longs.map(lambda value: (str(value), lambda _: value)) | doubles.map(
        lambda value: (repr(value), lambda _: value)
    )
    return literals | names.map(lambda name: (name, lambda message: message.get(name)))


def _calculation(parts: tuple[Number, str, Number]) -> Number:
    (left, of_left), symbol, (right, of_right) = parts
    return f"({left} {symbol} {right})", lambda message: calculated(symbol, of_left(message), of_right(message))


def _minus(part: Number) -> Number:
    text, value = part
    return f"-({text})", lambda message: calculated("*", -1, value(message))


numbers: st.SearchStrategy[Number] = st.recursive(
    _number_leaf(),
    lambda inner: st.tuples(inner, st.sampled_from("+-*/"), inner).map(_calculation) | inner.map(_minus),
    max_leaves=5,
)


def _comparison(parts: tuple[Number, str, Number]) -> Condition:
    (left, of_left), symbol, (right, of_right) = parts
    return f"{left} {symbol} {right}", lambda message: compared(symbol, of_left(message), of_right(message))


def _equality(parts: tuple[str, str, str | bool]) -> Condition:
    name, symbol, value = parts
    literal = quoted(value) if isinstance(value, str) else str(value).upper()
    return f"{name} {symbol} {literal}", lambda message: compared(symbol, message.get(name), value)


def _between(parts: tuple[Number, bool, Number, Number]) -> Condition:
    (value, of_value), negated, (low, of_low), (high, of_high) = parts

    def truth(message: Message) -> Truth:
        found, least, most = of_value(message), of_low(message), of_high(message)
        if negated:
            return disjunction(compared("<", found, least), compared(">", found, most))
        return conjunction(compared(">=", found, least), compared("<=", found, most))

    return f"{value} {'NOT ' * negated}BETWEEN {low} AND {high}", truth


def _in(parts: tuple[str, bool, list[str]]) -> Condition:
    name, negated, listed = parts

    def truth(message: Message) -> Truth:
        value = message.get(name)
        return None if value is None else isinstance(value, str) and (value in listed) is not negated

    return f"{name} {'NOT ' * negated}IN ({', '.join(map(quoted, listed))})", truth


def _like(parts: tuple[str, bool, str]) -> Condition:
    name, negated, pattern = parts

    def truth(message: Message) -> Truth:
        value = message.get(name)
        return None if value is None else isinstance(value, str) and is_like(pattern, None, value) is not negated

    return f"{name} {'NOT ' * negated}LIKE {quoted(pattern)}", truth


def _is_null(parts: tuple[str, bool]) -> Condition:
    name, negated = parts
    return f"{name} IS {'NOT ' * negated}NULL", lambda message: (message.get(name) is None) is not negated


def _flag(name: str) -> Condition:
    return name, lambda message: compared("=", message.get(name), True)


def _joined(parts: tuple[str, list[Condition]]) -> Condition:
    word, terms = parts
    join = conjunction if word == "AND" else disjunction
    text = f" {word} ".join(f"({term})" for term, _ in terms)
    return text, lambda message: join(*(truth(message) for _, truth in terms))


def _not(part: Condition) -> Condition:
    text, truth = part
    return f"NOT ({text})", lambda message: negation(truth(message))


def _beside(parts: tuple[Condition, str, Condition]) -> Condition:
    (left, of_left), symbol, (right, of_right) = parts
    # A name alone would be a property of whatever type, not a condition.
    texts = [f"(NOT NOT {text})" if text in NAMES else f"({text})" for text in (left, right)]
    return symbol.join(texts), lambda message: compared(symbol, of_left(message), of_right(message))


def _predicates() -> st.SearchStrategy[Condition]:
    patterns = st.text("ab%_", max_size=8) | strings
    return st.one_of(
        names.map(_flag),
        st.tuples(numbers, st.sampled_from(sorted(_RELATIONS)), numbers).map(_comparison),
        st.tuples(names, st.sampled_from(["=", "<>"]), strings | st.booleans()).map(_equality),
        st.tuples(numbers, st.booleans(), numbers, numbers).map(_between),
        st.tuples(names, st.booleans(), st.lists(strings, min_size=1, max_size=4)).map(_in),
        st.tuples(names, st.booleans(), patterns).map(_like),
        st.tuples(names, st.booleans()).map(_is_null),
    )


def _larger(inner: st.SearchStrategy[Condition]) -> st.SearchStrategy[Condition]:
    return st.one_of(
        st.tuples(st.sampled_from(["AND", "OR"]), st.lists(inner, min_size=2, max_size=4)).map(_joined),
        inner.map(_not),
        st.tuples(inner, st.sampled_from(["=", "<>"]), inner).map(_beside),
    )


conditions: st.SearchStrategy[Condition] = st.recursive(_predicates(), _larger, max_leaves=8)
