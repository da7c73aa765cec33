"""Numbers of events: dense for each channel, in works, after crashes, and on full disks."""

from __future__ import annotations

import random

import pytest
from benchmarks._line import Line, Place
from tests.support.examples import soaked

from carrypost.config import Settings
from carrypost.errors import LocalError
from carrypost.host import Host
from carrypost.log.events import Event, Published, Stored
from carrypost.log.journal import Batch
from carrypost.model.ids import MessageId
from carrypost.testing import Network, network


class Counted:
    """A node that emits events, and the numbers of those that were stored."""

    def __init__(self, net: Network) -> None:
        self.net = net
        self.given: dict[MessageId, tuple[str, int]] = {}
        self.stored: dict[MessageId, tuple[str, int]] = {}
        net.watch(self._watch)

    def _watch(self, _: float, __: str, event: Event) -> None:
        if isinstance(event, Published) and event.descriptor.headers is not None:
            self.given[event.descriptor.id] = event.descriptor.destination, event.descriptor.headers.event
        elif isinstance(event, Stored) and event.message in self.given:
            self.stored[event.message] = self.given[event.message]

    def emit(self, channel: str = "x") -> None:
        self.net.publish("a", f"channel/{channel}", b"rain")

    def numbers(self, channel: str = "x") -> list[int]:
        return sorted(number for name, number in self.stored.values() if name == f"channel/{channel}")


def one(**options: object) -> Network:
    return network("a", seed=1, island=True, overlay={"enabled": True}, **options)  # type: ignore[arg-type]


def test_numbers_of_each_channel_go_on_after_a_crash() -> None:
    with one() as net:
        counted = Counted(net)
        for channel in "xxyx":
            counted.emit(channel)
        net.advance(1)
        net.kill("a")
        net.restart("a")
        net.advance(1)
        for channel in "yx":
            counted.emit(channel)
        net.advance(1)
        assert (counted.numbers("x"), counted.numbers("y")) == ([1, 2, 3, 4], [1, 2])


def test_an_event_that_a_crash_takes_back_gives_its_number_to_the_next_one() -> None:
    with one(disk_delay_s=0.5) as net:
        counted = Counted(net)
        net.advance(2)
        counted.emit()
        net.advance(2)
        counted.emit()
        net.kill("a")
        net.restart("a")
        net.advance(2)
        counted.emit()
        net.advance(2)
        assert counted.numbers() == [1, 2]
        assert len(counted.given) == 3


@pytest.mark.parametrize("seed", [1, 2, 3, *soaked(range(4, 200))])
def test_events_that_a_full_disk_loses_fail_with_those_that_follow_and_leave_no_gap(seed: int) -> None:
    chance = random.Random(seed)
    with one(disk_delay_s=0.4) as net:
        counted = Counted(net)
        full = False
        for _ in range(60):
            roll = chance.random()
            if roll < 0.15:
                full = not full
                net.fill_disk("a", full=full)
            elif roll < 0.2:
                net.kill("a")
                net.restart("a")
            else:
                try:
                    counted.emit(chance.choice("xy"))
                except LocalError:  # After a loss the cache is smaller for a while.
                    full = False
                    net.fill_disk("a", full=False)
            net.advance(chance.choice([0.0, 0.1, 0.3, 1.0]))
        net.fill_disk("a", full=False)
        net.advance(60)
        for channel in "xy":
            counted.emit(channel)
        net.advance(5)
        for channel in "xy":
            numbers = counted.numbers(channel)
            assert numbers == list(range(1, len(numbers) + 1))


def settle(host: Host) -> None:
    while (batch := host.changes()) is not None:
        host.durable(batch.serial, 0)


class CountedPlace(Place):
    """A host that counts its batches."""

    batches = 0

    def _write(self, batch: Batch) -> None:
        CountedPlace.batches += 1
        super()._write(batch)


def test_an_event_over_both_homes_is_one_batch_for_each_node_and_one_for_its_confirmation(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("benchmarks._line.Place", CountedPlace)
    line = Line({
        name: Settings.emulated(
            security="off", island=True, overlay={"enabled": True, "broker": name in "bc", "neighbours_max": 1}
        )
        for name in "abcd"
    })  # fmt: skip
    line.run(40)
    line.last.host.subscribe(line.last.host.overlay.consume("x", line.now), now=line.now)
    line.run(40)
    line.first.host.overlay.emit("x", b"rain", line.now)  # With this one the producer finds its home.
    line.run(5)
    CountedPlace.batches = 0
    line.first.host.overlay.emit("x", b"rain", line.now)
    line.run(5)
    assert line.last.delivered == 2
    assert CountedPlace.batches == 5
