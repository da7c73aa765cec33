"""Models of movement: their draws, values that stay the same, and the shipped walkers beside the paper's."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from itertools import combinations, pairwise
from statistics import fmean, pvariance
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.examples import examples

from carrypost.emu.scenario import Scenario
from carrypost.errors import ConfigError
from carrypost.mobility.community import Community
from carrypost.mobility.streets import Streets
from carrypost.mobility.waypoint import RandomWaypoint
from carrypost.traces.encounters import Rules, encounters
from carrypost.traces.tracks import Movement
from tools import calibration

SECOND = 1_000_000
MINUTE = 60 * SECOND
HOUR = 60 * MINUTE
Path = list[tuple[int, float, float]]
Model = RandomWaypoint | Community | Streets

MODELS: list[Model] = [RandomWaypoint(count=20), Community(), Streets()]


def paths(movement: Movement) -> dict[str, Path]:
    """Each node's samples."""
    tracks = movement.tracks
    found: dict[str, Path] = {node: [] for node in tracks.nodes}
    for node, *sample in zip(
        tracks.node.tolist(), tracks.t_us.tolist(), tracks.x.tolist(), tracks.y.tolist(), strict=True
    ):
        found[tracks.nodes[node]].append((sample[0], sample[1], sample[2]))
    return found


def legs(path: Path) -> Iterator[tuple[float, float]]:
    """Length in metres and duration in seconds of each piece of a path on which the node moves."""
    for (t0, *here), (t1, *there) in pairwise(path):
        if here != there:
            yield math.dist(here, there), (t1 - t0) / SECOND


def place(path: Path, t_us: int) -> tuple[float, float]:
    t, x, y = zip(*path, strict=True)
    return float(np.interp(t_us, t, x)), float(np.interp(t_us, t, y))


# --- all of them ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("model", MODELS)
def test_same_seed_gives_the_same_movement_and_another_seed_another(model: Model) -> None:
    first, again, other = (model.move(seed, 10 * MINUTE) for seed in (1, 1, 2))
    assert paths(first) == paths(again)
    assert first.presences == again.presences
    assert paths(first) != paths(other)


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("duration_us", [1, 7 * SECOND, 10 * MINUTE])
def test_tracks_cover_presences_and_nothing_else(model: Model, duration_us: int) -> None:
    movement = model.move(3, duration_us)
    found = paths(movement)
    assert list(found) == [presence.node for presence in movement.presences]
    for node, join_us, leave_us in movement.presences:
        end_us = duration_us if leave_us is None else leave_us
        assert (found[node][0][0], found[node][-1][0]) == (join_us, end_us)
        assert 0 <= join_us < end_us <= duration_us


@pytest.mark.parametrize("model", [RandomWaypoint(count=20), Community()])
def test_longer_run_begins_as_the_shorter_one_does(model: Model) -> None:
    short, long = (paths(model.move(1, duration_us)) for duration_us in (5 * MINUTE, 20 * MINUTE))
    for node, path in short.items():
        assert long[node][: len(path) - 1] == path[:-1]
        assert place(long[node], 5 * MINUTE) == pytest.approx(path[-1][1:])


@pytest.mark.parametrize(
    ("fewer", "more"),
    [(RandomWaypoint(count=20), RandomWaypoint(count=21)), (Community(count=20), Community(count=21))],
)
def test_one_more_node_leaves_the_others_alone(fewer: Model, more: Model) -> None:
    some, all_of_them = (paths(model.move(1, 10 * MINUTE)) for model in (fewer, more))
    assert len(all_of_them) == len(some) + 1
    assert all(all_of_them[node] == path for node, path in some.items())


