"""The vicinity of a broker: other brokers in reach at this moment, by the hops of the island (OVERLAY §2.3, step 1)."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from carrypost.config.settings import Overlay
    from carrypost.island.island import Island
    from carrypost.model.ids import NodeId
    from carrypost.overlay.tables import Brokers


class Vicinity:
    """The brokers that one broker can reach now."""

    def __init__(self, island: Island, brokers: Brokers, settings: Overlay) -> None:
        self._island, self._brokers = island, brokers
        self._most, self._furthest = settings.neighbours_max, settings.vicinity_hops
        self._seen: tuple[Mapping[NodeId, int], int] = {}, -1
        """Hosts in reach, and version of the brokers, that the hops were taken from."""
        self._hops: dict[NodeId, int] = {}
        self._version = 0

    @property
    def version(self) -> int:
        """Counter that grows when a distance changes."""
        self._look()
        return self._version

    def _look(self) -> None:
        reach, brokers = self._island.reach(), self._brokers.version
        if reach is not self._seen[0] or brokers != self._seen[1]:
            self._seen = reach, brokers
            hops = {each.node: reach[each.node] for each in self._brokers if each.node in reach}
            self._version += hops != self._hops
            self._hops = hops

    def nearest(self) -> dict[NodeId, int]:
        """Return the nearest brokers and their hops: those that are to be neighbours."""
        self._look()
        near = sorted((hops, node) for node, hops in self._hops.items())[: self._most]
        return {node: hops for hops, node in near if hops <= self._furthest}

    def links(self, listed: Iterable[bytes]) -> dict[bytes, int]:
        """Return the links of this broker with their hops now: to brokers listed as its neighbours, and to the nearest.

        Brokers that cannot be reached are left out.
        """
        nearest, also = self.nearest(), set(listed)
        found = [each for each in self._brokers if each.node in nearest or each.prefix in also]
        return {each.prefix: self._hops[each.node] for each in found if each.node in self._hops}
