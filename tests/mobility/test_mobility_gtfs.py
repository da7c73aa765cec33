"""Vehicles from a timetable in GTFS: the trips that run, their vehicles and positions, and errors in files."""

from __future__ import annotations

import math
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from carrypost.emu.scenario import Scenario
from carrypost.errors import ConfigError, FileError, LocalError
from carrypost.mobility.gtfs import Gtfs
from carrypost.traces.tracks import Movement

SECOND = 1_000_000
MINUTE = 60 * SECOND
HOUR = 60 * MINUTE
DAY = 24 * HOUR
DEGREE_M = math.radians(1.0) * 6_371_000.0

# Stops on the equator, a thousandth of a degree (111 m) apart, and one far away; 2024-01-01 was a Monday.
FEED = {
    "stops": "stop_id,stop_lat,stop_lon\na,0,0\nb,0,0.001\nc,0,0.003\nd,0,0.004\nfar,0,0.104\n",
    "routes": "route_id,route_short_name\nr1,1\nr2,\n",
    "calendar": (
        "service_id,monday,tuesday,wednesday,thursday,friday,saturday,sunday,start_date,end_date\n"
        "week,1,1,1,1,1,0,0,20240101,20241231\n"
        "weekend,0,0,0,0,0,1,1,20240101,20241231\n"
    ),
    "trips": "route_id,service_id,trip_id\nr1,week,out\nr1,week,home\nr2,weekend,picnic\n",
    "stop_times": (
        "trip_id,arrival_time,departure_time,stop_id,stop_sequence\n"
        "out,08:00:00,08:00:00,a,1\n"
        "out,08:01:00,08:02:00,b,2\n"
        "out,08:05:00,08:05:00,d,9\n"
        "home,08:20:00,08:20:00,d,1\n"
        "home,08:30:00,08:30:00,a,2\n"
        "picnic,24:10:00,24:10:00,a,1\n"
        "picnic,25:10:00,25:10:00,far,2\n"
    ),
}
Write = Callable[..., Path]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    """Writes a feed as a folder, with some of its files changed or, where None, left out."""

    def written(**changes: str | None) -> Path:
        for name, content in (FEED | changes).items():
            if content is not None:
                (tmp_path / f"{name}.txt").write_text(content)
        return tmp_path

    return written


def moved(file: Path, day: str = "2024-01-02", start: str = "08:00", duration_us: int = DAY, **more: float) -> Movement:
    settings: dict[str, Any] = {"file": str(file), "day": day, "start": start, **more}
    return Gtfs(**settings).move(1, duration_us)


def samples(movement: Movement, node: str) -> list[tuple[float, int]]:
    """Seconds, and thousandths of a degree east of the westernmost place."""
    tracks = movement.tracks
    mine = tracks.node == tracks.nodes.index(node)
    west = tracks.x.min()
    return [
        (t_us / SECOND, round((x - west) / DEGREE_M * 1_000))
        for t_us, x in zip(tracks.t_us[mine].tolist(), tracks.x[mine].tolist(), strict=True)
    ]


# --- which trips, and where ------------------------------------------------------------------------------------


def test_vehicle_stops_where_and_when_the_timetable_says(write: Write) -> None:
    movement = moved(write())
    assert movement.tracks.nodes == ("1-1",)
    assert samples(movement, "1-1") == [(0, 0), (60, 1), (120, 1), (300, 4), (1_200, 4), (1_800, 0)]
    assert movement.presences == [("1-1", 0, 1_800 * SECOND)]


def test_distances_are_metres(write: Write) -> None:
    tracks = moved(write()).tracks
    assert tracks.x.max() - tracks.x.min() == pytest.approx(0.004 * DEGREE_M)
    assert set(tracks.y.tolist()) == {0.0}


def test_degrees_of_longitude_are_shorter_away_from_the_equator(write: Write) -> None:
    tracks = moved(write(stops=FEED["stops"].replace(",0,", ",60,"))).tracks
    assert tracks.x.max() - tracks.x.min() == pytest.approx(0.002 * DEGREE_M)


def test_town_on_the_date_line_is_not_torn_apart(write: Write) -> None:
    stops = "stop_id,stop_lat,stop_lon\na,0,179.999\nb,0,180\nc,0,-179.998\nd,0,-179.997\n"
    assert samples(moved(write(stops=stops)), "1-1")[3] == (300, 4)


def test_zip_file_is_as_good_as_a_folder_even_with_a_folder_in_it(write: Write, tmp_path: Path) -> None:
    folder = write()
    packed = tmp_path / "feed.zip"
    with zipfile.ZipFile(packed, "w") as archive:
        for name in FEED:
            archive.write(folder / f"{name}.txt", f"town/{name}.txt")
    assert samples(moved(packed), "1-1") == samples(moved(folder), "1-1")


def test_other_day_has_other_trips_and_hours_go_on_after_midnight(write: Write) -> None:
    movement = moved(write(), day="2024-01-06", start="24:00")
    assert movement.presences == [("r2-1", 600 * SECOND, 4_200 * SECOND)]


