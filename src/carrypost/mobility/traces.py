"""Movement from a file of The ONE, of ns-2, of KTH's walkers, a CSV table, or the laboratory's table `positions`.

The ONE's movement files give places at times; so do CSV files (``node,t,x,y``, seconds and metres, rows in any order).
In between, nodes move in straight lines. A node of a CSV file is present from its first place to its last; a node of
The ONE stays at its last place to the end of the run, as it does in The ONE. ns-2's ``setdest`` files have orders to go
somewhere at some speed; their nodes are present throughout. KTH's walkers come and go. The syntax of lines is described
in `formats`; nodes have the names in the file.

Nothing is random: the seed has no influence. Errors are `LocalError` and name the file and the line.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Literal

import numpy as np
import pyarrow as pa

from carrypost.arrays import Codes, Flags, Ints
from carrypost.config import DAY_S
from carrypost.config.rules import number, table, text
from carrypost.errors import ConfigError, LocalError
from carrypost.model.times import MICROSECONDS
from carrypost.traces.contact_tables import positions_of
from carrypost.traces.contacts import Presence
from carrypost.traces.csvfiles import TIME_S_MAX, Line, has_content, read_text, rows
from carrypost.traces.formats import FORMATS, Options, read_whole
from carrypost.traces.formats.assembly import column, ranked, resting
from carrypost.traces.formats.lines import no_number
from carrypost.traces.formats.syntax import NS2_NODE, OneMovement, is_walkers
from carrypost.traces.tracks import Movement, Tracks

_HEADER_NUMBERS = (6, 8)
_COLUMNS = ("node", "t", "x", "y")
_FORMATS = {"one": "one-movement", "ns-2": "ns2", "walkers": "kth", "csv": "gps-csv"}
_UNSORTED = {"one", "csv"}
_STAYING = {"one", "ns-2"}


@table("mobility")
class Trace:
    """Movement from a file."""

    file: str = text("", "a file")
    """The file; it may be packed by gzip, xz or zip. Or the folder that `lab ingest` wrote, or `positions` in it."""
    format: Literal["auto", "one", "ns-2", "walkers", "csv", "table"] = "auto"
    """Format of the file; auto: detected from its contents."""
    max_gap_s: float | None = number(None, 0.0, 100 * DAY_S)
    """Longest gap between two positions that a node bridges in a straight line; none: unlimited. In longer gaps it is
    out of range."""
    start_s: float | None = number(None, -TIME_S_MAX, TIME_S_MAX)
    """Time in the file at which the run begins; none: 0, or for The ONE's files the time in their header."""

    def __post_init__(self) -> None:
        if not self.file:
            raise ConfigError("mobility.file must name the file with the movement")

    @property
    def max_gap_us(self) -> int | None:
        """Samples further apart are not joined by a line; None: all are."""
        return None if self.max_gap_s is None else round(self.max_gap_s * MICROSECONDS)

    def move(self, seed: int | str, duration_us: int) -> Movement:  # noqa: ARG002 - nothing is drawn
        """Return the movement in the file within the time of the run."""
        path = Path(self.file)
        if self.format == "table" or (self.format == "auto" and (path.is_dir() or path.suffix == ".parquet")):
            return self._moved(positions_of(path), 0.0, duration_us, stays=False)
        return self.parse(read_text(self.file), duration_us)

    def parse(self, content: str, duration_us: int) -> Movement:
        """Return the same, where the content of the file is known already."""
        kind = _recognised(content, self.file) if self.format == "auto" else self.format
        if kind == "ns-2" and self.max_gap_s is not None:
            raise ConfigError(
                "mobility.max_gap_s cannot be used with files of ns-2, which have no samples: leave it out"
            )
        stays = kind in _STAYING and self.max_gap_s is None
        if kind == "csv":  # As in all CSV files of the emulator, the header comes first.
            next(rows(content, self.file, _COLUMNS), None)
        form = FORMATS[_FORMATS[kind]]
        options = Options(unsorted=kind in _UNSORTED, metres=True, returns=False)
        rule, placed = read_whole(form, content, self.file, options)
        start_s = rule.begin_s if isinstance(rule, OneMovement) else 0.0
        return self._moved(placed, start_s, duration_us, stays=stays)

    def _moved(self, placed: pa.Table, start_s: float, duration_us: int, *, stays: bool) -> Movement:
        start_us = round((start_s if self.start_s is None else self.start_s) * MICROSECONDS)
        tracks = _tracks(placed, start_us, duration_us, stays=stays)
        return Movement(tracks, _presences(tracks, duration_us))


def _tracks(placed: pa.Table, start_us: int, duration_us: int, *, stays: bool) -> Tracks:
    """Return the part that concerns the run; with `stays`, nodes are at their last place until its end."""
    if stays:
        placed = resting(placed, start_us + duration_us)
    names, rank = ranked(placed["node"])
    t_us, x, y = (column(placed, each) for each in ("t_us", "x", "y"))
    node, t_us = rank.astype(np.int32), t_us - start_us
    kept = _concerns(node, t_us, duration_us)
    return Tracks(tuple(names.to_pylist()), node[kept], t_us[kept], x[kept], y[kept])


def _concerns(node: Codes, t_us: Ints, duration_us: int) -> Flags:
    """Return flags of the samples within the run, and of the one before and the one after it."""
    before, after = t_us <= 0, t_us >= duration_us
    same = node[1:] == node[:-1]
    kept = np.ones(len(node), dtype=np.bool_)
    kept[:-1] &= ~(same & before[:-1] & before[1:])
    kept[1:] &= ~(same & after[:-1] & after[1:])
    return kept


def _presences(tracks: Tracks, duration_us: int) -> list[Presence]:
    first = np.flatnonzero(np.append(True, tracks.node[1:] != tracks.node[:-1]))
    last = np.append(first[1:], len(tracks.node)) - 1
    found = []
    for one, two in zip(first.tolist(), last.tolist(), strict=True):
        join_us, leave_us = max(0, int(tracks.t_us[one])), int(tracks.t_us[two])
        if join_us < min(leave_us, duration_us):
            node = tracks.nodes[tracks.node[one]]
            found.append(Presence(node, join_us, None if leave_us >= duration_us else leave_us))
    return found


# --------------------------------------------------------------------------------------------------- formats


def _recognised(content: str, name: str) -> str:
    if re.search(NS2_NODE, content):
        return "ns-2"
    for place, line in enumerate(content.splitlines(), 1):
        if not has_content(line):
            continue
        if "," in line and all(column in map(str.strip, line.split(",")) for column in _COLUMNS):
            return "csv"
        if is_walkers(line):
            return "walkers"
        if len(line.split()) in _HEADER_NUMBERS and not any(no_number(word, "") for word in line.split()):
            return "one"
        raise Line(name, place).error(
            "must be the header of The ONE (minTime maxTime minX maxX minY maxY), a CSV header (node,t,x,y), "
            "a command of ns-2 ($node_(0) set X_ 1) or an event of walkers (6.0 create 2 628 1812 0), not "
            f"{line.strip()!r}"
        )
    raise LocalError(f"{name}, line 1: the file is empty")
