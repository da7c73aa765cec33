"""Generated bus lines: streets, timetables, what the seed may change, and how near the shipped day is to the paper."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.examples import examples

from carrypost.emu.scenario import Scenario
from carrypost.errors import ConfigError
from carrypost.mobility.buses import Buses, BusLine
from carrypost.traces.tracks import Movement
from tools import calibration

SECOND = 1_000_000
MINUTE = 60 * SECOND
HOUR = 60 * MINUTE
Path = list[tuple[int, float, float]]

PUNCTUAL: dict[str, Any] = {"traffic": 0, "dwell_spread": 0, "jitter_s": 0}


def paths(movement: Movement) -> dict[str, Path]:
    """Each bus's samples."""
    tracks = movement.tracks
    found: dict[str, Path] = {node: [] for node in tracks.nodes}
    for node, t_us, x, y in zip(
        tracks.node.tolist(), tracks.t_us.tolist(), tracks.x.tolist(), tracks.y.tolist(), strict=True
    ):
        found[tracks.nodes[node]].append((t_us, x, y))
    return found


def places(path: Path) -> set[tuple[float, float]]:
    return {(x, y) for _, x, y in path}


# --- the town --------------------------------------------------------------------------------------------------


def test_buses_are_called_after_line_and_number() -> None:
    found = Buses(lines=2, buses=2).move(1, HOUR).tracks.nodes
    assert found == ("L01-1", "L01-2", "L02-1", "L02-2")


def test_buses_keep_to_the_streets_and_to_their_speed() -> None:
    town = Buses(block_m=200, speed_m_per_s=8, traffic=0)
    for path in paths(town.move(1, 3 * HOUR)).values():
        for (t0, x0, y0), (t1, x1, y1) in pairwise(path):
            assert x0 == x1 or y0 == y1
            assert x0 % 200 == y0 % 200 == 0
            assert abs(x1 - x0) + abs(y1 - y0) <= 8.001 * (t1 - t0) / SECOND


def test_seed_changes_times_and_never_the_town() -> None:
    one, two = (paths(Buses().move(seed, 4 * HOUR)) for seed in (1, 2))
    assert one.keys() == two.keys()
    for name, path in one.items():
        assert places(path) == places(two[name])
        assert path != two[name]


def test_same_seed_gives_the_same_day() -> None:
    assert paths(Buses().move(7, HOUR)) == paths(Buses().move(7, HOUR))


def test_another_town_has_other_routes() -> None:
    one, two = (paths(Buses(town=town).move(1, 4 * HOUR)) for town in (1, 2))
    assert places(one["L01-1"]) != places(two["L01-1"])


def test_one_more_line_leaves_the_others_alone() -> None:
    fewer, more = (paths(Buses(lines=lines).move(1, 2 * HOUR)) for lines in (3, 4))
    assert {name: more[name] for name in fewer} == fewer


def test_line_passes_the_hubs_that_it_names_and_stands_there_longer() -> None:
    town = Buses(**PUNCTUAL, hubs=3, dwell_s=10, hub_dwell_s=100, line=(BusLine(name="A", buses=1, via=(2, 0)),))
    path = paths(town.move(1, 2 * HOUR))["A-1"]
    stood = {(x, y): t1 - t0 for (t0, x, y), (t1, *there) in pairwise(path) if (x, y) == tuple(there)}
    assert stood[0.0, 0.0] == 100 * SECOND
    assert sorted(place for place, t_us in stood.items() if t_us == 100 * SECOND and place != (0.0, 0.0)) == [
        (-1_200.0, -800.0)
    ]
    assert 10 * SECOND in stood.values()


def test_line_that_does_not_cross_ends_at_its_last_hub() -> None:
    line = BusLine(name="S", buses=1, via=(0,), across=False, service=("06:00-06:00",))
    path = paths(Buses(line=(line,)).move(1, 2 * HOUR))["S-1"]
    assert path[-1][1:] == (0.0, 0.0)


# --- the timetable ---------------------------------------------------------------------------------------------


def test_service_starts_from_both_termini_at_the_headway() -> None:
    town = Buses(**PUNCTUAL, start="05:30", service=("06:00-22:00",), lines=1, buses=6)
    found = paths(town.move(1, 3 * HOUR))
    joins = {name: path[0] for name, path in found.items()}
    first, second = joins["L01-1"], joins["L01-4"]
    assert first[0] == second[0] == 30 * MINUTE
    assert first[1:] != second[1:]
    headway_us = joins["L01-2"][0] - first[0]
    assert joins["L01-3"][0] - joins["L01-2"][0] == pytest.approx(headway_us, abs=1)
    round_trip_us = [t_us for t_us, x, y in found["L01-1"] if (x, y) == first[1:]][2] - first[0]
    assert round_trip_us == pytest.approx(6 * headway_us, abs=10)


