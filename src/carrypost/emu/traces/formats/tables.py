"""Formats that are tables: places of nodes at times, sightings of pairs, contacts.

``gps-csv`` (also the emulator's movement as CSV) and The ONE's movement give places; ``pairs`` (SocioPatterns),
``haslemere`` and ``imote`` sightings, which are joined later; ``contacts-csv`` contacts as they are.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from carrypost.emu.scenario.csvfiles import TIME_S_MAX, Line
from carrypost.emu.traces.formats import headers
from carrypost.emu.traces.formats.headers import Header
from carrypost.emu.traces.formats.lines import Cells, Floats, Lines, Numbers, is_number, words_of
from carrypost.emu.traces.formats.rules import Options, Parsed, ends_first, pairs, parsed
from carrypost.emu.traces.formats.why import degrees, measure, moment, name, numeral, seconds
from carrypost.emu.traces.tracks import COORDINATE_M_MAX
from carrypost.model.times import MICROSECONDS

_ONE_HEADER = (6, 8)
_PLACE = ("t", "node", "x", "y")
_GEOGRAPHIC = ("t", "node", "lat", "lon")
_DEGREES = {"lat": 90.0, "lon": 360.0}
_LOOKED_AT = 1000
"""Lines among which one must have a place, or longitudes are counted from 0."""
CELLS_A_DEGREE = 100
_NO_FIX = "0, 0 is no fix of a receiver"
_TOO_MANY = "the row has {} cells, the header names {} columns"


def _without(lines: Lines, header: int) -> Lines:
    return lines.where(lines.number != header) if header else lines


def _cells(lines: Lines, header: Header) -> Cells:
    cells = Cells(lines, header.separator, max(header.positions.values()) + 1)
    if header.width and (cells.count > header.width).any():
        # Whoever writes numbers with a comma has more cells than columns, and every number is another one.
        more = cells.text(header.width).fill_null("").to_numpy(zero_copy_only=False) != ""
        cells.wrong |= more | (cells.count > header.width + 1)
    return cells


def _why_cells(header: Header, text: str) -> tuple[dict[str, str], str]:
    """The cells of a line by column; or what is wrong with their number."""
    words = words_of(text, header.separator)
    for column, index in header.positions.items():
        if index >= len(words):
            return {}, f"{column} is missing: the row has {len(words)} cells"
    if header.width and any(words[header.width :]):
        return {}, _TOO_MANY.format(len(words), header.width)
    return {column: words[index] for column, index in header.positions.items()}, ""


@dataclass(frozen=True, slots=True)
class Positions:
    """Where nodes are, row by row."""

    header: Header
    east_of: float = 0.0
    """Longitudes are counted from here, so that the date line cuts nothing."""

    @classmethod
    def begin(cls, head: bytes, called: str, options: Options) -> Positions:
        """By the first lines of the file."""
        if options.metres:
            return cls(headers.find(head, called, (("node", "t", "x", "y"),), options, usual=False, hint=""))
        header = headers.find(head, called, (_PLACE, _GEOGRAPHIC), options)
        if "lon" not in header.positions:
            return cls(header)
        data = [text for number, text in headers.head_lines(head, called) if number != header.line]
        for text in data[:_LOOKED_AT]:
            cells, _ = _why_cells(header, text)
            lat, lon = (float(cells[each]) if is_number(cells.get(each, "")) else 0.0 for each in ("lat", "lon"))
            if lat or lon:
                return cls(header, lon)
        return cls(header)

    @property
    def geographic(self) -> bool:
        """Whether places are degrees."""
        return "lat" in self.header.positions

    @property
    def said(self) -> str:
        """What was assumed."""
        return self.header.said

    def parse(self, lines: Lines, file: int) -> Parsed:
        """Places; those in degrees with longitudes from `east_of`."""
        lines = _without(lines, self.header.line)
        cells = _cells(lines, self.header)
        index = self.header.positions
        t_us = cells.times(index["t"], -TIME_S_MAX, dates=True)
        node = cells.name(index["node"])
        if self.geographic:
            y, east = (cells.number(index[each], _DEGREES[each]) for each in ("lat", "lon"))
            cells.wrong |= (y == 0.0) & (east == 0.0)
            x = (east - self.east_of + 180.0) % 360.0 - 180.0
        else:
            x, y = (cells.number(index[each], COORDINATE_M_MAX) for each in "xy")
        made = parsed(self, lines, cells.wrong, file, {"a": node, "t_us": t_us, "x": x, "y": y})
        if self.geographic and made.rows.num_rows:
            x, y = x[~cells.wrong], y[~cells.wrong]
            made.least = {"x": float(x.min()), "y": float(y.min())}
            made.most = {"x": float(x.max()), "y": float(y.max())}
            made.spread = {"x": _spread(x), "y": _spread(y)}
        return made

    def why(self, text: str) -> str:
        """What is wrong with a line."""
        cells, wrong = _why_cells(self.header, text)
        if wrong:
            return wrong
        checks = (
            moment(cells["t"], "t"),
            name(cells["node"], "node"),
            *(degrees(cells[each], each, _DEGREES[each]) for each in ("lat", "lon") if each in cells),
            *(measure(cells[each], each) for each in "xy" if each in cells),
        )
        return next(filter(None, checks), _NO_FIX if self.geographic else "cannot be read")


def _spread(degrees_: Floats) -> dict[int, int]:
    """How many are around each hundredth of a degree: whole numbers, whose sums are the same in any order."""
    cells, counts = np.unique(np.rint(degrees_ * CELLS_A_DEGREE).astype(np.int64), return_counts=True)
    return dict(zip(cells.tolist(), counts.tolist(), strict=True))


def median(spread: Mapping[int, int]) -> float:
    """The degree, to a hundredth, of which half lies on either side."""
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
    said: str = ""

    @classmethod
    def begin(cls, head: bytes, called: str, options: Options) -> OneMovement:  # noqa: ARG003 - as all formats
        """By the first lines of the file."""
        number, line = headers.head_lines(head, called)[0]
        words = line.split()
        if len(words) not in _ONE_HEADER or not all(map(is_number, words)):
            wanted = "minTime maxTime minX maxX minY maxY, six numbers"
            raise Line(called, number).error(f"the header must be {wanted}, not {line!r}")
        bounds = [float(word) for word in words]
        return cls(number, bounds[0], bounds[2], bounds[4])

    def parse(self, lines: Lines, file: int) -> Parsed:
        """Places, counted from the least of the header."""
        lines = _without(lines, self.header)
        cells = Cells(lines, None, len(_PLACE))
        t_us, node = cells.times(0, -TIME_S_MAX), cells.name(1)
        x, y = (cells.number(index, COORDINATE_M_MAX) for index in (2, 3))
        columns = {"a": node, "t_us": t_us, "x": x - self.x_0, "y": y - self.y_0}
        return parsed(self, lines, cells.wrong, file, columns)

    def why(self, text: str) -> str:
        """What is wrong with a line."""
        words = text.split()
        if len(words) < len(_PLACE) or any(numeral(words[index], "") for index in (0, 2, 3)):
            return f"must read TIME NODE X Y, not {text!r}"
        checks = (moment(words[0], "the time"), name(words[1], "node"), measure(words[2], "x"), measure(words[3], "y"))
        return next(filter(None, checks), "cannot be read")


@dataclass(frozen=True, slots=True)
class Sightings:
    """Pairs of nodes, and when they were seen together; to be joined."""

    header: Header
    kind: str
    interval_us: int
    distance_m: float | None = None

    @classmethod
    def pairs(cls, head: bytes, called: str, options: Options) -> Sightings:
        """A row covers the interval before its time."""
        interval_s = 20.0 if options.interval_s is None else options.interval_s
        return cls(headers.find(head, called, (("t", "i", "j"),), options), "pairs", round(interval_s * MICROSECONDS))

    @classmethod
    def haslemere(cls, head: bytes, called: str, options: Options) -> Sightings:
        """Steps of five minutes from 7 to 23 o'clock."""
        wanted = (("step", "i", "j", "distance"),)
        header = headers.find(head, called, wanted, options, hint="")
        return cls(header, "haslemere", 300 * MICROSECONDS, options.distance_m)

    @classmethod
    def imote(cls, head: bytes, called: str, options: Options) -> Sightings:
        """When one node saw another first and last; it is taken to be there for an interval more."""
        header = headers.find(head, called, (("i", "j", "first", "last"),), options, hint="")
        return cls(header, "imote", round((options.interval_s or 0.0) * MICROSECONDS))

    @property
    def said(self) -> str:
        """What was assumed."""
        return self.header.said

    def parse(self, lines: Lines, file: int) -> Parsed:
        """Sightings."""
        lines = _without(lines, self.header.line)
        cells = _cells(lines, self.header)
        index = self.header.positions
        a, b, _ = pairs(cells.name(index["i"]), cells.name(index["j"]))
        start_us, until_us = self._times(cells)
        fault = None
        if self.kind == "imote":
            fault = ends_first(lines, cells.wrong, start_us, until_us, file)
            until_us = until_us + self.interval_us
        far = None if self.distance_m is None else cells.number(index["distance"]) > self.distance_m
        columns = {"a": a, "b": b, "t_us": start_us, "until_us": until_us}
        made = parsed(self, lines, cells.wrong, file, columns, without=far)
        made.fault, made.left_out = fault, made.lines - made.bad_lines - made.rows.num_rows
        return made

    def _times(self, cells: Cells) -> tuple[Numbers, Numbers]:
        index = self.header.positions
        if self.kind == "imote":
            return cells.times(index["first"]), cells.times(index["last"])
        if self.kind == "pairs":
            t_us = cells.times(index["t"], dates=True)
            return t_us - self.interval_us, t_us
        cells.number(index["distance"])
        step = cells.number(index["step"], _STEPS_MAX)
        cells.wrong |= ~((step >= 1) & (step == np.floor(step)))
        day, within = np.divmod(np.where(cells.wrong, 1, step).astype(np.int64) - 1, _STEPS_A_DAY)
        start_us = (day * 86_400 + _FIRST_STEP_S + within * 300) * MICROSECONDS
        return start_us, start_us + self.interval_us

    def why(self, text: str) -> str:
        """What is wrong with a line."""
        cells, wrong = _why_cells(self.header, text)
        if wrong:
            return wrong
        numbers = {each: cells[each] for each in ("t", "first", "last", "step", "distance") if each in cells}
        checks = [seconds(word, each) for each, word in numbers.items() if each in {"t", "first", "last"}]
        checks += [numeral(word, each) for each, word in numbers.items()]
        checks += [name(cells[each], each) for each in "ij"]
        return next(filter(None, checks), f"step must be a whole number from 1 to {_STEPS_MAX:,.0f}")


