"""Paths to the hosts of the island: shortest ones, by breadth-first search over the known links.

A path names hosts by four bytes each, as heard-lists do. A host that shares its four bytes with another is therefore on
no path, and has none. Edges over which something could not pass lately are avoided for a minute, or until they are
gone: a reported link may be gone, or false.
"""
# Paths are computed at the source and written into each datagram. With routing tables at every
# relay two hosts with different views of the island could send a datagram in circles; a path that
# names no host twice cannot.
#
# The search is lazy. Links change many times a minute, and most hosts are never written to: after a
# change nothing is computed before a caller asks for a path, and then no further than to the host
# that is asked for (`_edge`).

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from carrypost.model.ids import node_prefix
from carrypost.model.times import NEVER

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from carrypost.model.ids import NodeId

AVOIDED_US = 60_000_000
"""Time for which an edge is avoided that did not carry something on."""
_AVOIDED_MAX = 1_024
"""Number of edges that are avoided at one time; beyond it, the oldest is used again."""


class Graph(Protocol):
    """Links between hosts, as known to one host, or to its driver."""

    @property
    def version(self) -> int:
        """A number that grows with every change."""

    def neighbours_of(self, node: NodeId) -> Collection[NodeId]:
        """Return the hosts that a host exchanges frames with, both ways."""

    def names(self, origin: NodeId) -> Mapping[bytes, NodeId | None]:
        """Return all hosts that are connected with one, itself included, by their four bytes (`names`)."""


def distances(graph: Graph, origin: NodeId) -> dict[NodeId, int]:
    """Return the hops from a host to each other that is connected with it."""
    found = {origin: 0}
    edge, hops = [origin], 0
    while edge:
        hops += 1
        # Sorted, so that hosts with the same view choose the same paths, and runs of the emulator
        # can be repeated.
        edge = sorted(set().union(*map(graph.neighbours_of, edge)) - found.keys())
        found.update(dict.fromkeys(edge, hops))
    del found[origin]
    return found


def names(graph: Graph, origin: NodeId) -> Mapping[bytes, NodeId | None]:
    """Return all hosts that are connected with one, itself included, by their four bytes; None: several have these."""
    found: dict[bytes, NodeId | None] = {}
    for node in (origin, *distances(graph, origin)):
        prefix = node_prefix(node)
        found[prefix] = None if prefix in found else node
    return found


class Routes:
    """Shortest paths from one host to all others. Computed again only after a change."""

    def __init__(self, own: NodeId, graph: Graph, hops_max: int) -> None:
        self._own, self._graph, self._hops_max = own, graph, hops_max
        self._avoided: dict[frozenset[NodeId], int] = {}
        """Avoided edges, the oldest first, and the time until which each is."""
        self._version = -1
        """Version of the graph in which paths were last searched."""
        self._until_us = 0
        """Time until which the paths found are valid: an edge is no longer avoided then."""
        self._before: dict[NodeId, NodeId] = {}
        """Predecessor of each host on the path to it."""
        self._names: Mapping[bytes, NodeId | None] = {}
        """Hosts by their four bytes; None where several have the same."""
        self._names_version = -1
        """Version of the graph in which they were looked up."""
        self._edge: list[NodeId] = []
        """Hosts at which the search continues, if a host beyond them is asked for."""
        self._hops = 0
        """Number of hops to these."""

    def path(self, node: NodeId, now: int) -> tuple[NodeId, ...] | None:
        """Return the relays between this host and another, then that one; None if there is no path."""
        self._refresh(now)
        while node not in self._before and self._edge:
            self._widen()
        if node == self._own or node not in self._before:
            return None
        found = [node]
        while (before := self._before[found[-1]]) != self._own:
            found.append(before)
        return tuple(reversed(found))

    def hops(self, node: NodeId, now: int) -> int:
        """Return the length of the path to a host; 0 if there is none."""
        return len(self.path(node, now) or ())

    def distances(self, node: NodeId) -> dict[NodeId, int]:
        """Return the hops from another host to those that it can reach, as far as is known here."""
        return distances(self._graph, node)

    def named(self, prefix: bytes) -> NodeId | None:
        """Return the host of the island with these four bytes; None if there is none, or more than one."""
        return self._by_prefix().get(prefix)

    def _by_prefix(self) -> Mapping[bytes, NodeId | None]:
        if self._names_version != self._graph.version:
            self._names, self._names_version = self._graph.names(self._own), self._graph.version
        return self._names

    def avoid(self, one: NodeId, other: NodeId, now: int) -> None:
        """Avoid the edge between two hosts, if there is one, for a minute."""
        edge = frozenset((one, other))
        if edge in self._avoided or other not in self._graph.neighbours_of(one):
            return
        self._avoided[edge] = now + AVOIDED_US
        if len(self._avoided) > _AVOIDED_MAX:
            # Edges are avoided on the word of others (`broken`), so their number is limited: memory
            # must not grow with claims.
            del self._avoided[next(iter(self._avoided))]
        self._until_us = 0

    def use(self, one: NodeId, other: NodeId) -> None:
        """Use the edge between two hosts again."""
        if self._avoided.pop(frozenset((one, other)), None) is not None:
            self._until_us = 0

    def changed(self) -> None:
        """Stop avoiding edges that are gone from the graph: one that comes back is another link."""
        for edge in list(self._avoided):
            one, other = edge
            if other not in self._graph.neighbours_of(one):
                self.use(one, other)

    def set_graph(self, graph: Graph) -> None:
        """Search for paths in another graph from now on."""
        self._graph = graph
        self._version = self._names_version = -1

    def _refresh(self, now: int) -> None:
        if self._version != self._graph.version or self._until_us <= now:
            self._avoided = {edge: until_us for edge, until_us in self._avoided.items() if until_us > now}
            self._until_us = min(self._avoided.values(), default=NEVER)
            self._version = self._graph.version
            self._before, self._edge, self._hops = {self._own: self._own}, [self._own], 0

    def _widen(self) -> None:
        """Search one hop further. Neighbours are visited in order, so that equal graphs give equal paths."""
        avoided, before, graph = self._avoided, self._before, self._graph
        named = self._by_prefix()
        unclear = None in named.values()
        beyond: list[NodeId] = []
        for node in self._edge if self._hops < self._hops_max else ():
            for other in sorted(set(graph.neighbours_of(node)) - before.keys()):
                if avoided and frozenset((node, other)) in avoided:
                    continue
                # With four bytes for two hosts a relay could not know which one is meant.
                if unclear and named.get(node_prefix(other)) is None:
                    continue
                before[other] = node
                beyond.append(other)
        self._edge, self._hops = beyond, self._hops + 1
