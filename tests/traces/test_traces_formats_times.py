"""Times in traces: in units, as dates, as times of day. A wrong guess is reported with what to say instead."""

from __future__ import annotations

import pytest
from tests.support.trace_texts import assembled, parsed, whys

from carrypost.errors import LocalError

DAY_S = 1_401_753_600
"""2014-06-03, 0 o'clock in UTC."""


@pytest.mark.parametrize(
    ("unit", "word", "t"),
    [
        ("ms", "1700000000123", 1_700_000_000.123),
        ("us", "1700000000123456", 1_700_000_000.123456),
        ("ns", "1700000000123456000", 1_700_000_000.123456),
        ("min", "1.5", 90.0),
        ("h", "-2", -7200.0),
        ("ms", "2014-06-03 00:00:01", DAY_S + 1.0),
    ],
)
def test_times_are_numbers_of_some_unit_and_dates_are_dates(unit: str, word: str, t: float) -> None:
    assert assembled("gps-csv", f"t,node,x,y\n{word},a,1,2\n", time_unit=unit) == [("a", t, 1, 2)]


def test_all_tables_have_units_of_time_but_intervals_are_seconds() -> None:
    assert assembled("pairs", "40000 x y\n", time_unit="ms") == [("x", "y", 20, 40)]
    assert assembled("imote", "x y 1 2 1 0\n", time_unit="min", interval_s=5.0) == [("x", "y", 60, 125)]
    assert assembled("contacts-csv", "a,b,start,end\nx,y,1,2\n", time_unit="h") == [("x", "y", 3600, 7200)]


@pytest.mark.parametrize("name", ["time (ms)", "Time [msec]", "timestamp_ms", "epoch millis", "t"])
def test_a_column_may_name_the_unit_that_times_are_in(name: str) -> None:
    assert assembled("gps-csv", f"{name},node,x,y\n1500,a,1,2\n", time_unit="ms") == [("a", 1.5, 1, 2)]


def test_of_two_columns_of_time_the_one_in_the_unit_counts() -> None:
    text = "time,time_ms,node,x,y\n7,1500,a,1,2\n"
    assert assembled("gps-csv", text, time_unit="ms") == [("a", 1.5, 1, 2)]
    assert assembled("gps-csv", text) == [("a", 7, 1, 2)]


def test_a_header_in_another_unit_is_told_with_the_option_for_it() -> None:
    with pytest.raises(LocalError) as error:
        parsed("gps-csv", "time (ms),node,x,y\n1,a,1,2\n")
    assert str(error.value) == (
        "trace, line 1: column t is missing; the header must name t, node, x, y or t, node, lat, lon, "
        "found time (ms), node, x, y; if time (ms) is meant: --time-unit ms"
    )


def test_a_time_that_is_too_large_is_told_with_the_unit_that_it_may_be_in() -> None:
    found = whys("gps-csv", "1700000000000 a 1 2\n1700000000000000 a 1 2\n1700000000000000000 a 1 2\n")
    assert [why.split("; ")[1] for _, why in found] == [
        "are these milliseconds? Then --time-unit ms",
        "are these microseconds? Then --time-unit us",
        "are these nanoseconds? Then --time-unit ns",
    ]
    assert whys("pairs", "-5 a b\n", time_unit="ms") == [
        (1, "t must be a number from 0 to 9,000,000,000,000 ms, not -5"),
    ]


def test_times_of_day_are_of_the_day_that_is_told() -> None:
    text = "08:15:30 a 1 2\n8:16 a 3 4\n08:16:00.25 a 3 4\n24:00:01 a 5 6\n"
    assert assembled("gps-csv", text, date="2014-06-03") == [
        ("a", DAY_S + 29_730, 1, 2),
        ("a", DAY_S + 29_760, 3, 4),
        ("a", DAY_S + 29_760.25, 3, 4),
        ("a", DAY_S + 86_401, 5, 6),
    ]
    contacts = "a,b,start,end\nx,y,00:00,00:01:00\n"
    assert assembled("contacts-csv", contacts, date="1970-01-01") == [("x", "y", 0, 60)]
    assert assembled("pairs", "00:01:00 x y\n", date="1970-01-01", columns=("t", "i", "j")) == [("x", "y", 40, 60)]


def test_what_is_no_time_of_day_is_a_bad_line_where_a_day_is_told() -> None:
    wanted = "t must be a time of day such as 08:15:30, because of --date, not "
    words = ("29730", "08:60:00", "2014-06-03 08:15:30", "08:15:30 pm")
    rows = "".join(f"{word},a,1,2\n" for word in words)
    assert whys("gps-csv", f"t,node,x,y\n{rows},a,1,2\n", date="2014-06-03") == [
        *((number, f"{wanted}{word!r}") for number, word in enumerate(words, 2)),
        (6, "t must not be empty"),
    ]


def test_a_time_of_day_without_a_day_is_told_with_the_option_for_it() -> None:
    told = "t is a time of day, 08:15:30: give its day with --date, such as 2014-06-03"
    assert whys("gps-csv", "08:15:30 a 1 2\n") == [(1, told)]


def test_contacts_and_sightings_may_have_dates() -> None:
    rows = "x,y,2014-06-03 00:00:00,2014-06-03T00:01:00Z\n"
    assert assembled("contacts-csv", "a,b,start,end\n" + rows) == [("x", "y", DAY_S, DAY_S + 60)]
    assert assembled("imote", "id1,id2,first,last\n" + rows) == [("x", "y", DAY_S, DAY_S + 60)]
