"""A run that is cut into slices has the tables of the whole: any cut, any order; by time and written out by slice."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from functools import cache, reduce
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.examples import examples

from carrypost.emu.rows import TOLD
from carrypost.emu.runs import run
from carrypost.emu.verify.random_scenarios import draw_ordered
from carrypost.lab import folders
from carrypost.lab.engines import Answer, LocalEngine, Piece, Watch, opened
from carrypost.lab.metrics import FAMILIES, finished, merge, parts, slices, tables
from carrypost.lab.metrics.making import Wanted, make
from carrypost.lab.metrics.records import RunFiles, Source
from carrypost.lab.schemas import RECORDS
from carrypost.lab.spark.session import SparkOptions

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SEEDS = (19, 23)
"""Ids given anew after crashes; drops and receptions anew."""
WANTED = list(FAMILIES)


@cache
def record(seed: int) -> pa.Table:
    with tempfile.TemporaryDirectory() as scratch:
        return run(draw_ordered(seed).write(Path(scratch)), seed).table


@cache
def whole(seed: int) -> dict[str, pa.Table]:
    return tables("r", record(seed), WANTED)


def same(found: dict[str, pa.Table], expected: dict[str, pa.Table]) -> None:
    """Whole numbers and texts exactly, others to a billionth."""
    for name, table in expected.items():
        for column in table.column_names:
            mine, yours = found[name][column], table[column]
            if pa.types.is_floating(yours.type):
                assert mine.is_null().equals(yours.is_null()), (name, column)
                assert np.allclose(mine.drop_null(), yours.drop_null(), rtol=1e-9, atol=1e-9), (name, column)
            else:
                assert mine.equals(yours), (name, column)


@examples(8)
@given(st.data())
def test_any_cut_and_any_order_of_joining_gives_the_tables_of_the_whole(data: st.DataObject) -> None:
    seed = data.draw(st.sampled_from(SEEDS))
    rows = record(seed)
    count = data.draw(st.integers(1, 6), "slices")
    chance = np.random.default_rng(data.draw(st.integers(0, 2**32), "who is where"))
    about = pc.and_(pc.is_in(rows["kind"], pa.array([kind.value for kind in TOLD])), pc.is_valid(rows["message"]))
    messages = pc.unique(rows["message"])
    slice_of = dict(zip(messages.to_pylist(), chance.integers(count, size=len(messages)).tolist(), strict=True))
    elsewhere = chance.integers(count, size=len(rows))
    place = np.where(about.to_numpy(), [slice_of[each] for each in rows["message"].to_pylist()], elsewhere)
    cut = [parts(rows.filter(pa.array(place == number)), WANTED) for number in range(count)]
    order = data.draw(st.permutations(range(count)), "order")
    same(finished("r", reduce(merge, [cut[number] for number in order]), WANTED), whole(seed))


def written(folder: Path, rows: pa.Table, group_rows: int) -> Path:
    (folder / "records").mkdir(parents=True)
    pq.write_table(rows, folder / "records" / "one.parquet", row_group_size=group_rows)
    return folder


def expected(rows: pa.Table) -> dict[str, pa.Table]:
    (name,) = pc.unique(rows["run"]).to_pylist()
    return tables(name, rows, WANTED)


class Watched(LocalEngine):
    """Notes the number of pieces of each job, and that answers are no rows."""

    def __init__(self) -> None:
        self.jobs: dict[str, int] = {}

    def each(
        self, name: str, do: Callable[[Piece], Answer], pieces: Sequence[Piece], watch: Watch = lambda _, __: None
    ) -> list[Answer]:
        self.jobs[name] = len(pieces)
        found = super().each(name, do, pieces, watch)
        assert name == "cutting large runs" or all(each is None for each in found)
        return found


@pytest.mark.parametrize("again_max", [0.0, 1e9], ids=["written out by slice", "read by time"])
def test_large_runs_are_cut_into_slices_at_the_same_time_either_way(
    again_max: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(slices, "AGAIN_MAX", again_max)
    monkeypatch.setattr(slices, "_BATCH_ROWS", 300)
    (tmp_path / "in").mkdir()
    for seed in SEEDS:
        pq.write_table(record(seed), tmp_path / "in" / f"{seed}.parquet", row_group_size=100)
    engine, out = Watched(), tmp_path / "out"
    make(engine, Source.find(tmp_path / "in"), Wanted(out=out, slice_rows=len(record(SEEDS[0])) // 5))
    cutting, measuring, joining = [count for name, count in engine.jobs.items() if "large" in name]
    assert cutting == joining == len(SEEDS)
    assert measuring > 2 * len(SEEDS)
    for seed in SEEDS:
        (name,) = pc.unique(record(seed)["run"])
        made = {table.name: folders.read_arrow(out, table) for table in FAMILIES}
        same({of: rows.filter(pc.equal(rows["run"], name)) for of, rows in made.items()}, expected(record(seed)))
    assert sorted(path.name for path in out.iterdir()) == sorted([*(t.name for t in FAMILIES), "manifest.json"])


def test_slices_on_spark_are_tasks_and_rows_in_any_order_are_as_good(tmp_path: Path, spark: SparkSession) -> None:
    assert spark is not None
    rows = record(SEEDS[0])
    shuffled = rows.take(np.random.default_rng(1).permutation(len(rows)))
    source = Source.find(written(tmp_path / "in", shuffled, 150))
    with opened(SparkOptions()) as engine:
        make(engine, source, Wanted(out=tmp_path / "out", slice_rows=len(rows) // 3))
    same({table.name: folders.read_arrow(tmp_path / "out", table) for table in FAMILIES}, expected(rows))


def lasting(count: int, lifetime_s: float) -> pa.Table:
    """Return a message each second, which is delivered elsewhere half its lifetime later."""
    rows = []
    for at in range(count):
        about = {"run": "r", "message": f"m{at:05}", "source": "a", "size": 10}
        rows.append({**about, "t": float(at), "kind": "publish", "node": "a"})
        rows.append({**about, "t": at + lifetime_s / 2, "kind": "receive", "node": "b", "hops": 1})
    rows.sort(key=lambda row: float(row["t"]))  # type: ignore[arg-type]  # they are numbers
    return pa.Table.from_pylist(rows, RECORDS.arrow)


def groups_read(of: RunFiles, folder: Path, count: int) -> list[int]:
    found = slices.cut(slices.Order(of, "", (), 60.0, str(folder), count))
    assert isinstance(found, Sequence)
    return [len(each.groups) for each in found]


def test_row_groups_that_a_slice_does_not_need_are_skipped_by_their_statistics(tmp_path: Path) -> None:
    brief, endless = lasting(2_000, 20.0), lasting(2_000, 4_000.0)
    counts = []
    for name, rows in (("brief", brief), ("endless", endless)):
        path = written(tmp_path / name, rows, 100) / "records" / "one.parquet"
        counts.append(groups_read(RunFiles("r", ("r",), (str(path),), shared=False), tmp_path / f"{name}-cut", 8))
    assert sum(counts[0]) <= 40 + 3 * 8  # Of 40 groups each slice shares some with its neighbours.
    assert max(counts[0]) <= 8
    assert counts[1] == [0] * 8  # Each would read half of the file: written out.
