"""Rules about order in a record: causal order of deliveries, messages that wait for it, and events of channels.

Deliveries keep the order of happening, judged by publications and deliveries and by nothing else. One message is before
another of its group if its author had published it, or had been given it, when it published the other, or by way of
further messages (CAUSAL §III). What a node was given shows in the rows; the barriers that hosts reckon with do not, so
this judges them. The past of a message is a set of bits, all that is before it. Only messages that are delivered later
have a bit; those that are through give theirs back, so a long run needs no more than a short.

Messages expire only while they wait, and wait no longer than they must. That a message waits is right as long as
something before it is alive and was not delivered here. Once all of that is delivered or dead it has to be delivered,
at that very instant; this is checked for every instant of the run. Only where nothing disturbs it, though: crashes,
slow or full disks and wrong clocks take or hold back what rows do not tell. A message is filed under one of those that
it waits for, and looked at when that one comes or dies.

Each consumer of a channel gets the events of each producer once, by their numbers, and hears of lost ones. Consumers
are judged by the results that they were given, in that order, by what those cover (`attrs.covers`), and by the rows
`failure` with the detail `events-lost`. A result without content, because its events gave none, is received and not
delivered; it counts if its number is before that of a result that was delivered.
"""

# Why the past is kept in full. Hosts summarise the past of a message in barriers, which is what
# makes the protocol cheap and what may be wrong. A check that keeps all of it cannot repeat a
# mistake of the summary.
#
# A set per message would take memory that grows with the square of the run. Two things keep it
# small. Sets are whole numbers with a bit per message, so that a union is one operation. And a
# message is not looked up again once its last delivery was reported: its bit is cleared everywhere
# and given to a later message. Bits are given back in bulk, as clearing one bit costs a pass over
# all sets.
#
# Why the check has a waiting room. The difficulty is to see what did not happen. A delivery out of
# order shows in two rows, but a message that a host forgets in its waiting room leaves no row at
# all. So this module keeps a waiting room of its own, with the same messages and none of the host's
# code, and looks at the end of every instant for messages that could have been delivered.
#
# To check all waiting messages at every instant would be quadratic. A message is therefore filed
# under one of those that it waits for, and looked at again when that one is delivered or dies. It
# does not matter which one: as long as that one is missing the message must wait, whatever happened
# to the others.
#
# An instant has to be over before it is judged. Rows with the same time are in some order, and a
# delivery that is reported after the expiry that allowed it is not late.
#
# Why results carry what they cover. A modulator may make one result of many events, or none. From
# the results alone neither the consumer nor this check could distinguish an event that gave no
# result from one that was lost. So each result names the runs of events that it stands for. A gap
# between two runs is either covered by a result that came and had nothing for the program
# (`muted`), or has to be reported as lost. Losses are counted, not named: rows have their number.

from __future__ import annotations

import heapq
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from carrypost.arrays import Ints
from carrypost.emu.rows import KIND, Log
from carrypost.emu.verify.facts import NEVER_US, Facts, Found
from carrypost.log.events import Reason
from carrypost.log.record import REDELIVERED, Kind
from carrypost.model.address import channel_of
from carrypost.model.times import MICROSECONDS
from carrypost.overlay.events import EVENTS_LOST

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


_DELIVER, _FAILURE = KIND[Kind.DELIVER], KIND[Kind.FAILURE]


class Run(NamedTuple):
    """Events of a producer that a result stands for: those after one number, up to another."""

    producer: str
    after: int
    upto: int


class Result(NamedTuple):
    """A result, from the row of its publication."""

    destination: str
    number: int
    runs: tuple[Run, ...]
    origin: str | None
    """The event that it passes on."""


class Emitted(NamedTuple):
    """An event."""

    producer: str
    channel: str
    number: int
    t_us: int


