"""Invariants of every run, checked by code that reads its record and nothing else.

Each rule is a function that yields violations; `check` runs them all. They know the meaning of the rows (DESIGN §8),
not how hosts work: a message is delivered only after it was published, once per node, to nodes that are there, before
its deadline; it comes from a neighbour that had it, over a contact that was open; no node receives a message that a
flood could not have brought; caches keep to their limits; every copy that ends has a reason; time does not go back.
Where messages list recipients, no other node delivers them, copies are dropped once all recipients have the message,
and evicted copies rank lower. Consumers of channels get the events of each producer once, in order, and are notified of
lost ones; where messages have an order, that is kept, and nothing waits that could be delivered, or the other way round
(`carrypost.emu.verify.order`).

A crash excuses a second reception or delivery, which must be marked. Where a node's clock is wrong, its deadlines are
judged by that clock, if the row has its reading.
"""

# Why the rules read the record alone. A check inside the host would share the host's mistakes: a
# host that forgets that it delivered a message also forgets it when it is asked. The record is
# written by the engine, row by row, and the rules are an independent account of what the rows may
# say. They import nothing of the protocol except constants.
#
# Why crashes excuse so much. A host that crashes loses what was not on its disk yet, and does the
# same thing again after the restart; at-least-once delivery means exactly that. So a repetition is
# allowed if it is marked and if a crash lies between. The mark alone is not enough, or a host could
# repeat everything and mark it; nor is the crash alone, as programs rely on the mark to tell
# repetitions apart.
#
# Rules work on whole columns with numpy, not row by row: records have millions of rows. `Before`
# finds the last earlier row with the same key for all rows at once, which is what most rules need.

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from itertools import groupby, pairwise
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from carrypost.arrays import Ints
from carrypost.emu.rows import KIND, Before, Log, log_of
from carrypost.emu.verify import order
from carrypost.emu.verify.bound import arrivals_us
from carrypost.emu.verify.facts import NEVER_US, Facts, Found
from carrypost.log.events import Reason
from carrypost.log.record import AGAIN, REDELIVERED, Kind, Record
from carrypost.model.descriptor import PIECE_BYTES
from carrypost.model.times import MICROSECONDS

Rank = tuple[int, int]
"""Privilege and date of a message."""
_MODE = 10
"""Persistent messages rank above all priorities of others."""
_BY_DATE = ("exchange", "anti-entropy")
"""Strategies that rank messages by date; others rank copies by arrival. The first one is the default."""


def listed(log: Log) -> dict[int, frozenset[str]]:
    """Return the recipients that each message lists, by the row of its publication."""
    return {row: frozenset(text.split(" ")) for row, text in log.attr("recipients").items()}


def delivered_at_recipients_only(facts: Facts) -> Found:
    """Check that a message that lists its recipients is delivered there alone, and never names its author."""
    log = facts.log
    named_by = listed(log)
    if not named_by:
        return
    for row, named in named_by.items():
        if log.nodes[log.node[row]] in named:
            yield row, f"{facts.shown(row)}: its author is among its recipients"
    rows = log.of(Kind.DELIVER)
    origin = facts.origin(rows)
    concerned = np.isin(origin, list(named_by))
    for row, published in zip(rows[concerned].tolist(), origin[concerned].tolist(), strict=True):
        if log.nodes[log.node[row]] not in named_by[published]:
            yield row, f"{facts.shown(row)}: delivered where it is not listed"


def purged_once_all_could_say_so(facts: Facts) -> Found:
    """Check that a copy is purged only where the acknowledgements of all recipients could have arrived.

    They could if a flood that starts at each recipient, when the message is delivered there, reaches the node in time.
    """
    log = facts.log
    drops = log.of(Kind.DROP)
    drops = drops[log.is_detail(drops, Reason.PURGED.value)]
    named_by = listed(log)
    origin = facts.origin(drops)
    concerned = np.isin(origin, list(named_by))
    drops, origin = drops[concerned], origin[concerned]
    if not len(drops) or not facts.emulated:
        return
    arrivals = _acknowledgements(facts, set(log.message[drops].tolist()))
    for row, published in zip(drops.tolist(), origin.tolist(), strict=True):
        message, node = log.messages[log.message[row]], log.nodes[log.node[row]]
        for recipient in sorted(named_by[published]):
            heard_us = arrivals.get((f"{recipient} {message}", node))
            if heard_us is None or heard_us > log.t_us[row]:
                could = "never" if heard_us is None else f"not before {heard_us / MICROSECONDS:.6f} s"
                yield row, f"{facts.shown(row)}: purged, and {recipient} could {could} have been heard of"
                break


