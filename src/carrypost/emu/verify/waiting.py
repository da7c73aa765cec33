"""Check of messages that wait for their order: they expire only while they wait, and wait no longer than they must.

That a message waits is right as long as something before it (`happens_before`) is alive and was not delivered here.
Once all of that is delivered or dead it has to be delivered, at that very instant; this is checked for every instant of
the run. Only where nothing disturbs it, though: crashes, slow or full disks and wrong clocks take or hold back what
rows do not tell. A message is filed under one of those that it waits for, and looked at when that one comes or dies.
"""
# The difficulty is to see what did not happen. A delivery out of order shows in two rows, but a
# message that a host forgets in its waiting room leaves no row at all. So this module keeps a
# waiting room of its own, with the same messages and none of the host's code, and looks at the end
# of every instant for messages that could have been delivered.
#
# To check all waiting messages at every instant would be quadratic. A message is therefore filed
# under one of those that it waits for, and looked at again when that one is delivered or dies. It
# does not matter which one: as long as that one is missing the message must wait, whatever happened
# to the others.
#
# An instant has to be over before it is judged. Rows with the same time are in some order, and a
# delivery that is reported after the expiry that allowed it is not late.

from __future__ import annotations

import heapq
from collections import defaultdict

import numpy as np

from carrypost.arrays import Ints
from carrypost.emu.records.log import KIND
from carrypost.emu.verify.facts import NEVER_US, Facts, Found
from carrypost.emu.verify.happens_before import Pasts, rows_for_programs, rows_with_order
from carrypost.log.events import Reason
from carrypost.log.record import Kind
from carrypost.model.times import MICROSECONDS

_MESSAGES_MAX = 30_000
"""Pasts of more would take gigabytes: then what waits is not looked at."""
_PRESENCE = (KIND[Kind.JOIN], KIND[Kind.LEAVE])


def expired_while_it_waited(facts: Facts) -> Found:
    """Check that messages expire once per reception, while they wait, and are not delivered afterwards.

    After a crash an expiry may be reported again, even of a copy that was dropped: that copy may still have been on the
    disk.
    """
    log = facts.log
    rows = log.of(Kind.EXPIRE)
    copy = facts.copy(rows)
    yield from facts.blamed(rows[facts.group[rows] < 0], "expired, and its topic has no order to wait for")
    copies = log.of(Kind.RECEIVE, Kind.DROP)
    last = facts.before(copies).find(copy, rows)
    crash = facts.crashes.find(log.node[rows], rows)
    here = facts.are(last, Kind.RECEIVE) | ((last >= 0) & (crash > last))
    yield from facts.blamed(rows[~here], "expired where it is not")
    given = facts.before(log.of(Kind.DELIVER)).find(copy, rows)
    yield from facts.blamed(rows[given >= 0], "expired, and was delivered before")
    came, last = last, facts.before(rows).find(copy, rows)
    yield from facts.blamed(rows[(last > came) & (crash < last)], "expired twice")
    fresh = facts.deliveries
    expired = facts.before(rows).find(facts.copy(fresh), fresh)
    yield from facts.blamed(fresh[expired >= 0], "delivered after it expired")
    yield from _expired_early(facts, rows)
    yield from _dropped_instead(facts)


def _expired_early(facts: Facts, rows: Ints) -> Found:
    """Yield expiries of messages before their deadline."""
    log = facts.log
    judged = rows[(facts.group[rows] >= 0) & ~facts.wrong_clocks[log.node[rows]]]
    early = log.t_us[judged] + _ahead_us(facts) < facts.deadline_us(judged)
    yield from facts.blamed(judged[early], "expired before its deadline")


def _dropped_instead(facts: Facts) -> Found:
    """Check that a message that still waits at its deadline expires; to say that it was dropped is too little."""
    if not _steady(facts):
        return
    log = facts.log
    rows = rows_with_order(facts, Kind.DROP)
    rows = rows[log.is_detail(rows, Reason.EXPIRED.value)]
    # What was delivered, evicted and forgotten (`seen_max`) comes again, and waits for nothing.
    rows = rows[facts.before(log.of(Kind.DELIVER)).find(facts.copy(rows), rows) < 0]
    ways = log.of(Kind.PUBLISH, Kind.RECEIVE, Kind.EXPIRE, Kind.DROP)
    last = facts.before(ways).find(facts.copy(rows), rows)
    text = "dropped at its deadline, and it waited for its order: that is an expiry"
    yield from facts.blamed(rows[facts.are(last, Kind.RECEIVE)], text)


def nothing_waits_in_vain(facts: Facts) -> Found:
    """Check that each waiting message has something before it that is alive and was not delivered there."""
    log = facts.log
    if not _steady(facts):
        return
    ordered = rows_with_order(facts, Kind.PUBLISH, Kind.RECEIVE, Kind.DELIVER, Kind.EXPIRE, Kind.DROP)
    if not len(ordered) or len(rows_with_order(facts, Kind.PUBLISH)) > _MESSAGES_MAX:
        return
    rows = np.sort(np.concatenate([ordered, log.of(Kind.JOIN, Kind.LEAVE)]))
    room = _WaitingRoom(len(log.nodes), len(facts.groups))
    for row, t_us, kind, node, place, message, deadline_us in facts.happenings(rows):
        for waiting, since_us in room.advance(t_us):
            yield waiting, _in_vain(facts, waiting, since_us)
        if kind in _PRESENCE:
            room.attend(node, there=kind == KIND[Kind.JOIN])
        else:
            room.note(row, kind, place, message, deadline_us)
    for waiting, since_us in room.advance(int(log.t_us.max()) + 1):
        yield waiting, _in_vain(facts, waiting, since_us)


