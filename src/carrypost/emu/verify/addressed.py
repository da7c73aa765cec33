"""Rules about messages that list their recipients: where they are delivered, when copies go, and which give way."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import groupby

import numpy as np

from carrypost.emu.records.log import KIND, Log
from carrypost.emu.verify.bound import arrivals_us
from carrypost.emu.verify.facts import Facts, Found
from carrypost.log.events import Reason
from carrypost.log.record import Kind
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
