"""Loads of brokers: what is counted, what other brokers learn, work that takes time, and clients that leave."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest
from tests.support.channels import OVERLAY, World

from carrypost.config import Limits, Settings
from carrypost.config.settings import Overlay
from carrypost.log.events import Event
from carrypost.model.ids import NodeId
from carrypost.model.times import MICROSECONDS, NEVER
from carrypost.overlay import events
from carrypost.overlay.items import Attach, Handoff, Role
from carrypost.overlay.lanes import Flow, name_of
from carrypost.overlay.load import PERCENT_MAX, Load
from carrypost.overlay.modulators.modulator import Modulator
from carrypost.overlay.placement import HomeBrokerAdaptor, LoadChanged, NearestBroker, Notice
from carrypost.overlay.processing import ComputeBudget
from carrypost.overlay.relocation import HandoffId
from carrypost.overlay.tables import Client
from carrypost.testing import Network, network

S = MICROSECONDS
X, Y = b"x", b"y"
H = HandoffId(NodeId("A"), 1, 1)


def load(**settings: float) -> Load:
    found = Load(Overlay(**settings))  # type: ignore[arg-type]
    for name in (X, Y):
        found.add(name, 0)
    return found


def test_load_is_the_work_that_arrived_in_the_window_by_what_can_be_done() -> None:
    found = load(load_window_s=5, capacity=0.5)
    for second in range(20):
        found.arrived(X, 100_000, second * S)
        found.arrived(Y, 50_000, second * S + 1)
        found.expire((second + 1) * S)
        if second >= 4:  # The window is full.
            assert found.measured == pytest.approx((0.1 + 0.05) / 0.5)
            assert [found.share(name) for name in (X, Y)] == pytest.approx([0.2, 0.1])
    assert found.work(X) == 100  # Thousandths of a processor.
    # More than it can do is seen as such.
    for _ in range(100):
        found.arrived(X, 100_000, 20 * S)
    found.expire(21 * S)
    assert found.measured > 4
    assert found.percent() == PERCENT_MAX


def test_a_window_without_work_costs_nothing() -> None:
    found = load()
    assert found.due_us == NEVER
    found.arrived(X, 0, S)
    assert found.due_us == NEVER, "passing on events is no work of modulators"
    found.arrived(X, 10, S)
    for _ in range(20):
        if found.due_us != NEVER:
            found.expire(found.due_us)
    assert (found.due_us, found.measured, found._slots) == (NEVER, 0, {})  # noqa: SLF001


def test_loads_are_predicted() -> None:
    found = load(capacity=1)
    for second in range(6):
        for name in (X, Y):
            found.arrived(name, 300_000, second * S)
    found.expire(6 * S)
    assert found.predicted == found.measured == pytest.approx(0.6)
    # One that leaves counts no more, though its work is in the window; one that stays after all does.
    found.leave(X)
    assert [found.predicted, found.measured] == pytest.approx([0.3, 0.6])
    found.leave(X, stays=True)
    assert found.predicted == pytest.approx(0.6)
    found.remove(Y)
    assert [found.predicted, found.measured] == pytest.approx([0.3, 0.6])
    # One that comes counts before its events do, for a window.
    found.add(Y, 6 * S)
    found.expect(Y, 400, 6 * S)
    assert [found.predicted, found.percent(), found.work(Y)] == pytest.approx([0.7, 70, 400])
    found.expire(11 * S)
    assert found.share(Y) == pytest.approx(0.4)
    found.expire(12 * S)
    assert found.share(Y) == 0
    # What another broker says has a bound.
    found.expect(Y, 10**15, 12 * S)
    assert found.share(Y) == 1


def test_a_seat_whose_producers_are_out_of_reach_counts_as_before() -> None:
    found = load(capacity=1)
    for second in range(6):
        found.arrived(X, 300_000, second * S)
        found.arrived(Y, 100_000, second * S)
    found.expire(6 * S)
    for second in range(7, 30):
        found.expire(second * S, {X})
    assert [found.share(X), found.share(Y), found.measured] == pytest.approx([0.3, 0, 0])
    assert found.due_us == 30 * S, "producers may come back without an event"
    found.expire(34 * S)
    assert found.share(X) == pytest.approx(0.3), "their events need time to come"
    found.expire(35 * S)
    assert (found.share(X), found.due_us) == (0, NEVER)


def test_a_seat_is_refused_that_is_too_much_unless_its_broker_has_more() -> None:
    found = load(capacity=1)
    found.expect(X, 700, 0)
    offers = [(100, 0), (200, 0), (201, 0), (201, 90), (201, 91), (300, 100), (300, 101)]
    assert [found.refuses(Handoff(H, *each)) for each in offers] == [False, False, True, True, False, True, False]


def test_a_processor_of_another_speed_has_other_shares() -> None:
    slow, fast = load(speed=0.5, capacity=1), load(speed=2, capacity=1)
    for each in (slow, fast):
        each.expect(X, 400, 0)
    assert (slow.share(X), fast.share(X)) == (0.8, 0.2)
    assert (slow.work(X), fast.work(X)) == (400, 400)


def test_a_seat_that_is_not_here_came_at_no_time() -> None:
    found = load()
    assert (found.since_us(X), found.since_us(b"other")) == (0, NEVER)


def test_adaptors_are_told_of_changes_and_as_long_as_it_is_too_much() -> None:
    found = load(capacity=1, load_max=0.5)
    told = []
    for second in range(12):
        found.arrived(X, 520_000 if second < 7 else 0, second * S)
        told.append(found.expire((second + 1) * S))
    assert told == [True] * 5 + [True] * 3 + [True] * 4  # It rises, is above 0.5, and falls.
    assert not found.expire(13 * S)
    steady = load(capacity=1)
    for second in range(20):
        steady.arrived(X, 100_000, second * S)
    assert [steady.expire(at * S) for at in (20, 21)] == [True, False]


def test_booked_work_takes_its_time_within_the_capacity() -> None:
    found = load(capacity=0.5)
    assert found.book(0, 5) == 5
    assert [found.book(1_000, at) for at in (0, 0, 3_000, 10_000)] == [1_000, 3_000, 5_000, 11_000]
    two = load(capacity=2)
    assert [two.book(1_000, 0) for _ in range(3)] == [1_000, 1_500, 2_000]


def test_a_step_begins_no_event_after_20_ms() -> None:
    clock = iter(range(0, 10**6, 15_000))
    pace = ComputeBudget(Settings().limits, 0.5, lambda: next(clock))
    over = []
    for _ in range(3):
        over.append(pace.is_over)
        with pace.charged(None, None, 0):
            pass
    assert (over, pace.own_us) == ([False, False, True], 45_000)
    assert pace.due_us(NodeId("x")) < 0, "nobody is charged for modulators of the broker's own"


def test_clients_are_served_by_the_time_that_they_used() -> None:
    clock = Clock()
    budget = ComputeBudget(Settings().limits, 0.5, lambda: clock.now_us)
    a, b, c = map(NodeId, "abc")
    for client, took_us in ((a, 100), (b, 200)):
        with budget.charged(client, None, 0):
            clock.now_us += took_us
    assert sorted([c, b, a], key=budget.rank) == [c, a, b]
    budget.made(a, 1)
    budget.made(c, 3)
    clock.now_us += 400
    budget.published()
    assert [budget.rank(each)[0] for each in (a, b, c)] == [200, 200, 300], "publication counts, by the results"
    assert budget.rank(c)[1] < budget.rank(a)[1] < budget.rank(b)[1], "but it is no debt"
    budget.raise_least(250)  # The least that any client with events has used.
    assert [budget.rank(each)[0] for each in (a, b, c)] == [250, 250, 300], "nobody saves up time"


def test_the_time_of_clients_is_kept_for_as_many_as_there_may_be() -> None:
    budget = ComputeBudget(Limits(clients_max=4), 0.5)
    for number in range(100):
        budget.charge(NodeId(str(number)), 1_000, number * 10**6)
        assert len(budget._used_us) <= 4  # noqa: SLF001 - it shows in nothing else


class Clock:
    """A meter that the test sets."""

    now_us = 0


class Watcher:
    """An adaptor that keeps loads."""

    def __init__(self) -> None:
        self.loads: list[float] = []

    def subscribe(self) -> list[type[Notice]]:
        return [LoadChanged]

    def process(self, notice: Notice) -> None:
        assert isinstance(notice, LoadChanged)
        self.loads.append(notice.load)


@contextmanager
def scene(**overlay: object) -> Iterator[Network]:
    """Yield A and B, which are linked; a producer and four consumers near A."""
    with network(seed=1, island=True, island_s_min=0.2, announce_s_max=2.0) as net:
        for name in "ABpwxyz":
            net.add(name, overlay=OVERLAY | {"broker": name.isupper(), **overlay})
        for pair in ("AB", "Ap", "Aw", "Ax", "Ay", "Az"):
            net.link(*pair)
        net.advance(20)
        yield net


def emit(net: Network, seconds: int, homes: list[tuple[str, str]] | None = None) -> None:
    def watch(_: float, node: str, event: Event) -> None:
        if homes is not None and isinstance(event, events.Homed):
            homes.append((node, event.reason))

    net.watch(watch)
    for _ in range(seconds):
        net.emit("p", "flood", f"{net.now:.0f}".encode())
        net.advance(1)


def test_clients_leave_a_broker_with_too_much_work_though_they_report_nothing() -> None:
    with scene(capacity=1.0) as net:
        watcher = Watcher()
        net.host("A").overlay.add(watcher)
        # Each is 0.3 of what A can do, and nearer to A than to B.
        for node in "wxyz":
            net.consume(node, "flood", Modulator.named("synthetic", cost_us=300_000))
        homes: list[tuple[str, str]] = []
        emit(net, 40, homes)
        assert watcher.loads[-1] == net.overlay("A").load == 0.9
        assert [net.overlay(name).clients - (name == "A") for name in "AB"] == [3, 1]  # A has the producer, too.
        assert [each for each in homes if each[1] != "first"] == [(homes[-1][0], "load")]
        assert 0.9 < max(watcher.loads) < 1.2, "one left before all work was seen"
        net.advance(10)
        assert net.overlay("A").clients == 5, "it comes back when there is no work"
        for node in "wxyz":
            assert [each.payload for each in net.deliveries(node)] == [f"{25 - 5 + at}".encode() for at in range(40)]


def test_clients_stay_where_they_are_if_homes_are_static_or_no_load_is_too_much() -> None:
    for settings in ({"homing": "static"}, {"load_max": 100.0}):
        with scene(capacity=1.0, **settings) as net:
            for node in "wxyz":
                net.consume(node, "flood", Modulator.named("synthetic", cost_us=300_000))
            emit(net, 10)
            assert net.overlay("A").clients == 5


def test_a_nearer_broker_with_too_much_work_is_no_home() -> None:
    with scene(capacity=1.0) as net:
        net.add("v", overlay=OVERLAY)
        net.link("v", "B")
        for node in "xyzv":
            net.consume(node, "flood", Modulator.named("synthetic", cost_us=300_000))
        emit(net, 15)
        assert net.overlay("v").homes == {"flood": "B"}
        net.link("v", "A")
        net.unlink("v", "B")
        emit(net, 15)
        assert net.overlay("v").homes == {"flood": "B"}, "with it A would have 1.2"
        net.host("x").overlay.close("results/x/1", round(net.now * S))
        emit(net, 30)
        assert net.overlay("v").homes == {"flood": "A"}


def test_the_next_nearest_broker_is_the_home_at_once_if_the_nearest_one_has_too_much_work() -> None:
    with scene(capacity=1.0) as net:
        net.add("C", overlay=OVERLAY | {"broker": True, "capacity": 1.0})
        net.add("v", overlay=OVERLAY)
        net.unlink("A", "B")
        for pair in ("AC", "CB", "Bv"):
            net.link(*pair)
        for node in "xyzv":
            net.consume(node, "flood", Modulator.named("synthetic", cost_us=300_000))
        emit(net, 15)
        net.link("v", "A")
        net.unlink("v", "B")
        emit(net, 8)
        assert net.overlay("v").homes == {"flood": "C"}, "with it A would have 1.2"


def test_work_takes_its_declared_time_in_emulation() -> None:
    """Check that results leave one after the other when their work is done; a faster processor takes less time."""
    for speed, expected in ((1.0, 0.1), (2.0, 0.05)):
        with scene(capacity=1.0, speed=speed) as net:
            for node in "xy":
                net.consume(node, "flood", Modulator.named("synthetic", cost_us=100_000))
            net.advance(5)
            net.emit("p", "flood", b"1")
            begin = net.now
            net.advance(2)
            times = sorted(net.deliveries(node)[0].time - begin for node in "xy")
            assert times == pytest.approx([expected, 2 * expected], abs=0.02)
            assert net.host("A").overlay.view().busy_us == 2 * expected * S


def test_events_of_other_producers_do_not_put_back_the_one_at_work() -> None:
    world = World("Apqx")
    with world.net as net:
        world.begin("Ap Aq Ax")
        net.consume("x", "flood", Modulator.named("synthetic", cost_us=200_000))
        net.advance(5)
        for node in "pq":
            world.emit(node)
            net.advance(0.1)
        net.advance(3)
        assert [each.payload[:1] for each in net.deliveries("x")] == [b"p", b"q"]


def test_reports_of_more_consumers_than_there_may_be_seats_push_out_the_oldest() -> None:
    overlay, limits = Overlay(enabled=True), SimpleNamespace(seats_max=2)
    context = SimpleNamespace(settings=SimpleNamespace(overlay=overlay), limits=limits)
    clients = [Client(NodeId(f"y{at}"), Attach(Role.CONSUMER, "flood", 1), (1, 1), 0) for at in range(20)]
    seats = [SimpleNamespace(client=each, name=name_of(each), flow=Flow()) for each in clients]
    parts: list[Any] = [context, SimpleNamespace(hops=lambda _: None), load(), seats, None]
    adaptor = HomeBrokerAdaptor(*parts)
    for at, client in enumerate(clients):
        adaptor.process(NearestBroker((client.node, "flood", 1), ((NodeId("b"), 1),), at))
    assert list(adaptor._reports) == [name_of(each) for each in clients[-2:]]  # noqa: SLF001 - it shows in nothing else
