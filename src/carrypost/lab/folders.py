"""Folders on disk or of objects, the tables in them, each complete or absent, and the manifest beside these.

A table is a folder of Parquet files. On disk it is written into a hidden folder next to its place, and moved there when
it is complete; a failure before that leaves the previous table. ``manifest.json`` describes, by table, its origin:
source, parameters, counts, version. The driver and all executors must see a folder on disk under the same path.

A folder of objects is named by a URI that `pyarrow.fs` opens: ``s3://bucket/results``, ``hdfs://host/results``. An
object is there whole or not at all, as one put writes it; nothing is renamed, and nothing is locked. What a program
needs as a file is fetched into a folder of its own, and what it makes is put. ``s3://`` takes the address and keys from
the environment as other programs do (``AWS_ENDPOINT_URL``, ``AWS_ACCESS_KEY_ID`` and so on), or from the URI.

Among objects, a file of a table is put whole, and files of the previous table are removed after that. On Spark, tasks
read the files and put them, by `pyarrow.fs`: executors need no folder that they share, and Spark no connector of its
own for the store. A task writes its part of a table to a file of its machine and puts it as one object. A repeated task
puts the same object again.
"""

from __future__ import annotations

import json
import os
import re
import secrets
import shutil
import tempfile
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar
from urllib.parse import parse_qs, quote, urlsplit
from urllib.request import url2pathname

import pyarrow as pa
import pyarrow.fs as pa_fs
import pyarrow.parquet as pq

import carrypost
from carrypost.emu import records
from carrypost.errors import LocalError
from carrypost.lab.schemas import Table
from carrypost.lab.spark import java
from carrypost.log.files import PARTIAL, abandoned, partial, refused, refusing

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


_AT_ONCE = 16
"""Objects that are moved at the same time: each waits for the network."""
_BLOCK_BYTES = 8 << 20


class Object(NamedTuple):
    """Entry of a listing for an object."""

    size: int
    mtime_ns: int


