"""The sweep: sets of messages pass over contacts, in order of time.

A node holds one whole number with a bit for each message. When two nodes find each other, each gains what the other has
and it lacks. A gain is passed on one hop delay later to the neighbours of that moment, and only that gain. So what
becomes of one message never depends on another one, and messages can be split over several sweeps.

At one instant contacts end first, then messages expire, then contacts open, then messages are published; what was
gained is passed on last. Neighbours are served in the order in which their contacts opened, and gains in the order in
which they came. Without delays all nodes that are connected hold the same live messages after every instant, which is
the flood bound.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from enum import IntEnum
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from carrypost.emu.arrays import Codes, Ints

Gain = tuple[int, int, int, int]
"""When, which node gave, which took, and what: a set of messages."""
GAINS_MAX = 2_048
"""About so many are handed over at a time."""
_STEPS_AT_ONCE = 1 << 16


class Step(IntEnum):
    """Order of things at one instant."""

    CLOSE = 0
    EXPIRE = 1
    OPEN = 2
    PUBLISH = 3


class Steps(NamedTuple):
    """Changes of a network from outside, by columns, in order."""

    t_us: Ints
    step: NDArray[np.int8]
    first: Codes
    """A node; of what expires or is published, the message."""
    second: Codes
    """The other node, or the author."""

    @classmethod
    def of(cls, *parts: tuple[Step, Ints, Codes, Codes]) -> Steps:
        """Put parts in order: of each its step, when, first and second. Equal ones stay in the order of their part."""
        step = np.concatenate([np.full(len(t_us), kind.value, np.int8) for kind, t_us, _, _ in parts])
        t_us = np.concatenate([part[1] for part in parts])
        first, second = (np.concatenate([part[2] for part in parts]), np.concatenate([part[3] for part in parts]))
        order = np.lexsort((step, t_us))
        return cls(t_us[order], step[order], first[order], second[order])

    def rows(self) -> Iterator[tuple[int, int, int, int]]:
        """Yield every step: when, which, first and second."""
        for start in range(0, len(self.t_us), _STEPS_AT_ONCE):
            part = slice(start, start + _STEPS_AT_ONCE)
            yield from zip(
                self.t_us[part].tolist(), self.step[part].tolist(), self.first[part].tolist(),
                self.second[part].tolist(), strict=True,
            )  # fmt: skip


def flow(steps: Steps, nodes: int, hop_us: int, end_us: int) -> Iterator[list[Gain]]:
    """Yield what nodes gain up to the end of the run, in order of time."""
    sweep = _Sweep(nodes, hop_us)
    due, near, held = sweep.due, sweep.near, sweep.held
    for t_us, step, first, second in steps.rows():
        if due and due[0][0] < t_us:
            sweep.pass_on(t_us)
        if step == Step.OPEN:
            near[first][second] = near[second][first] = None
            if held[first] != held[second]:
                sweep.level(t_us, first, second)
        elif step == Step.CLOSE:
            del near[first][second], near[second][first]
        elif step == Step.EXPIRE:
            sweep.alive &= ~(1 << first)
        else:
            sweep.publish(t_us, first, second)
        if len(sweep.gains) >= GAINS_MAX:
            yield sweep.gains
            sweep.gains = []
    sweep.pass_on(end_us)
    yield sweep.gains


class _Sweep:
    """Holdings and neighbours of all nodes, gains that are to be passed on, and gains that were not handed over yet."""

    def __init__(self, nodes: int, hop_us: int) -> None:
        self.held = [0] * nodes
        self.near: list[dict[int, None]] = [{} for _ in range(nodes)]
        self.alive = 0
        self.due: deque[tuple[int, int, int]] = deque()
        """By time, as all hops take equally long: when, who passes on, and what."""
        self.gains: list[Gain] = []
        self._hop_us = hop_us

    def publish(self, t_us: int, message: int, author: int) -> None:
        """Let an author have its message."""
        self.alive |= 1 << message
        self.held[author] |= 1 << message
        if self.near[author]:
            self.due.append((t_us + self._hop_us, author, 1 << message))

    def level(self, t_us: int, one: int, other: int) -> None:
        """Let two nodes that have found each other gain what the other has."""
        held = self.held
        if differ := (held[one] ^ held[other]) & self.alive:
            for giver, taker in ((one, other), (other, one)):
                if fresh := differ & held[giver]:
                    self.gains.append((t_us, giver, taker, fresh))
                    # Where the giver is the only neighbour, all later ones are given everything when they are found.
                    if len(self.near[taker]) > 1:
                        self.due.append((t_us + self._hop_us, taker, fresh))
            held[one] |= differ
            held[other] |= differ

    def pass_on(self, until_us: int) -> None:
        """Pass on everything that is due before this time."""
        due, near, held, alive, hop_us = self.due, self.near, self.held, self.alive, self._hop_us
        add = self.gains.append
        while due and due[0][0] < until_us:
            t_us, giver, gain = due.popleft()
            if gain := gain & alive:
                for taker in near[giver]:
                    # Not `gain & ~held`: a complement is a negative number, and takes three times as long.
                    if (known := gain & held[taker]) != gain:
                        fresh = gain ^ known
                        held[taker] |= fresh
                        add((t_us, giver, taker, fresh))
                        if len(near[taker]) > 1:
                            due.append((t_us + hop_us, taker, fresh))
