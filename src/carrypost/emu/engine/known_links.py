"""Links between hosts as the emulator knows them, for hosts of an ideal emulation."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from carrypost.island.routes import distances, names
from carrypost.model.ids import NodeId

_NONE: set[NodeId] = set()


class KnownLinks:
    """The links of all hosts, by their ids (`island.routes.Graph`)."""

    def __init__(self) -> None:
        self.version = 0
        self._links: dict[NodeId, set[NodeId]] = {}
        self._names: dict[NodeId, Mapping[bytes, NodeId | None]] = {}
        """Reachable hosts by their four bytes, for each host, until the links change."""

    def change(self, one: NodeId, other: NodeId, *, up: bool) -> set[NodeId]:
        """Note that a link begins or ends; return the hosts that can reach more or fewer hosts than before."""
        apart = self._apart(one, other) if up else None
        self.version += 1
        for here, there in ((one, other), (other, one)):
            links = self._links.setdefault(here, set())
            (links.add if up else links.discard)(there)
        changed = (self._apart(one, other) if apart is None else apart) or set()
        if changed:
            self._names = {}
        return changed

    def _apart(self, one: NodeId, other: NodeId) -> set[NodeId] | None:
        """Return all hosts that are connected with either of two hosts, if these are not connected; else None."""
        links = self._links
        if not links.get(one, _NONE).isdisjoint(links.get(other, _NONE)):
            return None  # As of nearly all pairs whose links change where there are many.
        reached = {one, *distances(self, one)}
        return None if other in reached else reached | {other, *distances(self, other)}

    def neighbours_of(self, node: NodeId) -> Collection[NodeId]:
        """Return the other ends of a host's links."""
        return self._links.get(node, ())

    def names(self, origin: NodeId) -> Mapping[bytes, NodeId | None]:
        """Return all hosts that are connected with one by their four bytes; they share what was found for another."""
        if origin not in self._names:
            found = names(self, origin)
            self._names.update(dict.fromkeys((origin, *distances(self, origin)), found))
        return self._names[origin]
