"""Ingest in one process: for small inputs, where starting Spark would take longer than the work.

Blocks are read one after the other, rows kept, and all of them assembled at once. `Work` and `Ingested` are those of
both engines, whose tables are equal.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from carrypost.emu.traces.formats import LineRule, Options
from carrypost.emu.traces.formats.keys import column
from carrypost.emu.traces.formats.lines import cut
from carrypost.emu.traces.formats.orders import resting
from carrypost.emu.traces.formats.rules import Sum
from carrypost.emu.traces.formats.tables import Positions
from carrypost.lab import folders
from carrypost.lab.ingest import sources
from carrypost.lab.ingest.request import IngestRequest
from carrypost.lab.ingest.stages import checked, other_way, usable
from carrypost.model.times import MICROSECONDS

Tell = Callable[[str, float], None]
"""A callback for progress: the current work, and how much of it is done."""


class Work(NamedTuple):
    """A request, the rules for the lines of each of its files, and the observer of its progress."""

    request: IngestRequest
    rules: Sequence[LineRule]
    on_progress: Tell | None

    def report(self, what: str, share: float) -> None:
        """Report the progress."""
        if self.on_progress is not None:
            self.on_progress(what, share)


@dataclass(slots=True, kw_only=True)
class Ingested:
    """The numbers of rows read and written."""

    found: Sum
    options: Options
    counts: dict[str, int]
    warnings: list[str]
    written: int
    nodes: int
    first_us: int
    last_us: int


def begun(request: IngestRequest) -> list[LineRule]:
    """Return the rules of files by their first lines."""
    rules = [request.form.begin(sources.head(path), str(path), request.options) for path in request.paths]
    if isinstance(rules[0], Positions):
        same = rules[0]
        rules = [replace(each, east_of=same.east_of) if isinstance(each, Positions) else each for each in rules]
    return rules


def ingest(work: Work) -> Ingested:
    """Read, assemble and write."""
    request, found = work.request, Sum()
    parts: list[pa.Table] = []
    total = sum(sources.text_bytes(path) for path in request.paths) or 1
    done = 0
    for file, (path, rule) in enumerate(zip(request.paths, work.rules, strict=True)):
        for number, data in sources.blocks(path, request.block_bytes):
            parsed = rule.parse(cut(data, number), file)
            found.join(parsed)
            parts.append(parsed.rows)
            done += len(data)
            work.report("reading", min(1.0, done / total))
    options = checked(found, request, work.rules[0])
    work.report("assembling", 0.0)
    rows = pa.concat_tables(parts)
    parts.clear()
    assembled = request.form.assemble(rows, options)
    if (other := other_way(request.form, options, assembled.counts)) is not None:
        options, assembled = other, request.form.assemble(rows, other)
    usable(request.names, assembled.faults, assembled.counts, assembled.rows.num_rows)
    made = assembled.rows
    times = [column(made, name) for name in made.column_names if name.endswith("_us")]
    first_us, last_us = (int(times[0].min()), int(times[-1].max())) if made.num_rows else (0, 0)
    if request.form.stays:
        made = resting(made, last_us)
    work.report("writing", 0.0)
    folders.write_arrow(_seconds(made, request.scenario), request.out, request.table)
    return Ingested(
        found=found, options=options, counts=assembled.counts, warnings=assembled.warnings, written=made.num_rows,
        nodes=_nodes(made), first_us=first_us, last_us=last_us,
    )  # fmt: skip


def _seconds(rows: pa.Table, scenario: str) -> pa.Table:
    """Return rows as tables of the laboratory have them."""
    arrays = {"scenario": pa.array(np.full(rows.num_rows, scenario, dtype=object), pa.string())}
    for name in rows.column_names:
        timed = name.endswith("_us")
        arrays[name.removesuffix("_us")] = pc.divide(rows[name].cast("float64"), MICROSECONDS) if timed else rows[name]
    return pa.table(arrays)


def _nodes(rows: pa.Table) -> int:
    names = [rows[each] for each in ("node", "a", "b") if each in rows.column_names]
    return len(pc.unique(pa.chunked_array([chunk for each in names for chunk in each.chunks], pa.string())))
