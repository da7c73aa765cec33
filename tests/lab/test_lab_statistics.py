"""Statistics of contacts and presences: against figures computed by hand, and second by second for random ones."""

from __future__ import annotations

import itertools
import random
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from carrypost.arrays import Ints
from carrypost.errors import LocalError
from carrypost.lab.metrics import presence
from carrypost.lab.metrics.parts import Columns, window_us
from carrypost.lab.metrics.presence import Meetings, Stays

Meeting = tuple[str, str, float, float]
Stay = tuple[str, float, float]
STAYS: list[Stay] = [("a", 0, 100), ("b", 0, 50), ("b", 60, 100), ("c", 20, 40)]
MEETINGS: list[Meeting] = [("a", "b", 10, 30), ("a", "b", 30, 45), ("a", "c", 20, 40)]
SPREAD = ("min_s", "max_s", "avg_s", "stdev_s")


def us(seconds: Sequence[float]) -> Ints:
    return np.array([round(each * 1e6) for each in seconds], np.int64)


def met(meetings: Sequence[Meeting] = MEETINGS) -> Meetings:
    names = [pa.array([row[at] for row in meetings], pa.string()) for at in (0, 1)]
    return Meetings(names[0], names[1], us([row[2] for row in meetings]), us([row[3] for row in meetings]))


def there(stays: Sequence[Stay] = STAYS) -> Stays:
    names = pa.array([row[0] for row in stays], pa.string())
    return Stays(names, us([row[1] for row in stays]), us([row[2] for row in stays]))


def rows(columns: Columns) -> list[tuple[Any, ...]]:
    return list(zip(*(pa.array(each).to_pylist() for each in columns.values()), strict=True))


def row(columns: Columns) -> dict[str, Any]:
    ((*values,),) = rows(columns)
    return dict(zip(columns, values, strict=True))


def test_contacts_are_counted_and_their_durations_spread() -> None:
    found = row(presence.contact_summary(met()))
    assert [found[name] for name in ("contacts", "pairs", "nodes")] == [3, 2, 3]
    assert [found[name] for name in SPREAD] == pytest.approx([15.0, 20.0, 55 / 3, (50 / 9) ** 0.5])
    assert rows(presence.contact_cdf(met())) == [(15_000, 1, 1, 1 / 3), (20_000, 2, 3, 1.0)]
    assert rows(presence.inter_contact_cdf(met())) == [(0, 1, 1, 1.0)]


def test_durations_are_counted_in_milliseconds_rounded_half_to_even() -> None:
    contacts = met([("a", f"b{us}", 1.7e9, 1.7e9 + us / 1e6) for us in (500, 1_499, 1_500, 2_500)])
    assert [row[:2] for row in rows(presence.contact_cdf(contacts))] == [(0, 1), (1, 1), (2, 2)]


def test_neighbours_count_while_a_node_is_there() -> None:
    assert rows(presence.neighbours(met(), there())) == [
        (0, 120.0, 120 / 210),
        (1, 70.0, 190 / 210),
        (2, 20.0, 1.0),
    ]
    assert rows(presence.neighbours_timeline(met(), there(), 40_000_000)) == [
        (0.0, 2.5, 1.0),
        (40.0, 1.75, 10 / 70),
        (80.0, 1.0, 0.0),
    ]


def test_nobody_has_no_neighbours_and_no_contacts() -> None:
    assert rows(presence.neighbours(met([]), there([]))) == []
    assert rows(presence.neighbours_timeline(met(), there([]), 40_000_000)) == []
    assert rows(presence.contact_summary(met([]))) == rows(presence.activity_summary(there([]))) == []
    assert rows(presence.inter_contact_cdf(met([]))) == []


def test_activity_is_summed_up_by_node() -> None:
    found = row(presence.activity_summary(there()))
    assert [found[name] for name in ("nodes", "active_max")] == [3, 3]
    assert [found[name] for name in SPREAD] == pytest.approx([20.0, 100.0, 70.0, (3_800 / 3) ** 0.5])


def test_activity_is_derived_where_a_trace_tells_none() -> None:
    times = {"a": (5.0, 0.0, 15.0, 40.0, 41.0), "once": (7.0,)}
    samples = [(node, t) for node, each in times.items() for t in each]
    nodes, at = pa.array([node for node, _ in samples]), us([t for _, t in samples])
    assert rows(presence.activity(presence.stays_of_positions(nodes, at, 10_000_000))) == [
        ("a", 0.0, 15.0),
        ("a", 40.0, 41.0),
        ("once", 7.0, 7.0),
    ]
    assert min(rows(presence.activity(presence.stays_of_positions(nodes, at, None)))) == ("a", 0.0, 41.0)
    assert rows(presence.activity(presence.stays_of_contacts(met()))) == [
        ("a", 10.0, 45.0),
        ("b", 10.0, 45.0),
        ("c", 20.0, 40.0),
    ]


def test_a_window_of_no_length_is_refused() -> None:
    with pytest.raises(LocalError, match="a window must be at least 1 µs long"):
        window_us(0.0)


# -------------------------------------------------------------------------------------------- second by second
def drawn(seed: int) -> tuple[list[Meeting], list[Stay]]:
    """Return a run whose times are whole seconds, some of them long after the last node left."""
    chance = random.Random(seed)
    base = chance.choice((0, 1_700_000_000))

    def disjoint(most: int) -> list[tuple[float, float]]:
        edges = sorted(chance.sample(range(60), 2 * chance.randint(0, most)))
        late = chance.choice((0, 0, 400))
        return [(base + late + start, base + late + end) for start, end in zip(edges[::2], edges[1::2], strict=True)]

    nodes = "abcde"
    stays = [(node, *each) for node in nodes for each in disjoint(3)]
    meetings = [(a, b, *each) for a, b in itertools.combinations(nodes, 2) for each in disjoint(3)]
    return meetings, stays


def by_second(meetings: Sequence[Meeting], stays: Sequence[Stay]) -> Mapping[int, list[int]]:
    """Of each second, how many neighbours each node has that is there."""
    found: defaultdict[int, list[int]] = defaultdict(list)
    seen = Counter(
        (node, second) for a, b, start, end in meetings for second in range(int(start), int(end)) for node in (a, b)
    )
    for node, start, end in stays:
        for second in range(int(start), int(end)):
            found[second].append(seen[node, second])
    return found


@pytest.mark.parametrize("seed", range(12))
def test_random_runs_are_what_looking_at_every_second_gives(seed: int) -> None:
    meetings, stays = drawn(seed)
    contacts, activity = met(meetings), there(stays)
    seconds = by_second(meetings, stays)
    expected = Counter(count for counts in seconds.values() for count in counts)
    assert {row[0]: row[1] for row in rows(presence.neighbours(contacts, activity))} == expected
    assert row(presence.activity_summary(activity))["active_max"] == max(map(len, seconds.values()))
    for window_s in (1, 7, 1_000):
        windows = defaultdict(list)
        for second, counts in seconds.items():
            windows[second // window_s].extend(counts)
        expected_rows = []
        for number in range(min(windows), max(windows) + 1):
            counts = windows.get(number, [])
            mean = sum(counts) / len(counts) if counts else None
            expected_rows.append((float(number * window_s), len(counts) / window_s, mean))
        assert rows(presence.neighbours_timeline(contacts, activity, window_s * 1_000_000)) == expected_rows
