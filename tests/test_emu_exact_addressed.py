"""Messages for some of the hosts, over ideal links: exactly the recipients that a flood reaches get them."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.examples import examples
from tests.schedules import END_S, Schedule, schedules

from carrypost.emu import flood_bound, run
from carrypost.emu.verify.invariants import check

SCENARIO = f"""
name = "drawn"
duration_s = {END_S}
mode = "ideal"
[nodes]
file = "nodes.csv"
[contacts]
file = "contacts.csv"
[[workload]]
kind = "script"
file = "publish.csv"
[settings]
"""
SETTINGS = ("altruistic = true", 'strategy = "anti-entropy"')


@st.composite
def addressed(draw: st.DrawFn) -> tuple[Schedule, dict[str, list[str]]]:
    """A schedule with a contact and a message at least, and the recipients of each message, not its author."""
    schedule = draw(schedules(nodes_max=6).filter(lambda found: found.contacts and found.messages))
    names = sorted({name for name, _, _ in schedule.presences})
    lists = {
        message: draw(st.lists(st.sampled_from([name for name in names if name != author]), min_size=1, unique=True))
        for message, author, _, _ in schedule.messages
    }
    return schedule, lists


def played(schedule: Schedule, lists: dict[str, list[str]], size: int, settings: str) -> pa.Table:
    rows: dict[str, tuple[str, list[tuple[object, ...]]]] = {
        "nodes": ("node,join,leave", [(node, join, leave or "") for node, join, leave in schedule.presences]),
        "contacts": ("a,b,start,end", list(schedule.contacts)),
        "publish": (
            "t,node,message,size,lifetime,recipients",
            [
                (t, node, message, size, life or "", " ".join(lists[message]))
                for message, node, t, life in schedule.messages
            ],
        ),
    }
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for file, (header, lines) in rows.items():
            text = "\n".join([header, *(",".join(map(str, line)) for line in lines)])
            (folder / f"{file}.csv").write_text(text + "\n")
        (folder / "drawn.toml").write_text(SCENARIO + settings + "\n")
        return run(folder / "drawn.toml", 1).table


@pytest.mark.parametrize("settings", SETTINGS)
@given(addressed(), st.sampled_from((0, 100, 3_000, 70_000)))
@examples(25)
def test_exactly_the_recipients_that_a_flood_reaches_are_given_a_message(
    settings: str, drawn: tuple[Schedule, dict[str, list[str]]], size: int
) -> None:
    schedule, lists = drawn
    table = played(schedule, lists, size, settings)
    columns = (table[name].to_pylist() for name in ("kind", "message", "node"))
    delivered = [(message, node) for kind, message, node in zip(*columns, strict=True) if kind == "deliver"]
    bound = flood_bound(schedule.contacts, schedule.messages, schedule.presences)
    assert sorted(delivered) == sorted((message, node) for message, node in bound if node in lists[message])
    assert check(table) == []
