"""Channels of emulated runs: their clients, and the rows about events, results and paths."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.support.emulated import BROKERS, Rows, contacts, nodes
from tests.support.emulated import rows as rows_of

from carrypost.emu import Scenario, run
from carrypost.errors import ConfigError

LINE = f"""
duration_s = 60
sample_s = 20{BROKERS}
neighbours_max = 2
[[nodes.group]]
name = "sources"
names = ["p"]
[[nodes.group]]
name = "readers"
names = ["x", "y", "A"]
[[nodes.group]]
name = "one"
of = "readers"
count = 1
[[workload]]
kind = "channel"
topic = "flood"
producers = "sources"
consumers = "readers"
first_s = 15
period_s = 10
size = 100
"""


def scenario(folder: Path, text: str = LINE, **changes: object) -> Scenario:
    contacts(folder, *(f"{one},{other},0,100" for one, other in ("pA", "AB", "BC", "Cx", "By")))
    nodes(folder, *(f"{node},0," for node in "pABCxy"))
    return Scenario.parse(text, folder, overrides={key.replace("__", "."): value for key, value in changes.items()})


def results_of(rows: Rows, consumer: str) -> Rows:
    """Return the publications of the results that a consumer was given, in that order."""
    made = {row["message"]: row for row in rows if row["kind"] == "publish"}
    given = [made[row["message"]] for row in rows if row["kind"] == "deliver" and row["node"] == consumer]
    return [row for row in given if "covers" in row["attrs"]]


def test_consumers_get_every_event_of_a_channel(tmp_path: Path) -> None:
    rows = rows_of(scenario(tmp_path))
    events = [row for row in rows if row["kind"] == "publish" and "event" in row["attrs"]]
    emitted = [(row["t"], row["node"], row["attrs"]["event"], row["size"]) for row in events]
    assert emitted == [(5.0 + 10 * number, "p", str(number), 100) for number in range(1, 6)]
    for consumer in "xyA":
        found = results_of(rows, consumer)
        assert [row["attrs"]["origin"] for row in found] == [row["message"] for row in events]
        assert [row["attrs"]["covers"] for row in found] == [
            f"1 {number} 0:{number - 1}-{number}" for number in range(1, 6)
        ]
        assert {row["attrs"]["producers"] for row in found} == {"p"}
    legs = [
        row for row in rows if row["kind"] == "publish" and "origin" in row["attrs"] and "covers" not in row["attrs"]
    ]
    assert {row["attrs"]["destination"] for row in legs} >= {"overlay/A", "overlay/C"}


def test_events_of_several_producers_are_spread(tmp_path: Path) -> None:
    spread = scenario(
        tmp_path, workload__0__producers="readers", workload__0__consumers="sources", workload__0__spread=True
    )
    events = [row for row in rows_of(spread) if row["kind"] == "publish" and "event" in row["attrs"]]
    begins = [(row["node"], round(row["t"], 3)) for row in events[:4]]
    assert begins == [("A", 15.0), ("x", 18.333), ("y", 21.667), ("A", 25.0)]


def test_paths_to_consumers_are_those_of_events(tmp_path: Path) -> None:
    rows = rows_of(scenario(tmp_path, duration_s=25))
    last = max(row["t"] for row in rows if row["kind"] == "path")
    found = {row["detail"]: row for row in rows if (row["kind"], row["t"], row["node"]) == ("path", last, "p")}
    # To x over A, B and C: 4 hops; to y over A and B: 3; to A: 1.
    assert {detail: (row["size"], row["attrs"]["pairs"]) for detail, row in found.items()} == {
        "delivery": (8, "3"),
        "best": (8, "3"),
    }


def test_homes_are_told(tmp_path: Path) -> None:
    rows = rows_of(scenario(tmp_path, duration_s=20))
    homes = {(row["node"], row["attrs"]["role"]): row for row in rows if row["kind"] == "home"}
    assert {client: row["peer"] for client, row in homes.items()} == {
        ("p", "producer"): "A", ("x", "consumer"): "C", ("y", "consumer"): "B", ("A", "consumer"): "A",
    }  # fmt: skip
    assert {(row["detail"], row["attrs"]["channel"]) for row in homes.values()} == {("first", "flood")}


def test_a_modulator_runs_at_the_homes_of_consumers(tmp_path: Path) -> None:
    made = scenario(tmp_path, LINE + 'modulator = "synthetic"\nparams = {ratio = 0.5}')
    found = results_of(rows_of(made), "x")
    assert [(row["node"], row["size"]) for row in found] == [("C", 50)] * 5
    assert not any("origin" in row["attrs"] for row in found)
    assert Scenario.parse(made.in_force(), tmp_path).workloads == made.workloads, "what is in force can be run again"


def test_a_group_of_another_is_drawn_by_seed(tmp_path: Path) -> None:
    made = scenario(tmp_path, workload__0__consumers="one", duration_s=30)
    given = [frozenset(row["node"] for row in rows_of(made, seed) if row["kind"] == "deliver") for seed in range(1, 8)]
    assert {len(each) for each in given} == {1}
    assert len(set(given)) > 1


def test_a_consumer_that_crashes_goes_on_where_it_was(tmp_path: Path) -> None:
    made = scenario(tmp_path, LINE + '[[faults.event]]\nt = 27\nnode = "x"\nkind = "crash"\nduration_s = 10\n')
    numbers = [row["attrs"]["covers"].split(" ")[1] for row in results_of(rows_of(made), "x")]
    assert numbers == ["1", "2", "3", "4", "5"]


@pytest.mark.parametrize(
    ("changes", "fault"),
    [
        ({"workload.0.producers": "source"}, r"no group 'source'; did you mean sources\?"),
        ({"workload.0.consumers": ""}, "workload.0.consumers: is missing"),
        ({"workload.0.producer": "sources"}, r"producer is not a setting; did you mean producers\?"),
        ({"workload.0.ordering": "causal"}, "leave it out"),
        ({"workload.0.modulator": "bax"}, r"no modulator 'bax'.*did you mean box\?"),
        ({"workload.0.modulator": "box"}, "does not accept these parameters"),
        ({"workload.0.params": {"area": 3}}, "requires a modulator"),
        ({"workload.0.params": 3}, "must be a table of parameters, not 3"),
        ({"workload.0.kind": "broadcast"}, 'producers: requires kind = "channel"'),
        ({"settings.overlay.enabled": False, "nodes.group.0.settings": {}}, "need settings.overlay.enabled = true"),
        ({"nodes.group.1.names": ["q"]}, "no node 'q'"),
    ],
)
def test_channels_that_mean_nothing_are_refused(tmp_path: Path, changes: dict[str, object], fault: str) -> None:
    folder = scenario(tmp_path).folder
    with pytest.raises(ConfigError, match=fault):
        run(Scenario.parse(LINE, folder, overrides=changes), 1)
