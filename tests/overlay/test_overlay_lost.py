"""Events that were gone before a seat first heard of their producer: the consumer learns how many it missed."""

from __future__ import annotations

import pytest
from tests.support.channels import World

from carrypost.gossip.acked.acked import Acked
from carrypost.model.headers import RUNS_MAX
from carrypost.model.ids import NodeId
from carrypost.overlay.producer import EventTime, before, thinned


def emit_short(world: World, events: int) -> None:
    """Let p emit events that live 5 s, one per second, and wait until they are gone."""
    for _ in range(events):
        world.net.emit("p", "flood", b"short", lifetime_s=5)
        world.net.advance(1)
    world.net.advance(20)


def begin(world: World) -> None:
    """Let p, which is away, emit two events before y subscribes, and three since."""
    world.begin("AB By")
    emit_short(world, 2)
    world.consume("y")
    world.net.advance(5)
    emit_short(world, 3)


@pytest.mark.parametrize("crash", [False, True])
def test_events_that_were_gone_before_their_producer_was_first_heard_of_are_told_as_lost(crash: bool) -> None:
    world = World("ABpy")
    with world.net as net:
        begin(world)
        if crash:
            net.kill("p")
            net.restart("p")
        net.link("p", "A")
        net.advance(10)
        world.emit("p")
        net.advance(30)
        assert world.seen("results/y/1") == {"p": [6]}
        assert world.lost == [("results/y/1", "p", 3)]


def test_events_that_were_gone_before_the_subscription_are_not_told_as_lost() -> None:
    world = World("ABpy")
    with world.net as net:
        world.begin("AB By")
        emit_short(world, 4)
        world.consume("y")
        net.link("p", "A")
        net.advance(10)
        world.emit("p")
        net.advance(30)
        assert world.seen("results/y/1") == {"p": [5]}
        assert world.lost == []


def test_a_seat_that_moves_still_tells_what_it_skipped() -> None:
    world = World("ABpy")
    with world.net as net:
        begin(world)
        net.link("p", "A")
        net.advance(60)
        assert world.lost == [], "no result has followed"
        net.unlink("B", "y")
        net.link("A", "y")
        net.advance(60)
        assert net.overlay("y").homes == {"flood": "A"}
        assert net.overlay("A").seats[0][2] == 2, "the seat was not begun anew"
        world.emit("p")
        net.advance(30)
        assert world.seen("results/y/1") == {"p": [6]}
        assert world.lost == [("results/y/1", "p", 3)]


def test_seats_of_many_channels_that_lose_their_home_get_all_events() -> None:
    """All of them ask the producer at the same time."""
    world = World("ABpy")
    channels = [f"flood-{number}" for number in range(8)]
    with world.net as net:
        world.begin("AB pA yA yB")
        for channel in channels:
            net.consume("y", channel)
        net.advance(5)
        for number in range(3):
            for channel in channels:
                net.emit("p", channel, f"{channel} {number}".encode())
            net.advance(1)
        net.kill("A")
        for number in range(3, 8):
            for channel in channels:
                net.emit("p", channel, f"{channel} {number}".encode())
            net.advance(1)
        net.link("p", "B")
        net.advance(15)
        for channel in channels:
            net.emit("p", channel, f"{channel} 8".encode())
        net.advance(90)
        assert world.lost == []
        assert len({each.payload for each in net.deliveries("y")}) == 9 * len(channels)


def test_events_whose_acknowledgements_were_lost_are_sent_again_to_a_broker_that_asks_for_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Their producer never hears that they arrived, so they seem to be on their way until they expire."""
    world = World("Brpxy")
    with world.net as net:
        world.begin("rB pr xB", "xy")
        monkeypatch.setattr(Acked, "_sign_private", lambda *_: {})
        monkeypatch.setattr(Acked, "repeat", lambda *_: None)
        for _ in range(3):
            world.emit("p")
        net.advance(20)
        assert world.seen("results/x/1") == {"p": [1, 2, 3]}
        net.link("y", "B")
        net.advance(10)
        world.emit("p")
        net.advance(90)
        assert world.seen("results/y/1") == {"p": [1, 2, 3, 4]}
        assert world.lost == []


def test_a_seat_skips_no_more_gaps_than_a_result_can_tell_of() -> None:
    world = World("ABy")
    with world.net as net:
        world.begin("AB By", "y")
        (seat,) = net.host("B").overlay._overlay.seats  # noqa: SLF001
        producers = [NodeId(f"n{each}") for each in range(RUNS_MAX)]
        seat.row.cursors.update(dict.fromkeys(producers, 3))
        row = seat.row
        for producer in producers:
            seat.pass_over(producer, 5)
        assert [seat.row.cursors[producer] for producer in producers] == [5] * (RUNS_MAX - 1) + [3]
        assert row.cursors == dict.fromkeys(producers, 3), "results that leave may share it"
        seat.next_us = 0
        net.advance(5)
        assert seat.row.runs == [], "a result told of them"
        seat.pass_over(producers[-1], 5)
        assert seat.row.runs == [(producers[-1], 3, 3)]


def test_marks_tell_the_last_event_before_a_time_or_an_earlier_one() -> None:
    marks: list[EventTime] = []
    for number in range(1, 3_001):
        marks = thinned([*marks, EventTime(number, 10 * number)])
    assert len(marks) < 64
    for first in (*range(1, 3_001, 7), *range(2_986, 3_002)):
        found = before(marks, 10 * first, 3_000)
        assert found <= first - 1 <= found + max((3_000 - first) // 2, 0)
        assert found == first - 1 or first < 2_985
    assert before(marks, 10, 2_990) == 0
    assert before(marks, 30_001, 2_990) == 2_990
    assert before([], 10, 7) == 7
