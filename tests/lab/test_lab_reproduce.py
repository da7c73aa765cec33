"""`carrypost reproduce`: the papers' experiments, from scenario to page."""

from __future__ import annotations

import dataclasses
import json
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

import pytest
from tests.support import lab_pages

from carrypost.cli.app import run
from carrypost.emu.scenario import Scenario
from carrypost.errors import LabError, LocalError
from carrypost.lab.campaign import grid, reproduce
from carrypost.lab.report.papers import EXPERIMENTS

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.mark.parametrize("name", ["bus", "ostermalm"])
def test_a_campaign_has_the_papers_lifetimes(name: str, tmp_path: Path) -> None:
    recipe = reproduce.recipe(name)
    runs = grid.load(reproduce.laid_out(recipe, tmp_path, (1, 2), quick=False)).runs
    paper = EXPERIMENTS[recipe.scenario]
    assert len(runs) == 2 * (len(paper.of) + len(paper.pair))
    every = [Scenario.load(tmp_path / each.file, each.overrides) for each in runs if each.seed == 1]
    made, slow = every[: len(paper.of)], every[len(paper.of) :]
    assert [each.workloads[0].lifetime_s for each in slow] == sorted(paper.pair, key=list(paper.of).index)
    assert {(each.radio.rate_bytes_per_s, each.settings.send_order) for each in slow} == {(20_000, "random")}
    assert {(each.radio.rate_bytes_per_s, each.settings.send_order) for each in made} == {(None, "rank")}
    assert [each.workloads[0].lifetime_s for each in made] == list(paper.of)
    orders = ["causal" if each is None else "delta-causal" for each in paper.of]
    assert [each.workloads[0].ordering for each in made] == orders
    assert {each.run.duration_s for each in made} == {paper.duration_s}


@pytest.mark.parametrize("name", ["bus", "ostermalm"])
def test_the_small_version_has_what_every_figure_needs(name: str, tmp_path: Path) -> None:
    recipe = reproduce.recipe(name)
    paper = EXPERIMENTS[recipe.scenario]
    runs = grid.load(reproduce.laid_out(recipe, tmp_path, (1,), quick=True)).runs
    made = [Scenario.load(tmp_path / each.file, each.overrides) for each in runs]
    assert {each.workloads[0].lifetime_s for each in made} == set(paper.pair)
    assert all((each.run.duration_s or 0) < paper.duration_s / 5 for each in made)


def test_more_seeds_may_follow_but_no_other_campaign(tmp_path: Path) -> None:
    reproduce.laid_out(reproduce.RECIPES["bus"], tmp_path, (1,), quick=False)
    assert len(grid.load(reproduce.laid_out(reproduce.RECIPES["bus"], tmp_path, (1, 2), quick=False)).runs) == 16
    with pytest.raises(LocalError, match="holds another campaign"):
        reproduce.laid_out(reproduce.RECIPES["bus"], tmp_path, (1,), quick=True)


@pytest.mark.parametrize(
    ("text", "seeds"), [("1", (1,)), ("3,1", (3, 1)), ("1-3, 2,9", (1, 2, 3, 9)), ("0", (0,)), ("7-7", (7,))]
)
def test_seeds_are_numbers_and_spans(text: str, seeds: tuple[int, ...]) -> None:
    assert reproduce.seeds_of(text) == seeds


@pytest.mark.parametrize("text", ["", "x", "3-1", "1;2", "-1", "1-99999", "01"])
def test_other_seeds_are_an_error(text: str) -> None:
    with pytest.raises(LocalError, match="--seeds must be whole numbers"):
        reproduce.seeds_of(text)


def test_the_help_names_every_experiment(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["reproduce", "--help"]) == 0
    told = capsys.readouterr().out
    assert [name for name in reproduce.RECIPES if f"carrypost reproduce {name}" not in told] == []


