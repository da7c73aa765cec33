"""Movement from a file: that of The ONE, of ns-2, of KTH's walkers, or a CSV table.

The ONE's movement files give places at times; so do CSV files (``node,t,x,y``, seconds and metres, rows in any order).
In between, nodes move in straight lines. A node of a CSV file is there from its first place to its last; one of
The ONE's then stands there to the end of the run, as it does in The ONE. ns-2's ``setdest`` files give orders: go there
from now on at that speed; their nodes are there throughout. `walkers` tells of KTH's files, whose nodes come and go.
Nodes are called what the file calls them.

Nothing here is drawn: the seed has no say. Whatever is wrong is a `LocalError` that names the file and the line.
"""

from __future__ import annotations

import math
import re
from array import array
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from carrypost.config.rules import DAY_S, choice, keep_checked, number_or_none, text
from carrypost.emu.contacts import Presence
from carrypost.emu.csvfiles import MICROSECONDS, TIME_S_MAX, Line, read_text, rows
from carrypost.emu.mobility import walkers
from carrypost.emu.tracks import COORDINATE_M_MAX, SAME_PLACE_M, Movement, Tracks
from carrypost.errors import ConfigError, LocalError

_HEADER_NUMBERS = (6, 8)
_COLUMNS = ("node", "t", "x", "y")


@dataclass(frozen=True, slots=True, kw_only=True)
class Trace:
    """Movement from a file."""

    file: str = text("", "a file")
    """The file; it may be packed with gzip."""
    format: Literal["auto", "one", "ns-2", "walkers", "csv"] = choice("auto", ("auto", "one", "ns-2", "walkers", "csv"))
    """What kind of file it is; auto: what it looks like."""
    max_gap_s: float | None = number_or_none(0.0, 100 * DAY_S)
    """Between places further apart in time a node is out of everybody's range; none: it moves in a straight line."""
    start_s: float | None = number_or_none(-TIME_S_MAX, TIME_S_MAX)
    """Time in the file at which the run begins; none: 0, with The ONE's files what their header says."""

    def __post_init__(self) -> None:
        keep_checked(self, "mobility")
        if not self.file:
            raise ConfigError("mobility.file must name the file with the movement")

    @property
    def max_gap_us(self) -> int | None:
        """What the search for encounters must not join."""
        return None if self.max_gap_s is None else round(self.max_gap_s * MICROSECONDS)

    def move(self, seed: int | str, duration_us: int) -> Movement:  # noqa: ARG002 - nothing is drawn
        """What the file says about the time of the run."""
        return self.parse(read_text(self.file), duration_us)

    def parse(self, content: str, duration_us: int) -> Movement:
        """The same, where the content of the file is known already."""
        kind = _recognised(content, self.file) if self.format == "auto" else self.format
        places = _Places(self.file)
        stays, start_s = False, 0.0
        if kind == "one":
            stays, start_s = self.max_gap_s is None, _read_one(content, places)
        elif kind == "csv":
            _read_csv(content, places)
        elif kind == "walkers":
            for place in walkers.places(content, self.file):
                places.add(*place)
        elif self.max_gap_s is not None:
            raise ConfigError(
                "mobility.max_gap_s means nothing with ns-2's files: they have orders, not places at times"
            )
        else:
            stays = True
            _read_ns2(content, places)
        start_us = round((start_s if self.start_s is None else self.start_s) * MICROSECONDS)
        tracks = places.tracks(start_us, duration_us, stays=stays)
        return Movement(tracks, _presences(tracks, duration_us))


