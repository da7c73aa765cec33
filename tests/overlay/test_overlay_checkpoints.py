"""Checkpoints: when a seat sends its state to the consumer, and how much of it."""

from __future__ import annotations

import msgspec
import pytest
from tests.support.histories import HISTORY, Histories
from tests.support.relocating import Relocating

from carrypost.config import Limits, Settings
from carrypost.config.settings import Overlay
from carrypost.model.headers import RUNS_MAX
from carrypost.model.ids import NodeId
from carrypost.model.times import NEVER
from carrypost.overlay.lanes import Checkpoints, Leaving
from carrypost.overlay.modulators.modulator import Modulator
from carrypost.overlay.modulators.registry import Event, Result, modulator
from carrypost.overlay.processing import SeatRow
from carrypost.overlay.seats import Seats

SECOND = 1_000_000
_work = Seats.work
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


def test_results_without_room_are_not_in_the_checkpoint_that_follows(monkeypatch: pytest.MonkeyPatch) -> None:
    world = Relocating("Apy")
    with world.net as net:
        world.begin("pA yA")
        results = world.chain("y")
        net.advance(2)
        for _ in range(3):
            world.emit("p")
            net.advance(0.8)  # The next checkpoint is due while the results of the fourth event wait.
        seats = net.host("A").overlay._overlay.seats  # noqa: SLF001
        with monkeypatch.context() as full:
            full.setattr(Seats, "work", lambda found, now: _work(found, now)[:0])
            world.emit("p")
            net.advance(1)
            (seat,) = seats
            assert seat.leaving is not None, "its results found no room"
        net.advance(20)
        for _ in range(3):
            world.emit("p")
            net.advance(1)
        (seat,) = seats
        assert seat.row.cursors == {"p": 7}
        assert world.wrong(results) == []


@modulator("thrice")
class Thrice:
    """Make three results of each event, with its number among all events."""

    def __init__(self) -> None:
        self.count = 0

    def process(self, _: Event) -> list[Event | Result]:
        self.count += 1
        return [Result(b"%d.%d" % (self.count, part)) for part in range(3)]

    def save(self) -> bytes:
        return b"%d" % self.count

    def load(self, state: bytes) -> None:
        self.count = int(state)


@pytest.mark.parametrize("lost", [slice(0), slice(1), slice(2), slice(1, 3), slice(2, 3)])
def test_an_event_some_results_of_which_found_no_room_comes_before_all_others(
    lost: slice, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = Relocating("Apqy")
    with world.net as net:
        world.begin("pA qA yA")
        results = net.consume("y", "flood", Modulator.named("thrice"))
        world.since[results] = "y", net.now
        net.advance(2)
        for _ in range(3):
            world.emit("p")
            net.advance(0.8)
        with monkeypatch.context() as full:
            full.setattr(Seats, "work", lambda seats, now: _work(seats, now)[lost])
            world.emit("p")
            net.advance(1)
        net.advance(20)
        for node in "qpq":
            world.emit(node)
            net.advance(1)
        found = [each.payload.decode() for each in net.deliveries("y")]
        assert found == [f"{event}.{part}" for event in range(1, 8) for part in range(3)]


@modulator("parts")
class Parts(Thrice):
    """Make three results of each event of p, and `of_q` of those of q."""

    of_q = 3

    def process(self, event: Event) -> list[Event | Result]:
        assert isinstance(event.payload, bytes)
        return [
            Result(b"%s.%d" % (event.payload, part)) for part in range(3 if event.payload[:1] == b"p" else self.of_q)
        ]


@pytest.mark.parametrize("of_q", [1, 2, 3, 4])
@pytest.mark.parametrize("left", [slice(1), slice(1, 2), slice(1, 3)])
def test_results_that_left_before_a_crash_are_not_taken_for_those_of_another_event(
    left: slice, of_q: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Let some results of an event of p leave, and an older event of q come, before the broker crashes."""
    monkeypatch.setattr(Parts, "of_q", of_q)
    world = Relocating("Apqy")
    with world.net as net:
        world.begin("pA qA yA")
        results = net.consume("y", "flood", Modulator.named("parts"))
        world.since[results] = "y", net.now
        net.advance(5)
        for node in "pq":
            world.emit(node)
            net.advance(1)
        net.unlink("q", "A")
        net.advance(1)
        world.emit("q")
        net.advance(1)
        with monkeypatch.context() as full:
            full.setattr(Seats, "work", lambda seats, now: _work(seats, now)[left])
            world.emit("p")
            net.advance(1)
            net.link("q", "A")
            net.advance(1.5)
            net.kill("A")
            net.advance(0.2)
            net.restart("A")
        net.advance(20)
        world.emit("p")
        net.advance(5)
        found = [each.payload.decode() for each in net.deliveries("y")]
        parts = {"p": 3, "q": of_q}
        assert found == [
            f"{event}.{part}" for event in ("p1", "q2", "q3", "p4", "p5") for part in range(parts[event[0]])
        ]


def test_an_unfinished_event_that_is_gone_is_passed_over_though_the_next_result_has_to_report_runs_first() -> None:
    world = Relocating("Apqy")
    with world.net as net:
        world.begin("pA qA yA")
        results = net.consume("y", "flood", Modulator.named("parts"))
        world.since[results] = "y", net.now
        net.advance(5)
        world.emit("p")
        net.advance(5)
        (seat,) = net.host("A").overlay._overlay.seats  # noqa: SLF001
        (event,) = [each.descriptor for each in net.host("p")._holdings.known_copies() if each.own and each.whole][:1]  # noqa: SLF001
        seat.row = msgspec.structs.replace(seat.row, runs=[("q", 1, 1)] * (RUNS_MAX - 1))
        seat.leaving = Leaving(seat.row, {seat.row.number + 1}, event)
        assert seat.unfinished is event
        assert seat.pass_over(NodeId("p"), 2) == 0
        seat.look_ahead()
        assert (seat.row.cursors["p"], seat.next_us) == (1, 0), "a result with the runs comes first"
