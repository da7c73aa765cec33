"""Relocation among models: the paper's steps, taken literally, lose events on a bad network; the tables do not."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import product

import pytest
from tests.support import relocation_literal, relocation_model
from tests.support.relocation_model import BROKERS, Broker, Outcome
from tests.support.relocation_net import Weather

from carrypost.overlay.relocation import VARIANTS

BAD = Weather(loss=0.1, doubled=0.05, jitter_us=50_000)
WEATHER = [
    Weather(),
    Weather(jitter_us=50_000),
    BAD,
    Weather(loss=0.3, doubled=0.1, jitter_us=100_000),
    Weather(loss=0.1, doubled=0.05, jitter_us=50_000, crashes_per_s=0.5),
    Weather(loss=0.3, doubled=0.1, jitter_us=50_000, crashes_per_s=1.0),
]
OPEN = 2
"""Events at the very end without a result after them: at most two in a row give none."""


@pytest.mark.parametrize("seed", range(3))
def test_the_papers_steps_taken_literally_lose_events_unless_all_come_in_order(seed: int) -> None:
    calm, windy, stormy = (relocation_literal.play(seed, Weather(jitter_us=each), 20) for each in (0, 10_000, 50_000))
    assert calm.relocations > 10
    assert calm[1:] == (0, 0, 0, 0)
    assert windy.lost
    assert windy.wrong_state
    assert stormy.lost > windy.lost
    assert stormy.reordered > 100


def check(found: Outcome, what: object) -> None:
    assert found.sent - OPEN <= len(found.events) <= found.sent, what
    assert (found.lost, found.wrong_state, found.reordered) == (0, 0, 0), what


@pytest.mark.parametrize("weather", WEATHER, ids=str)
def test_no_event_is_lost_repeated_or_reordered_and_the_state_is_right(weather: Weather) -> None:
    for seed in range(4):
        found = relocation_model.play(seed, weather, 15)
        check(found, (weather, seed))
        assert found.relocations or weather.loss > 0.2


def faults_of_crashes(seeds: range) -> Iterator[tuple[int, str, int]]:
    """Crash every broker after every action. Yields runs that went wrong: seed, broker, number of the action."""
    for run in product(seeds, BROKERS, range(1, 13)):
        try:
            check(relocation_model.play(run[0], BAD, 4, crash=run[1:]), run)
        except AssertionError:
            yield run


def test_a_broker_may_crash_after_every_action() -> None:
    assert list(faults_of_crashes(range(2))) == []


@pytest.mark.parametrize("variant", VARIANTS)
def test_lighter_variants_give_up_only_what_they_say(variant: str) -> None:
    detours, relocations, lost = VARIANTS[variant].detours, 0, 0
    for seed in range(4):
        found = relocation_model.play(seed, Weather(jitter_us=50_000), 15, variant=variant)
        relocations += found.relocations
        assert found.reordered == 0
        assert len(set(found.events)) == len(found.events)
        assert found.sent - OPEN <= len(found.events) + found.lost <= found.sent  # What is missing is told.
        if VARIANTS[variant].state:
            assert found.wrong_state == 0
        lost += found.lost
    assert relocations > 20
    assert bool(lost) is not detours


# --- rules, each of which is needed ------------------------------------------------------------------------


def works_again_after_a_restart(self: Broker, restart: Callable[[Broker], None]) -> None:
    for _, seat in self.copies.values():
        self.seat = self.seat or seat
    self.copies.clear()
    restart(self)


def test_a_source_that_worked_again_after_a_restart_would_do_harm(monkeypatch: pytest.MonkeyPatch) -> None:
    restart = Broker.restart
    monkeypatch.setattr(Broker, "restart", lambda self: works_again_after_a_restart(self, restart))
    assert any(faults_of_crashes(range(5)))


def test_a_seat_that_moved_on_unconfirmed_would_do_harm(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Broker, "confirmed_here", property(lambda _: True))
    assert any(faults_of_crashes(range(5)))


@pytest.mark.soak
def test_many_crashes_do_no_harm() -> None:
    assert list(faults_of_crashes(range(2, 60))) == []


@pytest.mark.soak
@pytest.mark.parametrize("weather", WEATHER, ids=str)
def test_much_bad_weather_does_no_harm(weather: Weather) -> None:
    for seed in range(4, 100):
        check(relocation_model.play(seed, weather, 15), (weather, seed))
