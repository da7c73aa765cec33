"""Syntax of the formats: tables of places, sightings and contacts; logs of events and orders; plans of contacts.

In a table, ``gps-csv`` (also the emulator's movement as CSV) and The ONE's movement give places; ``pairs``
(SocioPatterns), ``haslemere`` and ``imote`` sightings, which are joined later; ``contacts-csv`` contacts as they are.
Columns are named by a header, by the user, or by the usual order. Names of columns are looked up without regard to
case, spaces, hyphens and units in brackets, and under the names that other programs give them. A column that is needed
and named twice is an error, and so is a header that does not name one of them: the order of columns is assumed only
where the first line is data. Other columns do not matter.

In The ONE's connections, KTH's walkers, ns-2 and contact plans, one line alone says little: what becomes of them is
found in `assembly`. Lines about other things (messages in The ONE's logs, ranges in contact plans, radios in ns-2's
files) are passed over, and counted.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from carrypost.arrays import Flags, Floats, Ints
from carrypost.errors import LocalError
from carrypost.model.times import MICROSECONDS
from carrypost.traces.contacts import CONN_WORDS, ONE_OTHERS
from carrypost.traces.csvfiles import TIME_S_MAX, Line, brief
from carrypost.traces.formats.lines import (
    SECONDS,
    UNITS,
    Cells,
    Checks,
    Clock,
    Lines,
    cut,
    flags,
    is_number,
    is_time,
    microseconds,
    no_number,
    numbers,
    separator_of,
    words_of,
)
from carrypost.traces.formats.rules import (
    FileFault,
    Headless,
    Options,
    Parsed,
    at,
    ends_first,
    pairs,
    parsed,
    shortened,
)
from carrypost.traces.tracks import COORDINATE_M_MAX

SYNONYMS: Mapping[str, tuple[str, ...]] = {
    "t": ("t", "time", "timestamp", "ts", "t_s", "time_s", "timestamp_s", "seconds", "sec", "secs", "datetime",
          "date_time", "epoch", "epoch_s", "epoch_time", "unix", "unix_time", "unix_timestamp", "utc", "time_utc",
          "when", "recorded_at"),
    "node": ("node", "id", "node_id", "node_name", "user", "user_id", "user_name", "uid", "device", "device_id", "name",
             "vehicle", "vehicle_id", "taxi", "taxi_id", "cab_id", "bus_id", "person", "person_id",
             "tag_id", "animal_id", "participant", "participant_id", "imei"),
    "x": ("x", "x_m", "pos_x", "x_pos", "x_coord", "x_coordinate", "east", "easting"),
    "y": ("y", "y_m", "pos_y", "y_pos", "y_coord", "y_coordinate", "north", "northing"),
    "lat": ("lat", "latitude", "lat_deg", "latitude_deg", "gps_lat", "gps_latitude", "pos_lat", "position_lat",
            "lat_wgs84", "lat_dd"),
    "lon": ("lon", "lng", "long", "longitude", "lon_deg", "lng_deg", "long_deg", "longitude_deg", "gps_lon", "gps_lng",
            "gps_long", "gps_longitude", "pos_lon", "pos_long", "position_long", "lon_wgs84", "lon_dd"),
    "i": ("i", "id1", "id_a", "a", "node1", "node_a", "node1_id", "node_id1", "user1", "user_a", "user1_id", "user_id1",
          "device1", "device_a", "person1", "person_a", "u", "source", "src", "from", "ego"),
    "j": ("j", "id2", "id_b", "b", "node2", "node_b", "node2_id", "node_id2", "user2", "user_b", "user2_id", "user_id2",
          "device2", "device_b", "person2", "person_b", "v", "target", "dst", "to", "alter"),
    "a": ("a", "node1", "node_a", "id1", "id_a", "i", "user1", "user_a", "source", "src", "from"),
    "b": ("b", "node2", "node_b", "id2", "id_b", "j", "user2", "user_b", "target", "dst", "to"),
    "start": ("start", "begin", "start_s", "t_start", "start_time", "first"),
    "end": ("end", "stop", "end_s", "t_end", "end_time", "last"),
    "duration": ("duration", "duration_s", "length", "length_s", "contact_time", "contact_duration"),
    "first": ("first", "first_s", "start", "begin", "start_time", "t_start"),
    "last": ("last", "last_s", "end", "stop", "end_time", "t_end"),
    "step": ("time_step", "step"),
    "distance": ("distance_m", "distance"),
}  # fmt: skip
"""Names of each column. Case, spaces, hyphens and underscores do not matter."""
_TIMES = ("t", "start", "end", "duration", "first", "last")
_UNIT = re.compile(r"\s*[(\[]\s*([^()\[\]]*?)\s*[)\]]\s*$")
_OTHER_UNITS = {
    "days", "mm", "cm", "km", "ft", "feet", "mi", "miles", "yd", "rad", "radians",
    *(name for unit, each in UNITS.items() if unit != "s" for name in each.called),
}  # fmt: skip
"""Units of other quantities: a column with one of them is not the column that its name alone would suggest."""
_HEADER_SHOWN = 400
_HINT = "; if columns have other names, list all of them in the order of the file: --columns"


@dataclass(frozen=True, slots=True)
class Header:
    """The places of a file's columns."""

    separator: str | None
    positions: Mapping[str, int]
    width: int
    """Cells that a line has."""
    count_text: str
    """Source of the names."""
    line: int
    """Line of the header; 0: there is none."""
    assumptions: str = ""
    open_ended: bool = False
    """True if the last of these cells is empty in the header, so that lines need not have it."""


