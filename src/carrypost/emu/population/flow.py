"""The sweep: sets of messages pass over contacts, in order of time."""

# Population mode answers what a flood with measured delays would reach among 100,000 nodes, where
# emulating each host is out of the question. A node is one integer with a bit for each message.
# When two nodes find each other, each gains what the other has and it lacks. A gain is passed on to
# each neighbour one hop delay later, and only that gain. The delay depends on the two nodes, on the
# time of the gain and on its giver, but not on its contents. So the fate of one message never
# depends on another one, and messages can be split over several sweeps (`windows`): that is what
# makes the mode parallel, and exact.
#
# At one instant contacts end first, then messages expire, then contacts open, then messages are
# published; gains are passed on last, all that are due at that time before any of them goes
# further. Neighbours are served in the order in which their contacts opened, and gains in the order
# in which they came. Without delays all connected nodes hold the same live messages after every
# instant, which is the flood bound: a test compares the two.

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from enum import IntEnum
from heapq import heappop, heappush
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from carrypost.arrays import Codes, Ints
from carrypost.emu.population.delays import SHIFT, SPREAD, WORD, Hops

Gain = tuple[int, int, int, int]
"""A time, the giving node, the receiving node, and the set of messages."""
_Hop = tuple[int, int, int, int, int]
"""A time, a place in the order, the giving node, the receiving node, and the set of messages."""
_NOBODY = -1
"""The giver of a publication: the last of a list."""
_END = -1
GAINS_MAX = 2_048
"""Approximate number of gains that are handed over at a time."""
_STEPS_AT_ONCE = 1 << 16


class Step(IntEnum):
    """The order of steps at one instant."""

    CLOSE = 0
    EXPIRE = 1
    OPEN = 2
    PUBLISH = 3


class Steps(NamedTuple):
    """Changes of a network from outside, by columns, in order."""

    t_us: Ints
    step: NDArray[np.int8]
    first: Codes
    """A node; of an expiry or a publication, the message."""
    second: Codes
    """The other node, or the author."""

    @classmethod
    def of(cls, *parts: tuple[Step, Ints, Codes, Codes]) -> Steps:
        """Sort parts: of each its step, times, first and second. Equal ones stay in the order of their part."""
        step = np.concatenate([np.full(len(t_us), kind.value, np.int8) for kind, t_us, _, _ in parts])
        t_us = np.concatenate([part[1] for part in parts])
        first, second = (np.concatenate([part[2] for part in parts]), np.concatenate([part[3] for part in parts]))
        order = np.lexsort((step, t_us))
        return cls(t_us[order], step[order], first[order], second[order])

    def rows(self) -> Iterator[tuple[int, int, int, int]]:
        """Yield every step: time, kind, first and second."""
        for start in range(0, len(self.t_us), _STEPS_AT_ONCE):
            part = slice(start, start + _STEPS_AT_ONCE)
            yield from zip(
                self.t_us[part].tolist(), self.step[part].tolist(), self.first[part].tolist(),
                self.second[part].tolist(), strict=True,
            )  # fmt: skip


def flow(steps: Steps, hops: Hops, end_us: int) -> Iterator[list[Gain]]:
    """Yield the gains of nodes up to the end of the run, in order of time."""
    nodes, alive = len(hops.leaving), 0
    held = [0] * nodes
    near: list[dict[int, None]] = [{} for _ in range(nodes + 1)]  # The last one is `_NOBODY`, which has no neighbours.
    due: list[_Hop] = []
    gains: list[Gain] = []
    came: list[Gain] = []
    pass_on = _passing(held, near, due, hops, end_us)
    opens, closes, expires, publishes = (step.value for step in (Step.OPEN, Step.CLOSE, Step.EXPIRE, Step.PUBLISH))
    for t_us, step, first, second in itertools.chain(steps.rows(), [(end_us, _END, 0, 0)]):
        if came or (due and due[0][0] < t_us):
            gains += pass_on(came, alive, t_us)
            came = []
        if step == opens:
            near[first][second] = near[second][first] = None
            if differ := (held[first] ^ held[second]) & alive:
                both = (t_us, first, second, differ & held[first]), (t_us, second, first, differ & held[second])
                came = [gain for gain in both if gain[3]]
                held[first] |= differ
                held[second] |= differ
                gains += came
        elif step == closes:
            del near[first][second], near[second][first]
        elif step == expires:
            alive &= ~(1 << first)
        elif step == publishes:
            alive |= 1 << first
            held[second] |= 1 << first
            came = [(t_us, _NOBODY, second, 1 << first)]
        if len(gains) >= GAINS_MAX:
            yield gains
            gains = []
    yield gains


def _passing(
    held: list[int], near: list[dict[int, None]], due: list[_Hop], hops: Hops, end_us: int
) -> Callable[[list[Gain], int, int], list[Gain]]:
    """Return the function that passes gains on: these, and all that are due before a time. It returns further gains.

    One function, and no methods: it takes most of the time of a run, and calls and attributes would add a sixth to it.
    """
    published_us, relayed_us, awaited_us, leaving, arriving = hops
    number = itertools.count()

    def pass_on(came: list[Gain], alive: int, until_us: int) -> list[Gain]:
        gains: list[Gain] = []
        while True:
            for t_us, giver, node, gain in came:
                given, word = near[giver], t_us & WORD ^ leaving[node]
                direct_us = published_us if giver == _NOBODY else relayed_us
                for other in near[node]:
                    if gain & held[other] != gain:
                        table = awaited_us if other in given else direct_us
                        due_us = t_us + table[((word ^ arriving[other]) * SPREAD & WORD) >> SHIFT]
                        if due_us < end_us:
                            heappush(due, (due_us, next(number), node, other, gain))
            if not due or (now_us := due[0][0]) >= until_us:
                return gains
            came = []
            # All that is due now before any of it goes on: what comes to many at once need not go between them.
            while due and due[0][0] == now_us:
                _, _, giver, node, gain = heappop(due)
                gain &= alive
                # Not `gain & ~held`: a complement is a negative number, and takes three times as long.
                if node in near[giver] and (known := gain & held[node]) != gain:
                    held[node] |= gain
                    came.append((now_us, giver, node, gain ^ known))
            gains += came

    return pass_on
