"""Rows of one run as arrays of numbers, for code that looks at millions of them, and the copies of messages in them.

Texts are codes that index lists of names; nodes, peers and sources share one list. Times are integer microseconds; what
is empty is -1. Columns are decoded when they are first asked for. Rows keep their numbers, counted from 0, so whatever
is found in the arrays can be shown to people. Checkers, summaries and metrics read records through a `Log` and through
nothing else.

`Copies` has one copy for each message at each node that it reached, and its delays. Summaries, metrics and calibrations
count these. Checkers do not: their rules look at every row (`carrypost.emu.verify.facts`), also at those that are left
out of the copies.
"""

# What is counted of copies is decided here: the first reception that is not marked `again`, the
# first delivery that is not marked `redelivered`, the first expiry (CAUSAL §VI-A d). The publication
# of a copy is the last one before it: if a crash took a message before it was stored, its id is
# assigned again.
#
# How these are found. Node, message, kind and row of each reception, delivery and so on are packed into
# one number, and the numbers sorted once: the first of each copy and kind then precedes the others.
# A sort of plain numbers is several times faster than one of rows by three columns.

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from carrypost.arrays import Codes, Flags, Floats, Ints, combined
from carrypost.emu.records import ATTRS, CODES, table_of
from carrypost.errors import LocalError
from carrypost.log.record import AGAIN, REDELIVERED, SCHEMA, Kind, Record
from carrypost.model.times import MICROSECONDS

KINDS = tuple(Kind)
"""Kinds of rows, by the numbers in `Log.kind`."""
KIND = {kind: number for number, kind in enumerate(KINDS)}
MISSING = -1
"""The code of a text that is not there."""
_NODES = ("node", "peer", "source")


