"""Tables of single runs, and their combination to tables of many.

A task leaves the tables of its run in a file, and the driver appends them, run by run, to the tables of all: each run
is a row group there, so that readers skip those of others by their statistics. Beside the rows is, run by run, the
digest of their inputs: a run whose digest is unchanged is not read again.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from carrypost.files import refusing, staged
from carrypost.lab import folders
from carrypost.lab.schemas import Table

FILE = "part-0.parquet"
_NAME = b"table"
_DIGESTS = b"carrypost.runs"


def write(path: Path, tables: Mapping[str, pa.Table]) -> None:
    """Write tables as one file, complete or absent."""
    with staged(path) as written, pa.OSFile(str(written), "wb") as file:
        for name, table in tables.items():
            with pa.ipc.new_stream(file, named(table, name)) as stream:
                stream.write_table(table)


def named(table: pa.Table, name: str) -> pa.Schema:
    """Return the schema of a table with a name, by which `read` finds it."""
    return table.schema.with_metadata({_NAME: name.encode()})


def read(path: Path) -> dict[str, pa.Table]:
    """Tables out of a file, by name."""
    found = {}
    with refusing(f"{path} cannot be read", pa.ArrowException), pa.OSFile(str(path), "rb") as file:
        while file.tell() < file.size():
            table = pa.ipc.open_stream(file).read_all()
            found[table.schema.metadata[_NAME].decode()] = table
    return found


class KeptTable:
    """A table of many runs on disk."""

    def __init__(self, folder: Path, table: Table) -> None:
        self._table = table
        self._file: pq.ParquetFile | None = None
        self.digests: dict[str, str] = {}
        """By run; of runs without rows, too."""
        with suppress(OSError, pa.ArrowException, ValueError, KeyError, TypeError):  # Then all of it is made anew.
            self._file = pq.ParquetFile(folder / table.name / FILE)
            self.digests = dict(json.loads(self._file.metadata.metadata[_DIGESTS]))
            groups = (self._file.metadata.row_group(group) for group in range(self._file.num_row_groups))
            self._groups = {str(each.column(0).statistics.min): group for group, each in enumerate(groups)}

    def rows(self, run: str) -> pa.Table:
        """Return the rows of one run."""
        if self._file is None or run not in self._groups:
            return self._table.arrow.empty_table()
        return self._file.read_row_group(self._groups[run]).cast(self._table.arrow)


@contextmanager
def appending(folder: Path, tables: Sequence[Table]) -> Iterator[Callable[[str, str, Mapping[str, pa.Table]], None]]:
    """Return a function that appends the rows of a run, given its name, its digest and its rows by table.

    Each table takes its place when the block ends well.
    """
    writers: dict[str, pq.ParquetWriter] = {}
    digests: dict[str, str] = {}

    def append(run: str, digest: str, found: Mapping[str, pa.Table]) -> None:
        digests[run] = digest
        for table in tables:
            rows = found[table.name]
            if rows.num_rows:
                writers[table.name].write_table(rows.cast(table.arrow), row_group_size=rows.num_rows)

    def close(writer: pq.ParquetWriter) -> None:
        writer.add_key_value_metadata({_DIGESTS: json.dumps(digests).encode()})
        writer.close()

    with ExitStack() as ending:
        for table in tables:
            staged = ending.enter_context(folders.staged(folder / table.name))
            staged.mkdir()
            writers[table.name] = pq.ParquetWriter(staged / FILE, table.arrow, compression="zstd")
            ending.callback(close, writers[table.name])
        yield append
