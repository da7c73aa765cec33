"""Which column is which: by a header, by what the user says, or by the usual order.

Names of columns are looked up without regard to case, and under the names that other programs give them. A column that
is needed and named twice is an error; others do not matter.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from carrypost.emu.csvfiles import Line
from carrypost.emu.formats.lines import cut, is_number, separator_of, words_of
from carrypost.emu.formats.rules import Options
from carrypost.errors import LocalError

SYNONYMS: Mapping[str, tuple[str, ...]] = {
    "t": ("t", "time", "timestamp", "ts", "t_s", "time_s", "seconds", "sec", "datetime", "date_time", "epoch", "unix"),
    "node": ("node", "id", "node_id", "nodeid", "user", "user_id", "userid", "uid", "device", "device_id", "name",
             "vehicle", "vehicle_id", "taxi", "taxi_id", "person", "person_id"),
    "x": ("x", "x_m", "posx", "pos_x", "east", "easting"),
    "y": ("y", "y_m", "posy", "pos_y", "north", "northing"),
    "lat": ("lat", "latitude", "lat_deg"),
    "lon": ("lon", "lng", "long", "longitude", "lon_deg"),
    "i": ("i", "id1", "a", "node1", "user1", "user1_id", "u", "source", "from"),
    "j": ("j", "id2", "b", "node2", "user2", "user2_id", "v", "target", "to"),
    "a": ("a", "node1", "id1", "i"),
    "b": ("b", "node2", "id2", "j"),
    "start": ("start", "begin", "start_s", "t_start", "first"),
    "end": ("end", "stop", "end_s", "t_end", "last"),
    "step": ("time_step", "step"),
    "distance": ("distance_m", "distance"),
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Header:
    """Where the columns of a file are."""

    separator: str | None
    positions: Mapping[str, int]
    width: int
    """Cells that a line may have; 0: any number."""
    line: int
    """Where it stands; 0: there is none."""
    said: str = ""


def head_lines(head: bytes, name: str) -> list[tuple[int, str]]:
    """The first lines that say something, with their numbers."""
    found = cut(head)
    if not len(found.number):
        raise LocalError(f"{name}, line 1: the file is empty")
    return list(zip(found.number.tolist(), found.text.to_pylist(), strict=True))


def find(head: bytes, name: str, wanted: Sequence[Sequence[str]], options: Options, *, usual: bool = True) -> Header:
    """The columns of one of the sets in `wanted`, the first that is there; `usual`: without a header, in that order."""
    number, line = head_lines(head, name)[0]
    separator = separator_of(line)
    cells = words_of(line, separator)
    if options.columns:
        named = _positions(options.columns, wanted, "--columns")
        if named is None:
            raise LocalError(f"--columns must name {_or(wanted)}, not {','.join(options.columns)}")
        return Header(separator, named, 0, 0 if _is_data(cells, named) else number)
    found = _positions(cells, wanted, f"{name}, line {number}")
    if found is not None:
        return Header(separator, found, len(cells), number)
    order = dict(zip(wanted[0], range(len(wanted[0])), strict=True))
    told = Line(name, number)
    if not usual:
        missing = next(column for column in wanted[0] if not _at(cells, column))
        needed = ", ".join(wanted[0])
        raise told.error(f"column {missing} is missing; the header must name {needed}, found {', '.join(cells)}")
    if len(cells) < len(order) or not _is_data(cells, order):
        if len(cells) < len(order) or is_number(cells[0]):
            raise told.error(
                f"must be a header that names {_or(wanted)}, or a row of {' '.join(wanted[0])}, not {line!r}; "
                "if columns have other names: --columns"
            )
        return Header(separator, order, len(cells), number, _assumed(name, wanted[0], "the header has other names"))
    # Where there is but one way to read it, a header is not missed.
    return Header(separator, order, 0, 0, _assumed(name, wanted[0], "there is no header") if wanted[1:] else "")


def _assumed(name: str, order: Sequence[str], why: str) -> str:
    return f"{name}: {why}; columns are taken to be {', '.join(order)}"


def _or(wanted: Sequence[Sequence[str]]) -> str:
    return " or ".join(", ".join(each) for each in wanted)


def _at(cells: Sequence[str], column: str) -> list[int]:
    names = [cell.lower() for cell in cells]
    exact = [index for index, cell in enumerate(names) if cell == column]
    return exact or [index for index, cell in enumerate(names) if cell in SYNONYMS[column]]


def _positions(cells: Sequence[str], wanted: Sequence[Sequence[str]], where: str) -> dict[str, int] | None:
    for names in wanted:
        places = {column: _at(cells, column) for column in names}
        if all(places.values()):
            for column, found in places.items():
                if len(found) > 1:
                    raise LocalError(f"{where}: column {column} is there twice")
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
