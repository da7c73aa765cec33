"""Encounters: contacts by columns, found where nodes in motion are in range of each other, or read from a file.

They are exact on piecewise-linear motion, without a time step. While two nodes move in straight lines, their distance
squared is a quadratic of time, and its roots are where they come into range and leave it (`intervals`). Only pairs that
can meet are looked at: time is cut into slabs, what a node does in a slab lies in a box, boxes are hashed into the
cells of a grid; so the cost is linear in the nodes at constant density.

The first invariant: a root is computed from its two segments alone, counted from the later of their starts, and rounded
to a microsecond once; slabs and windows only clip whole microseconds. Whether a pair is in range at the end of a
segment is asked of the same two positions as at the start of the next one, so no contact is torn where a segment ends.

The intervals that pairs of segments give are joined where they touch, then over gaps that do not count (`encounters`).
The second invariant: what comes out does not depend on slabs, cells or on the order of work; and what is found window
by window, with all segments that reach into each window, is the whole once what touches is joined. A distance of
exactly the range is in range. A touch of no length is no contact.

Contacts of a file are read by columns as well (`read_columns`): in large populations they are too many for an object
each. A Parquet table is read and checked by columns. Where anything in it is wrong, the reader of single contacts says
what and in which row. Text files are parsed line by line, as they always are.
"""

# The obvious way samples positions every second and compares distances. It misses short contacts,
# cuts long ones at the samples, and costs the square of the nodes at every step. Here the ends of
# contacts are exact, whatever the speed.
#
# Exactness needs care with rounding. A pair that stays in range while one of them passes from one
# segment to the next must not lose the contact for a microsecond there. Hence the rule that both
# sides ask about the same two positions, and that each root is rounded once, from numbers that do
# not depend on how the work was divided.
#
# A long trace has more segments than memory holds. So the search goes window by window, and the
# laboratory divides windows among tasks. That is possible only because results do not depend on the
# division: every piece of a contact is found with whole microseconds, and pieces that touch are
# joined afterwards.

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
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
from carrypost.traces.tracks import Tracks

_CUTS_PER_BATCH = 1 << 15
_PAIRS_PER_CHUNK = 1 << 18
"""Number of pairs that are worked on at one time: bounds memory, and keeps to what a processor's cache holds."""
_SLABS_MAX = 10_000_000
_STANDS_M = 1e-12
"""Distance below which a relative motion counts as none: dividing by less overflows."""


class TimeWindow(NamedTuple):
    """A stretch of time, half open."""

    start_us: int
    end_us: int


class Intervals(NamedTuple):
    """Parts of contacts, as columns; those of one pair are disjoint or the same."""

    a: Codes
    b: Codes
    start_us: Ints
    end_us: Ints


def intervals(
    segments: Segments, range_m: float, window: TimeWindow | None, slab_us: int | None
) -> Iterator[Intervals]:
    """Yield the intervals in which pairs are in range within the window; at most one per slab and pair of segments."""
    if window is not None:
        segments = segments.select((segments.t1 > window.start_us) & (segments.t0 < window.end_us))
    if len(segments.node) == 0:
        return
    start_us, end_us = int(segments.t0[0]), int(segments.t1.max())
    if window is not None:
        start_us, end_us = max(start_us, window.start_us), min(end_us, window.end_us)
    grid = _grid(segments, range_m, TimeWindow(start_us, end_us), slab_us)
    for batch in _batches(segments, grid):
        for pairs in _candidates(_boxes(segments, grid, batch), grid):
            yield _solved(segments, grid, pairs)


# -------------------------------------------------------------------------------------------------- segments
class Segments(NamedTuple):
    """Straight lines, sorted by their start; columns."""

    node: Codes
    t0: Ints
    t1: Ints
    x0: Floats
    y0: Floats
    x1: Floats
    y1: Floats

    def select(self, which: Flags) -> Segments:
        """Return only these segments."""
        node, t0, t1 = self.node[which], self.t0[which], self.t1[which]
        return Segments(node, t0, t1, self.x0[which], self.y0[which], self.x1[which], self.y1[which])

    def at(self, index: Ints, t_us: Ints) -> tuple[Floats, Floats]:
        """Return the positions of these segments' nodes at these times; at a segment's ends exactly its samples."""
        t0 = self.t0[index]
        share = (t_us - t0) / (self.t1[index] - t0)
        last = share == 1.0
        x0, y0, x1, y1 = self.x0[index], self.y0[index], self.x1[index], self.y1[index]
        return np.where(last, x1, x0 + (x1 - x0) * share), np.where(last, y1, y0 + (y1 - y0) * share)