def test_no_bus_departs_after_the_last_departure_and_every_bus_arrives() -> None:
    town = Buses(**PUNCTUAL, start="06:00", service=("06:00-08:00",), lines=1, buses=4)
    movement = town.move(1, 12 * HOUR)
    termini = {path[-1][1:] for path in paths(movement).values()} | {path[0][1:] for path in paths(movement).values()}
    assert len(termini) == 2
    for path in paths(movement).values():
        departures = [t0 for (t0, *here), (_, *there) in pairwise(path) if tuple(here) in termini and here != there]
        assert max(departures) <= 2 * HOUR
    assert all(leave is not None and leave > HOUR for _, _, leave in movement.presences)


def test_presence_is_from_first_departure_to_last_arrival() -> None:
    movement = Buses(service=("06:10-07:00",)).move(3, 12 * HOUR)
    found = paths(movement)
    assert [(node, join, leave) for node, join, leave in movement.presences] == [
        (name, path[0][0], path[-1][0]) for name, path in found.items()
    ]


def test_school_bus_is_away_between_its_hours() -> None:
    line = BusLine(name="S01", buses=1, service=("07:30-07:30", "16:00-16:00"))
    movement = Buses(start="06:00", jitter_s=20, line=(line,)).move(1, 12 * HOUR)
    (_, join, leave), (_, join_again, leave_again) = movement.presences
    assert 90 * MINUTE <= join <= 90 * MINUTE + 20 * SECOND
    assert 10 * HOUR <= join_again <= 10 * HOUR + 20 * SECOND
    assert leave is not None
    assert leave_again is not None
    assert leave < 3 * HOUR
    assert leave_again < 12 * HOUR


def test_bus_under_way_at_the_end_stays_to_the_end() -> None:
    movement = Buses(lines=1, buses=2).move(1, 2 * HOUR)
    assert {leave for _, _, leave in movement.presences} == {None}


def test_longer_run_begins_as_the_shorter_one_does() -> None:
    short, long = (Buses().move(1, duration_us) for duration_us in (2 * HOUR, 5 * HOUR))
    assert {presence[:2] for presence in short.presences} <= {presence[:2] for presence in long.presences}
    assert {leave for _, _, leave in short.presences} == {None}
    later = paths(long)
    for name, path in paths(short).items():
        assert path == later[name][: len(path)]
        assert path[-1][0] >= 2 * HOUR


def test_trip_that_left_before_the_run_is_no_part_of_it() -> None:
    movement = Buses(**PUNCTUAL, start="12:00", service=("06:00-20:00",)).move(1, 3 * HOUR)
    joins = [join for _, join, _ in movement.presences]
    assert len(joins) == 32
    assert min(joins) >= 0
    assert max(joins) < HOUR


def test_line_whose_service_is_over_has_no_buses() -> None:
    lines = (BusLine(name="A", buses=1), BusLine(name="B", buses=1, service=("05:00-05:30",)))
    assert Buses(start="06:00", line=lines).move(1, HOUR).tracks.nodes == ("A-1",)


@examples(10)
@given(
    town=st.builds(
        Buses,
        town=st.integers(0, 1_000),
        lines=st.integers(1, 3),
        buses=st.integers(1, 4),
        block_m=st.sampled_from([50.0, 333.3]),
        hubs=st.integers(1, 4),
        hub_m=st.floats(0, 2_000),
        reach_m_min=st.floats(600, 2_000),
        turn=st.floats(0, 1),
        dwell_s=st.sampled_from([0.0, 15.0]),
        layover_s=st.sampled_from([0.0, 200.0]),
        traffic=st.sampled_from([0.0, 1.0]),
        service=st.sampled_from([(), ("06:00-06:20", "06:21-07:00"), ("05:00-06:30",)]),
    ),
    seed=st.integers(0, 10),
)
def test_any_town_has_buses_whose_presences_follow_one_another(town: Buses, seed: int) -> None:
    movement = town.move(seed, 2 * HOUR)
    for (node, join, leave), (other, join_next, _) in pairwise(movement.presences):
        assert node != other or (leave is not None and join < leave < join_next)


