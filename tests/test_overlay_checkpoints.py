"""Checkpoints: when a seat sends its state to the consumer, and how much of it."""

from __future__ import annotations

from tests.histories import HISTORY, Histories

from carrypost.config import Limits, Settings
from carrypost.config.settings import Overlay
from carrypost.model.headers import RUNS_MAX
from carrypost.model.times import NEVER
from carrypost.overlay.lanes import Checkpoints
from carrypost.overlay.processing import SeatRow

SECOND = 1_000_000
SETTINGS = Settings(overlay=Overlay(checkpoint_s=5.0, checkpoint_share=0.1), limits=Limits(runs_max=200))


def begun() -> Checkpoints:
    checkpoints = Checkpoints(SETTINGS, 0)
    checkpoints.begin(10 * SECOND)
    return checkpoints


def test_a_seat_without_new_events_sends_none() -> None:
    assert begun().due_us(SeatRow(1, 1, {})) == NEVER


def test_a_small_state_is_sent_every_checkpoint_s() -> None:
    checkpoints = begun()
    checkpoints.processed("p", 1)
    assert checkpoints.due_us(SeatRow(1, 1, {"p": 1}, bytes(900))) == 15 * SECOND


def test_a_large_state_waits_until_it_is_a_small_part_of_the_results() -> None:
    checkpoints, row = begun(), SeatRow(1, 1, {}, bytes(5_000))
    checkpoints.processed("p", 1)
    checkpoints.sent(49_000)
    assert checkpoints.due_us(row) == NEVER
    checkpoints.sent(1_000)
    assert checkpoints.due_us(row) == 15 * SECOND


def test_a_state_is_sent_before_the_consumer_would_keep_too_many_runs() -> None:
    checkpoints, row = begun(), SeatRow(1, 1, {}, bytes(5_000))
    for number in range(1, 500):
        checkpoints.processed("p", number)  # One run.
    assert checkpoints.due_us(row) == NEVER
    for number in range(1, 1 + (200 - RUNS_MAX) // 2):
        checkpoints.processed("q", number)
        checkpoints.processed("p", 500 + number)
    assert checkpoints.due_us(row) == 0


def test_a_consumer_keeps_one_checkpoint_and_few_runs() -> None:
    world = Histories("Apqy", limits={"runs_max": RUNS_MAX + 10})
    with world.net as net:
        world.begin("pA qA yA", "y")
        (subscription,) = net.host("y").overlay._overlay.consumers  # noqa: SLF001
        runs = []
        for number in range(40):
            world.emit("pq"[number % 2])
            net.advance(0.2)
            runs.append(len(subscription.row.repeats))
        net.advance(5)
        assert world.wrong() == []
        assert 3 <= max(runs) <= 12
        assert subscription.row.modulator == HISTORY
