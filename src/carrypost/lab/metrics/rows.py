"""Rows of one run as arrays of numbers: the input of every part of a family.

Texts are the codes under which Parquet and Arrow keep them, so that none is read twice; times are integer microseconds.
Columns are decoded on demand, and attributes only for the rows in question. Rows are in order of time: a record that is
not, such as one of several real nodes, is sorted.
"""

from __future__ import annotations

from functools import cached_property

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from carrypost.emu.arrays import Codes, Flags, Floats, Ints
from carrypost.emu.records.files import ATTRS, CODES
from carrypost.emu.records.log import combined, entries
from carrypost.model.address import BETWEEN_OVERLAYS
from carrypost.model.times import MICROSECONDS
from carrypost.record import Kind

COLUMNS = ("t", "kind", "node", "peer", "message", "hops", "size", "detail", "attrs")
"""Columns of a record that families need."""
TEXTS = ("kind", "node", "peer", "message", "detail")
MISSING = -1
"""The code of a text that is not there."""


class Rows:
    """Rows of one run, all of them or a slice."""

    def __init__(self, table: pa.Table) -> None:
        t_us: Ints = np.rint(table["t"].to_numpy() * MICROSECONDS).astype(np.int64)
        if (np.diff(t_us) < 0).any():
            order = np.argsort(t_us, kind="stable")
            table, t_us = table.take(order), t_us[order]
        self.t_us = t_us
        self._table = table
        self._known: dict[str, tuple[Codes, pa.Array]] = {}
        self._whole: dict[str, pa.Array] = {}

    def __len__(self) -> int:
        return len(self.t_us)

    @property
    def node(self) -> Codes:
        """By row, the place of the node among `nodes`."""
        return self._codes("node")[0]

    @property
    def nodes(self) -> pa.Array:
        """Names of nodes."""
        return self._codes("node")[1]

    @property
    def message(self) -> Codes:
        """By row, the place of the message among `messages`."""
        return self._codes("message")[0]

    @property
    def messages(self) -> pa.Array:
        """Names of messages."""
        return self._codes("message")[1]

    @property
    def kind(self) -> Codes:
        """By row, the place of the kind among `kinds`."""
        return self._codes("kind")[0]

    @property
    def kinds(self) -> pa.Array:
        """Names of kinds, whatever they are."""
        return self._codes("kind")[1]

    def of(self, *kinds: Kind) -> Ints:
        """Return the indices of rows of these kinds."""
        parts = [self._by_kind[kind] for kind in kinds if kind in self._by_kind]
        if len(parts) == 1:
            return parts[0]
        return np.sort(np.concatenate(parts)) if parts else np.zeros(0, np.int64)

    @cached_property
    def _by_kind(self) -> dict[str, Ints]:
        """Rows by kind: sorted once, by a code of 16 bits, which takes one pass."""
        names = self.kinds.to_pylist()
        edges = np.cumsum(np.bincount(self.kind, minlength=len(names)))[:-1]
        order = np.argsort(self.kind.astype(np.int16), kind="stable")
        return dict(zip(names, np.split(order, edges), strict=True)) if names else {}

    @cached_property
    def between_overlays(self) -> Ints:
        """Codes of messages that no program published: those between overlays; and of events, which come as results."""
        at = self.of(Kind.PUBLISH)
        destination = self.attribute("destination", at)
        found: Flags = self.attribute("event", at).is_valid().to_numpy(zero_copy_only=False).copy()
        for prefix in BETWEEN_OVERLAYS:
            begins = pc.fill_null(pc.starts_with(destination, prefix), False)
            found |= begins.to_numpy(zero_copy_only=False)
        return np.unique(self.message[at[found]]).astype(np.int64)

    def is_detail(self, at: Ints, text: str) -> Flags:
        """Return flags of those of these rows that have this detail."""
        codes, names = self._codes("detail")
        code = pc.index(names, text).as_py()
        found: Flags = codes[at] == code if code >= 0 else np.zeros(len(at), np.bool_)
        return found

    def texts(self, name: str, at: Ints) -> pa.Array:
        """Return a column of texts at these rows; null where there is none."""
        codes, names = self._codes(name)
        here = codes[at]
        return names.take(pa.array(here, mask=here == MISSING))

    def whole(self, name: str, at: Ints | None = None) -> pa.Array:
        """Return a column of whole numbers, at these rows or at all; null where there is none."""
        if name not in self._whole:
            self._whole[name] = combined(self._table[name], pa.int64())
        return self._whole[name] if at is None else self._whole[name].take(pa.array(at))

    def attribute(self, name: str, at: Ints) -> pa.Array:
        """Return an attribute at these rows, as text; null where there is none."""
        maps = combined(self._table["attrs"].take(pa.array(at)), ATTRS)
        places = np.full(len(at), MISSING, np.int64)
        found, where = entries(maps, name)
        places[found] = where
        return maps.items.take(pa.array(places, mask=places == MISSING))

    def _codes(self, name: str) -> tuple[Codes, pa.Array]:
        if name not in self._known:
            self._known[name] = encoded(self._table[name])
        return self._known[name]


def encoded(column: pa.ChunkedArray) -> tuple[Codes, pa.Array]:
    """Return codes and their meanings."""
    if not pa.types.is_dictionary(column.type):
        column = column.cast(pa.string()).dictionary_encode()
    array = combined(column.cast(CODES).unify_dictionaries(), CODES)
    found: Codes = pc.fill_null(array.indices, MISSING).to_numpy(zero_copy_only=False)
    return found, array.dictionary


def microseconds(seconds: Floats) -> Ints:
    """Return integer microseconds, the nearest."""
    found: Ints = np.rint(seconds * MICROSECONDS).astype(np.int64)
    return found
