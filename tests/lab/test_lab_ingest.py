"""`lab ingest`: traces become tables with a manifest; mistakes are reported, and then nothing is written."""

from __future__ import annotations

import dataclasses
import errno
import gzip
import hashlib
import json
import lzma
import zipfile
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from carrypost.cli.app import run
from carrypost.errors import FileError, LocalError
from carrypost.lab import folders
from carrypost.lab.ingest import inputs
from carrypost.lab.ingest.inputs import IngestRequest
from carrypost.lab.ingest.run import Report, ingest
from carrypost.lab.schemas import CONTACTS, POSITIONS
from carrypost.traces.formats import FORMATS, Options

PAIRS = "".join(f"{20 * number}\tn{number % 7}\tm{number * number % 11}\n" for number in range(1, 900))


def _request(path: Path, name: str, out: Path, **more: object) -> IngestRequest:
    return IngestRequest(paths=[path], format=name, scenario="s", out=out, **{"engine": "local", **more})  # type: ignore[arg-type]


def _table(out: Path, name: str) -> pa.Table:
    return folders.read_arrow(out, POSITIONS if FORMATS[name].gives == "positions" else CONTACTS)


def _ingested(tmp_path: Path, name: str, text: str, **more: object) -> Report:
    path = tmp_path / "trace.txt"
    path.write_text(text, encoding="utf-8")
    return ingest(_request(path, name, tmp_path / "out", **more))


# -------------------------------------------------------------------------------------------------------- files
def test_files_are_unpacked_by_what_they_are(tmp_path: Path) -> None:
    data = PAIRS.encode()
    (tmp_path / "a.csv").write_bytes(gzip.compress(data))
    (tmp_path / "b.gz").write_bytes(lzma.compress(data))
    with zipfile.ZipFile(tmp_path / "c.txt", "w") as archive:
        archive.writestr("folder/trace.tsv", data)
        archive.writestr("__MACOSX/trace.tsv", b"notes")
    (tmp_path / "d.txt").write_bytes(data)
    tables = []
    for path in sorted(tmp_path.iterdir()):
        ingest(_request(path, "pairs", tmp_path / f"out-{path.name}"))
        tables.append(_table(tmp_path / f"out-{path.name}", "pairs"))
    assert len(tables) == 4
    assert all(table.equals(tables[0]) for table in tables)


def test_files_that_cannot_be_read_are_told_and_nothing_is_written(tmp_path: Path) -> None:
    (tmp_path / "cut.gz").write_bytes(gzip.compress(PAIRS.encode())[:500])
    (tmp_path / "wide.txt").write_text("20 a b\n", encoding="utf-16")
    with zipfile.ZipFile(tmp_path / "two.zip", "w") as archive:
        archive.writestr("one", b"20 a b\n")
        archive.writestr("two", b"20 a b\n")
    (tmp_path / "mac.txt").write_bytes(b"20 a b\r40 a b\r")
    (tmp_path / "empty").write_bytes(b"\n# nothing\n")
    messages = {
        "cut.gz": "cut.gz cannot be read: ",
        "wide.txt": "wide.txt is not UTF-8 text",
        "two.zip": "two.zip must hold one text file, and holds 2",
        "mac.txt": "mac.txt: its lines must end with LF or CR LF, not with CR alone",
        "empty": "empty, line 1: the file is empty",
        "missing": "missing: there is no such file",
        ".": "is a folder",
    }
    for name, message in messages.items():
        # Only what is cut short is damaged; the others are not what they were said to be.
        with pytest.raises(FileError if name == "cut.gz" else LocalError, match=message):
            ingest(_request(tmp_path / name, "pairs", tmp_path / "out"))
    assert not (tmp_path / "out").exists()


def test_blocks_hold_whole_lines_and_all_of_them(tmp_path: Path) -> None:
    path = tmp_path / "trace.txt"
    text = b"".join(b"%d\n" % number**5 for number in range(200)) + b"the end"
    path.write_bytes(text)
    for size in (1, 7, 64, 1 << 20):
        read = list(inputs.blocks(path, size))
        assert b"".join(data for _, data in read) == text
        assert [number for number, _ in read] == [1 + text[: text.index(data)].count(b"\n") for _, data in read]
        parts = [inputs.part(path, *each) for each in inputs.ranges(path, size)]
        assert b"".join(parts) == text
        assert all(part.endswith(b"\n") for part in parts[:-1])


