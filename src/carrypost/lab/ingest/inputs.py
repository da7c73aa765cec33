"""Inputs of `lab ingest`: files as blocks of whole lines, and the request: what users may say about files, checked.

Files are plain or compressed. They are read once from front to back, or in parts by byte ranges. Parts of a file are
ranges of bytes that begin after a line end and end with one; all of them together are the file.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date, datetime
from pathlib import Path
from typing import IO, Any

from carrypost.errors import LocalError
from carrypost.lab import folders
from carrypost.lab.engines import EngineName
from carrypost.lab.folders import Folder
from carrypost.lab.schemas import CONTACTS, POSITIONS, Table
from carrypost.lab.spark.session import SparkOptions
from carrypost.log.files import digest
from carrypost.security.identity import Identity
from carrypost.traces.csvfiles import explained, opened, packing
from carrypost.traces.formats import ALIASES, FORMATS, Format, Options
from carrypost.traces.formats.lines import UNITS, plain_name
from carrypost.traces.formats.syntax import node_of

HEAD_BYTES = 1 << 20
BLOCK_BYTES = 16 << 20
LINE_BYTES_MAX = 1 << 20
LONG_BYTES = 1 << 30
"""Length beyond which texts need not be distinguished."""
_READ_BYTES = 1 << 20
_WIDE = (b"\xff\xfe", b"\xfe\xff")


def head(path: Path) -> bytes:
    """Return the first lines of a file."""
    with opened(path) as stream:
        data = stream.read(HEAD_BYTES)
    if data.startswith(_WIDE) or b"\x00" in data:
        raise LocalError(f"{path} is not UTF-8 text")
    if b"\r" in data.strip() and b"\n" not in data:
        raise LocalError(
            f"{path}: its lines must end with LF or CR LF, not with CR alone; convert it with tr '\\r' '\\n' "
            "< FILE > NEW"
        )
    whole = len(data) < HEAD_BYTES
    return data if whole else data[: data.rfind(b"\n") + 1] or data


def facts(path: Path, name: str) -> dict[str, Any]:
    """Name, size and digest of a file; of a folder (a feed), as `sha256sum *.txt | sha256sum` has it."""
    if path.is_dir():
        files = {file.name: facts(file, file.name) for file in sorted(path.glob("*.txt")) if file.is_file()}
        listed = "".join(f"{file['sha256']}  {name}\n" for name, file in files.items())
        count, sha256 = sum(file["bytes"] for file in files.values()), hashlib.sha256(listed.encode()).hexdigest()
        return {"file": name, "bytes": count, "sha256": sha256}
    with explained(path):
        return {"file": name, "bytes": path.stat().st_size, "sha256": digest(path)}


def text_bytes(path: Path) -> int:
    """Return the length of the text.

    A compressed one is read until it is known to be long: a small file may hold much.
    """
    if not packing(path):
        with explained(path):
            return path.stat().st_size
    total = 0
    with opened(path) as stream:
        while total < LONG_BYTES and (data := stream.read(_READ_BYTES)):
            total += len(data)
    return total


def blocks(path: Path, block_bytes: int = BLOCK_BYTES) -> Iterator[tuple[int, bytes]]:
    """Yield the whole text in blocks of lines, each with the number of its first line."""
    number, left = 1, b""
    with opened(path) as stream, explained(path):
        while data := stream.read(block_bytes):
            end = data.rfind(b"\n") + 1
            if not end:
                left = _grown(path, number, left + data)
                continue
            block, left = left + data[:end], data[end:]
            yield number, block
            number += block.count(b"\n")
        if left:
            yield number, left


def _grown(path: Path, number: int, data: bytes) -> bytes:
    if len(data) > max(LINE_BYTES_MAX, BLOCK_BYTES):
        raise LocalError(
            f"{path}, line {number}: is longer than {LINE_BYTES_MAX:,} bytes; the file must be text in lines"
        )
    return data


def unpacked(path: Path, folder: Path) -> Path:
    """Return a plain file with the text: itself, or a copy in this folder."""
    if not packing(path):
        return path
    made = folder / f"{hashlib.sha256(str(path).encode()).hexdigest()[:16]}.txt"
    with opened(path) as stream:
        while data := stream.read(_READ_BYTES):
            # Here and not around it: an error of writing names the copy, not the file.
            with folders.errors_naming(made), made.open("ab") as copy:
                copy.write(data)
    return made


def ranges(path: Path, block_bytes: int = BLOCK_BYTES) -> list[tuple[int, int]]:
    """Ranges of bytes of a plain file that hold whole lines, of about that size."""
    found: list[tuple[int, int]] = []
    with explained(path), path.open("rb") as stream:
        size = path.stat().st_size
        start = 0
        while start < size:
            end = _line_end(stream, min(start + block_bytes, size), size)
            found.append((start, end))
            start = end
    return found


def _line_end(stream: IO[bytes], position: int, size: int) -> int:
    """Return the first position from there on that follows a line end; the end of the file counts."""
    stream.seek(position - 1)
    while position < size:
        data = stream.read(_READ_BYTES)
        found = data.find(b"\n")
        if found >= 0:
            return min(size, stream.tell() - len(data) + found + 1)
        position += len(data)
    return size


def part(path: Folder, start: int, end: int) -> bytes:
    """Return a range of bytes of a plain file or object."""
    try:
        with path.open("rb") if isinstance(path, Path) else path.opened() as stream:
            stream.seek(start)
            found: bytes = stream.read(end - start)
            return found
    except FileNotFoundError:
        raise LocalError(f"{path}: all executors must see this file under the same path; one does not") from None


GTFS = "gtfs"
NAMES = (*FORMATS, *ALIASES, GTFS)
_YEAR_MIN = 1970
SMALL_BYTES = 256 << 20
"""Bytes of text up to which one process is faster; it needs about seven times as much memory."""
OPTIONS = (
    "interval_s", "distance_m", "columns", "node_from_name", "nodes", "time_unit", "date", "date_from_name", "overlaps",
    "unsorted", "both_ways", "same_time",
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class IngestRequest:
    """A request to ingest the files of one trace."""

    paths: Sequence[Path]
    format: str
    scenario: str
    out: Folder
    copies_of: Mapping[Path, Folder] = field(default_factory=dict)
    """Files of which paths are copies on this machine: objects, which tasks read instead."""
    options: Options = field(default_factory=Options)
    day: str | None = None
    shapes: bool = True
    """True if vehicles keep to the shapes of a timetable; else they go straight from stop to stop."""
    route_types: tuple[str, ...] = ()
    """Of a timetable: only routes of these types."""
    lenient: bool = False
    engine: EngineName = "spark"
    spark: SparkOptions = field(default_factory=SparkOptions)
    block_bytes: int = BLOCK_BYTES

    @property
    def small(self) -> bool:
        """True if one process has read it before Spark has started; a timetable never uses Spark."""
        if self.name == GTFS or not all(path.is_file() for path in self.paths):
            return False
        return sum(path.stat().st_size for path in self.paths) <= SMALL_BYTES

    def __post_init__(self) -> None:
        if self.name not in (*FORMATS, GTFS):
            raise LocalError(f"--format must be one of {', '.join(sorted(NAMES))}, not {self.format!r}")
        if not self.scenario or not self.scenario.isprintable():
            raise LocalError(f"--scenario must be a name, not {self.scenario!r}")
        takes = FORMATS[self.name].takes | {"nodes"} if self.name in FORMATS else frozenset()
        usual = Options()
        for each in OPTIONS:
            if each not in takes and getattr(self.options, each) != getattr(usual, each):
                raise LocalError(f"--{each.replace('_', '-')} cannot be used with {self.name}{_whom(each)}")
        if (self.day is None) != (self.name != GTFS):
            text = "needs a day of service: --day 2014-06-03" if self.day is None else "takes no --day"
            raise LocalError(f"--format {self.name} {text}")
        for option, given in (("--no-shapes", not self.shapes), ("--route-type", self.route_types)):
            if given and self.name != GTFS:
                raise LocalError(f"{option} cannot be used with {self.name}; it is for {GTFS}")
        _check_numbers(self.options)
        _check_times(self.options, len(self.paths))

    @property
    def name(self) -> str:
        """The format, by its own name."""
        return ALIASES.get(self.format, self.format)

    @property
    def form(self) -> Format:
        """Rules by which the lines of its files are read."""
        return FORMATS[self.name]

    @property
    def names(self) -> list[str]:
        """Names of the files in errors."""
        return [str(self.copies_of.get(path, path)) for path in self.paths]

    @property
    def table(self) -> Table:
        """Table that the ingest makes."""
        return POSITIONS if self.name == GTFS or FORMATS[self.name].gives == "positions" else CONTACTS


def _whom(option: str) -> str:
    if option == "nodes":
        return "; choose routes with --route-type"
    whom = sorted(name for name, each in FORMATS.items() if option in each.takes)
    return f"; it is for {', '.join(whom)}" if whom else ""


def _check_numbers(options: Options) -> None:
    if options.interval_s is not None and not 0 < options.interval_s <= 1e6:  # noqa: PLR2004 - twelve days
        raise LocalError(f"--interval-s must be a number above 0 and up to 1,000,000, not {options.interval_s:g}")
    if options.distance_m is not None and not 0 <= options.distance_m <= 1e6:  # noqa: PLR2004 - a thousand kilometres
        raise LocalError(f"--distance-m must be a number from 0 to 1,000,000, not {options.distance_m:g}")


def _check_times(options: Options, files: int) -> None:
    if options.time_unit not in UNITS:
        raise LocalError(f"--time-unit must be one of {', '.join(UNITS)}, not {options.time_unit!r}")
    if options.date and options.date_from_name:
        raise LocalError("--date and --date-from-name both say the day: leave out one of them")
    if not (options.date or options.date_from_name):
        return
    if options.time_unit != "s":
        which = "--date" if options.date else "--date-from-name"
        raise LocalError(f"--time-unit is for numeric times and {which} for times of day: leave out one of them")
    if options.date_from_name:
        return
    if files > 1 and not options.node_from_name:
        raise LocalError(
            f"--date is one day, and {files:,} files are named; to date each by its name: --date-from-name '%Y-%m-%d'"
        )
    try:
        date.fromisoformat(options.date)
    except ValueError:
        raise LocalError(f"--date must be a day such as 2014-06-03, not {options.date!r}") from None


def day_of(path: str, pattern: str) -> str:
    """Return the day in the name of a file, without folder and ending, by a pattern of strptime."""
    called = node_of(path)
    try:
        day = datetime.strptime(called, pattern).date()  # noqa: DTZ007 - only its day is used
    except (ValueError, re.error):
        example = f"{date(2007, 3, 25):{pattern}}"
        raise LocalError(
            f"{path}: its name, {called!r}, is not a day as --date-from-name {pattern!r} writes one; {example!r} is"
        ) from None
    if day.year < _YEAR_MIN:
        raise LocalError(
            f"{path}: --date-from-name {pattern!r} gives the day {day}; the pattern needs year, month and day"
        )
    return day.isoformat()


def check_file_names(paths: Sequence[str]) -> None:
    """Check that the names of files of one node each are distinct, and are valid names of nodes."""
    files: dict[str, str] = {}
    for path in paths:
        node = node_of(path)
        try:
            Identity.plain(plain_name(node))
        except LocalError as error:
            raise LocalError(f"{path} does not name a node, as --node-from-name requires: {error}") from None
        if (other := files.setdefault(node, path)) != path:
            raise LocalError(f"{other} and {path} would both belong to node {node} with --node-from-name; rename one")