def first_line(head: bytes, name: str) -> tuple[int, str]:
    """Return the first line that says something, and its number."""
    found = cut(head)
    if not len(found.number):
        raise LocalError(f"{name}, line 1: the file is empty")
    return int(found.number[0]), found.text[0].as_py()


def find_header(
    head: bytes, name: str, wanted: Sequence[Sequence[str]], options: Options, *, usual: bool = True, hint: str = _HINT
) -> Header:
    """Return the columns of the first set in `wanted` that is present; `usual`: their order if there is no header."""
    number, line = first_line(head, name)
    separator = separator_of(line)
    cells = words_of(line, separator)
    if options.columns:
        return _as_told(options, wanted, Line(name, number), line)
    found = _positions(cells, wanted, f"{name}, line {number}", options.time_unit, hint)
    if found is not None:
        count_text = f"the header names {len(cells)} columns"
        return Header(separator, found, len(cells), count_text, number, open_ended=not cells[-1])
    order = dict(zip(wanted[0], range(len(wanted[0])), strict=True))
    if usual and len(cells) >= len(order) and _is_data(cells, order):
        # Where there is but one way to read it, a header is not missed.
        assumptions = f"{name}: there is no header; assuming the columns {', '.join(order)}" if wanted[1:] else ""
        return Header(
            separator, order, len(cells), f"the first one {len(cells)}", 0, assumptions, open_ended=not cells[-1]
        )
    if usual and (len(cells) < len(order) or is_number(cells[0])):
        form = f"a header that names {_or(wanted)}, or a row of {' '.join(wanted[0])}"
        raise Line(name, number).error(f"must be {form}, not {line.strip()!r}{hint}")
    raise _missing(options, wanted, Line(name, number), cells, hint)


def _as_told(options: Options, wanted: Sequence[Sequence[str]], first: Line, line: str) -> Header:
    """Return the columns that the user named; a first line without any number in them is a header, and skipped."""
    named = _positions(options.columns, wanted, "--columns", options.time_unit)
    if named is None:
        raise LocalError(f"--columns must name {_or(wanted)}, not {','.join(options.columns)}")
    separator, width = separator_of(line), len(options.columns)
    count_text = f"--columns names {width}"
    cells = words_of(line, separator)
    if any(is_time(cells[index]) for index in named.values() if index < len(cells)):
        return Header(separator, named, width, count_text, 0)
    assumptions = f"{first.name}, line {first.number}: treated as a header: {shortened(line)}"
    return Header(separator, named, width, count_text, first.number, assumptions)


def _missing(
    options: Options, wanted: Sequence[Sequence[str]], first: Line, cells: Sequence[str], hint: str
) -> LocalError:
    """Return the error for a header without some columns, of the set that is most complete."""
    nearest = max(wanted, key=lambda names: sum(bool(_at(cells, column, options.time_unit)) for column in names))
    missing = [column for column in nearest if not _at(cells, column, options.time_unit)]
    lacks = f"column {missing[0]} is" if len(missing) == 1 else f"columns {', '.join(missing)} are"
    for unit in () if options.metres else UNITS:
        times = [cells[index] for column in missing if column in _TIMES for index in _at(cells, column, unit)]
        if times:
            hint = f"; if {times[0]} is meant: --time-unit {unit}"
    there = shortened(", ".join(cells), _HEADER_SHOWN)
    return first.error(f"{lacks} missing; the header must name {_or(wanted)}, found {there}{hint}")