class _Places:
    """Places of nodes at times, in any order, each with the line that gives it."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.nodes: dict[str, int] = {}
        self.node = array("i")
        self.t_s = array("d")
        self.x = array("d")
        self.y = array("d")
        self.line = array("q")

    def add(self, node: str, t_s: float, x: float, y: float, line: int) -> None:
        self.node.append(self.nodes.setdefault(node, len(self.nodes)))
        self.t_s.append(t_s)
        self.x.append(x)
        self.y.append(y)
        self.line.append(line)

    def tracks(self, start_us: int, duration_us: int, *, stays: bool) -> Tracks:
        """The part that concerns the run; with `stays`, nodes are at their last place until its end."""
        if not self.nodes:
            raise LocalError(f"{self.name}, line 1: the file says nothing about any node")
        t_s, x, y = np.asarray(self.t_s), np.asarray(self.x), np.asarray(self.y)
        self._check("the time", t_s, TIME_S_MAX, "s")
        self._check("x", x, COORDINATE_M_MAX, "m")
        self._check("y", y, COORDINATE_M_MAX, "m")
        t_us = np.rint(t_s * MICROSECONDS).astype(np.int64) - start_us
        names = sorted(self.nodes)
        rank = np.empty(len(names), dtype=np.int32)
        rank[[self.nodes[name] for name in names]] = np.arange(len(names))
        node = rank[np.asarray(self.node)]
        order = np.lexsort((np.asarray(self.line), t_us, node))
        node, t_us, x, y, line = node[order], t_us[order], x[order], y[order], np.asarray(self.line)[order]
        again = np.flatnonzero((node[1:] == node[:-1]) & (t_us[1:] == t_us[:-1])) + 1
        for row in again[np.hypot(x[again] - x[again - 1], y[again] - y[again - 1]) > SAME_PLACE_M]:
            other = f"line {line[row - 1]} says ({x[row - 1]:g}, {y[row - 1]:g})"
            raise Line(self.name, int(line[row])).error(
                f"node {names[node[row]]} is at ({x[row]:g}, {y[row]:g}), but {other} for the same time"
            )
        node, t_us, x, y = (np.delete(column, again) for column in (node, t_us, x, y))
        if stays:
            last = np.flatnonzero(np.append(node[1:] != node[:-1], True))
            last = last[t_us[last] < duration_us]
            node, x, y = (np.insert(column, last + 1, column[last]) for column in (node, x, y))
            t_us = np.insert(t_us, last + 1, duration_us)
        kept = _concerns(node, t_us, duration_us)
        return Tracks(tuple(names), node[kept], t_us[kept], x[kept], y[kept])

    def _check(self, what: str, column: NDArray[np.float64], most: float, unit: str) -> None:
        for row in np.flatnonzero(~(np.abs(column) <= most)):
            raise Line(self.name, self.line[row]).error(
                f"{what} must be a number from -{most:,.0f} to {most:,.0f} {unit}, not {column[row]:g}"
            )


def _concerns(node: NDArray[np.int32], t_us: NDArray[np.int64], duration_us: int) -> NDArray[np.bool_]:
    """Samples within the run, and the one before and the one after, from and to which a node moves within it."""
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
_NS2_NODE = re.compile(r"\$node_?\(")
_NS2_ORDER = re.compile(r"set\s+[XYZ]_|setdest")
_NS2_PLACE = re.compile(r"\$node_?\((\w+)\)\s+set\s+([XYZ])_\s+(\S+)")
_NS2_SETDEST = re.compile(r'\$ns_?\s+at\s+(\S+)\s+"\$node_?\((\w+)\)\s+setdest\s+(\S+)\s+(\S+)\s+(\S+)"')


def _recognised(content: str, name: str) -> str:
    if _NS2_NODE.search(content):
        return "ns-2"
    for number, line in enumerate(content.splitlines(), 1):
        if not _says(line):
            continue
        if "," in line and all(column in map(str.strip, line.split(",")) for column in _COLUMNS):
            return "csv"
        if walkers.is_event(line):
            return "walkers"
        if _numbers(line.split()) and len(line.split()) in _HEADER_NUMBERS:
            return "one"
        raise Line(name, number).error(
            "is none of The ONE's header (minTime maxTime minX maxX minY maxY), a CSV header (node,t,x,y), "
            "an order of ns-2 ($node_(0) set X_ 1) or an event of walkers (6.0 create 2 628 1812 0), "
            f"but {line.strip()!r}"
        )
    raise LocalError(f"{name}, line 1: the file is empty")


def _says(line: str) -> bool:
    return bool(line.strip()) and not line.lstrip().startswith("#")


def _numbers(words: list[str]) -> list[float]:
    """These words as numbers; nothing if one of them is none."""
    try:
        return [float(word) for word in words]
    except ValueError:
        return []


def _read_one(content: str, places: _Places) -> float:
    """Read places, counted from the least of the header; the time at which the file begins, by its header."""
    lines = enumerate(content.splitlines(), 1)
    begin_s, x0, y0 = _one_header(lines, places.name)
    add = places.add
    for number, text_line in lines:
        words = text_line.split()
        try:
            add(words[1], float(words[0]), float(words[2]) - x0, float(words[3]) - y0, number)
        except (ValueError, IndexError):
            if _says(text_line):
                raise Line(places.name, number).error(f"must read TIME NODE X Y, not {text_line.strip()!r}") from None
    return begin_s


def _one_header(lines: Iterator[tuple[int, str]], name: str) -> tuple[float, float, float]:
    for number, line in lines:
        if not _says(line):
            continue
        header = _numbers(line.split())
        if len(header) not in _HEADER_NUMBERS or not all(map(math.isfinite, header)):
            wanted = "minTime maxTime minX maxX minY maxY, six numbers"
            raise Line(name, number).error(f"the header must be {wanted}, not {line.strip()!r}")
        return header[0], header[2], header[4]
    raise LocalError(f"{name}, line 1: the file is empty")


def _read_csv(content: str, places: _Places) -> None:
    for row in rows(content, places.name, _COLUMNS):
        places.add(row.text("node"), row.number("t"), row.number("x"), row.number("y"), row.line.number)


@dataclass(frozen=True, slots=True)
class _Order:
    """Go there from now on."""

    t_s: float
    x: float
    y: float
    speed_m_per_s: float
    line: int


def _read_ns2(content: str, places: _Places) -> None:
    starts: dict[str, dict[str, float]] = {}
    lines: dict[str, int] = {}
    orders: dict[str, list[_Order]] = {}
    for number, content_line in enumerate(content.splitlines(), 1):
        # Other lines belong to the rest of a simulation: gods, radios, agents.
        if not _says(content_line) or not (_NS2_NODE.search(content_line) and _NS2_ORDER.search(content_line)):
            continue
        line = Line(places.name, number)
        if found := _NS2_SETDEST.match(content_line.strip()):
            t_s, x, y, speed = (line.number_of(found[group], "setdest's argument") for group in (1, 3, 4, 5))
            if t_s < 0 or speed < 0:
                raise line.error(f"neither time nor speed of setdest may be negative: {content_line.strip()!r}")
            orders.setdefault(found[2], []).append(_Order(t_s, x, y, speed, number))
            lines.setdefault(found[2], number)
        elif found := _NS2_PLACE.match(content_line.strip()):
            starts.setdefault(found[1], {})[found[2]] = line.number_of(found[3], f"{found[2]}_")
            lines[found[1]] = number
        else:
            raise line.error(
                'must read $node_(N) set X_ NUMBER, or $ns_ at TIME "$node_(N) setdest X Y SPEED", '
                f"not {content_line.strip()!r}"
            )
    for node, number in lines.items():
        if not {"X", "Y"} <= starts.get(node, {}).keys():
            raise Line(places.name, number).error(f"node {node} has no first place: X_ and Y_ must both be set")
        obeyed = sorted(orders.get(node, ()), key=lambda order: order.t_s)
        _obey(node, (starts[node]["X"], starts[node]["Y"]), obeyed, number, places)


def _obey(node: str, start: tuple[float, float], orders: list[_Order], line: int, places: _Places) -> None:
    """Places of a node that does as it is told; a new order ends the one before, wherever the node is."""
    x, y = start
    places.add(node, 0.0, x, y, line)
    for index, order in enumerate(orders):
        places.add(node, order.t_s, x, y, order.line)
        next_s = orders[index + 1].t_s if index + 1 < len(orders) else math.inf
        way_m = math.hypot(order.x - x, order.y - y)
        if way_m == 0 or order.speed_m_per_s == 0:
            continue
        arrival_s = order.t_s + way_m / order.speed_m_per_s
        if arrival_s <= next_s:
            x, y = order.x, order.y
            places.add(node, arrival_s, x, y, order.line)
        else:
            share = (next_s - order.t_s) / (arrival_s - order.t_s)
            x, y = x + share * (order.x - x), y + share * (order.y - y)
