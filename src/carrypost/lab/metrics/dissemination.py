"""Spread of messages: entries of barriers, hops, one message's way and throughput (JOMS)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from carrypost.emu.arrays import Flags, Ints
from carrypost.emu.records.copies import Copies
from carrypost.emu.traces.formats.words import numbers
from carrypost.lab.metrics.distribution import Columns
from carrypost.lab.metrics.parts import Slice, Tally, ratio
from carrypost.model.times import MICROSECONDS

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
    """The spread of the message that most nodes got."""

    message: str | None
    """None: no node received a message."""
    published_us: int
    after_us: Ints

    @classmethod
    def of(cls, of: Slice) -> Spread:
        """Return the message of a slice that most nodes got, the first of several."""
        copies, rows = of.copies, of.rows
        known = np.flatnonzero(_came(copies))
        if not len(known):
            return cls(None, 0, np.zeros(0, np.int64))
        messages, first = rows.names("message"), copies.publications[copies.first]
        counts = np.bincount(copies.message[known], minlength=len(messages))
        first_us = np.zeros(len(messages), np.int64)
        first_us[rows.message[first]] = rows.t_us[first]
        most = np.flatnonzero(counts == counts.max())
        most = most[first_us[most] == first_us[most].min()]
        name, message = min((messages[code].as_py(), code) for code in most.tolist())
        mine = known[copies.message[known] == message]
        mine = mine[np.argsort(copies.received_us[mine], kind="stable")]
        return cls(name, int(first_us[message]), copies.received_us[mine] - copies.published_us[mine])

    def merge(self, other: Spread) -> Spread:
        """Return the one of two messages that more nodes received."""
        return min(self, other, key=lambda each: (-len(each.after_us), each.published_us, each.message or ""))


def spread(part: Spread) -> Columns:
    """Table SPREAD."""
    count = len(part.after_us)
    return {
        "message": pa.repeat(part.message or "", count),
        "reached": np.arange(1, count + 1),
        "after_s": part.after_us / MICROSECONDS,
    }


def _came(copies: Copies) -> Flags:
    """Return flags of copies that came from elsewhere, and are of a known publication."""
    found: Flags = ~copies.own & copies.published & (copies.received >= 0)
    return found
