"""Vehicles of a timetable follow the shapes of their trips: when they are where, which shapes do not fit, mistakes."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from carrypost.errors import LocalError
from carrypost.mobility.gtfs import STOP_FROM_SHAPE_M_MAX, Day, Gtfs, Polyline, placed

SECOND = 1_000_000
DEGREE_M = math.radians(1.0) * 6_371_000.0
CLOCK_S = 8 * 3_600

# Places are thousandths of a degree (111 m) east and north of a point on the equator; 2024-01-02 is a Tuesday.
Places = list[tuple[float, float]]
CALENDAR = (
    "service_id,monday,tuesday,wednesday,thursday,friday,saturday,sunday,start_date,end_date\n"
    "week,1,1,1,1,1,0,0,20240101,20241231\n"
)
# Up, right, down: 1 + 2 + 1 long, where a straight line is 2 long.
DETOUR: Places = [(0, 0), (0, 1), (2, 1), (2, 0)]
Write = Callable[..., Path]


def table(header: str, rows: list[str]) -> str:
    return "\n".join([header, *rows, ""])


def shape(places: Places, name: str = "s", measure: list[float] | None = None) -> str:
    """Return a file of one shape; `measure` gives the distance of each point along it."""
    header = "shape_id,shape_pt_lat,shape_pt_lon,shape_pt_sequence" + (",shape_dist_traveled" if measure else "")
    rows = [
        f"{name},{y / 1e3:.9f},{x / 1e3:.9f},{index}" + (f",{measure[index]}" if measure else "")
        for index, (x, y) in enumerate(places)
    ]
    return table(header, rows[::-1])  # Their order is told by numbers, not by lines.


@pytest.fixture
def write(tmp_path: Path) -> Write:
    """Return a function that writes a feed with one trip along these stops, at these seconds after eight."""

    def written(stops: Places, times_s: list[int | None], along: list[float] | None = None, **changes: str) -> Path:
        places = [f"p{index},{y / 1e3:.9f},{x / 1e3:.9f}" for index, (x, y) in enumerate(stops)]
        calls = [
            f"out,{clock(time_s)},{clock(time_s)},p{index},{index},{along[index] if along else ''}"
            for index, time_s in enumerate(times_s)
        ]
        files = {
            "stops": table("stop_id,stop_lat,stop_lon", places),
            "calendar": CALENDAR,
            "trips": "route_id,service_id,trip_id,shape_id\n1,week,out,s\n",
            "stop_times": table("trip_id,arrival_time,departure_time,stop_id,stop_sequence,shape_dist_traveled", calls),
        }
        for name, content in (files | changes).items():
            (tmp_path / f"{name}.txt").write_text(content)
        return tmp_path

    return written


def clock(time_s: int | None) -> str:
    return "" if time_s is None else f"{8 + time_s // 3_600:02}:{time_s // 60 % 60:02}:{time_s % 60:02}"


def driven(file: Path, *, shapes: bool = True) -> Day:
    return Gtfs(file=str(file), day="2024-01-02", shapes=shapes).drive()


def path(day: Day, vehicle: int = 0) -> list[tuple[float, float, float]]:
    """Seconds after eight, and where, east and north of where it starts."""
    samples = day.vehicles[vehicle].samples
    _, x_0, y_0 = samples[0]
    unit_m = DEGREE_M / 1_000
    return [
        (round(t_us / SECOND - CLOCK_S, 3), round((x - x_0) / unit_m, 3), round((y - y_0) / unit_m, 3))
        for t_us, x, y in samples
    ]


# --- along the way ---------------------------------------------------------------------------------------------


def test_trip_follows_its_shape_at_constant_speed(write: Write) -> None:
    day = driven(write([(0, 0), (2, 0)], [0, 400], shapes=shape(DETOUR)))
    assert path(day) == [(0, 0, 0), (100, 0, 1), (300, 2, 1), (400, 2, 0)]
    assert (day.counts["trips_on_shapes"], day.counts["trips_off_shapes"]) == (1, 0)
    assert (day.feed["shapes"], day.feed["shape_points"]) == (1, 4)


def test_trip_is_at_its_stops_when_the_timetable_says(write: Write) -> None:
    folder = write([(0, 0), (1, 1), (2, 0)], [0, 50, 250], shapes=shape(DETOUR))
    times = (folder / "stop_times.txt").read_text().replace("08:00:50,08:00:50", "08:00:50,08:01:30")
    (folder / "stop_times.txt").write_text(times)
    assert path(driven(folder)) == [(0, 0, 0), (25, 0, 1), (50, 1, 1), (90, 1, 1), (170, 2, 1), (250, 2, 0)]


@pytest.mark.parametrize("time_s", [None, 0, 400])
def test_stop_without_a_time_of_its_own_is_passed_at_constant_speed(write: Write, time_s: int | None) -> None:
    folder = write([(0, 0), (0, 1), (2, 0)], [0, time_s, 400], shapes=shape(DETOUR))
    assert path(driven(folder)) == [(0, 0, 0), (100, 0, 1), (300, 2, 1), (400, 2, 0)]


def test_stop_beside_the_road_is_passed_on_the_road(write: Write) -> None:
    folder = write([(-0.1, 0), (1, 1.2), (2.1, 0)], [0, 200, 400], shapes=shape(DETOUR))
    assert path(driven(folder)) == [(0, 0, 0), (100, 0, 1), (200, 1, 1), (300, 2, 1), (400, 2, 0)]


def test_trip_may_begin_and_end_in_the_middle_of_its_shape(write: Write) -> None:
    folder = write([(0, 1), (2, 1)], [0, 100], shapes=shape(DETOUR))
    assert path(driven(folder)) == [(0, 0, 0), (100, 2, 0)]


@pytest.mark.parametrize("shapes", [True, False])
def test_trip_goes_straight_where_shapes_are_not_wanted_or_not_there(write: Write, *, shapes: bool) -> None:
    files = {} if shapes else {"shapes": shape(DETOUR)}
    day = driven(write([(0, 0), (2, 0)], [0, 400], **files), shapes=shapes)
    assert path(day) == [(0, 0, 0), (400, 2, 0)]
    assert (day.counts["trips_on_shapes"], day.counts["trips_off_shapes"]) == (0, 0)
    assert day.feed["shape_points"] == (0 if shapes else 4)


def test_town_on_the_date_line_is_not_torn_apart(write: Write) -> None:
    line: Places = [(179_999, 0), (179_999, 1), (-179_999, 1), (-179_999, 0)]
    folder = write([line[0], line[-1]], [0, 400], shapes=shape(line))
    assert path(driven(folder)) == [(0, 0, 0), (100, 0, 1), (300, 2, 1), (400, 2, 0)]


def test_shapes_do_not_change_who_drives(write: Write) -> None:
    """The shape ends 600 m after the last stop's, but it is the stops that are near each other."""
    trips = "route_id,service_id,trip_id,shape_id\n1,week,out,s\n1,week,home,\n"
    folder = write([(0, 0), (2, 0)], [0, 400], trips=trips, shapes=shape([(0, 0), (1, 0), (1.9, 1.2), (8, 0)]))
    with (folder / "stop_times.txt").open("a") as file:
        file.write("home,08:10:00,08:10:00,p1,1,\nhome,08:20:00,08:20:00,p0,2,\n")
    for shapes in (True, False):
        day = driven(folder, shapes=shapes)
        assert [(vehicle.name, len(vehicle.presences)) for vehicle in day.vehicles] == [("1-1", 1)]


