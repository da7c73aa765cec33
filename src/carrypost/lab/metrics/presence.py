"""Presence of nodes, contacts and their statistics, and what nodes reported: sizes of registries, bytes sent.

Contacts and stays are half-open; contacts of a pair do not overlap, nor do the stays of a node. Functions return the
columns of tables of `lab.metrics.families`, of a run or of a trace.

All sums are of integer microseconds, so that nothing depends on the order of work. Means over time are computed by
events: +1 where something begins and -1 where it ends, accumulated; never by sampling. Neighbours are counted only
while a node is present, whatever contacts say.

Contacts as hosts see them stand beside those that there were: who was a neighbour of whom, by `up` and `down` (JOMS).
Each side of a contact is counted by itself, since hosts may differ: the number of contacts is half of all. A contact
that a host sees ends where the host leaves, if it has not ended before.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from carrypost.arrays import Ints
from carrypost.emu.engine.samples import AT, AT_LEAVE, CACHE, TOPOLOGY
from carrypost.emu.engine.samples import REGISTRIES as ORDERED
from carrypost.emu.rows import Log, microseconds
from carrypost.lab.metrics.families import CONTACT_VIEWS
from carrypost.lab.metrics.parts import (
    Columns,
    Counts,
    Fields,
    Moments,
    Slice,
    Tally,
    cdf,
    listed,
    milliseconds,
    ratio,
    summed,
    window_us,
)
from carrypost.log.record import Kind
from carrypost.model.times import MICROSECONDS
from carrypost.traces.csvfiles import HEARD
from carrypost.traces.formats.assembly import ranked
from carrypost.traces.formats.lines import numbers


@dataclass(frozen=True, eq=False)
class Meetings(Fields):
    """Contacts: the two nodes, begin and end."""

    a: pa.Array
    b: pa.Array
    start_us: Ints
    end_us: Ints

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
        (node,), names = coded(self.moves["node"])
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


_SHORT_US = 60_000_000
TRUE, HOSTS = "true", "hosts"
"""Names of the two views."""


@dataclass(frozen=True, eq=False)
class Sightings(Fields):
    """Changes of the neighbours of hosts, the presence of nodes, and contacts that work one way."""

    changes: pa.Table
    """Node, peer, t_us, up."""
    presence: Presence
    one_way: int
    reported: int
    """Rows in which a host reports that it is not heard."""

    @classmethod
    def of(cls, of: Slice) -> Sightings:
        """Return the sightings in a slice."""
        rows = of.rows
        at = rows.of(Kind.UP, Kind.DOWN)
        up = pc.equal(rows.texts("kind", at), Kind.UP.value)
        changes = {"node": rows.texts("node", at), "peer": rows.texts("peer", at), "t_us": rows.t_us[at], "up": up}
        one_way = rows.attribute(HEARD, rows.of(Kind.CONTACT))
        reported = len(rows.of(Kind.ONEWAY))
        return cls(pa.table(changes), Presence.of(of), len(one_way) - one_way.null_count, reported)

    def lasting_us(self) -> Ints:
        """Return how long hosts saw their neighbours: a length for each side of a contact."""
        stays = self.presence.stays()
        (node, host), _ = coded(self.changes["node"], stays.node)
        (peer,), names = coded(self.changes["peer"])
        t_us, pair = self.changes["t_us"].to_numpy(), node * (len(names) + 1) + peer
        order = np.lexsort((t_us, pair))
        node, t_us, pair = node[order], t_us[order], pair[order]
        up = self.changes["up"].to_numpy()[order]
        last_us = np.iinfo(np.int64).max
        next_us = np.append(t_us[1:], last_us)
        next_us[np.append(np.diff(pair) != 0, True)] = last_us
        begins = np.lexsort((stays.start_us, host))
        times_us, span = np.unique(np.concatenate([stays.start_us, t_us])), len(stays.start_us) + len(t_us) + 1
        keys = host[begins] * span + np.searchsorted(times_us, stays.start_us[begins])
        place = np.searchsorted(keys, node * span + np.searchsorted(times_us, t_us), side="right") - 1
        there = up & (place >= 0)
        place = np.maximum(place, 0)[there]
        ends_us = np.minimum(next_us[there], stays.end_us[begins][place]) if len(keys) else next_us[there]
        found: Ints = (ends_us - t_us[there])[host[begins][place] == node[there]] if len(keys) else ends_us
        return found[found > 0]


def contact_views(part: Sightings) -> Columns:
    """Table CONTACT_VIEWS."""
    rows = []
    for view, lasting_us, sides, one_way in (
        (TRUE, part.presence.meetings.lasting_us, 1, part.one_way), (HOSTS, part.lasting_us(), 2, part.reported),
    ):  # fmt: skip
        if len(lasting_us):
            short = float((lasting_us < _SHORT_US).mean())
            contacts = len(lasting_us) / sides
            figures = {"view": view, "contacts": contacts, "one_way": one_way, "short": short}
            rows.append(figures | dict(Moments.of(lasting_us).seconds))
    return listed(CONTACT_VIEWS, rows)


def seen_contact_cdf(part: Sightings) -> Columns:
    """Table SEEN_CONTACT_CDF."""
    return cdf(Counts.of(milliseconds(part.lasting_us())))
