"""The sweep: sets of messages pass over contacts, in order of time.

A node holds one whole number with a bit for each message. When two nodes find each other, each gains what the other has
and it lacks. A gain is passed on to each neighbour one hop delay later, and only that gain. The delay depends on the
two nodes, on the time of the gain and on its giver, but not on what it is. So what becomes of one message never depends
on another one, and messages can be split over several sweeps.

At one instant contacts end first, then messages expire, then contacts open, then messages are published; what was
gained is passed on last, all that is due at that time before any of it goes further. Neighbours are served in the order
in which their contacts opened, and gains in the order in which they came. Without delays all nodes that are connected
hold the same live messages after every instant, which is the flood bound.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from enum import IntEnum
from heapq import heappop, heappush
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from carrypost.emu.arrays import Codes, Ints
from carrypost.emu.population.delays import SHIFT, SPREAD, WORD, Hops

Gain = tuple[int, int, int, int]
"""When, which node gave, which took, and what: a set of messages."""
_Due = tuple[int, int, int, int, int]
"""When, in which order, from which node, to which, and what."""
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


def flow(steps: Steps, hops: Hops, end_us: int) -> Iterator[list[Gain]]:
    """Yield what nodes gain up to the end of the run, in order of time."""
    sweep = _Sweep(hops, end_us)
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

    def __init__(self, hops: Hops, end_us: int) -> None:
        nodes = len(hops.leaving)
        self.held = [0] * nodes
        self.near: list[dict[int, None]] = [{} for _ in range(nodes + 1)]
        """The last one has no neighbours: it stands for the giver of what a node publishes."""
        self.alive = 0
        self.due: list[_Due] = []
        """A heap."""
        self.gains: list[Gain] = []
        self._spread = _spreading(self.held, self.near, self.due, hops, end_us)

    def publish(self, t_us: int, message: int, author: int) -> None:
        """Let an author have its message."""
        self.alive |= 1 << message
        self.held[author] |= 1 << message
        self._spread(t_us, -1, author, 1 << message)

    def level(self, t_us: int, one: int, other: int) -> None:
        """Let two nodes that have found each other gain what the other has."""
        held = self.held
        if differ := (held[one] ^ held[other]) & self.alive:
            gains = (one, other, differ & held[one]), (other, one, differ & held[other])
            held[one] |= differ
            held[other] |= differ
            for giver, taker, gain in gains:
                if gain:
                    self.gains.append((t_us, giver, taker, gain))
                    self._spread(t_us, giver, taker, gain)

    def pass_on(self, until_us: int) -> None:
        """Pass on everything that is due before this time."""
        due, near, held, alive = self.due, self.near, self.held, self.alive
        while due and (t_us := due[0][0]) < until_us:
            came: list[Gain] = []
            while due and due[0][0] == t_us:
                _, _, giver, taker, gain = heappop(due)
                if taker in near[giver]:
                    gain &= alive
                    # Not `gain & ~held`: a complement is a negative number, and takes three times as long.
                    if (known := gain & held[taker]) != gain:
                        gain ^= known
                        held[taker] |= gain
                        came.append((t_us, giver, taker, gain))
            # Only now: what comes to many at once need not be sent from each of them to all others.
            for each in came:
                self._spread(*each)
            self.gains += came


def _spreading(
    held: list[int], near: list[dict[int, None]], due: list[_Due], hops: Hops, end_us: int
) -> Callable[[int, int, int, int], None]:
    """Return the function that lets neighbours of a node have its gain: when, who gave, the node, and what."""
    published_us, relayed_us, awaited_us, leaving, arriving = hops
    number = itertools.count()

    def spread(t_us: int, giver: int, node: int, gain: int) -> None:
        others = near[node]
        if len(others) == 1 and giver in others:
            return  # Where the giver is the only neighbour, all later ones are given everything when they are found.
        given, word = near[giver], t_us & WORD ^ leaving[node]
        direct_us = published_us if giver < 0 else relayed_us
        for other in others:
            if gain & held[other] != gain:
                table = awaited_us if other in given else direct_us
                due_us = t_us + table[((word ^ arriving[other]) * SPREAD & WORD) >> SHIFT]
                if due_us < end_us:
                    heappush(due, (due_us, next(number), node, other, gain))

    return spread