def test_bus_that_goes_on_at_once_across_the_street_is_not_thrown_there(write: Write) -> None:
    trips = "route_id,service_id,trip_id,shape_id\n1,week,out,\n1,week,home,s\n"
    bends: Places = [(2 - index / 100, 1) for index in range(201)]
    folder = write([(0, 0), (2, 0), (2, 1), (0, 1)], [0, 400], trips=trips, shapes=shape(bends))
    with (folder / "stop_times.txt").open("a") as file:
        file.write("home,08:06:40,08:06:40,p2,1,\nhome,08:13:20,08:13:20,p3,2,\n")
    (vehicle,) = driven(folder).vehicles
    speeds = [
        math.dist(before[1:], after[1:]) / (after[0] - before[0]) * SECOND
        for before, after in itertools.pairwise(vehicle.samples)
    ]
    assert len(speeds) > 100
    assert max(speeds) <= 2 * 0.002 * DEGREE_M / 400 + 1e-6


# --- where the stops are ---------------------------------------------------------------------------------------


def test_stops_of_a_loop_are_passed_in_their_order(write: Write) -> None:
    """Check a loop that ends where it began, and crosses itself in the middle."""
    loop: Places = [(0, 0), (4, 0), (4, 2), (2, 2), (2, -2), (0, -2), (0, 0)]
    stops: Places = [(0, 0), (4, 1), (2, 0), (0, -2), (0, 0)]
    day = driven(write(stops, [0, 50, 90, 130, 150], shapes=shape(loop)))
    assert path(day)[-1] == (150, 0, 0)
    assert [each for each in path(day) if each[0] in (50, 90, 130)] == [(50, 4, 1), (90, 2, 0), (130, 0, -2)]
    assert (70, 2, 2) not in path(day)
    assert [each[1:] for each in path(day)] == [
        *((0, 0), (4, 0), (4, 1), (4, 2), (2, 2), (2, 0)),
        *((2, -2), (0, -2), (0, 0)),
    ]