def test_several_files_are_one_trace(tmp_path: Path) -> None:
    (tmp_path / "1.csv").write_text("t,node,x,y\n0,a,1,2\n", encoding="utf-8")
    (tmp_path / "2.csv").write_text("node;y;x;t\na;4;3;5\nb;0;0;0\n", encoding="utf-8")
    paths = [tmp_path / "1.csv", tmp_path / "2.csv"]
    ingest(IngestRequest(paths=paths, format="csv", scenario="s", out=tmp_path / "out", engine="local"))
    rows = _table(tmp_path / "out", "gps-csv").select(["node", "t", "x", "y"]).to_pylist()
    assert [tuple(row.values()) for row in rows] == [("a", 0, 1, 2), ("a", 5, 3, 4), ("b", 0, 0, 0)]
    with pytest.raises(LocalError, match=r"1.csv, line 2: the time of node a goes back, from 5 s to 0 s"):
        ingest(IngestRequest(paths=paths[::-1], format="csv", scenario="s", out=tmp_path / "out", engine="local"))


# -------------------------------------------------------------------------------------------------------- tables
def test_degrees_become_metres_around_the_middle(tmp_path: Path) -> None:
    text = "t,node,lat,lon\n0,a,59.0,179.9\n0,b,59.2,-179.9\n0,c,59.1,180\n"
    report = _ingested(tmp_path, "gps-csv", text)
    origin = report.facts["parameters"]["origin"]
    assert (origin["lat"], abs(origin["lon"])) == (pytest.approx(59.1), pytest.approx(180))
    rows = {row["node"]: (row["x"], row["y"]) for row in _table(tmp_path / "out", "gps-csv").to_pylist()}
    assert rows["a"] == (pytest.approx(-5710, abs=1), pytest.approx(-11119, abs=1))
    assert rows["b"] == (pytest.approx(5710, abs=1), pytest.approx(11119, abs=1))
    assert rows["c"] == (pytest.approx(0, abs=1e-3), pytest.approx(0, abs=1e-3))


def test_the_middle_is_the_median_to_a_hundredth_whichever_row_comes_first(tmp_path: Path) -> None:
    places = ["59.3049,18.0149", "59.3031,18.0131", "59.3012,18.0112", "59.2981,18.0052", "59.2971,18.0041"]
    for first in range(len(places)):
        rows = "".join(f"0,n{number},{place}\n" for number, place in enumerate(places[first:] + places[:first]))
        report = _ingested(tmp_path, "gps-csv", "t,node,lat,lon\n" + rows)
        assert report.facts["parameters"]["origin"] == {"lat": 59.3, "lon": 18.01}


def test_a_few_places_far_off_do_not_move_the_middle_but_are_told(tmp_path: Path) -> None:
    city = "".join(f"{t},a,{59.3 + t / 1e4:.4f},{18.0 + t / 1e4:.4f}\n" for t in range(300))
    right = _ingested(tmp_path, "gps-csv", "t,node,lat,lon\n" + city)
    expected = _table(tmp_path / "out", "gps-csv")
    assert right.facts["parameters"]["origin"] == {"lat": pytest.approx(59.31), "lon": pytest.approx(18.01)}
    assert not right.remarks
    lost = _ingested(tmp_path, "gps-csv", "t,node,lat,lon\n0,b,0,0\n" + city)
    assert _table(tmp_path / "out", "gps-csv").equals(expected)
    assert lost.facts["counts"]["bad_lines"] == 1
    assert lost.facts["parameters"] == right.facts["parameters"]
    for size in (100, 16 << 20):
        far = _ingested(tmp_path, "gps-csv", "t,node,lat,lon\n" + city + "0,z,-33.9,151.2\n", block_bytes=size)
        assert far.facts["parameters"] == right.facts["parameters"]
        assert _table(tmp_path / "out", "gps-csv").slice(0, 300).equals(expected)
        assert "places span 93.2 degrees of latitude and 133.2 of longitude: distances far from the" in far.remarks[-1]


