"""Columns of traces: named by a header, by the user, or by the usual order; never guessed."""

from __future__ import annotations

import pytest
from tests.support.trace_texts import assembled, parsed, whys

from carrypost.errors import LocalError
from carrypost.traces.formats import FORMATS, Options
from carrypost.traces.formats.syntax import Positions


def test_what_is_assumed_about_columns_is_said() -> None:
    assert "no header" in FORMATS["gps-csv"].begin(b"0 a 1 2\n", "trace", Options()).assumptions
    assert FORMATS["gps-csv"].begin(b"t node x y\n0 a 1 2\n", "trace", Options()).assumptions == ""
    with pytest.raises(LocalError, match=r"trace, line 1: must be a header that names t, node, x, y or t, node, lat"):
        parsed("gps-csv", "0 a\n")
    with pytest.raises(LocalError, match="column x appears twice"):
        parsed("gps-csv", "t,node,x,x,y\n")
    with pytest.raises(LocalError, match="--columns must name t, node, x, y or"):
        parsed("gps-csv", "0 a 1 2\n", columns=("t", "node"))


@pytest.mark.parametrize(
    ("header", "positions"),
    [
        ("timestamp,user id,latitude,longitude", {"t": 0, "node": 1, "lat": 2, "lon": 3}),
        ("Time Stamp,Node-Id,Latitude [deg],Longitude (°)", {"t": 0, "node": 1, "lat": 2, "lon": 3}),
        ("deviceid,epoch,longitude_deg,latitude_deg", {"node": 0, "t": 1, "lon": 2, "lat": 3}),
    ],
)
def test_names_of_columns_are_known_however_they_are_written(header: str, positions: dict[str, int]) -> None:
    text = header + "\n" + ",".join(["10"] * 4) + "\n"
    rule = FORMATS["gps-csv"].begin(text.encode(), "trace", Options())
    assert isinstance(rule, Positions)
    assert rule.header.positions == positions
    assert rule.assumptions == ""


@pytest.mark.parametrize(
    ("name", "header", "missing"),
    [
        ("gps-csv", "seen,user,lat,lon", "column t is missing"),
        ("gps-csv", "longitude,latitude,whom,moment", "columns t, node are missing"),
        ("pairs", "left,right,when", "columns i, j are missing"),
        ("contacts-csv", "a,b,start,until", "column end is missing"),
    ],
)
def test_a_header_that_lacks_a_column_is_an_error_and_never_a_guess(name: str, header: str, missing: str) -> None:
    with pytest.raises(LocalError) as error:
        parsed(name, header + "\n18.1,59.3,17,20\n")
    told = str(error.value)
    assert told.startswith(f"trace, line 1: {missing}; the header must name ")
    assert f"found {', '.join(header.split(','))}; if columns have other names" in told
    assert told.endswith("--columns")


def test_pairs_are_found_by_the_names_of_their_columns() -> None:
    assert assembled("pairs", "userA,userB,when\nx,y,40\n") == [("x", "y", 20, 40)]
    assert assembled("pairs", "Time id1 id2 c1 c2\n40 x y 3B 3B\n") == [("x", "y", 20, 40)]


def test_a_header_of_sightings_may_name_columns_in_any_order() -> None:
    assert assembled("imote", "first last id1 id2\n1 5 8 9\n") == [("8", "9", 1, 5)]
    with pytest.raises(LocalError, match="columns first, last are missing"):
        assembled("imote", "one two id1 id2\n1 5 8 9\n")


def test_a_bad_first_row_is_no_header_where_columns_are_told() -> None:
    columns = ("t", "node", "x", "y")
    assert whys("gps-csv", "0,a,1,east\n5,a,3,4\n", columns=columns) == [(1, "y must be a number, not 'east'")]
    found = parsed("gps-csv", "when,who,right,up\n5,a,3,4\n", columns=columns)
    assert (found.lines, found.bad_lines) == (1, 0)
    rule = FORMATS["gps-csv"].begin(b"when,who,right,up\n5,a,3,4\n", "trace", Options(columns=columns))
    assert rule.assumptions == "trace, line 1: treated as a header: when,who,right,up"


def test_columns_can_be_told_in_place_of_a_header() -> None:
    text = "a 9 0 1 2\na 9 5 3 4.5\n"
    assert assembled("gps-csv", text, columns=("node", "what", "t", "x", "y")) == [("a", 0, 1, 2), ("a", 5, 3, 4.5)]
