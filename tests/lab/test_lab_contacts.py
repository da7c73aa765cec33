"""Contacts out of tables of positions, in this process: exact, and bad tables are refused in a sentence."""

from __future__ import annotations

import itertools
import random
from fractions import Fraction
from pathlib import Path

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from tests.support.examples import examples
from tests.traces.test_traces_encounters import (
    NOISE_M,
    SECOND,
    Interval,
    Sample,
    both_move,
    covered,
    joined_over_a_microsecond,
    motions,
    slow_search,
)

from carrypost.cli.app import run
from carrypost.errors import LocalError
from carrypost.lab import folders
from carrypost.lab.contacts.search import SAMPLES, SampleSpan, Search, SlabPlan, found_here, planned
from carrypost.lab.schemas import CONTACTS, POSITIONS
from carrypost.traces.encounters import Rules, TimeWindow

Row = tuple[str, str, float, float, float]


def positions(rows: list[Row]) -> pa.Table:
    return pa.table(dict(zip(POSITIONS.names, zip(*rows, strict=True), strict=True)) if rows else {}, POSITIONS.arrow)


def table(motion: dict[str, list[Sample]], seed: int, scenario: str = "made") -> pa.Table:
    """Samples in any order; times that lie far from 0."""
    rows = [(scenario, node, t_us / 1e6, x, y) for node, samples in motion.items() for t_us, x, y in samples]
    random.Random(seed).shuffle(rows)
    return positions(rows)


def intervals(found: pa.Table) -> dict[tuple[str, str], list[Interval]]:
    by_pair: dict[tuple[str, str], list[Interval]] = {}
    for row in found.to_pylist():
        exact = tuple(Fraction(round(row[name] * 1e6)) for name in ("start", "end"))
        by_pair.setdefault((row["a"], row["b"]), []).append((exact[0], exact[1]))
    return by_pair


@given(
    motion=motions(),
    range_m=st.sampled_from([0.25, 5.0, 7.3, 13.0]),
    max_gap_us=st.none() | st.sampled_from([2 * SECOND, 10 * SECOND]),
    seed=st.integers(0, 9),
)
@example(  # touching at exactly the range, for no time and for a while
    motion=both_move([(0, -20, 5), (40 * SECOND, 20, 5)], [(0, 0, 0), (40 * SECOND, 0, 0)]),
    range_m=5.0,
    max_gap_us=None,
    seed=1,
)
@example(  # parallel, at exactly the range, by clocks of their own
    motion=both_move([(0, 0, 0), (SECOND, 1, 0), (9 * SECOND, 9, 0)], [(3, 3e-6, 5), (7 * SECOND + 3, 7 + 3e-6, 5)]),
    range_m=5.0,
    max_gap_us=None,
    seed=2,
)
@example(  # a gap, and a track of one sample within it
    motion=both_move([(0, 0, 0), (SECOND, 0, 0), (99 * SECOND, 0, 0)], [(50 * SECOND, 0, 0)]),
    range_m=5.0,
    max_gap_us=10 * SECOND,
    seed=3,
)
@examples(40)
def test_contacts_are_those_of_the_exact_search_within_a_microsecond(
    motion: dict[str, list[Sample]], range_m: float, max_gap_us: int | None, seed: int
) -> None:
    found = intervals(found_here(table(motion, seed), Rules(range_m=range_m, max_gap_us=max_gap_us)))
    surely = slow_search(motion, Fraction(range_m) - NOISE_M, max_gap_us)
    perhaps = slow_search(motion, Fraction(range_m) + NOISE_M, max_gap_us)
    for pair, exact in surely.items():
        for interval in exact:
            if interval[1] - interval[0] > 1:
                assert covered(interval, found.get(pair, ())), (pair, interval)
    for pair, mine in found.items():
        for interval in mine:
            assert covered(interval, joined_over_a_microsecond(perhaps[pair])), (pair, interval)


def test_contacts_are_sorted_and_name_the_lower_node_first() -> None:
    rows = [("s", node, t, 0.0, 0.0) for node in ("ö", "Z", "a", "n10", "n9") for t in (0.0, 9.0)]
    found = found_here(positions(rows[::-1]), Rules(range_m=1.0))
    pairs = [(row["a"], row["b"]) for row in found.to_pylist()]
    assert pairs == sorted((a, b) for a in ("Z", "a", "n10", "n9", "ö") for b in ("Z", "a", "n10", "n9", "ö") if a < b)


