"""Contacts of a file by columns: in large populations they are too many for an object each.

A Parquet table is read and checked by columns. Where anything in it is wrong, the reader of single contacts says what
and in which row. Text files are parsed line by line, as they always are.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from carrypost.arrays import Codes, Flags, Floats, Ints, combined
from carrypost.errors import LocalError
from carrypost.model.times import MICROSECONDS
from carrypost.security.identity import Identity
from carrypost.traces import contact_tables
from carrypost.traces.contacts import Contact, Presence, read_meetings
from carrypost.traces.csvfiles import TIME_S_MAX
from carrypost.traces.encounters import Encounters


class ContactColumns(NamedTuple):
    """The contacts of a file, and what else is known of it."""

    contacts: Encounters
    """All nodes that the file names are among its nodes, also those of contacts that last no time."""
    ignored_events: int = 0
    """As in `Meetings`."""
    one_way: Mapping[tuple[str, str, int], str] = MappingProxyType({})
    """The nodes that are heard in contacts that work one way, by a, b and start."""


def read_columns(path: Path, nodes: Collection[str] | None = None, *, overlaps: bool = False) -> ContactColumns:
    """Return the contacts of a file as `read_meetings` does."""
    if (path.is_dir() or path.suffix == ".parquet") and (table := contact_tables.table_of(path)) is not None:
        found = _sound(table, nodes)
        if found is not None:
            return ContactColumns(found)
    contacts, met, ignored = read_meetings(path, nodes, overlaps=overlaps)
    return ContactColumns(columns_of(contacts, met), ignored, one_way_of(contacts))


def one_way_of(contacts: Iterable[Contact]) -> dict[tuple[str, str, int], str]:
    """Return the nodes that are heard in contacts that work one way, by a, b and start."""
    return {each[:3]: each.heard for each in contacts if each.heard}


def columns_of(contacts: Iterable[Contact], names: Iterable[str]) -> Encounters:
    """Return contacts by columns; `names` has all nodes."""
    known = tuple(sorted(names))
    place = {name: code for code, name in enumerate(known)}
    rows = [(place[a], place[b], start_us, end_us) for a, b, start_us, end_us, _ in contacts]
    a, b, start_us, end_us = np.array(rows, np.int64).reshape(-1, 4).T
    return Encounters(known, a.astype(np.int32), b.astype(np.int32), start_us, end_us).ordered()


def stays_of(contacts: Encounters, end_us: int) -> list[Presence]:
    """Return the stay of each node from its first contact to the end of its last, within [0, end); sorted by node."""
    since = np.full(len(contacts.nodes), np.iinfo(np.int64).max)
    until = np.full(len(contacts.nodes), np.iinfo(np.int64).min)
    for node in (contacts.a, contacts.b):
        np.minimum.at(since, node, contacts.start_us)
        np.maximum.at(until, node, contacts.end_us)
    spans = zip(contacts.nodes, since.tolist(), until.tolist(), strict=True)
    return [
        Presence(node, max(first, 0), None if last >= end_us else last)
        for node, first, last in spans
        if first < end_us and last > 0
    ]


def _sound(table: pa.Table, nodes: Collection[str] | None) -> Encounters | None:
    """Return the contacts of a table; None if any of its rows is wrong."""
    try:
        start_us, end_us = (_times_us(table[name]) for name in ("start", "end"))
        names = pc.unique(pa.chunked_array([*table["a"].chunks, *table["b"].chunks], pa.string())).to_pylist()
        for name in names:
            Identity.plain(name)
    except (LocalError, pa.ArrowException, TypeError):
        return None
    known = tuple(sorted(names))
    if nodes is not None and not set(known) <= set(nodes):
        return None
    a, b = (_codes(table[name], known) for name in ("a", "b"))
    if (a == b).any() or (end_us < start_us).any():
        return None
    lasting = np.flatnonzero(end_us > start_us)
    found = Encounters(known, np.minimum(a, b)[lasting], np.maximum(a, b)[lasting], start_us[lasting], end_us[lasting])
    return None if _overlapping(found).any() else found.ordered()


def _times_us(column: pa.ChunkedArray) -> Ints:
    seconds: Floats = column.cast(pa.float64()).to_numpy()
    if not ((seconds >= 0) & (seconds <= TIME_S_MAX)).all():
        raise LocalError("a time is wrong")
    return np.rint(seconds * MICROSECONDS).astype(np.int64)


def _codes(column: pa.ChunkedArray, names: tuple[str, ...]) -> Codes:
    found: Codes = combined(pc.index_in(column, pa.array(names, pa.string())), pa.int32()).to_numpy()
    return found


def _overlapping(found: Encounters) -> Flags:
    order = np.lexsort((found.start_us, found.b, found.a))
    a, b, start_us, end_us = found.a[order], found.b[order], found.start_us[order], found.end_us[order]
    return np.asarray((a[1:] == a[:-1]) & (b[1:] == b[:-1]) & (start_us[1:] < end_us[:-1]))
