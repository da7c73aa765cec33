"""Parts of a run as files: rows by columns, and counts, for the task that joins them."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import numpy as np
import pyarrow as pa

from carrypost.emu.population.rows import Rows
from carrypost.emu.population.tally import Tally
from carrypost.files import refusing, staged

_TALLY = b"tally"


def save(path: Path, rows: Rows, tally: Tally) -> None:
    """Write the rows and counts of a part; the file is there whole, or not at all."""
    table = pa.table(dict(rows._asdict()))
    told = json.dumps([tally.counts, tally.delays.tolist(), tally.hops.tolist()])
    schema = table.schema.with_metadata({_TALLY: told.encode()})
    with refusing(f"{path} cannot be written"), staged(path) as partial, pa.OSFile(str(partial), "wb") as file:
        out = pa.ipc.new_file(file, schema)
        out.write_table(table.replace_schema_metadata(schema.metadata))
        out.close()


def load(path: Path) -> tuple[Rows, Tally]:
    """Return what `save` wrote."""
    with refusing(f"{path} cannot be read", pa.ArrowException):
        table = pa.ipc.open_file(pa.memory_map(str(path))).read_all()
    counts, *histograms = json.loads(table.schema.metadata[_TALLY])
    tally = Tally(Counter(counts), *(np.array(each, np.int64) for each in histograms))
    return Rows(*(table[name].to_numpy() for name in Rows._fields)), tally
