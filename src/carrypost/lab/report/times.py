"""Lengths of time, counts and shares as pages show them, and what people compare: differences.

Times are shown as 4 ms, 0.2 s, 13 s, 43 min 50 s, 20 min, 1 h 22 min, 2 h. From an hour on, seconds are shown only
where whole minutes would make a whole hour of what is none (1 h 59 min 56 s is less than a lifetime of 2 h). `seconds`
reads times as CAUSAL §VI prints them: 4 ms, 0.2", 13", 43'50", 20', 1h22'. A share that is not all is never shown as
100 %, nor one that is not none as 0 %.
"""

from __future__ import annotations

import math
import re

from carrypost.errors import LocalError

NOTHING = "–"
"""Text where there is no value."""
ENDLESS = "endless"
"""Lifetime of messages that have none."""
MINUS = "\u2212"
_MS = 0.1
_TENTHS = 10
_MINUTE, _HOUR, _LONG = 60, 3_600, 10_800
_MANY = 1_000
_PLACES_MAX = 8
_SMALL = 0.001
_NONE = 1e-6
_POINT = 0.01
_TEXT = re.compile(r"""(?:(\d+)h)?\s*(?:(\d+)')?\s*(?:(\d+(?:\.\d+)?)")?""")
_MS_TEXT = re.compile(r"(\d+(?:\.\d+)?)\s*ms")


def shown(time_s: float | None) -> str:
    """Return a length of time for people."""
    if time_s is None or not math.isfinite(time_s):
        return NOTHING
    if time_s < 0:
        return f"{MINUS}{shown(-time_s)}" if round(time_s, 9) else "0"
    if time_s < _MS:
        return f"{float(f'{time_s * 1_000:.2g}'):g} ms" if round(time_s, 9) else "0"
    tenths = round(time_s, 1)
    if tenths < _TENTHS:
        return f"{tenths:g} s"
    hours, rest = divmod(round(time_s), _HOUR)
    minutes, rest_s = divmod(rest, _MINUTE)
    if hours and (rounded := round(rest / _MINUTE)) % _MINUTE:
        minutes, rest_s = rounded, 0
    parts = (f"{hours} h" * bool(hours), f"{minutes} min" * bool(minutes), f"{rest_s} s" * bool(rest_s))
    return " ".join(filter(None, parts))


def lifetime(time_s: float | None) -> str:
    """Return the lifetime of messages for the head of a column: endless, 120 min, 60 min."""
    if time_s is None:
        return ENDLESS
    minutes = time_s / _MINUTE
    return f"{minutes:.0f} min" if minutes == round(minutes) and time_s < _LONG else shown(time_s)


def seconds(text: str) -> float:
    """Return the number that the paper writes as text."""
    stripped = text.strip()
    if match := _MS_TEXT.fullmatch(stripped):
        return float(match[1]) / 1_000
    match = _TEXT.fullmatch(stripped)
    if not stripped or match is None:
        raise LocalError(f"{text!r} must be a length of time such as 4 ms, 13\", 43'50\" or 1h22'")
    hours, minutes, rest = (float(each or 0) for each in match.groups())
    return hours * _HOUR + minutes * _MINUTE + rest


def count(number: float | None, places: int = 1) -> str:
    """Return a number of things; means have decimals where they are not whole."""
    if number is None or not math.isfinite(number):
        return NOTHING
    return f"{number:,.0f}" if number == round(number) or number >= _MANY else f"{number:,.{places}f}"


def mean(number: float | None) -> str:
    """Return a mean of counts, which may be very small."""
    if number is None or not math.isfinite(number):
        return NOTHING
    if 0 < number < _SMALL:
        return f"< {_SMALL}"
    return count(number, 1 if number >= 1 else 3)


def share(ratio: float | None) -> str:
    """Return a part of one, in per cent."""
    if ratio is None or not math.isfinite(ratio):
        return NOTHING
    percent = 100 * ratio
    if round(percent, 9) in {0, 100}:
        return f"{percent:.0f} %"
    places = 2
    while round(percent, places) in {0, 100} and places < _PLACES_MAX:
        places += 1
    return f"{percent:.{places}f} %"


def tenths(ratio: float | None) -> str:
    """Return a part of one that is quoted, in tenths of per cent."""
    return NOTHING if ratio is None else f"{100 * ratio:.1f} %"


def margin(half: float) -> str:
    """Half of the interval of a share, in points of per cent."""
    points_half = 100 * half
    return f"{points_half:.2f} pp" if points_half >= _POINT else f"< {_POINT} pp" if half else "0 pp"


def difference(ours: float | None, paper: float | None) -> str:
    """Ours by the paper's, in per cent; nothing where there is nothing to compare with."""
    if ours is None or paper is None or not (math.isfinite(ours) and math.isfinite(paper)):
        return NOTHING
    if ours == paper:
        return "0 %"
    return NOTHING if not paper else f"{_signed(100 * (ours / paper - 1))} %"


def points(ours: float | None, paper: float | None) -> str:
    """Return the difference of two shares, in points of per cent."""
    if ours is None or paper is None or not (math.isfinite(ours) and math.isfinite(paper)):
        return NOTHING
    return f"{_signed(100 * (ours - paper), 2)} pp"


def _signed(value: float, places: int = 1) -> str:
    if abs(value) >= _TENTHS:
        places = 0 if abs(value) >= 10 * _TENTHS else 1
    rounded = round(value, places)
    if not rounded:
        return "0" if abs(value) < _NONE else f"{MINUS if value < 0 else '+'}0.{'0' * places}"
    return f"{MINUS if rounded < 0 else '+'}{abs(rounded):,.{places}f}"