def _acknowledgements(facts: Facts, messages: set[int]) -> dict[tuple[str, str], int]:
    """Return the times at which a flood brings the acknowledgement of a message, RECIPIENT MESSAGE, to each node."""
    log = facts.log
    rows = log.of(Kind.DELIVER)
    rows = rows[np.isin(log.message[rows], list(messages)) & facts.there(rows)]
    published = [
        (
            f"{log.nodes[log.node[row]]} {log.messages[log.message[row]]}",
            log.nodes[log.node[row]],
            int(log.t_us[row]),
            None,
        )
        for row in facts.once(rows).tolist()
    ]
    return arrivals_us(facts.passable, published, facts.presences)


def displaced_by_a_higher_rank(facts: Facts) -> Found:
    """Check that nothing gives way to a lower rank: persistent before others, then priority, then the newer one.

    Only copies that are for other nodes are judged, as nothing but their rank keeps them. Nothing is judged where
    shares, full disks, wrong clocks or a crash of the node may be the reason, or a strategy ranks by arrival.
    """
    log = facts.log
    scenario = facts.in_force
    tables = [scenario, *scenario.get("nodes", {}).get("group", ())]
    by_arrival = any(each.get("settings", {}).get("strategy", _BY_DATE[0]) not in _BY_DATE for each in tables)
    shares = scenario.get("settings", {}).get("shares", True)
    if by_arrival or shares or facts.full_disks or facts.wrong_clocks.any() or not (named_by := listed(log)):
        return
    ranks = _Ranks(log)
    rows = facts.copies(Kind.RECEIVE)
    rows = rows[facts.crashes.find(log.node[rows], rows) < 0]
    rows = rows[np.lexsort((rows, log.node[rows]))]
    origins = facts.origin(rows)
    known = zip(rows[origins >= 0].tolist(), origins[origins >= 0].tolist(), strict=True)
    for _, of_node in groupby(known, lambda each: log.node[each[0]]):
        carried: dict[int, tuple[Rank, int]] = {}
        for _, together in groupby(of_node, lambda each: log.t_us[each[0]]):
            # All that happens at one instant is one decision of the cache: copies that come and go
            # in it are not compared.
            happened = list(together)
            ended = [each for each in happened if log.kind[each[0]] != KIND[Kind.RECEIVE]]
            for row, _ in ended:
                carried.pop(int(log.message[row]), None)
            yield from _outranking(facts, ranks, ended, min(carried.values(), default=None))
            gone = {int(log.message[row]) for row, _ in ended}
            for row, published in happened:
                others = log.nodes[log.node[row]] not in named_by.get(published, (log.nodes[log.node[row]],))
                if others and (message := int(log.message[row])) not in gone:
                    carried[message] = ranks.of(published), row


def _outranking(
    facts: Facts, ranks: _Ranks, ended: Iterable[tuple[int, int]], lowest: tuple[Rank, int] | None
) -> Found:
    """Yield evictions among these ends of copies that rank above the lowest copy that was there and stayed."""
    log = facts.log
    for row, published in ended:
        evicted = log.details[log.detail[row]] == Reason.EVICTED.value
        if lowest is not None and evicted and facts.group[row] < 0 and ranks.of(published) > lowest[0]:
            stayed = log.messages[log.message[lowest[1]]]
            yield row, f"{facts.shown(row)}: evicted, and {stayed} stayed, which ranks lower"


class _Ranks:
    """Ranks of messages, by the row of their publication."""

    def __init__(self, log: Log) -> None:
        self._t_us = log.t_us
        self._modes, self._priorities = log.attr("mode"), log.attr("priority")

    def of(self, published: int) -> Rank:
        """Return the rank of a message."""
        privilege = _MODE * (self._modes.get(published) == "persistent") + int(self._priorities.get(published, "0"))
        return privilege, int(self._t_us[published])


