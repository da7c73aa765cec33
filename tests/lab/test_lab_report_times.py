"""Times, counts and shares as the paper writes them."""

from __future__ import annotations

import math

import pytest

from carrypost.errors import LocalError
from carrypost.lab.report.numbers import count, difference, lifetime, mean, points, seconds, share, shown


@pytest.mark.parametrize(
    ("time_s", "text"),
    [
        (None, "–"),
        (math.nan, "–"),
        (0, "0"),
        (0.004, "4 ms"),
        (0.062, "62 ms"),
        (0.000_086_4, "0.086 ms"),
        (0.2, "0.2 s"),
        (2, "2 s"),
        (7.8, "7.8 s"),
        (9.96, "10 s"),
        (13, "13 s"),
        (59.6, "1 min"),
        (63, "1 min 3 s"),
        (2_630, "43 min 50 s"),
        (1_200, "20 min"),
        (3_599.6, "1 h"),
        (4_920, "1 h 22 min"),
        (4_949, "1 h 22 min"),
        (7_196, "1 h 59 min 56 s"),
        (7_200, "2 h"),
        (7_210, "2 h 10 s"),
        (42_420, "11 h 47 min"),
        (51_300, "14 h 15 min"),
        (-0.062, "\u221262 ms"),
        (-86_400, "\u221224 h"),
    ],
)
def test_times_are_shown_with_their_units(time_s: float | None, text: str) -> None:
    assert shown(time_s) == text


@pytest.mark.parametrize(
    ("text", "read_s"),
    [
        ("4 ms", 0.004),
        ('0.2"', 0.2),
        ('13"', 13),
        ("1'03\"", 63),
        ("20'", 1_200),
        ("1h22'", 4_920),
        ("1h59'56\"", 7_196),
    ],
)
def test_times_of_the_paper_are_read(text: str, read_s: float) -> None:
    assert seconds(text) == pytest.approx(read_s)


@pytest.mark.parametrize("text", ["", "soon", "12", "1h2", "-3'"])
def test_what_is_no_time_is_an_error(text: str) -> None:
    with pytest.raises(LocalError, match="must be a length of time"):
        seconds(text)


def test_lifetimes_are_minutes() -> None:
    assert [lifetime(each) for each in (None, 7_200, 300, 90, 86_400)] == [
        "endless",
        "120 min",
        "5 min",
        "1 min 30 s",
        "24 h",
    ]


def test_a_share_is_all_or_nothing_only_where_it_is() -> None:
    told = [share(each) for each in (None, 0, 1, 0.9519, 0.999_999, 0.000_001, 0.5)]
    assert told == ["–", "0 %", "100 %", "95.19 %", "99.9999 %", "0.0001 %", "50.00 %"]


def test_counts_of_several_seeds_may_be_broken_but_large_ones_are_not() -> None:
    assert [count(each) for each in (None, 7, 7.5, 1_234.4)] == ["–", "7", "7.5", "1,234"]
    assert [mean(each) for each in (None, 0, 0.000_08, 0.5, 12.34)] == ["–", "0", "< 0.001", "0.500", "12.3"]


@pytest.mark.parametrize(
    ("ours", "paper", "text"),
    [
        (105, 100, "+5.0 %"),
        (99.96, 100, "\u22120.0 %"),
        (100, 100, "0 %"),
        (0, 0, "0 %"),
        (3, 0, "–"),
        (0, 3, "\u2212100 %"),
        (250, 100, "+150 %"),
        (None, 3, "–"),
        (3, None, "–"),
        (math.nan, 3, "–"),
    ],
)
def test_a_difference_is_ours_by_the_papers(ours: float | None, paper: float | None, text: str) -> None:
    assert difference(ours, paper) == text


def test_shares_differ_by_points() -> None:
    assert points(0.999_99, 0.9519) == "+4.81 pp"
    assert points(0.9999, 0.9999) == "0 pp"
    assert points(None, 0.5) == "–"
