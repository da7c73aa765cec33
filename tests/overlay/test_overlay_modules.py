"""Modules of clients at brokers: they travel, are compiled, run, move and are refused with a reason."""

from __future__ import annotations

import re
import sys
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, cast

import pytest
from tests.overlay.test_overlay_modulated import Modulated, count_across_restarts, weather
from tests.support.channels import Storm
from tests.support.examples import soaked
from tests.support.wasm_modules import example, module, process

from carrypost.config import Limits
from carrypost.errors import LocalError
from carrypost.log.events import Event
from carrypost.model import address
from carrypost.model.ids import NodeId
from carrypost.overlay.events import HomeRefused
from carrypost.overlay.modulators.modulator import Modulator
from carrypost.overlay.modulators.modules import CompileWanted, Modules

if TYPE_CHECKING:
    from carrypost.gossip.holdings.copies import Copy
    from carrypost.gossip.transfers.link import HostContext
    from carrypost.overlay.items import Item, Outbox
    from carrypost.overlay.legs import Legs

pytest.importorskip("wasmtime", reason="WebAssembly modulators need the extra: pip install '.[wasm]'")


class Modular(Modulated):
    """A world whose brokers run modules of any node, unless the test says otherwise."""

    def __init__(self, names: str, overlay: dict[str, object] | None = None, **options: object) -> None:
        self.compiled = 0
        self.told: list[str] = []
        super().__init__(names, overlay={"modulators": "any"} | (overlay or {}), **options)

    def _watch(self, at: float, node: str, event: Event) -> None:
        super()._watch(at, node, event)
        if isinstance(event, HomeRefused):
            self.told.append(f"{event.reason}: {event.detail}")
        elif isinstance(event, CompileWanted):
            self.compiled += 1

    def count(self, links: str) -> str:
        """Let y consume with a module that counts events; returns the destination of the results."""
        self.begin(links)
        destination = self.net.consume("y", "flood", example("every_nth", b"\1"))
        self.net.advance(10)
        return destination

    def counted(self, destination: str) -> int:
        """Return the number of events that the module counted, and reported in order and once each."""
        counts = [int(each) for each in self.results("y", destination)[1::2]]
        assert counts == list(range(1, len(counts) + 1))
        return len(counts)


@pytest.mark.parametrize("security", ["off", "signed"])
def test_home_brokers_run_modules_of_their_clients(security: str) -> None:
    world = Modular("ABCpqyz", security=security)
    with world.net as net:
        world.begin("AB BC pA qA Cy Cz")
        third = net.consume("y", "flood", example("every_nth", b"\3"))
        second = net.consume("z", "flood", example("every_nth", b"\2"))
        net.advance(10)
        world.flow(6, 0.5)
        net.advance(10)
        assert world.results("y", third) == [b"3", b"3", b"6", b"6"]
        assert world.results("z", second) == [b"2", b"2", b"4", b"4", b"6", b"6"]
        assert (world.compiled, world.lost, world.faulty) == (1, [], [])


def test_a_module_keeps_its_state_when_its_home_restarts() -> None:
    count_across_restarts(Modular("Apy"), example("every_nth", b"\3"))


def test_events_that_come_before_the_module_is_back_wait_for_it() -> None:
    world = Modular("ABpy")
    with world.net as net:
        destination = world.count("AB pA By")
        world.flow(3, 1)
        net.kill("B")
        net.advance(1)
        net.restart("B")
        net.unlink("B", "y")
        net.advance(2)
        world.flow(2, 1)
        net.link("B", "y")
        net.advance(20)
        assert world.counted(destination) == 5
        assert world.lost == []


def test_a_client_that_restarts_still_has_its_module() -> None:
    world = Modular("ABpy")
    with world.net as net:
        world.begin("Ap Ay AB")
        second = net.consume("y", "flood", example("every_nth", b"\2"))
        net.advance(5)
        net.kill("y")
        net.advance(1)
        net.restart("y")
        net.kill("A")
        net.link("B", "p")
        net.link("B", "y")
        net.advance(60)
        world.flow(4, 2)
        net.advance(20)
        assert world.results("y", second) == [b"2", b"2", b"4", b"4"]


def test_a_broker_runs_modules_of_its_own_programs() -> None:
    world = Modular("Ap")
    with world.net as net:
        world.begin("Ap")
        second = net.consume("A", "flood", example("every_nth", b"\2"))
        net.advance(5)
        world.flow(4, 1)
        net.advance(10)
        assert world.results("A", second) == [b"2", b"2", b"4", b"4"]


def test_modules_change_while_events_flow() -> None:
    world = Modular("Apy")
    with world.net as net:
        world.begin("Ap Ay")
        destination = net.consume("y", "flood", example("every_nth", b"\2"))
        net.advance(5)
        for now in (example("hoard"), Modulator.named("selector", text="FALSE"), example("every_nth", b"\1")):
            world.emit("p")
            world.emit("p")
            net.advance(5)
            net.host("y").overlay.change(destination, now, round(net.now * 1e6))
            net.advance(5)
        world.emit("p")
        net.advance(5)
        assert world.results("y", destination) == [b"2", b"2", b"3", b"34", b"7", b"1"]
        assert (world.compiled, world.lost) == (2, [])


def test_faults_of_a_module_are_told_and_survived() -> None:
    world = Modular("Apy")
    with world.net as net:
        world.begin("Ap Ay")
        every = net.consume("y", "flood", example("every_nth", b"\1"))
        net.advance(5)
        for payload in (b"a", b"fail", b"b", b"fail", b"fail", b"c"):
            world.emit("p", payload)
            net.advance(1)
        net.advance(10)
        assert world.results("y", every) == [b"a", b"1", b"b", b"2", b"c", b"3"]
        assert [each.number for each in world.faulty] == [2, 4, 5]
        assert {each.fault for each in world.faulty} == {"WasmFault: process() failed: unreachable"}


IMPORTS = Modulator.wat('(module (import "env" "clock" (func)))')
REFUSALS: dict[str, tuple[dict[str, object], Modulator, str]] = {
    "named only": ({"modulators": "named"}, example("hoard"), 'only (overlay.modulators = "named")'),
    "not an author": ({"modulators": "trusted"}, example("hoard"), "modules of listed authors only"),
    "imports": ({}, IMPORTS, "a module must not import anything, but this one imports env.clock"),
    "no module": ({}, Modulator.wasm(b"text"), "a module must begin with the header of WebAssembly"),
    "parameters": ({}, example("every_nth", b"xx"), "open() refused the parameters: it returned 1"),
    "endless start": ({}, Modulator.wat(module("(func $s (loop $l (br $l))) (start $s)")), "start used up its fuel"),
    "another version": ({}, Modulator.named("box", version=2, area=[0, 0, 1, 1]), "has version 1 here, not 2"),
    "parameters of a class": ({}, Modulator.named("box", version=1), "does not accept these parameters"),
}  # fmt: skip


@pytest.mark.parametrize(("overlay", "modulator", "said"), REFUSALS.values(), ids=REFUSALS)
def test_a_refusal_tells_the_program_why(overlay: dict[str, object], modulator: Modulator, said: str) -> None:
    world = Modular("Apy", overlay)
    with world.net as net:
        world.begin("Ap Ay")
        net.consume("y", "flood", modulator)
        net.advance(20)
        assert net.overlay("y").homes == {}
        assert world.told[0].startswith("modulator: ")
        assert said in world.told[0]
        assert len(world.told) == 1  # It is not asked again at once.
        assert world.compiled <= 1


def test_a_refusal_of_one_client_does_not_concern_others_of_its_node() -> None:
    world = Modular("Ay")
    with world.net as net:
        world.begin("Ay")
        net.consume("y", "flood", IMPORTS)
        net.advance(10)
        hoard = net.consume("y", "flood", example("hoard"))
        net.advance(5)
        world.emit("y")
        net.advance(5)
        assert world.results("y", hoard) == [b"1"]
        net.advance(70)
        assert len(world.told) == 2  # The other one is asked again after a minute.


def test_authors_that_are_listed_are_trusted() -> None:
    world = Modular("Apyz", {"modulators": "trusted", "authors": ["y"]})
    with world.net as net:
        world.begin("Ap Ay Az")
        net.consume("y", "flood", example("every_nth", b"\1"))
        net.advance(5)
        assert net.overlay("y").homes == {"flood": "A"}
        net.consume("z", "flood", example("hoard"))
        net.advance(5)
        assert net.overlay("z").homes == {}


def test_own_modules_are_checked_and_forgotten() -> None:
    world = Modular("Ay")
    with world.net as net:
        world.begin("Ay")
        host = net.host("y")
        with pytest.raises(LocalError, match="the module of this modulator is missing"):
            net.consume("y", "flood", example("hoard").reference)
        with pytest.raises(LocalError, match="more than 32,768"):
            net.consume("y", "flood", Modulator.wasm(bytes(32_769)))
        first = net.consume("y", "flood", example("hoard"))
        second = net.consume("y", "flood", example("hoard").reference)  # It is here.
        net.advance(5)
        for destination in (first, second):
            host.overlay.close(destination, round(net.now * 1e6))
        with pytest.raises(LocalError, match="the module of this modulator is missing"):
            net.consume("y", "flood", example("hoard").reference)


def test_programs_and_refusals_are_bounded() -> None:
    world = Modular("Apy", limits={"modules_max": 2})
    with world.net as net:
        world.begin("Ap Ay")
        texts = [process(f"(i64.const {number})") for number in range(1, 4)]
        destinations = []
        for text in texts:
            destinations.append(net.consume("y", "flood", Modulator.wat(text)))
            net.advance(5)
        assert "2 modules at work (limits.modules_max)" in world.told[-1]
        net.host("y").overlay.close(destinations[0], round(net.now * 1e6))
        net.advance(120)  # The broker is asked again, and forgets the one that is idle.
        assert world.compiled == 3


class Desk:
    """The parts of a host that `Modules` uses, without the rest of it."""

    def __init__(self, **limits: int) -> None:
        self.settings = SimpleNamespace(overlay=SimpleNamespace(broker=True, modulators="any", authors=()))
        self.limits, self.outputs = Limits(**limits), self
        self.refused: list[tuple[str, str]] = []
        self.held = 0
        self.modules = Modules(cast("HostContext", self), cast("Legs", self), cast("Outbox", self))

    def refuse(self, reason: str, node: str, _: str) -> None:
        self.refused.append((reason, node))

    def emit(self, _: Event) -> None:
        pass

    def add(self, _to: NodeId, _item: Item) -> None:
        pass

    def hold(self, _: Copy) -> None:
        self.held += 1

    def release(self, _: Copy) -> None:
        self.held -= 1

    def want(self, modulator: Modulator, client: str) -> None:
        self.modules.program(modulator, NodeId(client), 0, set)

    def arrive(self, modulator: Modulator, author: str, size: int) -> None:
        original = SimpleNamespace(destination=address.module(modulator.digest), node=author, size=size)
        copy = SimpleNamespace(descriptor=SimpleNamespace(original=original, shown=""))
        self.modules.arrived([cast("Copy", copy)])


def test_no_client_has_the_module_of_another_one_refused_by_its_digest_alone() -> None:
    desk, wanted = Desk(), example("hoard")
    desk.want(wanted, "z")
    desk.arrive(wanted, "w", 99_999)
    assert desk.refused == [("module", "w")]
    desk.arrive(wanted, "z", 99_999)
    with pytest.raises(LocalError, match="the module has 99,999 bytes"):
        desk.want(wanted, "z")
    desk.want(wanted, "y")
    desk.arrive(wanted, "y", len(wanted.module))
    assert desk.held == 1
    desk.want(wanted, "z")


def test_a_module_that_is_forgotten_while_it_is_read_is_not_held_any_longer() -> None:
    desk = Desk(modules_max=1)
    desk.want(example("hoard"), "y")
    desk.arrive(example("hoard"), "y", 300)
    assert desk.held == 1
    desk.want(example("sum"), "y")
    assert desk.held == 0


# --- moving ------------------------------------------------------------------------------------------------


def test_the_seat_of_a_module_follows_its_consumer_with_its_state() -> None:
    world = Modular("ABCpy")
    with world.net as net:
        every = world.count("AB BC AC pA yB")
        world.flow(11, 0.5, b"e")
        net.link("y", "C")
        net.unlink("y", "B")
        world.flow(19, 0.5, b"e")
        net.advance(20)
        assert net.overlay("y").homes == {"flood": "C"}
        assert world.counted(every) == 30
        assert (world.compiled, world.lost) == (2, [])


def test_a_seat_stays_where_it_is_if_nearer_brokers_do_not_run_its_module() -> None:
    world = Modular("ABCpy")
    with world.net as net:
        for other in "AC":
            net.host(other).overlay._overlay.seats.modules._allowed = "named"  # noqa: SLF001 - a setting of some brokers
        every = world.count("AB BC AC pA yB")
        net.link("y", "C")
        net.unlink("y", "B")
        world.flow(10, 2, b"e")
        net.advance(20)
        assert net.overlay("y").homes == {"flood": "B"}
        assert world.counted(every) == 10
        assert world.compiled == 1


def test_a_seat_stays_where_it_is_if_the_nearer_broker_has_no_webassembly(monkeypatch: pytest.MonkeyPatch) -> None:
    world = Modular("ABCpy")
    with world.net as net:
        every = world.count("AB BC AC pA yB")
        world.flow(3, 1, b"e")
        monkeypatch.setitem(sys.modules, "wasmtime", None)  # B has its program already.
        monkeypatch.delitem(sys.modules, "carrypost.overlay.modulators.wasm")
        net.link("y", "C")
        net.unlink("y", "B")
        world.flow(10, 2, b"e")
        net.advance(20)
        assert net.overlay("y").homes == {"flood": "B"}
        assert world.counted(every) == 13
        assert (world.compiled, world.lost) == (1, [])
        assert net.host("C").overview().refused["modulator"] >= 1


def test_another_home_adopts_the_seat_of_a_module_with_its_state() -> None:
    world = Modular("ABpy")
    with world.net as net:
        every = world.count("Ap Ay AB")
        world.flow(11, 1, b"e")
        net.advance(10)
        net.kill("A")
        net.link("B", "p")
        net.link("B", "y")
        world.flow(9, 1, b"e")
        net.advance(60)
        assert net.overlay("y").homes == {"flood": "B"}
        assert world.counted(every) == 20


class Hoarding(Modular):
    """A world whose consumers have the module `hoard`: each result lists all events of its state."""

    def emit(self, node: str, payload: bytes | None = None) -> None:
        super().emit(node, payload or f"{self.emitted + 1};".encode())

    def wrong(self, node: str, destination: str) -> list[str]:
        """Return the missing, repeated and misplaced results, and states that differ from the results before."""
        histories = [each.decode() for each in self.results(node, destination)]
        found = [f"{each!r} after {before!r}" for before, each in pairwise(histories) if not each.startswith(before)]
        events = [int(each) for each in histories[-1].split(";")[:-1]] if histories else []
        if len(set(events)) < len(events) or len(events) < len(histories):
            found.append(f"repeated: {events}")
        return found + self.displaced(destination, events, set(self.producers))


@pytest.mark.parametrize("seed", [1, *soaked(range(2, 100))])
def test_results_and_states_of_modules_are_right_whatever_fails(seed: int) -> None:
    storm = Storm(seed, Hoarding)
    with storm.world.net:
        weather(storm, example("hoard"))


# --- documents ---------------------------------------------------------------------------------------------


def test_the_examples_of_modules_in_the_document_work(monkeypatch: pytest.MonkeyPatch) -> None:
    root = Path(__file__).parents[2]
    text = (root / "docs" / "modulators.md").read_text(encoding="utf-8")
    (shown,) = re.findall(r"^```wat\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    assert shown in (root / "examples" / "modulators" / "sum.wat").read_text(encoding="utf-8")
    (program,) = re.findall(r"^```py\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    monkeypatch.chdir(root)
    found: dict[str, object] = {}
    exec(program, found)  # noqa: S102 - as a reader would
    assert "net" in found
