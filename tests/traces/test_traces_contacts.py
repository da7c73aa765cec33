"""Contacts and presences are read, written and clipped; every mistake in a file is reported with its line."""

from __future__ import annotations

import gzip
import lzma
import zipfile
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.trace_texts import parse_contacts

from carrypost.emu.inputs import read_inputs
from carrypost.emu.scenario import Scenario
from carrypost.errors import FileError, LocalError
from carrypost.traces.contacts import (
    FOREVER_US,
    Contact,
    Presence,
    clipped,
    parse_meetings,
    parse_presences,
    read_contacts,
    read_meetings,
    read_presences,
    write_one,
)

SECOND = 1_000_000


# ------------------------------------------------------------------------------------------------- contacts
def test_columns_are_found_by_name_and_pairs_are_turned_round() -> None:
    text = "end,start,heard, b ,a\n\n20, 10 ,,anna,bert\n7.0000004,5,,bert,cora\n"
    assert parse_contacts(text, "c.csv") == [
        Contact("bert", "cora", 5 * SECOND, 7 * SECOND),
        Contact("anna", "bert", 10 * SECOND, 20 * SECOND),
    ]


def test_touching_contacts_are_two_and_empty_ones_none() -> None:
    text = "a,b,start,end\nb,a,10,20\na,b,5,10\na,b,7,7\na,b,30.0000001,30.0000004\n"
    assert parse_contacts(text, "c.csv") == [
        Contact("a", "b", 5 * SECOND, 10 * SECOND),
        Contact("a", "b", 10 * SECOND, 20 * SECOND),
    ]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "c.csv, line 1: the file is empty; it must start with a header that names a, b, start, end"),
        ("\n \n", "c.csv, line 1: the file is empty"),
        ("a,b,start\na,b,1", "c.csv, line 1: column end is missing; the header must name a, b, start, end, found a, b"),
        ("x,y,1,2\n", "c.csv, line 1: column a is missing"),
        ("a,b,start,end,a\n", "c.csv, line 1: column a appears twice"),
        ("a,b,start,end\n\nx,y,1", "c.csv, line 3: end is missing: the row has 3 cells"),
        ("a,b,start,end\nx,y,1,soon", "c.csv, line 2: end must be a number, not 'soon'"),
        ("a,b,start,end\nx,y,nan,2", "c.csv, line 2: start must be a number, not 'nan'"),
        ("a,b,start,end\nx,y,-1,2", "c.csv, line 2: start must be a time from 0 to 9,000,000,000 s, not -1"),
        ("a,b,start,end\nx,y,1,1e12", "c.csv, line 2: end must be a time from 0"),
        ("a,b,start,end\nx,,1,2", "c.csv, line 2: b must not be empty"),
        ("a,b,start,end\nx,y,,2", "c.csv, line 2: start must not be empty"),
        ("a,b,start,end\nx,x,1,2", "c.csv, line 2: x is in contact with itself"),
        ("a,b,start,end\nx,y,3,2.5", "c.csv, line 2: the contact ends at 2.5 s, before it starts at 3 s"),
        (
            "a,b,start,end\nx,y,5,9\nx,z,1,9\ny,x,1,5.000001",
            r"c.csv, line 4: this contact of x and y overlaps \[5, 9\) s of line 2; contacts of one pair",
        ),
        (
            "a,b,start,end,hears\nx,y,1,2,x",
            "c.csv, line 1: column 'hears' is not known; did you mean heard\\?; the columns are a, b, start, end and",
        ),
        (
            "a,b,start,end,heard\nx,y,1,2,\nx,y,3,4,z",
            "c.csv, line 3: heard must be 'x' or 'y', the end that is heard, or empty for both, not 'z'",
        ),
        (
            'a,b,start,end\nx,"y,1,2\n3,4\n',
            "c.csv, line 3: b is there|c.csv, line 3: b|c.csv, line 3: start is missing",
        ),
    ],
)
def test_a_mistake_in_a_contact_file_is_told_with_its_line(text: str, message: str) -> None:
    with pytest.raises(LocalError, match=f"^(?:{message})"):
        parse_contacts(text, "c.csv")


