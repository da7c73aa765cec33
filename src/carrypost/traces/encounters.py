"""Encounters: contacts of nodes in range of each other, exact on piecewise-linear motion, without a time step.

The intervals that pairs of segments give are joined where they touch, then over gaps that do not count. The invariant:
what comes out does not depend on slabs, cells or on the order of work; and what is found window by window, with all
segments that reach into each window, is the whole once what touches is joined.

A distance of exactly the range is in range. A touch of no length is no contact.
"""
# A long trace has more segments than memory holds. So the search goes window by window, and the
# laboratory divides windows among tasks. That is possible only because results do not depend on the
# division: every piece of a contact is found with whole microseconds, and pieces that touch are
# joined afterwards.

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from carrypost.arrays import Codes, Flags, Ints
from carrypost.errors import LocalError
from carrypost.traces.contacts import Contact
from carrypost.traces.in_range import Intervals, TimeWindow, intervals, segments_of
from carrypost.traces.tracks import Tracks

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
