"""Ingest in one process: for small inputs, where starting Spark would take longer than the work; and what both share.

Blocks are read one after the other, rows kept, and all of them assembled at once. What is known of blocks besides their
rows (`Sum`) is counts, the first bad lines, bounds, how places spread, and the order of time from one block to the
next. Both engines check the sums of all blocks before anything is assembled, and their tables are equal.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from carrypost.errors import LocalError
from carrypost.lab import folders
from carrypost.lab.ingest import inputs
from carrypost.lab.ingest.inputs import IngestRequest, day_of
from carrypost.model.times import MICROSECONDS
from carrypost.traces.formats import Format, LineRule, Options
from carrypost.traces.formats.assembly import Assembled, column, resting
from carrypost.traces.formats.lines import cut, is_mac, plain_name
from carrypost.traces.formats.rules import Bad, FileFault, Sum, first, only, where
from carrypost.traces.formats.syntax import Positions, back, median

BAD_SHARE_MAX = 0.01
_WARNED = 3
_SHOWN = 3
Tell = Callable[[str, float], None]
"""A callback for progress: the current work, and how much of it is done."""


class Work(NamedTuple):
    """A request, the rules for the lines of each of its files, and the observer of its progress."""

    request: IngestRequest
    rules: Sequence[LineRule]
    on_progress: Tell | None

    def report(self, what: str, share: float) -> None:
        """Report the progress."""
        if self.on_progress is not None:
            self.on_progress(what, share)


@dataclass(slots=True, kw_only=True)
class Ingested:
    """The numbers of rows read and written."""

    found: Sum
    options: Options
    counts: dict[str, int]
    warnings: list[str]
    written: int
    nodes: int
    first_us: int
    last_us: int


def begun(request: IngestRequest) -> list[LineRule]:
    """Return the rules of files by their first lines."""
    options, pattern = request.options, request.options.date_from_name
    rules = [
        request.form.begin(
            inputs.head(path), name, replace(options, date=day_of(name, pattern)) if pattern else options
        )
        for path, name in zip(request.paths, request.names, strict=True)
    ]
    if isinstance(rules[0], Positions):
        same = rules[0]
        rules = [replace(each, east_of=same.east_of) if isinstance(each, Positions) else each for each in rules]
    return rules


def ingest(work: Work) -> Ingested:
    """Read, assemble and write."""
    request, found = work.request, Sum()
    parts: list[pa.Table] = []
    total = sum(inputs.text_bytes(path) for path in request.paths) or 1
    done = 0
    for file, (path, rule) in enumerate(zip(request.paths, work.rules, strict=True)):
        for number, data in inputs.blocks(path, request.block_bytes):
            parsed = only(rule.parse(cut(data, number), file), request.options.nodes)
            found.join(parsed)
            parts.append(parsed.rows)
            done += len(data)
            work.report("reading", min(1.0, done / total))
    options = checked(found, request, work.rules[0])
    work.report("assembling", 0.0)
    rows = pa.concat_tables(parts)
    parts.clear()
    assembled = request.form.assemble(rows, options)
    if (other := other_way(request.form, options, assembled.counts)) is not None:
        options, assembled = other, request.form.assemble(rows, other)
    made = gathered(found, options, [facts_of(assembled)])
    usable(request.names, assembled.faults, made)
    placed = resting(assembled.rows, made.last_us) if request.form.stays else assembled.rows
    made.written = placed.num_rows
    if request.form.gives == "contacts":
        made.nodes = len(pc.unique(pa.chunked_array([*placed["a"].chunks, *placed["b"].chunks], pa.string())))
    work.report("writing", 0.0)
    folders.write_arrow(_seconds(placed, request.scenario), request.out, request.table)
    return made


def _seconds(rows: pa.Table, scenario: str) -> pa.Table:
    """Return rows as tables of the laboratory have them."""
    arrays = {"scenario": pa.repeat(scenario, rows.num_rows)}
    for name in rows.column_names:
        timed = name.endswith("_us")
        arrays[name.removesuffix("_us")] = pc.divide(rows[name].cast("float64"), MICROSECONDS) if timed else rows[name]
    return pa.table(arrays)


# ------------------------------------------------------------------------------------------- what is known of rows
def facts_of(found: Assembled) -> dict[str, Any]:
    """Return the facts about some nodes or pairs besides their rows."""
    rows = found.rows
    times = [column(rows, name) for name in rows.column_names if name.endswith("_us")]
    return {
        "counts": found.counts,
        "faults": found.faults,
        "warnings": [rows["node"][0].as_py() if "node" in rows.column_names and rows.num_rows else "", found.warnings],
        "rows": rows.num_rows,
        "nodes": len(pc.unique(rows[rows.column_names[0]])),
        "first_us": int(times[0].min()) if rows.num_rows else None,
        "last_us": int(times[-1].max()) if rows.num_rows else None,
    }


def gathered(found: Sum, options: Options, notes: Sequence[Mapping[str, Any]]) -> Ingested:
    """Combine the facts of parts. Their nodes add up for positions only: there each is in one part."""
    counts: Counter[str] = Counter()
    for note in notes:
        counts.update(note["counts"])
    in_order = sorted(note["warnings"] for note in notes)
    return Ingested(
        found=found, options=options, counts=counts,
        warnings=[each for _, some in in_order for each in some][:_WARNED],
        written=sum(note["rows"] for note in notes), nodes=sum(note["nodes"] for note in notes),
        first_us=min((note["first_us"] for note in notes if note["first_us"] is not None), default=0),
        last_us=max((note["last_us"] for note in notes if note["last_us"] is not None), default=0),
    )  # fmt: skip


# ------------------------------------------------------------------------------------- conditions on all of them
def checked(found: Sum, request: IngestRequest, rule: object) -> Options:
    """Return the options for assembling all lines; raises if there is nothing to assemble, or too much is wrong."""
    format_, options, names = request.form, request.options, request.names
    if found.bad_lines > BAD_SHARE_MAX * found.lines and not request.lenient:
        raise LocalError(
            f"{found.bad_lines:,} of {found.lines:,} lines cannot be read as {format_.name} ({format_.line}), "
            f"more than 1 %; to read the rest: --lenient\n{told_bad(found, names)}"
        )
    if not found.made:
        if options.nodes and found.left_out:
            more = ", …" if options.nodes[_SHOWN:] else ""
            shown = ", ".join(options.nodes[:_SHOWN])
            raise LocalError(f"{names[0]}: no row is of the nodes that --nodes keeps: {shown}{more}")
        raise LocalError(f"{names[0]}: no line can be read as {format_.name} ({format_.line})")
    faults = [] if format_.log and options.unsorted else [*found.faults, *_order(found), *_mixed(found)]
    if (fault := first([*faults, *_same_name(found)])) is not None:
        raise fault.error(names)
    if isinstance(rule, Positions) and rule.geographic:
        north, middle = (median(found.spread[each]) for each in "yx")
        east = round((rule.east_of + middle + 180.0) % 360.0 - 180.0, 9)
        options = replace(options, origin=(north, east), middle=middle)
    return replace(options, end_us=int(found.most.get("t_us", 0)))


def usable(names: list[str], faults: list[FileFault], made: Ingested) -> None:
    """Raise if the assembled rows must not be written."""
    if (fault := first(faults)) is not None:
        raise fault.error(names)
    if not made.written and (one_way := made.counts.get("one_way_contacts")):
        raise LocalError(
            f"{names[0]}: all {one_way:,} contacts are one way only, so no two nodes hear each other; if each "
            "line counts for both directions: --both-ways"
        )


def other_way(format_: Format, options: Options, counts: dict[str, int]) -> Options | None:
    """Return the options for assembling again, where a contact plan turns out to tell one direction for both."""
    if counts.pop("two_way_pairs", 1) or not format_.symmetric:
        return None
    return replace(options, both_ways=True)


def _order(found: Sum) -> list[FileFault]:
    """Return the places where time goes back from one block to the next."""
    blocks = sorted(found.orders)
    return [back(two[0], one[3], two[1]) for one, two in pairwise(blocks) if two[1] < one[3]]


def _mixed(found: Sum) -> list[FileFault]:
    """Contact plans with dates and seconds."""
    if not {"absolute", "relative"} <= found.least.keys():
        return []
    one, two = sorted(int(found.least[each]) for each in ("absolute", "relative"))
    message = "relative and absolute times are mixed, see {other}: the start of the relative ones is unknown"
    return [FileFault(two, message, one)]


def _same_name(found: Sum) -> list[FileFault]:
    """Return the places where a node would get the name of another."""
    faults = []
    homes: dict[str, str] = {}
    for place, name in sorted((place, name) for name, place in found.spelt.items()):
        other = homes.setdefault(plain_name(name), name)
        if other != name and not (is_mac(name) and is_mac(other)):
            message = f"{name} and {other} of {{other}} would be the same node, since colons in names become hyphens"
            faults.append(FileFault(place, message, found.spelt[other]))
    return faults


def told_bad(found: Sum, names: Sequence[str]) -> str:
    """Return the first bad lines for people, one below the other."""
    first_of = [] if len(found.bad) == found.bad_lines else [f"the first {len(found.bad)} of them:"]
    return "\n".join([*first_of, *(f"  {shown(each, names)}" for each in found.bad)])


def shown(bad: Bad, names: Sequence[str]) -> str:
    """Return a bad line for people."""
    file, line = where(bad.at)
    quoted = "" if repr(bad.text) in bad.why else f" ({bad.text})"
    return f"{names[file]}, line {line}: {bad.why}{quoted}"
