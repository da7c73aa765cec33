"""Comparison and arithmetic of property values: Java's rules, none of which raises.

A value is a boolean, a long, a double or a string, and None is NULL. Booleans are not numbers. If one number is exact
and the other is not, both become doubles, as by Java's numeric promotion; exact arithmetic keeps 64 bits.

Messages may have properties of other types of Python: values of a subclass count as their base type, and anything else
is of a type unlike all others. Integers beyond 64 bits, which no message can have, are compared as they are.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any

from carrypost.model.selector.numerals import wrapped

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
