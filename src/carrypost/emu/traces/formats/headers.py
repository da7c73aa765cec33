"""Columns of a file: named by a header, by the user, or by the usual order.

Names of columns are looked up without regard to case, spaces, hyphens and units in brackets, and under the names that
other programs give them. A column that is needed and named twice is an error, and so is a header that does not name one
of them: the order of columns is assumed only where the first line is data. Other columns do not matter.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from carrypost.emu.scenario.csvfiles import Line
from carrypost.emu.traces.formats.lines import cut, separator_of, words_of
from carrypost.emu.traces.formats.rules import Options, shortened
from carrypost.emu.traces.formats.words import UNITS, is_number, is_time
from carrypost.errors import LocalError

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
    "first": ("first", "first_s", "start", "begin", "start_time", "t_start"),
    "last": ("last", "last_s", "end", "stop", "end_time", "t_end"),
    "step": ("time_step", "step"),
    "distance": ("distance_m", "distance"),
}  # fmt: skip
"""Names of each column. Case, spaces, hyphens and underscores do not matter."""
_TIMES = ("t", "start", "end", "first", "last")
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


def find(
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
