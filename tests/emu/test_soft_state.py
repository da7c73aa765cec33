"""No lost frame blocks a host permanently: everything that hosts know of each other is soft state (N6)."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest
from tests.support.air import datagram_sizes
from tests.support.examples import soaked

from carrypost import testing
from carrypost.config import Settings
from carrypost.emu.engine.applications import InboxApplication
from carrypost.emu.engine.driver import EmulatedDriver, Environment
from carrypost.emu.engine.radio import Radio
from carrypost.emu.engine.scheduler import Scheduler
from carrypost.gossip.wire.frames import WIRE_KINDS, Frame, kind
from carrypost.log.events import Dropped, Event, Reason, Refused

KINDS = [each.__name__ for each in WIRE_KINDS]
Loses = Callable[[str, Frame], bool]


class LosingRadio(Radio):
    """A radio that loses chosen frames."""

    loses: Loses = staticmethod(lambda _sender, _frame: False)

    longest = 0
    """Length of the longest datagram that was sent, in bytes."""

    def send(self, sender: str, frames: Sequence[Frame], to: str | None, mtu_bytes: int) -> None:
        self.longest = max(self.longest, *datagram_sizes(frames, mtu_bytes))
        kept = [frame for frame in frames if not self.loses(sender, frame)]
        if kept:
            super().send(sender, kept, to, mtu_bytes)


class Stage:
    """Two hosts in reach of each other, each with messages for the other, one of them large."""

    def __init__(self, loses: Loses, **settings: object) -> None:
        self.scheduler = Scheduler()
        self.radio = LosingRadio(self.scheduler, 1)
        self.radio.loses = loses
        self.inboxes: dict[str, InboxApplication] = {}
        self.drivers: dict[str, EmulatedDriver] = {}
        world = Environment(self.scheduler, self.radio, 1)
        for name in "ab":
            inbox = self.inboxes[name] = InboxApplication()
            emulated = Settings.emulated(security="signed", **settings)
            self.drivers[name] = EmulatedDriver(name, emulated, world, inbox)
        for driver in self.drivers.values():
            driver.boot()
            self.inboxes[driver.name].subscribe(driver, "news")
            for size in (10, 100, 40_000):
                driver.host.publish("news", driver.name.encode() * size, now=0)
            driver.drain()
        self.radio.link("a", "b")

    def run(self, seconds: float) -> None:
        self.scheduler.run_until(self.scheduler.now + round(seconds * 1e6))

    @property
    def delivered(self) -> list[int]:
        return [len(inbox.deliveries) for inbox in self.inboxes.values()]


@pytest.mark.soak
@pytest.mark.parametrize("paper_mode", [False, True])
@pytest.mark.parametrize("count", [1, 4])
@pytest.mark.parametrize("name", KINDS)
def test_the_first_frames_of_a_kind_may_all_get_lost(name: str, count: int, paper_mode: bool) -> None:
    lost = dict.fromkeys("ab", 0)

    def loses(sender: str, frame: Frame) -> bool:
        if kind(frame) != name or lost[sender] >= count:
            return False
        lost[sender] += 1
        return True

    stage = Stage(loses, paper_mode=paper_mode)
    stage.run(90)
    assert stage.delivered == [6, 6]


@pytest.mark.parametrize("sender", ["a", "b"])
@pytest.mark.parametrize("name", KINDS)
def test_a_kind_that_never_arrives_is_made_up_for_as_soon_as_it_does(name: str, sender: str) -> None:
    broken = True
    stage = Stage(lambda who, frame: broken and who == sender and kind(frame) == name)
    stage.run(120)
    broken = False
    stage.run(60)
    assert stage.delivered == [6, 6]


@pytest.mark.parametrize("every", [3, 4])
def test_every_third_or_fourth_frame_may_get_lost(every: int) -> None:
    number = 0

    def loses(_sender: str, _frame: Frame) -> bool:
        nonlocal number
        number += 1
        return number % every == 0

    stage = Stage(loses)
    stage.run(300)
    assert stage.delivered == [6, 6]


@pytest.mark.parametrize("seed", [0, *soaked(range(1, 10))])
@pytest.mark.parametrize("paper_mode", [False, True])
def test_half_of_everything_may_get_lost(seed: int, paper_mode: bool) -> None:
    with testing.network("a", "b", "c", seed=seed, loss=0.5, paper_mode=paper_mode) as net:
        for name in "abc":
            net.subscribe(name, "news")
            for _ in range(20):
                net.publish(name, "news", testing.Blank(500))
        net.link("a", "b")
        net.link("b", "c")
        net.advance(900)
        assert [len(net.deliveries(name)) for name in "abc"] == [60, 60, 60]


def test_a_neighbour_that_evicted_what_it_offered_is_not_waited_for() -> None:
    told: list[Event] = []
    with testing.network("a", "c") as net:
        net.add("b", cache_messages_max=1)
        net.watch(lambda _t, node, event: told.append(event) if node == "b" else None)
        for name in "bc":
            net.subscribe(name, "news")
        net.publish("a", "news", b"first")
        net.link("a", "b")
        net.advance(20)
        net.unlink("a", "b")
        net.advance(20)
        net.link("b", "c", delay_s=0.5)
        while not net.sent("b").frames["Offer"]:
            net.advance(0.1)
        net.publish("b", "news", b"second", priority=9)
        net.advance(30)
        assert [event.reason for event in told if isinstance(event, Dropped)] == [Reason.EVICTED]
        assert any(isinstance(event, Refused) and event.reason == "handle" for event in told)
        assert [delivery.payload for delivery in net.deliveries("c")] == [b"second"]
        net.link("a", "c")
        net.advance(30)
        assert [delivery.payload for delivery in net.deliveries("c")] == [b"second", b"first"]


def test_a_full_cache_does_not_ask_again_for_what_it_evicted_until_there_is_room() -> None:
    with testing.network("a", push_bytes_max=0) as net:
        net.add("b", cache_messages_max=10, altruistic=True)
        for number in range(10):
            net.publish("a", "high", b"%d" % number, priority=8, lifetime_s=300)
        net.link("a", "b")
        net.advance(20)
        for number in range(10):
            net.publish("a", "low", b"%d" % number, priority=1, lifetime_s=900)
        net.advance(200)
        assert net.sent("a").frames["Parcel"] == 10
        net.advance(500)
        assert net.sent("a").frames["Parcel"] == 20


def test_a_message_that_leaves_while_it_is_sent_harms_nobody() -> None:
    with testing.network("a", "b", rate_bytes_per_s=20_000) as net:
        net.subscribe("b", "news")
        net.publish("a", "news", testing.Blank(2_000_000), lifetime_s=6, priority=9)
        net.publish("a", "news", b"hello", priority=1)
        net.link("a", "b")
        net.advance(30)
        assert [delivery.payload for delivery in net.deliveries("b")] == [b"hello"]
        assert net.sent("a").frames["Data"] < 400


@pytest.mark.parametrize("silence_s", [5, 15, 30, 80, 100, 120, 150])
def test_a_transfer_goes_on_after_a_silence_in_which_the_receiver_gave_it_up(silence_s: int) -> None:
    silent_until = [0]
    stage: Stage

    def loses(sender: str, frame: Frame) -> bool:
        name = kind(frame)
        if sender == "a" and name == "HashList" and not silent_until[0]:
            silent_until[0] = stage.scheduler.now + silence_s * 1_000_000
        return sender == "a" and name in ("HashList", "Data") and stage.scheduler.now < silent_until[0]

    stage = Stage(loses)
    stage.run(silence_s)  # It began a little after the start, so it lasts still.
    assert stage.delivered == [6, 5]
    stage.run(101)
    assert stage.delivered == [6, 6]


@pytest.mark.parametrize("mtu_bytes", [576, 1_200, 9_000])
def test_no_datagram_is_longer_than_the_mtu(mtu_bytes: int) -> None:
    stage = Stage(lambda _sender, _frame: False, mtu_bytes=mtu_bytes)
    for driver in stage.drivers.values():
        for number in range(200):
            driver.host.publish("news", b"x", now=0, attributes={"text": f"{number}" * 300}, label="x" * 200)
        stage.inboxes[driver.name].subscribe(driver, f"only-{driver.name}-has-this-pattern" * 5)
    stage.run(60)
    assert stage.delivered == [406, 406]
    assert 0.9 * mtu_bytes < stage.radio.longest <= mtu_bytes
