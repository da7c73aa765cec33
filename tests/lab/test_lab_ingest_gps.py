"""Traces with a file per node, as KAIST's and cabspotting's: from files to contacts, against brute force."""

from __future__ import annotations

import gzip
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest
from tests.support.gps_traces import GpsTrace, cabspotting, kaist
from tests.traces.test_traces_encounters import slow_search

from carrypost.cli.app import run
from carrypost.errors import LocalError
from carrypost.lab import folders
from carrypost.lab.contacts.search import found_here
from carrypost.lab.ingest.inputs import IngestRequest
from carrypost.lab.ingest.run import Report, ingest
from carrypost.lab.schemas import POSITIONS
from carrypost.traces.encounters import Rules
from carrypost.traces.formats import Options

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

KAIST = Options(node_from_name=True)
CABS = Options(node_from_name=True, columns=("lat", "lon", "fare", "t"), unsorted=True)
LAYOUTS = [(kaist, KAIST, 50.0), (cabspotting, CABS, 200.0)]
Write = Callable[[Path, int], GpsTrace]


def _ingested(paths: list[Path], out: Path, options: Options, **more: object) -> tuple[Report, pa.Table]:
    asked = {"engine": "local", **more}
    report = ingest(IngestRequest(paths=paths, format="gps-csv", scenario="s", out=out, options=options, **asked))  # type: ignore[arg-type]
    return report, folders.read_arrow(out, POSITIONS)


@pytest.mark.parametrize(("write", "options", "range_m"), LAYOUTS)
def test_contacts_of_a_gps_trace_are_those_of_brute_force(
    tmp_path: Path, write: Write, options: Options, range_m: float
) -> None:
    made = write(tmp_path, 7)
    report, found = _ingested(made.paths, tmp_path / "out", options)
    origin = report.facts["parameters"].get("origin", {})
    motion = made.motion(origin)
    expected = [(node, *sample) for node, samples in sorted(motion.items()) for sample in samples]
    rows = found.to_pylist()
    assert [(row["node"], round(row["t"] * 1e6)) for row in rows] == [each[:2] for each in expected]
    places = [(row["x"], row["y"]) for row in rows]
    assert places == [pytest.approx(each[2:], abs=1e-6) for each in expected]
    assert origin == (
        {} if not made.degrees else pytest.approx({"lat": made.median(2), "lon": made.median(1)}, abs=0.01)
    )
    assert report.facts["counts"]["nodes"] == len(made.paths)
    assert report.facts["counts"]["bad_lines"] == 0
    contacts = found_here(found, Rules(range_m=range_m, max_gap_us=600_000_000)).to_pylist()
    met = [
        (a, b, start, end)
        for (a, b), spans in slow_search(motion, Fraction(range_m), 600_000_000).items()
        for start, end in spans
    ]
    assert len(met) > 10
    ours = [(row["a"], row["b"], row["start"], row["end"]) for row in contacts]
    assert [each[:2] for each in sorted(ours)] == [each[:2] for each in sorted(met)]
    # Places are a rounding error off, and nodes that hardly approach each other feel it most.
    for mine, exact in zip(sorted(ours), sorted(met), strict=True):
        assert mine[2:] == pytest.approx([float(each) / 1e6 for each in exact[2:]], abs=1e-5)


def test_files_of_nodes_are_read_alike_by_spark_several_in_a_task(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = cabspotting(tmp_path, 3)
    packed = made.paths[0].with_suffix(".txt.gz")
    packed.write_bytes(gzip.compress(made.paths[0].read_bytes()))
    made.paths[0].unlink()
    made.paths[0] = packed
    here, expected = _ingested(made.paths, tmp_path / "here", CABS)
    tracker = spark.sparkContext.statusTracker()
    spark.sparkContext.setJobGroup("cabs", "files of nodes")
    monkeypatch.setattr(spark.sparkContext, "setJobGroup", lambda *_, **__: None)  # All jobs inherit this one.
    there, found = _ingested(made.paths, tmp_path / "there", CABS, engine="spark")
    jobs = [tracker.getJobInfo(job) for job in tracker.getJobIdsForGroup("cabs")]
    stages = [tracker.getStageInfo(stage) for job in jobs if job for stage in job.stageIds]
    assert max(stage.numTasks for stage in stages if stage) <= 2, (
        "the cluster has two cores, and there is little to read"
    )
    assert found.equals(expected)
    assert (there.facts["counts"], there.remarks) == (here.facts["counts"], here.remarks)


def test_what_is_assumed_of_all_files_is_said_once(tmp_path: Path) -> None:
    made = kaist(tmp_path, 1)
    report, _ = _ingested(made.paths, tmp_path / "out", KAIST)
    assert report.remarks == [
        f"{made.paths[0]}: there is no header; assuming the columns t, x, y (5 more files likewise)"
    ]


def test_a_file_with_a_header_may_be_of_one_node_too(tmp_path: Path) -> None:
    path = tmp_path / "Ann.9.csv"
    path.write_text("lat,time (ms),lon\n59.3,20,18.1\n59.3,1020,18.1\n", encoding="utf-8")
    _, found = _ingested([path], tmp_path / "out", Options(node_from_name=True, time_unit="ms"))
    assert [(row["node"], row["t"]) for row in found.to_pylist()] == [("Ann.9", 0.02), ("Ann.9", 1.02)]


def test_files_whose_names_do_not_tell_nodes_apart_are_refused(tmp_path: Path) -> None:
    paths = [tmp_path / name for name in ("ann/track.txt", "bob/track.csv.gz", "n" * 70, "trace.1", "trace.2")]
    for path in paths:
        path.parent.mkdir(exist_ok=True)
        path.write_text("0 1 2\n", encoding="utf-8")
    with pytest.raises(LocalError, match=f"{paths[0]} and {paths[1]} would both belong to node track"):
        _ingested(paths[:2], tmp_path / "out", KAIST)
    with pytest.raises(
        LocalError,
        match="does not name a node, as --node-from-name requires: a plain node name must have 1 to 64 bytes",
    ):
        _ingested(paths[2:3], tmp_path / "out", KAIST)
    _, found = _ingested(paths[3:], tmp_path / "out", KAIST)
    assert found["node"].to_pylist() == ["trace.1", "trace.2"], "what ends in a number has no ending"


def test_the_command_reads_a_file_per_node(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    made = cabspotting(tmp_path, 5)
    order = [
        "lab",
        "ingest",
        *map(str, made.paths),
        "--format",
        "csv",
        "--scenario",
        "sf",
        "--out",
        str(tmp_path / "sf"),
    ]
    order += ["--engine", "local", "--columns", "lat,lon,fare,t"]
    assert run([*order, "--node-from-name"]) == 2
    assert "new_abboip.txt, line 2: the time of node new_abboip goes back" in capsys.readouterr().err
    assert run([*order, "--node-from-name", "--unsorted", "--json"]) == 0
    assert '"nodes":5' in capsys.readouterr().out
    assert run([*order, "--unsorted"]) == 2
    assert "--columns must name t, node, x, y or t, node, lat, lon, not lat,lon,fare,t" in capsys.readouterr().err