def test_a_contact_may_work_one_way() -> None:
    text = "a,b,start,end,heard\nb,a,1,2,b\na,b,2,3,a\na,b,4,5,\n"
    assert [each.heard for each in parse_contacts(text, "c.csv")] == ["b", "a", ""]
    overlapping = "a,b,start,end,heard\na,b,1,3,a\na,b,2,4,a\n"
    assert parse_meetings(overlapping, "c.csv", overlaps=True).contacts == [Contact("a", "b", SECOND, 4 * SECOND, "a")]
    assert list(write_one(parse_contacts(text, "c.csv"))) == [
        "# host 0 is a",
        "# host 1 is b",
        "4 CONN 0 1 up",
        "5 CONN 0 1 down",
    ]
    with pytest.raises(LocalError, match=r"line 3: this contact of a and b overlaps .*; they differ in heard$"):
        parse_meetings(overlapping.replace("2,4,a", "2,4,b"), "c.csv", overlaps=True)


@pytest.mark.parametrize("name", ["x" * 65, "x:y", '"x\ny"', "x\x00y"])
def test_a_name_that_no_node_can_have_is_told_with_its_line(name: str) -> None:
    with pytest.raises(LocalError, match=r"^c.csv, line [34]: "):
        parse_contacts(f"a,b,start,end\nx,y,1,2\n{name},z,1,2\n", "c.csv")


def test_a_contact_of_an_unknown_node_is_an_error_where_nodes_are_given() -> None:
    text = "a,b,start,end\nx,y,1,2\nx,z,1,2\n"
    assert len(parse_contacts(text, "c.csv", nodes=["x", "y", "z"])) == 2
    with pytest.raises(LocalError, match=r"^c.csv, line 3: there is no node z"):
        parse_contacts(text, "c.csv", nodes=["x", "y"])


def test_a_file_is_read_whether_packed_or_not(tmp_path: Path) -> None:
    text = "\ufeffa,b,start,end\r\nx,y,1,2\r\n"
    (tmp_path / "c.csv").write_bytes(text.encode())
    (tmp_path / "c.csv.gz").write_bytes(gzip.compress(text.encode()))
    (tmp_path / "c.csv.xz").write_bytes(lzma.compress(text.encode()))
    with zipfile.ZipFile(tmp_path / "c.zip", "w") as archive:
        archive.writestr("c.csv", text)
    for name in ("c.csv", "c.csv.gz", "c.csv.xz", "c.zip"):
        assert read_contacts(tmp_path / name) == [Contact("x", "y", SECOND, 2 * SECOND)]


def test_text_that_begins_as_a_zip_file_does_is_text(tmp_path: Path) -> None:
    (tmp_path / "n.csv").write_text("PK,node,join,leave\n7,x,1,2\n", encoding="utf-8")
    assert read_presences(tmp_path / "n.csv") == [Presence("x", SECOND, 2 * SECOND)]


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(LocalError, match=r"none.csv: there is no such file"):
        read_contacts(tmp_path / "none.csv")
    (tmp_path / "torn.csv.gz").write_bytes(gzip.compress(b"a,b,start,end\n")[:-6])
    with pytest.raises(FileError, match=r"torn.csv.gz cannot be read"):
        read_contacts(tmp_path / "torn.csv.gz")
    (tmp_path / "latin.csv").write_bytes("a,b,start,end\nJosé,y,1,2".encode("latin-1"))
    with pytest.raises(LocalError, match=r"latin.csv: is not UTF-8 text"):
        read_contacts(tmp_path / "latin.csv")
    with pytest.raises(LocalError, match=r"cannot be read"):
        read_contacts(tmp_path)


