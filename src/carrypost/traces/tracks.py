"""Piecewise-linear motion, by columns.

A track is the list of a node's samples (time, x, y); between two samples the node moves in a straight line at constant
speed. `Tracks` holds those of many nodes in five arrays. Its invariant: samples are sorted by node and, within a node,
by strictly rising time, positions are metres on a plane. Before its first sample and after its last a node is nowhere;
a node with one sample is somewhere at that instant only.

A jump cannot be written: a node that vanishes here and appears there has two presences, or a gap between samples that
is longer than what the search for encounters joins.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from carrypost.arrays import Codes, Flags, Floats, Ints
from carrypost.errors import LocalError
from carrypost.traces.contacts import Presence

COORDINATE_M_MAX = 1e8
"""Greatest coordinate, twice around the Earth. Beyond it the unit is probably wrong, and floats are too coarse."""
SAME_PLACE_M = 1e-3
"""Distance within which samples of one instant are one sample: times were rounded to whole microseconds."""
_KEY_MAX = 2**63


@dataclass(frozen=True, slots=True, eq=False)
class Tracks:
    """The motion of many nodes; a row of the four arrays is one sample."""

    nodes: tuple[str, ...]
    """Names of nodes; a node without samples is nowhere."""
    node: Codes
    """Node of the sample, as an index into `nodes`."""
    t_us: Ints
    """Time in microseconds of the run."""
    x: Floats
    """Position in metres, to the right."""
    y: Floats
    """Position in metres, upwards."""

    def __post_init__(self) -> None:
        for name, kind in (("node", np.int32), ("t_us", np.int64), ("x", np.float64), ("y", np.float64)):
            object.__setattr__(self, name, np.ascontiguousarray(getattr(self, name), dtype=kind))
        if len(set(self.nodes)) != len(self.nodes):
            raise LocalError("tracks: a node is named twice")
        if not self.node.shape == self.t_us.shape == self.x.shape == self.y.shape == (len(self.node),):
            raise LocalError("tracks: columns must have one dimension and the same length")
        if len(self.node) == 0:
            return
        if self.node.min() < 0 or self.node.max() >= len(self.nodes):
            raise LocalError("tracks: a sample has an unknown node")
        self._check_order()
        for name, column in (("x", self.x), ("y", self.y)):
            # Written so that nan fails too.
            wrong = np.flatnonzero(~(np.abs(column) <= COORDINATE_M_MAX))
            if len(wrong):
                found = f"{name} = {column[wrong[0]]} m"
                raise LocalError(f"{self._at(wrong[0])}: {found} is not within {COORDINATE_M_MAX:,.0f} m of the origin")

    @classmethod
    def of(cls, samples: Mapping[str, Iterable[tuple[int, float, float]]]) -> Tracks:
        """Tracks from each node's samples (microseconds, x, y), in order of time; nodes in the order given."""
        rows = [(index, *sample) for index, path in enumerate(samples.values()) for sample in path]
        node, t_us, x, y = zip(*rows, strict=True) if rows else ((), (), (), ())
        return cls._once(
            tuple(samples), np.array(node, np.int32), np.array(t_us, np.int64), np.array(x, np.float64),
            np.array(y, np.float64),
        )  # fmt: skip

    @classmethod
    def gathered(cls, nodes: tuple[str, ...], node: Codes, t_us: Ints, x: Floats, y: Floats) -> Tracks:
        """Return tracks from samples in any order; of samples at one instant and place the least counts."""
        order = _by_time(node, t_us)
        if order is not None:
            node, t_us, x, y = node[order], t_us[order], x[order], y[order]
        if _repeated(node, t_us).any():
            order = np.lexsort((y, x, t_us, node))
            node, t_us, x, y = node[order], t_us[order], x[order], y[order]
        return cls._once(nodes, node, t_us, x, y)

    @classmethod
    def _once(cls, nodes: tuple[str, ...], node: Codes, t_us: Ints, x: Floats, y: Floats) -> Tracks:
        """Return tracks from ordered samples; of samples at one instant and place the first counts."""
        repeated = _repeated(node, t_us)
        if repeated.any():
            first = np.flatnonzero(np.append(True, ~repeated))
            of = np.repeat(first, np.diff(first, append=len(node)))
            away_m = np.maximum(np.abs(x - x[of]), np.abs(y - y[of]))
            for wrong in np.flatnonzero(away_m > SAME_PLACE_M)[:1]:
                where = f"node {nodes[node[wrong]]} is in two places {away_m[wrong]:g} m apart"
                when = f"at {t_us[wrong] / 1e6:.6f} s"
                raise LocalError(f"tracks: {where} {when}; are these two nodes with one id?")
            node, t_us, x, y = node[first], t_us[first], x[first], y[first]
        return cls(nodes, node, t_us, x, y)

    def _check_order(self) -> None:
        same = self.node[1:] == self.node[:-1]
        wrong = np.flatnonzero((self.node[1:] < self.node[:-1]) | (same & (self.t_us[1:] <= self.t_us[:-1])))
        if len(wrong):
            raise LocalError(f"{self._at(wrong[0] + 1)}: samples must be sorted by node, then by rising time")

    def _at(self, row: int) -> str:
        return f"tracks: node {self.nodes[self.node[row]]} at {self.t_us[row] / 1e6:.6f} s"


class Movement(NamedTuple):
    """The result of a mobility model: the tracks of nodes, and their presence."""

    tracks: Tracks
    presences: list[Presence]


def _repeated(node: Codes, t_us: Ints) -> Flags:
    """Return flags of samples with the same node and time as the one before."""
    return np.asarray((node[1:] == node[:-1]) & (t_us[1:] == t_us[:-1]))


def _by_time(node: Codes, t_us: Ints) -> Ints | None:
    """Return the order of samples by node, then by time; None: they are sorted."""
    if len(node) == 0 or not ((node[1:] < node[:-1]) | ((node[1:] == node[:-1]) & (t_us[1:] < t_us[:-1]))).any():
        return None
    first_us, last_us = int(t_us.min()), int(t_us.max())
    if int(node.max()) * (last_us - first_us + 1) + last_us - first_us < _KEY_MAX:
        # One key is sorted in a fraction of the time that two take, most of all where it comes in a few sorted runs.
        return np.argsort(node.astype(np.int64) * (last_us - first_us + 1) + (t_us - first_us), kind="stable")
    return np.lexsort((t_us, node))
