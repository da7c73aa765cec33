"""The request of one `lab ingest`: files, their format, and what users may say about it; all of it checked."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date, datetime
from pathlib import Path

from carrypost.errors import LocalError
from carrypost.lab.engines import EngineName
from carrypost.lab.ingest.sources import BLOCK_BYTES
from carrypost.lab.objects import Folder
from carrypost.lab.schemas import CONTACTS, POSITIONS, Table
from carrypost.lab.spark.session import SparkOptions
from carrypost.security.identity import Identity
from carrypost.traces.formats import ALIASES, FORMATS, Format, Options
from carrypost.traces.formats.tables import node_of
from carrypost.traces.formats.words import UNITS, plain_name

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
