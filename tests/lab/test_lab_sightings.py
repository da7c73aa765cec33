"""Metrics of the campus: contacts as hosts see them, delivery times by destination, the spread of one message."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.examples import examples

from carrypost.emu.records import table_of
from carrypost.lab.metrics import families as f
from carrypost.lab.metrics import finished, merge, parts, tables
from carrypost.lab.schemas import Table
from carrypost.log.record import Kind, Record

S = 1_000_000
Rows = list[dict[str, Any]]


def record(*rows: tuple[Any, ...]) -> Record:
    """Return a record of rows (kind, seconds, node, and the rest by name), the run's own first."""
    made = Record("r/s/1")
    made.add(Kind.RUN, 0, "", attrs={"defaults": "duration_s = 200\n"})
    for kind, t_s, node, more in sorted(rows, key=lambda row: row[1]):
        made.add(kind, round(t_s * S), node, **more)
    return made


def made(of: Record, table: Table) -> Rows:
    found: Rows = tables("r/s/1", table_of(of), [table])[table.name].to_pylist()
    return found


def test_a_contact_that_a_host_sees_ends_when_it_goes_down_or_the_host_leaves() -> None:
    seen = record(
        (Kind.JOIN, 0, "a", {}), (Kind.JOIN, 0, "b", {}), (Kind.LEAVE, 100, "a", {}), (Kind.JOIN, 150, "a", {}),
        (Kind.CONTACT, 5, "a", {"peer": "b", "attrs": {"end": "75.0"}}),
        (Kind.CONTACT, 80, "a", {"peer": "b", "attrs": {"end": "90.0", "heard": "b"}}),
        (Kind.UP, 10, "a", {"peer": "b"}), (Kind.DOWN, 40, "a", {"peer": "b"}),  # 30 s
        (Kind.UP, 11, "b", {"peer": "a"}), (Kind.DOWN, 81, "b", {"peer": "a"}),  # 70 s
        (Kind.UP, 90, "a", {"peer": "b"}),  # 10 s, to the leave of a
        (Kind.UP, 160, "a", {"peer": "b"}),  # 40 s, to the end of the run
        (Kind.UP, 91, "b", {"peer": "a"}), (Kind.DOWN, 103, "b", {"peer": "a"}),  # 12 s
        (Kind.UP, 165, "b", {"peer": "a"}), (Kind.DOWN, 199, "b", {"peer": "a"}),  # 34 s
        (Kind.ONEWAY, 85, "a", {"peer": "b"}),
    )  # fmt: skip
    true, hosts = made(seen, f.CONTACT_VIEWS)
    assert (true["view"], true["contacts"], true["one_way"], true["short"]) == ("true", 2, 1, 0.5)
    assert (true["min_s"], true["max_s"], true["avg_s"]) == (10, 70, 40)
    assert (hosts["view"], hosts["contacts"], hosts["one_way"], hosts["short"]) == ("hosts", 3, 1, 5 / 6)
    assert (hosts["min_s"], hosts["max_s"], hosts["avg_s"]) == pytest.approx((10, 70, 196 / 6))
    assert [row["value_ms"] for row in made(seen, f.SEEN_CONTACT_CDF)] == [
        10_000,
        12_000,
        30_000,
        34_000,
        40_000,
        70_000,
    ]


def lasting(rows: Iterable[tuple[Any, ...]]) -> list[float]:
    """Walk through the rows of hosts, and note how long each sees each neighbour."""
    since: dict[tuple[str, str], float] = {}
    found: list[float] = []
    for kind, t_s, node, more in sorted(rows, key=lambda row: row[1]):
        ends = [(node, more["peer"])] if "peer" in more else [each for each in since if each[0] == node]
        if kind in {Kind.UP, Kind.DOWN, Kind.LEAVE}:
            found += [t_s - since.pop(each) for each in ends if each in since]
        if kind == Kind.UP:
            since[node, more["peer"]] = t_s
    return sorted(each for each in [*found, *(200 - t_s for t_s in since.values())] if each)


