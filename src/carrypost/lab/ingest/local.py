"""Ingest in one process: for what is small, where starting Spark would take longer than the work.

Blocks are read one after the other, rows kept, and all of them assembled at once. `Work` and `Ingested` are those of
both engines, whose tables are equal.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from carrypost.emu.traces.formats import FORMATS, Format, LineRule, Options
from carrypost.emu.traces.formats.keys import column
from carrypost.emu.traces.formats.lines import cut
from carrypost.emu.traces.formats.orders import standing
from carrypost.emu.traces.formats.rules import Sum
from carrypost.emu.traces.formats.tables import Positions
from carrypost.lab import folders
from carrypost.lab.ingest import sources
from carrypost.lab.ingest.stages import checked, other_way, usable
from carrypost.lab.schemas import CONTACTS, POSITIONS, Table
from carrypost.model.times import MICROSECONDS

Tell = Callable[[str, float], None]
"""What is being done, and how much of it is."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """Files to read, and how."""

    format: str
    paths: Sequence[Path]
    rules: Sequence[LineRule]
    options: Options
    scenario: str
    folder: Path
    lenient: bool = False
    block_bytes: int = sources.BLOCK_BYTES
    tell: Tell | None = field(default=None, compare=False)

    @property
    def form(self) -> Format:
        """How the files read."""
        return FORMATS[self.format]

    @property
    def table(self) -> Table:
        """What comes of them."""
        return POSITIONS if self.form.gives == "positions" else CONTACTS

    @property
    def names(self) -> list[str]:
        """What errors call the files."""
        return [str(path) for path in self.paths]

    def told(self, what: str, share: float) -> None:
        """Say how far it is."""
        if self.tell is not None:
            self.tell(what, share)


@dataclass(slots=True, kw_only=True)
class Ingested:
    """What was read and written."""

    found: Sum
    options: Options
    counts: dict[str, int]
    warnings: list[str]
    written: int
    nodes: int
    first_us: int
    last_us: int


def begun(format_: Format, paths: Sequence[Path], options: Options) -> list[LineRule]:
    """The rules of files by their first lines."""
    rules = [format_.begin(sources.head(path), str(path), options) for path in paths]
    if isinstance(rules[0], Positions):
        same = rules[0]
        rules = [replace(each, east_of=same.east_of) if isinstance(each, Positions) else each for each in rules]
    return rules


def ingest(work: Work) -> Ingested:
    """Read, assemble and write."""
    found = Sum()
    parts: list[pa.Table] = []
    total = sum(sources.text_bytes(path) for path in work.paths) or 1
    done = 0
    for file, (path, rule) in enumerate(zip(work.paths, work.rules, strict=True)):
        for number, data in sources.blocks(path, work.block_bytes):
            parsed = rule.parse(cut(data, number), file)
            found.join(parsed)
            parts.append(parsed.rows)
            done += len(data)
            work.told("reading", min(1.0, done / total))
    options = checked(found, work.form, work.options, work.rules[0], names=work.names, lenient=work.lenient)
    work.told("assembling", 0.0)
    rows = pa.concat_tables(parts)
    parts.clear()
    assembled = work.form.assemble(rows, options)
    if (other := other_way(work.form, options, assembled.counts)) is not None:
        options, assembled = other, work.form.assemble(rows, other)
    usable(work.names, assembled.faults, assembled.counts, assembled.rows.num_rows)
    made = assembled.rows
    times = [column(made, name) for name in made.column_names if name.endswith("_us")]
    first_us, last_us = (int(times[0].min()), int(times[-1].max())) if made.num_rows else (0, 0)
    if work.form.stays:
        made = standing(made, last_us)
    work.told("writing", 0.0)
    folders.write_arrow(_seconds(made, work.scenario), work.folder, work.table)
    return Ingested(
        found=found, options=options, counts=assembled.counts, warnings=assembled.warnings, written=made.num_rows,
        nodes=_nodes(made), first_us=first_us, last_us=last_us,
    )  # fmt: skip


def _seconds(rows: pa.Table, scenario: str) -> pa.Table:
    """Rows as tables of the laboratory have them."""
    arrays = {"scenario": pa.array(np.full(rows.num_rows, scenario, dtype=object), pa.string())}
    for name in rows.column_names:
        timed = name.endswith("_us")
        arrays[name.removesuffix("_us")] = pc.divide(rows[name].cast("float64"), MICROSECONDS) if timed else rows[name]
    return pa.table(arrays)


def _nodes(rows: pa.Table) -> int:
    names = [rows[each] for each in ("node", "a", "b") if each in rows.column_names]
    return len(pc.unique(pa.chunked_array([chunk for each in names for chunk in each.chunks], pa.string())))
