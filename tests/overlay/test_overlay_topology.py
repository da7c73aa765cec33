"""The overlay follows the network: figure 3, and tables against a search over the entries that brokers should have."""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator, Mapping
from itertools import combinations, pairwise

import pytest
from tests.support.examples import soaked

from carrypost.errors import ConfigError, LocalError, StateError
from carrypost.model.ids import node_prefix
from carrypost.overlay.placement import BrokerLost, Notice, Timer
from carrypost.testing import Network, network

FIGURE_3 = ("A1", "1B", "B5", "5C", "12", "B2", "23", "3D")
"""Links of figure 3; letters are brokers."""
Graph = Mapping[str, set[str]]


def broker(**settings: object) -> dict[str, object]:
    return {"enabled": True, "broker": True, **settings}


def hops_from(graph: Graph, start: str) -> dict[str, int]:
    """Return the nodes that are connected with one, and the number of hops to each."""
    found, edge = {start: 0}, [start]
    while edge:
        edge = sorted({other for node in edge for other in graph[node]} - found.keys())
        found.update(dict.fromkeys(edge, max(found.values()) + 1))
    return found


def graph_of(net: Network, names: Iterable[str]) -> dict[str, set[str]]:
    graph: dict[str, set[str]] = {name: set() for name in names}
    for one, other in combinations(graph, 2):
        if net.linked(one, other) and net.linked(other, one):
            graph[one].add(other)
            graph[other].add(one)
    return graph


# --- figure 3 ----------------------------------------------------------------------------------------------


def figure_3(topology: str, seed: int) -> Network:
    """Return the brokers and the others."""
    net = network("1", "2", "3", "5", seed=seed, island=True, island_s_min=0.5, overlay={"enabled": True})
    for name, update_s in (("A", 25.0), ("B", 60.0), ("C", 10.0), ("D", 90.0)):
        net.add(name, overlay=broker(vicinity_hops=3, update_s=update_s, topology=topology))
    return net


def path_hops(net: Network, one: str, other: str) -> int:
    """Return the hops between nodes along a broker's own path to another, in the present network."""
    graph = graph_of(net, "ABCD1235")
    path = net.overlay(one).path(other)
    assert path is not None
    return sum(hops_from(graph, here)[there] for here, there in pairwise(path))


def links_of(net: Network, node: str) -> set[str]:
    """Return the links of the overlay that a broker's paths to its neighbours and beyond use."""
    paths = [net.overlay(node).path(other) for other in "ABCD" if other != node]
    return {"".join(sorted(pair)) for path in paths if path is not None for pair in pairwise(path)}


@pytest.mark.parametrize(("topology", "hops"), [("adaptive", 3), ("static", 7)])
@pytest.mark.parametrize("seed", [4, *soaked(range(5, 15))])
def test_figure_3_the_path_from_c_to_d_has_3_hops_where_static_brokers_have_7(
    topology: str, hops: int, seed: int
) -> None:
    with figure_3(topology, seed) as net:
        for link in FIGURE_3:
            net.link(*link)
        net.advance(200)
        for name in "ABCD":
            assert links_of(net, name) == {"AB", "BC", "BD"}
        assert path_hops(net, "C", "D") == 5
        net.unlink("B", "2")
        net.unlink("1", "2")
        net.link("C", "2")
        net.advance(250)
        assert path_hops(net, "C", "D") == hops
        for name in "ABCD":
            assert links_of(net, name) == ({"AB", "BC", "CD"} if topology == "adaptive" else {"AB", "BC", "BD"})


class Looks:
    """An adaptor that notes when a broker looked last."""

    def __init__(self) -> None:
        self.last_s = 0.0

    def subscribe(self) -> tuple[type[Notice], ...]:
        return (Timer,)

    def process(self, notice: Notice) -> None:
        assert isinstance(notice, Timer)
        self.last_s = notice.now_us / 1e6


def wait_for_the_order_of_the_text(net: Network) -> None:
    """Wait until C will look before B, and B before D.

    B looks every 60 s and D every 90 s: one in three looks of B comes 40 to 70 s after one of D, for any phases.
    """
    looks = {name: Looks() for name in "BD"}
    for name, adaptor in looks.items():
        net.host(name).overlay.add(adaptor)
    net.advance(200)
    for _ in range(300):
        net.advance(1)
        b_next_s = looks["B"].last_s + 60
        if 29 <= b_next_s - net.now <= 31 and 40 <= b_next_s - looks["D"].last_s < 70:
            return
    pytest.fail(f"{[(name, each.last_s) for name, each in looks.items()]}")


