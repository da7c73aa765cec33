"""Workloads of random nodes: to a topic, or to queues that their consumers or other nodes manage."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.examples import examples, soaked

from carrypost import emu
from carrypost.emu.engine.applications import Publication
from carrypost.emu.inputs import read_inputs
from carrypost.emu.scenario import Scenario
from carrypost.errors import ConfigError

NODES = ("a", "b", "c", "d")
SECOND = 1_000_000


def scenario(folder: Path, queue: str, more: str = "", nodes: tuple[str, ...] = NODES) -> Scenario:
    """Return a scenario of nodes that hear each other, while they are there, from 1 s to 300 s."""
    pairs = [f"{a},{b},1,300" for a in nodes for b in nodes if a < b]
    (folder / "c.csv").write_text("\n".join(["a,b,start,end", *pairs]) + "\n")
    stays = [f"{node},{10 * place},{150 if place == 1 else 300}" for place, node in enumerate(nodes)]
    (folder / "n.csv").write_text("\n".join(["node,join,leave", *stays, "b,200,300"][: len(nodes) + 2]) + "\n")
    text = "duration_s = 300\n[nodes]\nfile = 'n.csv'\n[contacts]\nfile = 'c.csv'\n"
    workload = f"[[workload]]\nkind = 'random'\nmessages = 20\nsize = [10, 90]\nqueue = '{queue}'\n"
    return Scenario.parse(text + workload + more, folder)


def drawn(made: Scenario, seed: int | str) -> tuple[list[Publication], dict[str, str]]:
    """Return the publications, and the managers of queues."""
    inputs = read_inputs(made, seed)
    return inputs.scripts[0], inputs.queues.get(0, {})


@examples(15)
@given(seed=st.integers(0, 1 << 32), queue=st.sampled_from(["none", "recipient", "third"]))
def test_nodes_publish_while_they_are_there_and_neither_consume_nor_manage_the_queue(
    tmp_path_factory: pytest.TempPathFactory, seed: int, queue: str
) -> None:
    made = scenario(tmp_path_factory.mktemp("random"), queue)
    found, managers = drawn(made, seed)
    assert (found, managers) == drawn(made, seed)
    assert len(found) == 20
    assert [each.t_us for each in found] == sorted(each.t_us for each in found)
    for each in found:
        place = NODES.index(each.node)
        assert 10 * place * SECOND <= each.t_us < 300 * SECOND
        assert each.node != "b" or not 150 * SECOND <= each.t_us < 200 * SECOND
        assert 10 <= each.size <= 90
        assert each.node != each.queue
        assert not (queue == "third" and managers[each.queue] == each.node)
    assert {bool(each.queue) for each in found} == {queue != "none"}
    if queue == "third":
        assert sorted(managers) == sorted(managers.values()) == list(NODES)
        assert all(node != manager for node, manager in managers.items())
    elif queue == "recipient":
        assert managers == {node: node for node in NODES}


@pytest.mark.parametrize("queue", ["recipient", "third"])
@pytest.mark.parametrize("more", ["", *soaked(["[settings]\nsecurity = 'signed'\nlifetime_s_default = 999\n"])])
def test_every_message_to_a_queue_is_consumed_once_by_its_node(tmp_path: Path, queue: str, more: str) -> None:
    made = scenario(tmp_path, queue, more)
    found, managers = drawn(made, 2)
    rows: list[dict[str, Any]] = emu.run(made, 2).table.to_pylist()
    sent = [row for row in rows if row["kind"] == "publish" and destination(row).startswith("queue/")]
    assert [(row["node"], round(row["t"] * SECOND)) for row in sent] == [(each.node, each.t_us) for each in found]
    taken = {row["message"]: row["node"] for row in rows if row["kind"] == "deliver"}
    # A message of the last moment may be under way when b has left for good, or the run ends.
    assert len(taken) >= len(sent) - 3
    assert all(taken.get(row["message"], each.queue) == each.queue for row, each in zip(sent, found, strict=True))
    assert max(Counter(row["message"] for row in rows if row["kind"] == "deliver").values()) == 1
    assigned = {row["message"]: row["node"] for row in rows if row["kind"] == "assign"}
    assert all(
        assigned.get(row["message"], managers[each.queue]) == managers[each.queue]
        for row, each in zip(sent, found, strict=True)
    )


def destination(row: dict[str, Any]) -> str:
    return str(dict(row["attrs"])["destination"])


def test_messages_to_a_topic_reach_everybody_without_messaging(tmp_path: Path) -> None:
    rows: list[dict[str, Any]] = emu.run(scenario(tmp_path, "none"), 1).table.to_pylist()
    assert {destination(row) for row in rows if row["kind"] == "publish"} == {"workload-0"}
    got = {(row["message"], row["node"]) for row in rows if row["kind"] == "deliver"}
    assert len(got) > 70


def test_more_messages_leave_the_others_as_they_were(tmp_path: Path) -> None:
    few, _ = drawn(scenario(tmp_path, "third"), 5)
    more, _ = drawn(Scenario.load(_written(tmp_path), {"workload.0.messages": 30}), 5)
    assert set(few) < set(more)


def _written(folder: Path) -> Path:
    (folder / "s.toml").write_text(scenario(folder, "third").text)
    return folder / "s.toml"


@pytest.mark.parametrize(
    ("nodes", "queue", "said"),
    [
        (("a", "b"), "third", '"third" needs 3 nodes or more, an author, a recipient and a manager; there are 2'),
        (("a",), "recipient", '"recipient" needs 2 nodes or more, an author and a recipient; there is only one'),
    ],
)
def test_queues_need_enough_nodes(tmp_path: Path, nodes: tuple[str, ...], queue: str, said: str) -> None:
    (tmp_path / "n.csv").write_text("node,join\n" + "".join(f"{node},0\n" for node in nodes))
    text = f"duration_s = 9\n[nodes]\nfile = 'n.csv'\n[[workload]]\nkind = 'random'\nqueue = '{queue}'\n"
    with pytest.raises(ConfigError) as error:
        read_inputs(Scenario.parse(text, tmp_path), 1)
    assert f"workload.0.queue: {said}" in str(error.value)


@pytest.mark.parametrize(
    ("workload", "said"),
    [
        ("kind = 'random'\nqueue = 'thrid'", 'queue must be "none" or "recipient" or "third", not \'thrid\'; did you'),
        ("kind = 'broadcast'\nqueue = 'third'", 'workload.0.queue requires kind = "random", and kind is "broadcast"'),
        (
            "kind = 'random'\nqueue = 'third'\nrecipients = 2",
            'workload.0.recipients: queue = "third" and recipients exclude each other',
        ),
        (
            "kind = 'random'\nqueue = 'recipient'\nordering = 'causal'",
            'workload.0.ordering: queue = "recipient" and ordering = "causal" exclude each other',
        ),
        ("kind = 'broadcast'\nsize = [1, 2]", 'only kind = "addressed" and "random" take a range'),
    ],
)
def test_a_mistake_in_a_random_workload_is_named(workload: str, said: str) -> None:
    with pytest.raises(ConfigError) as error:
        Scenario.parse(f"duration_s = 9\n[nodes]\ncount = 3\n[[workload]]\n{workload}\n")
    assert said in str(error.value)


def test_a_population_has_no_queues(tmp_path: Path) -> None:
    text = scenario(tmp_path, "third").text.replace("duration_s = 300", "duration_s = 300\nmode = 'population'")
    with pytest.raises(ConfigError, match=r"workload\.0\.queue: population mode does not model queues"):
        Scenario.parse(text + "[population]\ndelays = 'zero'\n", tmp_path)
