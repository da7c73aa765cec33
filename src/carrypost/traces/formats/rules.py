"""Rules of formats: a rule turns lines into rows, and reports faults of lines.

A rule knows the syntax of one file's lines, its header included, and nothing of other lines: blocks of a file can be
read in any order and anywhere. Faults that concern several lines are found when all rows of a node or a pair are
together; see `assembly`. Rows of all formats have the same columns, of which each format uses some.

A line is identified by `at`: the number of its file among those read together, and its number in that file.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, Protocol, Self

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from carrypost.arrays import Flags, Ints
from carrypost.errors import LocalError
from carrypost.traces.csvfiles import brief
from carrypost.traces.formats.lines import Checks, Clock, Lines, flags

BAD_SHOWN = 10
"""Bad lines of a block that are kept; more are counted."""
_TEXT_SHOWN = 80
_FILE_SHIFT = 40

ROWS = pa.schema(
    [
        ("a", pa.string()),  # node, or one of two
        ("b", pa.string()),  # the other of two
        ("at", pa.int64()),
        ("kind", pa.int8()),
        ("t_us", pa.int64()),
        ("until_us", pa.int64()),
        ("x", pa.float64()),
        ("y", pa.float64()),
        ("v", pa.float64()),
    ]
)
"""Columns of rows; those that a format has no use for are null."""


def at(file: int, line: int) -> int:
    """Return the number that stands for a line of a file."""
    return (file << _FILE_SHIFT) + line


def where(place: int) -> tuple[int, int]:
    """Return the file and the line that a number stands for."""
    return place >> _FILE_SHIFT, place & ((1 << _FILE_SHIFT) - 1)


class Bad(NamedTuple):
    """A line that cannot be used."""

    at: int
    text: str
    why: str


class FileFault(NamedTuple):
    """A fault that makes a whole file useless; {other} in the message stands for another line."""

    at: int
    message: str
    other: int = -1

    def error(self, names: list[str]) -> LocalError:
        """Return the error to raise, with the names of the files."""
        file, line = where(self.at)
        message = self.message
        if self.other >= 0:
            other_file, other_line = where(self.other)
            there = f"line {other_line}" if other_file == file else f"{names[other_file]}, line {other_line},"
            message = message.replace("{other}", there)
        return LocalError(f"{names[file]}, line {line}: {message}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """The options of users for a format, and the facts that are known once all lines are read."""

    interval_s: float | None = None
    """Time for which a row holds."""
    distance_m: float | None = None
    """Rows of nodes further apart are left out."""
    overlaps: bool = False
    """True if overlapping rows of a pair are joined, not only those that follow each other exactly."""
    columns: tuple[str, ...] = ()
    """In place of a header."""
    node_from_name: bool = False
    """True if each file is about one node, whose name is that of the file."""
    time_unit: str = "s"
    """Unit of numbers that are times."""
    date: str = ""
    """The day that times of day are of; where it is given, all times are times of day."""
    date_from_name: str = ""
    """The same, of each file by its name; a pattern of strptime."""
    nodes: tuple[str, ...] = ()
    """Only rows of these nodes are kept; empty: of all."""
    metres: bool = False
    """Places must be x and y, and a header must say so."""
    unsorted: bool = False
    """Rows may come in any order."""
    both_ways: bool = False
    """True if a line of a contact plan stands for both directions."""
    same_time: Literal["error", "first", "last"] = "error"
    """Choice among several places of a node at one time."""
    returns: bool = True
    """True if a node that is destroyed may be created again, as another node."""
    end_us: int = 0
    """End of contacts whose end is missing."""
    origin: tuple[float, float] | None = None
    """Degrees north and east of where most places are, where these are degrees."""
    middle: float = 0.0
    """The latter, as places have it."""

    @property
    def clock(self) -> Clock:
        """The format of times in tables."""
        return Clock(self.time_unit, self.date, dates=True, optional=not self.metres)


class Sum(msgspec.Struct):
    """Facts about lines besides their rows. Sums of blocks are the same in whatever order these are read."""

    lines: int = 0
    passed: int = 0
    """Number of lines without anything of interest."""
    left_out: int = 0
    """Rows that an option leaves out."""
    made: int = 0
    """Rows."""
    bad_lines: int = 0
    bad: list[Bad] = []
    """The first of these."""
    faults: list[FileFault] = []
    """The first of each block."""
    least: dict[str, float] = {}
    most: dict[str, float] = {}
    spread: dict[str, dict[int, int]] = {}
    """Of places in degrees: how many are around each hundredth of a degree, by axis."""
    orders: list[tuple[int, int, int, int]] = []
    """Of blocks of event logs: line and time of the first row and of the last."""
    spelt: dict[str, int] = {}
    """Names with colons or hyphens, as in the file, and the first line of each: two of them may have become one."""

    def join(self, other: Sum) -> Sum:
        """Add other lines; returns this sum."""
        for name in ("lines", "passed", "left_out", "made", "bad_lines"):
            setattr(self, name, getattr(self, name) + getattr(other, name))
        self.bad = sorted([*self.bad, *other.bad])[:BAD_SHOWN]
        self.faults += other.faults
        self.orders += other.orders
        self.spelt |= {name: min(line, self.spelt.get(name, line)) for name, line in other.spelt.items()}
        self.least |= {key: min(value, self.least.get(key, value)) for key, value in other.least.items()}
        self.most |= {key: max(value, self.most.get(key, value)) for key, value in other.most.items()}
        for axis, counts in other.spread.items():
            self.spread[axis] = Counter(counts) + Counter(self.spread.get(axis))
        return self


class Parsed(Sum, kw_only=True):
    """Rows of a block of lines, and what else is known of them."""

    rows: pa.Table


def only(found: Parsed, nodes: tuple[str, ...]) -> Parsed:
    """Leave out the rows of other nodes, if any are named."""
    if not nodes:
        return found
    rows, names = found.rows, pa.array(nodes, pa.string())
    kept = pc.and_(pc.is_in(rows["a"], names), pc.or_(pc.is_null(rows["b"]), pc.is_in(rows["b"], names)))
    found.rows = rows.filter(kept)
    found.left_out += rows.num_rows - found.rows.num_rows
    found.made = found.rows.num_rows
    return found


class LineRule(Protocol):
    """The syntax of one file's lines."""

    def parse(self, lines: Lines, file: int) -> Parsed:
        """Return the rows of these lines, without the header."""

    @property
    def assumptions(self) -> str:
        """The assumptions about this file that users should know; may be empty."""


