"""Bounds of seats and lanes: strangers stop at them, and with every table full honest clients still work."""

from __future__ import annotations

import pytest
from tests.support.channels import OVERLAY, World

from carrypost.config import Limits
from carrypost.log.events import Event, Published
from carrypost.model.headers import RUNS_MAX, Covers, Headers
from carrypost.model.ids import NodeId
from carrypost.model.times import TIME_US_MAX
from carrypost.overlay.consumers import decode, encode
from carrypost.overlay.events import HomeRefused
from carrypost.overlay.items import CURSORS_MAX, ITEMS, Attach, Item, Replay, Role, Sent
from carrypost.overlay.lanes import LANES, Lane, Room
from carrypost.overlay.modulators.modulator import Modulator


def say(world: World, author: str, to: str, *said: Item) -> None:
    """Send items to a node."""
    net = world.net
    headers = Headers(control=ITEMS.encode(said))
    net.host(author).publish(f"overlay/{net.host(to).node}", b"", headers=headers, now=round(net.now * 1e6))
    net.advance(3)


def refused(world: World, node: str, reason: str) -> int:
    return world.net.host(node).overview().refused.get(reason, 0)


def lanes_of(world: World, node: str) -> int:
    """Return the producers that the first seat of a broker knows of."""
    (seat,) = world.net.host(node).overlay._overlay.seats  # noqa: SLF001
    return len(seat.lanes.keys() | seat.row.cursors.keys())


# --- lanes of invented producers ---------------------------------------------------------------------------


def test_producers_that_a_broker_invents_give_way_to_those_that_have_events() -> None:
    world = World("ABpqy", limits={"clients_max": 8})
    with world.net as net:
        world.begin("AB pA qA By", "y")
        world.emit("p")
        net.advance(3)
        for page in range(10):
            made_up = tuple((f"m{page}-{at}", 5) for at in range(CURSORS_MAX))
            say(world, "A", "B", Sent("flood", made_up))
            assert lanes_of(world, "B") <= 8
        for node in "pqpq":
            world.emit(node)
            net.advance(1)
        net.advance(10)
        assert world.faults() == []
        assert lanes_of(world, "B") <= 8
        assert world.lost == []


def test_producers_that_say_where_their_events_begin_fill_a_seat_and_no_more() -> None:
    world = World("ABpy" + "uvwst", limits={"clients_max": 4})
    with world.net as net:
        world.begin("AB pA By " + " ".join(f"{each}B" for each in "uvwst"), "y")
        world.emit("p")
        net.advance(3)
        (seat,) = world.net.host("B").overlay._overlay.seats  # noqa: SLF001
        since_us = seat.client.item.since_us
        for each in "uvwst":
            say(world, each, "B", Sent("flood", since_us=since_us, before=3))
        assert lanes_of(world, "B") == 4
        assert refused(world, "B", "lanes") == 2
        for _ in range(3):
            world.emit("p")
            net.advance(1)
        net.advance(5)
        assert world.faults() == []


@pytest.mark.parametrize("listed", [False, True])
def test_a_broker_that_invents_producers_does_not_make_others_ask_without_end(listed: bool) -> None:
    world = World("ABCpqy")
    asked: list[float] = []

    def watch(at: float, node: str, event: Event) -> None:
        if isinstance(event, Published) and node == "B":
            asked.extend(at for each in ITEMS.items_of(event.descriptor)[0] if isinstance(each, Replay))

    with world.net as net:
        world.begin("AB BC pA By" + (" qC" if listed else ""), "y")
        for node in "pqpq":
            world.emit(node)
            net.advance(3)
        net.watch(watch)
        for page in range(2):
            say(world, "C", "B", Sent("flood", tuple((f"m{page}-{at}", 5) for at in range(CURSORS_MAX))))
        net.advance(114)
        assert len(asked) <= (6 if listed else 0), "about one producer, until gap_s is over"
        assert not [at for at in asked if at > net.now - 30]
        assert lanes_of(world, "B") == 1 + listed
        for node in "pq":
            world.emit(node)
        world.settle(20)
        assert len(world.seen("results/y/1")["p"]) == 3
        assert world.lost == []


def test_a_report_that_is_faster_than_the_roster_of_its_author_waits_for_it() -> None:
    world = World("ABCpqy")
    with world.net as net:
        world.begin("AB BC pA By qC", "y")
        world.emit("p")
        net.advance(3)
        say(world, "C", "B", Sent("flood", (("q", 5),)))
        assert lanes_of(world, "B") == 1
        say(world, "q", "C", Attach(Role.PRODUCER, "flood"))
        assert lanes_of(world, "B") == 2


