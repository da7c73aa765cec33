"""Places of nodes: from a file, from the movement that the run's scenario and seed give, or a layout of who meets whom.

Movement is checked against the record: where contacts begin, both nodes must be in range. So a record whose scenario or
seed was changed, or whose files are not the same any more, is not shown at places where its nodes never were.

In a layout, nodes that are together for long lie near each other. The graph has the five strongest ties of each node
and a maximum spanning forest of all ties, which keeps together what is connected. The strength of a tie is the time
that two nodes are together, divided by the root of the product of their times with anybody: a hub does not attract
everybody. PivotMDS [Brandes and Pich 2006] places nodes by their distances in the graph from a few pivots, and rounds
of stress majorization, on the graph's edges and the pivots only, improve it. All of it is deterministic: the same
record has the same picture.
"""

from __future__ import annotations

import math
import tempfile
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np

from carrypost.arrays import Codes, Flags, Floats, Ints
from carrypost.emu.arguments import check_seed, seed_of
from carrypost.emu.rows import MISSING
from carrypost.emu.scenario import Scenario
from carrypost.errors import CarrypostError, LocalError
from carrypost.mobility.traces import Trace
from carrypost.model.times import MICROSECONDS
from carrypost.traces.tracks import Tracks
from carrypost.web.run_files import Scan

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


def laid_out(scan: Scan) -> tuple[Codes, Floats, Floats, Floats]:
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


# --- places ----------------------------------------------------------------------------------------------------------

CHECKED = 200
"""Number of contacts at whose start the distance is checked."""
SLACK_M = 0.01
_CHUNK_ROWS = 60_000
_CHUNKS_MAX = 2_000


@dataclass(frozen=True, eq=False)
class Places:
    """The movement of a run's nodes: straight lines between samples, which are ordered by node and time.

    A sample whose place is not a number lies within a gap: there is no line on either side of it.
    """

    source: Literal["file", "mobility", "layout"]
    why: str
    """Reason for a layout, as a sentence."""
    node: Codes
    t: Floats
    x: Floats
    y: Floats
    range_m: float | None = None

    @property
    def box(self) -> list[float]:
        """The least and the greatest x and y: left, bottom, right, top."""
        there = np.isfinite(self.x)
        if not there.any():
            return [0.0, 0.0, 1.0, 1.0]
        x, y = self.x[there], self.y[there]
        return [float(x.min()), float(y.min()), float(x.max()), float(y.max())]

    def within(self, start: float, end: float) -> Ints:
        """Return the samples that are needed for all places from start to end."""
        t, one = self.t, self.node[1:] == self.node[:-1]
        kept: Flags = (t >= start) & (t <= end)
        kept[:-1] |= one & (t[:-1] < start) & (t[1:] > start)
        kept[1:] |= one & (t[1:] > end) & (t[:-1] < end)
        return np.flatnonzero(kept)

    def at(self, node: int, t: float) -> tuple[float, float] | None:
        """Return the place of a node at an instant; None: it is nowhere."""
        low, high = np.searchsorted(self.node, [node, node + 1])
        place = int(low + np.searchsorted(self.t[low:high], t, side="right")) - 1
        if place < low or (place == high - 1 and t > self.t[place]):
            return None
        x, y = float(self.x[place]), float(self.y[place])
        if t > self.t[place]:
            part = (t - self.t[place]) / (self.t[place + 1] - self.t[place])
            x, y = x + part * (float(self.x[place + 1]) - x), y + part * (float(self.y[place + 1]) - y)
        return None if math.isnan(x + y) else (x, y)


