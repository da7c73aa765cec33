"""Evaluation of selectors: from tree to closures over the properties of a message, and Java's rules for their values.

Closures are made once and called for every message. A condition returns True, False or None, which is unknown; an
operand returns a value, None being NULL. None of them raises, whatever the properties are. The most frequent case, an
identifier beside a literal, is one call.

Comparison and arithmetic of property values follow Java's rules. A value is a boolean, a long, a double or a string,
and None is NULL. Booleans are not numbers. If one number is exact and the other is not, both become doubles, as by
Java's numeric promotion; exact arithmetic keeps 64 bits.

Messages may have properties of other types of Python: values of a subclass count as their base type, and anything else
is of a type unlike all others. Integers beyond 64 bits, which no message can have, are compared as they are.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any

from carrypost.model.selector import tree
from carrypost.model.selector.tokens import wrapped
from carrypost.model.selector.tree import Node

Properties = Mapping[str, object]
Relation = Callable[[Any, Any], bool]

RELATIONS: dict[str, Relation] = {
    "=": operator.eq,
    "<>": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}
_EQUALITY = (operator.eq, operator.ne)


class _Alien:
    """Stands for a value of no type that messages have."""


_ALIEN = _Alien()
_BARE = frozenset({bool, int, float, str, type(None), _Alien})
_NUMBERS = frozenset({int, float})


def bare(value: object) -> object:
    """Return the value without its subclass: an `IntEnum` is a number. Anything but a value becomes a stand-in."""
    kind = type(value)
    if kind in _BARE:
        return value
    # `isinstance` would believe what an object says of its class.
    if issubclass(kind, str):
        return str.__str__(value)
    if issubclass(kind, int):
        return int.__pos__(value)  # type: ignore[arg-type]  # it is one
    if issubclass(kind, float):
        return float.__pos__(value)  # type: ignore[arg-type]  # it is one
    return _ALIEN


def compared(relation: Relation, left: object, right: object) -> bool | None:
    """Return True if a relation holds, None (unknown) if a value is NULL, and False between unlike types."""
    if left is None or right is None:
        return None
    one, other = type(left), type(right)
    if one is other and one in _NUMBERS:
        return relation(left, right)
    if one not in _BARE or other not in _BARE:
        return compared(relation, bare(left), bare(right))
    if one is other:
        return relation in _EQUALITY and one is not _Alien and relation(left, right)
    if one in _NUMBERS and other in _NUMBERS:
        return relation(_double(left), _double(right))  # type: ignore[arg-type]  # they are numbers
    return False


def _double(number: float) -> float:
    try:
        return float(number)
    except OverflowError:
        return math.inf if number > 0 else -math.inf


# ----------------------------------------------------------------------------------------------- arithmetic

Operation = Callable[[object, object], int | float | None]


@cache
def operation(symbol: str) -> Operation:
    """Return an arithmetic operation on values of any type; its result is None if unknown."""
    exact, approximate = _OPERATIONS[symbol]

    def result(left: object, right: object) -> int | float | None:
        one, other = type(left), type(right)
        try:
            if one is int and other is int:
                return wrapped(exact(left, right))
            if one in _NUMBERS and other in _NUMBERS:
                return approximate(left, right)
        except (ZeroDivisionError, OverflowError):
            return None
        return None if one in _BARE and other in _BARE else result(bare(left), bare(right))

    return result


def _quotient(dividend: int, divisor: int) -> int:
    """Return the quotient rounded toward zero, as in Java; Python rounds down."""
    quotient = abs(dividend) // abs(divisor)
    return quotient if (dividend < 0) == (divisor < 0) else -quotient


_OPERATIONS: dict[str, tuple[Callable[[Any, Any], int], Callable[[Any, Any], float]]] = {
    "+": (operator.add, operator.add),
    "-": (operator.sub, operator.sub),
    "*": (operator.mul, operator.mul),
    "/": (_quotient, operator.truediv),
}


def plus(value: object) -> int | float | None:
    """Return a number; arithmetic with anything else is unknown."""
    found = bare(value)
    return found if type(found) in _NUMBERS else None  # type: ignore[return-value]  # it is one


def minus(value: object) -> int | float | None:
    """Return the negative of a number; anything else is unknown."""
    if type(value) is int:
        return wrapped(-value)
    found: int | float | None = plus(value)
    return found if found is None else wrapped(-found) if isinstance(found, int) else -found


SIGNS = {"+": plus, "-": minus}


Condition = Callable[[Properties], bool | None]
Operand = Callable[[Properties], object]

_MIRRORED = {"=": "=", "<>": "<>", "<": ">", "<=": ">=", ">": "<", ">=": "<="}


def everything(_: Properties) -> bool | None:
    """Return True, whatever the message: the condition of a blank selector."""
    return True


def condition(node: Node) -> Condition:
    """Return a function that evaluates a condition."""
    match node:
        case tree.And(terms):
            return _chain([condition(term) for term in terms], decisive=False)
        case tree.Or(terms):
            return _chain([condition(term) for term in terms], decisive=True)
        case tree.Not(operand):
            return _not(condition(operand))
        case tree.Identifier():
            return _comparison("=", node, tree.Literal(True))
        case tree.Literal(value):
            return lambda _: value is True
        case _:
            return _predicate(node)


def _predicate(node: Node) -> Condition:
    match node:
        case tree.Comparison(symbol, left, right):
            return _comparison(symbol, left, right)
        case tree.Between(value, low, high, negated):
            # JMS defines it so; hence the negation of what is no number is false, too.
            bounds = (("<", low), (">", high)) if negated else ((">=", low), ("<=", high))
            return _chain([_comparison(symbol, value, bound) for symbol, bound in bounds], decisive=negated)
        case tree.In(identifier, values, negated):
            return _string_test(identifier.name, frozenset(values).__contains__, negated=negated)
        case tree.Like(identifier, pattern, negated):
            return _string_test(identifier.name, tree.matcher(pattern), negated=negated)
        case tree.IsNull(identifier, negated):
            return _is_null(identifier.name, negated=negated)
        case _:
            raise AssertionError(node)


def _chain(terms: list[Condition], *, decisive: bool) -> Condition:
    """Return a function for AND, where false is decisive, or OR, where true is; otherwise unknown if any term is."""

    def holds(properties: Properties) -> bool | None:
        outcome: bool | None = not decisive
        for term in terms:
            truth = term(properties)
            if truth is decisive:
                return decisive
            if truth is None:
                outcome = None
        return outcome

    return holds


def _not(operand: Condition) -> Condition:
    def holds(properties: Properties) -> bool | None:
        truth = operand(properties)
        return None if truth is None else not truth

    return holds


def _comparison(symbol: str, left: Node, right: Node) -> Condition:
    if isinstance(left, tree.Literal) and isinstance(right, tree.Identifier):
        symbol, left, right = _MIRRORED[symbol], right, left
    relation = RELATIONS[symbol]
    if isinstance(left, tree.Identifier) and isinstance(right, tree.Literal):
        name, literal = left.name, right.value
        kind = type(literal)

        def holds(properties: Properties) -> bool | None:
            value = properties.get(name)
            return relation(value, literal) if type(value) is kind else compared(relation, value, literal)

        return holds
    one, other = _operand(left), _operand(right)
    return lambda properties: compared(relation, one(properties), other(properties))


def _string_test(name: str, test: Callable[[str], bool], *, negated: bool) -> Condition:
    """Return a function for IN or LIKE: unknown for NULL, false for anything but a string, negated or not."""

    def holds(properties: Properties) -> bool | None:
        value: object = properties.get(name)
        if type(value) is not str:
            if value is None:
                return None
            value = bare(value)
            if type(value) is not str:
                return False
        return test(value) is not negated

    return holds


def _is_null(name: str, *, negated: bool) -> Condition:
    return lambda properties: (properties.get(name) is None) is not negated


def _operand(node: Node) -> Operand:
    """Return a function that evaluates an expression."""
    match node:
        case tree.Identifier(name):
            return lambda properties: properties.get(name)
        case tree.Literal(value):
            return lambda _: value
        case tree.Sign(symbol, operand):
            inner, sign = _operand(operand), SIGNS[symbol]
            return lambda properties: sign(inner(properties))
        case tree.Arithmetic(first, rest):
            return _arithmetic(_operand(first), [(operation(symbol), _operand(operand)) for symbol, operand in rest])
        case _:
            return condition(node)


def _arithmetic(first: Operand, rest: list[tuple[Callable[[object, object], int | float | None], Operand]]) -> Operand:
    def value(properties: Properties) -> object:
        total = first(properties)
        for apply, operand in rest:
            total = apply(total, operand(properties))
        return total

    return value
