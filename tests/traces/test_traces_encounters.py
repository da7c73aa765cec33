"""Encounters equal the result of a slow, exact search in rational numbers, for any slabs."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from decimal import Decimal, localcontext
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from tests.support.examples import examples

from carrypost.errors import LocalError
from carrypost.traces.contacts import Contact
from carrypost.traces.encounters import Encounters, Rules
from carrypost.traces.encounters import encounters as search
from carrypost.traces.tracks import Tracks

Sample = tuple[int, float, float]
Motion = Mapping[str, Sequence[Sample]]
Interval = tuple[Fraction, Fraction]
SECOND = 1_000_000
NOISE_M = Fraction(1, 10**9)
"""Tolerance: the roots of a chord that is nearly a tangent are no more exact than their distances."""


def encounters(tracks: Tracks, range_m: float, *, slab_us: int | None = None, **rules: int | None) -> Encounters:
    return search(tracks, Rules(range_m=range_m, **rules), slab_us=slab_us)  # type: ignore[arg-type]


# ----------------------------------------------------------------------------------- the slow, exact search
def slow_search(
    motion: Motion, range_m: Fraction, max_gap_us: int | None = None
) -> dict[tuple[str, str], list[Interval]]:
    found = {}
    for a, b in itertools.combinations(motion, 2):
        pieces: list[Interval] = []
        for one in lines(motion[a], max_gap_us):
            for two in lines(motion[b], max_gap_us):
                pieces.extend(meeting(one, two, range_m))
        joined: list[Interval] = []
        for start, end in sorted(pieces):
            if joined and start <= joined[-1][1]:
                joined[-1] = (joined[-1][0], max(end, joined[-1][1]))
            else:
                joined.append((start, end))
        found[a, b] = [(start, end) for start, end in joined if end > start]
    return found


def lines(samples: Sequence[Sample], max_gap_us: int | None) -> list[tuple[Sample, Sample]]:
    return [
        (one, two) for one, two in itertools.pairwise(samples) if max_gap_us is None or two[0] - one[0] <= max_gap_us
    ]


def meeting(one: tuple[Sample, Sample], two: tuple[Sample, Sample], range_m: Fraction) -> list[Interval]:
    since, until = max(one[0][0], two[0][0]), min(one[1][0], two[1][0])
    if since >= until:
        return []
    (px, py), (qx, qy) = (apart(one, two, t) for t in (since, until))
    vx, vy = qx - px, qy - py
    a, b, c = vx * vx + vy * vy, px * vx + py * vy, px * px + py * py - range_m * range_m
    if a == 0:
        return [(Fraction(since), Fraction(until))] if c <= 0 else []
    if b * b - a * c < 0:
        return []
    root = square_root(b * b - a * c)
    low, high = max((-b - root) / a, Fraction(0)), min((-b + root) / a, Fraction(1))
    # At the ends no root is needed, and none may blur them.
    low = Fraction(0) if c <= 0 else low
    high = Fraction(1) if qx * qx + qy * qy <= range_m * range_m else high
    return [(since + low * (until - since), since + high * (until - since))] if low <= high else []


def apart(one: tuple[Sample, Sample], two: tuple[Sample, Sample], t: int) -> tuple[Fraction, Fraction]:
    (ax, ay), (bx, by) = (
        tuple(
            Fraction(line[0][axis])
            + (Fraction(line[1][axis]) - Fraction(line[0][axis])) * Fraction(t - line[0][0], line[1][0] - line[0][0])
            for axis in (1, 2)
        )
        for line in (one, two)
    )
    return bx - ax, by - ay


def square_root(value: Fraction) -> Fraction:
    with localcontext() as context:
        context.prec = 60
        return Fraction((Decimal(value.numerator) / Decimal(value.denominator)).sqrt())


def joined_over_a_microsecond(intervals: Sequence[Interval]) -> list[Interval]:
    """Rounded to whole microseconds, a gap that is no longer may vanish."""
    found: list[Interval] = []
    for start, end in intervals:
        if found and start - found[-1][1] <= 1:
            found[-1] = (found[-1][0], end)
        else:
            found.append((start, end))
    return found


def covered(inner: Interval, outer: Sequence[Interval]) -> bool:
    return any(start - 1 <= inner[0] and inner[1] <= end + 1 for start, end in outer)


# -------------------------------------------------------------------------------------------------- motions
steps = st.sampled_from([1, 3, 250_000, SECOND, 1_234_567, 10 * SECOND, 31_415_926])
places = st.integers(-12, 12).map(float) | st.integers(-48, 48).map(lambda quarter: quarter / 4) | st.floats(-12, 12)


@st.composite
def motions(draw: st.DrawFn) -> dict[str, list[Sample]]:
    found: dict[str, list[Sample]] = {}
    for index in range(draw(st.integers(2, 4))):
        t_us = draw(st.sampled_from([0, SECOND, 777_777, 5 * SECOND]))
        samples = []
        place = (draw(places), draw(places))
        for _ in range(draw(st.integers(1, 7))):
            samples.append((t_us, *place))
            t_us += draw(steps)
            if draw(st.booleans()):
                place = (draw(places), draw(places))
        found[f"n{index}"] = samples
    return found


def by_pair(contacts: Sequence[Contact]) -> dict[tuple[str, str], list[Interval]]:
    found: dict[tuple[str, str], list[Interval]] = {}
    for contact in contacts:
        found.setdefault((contact.a, contact.b), []).append((Fraction(contact.start_us), Fraction(contact.end_us)))
    return found


def both_move(one: Sequence[Sample], two: Sequence[Sample]) -> dict[str, list[Sample]]:
    return {"n0": list(one), "n1": list(two)}


@given(
    motion=motions(),
    range_m=st.sampled_from([0.25, 1.0, 5.0, 7.3, 13.0]),
    max_gap_us=st.sampled_from([None, None, 5 * SECOND, SECOND]),
)
@example(  # crossing at right angles, clocks not aligned
    motion=both_move([(0, -10, 0), (10 * SECOND, 10, 0)], [(777_777, 0, -9), (9_999_999, 0, 9)]),
    range_m=5.0,
    max_gap_us=None,
)
@example(  # passing by at exactly the range
    motion=both_move([(0, -12, 0), (3, -11.5, 0), (24 * SECOND, 12, 0)], [(1, 0, 5), (31_415_926, 0, 5)]),
    range_m=5.0,
    max_gap_us=None,
)
@example(  # side by side, at exactly the range
    motion=both_move([(0, 0, 0), (7, 7, 7)], [(1, 4, -2), (8, 11, 5)]), range_m=5.0, max_gap_us=None
)
@example(  # in and out again at the instant of a sample
    motion=both_move([(0, 9, 0), (SECOND, 5, 0), (2 * SECOND, 9, 0)], [(0, 0, 0), (31_415_926, 0, 0)]),
    range_m=5.0,
    max_gap_us=None,
)
@example(  # away for less than a microsecond
    motion=both_move([(0, 0, 0), (2, 0, 0)], [(0, 0, 0), (1, 0, 6), (2, 0, 0)]), range_m=5.0, max_gap_us=None
)
@examples(60)
def test_encounters_are_those_of_the_exact_search_within_a_microsecond(
    motion: dict[str, list[Sample]], range_m: float, max_gap_us: int | None
) -> None:
    found = by_pair(encounters(Tracks.of(motion), range_m, max_gap_us=max_gap_us).contacts())
    surely = slow_search(motion, Fraction(range_m) - NOISE_M, max_gap_us)
    perhaps = slow_search(motion, Fraction(range_m) + NOISE_M, max_gap_us)
    for pair, intervals in surely.items():
        for interval in intervals:
            if interval[1] - interval[0] > 1:
                assert covered(interval, found.get(pair, ())), (pair, interval)
    for pair, intervals in found.items():
        for interval in intervals:
            assert covered(interval, joined_over_a_microsecond(perhaps[pair])), (pair, interval)


@given(
    motion=motions(),
    range_m=st.sampled_from([0.25, 5.0, 7.3, 13.0]),
    slabs_us=st.lists(st.integers(50_003, 200 * SECOND), min_size=3, max_size=3),
)
@examples(25)
def test_the_result_does_not_depend_on_the_slab(
    motion: dict[str, list[Sample]], range_m: float, slabs_us: list[int]
) -> None:
    tracks = Tracks.of(motion)
    expected = encounters(tracks, range_m).contacts()
    for slab_us in slabs_us:
        assert encounters(tracks, range_m, slab_us=slab_us).contacts() == expected


def test_a_crowd_has_the_same_encounters_with_every_slab_and_without_a_grid() -> None:
    tracks = crowd(nodes=30, side_m=180.0)
    found = encounters(tracks, 20.0)
    assert len(found) > 100
    for slab_us in (700_001, 13 * SECOND, 10_000 * SECOND):
        assert encounters(tracks, 20.0, slab_us=slab_us).contacts() == found.contacts()
    alone = [
        contact
        for a, b in itertools.combinations(range(len(tracks.nodes)), 2)
        for contact in encounters(only(tracks, a, b), 20.0).contacts()
    ]
    assert sorted(alone) == sorted(found.contacts())


def crowd(nodes: int, side_m: float) -> Tracks:
    """Walkers and some that are very fast, with clocks of their own."""
    rng = np.random.Generator(np.random.PCG64(7))
    motion = {}
    for index in range(nodes):
        t_us = rng.integers(0, 20 * SECOND)
        samples = []
        for _ in range(25):
            samples.append((int(t_us), rng.uniform(0, side_m), rng.uniform(0, side_m)))
            t_us += rng.integers(1, 3 * SECOND) if index % 5 == 0 else rng.integers(SECOND, 200 * SECOND)
        motion[f"n{index:02}"] = samples
    return Tracks.of(motion)


def only(tracks: Tracks, *indices: int) -> Tracks:
    kept = np.isin(tracks.node, indices)
    return Tracks(tracks.nodes, tracks.node[kept], tracks.t_us[kept], tracks.x[kept], tracks.y[kept])


# -------------------------------------------------------------------------------------------- named cases
STANDS = [(0, 0.0, 0.0), (100 * SECOND, 0.0, 0.0)]


@pytest.mark.parametrize(
    ("other", "expected"),
    [
        pytest.param([(0, -20, 3), (40 * SECOND, 20, 3)], [(16 * SECOND, 24 * SECOND)], id="a chord"),
        pytest.param([(0, -20, 5), (40 * SECOND, 20, 5)], [], id="a touch of no length"),
        pytest.param([(0, 3, 4), (40 * SECOND, 3, 4)], [(0, 40 * SECOND)], id="standing at exactly the range"),
        pytest.param([(0, 3, 4.000001), (40 * SECOND, 3, 4.000001)], [], id="standing just beyond"),
        pytest.param([(10, 0, 0)], [], id="one sample"),
        pytest.param([(0, 10, 0), (10 * SECOND, 5, 0)], [], id="arriving at the range and gone"),
        pytest.param(
            [(0, 10, 0), (10 * SECOND, 5, 0), (20 * SECOND, 5, 0)],
            [(10 * SECOND, 20 * SECOND)],
            id="arriving at the range and staying",
        ),
        pytest.param(
            [(0, 0, 0), (5 * SECOND, 5, 0), (10 * SECOND, 0, 0)],
            [(0, 10 * SECOND)],
            id="out to the range and back is one contact",
        ),
        pytest.param(
            [(0, 0, 0), (10 * SECOND, 10, 0), (20 * SECOND, 0, 0)],
            [(0, 5 * SECOND), (15 * SECOND, 20 * SECOND)],
            id="beyond the range and back is two",
        ),
        pytest.param([(0, -1e6, 3), (2 * SECOND, 1e6, 3)], [(SECOND - 4, SECOND + 4)], id="very fast"),
        pytest.param([(99 * SECOND, 1, 1), (200 * SECOND, 1, 1)], [(99 * SECOND, 100 * SECOND)], id="the other ends"),
        pytest.param([(100 * SECOND, 1, 1), (200 * SECOND, 1, 1)], [], id="one ends as the other begins"),
    ],
)
def test_two_nodes_meet(other: list[Sample], expected: list[tuple[int, int]]) -> None:
    found = encounters(Tracks.of({"a": STANDS, "b": other}), 5.0)
    assert [(contact.start_us, contact.end_us) for contact in found.contacts()] == expected


def test_samples_further_apart_than_the_gap_are_not_joined() -> None:
    tracks = Tracks.of({"a": STANDS, "b": [(0, 1, 1), (SECOND, 1, 1), (11 * SECOND, 1, 1), (12 * SECOND, 1, 1)]})
    assert encounters(tracks, 5.0, max_gap_us=10 * SECOND).contacts() == []
    tracks = Tracks.of({"a": [(0, 0, 0), (10 * SECOND, 0, 0), (20 * SECOND, 0, 0)], "b": list(tracks_of_b())})
    assert encounters(tracks, 5.0, max_gap_us=10 * SECOND).contacts() == [
        Contact("a", "b", 0, SECOND),
        Contact("a", "b", 12 * SECOND, 13 * SECOND),
    ]


def tracks_of_b() -> list[Sample]:
    return [(0, 1, 1), (SECOND, 1, 1), (12 * SECOND, 1, 1), (13 * SECOND, 1, 1)]


def test_contacts_are_merged_over_gaps_before_short_ones_are_left_out() -> None:
    there_and_back: list[Sample] = [
        (0, 0, 0), (10 * SECOND, 10, 0), (20 * SECOND, 0, 0), (30 * SECOND, 10, 0), (60 * SECOND, 10, 0)
    ]  # fmt: skip
    tracks = Tracks.of({"a": STANDS, "b": there_and_back})
    apart = [Contact("a", "b", 0, 5 * SECOND), Contact("a", "b", 15 * SECOND, 25 * SECOND)]
    assert encounters(tracks, 5.0).contacts() == apart
    assert encounters(tracks, 5.0, merge_gap_us=10 * SECOND - 1).contacts() == apart
    assert encounters(tracks, 5.0, merge_gap_us=10 * SECOND).contacts() == [Contact("a", "b", 0, 25 * SECOND)]
    assert encounters(tracks, 5.0, min_duration_us=5 * SECOND).contacts() == apart
    assert encounters(tracks, 5.0, min_duration_us=5 * SECOND + 1).contacts() == apart[1:]
    merged = encounters(tracks, 5.0, merge_gap_us=10 * SECOND, min_duration_us=25 * SECOND)
    assert merged.contacts() == [Contact("a", "b", 0, 25 * SECOND)]


def test_contacts_name_the_lower_node_first_whatever_the_order_of_the_tracks() -> None:
    tracks = Tracks.of({"z": STANDS, "a": STANDS, "m": STANDS})
    found = [(contact.a, contact.b) for contact in encounters(tracks, 5.0).contacts()]
    assert found == [("a", "m"), ("a", "z"), ("m", "z")]


def test_nobody_meets_where_there_is_no_motion() -> None:
    assert len(encounters(Tracks.of({}), 5.0)) == 0
    assert encounters(Tracks.of({"a": [], "b": [(0, 0, 0)]}), 5.0).contacts() == []


@pytest.mark.parametrize("range_m", [0.0, -1.0, float("nan"), float("inf")])
def test_a_range_that_is_none_is_refused(range_m: float) -> None:
    with pytest.raises(LocalError, match="the range must be"):
        encounters(Tracks.of({"a": STANDS}), range_m)


# --------------------------------------------------------------------------------------------------- tracks
def test_samples_of_one_instant_at_one_place_are_one_sample() -> None:
    tracks = Tracks.of({"a": [(0, 0, 0), (5, 1, 1), (5, 1.0001, 1), (9, 2, 2)]})
    assert tracks.t_us.tolist() == [0, 5, 9]


@pytest.mark.parametrize(
    ("samples", "message"),
    [
        ([(0, 0, 0), (0, 9, 0)], "node a is in two places 9 m apart at 0.000000 s"),
        ([(5, 0, 0), (4, 9, 0)], "node a at 0.000004 s: samples must be sorted"),
        ([(5, 0, float("nan"))], "node a at 0.000005 s: y = nan m is not within"),
        ([(5, 1e9, 0)], "node a at 0.000005 s: x = 1000000000.0 m is not within 100,000,000 m"),
    ],
)
def test_samples_that_are_no_track_are_refused(samples: list[Sample], message: str) -> None:
    with pytest.raises(LocalError, match=message):
        Tracks.of({"a": samples})
