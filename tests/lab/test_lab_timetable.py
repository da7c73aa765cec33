"""Positions from a timetable: rows that can be joined by lines, and facts about the feed and the day."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest

from carrypost.errors import LocalError
from carrypost.lab.ingest.run import positions
from carrypost.lab.schemas import POSITIONS

HOUR_S = 3_600.0

# Stops on the equator, a thousandth of a degree (111 m) apart. Block 7 drives in the morning and in the evening.
FEED = {
    "stops": "stop_id,stop_lat,stop_lon\na,0,0\nb,0,0.001\nc,0,0.003\nunused,0,9\n",
    "routes": "route_id,route_short_name\nr1,1\nr2,2\nr3,3\n",
    "calendar": (
        "service_id,monday,tuesday,wednesday,thursday,friday,saturday,sunday,start_date,end_date\n"
        "week,1,1,1,1,1,0,0,20240101,20241231\n"
        "weekend,0,0,0,0,0,1,1,20240101,20241231\n"
    ),
    "trips": (
        "route_id,service_id,trip_id,block_id,shape_id\n"
        "r1,week,out,7,s\nr1,week,home,7,\nr1,week,late,7,\nr2,week,other,,\nr3,weekend,picnic,,\n"
    ),
    "stop_times": (
        "trip_id,arrival_time,departure_time,stop_id,stop_sequence\n"
        "out,08:00:00,08:00:00,a,1\nout,,,b,2\nout,08:05:00,08:05:00,c,3\n"
        "home,08:35:00,08:35:00,c,1\nhome,08:40:00,08:40:00,a,2\n"
        "late,24:10:00,24:10:00,a,1\nlate,24:20:00,24:20:00,b,2\n"
        "other,08:02:00,08:02:00,c,1\nother,08:04:00,08:04:00,a,2\n"
        "picnic,08:00:00,08:00:00,a,1\npicnic,09:00:00,09:00:00,b,2\n"
    ),
    "shapes": (
        "shape_id,shape_pt_lat,shape_pt_lon,shape_pt_sequence\ns,0,0,1\ns,0.001,0.0015,2\ns,0,0.003,3\nt,0,0,1\nt,0,9,2\n"
    ),
}


@pytest.fixture
def feed(tmp_path: Path) -> Path:
    for name, content in FEED.items():
        (tmp_path / f"{name}.txt").write_text(content)
    return tmp_path


def test_rows_are_those_of_the_table_and_sorted(feed: Path) -> None:
    rows, _ = positions(feed, day="2024-01-02")
    assert rows.schema.names == POSITIONS.names[1:]
    assert [field.type for field in rows.schema] == [POSITIONS.arrow.field(name).type for name in rows.schema.names]
    keys = list(zip(rows["node"].to_pylist(), rows["t"].to_pylist(), strict=True))
    assert keys == sorted(set(keys))


def test_times_are_seconds_since_midnight_of_the_service_day(feed: Path) -> None:
    rows, counts = positions(feed, day="2024-01-02")
    assert (min(rows["t"].to_pylist()), max(rows["t"].to_pylist())) == (8 * HOUR_S, 24 * HOUR_S + 1_200)
    day = counts["day"]
    assert isinstance(day, dict)
    assert (day["first_s"], day["last_s"]) == (8 * HOUR_S, 24 * HOUR_S + 1_200)


def test_vehicle_that_was_away_comes_back_under_another_name(feed: Path) -> None:
    rows, counts = positions(feed, day="2024-01-02")
    times: dict[str, list[float]] = {}
    for node, t in zip(rows["node"].to_pylist(), rows["t"].to_pylist(), strict=True):
        times.setdefault(node, []).append(t)
    assert {node: (each[0], each[-1]) for node, each in times.items()} == {
        "1-1": (8 * HOUR_S, 8 * HOUR_S + 2_400),
        "1-1.2": (24 * HOUR_S + 600, 24 * HOUR_S + 1_200),
        "2-1": (8 * HOUR_S + 120, 8 * HOUR_S + 240),
    }
    day = counts["day"]
    assert isinstance(day, dict)
    assert (day["vehicles"], day["nodes"]) == (2, 3)


def test_vehicle_that_waits_for_its_next_trip_stands_there_with_a_sample_every_minute(feed: Path) -> None:
    rows, _ = positions(feed, day="2024-01-02")
    mine = [row for row in rows.to_pylist() if row["node"] == "1-1"]
    gaps_s = [after["t"] - before["t"] for before, after in itertools.pairwise(mine)]
    assert 0 < min(gaps_s) <= max(gaps_s) == 60
    waiting = [row for row in mine if 300 <= row["t"] - 8 * HOUR_S <= 2_100]
    assert len(waiting) == 31
    assert len({(round(row["x"], 6), round(row["y"], 6)) for row in waiting}) == 1


@pytest.mark.parametrize(("shapes", "north_m", "followed"), [(True, 111.19, 1), (False, 0, 0)])
def test_shapes_are_followed_unless_they_are_not_wanted(
    feed: Path, *, shapes: bool, north_m: float, followed: int
) -> None:
    rows, counts = positions(feed, day="2024-01-02", shapes=shapes)
    y = rows["y"].to_pylist()
    assert max(y) - min(y) == pytest.approx(north_m, abs=0.01)
    day = counts["day"]
    assert isinstance(day, dict)
    assert (day["trips_on_shapes"], day["trips_off_shapes"]) == (followed, 0)


@pytest.mark.parametrize("shapes", [True, False])
def test_all_rows_of_the_feed_and_those_of_the_day_are_counted(feed: Path, *, shapes: bool) -> None:
    _, counts = positions(feed, day="2024-01-02", shapes=shapes)
    assert counts["feed"] == {
        "routes": 3,
        "trips": 5,
        "stops": 4,
        "stop_times": 11,
        "shapes": 2,
        "shape_points": 5,
    }
    assert counts["day"] == {
        "date": "2024-01-02",
        "trips": 4,
        "routes": 2,
        "stop_times": 9,
        "stop_times_without_time": 1,
        "trips_at_once": 2,
        "trips_left_out": 0,
        "trips_on_shapes": 1 if shapes else 0,
        "trips_off_shapes": 0,
        "vehicles": 2,
        "nodes": 3,
        "first_s": 8 * HOUR_S,
        "last_s": 24 * HOUR_S + 1_200,
    }
    assert counts["middle"] == {"lat": 0.0, "lon": pytest.approx(0.0015)}


@pytest.mark.parametrize("day", ["", "2.1.2024", "2024-13-01"])
def test_day_that_is_none_is_told_by_the_name_of_the_option(feed: Path, day: str) -> None:
    with pytest.raises(LocalError, match=r"--day must be a day such as 2014-06-03, not"):
        positions(feed, day=day)


def test_feed_that_is_not_there_is_told(tmp_path: Path) -> None:
    with pytest.raises(LocalError, match="there is no such file or folder"):
        positions(tmp_path / "none.zip", day="2024-01-02")
