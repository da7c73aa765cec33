"""Tables on disk: folders of Parquet files, each complete or absent, and the manifest beside them.

A table is written into a hidden folder next to its place, and moved there when it is complete; a failure before that
leaves the previous table. ``manifest.json`` describes, by table, its origin: source, parameters, counts, version. The
driver and all executors must see a folder under the same path.

A folder may be one of objects (`lab.objects`). There a file of a table is put whole, and files of the previous table
are removed after that; on Spark, tasks read and put the files themselves.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

import carrypost
from carrypost.errors import LocalError
from carrypost.lab.objects import AnyFolder, Folder, ObjectFolder, readable
from carrypost.lab.schemas import Table
from carrypost.lab.spark import parts as tasks
from carrypost.log.files import PARTIAL, abandoned, partial, refused, refusing

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

MANIFEST = "manifest.json"
_OLD = ".old"


def parquet_files(path: AnyFolder, table: Table, known: Collection[str] = ()) -> list[AnyFolder]:
    """Return the files of a table, given its folder, the folder above it, or one file; checked, but for their rows.

    `known`: names of files that need no check.
    """
    folder = path / table.name if (path / table.name).is_dir() else path
    if not folder.exists():
        raise LocalError(f"{path}: there is no such file or folder")
    files = [folder] if folder.is_file() else sorted(folder / name for name in _visible(folder))
    if not files:
        raise LocalError(f"{path} must contain a table of {table.name}, and has no Parquet file")
    for file in files:
        if file.name not in known:
            _check(file, table)
    return files


def _visible(folder: Folder) -> Iterator[str]:
    """Yield the names of Parquet files in a folder and those in it, but for hidden ones."""
    if isinstance(folder, Path):
        names = [file.relative_to(folder).as_posix() for file in folder.rglob("*.parquet")]
    else:
        names = [name for name in folder.names("", deep=True) if name.endswith(".parquet")]
    yield from (name for name in names if not any(part.startswith((".", "_")) for part in name.split("/")))


def _check(file: Folder, table: Table) -> None:
    with refusing(f"{file} cannot be read as a Parquet file", pa.ArrowException), readable(file) as content:
        there = pq.read_schema(content)
    for column in table.columns:
        if column.name not in there.names:
            needed = ", ".join(table.names)
            raise LocalError(f"{file} has no column {column.name!r}; a table of {table.name} has {needed}")


def read(spark: SparkSession, path: Folder, table: Table) -> DataFrame:
    """Return a table as a frame."""
    if isinstance(path, ObjectFolder):
        return tasks.read(spark, parquet_files(path, table), table)
    return table.conform(spark.read.parquet(*(str(file.absolute()) for file in parquet_files(path, table))))


def read_arrow(path: Folder, table: Table) -> pa.Table:
    """Return a table in memory."""
    files: Sequence[Folder] = parquet_files(path, table)
    parts = []
    for file in files:
        what = f"{file} cannot be read as a table of {table.name}"
        with refusing(what, pa.ArrowException), readable(file) as content:
            found = pq.ParquetFile(content).read(columns=table.names).select(table.names)
            for column in table.columns:
                if not column.nullable and found[column.name].null_count:
                    raise LocalError(f"{file}: every row of {table.name} must have a {column.name}, and one has none")
            parts.append(found.cast(table.arrow))
    return pa.concat_tables(parts)


def write(frame: DataFrame, folder: Folder, table: Table) -> None:
    """Write a frame as the table in this folder, replacing the present one."""
    if isinstance(folder, ObjectFolder):
        names = tasks.put(table.conform(frame), folder, table)
        if not names:
            write_arrow(table.arrow.empty_table(), folder, table)
        for left in folder.names(table.name, deep=True).keys() - names if names else ():
            folder.delete(left)
        return
    with staged(folder / table.name) as partial:
        table.conform(frame).write.mode("overwrite").option("compression", "zstd").parquet(str(partial.absolute()))


def write_arrow(rows: pa.Table, folder: Folder, table: Table) -> None:
    """Write rows as the table in this folder, replacing the present one."""
    with staged(folder / table.name) as partial:
        partial.mkdir()
        pq.write_table(rows.select(table.names).cast(table.arrow), partial / "part-0.parquet", compression="zstd")


@contextmanager
def staged(target: Folder) -> Iterator[Path]:
    """Yield a path to write to; what is there when the block ends well takes its place, otherwise it goes."""
    if isinstance(target, ObjectFolder):
        with TemporaryDirectory(prefix="carrypost-table-") as scratch:
            yield (made := Path(scratch) / target.name)
            if made.is_file():
                target.put("", made)
            else:
                target.replace(
                    "", {file.relative_to(made).as_posix(): file for file in made.rglob("*") if file.is_file()}
                )
        return
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


def note(folder: Folder, table: Table, facts: Mapping[str, Any]) -> None:
    """Enter in the manifest where a table came from."""
    note_all(folder, {table: facts})


def note_all(folder: Folder, facts: Mapping[Table, Mapping[str, Any]]) -> None:
    """Enter in the manifest where tables came from."""
    made = {table.name: {**each, "version": carrypost.__version__} for table, each in facts.items()}
    content = manifest(folder) | made
    with staged(folder / MANIFEST) as partial:
        partial.write_text(json.dumps(content, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def manifest(folder: Folder) -> dict[str, Any]:
    """Return the manifest of this folder, by table; empty where there is none."""
    try:
        if isinstance(folder, ObjectFolder):
            content = json.loads(folder.read(MANIFEST) or b"{}")
        else:
            content = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        raise refused(f"{folder / MANIFEST} cannot be read as a manifest", error) from None
    return content if isinstance(content, dict) else {}


def texts_in(file: Folder, column: str) -> list[str]:
    """Return the texts of a column of a Parquet file, each once; of most groups of rows its statistics tell."""
    with readable(file) as content:
        read = pq.ParquetFile(content, read_dictionary=[column])
        place, found = read.schema_arrow.get_field_index(column), dict[str, None]()
        for group in range(read.num_row_groups):
            statistics = read.metadata.row_group(group).column(place).statistics
            if statistics is not None and statistics.has_min_max and statistics.min == statistics.max:
                found[statistics.min] = None
            else:
                found |= dict.fromkeys(pc.unique(read.read_row_group(group, [column])[column]).to_pylist())
    return list(found)
