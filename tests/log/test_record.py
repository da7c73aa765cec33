"""The event log: what each event becomes, and that nothing is lost on the way through a file."""

from __future__ import annotations

import json
from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from carrypost.errors import LocalError
from carrypost.log import events
from carrypost.log.events import Reason
from carrypost.log.record import SCHEMA, Kind, Record
from carrypost.messaging.messaging import Messaging
from carrypost.model.descriptor import Descriptor, Ordering, PayloadCodec, Predecessor
from carrypost.model.ids import NodeId

A, B = NodeId("a"), NodeId("b")
NAMES = [column.name for column in SCHEMA]


def message(sequence: int, *, label: str = "", size: int = 10, deadline_us: int | None = None) -> Descriptor:
    return Descriptor(
        author="author",
        incarnation=1,
        sequence=sequence,
        created_us=0,
        deadline_us=deadline_us,
        destination="topic/news",
        size=size,
        length=size,
        codec=PayloadCodec.BLANK,
        root=b"",
        fragment_bytes=1024,
        label=label,
    )


def told(record: Record) -> list[dict[str, object]]:
    """Return the rows without empty and constant columns."""
    return [
        {name: value for name, value in row.items() if value is not None and name not in ("run", "t", "node")}
        for row in record.rows()
    ]


M1, M2 = message(1), message(2, label="second", size=20)
NAMED_1 = {"message": "author:1:1", "source": "author", "size": 10}
NAMED_2 = {"message": "second", "source": "author", "size": 20}

EVENTS: list[tuple[events.Event, list[dict[str, object]]]] = [
    (
        events.Received(B, (events.Reception(M1, 1, 0), events.Reception(M2, 3, 50))),
        [
            {"kind": "receive", "peer": "b", "hops": 1, **NAMED_1},
            {"kind": "receive", "peer": "b", "hops": 3, **NAMED_2},
        ],
    ),
    (
        events.Delivered((events.Delivery(M1, (0,), redelivered=False), events.Delivery(M2, (), redelivered=True))),
        [{"kind": "deliver", **NAMED_1}, {"kind": "deliver", "detail": "redelivered", **NAMED_2}],
    ),
    (
        events.Passed(B, (M1, M2)),
        [{"kind": "pass", "peer": "b", **NAMED_1}, {"kind": "pass", "peer": "b", **NAMED_2}],
    ),
    (
        events.Dropped((M1, M2), Reason.EVICTED),
        [{"kind": "drop", "detail": "evicted", **NAMED_1}, {"kind": "drop", "detail": "evicted", **NAMED_2}],
    ),
    (events.Dropped((M1,), Reason.EXPIRED), [{"kind": "drop", "detail": "expired", **NAMED_1}]),
    (events.Expired((M1, M2)), [{"kind": "expire", **NAMED_1}, {"kind": "expire", **NAMED_2}]),
    (events.Refused("signature", "b"), [{"kind": "refuse", "peer": "b", "detail": "signature"}]),
    (
        events.Refused("size", "b", 7, "m"),
        [{"kind": "refuse", "peer": "b", "message": "m", "detail": "size", "attrs": {"count": "7"}}],
    ),
    (events.NeighbourUp(B), [{"kind": "up", "peer": "b"}]),
    (events.NeighbourDown(B), [{"kind": "down", "peer": "b"}]),
    (events.OneWay(B), [{"kind": "oneway", "peer": "b"}]),
    (
        events.Published(M1),
        [
            {
                "kind": "publish",
                **NAMED_1,
                "source": "a",
                "attrs": {"destination": "topic/news", "mode": "non-persistent", "priority": "4"},
            }
        ],
    ),
    (events.Stored(M1.id), []),
    (events.HostLost("the disk failed"), []),
    (events.Confirmed((M1.id,)), []),
    (events.Received(B, ()), []),
    (
        events.Delivered(
            (
                events.Delivery(M1, (0,), redelivered=False, known=True),
                events.Delivery(M2, (0,), redelivered=False),
            )
        ),
        [{"kind": "deliver", **NAMED_2}],
    ),
    (events.Handed(1, 1, M1, 1), []),
    (events.ClaimLost("mail", M1, Reason.EVICTED), []),
    (events.GivenUp(1, M1, 6), []),
    (events.Unserved(1, "holder/h/news"), []),
    (events.Done(1), []),
    (events.Advertised("news", "topic/news"), []),
    (events.Browsed(1, (M1,), 0, complete=True), []),
    (
        events.Receipt(M1.id, events.SendState.DELIVERED, handed_over=True, last=True),
        [{"kind": "receipt", "message": "author:1:1", "source": "a"}],
    ),
    (
        events.Receipt(M2.id, events.SendState.FAILED, reason="no such queue", label="second"),
        [{"kind": "failure", "message": "second", "source": "a", "detail": "no such queue"}],
    ),
    (
        events.Receipt(M1.id, events.SendState.EXPIRED, reason="expired"),
        [{"kind": "failure", "message": "author:1:1", "source": "a", "detail": "expired"}],
    ),
    (events.Receipt(M1.id, events.SendState.CARRIED), []),
    (events.Receipt(M1.id, events.SendState.FAILED, handed_over=True, reason="timeout", rose=False), []),
    (
        events.Acknowledged(M1.id, B, (), M1.label),
        [{"kind": "receipt", "peer": "b", "message": M1.shown, "source": "a"}],
    ),
    (events.Assigned(M2, B), [{"kind": "assign", "detail": "b", **NAMED_2}]),
    (events.Reachable(B, 2), [{"kind": "reach", "peer": "b", "hops": 2}]),
    (events.Unreachable(B), [{"kind": "unreach", "peer": "b"}]),
    (events.LayerEvent(), []),
]
Messaging.register()


