"""Lengths of time as programs give them: seconds, or a `timedelta`."""

from __future__ import annotations

import math
from datetime import timedelta

from carrypost.errors import IllegalArgumentException
from carrypost.model.times import MICROSECONDS

Duration = float | timedelta


def seconds(value: object, what: str) -> float:
    """A length of time in seconds; raises `IllegalArgumentException` for what is none."""
    if isinstance(value, timedelta):
        value = value.total_seconds()
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < math.inf:
        raise IllegalArgumentException(f"{what} is a number of seconds, or a timedelta, not {value!r}"[:200])
    return float(value)


def microseconds(value: object, what: str) -> int:
    """The same in microseconds."""
    return round(seconds(value, what) * MICROSECONDS)