def test_scenarios_are_searched_each_on_its_own() -> None:
    rows = [(scenario, node, t, 0.0, 0.0) for scenario in ("two", "one") for node in ("a", "b") for t in (0.0, 9.0)]
    rows += [("three", "c", t, 0.0, 0.0) for t in (0.0, 9.0)]
    found = found_here(positions(rows), Rules(range_m=1.0)).to_pylist()
    assert [(row["scenario"], row["start"], row["end"]) for row in found] == [("one", 0.0, 9.0), ("two", 0.0, 9.0)]


def test_a_sample_that_is_there_twice_counts_once() -> None:
    rows: list[Row] = [("s", "a", 0.0, 0.0, 0.0), ("s", "a", 5.0, 1.0, 0.0), ("s", "b", 0.0, 0.0, 0.0)]
    rows += [("s", "b", 5.0, 0.0, 0.0), ("s", "a", 5.0 + 1e-8, 1.0 + 1e-7, 0.0)]
    once = found_here(positions(rows[:-1]), Rules(range_m=0.5))
    for order in range(5):
        mixed = rows[:]
        random.Random(order).shuffle(mixed)
        assert found_here(positions(mixed + mixed), Rules(range_m=0.5)).equals(once)


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        (
            [("s", "a", 1.0, 0.0, 0.0), ("s", "a", 1.0, 9.0, 0.0)],
            "node a is in two places 9 m apart at 1.000000 s; are",
        ),
        ([("s", "a", 1.0, float("nan"), 0.0)], "node a at 1.000000 s: x = nan m is not within"),
        ([("s", "a", float("nan"), 0.0, 0.0)], "node a of s has a sample whose t is missing"),
        ([("s", "a", float("-inf"), 0.0, 0.0)], "node a of s has a sample whose t is missing"),
        (
            [("s", "a", 1e12, 0.0, 0.0)],
            "node a of s has a sample whose t is missing, or is not a number of seconds within",
        ),
    ],
)
def test_positions_that_cannot_be_are_refused(rows: list[Row], message: str) -> None:
    with pytest.raises(LocalError, match=message):
        found_here(positions(rows), Rules(range_m=5.0))


# ----------------------------------------------------------------------------------------------------------- slabs
@given(
    lives=st.lists(
        st.tuples(st.sampled_from("rs"), st.integers(1, 10**6), st.integers(-(10**9), 10**12), st.integers(0, 10**11)),
        min_size=1,
        max_size=30,
    ),
    slab_us=st.none() | st.integers(10**8, 10**12),
)
@example(lives=[("r", 1, 5_975_606_664, 0), ("r", 3, 0, 113), ("r", 524_288, 0, 0)], slab_us=None)
def test_every_sample_is_in_one_slab_of_its_scenario(
    lives: list[tuple[str, int, int, int]], slab_us: int | None
) -> None:
    nodes = [
        SampleSpan(scenario, f"n{index}", count, first, first + (span if count > 1 else 0))
        for index, (scenario, count, first, span) in enumerate(lives)
    ]
    plan = planned(nodes, slab_us)
    for life in nodes:
        for t_us in (life.first_us, life.last_us):
            scenario, window = plan.slabs[slab_of(plan, life.scenario, t_us)]
            assert scenario == life.scenario
            assert window.start_us <= t_us < window.end_us
    for (one, before), (two, after) in zip(plan.slabs, plan.slabs[1:], strict=False):
        assert one != two or before.end_us == after.start_us


