"""Homes: the four rules, and the client's monitor."""

from __future__ import annotations

from math import inf

import pytest

from carrypost.model.ids import NodeId
from carrypost.overlay.placement import FAR, Distance, Home, Monitor, choose_home, mean_hops, nearest

A, B, C = NodeId("A"), NodeId("B"), NodeId("C")
MAX = 0.9

RULES = [
    # Loads and paths of the current home and of the candidate; True if the consumer moves.
    ("one overloaded: the other", 0.95, 9, 0.5, 1, False, True),
    ("one overloaded: the other, though it is further", 0.95, 1, 0.5, 9, False, True),
    ("one overloaded: the other, though it is nearer", 0.5, 9, 0.95, 1, False, False),
    ("at the threshold is not over it", 0.9, 1, 0.9, 9, False, False),
    ("at the threshold: the candidate", 0.91, 1, 0.9, 9, False, True),
    ("both overloaded: the lighter", 1.5, 1, 1.2, 9, False, True),
    ("both overloaded: the lighter stays", 1.2, 9, 1.5, 1, False, False),
    ("both overloaded, equal: stays", 1.2, 9, 1.2, 1, False, False),
    ("neither: the shorter path", 0.1, 5, 0.8, 4, False, True),
    ("neither: the shorter path stays", 0.8, 4, 0.1, 5, False, False),
    ("neither, equal paths: stays", 0.8, 4, 0.1, 4, False, False),
    ("neither, equal paths by the lower id: stays", 0.8, 4, 0.1, 4, True, False),
]


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule[0])
def test_the_four_rules(rule: tuple[str, float, int, float, int, bool, bool]) -> None:
    _, load, path, other_load, other_path, lower, moves = rule
    current, candidate = Home(C if lower else A, load, path), Home(B, other_load, other_path)
    assert choose_home(current, [candidate], MAX) is (candidate if moves else current)
    # Whoever moved has no reason to move back.
    assert choose_home(candidate, [current], MAX) is candidate or not moves


def test_the_best_of_several_homes_is_chosen() -> None:
    free, far, busy, busier = Home(A, 0.5, 3), Home(B, 0.1, 5), Home(C, 1.2, 1), Home(NodeId("D"), 1.5, 1)
    assert choose_home(busier, [busy, far, free], MAX) is free, "the shortest path without too much work"
    assert choose_home(busier, [busy], MAX) is busy, "the lightest"
    assert choose_home(far, [busy, free, far._replace(hops=4)], MAX) is free
    assert choose_home(free, [], MAX) is free


def test_the_broker_in_the_middle_is_not_the_home_of_all() -> None:
    """Check that a broker as near as the home, with more work, needs a path shorter by a whole hop."""
    current = Home(A, 0.4, 1, 3)
    for load, hops, producer_hops, moves in (
        (0.6, 1, 2.4, False),
        (0.6, 1, 2, True),
        (0.4, 1, 2.4, True),
        (0.6, 0, 3, True),
    ):
        candidate = Home(B, load, hops, producer_hops)
        assert (choose_home(current, [candidate], MAX) is candidate) is moves


def test_paths_are_means_over_producers() -> None:
    hops = {b"a": 1, b"b": 2, b"c": 6}
    assert mean_hops(hops, {}) == 0
    assert mean_hops(hops, dict.fromkeys(hops, 1)) == 3
    assert mean_hops(hops, {b"b": 3, b"c": 1}) == 3  # Three producers at one home, and one at the other.
    assert Home(A, 0, 2).path == 2
    assert Home(A, 0, 2, 3).path == 5
    # Nearer to the consumer, further from producers, and the reverse.
    current, candidate = Home(A, 0, 1, 4), Home(B, 0, 3, 1.5)
    assert choose_home(current, [candidate], MAX) is candidate
    # Producers that neither reaches decide nothing; those that only the candidate reaches do.
    assert choose_home(Home(A, 0, 1, inf), [Home(B, 0, 1, inf)], MAX).broker == A
    assert choose_home(Home(A, 0, 1, inf), [Home(B, 0, 9, 9)], MAX).broker == B


