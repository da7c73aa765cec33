"""Copies of messages, from the rows of a run: one for each message at each node that it reached."""

# What metrics count is decided here: the first reception that is not marked `again`, the first
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

from carrypost.emu.arrays import Codes, Flags, Ints
from carrypost.emu.traces.formats.words import numbers
from carrypost.lab.metrics.families import CODLVDELAY, LTCY, TDELAY
from carrypost.lab.metrics.rows import MISSING, Rows, microseconds
from carrypost.record import AGAIN, REDELIVERED, Kind

NEVER = np.iinfo(np.int64).min
"""In place of a time that there is none of."""
ENDLESS = (1 << 62) - 1
"""The deadline of messages that have none."""
HOPS_MAX = (1 << 12) - 1
TOLD = (Kind.PUBLISH, Kind.RECEIVE, Kind.DELIVER, Kind.EXPIRE)
"""Kinds of rows about copies."""
_KIND_BITS = 2
_BITS = 63


@dataclass(frozen=True, eq=False)
class Publications:
    """Publications, by message and time."""

    row: Ints
    message: Codes
    author: Codes
    t_us: Ints
    deadline_us: Ints
    size: Ints
    """Payload; -1: not known."""

    @classmethod
    def of(cls, rows: Rows) -> Publications:
        """Return the publications among some rows."""
        at = rows.of(Kind.PUBLISH)
        at = at[(rows.message[at] != MISSING) & ~np.isin(rows.message[at], rows.between_overlays)]
        at = at[np.argsort(rows.message[at], kind="stable")]  # Rows are in order of time.
        seconds = numbers(rows.attribute("deadline", at))
        ends = np.isfinite(seconds)
        return cls(
            row=at,
            message=rows.message[at],
            author=rows.node[at],
            t_us=rows.t_us[at],
            deadline_us=np.where(ends, microseconds(np.where(ends, seconds, 0.0)), ENDLESS),
            size=rows.whole("size", at).fill_null(-1).to_numpy(zero_copy_only=False),
        )

    @cached_property
    def first(self) -> Ints:
        """Place of the first publication of each message."""
        return np.flatnonzero(np.diff(self.message, prepend=MISSING))

    def matching(self, message: Codes, at_us: Ints, messages: int) -> Ints:
        """Return the place of the publication of each of these copies at its time; -1: there is none."""
        place = np.full(messages, -1, np.int64)
        place[self.message[self.first]] = self.first
        found = place[message]
        counts = np.diff(self.first, append=len(self.message))
        if len(several := np.flatnonzero(counts > 1)):
            number = np.full(messages, -1, np.int64)
            number[self.message[self.first[several]]] = np.arange(len(several))
            which = np.flatnonzero(number[message] >= 0)
            mine = np.isin(self.message, self.message[self.first[several]])
            least_us, most_us = int(self.t_us[mine].min()), int(self.t_us[mine].max())
            span_us = most_us - least_us + 1
            # Message and time in one number, by which publications are in order.
            keys = number[self.message[mine]] * span_us + (self.t_us[mine] - least_us)
            wanted = number[message[which]] * span_us + (np.clip(at_us[which], least_us, most_us) - least_us)
            last = np.flatnonzero(mine)[np.maximum(np.searchsorted(keys, wanted, side="right") - 1, 0)]
            found[which] = np.maximum(last, found[which])  # What came before any publication is of the first.
        return found


