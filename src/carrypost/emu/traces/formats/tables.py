"""Formats that are tables: places of nodes at times, sightings of pairs, contacts.

``gps-csv`` (also the emulator's movement as CSV) and The ONE's movement give places; ``pairs`` (SocioPatterns),
``haslemere`` and ``imote`` sightings, which are joined later; ``contacts-csv`` contacts as they are.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from carrypost.emu.arrays import Floats, Ints
from carrypost.emu.scenario.csvfiles import TIME_S_MAX, Line
from carrypost.emu.traces.formats import headers
from carrypost.emu.traces.formats.headers import Header
from carrypost.emu.traces.formats.lines import Cells, Lines, cut
from carrypost.emu.traces.formats.rules import Options, Parsed, ends_first, pairs, parsed
from carrypost.emu.traces.formats.words import SECONDS, Clock, is_number, numbers
from carrypost.emu.traces.tracks import COORDINATE_M_MAX
from carrypost.model.times import MICROSECONDS

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
            header = headers.find(head, called, (("node", "t", "x", "y"),), options, usual=False, hint="")
            return cls(header=header, clock=options.clock)
        node = node_of(called) if options.node_from_name else ""
        wanted = [tuple(each for each in columns if not (node and each == "node")) for columns in (_PLACE, _GEOGRAPHIC)]
        rule = cls(header=headers.find(head, called, wanted, options), clock=options.clock, node=node)
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
        number, line = headers.first_line(head, called)
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

    @classmethod
    def pairs(cls, head: bytes, called: str, options: Options) -> Sightings:
        """Return the rule of sightings in which a row covers the interval before its time."""
        interval_s = 20.0 if options.interval_s is None else options.interval_s
        header = headers.find(head, called, (("t", "i", "j"),), options)
        return cls(header=header, clock=options.clock, kind="pairs", interval_us=round(interval_s * MICROSECONDS))

    @classmethod
    def haslemere(cls, head: bytes, called: str, options: Options) -> Sightings:
        """Steps of five minutes from 7 to 23 o'clock."""
        wanted = (("step", "i", "j", "distance"),)
        header = headers.find(head, called, wanted, options, hint="")
        return cls(header=header, kind="haslemere", interval_us=300 * MICROSECONDS, distance_m=options.distance_m)

    @classmethod
    def imote(cls, head: bytes, called: str, options: Options) -> Sightings:
        """Return the first and last sightings of a node by another; it is taken to be there for an interval more."""
        header = headers.find(head, called, (("i", "j", "first", "last"),), options, hint="")
        interval_us = round((options.interval_s or 0.0) * MICROSECONDS)
        return cls(header=header, clock=options.clock, kind="imote", interval_us=interval_us)

    def parse(self, lines: Lines, file: int) -> Parsed:
        """Sightings."""
        cells, index = self._cells(lines), self.header.positions
        a, b, _ = pairs(*(cells.name(index[each], each) for each in "ij"))
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
        header = headers.find(head, called, (("a", "b", "start", "end"),), options, usual=False)
        return cls(header=header, clock=options.clock)

    def parse(self, lines: Lines, file: int) -> Parsed:
        """Return the contacts of these lines."""
        cells, index = self._cells(lines), self.header.positions
        a, b, same = pairs(*(cells.name(index[each], each) for each in "ab"))
        start_us, until_us = (cells.times(index[each], each, clock=self.clock) for each in ("start", "end"))
        cells.mark(same, lambda row: f"{a[row]} is in contact with itself")
        made = parsed(cells, file, {"a": a, "b": b, "t_us": start_us, "until_us": until_us})
        made.faults = ends_first(cells, start_us, until_us, file)
        return made
