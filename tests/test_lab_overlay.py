"""The page about the broker network: figures 7 to 9 and the paper's values, of a small campaign."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.test_emu_groups import WALK

from carrypost.cli.app import run as command
from carrypost.lab.campaign.recipes import OVERLAY

SMALL = (
    WALK.replace("count = 24", "count = 12")
    .replace("count = 8", "count = 5")
    .replace("duration_s = 40", "duration_s = 15")
)
CAMPAIGN = """
scenarios = ["overlay.toml"]
seeds = [1]
[[settings]]
name = "adaptive-5"
[[settings]]
name = "adaptive-10"
set = {"settings.overlay.update_s" = 10}
[[settings]]
name = "static"
set = {"settings.overlay.topology" = "static"}
"""


def test_a_page_has_the_papers_figures_and_values(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "overlay.toml").write_text(SMALL, encoding="utf-8")
    (tmp_path / "campaign.toml").write_text(CAMPAIGN, encoding="utf-8")
    assert command(["lab", "campaign", "campaign.toml", "--out", "runs", "--engine", "local"]) == 0
    assert command(["lab", "report", "runs", "--out", "page.html", "--engine", "local"]) == 0
    page = (tmp_path / "page.html").read_text(encoding="utf-8")
    for told in ("Figure 7", "Figure 8", "Figure 9", "adaptive, every 5 s", "6.06", "2.36", "Opportunistic Overlays"):
        assert told in page


def test_the_experiment_has_the_periods_of_the_paper_and_a_small_version() -> None:
    names = [each.name for each in OVERLAY.settings]
    assert {"adaptive-10", "adaptive-50", "adaptive-100", "static"} <= set(names)
    assert {each.name for each in OVERLAY.chosen(quick=True)} == {"adaptive-50", "static"}