WRONG: list[tuple[type[Model], Mapping[str, Any], str]] = [
    (RandomWaypoint, {"count": 0}, "mobility.count must be a whole number from 1 to 1,000,000, not 0"),
    (RandomWaypoint, {"side_m": 100, "nodes_per_km2": 5}, "give side_m or nodes_per_km2, not both"),
    (RandomWaypoint, {"height_m": 100}, "height_m requires side_m"),
    (RandomWaypoint, {"speed_min_m_per_s": 0}, "speed_min_m_per_s must be a number from 0.001"),
    (RandomWaypoint, {"speed_max_m_per_s": 0.2}, "mobility.speed_max_m_per_s must be at least 0.5"),
    (RandomWaypoint, {"pause_min_s": 121}, "mobility.pause_max_s must be at least 121"),
    (Community, {"cloud_radius_m": 500}, "cloud_radius_m must be less than half of side_m, 1000, not 500"),
    (Community, {"speed_min_m_per_s": 0.9}, "must be more than 0.9, as fast as clouds are"),
    (Community, {"speed_max_m_per_s": 0.95}, "mobility.speed_max_m_per_s must be at least 1"),
    (Community, {"cloud_speed_min_m_per_s": 0.95}, "mobility.cloud_speed_max_m_per_s must be at least 0.95"),
    (Streets, {"columns_m": []}, "mobility.columns_m must be a list of numbers"),
    (Streets, {"columns_m": 100}, "mobility.columns_m must be a list of numbers"),
    (Streets, {"columns_m": [100, "200"]}, "mobility.columns_m must be a list of numbers"),
    (Streets, {"columns_m": [200, 100]}, "mobility.columns_m must rise from 0 to width_m, 400"),
    (Streets, {"rows_m": [3]}, "mobility.rows_m must rise from 0 to height_m, 400"),
    (Streets, {"rows_m": [100, 107]}, "with more than street_m, 8, between them"),
    (Streets, {"rows_m": [397]}, "half of it from the border, not 397"),
    (Streets, {"arrivals_per_s": -1}, "mobility.arrivals_per_s must be a number from"),
    (Streets, {"speed_mean_m_per_s": 2.1}, "speed_mean_m_per_s must be between 0.6 and 2"),
    (Streets, {"straight": 0.7, "back": 0.5}, "straight and mobility.back must be at most 1 together, not 1.2"),
]