def test_moves_that_are_too_fast_are_told(tmp_path: Path) -> None:
    report = _ingested(tmp_path, "gps-csv", "0 a 0 0\n10 a 1000 0\n20 a 5000 0\n20 b 9 9\n")
    assert report.facts["counts"]["fast_moves"] == 1
    assert "node a moves 4,000 m within 10 s, until 20 s: do two devices share this id?" in report.remarks


def test_a_node_of_ns_2_stands_until_the_last_one_has_arrived(tmp_path: Path) -> None:
    places = "".join(f"$node_({node}) set {axis}_ 0\n" for node in (0, 1) for axis in "XY")
    _ingested(tmp_path, "ns2", places + '$ns_ at 10 "$node_(0) setdest 0 40 2"\n')
    rows = [(row["node"], row["t"], row["y"]) for row in _table(tmp_path / "out", "ns2").to_pylist()]
    assert rows == [("0", 0, 0), ("0", 10, 0), ("0", 30, 40), ("1", 0, 0), ("1", 30, 0)]


def test_links_that_stay_up_last_to_the_end_of_the_log(tmp_path: Path) -> None:
    report = _ingested(tmp_path, "one-connections", "1 CONN a b up\n2 CONN a c up\n7 CONN a c down\n")
    assert report.facts["counts"]["open_contacts"] == 1
    assert _table(tmp_path / "out", "one-connections")["end"].to_pylist() == [7, 7]


def test_a_plan_for_core_may_tell_one_direction_for_both_but_one_of_ion_does_not(tmp_path: Path) -> None:
    text = "a contact 0 9 1 2 5 0 0 0\na contact 3 4 1 3 5 0 0 0\n"
    report = _ingested(tmp_path, "ccp", text)
    assert report.facts["counts"]["contacts"] == 2
    assert report.facts["parameters"]["both_ways"] is True
    assert report.remarks == ["no pair has lines of both directions: each line is counted for both"]
    with pytest.raises(
        LocalError, match=r"all 2 contacts are one way only, .* each line counts for both .* --both-ways"
    ):
        _ingested(tmp_path, "ion", text)
    with pytest.raises(LocalError, match=r"line 2: relative and absolute times are mixed, see line 1"):
        _ingested(tmp_path, "ion", "a contact +0 +9 1 2 5\na contact 2026/11/15-00:00:00 2026/11/15-00:00:09 2 1 5\n")


def test_the_manifest_tells_where_a_table_is_from(tmp_path: Path) -> None:
    report = _ingested(tmp_path, "pairs", "t i j\n20 a b\n40 a b\n# done\n100 b c\n")
    told = json.loads((tmp_path / "out" / "manifest.json").read_text(encoding="utf-8"))["contacts"]
    assert told.pop("version")
    assert told == {key: value for key, value in report.facts.items() if key != "table"}
    assert told["scenario"] == "s"
    assert told["format"] == "pairs"
    assert told["source"][0]["file"] == str(tmp_path / "trace.txt")
    assert told["source"][0]["bytes"] == 35
    assert len(told["source"][0]["sha256"]) == 64
    assert told["parameters"] == {"interval_s": 20, "engine": "local"}
    counts = told["counts"]
    assert (counts["lines"], counts["rows"], counts["nodes"], counts["contacts"]) == (3, 3, 3, 2)
    assert (counts["first_s"], counts["last_s"], counts["pairs"], counts["mean_s"]) == (0, 100, 2, 30)


