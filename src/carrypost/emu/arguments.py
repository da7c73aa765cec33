"""Checks of arguments to the emulator, with errors that name what is allowed and what was found.

Types are checked where a wrong one would otherwise surface later, far from the mistake, or not at all.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from numbers import Real
from pathlib import Path

from carrypost.errors import LocalError
from carrypost.log.record import Record
from carrypost.model.times import MICROSECONDS

_WHOLE = re.compile(r"0|-?[1-9][0-9]*")
_EMULATOR_ONLY = ("duration_s", "scenario")
"""Keywords that a network in memory does not take, and that look like it did."""


def is_number(value: object) -> bool:
    """Return True if it is a number; True is an int to Python, but is not meant as 1."""
    return isinstance(value, Real) and not isinstance(value, bool)


def microseconds(seconds: float, name: str = "a time") -> int:
    """Seconds as whole microseconds; times are rounded once, here at the edge."""
    if not is_number(seconds) or not 0 <= seconds < math.inf:
        raise LocalError(f"{name} must be a number of seconds, 0 s or more, not {seconds!r}")
    return round(seconds * MICROSECONDS)


def check_name(name: object) -> None:
    """Refuse what cannot be the name of a node."""
    if not isinstance(name, str) or not name:
        raise LocalError(f"the name of a node must be text of 1 character or more, not {name!r}")


def check_seed(seed: object) -> None:
    """Refuse what cannot be a seed."""
    if isinstance(seed, bool) or not isinstance(seed, int | str):
        raise LocalError(f"seed must be a whole number or text, not {seed!r}")


def seed_of(text: str) -> int | str:
    """Return a seed; text that is a number becomes that number, since records and command lines have seeds as text."""
    return int(text) if _WHOLE.fullmatch(text) else text


def check_flag(name: str, value: object) -> None:
    """Refuse what is neither True nor False."""
    if not isinstance(value, bool):
        raise LocalError(f"{name} must be True or False, not {value!r}")


def check_callable(name: str, value: object) -> None:
    """Refuse what cannot be called."""
    if not callable(value):
        raise LocalError(f"{name} must be a function, not {value!r}")


def check_record(record: object) -> None:
    """Refuse what cannot take a record."""
    if record is not None and not isinstance(record, Record | str | Path):
        raise LocalError(f"record takes a carrypost.testing.Record or the path of a file, not {record!r}")


def check_keywords(keywords: Iterable[str]) -> None:
    """Refuse keywords that belong to `carrypost.emu.run`; the others are settings."""
    for name in keywords:
        if name in _EMULATOR_ONLY:
            raise LocalError(
                f"{name} is an argument of `carrypost.emu.run`. Here, make contacts with `net.link(a, b)` or "
                "`contacts`, and let time pass with `net.run`"
            )