@pytest.mark.parametrize("restart", [False, True])
def test_a_producer_beyond_those_that_a_seat_knows_displaces_the_one_that_was_idle_longest(restart: bool) -> None:
    world = World("ABpqrsy", limits={"clients_max": 3})
    with world.net as net:
        world.begin("AB pA qA rB sB yB", "y")
        for node in "pqrpr":
            world.emit(node)
            net.advance(2)
        if restart:
            net.kill("B")
            net.restart("B")
            net.advance(10)
        for node in "ssqpqrs":
            world.emit(node)
            net.advance(4)
            assert lanes_of(world, "B") <= 3
        world.settle()
        assert world.faults() == []
        assert world.seen("results/y/1") == {"p": [1, 2, 3], "q": [1, 2, 3], "r": [1, 2, 3], "s": [1, 2, 3]}
        assert world.lost == []
        assert refused(world, "B", "lanes") == 0


# --- bytes and events in lanes -----------------------------------------------------------------------------


class _Copy:
    """The part of a copy that lanes use."""

    def __init__(self, name: int, length: int) -> None:
        self.id = name.to_bytes(8, "big")
        self.descriptor = self
        self.length = length


class _Legs:
    def __init__(self) -> None:
        self.held = 0

    def hold(self, _: object) -> None:
        self.held += 1

    def release(self, _: object) -> None:
        self.held -= 1


def room(**limits: int) -> tuple[Room, _Legs]:
    legs = _Legs()
    return Room(legs, Limits(**limits)), legs  # type: ignore[arg-type]


def keep(at: Room, lane: Lane, number: int, length: int, name: int | None = None) -> bool:
    return at.keep(lane, number, _Copy(number if name is None else name, length))  # type: ignore[arg-type]


@pytest.mark.parametrize("limits", [{"lane_events_max": 3}, {"lane_bytes_max": 300}])
def test_later_events_of_a_full_lane_give_way_to_earlier_ones(limits: dict[str, int]) -> None:
    at, legs = room(**limits)
    lane = Lane()
    assert [keep(at, lane, number, 100) for number in (9, 7, 8, 12, 6, 5)] == [True, True, True, False, True, True]
    assert sorted(lane.events) == [5, 6, 7]
    assert (lane.nbytes, at.bytes, legs.held) == (300, 300, 3)
    at.release_upto(lane, 6)
    at.remove(lane, 7)
    assert (lane.events, lane.nbytes, at.bytes) == ({}, 0, 0)


def test_a_lane_holds_one_event_of_any_size_and_what_waits_in_several_lanes_counts_once() -> None:
    at, _ = room(lane_bytes_max=10)
    lanes = [Lane() for _ in range(LANES + 2)]
    for lane in lanes:
        assert keep(at, lane, 1, 10)
    assert at.bytes == 10
    for number, lane in enumerate(lanes, 2):
        assert not keep(at, lane, number, 10), "the lane is full"
    others = [Lane() for _ in range(LANES + 2)]
    for number, lane in enumerate(others):
        assert keep(at, lane, 1, 1_000, 100 + number)
        assert not keep(at, lane, 2, 1, 200 + number), "all lanes together are"
    for lane in (*lanes, *others):
        at.clear(lane)
    assert at.bytes == 0


@pytest.mark.parametrize("limits", [{"lane_events_max": 2}, {"lane_bytes_max": 200}])
def test_no_event_is_lost_where_lanes_are_short(limits: dict[str, int]) -> None:
    world = World("ABpqy", limits=limits, loss=0.2, seed=3)
    with world.net as net:
        world.begin("AB pA qA By", "y")
        net.unlink("A", "B")
        for _ in range(8):
            for node in "pq":
                world.emit(node)
            net.advance(0.2)
        net.link("A", "B")
        world.settle()
        assert world.faults() == []
        assert world.lost == []


def test_a_seat_that_lacks_many_events_asks_for_more_as_soon_as_some_came() -> None:
    """Otherwise it would fall behind a producer that goes on emitting, and would never catch up."""
    world = World("ABCpy", limits={"replay_events_max": 8, "lane_events_max": 8})
    with world.net as net:
        world.begin("AB AC pA By", "y")
        net.link("C", "y")
        net.kill("B")
        for _ in range(80):
            world.emit("p")
            net.advance(0.05)
        while not net.deliveries("y"):
            net.advance(0.5)
        net.advance(6)
        assert world.faults() == []
        assert world.lost == []


def test_events_for_a_broker_that_crashed_leave_room_for_those_to_others() -> None:
    world = World("ABCpyz", limits={"share_queues": 0.004})
    with world.net as net:
        world.begin("AB AC pA By Cz", "yz")
        net.kill("B")
        net.advance(10)
        for _ in range(60):
            world.emit("p")
            net.advance(0.1)
        net.advance(5)
        assert world.seen("results/z/1") == {"p": list(range(1, 61))}
        assert refused(world, "A", "legs") == 0
        net.restart("B")
        world.settle()
        assert world.faults() == []
        assert world.lost == []


