"""Searches for contacts in positions: by slabs of time, as tasks do them, or of a whole trace in this process.

The search is the emulator's own kernel. This process takes traces for which Spark takes longer to start: columns of
Arrow in, columns of Arrow out. The result is the same as that of `lab.contacts.spark`, to the last bit: time is
counted in whole microseconds, each scenario on its own, and both refuse the same input.

For tasks, time is divided into cells of one length, of which consecutive ones make a slab, so that slabs hold about the
same number of samples. The cuts change the cost of the search, and never its result: a task gets every sample of its
slabs, and of each node the nearest ones before and after, so that it knows all segments that reach in; it clips its
findings to whole microseconds; and parts that touch are joined at the end.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from carrypost.arrays import Codes, Flags, Floats, Ints
from carrypost.emu.rows import microseconds
from carrypost.errors import LocalError
from carrypost.lab.schemas import CONTACTS
from carrypost.traces.encounters import Encounters, Rules, TimeWindow, encounters
from carrypost.traces.formats.assembly import MEETINGS, ranked
from carrypost.traces.tracks import Tracks

SAMPLES_PER_SLAB = 250_000
"""Approximate number of samples: few enough for a task's memory, and enough that its start does not matter."""
_SAMPLES_PER_NODE = 4
"""In a slab, at least: nodes that are seldom sampled would otherwise be sent to many slabs without a sample."""
_CELLS_PER_SLAB = 8
_CELLS_MAX = 1 << 16
SAMPLES = ("slab", "code", "t_us", "x", "y")
"""Columns that a task gets."""
PIECES = pa.schema([("scenario", pa.string()), *MEETINGS])
"""Columns that it returns, as parts of contacts."""


class SampleSpan(NamedTuple):
    """The samples of a node: how many, the first and the last."""

    scenario: str
    node: str
    samples: int
    first_us: int
    last_us: int


@dataclass(frozen=True, slots=True)
class TimeCells:
    """The division of one scenario's time."""

    scenario: str
    start_us: int
    cell_us: int
    first: int
    """Number of its first cell; they are counted on from one scenario to the next."""


