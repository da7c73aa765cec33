"""Contacts out of positions in this process, for traces for which Spark takes longer to start; and what both refuse.

Columns of Arrow in, columns of Arrow out; the search is the emulator's own kernel. The result is the same as that of
`lab.contacts.contacts`, to the last bit: time is counted in whole microseconds, each scenario on its own.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from carrypost.arrays import Flags
from carrypost.emu.records.log import microseconds
from carrypost.errors import LocalError
from carrypost.lab.contacts.slabs import PIECES, named
from carrypost.lab.schemas import CONTACTS
from carrypost.traces.encounters import Rules, encounters
from carrypost.traces.formats.keys import ranked
from carrypost.traces.tracks import Tracks

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
