"""Tables of the laboratory as inputs: `contacts` and `positions`, or any Parquet file with their columns.

A folder is read as all Parquet files in it. A table of several scenarios is refused: nodes of different ones have
nothing to do with each other. Rows are checked as those of text files are, and named by their number in the file.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from carrypost.errors import LocalError
from carrypost.log.files import refusing
from carrypost.model.times import MICROSECONDS
from carrypost.traces.csvfiles import CONTACT_COLUMNS, HEARD, Line, check_columns

_PLACED = ("node", "t", "x", "y")
_SCENARIO = "scenario"
_OPTIONAL = (HEARD, _SCENARIO)


def rows_of(path: Path) -> Iterator[tuple[Line, str, str, int, int, str]]:
    """Yield the rows of a file, or of the files in a folder."""
    for file, table in _tables(path, CONTACT_COLUMNS, "contacts", _OPTIONAL):
        columns = [table[name].to_pylist() for name in CONTACT_COLUMNS]
        heard = table[HEARD].to_pylist() if HEARD in table.column_names else [None] * len(table)
        for number, (a, b, start, end, only) in enumerate(zip(*columns, heard, strict=True), 1):
            line = Line(str(file), number)
            if a is None or b is None:
                raise line.error("a and b must be names")
            yield line, a, b, line.time_us(start or "", "start"), line.time_us(end or "", "end"), only or ""


def table_of(path: Path) -> pa.Table | None:
    """Return the same rows as one table of texts, without checking them; None if some contacts work one way."""
    found = [table for _, table in _tables(path, CONTACT_COLUMNS, "contacts", _OPTIONAL)]
    if any(HEARD in table.column_names for table in found):
        return None
    return pa.concat_tables([table.select(CONTACT_COLUMNS) for table in found])


def positions_of(path: Path) -> pa.Table:
    """Return positions as node, t_us, x, y, sorted by node and time; that they are sound is for `Tracks` to check."""
    found = pa.concat_tables([table.select(_PLACED) for _, table in _tables(path, _PLACED, "positions")])
    try:
        t, x, y = (found[name].cast(pa.float64()) for name in _PLACED[1:])
    except pa.ArrowException as error:
        raise LocalError(f"{path} cannot be read as positions: {error}") from None
    t_us = pc.round(pc.multiply(t, MICROSECONDS)).cast(pa.int64())
    names = ("node", "t_us", "x", "y")
    return pa.table([found["node"], t_us, x, y], names).sort_by([("node", "ascending"), ("t_us", "ascending")])


def _tables(
    path: Path, columns: tuple[str, ...], called: str, optional: tuple[str, ...] | None = None
) -> Iterator[tuple[Path, pa.Table]]:
    """Yield the files to read, with their contents; `optional`: columns besides, where others are refused."""
    files = parquet_files(path, called) if path.is_dir() else [path]
    if not files:
        raise LocalError(f"{path} cannot be read: it is a folder without a Parquet file, or a table of {called}")
    scenarios: set[str] = set()
    for file in files:
        table = _read(file, columns, called, optional)
        if _SCENARIO in table.column_names:
            scenarios.update(table[_SCENARIO].unique().to_pylist())
            if len(scenarios) > 1:
                names = ", ".join(sorted(map(str, scenarios)))
                raise LocalError(f"{path} has {called} of several scenarios, {names}; choose one")
        yield file, table


def parquet_files(folder: Path, called: str) -> list[Path]:
    """Return the files of a table, given its folder or the one that `lab ingest` wrote it to."""
    return sorted(folder.glob("*.parquet")) or sorted((folder / called).glob("*.parquet"))


def _read(file: Path, columns: tuple[str, ...], called: str, optional: tuple[str, ...] | None) -> pa.Table:
    """Return the columns that are needed, as texts."""
    missing = f"{file}: there is no such file"
    with refusing(f"{file} cannot be read as a Parquet file", pa.ArrowException, missing=missing):
        there = pq.read_schema(file).names
        if lacking := [name for name in columns if name not in there]:
            raise LocalError(f"{file} has no column {lacking[0]!r}; {called} have {', '.join(columns)}")
        if optional is not None:
            check_columns(Line(str(file), 0), there, columns, optional)
        kept = [name for name in dict.fromkeys((_SCENARIO, *columns, *(optional or ()))) if name in there]
        texts = pa.schema([(name, pa.string()) for name in kept])
        return pq.ParquetFile(file).read(columns=kept).select(kept).cast(texts)