def test_a_table_is_replaced_by_its_own_scenario_only(tmp_path: Path) -> None:
    _ingested(tmp_path, "pairs", "20 a b\n")
    _ingested(tmp_path, "pairs", "20 a b\n60 a b\n")
    assert _table(tmp_path / "out", "pairs").num_rows == 2
    (tmp_path / "trace.txt").write_text("20 a b\n", encoding="utf-8")
    other = dataclasses.replace(_request(tmp_path / "trace.txt", "pairs", tmp_path / "out"), scenario="other")
    with pytest.raises(LocalError, match=r"holds the scenario 's'; choose another --out, or the same --scenario"):
        ingest(other)
    assert _table(tmp_path / "out", "pairs").num_rows == 2
    assert folders.manifest(tmp_path / "out")["contacts"]["scenario"] == "s"


def test_where_no_table_can_be_written_nothing_is_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("mine", encoding="utf-8")
    (tmp_path / "trace.txt").write_text("20 a b\n", encoding="utf-8")
    for out in ("file", "file/below"):
        with pytest.raises(LocalError, match=r"/file is a file; choose a folder for --out$"):
            ingest(_request(tmp_path / "trace.txt", "pairs", tmp_path / out))

    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("pyarrow.parquet.write_table", full)
    (tmp_path / "there").mkdir()
    for out in ("new/deep", "there"):
        with pytest.raises(FileError, match=r"contacts cannot be written: No space left on device"):
            ingest(_request(tmp_path / "trace.txt", "pairs", tmp_path / out))
    assert sorted(each.name for each in tmp_path.iterdir()) == ["file", "there", "trace.txt"]
    assert not list((tmp_path / "there").iterdir())


@pytest.mark.parametrize("named", [".", "positions"])
def test_contacts_of_positions_that_are_replaced_are_told(tmp_path: Path, named: str) -> None:
    out = tmp_path / "out"
    assert not _ingested(tmp_path, "gps-csv", "t node x y\n0 a 0 0\n0 b 5 5\n9 a 0 0\n9 b 5 5\n").remarks
    assert run(["lab", "contacts", str(out / named), "--range-m", "20", "--out", str(out), "--engine", "local"]) == 0
    report = _ingested(tmp_path, "gps-csv", "t node x y\n0 a 0 0\n9 a 0 0\n")
    assert report.remarks == [
        f"{out / 'contacts'} is out of date, since it was made from earlier positions; run lab contacts again"
    ]
    assert not _ingested(tmp_path, "pairs", "20 a b\n").remarks, "contacts of their own"
    assert not _ingested(tmp_path, "gps-csv", "t node x y\n0 a 0 0\n").remarks


def test_a_timetable_becomes_positions_of_a_day(tmp_path: Path) -> None:
    week = "service_id,monday,tuesday,wednesday,thursday,friday,saturday,sunday,start_date,end_date\n"
    feed = {
        "stops": "stop_id,stop_lat,stop_lon\na,0,0\nb,0,0.002\n",
        "routes": "route_id,route_short_name\nr1,1\n",
        "calendar": f"{week}week,1,1,1,1,1,0,0,20240101,20241231\n",
        "trips": "route_id,service_id,trip_id\nr1,week,out\n",
        "stop_times": "trip_id,arrival_time,departure_time,stop_id,stop_sequence\n"
        "out,08:00:00,08:00:00,a,1\nout,08:02:00,08:02:00,b,2\n",
    }
    with zipfile.ZipFile(tmp_path / "feed.zip", "w") as archive:
        for name, text in feed.items():
            archive.writestr(f"{name}.txt", text)
        archive.extractall(tmp_path / "feed")
    folder = ingest(_request(tmp_path / "feed", "gtfs", tmp_path / "folder", day="2024-01-01"))
    report = ingest(_request(tmp_path / "feed.zip", "gtfs", tmp_path / "out", day="2024-01-01"))
    assert folders.read_arrow(tmp_path / "folder", POSITIONS).equals(folders.read_arrow(tmp_path / "out", POSITIONS))
    digests = {name: hashlib.sha256(text.encode()).hexdigest() for name, text in feed.items()}
    listed = "".join(f"{digests[name]}  {name}.txt\n" for name in sorted(feed))
    assert folder.facts["source"] == [
        {
            "file": str(tmp_path / "feed"),
            "bytes": sum(map(len, feed.values())),
            "sha256": hashlib.sha256(listed.encode()).hexdigest(),
        }
    ]
    rows = folders.read_arrow(tmp_path / "out", POSITIONS).to_pylist()
    assert [(row["scenario"], row["t"]) for row in (rows[0], rows[-1])] == [("s", 28_800), ("s", 28_920)]
    assert rows[-1]["x"] - rows[0]["x"] == pytest.approx(222.4, abs=0.1)
    assert report.facts["parameters"] == {"day": "2024-01-01", "shapes": True}
    assert (report.facts["counts"]["positions"], report.facts["counts"]["nodes"]) == (len(rows), 1)