@dataclass(frozen=True, slots=True, order=True)
class ObjectFolder:
    """A folder of objects, or with the name ``""`` an object of its own; executors open it for themselves.

    It has some methods of `Path`, so that tables are read and written in both by the same functions.
    """

    uri: str

    def __str__(self) -> str:
        """Return the URI without keys and options."""
        parts = urlsplit(self.uri)
        return parts._replace(query="", netloc=parts.netloc.rpartition("@")[2]).geturl().rstrip("/")

    def __truediv__(self, name: str) -> ObjectFolder:
        """Return a folder or an object in this folder."""
        parts = urlsplit(self.uri)
        return ObjectFolder(parts._replace(path=f"{parts.path.rstrip('/')}/{name}").geturl())

    @property
    def name(self) -> str:
        """Last part of its path."""
        return urlsplit(self.uri).path.rstrip("/").rpartition("/")[2]

    def with_name(self, name: str) -> ObjectFolder:
        """Return the folder or object beside it that is called so."""
        parts = urlsplit(self.uri)
        return ObjectFolder(parts._replace(path=f"{parts.path.rstrip('/').rpartition('/')[0]}/{name}").geturl())

    def absolute(self) -> ObjectFolder:
        """Return itself."""
        return self

    def is_file(self) -> bool:
        """Return True if it is an object."""
        system, path = self._place("")
        with refusing(f"{self} cannot be read", pa.ArrowException):
            return bool(system.get_file_info(path).type == pa_fs.FileType.File)

    def is_dir(self) -> bool:
        """Return True if there are objects in it."""
        return bool(self.names("", deep=True))

    def exists(self) -> bool:
        """Return True if it is an object, or a folder with objects."""
        return self.is_file() or self.is_dir()

    def _place(self, name: str) -> tuple[pa_fs.FileSystem, str]:
        system, base = _opened(self.uri)
        return system, f"{base}/{name}".rstrip("/")

    def names(self, folder: str, *, deep: bool = False) -> dict[str, Object]:
        """Return the objects in a folder by their names below this one."""
        system, path = self._place(folder)
        _, base = _opened(self.uri)
        with refusing(f"{self}/{folder} cannot be listed", pa.ArrowException):
            found = system.get_file_info(pa_fs.FileSelector(path, recursive=deep, allow_not_found=True))
        return {
            each.path.removeprefix(f"{base}/"): Object(each.size, each.mtime_ns or 0)
            for each in found
            if each.type == pa_fs.FileType.File
        }

    def read(self, name: str) -> bytes | None:
        """Return an object; None: there is none."""
        system, path = self._place(name)
        if system.type_name == "hdfs" and system.get_file_info(path).type == pa_fs.FileType.NotFound:
            return None  # Its library writes a trace of Java to stderr if a file is opened that is not there.
        try:
            with system.open_input_stream(path) as stream:
                content: bytes = stream.read()
        except FileNotFoundError:
            return None
        except (OSError, pa.ArrowException) as error:
            raise refused(f"{self}/{name} cannot be read", error) from None
        return content

    @contextmanager
    def opened(self, name: str = "") -> Iterator[pa.NativeFile]:
        """Yield an object to read parts of."""
        system, path = self._place(name)
        with refusing(f"{self}/{name} cannot be read", pa.ArrowException), system.open_input_file(path) as file:
            yield file

    def write(self, name: str, content: bytes) -> None:
        """Put an object."""
        system, path = self._place(name)
        with refusing(f"{self}/{name} cannot be written", pa.ArrowException), system.open_output_stream(path) as stream:
            stream.write(content)

    def put(self, name: str, file: Path) -> None:
        """Put a file as an object."""
        system, path = self._place(name)
        with (
            refusing(f"{self}/{name} cannot be written", pa.ArrowException),
            file.open("rb") as content,
            system.open_output_stream(path) as stream,
        ):
            shutil.copyfileobj(content, stream, _BLOCK_BYTES)

    def fetch(self, name: str, file: Path) -> Path:
        """Write an object to a file; returns the file."""
        system, path = self._place(name)
        file.parent.mkdir(parents=True, exist_ok=True)
        with (
            refusing(f"{self}/{name} cannot be read", pa.ArrowException),
            system.open_input_stream(path) as stream,
            file.open("wb") as to,
        ):
            shutil.copyfileobj(stream, to, _BLOCK_BYTES)
        return file

    def delete(self, name: str) -> None:
        """Remove an object, if it is there."""
        system, path = self._place(name)
        try:
            system.delete_file(path)
        except FileNotFoundError:
            pass
        except (OSError, pa.ArrowException) as error:
            if system.get_file_info(path).type != pa_fs.FileType.NotFound:
                raise refused(f"{self}/{name} cannot be removed", error) from None

    def clear(self) -> None:
        """Remove all objects in it."""
        system, path = self._place("")
        try:
            system.delete_dir(path)
        except FileNotFoundError:
            pass
        except (OSError, pa.ArrowException) as error:
            if self.is_dir():
                raise refused(f"{self} cannot be removed", error) from None

    def read_all(self, names: Iterable[str]) -> dict[str, bytes]:
        """Return those of these objects that are there."""
        wanted = list(names)
        with ThreadPoolExecutor(_AT_ONCE) as pool:
            found = dict(zip(wanted, pool.map(self.read, wanted), strict=True))
        return {name: content for name, content in found.items() if content is not None}

    def mirror(self, folder: str, local: Path, *, only: re.Pattern[str] | None = None) -> None:
        """Fetch all objects of a folder, or those with such names, with their times; names go on below the folder."""
        there = self.names(folder, deep=True)
        if only is not None:
            there = {name: about for name, about in there.items() if only.fullmatch(name)}

        def fetch(name: str) -> None:
            file = self.fetch(name, local / name.removeprefix(f"{folder}/"))
            os.utime(file, ns=(there[name].mtime_ns, there[name].mtime_ns))

        with ThreadPoolExecutor(_AT_ONCE) as pool:
            list(pool.map(fetch, there))

    def replace(self, folder: str, files: Mapping[str, Path]) -> None:
        """Put files in place of all objects of a folder: those that are new, or of another size or time, first."""
        there = self.names(folder, deep=True)
        wanted = {f"{folder}/{name}".lstrip("/"): file for name, file in files.items()}
        with ThreadPoolExecutor(_AT_ONCE) as pool:
            new = [name for name, file in wanted.items() if not _is_same(there.get(name), file)]
            list(pool.map(lambda name: self.put(name, wanted[name]), new))
            list(pool.map(self.delete, there.keys() - wanted.keys()))


def _is_same(there: Object | None, file: Path) -> bool:
    found = file.stat()
    return there == Object(found.st_size, found.st_mtime_ns)


@lru_cache(maxsize=64)
def _opened(uri: str) -> tuple[pa_fs.FileSystem, str]:
    scheme = urlsplit(uri).scheme
    try:
        with java.ready() if scheme in java.SCHEMES else nullcontext():
            system, path = pa_fs.FileSystem.from_uri(uri)
    except (OSError, ValueError, pa.ArrowException) as error:
        raise LocalError(f"{scheme}:// cannot be opened: {error}") from None
    return system, path.rstrip("/")


Folder = Path | ObjectFolder
AnyFolder = TypeVar("AnyFolder", Path, ObjectFolder, Folder)


