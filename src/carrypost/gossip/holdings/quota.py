"""A bound over all neighbours of a host, for what each of them may cause it to remember."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from carrypost.config import Settings


class Quota:
    """Entries of all neighbours together. Half of them are common; of the rest, each neighbour has a share of its own.

    So many neighbours cannot fill the memory, and none of them can keep another from having a few.
    """

    __slots__ = ("_common", "_most", "_share", "count")

    def __init__(self, most: int, neighbours: int) -> None:
        self._most, self._common, self._share = most, most - most // 2, max(1, most // 2 // neighbours)
        self.count = 0
        """Number of entries; counted by the owner of the entries."""

    @classmethod
    def of_offers(cls, settings: Settings) -> Quota:
        """Return a bound for offers of neighbours, and of hosts at the ends of routes."""
        limits = settings.limits
        return cls(limits.offers_all_max, limits.neighbours_max + settings.routes_max)

    def has_room(self, own: int) -> bool:
        """Return True if a neighbour with this many entries may have another one."""
        return self.count < self._common or (own < self._share and self.count < self._most)