# --- mistakes --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"start": "5.30"}, "mobility.start must be a time such as 05:30 or 05:30:00, not '5.30'"),
        ({"service": ["06:00"]}, "service must be a list of hours such as \"06:00-20:30\", not '06:00'"),
        ({"service": ["06:00-25:61"]}, "service must be a time such as 05:30"),
        ({"service": ["08:00-07:00"]}, "service must be hours in ascending order, not 08:00-07:00"),
        ({"service": ["06:00-08:00", "07:00-09:00"]}, "must be hours in ascending order"),
        ({"reach_m_min": 9_000}, "mobility.reach_m_min must be at most reach_m_max (5,000.0), not 9,000.0"),
        ({"line": [{"name": "A"}, {"name": "A"}]}, "there are two lines with the name 'A'"),
        ({"line": [{"buses": 2}]}, "mobility.line.0.name is missing"),
        ({"line": [{"name": "A", "via": [3]}]}, "via of 'A' must name hubs from 0 to 2, not 3"),
        ({"line": [{"name": "A", "via": ["mid"]}]}, "mobility.line.0.via must be a list of hubs"),
        ({"line": [{"name": "A", "bus": 2}]}, "mobility.line.0.bus is not a setting; did you mean buses?"),
        ({"line": ["A"]}, "mobility.line must be a list of tables, each written [[mobility.line]], not ['A']"),
        ({"line": [{"name": "A", "service": ["6-7"]}]}, "service of line A must be a time such as 05:30"),
        ({"speed_m_per_s": 0}, "mobility.speed_m_per_s must be a number from 0.1 to 100.0, not 0"),
    ],
)
def test_mistake_is_told_with_what_is_allowed(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        Buses(**fields)
    assert message in str(caught.value)


def test_mistake_in_a_line_of_a_scenario_is_told_with_file_and_line() -> None:
    text = 'duration_s = 60\n[mobility]\nmodel = "buses"\n[[mobility.line]]\nname = "A"\nbusses = 2\n'
    with pytest.raises(ConfigError) as caught:
        Scenario.parse(text, file="town.toml")
    assert str(caught.value).startswith(
        "town.toml, line 6: mobility.line.0.busses is not a setting; did you mean buses?"
    )


def test_line_without_length_is_refused() -> None:
    town = Buses(reach_m_min=1, reach_m_max=1, hubs=1, lines=1)
    with pytest.raises(ConfigError, match="line L01 has zero length"):
        town.move(1, HOUR)


# --- the bus day of the causal broadcast paper -----------------------------------------------------------------


@pytest.fixture(scope="module")
def city_bus() -> Scenario:
    return Scenario.load(calibration.SCENARIOS / "city_bus.toml")


@pytest.mark.parametrize("seeds", [calibration.SEEDS[:1], pytest.param(calibration.SEEDS, marks=pytest.mark.soak)])
def test_city_bus_has_the_counts_and_means_of_table_i(city_bus: Scenario, seeds: Sequence[int]) -> None:
    ours = calibration.means([calibration.statistics(city_bus, seed) for seed in seeds])
    published = calibration.PUBLISHED["city_bus"]
    for figure in (*calibration.HELD, "at once, at most", "activity sd", "contact sd"):
        assert ours[figure] == pytest.approx(published[figure], rel=calibration.TOLERANCE), figure


def test_flood_among_city_buses_reaches_about_as_many_as_the_paper_counted(city_bus: Scenario) -> None:
    lifetimes_s = [None, 1_200, 600]
    found = calibration.bounds(city_bus, 1, lifetimes_s)
    for life_s in lifetimes_s:
        assert found[life_s] == pytest.approx(calibration.RECEIVED["city_bus"][life_s], rel=0.05)


def test_city_bus_has_the_bus_whose_registries_the_paper_shows_and_few_samples(city_bus: Scenario) -> None:
    assert isinstance(city_bus.mobility, Buses)
    tracks = city_bus.mobility.move(1, city_bus.duration_us).tracks
    assert "L01-1" in tracks.nodes
    assert len(tracks.t_us) < 60_000


def test_every_school_bus_of_the_city_runs_for_less_than_two_hours(city_bus: Scenario) -> None:
    assert isinstance(city_bus.mobility, Buses)
    lines = tuple(line for line in city_bus.mobility.line if line.name.startswith("S"))
    movement = dataclasses.replace(city_bus.mobility, line=lines).move(1, city_bus.duration_us)
    assert len(movement.presences) == 4
    assert all(leave is not None and leave - join < 2 * HOUR for _, join, leave in movement.presences)
