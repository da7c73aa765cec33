"""Stories of channels in which a node crashes at a chosen batch, and is back a little later."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import ClassVar

from tests.support.relocating import Relocating
from tests.support.watched_network import CrashError, FaultyStore


class Story(ABC):
    """A story with a consumer y, whose modulator hashes all events before a result."""

    roles: ClassVar[dict[str, str]]
    """Nodes that may crash, by their role."""
    producers: str
    links: str
    """At the beginning, and in the end."""

    def __init__(self, world: Relocating) -> None:
        self.world, self.net = world, world.net
        for node in self.roles.values():
            self.net._driver(node).disk.store = FaultyStore(node)  # noqa: SLF001 - there is no other way to make a disk faulty
        self.crashes = 0

    @abstractmethod
    def play(self) -> None:
        """Do what crashes are to disturb."""

    def store(self, node: str) -> FaultyStore:
        store = self.net._driver(node).store  # noqa: SLF001 - as above
        assert isinstance(store, FaultyStore)
        return store

    def tell(self, node: str = "", fuse: int = -1, *, after: bool = False) -> tuple[list[str], dict[str, int]]:
        """Play the story; return the faults at its end, and the number of batches of each node."""
        self.world.begin(self.links)
        results = self.world.chain("y")
        self.net.advance(5)
        self.emit(4)
        before = {each: self.store(each).batches for each in self.roles.values()}
        if node:
            self.store(node).fuse, self.store(node).after = fuse, after
        self.play()
        used = {each: self.store(each).batches - number for each, number in before.items()}
        for each in self.roles.values():
            self.store(each).fuse = -1
        self.restart()
        for pair in self.links.split():
            if not self.net.linked(*pair):
                self.net.link(*pair)
        over, wrong = self.net.now, ["nothing was checked"]
        for _ in range(20):
            self.emit(1 if wrong else 0)
            self.net.advance(5 if wrong else 0)
            wrong = self.world.wrong(results, closed=over)
        return wrong, used

    def emit(self, count: int) -> None:
        for _ in range(count):
            for node in self.producers:
                self.guarded(lambda node=node: self.world.emit(node))  # type: ignore[misc]
            self.wait(0.2)

    def wait(self, seconds: float) -> None:
        end = self.net.now + seconds
        while round((end - self.net.now) * 1e6) > 0:
            self.guarded(lambda: self.net.advance(end - self.net.now))

    def restart(self) -> None:
        """Let nodes return that crashed."""
        for each in sorted(self.world.down):
            self.net.restart(each)
        self.world.down.clear()

    def guarded(self, act: Callable[[], object]) -> None:
        try:
            act()
        except CrashError as crash:
            self.crashes += 1
            self.net.kill(crash.node)
            self.world.down.add(crash.node)


def crash_everywhere(make: Callable[[], Story], every: int) -> tuple[int, list[str]]:
    """Crash at every n-th point; return the number of points, and what went wrong."""
    story = make()
    with story.net:
        wrong, used = story.tell()
    assert wrong == []
    points, found = 0, []
    for role, node in story.roles.items():
        for fuse in range(1, used[node] + 1):
            for after in (False, True):
                points += 1
                if points % every == 0:
                    story = make()
                    with story.net:
                        wrong, _ = story.tell(node, fuse, after=after)
                    place = f"{role} {'after' if after else 'before'} batch {fuse} of {used[node]}"
                    found += [f"{place}: {each}" for each in wrong]
                    assert story.crashes, place
    return points, found