class Headless:
    """A rule of files that have no header, and about which nothing is assumed."""

    assumptions = ""

    @classmethod
    def begin(cls, head: bytes, called: str, options: Options) -> Self:  # noqa: ARG003 - as all formats
        """Return a rule that is the same for all files."""
        return cls()


def parsed(
    checks: Checks,
    file: int,
    columns: Mapping[str, NDArray[Any] | pa.Array],
    *,
    every: Lines | None = None,
    without: Flags | None = None,
) -> Parsed:
    """Return the rows of the lines that were checked, and the first of those that are wrong, with the reason.

    `every`: these and those that say nothing of concern; `without`: lines that are right and yet make no row.
    """
    lines, wrong = checks.lines, checks.wrong
    found = np.flatnonzero(wrong)
    count = len((every or lines).number)
    rows = _rows(lines, wrong if without is None else wrong | without, file, columns)
    return Parsed(
        rows=rows,
        made=rows.num_rows,
        lines=count,
        passed=count - len(lines.number),
        bad_lines=len(found),
        bad=[
            Bad(at(file, int(lines.number[row])), shortened(checks.shown(row)), checks.why(row))
            for row in found[:BAD_SHOWN].tolist()
        ],
        spelt=_spelt(checks, file),
    )


def _spelt(checks: Checks, file: int) -> dict[str, int]:
    found: dict[str, int] = {}
    good = np.flatnonzero(~checks.wrong)[::-1]
    for names, which in checks.respelt:
        row = np.full(len(names) + 1, -1)
        row[which[good]] = good  # From the last line to the first, which is the one that stays.
        for name, first_row in zip(names, row[:-1].tolist(), strict=True):
            if first_row >= 0:
                place = at(file, int(checks.lines.number[first_row]))
                found[name] = min(place, found.get(name, place))
    return found


def ends_first(
    checks: Checks, start_us: Ints, until_us: Ints, file: int, *, but: Flags | bool = False
) -> list[FileFault]:
    """Return the first contact that ends before it starts, `but` these."""
    for index in np.flatnonzero(~(checks.wrong | but) & (until_us < start_us))[:1]:
        until, start = (brief(int(each[index])) for each in (until_us, start_us))
        message = f"the contact ends at {until} s, before it starts at {start} s"
        return [FileFault(at(file, int(checks.lines.number[index])), message)]
    return []


def shortened(text: str, most: int = _TEXT_SHOWN) -> str:
    """Return a text for people: printable, and cut if it is long."""
    shown = "".join(each if each.isprintable() else " " if each == "\t" else "\ufffd" for each in text)
    return shown if len(shown) <= most else shown[: most - 1] + "…"


def _rows(lines: Lines, wrong: Flags, file: int, columns: Mapping[str, NDArray[Any] | pa.Array]) -> pa.Table:
    """Return the rows of the correct lines."""
    made = {"at": pa.array(lines.number + at(file, 0)), **columns}
    arrays = []
    for each in ROWS:
        column = made.get(each.name)
        if column is None:
            arrays.append(pa.nulls(len(lines.number), each.type))
        else:
            arrays.append(pa.array(column, each.type) if isinstance(column, np.ndarray) else column.cast(each.type))
    table = pa.Table.from_arrays(arrays, schema=ROWS)
    return table.filter(pa.array(~wrong)) if wrong.any() else table


def pairs(a: pa.Array, b: pa.Array) -> tuple[pa.Array, pa.Array, Flags]:
    """Return the names of pairs, the lower one first, and flags of pairs of a node with itself."""
    swapped = pc.greater(a, b)
    same = flags(pc.equal(a, b))
    return pc.if_else(swapped, b, a), pc.if_else(swapped, a, b), same


def first_fault(wrong: Flags, at: Ints, text_of: Callable[[int], str], *, other: int = 0) -> list[FileFault]:
    """Return the fault of the first wrong row, in order of lines; `other`: offset of the row that {other} is."""
    found = np.flatnonzero(wrong)
    if not len(found):
        return []
    row = int(found[np.argmin(at[found])])
    return [FileFault(int(at[row]), text_of(row), int(at[row + other]) if other else -1)]


def first(faults: list[FileFault]) -> FileFault | None:
    """Return the fault whose line comes first."""
    return min(faults, default=None)