@pytest.mark.parametrize(("model", "settings", "message"), WRONG)
def test_wrong_setting_is_named_with_what_is_allowed(
    model: type[Model], settings: Mapping[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError) as error:
        model(**settings)
    assert message in str(error.value)


# --- random waypoint -----------------------------------------------------------------------------------------


def test_waypoint_nodes_stay_in_the_square_and_within_their_speeds() -> None:
    model = RandomWaypoint(count=50, side_m=300, speed_min_m_per_s=1, speed_max_m_per_s=4)
    for path in paths(model.move(1, HOUR)).values():
        assert all(0 <= x <= 300 and 0 <= y <= 300 for _, x, y in path)
        assert all(1 - 1e-3 <= length_m / length_s <= 4 + 1e-3 for length_m, length_s in legs(path))


def test_waypoint_nodes_use_all_of_a_rectangle() -> None:
    places = [
        each
        for path in paths(RandomWaypoint(count=50, side_m=300, height_m=50).move(1, HOUR)).values()
        for each in path
    ]
    assert max(x for _, x, _ in places) == pytest.approx(300, rel=0.02)
    assert 49 < max(y for _, _, y in places) <= 50


def test_waypoint_nodes_rest_after_each_leg() -> None:
    model = RandomWaypoint(count=30, side_m=100, pause_min_s=20, pause_max_s=40)
    rests_s = []
    for path in paths(model.move(1, HOUR)).values():
        rests_s += [(t1 - t0) / SECOND for (t0, *here), (t1, *there) in pairwise(path[:-1]) if here == there]
        assert len(list(legs(path))) == pytest.approx(len(path) / 2, abs=1)
    assert min(rests_s) >= 20 - 1e-5
    assert max(rests_s) <= 40 + 1e-5
    assert fmean(rests_s) == pytest.approx(30, rel=0.05)


def test_waypoint_area_follows_from_density() -> None:
    assert RandomWaypoint().area_side_m == 1_000
    assert RandomWaypoint(count=400, nodes_per_km2=100).area_side_m == 2_000
    assert RandomWaypoint(count=400, side_m=30).area_side_m == 30


def test_waypoint_warm_up_is_the_same_walk_begun_later() -> None:
    warm, cold = (paths(RandomWaypoint(count=5, warm_up_s=s, side_m=200).move(1, HOUR)) for s in (600, 0))
    for node, path in warm.items():
        for t_us in range(0, 50 * MINUTE, 7 * MINUTE):
            assert place(path, t_us) == pytest.approx(place(cold[node], t_us + 10 * MINUTE), abs=1e-3)


# --- groups --------------------------------------------------------------------------------------------------


def test_hosts_of_one_cloud_keep_together_and_clouds_do_not() -> None:
    found = list(paths(Community(change=0).move(1, HOUR)).values())
    times = range(0, HOUR, MINUTE)
    apart_m: dict[bool, list[float]] = {True: [], False: []}
    for one, two in combinations(range(len(found)), 2):
        together = one % 4 == two % 4
        apart_m[together] += [math.dist(place(found[one], t_us), place(found[two], t_us)) for t_us in times[::6]]
    # A host takes the straight way while its cloud may turn, so it can be a little outside.
    assert max(apart_m[True]) < 2 * 100 * 1.5
    assert fmean(apart_m[True]) < 110
    assert fmean(apart_m[False]) > 250


def test_hosts_that_change_clouds_meet_everybody() -> None:
    meetings = {
        change: set(zip(found.a.tolist(), found.b.tolist(), strict=True))
        for change in (0.0, 0.3)
        for found in [
            encounters(Community(change=change, clouds=8, cloud_radius_m=40).move(1, HOUR).tracks, Rules(range_m=80.0))
        ]
    }
    assert len(meetings[0.3]) > 0.95 * 32 * 31 / 2
    assert len(meetings[0.0]) < len(meetings[0.3])


def test_hosts_stay_in_the_square_and_within_their_speeds() -> None:
    for path in paths(Community(clouds=7, change=0.5).move(5, HOUR)).values():
        assert all(0 <= x <= 1_000 and 0 <= y <= 1_000 for _, x, y in path)
        # Times are whole microseconds, which shows on a way of a few centimetres.
        assert all(0.99 <= length_m / length_s <= 2.01 for length_m, length_s in legs(path) if length_m > 0.01)


def test_one_cloud_is_enough() -> None:
    assert len(paths(Community(count=1, clouds=1, change=1).move(1, MINUTE))) == 1


# --- streets -------------------------------------------------------------------------------------------------


def check_walks(model: Streets, movement: Movement, duration_us: int) -> None:
    """Check that all nodes walk in the streets, from border to border, at one speed, unless the run ends before."""
    half_m = model.street_m / 2 + 1e-9

    def in_streets(x: float, y: float) -> bool:
        return any(abs(x - each) <= half_m for each in model.columns_m) or any(
            abs(y - each) <= half_m for each in model.rows_m
        )

    def at_border(x: float, y: float) -> bool:
        return min(x, model.width_m - x, y, model.height_m - y) <= half_m

    for path in paths(movement).values():
        assert at_border(*path[0][1:])
        assert at_border(*path[-1][1:]) or path[-1][0] == duration_us
        assert all(0 <= x <= model.width_m and 0 <= y <= model.height_m and in_streets(x, y) for _, x, y in path)
        assert all(x0 == x1 or y0 == y1 for (_, x0, y0), (_, x1, y1) in pairwise(path))
        speeds = [length_m / length_s for length_m, length_s in legs(path) if length_s > 0.1]
        low, high = model.speed_min_m_per_s, model.speed_max_m_per_s
        assert all(low * 0.999 <= speed <= high * 1.001 for speed in speeds)
        assert not speeds or max(speeds) <= min(speeds) * 1.001


def test_walkers_keep_to_the_streets() -> None:
    model = Streets(straight=0.3, back=0.1, pause=0.2)
    check_walks(model, model.move(1, 30 * MINUTE), 30 * MINUTE)


@st.composite
def districts(draw: st.DrawFn) -> Streets:
    street_m = draw(st.floats(0, 20))
    blocks = st.lists(st.floats(street_m + 0.5, 200), min_size=2, max_size=5)
    across, along = draw(blocks), draw(blocks)
    straight = draw(st.floats(0, 1))
    return Streets(
        columns_m=tuple(np.cumsum(across)[:-1].tolist()),
        rows_m=tuple(np.cumsum(along)[:-1].tolist()),
        width_m=sum(across),
        height_m=sum(along),
        street_m=street_m,
        straight=straight,
        back=draw(st.floats(0, 1 - straight)),
        pause=draw(st.sampled_from([0.0, 0.5])),
        speed_sd_m_per_s=draw(st.floats(0.001, 5)),
    )


@given(districts(), st.integers(0, 1_000))
@examples(10)
def test_any_district_is_walked_through(model: Streets, seed: int) -> None:
    check_walks(model, model.move(seed, 5 * MINUTE), 5 * MINUTE)


def test_walkers_are_named_in_order_of_arrival_and_leave_at_the_end_at_the_latest() -> None:
    presences = Streets().move(1, HOUR).presences
    assert [presence.node for presence in presences[:2]] == ["n0001", "n0002"]
    assert presences == sorted(presences)
    assert [presence.join_us for presence in presences] == sorted(presence.join_us for presence in presences)
    inside = [presence for presence in presences if presence.leave_us == HOUR]
    assert 0 < len(inside) < 0.2 * len(presences)


def test_longer_run_leaves_earlier_walkers_alone() -> None:
    model = Streets()
    short, long = model.move(1, HOUR), model.move(1, 2 * HOUR)
    left = [presence for presence in short.presences if presence.leave_us != HOUR]
    assert set(left) <= set(long.presences)
    before, after = paths(short), paths(long)
    assert all(after[presence.node] == before[presence.node] for presence in left)


def test_another_street_leaves_alone_who_comes_in_by_the_others() -> None:
    few, more = (
        {
            path[0][0]: length_m / length_s
            for path in paths(Streets(columns_m=columns_m).move(1, HOUR)).values()
            for length_m, length_s in [next(legs(path))]
            if path[-1][0] < HOUR
        }
        for columns_m in ((100.0,), (100.0, 300.0))
    )
    shared = few.keys() & more.keys()
    assert len(shared) > 0.9 * len(few)
    assert all(few[join_us] == pytest.approx(more[join_us], rel=1e-5) for join_us in shared)


@pytest.mark.parametrize(
    ("straight", "back", "crossings", "opposite", "same"),
    [(1, 0, 3, 1, 0), (0, 1, 1, 0, 1), (0.5, 0.5, None, 0.25, 0.75)],
)
def test_walkers_go_straight_on_or_back_as_often_as_they_should(
    straight: float, back: float, crossings: int | None, opposite: float, same: float
) -> None:
    model = Streets(straight=straight, back=back, street_m=0, arrivals_per_s=0.05)
    # Whoever never turns stays in one street. With even chances it is the gambler's ruin: from the first of three
    # crossings, the far end is reached one time in four.
    walks = [path for path in paths(model.move(1, 2 * HOUR)).values() if path[0][0] < HOUR]
    assert all(len({x for _, x, _ in path}) == 1 or len({y for _, _, y in path}) == 1 for path in walks)
    assert crossings is None or {len(path) - 2 for path in walks} == {crossings}
    returned = sum(path[0][1:] == path[-1][1:] for path in walks) / len(walks)
    assert (1 - returned, returned) == pytest.approx((opposite, same), abs=0.03)


def test_walkers_turn_left_as_often_as_right() -> None:
    turns = []
    for path in paths(Streets(straight=0, street_m=0, arrivals_per_s=0.05).move(1, HOUR)).values():
        for (_, x0, y0), (_, x1, y1), (_, x2, y2) in zip(path, path[1:], path[2:], strict=False):
            turns.append((x1 - x0) * (y2 - y1) - (y1 - y0) * (x2 - x1))
    assert 0 not in turns
    assert sum(turn > 0 for turn in turns) / len(turns) == pytest.approx(0.5, abs=0.03)


def test_arrivals_are_poisson_at_every_entry_point() -> None:
    arrivals: dict[tuple[float, float], list[int]] = {}
    for path in paths(Streets(street_m=0, arrivals_per_s=0.05).move(1, 3 * HOUR)).values():
        t_us, x, y = path[0]
        arrivals.setdefault((x, y), []).append(t_us)
    assert len(arrivals) == 12
    for joins_us in arrivals.values():
        assert len(joins_us) == pytest.approx(540, rel=0.15)
        waits_s = [(after - before) / SECOND for before, after in pairwise(joins_us)]
        # The waits of a Poisson process are exponential: their deviation equals their mean.
        assert math.sqrt(pvariance(waits_s)) == pytest.approx(fmean(waits_s), rel=0.15)


def test_speeds_are_drawn_from_the_truncated_normal_distribution() -> None:
    model = Streets(arrivals_per_s=0.05, speed_sd_m_per_s=0.5)
    speeds = [
        length_m / length_s for path in paths(model.move(1, HOUR)).values() for length_m, length_s in [next(legs(path))]
    ]
    assert fmean(speeds) == pytest.approx(1.3, abs=0.02)
    assert min(speeds) == pytest.approx(0.6, abs=0.01)
    assert max(speeds) == pytest.approx(2.0, abs=0.01)
    # Of what lies within 1.4 deviations of a normal mean, 45.7 % lies within half of one.
    within = sum(abs(speed - 1.3) < 0.25 for speed in speeds) / len(speeds)
    assert within == pytest.approx(0.383 / 0.838, abs=0.03)


def test_pauses_delay_walkers_and_change_nothing_else() -> None:
    def ways(model: Streets) -> list[list[tuple[float, ...]]]:
        # Longer than anybody needs, for those who enter in the first minutes.
        movement = model.move(1, 3 * HOUR)
        kept = [path for path in paths(movement).values() if path[0][0] < 10 * MINUTE]
        return [list(dict.fromkeys((x, y) for _, x, y in path)) for path in kept]

    assert ways(Streets(pause=0.5, pause_mean_s=30)) == ways(Streets())
    hasty, slow = (Streets(pause=share).move(1, HOUR).presences for share in (0, 0.5))
    stays = [fmean((leave or HOUR) - join for _, join, leave in found) for found in (hasty, slow)]
    assert stays[1] > stays[0] + 30 * SECOND


# --- the walkers of the causal broadcast paper ---------------------------------------------------------------


@pytest.fixture(scope="module")
def ostermalm() -> Scenario:
    return Scenario.load(calibration.SCENARIOS / "ostermalm.toml")


@pytest.mark.parametrize("seeds", [calibration.SEEDS[:1], pytest.param(calibration.SEEDS, marks=pytest.mark.soak)])
def test_ostermalm_has_the_counts_and_means_of_table_iv(ostermalm: Scenario, seeds: Sequence[int]) -> None:
    ours = calibration.means([calibration.statistics(ostermalm, seed) for seed in seeds])
    published = calibration.PUBLISHED["ostermalm"]
    for figure in calibration.HELD:
        assert ours[figure] == pytest.approx(published[figure], rel=calibration.TOLERANCE), figure


def test_flood_among_the_walkers_of_ostermalm_reaches_about_as_many_as_the_paper_counted(ostermalm: Scenario) -> None:
    lifetimes_s = [1_200, 300]
    found = calibration.bounds(ostermalm, 1, lifetimes_s)
    for life_s in lifetimes_s:
        assert found[life_s] == pytest.approx(calibration.RECEIVED["ostermalm"][life_s], rel=0.15)
