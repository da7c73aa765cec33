"""Tables of many runs on disk: files of a few hundred runs each, which stay as they are when runs are added.

A task leaves the tables of some runs in a folder, a file for each family, and the driver puts these files beside those
that are there: it reads no rows. In a file is, run by run, the digest of the inputs and the origin of the run: a run
whose digest is unchanged is not read again. A file with runs that are gone or changed is written again without them.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from carrypost.lab import folders
from carrypost.lab.metrics.origin import Origin
from carrypost.lab.objects import Folder
from carrypost.lab.schemas import Table
from carrypost.log.files import refusing, staged

_NAME = b"table"
_RUNS = b"carrypost.runs"
_PART = "part-{:05d}.parquet"


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


class Known(NamedTuple):
    """The notes on a run beside its rows."""

    digest: str
    """Of its record, and of what else the tables depend on."""
    origin: Origin


Append = Callable[[str, Known, Mapping[str, pa.Table]], None]
"""Takes a run, what is known of it, and its rows by table."""


class KeptTable:
    """A table of many runs on disk, as far as it can be used again."""

    def __init__(self, folder: Path, table: Table, notes: dict[bytes, dict[str, Known]]) -> None:
        self._table = table
        self.files: dict[Path, dict[str, Known]] = {}
        """The runs in each file; those without rows, too."""
        for path in sorted((folder / table.name).glob(_PART.replace("{:05d}", "*"))):
            with suppress(OSError, pa.ArrowException, ValueError, KeyError, TypeError):  # Then it is made anew.
                text = pq.read_metadata(path).metadata[_RUNS]
                if text not in notes:
                    noted = json.loads(text)
                    notes[text] = {run: Known(digest, Origin(*made_by)) for run, (digest, made_by) in noted.items()}
                self.files[path] = notes[text]

    @property
    def runs(self) -> dict[str, Known]:
        """All runs that are known."""
        return {run: known for each in self.files.values() for run, known in each.items()}

    def put(self, folder: Path, digests: Mapping[str, str], new: Sequence[Path]) -> int:
        """Replace the table by those of its rows whose digests are these, and by new files; return how many rows."""
        with folders.staged(folder / self._table.name) as partial:
            partial.mkdir()
            rows = 0
            for number, path in enumerate(self._usable(digests, partial, new)):
                target = partial / _PART.format(number)
                _link(path, target)
                rows += pq.read_metadata(target).num_rows
            for left in partial.glob("old-*"):
                left.unlink()
            return rows

    def _usable(self, digests: Mapping[str, str], partial: Path, new: Sequence[Path]) -> Iterator[Path]:
        """Yield files that have only runs with these digests; what is written for that is in a folder."""
        count = 0
        for path, known in self.files.items():
            good = {run for run, each in known.items() if digests.get(run) == each.digest}
            if len(good) == len(known):
                count += 1
                yield path
            elif good:
                count += 1
                yield self._without(path, {run: known[run] for run in good}, partial / f"old-{count}")
        yield from new
        if not count and not new:
            yield _written(partial / "old-0", self._table, [], {})

    def _without(self, path: Path, kept: Mapping[str, Known], target: Path) -> Path:
        rows = pq.ParquetFile(path).read()
        these = pc.is_in(rows["run"], pa.array(list(kept), pa.string()))
        return _written(target, self._table, [rows.filter(these)], kept)


def tables(folder: Path, wanted: Iterable[Table]) -> dict[str, KeptTable]:
    """Return tables by name; files of the same runs have the same notes, which are read once."""
    notes: dict[bytes, dict[str, Known]] = {}
    return {table.name: KeptTable(folder, table, notes) for table in wanted}


def _link(path: Path, target: Path) -> None:
    try:
        os.link(path, target)
    except OSError:  # A file system without links.
        shutil.copy2(path, target)


def _written(path: Path, table: Table, rows: Sequence[pa.Table], known: Mapping[str, Known]) -> Path:
    noted = {run: [each.digest, list(each.origin)] for run, each in known.items()}
    schema = table.arrow.with_metadata({_RUNS: json.dumps(noted).encode()})
    found = pa.concat_tables(
        [*(each.select(table.names).cast(table.arrow) for each in rows), table.arrow.empty_table()]
    )
    pq.write_table(found.replace_schema_metadata(schema.metadata), path, compression="zstd")
    return path


@contextmanager
def appending(folder: Path, tables: Collection[Table]) -> Iterator[Append]:
    """Yield a function that collects the rows of runs; after the block, a file of each table is in a folder."""
    known: dict[str, Known] = {}
    rows: dict[str, list[pa.Table]] = {table.name: [] for table in tables}

    def append(run: str, about: Known, found: Mapping[str, pa.Table]) -> None:
        known[run] = about
        for name, each in rows.items():
            each.append(found[name])

    with folders.staged(folder) as partial:
        partial.mkdir()
        yield append
        for table in tables:
            _written(partial / file_of(table), table, rows[table.name], known)


def file_of(table: Table) -> str:
    """Return the name of the file of a table in the folder of a task."""
    return f"{table.name}.parquet"


def put_once(folder: Folder, table: Table, rows: Sequence[pa.Table]) -> None:
    """Write a table that is always made anew."""
    with folders.staged(folder / table.name) as partial:
        partial.mkdir()
        _written(partial / _PART.format(0), table, rows, {})
