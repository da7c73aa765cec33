"""What contacts and presences tell: against figures reckoned by hand, and second by second for random ones."""

from __future__ import annotations

import itertools
import random
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

from carrypost.errors import LocalError
from carrypost.lab.metrics import statistics
from carrypost.lab.metrics.families import ACTIVITY
from carrypost.lab.schemas import POSITIONS

Meeting = tuple[str, str, str, float, float]
Stay = tuple[str, str, float, float]
CONTACT_DDL = "run string, a string, b string, start double, end double"
STAYS: list[Stay] = [("hand", "a", 0, 100), ("hand", "b", 0, 50), ("hand", "b", 60, 100), ("hand", "c", 20, 40)]
MEETINGS: list[Meeting] = [("hand", "a", "b", 10, 30), ("hand", "a", "b", 30, 45), ("hand", "a", "c", 20, 40)]
SPREAD = ("min_s", "max_s", "avg_s", "stdev_s")


def frames(
    spark: SparkSession, meetings: Sequence[Meeting] = MEETINGS, stays: Sequence[Stay] = STAYS
) -> tuple[DataFrame, DataFrame]:
    contacts = [(run, a, b, float(start), float(end)) for run, a, b, start, end in meetings]
    activity = [(run, node, float(start), float(end)) for run, node, start, end in stays]
    return spark.createDataFrame(contacts, CONTACT_DDL), spark.createDataFrame(activity, ACTIVITY.ddl)


def rows(frame: DataFrame) -> list[tuple[Any, ...]]:
    return [tuple(row.values()) for row in frame.toArrow().to_pylist()]


def test_contacts_are_counted_and_their_durations_spread(spark: SparkSession) -> None:
    contacts, _ = frames(spark)
    (found,) = statistics.contact_summary(contacts).toArrow().to_pylist()
    assert [found[name] for name in ("run", "contacts", "pairs", "nodes")] == ["hand", 3, 2, 3]
    assert [found[name] for name in SPREAD] == pytest.approx([15.0, 20.0, 55 / 3, (50 / 9) ** 0.5])
    assert rows(statistics.contact_cdf(contacts)) == [("hand", 15_000, 1, 1, 1 / 3), ("hand", 20_000, 2, 3, 1.0)]
    assert rows(statistics.inter_contact_cdf(contacts)) == [("hand", 0, 1, 1, 1.0)]


def test_durations_are_counted_in_milliseconds_rounded_half_to_even(spark: SparkSession) -> None:
    contacts, _ = frames(spark, [("r", "a", f"b{us}", 1.7e9, 1.7e9 + us / 1e6) for us in (500, 1_499, 1_500, 2_500)])
    assert [row[1:3] for row in rows(statistics.contact_cdf(contacts))] == [(0, 1), (1, 1), (2, 2)]


def test_neighbours_count_while_a_node_is_there(spark: SparkSession) -> None:
    contacts, activity = frames(spark)
    assert rows(statistics.neighbours(contacts, activity)) == [
        ("hand", 0, 120.0, 120 / 210),
        ("hand", 1, 70.0, 190 / 210),
        ("hand", 2, 20.0, 1.0),
    ]
    assert rows(statistics.neighbours_timeline(contacts, activity, 40)) == [
        ("hand", 0.0, 2.5, 1.0),
        ("hand", 40.0, 1.75, 10 / 70),
        ("hand", 80.0, 1.0, 0.0),
    ]


def test_activity_is_summed_up_by_node(spark: SparkSession) -> None:
    _, activity = frames(spark)
    (found,) = statistics.activity_summary(activity).toArrow().to_pylist()
    assert [found[name] for name in ("run", "nodes", "active_max")] == ["hand", 3, 3]
    assert [found[name] for name in SPREAD] == pytest.approx([20.0, 100.0, 70.0, (3_800 / 3) ** 0.5])


