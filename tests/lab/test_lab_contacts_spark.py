"""Contacts on Spark: the same table as in one process, for all slabs and partitions; errors of tasks are reported."""

from __future__ import annotations

import itertools
from functools import reduce
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it

from carrypost.cli.app import run
from carrypost.lab import folders
from carrypost.lab.contacts import TABLES
from carrypost.lab.contacts.search import found_here
from carrypost.lab.contacts.spark import found
from carrypost.lab.metrics import families
from carrypost.lab.schemas import CONTACTS, POSITIONS
from carrypost.traces.encounters import Rules

RULES = Rules(range_m=60.0, max_gap_us=40_000_000, merge_gap_us=2_000_000, min_duration_us=500_000)


def crowd(scenario: str, nodes: int, seed: int, start_s: float = 0.0) -> pa.Table:
    """Walkers with clocks of their own and gaps of every length, in no order; some samples are there twice."""
    rng = np.random.Generator(np.random.PCG64(seed))
    counts = rng.integers(1, 60, nodes)
    node = np.repeat(np.arange(nodes), counts)
    wait_s = np.where(rng.random(len(node)) < 0.1, rng.uniform(20, 90, len(node)), rng.uniform(0.2, 9, len(node)))
    t_s = rng.uniform(0, 120, nodes)[node] + np.cumsum(wait_s) - np.cumsum(wait_s)[np.cumsum(counts) - counts][node]
    x, y = rng.uniform(0, 400, (2, len(node)))
    order = rng.permutation(np.append(np.arange(len(node)), rng.integers(0, len(node), 20)))
    names = np.array([f"n{index}" for index in range(nodes)])
    columns = (
        np.full(len(order), scenario),
        names[node][order],
        (start_s + np.round(t_s, 6))[order],
        x[order],
        y[order],
    )
    return pa.table(dict(zip(POSITIONS.names, columns, strict=True)), POSITIONS.arrow)


SLABS_US = (None, 20_000_000, 130_000_000)
PARTITIONS = ((1, 1), (3, 4), (5, 2))
"""Numbers of partitions: of the positions as they are read, and of the work."""


@pytest.mark.parametrize(
    "variants",
    [
        pytest.param([(SLABS_US[1], PARTITIONS[1])], id="one"),
        pytest.param(list(itertools.product(SLABS_US, PARTITIONS)), id="all", marks=pytest.mark.soak),
    ],
)
def test_the_table_is_the_same_for_every_slab_and_partitioning_and_without_spark(
    spark: SparkSession, variants: list[tuple[int | None, tuple[int, int]]]
) -> None:
    rows = pa.concat_tables([crowd("night", 50, 1, 1.7e9), crowd("day", 70, 2)])
    here = found_here(rows, RULES)
    assert len(here) > 1_000
    for slab_us in (300_000, 7_000_000, 10**12):
        assert found_here(rows, RULES, slab_us=slab_us).equals(here)
    frame = spark.createDataFrame(rows)
    made = reduce(
        DataFrame.unionAll,
        (
            found(frame.repartition(incoming), RULES, slab_us=slab_us, partitions=tasks).withColumn("of", F.lit(number))
            for number, (slab_us, (incoming, tasks)) in enumerate(variants)
        ),
    ).toArrow()
    by_order = [(name, "ascending") for name in ("scenario", "start", "a", "b")]
    for number, variant in enumerate(variants):
        mine = made.filter(pc.equal(made["of"], number)).select(CONTACTS.names).sort_by(by_order)
        assert mine.cast(CONTACTS.arrow).equals(here), variant


def described(spark: SparkSession) -> list[str]:
    """Return the descriptions of all jobs, as Spark's pages show them; empty: there is none."""
    jobs = spark.sparkContext._jsc.sc().statusStore().jobsList(None)  # noqa: SLF001 - there is no public way to ask
    texts = [jobs.apply(at).description() for at in range(jobs.size())]
    return [text.get() if text.isDefined() else "" for text in texts]


