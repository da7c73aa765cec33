"""The search for faults with programs that use messaging: its draws, and that it finds planted faults."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from carrypost.emu.engine.driver import EmulatedDriver
from carrypost.emu.verify import programs
from carrypost.emu.verify import soak as search
from carrypost.emu.verify.programs import Account, Programs
from carrypost.emu.verify.random_scenarios import MESSAGING, draw, draw_ordered
from carrypost.emu.verify.soak import SeedOutcome, attempt, draw_messaging, main, soak
from carrypost.log.events import Done, Event, Handed
from carrypost.messaging.claim_and_claimant import Claim
from carrypost.messaging.claims import Claims
from carrypost.messaging.messaging import MessagingCommands
from carrypost.model.descriptor import Descriptor, PayloadCodec

SEEDS = (4, 5, 9, 12, 13, 16, 27)
"""Tried in every run of the tests; `carrypost emu soak --messaging --seeds 1000` tries more."""


@dataclass
class Search:
    """The findings of some seeds, and the events on the way."""

    outcomes: list[SeedOutcome]
    told: Counter[type] = field(default_factory=Counter)
    """Events by kind."""
    done: Counter[str] = field(default_factory=Counter)
    """Number of actions that programs did."""


@pytest.fixture(scope="module")
def searched() -> Search:
    found = Search([])
    take = Programs.handle_event

    def watched(self: Programs, driver: EmulatedDriver, event: Event) -> None:
        found.told[type(event)] += 1
        take(self, driver, event)

    def counted(action: Callable[..., None]) -> Callable[..., None]:
        def act(*given: object) -> None:
            found.done[action.__name__] += 1
            action(*given)

        return act

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(Programs, "handle_event", watched)
        patched.setattr(programs, "_ACTIONS", tuple(map(counted, programs._ACTIONS)))  # noqa: SLF001 - to count them
        found.outcomes = list(soak(SEEDS, family=MESSAGING))
    return found


def test_random_scenarios_with_messaging_break_no_rule(searched: Search) -> None:
    failed = [outcome for outcome in searched.outcomes if outcome.problems]
    assert not failed, "\n".join(f"{search.replay(each.seed, family=MESSAGING)}: {each.problems[0]}" for each in failed)


def test_programs_do_everything_that_there_is(searched: Search) -> None:
    assert set(searched.done) == {"acknowledge_all", "commit", "recover", "close", "reopen", "unsubscribe"}
    assert min(searched.told[kind] for kind in (Handed, Done)) > 0
    assert searched.told[Handed] > 1_000


@pytest.mark.parametrize(
    "seed", [44, 54, 66, pytest.param(100, marks=pytest.mark.soak), pytest.param(819, marks=pytest.mark.soak)]
)
def test_seeds_that_failed_once_pass(seed: int) -> None:
    assert attempt(seed, MESSAGING).problems == ()


@pytest.mark.soak
def test_many_random_scenarios_with_messaging_break_no_rule() -> None:
    failed = [outcome for outcome in soak(range(1, 3_001), jobs=2, family=MESSAGING) if outcome.problems]
    assert not failed, "\n".join(f"{search.replay(each.seed, family=MESSAGING)}: {each.problems[0]}" for each in failed)


def test_the_scenarios_are_those_of_the_other_searches_and_can_be_repeated(searched: Search) -> None:
    assert draw_messaging(5).files == draw(5).files
    assert draw_messaging(6).files == draw_ordered(6).files
    assert attempt(4, MESSAGING) in searched.outcomes


@pytest.mark.soak
def test_several_processes_find_the_same() -> None:
    assert list(soak(range(1, 6), jobs=2, family=MESSAGING)) == [attempt(seed, MESSAGING) for seed in range(1, 6)]


def test_the_emulator_itself_never_wakes_messaging(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise AssertionError("messaging is awake")

    monkeypatch.setattr(MessagingCommands, "open", refuse)
    assert all(not outcome.problems for outcome in soak(range(1, 4)))
    assert any("messaging is awake" in problem for problem in attempt(1, MESSAGING).problems)


def finds(problem: str, seeds: Iterable[int]) -> bool:
    """Return True if one of these seeds has the problem; later ones are not tried."""
    return any(problem in each for outcome in soak(seeds, family=MESSAGING) for each in outcome.problems)


def test_acknowledgements_that_are_not_kept_are_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Claims, "claimable", lambda *_: True)
    assert finds("was acknowledged before the subscription was made, and is delivered nevertheless", (2, *range(1, 20)))


@pytest.mark.soak
def test_claims_that_are_not_written_are_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Claims, "_write", lambda *_: None)
    assert finds("was delivered, is alive, and was not handed over", (42, *range(1, 40)))  # Few are such; this is one.


def test_counts_that_do_not_rise_are_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Claim, "count", property(lambda _: 1, lambda *_: None))
    assert finds("comes with count 1, as it did before", (4, *range(1, 20)))


def test_a_subscription_that_may_not_be_there_after_a_crash_is_owed_nothing() -> None:
    account = Account("t")
    one, other = (Descriptor("n1", 1, at, 0, None, "t", 0, 0, PayloadCodec.PLAIN, b"", 64) for at in (1, 2))
    account.start_anew()
    account.delivered(one)
    account.doubtful = False
    account.delivered(other)
    assert account.overdue(10) == ["n1:1:2 was delivered, is alive, and was not handed over"]


def broken(seed: int, family: str) -> SeedOutcome:  # noqa: ARG001 - as `attempt` is called
    """Pretend that every third seed failed."""
    return SeedOutcome(seed, 10, 5, ("n1 at 3 s: something (programs)",) if seed % 3 == 0 else ())


def test_a_failure_is_told_with_the_line_that_repeats_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(search, "attempt", broken)
    assert main(4, 1, out=tmp_path, family=MESSAGING) == 1
    said = capsys.readouterr().out
    assert "  again: carrypost emu soak --first 3 --seeds 1 --messaging\n" in said
    assert "emu run" not in said
    assert (tmp_path / "messaging-3" / "scenario.toml").exists()
