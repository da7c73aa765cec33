"""Which of the messages that were declined may be offered again after the next review.

What was declined counts as known when sets are compared, or it would be offered in every contact. While there is room
some that would find it are left out of what is compared, so that a neighbour who has them offers them again.
"""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING

from carrypost.gossip.slots import bits, mask_of

if TYPE_CHECKING:
    from carrypost.gossip.holdings.cache import Cache
    from carrypost.gossip.holdings.copies import Copy

_INVITED_MIN = 256
"""So many declined messages, if not as many as there are places, may be offered again after a review."""
_INVITE_SCAN = 4096
"""They are looked for among so many at a time."""


class Invitations:
    """The choice of one host."""

    __slots__ = ("_cache", "_invited", "_places", "_up_to")

    def __init__(self, cache: Cache, places: int) -> None:
        self._cache, self._places = cache, places
        self._invited = 0
        """Slots that do not count as known."""
        self._up_to = 0

    def choose(self) -> tuple[list[Copy], list[Copy]]:
        """Choose what shall not count as known in the next review; returns it, and what shall again.

        With room for one, all that are small enough would do, and nobody can tell which of them the neighbour has: so
        some are chosen, and others the next time.
        """
        before, copies = self._invited, self._cache.copies
        self._invited = invited = self._chosen()
        ended = [copy for slot in bits(before & ~invited) if (copy := copies[slot]) and (copy.whole or not copy.here)]
        return [copy for slot in bits(invited) if (copy := copies[slot])], ended

    def _chosen(self) -> int:
        cache, start = self._cache, self._up_to
        declined = cache.memories.waiting
        if not declined or not cache.room.fits(1, 0, interesting=False):
            return 0
        declined = declined >> start << start or declined
        most = max(_INVITED_MIN, self._places - cache.messages)
        chosen: list[int] = []
        for slot in islice(bits(declined), _INVITE_SCAN):
            copy = cache.copies[slot]
            self._up_to = slot + 1
            if copy is not None and cache.room.fits(1, copy.descriptor.length, interesting=False):
                chosen.append(slot)
                if len(chosen) >= most:
                    break
        return mask_of(chosen)

    def release(self, mask: int) -> None:
        """These slots were freed."""
        self._invited &= ~mask