@dataclass
class _Account:
    """The results of one subscription, and its reported losses."""

    number: int = 0
    """Of the last result that was delivered."""
    here: dict[int, list[Result]] = field(default_factory=dict)
    """Results that came, by number."""
    cursors: dict[str, int] = field(default_factory=dict)
    """Number of the last event of each producer that was covered by a delivered result."""
    missing: dict[str, int] = field(default_factory=dict)
    """Events of each producer that nothing covers."""
    reported: dict[str, int] = field(default_factory=dict)
    """Events of each producer that were reported lost."""

    def muted(self, producer: str, upto: int) -> set[int]:
        """Return the events of a producer that are covered by results between two that were delivered."""
        between = [each for number in range(self.number + 1, upto) for each in self.here.get(number, ())]
        runs = [run for each in between for run in each.runs if run.producer == producer]
        return {number for run in runs for number in range(run.after + 1, run.upto + 1)}


def results_of(log: Log) -> dict[int, Result]:
    """Return all results of a record, by the code of their message."""
    producers, destinations, origins = (log.attr(name) for name in ("producers", "destination", "origin"))
    found = {}
    for row, text in log.attr("covers").items():
        _, number, *runs = text.split(" ")
        named = producers.get(row, "").split(" ")
        covered = [Run(named[int(at)], int(after), int(upto)) for at, after, upto in map(_parts, runs)]
        made = Result(destinations.get(row, ""), int(number), tuple(covered), origins.get(row))
        found[int(log.message[row])] = made
    return found


def _parts(run: str) -> tuple[str, str, str]:
    at, _, span = run.partition(":")
    after, _, upto = span.partition("-")
    return at, after, upto


def events_of(log: Log) -> dict[str, Emitted]:
    """Return all events of a record, by message."""
    destinations = log.attr("destination")
    return {
        log.messages[log.message[row]]: Emitted(
            log.nodes[log.node[row]], channel_of(destinations[row]) or "", int(number), int(log.t_us[row])
        )
        for row, number in log.attr("event").items()
    }


def events_once_and_in_order(facts: Facts) -> Found:
    """Check that results come by their numbers, cover each event once, and miss none without telling the consumer."""
    log = facts.log
    if not (results := results_of(log)):
        return
    accounts: dict[tuple[int, str], _Account] = {}
    for row, result in _happened(facts, results, accounts):
        account = accounts.setdefault((int(log.node[row]), result.destination), _Account())
        if log.kind[row] != _DELIVER:
            account.here.setdefault(result.number, []).append(result)
            continue
        if result.number <= account.number:
            yield row, f"{facts.shown(row)}: result {result.number} comes after {account.number}"
        for text in _faults(account, result):
            yield row, f"{facts.shown(row)}: {text}"
        account.number = max(account.number, result.number)


def _happened(
    facts: Facts, results: dict[int, Result], accounts: dict[tuple[int, str], _Account]
) -> Iterator[tuple[int, Result]]:
    """Yield the rows about results, in order.

    A loss that is reported at the same instant as deliveries is counted before them.
    """
    log = facts.log
    lost = log.of(Kind.FAILURE)
    lost = lost[log.is_detail(lost, EVENTS_LOST)]
    destinations = log.attr("destination") if len(lost) else {}
    deliveries = set(facts.deliveries.tolist())
    rows = log.of(Kind.RECEIVE, Kind.PUBLISH, Kind.DELIVER)
    # A host reports lost events and delivers the results after them in one step, and the rows may
    # be in either order.
    for row in sorted(
        (*rows.tolist(), *lost.tolist()), key=lambda row: (log.t_us[row], log.kind[row] != _FAILURE, row)
    ):
        if log.kind[row] == _FAILURE:
            account = accounts.setdefault((int(log.node[row]), destinations.get(row, "")), _Account())
            producer = log.nodes[log.peer[row]]
            account.reported[producer] = account.reported.get(producer, 0) + int(log.size[row])
            continue
        result = results.get(int(log.message[row]))
        if result is not None and (log.kind[row] != _DELIVER or row in deliveries):
            yield row, result


