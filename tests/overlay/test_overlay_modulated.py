"""Modulators in seats: results once and in order, state across restarts, faults, changes, refusals."""

from __future__ import annotations

from itertools import groupby
from typing import TypeVar

import pytest
from tests.support.channels import LINKS, Storm, World
from tests.support.examples import soaked
from tests.support.modulators import grid

from carrypost.emu.engine.driver import MemoryStore
from carrypost.errors import LocalError
from carrypost.log.events import Event, Refused
from carrypost.log.journal import Batch
from carrypost.model.ids import MessageId
from carrypost.overlay.events import ModulatorFault
from carrypost.overlay.modulators.modulator import Modulator
from carrypost.overlay.modulators.registry import Event as Input
from carrypost.overlay.modulators.registry import Result, modulator


@modulator("by-number")
class ByNumber:
    """A modulator that gives, in turn, no result, three results, and the event itself."""

    def process(self, event: Input) -> list[Input | Result]:
        number = event.attributes["n"]
        assert isinstance(number, int)
        assert isinstance(event.payload, bytes)
        parts = [Result(event.payload + part, {"n": number}) for part in (b"/1", b"/2")]
        results: list[list[Input | Result]] = [[], [*parts, event], [event]]
        return results[number % 3]


W = TypeVar("W", bound="Modulated")


class Modulated(World):
    """A world in which events are numbered, and consumers have modulators."""

    def __init__(self, names: str, **options: object) -> None:
        super().__init__(names, **options)  # type: ignore[arg-type]
        self.emitted = 0
        self.numbers: dict[MessageId, int] = {}
        self.faulty: list[ModulatorFault] = []
        self.refused: list[str] = []

    def _watch(self, at: float, node: str, event: Event) -> None:
        super()._watch(at, node, event)
        if isinstance(event, ModulatorFault):
            self.faulty.append(event)
        elif isinstance(event, Refused):
            self.refused.append(event.reason)

    def emit(self, node: str, payload: bytes | None = None) -> None:
        if node not in self.down:
            self.emitted += 1
            payload = payload or str(self.emitted).encode()
            try:
                message = self.net.emit(node, "flood", payload, attributes={"n": self.emitted})
            except LocalError:  # After a disk was full the cache is smaller for a while.
                self.net.fill_disk(node, full=False)
            else:
                self.numbers[message] = self.emitted

    def flow(self, events: int, pause_s: float, payload: bytes | None = None) -> None:
        """Let p emit events."""
        for _ in range(events):
            self.emit("p", payload)
            self.net.advance(pause_s)

    @property
    def producers(self) -> dict[int, str]:
        """Producers of the events that are durable, by number."""
        return {number: self.stored[each][0] for each, number in self.numbers.items() if each in self.stored}

    def wrong(self, node: str, destination: str) -> list[str]:
        """Return the missing, repeated, torn and misplaced results of `by-number`."""
        results = [each.decode() for each in self.results(node, destination)]
        events = [int(number) for number, _ in groupby(results, key=lambda each: each.split("/")[0])]
        found = [f"repeated: {events}"] if len(set(events)) < len(events) else []
        for each in events:
            parts = [result for result in results if result.split("/")[0] == str(each)]
            if parts != [[], [f"{each}/1", f"{each}/2", str(each)], [str(each)]][each % 3]:
                found.append(f"torn: {parts}")
        return found + self.displaced(destination, events, {each for each in self.producers if each % 3})

    def displaced(self, destination: str, events: list[int], expected: set[int]) -> list[str]:
        """Return the missing and misplaced numbers of events, by producer."""
        found = []
        for producer in set(self.producers.values()):
            own = {number for number, of in self.producers.items() if of == producer}
            numbers = [each for each in events if each in own]
            missing = (expected & own).difference(numbers)
            lost = sum(count for to, by, count in self.lost if (to, by) == (destination, producer))
            if numbers != sorted(numbers) or len(missing) > lost:
                found.append(f"from {producer}: {numbers}, {missing} missing, {lost} told of")
        return found

    def results(self, node: str, destination: str) -> list[bytes]:
        """Return the results that a subscription was given, once each."""
        found = {each.message: each for each in reversed(self.net.deliveries(node))}
        results = [each for each in reversed(found.values()) if each.descriptor.destination == destination]
        return [each.payload for each in results]


def count_across_restarts(world: Modulated, third: Modulator) -> None:
    """Show that a modulator that passes every third event has its count also after its home restarted."""
    with world.net as net:
        world.begin("Ap Ay")
        destination = net.consume("y", "flood", third)
        net.advance(5)
        for number in range(1, 10):
            world.flow(1, 2)
            if number in {2, 4, 6}:
                net.kill("A")
                net.advance(1)
                net.restart("A")
                net.advance(20)
        net.advance(60)
        assert world.results("y", destination) == [b"3", b"3", b"6", b"6", b"9", b"9"]
        assert world.lost == []


def weather(storm: Storm[W], modulator: Modulator) -> None:
    """Show that two consumers with this modulator have right results after a storm."""
    world = storm.world
    world.begin(LINKS)
    places = [(node, world.net.consume(node, "flood", modulator)) for node in "yz"]
    world.net.advance(5)
    storm.pass_over(60, "pqpq")
    for _ in range(60):
        world.net.advance(10)
        if not any(world.wrong(*place) for place in places):
            break
    assert [world.wrong(*place) for place in places] == [[], []]
    assert all(world.results(*place) for place in places)


