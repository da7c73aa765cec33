"""Places of nodes at times, from rows: sorted and checked.

The result has one place for each node and time, sorted: ``node, t_us, x, y``. A node that is in two places at once, or
whose time goes back, is an error. Degrees become metres on the plane that touches the Earth at the median of all
places: a few places that are far off do not move it.

Nodes of ns-2 and KTH's walkers have orders to go somewhere. A new order ends the one before, wherever the node is;
between its ways a node stands still. Orders are carried out for all nodes at once: the first of each, then the second,
and so on. A walker that is destroyed and created again is another node, ``NAME.2``: no line may join its positions
before and after. A node of ns-2 is present throughout.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from carrypost.arrays import Flags, Floats, Ints
from carrypost.model.times import MICROSECONDS
from carrypost.traces.csvfiles import brief
from carrypost.traces.formats.events import CREATE, DESTROY, ORDER, PLACE_X, PLACE_Y, SETDEST
from carrypost.traces.formats.keys import Assembled, begins, column, rank_within, ranked
from carrypost.traces.formats.lines import flags
from carrypost.traces.formats.rules import FileFault, Options, first_fault
from carrypost.traces.tracks import SAME_PLACE_M

PLACES = pa.schema([("node", pa.string()), ("t_us", pa.int64()), ("x", pa.float64()), ("y", pa.float64())])
SPEED_MAX_M_PER_S = 150.0
"""Beyond, two devices may share an id."""
EARTH_M = 6_371_000.0
_WARNED = 3
_NEVER = np.iinfo(np.int64).max
_LASTS_S_MAX = 1e12
_SAME_TIME = " To keep one of the places: --same-time first, or last"
Arrivals = Callable[[Ints, Floats], Ints]
"""The times at which nodes that carry out these orders arrive, given the lengths of their ways."""


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


# ------------------------------------------------------------------------------------------ orders carried out


def _obeyed(starts: Samples, until_us: Ints, orders: Samples, arrivals: Arrivals) -> Samples:
    """Return the samples of nodes that follow their orders, sorted by node and time.

    `starts` has the first position of each node, and `until_us` the time when it is gone (_NEVER: when its last way
    ends). `orders` have the next positions; they are sorted by node and time.
    """
    rank = rank_within(orders.node)
    last = np.append(begins(orders.node)[1:], True)[: len(rank)]
    next_us = np.where(last, until_us[orders.node], np.append(orders.t_us[1:], 0)[: len(rank)])
    here_x, here_y = starts.x.copy(), starts.y.copy()
    begin_x, begin_y = np.empty(len(rank)), np.empty(len(rank))
    arrival = np.full(len(rank), _NEVER)
    by_rank = np.argsort(rank, kind="stable")
    bounds = np.searchsorted(rank[by_rank], np.arange(int(rank.max(initial=-1)) + 2)).tolist()
    for first, end in pairwise(bounds):
        now = by_rank[first:end]
        node = orders.node[now]
        begin_x[now], begin_y[now] = here_x[node], here_y[node]
        way_x, way_y = orders.x[now] - here_x[node], orders.y[now] - here_y[node]
        arrival[now] = arrivals(now, np.hypot(way_x, way_y))
        there = arrival[now] <= next_us[now]
        lasts = np.maximum(arrival[now] - orders.t_us[now], 1)
        share = np.where(arrival[now] == _NEVER, 0.0, (np.where(there, 0, next_us[now]) - orders.t_us[now]) / lasts)
        there &= arrival[now] != _NEVER
        here_x[node] = np.where(there, orders.x[now], here_x[node] + share * way_x)
        here_y[node] = np.where(there, orders.y[now], here_y[node] + share * way_y)
    arrived = (arrival <= next_us) & (arrival != _NEVER)
    parts = (
        starts,
        orders._replace(t_us=arrival).where(arrived),
        orders._replace(x=begin_x, y=begin_y),
        starts._replace(t_us=until_us, x=here_x, y=here_y).where(until_us != _NEVER),
    )
    made = Samples(*(np.concatenate(each) for each in zip(*parts, strict=True)))
    return made.where(np.lexsort((made.t_us, made.node)))


def _at_speed(since_us: Ints, speed: Floats, way_m: Floats) -> Ints:
    """Return the arrival times of nodes that leave at these times, at these speeds."""
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        lasts_s = np.where((way_m > 0) & (speed > 0), way_m / speed, np.inf)
    lasts_us = np.rint(np.minimum(lasts_s, _LASTS_S_MAX) * MICROSECONDS).astype(np.int64)
    return np.where(lasts_s < _LASTS_S_MAX, since_us + lasts_us, _NEVER)


# --------------------------------------------------------------------------------------------------------- ns-2
def ns2(rows: pa.Table, options: Options) -> Assembled:
    """Return the movement of nodes of ns-2."""
    names, node = ranked(rows["a"])
    kind, at, t_us = column(rows, "kind"), column(rows, "at"), column(rows, "t_us")
    x, y, speed = column(rows, "x"), column(rows, "y"), column(rows, "v")
    by_line = np.argsort(at, kind="stable")
    start_x, start_y = (np.full(len(names), np.nan) for _ in "xy")
    line = np.full(len(names), _NEVER)
    np.minimum.at(line, node, at)
    for axis, value, start in ((PLACE_X, x, start_x), (PLACE_Y, y, start_y)):
        placed = by_line[kind[by_line] == axis]
        start[node[placed]] = value[placed]
    text = "node {} has no initial position: X_ and Y_ must both be set"
    faults = first_fault(np.isnan(start_x) | np.isnan(start_y), line, lambda row: text.format(names[row]))
    order = np.lexsort((at, t_us, node))
    order = order[kind[order] == ORDER]
    starts = Samples(np.arange(len(names)), np.zeros(len(names), np.int64), start_x, start_y, line)
    orders, speed = Samples(node, t_us, x, y, at).where(order), speed[order]
    samples = _obeyed(
        starts, np.full(len(names), _NEVER), orders, lambda now, way_m: _at_speed(orders.t_us[now], speed[now], way_m)
    )
    return assembled(names, samples, options, faults)


def resting(rows: pa.Table, end_us: int) -> pa.Table:
    """Return the places, with each node at its last one until the end."""
    _, node = ranked(rows["node"])
    last = np.flatnonzero(np.append(begins(node)[1:], True)[: len(node)])
    last = last[column(rows, "t_us")[last] < end_us]
    order = np.insert(np.arange(len(node)), last + 1, last)
    more = np.insert(np.zeros(len(node), np.bool_), last + 1, True)
    made = rows.take(pa.array(order))
    t_us = np.where(more, end_us, column(made, "t_us"))
    return made.set_column(PLACES.get_field_index("t_us"), "t_us", pa.array(t_us))


# ------------------------------------------------------------------------------------------------------ walkers
def walkers(rows: pa.Table, options: Options) -> Assembled:
    """Return the movement of walkers."""
    names, node = ranked(rows["a"])
    order = np.lexsort((column(rows, "at"), node))
    if options.unsorted:
        order = np.lexsort((column(rows, "at"), column(rows, "t_us"), node))
    rows, node = rows.take(pa.array(order)), node[order]
    kind, at, t_us = column(rows, "kind"), column(rows, "at"), column(rows, "t_us")
    x, y, arrival = column(rows, "x"), column(rows, "y"), column(rows, "until_us")
    there = _there(node, kind)
    created = kind == CREATE
    faults = _walkers_wrong(names, node, kind, (at, t_us), there=there, returns=options.returns)
    # Presences are numbered through; those that nothing began have an error anyway.
    presence = np.cumsum(created) - 1
    valid = (presence >= 0) & (created | there)
    begun = np.flatnonzero(created)
    until = np.full(len(begun), _NEVER)
    ends = np.flatnonzero(valid & (kind == DESTROY))
    until[presence[ends]] = t_us[ends]
    events = Samples(presence, t_us, x, y, at)
    sent = np.flatnonzero(valid & (kind == SETDEST))
    called = _called(names, node[begun])
    faults += _duplicate_names(names, called, node[begun], at[begun])
    names, rank = ranked(pa.chunked_array([called]))
    samples = _obeyed(events.where(begun), until, events.where(sent), lambda now, _: arrival[sent[now]])
    samples = samples._replace(node=rank[samples.node])
    return assembled(names, samples.where(np.argsort(samples.node, kind="stable")), options, faults)


def _called(names: pa.Array, node: Ints) -> pa.Array:
    """Return the names of walkers in each of their presences."""
    number = rank_within(node)
    found = names.take(pa.array(node)).to_pylist()
    for index in np.flatnonzero(number):
        found[index] = f"{found[index]}.{number[index] + 1}"
    return pa.array(found, pa.string())


def _duplicate_names(names: pa.Array, called: pa.Array, node: Ints, at: Ints) -> list[FileFault]:
    """Return the faults of later presences whose names other nodes have."""
    known = flags(pc.is_in(called, names)) & (rank_within(node) > 0)
    text = "node {} returns under the name {}, which another node has"
    return first_fault(known, at, lambda row: text.format(names[int(node[row])], called[row]))


def _there(node: Ints, kind: Ints) -> Flags:
    """Return whether the node is there before each of its events."""
    changes = np.where(kind != SETDEST, np.arange(len(kind)), -1)
    before = np.append(-1, np.maximum.accumulate(changes)[:-1])[: len(kind)]
    known = (before >= 0) & (node[before] == node)
    return np.asarray(known & (kind[before] == CREATE))


def _walkers_wrong(
    names: pa.Array, node: Ints, kind: Ints, lines: tuple[Ints, Ints], *, there: Flags, returns: bool
) -> list[FileFault]:
    at, t_us = lines
    again = (kind == CREATE) & (there if returns else _again(node, kind))
    back = np.append(False, (node[1:] == node[:-1]) & (t_us[1:] < t_us[:-1]))[: len(node)]

    def text(row: int) -> str:
        after, before = brief(int(t_us[row])), brief(int(t_us[row - 1]))
        what = f"node {names[int(node[row])]} has a command at {after} s after one at {before} s"
        return f"{what}; to accept lines in any order: --unsorted"

    return [
        *first_fault(again, at, lambda row: f"node {names[int(node[row])]} is created a second time"),
        *first_fault(
            (kind != CREATE) & ~there, at, lambda row: f"there is no node {names[int(node[row])]} at this time"
        ),
        *first_fault(back, at, text),
    ]


def _again(node: Ints, kind: Ints) -> Flags:
    """Creations of nodes that were created before."""
    created = np.flatnonzero(kind == CREATE)
    found = np.zeros(len(kind), np.bool_)
    found[created[~begins(node[created])]] = True
    return found
