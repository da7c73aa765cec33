"""Metrics of records made by hand, exact percentiles of many values, records of real nodes, and refused input."""

from __future__ import annotations

import json
import random
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.order_records import Story

from carrypost.cli.app import run as command
from carrypost.emu.records import Sink
from carrypost.lab import folders
from carrypost.lab.metrics import families
from carrypost.lab.metrics.parts import Counts, Moments, dominated
from carrypost.lab.schemas import Table
from carrypost.log.record import Kind, Record

chance = random.Random(7)


def oracle(values: list[int], ranks: int) -> list[tuple[int, int]]:
    """Return the least value, and those at which another share of all values is reached, with cumulative counts."""
    values = sorted(values)
    wanted = {values[0]} | {values[-(-rank * len(values) // ranks) - 1] for rank in range(1, ranks + 1)}
    return [(value, sum(each <= value for each in values)) for value in sorted(wanted)]


@pytest.mark.parametrize(
    "values",
    [
        [5], [-3, 8], [4] * 50, [chance.randrange(5) for _ in range(333)],
        [chance.randrange(10**6) for _ in range(1_000)], [0] * 900 + [chance.randrange(10**9) for _ in range(100)],
        [chance.randrange(-1_000, 1_000) for _ in range(200)], list(range(100)), list(range(101)),
    ],
    ids=["one", "two", "same", "few", "many", "skewed", "negative", "hundred", "hundred and one"],
)  # fmt: skip
def test_ranks_are_those_of_a_sorted_list_however_values_lie(values: list[int]) -> None:
    shuffled = random.Random(7).sample(values, len(values))
    half = len(values) // 2
    parts = [Counts.of(np.array(each, np.int64)) for each in (shuffled[:half], shuffled[half:])]
    found = parts[0].merge(parts[1])
    kept = found.reaching(100)
    assert list(zip(found.value[kept].tolist(), found.cumulative[kept].tolist(), strict=True)) == oracle(values, 100)
    assert all(count == values.count(value) for value, count in zip(found.value, found.count, strict=True))
    for share in families.PERCENTILES:
        assert found.percentile(share) == sorted(values)[-(-share * len(values) // 100) - 1]


def test_sums_are_exact_whatever_the_size_of_values() -> None:
    values = [chance.randrange(-(2**51), 2**51) for _ in range(5_000)]
    found = Moments.of(np.array(values[:7], np.int64)).merge(Moments.of(np.array(values[7:], np.int64)))
    assert (found.count, found.least, found.most) == (5_000, min(values), max(values))
    assert (found.total, found.squares) == (sum(values), sum(value * value for value in values))


@given(
    st.lists(st.tuples(st.integers(-9, 9), st.integers(-9, 9)), max_size=40),
    st.lists(st.tuples(st.integers(-10, 10), st.integers(-10, 10)), max_size=9),
)
def test_pairs_above_and_below_are_counted(pairs: list[tuple[int, int]], asked: list[tuple[int, int]]) -> None:
    columns = [np.array([pair[at] for pair in each], np.int64) for each in (pairs, asked) for at in (0, 1)]
    expected = [sum(first > above and second < below for first, second in pairs) for above, below in asked]
    assert dominated(*columns).tolist() == expected


def test_real_nodes_records_meet_across_nodes_if_they_are_taken_as_one_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
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
    assert command(["lab", "metrics", str(tmp_path), "--merge-runs", "--engine", "local", *options]) == 0
    assert "1 line without a row of a record skipped" in capsys.readouterr().err
    (counts,) = folders.read_arrow(tmp_path / "metrics", families.PROCESSING).to_pylist()
    assert (counts["run"], counts["bcast"], counts["rcvd"], counts["codlvd"]) == ("node", 1, 1, 2)
    found = {row["metric"]: row for row in folders.read_arrow(tmp_path / "metrics", families.DELAY_SPREAD).to_pylist()}
    assert [found[name]["p50_s"] for name in families.DELAYS] == [2.5, 0.25, 2.75]


def test_the_command_tells_what_became_of_each_run_of_one_record(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    story = Story("abcd")  # Nobody tells d.
    story.publish(1, "a", "p")
    story.receive(2, "b", "p")
    story.deliver(4, "b", "p")
    story.receive(5, "c", "p")
    story.leave(6, "b", "crash")
    story.join(7, "b")
    story.receive(8, "b", "p", detail="again")
    story.deliver(9, "b", "p", detail="redelivered")
    with Sink(tmp_path / "one.parquet") as sink:
        sink.write(story.end(999))
    families = ["-f", "processing", "-f", "delivery_ratio", "-f", "delays"]
    options = [*families, "--engine", "local", "--out", str(tmp_path / "tables")]
    assert command(["lab", "metrics", str(tmp_path / "one.parquet"), *options, "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told == {
        "run": "story/default/1", "published": 1, "received": 2, "delivered": 1, "expired": 0, "undelivered": 1,
        "delivery_ratio": 1 / 3, "transmission_delay_s": 2.5, "ordering_delay_s": 2.0, "delivery_delay_s": 3.0,
    }  # fmt: skip
    made = sorted(each.name for each in (tmp_path / "tables").iterdir())
    assert made == ["delays", "delivery_ratio", "manifest.json", "processing"]


def test_recipients_are_those_that_a_publication_lists_and_classes_are_modes_and_priorities(tmp_path: Path) -> None:
    record = Record("run/a/1")
    record.add(Kind.RUN, 0, "")
    for node in "abcd":
        record.add(Kind.JOIN, 0, node)
    record.add(Kind.CONTACT, 0, "a", peer="b", attrs={"end": "9"})
    said = [
        ("p", {"mode": "persistent", "priority": "7", "recipients": "b c gone"}),
        ("q", {"mode": "persistent", "priority": "7", "recipients": "d"}),
        ("r", {"mode": "non-persistent", "priority": "x", "deadline": "5"}),
    ]
    for message, attrs in said:
        record.add(Kind.PUBLISH, 1_000_000, "a", message=message, source="a", size=10, attrs=attrs)
    for t_us, node, message in ((1_500_000, "b", "p"), (4_000_000, "b", "r"), (6_000_000, "c", "r")):
        record.add(Kind.RECEIVE, t_us, node, peer="a", message=message, source="a", size=10, hops=1)
        record.add(Kind.DELIVER, t_us, node, message=message, source="a", size=10)
    record.add(Kind.RECEIVE, 6_500_000, "d", peer="c", message="p", source="a", size=10, hops=2)  # A relay.
    record.add(Kind.REFUSE, 7_000_000, "d", peer="c", message="r", detail="no-room")
    record.add(Kind.REFUSE, 7_000_000, "a", message="never", detail="no-room")
    record.add(Kind.DROP, 8_000_000, "d", message="p", detail="no-room")
    with Sink(tmp_path / "one.parquet") as sink:
        sink.write(record)
    assert command(["lab", "metrics", str(tmp_path / "one.parquet"), "--engine", "local", "--out", str(tmp_path)]) == 0

    def rows(family: Table, *names: str) -> list[tuple[object, ...]]:
        return [tuple(row[name] for name in names) for row in folders.read_arrow(tmp_path, family).to_pylist()]

    assert rows(families.DELIVERY, "message", "recipients", "delivered", "mode", "priority") == [
        ("p", 3, 1, "persistent", 7), ("q", 1, 0, "persistent", 7), ("r", 3, 1, "non-persistent", None),
    ]  # fmt: skip
    # Three were published and one refused; four copies came, of which d's is for others, and it was dropped.
    assert rows(families.OUTCOMES, "created", "refused", "listed", "relayed", "dropped") == [(4, 1, 2, 4, 1)]
    assert rows(families.CLASSES, "mode", "priority", "messages", "recipients", "delivered", "ratio") == [
        ("non-persistent", None, 1, 3, 1, 1 / 3), ("persistent", 7, 2, 4, 1, (1 / 3 + 0) / 2),
    ]  # fmt: skip
    assert rows(families.MODE_DELAYS, "mode", "value_ms", "cumulative", "share") == [
        ("non-persistent", 3_000, 1, 1 / 3), ("persistent", 500, 1, 1 / 4),
    ]  # fmt: skip
    assert rows(families.FLOOD, "value_ms", "cumulative") == [(0, 2)]  # Of p and r; d, who q is for, meets nobody.


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["nowhere"], "there is no such file or folder"),
        (["."], "must contain a table of records, and has no Parquet file"),
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
