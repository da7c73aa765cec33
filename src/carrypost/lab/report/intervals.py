"""Intervals: the 95 % interval of a mean over seeds, by Student's t.

Runs of one choice of settings differ by their seed only, so their figures are independent draws, and the interval of
their mean is mean ± t · s / √n, with the standard deviation s of a sample and t of n - 1 degrees of freedom. That takes
the figures of runs for normally distributed, which counts, means and shares of many messages nearly are; extremes (the
least, the most) are less so. A bootstrap over the three to ten seeds that campaigns have would give intervals that are
too narrow. One seed has no interval: nothing is said of what is not known.
"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import NormalDist
from typing import NamedTuple

import numpy as np

from carrypost.emu.arrays import Floats

CONFIDENCE = 0.95
_EXACT = (
    12.706205, 4.302653, 3.182446, 2.776445, 2.570582, 2.446912, 2.364624, 2.306004, 2.262157, 2.228139,
    2.200985, 2.178813, 2.160369, 2.144787, 2.131450, 2.119905, 2.109816, 2.100922, 2.093024, 2.085963,
)  # fmt: skip
"""The quantile of 97.5 % for 1 to 20 degrees of freedom; beyond, a series is right to a millionth."""


def quantile(freedom: int) -> float:
    """Student's t that 2.5 % are above."""
    if freedom <= len(_EXACT):
        return _EXACT[freedom - 1]
    z = NormalDist().inv_cdf((1 + CONFIDENCE) / 2)
    terms = (  # The expansion of Cornish and Fisher, Abramowitz and Stegun 26.7.5.
        z,
        (z**3 + z) / 4,
        (5 * z**5 + 16 * z**3 + 3 * z) / 96,
        (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384,
        (79 * z**9 + 776 * z**7 + 1_482 * z**5 - 1_920 * z**3 - 945 * z) / 92_160,
    )
    return sum(float(term / freedom**power) for power, term in enumerate(terms))


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
