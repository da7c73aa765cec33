"""`--engine local`: every step of the laboratory in one process, on a machine without Java."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.campaigns import FAILING, TWO_SETTINGS, campaign, records, three

from carrypost import emu
from carrypost.cli.app import run as command
from carrypost.errors import LabError
from carrypost.lab import folders
from carrypost.lab.campaign.grid import load
from carrypost.lab.contacts import scenario_tables
from carrypost.lab.metrics import FAMILIES
from carrypost.lab.schemas import FAILURES

PLACES = [(t, node, x) for t in range(0, 600, 5) for node, x in (("a", 0), ("b", 5 + 40 * (t // 100 % 2)))]
TRACE = "t,node,x,y\n" + "".join(f"{t},{node},{x},0\n" for t, node, x in PLACES)
SCENARIO = """
name = "walk"
duration_s = 600
[contacts]
file = "walk/contacts"
presence = "contacts"
[[workload]]
kind = "broadcast"
period_s = 60
lifetime_s = 300
"""


@pytest.fixture(autouse=True)
def _no_java(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(*_: object) -> Path:
        raise LabError("there is no Java in this test")

    monkeypatch.setattr("carrypost.lab.spark.session.java_home", missing)
    monkeypatch.setattr("carrypost.lab.spark.java.java_home", missing)


def test_from_a_trace_to_a_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("walk.csv").write_text(TRACE, encoding="ascii")
    Path("walk.toml").write_text(SCENARIO, encoding="ascii")
    Path("campaign.toml").write_text('scenarios = ["walk.toml"]\nseeds = [1, 2]\n', encoding="ascii")
    for order in (
        "ingest walk.csv --format gps-csv --scenario walk --out walk",
        "contacts walk --range-m 10 --statistics --out walk",
        "campaign campaign.toml --out results",
        "metrics results",
        "report results --out report.html",
    ):
        assert command(["lab", *order.split(), "--engine", "local"]) == 0, order
    for table in scenario_tables.TABLES:
        assert folders.read_arrow(Path("walk/statistics"), table).num_rows > 0
    for table in FAMILIES:
        assert folders.read_arrow(Path("results/metrics"), table).schema.equals(table.arrow)
    assert "walk" in Path("report.html").read_text(encoding="utf-8")


def test_a_campaign_has_the_records_of_plain_runs_and_one_that_fails_ends_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    three(tmp_path)
    path, out = campaign(tmp_path, TWO_SETTINGS, FAILING), tmp_path / "out"
    assert command(["lab", "campaign", str(path), "--out", str(out), "--engine", "local"]) == 1
    told = json.loads(capsys.readouterr().out)
    assert (told["done"], told["failed"]) == (4, 2)
    assert folders.read_arrow(out, FAILURES).num_rows == 2
    made = {}
    for run in load(campaign(tmp_path, TWO_SETTINGS)).runs:
        plain = tmp_path / "plain.parquet"
        scenario = tmp_path / "scenarios" / run.file
        emu.run(scenario, run.seed, overrides=dict(run.overrides), settings=run.settings, out=plain)
        made[f"{run.stem}.parquet"] = plain.read_bytes()
    assert records(out) == dict(sorted(made.items()))
