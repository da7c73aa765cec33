"""Nodes whose clocks are wrong: they use their clocks, while the world and its record use true time."""

from __future__ import annotations

import pytest
from tests.support import timers

from carrypost.config import Settings
from carrypost.emu.engine.applications import InboxApplication
from carrypost.emu.engine.driver import EmulatedClock, EmulatedDriver, Environment
from carrypost.emu.engine.radio import Radio
from carrypost.emu.engine.recorder import Recorder
from carrypost.emu.engine.scheduler import Scheduler
from carrypost.log.events import Event, NeighbourDown, NeighbourUp, Refused
from carrypost.log.journal import SEEN
from carrypost.log.record import Record

SECOND = 1_000_000


class Watching(InboxApplication):
    """An application that notes the events of its node, at the true time."""

    def __init__(self) -> None:
        super().__init__()
        self.told: list[tuple[int, Event]] = []

    def handle_event(self, driver: EmulatedDriver, event: Event) -> None:
        self.told.append((driver.t_us, event))
        super().handle_event(driver, event)


class Wrong:
    """Two nodes in reach of each other, with clocks of their own; `b` wants the news."""

    def __init__(self, *clocks: EmulatedClock, met_s: float = 0.0, **settings: object) -> None:
        """Let the nodes meet after `met_s`: before its clock shows 0, a node does nothing by itself."""
        self.scheduler = Scheduler()
        self.radio = Radio(self.scheduler, 1)
        self.inboxes = {name: Watching() for name in "ab"}
        self.drivers: dict[str, EmulatedDriver] = {}
        world = Environment(self.scheduler, self.radio, 1)
        for name, clock in zip("ab", clocks, strict=True):
            self.drivers[name] = EmulatedDriver(
                name, Settings.emulated(**settings), world, self.inboxes[name], clock=clock
            )
            self.drivers[name].boot()
        self.inboxes["b"].subscribe(self.drivers["b"], "news")
        self.drivers["b"].drain()
        self.run(met_s)
        self.radio.link("a", "b")

    def run(self, seconds: float) -> None:
        with timers.checked():
            self.scheduler.run_until(self.scheduler.now + round(seconds * SECOND))

    def publish(self, lifetime_s: float | None = None) -> None:
        driver = self.drivers["a"]
        lifetime_us = None if lifetime_s is None else round(lifetime_s * SECOND)
        driver.host.publish("news", b"hello", now=driver.now, lifetime_us=lifetime_us)
        driver.drain()

    def told(self, kind: type[Event], node: str = "b") -> list[int]:
        return [t_us for t_us, event in self.inboxes[node].told if isinstance(event, kind)]


def test_a_node_tells_the_time_by_its_own_clock_and_the_world_does_not() -> None:
    world = Wrong(EmulatedClock(5 * SECOND), EmulatedClock(drift_ppm=1_000))
    world.run(100)
    ahead, fast = world.drivers["a"], world.drivers["b"]
    assert (ahead.t_us, ahead.now) == (100 * SECOND, 105 * SECOND)
    assert (fast.t_us, fast.now) == (100 * SECOND, 100_100_000)


@pytest.mark.parametrize(
    "clock", [EmulatedClock(60 * SECOND), EmulatedClock(-30 * SECOND), EmulatedClock(drift_ppm=50_000)]
)
def test_nodes_with_wrong_clocks_find_each_other_and_exchange(clock: EmulatedClock) -> None:
    world = Wrong(clock, EmulatedClock(), met_s=30)
    world.run(60)
    world.publish()
    world.run(60)
    assert len(world.inboxes["b"].deliveries) == 1
    assert len(world.told(NeighbourUp)) == 1
    assert world.told(NeighbourDown) == []


def test_timers_come_when_the_wrong_clock_shows_their_time() -> None:
    """Check that a beacon every ten seconds of a clock that is twice as fast comes every five seconds."""
    fixed = {"announce_s_min": 10, "announce_s_max": 10}
    counts = []
    for clock in (EmulatedClock(), EmulatedClock(drift_ppm=1_000_000)):
        world = Wrong(clock, EmulatedClock(), **fixed)
        world.run(600)
        counts.append(world.radio.sent("a").frames["Announce"])
    assert counts[1] == pytest.approx(2 * counts[0], rel=0.1)


def test_a_message_lives_by_the_clock_of_whoever_has_it() -> None:
    """Check `a`, which is an hour behind: its message with a lifetime of a minute has expired on arrival at `b`."""
    world = Wrong(EmulatedClock(), EmulatedClock(3_600 * SECOND), skew_s_max=0)
    world.run(30)
    world.publish(lifetime_s=60)
    world.run(30)
    assert world.inboxes["b"].deliveries == []
    refused = [event for _, event in world.inboxes["b"].told if isinstance(event, Refused)]
    assert {event.reason for event in refused} == {"expired"}


@pytest.mark.parametrize("delta_s", [0.5, 60, 86_400])
def test_a_clock_that_is_set_forward_ends_no_contact(delta_s: float) -> None:
    world = Wrong(EmulatedClock(), EmulatedClock())
    world.run(60)
    world.drivers["b"].step_clock(round(delta_s * SECOND))
    assert world.drivers["b"].now == 60 * SECOND + round(delta_s * SECOND)
    world.publish()
    world.run(30)
    assert world.told(NeighbourDown) == []
    assert len(world.inboxes["b"].deliveries) == 1


