"""Numbers of events: dense for each channel, in works, after crashes, and on full disks."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from benchmarks._line import Line, Place
from tests.support.examples import soaked

from carrypost.config import Settings
from carrypost.errors import LocalError
from carrypost.host import Host
from carrypost.log.events import Event, Published, Received, Stored
from carrypost.log.journal import Batch
from carrypost.model.descriptor import Descriptor
from carrypost.model.ids import MessageId
from carrypost.overlay.items import event_of
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


@contextmanager
def line_of_four() -> Iterator[Network]:
    """A producer `p` beside its home A, and a consumer `c` beside its home B."""
    with network("p", "c", seed=1, island=True, overlay={"enabled": True}) as net:
        for name in "AB":
            net.add(name, overlay={"enabled": True, "broker": True})
        for pair in ("pA", "AB", "Bc"):
            net.link(*pair)
        net.advance(20)
        net.consume("c", "x")
        net.emit("p", "x", b"first")  # With this one the producer finds its home.
        net.advance(5)
        yield net


class Watched:
    """Messages that nodes published and received, without items."""

    def __init__(self, net: Network) -> None:
        self.published: list[tuple[str, Descriptor]] = []
        self.received: list[tuple[str, Descriptor]] = []
        net.watch(self._watch)

    def _watch(self, _: float, node: str, event: Event) -> None:
        if isinstance(event, Published) and event_of(event.descriptor.original):
            self.published.append((node, event.descriptor))
        elif isinstance(event, Received):
            self.received += [
                (node, each.descriptor) for each in event.receptions if event_of(each.descriptor.original)
            ]


def holds(net: Network, node: str, message: MessageId) -> bool:
    return any(each.id == message for each in net.host(node).holding())


def test_the_event_itself_goes_to_the_home_of_its_producer() -> None:
    with line_of_four() as net:
        watched = Watched(net)
        event = net.emit("p", "x", b"rain")
        net.advance(5)
        assert [each.payload for each in net.deliveries("c")] == [b"first", b"rain"]
        assert [node for node, _ in watched.published] == ["p", "A", "B"], "an event, a leg, and a result"
        assert [node for node, _ in watched.received] == ["A", "B", "c"]
        assert [each.id == event for _, each in watched.received] == [True, False, False]
        (_, found), *_ = watched.published
        assert (found.destination, found.home, found.service.direct) == ("channel/x", "A", True)


def test_an_event_without_a_home_goes_by_a_leg_and_is_offered_to_nobody() -> None:
    with network("p", "c", seed=1, island=True, overlay={"enabled": True}) as net:
        net.link("p", "c")
        net.advance(10)
        watched = Watched(net)
        net.emit("p", "x", b"rain")
        net.advance(20)
        assert (watched.published[0][1].home, watched.received) == (None, [])
        net.add("A", overlay={"enabled": True, "broker": True})
        net.link("p", "A")
        net.advance(20)
        assert {each.destination for _, each in watched.received} == {"overlay/A"}
        assert "A" in [node for node, _ in watched.received]


def test_an_event_to_a_home_out_of_reach_is_carried_and_its_carrier_drops_it_once_it_is_there() -> None:
    with line_of_four() as net:
        net.add("x", overlay={"enabled": True})
        net.unlink("p", "A")
        net.advance(30)
        event = net.emit("p", "x", b"rain")
        net.link("p", "x")
        net.advance(20)
        assert holds(net, "x", event)
        net.unlink("p", "x")
        net.link("x", "B")  # Not the home of the producer, which is reached by it.
        net.advance(20)
        assert [each.payload for each in net.deliveries("c")] == [b"first", b"rain"]
        assert holds(net, "p", event)
        assert not any(holds(net, node, event) for node in ("x", "A", "B"))


def test_a_restarted_producer_sends_only_events_that_did_not_come_home() -> None:
    with line_of_four() as net:
        net.emit("p", "x", b"rain")
        net.advance(5)
        net.unlink("p", "A")
        late = net.emit("p", "x", b"late")
        net.advance(1)
        net.kill("p")
        watched = Watched(net)
        net.restart("p")
        net.link("p", "A")
        net.advance(20)
        assert [each.id for node, each in watched.received if node == "A"] == [late]
        assert [each.payload for each in net.deliveries("c")] == [b"first", b"rain", b"late"]
