"""Tables on disk are there whole or not at all."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import carrypost
from carrypost.errors import FileError, LabError, LocalError
from carrypost.lab import folders
from carrypost.lab.schemas import CONTACTS, POSITIONS
from carrypost.lab.spark.session import session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def contacts(*ends: float) -> pa.Table:
    rows = [{"scenario": "s", "a": "a", "b": "b", "start": end - 1, "end": end} for end in ends]
    return pa.Table.from_pylist(rows, CONTACTS.arrow)


def test_what_was_written_is_read_again(tmp_path: Path) -> None:
    folders.write_arrow(contacts(2.0, 9.0), tmp_path, CONTACTS)
    assert folders.read_arrow(tmp_path, CONTACTS)["end"].to_pylist() == [2.0, 9.0]
    assert folders.read_arrow(tmp_path / "contacts", CONTACTS).num_rows == 2
    (file,) = folders.parquet_files(tmp_path, CONTACTS)
    assert folders.read_arrow(file, CONTACTS).num_rows == 2


def test_a_table_is_replaced_as_a_whole(tmp_path: Path) -> None:
    for ends in ((2.0, 9.0), (5.0,)):
        folders.write_arrow(contacts(*ends), tmp_path, CONTACTS)
        assert folders.read_arrow(tmp_path, CONTACTS)["end"].to_pylist() == list(ends)
    assert [each.name for each in tmp_path.iterdir()] == ["contacts"]


def test_what_fails_leaves_what_was_there(tmp_path: Path) -> None:
    def failing() -> None:
        with folders.staged(tmp_path / "contacts") as partial:
            partial.mkdir()
            (partial / "part-0.parquet").write_bytes(b"half")
            raise RuntimeError

    folders.write_arrow(contacts(2.0), tmp_path, CONTACTS)
    with pytest.raises(RuntimeError):
        failing()
    assert folders.read_arrow(tmp_path, CONTACTS)["end"].to_pylist() == [2.0]
    assert [each.name for each in tmp_path.iterdir()] == ["contacts"]


def test_what_a_killed_process_left_goes_and_what_a_living_one_writes_stays(tmp_path: Path) -> None:
    dead = subprocess.Popen([sys.executable, "-c", ""])
    dead.wait()
    (tmp_path / f".contacts.{dead.pid}.partial").mkdir()
    (tmp_path / f".contacts.{os.getppid()}.partial").mkdir()
    folders.write_arrow(contacts(2.0), tmp_path, CONTACTS)
    assert sorted(each.name for each in tmp_path.iterdir()) == [f".contacts.{os.getppid()}.partial", "contacts"]


def test_a_full_disk_is_told_and_nothing_stays(small_disk: Callable[[int], Path]) -> None:
    disk = small_disk(256 << 10)
    folders.write_arrow(contacts(2.0), disk, CONTACTS)
    chance = os.urandom(1 << 20)
    many = contacts(*(int.from_bytes(chance[at : at + 6], "big") / 1e3 for at in range(0, len(chance), 8)))
    with pytest.raises(FileError, match="contacts cannot be written: No space left on device"):
        folders.write_arrow(many, disk, CONTACTS)
    assert [each.name for each in disk.iterdir()] == ["contacts"]
    assert folders.read_arrow(disk, CONTACTS)["end"].to_pylist() == [2.0]


def test_a_full_disk_below_spark_is_told_and_nothing_stays(
    small_disk: Callable[[int], Path], spark: SparkSession
) -> None:
    disk = small_disk(256 << 10)
    many = spark.range(20_000).selectExpr(
        "'s' AS scenario", "uuid() AS a", "uuid() AS b", "rand() AS start", "rand() AS end"
    )
    with pytest.raises(LabError, match="the disk is full"), session():
        folders.write(many, disk, CONTACTS)
    assert list(disk.iterdir()) == []


def test_other_columns_are_named(tmp_path: Path) -> None:
    folders.write_arrow(contacts(2.0), tmp_path, CONTACTS)
    with pytest.raises(
        LocalError, match=r"part-0\.parquet has no column 'node'; a table of positions has scenario, node"
    ):
        folders.read_arrow(tmp_path / "contacts", POSITIONS)


def test_a_row_without_a_name_is_refused(tmp_path: Path) -> None:
    rows = pa.Table.from_pylist([{"scenario": "s", "node": None, "t": 1.0, "x": 0.0, "y": 0.0}])
    pq.write_table(rows, tmp_path / "a.parquet")
    with pytest.raises(LocalError, match=r"a\.parquet: every row of positions must have a node, and one has none"):
        folders.read_arrow(tmp_path, POSITIONS)


def test_there_is_nothing_to_read(tmp_path: Path) -> None:
    with pytest.raises(LocalError, match="nowhere: there is no such file or folder"):
        folders.read_arrow(tmp_path / "nowhere", CONTACTS)
    with pytest.raises(LocalError, match="must contain a table of contacts"):
        folders.read_arrow(tmp_path, CONTACTS)


def test_a_file_that_is_cut_short_is_named(tmp_path: Path, spark: SparkSession) -> None:
    folders.write_arrow(contacts(2.0), tmp_path, CONTACTS)
    (file,) = folders.parquet_files(tmp_path, CONTACTS)
    file.write_bytes(file.read_bytes()[:-20])
    for reading in (lambda: folders.read_arrow(tmp_path, CONTACTS), lambda: folders.read(spark, tmp_path, CONTACTS)):
        with pytest.raises(FileError, match=r"part-0\.parquet cannot be read as a Parquet file"):
            reading()


def test_a_file_that_is_damaged_inside_is_told(tmp_path: Path, spark: SparkSession) -> None:
    folders.write_arrow(contacts(*range(2, 50_000)), tmp_path, CONTACTS)
    (file,) = folders.parquet_files(tmp_path, CONTACTS)
    content = bytearray(file.read_bytes())
    content[100 : len(content) // 2] = bytes(len(content) // 2 - 100)
    file.write_bytes(content)
    with pytest.raises(FileError, match=r"part-0\.parquet cannot be read"):
        folders.read_arrow(tmp_path, CONTACTS)
    with pytest.raises(LabError, match=r"part-0\.parquet: it is damaged"), session():
        folders.read(spark, tmp_path, CONTACTS).selectExpr("sum(`end`)").collect()


def test_a_frame_becomes_the_table_with_its_types(tmp_path: Path, spark: SparkSession) -> None:
    frame = spark.sql("SELECT 7 AS extra, 2 AS `end`, 1 AS start, 'b' AS b, 'a' AS a, 's' AS scenario")
    with session():
        folders.write(frame, tmp_path, CONTACTS)
    assert folders.read_arrow(tmp_path, CONTACTS).to_pylist() == contacts(2.0).to_pylist()
    assert pq.read_table(tmp_path / "contacts").schema.names == CONTACTS.names


def test_a_frame_without_a_column_is_refused(tmp_path: Path, spark: SparkSession) -> None:
    with pytest.raises(LocalError, match="contacts has no column 'scenario'; it needs scenario, a, b, start, end"):
        folders.write(spark.sql("SELECT 'a' AS a"), tmp_path, CONTACTS)


def test_the_manifest_tells_of_each_table(tmp_path: Path) -> None:
    folders.note(tmp_path, POSITIONS, {"rows": 7})
    folders.note(tmp_path, CONTACTS, {"rows": 2})
    folders.note(tmp_path, CONTACTS, {"rows": 3})
    version = carrypost.__version__
    assert json.loads((tmp_path / "manifest.json").read_text()) == {
        "positions": {"rows": 7, "version": version},
        "contacts": {"rows": 3, "version": version},
    }


def test_a_manifest_that_is_none_is_told(tmp_path: Path) -> None:
    (tmp_path / "manifest.json").write_text("{")
    with pytest.raises(FileError, match=r"manifest\.json cannot be read as a manifest"):
        folders.manifest(tmp_path)