def chunk_s(scan: Scan, places: Places) -> float:
    """Return the length of the parts in which pages load tracks and contacts."""
    much = len(places.t) + len(scan.spans["contact"]) + len(scan.spans["seen"])
    parts = min(_CHUNKS_MAX, max(1, -(-much // _CHUNK_ROWS)))
    return max((scan.end - scan.start) / parts, 1e-3)


def find(scan: Scan, positions: Path | None, scenario: Path | None) -> Places:
    """Return the places of a run's nodes."""
    if positions is not None:
        duration_us = round((scan.end - scan.start) * MICROSECONDS)
        tracks = Trace(file=str(positions), start_s=scan.start).move(0, duration_us).tracks
        return _placed(scan, "file", tracks, start=scan.start)
    try:
        return _moved(scan, scenario)
    except CarrypostError as error:
        why = str(error)
    node, t, x, y = laid_out(scan)
    return Places("layout", why, node, t, x, y)


def _moved(scan: Scan, given: Path | None) -> Places:
    """Return the places by the scenario's mobility; raises `CarrypostError` if that is not possible."""
    reason = "there is no such file"
    for scenario in _scenarios(scan.attributes, scan.source.path, given):
        if scenario.mobility is None:
            raise LocalError("the scenario of this run has no [mobility]")
        try:
            movement = scenario.mobility.move(_seed(scan.attributes.get("seed", "1")), scenario.duration_us)
        except CarrypostError as error:
            reason = str(error)
            continue
        gap_us = getattr(scenario.mobility, "max_gap_us", None)
        found = _placed(scan, "mobility", movement.tracks, gap_us=gap_us, range_m=scenario.radio.range_m)
        if (wrong := _out_of_range(scan, found)) is None:
            return found
        reason = wrong
    raise LocalError(reason)


def _scenarios(attributes: Mapping[str, str], path: Path, given: Path | None) -> Iterator[Scenario]:
    """Yield the run's scenario with each folder that may have its files."""
    text = attributes.get("scenario")
    if text is None:
        if given is None:
            raise LocalError("the record does not say where nodes were")
        yield Scenario.load(given)
        return
    try:
        file = tomllib.loads(text).get("mobility", {}).get("file", "")
    except (tomllib.TOMLDecodeError, AttributeError):
        raise LocalError("the scenario in the record cannot be read") from None
    name = Path(file).name if isinstance(file, str) else ""
    if (content := attributes.get(f"text:{name}")) is not None and name:
        with tempfile.TemporaryDirectory(prefix="carrypost-web-") as folder:
            Path(folder, "movement").write_text(content, encoding="utf-8")
            yield Scenario.parse(text, folder, overrides={"mobility.file": "movement"})
    for beside in dict.fromkeys([path.parent, *([] if given is None else [given.parent])]):
        yield Scenario.parse(text, beside)


def _seed(text: str) -> int | str:
    check_seed(text)
    return seed_of(text)


def _placed(
    scan: Scan, source: Literal["file", "mobility"], tracks: Tracks, *, start: float = 0.0, gap_us: int | None = None,
    range_m: float | None = None,
) -> Places:  # fmt: skip
    """Return tracks as places of the nodes in the record; a node that lost its store moves as before."""
    places = {name: number for number, name in enumerate(tracks.nodes)}
    first = np.searchsorted(tracks.node, np.arange(len(tracks.nodes) + 1))
    of = [places.get(name, places.get(name.rpartition(".")[0], MISSING)) for name in scan.names.texts]
    rows = [np.arange(first[each], first[each + 1]) if each >= 0 else np.arange(0) for each in of]
    node = np.repeat(np.arange(len(of)), [len(each) for each in rows])
    row = np.concatenate([np.arange(0), *rows])
    t_us, x, y = tracks.t_us[row], tracks.x[row], tracks.y[row]
    if gap_us is not None:
        gaps = np.flatnonzero((node[1:] == node[:-1]) & (np.diff(t_us) > gap_us)) + 1
        t_us = np.insert(t_us, gaps, (t_us[gaps] + t_us[gaps - 1]) // 2)
        node, x, y = np.insert(node, gaps, node[gaps]), np.insert(x, gaps, math.nan), np.insert(y, gaps, math.nan)
    return Places(source, "", node.astype(np.int32), t_us / MICROSECONDS + start, x, y, range_m)


def _out_of_range(scan: Scan, found: Places) -> str | None:
    """Return how the movement contradicts the record's contacts; None: it does not."""
    contacts, lives = scan.spans["contact"], scan.spans["presence"]
    # A contact that begins as one of the two joins may be in the middle of a longer one, which bridges a gap.
    joined = set(zip(lives.a.tolist(), lives.start.tolist(), strict=True))
    pairs = list(zip(contacts.a.tolist(), contacts.b.tolist(), contacts.start.tolist(), strict=True))
    free = [each for each in pairs if (each[0], each[2]) not in joined and (each[1], each[2]) not in joined] or pairs
    if not free:
        return "the record has no contacts to check the scenario's movement by"
    for a, b, t in free[:: -(-len(free) // CHECKED)]:
        one, two = found.at(a, t), found.at(b, t)
        names = f"{scan.names.shown[a]} and {scan.names.shown[b]}"
        if one is None or two is None:
            return f"{names} met at {t:,.1f} s, and by the scenario and seed one of them was nowhere then"
        if (far := math.dist(one, two)) > (found.range_m or 0.0) + SLACK_M:
            return f"{names} met at {t:,.1f} s, and by the scenario and seed they were {far:,.0f} m apart then"
    return None
