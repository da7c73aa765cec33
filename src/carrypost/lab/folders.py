"""Tables on disk: folders of Parquet files, each complete or absent, and the manifest beside them.

A table is written into a hidden folder next to its place, and moved there when it is complete; a failure before that
leaves the previous table. ``manifest.json`` describes, by table, its origin: source, parameters, counts, version. The
driver and all executors must see a folder under the same path.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

import carrypost
from carrypost.errors import LocalError
from carrypost.files import PARTIAL, abandoned, partial, refused, refusing
from carrypost.lab.schemas import Table

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

MANIFEST = "manifest.json"
_OLD = ".old"


def parquet_files(path: Path, table: Table, known: Collection[str] = ()) -> list[Path]:
    """Return the files of a table, given its folder, the folder above it, or one file; checked, but for their rows.

    `known`: names of files that need no check.
    """
    folder = path / table.name if (path / table.name).is_dir() else path
    if not folder.exists():
        raise LocalError(f"{path}: there is no such file or folder")
    files = [folder] if folder.is_file() else sorted(_visible(folder))
    if not files:
        raise LocalError(f"{path} must contain a table of {table.name}, and has no Parquet file")
    for file in files:
        if file.name not in known:
            _check(file, table)
    return files


def _visible(folder: Path) -> Iterator[Path]:
    for file in folder.rglob("*.parquet"):
        if not any(part.startswith((".", "_")) for part in file.relative_to(folder).parts):
            yield file


def _check(file: Path, table: Table) -> None:
    with refusing(f"{file} cannot be read as a Parquet file", pa.ArrowException):
        there = pq.read_schema(file)
    for column in table.columns:
        if column.name not in there.names:
            needed = ", ".join(table.names)
            raise LocalError(f"{file} has no column {column.name!r}; a table of {table.name} has {needed}")


def read(spark: SparkSession, path: Path, table: Table) -> DataFrame:
    """Return a table as a frame."""
    files = parquet_files(path, table)
    return table.conform(spark.read.parquet(*(str(file.absolute()) for file in files)))


def read_arrow(path: Path, table: Table) -> pa.Table:
    """Return a table in memory."""
    files = parquet_files(path, table)
    parts = []
    for file in files:
        with refusing(f"{file} cannot be read as a table of {table.name}", pa.ArrowException):
            found = pq.ParquetFile(file).read(columns=table.names).select(table.names)
            for column in table.columns:
                if not column.nullable and found[column.name].null_count:
                    raise LocalError(f"{file}: every row of {table.name} must have a {column.name}, and one has none")
            parts.append(found.cast(table.arrow))
    return pa.concat_tables(parts)


def write(frame: DataFrame, folder: Path, table: Table) -> None:
    """Write a frame as the table in this folder, replacing the present one."""
    with staged(folder / table.name) as partial:
        table.conform(frame).write.mode("overwrite").option("compression", "zstd").parquet(str(partial.absolute()))


def write_arrow(rows: pa.Table, folder: Path, table: Table) -> None:
    """Write rows as the table in this folder, replacing the present one."""
    with staged(folder / table.name) as partial:
        partial.mkdir()
        pq.write_table(rows.select(table.names).cast(table.arrow), partial / "part-0.parquet", compression="zstd")


@contextmanager
def staged(target: Path) -> Iterator[Path]:
    """Yield a path to write to; what is there when the block ends well takes its place, otherwise it goes."""
    written = partial(target)
    with errors_naming(target):
        target.parent.mkdir(parents=True, exist_ok=True)
        clear(target)
        try:
            yield written
            if not written.exists():  # There was nothing to write.
                written.mkdir()
            _replace(written, target)
        finally:
            _remove(written)


def clear(target: Path) -> None:
    """Remove half-written files of dead processes for this target; restore what one had moved away."""
    for left in abandoned(target, f"{_OLD}{PARTIAL}"):
        if target.exists():
            _remove(left)
        else:
            left.replace(target)
    for left in abandoned(target):
        _remove(left)


def errors_naming(target: Path) -> AbstractContextManager[None]:
    """Turn errors of the system into `LocalError` with a sentence that names the target, which is written meanwhile."""
    return refusing(f"{target} cannot be written")


def _replace(partial: Path, target: Path) -> None:
    if target.is_dir():
        old = target.with_name(f".{target.name}.{os.getpid()}{_OLD}{PARTIAL}")
        target.replace(old)
        partial.replace(target)
        _remove(old)
    else:
        partial.replace(target)


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)


def leave(made: Iterable[Path]) -> None:
    """Remove folders that were made in vain, the innermost first; one that is not empty stays."""
    for folder in made:
        with suppress(OSError):
            folder.rmdir()


def note(folder: Path, table: Table, facts: Mapping[str, Any]) -> None:
    """Enter in the manifest where a table came from."""
    note_all(folder, {table: facts})


def note_all(folder: Path, facts: Mapping[Table, Mapping[str, Any]]) -> None:
    """Enter in the manifest where tables came from."""
    made = {table.name: {**each, "version": carrypost.__version__} for table, each in facts.items()}
    content = manifest(folder) | made
    with staged(folder / MANIFEST) as partial:
        partial.write_text(json.dumps(content, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def manifest(folder: Path) -> dict[str, Any]:
    """Return the manifest of this folder, by table; empty where there is none."""
    try:
        content = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        raise refused(f"{folder / MANIFEST} cannot be read as a manifest", error) from None
    return content if isinstance(content, dict) else {}


def texts_in(file: Path, column: str) -> list[str]:
    """Return the texts of a column of a Parquet file, each once; of most groups of rows its statistics tell."""
    read = pq.ParquetFile(file, read_dictionary=[column])
    place, found = read.schema_arrow.get_field_index(column), dict[str, None]()
    for group in range(read.num_row_groups):
        statistics = read.metadata.row_group(group).column(place).statistics
        if statistics is not None and statistics.has_min_max and statistics.min == statistics.max:
            found[statistics.min] = None
        else:
            found |= dict.fromkeys(pc.unique(read.read_row_group(group, [column])[column]).to_pylist())
    return list(found)
