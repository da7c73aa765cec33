"""Sizes and lengths of time: as settings count them, and as people write them."""

from __future__ import annotations

import re
from collections.abc import Mapping

KIB = 1024
MIB = 1024 * KIB
HOUR_S = 3_600.0
DAY_S = 24 * HOUR_S
YEAR_S = 365 * DAY_S
UNBOUNDED = 2**53
"""As good as no limit: the largest whole number that every format we speak keeps exactly."""

_AMOUNT = re.compile(r"([0-9]+(?:\.[0-9]+)?) ?([A-Za-z]*)")
_TIMES_S = {"": 1.0, "s": 1.0, "m": 60.0, "min": 60.0, "h": HOUR_S, "d": DAY_S}
# "MB", "mB" and "mb" are all in use. "Mb" means bits.
_SIZES: dict[str, int] = {"B": 1, "b": 1} | {
    spelling: base**power
    for base, middle in ((1_000, ""), (KIB, "i"))
    for power, letter in enumerate("KMGT", 1)
    for spelling in (f"{letter}{middle}B", f"{letter.lower()}{middle}B", f"{letter.lower()}{middle}b")
}


def length_s(text: str) -> float:
    """Return a length of time in seconds: a number of them, or one with s, min, h or d; raises `ValueError`."""
    amount, unit = _parts(text, _TIMES_S)
    return float(amount) * _TIMES_S[unit]


def size_bytes(text: str) -> int:
    """Return a size with its unit, such as 256MB or 1.5 GiB, in bytes; raises `ValueError`."""
    amount, unit = _parts(text, _SIZES)
    whole, _, decimals = amount.partition(".")
    scale: int = 10 ** len(decimals)
    size, rest = divmod(int(whole + decimals) * _SIZES[unit], scale)
    if rest:
        raise ValueError(text)
    return size


def _parts(text: str, units: Mapping[str, float]) -> tuple[str, str]:
    found = _AMOUNT.fullmatch(text.strip())
    if found is None or found[2] not in units:
        raise ValueError(text)
    return found[1], found[2]