@pytest.mark.parametrize("delta_s", [0.5, 5, 40])
def test_a_node_whose_clock_is_set_back_goes_on_and_its_dates_follow_at_once(delta_s: float) -> None:
    world = Wrong(EmulatedClock(), EmulatedClock())
    world.run(60)
    driver, back_us = world.drivers["b"], round(delta_s * SECOND)
    driver.step_clock(-back_us)
    assert (driver.now, driver.date) == (60 * SECOND, 60 * SECOND - back_us)
    world.run(30)
    assert (driver.now, driver.date) == (90 * SECOND, 90 * SECOND - back_us)
    world.publish()
    world.run(30)
    assert len(world.inboxes["b"].deliveries) == 1
    assert world.told(NeighbourDown) == []


HOUR = 3_600


@pytest.mark.parametrize("ahead_s", [HOUR, 25 * HOUR])
@pytest.mark.parametrize("node", ["a", "b"])
def test_a_clock_that_was_ahead_for_a_moment_makes_no_node_mute_or_deaf(node: str, ahead_s: int) -> None:
    world = Wrong(EmulatedClock(), EmulatedClock())
    world.run(60)
    world.drivers[node].step_clock(ahead_s * SECOND)
    world.run(10)
    world.drivers[node].step_clock(-ahead_s * SECOND)
    for _ in range(3):
        world.publish(lifetime_s=60)
        world.run(5)
    assert len(world.inboxes["b"].deliveries) == 3
    created = [each.descriptor.created_us // SECOND for each in world.inboxes["b"].deliveries]
    assert created == [70, 75, 80]
    world.run(60)
    assert [driver.host.copies for driver in world.drivers.values()] == [0, 0], "they expire by their dates"
    world.drivers[node].step_clock(ahead_s * SECOND)
    assert world.drivers[node].now == world.drivers[node].date == (145 + ahead_s) * SECOND


@pytest.mark.parametrize(("ahead_s", "lifetime_s"), [(HOUR, HOUR / 2), (26 * HOUR, 24 * HOUR)])
@pytest.mark.parametrize("restart", ["never", "before", "meanwhile", "twice", "afterwards"])
def test_a_confirmed_message_does_not_come_again_after_the_clock_was_ahead(
    ahead_s: int, lifetime_s: float, restart: str
) -> None:
    """Check `b`, whose memory of the message ends by the wrong date; `a` has the message all the time."""
    world = Wrong(EmulatedClock(), EmulatedClock())
    driver = world.drivers["b"]

    def reboot() -> None:
        driver.crash()
        driver.boot()

    world.run(30)
    world.publish(lifetime_s)
    world.run(30)
    assert len(world.inboxes["b"].deliveries) == 1
    if restart == "before":
        driver.crash()
    driver.step_clock(ahead_s * SECOND)
    if restart == "before":
        driver.boot()
    world.run(6)
    for _ in range({"meanwhile": 1, "twice": 2}.get(restart, 0)):
        reboot()
        world.run(3)
    world.run(6)
    driver.step_clock(-ahead_s * SECOND)
    if restart == "afterwards":
        reboot()
    world.radio.unlink("a", "b")
    world.run(60)
    world.radio.link("a", "b")
    world.run(120)
    assert len(world.inboxes["b"].deliveries) == 1
    world.publish(lifetime_s)
    world.run(30)
    assert len(world.inboxes["b"].deliveries) == 2
    assert world.drivers["a"].host.copies == 2


def test_the_id_of_a_confirmed_message_is_forgotten_once_its_deadline_has_passed_by_every_clock() -> None:
    world = Wrong(EmulatedClock(), EmulatedClock())
    driver = world.drivers["b"]

    def remembered() -> list[bool]:
        rows = {name for (kind, name, _), _ in driver.store.state() if kind == SEEN}
        return [each.descriptor.id in rows for each in world.inboxes["b"].deliveries]

    world.run(30)
    world.publish(lifetime_s=600)
    world.run(30)
    driver.step_clock(HOUR * SECOND)
    world.run(500)
    assert remembered() == [True], "it has expired by the clock as it is now, and not as it was"
    world.drivers["a"].step_clock(HOUR * SECOND)
    for _ in range(2):
        world.run(200)
        world.publish(lifetime_s=10)
    world.run(30)
    assert remembered() == [False, True, True], "the others have not expired by the clock as it was"


def test_what_fell_due_when_a_clock_was_set_forward_is_done_at_once() -> None:
    world = Wrong(EmulatedClock(), EmulatedClock())
    world.run(10)
    world.publish(lifetime_s=3_000)
    world.run(10)
    assert world.drivers["b"].host.overview().messages == 1
    world.drivers["b"].step_clock(4_000 * SECOND)
    assert world.drivers["b"].host.overview().messages == 0
    assert world.drivers["a"].host.overview().messages == 1


def test_a_node_that_is_down_has_its_clock_set_all_the_same() -> None:
    world = Wrong(EmulatedClock(), EmulatedClock())
    world.run(10)
    driver = world.drivers["b"]
    driver.crash()
    driver.step_clock(50 * SECOND)
    driver.boot()
    assert (driver.t_us, driver.now) == (10 * SECOND, 60 * SECOND)
    world.publish()
    world.run(60)
    assert len(world.inboxes["b"].deliveries) == 1


def test_the_record_goes_by_the_true_time() -> None:
    record = Record("run")
    world = Wrong(EmulatedClock(), EmulatedClock(3_600 * SECOND))
    world.run(20)
    Recorder(record, str).observe(world.drivers["b"], NeighbourUp(world.drivers["a"].host.node))
    assert [row["t"] for row in record.rows()] == [20.0]
