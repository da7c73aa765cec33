"""The metrics of CAUSAL §VI-A d: what became of messages, and how long it took.

They are those of `carrypost.emu.records.summary`: transmission delay (tdelay), co-delivery latency (ltcy) and
co-delivery delay. Messages without an order are counted too: they are delivered as they come.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from carrypost.arrays import Ints
from carrypost.emu.records.copies import Copies
from carrypost.lab.metrics.distribution import RANKS, Columns, Counts, Moments, cdf, counted, milliseconds, summed
from carrypost.lab.metrics.families import DELAY_SPREAD, DELAYS, LTCY, PERCENTILES, TDELAY
from carrypost.lab.metrics.parts import Slice, Tally, listed, ratio
from carrypost.log.record import Kind
from carrypost.model.times import MICROSECONDS

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
class Delays:
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

    def merge(self, other: Delays) -> Delays:
        """Return the delays of this part and another."""
        return Delays(
            {name: self.moments[name].merge(other.moments[name]) for name in DELAYS},
            {name: self.counts[name].merge(other.counts[name]) for name in DELAYS},
            self.grid.merge(other.grid),
        )


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
