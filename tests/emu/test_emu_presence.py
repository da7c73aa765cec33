"""Presence of nodes in a scenario with contacts and no list of nodes: `[contacts] presence`."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.support import emulated

from carrypost import emu
from carrypost.emu.scenario import Scenario
from carrypost.errors import CarrypostError

MEETINGS = ("a,b,10,20", "b,c,30,40", "a,b,60,70", "c,d,100,130", "e,f,5,5")
LEAVING = 'presence = "contacts"\n'


def _there(made: Scenario) -> dict[str, list[tuple[str, float]]]:
    found: dict[str, list[tuple[str, float]]] = {}
    for row in emulated.rows(made):
        if row["kind"] in {"join", "leave"}:
            found.setdefault(row["node"], []).append((row["kind"], row["t"]))
    return found


def test_nodes_are_there_throughout_unless_the_scenario_says_otherwise(tmp_path: Path) -> None:
    table = emulated.contacts(tmp_path, *MEETINGS)
    silent = _there(emulated.scenario(tmp_path, table, duration_s=110))
    assert silent == _there(emulated.scenario(tmp_path, table + 'presence = "throughout"\n', duration_s=110))
    assert {node: events[0] for node, events in silent.items()} == dict.fromkeys("abcdef", ("join", 0.0))


def test_nodes_can_be_there_from_their_first_contact_to_the_end_of_their_last(tmp_path: Path) -> None:
    made = emulated.scenario(tmp_path, emulated.contacts(tmp_path, *MEETINGS) + LEAVING, duration_s=110)
    whole = _there(emulated.scenario(tmp_path, emulated.contacts(tmp_path, *MEETINGS), duration_s=110))
    ends = whole["a"][1:]
    assert _there(made) == {
        "a": [("join", 10.0), ("leave", 70.0)],
        "b": [("join", 10.0), ("leave", 70.0)],
        "c": [("join", 30.0), *ends],
        "d": [("join", 100.0), *ends],
    }


def test_a_run_is_that_of_a_list_of_nodes_that_says_the_same(tmp_path: Path) -> None:
    table = emulated.contacts(tmp_path, *MEETINGS[:-1])
    listed = emulated.nodes(tmp_path, "a,10,70", "b,10,70", "c,30,", "d,100,")
    one, two = (
        emulated.rows(emulated.scenario(tmp_path, *tables, emulated.BROADCAST, duration_s=110))
        for tables in ((table + LEAVING,), (table, listed))
    )
    assert one[1:] == two[1:], "but for the row that has the scenario"
    assert emulated.receptions(one)


def test_who_met_somebody_before_the_run_and_will_again_is_there_from_its_start(tmp_path: Path) -> None:
    table = emulated.contacts(tmp_path, *MEETINGS) + LEAVING + "start_s = 50\n"
    found = _there(emulated.scenario(tmp_path, table, duration_s=40))
    assert found["a"] == found["b"] == [("join", 0.0), ("leave", 20.0)]
    assert found["c"][0] == ("join", 0.0), "met b before the run, meets d after it"
    assert "d" not in found


def test_nobody_publishes_who_is_not_there_yet(tmp_path: Path) -> None:
    tables = emulated.contacts(tmp_path, *MEETINGS) + LEAVING, emulated.script(tmp_path, "5,a,m1,10,")
    with pytest.raises(CarrypostError, match=r"publish.csv, line 2: node 'a' is not present at 5.0 s"):
        emu.run(emulated.scenario(tmp_path, *tables))


@pytest.mark.parametrize(
    ("tables", "said"),
    [
        ("[contacts]\npresence = 'contacts'\n[nodes]\ncount = 2", "requires contacts.file"),
        ("[contacts]\nfile = 'x'\npresence = 'contacts'\n[nodes]\ncount = 2", r"and \[nodes\] exclude each other"),
        ("[contacts]\nfile = 'x'\npresence = 'never'", 'must be "throughout" or "contacts", not'),
    ],
)
def test_a_presence_that_makes_no_sense_is_refused_with_its_line(tables: str, said: str) -> None:
    with pytest.raises(CarrypostError, match=said) as raised:
        Scenario.parse(f"duration_s = 1\n{tables}\n", file="scene.toml")
    assert str(raised.value).startswith("scene.toml, line ")