@dataclass(frozen=True, eq=False)
class Copies:
    """Every message at every node that it reached, its author included."""

    publications: Publications
    node: Codes
    message: Codes
    received_us: Ints
    """`NEVER` where it was not, as are the two that follow."""
    delivered_us: Ints
    expired_us: Ints
    hops: Codes
    """Hops of the first reception; 0: not known."""
    publication: Ints
    """Index of the publication; -1: there is none."""

    @classmethod
    def of(cls, rows: Rows) -> Copies:
        """Return the copies in some rows."""
        at = _counted(rows)
        key, row = _first(rows, at)
        copy = key >> _KIND_BITS
        begins = np.diff(copy, prepend=-1) != 0
        place = np.cumsum(begins) - 1
        node, message = np.divmod(copy[begins], max(1, len(rows.messages)))
        kind = key & ((1 << _KIND_BITS) - 1)
        times = {each: np.full(len(node), NEVER) for each in TOLD}
        for number, each in enumerate(TOLD):
            mine = kind == number
            times[each][place[mine]] = rows.t_us[row[mine]]
        came = kind == TOLD.index(Kind.RECEIVE)
        hops = np.zeros(len(node), np.int32)
        found = rows.whole("hops", row[came]).fill_null(0).to_numpy(zero_copy_only=False)
        hops[place[came]] = np.clip(found, 0, HOPS_MAX)
        received_us, delivered_us, expired_us = (times[each] for each in TOLD[1:])
        publications = Publications.of(rows)
        at_us = np.where(received_us != NEVER, received_us, np.where(delivered_us != NEVER, delivered_us, expired_us))
        at_us = np.where(at_us == NEVER, ENDLESS, at_us)
        publication = publications.matching(message, at_us, len(rows.messages))
        return cls(publications, node, message, received_us, delivered_us, expired_us, hops, publication)

    @cached_property
    def published(self) -> Flags:
        """Flags of copies of a known publication."""
        found: Flags = self.publication >= 0
        return found

    @cached_property
    def published_us(self) -> Ints:
        """The times at which the authors published them; `NEVER`: not known."""
        return self._of_publication(self.publications.t_us, NEVER)

    @cached_property
    def own(self) -> Flags:
        """Flags of copies at their authors."""
        found: Flags = self._of_publication(self.publications.author.astype(np.int64), MISSING) == self.node
        return found

    @cached_property
    def size(self) -> Ints:
        """Payload; -1: not known."""
        return self._of_publication(self.publications.size, -1)

    def _of_publication(self, values: Ints, otherwise: int) -> Ints:
        if not len(values):
            return np.full(len(self.node), otherwise, np.int64)
        return np.where(self.published, values[self.publication], otherwise)

    @cached_property
    def delays(self) -> dict[str, tuple[Flags, Ints]]:
        """The three delays: flags of the copies that have one, and its length for each; none at authors."""
        received = ~self.own & (self.received_us != NEVER)
        known, delivered = received & self.published, received & (self.delivered_us != NEVER)
        tdelay, ltcy = self.received_us - self.published_us, self.delivered_us - self.received_us
        return {TDELAY: (known, tdelay), LTCY: (delivered, ltcy), CODLVDELAY: (known & delivered, tdelay + ltcy)}


def _counted(rows: Rows) -> Ints:
    """Return the rows that count: neither repetitions after a crash nor messages between overlays."""
    parts = [rows.of(Kind.PUBLISH, Kind.EXPIRE)]
    for kind, but in ((Kind.RECEIVE, AGAIN), (Kind.DELIVER, REDELIVERED)):
        at = rows.of(kind)
        parts.append(at[~rows.is_detail(at, but)])
    at = np.concatenate(parts)
    found: Ints = at[(rows.message[at] != MISSING) & ~np.isin(rows.message[at], rows.between_overlays)]
    return found


def _first(rows: Rows, at: Ints) -> tuple[Ints, Ints]:
    """Return the first row of each copy and kind, in order: node, message and kind as one number, and the row."""
    order = np.zeros(max(1, len(rows.kinds)), np.int64)
    for code, name in enumerate(rows.kinds.to_pylist()):
        order[code] = TOLD.index(name) if name in TOLD else 0
    copy = rows.node[at].astype(np.int64) * len(rows.messages) + rows.message[at]
    key = (copy << _KIND_BITS) | order[rows.kind[at]]
    bits = max(1, len(rows) - 1).bit_length()
    if (int(key.max(initial=0)).bit_length() + bits) <= _BITS:
        packed = np.sort((key << bits) | at)
        key, row = packed >> bits, packed & ((1 << bits) - 1)
    else:
        by_key = np.lexsort((at, key))
        key, row = key[by_key], at[by_key]
    first = np.diff(key, prepend=-1) != 0
    return key[first], row[first]
