"""Numbers of pages: times, counts, shares and differences as texts, and the 95 % interval of a mean over seeds.

Times are shown as 4 ms, 0.2 s, 13 s, 43 min 50 s, 20 min, 1 h 22 min, 2 h. From an hour on, seconds are shown only
where whole minutes would make a whole hour of what is none (1 h 59 min 56 s is less than a lifetime of 2 h). `seconds`
reads times as CAUSAL §VI prints them: 4 ms, 0.2", 13", 43'50", 20', 1h22'. A share that is not all is never shown as
100 %, nor one that is not none as 0 %.

Intervals are by Student's t. Runs of one choice of settings differ by their seed only, so their figures are independent
draws, and the interval of their mean is mean ± t · s / √n, with the standard deviation s of a sample and t of n - 1
degrees of freedom. That takes the figures of runs for normally distributed, which counts, means and shares of many
messages nearly are; extremes (the least, the most) are less so. A bootstrap over the three to ten seeds that campaigns
have would give intervals that are too narrow. One seed has no interval: nothing is said of what is not known.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from functools import cache
from typing import NamedTuple

import numpy as np

from carrypost.arrays import Floats
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


CONFIDENCE = 0.95
_STEPS = 1 << 16


@cache
def quantile(freedom: int) -> float:
    """Return Student's t that 2.5 % are above."""
    # With t = √n tan θ, the share of values up to t on either side is ∫ cosⁿ⁻¹ from 0 to θ, by that from 0 to π/2.
    theta = np.linspace(0.0, np.pi / 2, _STEPS + 1)
    density = np.cos(theta) ** (freedom - 1)
    share = np.cumsum(density[1:] + density[:-1])
    return float(np.sqrt(freedom) * np.tan(np.interp(CONFIDENCE, share / share[-1], theta[1:])))


class Interval(NamedTuple):
    """A mean over seeds, and half of its interval."""

    mean: float
    half: float | None
    """None: there is one seed."""


def interval(values: Sequence[float]) -> Interval | None:
    """Return the interval of the figures of all seeds; None: there are none."""
    if not values:
        return None
    mean, half = over_rows(np.asarray(values, np.float64)[:, None])
    return Interval(float(mean[0]), float(half[0]) if len(values) > 1 else None)


def over_rows(figures: Floats) -> tuple[Floats, Floats]:
    """Return means and half intervals of columns, a row for each seed.

    A seed without a figure (NaN) does not count; a half of one figure is NaN.
    """
    count = np.count_nonzero(~np.isnan(figures), axis=0)
    known = np.where(np.isnan(figures), 0.0, figures)
    mean = np.divide(known.sum(axis=0), count, out=np.full(figures.shape[1], np.nan), where=count > 0)
    squares = np.where(np.isnan(figures), 0.0, (figures - mean) ** 2).sum(axis=0)
    several = count > 1
    student = np.array([quantile(int(each) - 1) if each > 1 else np.nan for each in count])
    deviation = np.sqrt(np.divide(squares, count - 1, out=np.full(len(mean), np.nan), where=several))
    return mean, student * deviation / np.sqrt(np.maximum(count, 1))