def test_an_unknown_experiment_is_told_with_the_known_ones(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert run(["reproduce", "joms"]) == 2
    assert (
        "'joms' cannot be reproduced; choose one of bus, ostermalm, emma, emma-island, overlay, balance, floodwatch"
        in capsys.readouterr().err
    )
    assert not list(tmp_path.iterdir())


def test_scenarios_are_found_in_the_package_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = tmp_path / "carrypost"
    shutil.copytree(reproduce.scenario_file("city_bus").parent, package / "shipped" / "scenarios")
    monkeypatch.setattr("importlib.resources.files", lambda _name: package)
    assert reproduce.scenario_file("city_bus") == package / "shipped" / "scenarios" / "city_bus.toml"
    with pytest.raises(LocalError, match="incomplete"):
        reproduce.scenario_file("nowhere")


def test_the_plan_tells_runs_lifetimes_and_time() -> None:
    told = reproduce.plan(reproduce.RECIPES["bus"], (1,), quick=False, cores=2)
    assert told.startswith("8 runs of city_bus (lifetimes endless, 120 min, 60 min, 40 min, 20 min, 10 min, ")
    assert told.endswith("; about 4 min on 2 processors")
    assert reproduce.plan(reproduce.RECIPES["ostermalm"], (1,), quick=False, cores=2).endswith(
        "; about 14 min on 2 processors"
    )
    assert reproduce.plan(reproduce.RECIPES["bus"], (1,), quick=True, cores=2).endswith(
        "; a minute or two on 2 processors"
    )
    assert "the first 30 min only" in reproduce.plan(reproduce.RECIPES["ostermalm"], (1, 2), quick=True, cores=1)


def _no_java(*_: object) -> Path:
    raise LabError("Spark needs Java, and was not found")


def test_without_java_nothing_is_left_behind(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("carrypost.lab.spark.java.java_home", _no_java)
    monkeypatch.chdir(tmp_path)
    assert run(["reproduce", "bus", "--quick"]) == 1
    assert "was not found" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_before_spark_starts_the_way_without_it_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fails(_: object) -> NoReturn:
        raise LabError("so it goes")

    monkeypatch.setattr("carrypost.lab.spark.java.java_home", lambda _: tmp_path)
    monkeypatch.setattr("carrypost.lab.engines.session", fails)
    monkeypatch.setattr("carrypost.lab.spark.session.SparkOptions.starts", True)
    assert run(["reproduce", "bus", "--quick", "--out", str(tmp_path / "out")]) == 1
    told = capsys.readouterr().err
    assert "starting Spark, which may take a minute; --engine local runs without it" in told
    assert told.index("--engine local") < told.index("so it goes")


def test_what_is_complete_needs_no_java(tmp_path: Path) -> None:
    lab_pages.like_paper(tmp_path, EXPERIMENTS["ostermalm"], seeds=(1, 2), limited=True)
    assert reproduce.is_complete(reproduce.RECIPES["ostermalm"], tmp_path, (1, 2), quick=False)
    assert not reproduce.is_complete(reproduce.RECIPES["ostermalm"], tmp_path, (1, 3), quick=False)
    assert not reproduce.is_complete(reproduce.RECIPES["ostermalm"], tmp_path / "nowhere", (1,), quick=False)
    shutil.rmtree(tmp_path / "metrics" / "hops")
    assert not reproduce.is_complete(reproduce.RECIPES["ostermalm"], tmp_path, (1, 2), quick=False)


def test_a_page_that_cannot_be_written_ends_it_before_it_begins(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "report.html").mkdir()
    assert run(["reproduce", "bus", "--quick", "--out", str(tmp_path)]) == 2
    assert "is a folder" in capsys.readouterr().err
    assert [each.name for each in tmp_path.iterdir()] == ["report.html"]


@pytest.mark.soak
def test_one_command_makes_the_page_and_goes_on_where_it_was(
    spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert spark.version
    short = dataclasses.replace(reproduce.RECIPES["bus"], quick_s=2_400)
    monkeypatch.setitem(reproduce.RECIPES, "bus", short)
    monkeypatch.chdir(tmp_path)
    assert run(["reproduce", "bus", "--quick", "--json"]) == 0
    told = capsys.readouterr()
    assert json.loads(told.out)["runs"] == 2
    assert "2 of 2 runs are to be done" in told.err
    page = tmp_path / "reproduce-bus-quick" / "report.html"
    text = page.read_text(encoding="utf-8")
    assert "This is a part of the experiment only: 40 min in place of 14 h 15 min" in text
    assert "carrypost reproduce bus --quick" in text
    assert text.count("<svg") == 14
    page.unlink()
    assert run(["reproduce", "bus", "--quick", "--json"]) == 0
    told = capsys.readouterr()
    assert "are to be done" not in told.err
    assert "lacks" not in told.err
    assert page.read_text(encoding="utf-8") == text
