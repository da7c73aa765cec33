"""Values of properties beside each other and in arithmetic: Java's rules, and none that raises.

A value is a boolean, a long, a double or a string, and None is NULL. Booleans are no numbers. Where an exact number
meets an approximate one both are doubles, as by Java's numeric promotion; exact arithmetic keeps 64 bits.
Messages may have properties of other types of Python: values of a subclass count as what they are at bottom, and
anything else is of a type unlike all others. Whole numbers beyond 64 bits, which no message can have, are compared
as they are.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Mapping
from typing import Any

from carrypost.model.selector.numerals import wrapped

Value = bool | int | float | str | None
Properties = Mapping[str, Value]
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
_BARE = frozenset({bool, int, float, str, _Alien})


def bare(value: object) -> object:
    """The value without its subclass: an `IntEnum` is a number. What is no value at all is a stand-in."""
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
    """Whether a relation holds: unknown if a value is NULL, false between unlike types, whatever the relation."""
    if left is None or right is None:
        return None
    left, right = bare(left), bare(right)
    if type(left) is type(right):
        if isinstance(left, int | float) and type(left) is not bool:
            return relation(left, right)
        return relation in _EQUALITY and left is not _ALIEN and relation(left, right)
    if isinstance(left, float) and type(right) is int:
        return relation(left, _double(right))
    if type(left) is int and isinstance(right, float):
        return relation(_double(left), right)
    return False


def number(value: object) -> int | float | None:
    """The value if it is a number, else None: arithmetic with anything else is unknown."""
    found = bare(value)
    return found if isinstance(found, int | float) and type(found) is not bool else None


def _double(long: int) -> float:
    try:
        return float(long)
    except OverflowError:
        return math.inf if long > 0 else -math.inf


# ----------------------------------------------------------------------------------------------- arithmetic

Operation = Callable[[object, object], int | float | None]


def operation(symbol: str) -> Operation:
    """Addition and so on, for values of whichever type; None where the outcome is unknown."""
    exact, approximate = _OPERATIONS[symbol]

    def result(left: object, right: object) -> int | float | None:
        left, right = number(left), number(right)
        if left is None or right is None:
            return None
        try:
            if isinstance(left, int) and isinstance(right, int):
                return wrapped(exact(left, right))
            return approximate(left, right)
        except (ZeroDivisionError, OverflowError):
            return None

    return result


def _quotient(dividend: int, divisor: int) -> int:
    """Toward zero, as Java has it, where Python would go down."""
    quotient = abs(dividend) // abs(divisor)
    return quotient if (dividend < 0) == (divisor < 0) else -quotient


_OPERATIONS: dict[str, tuple[Callable[[int, int], int], Callable[[float, float], float]]] = {
    "+": (operator.add, operator.add),
    "-": (operator.sub, operator.sub),
    "*": (operator.mul, operator.mul),
    "/": (_quotient, operator.truediv),
}


def signed(symbol: str, value: object) -> int | float | None:
    """Plus or minus a value."""
    found = number(value)
    if found is None or symbol == "+":
        return found
    return wrapped(-found) if isinstance(found, int) else -found
