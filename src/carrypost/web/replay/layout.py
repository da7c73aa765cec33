"""A layout of nodes whose places are not known: nodes that are together for long lie near each other.

The graph has the five strongest ties of each node and a maximum spanning forest of all ties, which keeps together what
is connected. The strength of a tie is the time that two nodes are together, divided by the root of the product of their
times with anybody: a hub does not attract everybody. PivotMDS [Brandes and Pich 2006] places nodes by their distances
in the graph from a few pivots, and rounds of stress majorization, on the graph's edges and the pivots only, improve it.
All of it is deterministic: the same record has the same picture.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from carrypost.arrays import Codes, Flags, Floats, Ints
from carrypost.web.replay.scan import Scan

_TIES = 5
_LARGE = 5_000
"""Nodes above which a layout is coarser, so that it takes a second or two."""
_PIVOTS = 50, 10
_ROUNDS = 80, 20
_GAP = 1.35
"""Distance of the middles of components that lie side by side, in their size."""


class Ties(NamedTuple):
    """Pairs of nodes that are together, each once."""

    a: Ints
    b: Ints
    strength: Floats


def tracks(scan: Scan) -> tuple[Codes, Floats, Floats, Floats]:
    """Return nodes, times and places."""
    place = places(ties(scan), len(scan.names))
    node = np.repeat(np.arange(len(place), dtype=np.int32), 2)
    t = np.tile([scan.start, scan.end], len(place))
    return node, t, np.repeat(place[:, 0], 2), np.repeat(place[:, 1], 2)


def ties(scan: Scan) -> Ties:
    """Return the ties of a run's nodes: by contacts or, in records of real nodes, by the neighbours that they saw."""
    found = scan.spans["contact"] if len(scan.spans["contact"]) else scan.spans["seen"]
    count = max(1, len(scan.names))
    seconds = np.minimum(found.end, scan.end) - found.start
    # Who meets for an instant only has met nevertheless.
    seconds = np.maximum(seconds, 1e-6)
    low, high = np.minimum(found.a, found.b).astype(np.int64), np.maximum(found.a, found.b)
    there = (low >= 0) & (low != high)
    pair, which = np.unique(low[there] * count + high[there], return_inverse=True)
    together = np.bincount(which, seconds[there], len(pair))
    a, b = pair // count, pair % count
    total = np.bincount(a, together, count) + np.bincount(b, together, count)
    return Ties(a, b, together / np.sqrt(total[a] * total[b]))


def places(found: Ties, count: int) -> Floats:
    """Return a place for each node; the unit is about the room that a node has."""
    kept = strongest(found, count) | spanning(found, count)
    edges = Ties(found.a[kept], found.b[kept], found.strength[kept])
    component = components(edges, count)
    place = np.zeros((count, 2))
    sizes = np.bincount(component, minlength=1)
    order = np.argsort(component, kind="stable")
    first = np.concatenate([[0], np.cumsum(sizes)])
    of_edge = component[edges.a]
    by_component = np.argsort(of_edge, kind="stable")
    first_edge = np.searchsorted(of_edge[by_component], np.arange(len(sizes) + 1))
    local = np.zeros(count, np.int64)
    coarse = count > _LARGE
    for each in np.flatnonzero(sizes > 1).tolist():
        nodes = order[first[each] : first[each + 1]]
        local[nodes] = np.arange(len(nodes))
        rows = by_component[first_edge[each] : first_edge[each + 1]]
        place[nodes] = _fitted(_connected(local[edges.a[rows]], local[edges.b[rows]], edges.strength[rows], coarse))
    return place + _side_by_side(sizes)[component]


def strongest(found: Ties, count: int) -> Flags:
    """Return flags of ties that are among the strongest of one of their nodes."""
    kept = np.zeros(len(found.a), np.bool_)
    node = np.concatenate([found.a, found.b])
    order = np.lexsort((np.tile(-found.strength, 2), node))
    rank = np.arange(len(node)) - np.searchsorted(node[order], np.arange(count + 1))[node[order]]
    kept[order[rank < _TIES] % max(1, len(found.a))] = True
    return kept


def spanning(found: Ties, count: int) -> Flags:
    """Return flags of the ties of a maximum spanning forest: each component takes its strongest tie to another one."""
    kept, component = np.zeros(len(found.a), np.bool_), np.arange(count)
    rank = np.empty(len(found.a), np.int64)
    rank[np.argsort(found.strength, kind="stable")] = np.arange(len(found.a))  # No two are equal: so no circles.
    while True:
        a, b = component[found.a], component[found.b]
        between = np.flatnonzero(a != b)
        if not len(between):
            return kept
        best = np.full(count, -1)
        np.maximum.at(best, a[between], rank[between])
        np.maximum.at(best, b[between], rank[between])
        kept[between[(best[a[between]] == rank[between]) | (best[b[between]] == rank[between])]] = True
        component = components(Ties(found.a[kept], found.b[kept], found.strength[kept]), count)


