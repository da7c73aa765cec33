"""Sums of the results of blocks, and the conditions on all of them together before anything is assembled.

What is known of blocks besides their rows (`Sum`) is counts, the first bad lines, bounds, how places spread, and the
order of time from one block to the next.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise

from carrypost.emu.traces.formats import Format, Options
from carrypost.emu.traces.formats.events import back
from carrypost.emu.traces.formats.rules import Bad, FileFault, Sum, first, where
from carrypost.emu.traces.formats.tables import Positions, median
from carrypost.emu.traces.formats.words import plain_name
from carrypost.errors import LocalError
from carrypost.lab.ingest.request import IngestRequest

BAD_SHARE_MAX = 0.01


def checked(found: Sum, request: IngestRequest, rule: object) -> Options:
    """Return the options for assembling all lines; raises if there is nothing to assemble, or too much is wrong."""
    format_, options, names = request.form, request.options, request.names
    if found.bad_lines > BAD_SHARE_MAX * found.lines and not request.lenient:
        raise LocalError(
            f"{found.bad_lines:,} of {found.lines:,} lines cannot be read as {format_.name} ({format_.line}), "
            f"more than 1 %; to read the rest: --lenient\n{told_bad(found, names)}"
        )
    if not found.made:
        raise LocalError(f"{names[0]}: no line can be read as {format_.name} ({format_.line})")
    faults = [] if format_.log and options.unsorted else [*found.faults, *_order(found), *_mixed(found)]
    if (fault := first([*faults, *_same_name(found)])) is not None:
        raise fault.error(names)
    if isinstance(rule, Positions) and rule.geographic:
        north, middle = (median(found.spread[each]) for each in "yx")
        east = round((rule.east_of + middle + 180.0) % 360.0 - 180.0, 9)
        options = replace(options, origin=(north, east), middle=middle)
    return replace(options, end_us=int(found.most.get("t_us", 0)))


def usable(names: list[str], faults: list[FileFault], counts: dict[str, int], rows: int) -> None:
    """Raise if the assembled rows must not be written."""
    if (fault := first(faults)) is not None:
        raise fault.error(names)
    if not rows and (one_way := counts.get("one_way_contacts")):
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
        if other != name:
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
