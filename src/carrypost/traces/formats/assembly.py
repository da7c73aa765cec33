"""Assembly of rows: all rows of some nodes become their places at times, all rows of some pairs become contacts.

Nodes and pairs are numbers in the order of their names, and rows are computed within each of them. Names are compared
by their bytes, as Arrow, Spark and Python (for whole characters) all do.

Places have one row for each node and time, sorted: ``node, t_us, x, y``. A node that is in two places at once, or whose
time goes back, is an error. Degrees become metres on the plane that touches the Earth at the median of all places: a
few places that are far off do not move it.

Nodes of ns-2 and KTH's walkers have orders to go somewhere. A new order ends the one before, wherever the node is;
between its ways a node stands still. Orders are carried out for all nodes at once: the first of each, then the second,
and so on. A walker that is destroyed and created again is another node, ``NAME.2``: no line may join its positions
before and after. A node of ns-2 is present throughout.

Contacts come from events up and down, sightings, plans for each direction, and complete contacts. Every function for
them takes all rows of some pairs and returns ``a, b, start_us, end_us``, sorted by start, a and b. Contacts are half
open, those that last no time are dropped and counted, and those of one pair never overlap.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from carrypost.arrays import Flags, Floats, Ints
from carrypost.model.times import MICROSECONDS
from carrypost.traces.csvfiles import brief
from carrypost.traces.formats.lines import flags
from carrypost.traces.formats.rules import FileFault, Options, first_fault
from carrypost.traces.formats.syntax import BACK, CREATE, DESTROY, FORTH, ORDER, PLACE_X, PLACE_Y, SETDEST, UP
from carrypost.traces.tracks import SAME_PLACE_M


class Assembled(NamedTuple):
    """The result of all rows of some nodes or pairs."""

    rows: pa.Table
    faults: list[FileFault]
    counts: dict[str, int]
    """Counts that can be added up over parts."""
    warnings: list[str]
    """In the order of names."""


def column(rows: pa.Table, called: str) -> NDArray[Any]:
    """Return a column as an array of numpy."""
    found: NDArray[Any] = rows[called].combine_chunks().to_numpy(zero_copy_only=False)
    return found


def ranked(names: pa.ChunkedArray) -> tuple[pa.Array, Ints]:
    """Different names in order, and of each row the number of its name."""
    encoded = names.combine_chunks().dictionary_encode()
    order = pc.sort_indices(encoded.dictionary)
    rank = np.empty(len(order), dtype=np.int64)
    rank[order.to_numpy()] = np.arange(len(order))
    return encoded.dictionary.take(order), rank[encoded.indices.to_numpy()] if len(order) else np.empty(0, np.int64)


class Pairs(NamedTuple):
    """Pairs of names, and of each row the number of its pair."""

    names_a: pa.Array
    names_b: pa.Array
    key: Ints

    @classmethod
    def of(cls, rows: pa.Table) -> Pairs:
        """Return the pairs of rows."""
        names_a, a = ranked(rows["a"])
        names_b, b = ranked(rows["b"])
        return cls(names_a, names_b, a * max(1, len(names_b)) + b)

    def names(self, key: Ints) -> tuple[pa.Array, pa.Array]:
        """Lower and higher names of pairs."""
        a, b = np.divmod(key, max(1, len(self.names_b)))
        return self.names_a.take(pa.array(a)), self.names_b.take(pa.array(b))

    def label(self, key: int) -> str:
        """Return the names of a pair, for people."""
        (a,), (b,) = self.names(np.array([key]))
        return f"{a} and {b}"


def begins(key: Ints) -> Flags:
    """Return flags of places where another key begins, in sorted keys."""
    return np.append(True, key[1:] != key[:-1])[: len(key)]


def rank_within(key: Ints) -> Ints:
    """Return the number of earlier rows of the same key, in sorted keys."""
    start = np.flatnonzero(begins(key))
    lengths = np.diff(np.append(start, len(key)))
    return np.arange(len(key)) - np.repeat(start, lengths)


def merge_intervals(key: Ints, start: Ints, end: Ints, *, touching: bool = True) -> tuple[Ints, Ints, Ints]:
    """Return the intervals of each key, sorted by key and start; those that overlap, or are `touching`, are joined."""
    order = np.lexsort((end, start, key))
    key, start, end = key[order], start[order], end[order]
    if not len(key):
        return key, start, end
    values, rank = np.unique(end, return_inverse=True)
    # Ranks rather than times: a running maximum by key that no sum can make overflow.
    number = np.cumsum(begins(key)) - 1
    highest = np.maximum.accumulate(number * len(values) + rank)
    until = values[highest - number * len(values)]
    fresh = begins(key)
    fresh[1:] |= (start[1:] > until[:-1]) if touching else (start[1:] >= until[:-1])
    first = np.flatnonzero(fresh)
    last = np.append(first[1:], len(key)) - 1
    return key[first], start[first], until[last]


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


# ---------------------------------------------------------------------------------------------------- contacts

MEETINGS = pa.schema([("a", pa.string()), ("b", pa.string()), ("start_us", pa.int64()), ("end_us", pa.int64())])


def _assembled(
    pairs: Pairs, intervals: tuple[Ints, Ints, Ints], faults: list[FileFault], counts: dict[str, int]
) -> Assembled:
    key, start_us, end_us = intervals
    lasting = end_us > start_us
    counts = {**counts, "empty_contacts": int((~lasting).sum())}
    key, start_us, end_us = key[lasting], start_us[lasting], end_us[lasting]
    counts |= {"pairs": len(np.unique(key)), "lasting_us": int((end_us - start_us).sum())}
    order = np.lexsort((key, start_us))
    key = key[order]
    made = pa.table([*pairs.names(key), start_us[order], end_us[order]], schema=MEETINGS)
    return Assembled(made, faults, counts, [])


def merged(rows: pa.Table, options: Options) -> Assembled:  # noqa: ARG001 - as all formats
    """Return contacts from sightings: those that overlap or touch are joined."""
    return _merged(rows, merge_intervals)


def sampled(rows: pa.Table, options: Options) -> Assembled:
    """Return contacts from samples: successive rows are joined, and overlapping ones only if that is requested."""
    return _merged(rows, merge_intervals if options.overlaps else _consecutive)


def _merged(rows: pa.Table, join: Callable[[Ints, Ints, Ints], tuple[Ints, Ints, Ints]]) -> Assembled:
    """Return merged contacts; contacts of a node with itself, which some files have, are counted and left out."""
    pairs = Pairs.of(rows)
    key, start_us, end_us = join(pairs.key, column(rows, "t_us"), column(rows, "until_us"))
    itself = flags(pc.equal(*pairs.names(key)))
    others = (key[~itself], start_us[~itself], end_us[~itself])
    union = merge_intervals(pairs.key, column(rows, "t_us"), column(rows, "until_us"))[0]
    counts = {
        "self_contacts": int(itself.sum()),
        "merged_contacts": len(key),
        "merged_pairs": len(np.unique(key)),
        "overlapping_contacts": len(key) - len(union),
    }
    return _assembled(pairs, others, [], counts)


def _consecutive(key: Ints, start_us: Ints, end_us: Ints) -> tuple[Ints, Ints, Ints]:
    """Return intervals as `merge_intervals`, but merge rows only if one begins exactly at the end of another."""
    order = np.lexsort((end_us, key))
    key, start_us, end_us = key[order], start_us[order], end_us[order]
    again = np.append(False, (key[1:] == key[:-1]) & (end_us[1:] == end_us[:-1]))[: len(key)]
    key, start_us, end_us = key[~again], start_us[~again], end_us[~again]
    fresh = begins(key)
    inner = ~fresh
    previous = np.append(0, end_us[:-1])[: len(key)]
    fresh |= start_us != previous
    # One that begins within the one before is cut: those of one pair never overlap.
    start_us = np.where(inner, np.maximum(start_us, previous), start_us)
    first = np.flatnonzero(fresh)
    last = np.append(first[1:], len(key))[: len(first)] - 1
    return key[first], start_us[first], end_us[last]


def exact(rows: pa.Table, options: Options) -> Assembled:
    """Return the rows as contacts; two of a pair that overlap are an error, unless they are to be joined."""
    pairs = Pairs.of(rows)
    key, at = pairs.key, column(rows, "at")
    start_us, end_us = column(rows, "t_us"), column(rows, "until_us")
    order = np.flatnonzero(end_us > start_us)
    empty = len(key) - len(order)
    order = order[np.lexsort((end_us[order], start_us[order], key[order]))]
    key, at, start_us, end_us = key[order], at[order], start_us[order], end_us[order]
    if options.overlaps:
        found = merge_intervals(key, start_us, end_us, touching=False)
        made = _assembled(pairs, found, [], {"joined_rows": len(key) - len(found[0])})
    else:
        made = _assembled(pairs, (key, start_us, end_us), _overlap(pairs, (key, start_us, end_us), at), {})
    made.counts["empty_contacts"] = empty
    return made


def _overlap(pairs: Pairs, intervals: tuple[Ints, Ints, Ints], at: Ints) -> list[FileFault]:
    """Return the first line whose contact overlaps another of its pair; they are sorted by pair and start."""
    key, start_us, end_us = intervals
    over = np.flatnonzero((key[1:] == key[:-1]) & (start_us[1:] < end_us[:-1]))
    later = np.where(at[over + 1] > at[over], over + 1, over)
    for index in np.argsort(at[later])[:1]:
        one, two = later[index], 2 * over[index] + 1 - later[index]
        times = f"[{brief(int(start_us[two]))}, {brief(int(end_us[two]))}) s of {{other}}"
        message = f"this contact of {pairs.label(int(key[one]))} overlaps {times}; to merge them: --overlaps"
        return [FileFault(int(at[one]), message, int(at[two]))]
    return []


def events(rows: pa.Table, options: Options) -> Assembled:
    """Return contacts from links that come up and go down; a link that does not go down lasts to the end.

    As in The ONE, the `up` of a connected pair and the `down` of an unconnected one are ignored. With `overlaps` they
    are counted: the pair is connected while it has had more of the former than of the latter.
    """
    pairs = Pairs.of(rows)
    at, t_us = column(rows, "at"), column(rows, "t_us")
    order = np.lexsort((at, t_us, pairs.key)) if options.unsorted else np.lexsort((at, pairs.key))
    key, at, t_us, up = pairs.key[order], at[order], t_us[order], column(rows, "kind")[order] == UP
    ups = _ups(begins(key), up) if options.overlaps else up.astype(np.int64)
    before = np.append(0, ups[:-1])[: len(ups)] * ~begins(key)
    changes = np.flatnonzero((ups > 0) != (before > 0))
    useless = {"ignored_downs": ~up & (before == 0), "ignored_ups": up & (before > 0) & (not options.overlaps)}
    counts = {name: int(each.sum()) for name, each in useless.items()}
    key, t_us, up = key[changes], t_us[changes], up[changes]
    started = np.flatnonzero(up)
    after = np.append(t_us[1:], options.end_us)[started]
    last = np.append(begins(key)[1:], True)[: len(key)][started]
    end_us = np.where(last, options.end_us, after)
    counts["open_contacts"] = int(last.sum())
    return _assembled(pairs, (key[started], t_us[started], end_us), [], counts)


def _ups(first: Flags, up: Flags) -> Ints:
    """Return the ups of a pair that have no down yet, after each event; a down without an up changes nothing.

    `first`: flags of the first events of pairs.
    """
    total = np.cumsum(np.where(up, 1, -1))
    number = np.cumsum(first) - 1
    start = np.flatnonzero(first)
    total -= (total[start] - np.where(up[start], 1, -1))[number] if len(up) else 0
    # The least so far of each pair: every pair begins lower than all before it can end.
    lower = number * (2 * len(up) + 1)
    least = np.minimum.accumulate(np.minimum(total, 0) - lower) + lower
    found: Ints = total - least
    return found


def plan(rows: pa.Table, options: Options) -> Assembled:
    """Return contacts while both directions are up: two nodes are in contact only then."""
    if options.both_ways:
        return merged(rows, options)
    pairs = Pairs.of(rows)
    kind, start, end = column(rows, "kind"), column(rows, "t_us"), column(rows, "until_us")
    ways = [merge_intervals(pairs.key[those], start[those], end[those]) for those in (kind == FORTH, kind == BACK)]
    key, start, end = (np.concatenate(each) for each in zip(*ways, strict=True))
    # Every way is there once at most at a time: both are there where two are.
    t_us = np.concatenate((start, end))
    both = np.concatenate((key, key))
    order = np.lexsort((t_us, both))
    t_us, both = t_us[order], both[order]
    number = np.cumsum(np.repeat([1, -1], len(key))[order])
    kept = np.append((both[1:] != both[:-1]) | (t_us[1:] != t_us[:-1]), True)[: len(both)]
    t_us, both, number = t_us[kept], both[kept], number[kept]
    since = np.flatnonzero(number == len(ways))
    found = merge_intervals(both[since], t_us[since], t_us[since + 1])
    total_us = int((end - start).sum())
    shared_us = int((found[2] - found[1]).sum())
    counts = {
        "two_way_pairs": len(np.intersect1d(ways[0][0], ways[1][0])),
        "one_way_contacts": len(key) - _met((key, start, end), found),
        "one_way_s": (total_us - 2 * shared_us) // MICROSECONDS,
    }
    return _assembled(pairs, found, [], counts)


def _met(ways: tuple[Ints, Ints, Ints], found: tuple[Ints, Ints, Ints]) -> int:
    """Return the number of these intervals in which one of the others begins, of the same key."""
    keys, key = np.unique(np.concatenate((ways[0], found[0])), return_inverse=True)
    times, t_us = np.unique(np.concatenate((ways[1], ways[2], found[1])), return_inverse=True)
    assert len(keys) * len(times) < np.iinfo(np.int64).max
    count = len(ways[0])
    own = key[:count] * len(times)
    others = np.sort(key[count:] * len(times) + t_us[2 * count :])
    before = (np.searchsorted(others, own + each) for each in (t_us[:count], t_us[count : 2 * count]))
    since, until = before
    return int((until > since).sum())
