"""Numbers that a node assigns to what it asks of others: each contains its life, and later ones are larger.

Most nodes count their lives from 1, and have 32 bits for the numbers of each. A node that lost its store, or has no
key, continues from the time in milliseconds: such lives need 42 bits, and 20 are left for the numbers of each. The
highest bit distinguishes the two.
"""

from __future__ import annotations

from typing import Final

INCARNATION_BITS: Final = 32
"""Number of bits for the place within a life."""
NUMBER_MAX: Final = 2**63 - 1
_COUNTED_MAX = 2**20
"""Number of lives that are counted from 1."""
_DATED: Final = 2**62
_DATED_BITS = 20


def last_before(life: int) -> int:
    """Return the number right before the first one of a life."""
    return life << INCARNATION_BITS if life < _COUNTED_MAX else _DATED | life << _DATED_BITS


def incarnation_of(number: int) -> int:
    """Return the life that a number was given in."""
    return number >> INCARNATION_BITS if number < _DATED else (number - _DATED) >> _DATED_BITS
