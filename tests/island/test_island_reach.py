"""Hosts know which hosts they can reach, and over how many hops: compared with a breadth-first search over contacts."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
from tests.support.contacts import SETTLED_S, Edges, World, clusters, grid, island, line, moving, names, ring

from carrypost.emu.engine.driver import MemoryStore
from carrypost.island.links import FORGET_US
from carrypost.log.events import Event, NeighbourDown, Reachable, Unreachable
from carrypost.log.record import Kind, Record
from carrypost.testing import network

Shape = Callable[[list[str]], Edges]


@contextmanager
def world(count: int, shape: Shape, *, seed: int = 1, loss: float = 0.0, **settings: object) -> Iterator[World]:
    """Yield a world of `count` nodes with these contacts, which were noticed and have settled."""
    nodes = names(count)
    with network(*nodes, seed=seed, loss=loss, island=True, **settings) as net:  # type: ignore[arg-type]
        found = World(net, nodes)
        found.have(shape(nodes))
        found.notice()
        net.advance(SETTLED_S)
        yield found


SHAPES = [
    pytest.param(1, line, id="alone"),
    pytest.param(2, line, id="two"),
    pytest.param(9, line, id="line"),
    pytest.param(4, ring, id="square"),
    pytest.param(10, ring, id="ring"),
    pytest.param(20, lambda nodes: grid(nodes, 5), id="grid"),
    pytest.param(20, lambda nodes: clusters(nodes, 5), id="clusters"),
    pytest.param(8, lambda nodes: clusters(nodes, 8), id="clique"),
]


@pytest.mark.parametrize(("count", "shape"), SHAPES)
@pytest.mark.parametrize("security", ["off", "signed"])
def test_distances_are_those_of_the_contacts(count: int, shape: Shape, security: str) -> None:
    with world(count, shape, security=security) as found:
        found.check()


@pytest.mark.parametrize(("count", "shape"), SHAPES)
def test_distances_are_right_at_once_where_a_driver_tells_of_contacts(count: int, shape: Shape) -> None:
    nodes = names(count)
    with network(*nodes, seed=1, island=True, beacons=False, island_s_min=0.0) as net:
        found = World(net, nodes)
        for one, other in shape(nodes):
            found.link([(one, other)])
            net.host(one).link(other, up=True, now=round(net.now * 1e6))
            net.host(other).link(one, up=True, now=round(net.now * 1e6))
        net.advance(0.5)
        found.check()


def test_a_cut_and_its_end_are_known_within_three_seconds() -> None:
    with world(12, ring) as found:
        found.unlink([("n3", "n4")])
        found.notice()
        found.net.advance(SETTLED_S)
        found.check()
        found.unlink([("n8", "n9")])
        found.notice()
        found.net.advance(SETTLED_S)
        found.check()
        found.link([("n3", "n4")])
        found.notice()
        found.net.advance(SETTLED_S)
        found.check()


def test_hosts_that_died_vanish_though_nothing_is_refreshed() -> None:
    with world(9, line) as found:
        found.kill("n4")
        found.notice()
        found.net.advance(SETTLED_S)
        found.check()
        known = {found.net.name(each.node) for each in island(found.net, "n0").table}
        assert "n4" in known, "it may come back"
        found.net.advance(FORGET_US / 1e6 + 1)
        known = {found.net.name(each.node) for each in island(found.net, "n0").table}
        assert known == {"n0", "n1", "n2", "n3"}
        found.check()
        found.restart("n4")
        found.notice()
        found.net.advance(SETTLED_S)
        found.check()


def test_two_hosts_that_died_together_do_not_keep_each_other_alive() -> None:
    with world(8, line) as found:
        found.kill("n3")
        found.kill("n4")
        found.notice()
        found.net.advance(SETTLED_S)
        found.check()


def test_a_one_way_link_is_no_way() -> None:
    with world(4, line) as found:
        found.net.unlink("n1", "n2")
        found.edges.discard(("n1", "n2"))
        found.net.link("n1", "n2", one_way=True)
        found.notice()
        found.net.advance(SETTLED_S)
        found.check()


def test_who_is_heard_and_does_not_hear_is_no_reason_to_choose_a_relay() -> None:
    # n0 hears n1 and n2. Both hear n3, but n3 hears n2 alone: n1 reaches nobody.
    nodes = names(5)
    with network(*nodes, seed=2, island=True) as net:
        found = World(net, nodes)
        found.link([("n0", "n1"), ("n0", "n2"), ("n2", "n3"), ("n0", "n4")])
        net.link("n3", "n1", one_way=True)
        found.notice()
        net.advance(SETTLED_S)
        found.check()


@pytest.mark.parametrize("seed", range(1, 4))
def test_a_host_that_lost_its_store_is_heard_again(seed: int) -> None:
    nodes = names(4)
    with network(*nodes, seed=seed, island=True) as net:
        found = World(net, nodes)
        found.have(line(nodes))
        found.notice()
        net.advance(SETTLED_S)
        for _ in range(3):
            found.kill("n1")
            found.restart("n1")
            net.advance(1)
        found.kill("n1")
        net._driver("n1").disk.store = MemoryStore()  # noqa: SLF001 - a new disk
        found.restart("n1")
        found.notice()
        net.advance(2 * SETTLED_S)
        found.settle(within_s=5)  # A contact with its last life may end only now.
        entry = island(net, "n3").table.get(next(node for node in net.host("n3").reach() if net.name(node) == "n1"))
        assert entry is not None
        assert entry.incarnation == 4


@pytest.mark.parametrize("seed", range(1, 4))  # With seed 1 a relay loses two link states that say that it was chosen.
def test_losses_are_repaired_within_two_announcements(seed: int) -> None:
    with world(16, lambda nodes: grid(nodes, 4), seed=seed, loss=0.1) as found:
        found.net.advance(10)
        found.settle(within_s=10)
        found.unlink([("n5", "n6"), ("n9", "n10")])
        found.notice()
        found.settle(within_s=10)


@pytest.mark.parametrize("seed", [1, 2, 5])  # With others a link state is due, and lost, while the link is down.
def test_a_record_that_was_lost_is_sent_again_before_the_next_announcement(seed: int) -> None:
    with world(5, line, seed=seed) as found:
        net, noticed = found.net, list[Event]()
        net.advance(30)
        net.watch(lambda _, __, event: noticed.append(event) if isinstance(event, NeighbourDown) else None)
        found.kill("n0")
        while not noticed:
            net.advance(0.005)
        net.unlink("n1", "n2")
        net.advance(0.6)
        assert "n0" in net.reach("n4"), "the record was lost"
        net.link("n1", "n2")
        net.advance(2)
        assert "n0" not in net.reach("n4")


@pytest.mark.parametrize("seed", range(3))
def test_moving_hosts_know_their_island_when_they_stand_still(seed: int) -> None:
    _move(16, seed, steps=20)


@pytest.mark.soak
@pytest.mark.parametrize(("count", "seed"), [(200, 1), *[(40, seed) for seed in range(20)]])
def test_many_moving_hosts_know_their_island_when_they_stand_still(count: int, seed: int) -> None:
    _move(count, seed, steps=60, range_m=1_000 * (3 / count) ** 0.5)


def _move(count: int, seed: int, *, steps: int, range_m: float = 300.0) -> None:
    """Let hosts walk, crash, and come back; then stop."""
    rng, nodes = random.Random(seed), names(count)
    with network(*nodes, seed=seed, island=True) as net:
        found = World(net, nodes)
        for _, edges in zip(range(steps), moving(nodes, rng, range_m, 30), strict=False):
            found.have(edges)
            if rng.random() < 0.2:
                node = rng.choice(nodes)
                (found.kill if node in found.alive else found.restart)(node)
            net.advance(1)
        found.notice()
        net.advance(SETTLED_S + 5)  # A host that has told of three changes waits for the next one.
        found.check()


def test_events_and_rows_tell_who_is_in_reach_once_that_is_sure() -> None:
    record, told = Record("reach"), list[tuple[float, Event]]()
    nodes = names(3)
    with network(*nodes, seed=1, island=True, record=record) as net:
        net.watch(lambda now, node, event: told.append((now, event)) if node == "n0" else None)
        found = World(net, nodes)
        found.have(line(nodes))
        net.advance(0.5)
        assert net.reach("n0") == {"n1": 1, "n2": 2}
        assert not [event for _, event in told if isinstance(event, Reachable)]
        net.advance(2)
        reached = {(net.name(event.node), event.hops) for _, event in told if isinstance(event, Reachable)}
        assert reached == {("n1", 1), ("n2", 2)}
        assert not [event for _, event in told if isinstance(event, Unreachable)]
        found.unlink([("n1", "n2")])
        net.advance(20)
        assert [net.name(event.node) for _, event in told if isinstance(event, Unreachable)] == ["n2"]
    rows = [row for row in record.rows() if row["node"] == "n0"]
    assert {(row["peer"], row["hops"]) for row in rows if row["kind"] == Kind.REACH} == {("n1", 1), ("n2", 2)}
    assert [row["peer"] for row in rows if row["kind"] == Kind.UNREACH] == ["n2"]


def test_a_host_that_flickers_is_not_told_of() -> None:
    told: list[Event] = []
    with world(3, line) as found:
        found.net.watch(lambda _, node, event: told.append(event) if node == "n0" else None)
        for _ in range(2):
            found.kill("n2")
            found.net.advance(0.2)
            found.restart("n2")
            found.net.advance(5)
        assert not [event for event in told if isinstance(event, Reachable | Unreachable)]


def test_without_an_island_nobody_is_known() -> None:
    with network("a", "b", seed=1) as net:
        net.link("a", "b")
        net.advance(3)
        assert net.reach("a") == {}


def test_hosts_with_and_without_an_island_get_on() -> None:
    nodes = names(4)
    with network(*nodes[:3], seed=1, island=True) as net:
        net.add("n3", island=False)
        net.link("n0", "n1")
        net.link("n1", "n2")
        net.link("n2", "n3")
        net.advance(5)
        assert net.reach("n0") == {"n1": 1, "n2": 2}, "it tells nobody of its links"
        assert net.reach("n2") == {"n0": 2, "n1": 1, "n3": 1}


@pytest.mark.parametrize("seed", [3, 7])
def test_links_and_nodes_may_come_and_go_faster_than_anybody_is_sure_of_them(seed: int) -> None:
    """Check among others seed 7, with which a host was reported to be in reach that no longer was."""
    chance = random.Random(seed)
    nodes = names(chance.choice((3, 4, 5)))
    edges = line(nodes)
    with network(*nodes, seed=seed, island=True) as net:
        found = World(net, nodes)
        found.have(edges)
        there = set(edges)
        for _ in range(60):
            edge = chance.choice(sorted(edges))
            (found.unlink if edge in there else found.link)([edge])
            there ^= {edge}
            net.advance(chance.choice((0.3, 0.6, 1.0, 1.1, 2.0, 3.0)))
            if chance.random() < 0.15:
                node = chance.choice(nodes)
                found.kill(node)
                net.advance(chance.choice((0.2, 1.0, 3.0)))
                found.restart(node)
        found.link(edges - there)
        found.notice()
        net.advance(20)
        found.check()
