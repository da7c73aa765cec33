"""Files that scenarios name are checked before anything runs: a mistake there is reported, not played."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.support.campaigns import THREE, TWO_SETTINGS, campaign, three

from carrypost.cli.app import run
from carrypost.lab.campaign import grid
from carrypost.traces import contacts

_PARQUET = THREE.replace("contacts.csv", "contacts.parquet")


def text(name: str, content: str) -> Callable[[Path], None]:
    def write(folder: Path) -> None:
        three(folder)
        (folder / name).write_text(content, encoding="utf-8")

    return write


def without_columns(folder: Path) -> None:
    three(folder, _PARQUET)
    pq.write_table(pa.table({"a": ["a"], "b": ["b"], "start": [1.0]}), folder / "shared" / "contacts.parquet")


def truncated(folder: Path) -> None:
    three(folder, _PARQUET)
    path = folder / "shared" / "contacts.parquet"
    pq.write_table(pa.table({"a": ["a"], "b": ["b"], "start": [1.0], "end": [2.0]}), path)
    path.write_bytes(path.read_bytes()[:-20])


def empty_folder(folder: Path) -> None:
    three(folder, _PARQUET)
    (folder / "shared" / "contacts.parquet").mkdir()


BAD = [
    (text("shared/contacts.csv", "a,b,start,end\na,b,10,30\nb,c,9,5\n"), "contacts.csv, line 3: the contact ends at"),
    (text("shared/contacts.csv", "a,b,start,end\na,b,10,30\nb,x,35,55\n"), "contacts.csv, line 3: there is no node x"),
    (text("shared/contacts.csv", "a,b,start\na,b,10\n"), "contacts.csv, line 1: "),
    (text("scenarios/nodes.csv", "node,join,leave\na,0,\nb,soon,\n"), "nodes.csv, line 3: join must be a number"),
    (text("scenarios/publish.csv", "t,node,message,size\n5,a,hello,-1\n"), "publish.csv, line 2: size must be a whole"),
    (without_columns, "contacts.parquet has no column 'end'; contacts have a, b, start, end"),
    (truncated, "contacts.parquet cannot be read as a Parquet file"),
    (empty_folder, "contacts.parquet cannot be read: it is a folder without a Parquet file"),
]


@pytest.mark.parametrize(("make", "told"), BAD)
@pytest.mark.parametrize("option", [[], ["--dry-run"]])
def test_mistakes_in_files_are_told_with_their_line_and_nothing_is_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], make: Callable[[Path], None], told: str, option: list[str]
) -> None:
    make(tmp_path)
    code = 1 if make is truncated else 2  # What is damaged is nobody's mistake in a file that people write.
    assert run(["lab", "campaign", str(campaign(tmp_path)), "--out", str(tmp_path / "out"), *option]) == code
    said = capsys.readouterr().err
    assert told in said
    assert said.startswith("carrypost: campaign.toml, line 1: three.toml: ")
    assert not (tmp_path / "out").exists()


def test_a_mistake_in_a_file_that_only_some_settings_name_is_told_with_them(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    three(tmp_path)
    (tmp_path / "shared" / "other.csv").write_text("a,b,start,end\na,a,1,2\n", encoding="utf-8")
    other = '[[settings]]\nname = "other"\nset = {"contacts.file" = "../shared/other.csv"}'
    path = campaign(tmp_path, TWO_SETTINGS, other)
    assert run(["lab", "campaign", str(path), "--out", str(tmp_path / "out")]) == 2
    told = capsys.readouterr().err
    assert 'settings "other": three.toml: ' in told
    assert "other.csv, line 2: a is in contact with itself" in told


def test_every_file_is_read_once_however_many_runs_there_are(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    three(tmp_path)
    three(tmp_path, THREE.replace('"three"', '"other"'), "other.toml")
    read: list[str] = []

    def counted(path: Path, *rest: frozenset[str], overlaps: bool) -> object:
        read.append(Path(path).name)
        return contacts.read_meetings(path, *rest, overlaps=overlaps)

    monkeypatch.setattr(grid, "read_meetings", counted)
    path = campaign(tmp_path, TWO_SETTINGS, scenarios='["scenarios/three.toml", "scenarios/other.toml"]')
    assert len(grid.load(path).runs) == 8
    assert read == ["contacts.csv"]
