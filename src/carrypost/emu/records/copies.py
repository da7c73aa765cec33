"""Copies of messages, from the rows of a run: one for each message at each node that it reached, and its delays.

Summaries, metrics and calibrations count these. Checkers do not: their rules look at every row
(`carrypost.emu.verify.facts`), also at those that are left out here.
"""

# What is counted is decided here: the first reception that is not marked `again`, the first
# delivery that is not marked `redelivered`, the first expiry (CAUSAL §VI-A d). The publication of a
# copy is the last one before it: if a crash took a message before it was stored, its id is assigned
# again.
#
# How it is found. Node, message, kind and row of each reception, delivery and so on are packed into
# one number, and the numbers sorted once: the first of each copy and kind then precedes the others.
# A sort of plain numbers is several times faster than one of rows by three columns.

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from carrypost.arrays import Codes, Flags, Ints
from carrypost.emu.records.log import KIND, MISSING, Before, Log
from carrypost.log.record import AGAIN, REDELIVERED, Kind

DELAYS = TDELAY, LTCY, CODLVDELAY = "tdelay", "ltcy", "codlvdelay"
NEVER = np.iinfo(np.int64).min
"""In place of a time that there is none of."""
HOPS_MAX = (1 << 12) - 1
TOLD = (Kind.PUBLISH, Kind.RECEIVE, Kind.DELIVER, Kind.EXPIRE)
"""Kinds of rows about copies."""
_KIND_BITS = 2
_BITS = 63


@dataclass(frozen=True, eq=False)
class Copies:
    """Every message at every node that it reached, its author included; sorted by node and message."""

    log: Log
    node: Ints
    message: Ints
    received: Ints
    """Row of the first reception; -1 where there is none, as in the two that follow."""
    delivered: Ints
    expired: Ints
    publications: Ints
    """Rows of publications, by message and time."""

    @classmethod
    def of(cls, log: Log, without: Ints | None = None) -> Copies:
        """Return the copies in some rows; `without` these messages."""
        at = _counted(log, without)
        key, row = _first(log, at)
        copy = key >> _KIND_BITS
        begins = np.diff(copy, prepend=-1) != 0
        rows = np.full((len(TOLD), np.count_nonzero(begins)), MISSING)
        rows[key & ((1 << _KIND_BITS) - 1), np.cumsum(begins) - 1] = row
        node, message = np.divmod(copy[begins], max(1, len(log.names("message"))))
        published = np.sort(at[log.kind[at] == KIND[Kind.PUBLISH]])
        by_message = published[np.argsort(log.message[published], kind="stable")]
        return cls(log, node, message, rows[1], rows[2], rows[3], by_message)

    @cached_property
    def first(self) -> Ints:
        """Place of the first publication of each message, among `publications`."""
        return np.flatnonzero(np.diff(self.log.message[self.publications], prepend=MISSING))

    @cached_property
    def publication(self) -> Ints:
        """Row of the publication of each copy; -1: there is none."""
        message, first = self.log.message[self.publications], self.first
        of = np.full(len(self.log.names("message")), MISSING, np.int64)
        of[message[first]] = self.publications[first]
        found = of[self.message]
        several = message[first[np.diff(first, append=len(message)) > 1]]
        if len(which := np.flatnonzero(np.isin(self.message, several))):
            at = np.full(len(which), len(self.log))
            for rows in (self.expired, self.delivered, self.received):
                at = np.where(rows[which] >= 0, rows[which], at)
            last = Before(message, self.publications, len(self.log)).find(self.message[which], at)
            found[which] = np.maximum(last, found[which])  # What came before any publication is of the first.
        return found

    @cached_property
    def published(self) -> Flags:
        """Flags of copies of a known publication."""
        return np.asarray(self.publication >= 0)

    @cached_property
    def own(self) -> Flags:
        """Flags of copies at their authors."""
        return np.asarray(self._at(self.publication, self.log.node, MISSING) == self.node)

    @cached_property
    def published_us(self) -> Ints:
        """The times at which the authors published them; `NEVER`: not known, as in the three that follow."""
        return self._at(self.publication, self.log.t_us, NEVER)

    @cached_property
    def received_us(self) -> Ints:
        """The times of the first receptions."""
        return self._at(self.received, self.log.t_us, NEVER)

    @cached_property
    def delivered_us(self) -> Ints:
        """The times of the first deliveries."""
        return self._at(self.delivered, self.log.t_us, NEVER)

    @cached_property
    def expired_us(self) -> Ints:
        """The times at which they expired."""
        return self._at(self.expired, self.log.t_us, NEVER)

    @cached_property
    def hops(self) -> Ints:
        """Hops of the first reception; 0: not known."""
        return np.clip(self._at(self.received, self.log.hops, 0), 0, HOPS_MAX)

    @cached_property
    def size(self) -> Ints:
        """Payload; -1: not known."""
        return self._at(self.publication, self.log.size, MISSING)

    @cached_property
    def delays(self) -> dict[str, tuple[Flags, Ints]]:
        """The three delays: flags of the copies that have one, and its length for each; none at authors."""
        received = ~self.own & (self.received >= 0)
        known, delivered = received & self.published, received & (self.delivered >= 0)
        tdelay, ltcy = self.received_us - self.published_us, self.delivered_us - self.received_us
        return {TDELAY: (known, tdelay), LTCY: (delivered, ltcy), CODLVDELAY: (known & delivered, tdelay + ltcy)}

    @staticmethod
    def _at(rows: Ints, values: Ints | Codes, otherwise: int) -> Ints:
        """Return the value at each row, or another where there is no row."""
        return np.where(rows >= 0, values[rows], np.int64(otherwise))


def _counted(log: Log, without: Ints | None) -> Ints:
    """Return the rows that count: no repetitions after a crash, and nothing of the messages `without`."""
    parts = [log.of(Kind.PUBLISH, Kind.EXPIRE)]
    for kind, but in ((Kind.RECEIVE, AGAIN), (Kind.DELIVER, REDELIVERED)):
        rows = log.of(kind)
        parts.append(rows[~log.is_detail(rows, but)])
    at = np.concatenate(parts)
    found: Ints = at[log.message[at] != MISSING]
    return found if without is None or not len(without) else found[~np.isin(log.message[found], without)]


def _first(log: Log, at: Ints) -> tuple[Ints, Ints]:
    """Return the first row of each copy and kind, in order: node, message and kind as one number, and the row."""
    order = np.zeros(len(log.kinds), np.int64)
    order[[KIND[kind] for kind in TOLD]] = np.arange(len(TOLD))
    copy = log.node[at].astype(np.int64) * len(log.names("message")) + log.message[at]
    key = (copy << _KIND_BITS) | order[log.kind[at]]
    bits = max(1, len(log) - 1).bit_length()
    if (int(key.max(initial=0)).bit_length() + bits) <= _BITS:
        packed = np.sort((key << bits) | at)
        key, row = packed >> bits, packed & ((1 << bits) - 1)
    else:
        by_key = np.lexsort((at, key))
        key, row = key[by_key], at[by_key]
    first = np.diff(key, prepend=-1) != 0
    return key[first], row[first]