# --- seats -------------------------------------------------------------------------------------------------


def test_seats_of_strangers_give_way_and_the_program_hears_why_it_was_refused() -> None:
    world = World("ABpyzx", limits={"seats_max": 3, "seats_per_client_max": 2})
    told: list[tuple[str, str, str]] = []

    def watch(_: float, node: str, event: Event) -> None:
        if isinstance(event, HomeRefused):
            told.append((node, world.net.name(event.broker), event.reason))

    with world.net as net:
        net.watch(watch)
        world.begin("AB pA xA yA zA")
        for number in range(1, 6):
            say(world, "x", "A", Attach(Role.CONSUMER, "flood", number, epoch=1, since_us=1))
        assert refused(world, "A", "clients") == 3, "seats of one node"
        for node in "yz":
            world.consume(node)
            net.advance(3)
        assert [net.overlay(node).homes for node in "yz"] == [{"flood": "A"}] * 2
        assert len(net.overlay("A").seats) == 3
        for _ in range(3):
            world.emit("p")
            net.advance(1)
        net.consume("y", "flood", Modulator.named("unheard-of", version=1))
        net.consume("y", "flood")
        net.advance(3)
        assert world.faults() == []
        assert {("y", "A", "modulator"), ("y", "A", "seats")} <= set(told)


def test_a_client_that_loses_its_seat_is_told_and_finds_another_home() -> None:
    world = World("ABpqyz", limits={"seats_max": 2})
    told: list[tuple[str, str, str]] = []

    def watch(_: float, node: str, event: Event) -> None:
        if isinstance(event, HomeRefused):
            told.append((node, world.net.name(event.broker), event.reason))

    with world.net as net:
        net.watch(watch)
        world.begin("AB pA yA yB zA", "yy")
        assert len(net.overlay("A").seats) == 2
        world.consume("z")
        net.advance(20)
        assert told == [("y", "A", "seats")]
        assert {name: len(net.overlay(name).seats) for name in "AB"} == {"A": 2, "B": 1}
        for _ in range(3):
            world.emit("p")
            net.advance(1)
        net.advance(5)
        assert world.faults() == []


def test_brokers_out_of_reach_get_a_bounded_number_of_answers() -> None:
    world = World("ABmp")
    with world.net as net:
        world.begin("AB pA")
        world.emit("p")
        net.advance(5)
        asked = [Replay("flood", 0, number) for number in range(1, 41)]
        say(world, "B", "p", *asked)
        assert refused(world, "p", "overlay") == 0, "a broker in reach"
        net.unlink("A", "B")
        net.link("B", "m")
        net.advance(20)
        say(world, "B", "p", *asked)
        net.unlink("B", "m")
        net.advance(20)
        net.link("m", "p")
        net.advance(5)
        assert refused(world, "p", "overlay") == 8
        assert refused(world, "p", "replays") == 39 + 31


# --- sums of what homes report -----------------------------------------------------------------------------


def test_the_sums_of_what_a_home_reports_can_always_be_stored() -> None:
    world = World("Ay")
    with world.net as net:
        world.begin("Ay", "y")
        consumers = net.host("y").overlay._overlay.consumers  # noqa: SLF001
        (found,) = consumers._open.values()  # noqa: SLF001
        for page in range(20):
            producers = tuple(f"m{page}-{at}" for at in range(RUNS_MAX))
            runs = tuple((at, 0, TIME_US_MAX) for at in range(RUNS_MAX))
            covers = Covers(1, page + 1, producers, runs, TIME_US_MAX, faults=TIME_US_MAX, busy_us=TIME_US_MAX)
            assert consumers.coverage.count(found, covers, 1)
            consumers.coverage.lose(found, NodeId("p"), TIME_US_MAX)
        row = decode(encode(found.row))
        assert {row.events, row.faults, row.busy_us, row.discarded, row.lost} == {TIME_US_MAX}


# --- cursors that consumers forget -------------------------------------------------------------------------


def test_events_of_a_producer_that_a_consumer_forgot_do_not_come_again_from_another_home() -> None:
    world = World("ABpqrs")
    with world.net as net:
        net.add("y", overlay=OVERLAY | {"broker": False}, limits={"clients_max": 3})
        world.begin("AB pA qA rA sA pB qB rB sB yA yB", "y")
        for node in "pqrs":
            world.emit(node)
            net.advance(2)
        (found,) = net.host("y").overlay._overlay.consumers  # noqa: SLF001
        assert list(found.row.cursors) == [net.host(each).node for each in "qrs"]
        (home,) = net.overlay("y").homes.values()
        net.kill(home)
        net.advance(30)
        for node in "ps":
            world.emit(node)
            net.advance(5)
        net.advance(60)
        assert world.seen("results/y/1") == {"p": [1, 2], "q": [1], "r": [1], "s": [1, 2]}