# ------------------------------------------------------------------------------------------------- The ONE
def test_a_connection_file_is_known_by_its_content() -> None:
    text = "# made by hand\n\n0.5 CONN p2 p1 up\n3 CONN p1 p2 down\n3 CONN p1 p2 up\n3 CONN 7 p1 UP\n4 CONN p1 7 down\n"
    assert parse_contacts(text, "conn.txt") == [
        Contact("p1", "p2", SECOND // 2, 3 * SECOND),
        Contact("7", "p1", 3 * SECOND, 4 * SECOND),
        Contact("p1", "p2", 3 * SECOND, FOREVER_US),
    ]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("1 CONN a b up\n0.5 CONN a b down\n", "conn.txt, line 2: time goes back, from 1 s to 0.5 s"),
        ("1 CONN a b up\nx CONN a b down\n", "conn.txt, line 2: the time must be a number, not 'x'"),
        ("-1 CONN a b up\n", "conn.txt, line 1: the time must be a time from 0"),
        ("1 CONN a b\n", r"conn.txt, line 1: must read TIME CONN NODE NODE up\|down, not '1 CONN a b'"),
        ("1 CONN a b sideways\n", "conn.txt, line 1: must read"),
        ("1 CONN a b up\n5 COME a b up\n", "conn.txt, line 2: must read"),
        ("1 CONN a a up\n", "conn.txt, line 1: a is in contact with itself"),
    ],
)
def test_a_mistake_in_a_connection_file_is_told_with_its_line(text: str, message: str) -> None:
    with pytest.raises(LocalError, match=f"^{message}"):
        parse_contacts(text, "conn.txt")


def test_events_of_the_one_about_messages_are_passed_over() -> None:
    text = "0 C M1 a b 500\n1 CONN a b up\n1 S a b M1\n2 DE a b M1\n3 CONN a b down\n"
    assert parse_contacts(text, "events.txt") == [Contact("a", "b", SECOND, 3 * SECOND)]


def test_a_connection_file_names_only_known_nodes() -> None:
    with pytest.raises(LocalError, match=r"^conn.txt, line 1: there is no node b"):
        parse_contacts("1 CONN a b up\n2 CONN a b down\n", "conn.txt", nodes={"a"})


def test_links_go_down_before_others_come_up() -> None:
    contacts = [
        Contact("n1", "n2", SECOND, 2 * SECOND),
        Contact("n1", "n30", 2 * SECOND, 2_500_001),
        Contact("n1", "n2", 2 * SECOND, FOREVER_US),
    ]
    assert list(write_one(contacts)) == [
        "1 CONN n1 n2 up",
        "2 CONN n1 n2 down",
        "2 CONN n1 n2 up",
        "2 CONN n1 n30 up",
        "2.500001 CONN n1 n30 down",
    ]


@pytest.mark.parametrize("names", [("a", "b"), ("L1-1", "L1-2"), ("a1", "b1"), ("Mr 1", "Mr 2"), ("1", "ä٣")])
def test_nodes_that_the_one_could_not_tell_apart_are_numbered_and_said(names: tuple[str, str]) -> None:
    contacts = [Contact(*names, 0, SECOND)]
    written = list(write_one(contacts))
    assert written == [
        f"# host 0 is {names[0]}",
        f"# host 1 is {names[1]}",
        "0 CONN 0 1 up",
        "1 CONN 0 1 down",
    ]
    assert parse_contacts("\n".join(written), "conn.txt") == contacts


def test_the_interface_that_the_one_may_name_is_passed_over() -> None:
    text = "1 CONN 1 2 up wlan0\n2 CONN 1 2 down wlan0\n"
    assert parse_contacts(text, "conn.txt") == [Contact("1", "2", SECOND, 2 * SECOND)]


def test_contacts_that_last_no_time_name_nodes_too(tmp_path: Path) -> None:
    (tmp_path / "c.csv").write_text("a,b,start,end\na,b,1,2\nb,c,3,3\n")
    assert read_meetings(tmp_path / "c.csv") == ([Contact("a", "b", SECOND, 2 * SECOND)], ["a", "b", "c"], 0)


