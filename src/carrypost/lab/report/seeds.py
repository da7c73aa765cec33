"""What several seeds tell: a mean, and the interval in which the mean of all seeds lies with 95 % confidence.

Runs of different seeds are independent, so the interval is Student's: mean ± t · s / √n, with one degree of freedom
less than there are seeds.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import stdev

_T_95 = (
    12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145, 2.131, 2.120,
    2.110, 2.101, 2.093, 2.086, 2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042,
)  # fmt: skip
"""Quantiles of Student's distribution at 97.5 %, for 1 degree of freedom and more."""
_NORMAL = 1.959964


def half_width(values: Sequence[float]) -> float | None:
    """By how much the mean of all seeds may differ from that of these, with 95 % confidence; one seed tells none."""
    if len(values) < 2:  # noqa: PLR2004 - a single one has no spread
        return None
    return t_95(len(values) - 1) * stdev(values) / math.sqrt(len(values))


def t_95(freedom: int) -> float:
    """The quantile at 97.5 % of Student's distribution; beyond the table by its expansion in 1 / freedom."""
    if freedom <= len(_T_95):
        return _T_95[freedom - 1]
    z = _NORMAL
    return z + (z**3 + z) / (4 * freedom) + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * freedom**2)