def _or(wanted: Sequence[Sequence[str]]) -> str:
    return " or ".join(", ".join(each) for each in wanted)


def _bare(cell: str) -> str:
    """Return a name without what does not matter."""
    unit = _UNIT.search(cell)
    if unit is not None and unit[1].lower() not in _OTHER_UNITS:
        cell = cell[: unit.start()]
    return re.sub(r"[\s_-]+", "", cell.lower())


_BARE = {column: {_bare(each) for each in names} for column, names in SYNONYMS.items()}


def _in_unit(cell: str, unit: str) -> str:
    """Return the name of a column without its unit, as in `time (ms)` and `time_ms`; empty without that unit."""
    bare = re.sub(r"[\s_()\[\]-]+", "", cell.lower())
    return next((bare.removesuffix(each) for each in UNITS[unit].called if bare.endswith(each)), "")


def _at(cells: Sequence[str], column: str, unit: str) -> list[int]:
    """Return the positions of a column; a column of times that names the unit comes before others."""
    if column in _TIMES and unit != "s":
        found = [index for index, cell in enumerate(cells) if _in_unit(cell, unit) in _BARE[column]]
        if found:
            return found
    names = [_bare(cell) for cell in cells]
    exact = [index for index, cell in enumerate(names) if cell == column]
    return exact or [index for index, cell in enumerate(names) if cell in _BARE[column]]


def _positions(
    cells: Sequence[str], wanted: Sequence[Sequence[str]], where: str, unit: str, hint: str = ""
) -> dict[str, int] | None:
    for names in wanted:
        places = {column: _at(cells, column, unit) for column in names}
        if all(places.values()):
            for column, found in places.items():
                if len(found) > 1:
                    both = ", ".join(cells[index] for index in found)
                    raise LocalError(f"{where}: column {column} appears twice: {both}{hint}")
            return {column: found[0] for column, found in places.items()}
    return None


_TEXTS = {"node", "i", "j", "a", "b"}


def _is_data(cells: Sequence[str], positions: Mapping[str, int]) -> bool:
    """Return True if all cells are numbers that must be; dates and times of day count."""
    return all(
        index < len(cells) and (is_time(cells[index]) if column in _TIMES else is_number(cells[index]))
        for column, index in positions.items()
        if column not in _TEXTS
    )


_ONE_HEADER = (6, 8)
_PLACE = ("t", "node", "x", "y")
_GEOGRAPHIC = ("t", "node", "lat", "lon")
_DEGREES = {"lat": 90.0, "lon": 360.0}
_LOOKED_AT = 1000
"""Number of lines among which one must have a place; otherwise longitudes are counted from 0."""
CELLS_A_DEGREE = 100
_PACKED = re.compile(r"\.(?:gz|xz|zip)$", re.IGNORECASE)
_ENDING = re.compile(r"(?<=.)\.[A-Za-z]\w{0,4}$")
"""Ending of a file name. It is not a number: trace.1 and trace.2 are two names."""


def _without(lines: Lines, header: int) -> Lines:
    return lines.where(lines.number != header) if header else lines


def node_of(called: str) -> str:
    """Return the node that a file is about: its name without folder and endings."""
    return _ENDING.sub("", _PACKED.sub("", Path(called).name))


@dataclass(frozen=True, slots=True, kw_only=True)
class _TableRule:
    """The rule of a table whose columns are known by a header."""

    header: Header
    clock: Clock = SECONDS

    @property
    def assumptions(self) -> str:
        """The assumptions."""
        return self.header.assumptions

    def _cells(self, lines: Lines) -> Cells:
        """Return the rows below the header; rows with another number of cells are wrong, as any cell may be missing."""
        header = self.header
        cells = Cells(_without(lines, header.line), header.separator)
        for column, index in header.positions.items():
            cells.miscounted(cells.count <= index, f"{column} is missing: the row has {{}} cells")
        count, width = cells.count, header.width
        other = (count < width - header.open_ended) | (count > width)
        if other.any():
            # A separator after the last cell parts it from nothing.
            other &= (count != width + 1) | (cells.text(width).fill_null("").to_numpy(zero_copy_only=False) != "")
            cells.miscounted(other, f"the row has {{}} cells, {header.count_text}")
        return cells


