"""`carrypost reproduce baselines`: routing strategies beside The ONE."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tests.support.benches import Bench

from benchmarks import baselines as bench
from carrypost.cli.app import run
from carrypost.config.document import toml
from carrypost.emu.inputs import read_inputs
from carrypost.emu.scenario import Scenario
from carrypost.lab.campaign import grid, reproduce
from carrypost.lab.campaign.reproduce import RECIPES
from carrypost.lab.report import baselines

RECIPE = RECIPES["baselines"]


def test_every_run_has_figures_of_the_one_beside_it(tmp_path: Path) -> None:
    runs = grid.load(reproduce.laid_out(RECIPE, tmp_path, (1,), quick=False)).runs
    assert {each.name for each in RECIPE.settings} == {"-".join(key) for key in baselines.REFERENCES}
    assert len(runs) == len(baselines.REFERENCES)
    assert {Scenario.load(tmp_path / each.file, each.overrides).run.duration_s for each in runs} == {baselines.WHOLE_S}
    assert set(bench.ONE_CPU_S) <= set(baselines.REFERENCES)


def test_the_scenario_has_the_contacts_and_messages_of_the_one() -> None:
    scenario = Scenario.load(reproduce.scenario_file("helsinki"))
    inputs = read_inputs(scenario, 1)
    assert (len(inputs.contacts), len({name for each in inputs.contacts for name in each[:2]})) == (30_875, 126)
    assert sum(each.end_us - each.start_us for each in inputs.contacts) / 30_875 == pytest.approx(5.95e6, rel=1e-4)
    (script,) = inputs.scripts.values()
    assert len(script) == 1_463
    assert {each.lifetime_us for each in script} == {18_000_000_000}
    assert {node: each.cache_bytes_max for node, each in inputs.settings.items()} == dict.fromkeys(
        (str(number) for number in range(120, 126)), 50_000_000
    )


def test_a_part_is_shown_without_a_comparison(tmp_path: Path) -> None:
    reproduce.laid_out(RECIPE, tmp_path, (1,), quick=True)
    campaign = {
        "scenarios": ["helsinki.toml"], "seeds": [1],
        "settings": [
            {"name": each.name, "set": {**each.changes, "duration_s": 120}}
            for each in RECIPE.settings if each.name == "prophet-uncontended"
        ],
    }  # fmt: skip
    (tmp_path / "campaign.toml").write_text(toml(campaign))
    out = tmp_path / "out"
    assert run(["lab", "campaign", str(tmp_path / "campaign.toml"), "--out", str(out), "--engine", "local"]) == 0
    assert run(["lab", "report", str(out), "--out", str(out / "report.html"), "--engine", "local"]) == 0
    page = (out / "report.html").read_text()
    assert "Routing strategies on The ONE" in page
    assert "Whole runs are needed for a verdict" in page
    assert "PRoPHET" in page


def test_the_benchmark_of_baselines_runs_what_is_chosen(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    played: list[tuple[str, str, float]] = []

    def pretend(strategy: str, load: str, hours: float) -> tuple[float, int]:
        played.append((strategy, load, hours))
        return 11.0, 100

    def rows(*arguments: str) -> list[dict[str, Any]]:
        assert bench.main([*arguments, "--json"]) == 0
        return [json.loads(line) for line in capsys.readouterr().out.splitlines()]

    monkeypatch.setattr(bench, "run", pretend)
    (row,) = rows("--only", "prophet-contended", "--repeat", "2")
    assert played == [("prophet", "contended", 12.0)] * 2
    assert (row["CPU s"], row["The ONE, CPU s"], row["ratio"], row["met"]) == (11.0, 67, 11 / 67, None)
    played.clear()
    (row,) = rows("--only", "control", "--quick")
    assert (row["table"], row["times"]) == ("Control", 1.0)
    assert played == [(strategy, "uncontended", 0.25) for strategy in ("prophet", "spray-and-wait")]
    with pytest.raises(SystemExit):
        bench.main(["--only", "contended", "--quick"])
    assert "leave it out" in capsys.readouterr().err
    script = '#!/bin/sh\ncp "$3" given.txt\ni=0; while [ $i -lt 50000 ]; do i=$((i+1)); done\n'
    (tmp_path / "one.sh").write_text(script)
    (tmp_path / "one.sh").chmod(0o755)
    (row,) = rows("--only", "prophet-uncontended", "--quick", "--one", str(tmp_path))
    assert (row["met"], 0 < row["The ONE, CPU s"] < 11) == (False, True)
    assert {"Group.router = ProphetRouter", "Scenario.endTime = 900", "Group4.bufferSize = 5G"} < set(
        (tmp_path / "given.txt").read_text().splitlines()
    )


@pytest.mark.soak
def test_the_benchmark_of_baselines_runs(tmp_path: Path) -> None:
    shown = Bench("baselines").tables(tmp_path, "--quick", "--json")
    assert [row["load"] for row in shown["CPU"]] == ["uncontended"] * 2
    assert shown["Control"][0]["times"] > 1