def test_activity_is_derived_where_a_trace_tells_none(spark: SparkSession) -> None:
    times = {"a": (5.0, 0.0, 15.0, 40.0, 41.0), "once": (7.0,)}
    samples = [("s", node, t, 0.0, 0.0) for node, each in times.items() for t in each]
    positions = spark.createDataFrame(samples, POSITIONS.ddl)
    assert sorted(rows(statistics.activity_of_positions(positions, 10_000_000))) == [
        ("s", "a", 0.0, 15.0),
        ("s", "a", 40.0, 41.0),
        ("s", "once", 7.0, 7.0),
    ]
    assert min(rows(statistics.activity_of_positions(positions, None))) == ("s", "a", 0.0, 41.0)
    contacts, _ = frames(spark)
    assert sorted(rows(statistics.activity_of_contacts(contacts))) == [
        ("hand", "a", 10.0, 45.0),
        ("hand", "b", 10.0, 45.0),
        ("hand", "c", 20.0, 40.0),
    ]


def test_a_window_of_no_length_is_refused(spark: SparkSession) -> None:
    with pytest.raises(LocalError, match="a window must be at least 1 µs long"):
        statistics.neighbours_timeline(*frames(spark), 0.0)


# -------------------------------------------------------------------------------------------- second by second
def drawn(seed: int) -> tuple[list[Meeting], list[Stay]]:
    """A run whose times are whole seconds, some of them long after nobody was there."""
    chance = random.Random(seed)
    run, base = f"run{seed}", chance.choice((0, 1_700_000_000))

    def disjoint(most: int) -> list[tuple[float, float]]:
        edges = sorted(chance.sample(range(60), 2 * chance.randint(0, most)))
        late = chance.choice((0, 0, 400))
        return [(base + late + start, base + late + end) for start, end in zip(edges[::2], edges[1::2], strict=True)]

    nodes = "abcde"
    stays = [(run, node, *each) for node in nodes for each in disjoint(3)]
    meetings = [(run, a, b, *each) for a, b in itertools.combinations(nodes, 2) for each in disjoint(3)]
    return meetings, stays


def by_second(meetings: Sequence[Meeting], stays: Sequence[Stay]) -> Mapping[tuple[str, int], list[int]]:
    """Of each second of a run, how many neighbours each node has that is there."""
    found: defaultdict[tuple[str, int], list[int]] = defaultdict(list)
    met = Counter(
        (run, node, second)
        for run, a, b, start, end in meetings
        for second in range(int(start), int(end))
        for node in (a, b)
    )
    for run, node, start, end in stays:
        for second in range(int(start), int(end)):
            found[run, second].append(met[run, node, second])
    return found


def test_random_runs_are_what_looking_at_every_second_gives(spark: SparkSession) -> None:
    made = [drawn(seed) for seed in range(12)]
    meetings = [row for each, _ in made for row in each]
    stays = [row for _, each in made for row in each]
    contacts, activity = frames(spark, meetings, stays)
    seconds = by_second(meetings, stays)
    expected = Counter((run, count) for (run, _), counts in seconds.items() for count in counts)
    assert {row[:2]: row[2] for row in rows(statistics.neighbours(contacts, activity))} == expected
    most = {row["run"]: row["active_max"] for row in statistics.activity_summary(activity).toArrow().to_pylist()}
    assert most == {run: max(len(v) for (r, _), v in seconds.items() if r == run) for run in {r for r, _ in seconds}}
    for window_s in (1, 7, 1_000):
        windows = defaultdict(list)
        for (run, second), counts in seconds.items():
            windows[run, second // window_s].extend(counts)
        found = rows(statistics.neighbours_timeline(contacts, activity, window_s))
        expected_rows = []
        for run in sorted({run for run, _ in windows}):
            numbers = [number for of, number in windows if of == run]
            for number in range(min(numbers), max(numbers) + 1):
                counts = windows.get((run, number), [])
                mean = sum(counts) / len(counts) if counts else None
                expected_rows.append((run, float(number * window_s), len(counts) / window_s, mean))
        assert found == expected_rows
