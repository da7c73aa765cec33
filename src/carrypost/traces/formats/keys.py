"""Rows by key: nodes or pairs as numbers in the order of their names, and computations within each key.

Names are compared by their bytes, as Arrow, Spark and Python (for whole characters) all do.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from carrypost.arrays import Flags, Ints
from carrypost.traces.formats.rules import FileFault


class Assembled(NamedTuple):
    """The result of all rows of some nodes or pairs."""

    rows: pa.Table
    faults: list[FileFault]
    counts: dict[str, int]
    """Counts that can be added up over parts."""
    warnings: list[str]
    """In the order of names."""


def column(rows: pa.Table, called: str) -> NDArray[Any]:
    """Return a column as an array of numpy."""
    found: NDArray[Any] = rows[called].combine_chunks().to_numpy(zero_copy_only=False)
    return found


def ranked(names: pa.ChunkedArray) -> tuple[pa.Array, Ints]:
    """Different names in order, and of each row the number of its name."""
    encoded = names.combine_chunks().dictionary_encode()
    order = pc.sort_indices(encoded.dictionary)
    rank = np.empty(len(order), dtype=np.int64)
    rank[order.to_numpy()] = np.arange(len(order))
    return encoded.dictionary.take(order), rank[encoded.indices.to_numpy()] if len(order) else np.empty(0, np.int64)


class Pairs(NamedTuple):
    """Pairs of names, and of each row the number of its pair."""

    names_a: pa.Array
    names_b: pa.Array
    key: Ints

    @classmethod
    def of(cls, rows: pa.Table) -> Pairs:
        """Return the pairs of rows."""
        names_a, a = ranked(rows["a"])
        names_b, b = ranked(rows["b"])
        return cls(names_a, names_b, a * max(1, len(names_b)) + b)

    def names(self, key: Ints) -> tuple[pa.Array, pa.Array]:
        """Lower and higher names of pairs."""
        a, b = np.divmod(key, max(1, len(self.names_b)))
        return self.names_a.take(pa.array(a)), self.names_b.take(pa.array(b))

    def label(self, key: int) -> str:
        """Return the names of a pair, for people."""
        (a,), (b,) = self.names(np.array([key]))
        return f"{a} and {b}"


def begins(key: Ints) -> Flags:
    """Return flags of places where another key begins, in sorted keys."""
    return np.append(True, key[1:] != key[:-1])[: len(key)]


def rank_within(key: Ints) -> Ints:
    """Return the number of earlier rows of the same key, in sorted keys."""
    start = np.flatnonzero(begins(key))
    lengths = np.diff(np.append(start, len(key)))
    return np.arange(len(key)) - np.repeat(start, lengths)


def merge_intervals(key: Ints, start: Ints, end: Ints, *, touching: bool = True) -> tuple[Ints, Ints, Ints]:
    """Return the intervals of each key, sorted by key and start; those that overlap, or are `touching`, are joined."""
    order = np.lexsort((end, start, key))
    key, start, end = key[order], start[order], end[order]
    if not len(key):
        return key, start, end
    values, rank = np.unique(end, return_inverse=True)
    # Ranks rather than times: a running maximum by key that no sum can make overflow.
    number = np.cumsum(begins(key)) - 1
    highest = np.maximum.accumulate(number * len(values) + rank)
    until = values[highest - number * len(values)]
    fresh = begins(key)
    fresh[1:] |= (start[1:] > until[:-1]) if touching else (start[1:] >= until[:-1])
    first = np.flatnonzero(fresh)
    last = np.append(first[1:], len(key)) - 1
    return key[first], start[first], until[last]