@pytest.mark.parametrize(("time_s", "turn_s"), [(10, 30), (50, 30)])
def test_times_decide_on_which_way_a_stop_is_that_is_passed_twice(write: Write, time_s: int, turn_s: int) -> None:
    """Check a trip there and back, over one stop in between: at 10 of 60 on the way there, at 50 on the way back."""
    folder = write([(0, 0), (1, 0), (0, 0)], [0, time_s, 60], shapes=shape([(0, 0), (3, 0), (0, 0)]))
    stop, turn = (time_s, 1, 0), (turn_s, 3, 0)
    assert path(driven(folder)) == [(0, 0, 0), *sorted([stop, turn]), (60, 0, 0)]


@pytest.mark.parametrize("unit", [1.0, 0.111])
def test_distances_of_the_feed_tell_where_stops_are(write: Write, unit: float) -> None:
    """The stop is passed twice, and its time would have it on the way there."""
    measure = [unit * each for each in (0, 3, 6)]
    along = [unit * each for each in (0, 5, 6)]
    line = shape([(0, 0), (3, 0), (0, 0)], measure=measure)
    day = driven(write([(0, 0), (1, 0), (0, 0)], [0, 10, 60], along, shapes=line))
    assert path(day) == [(0, 0, 0), (6, 3, 0), (10, 1, 0), (60, 0, 0)]


@pytest.mark.parametrize(
    ("measure", "along"),
    [
        ([0, 3, 2], [0, 5, 6]),  # They go back.
        ([0, 3, 6], [0, 7, 6]),
        ([0, 3, 6], [0, 3, 6]),  # They do not fit: the stop is not there.
        ([0, 3000, 6000], [0, 5, 6]),  # Metres, and kilometres.
    ],
)
def test_distances_that_cannot_be_are_not_used(write: Write, measure: list[float], along: list[float]) -> None:
    line = shape([(0, 0), (6, 0), (0, 0)], measure=measure)
    day = driven(write([(0, 0), (2, 0), (0, 0)], [0, 10, 60], along, shapes=line))
    assert path(day) == [(0, 0, 0), (10, 2, 0), (30, 6, 0), (60, 0, 0)]


@pytest.mark.parametrize(
    "line",
    [
        DETOUR,  # Not past the stop in between.
        [(2, 0), (1, -1.5), (0, 0)],  # The other way round.
        [(0, 0)],
        [(50, 50), (51, 51)],
        [(0, 0), (0, 0)],
    ],
)
def test_shape_that_does_not_fit_is_not_followed_and_counted(write: Write, line: Places) -> None:
    day = driven(write([(0, 0), (1, -1.5), (2, 0)], [0, 100, 200], shapes=shape(line)))
    assert path(day) == [(0, 0, 0), (100, 1, -1.5), (200, 2, 0)]
    assert (day.counts["trips_on_shapes"], day.counts["trips_off_shapes"]) == (0, 1)


def test_two_stops_whose_places_are_in_the_wrong_order_are_passed_together(write: Write) -> None:
    folder = write([(0, 0), (1.1, 0.1), (1, 0.1), (2, 0)], [0, 100, 160, 260], shapes=shape([(0, 0), (2, 0)]))
    east = [x for _, x, _ in path(driven(folder))]
    assert east == sorted(east)
    assert path(driven(folder))[2][0] == 160


_COORDINATES = st.integers(0, 40).map(lambda number: number * 25.0)