@dataclass(frozen=True, slots=True)
class SlabPlan:
    """The nodes of the trace, and the slab of each cell."""

    nodes: tuple[SampleSpan, ...]
    """By code: in order of scenario, then of name."""
    cells: tuple[TimeCells, ...]
    slab_of: tuple[int, ...]
    """The slab of each cell."""
    slabs: tuple[tuple[str, TimeWindow], ...]
    """The scenario of each slab, and its time."""

    @property
    def samples(self) -> int:
        """Number of samples of all nodes."""
        return sum(span.samples for span in self.nodes)

    @property
    def stays(self) -> int:
        """Largest number of stays of nodes in slabs."""
        cells = {each.scenario: each for each in self.cells}
        found = 0
        for span in self.nodes:
            at = cells[span.scenario]
            first, last = ((t_us - at.start_us) // at.cell_us + at.first for t_us in (span.first_us, span.last_us))
            found += min(span.samples, self.slab_of[last] - self.slab_of[first] + 1)
        return found


def planned(spans: Iterable[SampleSpan], slab_us: int | None = None) -> SlabPlan:
    """Cut a trace into slabs: of about as many samples each, or of this length."""
    nodes = tuple(sorted(spans))
    cells: list[TimeCells] = []
    slab_of: list[int] = []
    slabs: list[tuple[str, TimeWindow]] = []
    for scenario in sorted({span.scenario for span in nodes}):
        chosen = [span for span in nodes if span.scenario == scenario]
        start_us, cell_us, slab = _cut(chosen, slab_us)
        cells.append(TimeCells(scenario, start_us, cell_us, len(slab_of)))
        edges = np.append(np.flatnonzero(np.diff(slab, prepend=-1)), len(slab))
        slab_of.extend((slab + len(slabs)).tolist())
        slabs.extend(
            (scenario, TimeWindow(start_us + one * cell_us, start_us + two * cell_us))
            for one, two in zip(edges[:-1].tolist(), edges[1:].tolist(), strict=True)
        )
    return SlabPlan(nodes, tuple(cells), tuple(slab_of), tuple(slabs))


def _cut(spans: Sequence[SampleSpan], slab_us: int | None) -> tuple[int, int, Ints]:
    """Return start, length of a cell, and the slab of each cell, for one scenario."""
    count = np.array([span.samples for span in spans], dtype=np.float64)
    first = np.array([span.first_us for span in spans])
    last = np.array([span.last_us for span in spans])
    start_us, span_us = int(first.min()), int(last.max() - first.min()) + 1
    if slab_us is not None:
        cell_us = max(slab_us, -(-span_us // _CELLS_MAX))
        return start_us, cell_us, np.arange(-(-span_us // cell_us))
    each = max(SAMPLES_PER_SLAB, _SAMPLES_PER_NODE * len(spans))
    slabs = int(count.sum()) // each + 1
    cell_us = -(-span_us // min(_CELLS_PER_SLAB * slabs, _CELLS_MAX, span_us))
    cells = -(-span_us // cell_us)
    # As if each node were sampled evenly while it is there; good enough for cuts that nothing but time depends on.
    edges = start_us + np.arange(cells + 1) * cell_us
    density = count / (last - first + 1)
    gained = np.zeros(cells + 1)
    np.add.at(gained, (first - start_us) // cell_us, density)
    np.add.at(gained, (last - start_us) // cell_us, -density)
    # Within the first and the last cell of a node this is off by a part of a cell. Densities that cancel out may leave
    # less than nothing, and the slabs of later cells must not be those of earlier ones.
    seen = np.maximum.accumulate(np.cumsum(np.cumsum(gained)[:-1] * np.diff(edges)))
    slab = np.minimum((seen - seen[0]) * slabs / max(seen[-1] - seen[0], 1.0), slabs - 1).astype(np.int64)
    return start_us, cell_us, np.unique(slab, return_inverse=True)[1]


@dataclass(frozen=True, slots=True)
class Search:
    """The contact search in one task: samples of some slabs in, parts of contacts out."""

    nodes: tuple[str, ...]
    """By code."""
    slabs: tuple[tuple[str, TimeWindow], ...]
    rules: Rules
    """For parts of contacts."""

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Process batches, for Spark's `mapInArrow`."""
        parts = [batch for batch in batches if batch.num_rows]
        if not parts:
            return
        samples = pa.Table.from_batches(parts)
        slab, code, t_us, x, y = (samples[name].to_numpy() for name in SAMPLES)
        del parts, samples
        there = np.unique(slab)
        for each in there.tolist():
            mine = slice(None) if len(there) == 1 else np.flatnonzero(slab == each)
            scenario, window = self.slabs[each]
            tracks = self._tracks(code[mine], t_us[mine], x[mine], y[mine])
            found = encounters(tracks, self.rules, window=window)
            if len(found):
                yield from named(scenario, found).to_batches()

    def _tracks(self, code: Codes, t_us: Ints, x: Floats, y: Floats) -> Tracks:
        there = np.zeros(len(self.nodes), dtype=bool)
        there[code] = True
        codes = np.flatnonzero(there)
        node = (np.cumsum(there, dtype=np.int32) - np.int32(1))[code]
        return Tracks.gathered(tuple(self.nodes[each] for each in codes), node, t_us, x, y)


def named(scenario: str, found: Encounters) -> pa.Table:
    """Return contacts with the names of their nodes; times in microseconds."""
    names = pa.array(found.nodes, pa.string())
    return pa.table(
        {
            "scenario": pa.repeat(scenario, len(found)),
            "a": names.take(pa.array(found.a)),
            "b": names.take(pa.array(found.b)),
            "start_us": found.start_us,
            "end_us": found.end_us,
        },
        schema=PIECES,
    )


SAMPLES_HERE_MAX = 2_000_000
"""Number of samples up to which this process is done before Spark has started."""
SECONDS_MAX = 2.0**53 / 1e6
"""Longest time that a float can represent with microseconds."""


def found_here(positions: pa.Table, rules: Rules, *, slab_us: int | None = None) -> pa.Table:
    """Return CONTACTS from POSITIONS, sorted by scenario, start, a, b. `slab_us` changes the cost, never the result."""
    nameless(positions)
    timeless(positions, ~(np.abs(positions["t"].to_numpy()) <= SECONDS_MAX))
    parts = [PIECES.empty_table()]
    scenarios = sorted(pc.unique(positions["scenario"]).to_pylist())
    for scenario in scenarios:
        samples = positions
        if len(scenarios) > 1:
            samples = positions.filter(pc.equal(positions["scenario"], scenario))
        parts.append(named(scenario, encounters(_tracks(samples), rules, slab_us=slab_us)))
    made = pa.concat_tables(parts)
    columns = {name: made[name] for name in ("scenario", "a", "b")}
    times = {name: made[f"{name}_us"].to_numpy() / 1e6 for name in ("start", "end")}
    return pa.table({**columns, **times}, schema=CONTACTS.arrow)


def _tracks(samples: pa.Table) -> Tracks:
    """Return the samples of one scenario as tracks; nodes in order of names."""
    names, rank = ranked(samples["node"])
    t_us, x, y = microseconds(samples["t"].to_numpy()), samples["x"].to_numpy(), samples["y"].to_numpy()
    return Tracks.gathered(tuple(names.to_pylist()), rank.astype(np.int32), t_us, x, y)


def nameless(rows: pa.Table) -> None:
    """Refuse samples without a node."""
    for name in ("scenario", "node"):
        if rows[name].null_count:
            raise LocalError(f"positions: every row must have a {name}, and one has none")


def timeless(rows: pa.Table, wrong: Flags) -> None:
    """Refuse times that are missing, or none of this world."""
    if len(which := np.flatnonzero(wrong)):
        node, scenario = (rows[name][int(which[0])].as_py() for name in ("node", "scenario"))
        raise LocalError(
            f"positions: node {node} of {scenario} has a sample whose t is missing, or is not a number of "
            f"seconds within {SECONDS_MAX:,.0f} of 0"
        )