DOUBLED = """\
0 CONN a c down
1 CONN a b up
2 CONN b a up
3 CONN a b down
3 CONN a c up
5 CONN a b down
6 CONN a b up
6 CONN a b down
7 CONN a b down
8 CONN a c up
9 CONN a c down
"""
"""A log with each kind of event that changes nothing, and a contact that lasts no time."""


def test_events_that_change_nothing_are_ignored_and_counted_as_in_the_one() -> None:
    found = parse_meetings(DOUBLED, "conn.txt")
    assert [(each.a, each.b, each.start_us // SECOND, each.end_us // SECOND) for each in found.contacts] == [
        ("a", "b", 1, 3),
        ("a", "c", 3, 9),
    ]
    assert found.ignored_events == 5


def test_overlapping_events_are_counted_if_asked_for() -> None:
    found = parse_meetings(DOUBLED, "conn.txt", overlaps=True)
    assert [(each.a, each.b, each.start_us, each.end_us) for each in found.contacts] == [
        ("a", "b", SECOND, 5 * SECOND),
        ("a", "c", 3 * SECOND, FOREVER_US),
    ]
    assert found.ignored_events == 2


def test_overlapping_contacts_of_a_table_are_joined_if_asked_for() -> None:
    text = "a,b,start,end\nx,y,1,4\ny,x,2,3\nx,y,3,6\nx,y,6,7\n"
    with pytest.raises(LocalError, match=r"line 3: this contact of x and y overlaps .*; to join them: overlaps = true"):
        parse_meetings(text, "c.csv")
    found = parse_meetings(text, "c.csv", overlaps=True)
    assert found.contacts == [Contact("x", "y", SECOND, 6 * SECOND), Contact("x", "y", 6 * SECOND, 7 * SECOND)]


@st.composite
def contact_lists(draw: st.DrawFn) -> list[Contact]:
    found = []
    for a, b in (("a", "b"), ("a", "c"), ("b", "c")):
        edges = sorted(draw(st.lists(st.integers(0, 40), max_size=8)))
        shift = draw(st.sampled_from([1, 333_333, SECOND]))
        found += [
            Contact(a, b, start * shift, end * shift)
            for start, end in zip(edges[::2], edges[1::2], strict=False)
            if start < end
        ]
    return sorted(found, key=lambda contact: (contact.start_us, contact.a, contact.b))


@given(contact_lists())
def test_what_is_written_for_the_one_reads_back_the_same(contacts: list[Contact]) -> None:
    text = "\n".join(write_one(contacts))
    assert (parse_contacts(text, "conn.txt") if contacts else []) == contacts


# ------------------------------------------------------------------------------------------------ presences
def test_presences_are_read_with_returns_and_open_ends() -> None:
    text = "node,join,leave\nb,20,\nb,0,10.5\na,10,20\na,0,10\n"
    assert parse_presences(text, "n.csv") == [
        Presence("a", 0, 10 * SECOND),
        Presence("a", 10 * SECOND, 20 * SECOND),
        Presence("b", 0, 10_500_000),
        Presence("b", 20 * SECOND, None),
    ]
    assert parse_presences("node,join\na,1\n", "n.csv") == [Presence("a", SECOND, None)]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "n.csv, line 1: the file is empty"),
        ("node,join,leave\n", "n.csv, line 1: there are no nodes below the header"),
        ("node,leave\na,1\n", "n.csv, line 1: column join is missing"),
        ("node,join,leave\na,5,4\n", "n.csv, line 2: a leaves at 4 s, which is not after it joins at 5 s"),
        ("node,join,leave\na,0,5\nb,0,\na,4,9\n", "n.csv, line 4: a is present already, by line 2"),
        ("node,join,leave\na,0,\na,4,9\n", "n.csv, line 3: a is present already, by line 2"),
        ("node,join,leave\na,now,\n", "n.csv, line 2: join must be a number, not 'now'"),
    ],
)
def test_a_mistake_in_a_file_of_nodes_is_told_with_its_line(text: str, message: str) -> None:
    with pytest.raises(LocalError, match=f"^{message}"):
        parse_presences(text, "n.csv")