@contextmanager
def readable(file: Folder) -> Iterator[Path | pa.NativeFile]:
    """Yield what readers of Parquet read: a path, or an object that is opened."""
    if isinstance(file, Path):
        yield file
        return
    with file.opened() as content:
        yield content


@contextmanager
def working(folder: Folder, needs: Iterable[str] = ()) -> Iterator[Path]:
    """Yield a folder on this machine with these files of a folder, which gets the files that the block adds."""
    if isinstance(folder, Path):
        yield folder
        return
    with TemporaryDirectory(prefix="carrypost-work-") as scratch:
        local = Path(scratch)
        there = {folder.fetch(name, local / name) for name in needs}
        yield local
        for file in sorted(each for each in local.rglob("*") if each.is_file() and each not in there):
            folder.put(file.relative_to(local).as_posix(), file)


def remove(folder: Folder) -> None:
    """Remove a folder with all that is in it, as far as it can be removed."""
    if isinstance(folder, Path):
        shutil.rmtree(folder, ignore_errors=True)
        return
    with suppress(LocalError):
        folder.clear()


@contextmanager
def local_copies(files: Sequence[Folder]) -> Iterator[list[Path]]:
    """Yield the paths of files on this machine; those that are objects are copied to a temporary folder."""
    with TemporaryDirectory(prefix="carrypost-inputs-") as scratch:
        yield [
            each if isinstance(each, Path) else each.fetch("", Path(scratch) / str(number) / each.name)
            for number, each in enumerate(files)
        ]


def folder_of(text: str) -> Folder:
    """Return the folder that a text names: a path, or a URI; file:// is a path."""
    parts = urlsplit(text)
    if parts.scheme == "file":
        if parts.netloc not in {"", "localhost"} or not parts.path.startswith("/"):
            raise LocalError(f"{text} must name a folder of this machine: file:// and a path that begins with /")
        return Path(url2pathname(parts.path))
    return ObjectFolder(_with_endpoint(text)) if "://" in text else Path(text)


def _with_endpoint(uri: str) -> str:
    """Return a URI that names the store of the environment: executors may have another environment."""
    parts = urlsplit(uri)
    endpoint = os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL", "")
    if parts.scheme != "s3" or not endpoint or "endpoint_override" in parse_qs(parts.query):
        return uri
    at = urlsplit(endpoint)
    query = f"endpoint_override={quote(at.netloc)}&scheme={at.scheme}"
    return parts._replace(query="&".join(filter(None, (parts.query, query)))).geturl()


_Batches = Iterable[pa.RecordBatch]


def _read_objects(spark: SparkSession, files: Sequence[ObjectFolder], table: Table) -> DataFrame:
    """Return files of a table as a frame; a task reads a group of rows."""
    groups = []
    for file in files:
        with readable(file) as content:
            groups += [(file, number) for number in range(pq.ParquetFile(content).num_row_groups)]
    names, schema = table.names, table.arrow

    def rows(batches: _Batches) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for index in batch.column(0).to_pylist():
                file, number = groups[index]
                with readable(file) as content:
                    found = pq.ParquetFile(content).read_row_group(number, columns=names)
                yield from found.select(names).cast(schema).to_batches()

    return spark.range(0, len(groups), 1, max(1, len(groups))).mapInArrow(rows, table.spark)


def _put_objects(frame: DataFrame, folder: ObjectFolder, table: Table) -> set[str]:
    """Put the partitions of a frame as objects of a table, in their order; return the names of the objects."""
    schema, token = table.arrow, secrets.token_hex(8)

    def parts(batches: _Batches) -> Iterator[pa.RecordBatch]:
        from pyspark import TaskContext  # noqa: PLC0415 - of the executor

        context = TaskContext.get()
        assert context is not None, "it runs as a task"
        name = f"{table.name}/part-{context.partitionId():05d}-{token}.parquet"
        with tempfile.TemporaryDirectory(prefix="carrypost-part-") as scratch:
            made = Path(scratch) / "part.parquet"
            with pq.ParquetWriter(made, schema, compression="zstd") as writer:
                for batch in batches:
                    writer.write_table(pa.Table.from_batches([batch]).cast(schema))
            if pq.read_metadata(made).num_rows:
                folder.put(name, made)
                yield pa.RecordBatch.from_pydict({"name": [name]})

    return {row.name for row in frame.mapInArrow(parts, "name string").collect()}


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
        return _read_objects(spark, parquet_files(path, table), table)
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
        names = _put_objects(table.conform(frame), folder, table)
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
    """Return the texts of a column of a Parquet file, each once."""
    with readable(file) as content:
        return records.texts_in(pq.ParquetFile(content, read_dictionary=[column]), column)
