"""Text files that people bring: contacts, presences, scripts, movement.

Files may be packed with gzip or xz, or be the only file in a zip file; that is recognized by the first bytes, whatever
the name. A CSV file has a header, and its columns are found by name; others are ignored or, if asked for, refused. A
time is a number of seconds, rounded to a whole microsecond here and nowhere else. Whatever is wrong is a `LocalError`
that names the file and the line.
"""

from __future__ import annotations

import csv
import gzip
import io
import lzma
import math
import zipfile
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path
from typing import IO, Any, NamedTuple

from carrypost.config.rules import nearest
from carrypost.errors import LocalError
from carrypost.log.files import refusing
from carrypost.model.times import MICROSECONDS
from carrypost.security.identity import Identity

TIME_S_MAX = 9e9
"""Latest time. Beyond it a float cannot hold every microsecond, and the unit is probably wrong."""
_PACKED = {"gzip": (b"\x1f\x8b",), "xz": (b"\xfd7zXZ\x00",), "zip": (b"PK\x03\x04", b"PK\x05\x06")}
"""First bytes of packed files."""
_OPEN: Mapping[str, Any] = {"gzip": gzip.open, "xz": lzma.open, "": Path.open}
_ENCRYPTED = 1
"""Flag of a file in a zip file."""
CONTACT_COLUMNS = ("a", "b", "start", "end")
"""Columns of files of contacts."""
HEARD = "heard"
"""Column that they may have besides: the node that is heard, or nothing if both are."""


class Line(NamedTuple):
    """A line of a file, for errors about it."""

    name: str
    number: int
    """0: it is about the whole file."""

    def error(self, message: str) -> LocalError:
        """Return the error to raise, with the file, the line, if there is one, and the message."""
        return LocalError(f"{self.name}{f', line {self.number}' if self.number else ''}: {message}")

    def number_of(self, text: str, what: str) -> float:
        """Return a finite number."""
        try:
            value = float(text)
        except ValueError:
            value = math.nan
        if not math.isfinite(value):
            raise self.error(f"{what} must be a number, not {text!r}")
        return value

    def node(self, name: str) -> str:
        """Return a name that a node can have."""
        try:
            Identity.plain(name)
        except LocalError as error:
            raise self.error(str(error)) from None
        return name

    def time_us(self, text: str, what: str) -> int:
        """Return a time of the run, given in seconds."""
        seconds = self.number_of(text, what)
        if not 0 <= seconds <= TIME_S_MAX:
            raise self.error(f"{what} must be a time from 0 to {TIME_S_MAX:,.0f} s, not {text.strip()}")
        return round(seconds * MICROSECONDS)


class CsvRow:
    """A row of a CSV file; cells are looked at when they are asked for."""

    __slots__ = ("line", "_cells", "_positions")

    def __init__(self, line: Line, cells: list[str], positions: dict[str, int]) -> None:
        self.line = line
        self._cells = cells
        self._positions = positions

    def __contains__(self, column: str) -> bool:
        """Return True if this cell is there and not empty."""
        return column in self._positions and bool(self._cells[self._positions[column]].strip())

    def text(self, column: str) -> str:
        """Return a text that is not empty."""
        if not (found := self._cells[self._positions[column]].strip()):
            raise self.line.error(f"{column} must not be empty")
        if not found.isprintable():
            raise self.line.error(f"{column} has characters that cannot be shown: {found!r}")
        return found

    def number(self, column: str) -> float:
        """Return a finite number."""
        return self.line.number_of(self.text(column), column)

    def time_us(self, column: str) -> int:
        """Return a time of the run, given in seconds."""
        return self.line.time_us(self.text(column), column)


def brief(t_us: int) -> str:
    """Seconds for people, with no more digits than needed."""
    whole, rest = divmod(abs(t_us), MICROSECONDS)
    return ("-" if t_us < 0 else "") + f"{whole}.{rest:06}".rstrip("0").rstrip(".")


def has_content(line: str) -> bool:
    """Return True if a line is neither blank nor a comment."""
    return bool(line.strip()) and not line.lstrip().startswith("#")


