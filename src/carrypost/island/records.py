"""What hosts say of their links, as one host knows it: a table of records, one per author, and the graph they make.

An edge counts while one end claims it and the other does not deny it. Own edges are the links in use, whatever others
say of them. What neighbours say they hear counts as claimed by them, so everything two hops away is known at once.

Nothing grows old. What cannot be reached is left out of the digest and of what is exchanged, and it is forgotten after
a minute; so hosts that are gone vanish as soon as their neighbours deny them. Hosts with the same digest have the same
records of all that they reach.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from carrypost.model.ids import NodeId, node_prefix
from carrypost.model.times import NEVER

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping

FORGET_US = 60_000_000
"""A record of a host that cannot be reached is kept for so long."""


class Entry(msgspec.Struct, eq=False):
    """What one host says of its links."""

    node: NodeId
    boot: int
    """The number of its life."""
    sequence: int
    fingerprint: int
    """64 bits that stand for all that it says."""
    claimed: frozenset[bytes]
    """Prefixes of the neighbours that it says it has."""
    denied: frozenset[bytes]
    """Prefixes of those that claim to be its neighbours, and are not."""
    lost_us: int = NEVER
    """Time at which it could not be reached any more."""

    @property
    def rank(self) -> tuple[int, int, int]:
        """Place among the records of its author: the highest counts."""
        return self.boot, self.sequence, self.fingerprint


class Table:
    """The records that one host knows, its own included, and the graph that they make."""

    def __init__(self, own: NodeId) -> None:
        self._own, self._prefix = own, node_prefix(own)
        self._entries: dict[NodeId, Entry] = {}
        self._by_prefix: dict[bytes, NodeId] = {self._prefix: own}
        """Nodes with a record, neighbours, and this host itself."""
        self._heard: dict[NodeId, frozenset[bytes]] = {}
        """By neighbour: prefixes of the nodes that it says are its neighbours."""
        self.version = 0
        """Grows with each change of an edge that counts."""
        self._edges: dict[NodeId, set[NodeId]] = {}
        self._distances: dict[NodeId, int] = {}
        self._made = -1
        """The version of which edges and distances are kept."""

    def __len__(self) -> int:
        return len(self._entries)

    def __iter__(self) -> Iterator[Entry]:
        return iter(self._entries.values())

    def get(self, node: NodeId) -> Entry | None:
        """Return the record of a node."""
        return self._entries.get(node)

    def at(self, prefix: bytes) -> Entry | None:
        """Return the record of the node that has this prefix."""
        node = self._by_prefix.get(prefix)
        return None if node is None else self._entries.get(node)

    def holder(self, prefix: bytes) -> NodeId | None:
        """Return the node that is known by a prefix."""
        return self._by_prefix.get(prefix)

    def boot_of(self, node: NodeId) -> int | None:
        """Return the number of the life in which a node last told of its links."""
        entry = self._entries.get(node)
        return None if entry is None else entry.boot

    # --- what changes ----------------------------------------------------------------------------------------

    def enter(self, entry: Entry) -> None:
        """Keep a record, instead of the one that its author had."""
        self._entries[entry.node] = entry
        self._by_prefix[node_prefix(entry.node)] = entry.node
        self.version += 1

    def remove(self, node: NodeId) -> None:
        """Forget a record."""
        del self._entries[node]
        if node not in self._heard and node != self._own:
            del self._by_prefix[node_prefix(node)]
        self.version += 1

    def meet(self, heard: Mapping[NodeId, frozenset[bytes]]) -> bool:
        """Set the neighbours of this host, and whom each says it has. Returns True if anything changed."""
        if heard == self._heard:
            return False
        for node in self._heard.keys() - heard.keys() - self._entries.keys():
            del self._by_prefix[node_prefix(node)]
        self._heard = dict(heard)
        for node in heard:
            self._by_prefix.setdefault(node_prefix(node), node)
        self.version += 1
        return True

    def expire(self, now: int) -> int:
        """Forget what could not be reached for long. Returns the time at which there is more of it."""
        reached = self.distances(self._own)
        due_us = NEVER
        for entry in list(self._entries.values()):
            if entry.node in reached:
                entry.lost_us = NEVER
                continue
            entry.lost_us = min(entry.lost_us, now)
            if entry.lost_us + FORGET_US <= now:
                self.remove(entry.node)
            else:
                due_us = min(due_us, entry.lost_us + FORGET_US)
        return due_us

    # --- the graph -------------------------------------------------------------------------------------------

    def neighbours_of(self, node: NodeId) -> Collection[NodeId]:
        """Return the other ends of the edges of a node that count."""
        self._make()
        return self._edges.get(node, ())

    def distances(self, origin: NodeId) -> dict[NodeId, int]:
        """Return the hops to every node that can be reached from one, itself included."""
        self._make()
        return self._distances if origin == self._own else self._search(origin)

    @property
    def digest(self) -> int:
        """The XOR over the fingerprints of all records of what can be reached."""
        found = 0
        for entry in self.reached():
            found ^= entry.fingerprint
        return found

    def reached(self) -> list[Entry]:
        """Return the records of what can be reached, this host included."""
        self._make()
        distances = self._distances
        return [entry for entry in self._entries.values() if entry.node in distances]

    def _make(self) -> None:
        if self._made != self.version:
            self._made = self.version
            self._edges = self._graph()
            self._distances = self._search(self._own)

    def _graph(self) -> dict[NodeId, set[NodeId]]:
        edges: dict[NodeId, set[NodeId]] = {self._own: set(self._heard)}
        for node in self._heard:
            edges[node] = {self._own}
        claims: list[tuple[NodeId, frozenset[bytes]]] = [(entry.node, entry.claimed) for entry in self]
        for one, claimed in (*claims, *self._heard.items()):
            prefix = node_prefix(one)
            for each in claimed:
                other = self._by_prefix.get(each)
                if other is None or self._own in (one, other):
                    continue
                denier = self._entries.get(other)
                if denier is None or prefix not in denier.denied:
                    edges.setdefault(one, set()).add(other)
                    edges.setdefault(other, set()).add(one)
        return edges

    def _search(self, origin: NodeId) -> dict[NodeId, int]:
        found = {origin: 0}
        border = [origin]
        hops = 0
        while border:
            hops += 1
            beyond: list[NodeId] = []
            for node in border:
                for each in self._edges.get(node, ()):
                    if each not in found:
                        found[each] = hops
                        beyond.append(each)
            border = beyond
        return found