def slab_of(plan: SlabPlan, scenario: str, t_us: int) -> int:
    (cells,) = (each for each in plan.cells if each.scenario == scenario)
    return plan.slab_of[cells.first + (t_us - cells.start_us) // cells.cell_us]


def test_slabs_have_about_as_many_samples_each() -> None:
    rng = np.random.Generator(np.random.PCG64(5))
    first = np.sort(rng.integers(0, 10**10, 4_000)) // 2
    nodes = [SampleSpan("s", f"n{index}", 1_000, int(t_us), int(t_us) + 10**9) for index, t_us in enumerate(first)]
    plan = planned(nodes)
    assert len(plan.slabs) == 17
    middles = np.concatenate([first + 10**9 * step // 1_000 for step in range(1_000)])
    starts = [window.start_us for _, window in plan.slabs]
    counts = np.bincount(np.searchsorted(starts, middles, side="right") - 1)
    assert counts.max() < 1.5 * counts.mean()


@given(motion=motions(), edges_us=st.lists(st.integers(-SECOND, 60 * SECOND), max_size=5, unique=True))
@example(  # in range at the very edges
    motion=both_move([(0, 0, 0), (9 * SECOND, 0, 0)], [(0, 9, 0), (4 * SECOND, 5, 0), (9 * SECOND, 5, 0)]),
    edges_us=[4 * SECOND - 1, 4 * SECOND, 4 * SECOND + 1, 9 * SECOND],
)
@examples(25)
def test_what_is_found_slab_by_slab_is_the_whole_cut_at_their_edges(
    motion: dict[str, list[Sample]], edges_us: list[int]
) -> None:
    rules = Rules(range_m=5.0, max_gap_us=10 * SECOND)
    edges = [-(10**9), *sorted(edges_us), 10**9]
    windows = tuple(("made", TimeWindow(*each)) for each in itertools.pairwise(edges))
    sent = [
        (slab, code, t_us, float(x), float(y))
        for slab in range(len(windows))
        for code, node in enumerate(sorted(motion))
        for t_us, x, y in motion[node]
    ]
    columns = zip(*sent, strict=True)
    batch = pa.RecordBatch.from_arrays([pa.array(each) for each in columns], names=list(SAMPLES))
    parts = [row for found in Search(tuple(sorted(motion)), windows, rules)([batch]) for row in found.to_pylist()]
    whole = found_here(table(motion, 1), rules).to_pylist()
    expected = []
    for row in whole:
        for start, end in itertools.pairwise(edges):
            low, high = max(start, round(row["start"] * 1e6)), min(end, round(row["end"] * 1e6))
            if low < high:
                expected.append((row["a"], row["b"], low, high))
    assert sorted((row["a"], row["b"], row["start_us"], row["end_us"]) for row in parts) == sorted(expected)


# --------------------------------------------------------------------------------------------------------- command
def trace(folder: Path) -> Path:
    rows: list[Row] = [("s", "a", 0.0, 0.0, 0.0), ("s", "a", 40.0, 0.0, 0.0)]
    rows += [("s", "b", 0.0, -20.0, 3.0), ("s", "b", 40.0, 20.0, 3.0)]
    folders.write_arrow(positions(rows), folder, POSITIONS)
    return folder


def test_the_command_writes_contacts_and_tells_how_many(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = trace(tmp_path)
    order = ["lab", "contacts", str(folder), "--range-m", "5", "--engine", "local", "--out", str(folder)]
    assert run([*order, "--json"]) == 0
    told = msgspec.json.decode(capsys.readouterr().out)
    expected = {"contacts": 1, "pairs": 1, "nodes": 2, "min_s": 8.0, "max_s": 8.0, "avg_s": 8.0, "stdev_s": 0.0}
    assert told == {"scenario": "s", **expected}
    rows = folders.read_arrow(folder, CONTACTS).to_pylist()
    assert rows == [{"scenario": "s", "a": "a", "b": "b", "start": 16.0, "end": 24.0}]
    noted = folders.manifest(folder)["contacts"]
    assert noted["parameters"] == {"range_m": 5.0, "max_gap_s": 600.0, "merge_gap_s": 0.0, "min_duration_s": 0.0}
    assert (noted["samples"], noted["rows"], noted["engine"]) == (4, 1, "local")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--range-m", "0"], "the range must be a number of metres above 0"),
        (["--range-m", "5", "--max-gap-s", "-1"], "--max-gap-s must be a number of seconds, above 0"),
        (["--range-m", "5", "--max-gap-s", "0"], "--max-gap-s must be a number of seconds, above 0"),
        (["--range-m", "5", "--merge-gap-s", "nan"], "--merge-gap-s must be a number of seconds"),
        (["--range-m", "5", "--master", "mars"], "--master must be such as local"),
    ],
)
def test_options_that_make_no_sense_are_refused(
    options: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = trace(tmp_path)
    assert run(["lab", "contacts", str(folder), "--out", str(tmp_path / "out"), *options]) == 2
    assert message in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_files_that_are_no_positions_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    other, broken = tmp_path / "other.parquet", tmp_path / "broken.parquet"
    pq.write_table(pa.table({"node": ["a"]}), other)
    broken.write_bytes(b"PAR1 and no more")
    for path, message, code in (
        (other, "has no column 'scenario'", 2),
        (broken, "cannot be read as a Parquet file", 1),
        (tmp_path / "none", "there is no such file or folder", 2),
    ):
        assert run(["lab", "contacts", str(path), "--range-m", "5", "--out", str(tmp_path / "out")]) == code
        assert message in capsys.readouterr().err
    assert not (tmp_path / "out").exists()
