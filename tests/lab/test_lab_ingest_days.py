"""Traces as they come: a file per day, per observer, without a header, or with more nodes than are wanted."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from tests.support.trace_texts import assembled

from carrypost.cli.app import run
from carrypost.emu import run as emulate
from carrypost.emu.scenario import Scenario
from carrypost.errors import LocalError
from carrypost.lab import folders
from carrypost.lab.ingest.inputs import IngestRequest
from carrypost.lab.ingest.run import Report, ingest
from carrypost.lab.schemas import CONTACTS, POSITIONS
from carrypost.traces.formats import FORMATS, Options

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

DAY_S = 86_400
MARCH_25_S = 1_174_780_800
"""2007-03-25 00:00 UTC."""


def _ingested(
    folder: Path, name: str, files: dict[str, str], options: Options, engine: str = "local"
) -> tuple[Report, list[tuple[object, ...]]]:
    for called, text in files.items():
        (folder / called).write_text(text, encoding="utf-8")
    out = folder / f"out-{engine}"
    paths = [folder / called for called in files]
    report = ingest(IngestRequest(paths=paths, format=name, scenario="s", out=out, options=options, engine=engine))  # type: ignore[arg-type]
    placed = FORMATS[name].gives == "positions"
    table = folders.read_arrow(out, POSITIONS if placed else CONTACTS).drop_columns(["scenario"])
    return report, [tuple(row.values()) for row in table.to_pylist()]


# --------------------------------------------------------------------------------------------------------- days
BUSES = {
    "03252007.txt": "3029 3030 23:59:50 20\n3030 3031 08:00 5.5\n",
    "03262007.txt": "3029 3030 00:00:20 4\n",
}
"""Two days of a trace in the shape of DieselNet's: two buses, the time of day, and how long they were in contact."""
BUSES_COLUMNS = Options(columns=("a", "b", "start", "duration"), date_from_name="%m%d%Y")


@pytest.mark.soak
def test_each_file_is_dated_by_its_name_with_both_engines(spark: SparkSession, tmp_path: Path) -> None:
    assert spark.version
    for engine in ("local", "spark"):
        report, found = _ingested(tmp_path, "contacts-csv", BUSES, BUSES_COLUMNS, engine)
        assert found == [
            ("3030", "3031", MARCH_25_S + 8 * 3600, MARCH_25_S + 8 * 3600 + 5.5),
            ("3029", "3030", MARCH_25_S + DAY_S - 10, MARCH_25_S + DAY_S + 10),
            ("3029", "3030", MARCH_25_S + DAY_S + 20, MARCH_25_S + DAY_S + 24),
        ]
        assert report.facts["parameters"]["date_from_name"] == "%m%d%Y"


def test_one_date_for_several_files_is_refused_unless_each_is_of_one_node(tmp_path: Path) -> None:
    with pytest.raises(
        LocalError, match=r"^--date is one day, and 2 files are named; .*: --date-from-name '%Y-%m-%d'$"
    ):
        _ingested(tmp_path, "contacts-csv", BUSES, Options(columns=BUSES_COLUMNS.columns, date="2007-03-25"))
    walks = {"7.txt": "08:00 1 2\n", "8.txt": "08:01 3 4\n"}
    _, found = _ingested(tmp_path, "gps-csv", walks, Options(node_from_name=True, date="2007-03-25"))
    assert [each[:2] for each in found] == [("7", MARCH_25_S + 28_800), ("8", MARCH_25_S + 28_860)]


@pytest.mark.parametrize(
    ("called", "pattern", "message"),
    [
        ("0325.txt", "%m%d", "gives the day 1900-03-25; the pattern needs year, month and day"),
        (
            "trace.txt",
            "%Y-%m-%d",
            "its name, 'trace', is not a day as --date-from-name '%Y-%m-%d' writes one; '2007-03-25'",
        ),
    ],
)
def test_a_name_that_is_no_day_is_refused(tmp_path: Path, called: str, pattern: str, message: str) -> None:
    options = Options(columns=BUSES_COLUMNS.columns, date_from_name=pattern)
    with pytest.raises(LocalError, match=message):
        _ingested(tmp_path, "contacts-csv", {called: BUSES["03252007.txt"]}, options)


# ----------------------------------------------------------------------------------------------------- observers
def test_the_observer_is_named_by_the_file(tmp_path: Path) -> None:
    seen = {"1.dat": "2 0 100\n3 10 20\n", "2.dat": "1 90 150\n"}
    _, found = _ingested(tmp_path, "imote", seen, Options(node_from_name=True))
    assert found == [("1", "2", 0, 150), ("1", "3", 10, 20)]
    pairs = {"1.dat": "20 2\n40 2\n", "2.dat": "60 1\n"}
    _, found = _ingested(tmp_path, "pairs", pairs, Options(node_from_name=True))
    assert found == [("1", "2", 0, 60)]


