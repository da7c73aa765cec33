"""With ideal links hosts reach exactly what a flood reaches; bytes, processes and hashing change nothing.

The schedules are those on which the bound itself is tested: contacts that touch, begin together, are empty or come
again, nodes that come and go, lives that end on the edge of a contact.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.examples import examples
from tests.support.schedules import Schedule, schedules, write

from carrypost.emu import flood_bound, run
from carrypost.emu.verify.invariants import check


def played(schedule: Schedule, *, mode: str = "ideal", encoded: bool = False, size: int = 100) -> pa.Table:
    with tempfile.TemporaryDirectory() as folder:
        return run(write(schedule, Path(folder), mode=mode, size=size), 1, encoded=encoded).table


def receptions(table: pa.Table) -> list[tuple[str, str]]:
    return [
        (message, node)
        for kind, message, node in zip(*(table[name].to_pylist() for name in ("kind", "message", "node")), strict=True)
        if kind == "receive"
    ]


@given(schedules(), st.sampled_from((0, 100, 3_000, 70_000)))
@examples(30)
def test_with_ideal_links_the_receptions_are_the_flood_bound(schedule: Schedule, size: int) -> None:
    table = played(schedule, size=size)
    found = receptions(table)
    assert set(found) == flood_bound(schedule.contacts, schedule.messages, schedule.presences)
    assert len(found) == len(set(found))
    assert check(table) == []


@given(schedules(), st.sampled_from(("ideal", "faithful")), st.sampled_from((0, 100, 3_000, 70_000)))
@examples(15)
def test_frames_that_go_through_their_bytes_give_the_same_record(schedule: Schedule, mode: str, size: int) -> None:
    assert played(schedule, mode=mode, size=size).equals(played(schedule, mode=mode, size=size, encoded=True))


@given(schedules())
@examples(15)
def test_without_a_hint_hosts_break_no_rule(schedule: Schedule) -> None:
    assert check(played(schedule, mode="faithful")) == []


BUSY = """
name = "busy"
duration_s = 100
sample_s = 10
disk_delay_s = 0.05
[nodes]
count = {nodes}
[contacts]
file = "contacts.csv"
[radio]
loss = 0.1
duplicate = 0.05
reorder = 0.05
[[workload]]
kind = "broadcast"
period_s = 7
size = 2000
lifetime_s = 30
[faults]
crash_per_h = 60
suspend_per_h = 60
suspend_s = 5
clock_skew_s = 0.5
corrupt = 0.01
"""


def busy(folder: Path, *, nodes: int = 5) -> Path:
    """Return a scenario with something of everything."""
    rows = [f"n000{a},n000{b},{5 * a + b},{60 + 7 * a + b}" for a in range(1, 5) for b in range(a + 1, 6)]
    (folder / "contacts.csv").write_text("\n".join(["a,b,start,end", *rows]) + "\n")
    path = folder / "busy.toml"
    path.write_text(BUSY.format(nodes=nodes))
    return path


ISLAND = """
duration_s = 20
[settings]
island = true
[nodes]
count = 7
[contacts]
file = "contacts.csv"
[radio]
rate_bytes_per_s = 20000
airtime = "shared"
[[workload]]
kind = "addressed"
messages = 6
first_s = 8
within_s = 4
recipients = 3
size = 600
"""


HASH_SEEDS = ("1", "4242")
PLAY = "import sys; from carrypost.emu import run; [run(each, 7, out=each + sys.argv[1]) for each in sys.argv[2:]]"


def island(folder: Path) -> Path:
    """Return a scenario of a row of nodes that share the air."""
    rows = [f"n000{a},n000{a + 1},0,20" for a in range(1, 7)]
    (folder / "contacts.csv").write_text("\n".join(["a,b,start,end", *rows]) + "\n")
    path = folder / "island.toml"
    path.write_text(ISLAND)
    return path


class Records(NamedTuple):
    """A scenario, and its records as bytes: that of this process, and those of others that hash otherwise."""

    scenario: Path
    table: pa.Table
    here: bytes
    elsewhere: list[bytes]


@pytest.fixture(scope="module")
def records(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Records]:
    """Play both scenarios in this process and in two others."""
    scenarios = [make(tmp_path_factory.mktemp(make.__name__)) for make in (busy, island)]
    for seed in HASH_SEEDS:
        command = [sys.executable, "-c", PLAY, seed, *map(str, scenarios)]
        subprocess.run(command, check=True, env=os.environ | {"PYTHONHASHSEED": seed})  # noqa: S603 - our own code
    found = {}
    for each in scenarios:
        out = each.with_suffix(".parquet")
        table = run(each, 7, out=out).table
        others = [Path(f"{each}{seed}").read_bytes() for seed in HASH_SEEDS]
        found[each.stem] = Records(each, table, out.read_bytes(), others)
    return found


def test_the_same_seed_gives_the_same_bytes_in_every_process(records: dict[str, Records]) -> None:
    found = records["busy"]
    assert found.elsewhere == [found.here] * len(HASH_SEEDS)
    assert not run(found.scenario, 8).table.equals(found.table)


def test_in_an_island_with_shared_air_hashing_changes_nothing(records: dict[str, Records]) -> None:
    """The order in which a message goes to its recipients decides who has to wait for the air."""
    found = records["island"]
    assert found.elsewhere == [found.here] * len(HASH_SEEDS)


def test_one_more_node_leaves_the_chance_of_the_others_alone(tmp_path: Path) -> None:
    folders = [tmp_path / name for name in ("five", "six")]
    tables = []
    for folder, nodes in zip(folders, (5, 6), strict=True):
        folder.mkdir()
        tables.append(run(busy(folder, nodes=nodes), 7).table)
    rows = [
        [row for row in table.drop_columns("attrs").to_pylist() if row["kind"] != "run" and row["node"] != "n0006"]
        for table in tables
    ]
    assert len(rows[0]) > 500
    assert rows[0] == rows[1]