class Log:
    """Rows of one run, all of them or a slice, by columns."""

    def __init__(self, table: pa.Table, run: str = "") -> None:
        self.run = run
        self.t_us = _times_us(table["t"])
        self._table = table
        self._known: dict[str, tuple[Codes, pa.Array]] = {}
        self._whole: dict[str, pa.Array] = {}

    @classmethod
    def in_order(cls, table: pa.Table) -> Log:
        """Return rows in order of time: a record of several real nodes is sorted."""
        found = cls(table)
        if (np.diff(found.t_us) < 0).any():
            found = cls(table.take(np.argsort(found.t_us, kind="stable")))
        return found

    def __len__(self) -> int:
        return len(self.t_us)

    @property
    def node(self) -> Codes:
        """By row, the place of the node among `nodes`."""
        return self._codes("node")[0]

    @property
    def peer(self) -> Codes:
        """By row, the place of the peer among `nodes`."""
        return self._codes("peer")[0]

    @property
    def source(self) -> Codes:
        """By row, the place of the message's author among `nodes`."""
        return self._codes("source")[0]

    @property
    def message(self) -> Codes:
        """By row, the place of the message among `messages`."""
        return self._codes("message")[0]

    @property
    def detail(self) -> Codes:
        """By row, the place of the detail among `details`."""
        return self._codes("detail")[0]

    @cached_property
    def kind(self) -> NDArray[np.int16]:
        """By row, the place of the kind among `kinds`."""
        codes, names = self._codes("kind")
        places = {name: number for number, name in enumerate(self.kinds)}
        return np.array([places[name] for name in names.to_pylist()] or [0], np.int16)[codes]

    @cached_property
    def kinds(self) -> tuple[str, ...]:
        """`KINDS`, and those that there are besides."""
        return (*KINDS, *(name for name in self.names("kind").to_pylist() if name not in set(KINDS)))

    @cached_property
    def nodes(self) -> list[str]:
        """All names in the columns `node`, `peer` and `source`."""
        return list(self.names("node").to_pylist())

    @cached_property
    def messages(self) -> list[str]:
        """Names of messages."""
        return list(self.names("message").to_pylist())

    @cached_property
    def details(self) -> list[str]:
        """Texts in the column `detail`."""
        return list(self.names("detail").to_pylist())

    @cached_property
    def hops(self) -> Ints:
        """By row, the number of hops."""
        return self._whole_or_missing("hops")

    @cached_property
    def size(self) -> Ints:
        """By row, the size."""
        return self._whole_or_missing("size")

    def names(self, column: str) -> pa.Array:
        """Return the texts of a column, by code; there may be some that no row has."""
        return self._codes(column)[1]

    def of(self, *kinds: Kind) -> Ints:
        """Return the numbers of the rows of these kinds, in order."""
        parts = [self._by_kind[KIND[kind]] for kind in kinds]
        return parts[0] if len(parts) == 1 else np.sort(np.concatenate(parts))

    @cached_property
    def _by_kind(self) -> list[Ints]:
        """Rows by kind: sorted once, by a code of 16 bits, which takes one pass."""
        edges = np.cumsum(np.bincount(self.kind, minlength=len(self.kinds)))[:-1]
        return np.split(np.argsort(self.kind, kind="stable"), edges)

    def is_detail(self, rows: Ints, text: str) -> Flags:
        """Return flags of those of these rows that have this detail."""
        codes, names = self._codes("detail")
        code = pc.index(names, text).as_py()
        found: Flags = codes[rows] == code if code >= 0 else np.zeros(len(rows), np.bool_)
        return found

    def texts(self, column: str, rows: Ints) -> pa.Array:
        """Return a column of texts at these rows; null where there is none."""
        codes, names = self._codes(column)
        here = codes[rows]
        return names.take(pa.array(here, mask=here == MISSING))

    def whole(self, column: str, rows: Ints | None = None) -> pa.Array:
        """Return a column of whole numbers, at these rows or at all; null where there is none."""
        if column not in self._whole:
            self._whole[column] = combined(self._table[column], pa.int64())
        return self._whole[column] if rows is None else self._whole[column].take(pa.array(rows))

    def _whole_or_missing(self, column: str) -> Ints:
        found: Ints = self.whole(column).fill_null(MISSING).to_numpy(zero_copy_only=False)
        return found

    def attribute(self, name: str, rows: Ints) -> pa.Array:
        """Return an attribute at these rows, as text; null where there is none."""
        maps = combined(self._table["attrs"].take(pa.array(rows)), ATTRS)
        places = np.full(len(rows), MISSING, np.int64)
        found, where = _entries(maps, name)
        places[found] = where
        return maps.items.take(pa.array(places, mask=places == MISSING))

    @cached_property
    def _attrs(self) -> pa.MapArray:
        return combined(self._table["attrs"], ATTRS)

    def attr(self, name: str) -> dict[int, str]:
        """Return the values of an attribute, by row, where there are any."""
        rows, at = _entries(self._attrs, name)
        return dict(zip(rows.tolist(), self._attrs.items.take(pa.array(at)).to_pylist(), strict=True))

    def attr_us(self, name: str) -> Ints:
        """Return an attribute in seconds as whole microseconds, for every row; -1 where there is none."""
        found = np.full(len(self), MISSING, np.int64)
        for row, text in self.attr(name).items():
            try:
                found[row] = round(float(text) * MICROSECONDS)
            except (ValueError, OverflowError):
                raise LocalError(f"row {row} of the record: {name} is a number of seconds, not {text!r}") from None
        return found

    def run_attrs(self) -> dict[str, str]:
        """Return the attributes of the first row; empty where it is of another kind."""
        first = self.of(Kind.RUN)
        return dict(self._attrs[int(first[0])].as_py() or ()) if len(first) else {}

    def _codes(self, column: str) -> tuple[Codes, pa.Array]:
        if column not in self._known:
            alike = _NODES if column in _NODES else (column,)
            there = [each for each in alike if each in self._table.column_names]
            codes, names = encoded(*(self._table[each] for each in there))
            self._known |= {each: (found, names) for each, found in zip(there, codes, strict=True)}
        return self._known[column]


