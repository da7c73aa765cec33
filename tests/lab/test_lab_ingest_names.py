"""Names with colons, lines with other columns, and contacts that overlap in `lab ingest`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest
from tests.support.trace_texts import assembled, whys

from carrypost.emu.scenario import Scenario
from carrypost.errors import LocalError
from carrypost.lab import folders
from carrypost.lab.ingest.inputs import IngestRequest
from carrypost.lab.ingest.run import Report, ingest
from carrypost.lab.schemas import CONTACTS, POSITIONS
from carrypost.traces.formats import FORMATS, Options

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

MACS = [f"00:1b:44:11:3a:b{number}" for number in range(4)]


def _ingested(folder: Path, name: str, text: str, **more: object) -> tuple[Report, pa.Table]:
    path, out = folder / "trace.txt", folder / "out"
    path.write_text(text, encoding="utf-8")
    asked: dict[str, object] = {"engine": "local", **more}
    report = ingest(IngestRequest(paths=[path], format=name, scenario="s", out=out, **asked))  # type: ignore[arg-type]
    return report, folders.read_arrow(out, POSITIONS if FORMATS[name].gives == "positions" else CONTACTS)


# -------------------------------------------------------------------------------------------------------- names
@pytest.mark.soak
def test_colons_in_names_become_hyphens_and_that_is_said(spark: SparkSession, tmp_path: Path) -> None:
    assert spark.version
    rows = [f"{20 * t} {MACS[t % 4]} {MACS[(t + 1) % 4] if t % 3 else 'sink'}\n" for t in range(1, 200)]
    tables = []
    for engine, block_bytes in (("local", 1_000), ("spark", 3_000)):
        report, found = _ingested(tmp_path, "pairs", "".join(rows), engine=engine, block_bytes=block_bytes)
        tables.append(found)
        (remark,) = report.remarks
        assert remark == (
            f"names are written without colons, MAC addresses in lower case: {MACS[0]} becomes 00-1b-44-11-3a-b0, "
            "and 3 more likewise"
        )
        assert report.facts["counts"]["renamed_nodes"] == 4
    assert tables[0].equals(tables[1])
    assert set(tables[0]["a"].to_pylist()) == {each.replace(":", "-") for each in MACS}


def test_two_names_that_would_become_one_are_refused_with_their_lines(tmp_path: Path) -> None:
    text = "t,node,x,y\n0,aa:01,1,2\n0,bb,5,5\n5,aa-01,1,2\n9,aa:01,2,2\n"
    for block_bytes in (16, 1_000):
        with pytest.raises(LocalError) as error:
            _ingested(tmp_path, "gps-csv", text, block_bytes=block_bytes)
        assert str(error.value) == (
            f"{tmp_path / 'trace.txt'}, line 4: aa-01 and aa:01 of line 2 would be the same node, since colons "
            "in names become hyphens"
        )
    report, found = _ingested(tmp_path, "gps-csv", text.replace("aa-01", "cc-01"))
    assert set(found["node"].to_pylist()) == {"aa-01", "bb", "cc-01"}
    assert "renamed_nodes" in report.facts["counts"]


def test_names_of_bad_lines_are_not_told(tmp_path: Path) -> None:
    good = "".join(f"{t},a,1,2\n" for t in range(200))
    report, _ = _ingested(tmp_path, "gps-csv", f"t,node,x,y\n{good}300,a:b,east,2\n")
    assert "renamed_nodes" not in report.facts["counts"]
    assert not [each for each in report.remarks if "colons" in each]


def test_a_scenario_does_not_rename_the_nodes_of_its_files(tmp_path: Path) -> None:
    (tmp_path / "walk.csv").write_text("node,t,x,y\na,0,1,2\na:b,0,1,2\n", encoding="utf-8")
    made = Scenario.parse("duration_s = 1\n[mobility]\nmodel = 'trace'\nfile = 'walk.csv'\n", tmp_path)
    assert made.mobility is not None
    with pytest.raises(
        LocalError, match=r"walk.csv, line 3: a plain node name must have 1 to 64 bytes and no colon, not 'a:b'"
    ):
        made.mobility.move(1, 1_000_000)


# ------------------------------------------------------------------------------------------------------ columns
def test_a_line_with_fewer_columns_than_the_header_is_bad_even_if_none_is_missed() -> None:
    # Without its node, the row would be one of a node that is called 3.5.
    text = "t,node,x,y,speed,fix\n0,a,1,2,0,1\n5,3.5,4,0,1\n6,a,1,2,0,1,7\n7,a,1,2,0,1,\n8,a,1,2,0,\n"
    assert whys("gps-csv", text) == [
        (3, "the row has 5 cells, the header names 6 columns"),
        (4, "the row has 7 cells, the header names 6 columns"),
    ]


def test_a_line_with_another_number_of_columns_than_told_or_than_the_first_is_bad() -> None:
    columns = ("lat", "lon", "fare", "t", "node")
    text = "59.3 18.1 0 5 a\n59.3 18.1 6 a b c\n59.3 18.1 0 7 a extra\n"
    assert whys("gps-csv", text, columns=columns) == [
        (2, "the row has 6 cells, --columns names 5"),
        (3, "the row has 6 cells, --columns names 5"),
    ]
    assert whys("pairs", "20 a b 3B 3B\n40 a b 3B\n60 a b 3B 3B x\n") == [
        (2, "the row has 4 cells, the first one 5"),
        (3, "the row has 6 cells, the first one 5"),
    ]
    assert whys("one-movement", "0 9 0 9 0 9\n0 p1 1 0\n1 p1 1 0 5\n2 p1 1 0 5 6\n") == [
        (4, "must read TIME NODE X Y, not '2 p1 1 0 5 6'")
    ]


def test_an_empty_cell_beside_a_tab_is_a_cell() -> None:
    text = "note\tt\tnode\tx\ty\tspeed\n\t0\ta\t1\t2\t\nhi\t5\ta\t3\t4\t9\r\n"
    assert assembled("gps-csv", text) == [("a", 0, 1, 2), ("a", 5, 3, 4)]
    assert assembled("gps-csv", "\t0 a 1 2\t\n\t5 a 3 4\n") == [("a", 0, 1, 2), ("a", 5, 3, 4)], "no tab parts cells"


def test_a_header_that_ends_in_a_separator_names_one_column_less() -> None:
    text = "t,node,x,y,\n0,a,1,2\n5,a,3,4,\n6,a,3,4,x\n7,a,3,4,,x\n"
    assert whys("gps-csv", text) == [(5, "the row has 6 cells, the header names 5 columns")]


# ----------------------------------------------------------------------------------------------------- overlaps
@pytest.mark.soak
def test_contacts_that_overlap_are_one_if_asked_for(spark: SparkSession, tmp_path: Path) -> None:
    assert spark.version
    text = "a,b,start,end\nx,y,0,60\ny,x,50,90\nx,y,90,95\nx,y,20,30\nx,z,1,2\nx,z,2,3\nx,y,200,200\nx,z,1,2\n"
    with pytest.raises(LocalError, match=r"line 5: this contact of x and y overlaps .* line 2; .* --overlaps"):
        _ingested(tmp_path, "contacts-csv", text)
    for engine in ("local", "spark"):
        report, found = _ingested(tmp_path, "contacts-csv", text, engine=engine, options=Options(overlaps=True))
        rows = [(row["a"], row["b"], row["start"], row["end"]) for row in found.to_pylist()]
        # Those that only touch stay two: the link went down and up.
        assert rows == [("x", "y", 0, 90), ("x", "z", 1, 2), ("x", "z", 2, 3), ("x", "y", 90, 95)]
        assert (report.facts["counts"]["joined_rows"], report.facts["counts"]["empty_contacts"]) == (3, 1)
        assert "rows merged with another one of their pair that they overlap: 3" in report.remarks
        assert report.facts["parameters"]["overlaps"] is True


# ------------------------------------------------------------------------------------------------------- options
@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        (
            "ccp",
            Options(node_from_name=True),
            "--node-from-name cannot be used with ccp; it is for gps-csv, imote, pairs",
        ),
        ("pairs", Options(date="2014-06-03", date_from_name="%Y"), "both say the day: leave out one of them"),
        ("kth", Options(time_unit="ms"), "--time-unit cannot be used with kth; it is for contacts-csv, gps-csv, imote"),
        ("ns2", Options(date="2014-06-03"), "--date cannot be used with ns2; it is for contacts-csv, gps-csv, imote"),
        (
            "imote",
            Options(overlaps=True),
            "--overlaps cannot be used with imote; it is for contacts-csv, one-connections, pairs",
        ),
        ("pairs", Options(date="June"), "--date must be a day such as 2014-06-03, not 'June'"),
        ("pairs", Options(time_unit="weeks"), "--time-unit must be one of s, ms, us, ns, min, h, not 'weeks'"),
        ("pairs", Options(time_unit="ms", date="2014-06-03"), "leave out one of them"),
    ],
)
def test_options_that_make_no_sense_are_refused(tmp_path: Path, name: str, options: Options, message: str) -> None:
    with pytest.raises(LocalError, match=message):
        IngestRequest(paths=[tmp_path], format=name, scenario="s", out=tmp_path, options=options)


def test_types_of_routes_are_for_timetables(tmp_path: Path) -> None:
    with pytest.raises(LocalError, match="--route-type cannot be used with pairs; it is for gtfs"):
        IngestRequest(paths=[tmp_path], format="pairs", scenario="s", out=tmp_path, route_types=("bus",))
