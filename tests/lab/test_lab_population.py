"""Populations in the laboratory: windows as tasks, and metrics and pages that name their mode."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession
from tests.support.campaigns import states
from tests.support.populations import calibration, events, tallies

from carrypost import emu
from carrypost.cli.app import run as command
from carrypost.emu.population.delays import read
from carrypost.lab import folders
from carrypost.lab.metrics import families

TOWN = """
name = "town"
duration_s = 300
mode = "population"
[mobility]
model = "random-waypoint"
count = 30
side_m = 300
[population]
delays = "delays.json"
[[workload]]
kind = "broadcast"
period_s = 60
lifetime_s = 100
"""
CAMPAIGN = """
scenarios = ["town.toml"]
seeds = [1]
[[settings]]
name = "whole"
[[settings]]
name = "windows"
set = {"population.window_s" = 50}
[[settings]]
name = "endless"
set = {"population.window_s" = 100, "workload.0.lifetime_s" = "none"}
[[settings]]
name = "counts"
set = {"population.window_s" = 50, "population.rows" = "none"}
"""


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "town.toml").write_text(TOWN)
    (tmp_path / "campaign.toml").write_text(CAMPAIGN)
    calibration(tmp_path / "delays.json", emu.Scenario.parse(TOWN.replace("delays.json", "zero"), tmp_path))
    return tmp_path


def records(out: Path) -> dict[str, Path]:
    return {state["settings"]: out / "records" / state["record"] for state in states(out).values()}


@pytest.mark.soak
def test_windows_are_tasks_and_change_no_row_with_or_without_spark(place: Path, spark: SparkSession) -> None:
    for engine in ("local", "spark"):
        assert command(["lab", "campaign", "campaign.toml", "--out", engine, "--engine", engine]) == 0
    local, on_spark = records(place / "local"), records(place / "spark")
    assert {name: path.read_bytes() for name, path in local.items()} == {
        name: path.read_bytes() for name, path in on_spark.items()
    }
    whole, windows, counts = (pq.read_table(local[name]) for name in ("whole", "windows", "counts"))
    without_run = [[{**row, "run": ""} for row in events(table)] for table in (whole, windows)]
    assert without_run[0] == without_run[1]
    assert len(without_run[0]) > 1_000
    assert tallies(whole) == tallies(windows) == tallies(counts)
    alone = emu.run(place / "town.toml", 1, settings="endless", overrides={"workload.0.lifetime_s": "none"})
    assert events(pq.read_table(local["endless"])) == events(alone.table)
    assert not [*(place / "spark" / ".runs").glob(".*")]
    assert all(state["cpu_s"] > 0 and state["rows"] > 1 for state in states(place / "spark").values())
    assert spark.version


def test_metrics_and_pages_say_population_and_what_they_do_not_know(
    place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert command(["lab", "campaign", "campaign.toml", "--out", "out", "--engine", "local"]) == 0
    capsys.readouterr()
    assert command(["lab", "metrics", "out", "--engine", "local", "--json"]) == 0
    told = capsys.readouterr()
    assert "4 runs are of population mode, calibrated by: drawn, seed 1, 60 s: 1,000 contacts" in told.err
    assert "traffic (rows `traffic`)" in told.err
    assert "one of them has counts only" in told.err
    rows = {row["run"]: row for row in map(json.loads, told.out.splitlines())}
    assert rows["town/whole/1"]["received"] == rows["town/windows/1"]["received"] > 500
    notes = json.loads((place / "out/metrics/manifest.json").read_text())
    assert notes["processing"]["population"]["town/whole/1"].startswith("drawn, seed 1")
    assert "tally" not in folders.read_arrow(place / "out/metrics", families.TIMELINE)["kind"].to_pylist()
    assert command(["lab", "report", "out", "--out", "page.html", "--engine", "local"]) == 0
    page = (place / "page.html").read_text()
    assert "In population mode: " in page
    assert "calibrated by: drawn, seed 1" in page
    assert "Not known in population mode" in page


def test_a_window_that_fails_is_the_failure_of_its_run(
    place: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("carrypost.lab.campaign.tasks.save_part", lambda *_: 1 / 0)
    assert command(["lab", "campaign", "campaign.toml", "--out", "out", "--engine", "local", "--json"]) == 1
    told = json.loads(capsys.readouterr().out)
    assert (told["done"], told["failed"]) == (1, 3)
    assert {each["error"] for each in told["failures"]} == {"ZeroDivisionError: division by zero"}
    monkeypatch.undo()
    monkeypatch.chdir(place)
    assert command(["lab", "campaign", "campaign.toml", "--out", "out", "--engine", "local", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["new"] == 3


def test_a_calibration_that_does_not_fit_is_refused_before_anything_runs(
    place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = CAMPAIGN + '[[settings]]\nname = "lossy"\nset = {"radio.loss" = 0.2}\n'
    (place / "campaign.toml").write_text(text)
    assert command(["lab", "campaign", "campaign.toml", "--out", "out"]) == 2
    assert 'settings "lossy"' in (told := capsys.readouterr().err)
    assert "calibrated with another" in told
    assert not (place / "out").exists()
    assert read(place / "delays.json").contacts == 1_000
