"""Folders of objects, named by a URI that `pyarrow.fs` opens: ``s3://bucket/results``, ``hdfs://host/results``.

An object is there whole or not at all, as one put writes it; nothing is renamed, and nothing is locked. What a program
needs as a file is fetched into a folder of its own, and what it makes is put. ``s3://`` takes the address and keys from
the environment as other programs do (``AWS_ENDPOINT_URL``, ``AWS_ACCESS_KEY_ID`` and so on), or from the URI.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple, TypeVar
from urllib.parse import parse_qs, quote, urlsplit
from urllib.request import url2pathname

import pyarrow as pa
import pyarrow.fs as pa_fs

from carrypost.errors import LocalError
from carrypost.lab.spark import hadoop
from carrypost.log.files import refused, refusing

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
            while block := content.read(_BLOCK_BYTES):
                stream.write(block)

    def fetch(self, name: str, file: Path) -> Path:
        """Write an object to a file; returns the file."""
        system, path = self._place(name)
        file.parent.mkdir(parents=True, exist_ok=True)
        with (
            refusing(f"{self}/{name} cannot be read", pa.ArrowException),
            system.open_input_stream(path) as stream,
            file.open("wb") as to,
        ):
            while block := stream.read(_BLOCK_BYTES):
                to.write(block)
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
        with hadoop.ready() if scheme in hadoop.SCHEMES else nullcontext():
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