@pytest.mark.parametrize(("event", "rows"), EVENTS)
def test_an_event_becomes_the_rows_that_the_schema_says(event: events.Event, rows: list[dict[str, object]]) -> None:
    record = Record("run")
    record.observe(1_500_000, A, event)
    assert told(record) == rows
    assert len(record) == len(rows)
    assert {(row["run"], row["t"], row["node"]) for row in record.rows()} <= {("run", 1.5, "a")}


def test_there_is_an_example_of_every_event() -> None:
    assert {type(event) for event, _ in EVENTS} == set(get_args(events.Event))


def test_every_row_has_every_column_in_order() -> None:
    record = Record("run")
    for event, _ in EVENTS:
        record.observe(1, A, event)
    record.add(Kind.JOIN, 2, A)
    assert [list(row) for row in record.rows()] == [NAMES] * len(record)
    columns = record.columns()
    assert list(columns) == NAMES
    assert {len(values) for values in columns.values()} == {len(record)}


def test_what_a_crash_lost_is_received_again() -> None:
    record = Record()
    event = events.Received(B, (events.Reception(M1, 1, 0), events.Reception(M2, 1, 0)))
    record.observe(0, A, event, again={M2.id})
    assert [row["detail"] for row in record.rows()] == [None, "again"]


def test_a_delivery_by_a_skewed_clock_says_so() -> None:
    record = Record()
    event = events.Delivered((events.Delivery(M1, (0,), redelivered=False),))
    record.delivered(0, A, event, attrs={"clock": "12.5"})
    assert [row["attrs"] for row in record.rows()] == [{"clock": "12.5"}]


def test_a_publication_tells_what_was_asked_for_the_message() -> None:
    record = Record()
    record.published(0, "author", message(3, deadline_us=2_500_000))
    record.published(0, "author", M1)
    first, second = told(record)
    assert first == {
        "kind": "publish",
        "message": "author:1:3",
        "source": "author",
        "size": 10,
        "attrs": {"destination": "topic/news", "mode": "non-persistent", "priority": "4", "deadline": "2.5"},
    }
    assert second["attrs"] == {"destination": "topic/news", "mode": "non-persistent", "priority": "4"}