def test_presences_are_read_from_a_file(tmp_path: Path) -> None:
    (tmp_path / "n.csv").write_text("node,join,leave\na,0,\n")
    assert read_presences(tmp_path / "n.csv") == [Presence("a", 0, None)]


# ------------------------------------------------------------------------------------------------- clipping
def test_contacts_are_clipped_to_the_run() -> None:
    contacts = [Contact("a", "b", 5, FOREVER_US), Contact("a", "c", 10, 20), Contact("b", "c", 2, 10)]
    assert clipped(contacts, None, 10) == [Contact("b", "c", 2, 10), Contact("a", "b", 5, 10)]


def test_a_contact_is_split_where_a_node_was_away() -> None:
    stays = [("a", 0, 10), ("a", 14, 30), ("a", 30, None), ("b", 2, 40), ("c", 50, 60)]
    presences = [Presence(node, join_us, leave_us) for node, join_us, leave_us in stays]
    contacts = [
        Contact("a", "b", 0, 100),
        Contact("a", "c", 10, 14),
        Contact("b", "c", 30, 55),
        Contact("a", "d", 0, 9),
    ]
    assert clipped(contacts, presences, 1_000) == [
        Contact("a", "b", 2, 10),
        Contact("a", "b", 14, 30),
        Contact("a", "b", 30, 40),
    ]


@given(contact_lists(), st.lists(st.integers(0, 45), max_size=6), st.integers(1, 45))
def test_after_clipping_both_nodes_are_there_at_every_instant_of_a_contact(
    contacts: list[Contact], edges: list[int], end_us: int
) -> None:
    edges = sorted(set(edges))
    stays = [Presence("a", join, leave) for join, leave in zip(edges[::2], edges[1::2], strict=False)]
    presences = [*stays, Presence("b", 3, None), Presence("c", 0, 30)]
    left = clipped([contact for contact in contacts if contact.end_us < 100], presences, end_us)
    for pair in (("a", "b"), ("a", "c"), ("b", "c")):
        for t in range(50):
            both = all(
                any(node == name and join <= t < (leave or end_us) for name, join, leave in presences) for node in pair
            )
            was = any(one[:2] == pair and one.start_us <= t < one.end_us for one in contacts if one.end_us < 100)
            now = any(one[:2] == pair and one.start_us <= t < one.end_us for one in left)
            assert now == (was and both and t < end_us)


# --- tables of the laboratory ------------------------------------------------------------------------------------


def table(path: Path, *rows: tuple[str | None, str, float, float], scenario: str = "s") -> None:
    columns = dict(zip(("a", "b", "start", "end"), zip(*rows, strict=True), strict=True))
    pq.write_table(pa.table({"scenario": [scenario] * len(rows), **columns}), path)


def test_a_table_of_the_laboratory_is_read_as_a_file_or_as_a_folder(tmp_path: Path) -> None:
    table(tmp_path / "one.parquet", ("b", "a", 1.5, 2.0))
    table(tmp_path / "two.parquet", ("a", "c", 0.0, 3.0))
    assert read_contacts(tmp_path / "one.parquet") == [Contact("a", "b", 1_500_000, 2_000_000)]
    assert [contact.b for contact in read_contacts(tmp_path)] == ["c", "b"]


@pytest.mark.parametrize(
    ("rows", "said"),
    [
        ((("a", "b", 1.0, 3.0), ("a", "b", 2.0, 4.0)), r"one\.parquet, line 2: this contact of a and b overlaps"),
        ((("a", "b", 3.0, 1.0),), r"one\.parquet, line 1: the contact ends at 1 s, before it starts at 3 s"),
        (((None, "b", 1.0, 3.0),), r"one\.parquet, line 1: a and b must be names"),
        ((("a", "b", float("nan"), 3.0),), r"one\.parquet, line 1: start must be a number"),
    ],
)
def test_what_is_wrong_in_a_table_is_told_with_its_row(
    tmp_path: Path, rows: tuple[tuple[str | None, str, float, float], ...], said: str
) -> None:
    table(tmp_path / "one.parquet", *rows)
    with pytest.raises(LocalError, match=said):
        read_contacts(tmp_path)