@dataclass(frozen=True, slots=True, kw_only=True)
class Positions(_TableRule):
    """The positions of nodes, row by row."""

    east_of: float = 0.0
    """Longitudes are counted from here, a whole degree, so that the date line cuts nothing."""
    node: str = ""
    """Node of these positions; empty: each row names it."""

    @classmethod
    def begin(cls, head: bytes, called: str, options: Options) -> Positions:
        """Return a rule made from the first lines of the file."""
        if options.metres:
            header = find_header(head, called, (("node", "t", "x", "y"),), options, usual=False, hint="")
            return cls(header=header, clock=options.clock)
        node = node_of(called) if options.node_from_name else ""
        wanted = [tuple(each for each in columns if not (node and each == "node")) for columns in (_PLACE, _GEOGRAPHIC)]
        rule = cls(header=find_header(head, called, wanted, options), clock=options.clock, node=node)
        if not rule.geographic:
            return rule
        lines = cut(head)
        cells = rule._cells(Lines(lines.text[:_LOOKED_AT], lines.number[:_LOOKED_AT]))
        lat, lon = (numbers(cells.text(rule.header.positions[each])) for each in ("lat", "lon"))
        placed = ~cells.wrong & np.isfinite(lat) & np.isfinite(lon) & ((lat != 0.0) | (lon != 0.0))
        return replace(rule, east_of=float(np.rint(lon[placed][0]))) if placed.any() else rule

    @property
    def geographic(self) -> bool:
        """True if places are degrees."""
        return "lat" in self.header.positions

    def parse(self, lines: Lines, file: int) -> Parsed:
        """Places; those in degrees with longitudes from `east_of`."""
        cells, index = self._cells(lines), self.header.positions
        t_us = cells.times(index["t"], "t", -TIME_S_MAX, clock=self.clock)
        node = cells.named(self.node) if self.node else cells.name(index["node"], "node")
        if self.geographic:
            y, east = (cells.number(index[each], each, most, "degrees") for each, most in _DEGREES.items())
            cells.mark((y == 0.0) & (east == 0.0), lambda _: "0, 0 means that the receiver had no fix")
            x = (east - self.east_of + 180.0) % 360.0 - 180.0
        else:
            x, y = (cells.number(index[each], each, COORDINATE_M_MAX, "m") for each in "xy")
        made = parsed(cells, file, {"a": node, "t_us": t_us, "x": x, "y": y})
        if self.geographic and made.rows.num_rows:
            x, y = x[~cells.wrong], y[~cells.wrong]
            made.least = {"x": float(x.min()), "y": float(y.min())}
            made.most = {"x": float(x.max()), "y": float(y.max())}
            made.spread = {"x": _spread(x), "y": _spread(y)}
        return made


def _spread(degrees_: Floats) -> dict[int, int]:
    """Return the numbers around each hundredth of a degree: whole numbers, whose sums are the same in any order."""
    cells, counts = np.unique(np.rint(degrees_ * CELLS_A_DEGREE).astype(np.int64), return_counts=True)
    return dict(zip(cells.tolist(), counts.tolist(), strict=True))


