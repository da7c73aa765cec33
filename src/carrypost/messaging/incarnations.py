"""Numbers that a node assigns to what it asks of others: each contains its incarnation, and later ones are larger.

Most nodes count their incarnations from 1, and have 32 bits for the numbers of each. A node that lost its store, or
has no key, continues from the time in milliseconds: such incarnations need 42 bits, and 20 are left for the numbers of
each. The highest bit distinguishes the two.
"""

from __future__ import annotations

from typing import Final

INCARNATION_BITS: Final = 32
"""Number of bits for the place within an incarnation."""
NUMBER_MAX: Final = 2**63 - 1
_COUNTED_MAX = 2**20
"""Number of incarnations that are counted from 1."""
_DATED: Final = 2**62
_DATED_BITS = 20


def last_before(incarnation: int) -> int:
    """Return the number right before the first one of an incarnation."""
    return incarnation << INCARNATION_BITS if incarnation < _COUNTED_MAX else _DATED | incarnation << _DATED_BITS


def incarnation_of(number: int) -> int:
    """Return the incarnation that a number was given in."""
    return number >> INCARNATION_BITS if number < _DATED else (number - _DATED) >> _DATED_BITS