@examples(25)
@given(
    changes=st.lists(
        st.tuples(st.sampled_from(["up", "down", "leave"]), st.sampled_from("abc"), st.sampled_from("abc")), max_size=40
    )
)
def test_contacts_of_hosts_are_those_of_a_walk_through_the_record_and_of_any_two_slices(
    changes: list[tuple[str, str, str]],
) -> None:
    rows: list[tuple[Any, ...]] = [(Kind.JOIN, 0, node, {}) for node in "abc"]
    for place, (kind, node, peer) in enumerate(changes, 1):
        if kind == "leave":
            rows += [(Kind.LEAVE, place, node, {}), (Kind.JOIN, place + 0.5, node, {})]
        elif node != peer:
            rows.append((Kind(kind), place, node, {"peer": peer}))
    whole = record(*rows)
    cdf = made(whole, f.SEEN_CONTACT_CDF)
    assert [row["value_ms"] / 1_000 for row in cdf for _ in range(row["count"])] == lasting(rows)
    table = table_of(whole)
    wanted = [f.CONTACT_VIEWS, f.SEEN_CONTACT_CDF]
    half = len(table) // 2
    both = merge(*(parts(each, wanted) for each in (table.slice(0, half), table.slice(half))))
    assert finished("r/s/1", both, wanted)[f.SEEN_CONTACT_CDF.name].to_pylist() == cdf


def published(message: str, t_s: float, node: str, destination: str) -> tuple[Any, ...]:
    return Kind.PUBLISH, t_s, node, {"message": message, "source": node, "attrs": {"destination": destination}}


def got(message: str, t_s: float, node: str, peer: str) -> list[tuple[Any, ...]]:
    more = {"message": message, "source": "a", "peer": peer, "hops": 1}
    return [(Kind.RECEIVE, t_s, node, more), (Kind.DELIVER, t_s + 1, node, {"message": message, "source": "a"})]


def test_delivery_times_are_by_destination_and_a_message_to_a_queue_has_one_recipient() -> None:
    of = record(
        *((Kind.JOIN, 0, node, {}) for node in "abcd"),
        published("m", 1, "a", "workload-0"), *got("m", 3, "b", "a"), *got("m", 5, "c", "b"),
        published("q", 2, "a", "queue/d/mail"), got("q", 4, "d", "a")[0], *got("q", 9, "c", "d"),
        published("k", 2, "a", "control/d"), *got("k", 3, "d", "a"),
        published("n", 8, "b", "queue/d/mail"),
    )  # fmt: skip
    cdf = [(row["destination"], row["value_ms"], row["share"]) for row in made(of, f.DELIVERY_CDF)]
    assert cdf == [("queue", 8_000, 1.0), ("topic", 3_000, 0.5), ("topic", 5_000, 1.0)]
    delivery = {row["message"]: (row["recipients"], row["delivered"]) for row in made(of, f.DELIVERY)}
    assert delivery == {"m": (3, 2), "q": (1, 1), "n": (1, 0)}
    (row,) = made(of, f.PROCESSING)
    assert (row["bcast"], row["rcvd"]) == (3, 4)


def test_the_spread_is_of_the_complete_message_that_took_longest_within_its_day() -> None:
    day = 86_400
    joined: list[tuple[Any, ...]] = [(Kind.JOIN, 0, node, {}) for node in "abc"]
    soon = [published("soon", 1, "a", "t"), *got("soon", 3, "b", "a"), *got("soon", 4, "c", "b")]
    late = [published("late", 5, "a", "t"), *got("late", 9, "c", "a"), *got("late", 15, "b", "c")]
    over_night = [published("night", 6, "a", "t"), *got("night", 7, "b", "a"), *got("night", day + 1, "c", "b")]
    part = [published("part", 7, "a", "t"), *got("part", 60, "b", "a")]
    found = made(record(*joined, *soon, *late, *over_night, *part), f.SPREAD)
    assert [tuple(row.values())[1:] for row in found] == [
        ("late", "a", "c", "a", 1, 4.0), ("late", "a", "b", "c", 2, 10.0),
    ]  # fmt: skip
    assert {row["message"] for row in made(record(*joined, *over_night, *part), f.SPREAD)} == {"night"}
    assert made(record(*joined), f.SPREAD) == []
    halves = [table_of(record(*joined, *soon, *part)), table_of(record(*joined, *over_night, *late))]
    both = merge(*(parts(each, [f.SPREAD]) for each in halves))
    assert finished("r/s/1", both, [f.SPREAD])[f.SPREAD.name].to_pylist() == found