@pytest.mark.parametrize(
    ("exception", "nodes"), [("week,20240106,1", ("1-1", "r2-1")), ("weekend,20240107,2", ("r2-1",))]
)
def test_exceptions_of_a_day_count(write: Write, exception: str, nodes: tuple[str, ...]) -> None:
    folder = write(calendar_dates=f"service_id,date,exception_type\n{exception}\n")
    assert moved(folder, day="2024-01-06", start="00:00", duration_us=2 * DAY).tracks.nodes == nodes


def test_calendar_of_single_days_is_enough(write: Write) -> None:
    folder = write(calendar=None, calendar_dates="service_id,date,exception_type\nweek,20240106,1\n")
    assert moved(folder, day="2024-01-06").tracks.nodes == ("1-1",)


def test_stop_without_a_time_is_passed_at_constant_speed(write: Write) -> None:
    times = FEED["stop_times"].replace("out,08:01:00,08:02:00,b,2", "out,,,c,2")
    assert samples(moved(write(stop_times=times)), "1-1")[:3] == [(0, 0), (225, 3), (300, 4)]


@pytest.mark.parametrize("time", ["08:00:00", "08:05:00"])
def test_stop_with_the_time_of_its_neighbour_is_passed_at_constant_speed(write: Write, time: str) -> None:
    times = FEED["stop_times"].replace("out,08:01:00,08:02:00,b,2", f"out,{time},{time},c,2")
    assert samples(moved(write(stop_times=times)), "1-1")[:3] == [(0, 0), (225, 3), (300, 4)]


def test_trip_that_takes_no_time_moves_nobody(write: Write) -> None:
    times = FEED["stop_times"].replace("home,08:30:00,08:30:00", "home,08:20:00,08:20:00")
    assert moved(write(stop_times=times)).presences == [("1-1", 0, 300 * SECOND)]


def test_trip_with_frequencies_runs_again_and_again(write: Write) -> None:
    frequencies = "trip_id,start_time,end_time,headway_secs\nout,09:00:00,10:00:00,1200\n"
    movement = moved(write(frequencies=frequencies), chain_wait_s=0)
    assert movement.presences == [
        ("1-1", 1_200 * SECOND, 1_800 * SECOND),
        ("1-2", 3_600 * SECOND, 3_900 * SECOND),
        ("1-3", 4_800 * SECOND, 5_100 * SECOND),
        ("1-4", 6_000 * SECOND, 6_300 * SECOND),
    ]


# --- who drives them -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("home", "chain", "nodes"),
    [
        ("08:20:00", {}, ("1-1",)),
        ("08:20:00", {"chain_wait_s": 899}, ("1-1", "1-2")),
        ("08:20:00", {"chain_wait_s": 900}, ("1-1",)),
        ("08:04:59", {}, ("1-1", "1-2")),
        ("08:05:00", {}, ("1-1",)),
    ],
)
def test_trip_is_taken_over_by_a_vehicle_that_did_not_wait_too_long(
    write: Write, home: str, chain: dict[str, Any], nodes: tuple[str, ...]
) -> None:
    times = FEED["stop_times"].replace("home,08:20:00,08:20:00", f"home,{home},{home}")
    assert moved(write(stop_times=times), **chain).tracks.nodes == nodes


@pytest.mark.parametrize(("chain_m", "nodes"), [(111, ("1-1", "1-2")), (112, ("1-1",))])
def test_trip_is_taken_over_by_a_vehicle_that_is_near(write: Write, chain_m: float, nodes: tuple[str, ...]) -> None:
    times = FEED["stop_times"].replace("08:20:00,d,1", "08:20:00,c,1")
    assert moved(write(stop_times=times), chain_m=chain_m).tracks.nodes == nodes


def test_vehicle_that_arrived_last_takes_over(write: Write) -> None:
    trips = FEED["trips"] + "r1,week,early\n"
    times = FEED["stop_times"] + "early,07:30:00,07:30:00,a,1\nearly,08:04:00,08:04:00,d,2\n"
    movement = moved(write(trips=trips, stop_times=times), start="07:30")
    assert [(node, leave) for node, _, leave in movement.presences] == [("1-1", 34 * MINUTE), ("1-2", 60 * MINUTE)]


def test_blocks_say_who_drives_whatever_the_distance(write: Write) -> None:
    trips = "route_id,service_id,trip_id,block_id\nr1,week,out,7\nr1,week,home,8\nr2,week,picnic,7\n"
    movement = moved(write(trips=trips), duration_us=2 * DAY)
    assert movement.tracks.nodes == ("1-1", "1-2")
    assert samples(movement, "1-1")[-1] == (17 * 3_600 + 600, 104)


def test_vehicle_that_waits_long_for_its_next_trip_is_away_in_between(write: Write) -> None:
    trips = "route_id,service_id,trip_id,block_id\nr1,week,out,7\nr1,week,home,7\nr2,week,picnic,7\n"
    movement = moved(write(trips=trips), duration_us=2 * DAY)
    assert movement.presences == [
        ("1-1", 0, 1_800 * SECOND),
        ("1-1", (16 * 60 + 10) * MINUTE, (17 * 60 + 10) * MINUTE),
    ]