def nothing_is_hurried(facts: Facts) -> Found:
    """Check that a delivered message has waited for whatever is before it and alive, whether that ever comes or not."""
    if not _steady(facts) or len(rows_with_order(facts, Kind.PUBLISH)) > _MESSAGES_MAX:
        return
    rows = rows_for_programs(facts, Kind.PUBLISH, Kind.DELIVER)
    ahead_us = _ahead_us(facts)
    pasts, given, alive, deaths = Pasts(), defaultdict[int, int](int), 0, list[tuple[int, int]]()
    for row, t_us, kind, _, place, message, deadline_us in facts.happenings(rows):
        while deaths and deaths[0][0] <= t_us + ahead_us:
            alive &= ~heapq.heappop(deaths)[1]
        if kind == KIND[Kind.PUBLISH]:
            pasts.publish(place, message)
            bit = pasts.bit[message]
            given[place] |= bit
            alive |= bit
            heapq.heappush(deaths, (deadline_us, bit))
            continue
        missing = pasts.past[message] & ~given[place] & alive
        if missing:
            yield row, f"{facts.shown(row)}: delivered too early, something before it is alive and not delivered there"
            given[place] |= missing  # Told once.
        pasts.deliver(place, message, row)
        given[place] |= pasts.bit[message]


def _ahead_us(facts: Facts) -> int:
    """Return the time by which a group's clock may be ahead: each message may be dated a microsecond after the last."""
    return len(facts.log.of(Kind.PUBLISH))


def _in_vain(facts: Facts, row: int, since_us: int) -> str:
    since = f"{since_us / MICROSECONDS:.6f} s"
    return f"{facts.shown(row)}: received, and not delivered at {since}, when all before it was delivered or dead"


def _steady(facts: Facts) -> bool:
    """Return True if the rows are sufficient: every node is subscribed, and nothing is lost or late at any."""
    scenario = facts.in_force
    late = facts.full_disks or scenario.get("disk_delay_s")
    return bool(scenario.get("workload")) and not (late or facts.crashed or facts.wrong_clocks.any())


class _WaitingRoom:
    """The waiting messages and what they wait for. A place is one node in one group; a message is its publication."""

    def __init__(self, nodes: int, groups: int) -> None:
        self._nodes, self._groups = nodes, groups
        self._pasts = Pasts()
        self._t_us = 0
        self._there: set[int] = set()
        self._alive = 0
        """Bits of messages that are not dead."""
        self._deaths: list[tuple[int, int]] = []
        self._over: dict[int, int] = defaultdict(int)
        """By place, the bits of what was delivered there, or never will be."""
        self._waiting: dict[int, dict[int, int]] = defaultdict(dict)
        """By place, messages that wait, and the rows of their receptions."""
        self._files: dict[int, dict[int, list[int]]] = defaultdict(dict)
        """By bit and place, messages that wait for that one among others."""
        self._open: set[tuple[int, int]] = set()
        """Places and messages to be examined when the instant is over."""

    def advance(self, t_us: int) -> list[tuple[int, int]]:
        """Move on to `t_us`, before which all rows were reported; return rows that wait in vain, and since when."""
        if t_us <= self._t_us:
            return []
        found = self._conclude(self._t_us)
        while self._deaths and self._deaths[0][0] < t_us:
            found += self._conclude(self._deaths[0][0])
        self._t_us = t_us
        return found

    def attend(self, node: int, *, there: bool) -> None:
        """Note that a node joins, and does what fell due meanwhile; or that it leaves."""
        if not there:
            self._there.discard(node)
            return
        self._there.add(node)
        for group in range(self._groups):
            place = group * self._nodes + node
            self._open.update((place, message) for message in self._waiting.get(place, ()))

    def note(self, row: int, kind: int, place: int, message: int, deadline_us: int) -> None:
        """Take a row about a message: published, received, delivered, expired or dropped."""
        pasts = self._pasts
        if kind == KIND[Kind.PUBLISH]:
            pasts.publish(place, message)
            bit = pasts.bit[message]
            self._alive |= bit
            self._over[place] |= bit
            if deadline_us != NEVER_US:
                heapq.heappush(self._deaths, (deadline_us, bit))
        elif kind == KIND[Kind.RECEIVE]:
            if not self._over[place] & pasts.bit[message]:
                self._waiting[place].setdefault(message, row)
                self._open.add((place, message))
        elif kind == KIND[Kind.DROP]:
            self._waiting[place].pop(message, None)  # It may come again.
        else:
            if kind == KIND[Kind.DELIVER]:
                pasts.deliver(place, message, row)
            bit = pasts.bit[message]
            self._over[place] |= bit
            self._waiting[place].pop(message, None)
            for each in self._files.get(bit, {}).pop(place, ()):
                self._open.add((place, each))

    def _conclude(self, t_us: int) -> list[tuple[int, int]]:
        """End an instant: apply its deaths, and return the messages that had to be delivered and were not."""
        while self._deaths and self._deaths[0][0] <= t_us:
            _, bit = heapq.heappop(self._deaths)
            self._alive &= ~bit
            for place, messages in self._files.pop(bit, {}).items():
                self._open.update((place, each) for each in messages)
        found: list[tuple[int, int]] = []
        for place, message in sorted(self._open) if self._open else ():
            row = self._waiting[place].get(message)
            if row is None or place % self._nodes not in self._there:
                continue
            missing = self._pasts.past[message] & self._alive & ~self._over[place]
            if missing:
                # The lowest bit of `missing` is the message that this one is filed under; any other
                # would do.
                self._files[missing & -missing].setdefault(place, []).append(message)
            else:
                del self._waiting[place][message]
                found.append((row, t_us))
        self._open.clear()
        return found
