"""Durations as programs give them: seconds, or a `timedelta`.

Java counts durations in milliseconds. Calls that exist in both languages warn of a number that looks like those.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from datetime import timedelta
from functools import wraps
from typing import ParamSpec, TypeVar

from carrypost.errors import IllegalArgumentException
from carrypost.model.times import MICROSECONDS

P = ParamSpec("P")
R = TypeVar("R")
Duration = float | timedelta
LONGEST_S = 1e12
"""Some 30,000 years: more has no room in a message, together with a date."""


def seconds(value: object, what: str, unit: str = "seconds, or a timedelta") -> float:
    """Return a duration in seconds; raises `IllegalArgumentException` if it is none."""
    if isinstance(value, timedelta):
        value = value.total_seconds()
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= LONGEST_S:
        raise IllegalArgumentException(
            f"{what} must be a number of {unit}, from 0 to {LONGEST_S:g}, not {value!r}"[:200]
        )
    return float(value)


def milliseconds(value: object, what: str) -> float:
    """Return a number of milliseconds in seconds, for programs that come from Java."""
    return seconds(value, what, "milliseconds") / 1_000


def whole_milliseconds(value: object, what: str) -> float:
    """Return a whole number of milliseconds, as Java counts, or a `timedelta`, in seconds."""
    if not isinstance(value, timedelta) and (type(value) is not int or not 0 <= value <= LONGEST_S * 1_000):
        raise IllegalArgumentException(
            f"{what} must be a whole number of milliseconds, from 0 to {LONGEST_S * 1_000:g}, or a timedelta, not "
            f"{value!r}"[:200]
        )
    return seconds(value, what) if isinstance(value, timedelta) else value / 1_000


def microseconds(value: object, what: str) -> int:
    """Return a duration in microseconds."""
    return round(seconds(value, what) * MICROSECONDS)


class UnitWarning(UserWarning):
    """A length of time that is given in seconds, but looks like milliseconds. Each call warns once per process."""


_warned: set[str] = set()
"""Calls that have warned."""


def in_seconds(at: int, keyword: str, *, least: int, multiple: int = 1) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Let a method warn if its argument at this position (`self` is 0) looks like milliseconds.

    That is a whole number from `least` up, and a multiple of `multiple`. By `keyword` it may be as long as it likes.
    """

    def decorate(function: Callable[P, R]) -> Callable[P, R]:
        name = function.__name__

        @wraps(function)
        def noticing(*given: P.args, **named: P.kwargs) -> R:
            if len(given) > at:
                value = given[at]
                if type(value) is int and value >= least and not value % multiple and name not in _warned:
                    warnings.warn(
                        f"{name} takes seconds, not milliseconds as in Java, and {value} means {value:,} seconds: "
                        f"pass {value / 1_000:g}, or {keyword}={value} if seconds are meant", UnitWarning, 2,
                    )  # fmt: skip
                    _warned.add(name)
            return function(*given, **named)

        return noticing

    return decorate