_STEPS_A_DAY = 192
_STEPS_MAX = 1e6
_FIRST_STEP_S = 7 * 3600


@dataclass(frozen=True, slots=True)
class Contacts:
    """Contacts as they are."""

    header: Header

    @classmethod
    def begin(cls, head: bytes, called: str, options: Options) -> Contacts:
        """By the first line of the file."""
        return cls(headers.find(head, called, (("a", "b", "start", "end"),), options, usual=False))

    @property
    def said(self) -> str:
        """What was assumed."""
        return self.header.said

    def parse(self, lines: Lines, file: int) -> Parsed:
        """Contacts."""
        lines = _without(lines, self.header.line)
        cells = _cells(lines, self.header)
        index = self.header.positions
        start_us, until_us = cells.times(index["start"]), cells.times(index["end"])
        a, b, same = pairs(cells.name(index["a"]), cells.name(index["b"]))
        cells.wrong |= same
        columns = {"a": a, "b": b, "t_us": start_us, "until_us": until_us}
        made = parsed(self, lines, cells.wrong, file, columns)
        made.fault = ends_first(lines, cells.wrong, start_us, until_us, file)
        return made

    def why(self, text: str) -> str:
        """What is wrong with a line."""
        cells, wrong = _why_cells(self.header, text)
        if wrong:
            return wrong
        checks = [name(cells[each], each) for each in "ab"]
        checks += [seconds(cells[each], each) for each in ("start", "end")]
        return next(filter(None, checks), f"{cells['a']} is in contact with itself")