# -------------------------------------------------------------------------------------------------------- errors
def test_more_than_a_hundredth_of_bad_lines_is_an_error_unless_one_is_lenient(tmp_path: Path) -> None:
    good = "".join(f"{20 * number} a b\n" for number in range(1, 199))
    report = _ingested(tmp_path, "pairs", good + "never a b\n20 a\n")
    assert report.facts["counts"]["bad_lines"] == 2
    assert report.remarks[0] == "bad lines: 2 of 200"
    worse = good + "never a b\n" * 12
    before = _table(tmp_path / "out", "pairs")
    with pytest.raises(LocalError, match=r"12 of 210 lines cannot be read as pairs .* 1 %; .* --lenient") as error:
        _ingested(tmp_path, "pairs", worse)
    lines = str(error.value).splitlines()[-10:]
    assert [f", line {number}: t must be" in line for number, line in enumerate(lines, 199)] == [True] * 10
    assert _table(tmp_path / "out", "pairs").equals(before)
    report = _ingested(tmp_path, "pairs", worse, lenient=True)
    assert report.facts["counts"]["bad_lines"] == 12
    assert len([each for each in report.remarks if "never a b" in each]) == 10
    with pytest.raises(LocalError, match="no line can be read as pairs"):
        _ingested(tmp_path, "pairs", "t i j\nnever a b\n", lenient=True)


@pytest.mark.parametrize(
    ("name", "more", "message"),
    [
        ("gpx", {}, "--format must be one of ccp, contacts-csv, csv, gps-csv, gtfs, haslemere"),
        ("kth", {"options": Options(interval_s=1.0)}, "--interval-s cannot be used with kth; it is for imote, pairs"),
        ("pairs", {"options": Options(distance_m=1.0)}, "--distance-m cannot be used with pairs; it is for haslemere"),
        ("pairs", {"options": Options(same_time="last")}, "--same-time cannot be used with pairs"),
        ("pairs", {"options": Options(interval_s=0.0)}, "--interval-s must be a number above 0"),
        ("pairs", {"day": "2014-06-03"}, "--format pairs takes no --day"),
        ("gtfs", {}, "--format gtfs needs a day of service: --day"),
    ],
)
def test_options_that_mean_nothing_are_refused(tmp_path: Path, name: str, more: dict[str, Any], message: str) -> None:
    with pytest.raises(LocalError, match=message):
        _request(tmp_path / "trace", name, tmp_path / "out", **more)


def test_the_command_tells_counts_on_stdout_and_the_rest_on_stderr(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path, out = tmp_path / "trace.txt", tmp_path / "out"
    path.write_text("0 a 0 0\n" * 200 + "east\n", encoding="utf-8")
    order = ["lab", "ingest", str(path), "--format", "csv", "--scenario", "walk", "--out", str(out)]
    assert run([*order, "--engine", "local", "--json"]) == 0
    told = capsys.readouterr()
    assert json.loads(told.out)["counts"]["positions"] == 1
    assert f"{path}, line 201: node is missing: the row has 1 cells (east)" in told.err
    assert "assuming the columns t, node, x, y" in told.err
    assert run([*order, "--engine", "quick"]) == 2
    assert run([*order, "--interval-s", "5"]) == 2
    assert "--interval-s cannot be used with gps-csv" in capsys.readouterr().err
    assert _table(out, "gps-csv").to_pylist() == [{"scenario": "walk", "node": "a", "t": 0.0, "x": 0.0, "y": 0.0}]