_UNDER_WAY_US = 60 * MICROSECONDS
"""Time for which a message may be on its way over several links."""
SHOWN_MAX = 20
"""Violations of one rule that are reported one by one."""


class Violation(NamedTuple):
    """Something that must not be in a record."""

    rule: str
    row: int
    """Counted from 0; -1 where no single row is to blame."""
    text: str

    def __str__(self) -> str:
        where = f"row {self.row}: " if self.row >= 0 else ""
        return f"{where}{self.text} ({self.rule})"


def check(record: pa.Table | Record, *, bound: bool = True) -> list[Violation]:
    """Return everything that is wrong with the record of one run, rule by rule. `bound` off leaves out the flood."""
    facts = Facts(log_of(record))
    found: list[Violation] = []
    for rule in RULES:
        if rule is within_the_bound and not bound:
            continue
        name = rule.__name__.replace("_", " ")
        violations = list(rule(facts))
        found += [Violation(name, row, text) for row, text in violations[:SHOWN_MAX]]
        if len(violations) > SHOWN_MAX:
            found.append(Violation(name, -1, f"and {len(violations) - SHOWN_MAX:,} more"))
    return found


def time_does_not_go_back(facts: Facts) -> Found:
    """Check that rows are in the order in which things happened."""
    t_us = facts.log.t_us
    for row in (np.flatnonzero(np.diff(t_us) < 0) + 1).tolist():
        yield row, f"{t_us[row] / MICROSECONDS:.6f} s comes after {t_us[row - 1] / MICROSECONDS:.6f} s"


def only_what_was_published(facts: Facts) -> Found:
    """Check that messages are published before they are received, delivered or dropped, and are published once.

    An id may be given anew where a crash took the first message before another node received it.
    """
    log = facts.log
    published = log.of(Kind.PUBLISH)
    first = facts.origin(published)
    rows = log.of(Kind.RECEIVE, Kind.DELIVER, Kind.DROP, Kind.EXPIRE)
    shown = log.of(Kind.RECEIVE, Kind.DELIVER)
    # A message that was lost in its author's crash, before another node received it, may give its
    # id to another one.
    seen = Before(log.message[shown], shown, len(log)).find(log.message[published], published)
    lost = (facts.crashes.find(log.node[published], published) > first) & (seen < first)
    yield from facts.blamed(published[(first >= 0) & ~lost], "published a second time")
    origin = facts.origin(rows)
    yield from facts.blamed(rows[origin < 0], "never published before")
    known, origin = rows[origin >= 0], origin[origin >= 0]
    other = (log.source[known] != log.node[origin]) | (log.size[known] != log.size[origin])
    yield from facts.blamed(known[other], "source or size are not those of its publication")


def only_who_is_there(facts: Facts) -> Found:
    """Check that nodes do nothing while they are away, and that a node that joins was away."""
    log = facts.log
    rows = log.of(Kind.PUBLISH, Kind.RECEIVE, Kind.DELIVER, Kind.DROP, Kind.EXPIRE, Kind.LEAVE)
    yield from facts.blamed(rows[~facts.there(rows)], "the node is not there")
    joins = log.of(Kind.JOIN)
    for row in joins[facts.there(joins)].tolist():
        yield row, f"{log.nodes[log.node[row]]} joins, and is there already"


def received_once(facts: Facts) -> Found:
    """Check that no node receives a message twice, unless it was dropped, or the row marks a crash in between.

    An author receives none of its own messages.
    """
    log = facts.log
    rows = log.of(Kind.RECEIVE)
    yield from facts.blamed(rows[log.node[rows] == log.source[rows]], "received by its author")
    last = facts.before(facts.copies(Kind.RECEIVE)).find(facts.copy(rows), rows)
    had, again = facts.are(last, Kind.RECEIVE), log.is_detail(rows, AGAIN)
    yield from facts.blamed(rows[had & ~again], "received twice")
    yield from facts.blamed(rows[again & ~had], "received again, and was not here")
    crash = facts.crashes.find(log.node[rows], rows)
    yield from facts.blamed(rows[again & had & (crash < last)], "received again without a crash")


