"""The search for faults of order: its draws, and that it finds planted faults."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import pytest

from carrypost.emu.inputs import read_inputs
from carrypost.emu.scenario import Scenario
from carrypost.emu.verify import soak as search
from carrypost.emu.verify.random_scenarios import ORDER, draw_ordered
from carrypost.emu.verify.soak import SeedOutcome, attempt, main, soak
from carrypost.order.causal import Group

SEEDS = (1, 3, 4, 7, 8, 9, 12, 40)
"""Tried in every run of the tests; `carrypost emu soak --order --seeds 1000` tries more."""
DAY_S = 86_400


def test_random_scenarios_of_ordered_topics_break_no_rule() -> None:
    failed = [outcome for outcome in soak(SEEDS, family=ORDER) if outcome.problems]
    assert not failed, "\n".join(f"{search.replay(each.seed, family=ORDER)}: {each.problems[0]}" for each in failed)


@pytest.mark.parametrize("seed", [270, 350, 417, 653, 846, 1_108, 1_237, 1_419, 12_105])
def test_seeds_that_failed_once_pass(seed: int) -> None:
    assert attempt(seed, ORDER).problems == ()


@pytest.mark.soak
def test_many_random_scenarios_of_ordered_topics_break_no_rule() -> None:
    failed = [outcome for outcome in soak(range(1, 3_001), jobs=2, family=ORDER) if outcome.problems]
    assert not failed, "\n".join(f"{search.replay(each.seed, family=ORDER)}: {each.problems[0]}" for each in failed)


def test_a_seed_draws_the_same_scenario_every_time() -> None:
    assert draw_ordered(5) == draw_ordered(5)
    assert draw_ordered(5).files != draw_ordered(6).files


@pytest.mark.soak
def test_the_draws_can_be_read_and_have_everything_that_can_go_wrong(tmp_path: Path) -> None:
    scenarios: list[Scenario] = []
    lifetimes: set[float | None] = set()
    drawn = [draw_ordered(seed) for seed in range(200)]
    for seed, each in enumerate(drawn):
        scenarios.append(scenario := Scenario.load(each.write(tmp_path / str(seed))))
        for script in read_inputs(scenario, seed).scripts.values():
            lifetimes |= {None if said.lifetime_us is None else said.lifetime_us / 1e6 for said in script}
    for table in ("faults", "radio"):
        usual = getattr(Scenario.parse("duration_s = 1"), table)
        for name in type(usual).__dataclass_fields__:
            if name not in {"range_m", "merge_gap_s", "min_duration_s", "airtime", "routes", "link"}:
                assert any(getattr(getattr(each, table), name) != getattr(usual, name) for each in scenarios), name
    assert {event.kind for each in scenarios for event in each.faults.event} == {
        "away", "suspend", "crash", "crash-lost", "disk-full", "clock-step",
    }  # fmt: skip
    assert {each.workloads[0].ordering for each in scenarios} == {"causal", "delta-causal"}
    assert {each.run.mode for each in scenarios} == {"ideal", "faithful"}
    assert max(each.faults.clock_skew_s for each in scenarios) == 300
    assert {each.settings.cache_messages_max for each in scenarios} >= {2, 5, 20}
    assert {each.settings.limits.pending_max for each in scenarios} >= {1, 3, 10}
    some = {each for each in lifetimes if each is not None}
    assert None in lifetimes
    assert 10 <= min(some) < 20
    assert DAY_S / 2 < max(some) <= DAY_S
    assert 12 < sum(each.exact for each in drawn) < 50


def broken(seed: int, family: str) -> SeedOutcome:  # noqa: ARG001 - as `attempt` is called
    """Pretend that every third seed failed."""
    return SeedOutcome(seed, 10, 5, ("row 3: something (some rule)",) if seed % 3 == 0 else ())


def test_a_failure_is_told_with_the_line_that_repeats_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(search, "attempt", broken)
    assert main(3, 1, out=tmp_path, family=ORDER) == 1
    said = capsys.readouterr().out
    assert "  again: carrypost emu soak --first 3 --seeds 1 --order\n" in said
    scenario = tmp_path / "order-3" / "scenario.toml"
    assert scenario.read_text() == draw_ordered(3).files["scenario.toml"]
    assert 'name = "order-3"' in scenario.read_text()


def rules(seeds: Iterable[int]) -> set[str]:
    """Return the rules that the runs of these seeds break."""
    problems = [problem for outcome in soak(seeds, family=ORDER) for problem in outcome.problems]
    return {problem.rpartition("(")[2].rstrip(")") for problem in problems}


def test_messages_without_their_barriers_are_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Group, "barrier", lambda *_, **__: ())
    assert "causal order" in rules((3,))  # There messages overtake those that they follow.


def test_messages_that_wait_for_the_dead_are_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Group, "due_us", 1 << 62)
    # Few of the drawn scenarios have a message whose predecessor dies; these do.
    assert "nothing waits in vain" in rules((129, 319))


@pytest.mark.soak
def test_several_processes_find_the_same() -> None:
    assert list(soak(range(1, 6), jobs=2, family=ORDER)) == [attempt(seed, ORDER) for seed in range(1, 6)]
