"""Metrics of records made by hand, exact percentiles of many values, records of real nodes, and what is refused."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from tests.order_records import Story

from carrypost.cli.app import run as command
from carrypost.lab import folders
from carrypost.lab.metrics import families
from carrypost.record import Kind, Record

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def oracle(values: list[int], ranks: int) -> list[tuple[int, int]]:
    """Values at which another of so many shares of all is reached, and the least; how many are not above."""
    values = sorted(values)
    wanted = {values[0]} | {values[-(-rank * len(values) // ranks) - 1] for rank in range(1, ranks + 1)}
    return [(value, sum(each <= value for each in values)) for value in sorted(wanted)]


def test_ranks_are_those_of_a_sorted_list_however_values_lie(spark: SparkSession) -> None:
    from carrypost.lab.metrics.percentiles import thinned_counts  # noqa: PLC0415 - needs Spark

    chance = random.Random(7)
    cases = {
        "one": [5],
        "two": [-3, 8],
        "same": [4] * 50,
        "few": [chance.randrange(5) for _ in range(333)],
        "many": [chance.randrange(10**6) for _ in range(1_000)],
        "skewed": [0] * 900 + [chance.randrange(10**9) for _ in range(100)],
        "negative": [chance.randrange(-1_000, 1_000) for _ in range(200)],
        "hundred": list(range(100)),
        "hundred and one": list(range(101)),
    }
    rows = [(name, value) for name, values in cases.items() for value in values]
    chance.shuffle(rows)
    frame = spark.createDataFrame(rows, "name string, value bigint")
    found = thinned_counts(frame, ["name"], 100, steps=16).collect()
    for name, values in cases.items():
        got = sorted((row["value"], row["cumulative"]) for row in found if row["name"] == name)
        assert got == oracle(values, 100), name
        assert all(row["count"] == values.count(row["value"]) for row in found if row["name"] == name)


def test_real_nodes_records_meet_across_nodes_if_they_are_taken_as_one_run(
    spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert spark is not None
    a, b = Record("node/a"), Record("node/b")
    for record, node in ((a, "a"), (b, "b")):
        record.add(Kind.RUN, 0, node)
        record.add(Kind.JOIN, 0, node)
    a.add(Kind.PUBLISH, 1_000_000, "a", message="p", source="a", size=10)
    a.add(Kind.DELIVER, 1_000_000, "a", message="p", source="a", size=10)
    b.add(Kind.RECEIVE, 3_500_000, "b", peer="a", message="p", source="a", size=10, hops=1)
    b.add(Kind.DELIVER, 3_750_000, "b", message="p", source="a", size=10)
    b.add(Kind.DELIVER, 4_000_000, "b", message="p", source="a", size=10, detail="redelivered")
    for record in (a, b):
        (tmp_path / f"{record.node[0]}.jsonl").write_text("\n".join(record.json_lines()) + "\n", encoding="utf-8")
    with (tmp_path / "b.jsonl").open("a") as file:
        file.write("no row\n")
    options = ["--family", "processing", "--family", "delays"]
    assert command(["lab", "metrics", str(tmp_path), "--merge-runs", *options]) == 0
    assert "1 lines are no rows of a record, and are passed over" in capsys.readouterr().err
    (counts,) = folders.read_arrow(tmp_path / "metrics", families.PROCESSING).to_pylist()
    assert (counts["run"], counts["bcast"], counts["rcvd"], counts["codlvd"]) == ("node", 1, 1, 2)
    found = {row["metric"]: row for row in folders.read_arrow(tmp_path / "metrics", families.DELAY_SPREAD).to_pylist()}
    assert [found[name]["p50_s"] for name in families.DELAYS] == [2.5, 0.25, 2.75]


def test_the_command_tells_what_became_of_each_run_of_one_record(
    spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from carrypost.emu.records.files import Sink  # noqa: PLC0415 - a record as a file

    assert spark is not None
    story = Story("abc")
    story.publish(1, "a", "p")
    story.receive(2, "b", "p")
    story.deliver(4, "b", "p")
    story.receive(5, "c", "p")
    story.leave(6, "b", "crash")
    story.join(7, "b")
    story.receive(8, "b", "p", detail="again")
    story.deliver(9, "b", "p", detail="redelivered")
    with Sink(tmp_path / "one.parquet") as sink:
        sink.take(story.end(999))
    options = ["-f", "processing", "-f", "delays", "--out", str(tmp_path / "tables")]
    assert command(["lab", "metrics", str(tmp_path / "one.parquet"), *options]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told == {
        "run": "story/default/1", "bcast": 1, "rcvd": 2, "codlvd": 2, "expd": 0, "left": 1, "codlvratio": 2 / 3,
        "tdelay_s": 2.5, "ltcy_s": 2.0, "codlvdelay_s": 3.0,
    }  # fmt: skip
    assert sorted(each.name for each in (tmp_path / "tables").iterdir()) == ["delays", "manifest.json", "processing"]


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["nowhere"], "there is no such file or folder"),
        (["."], "there is no Parquet file in it"),
        ([".", "--family", "delay"], "there is no family 'delay'"),
    ],
)
def test_what_cannot_be_is_refused_before_spark_is_started(
    arguments: list[str],
    sentence: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    assert command(["lab", "metrics", *arguments]) == 2
    assert sentence in capfd.readouterr().err
    assert not list(tmp_path.iterdir())
