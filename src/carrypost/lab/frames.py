"""Tables of a campaign for notebooks: pandas frames with scenario, settings, seed and swept keys as columns."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from carrypost.config.rules import nearest
from carrypost.errors import LocalError
from carrypost.lab import folders
from carrypost.lab.metrics import FAMILIES
from carrypost.lab.schemas import FAILURES, RUNS, Table
from carrypost.traces.formats.words import is_number

if TYPE_CHECKING:
    import pandas as pd

METRICS = "metrics"


def frame(folder: str | Path, family: str) -> pd.DataFrame:
    """Return a table of a campaign's folder: a family of metrics, or `runs` or `failures`.

    Each row has the scenario, settings and seed of its run, and a column for each key that settings or the sweep
    change, under its name in the scenario. Values of keys are numbers where all of them are. Tables of plugins are
    found by their names, too.
    """
    root = Path(folder)
    rows = read(root, family)
    about = _about(root, rows["run"])
    names = [name for name in about.column_names if name not in rows.column_names]
    columns = [*names, *rows.column_names] if "scenario" in names else [*rows.column_names, *names]
    both = {**{name: about[name] for name in names}, **{name: rows[name] for name in rows.column_names}}
    return pa.table({name: both[name] for name in columns}).drop_columns(["run"]).to_pandas()


def read(root: Path, family: str) -> pa.Table:
    """Return a table of a campaign's folder by name; `runs` without the keys, which become columns."""
    known = {table.name: table for table in (*FAMILIES, FAILURES)}
    if family == RUNS.name:
        return folders.read_arrow(root, Table(RUNS.name, RUNS.meaning, RUNS.columns[:-1]))
    if family in known:
        inside = root if family == FAILURES.name else root / METRICS
        if not (inside / family).is_dir():
            raise LocalError(f"{inside} has no table of {family}: make it with `carrypost lab metrics {root}`")
        return folders.read_arrow(inside / family, known[family])
    files = sorted((root / METRICS / family).glob("*.parquet"))
    if not files:
        wrong = f"there is no family {family!r} in {root}{nearest(family, [RUNS.name, *known])}"
        raise LocalError(wrong)
    return pa.concat_tables([pq.ParquetFile(file).read() for file in files])


def _about(root: Path, run: pa.ChunkedArray) -> pa.Table:
    """Return what is known of these runs, a row for each of them."""
    known = folders.read_arrow(root, RUNS)
    at = pc.index_in(run, known["run"])
    columns = {name: known[name].take(at) for name in ("scenario", "settings", "seed")}
    sets = [dict(each or ()) for each in known["set"].to_pylist()]
    for key in dict.fromkeys(key for each in sets for key in each):
        texts = [each.get(key) for each in sets]
        numeric = all(text is None or is_number(text) for text in texts)
        values = [None if text is None else float(text) for text in texts] if numeric else texts
        columns[key] = pa.chunked_array([pa.array(values)]).take(at)
    return pa.table(columns)
