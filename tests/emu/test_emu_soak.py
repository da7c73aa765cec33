"""The search for rare faults: seeds draw the same scenarios, and failures are reported so that they can be repeated."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from carrypost.emu import runs
from carrypost.emu.inputs import read_inputs
from carrypost.emu.scenario import Scenario
from carrypost.emu.verify import soak as search
from carrypost.emu.verify.random_scenarios import draw
from carrypost.emu.verify.soak import SeedOutcome, attempt, main, soak

SEEDS = (1, 2, 4, 5, 6, 7, 9, 11, 16, 30)
"""Tried in every run of the tests; `carrypost emu soak --seeds 5000` tries more."""


@pytest.fixture(scope="module")
def searched() -> dict[int, SeedOutcome]:
    """Return the outcomes of these seeds."""
    return {outcome.seed: outcome for outcome in soak(SEEDS)}


def test_random_scenarios_with_faults_break_no_rule(searched: dict[int, SeedOutcome]) -> None:
    failed = [outcome for outcome in searched.values() if outcome.problems]
    assert not failed, "\n".join(f"{search.replay(each.seed)}: {each.problems[0]}" for each in failed)


@pytest.mark.soak
def test_many_random_scenarios_break_no_rule() -> None:
    failed = [outcome for outcome in soak(range(1, 5_001), jobs=2) if outcome.problems]
    assert not failed, "\n".join(f"{search.replay(each.seed)}: {each.problems[0]}" for each in failed)


def test_a_seed_draws_the_same_scenario_every_time() -> None:
    assert draw(5) == draw(5)
    assert draw(5).files != draw(6).files


def test_the_draws_can_be_read_and_have_everything_that_can_go_wrong(tmp_path: Path) -> None:
    scenarios = [Scenario.load(draw(seed).write(tmp_path / str(seed))) for seed in range(100)]
    for seed, scenario in enumerate(scenarios):
        read_inputs(scenario, seed)
    for table in ("faults", "radio"):
        usual = getattr(Scenario.parse("duration_s = 1"), table)
        for name in type(usual).__dataclass_fields__:
            # `routes` is drawn with recipients (`draws_addressed`).
            if name not in {"range_m", "merge_gap_s", "min_duration_s", "reorder_s", "routes", "link"}:
                assert any(getattr(getattr(each, table), name) != getattr(usual, name) for each in scenarios), name
    assert {event.kind for each in scenarios for event in each.faults.event} == {
        "away", "suspend", "crash", "crash-lost", "disk-full", "clock-step",
    }  # fmt: skip
    assert {each.run.mode for each in scenarios} == {"ideal", "faithful"}
    exact = [draw(seed).exact for seed in range(100)]
    assert 13 < sum(exact) < 40


@pytest.mark.soak
def test_several_processes_find_the_same(searched: dict[int, SeedOutcome]) -> None:
    seeds = SEEDS[-5:]  # More than one process takes at a time.
    assert list(soak(seeds, jobs=2)) == [searched[seed] for seed in seeds]


def broken(seed: int, family: str) -> SeedOutcome:  # noqa: ARG001 - as `attempt` is called
    """Pretend that every third seed failed."""
    return SeedOutcome(seed, 10, 5, ("row 3: something (some rule)",) if seed % 3 == 0 else ())


def test_a_failure_is_told_with_the_line_that_repeats_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(search, "attempt", broken)
    assert main(4, 1, out=tmp_path) == 1
    said = capsys.readouterr().out
    assert "seed 3 FAILED\n  row 3: something (some rule)\n  again: carrypost emu soak --first 3 --seeds 1\n" in said
    scenario = tmp_path / "soak-3" / "scenario.toml"
    assert f"carrypost emu run {scenario} --seed 3" in said
    assert said.endswith("4 seeds from 1, 40 rows, 20 receptions; failed: 3\n")
    assert scenario.read_text() == draw(3).files["scenario.toml"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["soak-3"]


def test_failures_come_as_lines_of_json(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(search, "attempt", broken)
    assert main(3, 1, json=True, out=tmp_path) == 1
    failure, figures = map(json.loads, capsys.readouterr().out.splitlines())
    assert failure["seed"] == 3
    assert failure["problems"] == ["row 3: something (some rule)"]
    assert figures == {"tried": 3, "failed": [3], "rows": 30, "received": 15}


def test_without_a_failure_nothing_is_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(2, 1, out=tmp_path) == 0
    assert "2 seeds from 1" in capsys.readouterr().out
    assert list(tmp_path.iterdir()) == []


def test_a_run_that_raises_is_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object, **__: object) -> None:
        raise RuntimeError("lost the thread")

    monkeypatch.setattr(search, "run", fail)
    outcome = attempt(1)
    assert outcome.problems[0] == "RuntimeError: lost the thread"
    assert "Traceback" in outcome.problems[1]


def test_missing_a_reception_that_a_flood_brings_is_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    seed = next(seed for seed in range(1, 100) if draw(seed).exact and attempt(seed).received)
    real = runs.run

    class Less:
        def __init__(self, *given: object, **more: object) -> None:
            table = real(*given, **more).table  # type: ignore[arg-type]
            kinds = table["kind"].to_pylist()
            last = max(row for row, kind in enumerate(kinds) if kind == "receive")
            self.table = table.take([row for row in range(len(kinds)) if row != last])

    monkeypatch.setattr(search, "run", Less)
    assert any("a flood would have delivered it" in problem for problem in attempt(seed).problems)


@pytest.mark.parametrize("seed", [2467, 4220])
def test_who_may_remember_few_ids_gets_a_message_again_after_it_was_dropped(seed: int) -> None:
    """Check two seeds in which one id can be remembered (`seen_max`), and which were once taken for violations."""
    assert attempt(seed).problems == ()
