"""Summaries of records: every figure by a record made by hand, and the words that people read."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from carrypost import testing
from carrypost.emu.records import Sink
from carrypost.emu.rows import log_of, runs
from carrypost.emu.summary import Delays, summarise
from carrypost.errors import LocalError
from carrypost.log.record import Kind, Record

S = 1_000_000
ATTRS = {
    "scenario": "",
    "seed": "7",
    "version": "1.2",
    "mode": "faithful",
    "defaults": "duration_s = 100.0\n[settings]\ncache_messages_max = 9\n",
}


def told(*, until_s: float = 99.999999) -> Record:
    """Return a record: a publishes two messages; b gets both, one of them twice; c gets one; d meets no node."""
    record = Record("hand/default/7")
    add = record.add
    add(Kind.RUN, 0, "", attrs=ATTRS)
    for node in "abcd":
        add(Kind.JOIN, 0, node)
    add(Kind.CONTACT, 10 * S, "a", peer="b", attrs={"end": "40.0"})
    add(Kind.CONTACT, 20 * S, "b", peer="c", attrs={"end": "30.0"})
    for number, size in ((1, 100), (2, 50)):
        message = {"message": f"m{number}", "source": "a", "size": size}
        add(Kind.PUBLISH, number * S, "a", **message)  # type: ignore[arg-type]
        add(Kind.DELIVER, number * S, "a", **message)  # type: ignore[arg-type]
    first = {"message": "m1", "source": "a", "size": 100}
    second = {"message": "m2", "source": "a", "size": 50}
    for t, node, peer, hops, message, detail in (
        (11, "b", "a", 1, first, None),
        (12, "b", "a", 1, second, None),
        (21, "c", "b", 2, first, None),
        (22, "b", "a", 1, first, "again"),
    ):
        add(Kind.RECEIVE, t * S, node, peer=peer, hops=hops, detail=detail, **message)  # type: ignore[arg-type]
        marked = "redelivered" if detail else None
        add(Kind.DELIVER, t * S, node, detail=marked, **message)  # type: ignore[arg-type]
    add(Kind.DROP, 30 * S, "b", detail="evicted", **second)  # type: ignore[arg-type]
    add(Kind.RECEIVE, 31 * S, "b", peer="a", hops=1, **second)  # type: ignore[arg-type]
    add(Kind.REFUSE, 32 * S, "b", peer="a", detail="size", attrs={"count": "3"})
    add(Kind.REFUSE, 33 * S, "b", peer="a", detail="forged")
    for kind, nbytes in (("Data", 1_000), ("DescriptorPart", 200), ("Announce", 70), ("datagram", 30), ("Data", 500)):
        add(Kind.TRAFFIC, 60 * S, "a", size=nbytes, detail=kind)
    add(Kind.REGISTRY, round(until_s * S), "a", size=2, detail="cache")
    return record


def test_every_figure_is_counted_from_the_rows() -> None:
    found = summarise(told())
    assert (found.run, found.seed, found.version, found.mode) == ("hand/default/7", "7", "1.2", "faithful")
    assert (found.nodes, found.contacts, found.contact_s) == (4, 2, 40.0)
    assert (found.published, found.received, found.delivered, found.delivered_own) == (2, 3, 3, 2)
    assert found.delays == Delays(min_s=10.0, mean_s=40 / 3 // 1e-6 / 1e6, median_s=10.0, p90_s=18.0, max_s=20.0)
    assert found.hops_mean == 1.333
    assert found.drops == {"evicted": 1}
    assert found.refused == {"size": 3, "forged": 1}
    assert (found.data_bytes, found.control_bytes) == (1_700, 100)
    assert found.traffic == {"Data": 1_500, "DescriptorPart": 200, "Announce": 70, "datagram": 30}
    assert (found.bound, found.share) == (4, 0.75)
    assert (found.duration_s, found.partial, found.rows) == (100.0, False, len(told()))


def test_the_text_says_what_people_ask() -> None:
    assert summarise(told()).text().splitlines() == [
        "hand/default/7  (mode faithful, seed 7, version 1.2)",
        "  lasted     100.000 s",
        "  nodes      4",
        "  contacts   2, 20.0 s on average",
        "  published  2",
        "  received   3, 75.00% of the 4 that a flood reaches",
        "  delivered  3 to others, 2 to their authors",
        "  delay      least 10.000 s, mean 13.333 s, median 10.000 s, 90 % 18.000 s, most 20.000 s",
        "  hops       1.33 on average",
        "  dropped    evicted 1",
        "  refused    size 3, forged 1",
        "  sent       1.70 kB data, 100 B control",
        "             Data 1,500, DescriptorPart 200, Announce 70, datagram 30",
    ]


def test_all_that_a_flood_reaches_is_said_of_nothing_less() -> None:
    found = summarise(told())
    assert "99.99% of the 100,000 " in replace(found, received=99_999, bound=100_000).text()
    assert "100.00% of the 100,000 " in replace(found, received=100_000, bound=100_000).text()


def test_the_line_of_json_has_every_figure() -> None:
    line = json.loads(summarise(told()).json())
    assert line["share"] == 0.75
    assert line["delays"]["max_s"] == 20.0
    assert line["drops"] == {"evicted": 1}
    assert "\n" not in summarise(told()).json()


def test_a_run_that_was_cut_short_is_marked() -> None:
    found = summarise(told(until_s=61.5))
    assert found.partial
    assert "61.500 s of 100.000 s: PARTIAL" in found.text()


def test_a_run_whose_nodes_all_left_is_whole() -> None:
    record = told(until_s=61.5)
    for node in "abcd":
        record.add(Kind.LEAVE, 70 * S, node)
    assert not summarise(record).partial


def test_nothing_at_all_can_be_summed_up() -> None:
    for record in (Record(), Record("empty")):
        record.add(Kind.RUN, 0, "", attrs=ATTRS)
        found = summarise(record)
        assert (found.nodes, found.received, found.delays, found.share) == (0, 0, None, None)
        assert "a flood reaches nobody" in found.text()
    assert summarise(Record("none")).rows == 0


def test_a_record_that_knows_no_contacts_has_no_bound() -> None:
    record = Record("memory")
    with testing.network("a", "b", record=record) as net:
        net.link("a", "b")
        net.subscribe("b", "news")
        net.publish("a", "news", b"hello")
        net.advance(30)
    found = summarise(record)
    assert (found.received, found.delivered, found.bound, found.share) == (1, 1, None, None)
    assert "flood" not in found.text()
    assert "none recorded" in found.text()


def test_the_bound_can_be_spared() -> None:
    found = summarise(told(), bound=False)
    assert found.bound is None
    assert replace(found, bound=4) == summarise(told())


def test_a_table_tells_the_same_as_its_record() -> None:
    copy = told()
    with Sink(None) as sink:
        sink.write(copy)
    assert summarise(sink.close().table) == summarise(told())


def test_runs_of_one_table_are_taken_apart() -> None:
    import pyarrow as pa  # noqa: PLC0415 - needed here only

    tables = []
    for name in ("x", "y"):
        record = told()
        record.run = name
        with Sink(None) as sink:
            sink.write(record)
        tables.append(sink.close().table)
    both = pa.concat_tables(tables)
    with pytest.raises(LocalError, match="2 runs: 'x', 'y'"):
        summarise(both)
    assert [summarise(each).run for each in runs(both)] == ["x", "y"]
    assert [len(log_of(each)) for each in runs(both)] == [len(told())] * 2


def test_a_table_that_is_no_record_is_refused() -> None:
    import pyarrow as pa  # noqa: PLC0415 - needed here only

    with pytest.raises(LocalError, match="no column 'run'"):
        summarise(pa.table({"x": [1]}))
