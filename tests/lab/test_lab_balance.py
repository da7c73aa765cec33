"""The page of load balancing, with the paper's figures 13 and 14."""

from __future__ import annotations

from pathlib import Path

import pytest

from carrypost.cli.app import run as command
from carrypost.lab.campaign.reproduce import RECIPES, scenario_file

CAMPAIGN = """
scenarios = ["balance.toml"]
seeds = [1]
[[settings]]
name = "control-60"
[[settings]]
name = "nearest-60"
set = {"settings.overlay.load_max" = 1000}
[[settings]]
name = "static"
set = {"settings.overlay.homing" = "static"}
"""


def test_a_page_has_the_papers_figures(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("carrypost.lab.report.overlay_brokers._BEGIN_S", 8.0)
    text = scenario_file("balance").read_text(encoding="utf-8")
    assert "duration_s = 600\n" in text
    (tmp_path / "balance.toml").write_text(text.replace("duration_s = 600\n", "duration_s = 12\n"), encoding="utf-8")
    (tmp_path / "campaign.toml").write_text(CAMPAIGN, encoding="utf-8")
    assert command(["lab", "campaign", "campaign.toml", "--out", "runs", "--engine", "local"]) == 0
    assert command(["lab", "report", "runs", "--out", "page.html", "--engine", "local"]) == 0
    page = (tmp_path / "page.html").read_text(encoding="utf-8")
    for told in (
        "Figure 13",
        "Figure 14",
        "with control",
        "without control",
        "At 100 % its paths are still shorter",
        "height, m",
    ):
        assert told in page


def test_the_experiment_has_the_loads_of_the_paper_and_a_small_version() -> None:
    names = [each.name for each in RECIPES["balance"].settings]
    assert {f"{name}-{load}" for name in ("control", "nearest") for load in range(10, 101, 10)} < set(names)
    assert [each.name for each in RECIPES["balance"].selected_settings(quick=True)] == [
        "control-30", "control-90", "nearest-30", "nearest-90", "static",
    ]  # fmt: skip
    costs = {each.name: each.changes.get("workload.0.params") for each in RECIPES["balance"].settings}
    assert costs["control-60"] == {"cost_us": 100_000, "ratio": 0.0}
