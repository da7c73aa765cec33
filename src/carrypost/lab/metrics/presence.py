"""Presence of nodes, contacts, and what nodes reported: sizes of registries, bytes sent."""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from carrypost.arrays import Ints
from carrypost.emu.engine.overlays import TOPOLOGY
from carrypost.emu.engine.samples import AT, AT_LEAVE, CACHE
from carrypost.emu.engine.samples import REGISTRIES as ORDERED
from carrypost.emu.records.log import Log, microseconds
from carrypost.lab.metrics import statistics
from carrypost.lab.metrics.distribution import Columns, summed
from carrypost.lab.metrics.parts import Slice, Tally, ratio, window_us
from carrypost.lab.metrics.statistics import Meetings, Stays
from carrypost.log.record import Kind
from carrypost.model.times import MICROSECONDS
from carrypost.traces.formats.words import numbers

_DURATION = re.compile(r"(?m)^duration_s *= *([0-9.eE+-]+)")
"""In the text of a scenario, whose own keys stand before those of its tables."""
_SIZES = (*ORDERED, CACHE)


# --- presences of nodes ---------------------------------------------------------------------------------------
@dataclass(frozen=True, eq=False)
class Presence:
    """Arrivals and departures, contacts, and the end of the run, from some rows."""

    moves: pa.Table
    """Node, t_us, leaves."""
    meetings: Meetings
    last_us: int | None
    duration_us: int | None
    """Duration in the scenario."""
    window_us: int

    @classmethod
    def of(cls, of: Slice) -> Presence:
        """Return the presence in a slice."""
        rows = of.rows
        at = rows.of(Kind.JOIN, Kind.LEAVE)
        leaves = pc.equal(rows.texts("kind", at), Kind.LEAVE.value)
        moves = pa.table({"node": rows.texts("node", at), "t_us": rows.t_us[at], "leaves": leaves})
        last_us = int(rows.t_us[-1]) if len(rows) else None
        return cls(moves, _meetings(rows), last_us, _duration_us(rows), window_us(of.window_s))

    def merge(self, other: Presence) -> Presence:
        """Return the presence in this slice and another."""
        return Presence(
            pa.concat_tables([self.moves, other.moves]),
            self.meetings.merge(other.meetings),
            _later(self.last_us, other.last_us),
            _later(self.duration_us, other.duration_us),
            self.window_us,
        )

    def stays(self) -> Stays:
        """Return the stays: from each arrival to the next departure; a node that does not leave stays to the end."""
        (node,), names = statistics.coded(self.moves["node"])
        t_us = self.moves["t_us"].to_numpy()
        leaves = self.moves["leaves"].to_numpy()
        order = np.lexsort((~leaves, t_us, node))  # At one instant nodes leave before they come.
        node, t_us, leaves = node[order], t_us[order], leaves[order]
        # A node that comes while it is there, or goes while it is not, does nothing.
        first = np.diff(node, prepend=-1) != 0
        comes = np.flatnonzero(~leaves & (first | np.roll(leaves, 1)))
        goes = np.append(np.flatnonzero(leaves), len(node))
        at = goes[np.searchsorted(goes, comes)]
        ended = np.append(node, -1)[at] == node[comes]
        until_us = self.duration_us if self.duration_us is not None else self.last_us
        end_us = np.where(ended, np.append(t_us, 0)[at], np.maximum(t_us[comes], until_us or 0))
        lasting = t_us[comes] < end_us
        which = comes[lasting]
        return Stays(names.take(pa.array(node[which])), t_us[which], end_us[lasting])


def _later(one: int | None, other: int | None) -> int | None:
    return max((each for each in (one, other) if each is not None), default=None)


def _duration_us(rows: Log) -> int | None:
    """Return the length of the scenario, if a row has it."""
    found = None
    for text in rows.attribute("defaults", rows.of(Kind.RUN)).to_pylist():
        if text is not None and (match := _DURATION.search(text)):
            (seconds,) = numbers(pa.array([match[1]])).tolist()
            if np.isfinite(seconds):
                found = _later(found, int(microseconds(np.array(seconds))))
    return found