class Before:
    """Finds, among rows that belong to keys, the last one of a key before another row, or the first one after it."""

    # What happened last to a copy before some row is asked again and again. A dictionary that is
    # carried from row to row would answer that, at the price of a Python loop per question over
    # millions of rows. Pairs of key and row are sorted once instead, packed into one number, and a
    # binary search answers for all rows.

    def __init__(self, keys: Ints | Codes, rows: Ints, total: int) -> None:
        self._stride = np.int64(total + 1)
        self._sorted = np.sort(keys * self._stride + rows)

    def find(self, keys: Ints | Codes, rows: Ints) -> Ints:
        """Return the last row of each key before the given row, or -1 where there is none."""
        if not len(self._sorted):
            return np.full(len(keys), -1, np.int64)
        at = np.searchsorted(self._sorted, keys * self._stride + rows) - 1
        found = self._sorted[np.maximum(at, 0)]
        return np.where((at >= 0) & (found // self._stride == keys), found % self._stride, -1)

    def following(self, keys: Ints | Codes, rows: Ints) -> Ints:
        """Return the first row of each key after the given row, or -1 where there is none."""
        if not len(self._sorted):
            return np.full(len(keys), -1, np.int64)
        at = np.searchsorted(self._sorted, keys * self._stride + rows, side="right")
        found = self._sorted[np.minimum(at, len(self._sorted) - 1)]
        return np.where((at < len(self._sorted)) & (found // self._stride == keys), found % self._stride, -1)

    def last(self, keys: Ints | Codes) -> Ints:
        """Return the last row of each key, or -1 where there is none."""
        return self.find(keys, np.full(len(keys), self._stride - 1, np.int64))


def log_of(record: pa.Table | Record) -> Log:
    """Return the log of one run; several runs in one table are an error (`runs` separates them)."""
    table = table_of(record) if isinstance(record, Record) else record
    for column in SCHEMA:
        if column.name not in table.column_names:
            raise LocalError(f"this is not a record: it has no column {column.name!r}")
    names = _texts(table["run"]).unique().to_pylist()
    if len(names) > 1:
        raise LocalError(
            f"this record holds {len(names)} runs: {', '.join(map(repr, names[:3]))} …; select one of them"
        )
    log = Log(table, *names)
    if unknown := log.kinds[len(KINDS) :]:
        raise LocalError(f"a record has no rows of kind {unknown[0]!r}; it has {', '.join(KINDS)}")
    return log


def runs(table: pa.Table) -> list[pa.Table]:
    """Return the runs of a table, each on its own, in order of their first rows."""
    column = _texts(table["run"])
    names = column.unique().to_pylist()
    if len(names) <= 1:
        return [table]
    return [table.filter(pc.equal(column, name)) for name in names]


def _texts(column: pa.ChunkedArray) -> pa.ChunkedArray:
    return column.cast(pa.string()) if pa.types.is_dictionary(column.type) else column


def encoded(*columns: pa.ChunkedArray) -> tuple[list[Codes], pa.Array]:
    """Return numbers for the texts of some columns, and the texts that they stand for."""
    coded = [
        each if pa.types.is_dictionary(each.type) else each.cast(pa.string()).dictionary_encode() for each in columns
    ]
    joined = pa.chunked_array([chunk for each in coded for chunk in each.cast(CODES).chunks], CODES)
    array = combined(joined.unify_dictionaries(), CODES)
    codes = pc.fill_null(array.indices, MISSING).to_numpy(zero_copy_only=False)
    return np.split(codes, np.cumsum([len(each) for each in columns])[:-1]), array.dictionary


def microseconds(seconds: Floats) -> Ints:
    """Return integer microseconds, the nearest."""
    found: Ints = np.rint(seconds * MICROSECONDS).astype(np.int64)
    return found


def _times_us(column: pa.ChunkedArray) -> Ints:
    seconds = column.to_numpy()
    if not np.isfinite(seconds).all():
        raise LocalError(f"row {np.flatnonzero(~np.isfinite(seconds))[0]} of the record: t must be a number of seconds")
    return microseconds(seconds)


def _entries(maps: pa.MapArray, name: str) -> tuple[Ints, Ints]:
    """Return the rows that have an entry of this name, and its place among all entries."""
    offsets = maps.offsets.to_numpy()
    at = np.flatnonzero(pc.equal(maps.keys, name).to_numpy(zero_copy_only=False))
    at = at[(at >= offsets[0]) & (at < offsets[-1])]  # The array may be a part of a longer one.
    return np.searchsorted(offsets, at, side="right") - 1, at


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