def delivered_once(facts: Facts) -> Found:
    """Check that delivered messages are here, and that a second delivery is marked and follows a crash.

    A second delivery without a mark is allowed where hosts remember fewer ids than there are messages (`seen_max`):
    after a drop, a message with neither order nor deadline may be delivered as if it were new.

    A first delivery may be marked in two cases, both of which end with a crash. A full disk took a delivery back that a
    later batch had noted already. Or a copy gave way before its delivery was handed over, and that was not on disk yet.
    """
    log = facts.log
    rows = log.of(Kind.DELIVER)
    here = facts.before(log.of(Kind.RECEIVE, Kind.PUBLISH)).find(facts.copy(rows), rows)
    yield from facts.blamed(rows[here < 0], "delivered where it is not")
    again = log.is_detail(rows, REDELIVERED)
    last = facts.before(rows).find(facts.copy(rows), rows)
    seen_max = facts.in_force.get("settings", {}).get("limits", {}).get("seen_max")
    short = seen_max is not None and seen_max < len(log.of(Kind.PUBLISH))
    drop = facts.before(log.of(Kind.DROP)).find(facts.copy(rows), rows)
    forgotten = drop > last if short else last < -1
    forgotten &= (facts.group[rows] < 0) & (facts.deadline_us(rows) == NEVER_US)
    twice = (last >= 0) & ~again & ~forgotten
    yield from facts.blamed(rows[twice], "delivered twice")
    crash = facts.crashes.find(log.node[rows], rows)
    undone = (facts.group[rows] >= 0) & (crash >= 0) & facts.full_disks
    delay_us = MICROSECONDS * facts.in_force.get("disk_delay_s", math.inf)
    # The first crash after the drop counts: the store has the copy in all later incarnations.
    first = facts.crashes.following(log.node[rows], drop)
    undone |= (here < drop) & (drop < first) & (first < rows) & (log.t_us[first] - log.t_us[drop] <= delay_us)
    yield from facts.blamed(rows[again & (last < 0) & ~undone], "delivered again, and never before")
    yield from facts.blamed(rows[again & (last >= 0) & (crash < last)], "delivered again without a crash")


def before_the_deadline(facts: Facts) -> Found:
    """Check that nothing is received or delivered at its deadline or later, nor expires earlier, by the node's clock.

    A message that waits may expire earlier, if it can never be delivered.
    """
    log = facts.log
    rows = log.of(Kind.RECEIVE, Kind.DELIVER)
    deadline_us = facts.deadline_us(rows)
    judged = (facts.clock_us[rows] >= 0) | ~facts.wrong_clocks[log.node[rows]]
    late = judged & (facts.shown_us(rows) >= deadline_us)
    for row, due_us in zip(rows[late].tolist(), deadline_us[late].tolist(), strict=True):
        yield row, f"{facts.shown(row)}: its deadline was {due_us / MICROSECONDS:.6f} s"
    # A row without the node's clock cannot be judged where that clock is wrong.
    drops = log.of(Kind.DROP)
    drops = drops[log.is_detail(drops, Reason.EXPIRED.value) & ~facts.wrong_clocks[log.node[drops]]]
    yield from facts.blamed(drops[log.t_us[drops] < facts.deadline_us(drops)], "expired before its deadline")


def over_an_open_contact(facts: Facts) -> Found:
    """Check that every message is received from a neighbour over an open contact, or over relays."""
    log = facts.log
    rows = log.of(Kind.RECEIVE)
    if not facts.emulated:
        return
    contacts = log.of(Kind.CONTACT)
    relayed = log.attr("path")
    rows = rows[~np.isin(rows, list(relayed))]
    last = Before(_pair(log, contacts), contacts, len(log)).find(_pair(log, rows), rows)
    contact, t_us = np.maximum(last, 0), log.t_us[rows]
    open_ = (last >= 0) & (log.t_us[contact] <= t_us) & (t_us < log.attr_us("end")[contact])
    for row in rows[~open_].tolist():
        yield row, f"{facts.shown(row)}: from {log.nodes[log.peer[row]]}, with which there is no contact"