@pytest.mark.parametrize("security", ["off", "signed"])
def test_home_brokers_run_modulators(security: str) -> None:
    world = Modulated("ABCpqy", security=security)
    with world.net as net:
        world.begin("AB BC pA qA Cy")
        named = Modulator.named
        box = net.consume("y", "flood", named("box", area=[1, 1, 3, 3]))
        few = net.consume("y", "flood", named("selector", text="n > 3"))
        some = net.consume("y", "flood", named("by-number"))
        every = net.consume("y", "flood")
        net.advance(5)
        for number in range(1, 13):
            world.emit("pq"[number % 2], grid(4, 4) if number != 5 else b"odd")
            net.advance(0.5)
        net.advance(10)
        assert [len(each) for each in world.results("y", box)] == [32] * 11
        assert [(each.channel, each.number) for each in world.faulty] == [("flood", 3)]
        assert "do not fill an array of" in world.faulty[0].fault
        assert len(world.results("y", few)) == 9
        assert len(world.results("y", some)) == 16
        assert len(world.results("y", every)) == 12
        views = [net.host(name).overlay.view() for name in "ABC"]
        assert sum(each.faults for each in views) == 1
        assert sum(each.busy_us for each in views) == 12 * (20 + 5), "of box and selector, as declared"
        assert world.lost == []


def test_a_modulator_keeps_its_state_when_its_home_restarts() -> None:
    count_across_restarts(Modulated("Apy"), Modulator.named("every-nth", n=3))


@modulator("bulky")
class Bulky:
    """A modulator with a large state, of which each event changes a little."""

    def __init__(self) -> None:
        self.state = bytearray(250_000)
        self.count = 0

    def process(self, event: Input) -> list[Input | Result]:
        self.state[self.count * 1_000] = 1
        self.count += event is not None
        return [Result(str(sum(self.state)).encode())]

    def save(self) -> bytes:
        return bytes(self.state)

    def load(self, state: bytes) -> None:
        self.state, self.count = bytearray(state), sum(state)


def test_a_large_state_is_not_written_with_every_event(monkeypatch: pytest.MonkeyPatch) -> None:
    written = 0
    write = MemoryStore.write

    def counted(store: MemoryStore, batch: Batch) -> None:
        nonlocal written
        written += sum(len(row) for key, row in batch.puts.items() if key[0] == "overlay" and isinstance(row, bytes))
        write(store, batch)

    world = Modulated("Apy")
    with world.net as net:
        world.begin("Ap Ay")
        destination = net.consume("y", "flood", Modulator.named("bulky"))
        net.advance(5)
        world.flow(1, 1)
        monkeypatch.setattr(MemoryStore, "write", counted)
        world.flow(99, 0.01)
        net.advance(5)
        assert 0 < written < 2_000_000
        net.kill("A")
        net.restart("A")
        net.advance(10)
        world.flow(1, 1)
        net.advance(10)
        assert [int(each) for each in world.results("y", destination)] == list(range(1, 102))
        assert world.lost == []


def test_modulators_change_while_events_flow() -> None:
    world = Modulated("Apy")
    with world.net as net:
        world.begin("Ap Ay")
        destination = net.consume("y", "flood", Modulator.named("every-nth", n=2))
        net.advance(5)
        for now in (Modulator.named("every-nth", n=3), None, Modulator.named("selector", text="FALSE")):
            world.flow(3, 1)
            net.host("y").overlay.change(destination, now, round(net.now * 1e6))
            net.advance(5)
        world.emit("p")
        net.advance(5)
        assert world.results("y", destination) == [b"2", b"2", b"6", b"3", b"7", b"8", b"9"]
        assert world.lost == []


def test_a_broker_without_the_modulator_refuses_the_client() -> None:
    world = Modulated("Apy")
    with world.net as net:
        world.begin("Ap Ay")
        net.consume("y", "flood", Modulator.named("unheard-of", version=1))
        net.advance(5)
        assert net.overlay("y").homes == {}
        assert "modulator" in world.refused


def test_a_consumer_knows_how_far_a_modulator_is_that_lets_nothing_pass() -> None:
    world = Modulated("ABpy")
    with world.net as net:
        world.begin("Ap Ay AB")
        destination = net.consume("y", "flood", Modulator.named("selector", text="n = 9"))
        net.advance(5)
        world.flow(8, 1)
        net.advance(20)
        net.kill("A")  # Another home goes on after those events, and not before.
        net.link("B", "p")
        net.link("B", "y")
        net.advance(60)
        world.emit("p")
        net.advance(20)
        assert world.results("y", destination) == [b"9"]
        assert world.lost == []


@pytest.mark.parametrize("seed", [*range(1, 3), *soaked(range(3, 100))])
def test_results_come_once_and_in_order_whatever_fails(seed: int) -> None:
    storm = Storm(seed, Modulated)
    with storm.world.net:
        weather(storm, Modulator.named("by-number"))
