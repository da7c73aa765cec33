"""Streams of real nodes' records, followed as they come."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from carrypost.cli.app import run
from carrypost.errors import FileError, LocalError
from carrypost.lab import folders
from carrypost.lab.metrics import tables
from carrypost.lab.metrics.families import DELAY_CDF, DELAY_SPREAD, TIMELINE
from carrypost.lab.schemas import RECORDS
from carrypost.lab.stream import COUNTS, NODES, Live, StreamOptions, begin

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

BEGIN_S = 1_600_000_000.0
"""Nodes have the time of day."""


def row(t_s: float, kind: str, node: str, message: str | None = None, **more: object) -> dict[str, Any]:
    found: dict[str, Any] = {"run": f"node/{node}", "t": BEGIN_S + t_s, "kind": kind, "node": node, **more}
    return found if message is None else {**found, "message": message, "source": message[0]}


def write(folder: Path, name: str, *rows: dict[str, Any] | str) -> None:
    """A file as a node's archive leaves it: it has its name when it is whole."""
    folder.mkdir(parents=True, exist_ok=True)
    part = folder / f"{name}.jsonl.part"
    part.write_text("".join(f"{each if isinstance(each, str) else json.dumps(each)}\n" for each in rows))
    part.replace(folder / f"{name}.jsonl")


FIRST = (
    row(0, "run", "a", attrs={"version": "0"}),
    row(0, "join", "a"),
    row(1, "publish", "a", "a1", size=100, attrs={"destination": "x"}),
    row(1, "deliver", "a", "a1", size=100),
    row(60, "traffic", "a", size=1_000, detail="Data"),
    row(61, "refuse", "a", detail="rate", attrs={"count": "7"}),
    row(70, "drop", "a", "b1", detail="expired"),
)
SECOND = (
    row(3, "receive", "b", "a1", peer="a", hops=1, size=100),
    row(3.25, "deliver", "b", "a1", size=100),
    row(5, "receive", "b", "a1", peer="a", hops=1, size=100, detail="again"),
    row(5, "deliver", "b", "a1", size=100, detail="redelivered"),
    row(6, "receive", "b", "a1", peer="a", hops=1, size=100),
)
LATER = (
    row(400, "receive", "c", "a1", peer="b", hops=2, size=100),
    row(400, "deliver", "c", "a1", size=100),
    row(400, "expire", "c", "a0", size=100),
)
LATE = (row(2, "up", "d", peer="a"), row(21, "receive", "d", "a1", peer="a", hops=1, size=100))
"""Rows that come after others that are more than the watermark later; the horizon goes further."""
ODD = (
    row(1e30, "publish", "e", "e1", size=1),
    row(5, "traffic", "e", size=2**63 - 1, detail="Data"),
    row(5, "refuse", "e", detail="rate", attrs={"count": "many"}),
    row(5, "dance", "e"),
    row(5, "publish", "e", "e2", size=1.5),
    row(5e9, "join", "e"),
)
"""Numbers that no node has, and a clock that is far ahead: neither may stop the stream, or silence others."""
ON_TIME = (*FIRST, *SECOND, *LATER, ODD[2])
BY_VALUE = [("metric", "ascending"), ("value_ms", "ascending")]


def finished(rows: Sequence[dict[str, Any]]) -> dict[str, pa.Table]:
    """Return the tables that `lab metrics` makes of these rows."""
    columns = {name: [each.get(name) for each in rows] for name in RECORDS.names}
    columns["attrs"] = [None if each is None else list(each.items()) for each in columns["attrs"]]
    return tables("live", pa.table(columns, schema=RECORDS.arrow), [TIMELINE, DELAY_SPREAD, DELAY_CDF], window_s=60)


