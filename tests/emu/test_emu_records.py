"""The record of an emulated run in memory, as Parquet and as lines of JSON."""

from __future__ import annotations

import gc
import json
import os
import resource
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.support import emulated
from tests.support.forked import forked

from carrypost import emu
from carrypost.emu import records
from carrypost.emu.engine.world import Progress
from carrypost.emu.records import Sink
from carrypost.errors import FileError, LocalError
from carrypost.log.record import SCHEMA, Kind, Record


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
        sink.write(record)
    assert records.read(tmp_path / "r.parquet").num_rows == 3


@pytest.mark.parametrize("name", ["r.parquet", "r.jsonl"])
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # A process that ends closes its files.
@pytest.mark.filterwarnings("ignore::ResourceWarning")
def test_a_signal_at_any_line_leaves_no_half_written_file(tmp_path: Path, name: str, number: signal.Signals) -> None:
    left = 0
    passed = {"__exit__", "_give_up"}  # By then a signal was heard already, or is one line late.

    def trace(frame: FrameType, event: str, _: object) -> Any:  # noqa: ANN401 - as `sys.settrace` has it
        nonlocal left
        if frame.f_code.co_filename != records.__file__ or frame.f_code.co_name in passed:
            return None
        if event == "line":
            left -= 1
            if left == 0:
                sys.settrace(None)
                signal.raise_signal(number)
        return trace

    usual = signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    for line in range(1, 10_000):
        left = line
        sys.settrace(trace)
        try:
            with Sink(tmp_path / name):
                pass
        except (KeyboardInterrupt, SystemExit):
            there = list(tmp_path.iterdir())
            assert there in ([], [tmp_path / name]), line
            for path in there:
                path.unlink()
        finally:
            sys.settrace(None)
        if left > 0:
            break
    signal.signal(signal.SIGTERM, usual)
    assert line > 20


@pytest.fixture
def thresholds() -> Iterator[None]:
    """The test may change when garbage is collected."""
    usual = gc.get_threshold()
    yield
    gc.set_threshold(*usual)


@pytest.mark.usefixtures("thresholds")
def test_what_a_program_froze_stays_frozen(tmp_path: Path) -> None:
    gc.set_threshold(700)
    gc.freeze()
    frozen = gc.get_freeze_count()
    emu.run(made(tmp_path))
    assert gc.get_freeze_count() == frozen


@pytest.mark.usefixtures("thresholds")
@pytest.mark.parametrize(("before", "meanwhile"), [(700, 1_000_000), (99_999, 1_000_000), (100_000, 100_000)])
def test_garbage_is_collected_seldom_during_a_run_and_as_before_after_it(
    tmp_path: Path, before: int, meanwhile: int
) -> None:
    gc.set_threshold(before, 11, 12)
    found = set()
    emu.run(made(tmp_path), watch=lambda _: found.add(gc.get_threshold()))
    assert found == {(meanwhile, 11, 12)}
    assert gc.get_threshold() == (before, 11, 12)


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
    with pytest.raises(FileError, match="cannot be read as a r"):
        records.read(tmp_path / name)
    with pytest.raises(LocalError, match="cannot be read as a record"):
        records.read(tmp_path / "nowhere" / name)


@pytest.mark.parametrize("name", ["r.parquet", "r.jsonl"])
def test_a_full_disk_is_told_and_leaves_nothing_behind(tmp_path: Path, name: str) -> None:
    scene = tmp_path / "scene.toml"
    scene.write_text('duration_s = 1000\n[nodes]\ncount = 9\n[[workload]]\nkind = "broadcast"\n')
    (tmp_path / "out").mkdir()
    code, _, told = forked(
        ["emu", "run", str(scene), "--out", str(tmp_path / "out" / name)],
        lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096)),
    )
    assert code == 1
    assert f"{name} cannot be written: File too large" in told
    assert list((tmp_path / "out").iterdir()) == []


def test_a_folder_is_not_replaced_by_a_record(tmp_path: Path) -> None:
    with pytest.raises(LocalError, match="cannot be written: it is not a regular file"):
        emu.run(made(tmp_path), out=tmp_path)


def test_ctrl_c_while_rows_are_written_waits_until_they_are(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = emu.run(made(tmp_path)).table
    usual = pq.ParquetWriter.write_batch

    def interrupted(writer: pq.ParquetWriter, batch: pa.RecordBatch) -> None:
        usual(writer, batch)
        signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(pq.ParquetWriter, "write_batch", interrupted)
    monkeypatch.setattr("carrypost.emu.runs.ROWS_MAX", 10)
    with pytest.raises(KeyboardInterrupt):
        emu.run(made(tmp_path), out=tmp_path / "r.parquet")
    partial = records.read(tmp_path / "r.parquet")
    assert 10 <= partial.num_rows < whole.num_rows
    assert partial.equals(whole.slice(0, partial.num_rows))


def test_what_is_no_record_is_not_read_as_one(tmp_path: Path) -> None:
    pq.write_table(pa.table({"x": [1]}), tmp_path / "foreign.parquet")
    with pytest.raises(LocalError, match=r"foreign.parquet cannot be read as a record: it has no column 'run'"):
        records.read(tmp_path / "foreign.parquet")
    (tmp_path / "empty.jsonl").write_text("")
    with pytest.raises(FileError, match=r"empty.jsonl cannot be read as a record: it is empty"):
        records.read(tmp_path / "empty.jsonl")
    (tmp_path / "torn.jsonl").write_text('{"run":"x","t":0.0,"ki')
    with pytest.raises(FileError, match=r"torn.jsonl cannot be read as a record: line 1"):
        records.read(tmp_path / "torn.jsonl")
    with pytest.raises(LocalError, match="cannot be read as a record"):
        records.read(tmp_path)


@pytest.mark.parametrize("name", ["r.parquet", "r.jsonl", "[r]*.jsonl"])
def test_what_a_killed_run_left_is_removed_by_the_next_and_what_another_writes_is_not(
    tmp_path: Path, name: str
) -> None:
    with subprocess.Popen([sys.executable, "-c", ""]) as gone:  # Its number is free again.
        gone.wait()
    (tmp_path / f".{name}.{gone.pid}.partial").write_text("half")
    theirs = tmp_path / f".{name}.{os.getppid()}.partial"
    theirs.write_text("half")
    emu.run(made(tmp_path), out=tmp_path / name)
    assert {path.name for path in tmp_path.glob(".*")} == {theirs.name}
    assert records.read(tmp_path / name).num_rows
