"""Networks with islands, and the truth about them: distances by breadth-first search over the contacts."""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator
from itertools import pairwise

from carrypost.island.island import Island
from carrypost.testing import Network

Edges = set[tuple[str, str]]
SETTLED_S = 3.0
"""Time after which distances are right, once links were noticed."""


def island(net: Network, node: str) -> Island:
    """Return the island of a node."""
    found = net.host(node)._island  # noqa: SLF001 - tables and digests are nobody's business
    assert found is not None
    return found


class World:
    """The contacts of a network, and its living nodes."""

    def __init__(self, net: Network, nodes: Iterable[str]) -> None:
        self.net, self.alive = net, set(nodes)
        self.edges: Edges = set()

    def link(self, edges: Iterable[tuple[str, str]], **options: float) -> None:
        """Begin contacts."""
        for one, other in edges:
            self.edges.add(_edge(one, other))
            self.net.link(one, other, **options)  # type: ignore[arg-type]

    def unlink(self, edges: Iterable[tuple[str, str]]) -> None:
        """End contacts."""
        for one, other in edges:
            self.edges.discard(_edge(one, other))
            self.net.unlink(one, other)

    def have(self, edges: Edges) -> None:
        """Have these contacts, and no others."""
        wanted = {_edge(*each) for each in edges}
        self.unlink(self.edges - wanted)
        self.link(wanted - self.edges)

    def kill(self, node: str) -> None:
        """Crash a node."""
        self.alive.discard(node)
        self.net.kill(node)

    def restart(self, node: str) -> None:
        """Start it again."""
        self.alive.add(node)
        self.net.restart(node)

    def neighbours(self) -> dict[str, set[str]]:
        """Return the nodes with which each living node can exchange frames."""
        found: dict[str, set[str]] = {node: set() for node in self.alive}
        for one, other in self.edges:
            if one in found and other in found:
                found[one].add(other)
                found[other].add(one)
        return found

    def distances(self) -> dict[str, dict[str, int]]:
        """Return the true distances, from each living node."""
        neighbours = self.neighbours()
        return {node: _distances(neighbours, node) for node in sorted(self.alive)}

    def notice(self, within_s: float = 60.0) -> None:
        """Wait until every host knows its links."""
        until = self.net.now + within_s
        while any(self._noticed(node) != near for node, near in self.neighbours().items()):
            assert self.net.now < until, "links were not noticed"
            self.net.advance(0.25)

    def _noticed(self, node: str) -> set[str]:
        views = self.net.host(node).overview().neighbours
        return {self.net.name(each.node) for each in views if each.state == "linked"}

    def wrong(self) -> dict[str, tuple[dict[str, int], dict[str, int]]]:
        """Return the hosts that are wrong, with the true distances and those that they report."""
        found = {node: (true, self.net.reach(node)) for node, true in self.distances().items()}
        return {node: both for node, both in found.items() if both[0] != both[1]}

    def settle(self, within_s: float) -> None:
        """Wait until `check` finds all right. Losses may end a contact for a moment, at any time."""
        until = self.net.now + within_s
        while self.net.now < until and (self.wrong() or not self._agreed()):
            self.net.advance(0.25)
        self.check()

    def _agreed(self) -> bool:
        """Return True if hosts of one part have equal digests."""
        digests = {node: island(self.net, node).table.digest for node in self.alive}
        return all(digests[node] == digests[other] for node, true in self.distances().items() for other in true)

    def check(self) -> None:
        """Check that all distances are right, and that equal digests mean equal tables.

        All hosts of one part must have equal digests.
        """
        assert self.wrong() == {}
        assert self._agreed()
        by_digest: dict[int, set[tuple[bytes, ...]]] = {}
        for node in self.alive:
            table = island(self.net, node).table
            records = tuple(sorted(each.record.author + bytes([each.sequence]) for each in table.reached()))
            by_digest.setdefault(table.digest, set()).add(records)
        assert all(len(tables) == 1 for tables in by_digest.values())


def _distances(neighbours: dict[str, set[str]], node: str) -> dict[str, int]:
    found, border, hops = {node: 0}, {node}, 0
    while border:
        hops += 1
        border = {each for one in border for each in neighbours[one]} - found.keys()
        found |= dict.fromkeys(border, hops)
    return {each: hops for each, hops in found.items() if hops}


def _edge(one: str, other: str) -> tuple[str, str]:
    return (one, other) if one < other else (other, one)


def names(count: int) -> list[str]:
    """Return the names of `count` nodes."""
    return [f"n{number}" for number in range(count)]


def line(nodes: list[str]) -> Edges:
    """Each hears the next."""
    return set(pairwise(nodes))


def ring(nodes: list[str]) -> Edges:
    """Return a line whose ends hear each other."""
    return {*pairwise(nodes), (nodes[-1], nodes[0])}


def grid(nodes: list[str], width: int) -> Edges:
    """Return rows of this width; each node hears those beside, above and below."""
    across = {(one, other) for at, (one, other) in enumerate(pairwise(nodes), 1) if at % width}
    return across | set(zip(nodes, nodes[width:], strict=False))


def clusters(nodes: list[str], size: int) -> Edges:
    """Return cliques of this size; one node of each clique hears one node of the next."""
    parts = [nodes[at : at + size] for at in range(0, len(nodes), size)]
    inside = {(one, other) for part in parts for one in part for other in part if one < other}
    return inside | {(one[-1], other[0]) for one, other in pairwise(parts)}


def moving(nodes: list[str], rng: random.Random, range_m: float, speed_m: float) -> Iterator[Edges]:
    """Contacts of nodes on a square of a kilometre that walk at random, step by step."""
    places = {node: (rng.uniform(0, 1000), rng.uniform(0, 1000)) for node in nodes}
    while True:
        yield {
            (one, other) for one, (x, y) in places.items() for other, (u, v) in places.items()
            if one < other and (x - u) ** 2 + (y - v) ** 2 <= range_m**2
        }  # fmt: skip
        for node, (x, y) in places.items():
            dx, dy = rng.uniform(-speed_m, speed_m), rng.uniform(-speed_m, speed_m)
            places[node] = min(1000, max(0, x + dx)), min(1000, max(0, y + dy))
