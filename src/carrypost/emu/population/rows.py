"""Rows of a population's record, by columns: from gains (when, giver, taker, set) to receptions and deliveries.

A row is a few whole numbers until it is written: nodes and messages are their places in the plan. Rows are in order of
(t, kind, hops, node, message); so parts of a run that are joined give the rows of the run in one piece. Hops come
before nodes so that no copy is received before the one that it comes from.

The hops of a reception are those of the giver and one more. They are looked up in a table that has a line for each
message that lives and a column for each node.

Counts are what stays of a run without rows, and what its record ends with (`Tally`). Those of parts add up to those of
the run. Delays are counted by whole seconds; their sum is exact.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from carrypost.arrays import Codes, Ints
from carrypost.emu.population.delays import NEVER_US
from carrypost.emu.population.flow import Gain
from carrypost.emu.population.plan import Plan
from carrypost.emu.population.windows import Part
from carrypost.emu.records.files import ROWS_MAX, encoded_batch
from carrypost.log.record import Kind, Record
from carrypost.model.times import MICROSECONDS
from carrypost.traces.encounters import Encounters


def _nothing() -> Ints:
    return np.zeros(0, np.int64)


@dataclass(slots=True)
class Tally:
    """Counts of a part, or of a run."""

    counts: Counter[str] = field(default_factory=Counter)
    delays: Ints = field(default_factory=_nothing)
    """Receptions by whole seconds since publication."""
    hops: Ints = field(default_factory=_nothing)
    """Receptions by hops."""

    def add(self, other: Tally) -> None:
        """Add the counts of another part."""
        self.counts.update(other.counts)
        self.delays, self.hops = _sum(self.delays, other.delays), _sum(self.hops, other.hops)

    def met(self, contacts: Encounters, until_us: int, published: int) -> None:
        """Count the contacts that begin before this time, and publications."""
        begun = contacts.start_us < until_us
        self.counts["contact"] += int(begun.sum())
        self.counts["contact_us"] += int((contacts.end_us - contacts.start_us)[begun].sum())
        self.counts["publish"] += published

    def received(self, delay_us: Ints, hops: Ints) -> None:
        """Count receptions, of each of which the delay since its publication and the hops are given."""
        counts = Counter({"receive": len(delay_us), "delay_us": int(delay_us.sum())})
        self.add(Tally(counts, np.bincount(delay_us // MICROSECONDS), np.bincount(hops)))

    def record(self, record: Record, t_us: int) -> None:
        """Append the counts as rows."""
        for name, count in sorted(self.counts.items()):
            record.add(Kind.TALLY, t_us, "", size=count, detail=name)
        for since_s in np.flatnonzero(self.delays).tolist():
            attrs = {"from_s": str(since_s), "to_s": str(since_s + 1)}
            record.add(Kind.TALLY, t_us, "", size=int(self.delays[since_s]), detail="delay", attrs=attrs)
        for hops in np.flatnonzero(self.hops).tolist():
            record.add(Kind.TALLY, t_us, "", hops=hops, size=int(self.hops[hops]), detail="hops")


def _sum(one: Ints, other: Ints) -> Ints:
    """Return the sum of two histograms, of which one may be shorter."""
    longer, shorter = (one, other) if len(one) > len(other) else (other, one)
    found = longer.copy()
    found[: len(shorter)] += shorter
    return found


KINDS = (Kind.LEAVE, Kind.JOIN, Kind.CONTACT, Kind.PUBLISH, Kind.RECEIVE, Kind.DELIVER)
"""The order of rows at one instant."""
_PLACE = {kind: place for place, kind in enumerate(KINDS)}
_WORD = 64
_KEY_MAX = 2**63


class Rows(NamedTuple):
    """Rows by columns; -1 where there is nothing."""

    t_us: Ints
    kind: Ints
    """Place in `KINDS`."""
    node: Ints
    peer: Ints
    message: Ints
    """Place among all messages of the run."""
    hops: Ints
    value: Ints
    """Of a contact its end in microseconds; of a leave the stay that it ends."""

    def select(self, which: slice | Ints) -> Rows:
        """Return the selected rows."""
        return Rows(*(column[which] for column in self))

    @classmethod
    def none(cls) -> Rows:
        """Return an empty set of rows."""
        return cls(*(np.zeros(0, np.int64) for _ in cls._fields))

    def delivered(self) -> Rows:
        """Return the deliveries of receptions: at once."""
        return Rows.of(Kind.DELIVER, self.t_us, self.node, message=self.message)

    @classmethod
    def of(cls, kind: Kind, t_us: Ints, node: Codes | Ints, **columns: Codes | Ints) -> Rows:
        """Return rows of one kind."""
        none = np.full(len(t_us), -1, np.int64)
        rest = [columns.get(name, none).astype(np.int64, copy=False) for name in cls._fields[3:]]
        return cls(t_us, np.full(len(t_us), _PLACE[kind], np.int64), node.astype(np.int64, copy=False), *rest)


def concatenate(parts: Sequence[Rows]) -> Rows:
    """Return the rows of all parts, in order."""
    rows = Rows(*(np.concatenate(column) for column in zip(*parts, strict=True)))
    if not len(rows.t_us):
        return rows
    about = np.where(rows.kind == _PLACE[Kind.CONTACT], rows.peer, rows.message)
    columns = (rows.t_us - rows.t_us.min(), rows.kind, rows.hops + 1, rows.node, about + 1)
    counts = [int(column.max()) + 1 for column in columns]
    if math.prod(counts) >= _KEY_MAX:
        return rows.select(np.lexsort(columns[::-1]))
    key, *others = columns  # One key is sorted in a fraction of the time that five take.
    for column, count in zip(others, counts[1:], strict=True):
        key = key * count + column
    return rows.select(np.argsort(key))


def rows_known_before(plan: Plan, part: Part, contacts: Encounters) -> Rows:
    """Return the rows of a part that are known beforehand: arrivals and departures, contacts, and publications."""
    stays, messages = plan.stays, plan.messages
    comes = np.flatnonzero((stays.start_us >= part.since_us) & (stays.start_us < part.until_us))
    goes = np.flatnonzero((stays.end_us >= part.since_us) & (stays.end_us < part.until_us))
    met = contacts.select((contacts.start_us >= part.since_us) & (contacts.start_us < part.until_us))
    number: Ints = np.arange(part.first, part.last)
    t_us, source = messages.t_us[number], messages.source[number]
    return concatenate([
        Rows.of(Kind.LEAVE, stays.end_us[goes], stays.node[goes], value=goes),
        Rows.of(Kind.JOIN, stays.start_us[comes], stays.node[comes]),
        Rows.of(Kind.CONTACT, met.start_us, met.a, peer=met.b, value=met.end_us),
        Rows.of(Kind.PUBLISH, t_us, source, message=number),
        Rows.of(Kind.DELIVER, t_us, source, message=number),
    ])  # fmt: skip


# --- receptions ----------------------------------------------------------------------------------------------


class Receptions:
    """Takes the gains of a part, in order of time, and makes receptions of them."""

    def __init__(self, plan: Plan, part: Part) -> None:
        chosen = slice(part.first, part.last)
        self.tally = Tally()
        self._first = part.first
        self._t_us = plan.messages.t_us[chosen]
        self._deadline_us = plan.messages.deadline_us[chosen]
        self._source = plan.messages.source[chosen]
        self._published = 0
        self._line: Ints = np.full(len(self._t_us), -1, np.int64)
        """By message, its line in the table of hops."""
        self._table: NDArray[np.uint16] = np.zeros((0, len(plan.nodes)), np.uint16)
        """By line and node: 1 the author, 2 got it from the author, and so on; 0 does not have it."""
        self._free: list[int] = []

    def receive(self, gains: list[Gain]) -> Rows:
        """Return the receptions that these gains are, in order, and count them."""
        if not gains:
            return Rows.none()
        *columns, sets = zip(*gains, strict=True)
        self._advance(gains[0][0], gains[-1][0])
        oldest = int(np.argmax(self._line >= 0))
        row, message = _members(sets, oldest, self._published)
        t_us, giver, taker = (np.array(column, np.int64).take(row) for column in columns)
        hops = self._hops(self._line.take(message), giver, taker)
        self.tally.received(t_us - self._t_us.take(message), hops)
        return Rows.of(Kind.RECEIVE, t_us, taker, peer=giver, message=message + self._first, hops=hops)

    def _advance(self, first_us: int, last_us: int) -> None:
        """Give lines to what is published by the end of a batch, and take them from what was dead when it began."""
        before, self._published = self._published, int(np.searchsorted(self._t_us, last_us, side="right"))
        dead = np.flatnonzero((self._line >= 0) & (self._deadline_us <= first_us))
        self._table[self._line[dead]] = 0
        self._free += self._line[dead].tolist()
        self._line[dead] = -1
        new: Ints = np.arange(before, self._published)
        if (lacking := len(new) - len(self._free)) > 0:
            lines, nodes = self._table.shape
            more = max(lacking, lines // 4)
            self._table.resize((lines + more, nodes), refcheck=False)  # Large blocks are not copied.
            self._free += range(lines, lines + more)
        self._line[new] = self._free[: len(new)]
        del self._free[: len(new)]
        self._table[self._line[new], self._source[new]] = 1

    def _hops(self, line: Ints, giver: Ints, taker: Ints) -> Ints:
        """Return the hops of receptions. A giver may have got its copy in the same batch: those are looked at again."""
        table, nodes = self._table.reshape(-1), self._table.shape[1]
        gives, there = line * nodes + giver, line * nodes + taker
        subscribed = there
        while len(subscribed):  # `receive` is twice as fast as to index.
            hops = table.take(gives)
            known = hops != 0
            done, left = np.flatnonzero(known), np.flatnonzero(~known)
            table[subscribed.take(done)] = hops.take(done) + np.uint16(1)
            gives, subscribed = gives.take(left), subscribed.take(left)
        found: Ints = table.take(there).astype(np.int64)
        return found - 1


def _members(sets: Sequence[int], first: int, last: int) -> tuple[Ints, Ints]:
    """Return the members of sets within [first, last): by member the place of its set, and which it is."""
    first -= first % _WORD
    words = -(-(last - first) // _WORD)
    table = np.frombuffer(b"".join([(each >> first).to_bytes(words * 8, "little") for each in sets]), "<u8")
    word = np.flatnonzero(table)
    bit = np.flatnonzero(np.unpackbits(table[word].view(np.uint8), bitorder="little").view(np.bool_))
    place = word.take(bit >> 6)
    row = place // words
    return row, first + (place - row * words) * _WORD + (bit & 63)


# --- for the record ------------------------------------------------------------------------------------------


class Batches:
    """Makes batches of equal length for the record out of rows that come in order."""

    def __init__(self, plan: Plan, run: str, topics: Sequence[str]) -> None:
        self._plan = plan
        self._run = run
        self._topics = topics
        self._nodes = pa.array(plan.nodes, pa.string())
        self._messages = pa.array(plan.messages.names, pa.string())
        self._waiting: list[Rows] = []
        self._count = 0

    def add(self, rows: Rows, *, last: bool = False) -> Iterator[pa.RecordBatch]:
        """Yield the batches that are full, and at the end the rest."""
        self._waiting.append(rows)
        self._count += len(rows.t_us)
        if self._count < ROWS_MAX and not last:
            return
        together = Rows(*(np.concatenate(column) for column in zip(*self._waiting, strict=True)))
        whole = self._count if last else self._count - self._count % ROWS_MAX
        for start in range(0, whole, ROWS_MAX):
            yield self._batch(together.select(slice(start, min(start + ROWS_MAX, whole))))
        self._waiting, self._count = [together.select(slice(whole, None))], self._count - whole

    def _batch(self, rows: Rows) -> pa.RecordBatch:
        messages = self._plan.messages
        about = rows.message >= 0
        source = np.where(about, messages.source[rows.message], -1) if len(messages) else rows.message
        size = np.where(about, messages.size[rows.message], -1) if len(messages) else rows.message
        kinds = pa.array([kind.value for kind in KINDS])
        columns = {
            "kind": (rows.kind, kinds), "node": (rows.node, self._nodes), "peer": (rows.peer, self._nodes),
            "message": (rows.message, self._messages), "source": (source, self._nodes),
        }  # fmt: skip
        return encoded_batch(
            self._run, rows.t_us, columns, {"hops": rows.hops, "size": size},
            details=self._details(rows), attrs=self._attrs(rows),
        )  # fmt: skip

    def _details(self, rows: Rows) -> dict[int, str]:
        """Return the reason for which a node leaves, by row, if it has one."""
        leaves = np.flatnonzero(rows.kind == _PLACE[Kind.LEAVE])
        found = zip(leaves.tolist(), rows.value[leaves].tolist(), strict=True)
        return {place: why for place, stay in found if (why := self._plan.stays.end[stay])}

    def _attrs(self, rows: Rows) -> dict[int, dict[str, str]]:
        """Return further attributes of contacts and publications, by row."""
        contacts, publications = (np.flatnonzero(rows.kind == _PLACE[kind]) for kind in (Kind.CONTACT, Kind.PUBLISH))
        ends = zip(contacts.tolist(), rows.value[contacts].tolist(), strict=True)
        published = zip(publications.tolist(), rows.message[publications].tolist(), strict=True)
        found = {place: {"end": repr(end_us / MICROSECONDS)} for place, end_us in ends}
        return dict(sorted((found | {place: self._published(message) for place, message in published}).items()))

    def _published(self, message: int) -> dict[str, str]:
        """Attributes of a message, as `Record.published` has them."""
        messages = self._plan.messages
        mode = "persistent" if messages.persistent[message] else "non-persistent"
        attrs = {
            "destination": self._topics[messages.workload[message]],
            "mode": mode,
            "priority": str(messages.priority[message]),
        }
        if (deadline_us := int(messages.deadline_us[message])) < NEVER_US:
            attrs["deadline"] = repr(deadline_us / MICROSECONDS)
        return attrs
