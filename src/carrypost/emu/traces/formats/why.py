"""What is wrong with a word, in a sentence; nothing if it is right. Only bad lines are looked at so."""

from __future__ import annotations

import math

from carrypost.emu.scenario.csvfiles import TIME_S_MAX
from carrypost.emu.traces.formats.lines import is_number
from carrypost.emu.traces.tracks import COORDINATE_M_MAX
from carrypost.errors import LocalError
from carrypost.security.identity import Identity

_MILLISECONDS = 1e11


def numeral(word: str, what: str) -> str:
    """A number is wanted."""
    if not word:
        return f"{what} must not be empty"
    return "" if is_number(word) or word.lower() in {"nan", "inf", "-inf"} else f"{what} must be a number, not {word!r}"


def moment(word: str, what: str) -> str:
    """A time is wanted, before or after 0."""
    return numeral(word, what) or _within(float(word), what, TIME_S_MAX, "s")


def seconds(word: str, what: str) -> str:
    """A time from 0 on is wanted."""
    if told := numeral(word, what):
        return told
    if not math.isfinite(float(word)):
        return f"{what} must be a number, not {word!r}"
    if 0 <= float(word) <= TIME_S_MAX:
        return ""
    return f"{what} must be a time from 0 to {TIME_S_MAX:,.0f} s, not {word}{_unit(float(word))}"


def measure(word: str, what: str) -> str:
    """A number of metres is wanted."""
    return numeral(word, what) or _within(float(word), what, COORDINATE_M_MAX, "m")


def degrees(word: str, what: str, most: float) -> str:
    """A number of degrees is wanted."""
    return numeral(word, what) or _within(float(word), what, most, "degrees")


def _within(value: float, what: str, most: float, unit: str) -> str:
    if abs(value) <= most:
        return ""
    hint = _unit(value) if unit == "s" else ""
    return f"{what} must be a number from -{most:,.0f} to {most:,.0f} {unit}, not {value:g}{hint}"


def _unit(value: float) -> str:
    return "; are these milliseconds?" if value > _MILLISECONDS else ""


def name(word: str, what: str) -> str:
    """A name that a node can have is wanted."""
    if not word:
        return f"{what} must not be empty"
    if not word.isprintable() or "\ufffd" in word:
        return f"{what} has characters that cannot be shown: {word!r}"
    try:
        Identity.plain(word)
    except LocalError as error:
        return str(error)
    return ""
