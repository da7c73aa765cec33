"""More nodes in reach than an announcement can list: asserted contacts have no bound, and beacons report theirs."""

from __future__ import annotations

import json
from collections import Counter
from itertools import combinations
from pathlib import Path

import pytest
from tests.support import emulated

from carrypost.cli.app import run
from carrypost.config import Limits
from carrypost.emu import records
from carrypost.emu import run as emulate
from carrypost.emu.scenario import Scenario
from carrypost.emu.summary import summarise

PLACES = 3
CLIQUE = 8
"""Nodes of the clique; each hears more of them than it has places for."""


def clique(folder: Path, count: int, *, duration_s: float, mode: str, top: str = "") -> Scenario:
    """Return a scenario in which all nodes meet at once, and one of them has a message."""
    names = [f"n{number:03}" for number in range(count)]
    meetings = [f"{a},{b},1,{duration_s}" for a, b in combinations(names, 2)]
    published = emulated.script(folder, "0.5,n000,m,100,")
    return emulated.scenario(
        folder, emulated.contacts(folder, *meetings), published, top, duration_s=duration_s, mode=mode
    )


@pytest.mark.parametrize(
    ("count", "heard_max"),
    [
        (30, 20),
        pytest.param(190, Limits().heard_max, marks=pytest.mark.soak),
        pytest.param(300, Limits().heard_max, marks=pytest.mark.soak),
    ],
)
def test_a_clique_that_no_announcement_could_list_reaches_the_flood_bound_in_ideal_mode(
    tmp_path: Path, count: int, heard_max: int
) -> None:
    assert count - 1 > heard_max
    limits = "" if heard_max == Limits().heard_max else f"[settings.limits]\nheard_max = {heard_max}\n"
    found = summarise(emulate(clique(tmp_path, count, duration_s=2, mode="ideal", top=limits), 1).table)
    assert (found.received, found.bound, found.refused) == (count - 1, count - 1, {})


@pytest.mark.soak
def test_a_thousand_walkers_reach_the_flood_bound_in_ideal_mode(tmp_path: Path) -> None:
    walkers = '[mobility]\nmodel = "random-waypoint"\ncount = 1000\nside_m = 240\n'
    published = [f"{second},n{100 * second + 1:04},m{second},100,{second}" for second in range(1, 9)]
    made = emulated.scenario(tmp_path, walkers, emulated.script(tmp_path, *published), duration_s=10, mode="ideal")
    table = emulate(made, 1).table
    nodes = [
        node for kind, node in zip(table["kind"].to_pylist(), table["node"].to_pylist(), strict=True) if kind == "up"
    ]
    assert max(Counter(nodes).values()) > Limits().heard_max
    found = summarise(table)
    assert found.received == found.bound == 8 * 999


def test_a_run_says_that_nodes_had_no_place_for_others_who_have_their_turn(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    limits = f"[settings.limits]\nheard_max = {PLACES}\n"
    made = clique(tmp_path, CLIQUE, duration_s=120, mode="faithful", top=limits)
    (tmp_path / "scene.toml").write_text(made.text)
    out = tmp_path / "records.parquet"
    assert run(["emu", "run", str(tmp_path / "scene.toml"), "--seed", "5", "--out", str(out), "--json"]) == 0
    told = capsys.readouterr()
    assert json.loads(told.out)["crowded"] == CLIQUE
    assert f"{CLIQUE} of {CLIQUE} nodes had more nodes in range than places for neighbours ({PLACES}," in told.err
    found = records.read(out).to_pylist()
    assert emulated.receptions(found) == {("m", f"n{number:03}") for number in range(1, CLIQUE)}
    met = Counter(node for node, _ in {(row["node"], row["peer"]) for row in emulated.of(found, "up")})
    assert min(met.values()) > PLACES


def test_a_run_says_nothing_where_there_was_room_for_everybody(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made = clique(tmp_path, CLIQUE, duration_s=10, mode="faithful")
    (tmp_path / "scene.toml").write_text(made.text)
    assert run(["emu", "run", str(tmp_path / "scene.toml"), "--json"]) == 0
    told = capsys.readouterr()
    assert (json.loads(told.out)["crowded"], told.err) == (0, "")
