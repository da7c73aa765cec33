"""A network of test models: messages that are delayed, lost, doubled and reordered, and nodes that crash."""

from __future__ import annotations

import heapq
from collections.abc import Callable
from itertools import count
from random import Random
from typing import NamedTuple, Protocol

SECOND = 1_000_000
DELAY_US = 10_000
CARRIED_US = 300_000
"""Time after which carried messages are tried again."""


class Weather(NamedTuple):
    """Faults of the network, and of nodes."""

    loss: float = 0.0
    doubled: float = 0.0
    jitter_us: int = 0
    crashes_per_s: float = 0.0


class Node(Protocol):
    """Something that takes messages."""

    up: bool

    def receive(self, author: str, message: object) -> None:
        """Take a message."""


class Net:
    """Nodes by name, and the messages between them."""

    def __init__(self, seed: int, weather: Weather) -> None:
        self.rng, self.weather, self.now = Random(seed), weather, 0
        self.nodes: dict[str, Node] = {}
        self._queue: list[tuple[int, int, Callable[[], None]]] = []
        self._numbers = count()

    def at(self, at_us: int, call: Callable[[], None]) -> None:
        """Call something then."""
        heapq.heappush(self._queue, (at_us, next(self._numbers), call))

    def every(self, period_us: int, call: Callable[[], None], until_us: int) -> None:
        """Call something again and again, from a random moment on."""

        def again() -> None:
            if self.now < until_us:
                call()
                self.at(self.now + period_us, again)

        self.at(self.now + self.rng.randrange(period_us), again)

    def send(self, author: str, to: str, message: object, *, carried: bool = False) -> None:
        """Send a message. One to the node itself is a call; a carried one arrives sooner or later."""
        if author == to:
            self.nodes[to].receive(author, message)
            return
        lost = self.rng.random() < self.weather.loss
        if carried and (lost or not self.nodes[to].up):
            self.at(self.now + CARRIED_US, lambda: self.send(author, to, message, carried=True))
            return
        copies = (not lost) + (self.rng.random() < self.weather.doubled)
        for _ in range(copies):
            delay_us = DELAY_US + round(self.rng.random() * self.weather.jitter_us)
            self.at(self.now + delay_us, lambda: self._arrive(author, to, message))

    def _arrive(self, author: str, to: str, message: object) -> None:
        if self.nodes[to].up:
            self.nodes[to].receive(author, message)

    def run(self, until_us: int) -> None:
        """Let time pass."""
        while self._queue and self._queue[0][0] <= until_us:
            self.now, _, call = heapq.heappop(self._queue)
            call()
        self.now = until_us