def components(found: Ties, count: int) -> Ints:
    """Return the number of each node's component, by its least node."""
    least = np.arange(count)
    while True:
        before = least.copy()
        low = np.minimum(least[found.a], least[found.b])
        np.minimum.at(least, least[found.a], low)
        np.minimum.at(least, least[found.b], low)
        while (shorter := least[least] != least).any():
            least[shorter] = least[least[shorter]]
        if (least == before).all():
            return np.unique(least, return_inverse=True)[1].astype(np.int64)


# --- one component ---------------------------------------------------------------------------------------------------


class _Graph:
    """Edges in both directions, ordered by the node that they lead to."""

    def __init__(self, a: Ints, b: Ints, strength: Floats) -> None:
        self.count = int(max(a.max(), b.max())) + 1
        start, to = np.concatenate([a, b]), np.concatenate([b, a])
        order = np.argsort(to, kind="stable")
        self.start, self.to, self.length = start[order], to[order], np.tile(strength**-0.5, 2)[order]
        self.first = np.searchsorted(self.to, np.arange(self.count))

    def distances(self, node: int) -> Floats:
        """Return the distance of every node from one."""
        found = np.full(self.count, np.inf)
        found[node] = 0.0
        while True:
            nearer: Floats = np.minimum(np.minimum.reduceat(found[self.start] + self.length, self.first), found)
            if (nearer == found).all():
                return nearer
            found = nearer


def _connected(a: Ints, b: Ints, strength: Floats, coarse: bool) -> Floats:
    graph = _Graph(a, b, strength)
    pivots, far = [0], graph.distances(0)
    table = [far]
    while len(pivots) < min(_PIVOTS[coarse], graph.count):
        pivots.append(int(far.argmax()))
        table.append(graph.distances(pivots[-1]))
        far = np.minimum(far, table[-1])
    distances = np.stack(table, 1)
    return _improved(graph, _pivot_mds(distances), np.array(pivots), distances, _ROUNDS[coarse])


def _pivot_mds(distances: Floats) -> Floats:
    squares = distances**2
    centred = -0.5 * (squares - squares.mean(0) - squares.mean(1, keepdims=True) + squares.mean())
    vectors = np.linalg.eigh(centred.T @ centred)[1][:, -2:]
    place: Floats = np.zeros((len(distances), 2))
    place[:, : vectors.shape[1]] = centred @ vectors[:, ::-1]
    # A mirrored layout is as good: the one is taken that does not depend on the library.
    place *= np.where(place[np.abs(place).argmax(0), [0, 1]] < 0, -1.0, 1.0)
    scale = np.linalg.norm(place - place[0], axis=1).sum()
    place *= distances[:, 0].sum() / scale if scale > 0 else 1.0
    # Nodes at one spot would never be parted.
    turn = np.arange(len(place)) * 2.399963
    place += 1e-3 * distances.max() * np.stack([np.cos(turn), np.sin(turn)], 1)
    return place


def _improved(graph: _Graph, place: Floats, pivots: Ints, distances: Floats, rounds: int) -> Floats:
    """Move each node towards the mean of where its neighbours and the pivots want it, nearer ones with more weight."""
    wish = np.where(distances > 0, distances, 1.0)
    weight = np.where(distances > 0, wish**-2, 0.0)
    near = graph.length**-2
    total = weight.sum(1) + np.add.reduceat(near, graph.first)
    for _ in range(rounds):
        apart = place[:, None] - place[pivots][None]
        length = np.maximum(np.linalg.norm(apart, axis=2), 1e-12)
        moved = (weight[:, :, None] * (place[pivots][None] + apart * (wish / length)[:, :, None])).sum(1)
        apart = place[graph.to] - place[graph.start]
        length = np.maximum(np.linalg.norm(apart, axis=1), 1e-12)
        wanted = near[:, None] * (place[graph.start] + apart * (graph.length / length)[:, None])
        moved += np.add.reduceat(wanted, graph.first)
        place = 0.5 * (place + moved / total[:, None])  # Half of the way: all move at once, and would overshoot.
    return place


def _fitted(place: Floats) -> Floats:
    """Return places within a square around 0 whose area is the number of nodes."""
    place = place - (place.min(0) + place.max(0)) / 2
    size = np.ptp(place, axis=0).max()
    fitted: Floats = place * (np.sqrt(len(place)) / size if size > 0 else 1.0)
    return fitted


def _side_by_side(sizes: Ints) -> Floats:
    """Return the middles of squares that have room for this many nodes each, in rows, the largest first."""
    side = np.sqrt(sizes) * _GAP
    width = max(float(side.max()), float(np.sqrt((side**2).sum()))) * 1.2
    middle, x, top, height = np.zeros((len(sizes), 2)), 0.0, 0.0, 0.0
    for each in np.argsort(-sizes, kind="stable").tolist():
        if x and x + side[each] > width:
            x, top, height = 0.0, top + height, 0.0
        middle[each] = x + side[each] / 2, -top - side[each] / 2
        x, height = x + float(side[each]), max(height, float(side[each]))
    return middle
