"""The order in which copies are evicted, and the order in which they are sent.

A rank is one number: the level of a message, then the time at which it was created. Another order of eviction is
another `Ranking`, passed to the cache.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, ClassVar

from carrypost.gossip.wire.fields import MESSAGE_ID_BYTES_MAX
from carrypost.model.descriptor import Descriptor
from carrypost.model.privilege import PRIVILEGE_MAX

if TYPE_CHECKING:
    from random import Random

CREATED_BITS = 54
"""`created_us` is at most 2**53."""
_ID_BITS = 8 * MESSAGE_ID_BYTES_MAX
_FLOOR_MAX = PRIVILEGE_MAX << CREATED_BITS | 1 << CREATED_BITS - 1


class Ranking:
    """An order of eviction: messages of a lower level first, then older ones.

    The rank of a message is one number, and the part that depends on its privilege is looked up: an application's own
    rule costs nothing per message.
    """

    __slots__ = ("bases", "carried_top", "top")
    level_shift: ClassVar = CREATED_BITS
    """Bits of a rank below the level."""
    wanted_first: ClassVar = True
    """Send a neighbour first what it wants for itself, then what it would only carry."""
    evicted_return: ClassVar = False
    """Forget carried copies that were evicted, so that they may come again."""

    def __init__(self, level: Callable[[int, bool], int]) -> None:
        """Make a ranking; `level` maps a privilege (0 to 255), and True for a wanted message, to a level (0 to 511)."""
        self.bases = [
            [level(privilege, interesting) << self.level_shift for privilege in range(PRIVILEGE_MAX + 1)]
            for interesting in (False, True)
        ]
        """By whether a message is wanted, and by privilege: its level, as the upper bits of its rank."""
        self.top = max(map(max, self.bases)) | (1 << self.level_shift) - 1
        """The highest possible rank."""
        carried, wanted = self.bases
        self.carried_top = min(wanted) - 1 if min(wanted) > max(carried) else self.top
        """The highest rank of a copy that is only carried; if wanted ones may rank lower, the highest of all."""

    def rank(self, privilege: int, interesting: bool, descriptor: Descriptor) -> int:
        """Return the rank of a message."""
        return self.bases[interesting][privilege] | descriptor.created_us

    def orders(self, privilege: int, interesting: bool, descriptor: Descriptor) -> tuple[int, int]:
        """Return the rank of a message, and its sending order.

        The smallest sending order goes first: by privilege, then the message that has waited longest.
        """
        created_us = descriptor.created_us
        return self.bases[interesting][privilege] | created_us, created_us - (privilege << CREATED_BITS)

    def best(self, privilege: int, interesting: bool) -> int:
        """Return the highest rank that a message of unknown age can have."""
        return self.bases[interesting][privilege] | (1 << self.level_shift) - 1

    def floor(self, rank: int) -> int:  # noqa: ARG002 - for rankings that depend on it
        """Return the floor to advertise for the lowest rank of a full cache (see `precedence`); 0 for none."""
        return 0


class ShuffledRanking(Ranking):
    """Another order of eviction, whose messages are sent by privilege, and among equals in random order."""

    __slots__ = ("_random_bits",)

    def __init__(self, ranking: Ranking, rng: Random) -> None:
        self.bases, self.top, self.carried_top = ranking.bases, ranking.top, ranking.carried_top
        self._random_bits = rng.getrandbits

    def orders(self, privilege: int, interesting: bool, descriptor: Descriptor) -> tuple[int, int]:
        """Return the rank of a message, and its sending order, which is drawn."""
        drawn = self._random_bits(CREATED_BITS) - (privilege << CREATED_BITS)
        return self.bases[interesting][privilege] | descriptor.created_us, drawn


class TotalRanking(Ranking):
    """An order without ties, which the id breaks; messages are sent in the same order, highest first.

    Hosts whose levels depend on the privilege alone then agree which of their messages to evict, in whatever order they
    came.
    """

    __slots__ = ()
    level_shift: ClassVar = CREATED_BITS + _ID_BITS
    wanted_first: ClassVar = False

    def rank(self, privilege: int, interesting: bool, descriptor: Descriptor) -> int:
        """Return the rank of a message."""
        number = int.from_bytes(descriptor.id.ljust(MESSAGE_ID_BYTES_MAX, b"\0"), "big")
        return self.bases[interesting][privilege] | descriptor.created_us << _ID_BITS | number

    def orders(self, privilege: int, interesting: bool, descriptor: Descriptor) -> tuple[int, int]:
        """Return the rank of a message, and its sending order."""
        rank = self.rank(privilege, interesting, descriptor)
        return rank, -rank

    def floor(self, rank: int) -> int:
        """Return the floor to advertise for the lowest rank of a full cache."""
        return min(rank >> _ID_BITS, _FLOOR_MAX)


class ArrivalRanking(Ranking):
    """An order in which the copy that came first is evicted first, so that there is always room for another.

    What was evicted would find room, too, so it may come again: after the next comparison with a neighbour that has it.
    """

    __slots__ = ("_arrivals",)
    evicted_return: ClassVar = True

    def __init__(self, level: Callable[[int, bool], int]) -> None:
        super().__init__(level)
        self._arrivals = 0
        """Number of arrivals so far, at all hosts that share this order: it only rises."""

    def rank(self, privilege: int, interesting: bool, descriptor: Descriptor) -> int:  # noqa: ARG002 - of its age, nothing
        """Return the rank of a message that comes now."""
        self._arrivals += 1
        return self.bases[interesting][privilege] | self._arrivals

    def orders(self, privilege: int, interesting: bool, descriptor: Descriptor) -> tuple[int, int]:
        """Return the rank of a message that comes now, and its sending order."""
        return self.rank(privilege, interesting, descriptor), super().orders(privilege, interesting, descriptor)[1]


def precedence(privilege: int, descriptor: Descriptor) -> int:
    """Return privilege and date of a message as one number, which can be compared with a neighbour's floor."""
    return privilege << CREATED_BITS | descriptor.created_us


INTEREST_FIRST = Ranking(lambda privilege, interesting: interesting << 8 | privilege)
"""Carried messages are evicted before those that are wanted here (JOMS-15 §2.4)."""
FIRST_IN_FIRST_OUT = ArrivalRanking(lambda privilege, _: privilege)
"""By privilege, then the copy that came first, whatever the interests here and the author: as in The ONE."""
PRIVILEGE_ONLY = TotalRanking(lambda privilege, _: privilege)
"""By privilege, date and id, whatever the interests here and the author (EMMA §3.2)."""