def test_columns_of_sightings_can_be_named() -> None:
    text = "0 100 9 1 2\n90 150 9 2 1\n"
    assert assembled("imote", text, columns=("first", "last", "n", "i", "j")) == [("1", "2", 0, 150)]


# ------------------------------------------------------------------------------------------------------- contacts
@pytest.mark.parametrize(
    ("text", "options"),
    [
        ("a,b,start,duration\ny,x,60,30\n", {}),
        ("node1;node2;start time;length (min)\ny;x;1;0.5\n", {"time_unit": "min"}),
        ("y x 60 90\n", {}),
    ],
)
def test_contacts_may_have_a_duration_and_no_header(text: str, options: dict[str, str]) -> None:
    assert assembled("contacts-csv", text, **options) == [("x", "y", 60, 90)]


def test_the_order_of_columns_that_is_assumed_is_told(tmp_path: Path) -> None:
    report, _ = _ingested(tmp_path, "contacts-csv", {"c.txt": "y x 60 90\n"}, Options())
    assert report.remarks == [f"{tmp_path / 'c.txt'}: there is no header; assuming the columns a, b, start, end"]


# ---------------------------------------------------------------------------------------------------------- nodes
def test_mac_addresses_are_one_node_in_whatever_case(tmp_path: Path) -> None:
    text = "20 00:1B:44:11:3A:B7 Bus-A\n40 00-1b-44-11-3a-b7 Bus-A\n"
    report, found = _ingested(tmp_path, "pairs", {"t.txt": text}, Options())
    assert found == [("00-1b-44-11-3a-b7", "Bus-A", 0, 40)]
    assert report.facts["counts"]["renamed_nodes"] == 1


@pytest.mark.soak
def test_only_the_nodes_that_are_named_are_kept(spark: SparkSession, tmp_path: Path) -> None:
    assert spark.version
    files = {"t.txt": "20 a b\n40 b c\n60 c a\n80 c d\n"}
    for engine in ("local", "spark"):
        report, found = _ingested(tmp_path, "pairs", files, Options(nodes=("a", "c", "d")), engine)
        assert found == [("a", "c", 40, 60), ("c", "d", 60, 80)]
        assert (report.facts["counts"]["rows"], report.facts["counts"]["left_out_rows"]) == (4, 2)
    with pytest.raises(LocalError, match=r"no row is of the nodes that --nodes keeps: x"):
        _ingested(tmp_path, "pairs", files, Options(nodes=("x",)))


def test_nodes_may_be_named_by_a_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "t.csv").write_text("t,node,x,y\n0,a,1,2\n0,b,1,2\n0,c,1,2\n")
    (tmp_path / "names").write_text("# those with a phone\na\nc\n")
    command = ["lab", "ingest", str(tmp_path / "t.csv"), "-f", "csv", "--scenario", "s", "--engine", "local"]
    assert run([*command, "--out", str(tmp_path / "out"), "--nodes", str(tmp_path / "names")]) == 0
    assert folders.read_arrow(tmp_path / "out", POSITIONS)["node"].to_pylist() == ["a", "c"]
    capsys.readouterr()


# ------------------------------------------------------------------------------------------------- in a scenario
MOVED = """
name = "moved"
duration_s = 100
mode = "ideal"
[mobility]
model = "trace"
file = "{file}"
[radio]
range_m = 10
[[workload]]
kind = "broadcast"
first_s = 50
period_s = 60
"""


def test_a_scenario_moves_nodes_by_the_table_that_an_ingest_wrote(tmp_path: Path) -> None:
    text = "t,node,x,y\n0,a,0,0\n100,a,0,0\n0,b,100,0\n100,b,0,0\n"
    _ingested(tmp_path, "gps-csv", {"walks.csv": text}, Options())
    (tmp_path / "moved.toml").write_text(MOVED.format(file="walks.csv"))
    (tmp_path / "table.toml").write_text(MOVED.format(file="out-local/positions"))
    (tmp_path / "folder.toml").write_text(MOVED.format(file="out-local"))
    names = ("moved.toml", "table.toml", "folder.toml")
    records = [emulate(Scenario.load(tmp_path / name), 1).table.slice(1) for name in names]
    assert records[0].equals(records[1])
    assert records[0].equals(records[2])
    assert "contact" in records[0]["kind"].to_pylist()
    (tmp_path / "none").mkdir()
    (tmp_path / "table.toml").write_text(MOVED.format(file="none"))
    with pytest.raises(LocalError, match=r"none cannot be read: it is a folder without a Parquet file, or a table of"):
        emulate(Scenario.load(tmp_path / "table.toml"), 1)
