"""Fates of messages and of their copies: numbers and delays (CAUSAL); spread, hops and throughput (JOMS).

The metrics of CAUSAL §VI-A d are those of `carrypost.emu.summary`: transmission delay (tdelay), co-delivery
latency (ltcy) and co-delivery delay. Messages without an order are counted too: they are delivered as they come. The
spread of messages (JOMS) is entries of barriers, hops, one message's way, throughput and delivery times.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from carrypost.arrays import Flags, Ints
from carrypost.emu.rows import CODLVDELAY, Copies
from carrypost.lab.metrics.families import DELAY_SPREAD, DELAYS, LTCY, PERCENTILES, TDELAY
from carrypost.lab.metrics.parts import (
    RANKS,
    Columns,
    Counts,
    Fields,
    Moments,
    Slice,
    Tally,
    cdf,
    counted,
    listed,
    milliseconds,
    ratio,
    summed,
)
from carrypost.log.record import Kind
from carrypost.model.address import Kind as AddressKind
from carrypost.model.times import MICROSECONDS
from carrypost.traces.formats.lines import numbers

CELLS = 60
"""Number of cells of a grid in either direction; at least a third of them are used."""
_COUNTS = ("bcast", "rcvd", "codlvd", "expd", "left")
_CELL_US_MIN = 1_000
_NICE = (1, 2, 5, 10)


# --- what became of messages ----------------------------------------------------------------------------------
def processing_part(of: Slice) -> Tally:
    """Copies counted, by node; every node that there is a row of, and the run itself, which has no name."""
    copies, rows = of.copies, of.rows
    nodes = rows.names("node")
    count = len(nodes)
    received, delivered, expired = (each >= 0 for each in (copies.received, copies.delivered, copies.expired))
    of_copies = (received, delivered, expired, received & ~(delivered | expired))
    counts = (
        np.bincount(rows.node[copies.publications], minlength=count),
        *(np.bincount(copies.node[each], minlength=count) for each in of_copies),
    )
    heard = np.bincount(rows.node, minlength=count) > 0  # A dictionary may name more than its rows do.
    columns = {name: each[heard] for name, each in zip(_COUNTS, counts, strict=True)}
    return Tally.of({"node": nodes.filter(pa.array(heard)), **columns}, ["node"], **dict.fromkeys(_COUNTS, "sum"))


def processing(part: Tally) -> Columns:
    """Table PROCESSING; a run without messages is there too."""
    return _with_ratios({name: np.array([pc.sum(part.figures[name]).as_py() or 0]) for name in _COUNTS})


def outcomes_part(of: Slice) -> Tally:
    """Messages and copies counted, all together. A row `refuse` without a peer is a publication that was refused."""
    copies, rows = of.copies, of.rows
    at = copies.publications[copies.first]
    refusals, drops = rows.of(Kind.REFUSE), rows.of(Kind.DROP)
    refused = int((rows.peer[refusals] < 0).sum())
    counts = {
        "created": len(at) + refused,
        "refused": refused,
        "listed": len(at) - rows.attribute("recipients", at).null_count,
        "relayed": int((~copies.own & (copies.received >= 0)).sum()),
        "dropped": len(drops),
    }
    columns = {"all": [0], **{name: [count] for name, count in counts.items()}}
    return Tally.of(columns, ["all"], **dict.fromkeys(counts, "sum"))


def outcomes(part: Tally) -> Columns:
    """Table OUTCOMES."""
    return {name: each for name, each in part.columns().items() if name != "all"}


def processing_by_node(part: Tally) -> Columns:
    """Table PROCESSING_BY_NODE."""
    columns = part.columns()
    there = pc.not_equal(columns["node"], "")
    named = {name: each.filter(there) for name, each in columns.items()}
    return {"node": named["node"], **_with_ratios({name: named[name].to_numpy() for name in _COUNTS})}


def _with_ratios(counts: Mapping[str, Ints]) -> Columns:
    bcast, rcvd, codlvd, expd, _ = counts.values()
    return {
        **counts,
        "codlvratio": ratio(codlvd, bcast + rcvd),
        "expratio": ratio(expd, rcvd),
    }


# --- how long it took -----------------------------------------------------------------------------------------
@dataclass(frozen=True, eq=False)
class Delays(Fields):
    """The three delays, summed up and counted by milliseconds; and two of them against each other."""

    moments: Mapping[str, Moments]
    counts: Mapping[str, Counts]
    grid: Grid

    @classmethod
    def of(cls, of: Slice) -> Delays:
        """Compute the delays of the copies of a slice."""
        found = {name: delay_us[known] for name, (known, delay_us) in of.copies.delays.items()}
        moments = {name: Moments.of(each) for name, each in found.items()}
        counts = {name: Counts.of(milliseconds(each)) for name, each in found.items()}
        return cls(moments, counts, Grid.of(of.copies, moments))


def delays(part: Delays) -> Columns:
    """Table DELAY_SPREAD."""
    rows = []
    for name in DELAYS:
        moments, counts = part.moments[name], part.counts[name]
        if moments.count:
            ranks = counts.percentiles_s(PERCENTILES)
            rows.append({"metric": name, "count": moments.count, **moments.seconds, **ranks})
    return listed(DELAY_SPREAD, rows)


def delay_cdf(part: Delays) -> Columns:
    """Table DELAY_CDF, by metric and value."""
    parts = [(name, pa.table(dict(cdf(part.counts[name], RANKS)))) for name in sorted(DELAYS)]
    found = pa.concat_tables([each.append_column("metric", pa.repeat(name, len(each))) for name, each in parts])
    return {name: found[name] for name in found.column_names}


# --- one delay against the other ------------------------------------------------------------------------------
@dataclass(frozen=True, eq=False)
class Grid:
    """Latency against transmission delay, counted in cells of 1, 10, 100 ms and so on.

    They are as wide as the widest of these that is no wider than the cells of the table: so cells of parts, and then
    those of the table, are made by taking some together, whatever the longest delay turns out to be.
    """

    most_us: tuple[int, int]
    cells: Ints
    """Two columns of places."""
    copies: Ints

    @classmethod
    def of(cls, copies: Copies, moments: Mapping[str, Moments]) -> Grid:
        """Count the copies that have both."""
        (known, tdelay), (delivered, ltcy) = copies.delays[TDELAY], copies.delays[LTCY]
        both = known & delivered
        most = moments[TDELAY].most, moments[LTCY].most
        places = np.stack([each[both] // _power_us(us) for each, us in zip((tdelay, ltcy), most, strict=True)], axis=1)
        return cls(most, *_counted_pairs(places, np.ones(len(places), np.int64)))

    def merge(self, other: Grid) -> Grid:
        """Return the grid of this part and another, in the wider cells."""
        most = max(self.most_us[0], other.most_us[0]), max(self.most_us[1], other.most_us[1])
        widths = [_power_us(each) for each in most]
        places = np.concatenate([self.places(widths), other.places(widths)])
        return Grid(most, *_counted_pairs(places, np.concatenate([self.copies, other.copies])))

    def places(self, widths_us: list[int]) -> Ints:
        """Return the places of the cells, in wider ones."""
        times = [wide // _power_us(most) for wide, most in zip(widths_us, self.most_us, strict=True)]
        found: Ints = self.cells // np.array(times)
        return found


def delay_grid(part: Delays) -> Columns:
    """Table DELAY_GRID: 20 to 60 cells either way, whose edges are round numbers of seconds."""
    widths = [_cell_us(each) for each in part.grid.most_us]
    cells, copies = _counted_pairs(part.grid.places(widths), part.grid.copies)
    columns: dict[str, Any] = {"copies": copies}
    for axis, name in enumerate((TDELAY, LTCY)):
        columns[f"{name}_s"] = cells[:, axis] * widths[axis] / MICROSECONDS
        columns[f"{name}_width_s"] = np.full(len(cells), widths[axis] / MICROSECONDS)
    return columns


def _counted_pairs(places: Ints, weights: Ints) -> tuple[Ints, Ints]:
    """Pairs that there are, in order, and the weight of each."""
    if not len(places):
        return places, weights
    least = places.min(axis=0)
    high = int(places[:, 1].max() - least[1]) + 1
    keys = (places[:, 0] - least[0]) * high + (places[:, 1] - least[1])
    found, weight = counted(keys) if (weights == 1).all() else summed(keys, weights)
    return np.stack(np.divmod(found, high), axis=1) + least, weight


def _power_us(most_us: int) -> int:
    """Return the greatest power of ten that is no wider than the cells for this longest delay."""
    power = _CELL_US_MIN
    while power * 10 * CELLS <= most_us:
        power *= 10
    return power


def _cell_us(most_us: int) -> int:
    """Return the least of 1, 2, 5, 10 and so on that gives at most the largest number of cells."""
    power = _power_us(most_us)
    return next(power * nice for nice in _NICE if power * nice * CELLS >= most_us or nice == _NICE[-1])


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
class Deliveries(Fields):
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
