"""GPS traces in the layouts in which they are published, made by a generator, and the same by brute force."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from carrypost.emu.traces.formats import Options
from carrypost.errors import LocalError
from carrypost.lab import folders
from carrypost.lab.ingest.run import IngestRequest, Report, ingest
from carrypost.lab.schemas import CONTACTS, POSITIONS

EARTH_M = 6_371_008.8
"""A degree of latitude is this times pi / 180."""


def read(
    paths: Sequence[Path],
    out: Path,
    name: str = "gps-csv",
    **options: Any,  # noqa: ANN401 - those of `Options`
) -> tuple[Report, pa.Table]:
    asked = Options(**options)
    found = ingest(
        IngestRequest(paths=paths, format=name, scenario="s", out=out, options=asked, engine="local", lenient=False)
    )
    return found, folders.read_arrow(out, POSITIONS if name == "gps-csv" else CONTACTS)


def rows(table: pa.Table) -> list[tuple[object, ...]]:
    return [tuple(row.values())[1:] for row in table.to_pylist()]


def test_kaist_has_a_file_per_person_with_seconds_and_metres(tmp_path: Path) -> None:
    chance, paths, expected = np.random.default_rng(1), [], []
    for person in range(1, 6):
        path = tmp_path / f"KAIST_30sec_{person:03}.txt"
        steps = chance.normal(0, 40, (50, 2)).cumsum(axis=0)
        lines = [f"  {30.0 * at:.7e}\t{x:.7e}\t{y:.7e}" for at, (x, y) in enumerate(steps)]
        path.write_text("\r\n".join(lines) + "\r\n", encoding="ascii")
        paths.append(path)
        for at, line in enumerate(lines):
            _, x, y = (float(word) for word in line.split())
            expected.append((path.stem, 30.0 * at, x, y))
    found, table = read(paths, tmp_path / "out", node_from_name=True)
    assert rows(table) == expected
    assert found.facts["counts"]["nodes"] == 5
    assert found.facts["parameters"]["node_from_name"] is True


def test_cabspotting_has_a_file_per_cab_the_newest_line_first(tmp_path: Path) -> None:
    chance, paths, cabs = np.random.default_rng(2), [], {}
    for cab in ("abboip", "abcoij", "abdremlu"):
        path = tmp_path / f"new_{cab}.txt"
        times = 1_213_084_687 + np.sort(chance.choice(86_400, 40, replace=False))[::-1]
        places = np.array([37.75, -122.39]) + chance.normal(0, 0.01, (40, 2))
        fixes = [(int(t), lat, lon) for t, (lat, lon) in zip(times, places.round(5).tolist(), strict=True)]
        lines = [f"{lat:.5f} {lon:.5f} {at % 2} {t}\n" for at, (t, lat, lon) in enumerate(fixes)]
        path.write_text("".join(lines), encoding="ascii")
        paths.append(path)
        cabs[path.stem] = fixes
    columns = ("lat", "lon", "occupied", "t")
    with pytest.raises(LocalError, match="goes back"):
        read(paths, tmp_path / "out", columns=columns, node_from_name=True)
    found, table = read(paths, tmp_path / "out", columns=columns, node_from_name=True, unsorted=True)
    origin = found.facts["parameters"]["origin"]
    expected = []
    for cab, fixes in cabs.items():
        for t, lat, lon in sorted(fixes):
            x = np.radians(lon - origin["lon"]) * EARTH_M * np.cos(np.radians(origin["lat"]))
            expected.append((cab, t, x, np.radians(lat - origin["lat"]) * EARTH_M))
    got = rows(table)
    assert [row[:2] for row in got] == [row[:2] for row in expected]
    far = np.array([row[2:] for row in got], float) - np.array([row[2:] for row in expected], float)
    assert np.abs(far).max() < 20  # Metres, of some kilometres: whatever ellipsoid the plane is of.


def test_times_have_units_and_times_of_day_a_date(tmp_path: Path) -> None:
    path = tmp_path / "trace.csv"
    path.write_text("t,node,x,y\n1213084687250,a,0,0\n1213084688000,a,1,0\n", encoding="ascii")
    _, table = read([path], tmp_path / "out", time_unit="ms")
    assert table["t"].to_pylist() == [1_213_084_687.25, 1_213_084_688.0]
    path.write_text("t,node,x,y\n8:15,a,0,0\n08:15:30.5,a,1,0\n24:10:00,a,2,0\n", encoding="ascii")
    _, table = read([path], tmp_path / "out", date="1970-01-02")
    assert table["t"].to_pylist() == [86_400 + each for each in (29_700.0, 29_730.5, 87_000.0)]
    with pytest.raises(LocalError, match=r"t is a time of day, '8:15': of which day, --date tells"):
        read([path], tmp_path / "other")
    with pytest.raises(LocalError, match="--date must be a day such as 2014-06-03, not 'June'"):
        read([path], tmp_path / "other", date="June")
    with pytest.raises(LocalError, match="--time-unit means nothing with one-movement"):
        read([path], tmp_path / "other", name="one-movement", time_unit="ms")


def test_names_with_colons_are_written_with_hyphens_and_that_is_told(tmp_path: Path) -> None:
    path = tmp_path / "seen.csv"
    path.write_text("a,b,start,end\n00:1a:7d,00:1a:7e,0,10\n00:1a:7d,other,5,20\n", encoding="ascii")
    found, table = read([path], tmp_path / "out", name="contacts-csv")
    assert rows(table) == [("00-1a-7d", "00-1a-7e", 0.0, 10.0), ("00-1a-7d", "other", 5.0, 20.0)]
    assert "names with colons are written with hyphens, in 3 cells" in found.said


def test_contacts_of_a_pair_that_overlap_are_joined_if_asked_for(tmp_path: Path) -> None:
    path = tmp_path / "seen.csv"
    path.write_text("a,b,start,end\na,b,0,10\nb,a,5,20\na,b,30,40\n", encoding="ascii")
    with pytest.raises(LocalError, match="must not; to join them: --overlaps"):
        read([path], tmp_path / "out", name="contacts-csv")
    _, table = read([path], tmp_path / "out", name="contacts-csv", overlaps=True)
    assert rows(table) == [("a", "b", 0.0, 20.0), ("a", "b", 30.0, 40.0)]


@pytest.mark.parametrize(
    ("text", "options", "line", "told"),
    [
        ("t,node,x,y,speed\n0,a,0,0,1\n1,a,0,0\n", {}, 3, "the row has 4 cells, the header names 5 columns"),
        ("0 a 0 0\n1 a 0 0 7\n", {}, 2, "the row has 5 cells, there are 4 columns"),
        ("0,a,0,0,9\n1,a,0,0\n", {"columns": ("t", "node", "x", "y", "v")}, 2, "the row has 4 cells, there are 5"),
    ],
)
def test_a_line_with_another_number_of_columns_is_a_bad_line(
    text: str, options: dict[str, Any], line: int, told: str, tmp_path: Path
) -> None:
    path = tmp_path / "trace.csv"
    path.write_text(text, encoding="ascii")
    with pytest.raises(LocalError, match=f"trace.csv, line {line}: {told}"):
        read([path], tmp_path / "out", **options)


@pytest.mark.skipif("CARRYPOST_DATA" not in os.environ, reason="CARRYPOST_DATA names no folder of published traces")
@pytest.mark.parametrize(("name", "options"), [("kaist", {}), ("cabspotting", {"columns": ("lat", "lon", "o", "t")})])
def test_published_traces_are_read(name: str, options: dict[str, Any], tmp_path: Path) -> None:
    paths = sorted((Path(os.environ["CARRYPOST_DATA"]) / name).glob("*.txt"))
    if not paths:
        pytest.skip(f"there is no {name} in CARRYPOST_DATA")
    found, table = read(paths, tmp_path / "out", node_from_name=True, unsorted=True, same_time="first", **options)
    assert found.facts["counts"]["nodes"] == len(paths)
    assert table.num_rows > 0