def test_block_that_goes_on_at_once_from_across_the_street_is_one_vehicle(write: Write) -> None:
    trips = "route_id,service_id,trip_id,block_id\nr1,week,out,7\nr1,week,home,7\n"
    times = FEED["stop_times"].replace("home,08:20:00,08:20:00,d", "home,08:05:00,08:05:00,c")
    assert samples(moved(write(trips=trips, stop_times=times)), "1-1")[-2:] == [(300, 4), (1_800, 0)]


# --- the run ---------------------------------------------------------------------------------------------------


def test_run_may_start_and_end_in_the_middle_of_trips(write: Write) -> None:
    movement = moved(write(), start="08:03:30", duration_us=20 * MINUTE)
    assert movement.presences == [("1-1", 0, None)]
    tracks = movement.tracks
    assert tracks.t_us[0] == 0
    assert tracks.x[1] - tracks.x[0] == pytest.approx(0.0015 * DEGREE_M)


def test_vehicle_of_another_hour_is_not_there(write: Write) -> None:
    assert moved(write(), start="09:00").tracks.nodes == ()
    assert moved(write(), start="07:00", duration_us=HOUR).tracks.nodes == ()


def test_scenario_names_the_feed_beside_it(write: Write) -> None:
    write()
    text = 'duration_s = 3600\n[mobility]\nmodel = "gtfs"\nfile = "."\nday = "2024-01-02"\n'
    scenario = Scenario.parse(text, write())
    assert isinstance(scenario.mobility, Gtfs)
    assert scenario.mobility.move(1, DAY).tracks.nodes == ("1-1",)


# --- mistakes --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"day": "2024-01-02"}, "mobility.file is missing"),
        ({"file": "x", "day": "2.1.2024"}, "mobility.day must be a day such as 2014-06-03, not '2.1.2024'"),
        ({"file": "x"}, "mobility.day must be a day such as 2014-06-03, not ''"),
        ({"file": "x", "day": "2024-01-02", "start": "eight"}, "mobility.start must be a time such as 05:30"),
    ],
)
def test_wrong_setting_is_told_with_what_is_allowed(fields: dict[str, str], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        Gtfs(**fields)  # type: ignore[arg-type]
    assert message in str(caught.value)


TIMES = FEED["stop_times"]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"stops": None}, "the feed has no stops.txt"),
        ({"calendar": None}, "the feed has neither calendar.txt nor calendar_dates.txt"),
        ({"trips": ""}, "trips.txt, line 1: the file is empty"),
        ({"trips": "route_id,service_id,trip_id\nr1,never,out\n"}, "no trip runs on 2024-01-02"),
        ({"stop_times": TIMES.splitlines()[0] + "\n"}, "trips of 2024-01-02 have no stops"),
        ({"stop_times": TIMES.replace("08:01:00", "8h01")}, "stop_times.txt, line 3: arrival_time must be a time such"),
        ({"stop_times": TIMES.replace("08:01:00", "07:01:00")}, "stop_times.txt, line 3: trip out goes back in time"),
        ({"stop_times": TIMES.replace(",b,", ",z,")}, "stop_times.txt, line 3: there is no stop 'z' in stops.txt"),
        (
            {"stop_times": TIMES.replace("08:00:00", "")},
            "stop_times.txt, line 2: the first and the last stop of trip out",
        ),
        ({"stop_times": TIMES.replace("d,9", "d,last")}, "stop_times.txt, line 4: stop_sequence must be a number"),
        (
            {"stops": FEED["stops"].replace("a,0", "a,north")},
            "stops.txt, line 2: stop_lat must be a number, not 'north'",
        ),
        ({"stops": FEED["stops"].replace("a,0", "a,91")}, "stops.txt, line 2: stop_lat and stop_lon must be degrees"),
        (
            {"calendar_dates": "service_id,date,exception_type\nweek,20240102,3\n"},
            "calendar_dates.txt, line 2: exception_type must be 1 or 2, not '3'",
        ),
        (
            {"frequencies": "trip_id,start_time,end_time,headway_secs\nout,09:00:00,10:00:00,0\n"},
            "frequencies.txt, line 2: headway_secs must be above 0",
        ),
        (
            {"frequencies": "trip_id,start_time,end_time,headway_secs\nout,,10:00:00,60\n"},
            "frequencies.txt, line 2: start_time and end_time must be given",
        ),
    ],
)
def test_mistake_in_a_feed_is_told_with_file_and_line(
    write: Write, changes: dict[str, str | None], message: str
) -> None:
    with pytest.raises(LocalError) as caught:
        moved(write(**changes))
    assert message in str(caught.value)


def test_file_that_is_no_feed_is_told(tmp_path: Path) -> None:
    with pytest.raises(LocalError, match="there is no such file or folder"):
        moved(tmp_path / "none.zip")
    (tmp_path / "text.zip").write_text("no zip")
    with pytest.raises(FileError, match="cannot be read as a zip file"):
        moved(tmp_path / "text.zip")