@pytest.mark.parametrize("seed", [1, 2, 3, *soaked(range(4, 30))])
def test_figure_3_views_change_in_the_order_in_which_brokers_look(seed: int) -> None:
    with figure_3("adaptive", seed) as net:
        for link in FIGURE_3:
            net.link(*link)
        net.advance(100)
        wait_for_the_order_of_the_text(net)
        net.unlink("B", "2")
        net.unlink("1", "2")
        net.link("C", "2")
        seen: dict[str, float] = {}
        for _ in range(250):
            net.advance(1)
            views = {name: net.overlay(name) for name in "ABCD"}
            for what, holds in {
                "C lists D": "D" in views["C"].neighbours,
                "D knows C-D": views["D"].path("C") == ["D", "C"],
                "B knows C-D": views["B"].path("D") in (["B", "C", "D"], ["B", "D"]) and "CD" in links_of(net, "C"),
                "B drops D": "D" not in views["B"].neighbours,
                "D drops B": "B" not in views["D"].neighbours,
                "B-D is gone": views["B"].path("D") == ["B", "C", "D"],
                "A knows": views["A"].path("D") == ["A", "B", "C", "D"],
            }.items():
                if holds:
                    seen.setdefault(what, net.now)
        order = sorted(seen, key=lambda what: seen[what])
        assert order.index("C lists D") == 0
        assert seen["C lists D"] <= seen["D knows C-D"] < seen["B drops D"] < seen["D drops B"]
        assert seen["D drops B"] <= seen["B-D is gone"] <= seen["A knows"], "the link counts while either end lists it"


# --- an oracle ---------------------------------------------------------------------------------------------


def expected_paths(graph: Graph, brokers: Iterable[str], own: str, most: int) -> dict[str, list[str]]:
    """Return the paths of a broker, found by trying all paths over the links that brokers in its part should list."""
    reached = hops_from(graph, own)
    brokers = [each for each in brokers if each in reached]
    hops: dict[tuple[str, str], int] = {}
    for one in brokers:
        distances = hops_from(graph, one)
        nearest = sorted((distances[other], other) for other in brokers if other != one)[:most]
        for distance, other in nearest:
            hops[one, other] = hops[other, one] = distance
    best: dict[str, tuple[int, int, list[bytes], list[str]]] = {}

    def search(path: list[str], length: int) -> None:
        for other in brokers:
            if other in path or (path[-1], other) not in hops:
                continue
            longer = [*path, other]
            total = length + hops[path[-1], other]
            found = (len(longer), total, [node_prefix(each) for each in longer[1:]], longer)
            if other not in best or found < best[other]:
                best[other] = found
            search(longer, total)

    search([own], 0)
    return {other: found[-1] for other, found in best.items()}


class Wandering:
    """Brokers and others that meet and part at random; some crash and come back."""

    def __init__(self, seed: int, loss: float) -> None:
        self.chance = random.Random(seed)
        self.brokers = [f"b{number}" for number in range(6)]
        self.names = [*self.brokers, "n0", "n1", "n2"]
        self.net = network(
            *self.names[6:], seed=seed, loss=loss, island=True, island_s_min=0.2, announce_s_max=2.0,
            overlay={"enabled": True, "update_s": 3.0},
        )  # fmt: skip
        for name in self.brokers:
            self.net.add(name, overlay=broker(neighbours_max=2, update_s=3.0, vicinity_hops=16))
        self.down: set[str] = set()

    def move(self) -> None:
        """Let some links go and others come."""
        for one, other in combinations(self.names, 2):
            if self.chance.random() < 0.25 and not {one, other} & self.down:
                linked = self.net.linked(one, other)
                if linked and self.chance.random() < 0.6:
                    self.net.unlink(one, other)
                elif not linked and self.chance.random() < 0.35:
                    self.net.link(one, other)

    def crash(self) -> None:
        """Let one broker crash, or come back."""
        name = self.chance.choice(self.brokers)
        if name in self.down:
            self.net.restart(name)
            self.down.discard(name)
        elif len(self.down) < 2:
            self.net.kill(name)
            self.down.add(name)

    def differences(self) -> Iterator[str]:
        """Yield the paths that are not as they should be."""
        graph = graph_of(self.net, self.names)
        alive = {name: {each for each in graph[name] if each not in self.down} for name in graph}
        for name in self.down:
            alive[name] = set()
        brokers = [name for name in self.brokers if name not in self.down]
        for name in brokers:
            expected, view = expected_paths(alive, brokers, name, 2), self.net.overlay(name)
            for other in self.brokers:
                if other != name and view.path(other) != expected.get(other):
                    yield f"{name} to {other}: {view.path(other)}, not {expected.get(other)}"


@pytest.mark.parametrize("loss", [0.0, 0.3])
@pytest.mark.parametrize("seed", [1, *soaked(range(2, 40))])
def test_paths_are_those_of_a_search_over_the_entries_that_brokers_should_have(seed: int, loss: float) -> None:
    world = Wandering(seed, loss)
    with world.net:
        for _ in range(3):
            for _ in range(4):
                world.move()
                if world.chance.random() < 0.4:
                    world.crash()
                world.net.advance(world.chance.uniform(1, 15))
            for _ in range(40):
                world.net.advance(5)
                if not [*world.differences()]:
                    break
            assert not [*world.differences()]


# --- single rules ------------------------------------------------------------------------------------------