def median(spread: Mapping[int, int]) -> float:
    """Return the median degree, to a hundredth."""
    cells = sorted(spread)
    seen = np.cumsum([spread[cell] for cell in cells])
    return cells[int(np.searchsorted(seen, (seen[-1] + 1) // 2))] / CELLS_A_DEGREE


@dataclass(frozen=True, slots=True)
class OneMovement:
    """The ONE's movement: a header with the bounds, then time, node, x and y."""

    header: int
    begin_s: float
    x_0: float
    y_0: float
    assumptions: str = ""

    @classmethod
    def begin(cls, head: bytes, called: str, options: Options) -> OneMovement:  # noqa: ARG003 - as all formats
        """Return a rule made from the first lines of the file."""
        number, line = first_line(head, called)
        words = line.split()
        if len(words) not in _ONE_HEADER or not all(map(is_number, words)):
            wanted = "minTime maxTime minX maxX minY maxY, six numbers"
            raise Line(called, number).error(f"the header must be {wanted}, not {line.strip()!r}")
        bounds = [float(word) for word in words]
        return cls(number, bounds[0], bounds[2], bounds[4])

    def parse(self, lines: Lines, file: int) -> Parsed:
        """Places, counted from the least of the header."""
        cells = Cells(_without(lines, self.header), None, form := "TIME NODE X Y")
        # The fifth is a height.
        cells.require((cells.count >= len(_PLACE)) & (cells.count <= len(_PLACE) + 1), form)
        t_us, node = cells.times(0, "the time", -TIME_S_MAX), cells.name(1, "node")
        x, y = (cells.number(index, axis, COORDINATE_M_MAX, "m") for index, axis in enumerate("xy", 2))
        return parsed(cells, file, {"a": node, "t_us": t_us, "x": x - self.x_0, "y": y - self.y_0})


@dataclass(frozen=True, slots=True, kw_only=True)
class Sightings(_TableRule):
    """Pairs of nodes and the times at which they were seen together; to be joined."""

    kind: str
    interval_us: int
    distance_m: float | None = None
    node: str = ""
    """Node that saw the others; empty: each row names it."""

    @classmethod
    def pairs(cls, head: bytes, called: str, options: Options) -> Sightings:
        """Return the rule of sightings in which a row covers the interval before its time."""
        interval_s = 20.0 if options.interval_s is None else options.interval_s
        node = node_of(called) if options.node_from_name else ""
        header = find_header(head, called, (("t", "j") if node else ("t", "i", "j"),), options)
        interval_us = round(interval_s * MICROSECONDS)
        return cls(header=header, clock=options.clock, kind="pairs", interval_us=interval_us, node=node)

    @classmethod
    def haslemere(cls, head: bytes, called: str, options: Options) -> Sightings:
        """Steps of five minutes from 7 to 23 o'clock."""
        wanted = (("step", "i", "j", "distance"),)
        header = find_header(head, called, wanted, options, hint="")
        return cls(header=header, kind="haslemere", interval_us=300 * MICROSECONDS, distance_m=options.distance_m)

    @classmethod
    def imote(cls, head: bytes, called: str, options: Options) -> Sightings:
        """Return the first and last sightings of a node by another; it is taken to be there for an interval more."""
        node = node_of(called) if options.node_from_name else ""
        wanted = ("j", "first", "last") if node else ("i", "j", "first", "last")
        header = find_header(head, called, (wanted,), options)
        interval_us = round((options.interval_s or 0.0) * MICROSECONDS)
        return cls(header=header, clock=options.clock, kind="imote", interval_us=interval_us, node=node)

    def parse(self, lines: Lines, file: int) -> Parsed:
        """Sightings."""
        cells, index = self._cells(lines), self.header.positions
        observer = cells.named(self.node) if self.node else cells.name(index["i"], "i")
        a, b, _ = pairs(observer, cells.name(index["j"], "j"))
        start_us, until_us = self._times(cells)
        faults = []
        if self.kind == "imote":
            faults = ends_first(cells, start_us, until_us, file)
            until_us = until_us + self.interval_us
        far = None if self.distance_m is None else numbers(cells.text(index["distance"])) > self.distance_m
        made = parsed(cells, file, {"a": a, "b": b, "t_us": start_us, "until_us": until_us}, without=far)
        made.faults, made.left_out = faults, made.lines - made.bad_lines - made.made
        return made

    def _times(self, cells: Cells) -> tuple[Ints, Ints]:
        index = self.header.positions
        if self.kind == "imote":
            first_us, last_us = (cells.times(index[each], each, clock=self.clock) for each in ("first", "last"))
            return first_us, last_us
        if self.kind == "pairs":
            t_us = cells.times(index["t"], "t", clock=self.clock)
            return t_us - self.interval_us, t_us
        cells.number(index["distance"], "distance")
        step = cells.number(index["step"], "step")
        counts = (step >= 1) & (step <= _STEPS_MAX) & (step == np.floor(step))
        cells.mark(~counts, lambda _: f"step must be a whole number from 1 to {_STEPS_MAX:,.0f}")
        day, within = np.divmod(np.where(cells.wrong, 1, step).astype(np.int64) - 1, _STEPS_A_DAY)
        start_us = (day * 86_400 + _FIRST_STEP_S + within * 300) * MICROSECONDS
        return start_us, start_us + self.interval_us


_STEPS_A_DAY = 192
_STEPS_MAX = 1e6
_FIRST_STEP_S = 7 * 3600


@dataclass(frozen=True, slots=True, kw_only=True)
class ContactIntervals(_TableRule):
    """Contacts as they are."""

    @classmethod
    def begin(cls, head: bytes, called: str, options: Options) -> ContactIntervals:
        """Return a rule made from the first line of the file."""
        header = find_header(head, called, (("a", "b", "start", "end"), ("a", "b", "start", "duration")), options)
        return cls(header=header, clock=options.clock)

    def parse(self, lines: Lines, file: int) -> Parsed:
        """Return the contacts of these lines."""
        cells, index = self._cells(lines), self.header.positions
        a, b, same = pairs(*(cells.name(index[each], each) for each in "ab"))
        start_us = cells.times(index["start"], "start", clock=self.clock)
        if "end" in index:
            until_us = cells.times(index["end"], "end", clock=self.clock)
        else:
            until_us = start_us + cells.times(index["duration"], "duration", clock=Clock(self.clock.unit))
        cells.mark(same, lambda row: f"{a[row]} is in contact with itself")
        made = parsed(cells, file, {"a": a, "b": b, "t_us": start_us, "until_us": until_us})
        made.faults = ends_first(cells, start_us, until_us, file)
        return made


# ---------------------------------------------------------------------------------------- The ONE's connections

DOWN, UP = 0, 1
_NAMED = re.compile(rb"^# host ([0-9]+) is (\S[^\n\r]*)\r?$", re.MULTILINE)
_OTHERS = pa.array(sorted(ONE_OTHERS))


@dataclass(frozen=True, slots=True)
class OneConnections:
    """The ONE's connection events."""

    hosts: Mapping[str, str] = field(default_factory=dict)
    """Names by number, from comments that our own writer adds."""
    unsorted: bool = False
    assumptions: str = ""

    @classmethod
    def begin(cls, head: bytes, called: str, options: Options) -> OneConnections:  # noqa: ARG003 - as all formats
        """Return the rule of a file, by the comments at its top."""
        return cls({each[1].decode(): each[2].decode("utf-8", "replace").strip() for each in _NAMED.finditer(head)},
                   options.unsorted)  # fmt: skip

    def parse(self, lines: Lines, file: int) -> Parsed:
        """Events, with the kind UP or DOWN."""
        cells = Cells(lines, None)
        others = flags(pc.is_in(cells.text(1), _OTHERS))
        if others.any():
            cells = Cells(lines.where(~others), None)
        way = pc.ascii_lower(cells.text(4))
        up = flags(pc.equal(way, "up"))
        right = flags(pc.equal(cells.text(1), "CONN")) & (up | flags(pc.equal(way, "down")))
        right &= (cells.count >= CONN_WORDS[0]) & (cells.count <= CONN_WORDS[1])
        cells.require(right, "TIME CONN NODE NODE up|down")
        t_us = cells.times(0, "the time")
        a, b, same = pairs(*(self._named(cells.name(index, "node")) for index in (2, 3)))
        cells.mark(same, lambda row: f"{a[row]} is in contact with itself")
        columns = {"a": a, "b": b, "t_us": t_us, "kind": up.astype(np.int8)}
        made = parsed(cells, file, columns, every=lines)
        good = np.flatnonzero(~cells.wrong)
        if len(good):
            number, t_us = cells.lines.number[good] + at(file, 0), t_us[good]
            made.orders = [(int(number[0]), int(t_us[0]), int(number[-1]), int(t_us[-1]))]
            made.most = {"t_us": float(t_us.max())}
            for index in np.flatnonzero(t_us[1:] < t_us[:-1])[:1]:
                made.faults = [back(int(number[index + 1]), int(t_us[index]), int(t_us[index + 1]))]
        return made

    def _named(self, names: pa.Array) -> pa.Array:
        if not self.hosts:
            return names
        known = pc.index_in(names, pa.array(list(self.hosts), pa.string()))
        return pc.coalesce(pa.array(list(self.hosts.values()), pa.string()).take(known), names)


def back(place: int, before_us: int, after_us: int) -> FileFault:
    """Return the fault of a log of events in which time goes back."""
    hint = "; to accept lines in any order: --unsorted"
    return FileFault(place, f"time goes back, from {brief(before_us)} s to {brief(after_us)} s{hint}")


# ------------------------------------------------------------------------------------------------------ walkers
CREATE, SETDEST, DESTROY = 0, 1, 2
_FORMS = {
    "create": "TIME create NODE X Y Z",
    "setdest": "TIME setdest NODE X Y Z SPEED ARRIVAL",
    "destroy": "TIME destroy NODE",
}
_WORDS = np.array([len(form.split()) for form in _FORMS.values()], dtype=np.int64)


def is_walkers(line: str) -> bool:
    """Return True if this is a line of KTH's walkers."""
    words = line.split()
    return len(words) > 1 and words[1] in _FORMS


class Walkers(Headless):
    """The movement files of KTH's walkers (CRAWDAD), as ``ostermalm_001_1``: people who come, walk and go.

    Each line is an event: ``6.0 create 2 628.2 1812.1 0.0`` (time, node, x, y, z), ``6.0 setdest 1 818.0 1453.0 0.0 0.8
    6.6`` (likewise, then speed and time of arrival; the speed follows from the rest and is not looked at) and ``132.6
    destroy 4``. A node is there from its creation to its destruction, or to where its last way ends. Heights are
    ignored. We do not have those files; the form is taken from public programs that read them.
    """

    def parse(self, lines: Lines, file: int) -> Parsed:
        """Events: CREATE with a place, SETDEST with place and arrival, DESTROY."""
        cells = Cells(lines, None)
        kind = pc.fill_null(pc.index_in(cells.text(1), pa.array(list(_FORMS))), -1).to_numpy(zero_copy_only=False)
        forms = list(_FORMS.values())
        wanted = "must be an event: create, setdest or destroy"
        cells.mark(kind < 0, lambda row: f"{wanted}, not {cells.shown(row)!r}")
        cells.mark(cells.count != _WORDS[kind], lambda row: cells.misread(row, forms[kind[row]]))
        t_us, node = cells.times(0, "the time", -TIME_S_MAX), cells.name(2, "node")
        placed, sent = kind != DESTROY, kind == SETDEST
        x, y, _ = (cells.number(at, axis, COORDINATE_M_MAX, "m", where=placed) for at, axis in enumerate("XYZ", 3))
        cells.number(6, "SPEED", where=sent)
        until_us = cells.times(7, "ARRIVAL", -TIME_S_MAX, where=sent)
        columns = {"a": node, "t_us": t_us, "kind": kind.astype(np.int8), "x": x, "y": y, "until_us": until_us}
        made = parsed(cells, file, columns)
        for index in np.flatnonzero(~cells.wrong & sent & (until_us < t_us))[:1]:
            arrival, start = brief(int(until_us[index])), brief(int(t_us[index]))
            message = f"node {node[int(index)]} arrives at {arrival} s, before it starts at {start} s"
            made.faults = [FileFault(at(file, int(lines.number[index])), message)]
        return made


# --------------------------------------------------------------------------------------------------------- ns-2
PLACE_X, PLACE_Y, PLACE_Z, ORDER = 0, 1, 2, 3
NS2_NODE = r"\$node_?\("
_NS2_ORDER = r"set\s+[XYZ]_|setdest"
_NS2_PLACE = r"^\$node_?\((?P<node>\w+)\)\s+set\s+(?P<axis>[XYZ])_\s+(?P<value>\S+)"
_NS2_SETDEST = (
    r'^\$ns_?\s+at\s+(?P<t>\S+)\s+"\$node_?\((?P<node>\w+)\)\s+setdest\s+(?P<x>\S+)\s+(?P<y>\S+)\s+(?P<v>\S+?)\s*"'
)


class Ns2(Headless):
    """ns-2's orders, as ``setdest`` and BonnMotion write them."""

    def parse(self, lines: Lines, file: int) -> Parsed:
        """First places (PLACE_X, PLACE_Y, each in its column) and orders (ORDER, with speed)."""
        # Other lines belong to the rest of a simulation: gods, radios, agents.
        ours = flags(pc.match_substring_regex(lines.text, NS2_NODE))
        ours &= flags(pc.match_substring_regex(lines.text, _NS2_ORDER))
        checks = Checks(lines.where(ours))
        text = pc.ascii_trim_whitespace(checks.lines.text)
        order, place = pc.extract_regex(text, _NS2_SETDEST), pc.extract_regex(text, _NS2_PLACE)
        ordered, placed = flags(order.is_valid()), flags(place.is_valid())
        t_s, x, y, v = (numbers(order.field(each)) for each in ("t", "x", "y", "v"))
        value = numbers(place.field("value"))
        checks.require(ordered | placed, '$node_(N) set X_ NUMBER, or $ns_ at TIME "$node_(N) setdest X Y SPEED"')
        fits = (t_s >= 0) & (t_s <= TIME_S_MAX) & (v >= 0) & np.isfinite(v) & _fits(x) & _fits(y)
        checks.mark(ordered & ~fits, lambda row: _why_setdest(text[row].as_py(), order[row].as_py()))
        checks.mark(~ordered & ~_fits(value), lambda row: _why_place(text[row].as_py(), place[row].as_py()))
        axis = pc.fill_null(pc.index_in(place.field("axis"), pa.array(["X", "Y", "Z"])), 0)
        kind = np.where(ordered, ORDER, axis.to_numpy(zero_copy_only=False)).astype(np.int8)
        x, y = np.where(kind == PLACE_X, value, x), np.where(kind == PLACE_Y, value, y)
        node = pc.if_else(pa.array(ordered), order.field("node"), place.field("node"))
        columns = {"a": node, "t_us": microseconds(t_s), "kind": kind, "x": x, "y": y, "v": v}
        return parsed(checks, file, columns, every=lines, without=kind == PLACE_Z)


def _why_setdest(text: str, words: dict[str, str]) -> str:
    wrong = next(filter(None, (no_number(words[each], "setdest's argument") for each in "txyv")), "")
    return wrong or f"time and speed of setdest must not be negative, and all values must be within bounds: {text!r}"


def _why_place(text: str, words: dict[str, str]) -> str:
    axis = f"{words['axis']}_"
    return no_number(words["value"], axis) or f"{axis} is out of bounds: {text!r}"


def _fits(column: Floats) -> Flags:
    return np.asarray(np.abs(column) <= COORDINATE_M_MAX)


# ------------------------------------------------------------------------------------------------ contact plans
FORTH, BACK = 0, 1
_PLAN_WORDS = 6
_ABSOLUTE = r"^\d{4}/\d\d/\d\d-\d\d:\d\d:\d\d$"


class ContactPlan(Headless):
    """A contact plan of ION, or one for CORE: each contact is for one direction."""

    def parse(self, lines: Lines, file: int) -> Parsed:
        """Return contacts of the kind FORTH, from the lower name to the other, or BACK."""
        cells = Cells(lines, None)
        ours = flags(pc.equal(cells.text(0), "a")) & flags(pc.equal(cells.text(1), "contact"))
        if not ours.all():
            cells = Cells(lines.where(ours), None)
        cells.require(cells.count >= _PLAN_WORDS, "a contact START END NODE NODE RATE")
        start_us, absolute = _plan_times(cells, 2)
        until_us, until_absolute = _plan_times(cells, 3)
        cells.mark(absolute != until_absolute, lambda _: "one time is relative, the other absolute")
        one, two = cells.name(4, "node"), cells.name(5, "node")
        a, b, same = pairs(one, two)
        loops = same & ~cells.wrong  # Plans have them so that nodes can send to themselves.
        kind = np.where(flags(pc.equal(a, one)), FORTH, BACK).astype(np.int8)
        columns = {"a": a, "b": b, "kind": kind, "t_us": start_us, "until_us": until_us}
        made = parsed(cells, file, columns, every=lines, without=loops)
        made.passed += int(loops.sum())
        good = ~(cells.wrong | loops)
        for called, those in (("absolute", good & absolute), ("relative", good & ~absolute)):
            if those.any():
                made.least[called] = float(at(file, int(cells.lines.number[those][0])))
        made.faults = ends_first(cells, start_us, until_us, file, but=loops)
        return made


def _plan_times(cells: Cells, index: int) -> tuple[Ints, Flags]:
    """Return a column of times, and which of them are dates."""
    text = pc.fill_null(cells.text(index), "")
    dated = flags(pc.match_substring_regex(text, _ABSOLUTE))
    found = numbers(pc.if_else(pa.array(dated), "0", text))
    if dated.any():
        encoded = text.filter(pa.array(dated)).dictionary_encode()
        each = np.array([_epoch_s(date) for date in encoded.dictionary.to_pylist()])
        found[dated] = each[encoded.indices.to_numpy()]
    wrong = ~((found >= 0) & (found <= TIME_S_MAX))
    cells.mark(wrong & dated, lambda _: "a date that does not exist")
    cells.mark(wrong, lambda row: SECONDS.wrong(cells.word(index, row).removeprefix("+"), "the time", 0.0))
    return microseconds(found), dated


def _epoch_s(date: str) -> float:
    try:
        return datetime.strptime(date, "%Y/%m/%d-%H:%M:%S").replace(tzinfo=UTC).timestamp()
    except ValueError:
        return float("nan")