def test_a_publication_that_has_an_order_tells_which_and_how_many_entries_its_barrier_has() -> None:
    record = Record()
    barrier = (Predecessor("x", 1, 7, None), Predecessor("y", 2, 1, 5))
    for entries in ((), barrier):
        ordered = structs.replace(message(3), ordering=Ordering.DELTA_CAUSAL, barrier=entries)
        record.published(0, "author", ordered)
    assert [row["detail"] for row in record.rows()] == ["0", "2"]
    assert [row["attrs"]["ordering"] for row in record.rows() if row["attrs"]] == ["delta-causal"] * 2


def test_an_expiry_by_a_skewed_clock_says_so() -> None:
    record = Record()
    record.expired(0, A, events.Expired((M1,)), attrs={"clock": "12.5"})
    assert [(row["kind"], row["attrs"]) for row in record.rows()] == [("expire", {"clock": "12.5"})]


def test_other_rows_are_added_one_by_one() -> None:
    record = Record("three/default/1")
    record.add(Kind.RUN, 0, "", attrs={"seed": "1"})
    record.add("contact", 0, A, peer=B, attrs={"end": "60"})
    record.add("traffic", 60_000_000, A, size=1200, detail="Announce")
    assert told(record) == [
        {"kind": "run", "attrs": {"seed": "1"}},
        {"kind": "contact", "peer": "b", "attrs": {"end": "60"}},
        {"kind": "traffic", "size": 1200, "detail": "Announce"},
    ]


def test_a_kind_that_does_not_exist_is_refused_and_leaves_no_trace() -> None:
    record = Record()
    with pytest.raises(LocalError, match="no rows of kind 'recieve'; it has run, join"):
        record.add("recieve", 0, A)
    assert len(record) == 0
    assert list(record.rows()) == []


def test_a_line_leaves_out_what_is_empty() -> None:
    record = Record("run")
    record.observe(1_000_001, A, events.NeighbourUp(B))
    assert [json.loads(line) for line in record.json_lines()] == [
        {"run": "run", "t": 1.000001, "kind": "up", "node": "a", "peer": "b"}
    ]


def test_rows_that_were_written_elsewhere_can_be_forgotten() -> None:
    record = Record("run")
    record.add("join", 0, A)
    record.clear()
    record.add("leave", 1, A)
    assert [row["kind"] for row in record.rows()] == ["leave"]


_TEXTS = st.none() | st.text(max_size=8)


@given(
    st.lists(
        st.fixed_dictionaries(
            {
                "kind": st.sampled_from(Kind),
                "t_us": st.integers(0, 2**53 // 4),
                "node": st.text(max_size=8),
                "peer": _TEXTS,
                "message": _TEXTS,
                "source": _TEXTS,
                "hops": st.none() | st.integers(0, 2**31 - 1),
                "size": st.none() | st.integers(0, 2**63 - 1),
                "detail": _TEXTS,
                "attrs": st.none() | st.dictionaries(st.text(max_size=4), st.text(max_size=4)),
            }
        )
    )
)
def test_lines_give_back_every_row_and_every_microsecond(rows: list[dict[str, object]]) -> None:
    record = Record("run")
    for row in rows:
        record.add(**row)  # type: ignore[arg-type]
    read = Record.from_json_lines(record.json_lines())
    assert list(read.rows()) == [dict(row) for row in record.rows()]
    assert read.t_us == [row["t_us"] for row in rows]


GOOD_LINE = '{"run": "r", "t": 1, "kind": "join", "node": "a"}'


def test_blank_lines_are_skipped() -> None:
    assert len(Record.from_json_lines(["", GOOD_LINE, "\n", GOOD_LINE + "\n"])) == 2


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("not json", "line 2 is not a row"),
        ('{"run": "r", "t": 1, "kind": "join"}', "line 2 is not a row.*node"),
        ('{"run": "r", "t": "1", "kind": "join", "node": "a"}', "line 2 is not a row.*t"),
        ('{"run": "r", "t": 1, "kind": "jion", "node": "a"}', "line 2 is not a row.*jion"),
        (
            '{"run": "other", "t": 1, "kind": "join", "node": "a"}',
            "line 2 is of run 'other', those before of 'r'",
        ),
    ],
)
def test_a_line_that_is_no_row_is_named(line: str, message: str) -> None:
    with pytest.raises(LocalError, match=message):
        Record.from_json_lines([GOOD_LINE, line])