def test_a_stream_tells_what_a_finished_record_would(
    tmp_path: Path, spark: SparkSession, capsys: pytest.CaptureFixture[str]
) -> None:
    assert spark is not None
    source, out = tmp_path / "records", tmp_path / "live"
    write(source / "a", "first", *FIRST, "no JSON", '{"t": 1}', *ODD)
    write(source / "b", "second", *SECOND)
    (source / "b" / "third.jsonl.part").write_text(json.dumps(LATER[0]) + "\n")
    write(source / "c", "later", *LATER)
    command = ["lab", "stream", str(source), "--out", str(out), "--once", "--watermark-s", "30"]
    assert run(command) == 0
    told = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert (told["nodes"], told["published"], told["received"], told["delivered"]) == (4, 1, 2, 3)

    # It goes on where it was: what it has read is not counted again, what is new is.
    write(source / "d", "late", *LATE)
    assert run(command) == 0

    nodes = {each.pop("node"): each for each in folders.read_arrow(out, NODES).to_pylist()}
    assert nodes["a"] == {
        "last": BEGIN_S + 70, "published": 1, "received": 0, "delivered": 1, "expired": 0, "dropped": 1, "refused": 7,
        "bytes_sent": 1_000, "ahead": 0, "unreadable": 0,
    }  # fmt: skip
    assert (nodes["b"]["received"], nodes["b"]["delivered"]) == (1, 1)
    assert (nodes["c"]["received"], nodes["c"]["expired"]) == (1, 1)
    assert {name: each["unreadable"] for name, each in nodes.items() if each["unreadable"]} == {"?": 6}
    assert (nodes["e"]["ahead"], nodes["e"]["refused"], nodes["e"]["published"]) == (1, 1, 0)
    assert nodes["d"]["last"] == BEGIN_S + 21

    # Windows are those of finished records, but for the row that came too late; delays those with it.
    assert folders.read_arrow(out / "metrics", TIMELINE).equals(finished(ON_TIME)[TIMELINE.name])
    whole = finished((*ON_TIME, *LATE))
    assert folders.read_arrow(out / "metrics", DELAY_CDF).sort_by(BY_VALUE).equals(whole[DELAY_CDF.name])
    expected = {each["metric"]: each for each in whole[DELAY_SPREAD.name].to_pylist()}
    for row in folders.read_arrow(out / "metrics", DELAY_SPREAD).to_pylist():
        assert row == pytest.approx(expected.pop(row["metric"]), abs=1e-6)
    assert not expected

    delays = {each["metric"]: each for each in folders.read_arrow(out / "metrics", DELAY_SPREAD).to_pylist()}
    tdelay, ltcy, codlvdelay = delays["tdelay"], delays["ltcy"], delays["codlvdelay"]
    assert (tdelay["count"], tdelay["min_s"], tdelay["max_s"], tdelay["avg_s"]) == (
        3,
        2.0,
        399.0,
        pytest.approx(421 / 3, abs=1e-6),
    )
    assert (ltcy["count"], ltcy["max_s"], ltcy["p50_s"], ltcy["p99_s"]) == (2, 0.25, 0.0, 0.25)
    assert (codlvdelay["min_s"], codlvdelay["max_s"], codlvdelay["stdev_s"]) == (2.25, 399.0, 198.375)
    cdf = folders.read_arrow(out / "metrics", DELAY_CDF).to_pylist()
    assert [(each["value_ms"], each["share"]) for each in cdf if each["metric"] == "tdelay"] == [
        (2_000, 1 / 3),
        (20_000, 2 / 3),
        (399_000, 1.0),
    ]


def counts(*values_us: int) -> pa.Table:
    rows = [
        dict(zip(COUNTS.names, ("tdelay", round(us / 1_000), 1, float(us), float(us * us), us, us), strict=True))
        for us in values_us
    ]
    return pa.Table.from_pylist(rows, COUNTS.arrow)


def test_a_batch_that_comes_again_is_counted_once(tmp_path: Path) -> None:
    Live(tmp_path).update_delays(counts(1_000_000, 3_000_000), 0)
    again = Live(tmp_path)  # As after a kill before Spark had noted that the batch is done.
    again.update_delays(counts(1_000_000, 3_000_000), 0)
    again.update_delays(counts(3_000_000), 1)
    (found,) = Live(tmp_path).delays().to_pylist()
    assert (found["count"], found["min_s"], found["max_s"], found["p50_s"]) == (3, 1.0, 3.0, 3.0)
    assert found["avg_s"] == pytest.approx(7 / 3, abs=1e-6)