@pytest.mark.soak
def test_the_command_gives_the_same_files_of_both_engines_and_statistics(spark: SparkSession, tmp_path: Path) -> None:
    before = len(described(spark))
    rows = pa.concat_tables([crowd("one", 20, 3), crowd("two", 25, 4)])
    folders.write_arrow(rows, tmp_path, POSITIONS)
    command = ["lab", "contacts", str(tmp_path), "--range-m", "60", "--max-gap-s", "40"]
    for engine in ("local", "spark"):
        assert run([*command, "--engine", engine, "--statistics", "--out", str(tmp_path / engine)]) == 0
    jobs = described(spark)[: len(described(spark)) - before]  # The latest one is the first.
    assert {"carrypost: contacts", "carrypost: summary of contacts", "carrypost: statistics of contacts"} <= set(jobs)
    assert all(text.startswith("carrypost: ") for text in jobs)
    assert len(list((tmp_path / "spark" / "contacts").glob("*.parquet"))) == 1  # Partitions follow the rows.
    local, other = (folders.read_arrow(tmp_path / name, CONTACTS) for name in ("local", "spark"))
    assert local.equals(other)
    told = [folders.manifest(tmp_path / name)["contacts"] for name in ("local", "spark")]
    assert [each.pop("engine") for each in told] == ["local", "spark"]
    assert told[0] == told[1]
    summary = folders.read_arrow(tmp_path / "spark" / "statistics", families.CONTACT_SUMMARY).to_pylist()
    for row, each in zip(sorted(summary, key=lambda row: str(row["run"])), told[0]["scenarios"], strict=True):
        scenario = each.pop("scenario")
        assert row == pytest.approx({"run": scenario, **each})
    activity = folders.read_arrow(tmp_path / "spark" / "statistics", families.ACTIVITY_SUMMARY).to_pylist()
    assert {row["run"]: row["nodes"] for row in activity} == {"one": 20, "two": 25}
    for table in TABLES:
        here, there = (folders.read_arrow(tmp_path / name / "statistics", table) for name in ("local", "spark"))
        assert here.num_rows > 0
        assert here.equals(there)


@pytest.mark.soak
def test_two_nodes_with_one_id_are_told_in_a_sentence_and_nothing_is_left(
    spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert spark is not None
    twice = crowd("one", 20, 3)
    moved = twice.slice(0, 1).set_column(3, POSITIONS.arrow.field("x"), pa.array([-1e3]))
    folders.write_arrow(pa.concat_tables([twice, moved]), tmp_path, POSITIONS)
    out = tmp_path / "out"
    assert run(["lab", "contacts", str(tmp_path), "--range-m", "60", "--engine", "spark", "--out", str(out)]) == 2
    told = capsys.readouterr().err
    assert f"node {twice['node'][0]} is in two places" in told
    assert "are these two nodes with one id?" in told
    assert len(told.splitlines()) == 1
    assert list(out.iterdir()) == []


def test_a_time_that_is_none_is_refused_on_spark_too(
    spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert spark is not None
    rows = crowd("one", 5, 3)
    wrong = rows.slice(0, 1).set_column(2, POSITIONS.arrow.field("t"), pa.array([float("nan")]))
    folders.write_arrow(pa.concat_tables([rows, wrong]), tmp_path, POSITIONS)
    command = ["lab", "contacts", str(tmp_path), "--range-m", "60", "--out", str(tmp_path / "out"), "--engine"]
    told = []
    for engine in ("spark", "local"):
        assert run([*command, engine]) == 2
        told.append(capsys.readouterr().err)
    assert told[0] == told[1]
    assert "of one has a sample whose t is missing" in told[0]


def test_no_positions_have_no_contacts(spark: SparkSession) -> None:
    rows = crowd("one", 5, 3).slice(0, 0)
    assert found_here(rows, RULES).num_rows == 0
    assert found(spark.createDataFrame([], POSITIONS.spark), RULES).count() == 0
