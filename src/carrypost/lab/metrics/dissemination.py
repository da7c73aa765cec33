"""Spread of messages: entries of barriers, hops, one message's way, throughput and delivery times (JOMS)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from carrypost.arrays import Flags
from carrypost.emu.records.copies import CODLVDELAY, Copies
from carrypost.lab.metrics.distribution import RANKS, Columns, Counts, cdf, milliseconds
from carrypost.lab.metrics.parts import Slice, Tally, ratio
from carrypost.model.address import Kind as AddressKind
from carrypost.model.times import MICROSECONDS
from carrypost.traces.formats.words import numbers

_DAY_US = 86_400 * MICROSECONDS
_KINDS = frozenset(each.value for each in AddressKind)
_ENTRIES_MAX = 1 << 53


def barriers_part(of: Slice) -> Tally:
    """Publications counted by the entries of their barriers; one without an order has none."""
    entries = numbers(of.rows.texts("detail", of.copies.publications))
    whole = entries[np.isfinite(entries) & (np.abs(entries) < _ENTRIES_MAX)].astype(np.int64)
    return Tally.of({"entries": whole, "messages": np.ones(len(whole), np.int64)}, ["entries"], messages="sum")


def hops_part(of: Slice) -> Tally:
    """Receptions and their hops, by node; those of which hops are not known are left out."""
    copies, nodes = of.copies, of.rows.names("node")
    known = np.flatnonzero(copies.hops > 0)
    node, hops = copies.node[known], copies.hops[known]
    most = np.zeros(len(nodes), np.int64)
    np.maximum.at(most, node, hops)
    received, total = np.bincount(node, minlength=len(nodes)), np.bincount(node, hops, len(nodes)).astype(np.int64)
    direct = np.bincount(node[hops == 1], minlength=len(nodes))
    there = received > 0
    columns = {
        "node": nodes.filter(pa.array(there)),
        "received": received[there],
        "direct": direct[there],
        "total": total[there],
        "max": most[there],
    }
    return Tally.of(columns, ["node"], received="sum", direct="sum", total="sum", max="max")


def hops(part: Tally) -> Columns:
    """Table HOPS."""
    columns = part.columns()
    return {**columns, "mean": columns["total"].to_numpy() / columns["received"].to_numpy()}


def hop_counts_part(of: Slice) -> Tally:
    """Receptions by their hops; those of which hops are not known are left out."""
    copies = of.copies
    hops, counts = np.unique(copies.hops[copies.hops > 0], return_counts=True)
    return Tally.of({"hops": hops, "copies": counts}, ["hops"], copies="sum")


def throughput_part(of: Slice) -> Tally:
    """Receptions by size of messages, and their rates added up; what came in no time at all has none."""
    copies = of.copies
    known = np.flatnonzero(_came(copies) & (copies.size >= 0))
    size, delay_us = copies.size[known], copies.received_us[known] - copies.published_us[known]
    sizes, place = np.unique(size, return_inverse=True)
    timed = delay_us > 0
    rates = np.divide(size * float(MICROSECONDS), delay_us, out=np.zeros(len(size)), where=timed)
    columns = {
        "size": sizes,
        "copies": np.bincount(place, minlength=len(sizes)),
        "timed": np.bincount(place[timed], minlength=len(sizes)),
        "rates": np.bincount(place, rates, len(sizes)),
    }
    return Tally.of(columns, ["size"], copies="sum", timed="sum", rates="sum")


def throughput(part: Tally) -> Columns:
    """Table THROUGHPUT."""
    columns = part.columns()
    return {**columns, "bytes_per_s": ratio(columns["rates"].to_numpy(), columns["timed"].to_numpy())}


@dataclass(frozen=True, eq=False)
class Spread:
    """The spread of the message that most nodes got and, of several, took longest within its day."""

    message: str | None
    """None: no node received a message."""
    source: str
    published_us: int
    receptions: pa.Table
    """Node, peer and time after the publication, in order of time."""

    @classmethod
    def of(cls, of: Slice) -> Spread:
        """Return the message of a slice."""
        copies, rows = of.copies, of.rows
        known = np.flatnonzero(_came(copies))
        if not len(known):
            nobody = pa.nulls(0, pa.string())
            return cls(None, "", 0, pa.table({"node": nobody, "peer": nobody, "after_us": np.zeros(0, np.int64)}))
        names, first = rows.names("message"), copies.publications[copies.first]
        counts = np.bincount(copies.message[known], minlength=len(names))
        last_us, published_us = np.zeros(len(names), np.int64), np.zeros(len(names), np.int64)
        np.maximum.at(last_us, copies.message[known], copies.received_us[known])
        published_us[rows.message[first]] = rows.t_us[first]
        most = np.flatnonzero(counts == counts.max())
        in_day = last_us[most] // _DAY_US == published_us[most] // _DAY_US
        most = most[in_day] if in_day.any() else most
        taken_us = last_us[most] - published_us[most]
        _, message = min((names[code].as_py(), code) for code in most[taken_us == taken_us.max()].tolist())
        mine = known[copies.message[known] == message]
        at = copies.received[mine]
        after_us = copies.received_us[mine] - copies.published_us[mine]
        receptions = pa.table({"node": rows.texts("node", at), "peer": rows.texts("peer", at), "after_us": after_us})
        receptions = receptions.sort_by([("after_us", "ascending"), ("node", "ascending")])
        source = rows.texts("node", copies.publication[mine[:1]])[0].as_py()
        return cls(names[message].as_py(), source, int(published_us[message]), receptions)

    def merge(self, other: Spread) -> Spread:
        """Return the one of two messages that more nodes received or, of equal ones, that took longer in its day."""
        return min(self, other, key=Spread._rank)

    def _rank(self) -> tuple[int, bool, int, str]:
        taken_us = int(self.receptions["after_us"][-1].as_py()) if len(self.receptions) else 0
        beyond = (self.published_us + taken_us) // _DAY_US != self.published_us // _DAY_US
        return -len(self.receptions), beyond, -taken_us, self.message or ""


def spread(part: Spread) -> Columns:
    """Table SPREAD."""
    count = len(part.receptions)
    return {
        "message": pa.repeat(part.message or "", count),
        "source": pa.repeat(part.source, count),
        "node": part.receptions["node"],
        "peer": part.receptions["peer"],
        "reached": np.arange(1, count + 1),
        "after_s": part.receptions["after_us"].to_numpy() / MICROSECONDS,
    }


@dataclass(frozen=True, eq=False)
class Deliveries:
    """Times from publication to delivery, counted by milliseconds and by kind of destination."""

    counts: Mapping[str, Counts]

    @classmethod
    def of(cls, of: Slice) -> Deliveries:
        """Return those of a slice."""
        copies, rows = of.copies, of.rows
        known, delay_us = copies.delays[CODLVDELAY]
        at = copies.publication[known]
        destination = pc.fill_null(rows.attribute("destination", at), "")
        kinds = pc.list_element(pc.split_pattern(pc.binary_join_element_wise(destination, "/", ""), "/"), 0)
        kind = np.array([each if each in _KINDS else AddressKind.TOPIC.value for each in kinds.to_pylist()], object)
        delay_us = delay_us[known]
        return cls({each: Counts.of(milliseconds(delay_us[kind == each])) for each in dict.fromkeys(kind.tolist())})

    def merge(self, other: Deliveries) -> Deliveries:
        """Return those of this slice and another."""
        none = Counts.of(np.zeros(0, np.int64))
        every = {*self.counts, *other.counts}
        return Deliveries({each: self.counts.get(each, none).merge(other.counts.get(each, none)) for each in every})


def delivery_cdf(part: Deliveries) -> Columns:
    """Table DELIVERY_CDF, by destination and value."""
    tables = [pa.table({"destination": pa.array([], pa.string()), **cdf(Counts.of(np.zeros(0, np.int64)))})]
    for kind, counts in sorted(part.counts.items()):
        points = cdf(counts, RANKS)
        tables.append(pa.table({"destination": pa.repeat(kind, len(points["count"])), **points}))
    found = pa.concat_tables(tables)
    return {name: found[name] for name in found.column_names}


def _came(copies: Copies) -> Flags:
    """Return flags of copies that came from elsewhere, and are of a known publication."""
    found: Flags = ~copies.own & copies.published & (copies.received >= 0)
    return found
