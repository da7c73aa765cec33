"""Families about channels: homes, seats that move and latencies of events, of a record made by hand."""

from __future__ import annotations

from functools import reduce
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from carrypost.emu.records import table_of
from carrypost.lab import folders
from carrypost.lab.engines import Engine, LocalEngine, opened
from carrypost.lab.metrics import families, finished, merge, parts, tables
from carrypost.lab.metrics.making import Wanted, make
from carrypost.lab.metrics.records import Source
from carrypost.lab.spark.session import SparkOptions
from carrypost.log.record import Kind, Record

S = 1_000_000
WANTED = [families.LOAD, families.RELOCATIONS, families.EVENT_LATENCY, families.DELIVERY, families.PATH_LENGTHS]


def event(record: Record, t: float, producer: str, number: int, channel: str = "flood") -> None:
    attrs = {"destination": f"channel/{channel}", "event": str(number)}
    message = f"{producer}{number}{channel}"
    record.add(Kind.PUBLISH, round(t * S), producer, message=message, source=producer, size=1, attrs=attrs)


def result(record: Record, t: float, covers: str, given: tuple[float, ...], *, origin: str | None = None) -> None:
    """Append a result, and its deliveries; the consumer crashes before the second one."""
    message = f"result {covers} {origin}"
    attrs = {"destination": "results/c/1", "covers": covers, "producers": "p q"} | (
        {"origin": origin} if origin else {}
    )
    record.add(Kind.PUBLISH, round(t * S), "b", message=message, source="b", size=1, attrs=attrs)
    for at, each in enumerate(given):
        detail = "redelivered" if at else None
        record.add(Kind.DELIVER, round(each * S), "c", message=message, source="b", size=1, detail=detail)


@pytest.fixture(scope="module")
def record() -> pa.Table:
    made = Record("x/default/1")
    made.add(Kind.RUN, 0, "", attrs={"defaults": ""})
    for node in "pqbc":
        made.add(Kind.JOIN, 0, node)
    for node, reason in (("p", "first"), ("q", "first"), ("c", "first"), ("p", "nearer")):
        made.add(Kind.HOME, S, node, peer="b", detail=reason, attrs={"channel": "flood"})
    event(made, 10, "p", 1)
    event(made, 20, "p", 2)
    event(made, 70, "q", 1)
    event(made, 71, "q", 1, "rain")
    result(made, 10.5, "1 1 0:0-1", (11.0, 30.0), origin="p1flood")
    result(made, 23.0, "1 2 0:1-2", (23.5,))  # Of a modulator.
    result(made, 71.0, "1 3 1:0-1", (72.0,), origin="q1flood")
    result(made, 73.0, "1 4 1:0-1", (99.0,))  # Nobody could tell which of the two events of q it is of.
    result(made, 74.0, "1 5", ())
    made.add(Kind.RELOCATE, 80 * S, "b", peer="d", size=100, detail="horizontal", attrs={"pause_s": "0.25"})
    made.add(Kind.RELOCATE, 81 * S, "d", peer="b", size=300, detail="horizontal", attrs={"pause_s": "0.75"})
    for detail, hops in (("delivery", 12), ("best", 9)):
        made.add(Kind.PATH, 90 * S, "p", size=hops, detail=detail, attrs={"pairs": "3"})
    for node, load in (("b", 1_500), ("d", 250)):
        made.add(Kind.LOAD, 90 * S, node, size=load)
    return table_of(made)


EXPECTED: dict[str, list[dict[str, object]]] = {
    "relocations": [
        {"what": "home", "reason": "first", "count": 3, "bytes": None, "pause_avg_s": None, "pause_max_s": None},
        {"what": "home", "reason": "nearer", "count": 1, "bytes": None, "pause_avg_s": None, "pause_max_s": None},
        {"what": "relocate", "reason": "horizontal", "count": 2, "bytes": 400, "pause_avg_s": 0.5, "pause_max_s": 0.75},
    ],
    "event_latency": [
        {"t": 0.0, "results": 2, "avg_s": 2.25, "p50_s": 1.0, "p95_s": 3.5, "max_s": 3.5},
        {"t": 60.0, "results": 1, "avg_s": 2.0, "p50_s": 2.0, "p95_s": 2.0, "max_s": 2.0},
    ],
    "load": [{"t": 90.0, "brokers": 2, "mean": 0.875, "max": 1.5}],
    "delivery": [],
    "path_lengths": [
        {"t": 90.0, "path": "best", "pairs": 3, "hops": 3.0},
        {"t": 90.0, "path": "delivery", "pairs": 3, "hops": 4.0},
    ],
}


def shown(found: dict[str, pa.Table]) -> dict[str, list[dict[str, object]]]:
    return {
        name: [{key: value for key, value in row.items() if key != "run"} for row in table.to_pylist()]
        for name, table in found.items()
    }


def test_homes_seats_and_latencies_are_those_reckoned_by_hand(record: pa.Table) -> None:
    assert shown(tables("x/default/1", record, WANTED)) == EXPECTED


def test_events_and_results_meet_across_slices(record: pa.Table) -> None:
    of = pc.fill_null(record["message"], "").to_pylist()
    cut = [parts(record.filter(pa.array([len(each) % 3 == at for each in of])), WANTED) for at in (2, 0, 1)]
    assert shown(finished("x/default/1", reduce(merge, cut), WANTED)) == EXPECTED


@pytest.mark.parametrize("kind", ["local", "spark"])
def test_both_engines_make_the_same_of_slices(
    record: pa.Table, kind: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    (tmp_path / "records").mkdir()
    pq.write_table(record, tmp_path / "records" / "one.parquet", row_group_size=5)
    wanted = Wanted(out=tmp_path / "out", slice_rows=9, tables=WANTED)

    def do(engine: Engine) -> None:
        make(engine, Source.find(tmp_path), wanted)

    if kind == "local":
        do(LocalEngine())
    else:
        request.getfixturevalue("spark")
        with opened(SparkOptions()) as engine:
            do(engine)
    assert shown({each.name: folders.read_arrow(tmp_path / "out", each) for each in WANTED}) == EXPECTED