def along_open_contacts(facts: Facts) -> Found:
    """Check that a message that came over relays passed no host twice, and only links that were there.

    The last link is open when the message arrives. The others may have ended while the message was on its way.
    """
    log = facts.log
    relayed = log.attr("path")
    if not relayed or not facts.emulated:
        return
    ends = log.attr_us("end")
    stays: dict[frozenset[str], list[tuple[int, int]]] = {}
    for row in log.of(Kind.CONTACT).tolist():
        pair = frozenset((log.nodes[log.node[row]], log.nodes[log.peer[row]]))
        stays.setdefault(pair, []).append((int(log.t_us[row]), int(ends[row])))
    for row, path in relayed.items():
        hosts = [log.nodes[log.peer[row]], *path.split(" "), log.nodes[log.node[row]]]
        if len(set(hosts)) < len(hosts):
            yield row, f"{facts.shown(row)}: its path {' '.join(hosts)} leads through a host twice"
        for at, link in enumerate(pairwise(hosts), 2):
            t_us = int(log.t_us[row])
            since_us = t_us if at == len(hosts) else t_us - _UNDER_WAY_US
            if not any(start <= t_us and since_us < end for start, end in stays.get(frozenset(link), ())):
                yield row, f"{facts.shown(row)}: over {' '.join(link)}, between which there is no contact"


def hop_by_hop(facts: Facts) -> Found:
    """Check that the neighbour had the message before, and was one hop nearer to its author.

    Messages of several pieces are not checked: their pieces come from several neighbours, some of which lack the rest.
    """
    log = facts.log
    rows = log.of(Kind.RECEIVE)
    rows = rows[log.size[rows] <= PIECE_BYTES]
    holders = log.of(Kind.PUBLISH, Kind.RECEIVE)
    had = facts.before(holders).find(facts.copy(rows, log.peer[rows]), rows)
    for row in rows[had < 0].tolist():
        yield row, f"{facts.shown(row)}: from {log.nodes[log.peer[row]]}, which did not have it"
    if facts.in_force.get("faults", {}).get("corrupt"):
        return  # Nothing vouches for the number of hops.
    hops = np.where(log.kind == KIND[Kind.PUBLISH], 0, log.hops)
    given = hops[np.maximum(had, 0)] + 1
    # A node that crashed may have got it again by another path, and have forwarded its first copy.
    crashed = facts.crashes.find(log.peer[rows], rows) >= 0
    for row in rows[(had >= 0) & (log.hops[rows] != given) & ~crashed].tolist():
        yield row, f"{facts.shown(row)}: {log.hops[row]} hops, from {log.nodes[log.peer[row]]}, which is not one nearer"


def within_the_bound(facts: Facts) -> Found:
    """Check that no node receives what a flood over the record's own contacts could not have brought."""
    if not facts.emulated:
        return
    log = facts.log
    rows = log.of(Kind.RECEIVE)
    reached = facts.bound
    place = {name: index for index, name in enumerate(reached.messages)}
    bit = np.array([place.get(name, -1) for name in log.messages] or [-1], np.int64)[log.message[rows]]
    # Bits of the whole number are unpacked once per node: a shift per row would cost the length of
    # the number each time.
    width = len(reached.messages) // 8 + 1
    by_node = np.argsort(log.node[rows], kind="stable")
    for group in np.split(by_node, np.flatnonzero(np.diff(log.node[rows][by_node])) + 1):
        if not len(group):
            continue
        held = reached.reached.get(log.nodes[log.node[rows[group[0]]]], 0)
        bits = np.unpackbits(np.frombuffer(held.to_bytes(width, "little"), np.uint8), bitorder="little")
        unreached = group[(bits[bit[group]] == 0) & (bit[group] >= 0)]
        yield from facts.blamed(rows[unreached], "no flood could have brought it there")


