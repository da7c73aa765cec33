"""Intervals: the 95 % interval of a mean over seeds, by Student's t.

Runs of one choice of settings differ by their seed only, so their figures are independent draws, and the interval of
their mean is mean ± t · s / √n, with the standard deviation s of a sample and t of n - 1 degrees of freedom. That takes
the figures of runs for normally distributed, which counts, means and shares of many messages nearly are; extremes (the
least, the most) are less so. A bootstrap over the three to ten seeds that campaigns have would give intervals that are
too narrow. One seed has no interval: nothing is said of what is not known.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import NamedTuple

import numpy as np

from carrypost.arrays import Floats

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
