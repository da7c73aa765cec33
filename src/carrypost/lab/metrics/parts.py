"""Parts of families: a part of each slice, parts joined to one, and the table at the end.

A `Part` is the summary of some rows of a run, small beside them, and two of them join to the summary of the rows of
both, in any order. A `Family` defines the part that it is made from and makes its table of it; families that share a
part share the work. So a run that is processed as a whole and one that is cut into slices have the same tables.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple, Protocol, Self

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from carrypost.arrays import Flags, Ints
from carrypost.emu.records.copies import Copies
from carrypost.emu.records.log import Log
from carrypost.errors import LocalError
from carrypost.lab.metrics.distribution import Columns
from carrypost.lab.schemas import Table
from carrypost.log.record import Kind
from carrypost.model.address import BETWEEN_OVERLAYS, CONTROL_MESSAGES
from carrypost.model.times import MICROSECONDS


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
