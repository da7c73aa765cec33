"""Seats that move while everything fails: each result must match all events before it, of all producers.

Crashes at every batch are tried around one relocation, of its source, its destination, both homes of producers and the
consumer. The search moves seats all the time, among losses, duplicates, reordering, slow and full disks, crashes, and
brokers that never return, while one producer joins and another one changes its home.
"""

from __future__ import annotations

import random
from typing import ClassVar

import pytest
from tests.support.channels import OVERLAY
from tests.support.crashing import Story, crash_everywhere
from tests.support.examples import soaked
from tests.support.relocating import Relocating

BROKERS = "ABCD"
NODES = BROKERS + "pqry"
LINKS = "AB BC CD DA AC pA pB qB qC rC rD yD yA"
RETURNED = 2009
"""Seed of a seat that comes back to a broker before it heard that the seat had arrived elsewhere."""


class Search:
    """A world whose seat moves and whose nodes fail, by a seed."""

    kind: ClassVar[type[Relocating]] = Relocating

    def __init__(self, seed: int) -> None:
        self.chance = chance = random.Random(seed)
        self.world = self.kind(
            NODES, seed=seed, loss=chance.choice([0.0, 0.1, 0.3]), duplicate=chance.choice([0.0, 0.1]),
            reorder=chance.choice([0.0, 0.2]), disk_delay_s=chance.choice([0.0, 0.05, 0.4]),
        )  # fmt: skip
        self.net = self.world.net
        self.dead = chance.choice(BROKERS) if chance.random() < 0.3 else ""
        """A broker that will not return."""

    def run(self, moves: int) -> list[str]:
        """Play the search; return the faults at its end."""
        world = self.world
        world.begin(LINKS)
        results = world.chain("y")
        self.net.advance(5)
        for at in range(moves):
            self._move("pq" if at < moves / 2 else "pqr")
        self._heal()
        healed, wrong = self.net.now, ["nothing was checked"]
        for _ in range(40):
            for node in "pqr" if wrong else "":
                world.emit(node)
            self.net.advance(10 if wrong else 0)
            wrong = world.wrong(results, closed=healed)
        return wrong

    def _move(self, producers: str) -> None:
        chance, world, net = self.chance, self.world, self.net
        roll = chance.random()
        if roll < 0.5:
            world.emit(chance.choice(producers))
        elif roll < 0.7:
            for here in world.seats():
                world.migrate(here, "y", chance.choice([each for each in BROKERS if each not in world.down | {here}]))
        elif roll < 0.75:
            for each in BROKERS:
                if net.linked("q", each):
                    net.unlink("q", each)
            net.link("q", chance.choice(BROKERS))
        elif roll < 0.8:
            self._crash(chance.choice(BROKERS + "y"))
        elif roll < 0.83:
            net.fill_disk(chance.choice(NODES), full=chance.random() < 0.5)
        net.advance(chance.choice([0.01, 0.1, 0.5, 2.0]))

    def _crash(self, node: str) -> None:
        """Crash a node, or let one return."""
        down = self.world.down
        if down:
            back = min(down)
            if back != self.dead:
                self.net.restart(back)
                down.discard(back)
        else:
            self.net.kill(node)
            down.add(node)

    def _heal(self) -> None:
        down = self.world.down
        for node in sorted(down - {self.dead}):
            self.net.restart(node)
            down.discard(node)
        for node in NODES:
            self.net.fill_disk(node, full=False)
        for pair in LINKS.split():
            if not self.net.linked(*pair):
                self.net.link(*pair)


@pytest.mark.parametrize("seed", [1, RETURNED, *soaked(range(2, 1_001))])
def test_results_fit_all_events_before_them_whatever_fails(seed: int) -> None:
    search = Search(seed)
    with search.net:
        assert search.run(45) == []


# --- crashes at every batch --------------------------------------------------------------------------------


class Move(Story):
    """One relocation from B to C, with producers at A and D; a node that crashes is back after a second."""

    roles: ClassVar[dict[str, str]] = {
        "home": "A",
        "source": "B",
        "destination": "C",
        "other home": "D",
        "consumer": "y",
    }
    producers, links = "pq", "AB BC CD DA AC pA qD yB yC"

    def __init__(self, delay_s: float) -> None:
        world = Relocating("ABCDpq", seed=3, disk_delay_s=delay_s)
        world.net.add("y", overlay=OVERLAY | {"homing": "static"})
        super().__init__(world)

    def play(self) -> None:
        self.emit(2)
        self.guarded(lambda: self.world.migrate("B", "y", "C"))
        for _ in range(4):
            self.emit(5)
            self.restart()

    def tell(self, node: str = "", fuse: int = -1, *, after: bool = False) -> tuple[list[str], dict[str, int]]:
        told = super().tell(node, fuse, after=after)
        assert node or len(self.world.relocated) == 1
        return told


@pytest.mark.parametrize(("delay_s", "every"), [(0.05, 199), pytest.param(0.05, 1, marks=pytest.mark.soak)])
def test_a_crash_at_any_batch_of_a_relocation_loses_nothing(delay_s: float, every: int) -> None:
    points, wrong = crash_everywhere(lambda: Move(delay_s), every)
    assert points > 300
    assert wrong == []
