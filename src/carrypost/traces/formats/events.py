"""Formats that are logs of events, orders or plans: The ONE's connections, KTH's walkers, ns-2, contact plans.

One line alone says little here: what becomes of them is found in `places` and `meetings`. Lines about other things
(messages in The ONE's logs, ranges in contact plans, radios in ns-2's files) are passed over, and counted.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from carrypost.arrays import Flags, Floats, Ints
from carrypost.traces.contacts import CONN_WORDS, ONE_OTHERS
from carrypost.traces.csvfiles import TIME_S_MAX, brief
from carrypost.traces.formats.lines import Cells, Checks, Lines, flags
from carrypost.traces.formats.rules import FileFault, Headless, Options, Parsed, at, ends_first, pairs, parsed
from carrypost.traces.formats.words import SECONDS, microseconds, no_number, numbers
from carrypost.traces.tracks import COORDINATE_M_MAX

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