def test_figure_4() -> None:
    """After node 6 moved, C reaches X over 4, B, 3, 5; B over 3, 5. A is two hops from either."""
    c, b = Home(C, 0, 5, 2), Home(B, 0, 3, 2)
    assert choose_home(c, [b], MAX) is b
    assert (c.path + 1, b.path + 1) == (8, 6)  # With the hop from the producer to A.


def at(**hops: int) -> dict[NodeId, Distance]:
    """Return distances; positive ones are those of routes."""
    return {NodeId(name): Distance(value < 0, abs(value)) for name, value in hops.items()}


def test_the_nearest_broker_is_reachable_first_then_near_then_lowest() -> None:
    assert nearest({}) is None
    assert nearest(at(A=2), without=A) is None
    assert nearest(at(A=3, B=2, C=2)) == B
    assert nearest(at(A=-1, B=9)) == B
    assert nearest(at(A=-2, B=-1)) == B
    assert at(A=-200)[A] < FAR


LOOKS = [
    # The home, the distances, and the brokers that are reported, with hops.
    (A, at(A=1, B=2), []),
    (A, at(A=2, B=2, C=3), [(B, 2)]),  # As near.
    (A, at(A=2, B=2, C=3), []),  # Known.
    (A, at(A=3, B=2, C=3), [(B, 2), (C, 3)]),  # The distance to the home changed.
    (A, at(A=3, B=1, C=3), [(B, 1), (C, 3)]),  # That to the nearest did.
    (A, at(A=3, B=1, C=2), []),  # Other ones alone are no news.
    (A, at(A=3, B=2, C=1), [(C, 1), (B, 2)]),
    (A, at(A=3, C=1), []),
    (A, at(A=1, B=2, C=2), []),  # None is near any more,
    (A, at(A=3, C=1), [(C, 1)]),  # so this one is new.
    (B, at(A=3, B=3, C=1), [(C, 1), (A, 3)]),  # Another home knows nothing yet.
    (B, at(B=-1, C=-1), [(C, 1)]),
    (B, at(B=-1, C=7), [(C, 7)]),  # One that is reachable is nearer.
    (B, at(C=7), [(C, 7)]),  # The home is not known any more.
    (B, at(), []),
    (B, at(B=4), []),
]


def test_a_consumer_reports_what_its_home_does_not_know() -> None:
    monitor = Monitor()
    for number, (home, distances, expected) in enumerate(LOOKS, 1):
        assert monitor.look_for_consumer(home, distances) == expected, number


def test_a_report_lists_the_nearest_brokers_and_is_repeated_after_six_looks() -> None:
    monitor, reports = Monitor(), []
    for look in range(13):
        found = monitor.look_for_consumer(A, at(A=3, B=2, C=1, D=4, E=3, F=2, G=3))
        if found:
            reports.append((look, "".join(node for node, _ in found)))
    assert reports == [(look, "CBFE") for look in (0, 6, 12)]


@pytest.mark.parametrize(
    ("distances", "expected"),
    [
        (at(A=2, B=2), None), (at(A=2, B=1), B), (at(A=2, B=3), None), (at(A=-1, B=3), B), (at(A=-1, B=-1), None),
        (at(B=-3), B), (at(A=1), None), (at(), None), (at(A=3, B=2, C=2), B),
    ],
)  # fmt: skip
def test_a_producer_changes_to_a_nearer_home_only(distances: dict[NodeId, Distance], expected: NodeId | None) -> None:
    monitor = Monitor()
    assert monitor.look_for_producer(A, distances) == expected


def test_a_producer_looks_at_once_if_its_home_is_farther_away_than_before() -> None:
    near, far = Distance(False, 1), Distance(False, 2)
    monitor = Monitor()
    assert not monitor.home_moved(FAR), "there was no look"
    for distances in (at(A=1, B=3), at(A=2, B=1), at(A=3, B=2)):
        monitor.look_for_producer(A, distances)
        assert not monitor.home_moved(near)
        assert monitor.home_moved(far)
    monitor.look_for_producer(A, at(A=-1, B=3))
    assert not monitor.home_moved(FAR), "it is out of reach, and waited for"
    assert not monitor.home_moved(near), "it is back"
    assert monitor.home_moved(far)