@given(
    st.lists(st.tuples(_COORDINATES, _COORDINATES), min_size=2, max_size=12),
    st.lists(st.floats(0, 1), min_size=2, max_size=8).map(sorted),
)
@example([(0.0, 0.0), (100.0, 0.0), (0.0, 0.0)], [0.0, 0.5, 1.0])
@example([(0.0, 0.0), (0.0, 0.0), (100.0, 0.0), (100.0, 0.0)], [0.0, 0.0, 1.0])
def test_stops_on_a_shape_are_found_there_in_their_order(points: Places, shares: list[float]) -> None:
    way = Polyline.of(points)
    truth_m = np.array(shares) * way.along_m[-1]
    x, y = way.at(truth_m)
    found_m = placed(way, [], Polyline.of(list(zip(x, y, strict=True))), [None] * len(shares), np.array(shares))
    assert (np.diff(found_m) >= 0).all()
    x_found, y_found = way.at(found_m)
    # Times were right: they cost nothing where the stops are, so nothing else may cost more.
    assert np.hypot(x_found - x, y_found - y) == pytest.approx(np.zeros(len(shares)), abs=1e-3)


@given(
    st.lists(st.tuples(_COORDINATES, _COORDINATES), min_size=2, max_size=5),
    st.lists(st.tuples(_COORDINATES, _COORDINATES), min_size=2, max_size=3),
)
def test_no_other_way_to_place_stops_is_nearer(points: Places, stops: Places) -> None:
    """Compare with all ways to place the stops in their order, each at the nearest point of a segment."""
    way = Polyline.of(points)
    found_m = placed(way, [], Polyline.of(stops), [None] * len(stops), np.full(len(stops), math.nan))
    feet = sorted(foot for stop in stops for foot in feet_of(stop, points))
    costs = [
        sum(away_m**2 for away_m in aways_m) if max(aways_m) <= STOP_FROM_SHAPE_M_MAX else math.inf
        for chosen in itertools.combinations_with_replacement(feet, len(stops))
        if (aways_m := [math.dist(stop, place) for stop, (_, place) in zip(stops, chosen, strict=True)])
    ]
    if not len(found_m):
        assert min(costs) == math.inf
        return
    assert (np.diff(found_m) >= 0).all()
    places = zip(*(each.tolist() for each in way.at(found_m)), strict=True)
    misses_m = [math.dist(stop, place) for stop, place in zip(stops, places, strict=True)]
    assert max(misses_m) <= STOP_FROM_SHAPE_M_MAX + 1e-6
    assert sum(miss_m**2 for miss_m in misses_m) == pytest.approx(min(costs), abs=1e-3)


def feet_of(stop: tuple[float, float], points: Places) -> Iterator[tuple[float, tuple[float, float]]]:
    """Yield the point of each piece that is next to a stop: how far along, and where."""
    along_m = 0.0
    for (x_0, y_0), (x_1, y_1) in itertools.pairwise(points):
        length_m = math.dist((x_0, y_0), (x_1, y_1))
        ahead_m = ((stop[0] - x_0) * (x_1 - x_0) + (stop[1] - y_0) * (y_1 - y_0)) / length_m if length_m else 0.0
        share = min(max(ahead_m / length_m, 0.0), 1.0) if length_m else 0.0
        yield along_m + share * length_m, (x_0 + share * (x_1 - x_0), y_0 + share * (y_1 - y_0))
        along_m += length_m


# --- mistakes --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (shape(DETOUR, "other"), "trips.txt, line 2: there is no shape 's' in shapes.txt"),
        ("", "shapes.txt, line 1: the file is empty"),
        ("shape_id,shape_pt_lat\ns,0\n", "shapes.txt, line 1: column shape_pt_lon is missing"),
        (shape(DETOUR).replace("0.001000000", "95"), "shapes.txt, line 3: shape_pt_lat and shape_pt_lon must be degr"),
        (shape(DETOUR).replace(",3\n", ",last\n"), "shapes.txt, line 2: shape_pt_sequence must be a number"),
        (shape(DETOUR, measure=[0, 1, 2, math.nan]), "shapes.txt, line 2: shape_dist_traveled must be a number"),
    ],
)
def test_mistake_in_shapes_is_told_with_file_and_line(write: Write, content: str, message: str) -> None:
    with pytest.raises(LocalError) as caught:
        driven(write([(0, 0), (2, 0)], [0, 400], shapes=content))
    assert message in str(caught.value)


def test_day_without_trips_is_told_with_the_days_of_the_feed(write: Write) -> None:
    folder = write([(0, 0), (2, 0)], [0, 400])
    with pytest.raises(LocalError, match="no trip runs on 2023-01-02; its calendar goes from 20240101 to 20241231"):
        Gtfs(file=str(folder), day="2023-01-02").drive()