def test_windows_and_nodes_are_replaced_by_what_they_are_now(tmp_path: Path) -> None:
    def window(t: float, count: int) -> pa.Table:
        told = {"run": "live", "t": t, "kind": "receive", "count": count, "size": 7 * count}
        return pa.Table.from_pylist([told], TIMELINE.arrow)

    live = Live(tmp_path)
    for t, count in ((60.0, 1), (0.0, 4), (60.0, 3), (60.0, 3)):
        live.update_timeline(window(t, count))
    assert [(each["t"], each["count"]) for each in Live(tmp_path).timeline.to_pylist()] == [(0.0, 4), (60.0, 3)]


def test_totals_survive_a_kill_between_the_moves_of_a_table(tmp_path: Path) -> None:
    known = dict.fromkeys(NODES.names, 0) | {"node": "a", "last": 5.0, "published": 3}
    Live(tmp_path).update_nodes(pa.Table.from_pylist([known], NODES.arrow))
    dead = subprocess.Popen([sys.executable, "-c", ""])
    dead.wait()
    (tmp_path / "nodes").rename(tmp_path / f".nodes.{dead.pid}.old.partial")
    live = Live(tmp_path)
    live.update_nodes(pa.Table.from_pylist([known | {"node": "b"}], NODES.arrow))
    assert Live(tmp_path).nodes["node"].to_pylist() == ["a", "b"]


def test_delays_that_were_counted_are_told_also_after_a_kill(tmp_path: Path) -> None:
    Live(tmp_path).update_delays(counts(1_000_000), 0)
    shutil.rmtree(tmp_path / "metrics")  # As if it had been killed right after the counts were written.
    Live(tmp_path)
    assert folders.read_arrow(tmp_path / "metrics", DELAY_SPREAD)["count"].to_pylist() == [1]


def test_a_stream_goes_on_with_the_options_that_it_began_with(tmp_path: Path) -> None:
    source, out = tmp_path / "records", tmp_path / "live"
    source.mkdir()
    begin(source, out, StreamOptions())
    begin(source, out, StreamOptions())
    with pytest.raises(
        LocalError, match=re.escape("was started with --window-s 60.0; continue with the same, or choose")
    ):
        begin(source, out, StreamOptions(window_s=30))
    (tmp_path / "others").mkdir()
    with pytest.raises(LocalError, match=f"was started with the records in {source}; continue with the same"):
        begin(tmp_path / "others", out, StreamOptions())


def test_a_checkpoint_without_its_tables_is_refused(tmp_path: Path) -> None:
    (tmp_path / "checkpoint").mkdir()
    with pytest.raises(LocalError, match="has a checkpoint and no manifest: remove it to begin again"):
        begin(tmp_path, tmp_path, StreamOptions())


def test_counts_that_cannot_be_read_are_named(tmp_path: Path) -> None:
    (tmp_path / "state").mkdir()
    pq.write_table(counts(1), tmp_path / "state" / "delays.parquet")  # Without the number of its batch.
    with pytest.raises(FileError, match=r"delays\.parquet cannot be read"):
        Live(tmp_path)


@pytest.mark.parametrize("options", [["--window-s", "0"], ["--watermark-s", "-1"], ["--horizon-s", "nan"]])
def test_lengths_of_time_must_be_above_0(
    tmp_path: Path, options: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["lab", "stream", str(tmp_path), *options]) == 2
    assert f"{options[0]} must be a number of seconds above 0" in capsys.readouterr().err


def test_a_folder_that_is_not_there_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["lab", "stream", str(tmp_path / "nowhere"), "--once"]) == 2
    assert "nowhere: there is no such folder" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []
