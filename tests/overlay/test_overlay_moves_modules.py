"""Seats of WebAssembly modulators that move while everything fails, among brokers of which one lacks the extra."""

from __future__ import annotations

import re
from functools import reduce
from typing import ClassVar

import pytest
from tests.overlay.test_overlay_moves_search import BROKERS, Search
from tests.support.examples import soaked
from tests.support.relocating import Relocating, hashed
from tests.support.wasm_modules import example

from carrypost.log.events import Event
from carrypost.model.ids import MessageId, NodeId
from carrypost.overlay.events import Homed
from carrypost.overlay.items import Role
from carrypost.overlay.modulators import programs
from carrypost.overlay.modulators.modules import Modules

pytest.importorskip("wasmtime", reason="WebAssembly modulators need the extra: pip install '.[wasm]'")

SHOWN = 2
"""Seed of a short run in which the seat moves, and the broker without the extra refuses it."""


class Hoarding(Relocating):
    """A world in which one consumer has the module `hoard`: each result lists all events of its state."""

    def __init__(self, names: str, **options: object) -> None:
        super().__init__(names, overlay={"modulators": "any"}, **options)
        self.working: list[str] = []
        """Brokers that had the seat, one after the other."""

    def _watch(self, at: float, node: str, event: Event) -> None:
        super()._watch(at, node, event)
        if isinstance(event, Homed) and event.role is Role.CONSUMER:
            self.working.append(self.net.name(event.broker))

    def chain(self, node: str, relocation: str = "strict") -> str:
        destination = self.net.consume(node, "flood", example("hoard"), relocation=relocation)
        self.since[destination] = node, self.net.now
        return destination

    def results(self, destination: str) -> list[tuple[bytes, list[str]]]:
        """Return the results as those of `chain`: the hash of all events, and those that the previous result lacked."""
        payloads: dict[MessageId, bytes] = {}
        for each in self.net.deliveries(self.since[destination][0]):
            if each.descriptor.destination == destination:
                payloads.setdefault(each.message, each.payload)
        histories: list[list[str]] = [re.findall(r"[a-z]\d+", each.decode()) for each in payloads.values()]
        lengths = [0, *map(len, histories)]
        return [(reduce(hashed, each, b""), each[before:]) for before, each in zip(lengths, histories, strict=False)]


class ModuleSearch(Search):
    """The search with a module, and one broker that cannot run any."""

    kind: ClassVar[type[Relocating]] = Hoarding
    world: Hoarding

    def __init__(self, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
        super().__init__(seed)
        self.bare = BROKERS[seed % len(BROKERS)]
        self.refused = 0
        """Times that the broker without the extra was to run the module."""
        check = Modules._check  # noqa: SLF001 - all hosts share one process

        def checked(modules: Modules, client: NodeId) -> None:
            with monkeypatch.context() as extra:
                if self.net.name(modules._legs._node) == self.bare:  # noqa: SLF001 - likewise
                    self.refused += 1
                    extra.setattr(programs, "is_installed", lambda: False)
                check(modules, client)

        monkeypatch.setattr(Modules, "_check", checked)


@pytest.mark.parametrize("seed", [SHOWN, *soaked(range(100, 200))])
def test_seats_of_modules_move_and_never_to_a_broker_without_the_extra(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    search = ModuleSearch(seed, monkeypatch)
    with search.net:
        assert search.run(14 if seed == SHOWN else 45) == []
        assert search.bare not in search.world.working
        assert (search.refused and len(set(search.world.working)) > 1) or seed != SHOWN
