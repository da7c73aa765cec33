"""Check that deliveries keep the order of happening, judged by publications and deliveries and by nothing else.

One message is before another of its group if its author had published it, or had been given it, when it published the
other, or by way of further messages (CAUSAL §III). What a node was given shows in the rows; the barriers that hosts
reckon with do not, so this judges them. The past of a message is a set of bits, all that is before it. Only messages
that are delivered later have a bit; those that are through give theirs back, so a long run needs no more than a short.
"""
# Hosts summarise the past of a message in barriers, which is what makes the protocol cheap and what
# may be wrong. Here the past is kept in full, so that the check cannot repeat a mistake of the
# summary.
#
# A set per message would take memory that grows with the square of the run. Two things keep it
# small. Sets are whole numbers with a bit per message, so that a union is one operation. And a
# message is not looked up again once its last delivery was reported: its bit is cleared everywhere
# and given to a later message. Bits are given back in bulk, as clearing one bit costs a pass over
# all sets.

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from carrypost.arrays import Ints
from carrypost.emu.records.log import KIND
from carrypost.emu.verify.facts import Facts, Found
from carrypost.log.record import REDELIVERED, Kind

_SWEEP_MIN = 1_024
"""Least number of bits that are given back together."""


class Pasts:
    """The messages before each message, for the rows so far; `place` is one node in one group."""

    def __init__(self, ends: Mapping[int, int] | None = None) -> None:
        """Prepare the sets.

        With `ends`, each message is forgotten after the given row; a message without one has no bit.
        """
        self.past: dict[int, int] = {}
        """By message, all that is before it."""
        self.bit: dict[int, int] = {}
        """By message, its own."""
        self._ends = ends
        self._known: dict[int, int] = {}
        """By place, all that is before whatever is published there next."""
        self._passed: dict[int, int] = {}
        """By place, all that is before something that was delivered there."""
        self._free: list[int] = []
        self._bits = 0
        self._done: list[int] = []

    def publish(self, place: int, message: int) -> None:
        """Note a publication: all that its author knows happened before it."""
        if self._ends is not None and message not in self._ends:
            return
        if len(self._done) >= max(_SWEEP_MIN, len(self.bit) // 2):
            self._sweep()
        known = self._known.get(place, 0)
        self.past[message] = known
        if self._free:
            number = self._free.pop()
        else:
            number, self._bits = self._bits, self._bits + 1
        self.bit[message] = 1 << number
        self._known[place] = known | 1 << number

    def deliver(self, place: int, message: int, row: int) -> bool:
        """Note a delivery.

        Returns False if it is too late: a message that comes after it was delivered there already.
        """
        past, bit = self.past[message], self.bit[message]
        passed = self._passed.get(place, 0)
        self._known[place] = self._known.get(place, 0) | past | bit
        self._passed[place] = passed | past
        if self._ends is not None and self._ends[message] == row:
            self._done.append(message)
        return not passed & bit

    def _sweep(self) -> None:
        """Release the bits of messages that are not needed again."""
        gone = 0
        for message in self._done:
            bit = self.bit.pop(message)
            del self.past[message]
            gone |= bit
            self._free.append(bit.bit_length() - 1)
        self._done.clear()
        for sets in (self.past, self._known, self._passed):
            for key, bits in sets.items():
                sets[key] = bits & ~gone


def rows_with_order(facts: Facts, *kinds: Kind) -> Ints:
    """Return rows of these kinds about messages with an order, without deliveries that a crash repeated."""
    rows = facts.log.of(*kinds)
    again = (facts.log.kind[rows] == KIND[Kind.DELIVER]) & facts.log.is_detail(rows, REDELIVERED)
    found: Ints = rows[(facts.group[rows] >= 0) & ~again]
    return found


def rows_for_programs(facts: Facts, *kinds: Kind) -> Ints:
    """Return the rows of `rows_with_order` that are not about messages that only join others.

    Such a message is after those that it names, and not after everything that its author knows.
    """
    rows = rows_with_order(facts, *kinds)
    found: Ints = rows[~np.isin(facts.publication(rows), facts.joining)]
    return found


def causal_order(facts: Facts) -> Found:
    """Check that no node is delivered a message after another one that must come later."""
    log = facts.log
    rows = rows_for_programs(facts, Kind.PUBLISH, Kind.DELIVER)
    message, place = facts.publication(rows), facts.place(rows)
    delivered = log.kind[rows] == KIND[Kind.DELIVER]
    ends = dict(zip(message[delivered].tolist(), rows[delivered].tolist(), strict=True))
    pasts = Pasts(ends)
    columns = rows.tolist(), place.tolist(), message.tolist(), delivered.tolist()
    for at, (row, where, what, given) in enumerate(zip(*columns, strict=True)):
        if not given:
            pasts.publish(where, what)
        elif not pasts.deliver(where, what, row):
            before = np.flatnonzero(delivered[:at] & (place[:at] == where))
            bit = pasts.bit[what]
            later = next((each for each in message[before].tolist() if pasts.past.get(each, 0) & bit), None)
            name = "something" if later is None else log.messages[log.message[later]]
            yield row, f"{facts.shown(row)}: delivered after {name}, which it happened before"
