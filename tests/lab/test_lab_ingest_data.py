"""Counts of public traces come out of `lab ingest` as published; run where CARRYPOST_DATA names their folder."""

from __future__ import annotations

import gzip
import os
from pathlib import Path
from typing import Any

import pyarrow.compute as pc
import pytest

from carrypost.lab import folders
from carrypost.lab.ingest.inputs import IngestRequest
from carrypost.lab.ingest.run import ingest
from carrypost.lab.schemas import CONTACTS
from carrypost.traces.formats import Options

DATA = os.environ.get("CARRYPOST_DATA", "")
pytestmark = pytest.mark.skipif(not DATA, reason="CARRYPOST_DATA names no folder with the public traces")


def _request(path: Path, name: str, out: Path, options: Options | None = None) -> IngestRequest:
    return IngestRequest(paths=[path], format=name, scenario="s", out=out, options=options or Options(), engine="local")


@pytest.mark.parametrize(
    ("file", "options", "expected"),
    [
        ("sociopatterns-primary-school/primaryschool.tsv.gz", {}, (125_773, 242, 77_521, 0, 8_317, 32.4)),
        # The published 10,687 contacts of 1,710 pairs have one of node 43 with itself.
        ("sociopatterns-highschool-2011/thiers_2011.csv.gz", {}, (28_561, 126, 10_686, 1, 1_709, 53.4)),
        ("sociopatterns-highschool-2011/thiers_2011.csv.gz", {"overlaps": True}, (28_561, 126, 10_676, 1, 1_709, 53.5)),
        ("haslemere/HaslemereProximity.csv.gz", {}, (102_831, 469, 24_820, 0, 8_277, 1242.9)),
        ("haslemere/HaslemereProximity.csv.gz", {"distance_m": 20.0}, (102_831, 457, 10_323, 0, 3_195, 1194.4)),
        ("haslemere/HaslemereProximity.csv.gz", {"distance_m": 10.0}, (102_831, 443, 7_261, 0, 1_855, 1138.7)),
    ],
)
def test_counts_of_public_traces_come_out(
    tmp_path: Path, file: str, options: dict[str, Any], expected: tuple[float, ...]
) -> None:
    name = "haslemere" if "haslemere" in file else "pairs"
    report = ingest(_request(Path(DATA) / file, name, tmp_path, Options(**options)))
    counts, table = report.facts["counts"], folders.read_arrow(tmp_path, CONTACTS)
    mean = pc.mean(pc.subtract(table["end"], table["start"])).as_py()
    assert counts["contacts"] == table.num_rows
    assert counts["mean_s"] == pytest.approx(mean, abs=1e-3)
    found = tuple(counts[each] for each in ("rows", "nodes", "contacts", "self_contacts", "pairs"))
    found = (*found, round(mean, 1))
    assert found == expected
    assert counts["merged_contacts"] == counts["contacts"] + counts["self_contacts"]
    assert counts["merged_pairs"] == counts["pairs"] + bool(counts["self_contacts"])


def test_the_default_scenario_of_the_one_is_read_as_it_wrote_it(tmp_path: Path) -> None:
    counts = ingest(_request(Path(DATA) / "one_default/contacts.txt", "one-connections", tmp_path)).facts["counts"]
    assert (counts["contacts"], counts["mean_s"]) == (30_875, 5.950)
    assert (counts["ignored_ups"], counts["ignored_downs"]) == (1, 0)


@pytest.mark.parametrize(
    ("files", "options", "expected"),
    [
        ("infocom05/*", Options(), (8_575, 313.596, 3_193, 10_691)),
        ("infocom05/*", Options(overlaps=True), (7_379, 492.099)),
        ("cambridge/*", Options(), (5_471, 1_209.106)),
        ("cambridge/*", Options(overlaps=True), (4_565, 1_943.699)),
    ],
)
def test_logs_with_double_events_have_their_known_counts(
    tmp_path: Path, files: str, options: Options, expected: tuple[float, ...]
) -> None:
    """Traces of the Haggle project as events of The ONE; the folder has one file, beside a README."""
    counts = ingest(_request(_the_trace(files), "one-connections", tmp_path, options)).facts["counts"]
    found = [counts[each] for each in ("contacts", "mean_s", "ignored_ups", "empty_contacts")]
    assert tuple(found[: len(expected)]) == expected


def test_buses_of_58_days_keep_their_days(tmp_path: Path) -> None:
    paths = _traces("dieselnet/*")
    options = Options(columns=("a", "b", "start", "duration"), date_from_name="%m%d%Y")
    request = IngestRequest(
        paths=paths, format="contacts-csv", scenario="s", out=tmp_path, options=options, lenient=True, engine="local"
    )
    assert len(paths) == 58
    counts = ingest(request).facts["counts"]
    starts = folders.read_arrow(tmp_path, CONTACTS)["start"]
    assert counts["rows"] == 8_512
    assert len(pc.unique(pc.floor(pc.divide(starts, 86_400.0)))) == 58


def _traces(files: str) -> list[Path]:
    paths = [each for each in sorted(Path(DATA).glob(files)) if each.name != "README.md"]
    if not paths:
        pytest.skip(f"CARRYPOST_DATA has no {files}")
    return paths


def _the_trace(files: str) -> Path:
    (path,) = _traces(files)
    return path


def test_nights_do_not_join_contacts_of_haslemere(tmp_path: Path) -> None:
    """Joined on bare steps, as if nights were not, there would be 24,511 contacts."""
    path = Path(DATA) / "haslemere/HaslemereProximity.csv.gz"
    steps = tmp_path / "steps.csv"
    rows = gzip.decompress(path.read_bytes()).decode().splitlines()[1:]
    steps.write_text("".join(f"{300 * int(s)},{i},{j}\n" for s, i, j, _ in (row.split(",") for row in rows)))
    bare = ingest(_request(steps, "pairs", tmp_path / "bare", Options(interval_s=300.0)))
    ours = ingest(_request(path, "haslemere", tmp_path / "ours"))
    assert bare.facts["counts"]["contacts"] == 24_511
    assert ours.facts["counts"]["contacts"] == 24_820


@pytest.mark.parametrize(
    ("files", "options"),
    [
        ("kaist/KAIST_30sec_*.txt", Options(node_from_name=True)),
        (
            "cabspotting/new_*.txt",
            Options(node_from_name=True, columns=("lat", "lon", "fare", "t"), unsorted=True, same_time="first"),
        ),
    ],
)
def test_traces_with_a_file_per_node_are_read_whole(tmp_path: Path, files: str, options: Options) -> None:
    paths = sorted(Path(DATA).glob(files))
    if not paths:
        pytest.skip(f"CARRYPOST_DATA has no {files}")
    report = ingest(
        IngestRequest(
            paths=paths, format="gps-csv", scenario="s", out=tmp_path, options=options, lenient=True, engine="local"
        )
    )
    counts = report.facts["counts"]
    assert counts["nodes"] == len(paths)
    assert counts["lines"] == sum(len(path.read_text().split("\n")) - 1 for path in paths)
    assert counts["rows"] == counts["lines"] - counts["bad_lines"]
