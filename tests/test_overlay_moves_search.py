"""Seats that move while everything fails: each result has to fit all events before it, of all producers.

Crashes at every batch are tried around one relocation, of its source, its destination, both homes of producers and the
consumer. The search moves seats all the time, among losses, duplicates, reordering, slow and full disks, crashes, and
brokers that never return, while one producer joins and another one changes its home.
"""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest
from tests.channels import OVERLAY
from tests.examples import soaked
from tests.relocating import Relocating
from tests.watched_network import CrashError, FaultyStore

BROKERS = "ABCD"
NODES = BROKERS + "pqry"
LINKS = "AB BC CD DA AC pA pB qB qC rC rD yD yA"
RETURNED = 2009
"""Seed of a seat that comes back to a broker before it heard that the seat had arrived elsewhere."""


class Search:
    """A world whose seat moves and whose nodes fail, by a seed."""

    def __init__(self, seed: int) -> None:
        self.chance = chance = random.Random(seed)
        self.world = Relocating(
            NODES, seed=seed, loss=chance.choice([0.0, 0.1, 0.3]), duplicate=chance.choice([0.0, 0.1]),
            reorder=chance.choice([0.0, 0.2]), disk_delay_s=chance.choice([0.0, 0.05, 0.4]),
        )  # fmt: skip
        self.net = self.world.net
        self.dead = chance.choice(BROKERS) if chance.random() < 0.3 else ""
        """A broker that will not return."""

    def run(self, moves: int) -> list[str]:
        """Play; returns what is wrong in the end."""
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


@pytest.mark.parametrize("seed", [*range(1, 11), RETURNED, *soaked(range(11, 1_001))])
def test_results_fit_all_events_before_them_whatever_fails(seed: int) -> None:
    search = Search(seed)
    with search.net:
        assert search.run(45) == []


# --- crashes at every batch --------------------------------------------------------------------------------

ROLES = {"home": "A", "source": "B", "destination": "C", "other home": "D", "consumer": "y"}


class Story:
    """One relocation from B to C, with producers at A and D; a node that crashes is back after a second."""

    def __init__(self, delay_s: float) -> None:
        self.world = Relocating("ABCDpq", seed=3, disk_delay_s=delay_s)
        self.net = self.world.net
        self.net.add("y", overlay=OVERLAY | {"homing": "static"})
        for node in ROLES.values():
            self.net._driver(node).disk.store = FaultyStore(node)  # noqa: SLF001 - there is no other way to make a disk faulty
        self.crashes = 0

    def store(self, node: str) -> FaultyStore:
        store = self.net._driver(node).store  # noqa: SLF001 - as above
        assert isinstance(store, FaultyStore)
        return store

    def tell(self, node: str = "", fuse: int = -1, *, after: bool = False) -> tuple[list[str], dict[str, int]]:
        """Tell the story. Returns what is wrong in the end, and the batches of each node meanwhile."""
        world, net = self.world, self.net
        world.begin("AB BC CD DA AC pA qD yB yC")
        results = world.chain("y")
        net.advance(5)
        self._emit(4)
        before = {each: self.store(each).batches for each in ROLES.values()}
        if node:
            self.store(node).fuse, self.store(node).after = fuse, after
        self._emit(2)
        self._guarded(lambda: world.migrate("B", "y", "C"))
        for _ in range(4):
            self._emit(5)
            for each in sorted(world.down):
                net.restart(each)
            world.down.clear()
        used = {each: self.store(each).batches - number for each, number in before.items()}
        for each in ROLES.values():
            self.store(each).fuse = -1
        over, wrong = net.now, ["nothing was checked"]
        for _ in range(20):
            self._emit(1 if wrong else 0)
            net.advance(5 if wrong else 0)
            wrong = world.wrong(results, closed=over)
        return wrong, used

    def _emit(self, count: int) -> None:
        for _ in range(count):
            for node in "pq":
                self.world.emit(node)
            end = self.net.now + 0.2
            while round((end - self.net.now) * 1e6) > 0:
                self._guarded(lambda end=end: self.net.advance(end - self.net.now))  # type: ignore[misc]

    def _guarded(self, act: Callable[[], object]) -> None:
        try:
            act()
        except CrashError as crash:
            self.crashes += 1
            self.net.kill(crash.node)
            self.world.down.add(crash.node)


def crash_everywhere(delay_s: float, every: int) -> tuple[int, list[str]]:
    """Crash at one of so many points; returns the number of points that there are, and what went wrong."""
    story = Story(delay_s)
    with story.net:
        wrong, used = story.tell()
    assert wrong == []
    assert len(story.world.relocated) == 1
    points, found = 0, []
    for role, node in ROLES.items():
        for fuse in range(1, used[node] + 1):
            for after in (False, True):
                points += 1
                if points % every == 0:
                    story = Story(delay_s)
                    with story.net:
                        wrong, _ = story.tell(node, fuse, after=after)
                    place = f"{role} {'after' if after else 'before'} batch {fuse} of {used[node]}"
                    found += [f"{place}: {each}" for each in wrong]
                    assert story.crashes, place
    return points, found


@pytest.mark.parametrize(("delay_s", "every"), [(0.05, 199), pytest.param(0.05, 1, marks=pytest.mark.soak)])
def test_a_crash_at_any_batch_of_a_relocation_loses_nothing(delay_s: float, every: int) -> None:
    points, wrong = crash_everywhere(delay_s, every)
    assert points > 300
    assert wrong == []
