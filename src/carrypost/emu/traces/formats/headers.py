"""Which column is which: by a header, by what the user says, or by the usual order.

Names of columns are looked up without regard to case, spaces, hyphens and units in brackets, and under the names that
other programs give them. A column that is needed and named twice is an error, and so is a header that does not name one
of them: the order of columns is assumed only where the first line is data. Other columns do not matter.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from carrypost.emu.scenario.csvfiles import Line
from carrypost.emu.traces.formats.lines import cut, is_number, separator_of, words_of
from carrypost.emu.traces.formats.rules import Options, shortened
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
"""Names of each column; case, spaces, hyphens and underscores do not tell them apart."""
_UNIT = re.compile(r"\s*[(\[]\s*([^()\[\]]*?)\s*[)\]]\s*$")
_OTHER_UNITS = {
    "ms", "msec", "millis", "milliseconds", "us", "µs", "μs", "microseconds", "ns", "nanoseconds", "min", "minutes",
    "h", "hours", "days", "mm", "cm", "km", "ft", "feet", "mi", "miles", "yd", "rad", "radians",
}  # fmt: skip
"""A column in one of these is not the one that its name without the unit would be."""
_HEADER_SHOWN = 400
_HINT = "; if columns have other names, tell all of them in the order of the file: --columns"


@dataclass(frozen=True, slots=True)
class Header:
    """Where the columns of a file are."""

    separator: str | None
    positions: Mapping[str, int]
    width: int
    """Cells that a line must have."""
    line: int
    """Where it stands; 0: there is none."""
    said: str = ""


def head_lines(head: bytes, name: str) -> list[tuple[int, str]]:
    """The first lines that say something, with their numbers."""
    found = cut(head)
    if not len(found.number):
        raise LocalError(f"{name}, line 1: the file is empty")
    return list(zip(found.number.tolist(), found.text.to_pylist(), strict=True))


def find(
    head: bytes, name: str, wanted: Sequence[Sequence[str]], options: Options, *, usual: bool = True, hint: str = _HINT
) -> Header:
    """The columns of one of the sets in `wanted`, the first that is there; `usual`: without a header, in that order."""
    number, line = head_lines(head, name)[0]
    separator = separator_of(line)
    cells = words_of(line, separator)
    told = Line(name, number)
    if options.columns:
        named = _positions(options.columns, wanted, "--columns")
        if named is None:
            raise LocalError(f"--columns must name {_or(wanted)}, not {','.join(options.columns)}")
        width = len(options.columns)
        if _has_numbers(cells, named):
            return Header(separator, named, width, 0)
        return Header(
            separator, named, width, number, f"{name}, line {number}: is taken for a header: {shortened(line)}"
        )
    found = _positions(cells, wanted, f"{name}, line {number}", hint)
    if found is not None:
        return Header(separator, found, len(cells), number)
    order = dict(zip(wanted[0], range(len(wanted[0])), strict=True))
    if usual and len(cells) >= len(order) and _is_data(cells, order):
        # Where there is but one way to read it, a header is not missed.
        said = f"{name}: there is no header; columns are taken to be {', '.join(order)}"
        return Header(separator, order, len(cells), 0, said if wanted[1:] else "")
    if usual and (len(cells) < len(order) or is_number(cells[0])):
        raise told.error(
            f"must be a header that names {_or(wanted)}, or a row of {' '.join(wanted[0])}, not {line!r}{hint}"
        )
    # Told of the set of which most is there: who has a latitude does not want to hear of x.
    nearest = max(wanted, key=lambda names: sum(bool(_at(cells, column)) for column in names))
    missing = [column for column in nearest if not _at(cells, column)]
    lacks = f"column {missing[0]} is" if len(missing) == 1 else f"columns {', '.join(missing)} are"
    there = shortened(", ".join(cells), _HEADER_SHOWN)
    raise told.error(f"{lacks} missing; the header must name {_or(wanted)}, found {there}{hint}")


def _or(wanted: Sequence[Sequence[str]]) -> str:
    return " or ".join(", ".join(each) for each in wanted)


def _bare(cell: str) -> str:
    """A name without what does not matter."""
    unit = _UNIT.search(cell)
    if unit is not None and unit[1].lower() not in _OTHER_UNITS:
        cell = cell[: unit.start()]
    return re.sub(r"[\s_-]+", "", cell.lower())


_BARE = {column: {_bare(each) for each in names} for column, names in SYNONYMS.items()}


def _at(cells: Sequence[str], column: str) -> list[int]:
    names = [_bare(cell) for cell in cells]
    exact = [index for index, cell in enumerate(names) if cell == column]
    return exact or [index for index, cell in enumerate(names) if cell in _BARE[column]]


def _positions(
    cells: Sequence[str], wanted: Sequence[Sequence[str]], where: str, hint: str = ""
) -> dict[str, int] | None:
    for names in wanted:
        places = {column: _at(cells, column) for column in names}
        if all(places.values()):
            for column, found in places.items():
                if len(found) > 1:
                    both = ", ".join(cells[index] for index in found)
                    raise LocalError(f"{where}: column {column} is there twice: {both}{hint}")
            return {column: found[0] for column, found in places.items()}
    return None


_TEXTS = {"node", "i", "j", "a", "b"}


def _is_data(cells: Sequence[str], positions: Mapping[str, int]) -> bool:
    """Whether what must be numbers are; dates count."""
    return all(
        index < len(cells) and (is_number(cells[index]) or (column == "t" and cells[index][:4].isdecimal()))
        for column, index in positions.items()
        if column not in _TEXTS
    )


def _has_numbers(cells: Sequence[str], positions: Mapping[str, int]) -> bool:
    """Whether any of what is wanted is a number or a date: no header has that."""
    words = [cells[index] for index in positions.values() if index < len(cells)]
    return any(is_number(word) or word[:4].isdecimal() for word in words)