def _faults(account: _Account, result: Result) -> Iterator[str]:
    """Yield what is wrong with the events of a result that is delivered, and count those that are missing."""
    for producer, after, upto in result.runs:
        cursor = account.cursors.get(producer, after)
        if after < cursor:
            yield f"events {after + 1} to {upto} of {producer} after {cursor}"
        if after > cursor:
            gap = set(range(cursor + 1, after + 1)) - account.muted(producer, result.number)
            account.missing[producer] = account.missing.get(producer, 0) + len(gap)
            reported = account.reported.get(producer, 0)
            if gap and account.missing[producer] > reported:
                yield f"events {min(gap)} to {max(gap)} of {producer} are missing, and {reported} were reported lost"
        account.cursors[producer] = max(cursor, upto)


def results_of_their_events(facts: Facts) -> Found:
    """Check that a result that passes on an event names one that its producer emitted, and covers it last."""
    log, events = facts.log, events_of(facts.log)
    results = results_of(log) if events else {}
    for row in log.of(Kind.DELIVER).tolist():
        result = results.get(int(log.message[row]))
        if result is None or result.origin is None:
            continue
        event, last = events.get(result.origin), result.runs[-1] if result.runs else None
        if event is None or last is None or (event.producer, event.number) != (last.producer, last.upto):
            yield row, f"{facts.shown(row)}: it passes on {result.origin}, and covers {last}"


def undelivered(facts: Facts, before_us: int) -> list[str]:
    """Return events before a time that some consumer neither got nor was notified of, where all should have come.

    Consumers are nodes with a home of that role, each of one subscription to a channel, from their first join on.
    """
    log = facts.log
    channels, joined = _consumed(log), {node: since_us for node, since_us, _ in reversed(facts.presences)}
    covered, reported = _covered(log), _losses_reported(log)
    missing: dict[tuple[str, str, str], set[int]] = {}
    for event in events_of(log).values():
        for (consumer, subscription), channel in channels.items():
            key = consumer, subscription, event.producer
            due = channel == event.channel and joined[consumer] < event.t_us < before_us
            if due and event.number not in covered.get(key, ()):
                missing.setdefault(key, set()).add(event.number)
    return [
        f"{key[0]} did not get the events {sorted(numbers)} of {key[2]}, and {reported.get(key, 0)} were reported lost"
        for key, numbers in sorted(missing.items())
        if len(numbers) > reported.get(key, 0)
    ]


def _consumed(log: Log) -> dict[tuple[str, str], str]:
    """Return the channels of all subscriptions, by consumer and number."""
    channels, subscriptions = log.attr("channel"), log.attr("subscription")
    return {
        (log.nodes[log.node[row]], subscriptions[row]): channels[row]
        for row in log.of(Kind.HOME).tolist()
        if row in subscriptions
    }


def _covered(log: Log) -> dict[tuple[str, str, str], set[int]]:
    """Return the events that results cover which came to a node, by node, number of the subscription and producer."""
    found: dict[tuple[str, str, str], set[int]] = {}
    results = results_of(log)
    for row in log.of(Kind.RECEIVE, Kind.PUBLISH, Kind.DELIVER).tolist():
        if (result := results.get(int(log.message[row]))) is not None:
            for producer, after, upto in result.runs:
                key = log.nodes[log.node[row]], result.destination.rpartition("/")[2], producer
                found.setdefault(key, set()).update(range(after + 1, upto + 1))
    return found


def _losses_reported(log: Log) -> dict[tuple[str, str, str], int]:
    """Return how many events are reported as lost, by node, number of the subscription and producer."""
    found: dict[tuple[str, str, str], int] = {}
    rows, destinations = log.of(Kind.FAILURE), log.attr("destination")
    for row in rows[log.is_detail(rows, EVENTS_LOST)].tolist():
        key = log.nodes[log.node[row]], destinations[row].rpartition("/")[2], log.nodes[log.peer[row]]
        found[key] = found.get(key, 0) + int(log.size[row])
    return found