def _meetings(rows: Log) -> Meetings:
    """Return the contacts."""
    at = rows.of(Kind.CONTACT)
    ends = numbers(rows.attribute("end", at))
    known = np.isfinite(ends) & ~rows.texts("peer", at).is_null().to_numpy(zero_copy_only=False)
    start_us, end_us = rows.t_us[at[known]], microseconds(ends[known])
    lasting = start_us < end_us
    at = at[known][lasting]
    return Meetings(rows.texts("node", at), rows.texts("peer", at), start_us[lasting], end_us[lasting])


# --- what nodes reported of themselves ------------------------------------------------------------------------
def registries_part(of: Slice) -> Tally:
    """Sizes by node and time; those of all order groups of a node together."""
    rows, at, size, leaving = _samples(of)
    name = rows.texts("detail", at)
    sizes = {each: pc.if_else(pc.equal(name, each), size, pa.scalar(None, pa.int64())) for each in _SIZES}
    columns = {"node": rows.texts("node", at), "t_us": rows.t_us[at], "leaving": leaving, **sizes}
    return Tally.of(columns, ["node", "t_us", "leaving"], **dict.fromkeys(_SIZES, "sum"))


def timed(part: Tally) -> Columns:
    """Tables REGISTRIES and TIMELINE."""
    columns = part.columns()
    return {**columns, "t": columns["t_us"].to_numpy() / MICROSECONDS}


def registry_sizes_part(of: Slice) -> Tally:
    """Samples by registry: each order group of a node is one; nodes about to leave are no part of means."""
    rows, at, size, leaving = _samples(of)
    regular = pc.invert(leaving)
    columns = {
        "registry": rows.texts("detail", at),
        "samples": regular.cast(pa.int64()),
        "total": pc.if_else(regular, size, 0),
        "max": size,
    }
    return Tally.of(columns, ["registry"], samples="sum", total="sum", max="max")


def registry_sizes(part: Tally) -> Columns:
    """Table REGISTRY_SIZES."""
    columns = part.columns()
    return {**columns, "mean": ratio(columns["total"].to_numpy(), columns["samples"].to_numpy())}


def _samples(of: Slice) -> tuple[Log, Ints, pa.Array, pa.Array]:
    """Return the rows that are samples of registries, their sizes, and whether the node was about to leave."""
    rows = of.rows
    at = rows.of(Kind.REGISTRY)
    known = pc.and_(rows.texts("detail", at).is_valid(), rows.whole("size", at).is_valid())
    at = at[known.to_numpy(zero_copy_only=False) & ~rows.is_detail(at, TOPOLOGY)]  # Bytes, and no entries.
    leaving = pc.fill_null(pc.equal(rows.attribute(AT, at), AT_LEAVE), False)
    return rows, at, rows.whole("size", at), leaving


def traffic_part(of: Slice) -> Tally:
    """Return the bytes sent, by node and kind of frame."""
    rows, at = of.rows, of.rows.of(Kind.TRAFFIC)
    at = at[rows.whole("size", at).is_valid().to_numpy(zero_copy_only=False)]
    frame = pc.fill_null(rows.texts("detail", at), "?")
    return Tally.of(
        {"node": rows.texts("node", at), "frame": frame, "bytes": rows.whole("size", at)}, ["node", "frame"],
        bytes="sum",
    )  # fmt: skip


def timeline_part(of: Slice) -> Tally:
    """Return rows and their sizes, by window and kind."""
    rows, width_us = of.rows, window_us(of.window_s)
    size = rows.whole("size")
    sized = size.is_valid().to_numpy(zero_copy_only=False)
    window, kinds = rows.t_us // width_us, len(rows.kinds)
    keys = window * kinds + rows.kind
    sizes = size.fill_null(0).to_numpy(zero_copy_only=False)
    ones = np.ones(len(keys), np.int64)
    ones[rows.of(Kind.TALLY)] = 0  # Counts of a whole run did not happen at its end.
    found, count, with_size, total = summed(keys, ones, sized.astype(np.int64), sizes)
    happened = count > 0
    found, count, with_size, total = found[happened], count[happened], with_size[happened], total[happened]
    number, kind = np.divmod(found, kinds)
    columns = {
        "t_us": number * width_us,
        "kind": pa.array(rows.kinds).take(pa.array(kind)),
        "count": count,
        "size": pa.array(total, mask=with_size == 0),
    }
    return Tally.of(columns, ["t_us", "kind"], count="sum", size="sum")