def line(*names: str, update_s: float = 4.0) -> Network:
    """Return a network of brokers, which are to be linked in a line."""
    net = network(seed=1, island=True, island_s_min=0.2)
    for name in names:
        net.add(name, overlay=broker(update_s=update_s))
    return net


def link(net: Network, names: str) -> None:
    for pair in pairwise(names):
        net.link(*pair)


def test_a_restarted_broker_outbids_its_old_entries() -> None:
    with line(*"abc") as net:
        link(net, "abc")
        net.advance(30)
        net.kill("b")
        net.link("a", "c")
        net.restart("b")
        net.unlink("b", "c")
        net.advance(30)
        assert net.overlay("c").path("b") == ["c", "b"], "b is two hops from c, and either lists the other"
        assert net.overlay("b").neighbours == {"a": 1, "c": 2}
        assert net.overlay("a").neighbours == {"b": 1, "c": 1}


def test_a_dead_broker_vanishes_from_paths_at_once_and_in_the_end_altogether() -> None:
    with line(*"abcd", update_s=20.0) as net:
        link(net, "abcd")
        net.advance(60)
        net.kill("d")
        net.advance(120)
        assert net.overlay("a").path("d") is None
        net.advance(700)
        assert net.overlay("a").brokers == ["b", "c"]


def test_a_broker_that_is_nobodys_neighbour_hears_of_all_others() -> None:
    with network("x", seed=5, island=True, overlay={"enabled": True}) as net:
        for name in "ABC":
            net.add(name, overlay=broker(neighbours_max=1, update_s=5.0))
        for pair in ("AB", "Bx", "xC"):
            net.link(*pair)
        net.advance(30)
        net.add("D", overlay=broker(neighbours_max=1, update_s=5.0))
        net.link("A", "D")
        net.advance(40)
        assert [sorted(net.overlay(name).neighbours) for name in "ABCD"] == [["B"], ["A"], ["B"], ["A"]]
        assert net.overlay("C").path("D") == ["C", "B", "A", "D"]
        assert net.overlay("D").path("C") == ["D", "A", "B", "C"]


def test_brokers_that_are_not_listed_do_not_count() -> None:
    with line("a", "b") as net:
        net.add("c", overlay=broker(update_s=4.0, brokers=["a", "c"]))
        link(net, "abc")
        net.advance(30)
        assert net.overlay("c").brokers == ["a"]
        assert net.host("c").overview().refused["overlay"] >= 1
        assert net.overlay("c").neighbours == {"a": 2}


def test_a_node_that_is_no_broker_knows_brokers_and_has_no_neighbours() -> None:
    with line("a", "b") as net:
        net.add("x", overlay={"enabled": True})
        link(net, "abx")
        net.advance(20)
        view = net.overlay("x")
        assert (view.broker, view.brokers, view.neighbours, view.path("a")) == (False, ["a", "b"], {}, None)


@pytest.mark.parametrize("loss", [0.0, 0.3])
@pytest.mark.parametrize("seed", [1, 2, *soaked(range(3, 30))])
def test_what_brokers_tell_each_other_is_acknowledged_to_them_alone(seed: int, loss: float) -> None:
    net = network(seed=seed, loss=loss, island=True, island_s_min=0.2)
    for name in "abc":
        net.add(name, overlay=broker(update_s=4.0))
    net.add("x", overlay={"enabled": True})
    with net:
        link(net, "axbc")
        for _ in range(20):
            net.advance(5)
            assert not any(net.host(name).overview().acknowledgements for name in "abcx")
        assert [net.overlay(name).path(other) for name, other in ("ac", "ca")] == [["a", "c"], ["c", "a"]]


class Watching:
    """An adaptor that notes its notices, and fails."""

    def __init__(self) -> None:
        self.noticed: list[Notice] = []

    def subscribe(self) -> tuple[type[Notice], ...]:
        return (Timer, BrokerLost)

    def process(self, notice: Notice) -> None:
        self.noticed.append(notice)
        raise RuntimeError("a program's mistake")


def test_an_adaptor_of_a_program_is_told_and_may_fail() -> None:
    with line("a", "b") as net:
        link(net, "ab")
        net.advance(20)
        watching = Watching()
        net.host("a").overlay.add(watching)
        net.kill("b")
        net.advance(20)
        lost = [each.broker for each in watching.noticed if isinstance(each, BrokerLost)]
        assert set(lost) == {"b"}
        assert sum(isinstance(each, Timer) for each in watching.noticed) >= 4
        assert net.host("a").overview().refused["adaptor"] == len(watching.noticed)


def test_misuse_raises_and_says_what_to_do() -> None:
    with pytest.raises(ConfigError, match="requires island = true"):
        network("a", overlay={"enabled": True})
    with pytest.raises(ConfigError, match=r"requires overlay\.enabled"):
        network("a", overlay={"broker": True})
    with line("a") as net:
        net.add("off")
        with pytest.raises(StateError, match=r"set overlay\.enabled"):
            net.overlay("off")
        for strange in (object(), 3):
            with pytest.raises(LocalError, match="subscribe"):
                net.host("a").overlay.add(strange)  # type: ignore[arg-type]
