"""Lengths of time as programs give them: seconds, or a `timedelta`."""

from __future__ import annotations

from datetime import timedelta

from carrypost.errors import IllegalArgumentException
from carrypost.model.times import MICROSECONDS

Duration = float | timedelta
LONGEST_S = 1e12
"""Some 30,000 years: more has no room in a message, together with a date."""


def seconds(value: object, what: str, unit: str = "seconds, or a timedelta") -> float:
    """A length of time in seconds; raises `IllegalArgumentException` for what is none."""
    if isinstance(value, timedelta):
        value = value.total_seconds()
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= LONGEST_S:
        raise IllegalArgumentException(f"{what} is a number of {unit}, from 0 to {LONGEST_S:g}, not {value!r}"[:200])
    return float(value)


def milliseconds(value: object, what: str) -> float:
    """A number of milliseconds, in seconds; programs that come from Java have those."""
    return seconds(value, what, "milliseconds") / 1_000


def microseconds(value: object, what: str) -> int:
    """The same in microseconds."""
    return round(seconds(value, what) * MICROSECONDS)