def caches_within_limits(facts: Facts) -> Found:
    """Check that no cache holds more than the settings allow, by its own count and by the rows of copies."""
    log = facts.log
    if (most := facts.limit("cache_messages_max")) is not None:
        rows = log.of(Kind.REGISTRY)
        rows = rows[log.is_detail(rows, "cache")]
        for row in rows[log.size[rows] > most].tolist():
            yield row, f"{log.nodes[log.node[row]]} has {log.size[row]:,} messages in its cache, at most {most:,}"
    rows, gain = _balance(facts)
    if not len(rows):
        return
    node, t_us = log.node[rows], log.t_us[rows]
    ends = np.append((np.diff(node) != 0) | (np.diff(t_us) != 0), True)
    starts = np.append(0, np.flatnonzero(np.diff(node)) + 1)
    for name in ("cache_messages_max", "cache_bytes_max"):
        if (most := facts.limit(name)) is None:
            continue
        total = np.cumsum(gain if name == "cache_messages_max" else gain * log.size[rows])
        total -= np.repeat(np.append(0, total)[starts], np.diff(np.append(starts, len(rows))))
        for at in np.flatnonzero(ends & (total > most)).tolist():
            yield int(rows[at]), f"{facts.shown(int(rows[at]))}: {total[at]:,} in the cache, {name} is {most:,}"


def every_end_has_a_reason(facts: Facts) -> Found:
    """Check that every drop has a reason, and that nothing is kept past its deadline."""
    log = facts.log
    drops = log.of(Kind.DROP)
    known = [log.details.index(reason.value) for reason in Reason if reason.value in log.details]
    yield from facts.blamed(drops[~np.isin(log.detail[drops], known)], "dropped, and no known reason")
    refusals = log.of(Kind.REFUSE)
    yield from facts.blamed(refusals[log.detail[refusals] < 0], "refused, and no reason")
    copies = facts.copies(Kind.PUBLISH, Kind.RECEIVE)
    last = facts.before(copies).last(np.unique(facts.copy(copies)))
    sure = (facts.crashes.last(log.node[last]) < last) & ~facts.wrong_clocks[log.node[last]]
    kept = facts.there_at_end(last) & np.isin(log.kind[last], [KIND[Kind.PUBLISH], KIND[Kind.RECEIVE]])
    overdue = facts.deadline_us(last) < log.t_us.max(initial=0)
    text = "still here after its deadline, and no row `drop` explains it"
    yield from facts.blamed(last[kept & sure & overdue], text)


def _pair(log: Log, rows: Ints) -> Ints:
    """Return a number for the two nodes of a row, in either order."""
    a, b = log.node[rows], log.peer[rows]
    return np.minimum(a, b) * np.int64(len(log.nodes)) + np.maximum(a, b)


def _balance(facts: Facts) -> tuple[Ints, Ints]:
    """Return the rows at which a whole copy comes (1) or goes (-1), by node, then in order of time."""
    log = facts.log
    rows = facts.copies(Kind.PUBLISH, Kind.RECEIVE)
    last = facts.before(rows).find(facts.copy(rows), rows)
    comes = np.isin(log.kind, [KIND[Kind.PUBLISH], KIND[Kind.RECEIVE]])
    had = (last >= 0) & comes[np.maximum(last, 0)]
    gain = np.where(comes[rows], np.where(had, 0, 1), np.where(had, -1, 0)).astype(np.int64)
    # Copies lost in a crash have no rows: from then on the balance is unknown.
    sure = facts.crashes.find(log.node[rows], rows) < 0
    rows, gain = rows[sure], gain[sure]
    order = np.lexsort((rows, log.node[rows]))
    return rows[order], gain[order]


RULES: tuple[Callable[[Facts], Found], ...] = (
    time_does_not_go_back,
    only_what_was_published,
    only_who_is_there,
    received_once,
    delivered_once,
    delivered_at_recipients_only,
    purged_once_all_could_say_so,
    displaced_by_a_higher_rank,
    before_the_deadline,
    over_an_open_contact,
    along_open_contacts,
    hop_by_hop,
    within_the_bound,
    caches_within_limits,
    every_end_has_a_reason,
    order.causal_order,
    order.expired_while_it_waited,
    order.nothing_waits_in_vain,
    order.nothing_is_hurried,
    order.events_once_and_in_order,
    order.results_of_their_events,
)