def segments_of(tracks: Tracks, max_gap_us: int | None) -> Segments:
    """Return the lines between samples that are no further apart than the gap."""
    node, t_us, x, y = tracks.node, tracks.t_us, tracks.x, tracks.y
    joined = node[1:] == node[:-1]
    if max_gap_us is not None:
        joined &= np.diff(t_us) <= max_gap_us
    first = np.flatnonzero(joined)
    first = first[np.argsort(t_us[first], kind="stable")]
    then = first + 1
    return Segments(node[first], t_us[first], t_us[then], x[first], y[first], x[then], y[then])


# ------------------------------------------------------------------------------------------------------ grid
class _Grid(NamedTuple):
    range_m: float
    cell_m: float
    margin_m: float
    """Half the range, and what rounding may hide."""
    x: float
    y: float
    """Origin of cell (0, 0)."""
    rows: int
    columns: int
    window: TimeWindow
    """The time window that is searched."""
    slab_us: int
    """Slab 0 starts with the window."""


class _Batch(NamedTuple):
    """Slabs that are worked on together, and which segments may reach into them."""

    slab: int
    slab_end: int
    segment: int
    segment_end: int


class _Boxes(NamedTuple):
    """The boxes of nodes within (a part of) a slab; columns. Times are microseconds of the run."""

    segment: Ints
    node: Codes
    slab: Ints
    since: Floats
    until: Floats
    left: Floats
    right: Floats
    low: Floats
    high: Floats


class _Pairs(NamedTuple):
    """Two segments that may be in range of each other within a slab; the node of `one` is the lower."""

    one: Ints
    two: Ints
    slab: Ints


def _grid(segments: Segments, range_m: float, window: TimeWindow, slab_us: int | None) -> _Grid:
    left, right = min(segments.x0.min(), segments.x1.min()), max(segments.x0.max(), segments.x1.max())
    low, high = min(segments.y0.min(), segments.y1.min()), max(segments.y0.max(), segments.y1.max())
    # Cells as large as the boxes of nodes that move as far as the range within a slab: fewest pairs to look at.
    cell_m = 2 * range_m
    far_m = float(max(abs(left), abs(right), abs(low), abs(high)))
    margin_m = range_m / 2 + 1e-6 + 1e-9 * (range_m + far_m)
    return _Grid(
        range_m=range_m,
        cell_m=cell_m,
        margin_m=margin_m,
        x=float(left) - margin_m,
        y=float(low) - margin_m,
        rows=int((high - low + 2 * margin_m) / cell_m) + 2,
        columns=int((right - left + 2 * margin_m) / cell_m) + 2,
        window=window,
        slab_us=slab_us or _slab_us(segments, range_m),
    )


