"""`lab metrics` in steps: results that are reused, lines of real nodes, and damaged records."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.support.order_records import Story

import carrypost
from carrypost.cli.app import run as command
from carrypost.emu.records import Sink, table_of
from carrypost.errors import FileError, LocalError
from carrypost.lab import folders
from carrypost.lab.engines import LocalEngine, opened
from carrypost.lab.metrics import FAMILIES, families, making, records, tables
from carrypost.lab.metrics.making import Wanted, make
from carrypost.lab.metrics.records import Source
from carrypost.lab.schemas import Table
from carrypost.lab.spark.session import SparkOptions
from carrypost.log.record import Record

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


Asked = list[tuple[str, list[str]]]
"""Runs that were looked at, and for which families."""


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> Asked:
    """Record the computations that are requested."""
    found: Asked = []

    def counting(run: str, rows: pa.Table, wanted: Sequence[Table], **more: Any) -> dict[str, pa.Table]:  # noqa: ANN401
        found.append((run, [table.name for table in wanted]))
        return tables(run, rows, wanted, **more)

    monkeypatch.setattr(making, "tables", counting)
    return found


def story(run: str, hops: int = 1) -> Record:
    made = Story("abc")
    made.publish(1, "a", "p")
    made.receive(2, "b", "p")
    made.deliver(4, "b", "p")
    made.receive(5, "c", "p")
    record = made.end(999)
    record.run = run
    record.hops = [hops if each else None for each in record.hops]
    return record


def put(folder: Path, name: str, record: Record) -> Path:
    (folder / "records").mkdir(exist_ok=True)
    with Sink(folder / "records" / f"{name}.parquet") as sink:
        sink.write(record)
    return folder / "records" / f"{name}.parquet"


def test_of_more_seeds_only_the_new_runs_are_computed(tmp_path: Path, asked: Asked) -> None:
    put(tmp_path, "one", story("s/d/1"))
    wanted = Wanted(tables=[families.PROCESSING, families.HOPS])
    make(LocalEngine(), Source.find(tmp_path), wanted)
    put(tmp_path, "two", story("s/d/2"))
    make(LocalEngine(), Source.find(tmp_path), wanted)
    assert asked == [("s/d/1", ["processing", "hops"]), ("s/d/2", ["processing", "hops"])]
    found = folders.read_arrow(tmp_path / "metrics", families.PROCESSING)
    assert found["run"].to_pylist() == ["s/d/1", "s/d/2"]
    assert found["rcvd"].to_pylist() == [2, 2]


def test_a_record_that_changed_another_family_and_another_window_are_computed(tmp_path: Path, asked: Asked) -> None:
    put(tmp_path, "one", story("s/d/1"))
    put(tmp_path, "two", story("s/d/2"))
    make(LocalEngine(), Source.find(tmp_path), Wanted(tables=[families.HOPS]))
    put(tmp_path, "two", story("s/d/2", hops=3))
    asked.clear()
    make(LocalEngine(), Source.find(tmp_path), Wanted(tables=[families.HOPS, families.TIMELINE]))
    assert asked == [("s/d/1", ["timeline"]), ("s/d/2", ["hops", "timeline"])]
    rows = folders.read_arrow(tmp_path / "metrics", families.HOPS).to_pylist()
    assert [(row["run"], row["max"]) for row in rows if row["node"] == "b"] == [("s/d/1", 1), ("s/d/2", 3)]
    asked.clear()
    make(LocalEngine(), Source.find(tmp_path), Wanted(tables=[families.TIMELINE], window_s=7.0))
    assert len(asked) == 2
    told = folders.read_arrow(tmp_path / "metrics", families.TIMELINE)["t"].to_pylist()
    assert {t % 7 for t in told} == {0.0}


def test_files_of_earlier_runs_stay_as_they_are(tmp_path: Path, asked: Asked) -> None:
    wanted = Wanted(tables=[families.PROCESSING, families.PATH_LENGTHS], batch_runs=2)
    for seed in range(1, 6):
        put(tmp_path, f"{seed}", story(f"s/d/{seed}"))
    make(LocalEngine(), Source.find(tmp_path), wanted)
    folder = tmp_path / "metrics" / "processing"

    def there() -> dict[str, tuple[int, list[str]]]:
        return {
            path.name: (path.stat().st_mtime_ns, [row["run"][-1] for row in pq.ParquetFile(path).read().to_pylist()])
            for path in sorted(folder.iterdir())
        }

    before = there()
    assert [runs for _, runs in before.values()] == [["1", "2"], ["3", "4"], ["5"]]
    put(tmp_path, "6", story("s/d/6"))
    asked.clear()
    make(LocalEngine(), Source.find(tmp_path), wanted)
    assert asked == [("s/d/6", ["processing", "path_lengths"])]
    after = there()
    assert {name: after[name] for name in before} == before, "not written again"
    assert [runs for _, runs in after.values()] == [["1", "2"], ["3", "4"], ["5"], ["6"]]
    (tmp_path / "records" / "3.parquet").unlink()
    put(tmp_path, "1", story("s/d/1", hops=2))
    asked.clear()
    make(LocalEngine(), Source.find(tmp_path), wanted)
    assert [run for run, _ in asked] == ["s/d/1"]
    assert [runs for _, runs in there().values()] == [["2"], ["4"], ["5"], ["6"], ["1"]]
    assert folders.manifest(tmp_path / "metrics")["processing"]["rows"] == 5


def test_runs_that_are_gone_are_gone_from_the_tables(tmp_path: Path) -> None:
    put(tmp_path, "one", story("s/d/1"))
    put(tmp_path, "two", story("s/d/2"))
    make(LocalEngine(), Source.find(tmp_path), Wanted(tables=[families.HOPS]))
    (tmp_path / "records" / "one.parquet").unlink()
    make(LocalEngine(), Source.find(tmp_path), Wanted(tables=[families.HOPS]))
    assert set(folders.read_arrow(tmp_path / "metrics", families.HOPS)["run"].to_pylist()) == {"s/d/2"}


def test_whoever_was_interrupted_goes_on_where_it_was(tmp_path: Path, asked: Asked) -> None:
    for seed in (1, 2):
        put(tmp_path, f"{seed}", story(f"s/d/{seed}"))

    def interrupt(done: int, _: int) -> None:
        assert done == 1
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        make(LocalEngine(), Source.find(tmp_path), Wanted(batch_runs=1), on_progress=interrupt)
    assert not (tmp_path / "metrics" / "hops").exists()
    make(LocalEngine(), Source.find(tmp_path), Wanted(batch_runs=1))
    assert [run for run, _ in asked] == ["s/d/1", "s/d/2"]
    assert set(folders.read_arrow(tmp_path / "metrics", families.HOPS)["run"].to_pylist()) == {"s/d/1", "s/d/2"}
    assert not list((tmp_path / "metrics").glob(".*"))


def test_a_damaged_record_is_told_and_leaves_what_was_there(
    tmp_path: Path, spark: SparkSession, capsys: pytest.CaptureFixture[str]
) -> None:
    assert spark is not None
    put(tmp_path, "one", story("s/d/1"))
    make(LocalEngine(), Source.find(tmp_path), Wanted(tables=[families.HOPS]))
    path = put(tmp_path, "two", story("s/d/2"))
    content = bytearray(path.read_bytes())
    content[100:400] = bytes(300)
    path.write_bytes(content)
    for engine in ("local", "spark"):
        assert command(["lab", "metrics", str(tmp_path), "--family", "hops", "--engine", engine]) == 1
        assert "two.parquet cannot be read as a record" in capsys.readouterr().err
        assert folders.read_arrow(tmp_path / "metrics", families.HOPS)["run"].to_pylist() == ["s/d/1", "s/d/1"]
        assert not list((tmp_path / "metrics").glob(".*"))


def test_a_run_may_be_in_several_files_and_a_file_hold_several_runs(tmp_path: Path) -> None:
    one, two = (table_of(story(f"s/d/{seed}", seed)) for seed in (1, 2))
    (tmp_path / "records").mkdir()
    halves = [pa.concat_tables([one.slice(0, 4), two.slice(5)]), pa.concat_tables([two.slice(0, 5), one.slice(4)])]
    for number, half in enumerate(halves):
        pq.write_table(half, tmp_path / "records" / f"{number}.parquet")
    make(LocalEngine(), Source.find(tmp_path), Wanted())
    for table in FAMILIES:
        runs = {"s/d/1": one, "s/d/2": two}
        expected = pa.concat_tables([tables(run, rows, [table])[table.name] for run, rows in runs.items()])
        assert folders.read_arrow(tmp_path / "metrics", table).equals(expected)


def test_lines_of_real_nodes_in_any_order_are_what_their_rows_are(tmp_path: Path, spark: SparkSession) -> None:
    assert spark is not None
    whole = story("node/all")
    lines: dict[str, list[str]] = {}
    for row, line in zip(whole.rows(), whole.json_lines(), strict=True):
        lines.setdefault(row["node"] or "a", []).append(line.replace("node/all", f"node/{row['node'] or 'a'}"))
    for node, each in lines.items():
        text = "\n".join(["", *reversed(each), "{", '{"run": 1}', ""])
        (tmp_path / f"{node}.jsonl").write_text(text, encoding="utf-8")
    told: list[int] = []
    wanted = Wanted(merge_runs=True, out=tmp_path / "local")
    make(LocalEngine(), Source.find(tmp_path), wanted, unreadable=told.append)
    with opened(SparkOptions()) as engine:
        make(engine, Source.find(tmp_path), Wanted(merge_runs=True, out=tmp_path / "spark"), unreadable=told.append)
    assert told == [2 * len(lines)] * 2
    for table in FAMILIES:
        expected = tables("node", table_of(whole), [table])[table.name]
        assert folders.read_arrow(tmp_path / "local", table).equals(expected)
        assert folders.read_arrow(tmp_path / "spark", table).equals(expected)


def test_a_record_without_rows_has_no_run_and_one_with_the_first_alone_has_no_message(
    tmp_path: Path,
) -> None:
    first = table_of(story("s/d/1")).slice(0, 1)
    (tmp_path / "records").mkdir()
    pq.write_table(first.slice(0, 0), tmp_path / "records" / "nothing.parquet")
    make(LocalEngine(), Source.find(tmp_path), Wanted())
    assert all(folders.read_arrow(tmp_path / "metrics", table).num_rows == 0 for table in FAMILIES)
    pq.write_table(first, tmp_path / "records" / "first.parquet")
    make(LocalEngine(), Source.find(tmp_path), Wanted())
    rows = {table.name: folders.read_arrow(tmp_path / "metrics", table).to_pylist() for table in FAMILIES}
    (counts,) = rows.pop("processing")
    assert (counts["run"], counts["bcast"], counts["codlvratio"]) == ("s/d/1", 0, None)
    (outcomes,) = rows.pop("outcomes")
    assert {value for name, value in outcomes.items() if name != "run"} == {0}
    (one,) = rows.pop("one")
    assert (one["run"], one["created"], one["delivered"], one["delivery_prob"]) == ("s/d/1", 0, 0, None)
    (only,) = rows.pop("timeline")
    assert (only["kind"], only["count"]) == ("run", 1)
    assert not any(rows.values())


def test_footer_and_statistics_tell_the_run_of_a_file_without_looking_into_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = put(tmp_path, "one", story("s/d/1"))
    told = pq.read_metadata(path)
    assert told.metadata[b"carrypost.run"] == b"s/d/1"
    assert told.metadata[b"carrypost.version"] == carrypost.__version__.encode()
    columns = {told.row_group(0).column(at).path_in_schema: told.row_group(0).column(at) for at in range(11)}
    assert (columns["run"].statistics.min, columns["kind"].statistics.max) == ("s/d/1", "run")
    with monkeypatch.context() as patch:
        patch.setattr(pq.ParquetFile, "read_row_group", None)
        assert records.names_in(path) == ["s/d/1"]
    shutil.copy(path, tmp_path / "broken")
    (tmp_path / "broken").write_bytes(b"nothing")
    with pytest.raises(FileError, match="cannot be read as a record"):
        records.names_in(tmp_path / "broken")


def test_small_work_is_suggested_to_be_done_here(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    put(tmp_path, "one", story("s/d/1"))

    def refused(*_: object) -> None:
        raise LocalError("no Spark in this test")

    monkeypatch.setattr("carrypost.lab.engines.session", refused)
    monkeypatch.setattr("carrypost.lab.spark.session.SparkOptions.starts", True)
    assert command(["lab", "metrics", str(tmp_path)]) == 2
    told = capsys.readouterr().err
    assert "--engine local" in told
    assert "no Spark in this test" in told
