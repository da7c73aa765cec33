"""Formats of traces: the syntax of their lines, and the contacts or movements that the rows result in.

Reading has two steps, both on columns of many rows at once. A rule, made from the beginning of a file (`Format.begin`),
turns blocks of lines into rows, wherever they are in the file and in any order. `Format.assemble` turns all rows of
some nodes or pairs into places or contacts. The emulator's readers and the laboratory use the same rules. They differ
in the treatment of bad lines: here one is enough for an error, there a share of them is tolerated.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import pyarrow as pa

from carrypost.errors import LocalError
from carrypost.traces.formats import assembly, syntax
from carrypost.traces.formats.assembly import Assembled
from carrypost.traces.formats.lines import cut, no_name, plain_name
from carrypost.traces.formats.rules import LineRule, Options, first
from carrypost.traces.formats.syntax import ContactPlan, Ns2, OneConnections, Walkers


@dataclass(frozen=True, slots=True)
class Format:
    """A format of traces."""

    name: str
    gives: Literal["positions", "contacts"]
    line: str
    """Form of a line, for people."""
    begin: Callable[[bytes, str, Options], LineRule]
    """The rule of a file: from its first bytes, how it is called, and what the user says."""
    assemble: Callable[[pa.Table, Options], Assembled]
    uses: tuple[str, ...]
    """Columns of rows that assembling needs."""
    takes: frozenset[str] = frozenset()
    """Options that mean something with it, besides those that all take."""
    log: bool = False
    """True if its lines are in order of time, all together."""
    symmetric: bool = False
    """True if a line stands for both directions, in plans in which no pair has lines of both."""
    stays: bool = False
    """True if its nodes are there until the end of all."""


_MOVED = ("a", "at", "t_us", "x", "y")
_MET = ("a", "b", "at", "t_us")
_SEEN = (*_MET, "until_us")
_PLANNED = (*_SEEN, "kind")
_PLACED = frozenset({"unsorted", "same_time"})
_TIMED = frozenset({"time_unit", "date", "date_from_name"})
_ORDERED = (*_MOVED, "kind", "v")
_WALKED = (*_MOVED, "kind", "until_us")
_UNSORTED = frozenset({"unsorted"})
_BOTH_WAYS = frozenset({"both_ways"})
FORMATS = {
    each.name: each
    for each in (
        Format("one-connections", "contacts", "20733.00 CONN 17 6 up", OneConnections.begin, assembly.events,
               (*_MET, "kind"), _UNSORTED | {"overlaps"}, log=True),
        Format("one-movement", "positions", "minTime maxTime minX maxX minY maxY, then TIME NODE X Y",
               syntax.OneMovement.begin, assembly.places, _MOVED, _PLACED),
        Format("ns2", "positions", '$ns_ at 3.6 "$node_(0) setdest 816.9 1814.5 1.2"',
               Ns2.begin, assembly.ns2, _ORDERED, stays=True),
        Format("kth", "positions", "6.0 create 2 628.2 1812.1 0.0, setdest, destroy",
               Walkers.begin, assembly.walkers, _WALKED, _UNSORTED),
        Format("imote", "contacts", "ID1 ID2 FIRST LAST …",
               syntax.Sightings.imote, assembly.merged, _SEEN, _TIMED | {"interval_s", "columns", "node_from_name"}),
        Format("gps-csv", "positions", "columns t, node and x, y or lat, lon",
               syntax.Positions.begin, assembly.places, _MOVED, _PLACED | _TIMED | {"columns", "node_from_name"}),
        Format("pairs", "contacts", "T I J …", syntax.Sightings.pairs, assembly.sampled, _SEEN,
               _TIMED | {"interval_s", "columns", "overlaps", "node_from_name"}),
        Format("haslemere", "contacts", "time_step,user1_id,user2_id,distance_m",
               syntax.Sightings.haslemere, assembly.merged, _SEEN, frozenset({"distance_m"})),
        Format("ion", "contacts", "a contact +0 +60 1 2 100000", ContactPlan.begin, assembly.plan, _PLANNED,
               _BOTH_WAYS),
        Format("ccp", "contacts", "a contact 0 60 1 2 100000 0.0 0 0", ContactPlan.begin, assembly.plan, _PLANNED,
               _BOTH_WAYS, symmetric=True),
        Format("contacts-csv", "contacts", "columns a, b, start, end or duration", syntax.ContactIntervals.begin,
               assembly.exact, _SEEN, _TIMED | {"columns", "overlaps"}),
    )
}  # fmt: skip
"""Formats by name, without GTFS, whose lines are not of one kind."""
ALIASES = {"csv": "gps-csv"}


def read_whole(format_: Format, content: str, name: str, options: Options) -> tuple[LineRule, pa.Table]:
    """Return the places or contacts in a text without any bad line; errors name file and line."""
    data = content.encode()
    rule = format_.begin(data, name, options)
    parsed = rule.parse(cut(data), 0)
    # Scenarios name nodes as their files do: what would have another name is refused.
    wrong = [(at, no_name(node, "node")) for node, at in parsed.spelt.items() if plain_name(node) != node]
    wrong += [(bad.at, bad.why) for bad in parsed.bad]
    for line, why in sorted(wrong)[:1]:
        raise LocalError(f"{name}, line {line}: {why}")
    if (fault := first(parsed.faults)) is not None and not (format_.log and options.unsorted):
        raise fault.error([name])
    if not parsed.made:
        raise LocalError(f"{name}, line 1: the file names no nodes")
    found = format_.assemble(parsed.rows, options)
    if (fault := first(found.faults)) is not None:
        raise fault.error([name])
    return rule, found.rows


__all__ = ["ALIASES", "FORMATS", "Format", "LineRule", "Options", "read_whole"]
