"""The loop that drivers share: the order of outputs, calls inside of it, and when the timer is set."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

import pytest

from carrypost.config import Settings
from carrypost.emu.engine.applications import InboxApplication
from carrypost.emu.engine.driver import EmulatedDriver, Environment
from carrypost.emu.engine.radio import Radio
from carrypost.emu.engine.scheduler import Scheduler
from carrypost.errors import RunawayError
from carrypost.gossip.wire.frames import Transmission
from carrypost.host import Host, driving
from carrypost.host.driving import HostDriver
from carrypost.log.events import Confirmed, Delivered, Dropped, Event, Published, Stored
from carrypost.log.journal import Batch
from carrypost.security.identity import Identity

SECOND = 1_000_000
Reaction = Callable[["Noting", Event], None]


class Noting(HostDriver):
    """A driver that notes its calls; its disk answers at once, and the test decides what its application does."""

    def __init__(self, react: Reaction = lambda _driver, _event: None, **settings: object) -> None:
        self.host = Host(Identity.plain("a"), Settings.emulated(**settings), random.Random(1))
        super().__init__(self.host)
        self.now = 0
        self.asked: list[object] = []
        self.armed: list[int] = []
        self._react = react
        self.host.start(0)
        self.drain()

    def publish(self, lifetime_s: int | None = None) -> None:
        lifetime_us = None if lifetime_s is None else lifetime_s * SECOND
        self.host.publish("news", b"hello", now=self.now, lifetime_us=lifetime_us)

    def wake(self, now: int) -> None:
        self.now = now
        self._wake(now)

    def stand_still(self) -> None:
        self._driven = None

    def go_on(self) -> None:
        self._driven = self.host

    def _write(self, batch: Batch) -> None:
        self.asked.append(Batch)
        self.host.durable(batch.serial, self.now)

    def _transmit(self, transmission: Transmission) -> None:
        self.asked += [type(frame) for frame in transmission.frames]

    def _report(self, events: Sequence[Event]) -> None:
        for event in events:
            self.asked.append(type(event))
            self._react(self, event)

    def _arm(self, deadline_us: int) -> None:
        self.armed.append(deadline_us)


def confirming(driver: Noting, event: Event) -> None:
    """Confirm deliveries, and inform the driver, as an application would."""
    if isinstance(event, Delivered):
        driver.host.confirm(event.deliveries, driver.now)
        driver.drain()
        driver.asked.append("confirmed")


# --- order -----------------------------------------------------------------------------------------------------


def test_of_everything_there_is_changes_are_taken_first_then_what_is_sent_then_events() -> None:
    driver = Noting(beacons=False)
    driver.host.link("b", True, 0)
    driver.publish()
    driver.asked.clear()
    driver.drain()
    kinds = [each for each in driver.asked if isinstance(each, type)]
    ranks = [0 if kind is Batch else 2 if issubclass(kind, Event) else 1 for kind in kinds]
    assert ranks == sorted(ranks)
    assert set(ranks) == {0, 1, 2}
    assert Stored in kinds, "it depends on the batch, and the batch was written in the same round"


def test_what_comes_of_an_event_is_taken_before_the_drain_ends_but_not_inside_the_event() -> None:
    driver = Noting(confirming, beacons=False)
    driver.host.subscribe("news", now=0)
    driver.publish()
    driver.asked.clear()
    driver.drain()
    assert driver.asked == [Batch, Published, Stored, Delivered, "confirmed", Batch, Confirmed]
    assert not driver.host.busy


def test_a_host_that_is_left_alone_keeps_what_it_has_until_the_driver_goes_on() -> None:
    driver = Noting(beacons=False)
    driver.asked.clear()
    driver.stand_still()
    driver.publish(lifetime_s=10)
    driver.drain()
    driver.wake(11 * SECOND)
    assert (driver.asked, driver.armed) == ([], [])
    driver.go_on()
    driver.drain()
    assert driver.asked[0] is Batch
    assert not driver.host.busy


def test_a_driver_that_stands_still_inside_an_event_takes_nothing_more() -> None:
    def publish_and_stand_still(driver: Noting, event: Event) -> None:
        if isinstance(event, Stored):
            driver.publish(lifetime_s=20)
            driver.stand_still()

    driver = Noting(publish_and_stand_still, beacons=False)
    driver.publish()
    driver.asked.clear()
    driver.drain()
    assert driver.asked == [Batch, Published, Stored]
    assert driver.host.busy
    assert driver.armed == []


def test_a_host_that_is_never_done_is_an_error_and_no_endless_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(driving, "ROUNDS_MAX", 10)
    driver = Noting(lambda driver, event: driver.publish() if isinstance(event, Stored) else None, beacons=False)
    driver.publish()
    with pytest.raises(RunawayError, match="'a' has something new after 10 rounds"):
        driver.drain()


# --- the timer -------------------------------------------------------------------------------------------------


def test_a_timer_is_set_again_for_an_earlier_deadline_and_left_for_a_later_one() -> None:
    driver = Noting(beacons=False)
    assert driver.armed == []
    armed = []
    for lifetime_s in (50, 100, 20):
        driver.publish(lifetime_s)
        driver.drain()
        armed.append(list(driver.armed))
    first, earlier = armed[0][0], armed[2][1]
    assert armed == [[first], [first], [first, earlier]]
    assert earlier < first
    assert earlier == driver.host.next_deadline()


def test_a_timer_that_comes_too_early_is_set_again() -> None:
    driver = Noting(beacons=False)
    driver.publish(lifetime_s=50)
    driver.drain()
    (due,) = driver.armed
    driver.wake(due // 2)
    assert driver.armed == [due, due]
    driver.wake(due)
    assert Dropped in driver.asked


@pytest.mark.parametrize("verb", ["_write", "_transmit", "_report"])
def test_the_timer_is_set_though_a_verb_failed(verb: str, monkeypatch: pytest.MonkeyPatch) -> None:
    driver = Noting()
    driver.wake(driver.armed[-1])
    driver.host.link("b", True, driver.now)
    driver.publish()

    def failing(_asked: object) -> None:
        raise ValueError("a mistake")

    armed = len(driver.armed)
    with monkeypatch.context() as patch:
        patch.setattr(driver, verb, failing)
        with pytest.raises(ValueError, match="a mistake"):
            driver.wake(driver.now)
    assert len(driver.armed) == armed + 1
    driver.asked.clear()
    driver.wake(driver.armed[-1])
    assert driver.asked, "it goes on"


# --- emulated nodes ----------------------------------------------------------------------------------------------


class Reacting(InboxApplication):
    """An application that reacts to one event, once."""

    def __init__(self, kind: type[Event], react: Callable[[EmulatedDriver], None]) -> None:
        super().__init__()
        self.told: list[type[Event]] = []
        self._kind = kind
        self._react: Callable[[EmulatedDriver], None] | None = react

    def handle_event(self, driver: EmulatedDriver, event: Event) -> None:
        self.told.append(type(event))
        super().handle_event(driver, event)
        if isinstance(event, self._kind) and (react := self._react) is not None:
            self._react = None
            react(driver)


def emulated(application: Reacting) -> tuple[EmulatedDriver, Scheduler, Radio]:
    scheduler = Scheduler()
    radio = Radio(scheduler, 1)
    driver = EmulatedDriver("a", Settings.emulated(), Environment(scheduler, radio, 1), application)
    driver.boot()
    return driver, scheduler, radio


def test_an_application_that_fails_does_not_silence_its_emulated_node() -> None:
    def fail(_driver: EmulatedDriver) -> None:
        raise ValueError("a mistake")

    driver, scheduler, radio = emulated(Reacting(Dropped, fail))
    driver.host.publish("news", b"", now=driver.now, lifetime_us=10 * SECOND)
    driver.drain()
    with pytest.raises(ValueError, match="a mistake"):
        scheduler.run_until(60 * SECOND)
    sent = radio.sent("a").frames["Announce"]
    scheduler.run_until(scheduler.now + 60 * SECOND)
    assert radio.sent("a").frames["Announce"] >= sent + 10


def test_an_application_that_restarts_its_node_inside_an_event_is_told_nothing_more_of_that_life() -> None:
    def restart(driver: EmulatedDriver) -> None:
        driver.crash()
        driver.boot()

    application = Reacting(Stored, restart)
    driver, scheduler, radio = emulated(application)
    application.subscribe(driver, "news")
    driver.host.publish("news", b"", now=driver.now)
    driver.drain()
    first = application.told[: application.told.index(Stored) + 1]
    assert Delivered not in first, "it was to be told next"
    (delivery,) = application.deliveries
    assert delivery.redelivered, "the next life tells it again"
    sent = radio.sent("a").frames["Announce"]
    scheduler.run_until(60 * SECOND)
    assert radio.sent("a").frames["Announce"] >= sent + 10
