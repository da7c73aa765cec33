"""Parts of families: a part of each slice, parts joined to one, and the table at the end; counts and sums for them.

A `Part` is the summary of some rows of a run, small beside them, and two of them join to the summary of the rows of
both, in any order. A `Family` defines the part that it is made from and makes its table of it; families that share a
part share the work. So a run that is processed as a whole and one that is cut into slices have the same tables.

Whole numbers are counted and summed so that parts can be joined in any order without any difference. The percentile
rule is that of the nearest rank: the least value that at least this share of all is not above. Sums are of whole
numbers, squares too, and exact: neither the order of rows nor how they are cut into slices shows in a mean or a
deviation.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from itertools import starmap
from typing import Any, NamedTuple, Protocol, Self

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from carrypost.arrays import Flags, Ints
from carrypost.emu.rows import Copies, Log
from carrypost.errors import LocalError
from carrypost.lab.schemas import Table
from carrypost.log.record import Kind
from carrypost.model.address import BETWEEN_OVERLAYS, CONTROL_MESSAGES
from carrypost.model.times import MICROSECONDS

Columns = Mapping[str, Any]
"""Columns of a table, by name: arrays of numpy or Arrow, or lists."""
MILLISECOND_US = 1_000
RANKS = 1_000
"""Points of a distribution that are kept."""
_BLOCK = 1_024
_HALF_BITS = 26
"""Values have at most twice as many bits: µs of 142 years. So the products of halves in a block add up to 62."""
_DENSE = 4
"""Values that spread over at most this many times their number are counted in an array, not sorted."""


def milliseconds(us: Ints) -> Ints:
    """Return integer milliseconds, rounded half to even."""
    found: Ints = np.rint(us / MILLISECOND_US).astype(np.int64)
    return found


def counted(values: Ints) -> tuple[Ints, Ints]:
    """Return the values that there are, in order, and how often each is there."""
    if not len(values):
        return np.zeros(0, np.int64), np.zeros(0, np.int64)
    least, most = int(values.min()), int(values.max())
    if most - least >= _DENSE * len(values):
        return np.unique(values, return_counts=True)
    counts = np.bincount(values - least)
    there = np.flatnonzero(counts)
    return there + least, counts[there]


def summed(keys: Ints, *values: Ints) -> tuple[Ints, ...]:
    """Return the keys that there are, in order, and by key the sum of each of these values."""
    if not len(keys):
        return keys, *values
    least, most = int(keys.min()), int(keys.max())
    if most - least < _DENSE * len(keys):
        place = keys - least
        there = np.flatnonzero(np.bincount(place))
        sums = [np.zeros(most - least + 1, np.int64) for _ in values]
        for total, each in zip(sums, values, strict=True):
            np.add.at(total, place, each)
        return there + least, *(total[there] for total in sums)
    order = np.argsort(keys, kind="stable")
    ordered = keys[order]
    first = np.flatnonzero(np.diff(ordered, prepend=ordered[0] - 1))
    return ordered[first], *(np.add.reduceat(each[order], first) for each in values)


@dataclass(frozen=True, eq=False)
class Counts:
    """The frequencies of values, in order."""

    value: Ints
    count: Ints

    @classmethod
    def of(cls, values: Ints) -> Counts:
        """Count these values."""
        return cls(*counted(values))

    def merge(self, other: Counts) -> Counts:
        """Return the counts of this part and another."""
        joined = (np.concatenate(each) for each in ((self.value, other.value), (self.count, other.count)))
        return Counts(*summed(*joined))

    @property
    def cumulative(self) -> Ints:
        """The numbers of items that have each value, or less."""
        return np.cumsum(self.count)

    def reaching(self, ranks: int) -> Flags:
        """Return flags of values that reach another of this many equal shares of all; the least one does."""
        cumulative = self.cumulative
        total = int(cumulative[-1]) if len(cumulative) else 1
        before = cumulative - self.count
        found: Flags = (cumulative * ranks // total > before * ranks // total) | (before == 0)
        return found

    def percentile(self, share: int) -> int | None:
        """Return the least value that this share of all is not above."""
        if not len(self.value):
            return None
        cumulative = self.cumulative
        return int(self.value[np.searchsorted(cumulative * 100, int(cumulative[-1]) * share)])

    def percentiles_s(self, shares: Iterable[int]) -> dict[str, float]:
        """Percentiles of milliseconds, in seconds, by the names of their columns."""
        return {f"p{share}_s": (self.percentile(share) or 0) / MILLISECOND_US for share in shares}


def cdf(counts: Counts, ranks: int | None = None) -> Columns:
    """Return values, their counts, cumulative counts and cumulative shares, at `ranks` points at most."""
    kept = counts.reaching(ranks) if ranks is not None else np.ones(len(counts.value), np.bool_)
    cumulative = counts.cumulative
    share = cumulative / cumulative[-1] if len(cumulative) else cumulative.astype(np.float64)
    columns = {"value_ms": counts.value, "count": counts.count, "cumulative": cumulative, "share": share}
    return {name: each[kept] for name, each in columns.items()}


@dataclass(frozen=True, slots=True)
class Moments:
    """Count, least, most, sum and sum of squares of whole numbers, all exact."""

    count: int = 0
    least: int = 0
    most: int = 0
    total: int = 0
    squares: int = 0

    @classmethod
    def of(cls, values: Ints) -> Moments:
        """Compute the moments of these values."""
        if not len(values):
            return cls()
        high, low = values >> _HALF_BITS, values & ((1 << _HALF_BITS) - 1)
        squares = (_total(high * high) << 2 * _HALF_BITS) + (_total(high * low) << (_HALF_BITS + 1)) + _total(low * low)
        return cls(len(values), int(values.min()), int(values.max()), _total(values), squares)

    def merge(self, other: Moments) -> Moments:
        """Return the moments of this part and another."""
        if not (self.count and other.count):
            return self if self.count else other
        return Moments(
            self.count + other.count,
            min(self.least, other.least),
            max(self.most, other.most),
            self.total + other.total,
            self.squares + other.squares,
        )

    @property
    def seconds(self) -> dict[str, float | None]:
        """Least, most, mean and deviation (of all, not of a sample) of microseconds; none of nothing."""
        if not self.count:
            return dict.fromkeys(("min_s", "max_s", "avg_s", "stdev_s"))
        variance = self.count * self.squares - self.total * self.total
        return {
            "min_s": self.least / MICROSECONDS,
            "max_s": self.most / MICROSECONDS,
            "avg_s": self.total / (self.count * MICROSECONDS),
            "stdev_s": math.sqrt(variance) / (self.count * MICROSECONDS),
        }


def _total(values: Ints) -> int:
    """Return the sum, whatever its size: of blocks that cannot overflow, then of those."""
    return sum(np.add.reduceat(values, np.arange(0, len(values), _BLOCK)).tolist())


def dominated(first: Ints, second: Ints, above: Ints, below: Ints) -> Ints:
    """Return, by question, the number of pairs with the first number above one value and the second below another.

    A tree of sorted blocks is used, whose sizes are powers of two: the pairs in question are the last ones by their
    first number, and every such tail consists of at most one block of each size.
    """
    order = np.argsort(-first, kind="stable")
    among = np.searchsorted(-first[order], -above, side="left")  # How many of them are above.
    ranked = np.sort(second)
    rank, wanted = np.searchsorted(ranked, second[order]), np.searchsorted(ranked, below)
    found = np.zeros(len(above), np.int64)
    done = np.zeros(len(above), np.int64)
    span = len(first) + 1
    size = 1 << max(0, len(first).bit_length() - 1)
    while size and len(first):
        block = np.arange(len(first)) // size
        keys = np.sort(block * span + rank)
        mine = np.flatnonzero(among & size)
        which = done[mine] // size
        found[mine] += np.searchsorted(keys, which * span + wanted[mine]) - which * size
        done[mine] += size
        size >>= 1
    return found


class Slice:
    """Rows of a run, and values that several parts need, made once. All rows about a message are in one slice."""

    def __init__(self, rows: Log, *, window_s: float) -> None:
        self.rows = rows
        self.window_s = window_s

    @cached_property
    def copies(self) -> Copies:
        """The copies of messages that programs published."""
        return Copies.of(self.rows, _between_nodes(self.rows))


def _between_nodes(rows: Log) -> Ints:
    """Return messages that no program published: those of nodes and overlays; and events, which come as results."""
    at = rows.of(Kind.PUBLISH)
    destination = rows.attribute("destination", at)
    found: Flags = rows.attribute("event", at).is_valid().to_numpy(zero_copy_only=False).copy()
    for prefix in BETWEEN_OVERLAYS + CONTROL_MESSAGES:
        found |= pc.fill_null(pc.starts_with(destination, prefix), False).to_numpy(zero_copy_only=False)
    return np.unique(rows.message[at[found]]).astype(np.int64)


class Part(Protocol):
    """The result of a slice."""

    def merge(self, other: Self, /) -> Self:
        """Return this part and another as one."""


@dataclass(frozen=True, eq=False)
class Fields:
    """A part whose fields are joined one by one: numbers are added, rows follow rows, and parts of it are merged."""

    def merge(self, other: Self, /) -> Self:
        """Return this part and another as one."""
        both = ((getattr(self, each.name), getattr(other, each.name)) for each in fields(self))
        return type(self)(*starmap(_joined, both))


def _joined(one: Any, other: Any) -> Any:  # noqa: ANN401 - a field
    if isinstance(one, Mapping):
        return {**one, **other, **{key: _joined(one[key], other[key]) for key in one.keys() & other.keys()}}
    for kind, join in ((pa.Table, pa.concat_tables), (pa.Array, pa.concat_arrays), (np.ndarray, np.concatenate)):
        if isinstance(one, kind):
            return join([one, other])
    return one + other if isinstance(one, int) else one.merge(other)


class Family(NamedTuple):
    """The making of a table."""

    part: Callable[[Slice], Any]
    """Function that makes the `Part` of a slice; families with the same function share it."""
    rows: Callable[[Any], Columns]
    """The columns of the table out of the part of the whole run, but for the run itself."""


def table_of(table: Table, run: str, columns: Columns) -> pa.Table:
    """Return columns of one run as a table."""
    known = dict(columns)
    count = len(next(iter(known.values())))
    return pa.table({"run": pa.repeat(run, count), **known}).select(table.names).cast(table.arrow)


def listed(table: Table, rows: Sequence[Mapping[str, object]]) -> Columns:
    """Columns of a few rows."""
    return {name: [row[name] for row in rows] for name in table.names if name != "run"}


@dataclass(frozen=True, eq=False)
class Tally:
    """Figures by keys: those of equal keys are added up, or the least or most of them is kept."""

    figures: pa.Table
    keys: tuple[str, ...]
    how: Mapping[str, str]
    """Of each figure: sum, min or max, as Arrow calls them."""

    @classmethod
    def of(cls, columns: Columns, keys: Sequence[str], **how: str) -> Tally:
        """Make a tally of rows in which keys may be equal."""
        return _reduced(cls(pa.table(dict(columns)), tuple(keys), how))

    def merge(self, other: Tally) -> Tally:
        """Return the tally of this part and another."""
        return _reduced(Tally(pa.concat_tables([self.figures, other.figures]), self.keys, self.how))

    def columns(self) -> dict[str, Any]:
        """Return the columns in order of keys."""
        ordered = self.figures.sort_by([(key, "ascending") for key in self.keys])
        return {name: ordered[name] for name in ordered.column_names}


def _reduced(of: Tally) -> Tally:
    """Return the tally with each key once."""
    grouped = of.figures.group_by(list(of.keys), use_threads=False).aggregate(list(of.how.items()))
    columns = {name: grouped[f"{name}_{how}"] for name, how in of.how.items()}
    return Tally(pa.table({**{key: grouped[key] for key in of.keys}, **columns}), of.keys, of.how)


def ratio(part: Ints, whole: Ints) -> pa.Array:
    """Shares; none of nothing."""
    return pa.array(part / np.maximum(whole, 1), mask=whole == 0)


def window_us(window_s: float) -> int:
    """Return the length of windows; one of no length is refused."""
    found = round(window_s * MICROSECONDS)
    if found < 1:
        raise LocalError(f"a window must be at least 1 µs long, not {window_s!r} s")
    return found
