"""Results of consumers that cannot be reached: they wait as long as the modulator keeps them."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence
from itertools import combinations
from typing import ClassVar

import pytest
from tests.overlay.test_overlay_modulated import Modulated
from tests.support.examples import soaked
from tests.support.wasm_modules import example, module, numbers

from carrypost.overlay.modulators import programs
from carrypost.overlay.modulators.modulator import Modulator
from carrypost.overlay.modulators.registry import Event, Result, modulator

wasm = pytest.mark.skipif(not programs.is_installed(), reason="needs the extra: pip install '.[wasm]'")


@modulator("recent-count")
class RecentCount:
    """A modulator that numbers all events, and keeps results that are younger than this many seconds."""

    asked: ClassVar[Counter[bytes]] = Counter()
    refused: ClassVar[set[bytes]] = set()

    def __init__(self, keep_s: float) -> None:
        self.keep_us, self.count = keep_s * 1e6, 0

    def process(self, event: Event) -> list[Event | Result]:
        self.count += 1
        assert isinstance(event.payload, bytes)
        return [Result(b"%d %s" % (self.count, event.payload))]

    def save(self) -> bytes:
        return str(self.count).encode()

    def load(self, state: bytes) -> None:
        self.count = int(state)

    def keep(self, result: Event | Result, age_us: int) -> bool:
        assert isinstance(result.payload, bytes)
        assert result.attributes  # Those of the event.
        kept = age_us < self.keep_us
        self.asked[result.payload] += 1
        if not kept:
            self.refused.add(result.payload)
        return kept


@modulator("keeps-wrong")
class KeepsWrong:
    """Fail to say what waits."""

    def process(self, event: Event) -> list[Event | Result]:
        return [event]

    def keep(self, result: Event | Result, age_us: int) -> bool:
        raise RuntimeError(f"{result.payload!r} at {age_us}")


@pytest.fixture(autouse=True)
def _afresh() -> None:
    RecentCount.asked.clear()
    RecentCount.refused.clear()


class Waiting(Modulated):
    """A producer p, its broker A, and a consumer y, which may be out of reach."""

    def __init__(self, names: str = "Apy", **options: object) -> None:
        super().__init__(names, overlay={"modulators": "any"}, **options)
        self.place = ""

    def consume_with(self, mine: Modulator, links: Sequence[tuple[str, str]] = (("A", "p"), ("A", "y"))) -> None:
        self.begin(" ".join(map("".join, links)))
        self.place = self.net.consume("y", "flood", mine)
        self.net.advance(10)

    def away(self) -> None:
        self.net.unlink("A", "y")
        self.net.advance(15)
        assert "y" not in self.net.reach("A")

    def back(self) -> None:
        self.net.link("A", "y")
        self.net.advance(30)

    def got(self) -> list[bytes]:
        return self.results("y", self.place)

    def discarded(self) -> int:
        return self.net.host("y").overlay.view().discarded


@pytest.mark.parametrize("security", ["off", "signed"])
def test_refused_results_are_covered_by_the_next_one_and_counted(security: str) -> None:
    world = Waiting(security=security)
    with world.net as net:
        world.consume_with(Modulator.named("recent-count", keep_s=20))
        world.flow(3, 1)
        world.away()
        world.flow(6, 5)
        net.advance(5)
        world.back()
        world.flow(1, 5)
        missing = {int(each.split()[1]) for each in RecentCount.refused}
        assert {4, 5, 6} <= missing <= {4, 5, 6, 7}
        assert world.got() == [b"%d %d" % (n, n) for n in range(1, 11) if n not in missing]
        assert (world.discarded(), world.lost, world.faulty) == (len(missing), [], [])
        assert max(RecentCount.asked.values()) < 20  # The older a result is, the less often its modulator is asked.


def test_what_the_modulator_keeps_waits_and_comes_in_order() -> None:
    world = Waiting()
    with world.net as net:
        world.consume_with(Modulator.named("recent-count", keep_s=1e6))
        world.away()
        world.flow(5, 2)
        net.kill("A")
        net.advance(5)
        net.restart("A")
        world.flow(5, 2)
        world.back()
        assert world.got() == [b"%d %d" % (n, n) for n in range(1, 11)]
        assert (world.discarded(), world.lost) == (0, [])
        (seat,) = net.host("A").overlay._overlay.seats  # noqa: SLF001
        # Events that wait are processed again and again, and would make it look as if little of them were sent on.
        assert seat.flow.ratio is not None
        assert seat.flow.ratio > 0.9


def test_a_modulator_is_not_asked_while_the_consumer_can_be_reached() -> None:
    world = Waiting()
    with world.net:
        world.consume_with(Modulator.named("recent-count", keep_s=0))
        world.flow(5, 2)
        assert len(world.got()) == 5
        assert RecentCount.asked == {}


def test_results_wait_if_the_modulator_fails_to_say_otherwise() -> None:
    world = Waiting()
    with world.net:
        world.consume_with(Modulator.named("keeps-wrong"))
        world.away()
        world.flow(3, 2)
        world.back()
        assert world.got() == [b"1", b"2", b"3"]
        assert world.faulty[0].fault.startswith("RuntimeError: b'1' at ")


@wasm
def test_modules_refuse_results_likewise() -> None:
    world = Waiting()
    with world.net as net:
        world.consume_with(example("recent", numbers(20_000)))
        world.flow(1, 1)
        world.away()
        world.flow(5, 5)
        net.advance(10)
        world.back()
        assert world.got() in ([b"1", b"5", b"6"], [b"1", b"6"])
        assert (world.discarded(), world.lost) == (6 - len(world.got()), [])


@wasm
def test_a_module_that_fails_to_say_what_waits_goes_on() -> None:
    world = Waiting()
    with world.net:
        fails = '(func (export "keep") (param i32 i32 i32) (result i32) (unreachable))'
        event = r'(data (i32.const 0) "\01\00\00\00\ff\ff\ff\ff\ff\ff\ff\ff")'
        passes = f'{event} (func (export "process") (param i32 i32) (result i64) (i64.const 12))'
        world.consume_with(Modulator.wat(module(fails, passes)))
        world.away()
        world.flow(2, 3)
        world.back()
        assert world.got() == [b"1", b"2"]
        assert "keep() failed" in world.faulty[0].fault


@pytest.mark.parametrize("brokers", ["A", "AB"])
@pytest.mark.parametrize("seed", [1, *soaked(range(5, 60))])
def test_exactly_what_was_refused_is_missing(seed: int, brokers: str) -> None:
    """Links and nodes come and go, disks are slow; a count of all events shows that the state is right."""
    chance = random.Random(seed)
    names, links = f"{brokers}py", [("A", "p"), *((each, "y") for each in brokers), *combinations(brokers, 2)]
    world = Waiting(names, seed=seed, loss=chance.choice([0.0, 0.1]), disk_delay_s=chance.choice([0.0, 0.2]))
    with world.net as net:
        world.consume_with(Modulator.named("recent-count", keep_s=8), links)
        for _ in range(40):
            world.flow(chance.randrange(3), chance.choice([0.3, 2]))
            pair = chance.choice([*links, ("A", "y"), ("A", "y")])
            if net.linked(*pair):
                net.unlink(*pair)
            else:
                net.link(*pair)
            if chance.random() < 0.2:
                node = chance.choice(names)
                net.kill(node)
                net.advance(chance.choice([0.0, 3]))
                net.restart(node)
            net.advance(chance.choice([0.1, 1, 6]))
        for pair in links:
            if not net.linked(*pair):
                net.link(*pair)
        net.advance(120)
        world.flow(1, 10)
        got, stored = world.got(), sorted(world.producers)
        expected = {b"%d %d" % (count, number) for count, number in enumerate(stored, 1)}
        assert got == sorted(got, key=lambda each: int(each.split()[0]))
        assert set(got) <= expected
        assert expected - set(got) <= RecentCount.refused
        assert (world.discarded(), world.lost) == (len(expected) - len(got), [])
        assert got[-1].startswith(b"%d " % len(stored))
