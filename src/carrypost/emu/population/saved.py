"""Plans and parts of runs as files: columns, and a few notes beside them, for the tasks of a campaign."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from carrypost.emu.population.plan import Messages, Plan, Stays
from carrypost.emu.population.rows import Rows, Tally
from carrypost.log.files import refusing, staged
from carrypost.traces.encounters import Encounters

_NOTES = b"notes"
PLAN_FILES = ("contacts", "stays", "messages")
"""Files of a plan."""


def save_plan(folder: Path, plan: Plan) -> None:
    """Write a plan to a folder."""
    with refusing(f"{folder} cannot be written"):
        folder.mkdir(parents=True, exist_ok=True)
    for name in PLAN_FILES:
        part = getattr(plan, name)
        columns = {each: getattr(part, each) for each in part.__slots__ if each != "nodes"}
        _write(folder / name, columns, [plan.nodes, plan.end_us, dict(plan.attrs)] if name == "contacts" else None)


def load_plan(folder: Path) -> Plan:
    """Return a plan that was saved; contacts are mapped into memory, and read as they are needed."""
    (contacts, notes), (stays, _), (messages, _) = (_read(folder / name) for name in PLAN_FILES)
    nodes, end_us, attrs = notes
    return Plan(end_us, attrs, Stays(**stays), Encounters(tuple(nodes), **contacts), Messages(**messages))


def save(path: Path, rows: Rows, tally: Tally) -> None:
    """Write the rows and counts of a part."""
    _write(path, rows._asdict(), [tally.counts, tally.delays.tolist(), tally.hops.tolist()])


def load(path: Path) -> tuple[Rows, Tally]:
    """Return what `save` wrote."""
    rows, (counts, *histograms) = _read(path)
    return Rows(**rows), Tally(Counter(counts), *(np.array(each, np.int64) for each in histograms))


def _write(path: Path, columns: Mapping[str, Any], notes: object) -> None:
    """Write columns of numbers or texts; the file is there whole, or not at all."""
    found = {name: pa.array(each, pa.string()) if isinstance(each, tuple) else each for name, each in columns.items()}
    table = pa.table(found).replace_schema_metadata({_NOTES: json.dumps(notes)})
    with (
        refusing(f"{path} cannot be written"),
        staged(path) as partial,
        pa.OSFile(str(partial), "wb") as file,
        pa.ipc.new_file(file, table.schema) as out,
    ):
        out.write_table(table)


def _read(path: Path) -> tuple[dict[str, Any], Any]:
    with refusing(f"{path} cannot be read", pa.ArrowException):
        table = pa.ipc.open_file(pa.memory_map(str(path))).read_all()
    columns = {
        name: tuple(each.to_pylist()) if pa.types.is_string(each.type) else each.to_numpy()
        for name, each in zip(table.column_names, table.columns, strict=True)
    }
    return columns, json.loads(table.schema.metadata[_NOTES])
