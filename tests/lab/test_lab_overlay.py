"""The page about overlays: figures 7 to 12 and the paper's values, of a small campaign."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.emu.test_emu_groups import WALK

from carrypost.cli.app import run as command
from carrypost.lab.campaign.reproduce import RECIPES

SMALL = (
    WALK.replace("count = 24", "count = 12")
    .replace("count = 8", "count = 5")
    .replace("duration_s = 40", "duration_s = 15")
)
CLIENTS = """
discovery_s = 10
[[nodes.group]]
name = "producers"
count = 2
[[nodes.group]]
name = "consumers"
count = 3
[[workload]]
kind = "channel"
producers = "producers"
consumers = "consumers"
first_s = 2
period_s = 5
"""
CAMPAIGN = """
scenarios = ["overlay.toml", "overlay_clients.toml"]
seeds = [1]
[[settings]]
name = "adaptive-5"
scenarios = ["overlay.toml"]
[[settings]]
name = "adaptive-10"
scenarios = ["overlay.toml"]
set = {"settings.overlay.update_s" = 10}
[[settings]]
name = "static"
set = {"settings.overlay.topology" = "static", "settings.overlay.homing" = "static"}
[[settings]]
name = "clients-10"
scenarios = ["overlay_clients.toml"]
[[settings]]
name = "clients-2"
scenarios = ["overlay_clients.toml"]
set = {"settings.overlay.discovery_s" = 2}
[[settings]]
name = "at-5"
scenarios = ["overlay_clients.toml"]
set = {"mobility.speed_max_m_per_s" = 5}
[[settings]]
name = "at-9"
scenarios = ["overlay_clients.toml"]
set = {"mobility.speed_min_m_per_s" = 9, "mobility.speed_max_m_per_s" = 9}
"""


def test_a_page_has_the_papers_figures_and_values(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "overlay.toml").write_text(SMALL, encoding="utf-8")
    before, after = SMALL.split("update_s = 5\n")
    clients, *rest = CLIENTS.partition("[[nodes.group]]")
    with_clients = f"{before}update_s = 5\n{clients}{after}{''.join(rest)}"
    (tmp_path / "overlay_clients.toml").write_text(with_clients, encoding="utf-8")
    (tmp_path / "campaign.toml").write_text(CAMPAIGN, encoding="utf-8")
    assert command(["lab", "campaign", "campaign.toml", "--out", "runs", "--engine", "local"]) == 0
    assert command(["lab", "report", "runs", "--out", "page.html", "--engine", "local"]) == 0
    page = (tmp_path / "page.html").read_text(encoding="utf-8")
    for told in ("Figure 7", "Figure 8", "Figure 9", "adaptive, every 5 s", "6.06", "2.36", "Opportunistic Overlays"):
        assert told in page
    for told in ("Figure 10", "Figure 11", "Figure 12", "up to 5 hops shorter", "seats that moved"):
        assert told in page
    assert "opportunistic-opportunistic, discovery every 10 s, 9 m/s" in page


def test_the_experiment_has_the_periods_of_the_paper_and_a_small_version() -> None:
    names = [each.name for each in RECIPES["overlay"].settings]
    assert {"adaptive-10", "adaptive-50", "adaptive-100", "static"} <= set(names)
    assert {"clients-static", "clients-static-adaptive", "clients-adaptive-10", "clients-adaptive-50-at-20"} <= set(
        names
    )
    assert RECIPES["overlay"].scenarios == ("overlay", "overlay_clients")
    quick = {
        each.name: RECIPES["overlay"].scenario_of(each) for each in RECIPES["overlay"].selected_settings(quick=True)
    }
    assert quick == {
        "adaptive-50": "overlay", "static": "overlay",
        "clients-static": "overlay_clients", "clients-adaptive-10": "overlay_clients",
    }  # fmt: skip