def test_a_table_may_have_contacts_that_work_one_way_and_no_other_columns(tmp_path: Path) -> None:
    columns = {"a": ["a", "a"], "b": ["b", "b"], "start": [1.0, 5.0], "end": [2.0, 6.0]}
    pq.write_table(pa.table(columns | {"heard": ["b", None]}), tmp_path / "one.parquet")
    (tmp_path / "run.toml").write_text("duration_s = 10\n[contacts]\nfile = 'one.parquet'\nstart_s = 1\n")
    made = read_inputs(Scenario.load(tmp_path / "run.toml"), 1).contacts
    assert made == [Contact("a", "b", 0, SECOND, "b"), Contact("a", "b", 4 * SECOND, 5 * SECOND)]
    pq.write_table(pa.table(columns | {"rssi": [1, 2]}), tmp_path / "one.parquet")
    with pytest.raises(LocalError, match=r"one\.parquet: column 'rssi' is not known; the columns are a, b, start, end"):
        read_contacts(tmp_path / "one.parquet")


def test_contacts_of_several_scenarios_are_not_played_together(tmp_path: Path) -> None:
    table(tmp_path / "one.parquet", ("a", "b", 1.0, 3.0), scenario="school")
    table(tmp_path / "two.parquet", ("a", "b", 5.0, 6.0), scenario="bus")
    with pytest.raises(LocalError, match="has contacts of several scenarios, bus, school"):
        read_contacts(tmp_path)


def test_a_folder_or_file_that_is_no_table_is_told(tmp_path: Path) -> None:
    with pytest.raises(LocalError, match="cannot be read: it is a folder without a Parquet file"):
        read_contacts(tmp_path)
    with pytest.raises(LocalError, match=r"nowhere\.parquet: there is no such file"):
        read_contacts(tmp_path / "nowhere.parquet")
    (tmp_path / "text.parquet").write_text("a,b,start,end\n")
    with pytest.raises(FileError, match="cannot be read as a Parquet file"):
        read_contacts(tmp_path)
    pq.write_table(pa.table({"a": ["x"]}), tmp_path / "text.parquet")
    with pytest.raises(LocalError, match="has no column 'b'; contacts have a, b, start, end"):
        read_contacts(tmp_path)


def test_contacts_of_another_time_are_told(tmp_path: Path) -> None:
    (tmp_path / "contacts.csv").write_text("a,b,start,end\na,b,1790000010,1790000020\n")
    text = "duration_s = 40\n[contacts]\nfile = 'contacts.csv'\n"
    with pytest.raises(
        LocalError, match=r"the first contact in contacts\.csv is at 1,790,000,010 s, after the end; set contacts"
    ):
        read_inputs(Scenario.parse(text, tmp_path), 1)
    with pytest.raises(
        LocalError, match=r"contacts\.csv has no contact from 2,000,000,000 s on; set contacts\.start_s"
    ):
        read_inputs(Scenario.parse(text + "start_s = 2e9\n", tmp_path), 1)
    assert len(read_inputs(Scenario.parse(text + "start_s = 1.79e9\n", tmp_path), 1).contacts) == 1


def test_a_run_may_begin_in_the_middle_of_a_file(tmp_path: Path) -> None:
    (tmp_path / "contacts.csv").write_text("a,b,start,end\na,b,10,20\na,c,95,110\nb,c,130,140\n")
    text = "duration_s = 40\n[contacts]\nfile = 'contacts.csv'\nstart_s = 100\n"
    found = read_inputs(Scenario.parse(text, tmp_path), 1)
    assert found.contacts == [Contact("a", "c", -5_000_000, 10_000_000), Contact("b", "c", 30_000_000, 40_000_000)]
    assert [presence.node for presence in found.presences] == ["a", "b", "c"]
