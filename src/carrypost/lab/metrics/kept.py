"""Tables of single runs, and how they become tables of many.

A task leaves the tables of its run in a file, and whoever started it appends them, run by run, to the tables of all:
each run is a row group there, so that readers skip those of others by their statistics. Beside the rows stands, run by
run, the digest of what they were made of: a run whose digest is the same is not looked at again.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Self

import pyarrow as pa
import pyarrow.parquet as pq

from carrypost.files import refusing, staged
from carrypost.lab import folders
from carrypost.lab.schemas import Table

FILE = "part-0.parquet"
_NAME = b"table"
_DIGESTS = b"carrypost.runs"


def write(path: Path, tables: Mapping[str, pa.Table]) -> None:
    """Tables as one file, whole or not there."""
    with staged(path) as written, pa.OSFile(str(written), "wb") as file:
        for name, table in tables.items():
            schema = table.schema.with_metadata({_NAME: name.encode()})
            with pa.ipc.new_stream(file, schema) as stream:
                stream.write_table(table)


def read(path: Path) -> dict[str, pa.Table]:
    """Tables out of a file, by name."""
    found = {}
    with refusing(f"{path} cannot be read", pa.ArrowException), pa.OSFile(str(path), "rb") as file:
        while file.tell() < file.size():
            table = pa.ipc.open_stream(file).read_all()
            found[table.schema.metadata[_NAME].decode()] = table
    return found


class KeptTable:
    """A table of many runs, as it is."""

    def __init__(self, folder: Path, table: Table) -> None:
        self._table = table
        self._file: pq.ParquetFile | None = None
        self.digests: dict[str, str] = {}
        """By run; of runs without rows, too."""
        with suppress(OSError, pa.ArrowException, ValueError, KeyError, TypeError):  # Then all of it is made anew.
            self._file = pq.ParquetFile(folder / table.name / FILE)
            self.digests = dict(json.loads(self._file.metadata.metadata[_DIGESTS]))
            self._groups = {self._run(group): group for group in range(self._file.num_row_groups)}

    def _run(self, group: int) -> str:
        assert self._file is not None
        return str(self._file.metadata.row_group(group).column(0).statistics.min)

    def rows(self, run: str) -> pa.Table:
        """Those of one run."""
        if self._file is None or run not in self._groups:
            return self._table.arrow.empty_table()
        return self._file.read_row_group(self._groups[run]).cast(self._table.arrow)


class Appending:
    """Tables of many runs that are being written; each takes its place when the block ends well."""

    def __init__(self, folder: Path, tables: Sequence[Table]) -> None:
        self._folder = folder
        self._tables = tables
        self._ending = ExitStack()
        self._writers: dict[str, pq.ParquetWriter] = {}
        self._digests: dict[str, str] = {}

    def __enter__(self) -> Self:
        for table in self._tables:
            staged = self._ending.enter_context(folders.staged(self._folder / table.name))
            staged.mkdir()
            writer = pq.ParquetWriter(staged / FILE, table.arrow, compression="zstd")
            self._ending.callback(self._close, writer)
            self._writers[table.name] = writer
        return self

    def __exit__(self, *error: object) -> None:
        self._ending.__exit__(*error)  # type: ignore[arg-type]  # as they come

    def append(self, run: str, digest: str, found: Mapping[str, pa.Table]) -> None:
        """The rows of a run, by table."""
        self._digests[run] = digest
        for table in self._tables:
            rows = found[table.name]
            if rows.num_rows:
                self._writers[table.name].write_table(rows.cast(table.arrow), row_group_size=rows.num_rows)

    def _close(self, writer: pq.ParquetWriter) -> None:
        writer.add_key_value_metadata({_DIGESTS: json.dumps(self._digests).encode()})
        writer.close()
