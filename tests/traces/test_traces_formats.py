"""Formats of traces, line by line: their rows, and the errors about wrong lines."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.trace_texts import assembled, parse_contacts, parsed, whys

from carrypost.errors import LocalError
from carrypost.traces.contacts import FOREVER_US, parse_meetings
from carrypost.traces.formats import FORMATS, Options
from carrypost.traces.formats.lines import cut

MILLISECONDS = "are these milliseconds? Then --time-unit ms"
TWO_PLACES = "are there two nodes with one id? To keep one of the places: --same-time first, or last"


# ------------------------------------------------------------------------------------------------------- lines
def test_blank_lines_and_comments_are_no_lines_but_count_in_numbers() -> None:
    lines = cut(b"\xef\xbb\xbffirst\r\n\n  # no\n\t third \nlast", 1)
    assert lines.text.to_pylist() == ["first", "\t third", "last"], "beside a tab there may be an empty cell"
    assert lines.number.tolist() == [1, 4, 5]
    assert cut(b"a\nb\n", 7).number.tolist() == [7, 8]
    assert cut(b"", 1).text.to_pylist() == []


def test_a_line_that_is_no_text_is_one_bad_line() -> None:
    found = parsed("pairs", b"20 a b B\n40 a \xff B\n60 a c Gr\xf6\xdfe\n")
    assert found.lines == 3
    assert [(bad.at, bad.why) for bad in found.bad] == [(2, "j has characters that cannot be shown: '\ufffd'")]


# ---------------------------------------------------------------------------------------------------- positions
@pytest.mark.parametrize(
    "text",
    [
        "t,node,x,y\n0,a,1,2\n5,a,3,4.5\n",
        "\ufeffY;X;Node_ID;Time\n2;1;a;0\n4.5;3;a;5\n",
        "t\tid\tspare\tx\ty\n0\ta\t\t1\t2\n5\ta\tq\t3\t4.5\n",
        "t  node x   y\n0 a 1 2\n 5   a 3 4.5\n",
        "0 a 1 2\n5 a 3 4.5\n",
        '"t","node","x","y"\n0,"a",1,2\n"5","a",3,"4.5"\n',
        "1970-01-01 00:00:00,a,1,2\n1970-01-01T00:00:05Z,a,3,4.5\n",
        "+0,a,1e0,.2E1,\n5.,a,3,4.5,\n",
        "Time Stamp,Node Id,X (m),pos-y\n0,a,1,2\n5,a,3,4.5\n",
        "1970-01-01T02:00:00+02:00,a,1,2\n1969-12-31 19:30:05.000000-0430,a,3,4.5\n",
        "1970-01-01 01:00:00.0+01,a,1,2\n1970-01-01T00:00:05z,a,3,4.5\n",
    ],
)
def test_tables_of_places_are_read_however_they_are_written(text: str) -> None:
    assert assembled("gps-csv", text) == [("a", 0, 1, 2), ("a", 5, 3, 4.5)]


def test_cells_may_hold_the_separator_within_quotes() -> None:
    assert assembled("gps-csv", 't,node,x,y\n0,"a,b",1,2\n0,c,1,2\n') == [("a,b", 0, 1, 2), ("c", 0, 1, 2)]


def test_where_a_receiver_had_no_fix_is_a_bad_line() -> None:
    text = "t,node,lat,lon\n0,a,0,0\n0,b,59.3,18\n5,a,0.0,-0\n9,a,0,18\n"
    assert whys("gps-csv", text) == [
        (2, "0, 0 means that the receiver had no fix"),
        (4, "0, 0 means that the receiver had no fix"),
    ]


def test_bad_rows_are_told_apart_from_good_ones() -> None:
    text = (
        "t,node,x,y\n0,a,1,2\nnow,a,1,2\n1,,1,2\n2,\x07,1,2\n3,a,1\n4,a,1,2,3\n5,a,nan,2\n1700000000000,a,1,2\n"
        "6,a,1,2e9\n2020-13-45 00:00:00,a,1,2\n9,a,1,2\n"
    )
    found = parsed("gps-csv", text)
    assert (found.lines, found.bad_lines, found.rows.num_rows) == (11, 9, 2)
    assert whys("gps-csv", text) == [
        (3, "t must be a number, not 'now'"),
        (4, "node must not be empty"),
        (5, "node has characters that cannot be shown: '\\x07'"),
        (6, "y is missing: the row has 3 cells"),
        (7, "the row has 5 cells, the header names 4 columns"),
        (8, "x must be a number from -100,000,000 to 100,000,000 m, not nan"),
        (9, f"t must be a number from -9,000,000,000 to 9,000,000,000 s, not 1.7e+12; {MILLISECONDS}"),
        (10, "y must be a number from -100,000,000 to 100,000,000 m, not 2e+09"),
        (11, "t must be a number, not '2020-13-45 00:00:00'"),
    ]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "30 a 0 0\n30 b 0 0\n20 a 0 0\n",
            "line 3: the time of node a goes back, from 30 s to 20 s; to accept rows in any order: --unsorted",
        ),
        (
            "0 b 0 0\n0 a 0 0\n1 b 5 5\n0 a 9 1\n",
            f"line 4: node a is at (9, 1), but line 2 says (0, 0) for the same time; {TWO_PLACES}",
        ),
    ],
)
def test_a_trace_that_cannot_be_is_an_error(text: str, message: str) -> None:
    with pytest.raises(LocalError) as error:
        assembled("gps-csv", text)
    assert str(error.value) == f"trace, {message}"


def test_rows_in_any_order_and_places_of_one_time_can_be_allowed() -> None:
    assert assembled("gps-csv", "30 a 0 0\n20 a 1 1\n", unsorted=True) == [("a", 20, 1, 1), ("a", 30, 0, 0)]
    twice = "0 a 0 0\n5 a 1 1\n5 a 2 2\n"
    assert assembled("gps-csv", twice, same_time="first") == [("a", 0, 0, 0), ("a", 5, 1, 1)]
    assert assembled("gps-csv", twice, same_time="last") == [("a", 0, 0, 0), ("a", 5, 2, 2)]
    assert assembled("gps-csv", "0 a 0 0\n0 a 0 0.0001\n") == [("a", 0, 0, 0)], "one place, but for rounding"


def test_places_of_the_one_are_counted_from_its_header() -> None:
    text = "0 10 100 200 -50 50 0 0\n0 p1 100 0\n10 p1 101 -50 0\n"
    assert assembled("one-movement", text) == [("p1", 0, 0, 50), ("p1", 10, 1, 0)]
    assert whys("one-movement", text + "11 p1 x 0\n") == [(4, "must read TIME NODE X Y, not '11 p1 x 0'")]


def test_walkers_that_come_back_are_other_nodes() -> None:
    text = (
        "0 create 1 0 0 0\n0 setdest 1 10 0 0 1 10\n5 setdest 1 5 9 0 3 8\n8 destroy 1\n"
        "20 create 1 100 0 0\n20 setdest 1 100 5 0 1 25\n0 create 10 3 3 0\n4 destroy 10\n"
    )
    assert assembled("kth", text) == [
        ("1", 0, 0, 0),
        ("1", 5, 5, 0),
        ("1", 8, 5, 9),
        ("1.2", 20, 100, 0),
        ("1.2", 25, 100, 5),
        ("10", 0, 3, 3),
        ("10", 4, 3, 3),
    ]
    with pytest.raises(LocalError, match="line 5: node 1 is created a second time"):
        assembled("kth", text, returns=False)
    with pytest.raises(LocalError, match=r"line 5: node 1 returns under the name 1.2, which another node has"):
        assembled("kth", text + "0 create 1.2 0 0 0\n")


def test_walkers_cut_off_in_the_middle_of_their_way_are_where_they_came_to() -> None:
    text = "0 create 1 0 0 0\n0 setdest 1 8 0 0 1 8\n2 setdest 1 2 4 0 1 6\n4 destroy 1\n"
    assert assembled("kth", text) == [("1", 0, 0, 0), ("1", 2, 2, 0), ("1", 4, 2, 2)]


def test_nodes_of_ns_2_are_told_anew_on_their_way() -> None:
    text = (
        "set god_ [God instance]\n$node_(0) set X_ 0.0\n$node_(0) set Y_ 0\n$node_(0) set Z_ 0\n"
        '$ns_ at 10.0 "$node_(0) setdest 30 40 5"\n$ns_ at 5 "$node_(0) setdest 0 10 1.0 "\n'
    )
    # Under way from 5 s on, halfway when told anew at 10 s; from (0, 5) it is sqrt(30² + 35²) m then.
    *before, (node, t, x, y) = assembled("ns2", text)
    assert before == [("0", 0, 0, 0), ("0", 5, 0, 0), ("0", 10, 0, 5)]
    assert (node, t, x, y) == ("0", pytest.approx(10 + 2125**0.5 / 5), 30, 40)
    assert parsed("ns2", text).passed == 1
    assert whys("ns2", '$ns_ at 1 "$node_(0) setdest 1 1"\n')[0][1].startswith("must read $node_(N) set X_ NUMBER, or")


# ----------------------------------------------------------------------------------------------------- contacts
def test_rows_of_pairs_cover_the_time_before_and_are_joined() -> None:
    text = "Time;id1;id2;PC;PC\n40;2;1;x;y\n60;1;2;x;y\n100;1;2;x;y\n60;3;1;x;y\n60;1;2;x;y\n"
    assert assembled("pairs", text) == [("1", "2", 20, 60), ("1", "3", 40, 60), ("1", "2", 80, 100)]
    assert assembled("pairs", text, interval_s=60.0, overlaps=True) == [("1", "2", -20, 100), ("1", "3", 0, 60)]


def test_rows_of_pairs_that_overlap_are_one_contact_if_asked_for() -> None:
    text = "20 a b\n30 a b\n50 a b\n"
    assert assembled("pairs", text) == [("a", "b", 0, 20), ("a", "b", 20, 50)]
    assert assembled("pairs", text, overlaps=True) == [("a", "b", 0, 50)]


def test_nodes_that_meet_themselves_are_left_out() -> None:
    assert assembled("pairs", "20 a a\n20 a b\n") == [("a", "b", 0, 20)]
    assert whys("contacts-csv", "a,b,start,end\nx,x,1,2\n") == [(2, "x is in contact with itself")]


def test_nights_of_haslemere_part_contacts() -> None:
    header = "time_step,user1_id,user2_id,distance_m\n"
    text = header + "191,1,2,10\n192,2,1,50\n193,1,2,0\n"
    day, seven = 86_400, 7 * 3600
    assert assembled("haslemere", text) == [
        ("1", "2", seven + 190 * 300, seven + 192 * 300),
        ("1", "2", day + seven, day + seven + 300),
    ]
    near = assembled("haslemere", text, distance_m=10.0)
    assert near == [("1", "2", seven + 190 * 300, seven + 191 * 300), ("1", "2", day + seven, day + seven + 300)]
    assert whys("haslemere", header + "0,1,2,10\n1.5,1,2,3\n1,1,2,far\n") == [
        (2, "step must be a whole number from 1 to 1,000,000"),
        (3, "step must be a whole number from 1 to 1,000,000"),
        (4, "distance must be a number, not 'far'"),
    ]


def test_sightings_of_either_side_are_one_contact() -> None:
    text = "1 2 0 100 1 0\n2 1 90 150 1 0\n2 1 300 300 2 150\n3 1 10 20 1 0\n"
    assert assembled("imote", text) == [("1", "2", 0, 150), ("1", "3", 10, 20)]
    assert assembled("imote", text, interval_s=60.0) == [
        ("1", "2", 0, 210),
        ("1", "3", 10, 80),
        ("1", "2", 300, 360),
    ]
    with pytest.raises(LocalError, match="line 1: the contact ends at 3 s, before it starts at 5 s"):
        assembled("imote", "1 2 5 3 1 0\n")


def test_contact_plans_count_while_both_directions_are_there() -> None:
    text = (
        "# a plan\n1\na contact +0 +60 1 2 100000\na contact +20 +50 2 1 100000\na contact +50 +90 2 1 5 0.5\n"
        "a range +0 +60 1 2 1\na contact +0 +9 3 1 100000\na contact +0 +9 3 3 100000\nm horizon +0\n"
    )
    found = parsed("ion", text)
    assert (found.lines, found.passed, found.bad_lines) == (8, 4, 0)
    assert assembled("ion", text) == [("1", "2", 20, 60)]
    counts = FORMATS["ion"].assemble(found.rows, Options()).counts
    assert (counts["one_way_contacts"], counts["one_way_s"]) == (1, 20 + 30 + 9)
    assert assembled("ion", text, both_ways=True) == [("1", "2", 0, 90), ("1", "3", 0, 9)]


def test_contact_plans_may_have_dates() -> None:
    day = "2026/11/15-00:0"
    text = f"a contact {day}0:00 {day}1:00 1 2 9\na contact {day}0:30 {day}2:00 2 1 9\n"
    start = 1_794_700_800
    assert assembled("ion", text) == [("1", "2", start + 30, start + 60)]
    assert whys("ion", f"a contact {day}0:00 +60 1 2 9\na contact 2026/02/30-00:00:00 2026/02/30-00:00:01 1 2 9\n") == [
        (1, "one time is relative, the other absolute"),
        (2, "a date that does not exist"),
    ]


def test_plans_of_core_have_more_columns_and_no_signs() -> None:
    text = "s loop 0\na contact 298.59 414.12 5 33 1000000000 0.0 0 0\na contact 300 420 33 5 1000000000 0.0 0 0\n"
    assert assembled("ccp", text) == [("33", "5", 300, 414.12)]


def test_links_of_the_one_come_up_and_go_down() -> None:
    text = "0 C M1 a b 5\n1 CONN b a up\n2 CONN a c UP wlan0\n3 CONN a b down\n3 CONN a b up\n4 CONN c a down\n"
    assert assembled("one-connections", text, end_us=9_000_000) == [
        ("a", "b", 1, 3),
        ("a", "c", 2, 4),
        ("a", "b", 3, 9),
    ]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "2 CONN a b up\n1 CONN a c up\n",
            "line 2: time goes back, from 2 s to 1 s; to accept lines in any order: --unsorted",
        ),
    ],
)
def test_a_log_of_links_that_cannot_be_is_an_error(text: str, message: str) -> None:
    with pytest.raises(LocalError) as error:
        assembled("one-connections", text)
    assert str(error.value) == f"trace, {message}"


@given(
    st.lists(st.tuples(st.sampled_from(["a b", "b a", "a c", "b c"]), st.booleans(), st.integers(0, 2)), min_size=1),
    st.booleans(),
)
def test_double_events_are_treated_as_by_the_reader_that_needs_no_arrow(
    events: list[tuple[str, bool, int]], overlaps: bool
) -> None:
    now, lines = 0, []
    for pair, up, later in events:
        now += later
        lines.append(f"{now} CONN {pair} {'up' if up else 'down'}")
    text = "\n".join(lines)
    plain = parse_meetings(text, "trace", overlaps=overlaps)
    options = Options(overlaps=overlaps, end_us=FOREVER_US)
    found = FORMATS["one-connections"].assemble(parsed("one-connections", text).rows, options)
    assert [tuple(row.values()) for row in found.rows.to_pylist()] == [each[:4] for each in plain.contacts]
    assert found.counts["ignored_ups"] + found.counts["ignored_downs"] == plain.ignored_events
    assert not (overlaps and found.counts["ignored_ups"])


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("contacts-csv", "b,end,start,a\nx,2.5,1,y\nz,9,3,x\nx,4,2.5,y\nx,7,7,w\n"),
        (
            "one-connections",
            "# host 1 is p q\n0 C M 1 2 5\n1 CONN 1 2 up\n2 CONN 2 1 down\n2 CONN 2 1 up\n3 CONN 3 1 up\n",
        ),
    ],
)
def test_contacts_are_read_as_by_the_reader_that_needs_no_arrow(name: str, text: str) -> None:
    plain = [(a, b, start / 1e6, end / 1e6) for a, b, start, end, _ in parse_contacts(text, "trace")]
    assert assembled(name, text, end_us=FOREVER_US) == plain


def test_contacts_of_a_pair_never_overlap() -> None:
    text = "start,end,a,b\n5,9,y,x\n0,5,x,y\n7,7,x,z\n"
    assert assembled("contacts-csv", text) == [("x", "y", 0, 5), ("x", "y", 5, 9)]
    with pytest.raises(LocalError) as error:
        assembled("contacts-csv", text + "4,6,x,y\n")
    assert str(error.value) == (
        "trace, line 5: this contact of x and y overlaps [0, 5) s of line 3; to merge them: --overlaps"
    )
    with pytest.raises(LocalError, match="line 2: the contact ends at 1 s, before it starts at 2 s"):
        assembled("contacts-csv", "a,b,start,end\nx,y,2,1\n")


# ------------------------------------------------------------------------------------------------- by brute force
spans = st.lists(
    st.tuples(st.sampled_from(["a b", "b a", "a c", "c a"]), st.integers(0, 30), st.integers(1, 6)), min_size=1
)


def _seconds(found: list[tuple[str, int, int]]) -> dict[str, set[int]]:
    """Of each ordered pair, the seconds that its spans cover."""
    covered: dict[str, set[int]] = {}
    for pair, start, lasts in found:
        covered.setdefault(pair, set()).update(range(start, start + lasts))
    return covered


def _covered(rows: list[tuple[object, ...]]) -> dict[str, set[int]]:
    """Of each pair, the seconds of its contacts; none may touch another."""
    covered: dict[str, set[int]] = {}
    for a, b, start, end in rows:
        assert isinstance(start, float)
        assert isinstance(end, float)
        seconds = set(range(int(start), int(end)))
        others = covered.setdefault(f"{a} {b}", set())
        assert not others & {int(start) - 1, *seconds, int(end)}
        others.update(seconds)
    return covered


@given(spans)
def test_sightings_cover_what_either_side_saw(found: list[tuple[str, int, int]]) -> None:
    text = "".join(f"{pair} {start} {start + lasts} 1 0\n" for pair, start, lasts in found)
    seen = _seconds(found)
    either = {pair: seen.get(pair, set()) | seen.get(pair[::-1], set()) for pair in ("a b", "a c")}
    assert _covered(assembled("imote", text)) == {pair: seconds for pair, seconds in either.items() if seconds}


@given(spans)
def test_plans_cover_what_both_directions_have(found: list[tuple[str, int, int]]) -> None:
    text = "".join(f"a contact +{start} +{start + lasts} {pair} 9\n" for pair, start, lasts in found)
    planned = _seconds(found)
    both = {pair: planned.get(pair, set()) & planned.get(pair[::-1], set()) for pair in ("a b", "a c")}
    assert _covered(assembled("ion", text)) == {pair: seconds for pair, seconds in both.items() if seconds}
    counts = FORMATS["ion"].assemble(parsed("ion", text).rows, Options()).counts
    alone = sum(len(seconds ^ planned.get(pair[::-1], set())) for pair, seconds in planned.items())
    twice = sum(len(planned[pair] ^ planned.get(pair[::-1], set())) for pair in planned if pair[::-1] in planned)
    assert counts["one_way_s"] == alone - twice // 2


def test_quotes_without_end_make_one_line_bad() -> None:
    endless = '1,"' + "z" * 140_000 + ',5",1,1'
    found = whys("gps-csv", f't,node,x,y\n0,a,1,1\n1,"a\rb",1,1\n{endless}\n2,a,1,1\n')
    assert [number for number, _ in found] == [3, 4]


def test_a_separator_that_nobody_types_is_harmless_also_beside_quotes() -> None:
    text = 't,node,x,y,note\n0,a,1,1,p\x1fq\n1,"a",2,2,"r"\n'
    assert whys("gps-csv", text) == []