def _slab_us(segments: Segments, range_m: float) -> int:
    """Return a length of slabs in which a node moves about as far as the range, and has few segments."""
    total_us = float((segments.t1 - segments.t0).sum())
    path_m = float(np.hypot(segments.x1 - segments.x0, segments.y1 - segments.y0).sum())
    slab_us = total_us / len(segments.node)
    if path_m * slab_us > range_m * total_us:
        slab_us = range_m * total_us / path_m
    span_us = int(segments.t1.max() - segments.t0[0])
    return max(int(slab_us), span_us // _SLABS_MAX, 1)


def _batches(segments: Segments, grid: _Grid) -> Iterator[_Batch]:
    latest = np.maximum.accumulate(segments.t1)
    slabs = (grid.window.end_us - 1 - grid.window.start_us) // grid.slab_us + 1
    edges = grid.window.start_us + np.arange(slabs + 1) * grid.slab_us
    started = np.searchsorted(segments.t0, edges[1:], side="left")
    ended = np.searchsorted(np.sort(segments.t1), edges[:-1], side="right")
    cuts = np.cumsum(started - ended)
    slab = 0
    while slab < slabs:
        done = cuts[slab - 1] if slab else 0
        slab_end = max(slab + 1, int(np.searchsorted(cuts, done + _CUTS_PER_BATCH, side="right")))
        segment = int(np.searchsorted(latest, edges[slab], side="right"))
        yield _Batch(slab, slab_end, segment, int(started[slab_end - 1]))
        slab = slab_end


def _boxes(segments: Segments, grid: _Grid, batch: _Batch) -> _Boxes:
    chosen = np.arange(batch.segment, batch.segment_end)
    chosen = chosen[segments.t1[chosen] > grid.window.start_us + batch.slab * grid.slab_us]
    first = np.maximum((segments.t0[chosen] - grid.window.start_us) // grid.slab_us, batch.slab)
    last = np.minimum((segments.t1[chosen] - 1 - grid.window.start_us) // grid.slab_us, batch.slab_end - 1)
    which, step = _spread(last - first + 1)
    segment, slab = chosen[which], first[which] + step
    t0, t1 = segments.t0[segment], segments.t1[segment]
    # A microsecond more on both sides: a root may be rounded over the edge of its slab.
    since = np.maximum(t0, grid.window.start_us + slab * grid.slab_us - 1)
    until = np.minimum(t1, grid.window.start_us + (slab + 1) * grid.slab_us + 1)
    # The fast ones cross many cells in a slab: parts whose box is no larger than a cell.
    length_m = np.maximum(
        np.abs(segments.x1[segment] - segments.x0[segment]), np.abs(segments.y1[segment] - segments.y0[segment])
    )
    parts = np.maximum(np.ceil(length_m * ((until - since) / (t1 - t0)) / grid.cell_m), 1).astype(np.int64)
    which, step = _spread(parts)
    segment, slab = segment[which], slab[which]
    part = (until - since)[which] / parts[which]
    begin = since[which] + part * step
    finish = begin + part
    t0, t1 = t0[which], t1[which]
    dx, dy = segments.x1[segment] - segments.x0[segment], segments.y1[segment] - segments.y0[segment]
    share0, share1 = (begin - t0) / (t1 - t0), (finish - t0) / (t1 - t0)
    xa, xb = segments.x0[segment] + dx * share0, segments.x0[segment] + dx * share1
    ya, yb = segments.y0[segment] + dy * share0, segments.y0[segment] + dy * share1
    margin = grid.margin_m
    return _Boxes(
        segment=segment,
        node=segments.node[segment],
        slab=slab,
        since=begin - 1,
        until=finish + 1,
        left=np.minimum(xa, xb) - margin,
        right=np.maximum(xa, xb) + margin,
        low=np.minimum(ya, yb) - margin,
        high=np.maximum(ya, yb) + margin,
    )


def _candidates(boxes: _Boxes, grid: _Grid) -> Iterator[_Pairs]:
    """Pairs of segments of different nodes whose boxes overlap, in space and in time."""
    column, row = _cells(boxes.left - grid.x, grid), _cells(boxes.low - grid.y, grid)
    columns = _cells(boxes.right - grid.x, grid) - column + 1
    rows = _cells(boxes.high - grid.y, grid) - row + 1
    box, step = _spread(columns * rows)
    # Sums that overflow only make cells share a key, and pairs are looked at below anyway.
    key = (boxes.slab[box] * grid.columns + column[box] + step % columns[box]) * grid.rows + row[box]
    key += step // columns[box]
    order = np.argsort(key)
    key, box = key[order], box[order]
    ends = np.flatnonzero(np.append(key[1:] != key[:-1], True))
    later = np.repeat(ends, np.diff(ends, prepend=-1)) - np.arange(len(key))
    # A pair of boxes may share many cells; it is taken in the first one that they share.
    corner = (boxes.slab * grid.columns + column, row)
    sums = np.cumsum(later)
    entry = 0
    while entry < len(key):
        done = sums[entry - 1] if entry else 0
        entry_end = max(entry + 1, int(np.searchsorted(sums, done + _PAIRS_PER_CHUNK, side="right")))
        which, step = _spread(later[entry:entry_end])
        which += entry
        one, two = box[which], box[which + 1 + step]
        home = np.maximum(corner[0][one], corner[0][two]) * grid.rows + np.maximum(corner[1][one], corner[1][two])
        apart = boxes.node[one] != boxes.node[two]
        chosen = np.flatnonzero(apart & (home == key[which]) & (boxes.slab[one] == boxes.slab[two]))
        yield _overlapping(boxes, one[chosen], two[chosen])
        entry = entry_end


def _overlapping(boxes: _Boxes, one: Ints, two: Ints) -> _Pairs:
    chosen = (boxes.left[one] <= boxes.right[two]) & (boxes.left[two] <= boxes.right[one])
    chosen &= (boxes.low[one] <= boxes.high[two]) & (boxes.low[two] <= boxes.high[one])
    chosen &= (boxes.since[one] <= boxes.until[two]) & (boxes.since[two] <= boxes.until[one])
    one, two = one[chosen], two[chosen]
    lower = boxes.node[one] < boxes.node[two]
    one, two = np.where(lower, one, two), np.where(lower, two, one)
    return _Pairs(boxes.segment[one], boxes.segment[two], boxes.slab[one])


def _cells(offset_m: Floats, grid: _Grid) -> Ints:
    return np.floor_divide(offset_m, grid.cell_m).astype(np.int64)


def _spread(counts: Ints) -> tuple[Ints, Ints]:
    """Return indices and running counts: for counts (2, 0, 3) these are (0, 0, 2, 2, 2) and (0, 1, 0, 1, 2)."""
    which = np.repeat(np.arange(len(counts)), counts)
    before = np.cumsum(counts) - counts
    return which, np.arange(len(which)) - before[which]


# ----------------------------------------------------------------------------------------------------- roots
def _solved(segments: Segments, grid: _Grid, pairs: _Pairs) -> Intervals:
    one, two = pairs.one, pairs.two
    since = np.maximum(segments.t0[one], segments.t0[two])
    until = np.minimum(segments.t1[one], segments.t1[two])
    both = until > since
    one, two, slab, since, until = one[both], two[both], pairs.slab[both], since[both], until[both]
    start, end = _in_range(segments, one, two, since, until, range_m=grid.range_m)
    edge = grid.window.start_us + slab * grid.slab_us
    start, end = np.maximum(start, edge), np.minimum(end, np.minimum(edge + grid.slab_us, grid.window.end_us))
    kept = end > start
    return Intervals(segments.node[one[kept]], segments.node[two[kept]], start[kept], end[kept])


def _in_range(
    segments: Segments, one: Ints, two: Ints, since: Ints, until: Ints, *, range_m: float
) -> tuple[Ints, Ints]:
    """Return the times at which these pairs are in range; if they never are, the end is not after the start."""
    (ax0, ay0), (ax1, ay1) = segments.at(one, since), segments.at(one, until)
    (bx0, by0), (bx1, by1) = segments.at(two, since), segments.at(two, until)
    dx0, dy0, dx1, dy1 = bx0 - ax0, by0 - ay0, bx1 - ax1, by1 - ay1
    in_first = dx0 * dx0 + dy0 * dy0 <= range_m * range_m
    in_last = dx1 * dx1 + dy1 * dy1 <= range_m * range_m
    # Seen from `one`, `two` moves along a chord of the circle: nearest at the share `middle` of the way, `pass_m` off.
    vx, vy = dx1 - dx0, dy1 - dy0
    way_m = np.hypot(vx, vy)
    moves = way_m > _STANDS_M
    way_m = np.where(moves, way_m, 1.0)
    middle = -(dx0 * vx + dy0 * vy) / way_m / way_m
    pass_m = np.abs(dx0 * vy - dy0 * vx) / way_m
    half = np.sqrt(np.maximum((range_m - pass_m) * (range_m + pass_m), 0.0)) / way_m
    crosses = in_first | in_last | (moves & (pass_m < range_m) & (middle > 0) & (middle < 1))
    duration = (until - since).astype(np.float64)
    start = since + np.rint(np.clip(middle - half, 0.0, 1.0) * duration).astype(np.int64)
    end = since + np.rint(np.clip(middle + half, 0.0, 1.0) * duration).astype(np.int64)
    start = np.where(in_first, since, start)
    end = np.where(crosses, np.where(in_last, until, end), start)
    return start, end


# ------------------------------------------------------------------------------------------------ encounters

_INTERVALS_AT_ONCE = 1 << 20
"""Number of intervals that are kept before they are joined: a contact has as many as there are samples in it."""


@dataclass(frozen=True, slots=True, eq=False)
class Encounters:
    """Contacts by columns, sorted by start, a, b; a < b, as indices into `nodes`; half open."""

    nodes: tuple[str, ...]
    a: Codes
    b: Codes
    start_us: Ints
    end_us: Ints

    def __len__(self) -> int:
        return len(self.a)

    def select(self, which: Flags | Ints) -> Encounters:
        """Return only these contacts."""
        return Encounters(self.nodes, self.a[which], self.b[which], self.start_us[which], self.end_us[which])

    def shifted(self, by_us: int) -> Encounters:
        """Return the same contacts, later by this much."""
        return Encounters(self.nodes, self.a, self.b, self.start_us + by_us, self.end_us + by_us)

    def ordered(self) -> Encounters:
        """Return the same contacts, nodes sorted by name, a < b, in order."""
        nodes = tuple(sorted(self.nodes))
        if nodes != self.nodes:
            place = {name: code for code, name in enumerate(nodes)}
            codes = np.array([place[name] for name in self.nodes], np.int32)
            one, two = codes[self.a], codes[self.b]
            return Encounters(nodes, np.minimum(one, two), np.maximum(one, two), self.start_us, self.end_us).ordered()
        return self.select(np.lexsort((self.b, self.a, self.start_us)))

    def contacts(self) -> list[Contact]:
        """Return the contacts with the names of nodes, sorted by start and names."""
        found = self.ordered()
        columns = (each.tolist() for each in (found.a, found.b, found.start_us, found.end_us))
        return [
            Contact(found.nodes[a], found.nodes[b], start_us, end_us)
            for a, b, start_us, end_us in zip(*columns, strict=True)
        ]


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """The rules of what counts as a contact."""

    range_m: float
    max_gap_us: int | None = None
    """Samples further apart are not joined by a line; None: all are."""
    merge_gap_us: int = 0
    """Contacts of one pair with at most this gap between them count as one."""
    min_duration_us: int = 0
    """Duration below which merged contacts are left out."""

    def __post_init__(self) -> None:
        if not 0 < self.range_m < np.inf:
            raise LocalError(f"the range must be a number of metres above 0, not {self.range_m!r}")
        gap_us = 0 if self.max_gap_us is None else self.max_gap_us
        if min(gap_us, self.merge_gap_us, self.min_duration_us) < 0:
            raise LocalError("gaps and durations of encounters must not be negative")


def encounters(
    tracks: Tracks, rules: Rules, *, window: TimeWindow | None = None, slab_us: int | None = None
) -> Encounters:
    """Return all contacts by these rules; with a window, the parts of contacts within it.

    `slab_us` is for tuning: it changes the cost, never the result.
    """
    if slab_us is not None and slab_us < 1:
        raise LocalError(f"a slab must be at least 1 µs, not {slab_us!r}")
    found = intervals(segments_of(tracks, rules.max_gap_us), rules.range_m, window, slab_us)
    a, b, start_us, end_us = _merge_close(_fewer(found), rules.merge_gap_us)
    long = np.flatnonzero(end_us - start_us >= rules.min_duration_us)
    order = long[np.lexsort((b[long], a[long], start_us[long]))]
    return Encounters(tracks.nodes, a[order], b[order], start_us[order], end_us[order])


def _fewer(found: Iterable[Intervals]) -> list[Intervals]:
    """Return the same intervals, joined now and then where they touch, to save memory."""
    kept: list[Intervals] = []
    waiting: list[Intervals] = []
    count = 0
    for each in found:
        waiting.append(each)
        count += len(each.a)
        if count >= _INTERVALS_AT_ONCE:
            kept.append(_merge_close(waiting, 0))
            waiting, count = [], 0
    return kept + waiting


def _merge_close(found: Iterable[Intervals], gap_us: int) -> Intervals:
    """Join what is no further apart than the gap.

    Intervals of a pair are disjoint or the same; sorted by their starts they are therefore sorted by their ends.
    """
    nobody, never = np.empty(0, dtype=np.int32), np.empty(0, dtype=np.int64)
    none = Intervals(nobody, nobody, never, never)
    a, b, start, end = (np.concatenate(column) for column in zip(none, *found, strict=True))
    order = np.lexsort((start, b, a))
    a, b, start, end = a[order], b[order], start[order], end[order]
    same = (a[1:] == a[:-1]) & (b[1:] == b[:-1]) & (start[1:] - end[:-1] <= gap_us)
    first = np.flatnonzero(np.append(True, ~same)) if len(a) else np.empty(0, dtype=np.int64)
    last = np.append(first[1:] - 1, len(a) - 1) if len(a) else first
    return Intervals(a[first], b[first], start[first], end[last])


# ---------------------------------------------------------------------------------------- contacts of a file


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
    return None if _in_conflict(found).any() else found.ordered()


def _times_us(column: pa.ChunkedArray) -> Ints:
    seconds: Floats = column.cast(pa.float64()).to_numpy()
    if not ((seconds >= 0) & (seconds <= TIME_S_MAX)).all():
        raise LocalError("a time is wrong")
    return np.rint(seconds * MICROSECONDS).astype(np.int64)


def _codes(column: pa.ChunkedArray, names: tuple[str, ...]) -> Codes:
    found: Codes = combined(pc.index_in(column, pa.array(names, pa.string())), pa.int32()).to_numpy()
    return found


def _in_conflict(found: Encounters) -> Flags:
    order = np.lexsort((found.start_us, found.b, found.a))
    a, b, start_us, end_us = found.a[order], found.b[order], found.start_us[order], found.end_us[order]
    return np.asarray((a[1:] == a[:-1]) & (b[1:] == b[:-1]) & (start_us[1:] < end_us[:-1]))