def explained(path: Path) -> AbstractContextManager[None]:
    """Raise a sentence for a file that cannot be read."""
    of_packed = EOFError, zlib.error, lzma.LZMAError, zipfile.BadZipFile, NotImplementedError
    return refusing(f"{path} cannot be read", *of_packed, missing=f"{path}: there is no such file")


def packing(path: Path) -> str:
    """Return the compression of a file; empty: none."""
    with explained(path), path.open("rb") as stream:
        start = stream.read(6)
    return next((name for name, magic in _PACKED.items() if start.startswith(magic)), "")


@contextmanager
def opened(path: Path) -> Iterator[IO[bytes]]:
    """Yield the text of a file, unpacked."""
    kind = packing(path)
    with explained(path), ExitStack() as ending:
        if kind == "zip":
            archive = ending.enter_context(zipfile.ZipFile(path))
            yield ending.enter_context(archive.open(_only(archive, path)))
        else:
            yield ending.enter_context(_OPEN[kind](path, "rb"))


def _only(archive: zipfile.ZipFile, path: Path) -> zipfile.ZipInfo:
    # Packers of one system leave notes of their own.
    files = [each for each in archive.infolist() if not (each.is_dir() or each.filename.startswith("__MACOSX/"))]
    if len(files) != 1:
        raise LocalError(
            f"{path} must hold one text file, and holds {len(files)}: unpack it, and name the files you want"
        )
    if files[0].flag_bits & _ENCRYPTED:
        raise LocalError(f"{path} is encrypted: unpack it first")
    return files[0]


def read_text(path: str | Path) -> str:
    """Return the text of a file, packed or not."""
    with opened(Path(path)) as stream:
        data = stream.read()
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise LocalError(f"{path}: is not UTF-8 text (byte {error.start})") from None


def rows(
    text: str, name: str, columns: Sequence[str], optional: Sequence[str] = (), *, others: bool = True
) -> Iterator[CsvRow]:
    """Yield the rows of a CSV text; empty lines are skipped.

    All of `columns` must be there; those of `optional` may be missing, as if empty. `others`: further columns are
    ignored, not refused.
    """
    reader = csv.reader(io.StringIO(text, newline=""), skipinitialspace=True)
    positions: dict[str, int] = {}
    width = columns_there = 0
    try:
        for cells in reader:
            if not any(map(str.strip, cells)):
                continue
            line = Line(name, reader.line_num)
            if not positions:
                positions = _header(line, [cell.strip() for cell in cells], columns, optional)
                if not others:
                    check_columns(line, [cell.strip() for cell in cells], columns, optional)
                width, columns_there = max(positions.values()) + 1, len(cells)
                continue
            if len(cells) < width:
                missing = next(column for column, position in positions.items() if position >= len(cells))
                raise line.error(f"{missing} is missing: the row has {len(cells)} cells")
            # Numbers with a decimal comma give more cells than columns, and change every number.
            if any(map(str.strip, cells[columns_there:])):
                raise line.error(f"the row has {len(cells)} cells, the header names {columns_there} columns")
            yield CsvRow(line, cells, positions)
    except csv.Error as error:
        raise Line(name, reader.line_num).error(f"is not CSV: {error}") from None
    if not positions:
        wanted = ", ".join(columns)
        raise LocalError(f"{name}, line 1: the file is empty; it must start with a header that names {wanted}")


def check_columns(line: Line, found: Iterable[str], columns: Sequence[str], optional: Sequence[str]) -> None:
    """Refuse columns that mean nothing here."""
    known = (*columns, *optional)
    if unknown := next((name for name in found if name not in known), None):
        wanted = f"{', '.join(columns)} and perhaps {', '.join(optional)}"
        raise line.error(f"column {unknown!r} is not known{nearest(unknown, known)}; the columns are {wanted}")


def _header(line: Line, cells: list[str], columns: Sequence[str], optional: Sequence[str]) -> dict[str, int]:
    for column in columns:
        if column not in cells:
            wanted, found = ", ".join(columns), ", ".join(cells)
            raise line.error(f"column {column} is missing; the header must name {wanted}, found {found}")
    for column in cells:
        if column in (*columns, *optional) and cells.count(column) > 1:
            raise line.error(f"column {column} appears twice")
    return {column: cells.index(column) for column in (*columns, *optional) if column in cells}
