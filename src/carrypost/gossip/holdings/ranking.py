"""The order in which copies give way to others, and the order in which they are sent.

A rank is one number: the level of a message, then the time at which it was created. Another order of replacement is
another `Ranking`, given to the cache.
"""

from __future__ import annotations

from collections.abc import Callable

from carrypost.model.privilege import PRIVILEGE_MAX

CREATED_BITS = 54
"""`created_us` is at most 2**53."""
_CREATED_MAX = (1 << CREATED_BITS) - 1


class Ranking:
    """An order of replacement: a message of a lower level gives way first, then the older one.

    The rank of a message is one number, and what depends on its privilege is looked up: a rule of one's own costs
    nothing per message.
    """

    __slots__ = ("_bases", "top", "wanted")

    def __init__(self, level: Callable[[int, bool], int]) -> None:
        """`level`: from a privilege of 0 to 255, and whether a message is wanted here, to a number from 0 to 511."""
        self._bases = [
            [level(privilege, interesting) << CREATED_BITS for privilege in range(PRIVILEGE_MAX + 1)]
            for interesting in (False, True)
        ]
        self.top = max(map(max, self._bases)) | _CREATED_MAX
        """No message ranks higher."""
        self.wanted = min(self._bases[True])
        """Whatever is below is only carried."""

    def rank(self, privilege: int, interesting: bool, created_us: int) -> int:
        """Return the rank of a message."""
        return self._bases[interesting][privilege] | created_us

    def orders(self, privilege: int, interesting: bool, created_us: int) -> tuple[int, int]:
        """Return the rank of a message, and its sending order.

        The smaller sending order goes first: by privilege, then the message that has waited longest.
        """
        return self._bases[interesting][privilege] | created_us, created_us - (privilege << CREATED_BITS)

    def best(self, privilege: int, interesting: bool) -> int:
        """Return the rank that a message of unknown age has at best."""
        return self._bases[interesting][privilege] | _CREATED_MAX


INTEREST_FIRST = Ranking(lambda privilege, interesting: interesting << 8 | privilege)
"""Carried messages give way before those that are wanted here (JOMS-15 §2.4)."""
