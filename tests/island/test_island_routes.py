"""Paths over a graph that tests define, compared with an independent breadth-first search."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st
from tests.support.contacts import island

from carrypost.island.links import AVOIDED_US, Routes, names
from carrypost.model.ids import NodeId, node_prefix
from carrypost.testing import network

Edge = tuple[int, int]


class Told:
    """Links that a test names."""

    def __init__(self, edges: Iterable[Edge]) -> None:
        self.version = 0
        self.links: dict[NodeId, set[NodeId]] = {}
        for edge in edges:
            self.add(edge)

    def add(self, edge: Edge) -> None:
        one, other = map(name, edge)
        self.version += 1
        self.links.setdefault(one, set()).add(other)
        self.links.setdefault(other, set()).add(one)

    def remove(self, edge: Edge) -> None:
        one, other = map(name, edge)
        self.version += 1
        self.links[one].discard(other)
        self.links[other].discard(one)

    def neighbours_of(self, node: NodeId) -> Collection[NodeId]:
        return self.links.get(node, set())

    def names(self, origin: NodeId) -> Mapping[bytes, NodeId | None]:
        return names(self, origin)


def name(number: int) -> NodeId:
    return NodeId(f"n{number}")


def distances(edges: Collection[frozenset[NodeId]], origin: NodeId) -> dict[NodeId, int]:
    """Return the hops from one node to all that it reaches, ring by ring."""
    found = {origin: 0}
    while True:
        ring = {other for edge in edges if len(edge & found.keys()) == 1 for other in edge - found.keys()}
        if not ring:
            return found
        found.update(dict.fromkeys(ring, max(found.values()) + 1))


EDGES = st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9)).filter(lambda edge: edge[0] != edge[1]), max_size=25)


@given(EDGES, EDGES)
def test_paths_are_shortest_without_the_edges_that_are_avoided(edges: list[Edge], avoided: list[Edge]) -> None:
    told = Told(edges)
    routes = Routes(name(0), told, hops_max=16)
    for one, other in avoided:
        routes.avoid(name(one), name(other), now=5)
    for now, left in ((6, set(map(frozenset, edges)) - set(map(frozenset, avoided))), (5 + AVOIDED_US, edges)):
        there = {frozenset(map(name, edge)) for edge in left}
        expected = distances(there, name(0))
        for number in range(1, 10):
            path = routes.path(name(number), now)
            assert (None if path is None else len(path)) == expected.get(name(number))
            if path is not None:
                hops = [name(0), *path]
                assert hops[-1] == name(number)
                assert len(set(hops)) == len(hops)
                assert all(frozenset(hop) in there for hop in pairwise(hops))


def test_paths_follow_changes_of_the_graph() -> None:
    told = Told([(0, 1), (1, 2)])
    routes = Routes(name(0), told, hops_max=16)
    assert routes.path(name(2), 0) == ("n1", "n2")
    assert routes.path(name(0), 0) is None
    told.add((0, 2))
    assert routes.path(name(2), 0) == ("n2",)
    told.remove((0, 2))
    told.remove((1, 2))
    assert routes.path(name(2), 0) is None
    routes.set_graph(Told([(0, 5), (5, 2)]))
    assert routes.path(name(2), 0) == ("n5", "n2")


def test_an_edge_that_comes_back_is_not_avoided_any_more() -> None:
    told = Told([(0, 1), (1, 2)])
    routes = Routes(name(0), told, hops_max=16)
    routes.avoid(name(1), name(2), 0)
    routes.changed()
    assert routes.path(name(2), 1) is None
    told.remove((1, 2))
    routes.changed()
    told.add((1, 2))
    assert routes.path(name(2), 2) == ("n1", "n2")


def test_no_path_is_longer_than_it_may_be() -> None:
    routes = Routes(name(0), Told([(number, number + 1) for number in range(5)]), hops_max=3)
    assert routes.path(name(3), 0) == ("n1", "n2", "n3")
    assert routes.path(name(4), 0) is None


def test_a_host_that_is_called_like_another_is_on_no_path() -> None:
    seen: dict[bytes, NodeId] = {}
    number = 0
    while True:  # Four bytes: some 80,000 names have two that agree.
        prefix = node_prefix(name(number))
        if prefix in seen:
            break
        seen[prefix] = name(number)
        number += 1
    twins = seen[prefix], name(number)
    told = Told([(0, 1)])
    told.links[NodeId("n1")] = {name(0), *twins}
    for twin in twins:
        told.links[twin] = {NodeId("n1"), NodeId("far")}
    routes = Routes(name(0), told, hops_max=16)
    assert [routes.path(node, 0) for node in (*twins, NodeId("far"))] == [None, None, None]
    assert routes.path(name(1), 0) == ("n1",)
    assert routes.named(prefix) is None
    assert routes.named(node_prefix(name(1))) == "n1"


def test_edges_beyond_the_bound_are_used_again() -> None:
    routes = Routes(name(0), Told([(0, number) for number in range(1, 1_026)]), hops_max=16)
    routes.avoid(name(0), name(1), 0)
    assert routes.path(name(1), 1) is None
    for number in range(2, 1_026):
        routes.avoid(name(0), name(number), 1)
    assert routes.path(name(1), 2) == ("n1",)


def test_hosts_farther_away_use_a_link_that_was_gone_and_is_back() -> None:
    with network(*"abc", seed=1, island=True) as net:
        net.link("a", "b")
        net.link("b", "c")
        net.advance(20)
        routes, ids = island(net, "c").routes, {node: net.host(node).node for node in "abc"}
        routes.avoid(ids["a"], ids["b"], round(net.now * 1e6))
        assert routes.path(ids["a"], round(net.now * 1e6)) is None
        net.unlink("a", "b")
        net.advance(20)
        net.link("a", "b")
        net.advance(10)
        assert routes.path(ids["a"], round(net.now * 1e6)) == (ids["b"], ids["a"])
