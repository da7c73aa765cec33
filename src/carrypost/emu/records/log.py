"""A record as arrays of numbers, for code that looks at millions of rows.

Nodes, messages and details become whole numbers that index lists of names; times become whole microseconds again; what
is empty is -1. Rows keep their numbers, counted from 0 in the record, so whatever is found in the arrays can be shown
to people. Checkers and summaries read records through this and through nothing else.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from carrypost.emu.arrays import Flags, Ints
from carrypost.emu.records.files import ATTRS, CODES, table_of
from carrypost.errors import LocalError
from carrypost.model.times import MICROSECONDS
from carrypost.record import SCHEMA, Kind, Record


@dataclass(frozen=True, eq=False)
class Log:
    """The record of one run, by columns."""

    run: str
    nodes: list[str]
    """All names in the columns `node`, `peer` and `source`."""
    messages: list[str]
    details: list[str]
    t_us: Ints
    kind: Ints
    """Position in `KINDS`."""
    node: Ints
    peer: Ints
    source: Ints
    message: Ints
    detail: Ints
    hops: Ints
    size: Ints
    attrs: pa.MapArray

    def __len__(self) -> int:
        return len(self.t_us)

    def rows(self, *kinds: Kind) -> Ints:
        """Return the numbers of the rows of these kinds, in order."""
        return np.flatnonzero(np.isin(self.kind, [KIND[kind] for kind in kinds]))

    def is_detail(self, text: str) -> Flags:
        """Return flags of rows with this detail."""
        code = self.details.index(text) if text in self.details else -2
        return np.equal(self.detail, code)

    def attr(self, name: str) -> dict[int, str]:
        """Return the values of an attribute, by row, where there are any."""
        rows, at = entries(self.attrs, name)
        return dict(zip(rows.tolist(), self.attrs.items.take(pa.array(at)).to_pylist(), strict=True))

    def attr_us(self, name: str) -> Ints:
        """Return an attribute in seconds as whole microseconds, for every row; -1 where there is none."""
        found = np.full(len(self), -1, np.int64)
        for row, text in self.attr(name).items():
            try:
                found[row] = round(float(text) * MICROSECONDS)
            except (ValueError, OverflowError):
                raise LocalError(f"row {row} of the record: {name} is a number of seconds, not {text!r}") from None
        return found

    def run_attrs(self) -> dict[str, str]:
        """Return the attributes of the first row; empty where it is of another kind."""
        first = self.rows(Kind.RUN)
        return dict(self.attrs[int(first[0])].as_py() or ()) if len(first) else {}


KINDS = tuple(Kind)
"""Kinds of rows, by the numbers in `Log.kind`."""
KIND = {kind: number for number, kind in enumerate(KINDS)}


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
    (node, peer, source), nodes = _codes([table["node"], table["peer"], table["source"]])
    (message,), messages = _codes([table["message"]])
    (detail,), details = _codes([table["detail"]])
    (kind,), kinds = _codes([table["kind"]])
    unknown = [name for name in kinds if name not in set(KINDS)]
    if unknown:
        raise LocalError(f"a record has no rows of kind {unknown[0]!r}; it has {', '.join(KINDS)}")
    places = np.array([KIND[Kind(name)] for name in kinds] or [0], np.int64)
    return Log(
        run=names[0] if names else "",
        nodes=nodes,
        messages=messages,
        details=details,
        t_us=_times_us(table["t"]),
        kind=places[kind],
        node=node,
        peer=peer,
        source=source,
        message=message,
        detail=detail,
        hops=_numbers(table["hops"]),
        size=_numbers(table["size"]),
        attrs=combined(table["attrs"].cast(ATTRS), ATTRS),
    )


def runs(table: pa.Table) -> list[pa.Table]:
    """Return the runs of a table, each on its own, in order of their first rows."""
    column = _texts(table["run"])
    names = column.unique().to_pylist()
    if len(names) <= 1:
        return [table]
    return [table.filter(pc.equal(column, name)) for name in names]


def _texts(column: pa.ChunkedArray) -> pa.ChunkedArray:
    return column.cast(pa.string()) if pa.types.is_dictionary(column.type) else column


def _codes(columns: Iterable[pa.ChunkedArray]) -> tuple[list[Ints], list[str]]:
    """Return numbers for the texts of some columns, and the texts that they stand for."""
    texts = [_texts(column) for column in columns]
    joined = pa.chunked_array([chunk for column in texts for chunk in column.chunks], pa.string())
    encoded = combined(joined.dictionary_encode().unify_dictionaries(), CODES)
    codes = pc.fill_null(encoded.indices, -1).to_numpy(zero_copy_only=False).astype(np.int64)
    edges = np.cumsum([len(column) for column in texts])[:-1]
    return np.split(codes, edges), encoded.dictionary.to_pylist()


def _times_us(column: pa.ChunkedArray) -> Ints:
    seconds = column.to_numpy()
    if not np.isfinite(seconds).all():
        raise LocalError(f"row {np.flatnonzero(~np.isfinite(seconds))[0]} of the record: t must be a number of seconds")
    found: Ints = np.rint(seconds * MICROSECONDS).astype(np.int64)
    return found


def _numbers(column: pa.ChunkedArray) -> Ints:
    found: Ints = pc.fill_null(column.cast(pa.int64()), -1).to_numpy().astype(np.int64)
    return found


def combined(column: pa.ChunkedArray, kind: pa.DataType) -> pa.Array:
    """Return a column in one piece."""
    return pa.concat_arrays([chunk.cast(kind) for chunk in column.chunks]) if column.num_chunks else pa.array([], kind)


def entries(maps: pa.MapArray, name: str) -> tuple[Ints, Ints]:
    """Return the rows that have an entry of this name, and its place among all entries."""
    offsets = maps.offsets.to_numpy()
    at = np.flatnonzero(pc.equal(maps.keys, name).to_numpy(zero_copy_only=False))
    at = at[(at >= offsets[0]) & (at < offsets[-1])]  # The array may be a part of a longer one.
    return np.searchsorted(offsets, at, side="right") - 1, at
