"""EMMA's evaluation: its loads as a campaign, and the page with its figures (X3)."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from tests.support import lab_pages
from tests.support.lab_pages import Reader

from carrypost import emu
from carrypost.cli.app import run
from carrypost.emu.scenario import Scenario
from carrypost.lab.campaign import grid, reproduce
from carrypost.lab.metrics import FAMILIES, families, tables
from carrypost.lab.report import page
from carrypost.lab.report.study import Study

BOTH = (reproduce.RECIPES["emma"], reproduce.RECIPES["emma-island"])
Ratio = Callable[[str, int, int, int], float]
"""The share delivered, by mode, priority, buffer and number of hosts."""


def better(mode: str, priority: int, buffer: int, hosts: int) -> float:
    """Return a share as in the paper: higher for persistent messages, higher priorities, larger buffers, more hosts."""
    return 0.3 + 0.2 * (mode == "persistent") + priority / 50 + buffer / 1_000 + hosts / 400


def like_emma(
    folder: Path,
    ratio: Ratio,
    seeds: Sequence[int] = (1, 2),
    *,
    quick: bool = False,
    recipe: reproduce.Recipe = reproduce.RECIPES["emma"],
) -> Study:
    """A campaign as it would be if these shares were delivered, a tenth of it at once and the rest after 100 s."""
    rows: lab_pages.Rows = {table: [] for table in FAMILIES}
    runs = []
    for chosen in recipe.selected_settings(quick=quick):
        made = Scenario.load(reproduce.scenario_file("emma"), chosen.changes)
        for seed in seeds:
            name = f"emma/{chosen.name}/{seed}"
            runs.append(lab_pages.done(folder, name, made.in_force()))
            add(rows, name, made, lambda *of, seed=seed: ratio(*of) + seed / 1_000)
    lab_pages.keep(folder, rows, runs)
    return Study(folder)


def add(rows: lab_pages.Rows, name: str, made: Scenario, ratio: Ratio) -> None:
    (workload,) = made.workloads
    modes = ("persistent", "non-persistent") if workload.persistent < 1 else ("persistent",)
    hosts = int(getattr(made.mobility, "count", 0))
    total = 0
    for mode in modes:
        delivered = 0
        for priority in range(workload.priorities):
            share = ratio(mode, priority, made.settings.cache_messages_max, hosts)
            got = round(1_000 * share)
            delivered, total = delivered + got, total + 1_000
            rows[families.CLASSES].append({
                "run": name, "mode": mode, "priority": priority, "messages": 1_000, "recipients": 1_000,
                "delivered": got, "ratio": share,
            })  # fmt: skip
            rows[families.DELIVERY].append({
                "run": name, "message": f"{mode}{priority}", "source": "n1", "published": 1.0, "recipients": 1_000,
                "delivered": got, "ratio": share, "mode": mode, "priority": priority,
            })  # fmt: skip
        every = 1_000 * workload.priorities
        for value_ms, many in ((0, delivered // 10), (100_000, delivered)):
            rows[families.MODE_DELAYS].append({
                "run": name, "mode": mode, "value_ms": value_ms, "count": 1, "cumulative": many, "share": many / every,
            })  # fmt: skip
    for value_ms, part in ((0, 0.05), (90_000, 1.0)):
        many = round(part * total)
        rows[families.FLOOD].append({
            "run": name, "value_ms": value_ms, "count": many, "cumulative": many, "share": part,
        })  # fmt: skip
    rows[families.OUTCOMES].append({
        "run": name, "created": 200, "refused": 7 if made.settings.cache_messages_max == 25 else 0, "listed": 200,
        "relayed": 9, "dropped": 0,
    })  # fmt: skip
    rows[families.PROCESSING].append({
        "run": name, "bcast": 1, "rcvd": 1, "codlvd": 1, "expd": 0, "left": 0, "codlvratio": 1.0, "expratio": 0.0,
    })  # fmt: skip


@pytest.mark.parametrize("recipe", BOTH, ids=lambda each: each.name)
def test_the_campaign_has_the_papers_loads(tmp_path: Path, recipe: reproduce.Recipe) -> None:
    runs = grid.load(reproduce.laid_out(recipe, tmp_path, (1,), quick=False)).runs
    made = [Scenario.load(tmp_path / each.file, each.overrides) for each in runs]
    assert len({each.text for each in made}) == len(made)
    loads = {(each.workloads[0].messages, each.workloads[0].persistent, each.workloads[0].recipients) for each in made}
    assert loads == {(200, 0.5, 1), (300, 1, 1), (200, 0.5, 0.8)}
    assert {each.settings.cache_messages_max for each in made} == {25, 50, 100, 150, 200}
    assert {getattr(each.mobility, "count", 0) for each in made} == {16, 24, 32}
    for each in made:
        (workload,) = each.workloads
        assert (workload.within_s, workload.lifetime_s, each.radio.range_m) == (20, 240, 200)
        assert not each.settings.shares
        assert each.settings.island is (recipe is reproduce.RECIPES["emma-island"])
        last_s = workload.first_s + workload.within_s + (workload.lifetime_s or 0)
        assert last_s <= (each.run.duration_s or 0)


def test_the_page_has_the_papers_six_figures_and_tells_which_trends_hold(tmp_path: Path) -> None:
    made = page.render(like_emma(tmp_path, better), "carrypost reproduce emma --seeds 1,2")
    found = Reader(made.text)
    assert [made.text.count(f"the paper's Figure {number}.") for number in range(1, 7)] == [1] * 6
    assert sum(name.startswith("figure") for name in made.figures) == 2 * 2 * 6
    verdicts = {row[0]: row[1] for row in found.tables["The paper's trends"][1:]}
    assert verdicts["persistent messages are delivered at least as often as others"] == "yes: at least 20.0 pp more"
    assert verdicts["more is delivered with larger buffers"] == "yes: each step by at least 2.5 pp"
    assert verdicts["higher priorities are delivered at least as often"] == "yes: each class by at least 2.0 pp"
    assert verdicts["more is delivered with more hosts"].startswith("yes: 16 hosts ")
    at_once = verdicts["a proportion is delivered more or less immediately"]
    assert at_once.endswith("within 10 s; 5.0 % of recipients were connected with the sender")
    first = found.row("Figure 1 in numbers", "25")
    assert first[1:5] == ["25", "7", "69.6 % ± 0.64 pp", "70 – 70"], "refused publications beside the shares"
    assert found.row("Figure 6 in numbers", "24")[1] == "24"
    given = {row[0]: row[3] for row in found.tables["Parameters in force"][1:]}
    assert given["radio.range_m"] == "the paper"
    assert given["mobility.clouds"] == "ours: not given in the paper"


def test_each_strategy_has_a_half_of_every_figure(tmp_path: Path) -> None:
    made = page.render(like_emma(tmp_path, better))
    assert made.text.count("<svg") == 12
    assert made.text.count("(a) anti-entropy") == made.text.count("(b) exchange") == 7  # Once in the introduction.
    found = Reader(made.text)
    assert found.tables["The paper's trends"][0] == ["the paper", "anti-entropy", "exchange"]
    assert [row[0] for row in found.tables["Figure 6 in numbers"][2:]] == ["anti-entropy", "", "", "exchange", "", ""]


def test_the_second_page_says_that_its_hosts_have_islands(tmp_path: Path) -> None:
    lead = "Hosts with an island know which hosts they can reach"
    with_island = page.render(
        like_emma(tmp_path / "island", better, (1,), quick=True, recipe=reproduce.RECIPES["emma-island"])
    ).text
    without = page.render(like_emma(tmp_path / "alone", better, (1,), quick=True)).text
    assert (lead in with_island, lead in without) == (True, False)
    found = Reader(with_island)
    assert found.tables["The paper's trends"][0] == ["the paper", "anti-entropy, island", "exchange, island"]
    assert {row[0]: row[1] for row in found.tables["Parameters in force"][1:]}["settings.island"] == "True"


def test_trends_that_do_not_hold_are_told(tmp_path: Path) -> None:
    made = page.render(like_emma(tmp_path, lambda *of: 1.2 - better(*of), (1,), quick=True))
    verdicts = {row[0]: row[1] for row in Reader(made.text).tables["The paper's trends"][1:]}
    assert [told.split(":")[0] for told in verdicts.values()][:4] == ["no"] * 4
    assert "at least \u221220.0 pp more" in verdicts["persistent messages are delivered at least as often as others"]


def test_classes_are_not_compared_where_buffers_lose_nothing(tmp_path: Path) -> None:
    made = page.render(like_emma(tmp_path, lambda _, priority, *__: 0.999 - priority / 10_000, (1,), quick=True))
    verdicts = {row[0]: row[1] for row in Reader(made.text).tables["The paper's trends"][1:]}
    assert verdicts["higher priorities are delivered at least as often"] == "not run, or no buffer was too small"


def test_a_part_of_the_loads_has_a_page_too(tmp_path: Path) -> None:
    folder = tmp_path / "all"
    study = like_emma(folder, better, (1,))
    study.runs = tuple(each for each in study.runs if "topic-50" in each.settings)
    text = page.render(study).text
    assert text.count("shows loads that were not run here") == 5
    assert "the paper's Figure 5." in text


def test_other_campaigns_called_emma_have_the_general_page(tmp_path: Path) -> None:
    in_force = Scenario.parse("duration_s = 5\n[nodes]\ncount = 2\n").in_force()
    rows: lab_pages.Rows = {table: [] for table in FAMILIES}
    lab_pages.keep(tmp_path, rows, [lab_pages.done(tmp_path, "emma/default/1", in_force)])
    assert "Campaign: emma" in page.render(Study(tmp_path)).text


@pytest.mark.parametrize("island", [False, True])
def test_a_short_run_of_the_shipped_scenario_reaches_recipients(*, island: bool) -> None:
    changes = {"mobility.count": 8, "mobility.clouds": 2, "workload.0.messages": 30, "duration_s": 120}
    changes |= {"settings.island": island}
    table = emu.run(Scenario.load(reproduce.scenario_file("emma"), changes)).table
    (row,) = tables("emma/default/1", table, [families.DELIVERY_RATIO])["delivery_ratio"].to_pylist()
    assert row["messages"] == 30
    assert row["ratio"] > 0.3


@pytest.mark.soak
@pytest.mark.parametrize("recipe", BOTH, ids=lambda each: each.name)
def test_one_command_makes_the_page(
    recipe: reproduce.Recipe, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert run(["reproduce", recipe.name, "--quick", "--seeds", "1,2", "--engine", "local", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert (told["runs"], told["failed"]) == (2 * len(reproduce.RECIPES["emma"].selected_settings(quick=True)), 0)
    found = Reader((tmp_path / told["page"]).read_text(encoding="utf-8"))
    assert len([name for name in found.tables if name.endswith("in numbers")]) == 4
