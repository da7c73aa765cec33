"""Places of nodes at times, from rows: sorted and checked.

The result has one place for each node and time, sorted: ``node, t_us, x, y``. A node that is in two places at once, or
whose time goes back, is an error. Degrees become metres on the plane that touches the Earth at the median of all
places: a few places that are far off do not move it.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pyarrow as pa

from carrypost.emu.arrays import Flags, Floats, Ints
from carrypost.emu.scenario.csvfiles import brief
from carrypost.emu.traces.formats.keys import Assembled, column, ranked
from carrypost.emu.traces.formats.rules import FileFault, Options, first_fault
from carrypost.emu.traces.tracks import SAME_PLACE_M
from carrypost.model.times import MICROSECONDS

PLACES = pa.schema([("node", pa.string()), ("t_us", pa.int64()), ("x", pa.float64()), ("y", pa.float64())])
SPEED_MAX_M_PER_S = 150.0
"""Beyond, two devices may share an id."""
EARTH_M = 6_371_000.0
_WARNED = 3
_SAME_TIME = " To keep one of the places: --same-time first, or last"


class Samples(NamedTuple):
    """Samples of nodes, and the lines that they are from."""

    node: Ints
    t_us: Ints
    x: Floats
    y: Floats
    at: Ints

    def where(self, kept: Flags | Ints) -> Samples:
        """Return only these samples, or all of them in another order."""
        return Samples(self.node[kept], self.t_us[kept], self.x[kept], self.y[kept], self.at[kept])


def places(rows: pa.Table, options: Options) -> Assembled:
    """Return rows that are positions already."""
    names, node = ranked(rows["a"])
    at, t_us = column(rows, "at"), column(rows, "t_us")
    x, y = column(rows, "x"), column(rows, "y")
    if options.origin is not None:
        metres = np.radians(1.0) * EARTH_M
        x = (x - options.middle) * metres * np.cos(np.radians(options.origin[0]))
        y = (y - options.origin[0]) * metres
    order = np.lexsort((at, node))
    if options.unsorted:
        order = np.lexsort((at, t_us, node))
    samples = Samples(node, t_us, x, y, at).where(order)
    back = np.append(False, (samples.node[1:] == samples.node[:-1]) & (samples.t_us[1:] < samples.t_us[:-1]))

    def text(row: int) -> str:
        before, after = (brief(int(samples.t_us[each])) for each in (row - 1, row))
        what = f"the time of node {names[int(samples.node[row])]} goes back, from {before} s to {after} s"
        return f"{what}; to accept rows in any order: --unsorted"

    faults = first_fault(back[: len(node)], samples.at, text)
    return assembled(names, samples, options, faults, hint="" if options.metres else _SAME_TIME)


def assembled(
    names: pa.Array, samples: Samples, options: Options, faults: list[FileFault], *, hint: str = ""
) -> Assembled:
    """Keep one place for each node and time; warn of nodes that move too fast."""
    again = np.append(False, (samples.node[1:] == samples.node[:-1]) & (samples.t_us[1:] == samples.t_us[:-1]))
    again = again[: len(samples.node)]
    if options.same_time == "error":
        faults += _two_places(names, samples, again, hint)
    # The first of several that are one place; the last where that is asked for.
    kept = ~again if options.same_time != "last" else np.append(~again[1:], True)[: len(again)]
    samples = samples.where(kept)
    fast = _fast(samples)
    warnings = []
    for index in fast[:_WARNED].tolist():
        t = brief(int(samples.t_us[index]))
        metres = float(np.hypot(samples.x[index] - samples.x[index - 1], samples.y[index] - samples.y[index - 1]))
        within = brief(int(samples.t_us[index] - samples.t_us[index - 1]))
        warnings.append(
            f"node {names[int(samples.node[index])]} moves {metres:,.0f} m within {within} s, until {t} s: "
            "do two devices share this id?"
        )
    made = pa.table([names.take(pa.array(samples.node)), samples.t_us, samples.x, samples.y], schema=PLACES)
    return Assembled(made, faults, {"repeated_rows": int((~kept).sum()), "fast_moves": len(fast)}, warnings)


def _two_places(names: pa.Array, samples: Samples, again: Flags, hint: str) -> list[FileFault]:
    away_m = np.append(0.0, np.hypot(np.diff(samples.x), np.diff(samples.y)))[: len(again)]

    def text(row: int) -> str:
        here, there = (f"({float(samples.x[each]):g}, {float(samples.y[each]):g})" for each in (row, row - 1))
        what = f"node {names[int(samples.node[row])]} is at {here}, but {{other}} says {there} for the same time"
        return f"{what}; are there two nodes with one id?{hint}"

    return first_fault(again & (away_m > SAME_PLACE_M), samples.at, text, other=-1)


def _fast(samples: Samples) -> Ints:
    same = samples.node[1:] == samples.node[:-1]
    metres = np.hypot(np.diff(samples.x), np.diff(samples.y))
    elapsed_s = np.diff(samples.t_us) / MICROSECONDS
    return np.flatnonzero(same & (metres > SPEED_MAX_M_PER_S * np.abs(elapsed_s))) + 1
