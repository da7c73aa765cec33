"""The record of an emulated run in memory, as Parquet and as lines of JSON."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests import emulated

from carrypost import emu
from carrypost.emu import records
from carrypost.emu.records import Sink
from carrypost.emu.world import Progress
from carrypost.errors import LocalError
from carrypost.record import SCHEMA, Kind, Record


def made(folder: Path) -> emu.Scenario:
    return emulated.scenario(folder, emulated.contacts(folder, "a,b,10,90"), emulated.BROADCAST)


def test_the_table_has_the_schema_of_the_record(tmp_path: Path) -> None:
    table = emu.run(made(tmp_path)).table
    assert [(field.name, str(field.type), field.nullable) for field in table.schema] == [
        (column.name, {"float64": "double"}.get(column.type, column.type), column.nullable) for column in SCHEMA
    ]
    assert len(table) > 10


def test_a_file_read_by_others_has_plain_columns(tmp_path: Path) -> None:
    kept = emu.run(made(tmp_path), out=tmp_path / "r.parquet")
    read = pq.read_table(tmp_path / "r.parquet")
    assert pa.types.is_string(read.schema.field("node").type)
    assert read.num_rows == len(kept) == kept.table.num_rows
    assert list(tmp_path.glob("*partial*")) == []


def test_memory_file_and_lines_hold_the_same_rows(tmp_path: Path) -> None:
    in_memory = emu.run(made(tmp_path))
    in_memory.write(tmp_path / "a.parquet")
    in_memory.write(tmp_path / "a.jsonl")
    emu.run(made(tmp_path), out=tmp_path / "b.jsonl")
    assert records.read(tmp_path / "a.parquet").equals(in_memory.table)
    assert records.read(tmp_path / "a.jsonl").equals(in_memory.table)
    assert (tmp_path / "a.jsonl").read_bytes() == (tmp_path / "b.jsonl").read_bytes()
    line = json.loads((tmp_path / "a.jsonl").read_text().splitlines()[1])
    assert line == {"run": "scene/default/1", "t": 0.0, "kind": "join", "node": "a"}


def test_rows_leave_the_memory_in_batches_and_keep_their_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = emu.run(made(tmp_path)).table
    monkeypatch.setattr("carrypost.emu.runs.ROWS_MAX", 10)
    emu.run(made(tmp_path), out=tmp_path / "r.parquet")
    assert pq.ParquetFile(tmp_path / "r.parquet").num_row_groups > 5
    assert records.read(tmp_path / "r.parquet").equals(whole)


def test_an_interrupted_run_leaves_a_record_that_can_be_read(tmp_path: Path) -> None:
    whole = emu.run(made(tmp_path)).table

    def interrupt(progress: Progress) -> None:
        if progress.t_us > 50_000_000:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        emu.run(made(tmp_path), out=tmp_path / "r.parquet", watch=interrupt)
    partial = records.read(tmp_path / "r.parquet")
    assert 0 < partial.num_rows < whole.num_rows
    assert partial.equals(whole.slice(0, partial.num_rows))
    assert list(tmp_path.glob("*partial*")) == []


def test_columns_of_different_lengths_after_an_interruption_are_cut_to_the_shortest(tmp_path: Path) -> None:
    record = Record("r")
    for t_us in range(3):
        record.add(Kind.JOIN, t_us, "a")
    record.t_us.append(4)
    record.kind.append("join")
    with Sink(tmp_path / "r.parquet") as sink:
        sink.take(record)
    assert records.read(tmp_path / "r.parquet").num_rows == 3


def test_a_run_that_fails_leaves_no_file(tmp_path: Path) -> None:
    def fail(progress: Progress) -> None:
        raise LocalError(f"no more after {progress.t_us}")

    with pytest.raises(LocalError, match="no more"):
        emu.run(made(tmp_path), out=tmp_path / "r.parquet", watch=fail)
    assert not list(tmp_path.glob("*.parquet*"))


def test_progress_tells_of_time_contacts_receptions_and_rows(tmp_path: Path) -> None:
    told: list[Progress] = []
    kept = emu.run(made(tmp_path), watch=told.append)
    assert [each.t_us for each in told] == sorted(each.t_us for each in told)
    last = told[-1]
    assert (last.t_us, last.end_us) == (99_999_999, 100_000_000)
    assert (last.contacts, last.rows) == (1, len(kept))
    assert last.receptions == kept.table["kind"].to_pylist().count("receive") > 0


@pytest.mark.parametrize("name", ["r.parquet", "r.jsonl"])
def test_a_record_that_cannot_be_written_or_read_is_named(tmp_path: Path, name: str) -> None:
    with pytest.raises(LocalError, match=f"{name} cannot be written"):
        emu.run(made(tmp_path), out=tmp_path / "nowhere" / name)
    (tmp_path / name).write_text("nonsense")
    with pytest.raises(LocalError, match="is no r"):
        records.read(tmp_path / name)
    with pytest.raises(LocalError, match="is no record that can be read"):
        records.read(tmp_path / "nowhere" / name)
