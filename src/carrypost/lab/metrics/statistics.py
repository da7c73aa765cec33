"""Statistics of contacts and presences alone: counts, durations, intervals, neighbours, activity.

Both are half-open; contacts of a pair do not overlap, nor do the stays of a node. Functions return the columns of
tables of `lab.metrics.families`, of a run or of a trace.

All sums are of integer microseconds, so that nothing depends on the order of work. Means over time are computed by
events: +1 where something begins and -1 where it ends, accumulated; never by sampling. Neighbours are counted only
while a node is present, whatever contacts say.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from carrypost.arrays import Ints
from carrypost.lab.metrics.distribution import Columns, Counts, Moments, cdf, milliseconds, summed
from carrypost.model.times import MICROSECONDS
from carrypost.traces.formats.keys import ranked


@dataclass(frozen=True, eq=False)
class Meetings:
    """Contacts: the two nodes, begin and end."""

    a: pa.Array
    b: pa.Array
    start_us: Ints
    end_us: Ints

    def merge(self, other: Meetings) -> Meetings:
        """Return the meetings of this part and another."""
        return Meetings(
            pa.concat_arrays([self.a, other.a]),
            pa.concat_arrays([self.b, other.b]),
            np.concatenate([self.start_us, other.start_us]),
            np.concatenate([self.end_us, other.end_us]),
        )

    @property
    def lasting_us(self) -> Ints:
        """The length of each."""
        return self.end_us - self.start_us


@dataclass(frozen=True, eq=False)
class Stays:
    """The stays of nodes, from when to when."""

    node: pa.Array
    start_us: Ints
    end_us: Ints


def coded(*columns: pa.Array | pa.ChunkedArray) -> tuple[list[Ints], pa.Array]:
    """Return numbers for the texts of some columns, by order of texts, and the texts."""
    chunks = [each for column in columns for each in (column.chunks if hasattr(column, "chunks") else [column])]
    names, codes = ranked(pa.chunked_array([chunk.cast(pa.string()) for chunk in chunks], pa.string()))
    return np.split(codes, np.cumsum([len(column) for column in columns])[:-1]), names


# --- contacts -------------------------------------------------------------------------------------------------
def contact_summary(met: Meetings) -> Columns:
    """Table CONTACT_SUMMARY: numbers of contacts, pairs and nodes, and durations; nothing where there is none."""
    (a, b), names = coded(met.a, met.b)
    moments = Moments.of(met.lasting_us)
    found = {
        "contacts": moments.count,
        "pairs": len(np.unique(a * len(names) + b)),
        "nodes": len(np.unique(np.concatenate([a, b]))),
        **moments.seconds,
    }
    return _row(found, there=moments.count > 0)


def contact_cdf(met: Meetings) -> Columns:
    """Table CONTACT_CDF: how durations are distributed."""
    return cdf(Counts.of(milliseconds(met.lasting_us)))


def inter_contact_cdf(met: Meetings) -> Columns:
    """Table INTER_CONTACT_CDF, of times between contacts of a pair: before the first and after the last is none."""
    (a, b), names = coded(met.a, met.b)
    pair = a * len(names) + b
    order = np.lexsort((met.start_us, pair))
    again = np.flatnonzero(np.diff(pair[order], prepend=-1) == 0)
    return cdf(Counts.of(milliseconds(met.start_us[order[again]] - met.end_us[order[again - 1]])))


# --- neighbours -----------------------------------------------------------------------------------------------
class Levels(NamedTuple):
    """Intervals in which some present node has a number of neighbours."""

    start_us: Ints
    end_us: Ints
    neighbours: Ints


def levels(met: Meetings, stays: Stays) -> Levels:
    """Return the levels of all nodes, while they are present."""
    (there, a, b), _ = coded(stays.node, met.a, met.b)
    node = np.concatenate([there, there, a, b, a, b])
    t_us = np.concatenate([stays.start_us, stays.end_us, met.start_us, met.start_us, met.end_us, met.end_us])
    stay, meet = np.ones(len(there), np.int64), np.ones(2 * len(a), np.int64)
    active = np.concatenate([stay, -stay, 0 * meet, 0 * meet])
    neighbours = np.concatenate([0 * stay, 0 * stay, meet, -meet])
    order = np.lexsort((t_us, node))
    node, t_us = node[order], t_us[order]
    # Each that begins ends: sums that run through all nodes are 0 where the next one begins.
    active, neighbours = np.cumsum(active[order]), np.cumsum(neighbours[order])
    last = np.ones(len(node), np.bool_)
    last[:-1] = (np.diff(node) != 0) | (np.diff(t_us) != 0)  # The last of an instant: what is so from then on.
    at = np.flatnonzero(last)
    until = np.flatnonzero((active[at][:-1] > 0) & (np.diff(node[at]) == 0)) if len(at) else at
    return Levels(t_us[at[until]], t_us[at[until + 1]], neighbours[at[until]])


def neighbours(met: Meetings, stays: Stays) -> Columns:
    """Table NEIGHBOURS: time for which nodes had each number of neighbours while they were present."""
    found = levels(met, stays)
    number, node_us = summed(found.neighbours, found.end_us - found.start_us)
    share = np.cumsum(node_us) / node_us.sum() if len(node_us) else node_us.astype(np.float64)
    return {"neighbours": number, "node_s": node_us / MICROSECONDS, "share": share}


def neighbours_timeline(met: Meetings, stays: Stays, window_us: int) -> Columns:
    """Table NEIGHBOURS_TIMELINE: how many were there and how many neighbours they had, as means over windows of time.

    Windows begin at whole multiples of their length, the first where the first node joins; one that reaches beyond the
    time of the last node is a window like the others.
    """
    found = levels(met, stays)
    if not len(found.start_us):
        return {"t": np.zeros(0), "active": np.zeros(0), "neighbours": np.zeros(0)}
    first, last = int(found.start_us.min()) // window_us, -(-int(found.end_us.max()) // window_us)
    edges = np.arange(first, last + 1) * window_us
    active = np.diff(_integral(found, np.ones(len(found.start_us), np.int64), edges))
    met_us = np.diff(_integral(found, found.neighbours, edges))
    means = pa.array(met_us / np.maximum(active, 1), mask=active == 0)
    return {"t": edges[:-1] / MICROSECONDS, "active": active / window_us, "neighbours": means}


def _integral(of: Levels, amount: Ints, until_us: Ints) -> Ints:
    """Return the integrals of amounts that hold from start to end, until each of these times, in microseconds."""
    t_us = np.concatenate([of.start_us, of.end_us])
    order = np.argsort(t_us, kind="stable")
    t_us, level = t_us[order], np.cumsum(np.concatenate([amount, -amount])[order])
    before = np.concatenate([[0], np.cumsum(level[:-1] * np.diff(t_us))])
    at = np.searchsorted(t_us, until_us, side="right") - 1
    found: Ints = np.where(at >= 0, before[at] + level[at] * (until_us - t_us[at]), 0)
    return found


# --- activity -------------------------------------------------------------------------------------------------
def activity(stays: Stays) -> Columns:
    """Table ACTIVITY, by node and time."""
    (node,), _ = coded(stays.node)
    order = np.lexsort((stays.start_us, node))
    return {
        "node": stays.node.take(pa.array(order)),
        "start": stays.start_us[order] / MICROSECONDS,
        "end": stays.end_us[order] / MICROSECONDS,
    }


def activity_summary(stays: Stays) -> Columns:
    """Table ACTIVITY_SUMMARY: how many nodes there were, how many at a time, and how long each was there in all."""
    (node,), names = coded(stays.node)
    _, lasting_us = summed(node, stays.end_us - stays.start_us)
    t_us, change = summed(
        np.concatenate([stays.start_us, stays.end_us]), np.repeat(np.array([1, -1]), len(stays.start_us))
    )
    most = int(np.cumsum(change).max(initial=0)) if len(t_us) else 0
    return _row({"nodes": len(names), "active_max": most, **Moments.of(lasting_us).seconds}, there=len(names) > 0)


def stays_of_positions(node: pa.Array, t_us: Ints, max_gap_us: int | None) -> Stays:
    """Return the stays of a trace's nodes: from a first sample to a last, broken where samples are too far apart."""
    (code,), names = coded(node)
    order = np.lexsort((t_us, code))
    code, t_us = code[order], t_us[order]
    begins = np.diff(code, prepend=-1) != 0
    if max_gap_us is not None:
        begins |= np.diff(t_us, prepend=t_us[:1]) > max_gap_us
    first = np.flatnonzero(begins)
    last = np.append(first[1:], len(code)) - 1
    return Stays(names.take(pa.array(code[first])), t_us[first], t_us[last])


def stays_of_contacts(met: Meetings) -> Stays:
    """Return the stays of nodes by contacts alone: from a node's first contact to the end of its last."""
    (a, b), names = coded(met.a, met.b)
    node = np.concatenate([a, b])
    start_us, end_us = np.full(len(names), np.iinfo(np.int64).max), np.full(len(names), np.iinfo(np.int64).min)
    np.minimum.at(start_us, node, np.concatenate([met.start_us, met.start_us]))
    np.maximum.at(end_us, node, np.concatenate([met.end_us, met.end_us]))
    return Stays(names, start_us, end_us)


def _row(figures: Columns, *, there: bool) -> Columns:
    """Return columns of one row, or of none."""
    return {name: [value] if there else [] for name, value in figures.items()}
