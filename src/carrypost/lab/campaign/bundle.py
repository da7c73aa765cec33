"""Files that scenarios name, on their way to executors that may run anywhere.

A file is known by the hash of its bytes. It travels as a broadcast, and is unpacked once for all processes of an
executor, into a folder of this user alone inside the folder that Spark gives to that executor and removes with it. A
file is unpacked completely or not at all. A scenario finds its files by `Unpacked`, wherever they were and whatever
their names: beside it, above it or at the root.
"""

from __future__ import annotations

import atexit
import dataclasses
import hashlib
import os
import shutil
import stat
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from carrypost.emu.scenario.scenario import MOBILITY, Scenario
from carrypost.errors import LocalError
from carrypost.lab.schemas import CONTACTS, POSITIONS
from carrypost.log.files import digest, refused, refusing
from carrypost.traces.contact_tables import parquet_files

Fetch = Callable[[str], bytes]
"""The bytes that have this hash."""
_FOLDER = "carrypost"


class Part(NamedTuple):
    """One file."""

    path: str
    digest: str


class Named(NamedTuple):
    """The files that a key of a scenario names: a file, or a folder of files."""

    key: str
    name: str
    """Name of the file in the scenario."""
    path: str
    """Path on the driver's machine."""
    parts: tuple[Part, ...]
    folder: bool

    @property
    def digest(self) -> str:
        """Hash of the bytes of a file; of the names and bytes of a folder's files."""
        if not self.folder:
            return self.parts[0].digest
        listing = "".join(f"{self.inside(each)}\0{each.digest}\n" for each in self.parts)
        return hashlib.sha256(listing.encode()).hexdigest()

    def inside(self, part: Part) -> str:
        """Return the name of a file in its folder."""
        return Path(part.path).relative_to(self.path).as_posix()


def named(scenario: Scenario, digests: dict[Path, str]) -> tuple[Named, ...]:
    """Return the files that a scenario names, read once to hash them; `digests` remembers between scenarios."""
    return tuple(_named(key, name, path, digests) for key, name, path in scenario.files())


def _named(key: str, name: str, path: Path, digests: dict[Path, str]) -> Named:
    try:
        folder = path.is_dir()
        files = _files_in(path) if folder else [path]
        for each in files:
            if each not in digests:
                digests[each] = digest(each)
    except FileNotFoundError:
        raise LocalError(f"{key} names {path}, and there is no such file") from None
    except OSError as error:
        raise refused(f"{key} names {path}, which cannot be read", error) from None
    return Named(key, name, str(path), tuple(Part(str(each), digests[each]) for each in files), folder)


def _files_in(folder: Path) -> list[Path]:
    """Return the files of a folder, and of tables in it if it is one that `lab ingest` wrote."""
    found = [each for each in folder.iterdir() if each.is_file()]
    if not any(each.suffix == ".parquet" for each in found):
        found += [each for table in (POSITIONS, CONTACTS) for each in parquet_files(folder, table.name)]
    return sorted(found)


def contents(files: Sequence[Named]) -> Iterator[tuple[str, bytes]]:
    """Hash and bytes of every file, each content once."""
    seen: set[str] = set()
    for part in (part for each in files for part in each.parts):
        if part.digest in seen:
            continue
        seen.add(part.digest)
        with refusing(f"{part.path} cannot be read"):
            content = Path(part.path).read_bytes()
        if hashlib.sha256(content).hexdigest() != part.digest:
            raise LocalError(f"{part.path} changed while the campaign was starting; try again when it is complete")
        yield part.digest, content


# --- on an executor ------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Unpacked(Scenario):
    """A scenario whose files are somewhere else; its record is the same."""

    places: Mapping[str, Path]
    """By what the scenario calls them."""

    def path(self, file: str) -> Path:
        """Return the path of a file that the scenario names."""
        return self.places[file]


def unpacked(scenario: Scenario, files: Sequence[Named], fetch: Fetch) -> Unpacked:
    """Return the same scenario, with its files unpacked on this machine."""
    root = executor_folder()
    places = {each.name: _unpack(each, root, fetch) for each in files}
    fields: dict[str, Any] = {each.name: getattr(scenario, each.name) for each in dataclasses.fields(scenario)}
    moved = next((each for each in files if each.key == MOBILITY), None)
    if moved is not None:
        fields["mobility"] = dataclasses.replace(fields["mobility"], file=str(places[moved.name]))
    return Unpacked(**fields, places=places)


def executor_folder() -> Path:
    """Return a folder of this executor, for all its processes, which ends with it; only this user has access.

    Where Spark gives none, or another user made it, it is a new one of this process.
    """
    if given := os.environ.get("SPARK_LOCAL_DIRS", "").split(",")[0]:
        folder = Path(given) / _FOLDER
        with suppress(OSError):
            folder.parent.mkdir(parents=True, exist_ok=True)
            folder.mkdir(mode=stat.S_IRWXU, exist_ok=True)
            if _is_ours(folder):
                return folder
    with refusing("there is no folder for the files of scenarios"):
        return _own_folder(os.getpid())


def _is_ours(folder: Path) -> bool:
    """Return True if its contents are this user's: a folder that others can write to is not trusted."""
    found = folder.lstat()
    return (
        stat.S_ISDIR(found.st_mode)
        and found.st_uid == os.geteuid()
        and not found.st_mode & (stat.S_IRWXG | stat.S_IRWXO)
    )


@cache
def _own_folder(pid: int) -> Path:
    """Return the folder of a process: a forked one makes its own, and removes no other."""
    made = Path(tempfile.mkdtemp(prefix=f"{_FOLDER}-"))

    def end() -> None:
        if os.getpid() == pid:
            shutil.rmtree(made, ignore_errors=True)

    atexit.register(end)
    return made


def _unpack(each: Named, root: Path, fetch: Fetch) -> Path:
    name = Path(each.path).name
    name = name if name.strip(".") else "files"
    home = root / hashlib.sha256(f"{name}\0{each.digest}".encode()).hexdigest()
    target = home / name
    if home.is_dir():
        return target
    root.mkdir(mode=stat.S_IRWXU, parents=True, exist_ok=True)
    partial = Path(tempfile.mkdtemp(dir=root, prefix=".partial-"))
    try:
        inside = partial / target.name
        if each.folder:
            inside.mkdir()
        for part in each.parts:
            file = inside / each.inside(part) if each.folder else inside
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(fetch(part.digest))
        _move(partial, home)
    except OSError as error:
        raise refused(f"{each.path} cannot be unpacked in {root}", error) from None
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    return target


def _move(partial: Path, home: Path) -> None:
    try:
        partial.rename(home)
    except OSError:
        if not home.is_dir():  # Otherwise another process of this executor was quicker.
            raise
