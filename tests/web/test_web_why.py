"""Why a message is not at a node: journeys equal an independent search and the flood bound, and each reason is told."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.pages import Browser

from carrypost import emu
from carrypost.emu.rows import Log
from carrypost.emu.verify.facts import Facts
from carrypost.web.run_copies import Meetings
from carrypost.web.run_files import Spans

Contact = tuple[int, int, int, int, bool]
NODES = 6
TIMES = st.integers(0, 30)
CONTACTS = st.lists(
    st.tuples(st.integers(0, NODES - 1), st.integers(0, NODES - 1), TIMES, st.integers(1, 8), st.booleans()),
    max_size=25,
)


def meetings(contacts: list[Contact]) -> Meetings:
    rows = [(a, b, start, start + length, one_way) for a, b, start, length, one_way in contacts if a != b]
    a, b, start, end, one_way = (np.array(column) for column in zip(*rows, strict=True)) if rows else [np.array([])] * 5
    label = one_way.astype(np.int64) - 1
    spans = Spans.of(
        a.astype(np.int64), b.astype(np.int64), (start.astype(float), end.astype(float)), label, ["one-way"]
    )
    return Meetings(spans, NODES)


def reached(contacts: list[Contact], source: int, t: int) -> dict[int, int]:
    """Return when a flood reaches each node, instant by instant."""
    found = {source: t}
    for now in range(t, 60):
        grown = True
        while grown:
            grown = False
            for a, b, start, length, one_way in contacts:
                if start <= now < start + length:
                    for one, other in ((a, b),) if one_way else ((a, b), (b, a)):
                        if one in found and other not in found:
                            found[other], grown = now, True
    return found


@given(CONTACTS, st.integers(0, NODES - 1), TIMES)
def test_journeys_are_those_of_an_independent_search(contacts: list[Contact], source: int, t: int) -> None:
    met, wanted = meetings(contacts), reached([each for each in contacts if each[0] != each[1]], source, t)
    for node in range(NODES):
        legs = met.journey(source, node, float(t))
        assert (legs is None) == (node not in wanted)
        if legs:
            assert legs[-1].t == wanted[node]
            assert [leg.a for leg in legs] == [source, *(leg.b for leg in legs[:-1])]
            assert legs[-1].b == node
            times = [t, *(leg.t for leg in legs)]
            assert times == sorted(times)
            assert all(leg.start <= leg.t < leg.end for leg in legs)


_WALK = """
duration_s = 400
mode = "ideal"
[radio]
range_m = 60
[mobility]
model = "random-waypoint"
count = 15
side_m = 500
speed_min_m_per_s = 1
speed_max_m_per_s = 5
pause_min_s = 0
pause_max_s = 5
[[workload]]
kind = "broadcast"
first_s = 5
period_s = 200
lifetime_s = 120
"""


def test_in_an_ideal_run_journeys_arrive_in_time_exactly_where_the_flood_bound_has_it(tmp_path: Path) -> None:
    emu.run(emu.Scenario.parse(_WALK, tmp_path), out=tmp_path / "walk.parquet")
    bound = Facts(Log(pq.read_table(tmp_path / "walk.parquet"))).bound
    bits = {name: place for place, name in enumerate(bound.messages)}
    browser = Browser(tmp_path / "walk.parquet")
    run = next(iter(browser.runs)).opened()
    checked = 0
    for place in range(len(run.messages)):
        about = run.messages.shown(place)
        for number, name in enumerate(run.scan.names.texts):
            if name == about.source:
                continue
            legs = run.meetings.journey(run.messages.source[place], number, about.t)
            in_time = bool(legs) and legs is not None and legs[-1].t < (about.deadline or math.inf)
            assert in_time == bool(bound.reached[name] >> bits[about.message] & 1), (about, name)
            checked += in_time
    assert checked > 50


def lines(*rows: dict[str, Any]) -> str:
    return "".join(msgspec.json.encode(row).decode() + "\n" for row in rows)


def contact(a: str, b: str, start: float, end: float) -> dict[str, Any]:
    return {"t": start, "kind": "contact", "node": a, "peer": b, "attrs": {"end": str(end)}}


def row(t: float, kind: str, node: str, peer: str | None = None, **more: object) -> dict[str, Any]:
    return {"t": t, "kind": kind, "node": node, "peer": peer, "message": "m", **more}


PUBLISH = row(1, "publish", "a", source="a", attrs={"deadline": "100.0", "destination": "x"})
AB, BC = contact("a", "b", 10, 20), contact("b", "c", 30, 40)
GOT = row(12, "receive", "b", "a", hops=1)
SEEN = [{"t": 31, "kind": "up", "node": node, "peer": peer} for node, peer in (("b", "c"), ("c", "b"))]


NONE = "There is no chain of contacts from a to c "
COULD = "It could have arrived at 30.0 s; "
MET = f"{COULD}b met c from 30.0 s to 40.0 s, but "
CASES: dict[str, tuple[list[dict[str, Any]], str, str]] = {
    "arrived": ([AB, GOT, BC, row(33, "receive", "c", "b", hops=2)], "arrived", "It arrived at 33.0 s."),
    "no path": ([AB, GOT, {"t": 0, "kind": "join", "node": "c"}], "no-path", f"{NONE}after 1.0 s."),
    "too late": (
        [AB, GOT, contact("b", "c", 120, 130)],
        "no-path",
        f"{NONE}before the deadline at 100.0 s; the message could have come at 120.0 s.",
    ),
    "dropped": (
        [AB, GOT, row(25, "drop", "b", detail="evicted"), BC],
        "dropped",
        f"{COULD}b would have met c, but evicted its copy at 25.0 s.",
    ),
    "late": (
        [AB, row(45, "receive", "b", "a", hops=1), BC],
        "late",
        f"{COULD}b met c until 40.0 s, but had the message only from 45.0 s on.",
    ),
    "unnoticed": (
        [AB, GOT, BC, {"t": 11, "kind": "up", "node": "a", "peer": "b"}],
        "unnoticed",
        f"{COULD}b and c were in contact at 30.0 s, but did not notice each other.",
    ),
    "refused": (
        [AB, GOT, BC, *SEEN, row(32, "refuse", "c", "b", detail="size")],
        "refused",
        f"{MET}c refused it (size).",
    ),
    "stopped": ([AB, GOT, BC, *SEEN], "stopped", f"{MET}it did not pass; 3 rows are of both then."),
}


@pytest.mark.parametrize("case", CASES)
def test_each_reason_is_told(tmp_path: Path, case: str) -> None:
    rows, verdict, sentence = CASES[case]
    (tmp_path / "run.jsonl").write_text(lines(PUBLISH, *rows))
    answer = Browser(tmp_path / "run.jsonl").api("/why", message="m", node="c").json
    assert (answer["verdict"], answer["sentence"]) == (verdict, sentence)
    assert (answer["stop"] is None) == (verdict in {"arrived", "no-path"})


def test_names_for_people_are_in_the_sentence(tmp_path: Path) -> None:
    (tmp_path / "run.jsonl").write_text(lines(PUBLISH, AB, GOT, BC, *SEEN))
    (tmp_path / "demo.json").write_text('{"b": "bus", "c": "<b>carl</b>"}')
    answer = Browser(tmp_path).api("/why", message="m", node="c").json
    assert "bus met <b>carl</b> from" in answer["sentence"]


def test_what_is_not_there_is_an_error_in_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "run.jsonl").write_text(lines(PUBLISH, AB))
    browser = Browser(tmp_path / "run.jsonl")
    for query in ({"message": "n", "node": "a"}, {"message": "m", "node": "z"}):
        answer = browser.api("/why", **query)
        assert (answer.status, list(answer.json)) == (404, ["error"])
    assert browser.api("/why", message="m").status == 400
