"""Paths to the hosts of the island: shortest ones, by breadth-first search over whatever is known of links.

A path names hosts by four bytes each, as heard-lists do. A host whose four bytes are those of another one is therefore
on no path, and has none. Edges over which something could not go on lately are avoided for a minute: the links that a
host is told of may be gone, or false.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from carrypost.model.ids import node_prefix
from carrypost.model.times import NEVER

if TYPE_CHECKING:
    from collections.abc import Collection

    from carrypost.model.ids import NodeId

AVOIDED_US = 60_000_000
"""So long an edge is avoided that did not carry something on."""
_AVOIDED_MAX = 1_024
"""Edges that are avoided at one time; beyond it, the oldest is used again."""


class Graph(Protocol):
    """Links between hosts, as one host knows them, or is told."""

    @property
    def version(self) -> int:
        """A number that grows with every change."""

    def neighbours_of(self, node: NodeId) -> Collection[NodeId]:
        """Return the hosts that a host exchanges frames with, both ways."""


def distances(graph: Graph, origin: NodeId) -> dict[NodeId, int]:
    """Return the hops from a host to each other that is connected with it."""
    found = {origin: 0}
    edge = [origin]
    while edge:
        beyond = {other for node in edge for other in graph.neighbours_of(node)} - found.keys()
        found.update(dict.fromkeys(sorted(beyond), found[edge[0]] + 1))
        edge = sorted(beyond)
    del found[origin]
    return found


class Routes:
    """Shortest paths from one host to all others. Worked out anew only when something changed."""

    def __init__(self, own: NodeId, graph: Graph, hops_max: int) -> None:
        self._own, self._graph, self._hops_max = own, graph, hops_max
        self._avoided: dict[frozenset[NodeId], int] = {}
        """Until when each edge is avoided, the oldest first."""
        self._version = -1
        """Version of the graph in which paths were looked for last."""
        self._until_us = 0
        """Paths that were found hold until then: an edge is no longer avoided."""
        self._before: dict[NodeId, NodeId] = {}
        """By host that has a path: the one before it."""
        self._by_prefix: dict[bytes, NodeId | None] = {}
        """Hosts by their four bytes; None where several have the same."""

    def path(self, node: NodeId, now: int) -> tuple[NodeId, ...] | None:
        """Return the relays between this host and another, then that one; None if there is no path."""
        self._refresh(now)
        if node == self._own or node not in self._before:
            return None
        found = [node]
        while (before := self._before[found[-1]]) != self._own:
            found.append(before)
        return tuple(reversed(found))

    def named(self, prefix: bytes, now: int) -> NodeId | None:
        """Return the host of the island that four bytes stand for; None if there is none, or more than one."""
        self._refresh(now)
        return self._by_prefix.get(prefix)

    def avoid(self, one: NodeId, other: NodeId, now: int) -> None:
        """Use the edge between two hosts, if it is there, for nothing for a minute."""
        edge = frozenset((one, other))
        if edge in self._avoided or other not in self._graph.neighbours_of(one):
            return
        self._avoided[edge] = now + AVOIDED_US
        if len(self._avoided) > _AVOIDED_MAX:
            del self._avoided[next(iter(self._avoided))]
        self._until_us = 0

    def use(self, one: NodeId, other: NodeId) -> None:
        """Use the edge between two hosts again."""
        if self._avoided.pop(frozenset((one, other)), None) is not None:
            self._until_us = 0

    def tell(self, graph: Graph) -> None:
        """Look for paths in another graph from now on."""
        self._graph = graph
        self._version = -1

    def _refresh(self, now: int) -> None:
        if self._version != self._graph.version or self._until_us <= now:
            self._avoided = {edge: until_us for edge, until_us in self._avoided.items() if until_us > now}
            self._until_us = min(self._avoided.values(), default=NEVER)
            self._version = self._graph.version
            self._search()

    def _search(self) -> None:
        """Search from this host outwards. Neighbours are looked at in order, so that equal graphs give equal paths."""
        avoided = self._avoided
        self._by_prefix = self._names()
        named = {node for node in self._by_prefix.values() if node is not None}
        before: dict[NodeId, NodeId] = {self._own: self._own}
        edge = [self._own]
        for _ in range(self._hops_max):
            beyond: list[NodeId] = []
            for node in edge:
                for other in sorted(named.intersection(self._graph.neighbours_of(node)) - before.keys()):
                    if not (avoided and frozenset((node, other)) in avoided):
                        before[other] = node
                        beyond.append(other)
            edge = beyond
        del before[self._own]
        self._before = before

    def _names(self) -> dict[bytes, NodeId | None]:
        """Return all hosts that are connected, by their four bytes."""
        found: dict[bytes, NodeId | None] = {}
        known = {self._own}
        waiting = [self._own]
        while waiting:
            node = waiting.pop()
            prefix = node_prefix(node)
            found[prefix] = None if prefix in found else node
            fresh = set(self._graph.neighbours_of(node)) - known
            known.update(fresh)
            waiting += fresh
        return found
