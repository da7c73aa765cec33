"""What blocks say, added up; and what must hold of all of them together before anything is assembled.

`Sum` is what is known of blocks besides their rows: counts, the first bad lines, bounds, how places spread, and the
order of time from one block to the next. Adding is the same in whatever order blocks were read.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any

from carrypost.emu.traces.formats import Format, Options, Parsed
from carrypost.emu.traces.formats.events import back
from carrypost.emu.traces.formats.rules import BAD_SHOWN, Bad, FileFault, first, where
from carrypost.emu.traces.formats.tables import Positions, median
from carrypost.errors import LocalError

BAD_SHARE_MAX = 0.01


@dataclass(slots=True)
class Sum:
    """Blocks, added up."""

    lines: int = 0
    passed: int = 0
    left_out: int = 0
    rows: int = 0
    bad_lines: int = 0
    bad: list[Bad] = field(default_factory=list)
    faults: list[FileFault] = field(default_factory=list)
    least: dict[str, float] = field(default_factory=dict)
    most: dict[str, float] = field(default_factory=dict)
    spread: dict[str, dict[int, int]] = field(default_factory=dict)
    orders: list[tuple[int, int, int, int]] = field(default_factory=list)
    renamed: int = 0

    def add(self, parsed: Parsed) -> None:
        """Add one more block."""
        faults = [parsed.fault] if parsed.fault is not None else []
        orders = [parsed.order] if parsed.order is not None else []
        self.join(
            Sum(
                parsed.lines, parsed.passed, parsed.left_out, parsed.rows.num_rows, parsed.bad_lines, list(parsed.bad),
                faults, parsed.least, parsed.most, parsed.spread, orders, parsed.renamed,
            )
        )  # fmt: skip

    def join(self, other: Sum) -> Sum:
        """Add the blocks of another sum; returns this one."""
        for name in ("lines", "passed", "left_out", "rows", "bad_lines", "renamed"):
            setattr(self, name, getattr(self, name) + getattr(other, name))
        self.bad = sorted([*self.bad, *other.bad])[:BAD_SHOWN]
        self.faults += other.faults
        self.orders += other.orders
        self.least |= {key: min(value, self.least.get(key, value)) for key, value in other.least.items()}
        self.most |= {key: max(value, self.most.get(key, value)) for key, value in other.most.items()}
        for axis, counts in other.spread.items():
            mine = self.spread.setdefault(axis, {})
            for cell, count in counts.items():
                mine[cell] = mine.get(cell, 0) + count
        return self

    def text(self) -> str:
        """For the way from an executor."""
        return json.dumps([getattr(self, each) for each in self.__dataclass_fields__])

    @classmethod
    def of(cls, text: str) -> Sum:
        """Back again."""
        values: list[Any] = json.loads(text)
        made = cls(*values)
        made.bad = [Bad(*each) for each in made.bad]
        made.faults = [FileFault(*each) for each in made.faults]
        made.spread = {
            axis: {int(cell): count for cell, count in counts.items()} for axis, counts in made.spread.items()
        }
        made.orders = [(one, two, three, four) for one, two, three, four in made.orders]
        return made


def checked(
    found: Sum, format_: Format, options: Options, rule: object, *, names: Sequence[str], lenient: bool
) -> Options:
    """What assembling needs to know of all lines; an error if there is nothing to assemble, or too much is wrong."""
    if found.bad_lines > BAD_SHARE_MAX * found.lines and not lenient:
        raise LocalError(
            f"{found.bad_lines:,} of {found.lines:,} lines cannot be read as {format_.name} ({format_.line}), more "
            f"than 1 %; if the rest is what you want: --lenient\n{told_bad(found, names)}"
        )
    if not found.rows:
        raise LocalError(f"{names[0]}: there is nothing in it that can be read as {format_.name} ({format_.line})")
    faults = [] if format_.log and options.unsorted else [*found.faults, *_order(found), *_mixed(found)]
    if (fault := first(faults)) is not None:
        raise fault.told(list(names))
    if isinstance(rule, Positions) and rule.geographic:
        north, middle = (median(found.spread[each]) for each in "yx")
        east = round((rule.east_of + middle + 180.0) % 360.0 - 180.0, 9)
        options = replace(options, origin=(north, east), middle=middle)
    return replace(options, end_us=int(found.most.get("t_us", 0)))


def usable(names: Sequence[str], faults: list[FileFault], counts: dict[str, int], rows: int) -> None:
    """An error if what was assembled must not be written."""
    if (fault := first(faults)) is not None:
        raise fault.told(list(names))
    if not rows and (one_way := counts.get("one_way_contacts")):
        raise LocalError(
            f"{names[0]}: no two nodes hear each other at the same time, all {one_way:,} contacts are one way only; "
            "if a line stands for both directions: --both-ways"
        )


def other_way(format_: Format, options: Options, counts: dict[str, int]) -> Options | None:
    """How to assemble again, where a contact plan turns out to tell one direction for both."""
    if counts.pop("two_way_pairs", 1) or not format_.symmetric:
        return None
    return replace(options, both_ways=True)


def _order(found: Sum) -> list[FileFault]:
    """Where time goes back from one block to the next."""
    blocks = sorted(found.orders)
    return [back(two[0], one[3], two[1]) for one, two in pairwise(blocks) if two[1] < one[3]]


def _mixed(found: Sum) -> list[FileFault]:
    """Contact plans with dates and seconds."""
    if not {"absolute", "relative"} <= found.least.keys():
        return []
    one, two = sorted(int(found.least[each]) for each in ("absolute", "relative"))
    message = "relative and absolute times are mixed, see {other}: nothing says when the relative ones begin"
    return [FileFault(two, message, one)]


def told_bad(found: Sum, names: Sequence[str]) -> str:
    """The first bad lines for people, one below the other."""
    first_of = [] if len(found.bad) == found.bad_lines else [f"the first {len(found.bad)} of them:"]
    return "\n".join([*first_of, *(f"  {shown(each, names)}" for each in found.bad)])


def shown(bad: Bad, names: Sequence[str]) -> str:
    """A bad line for people."""
    file, line = where(bad.at)
    quoted = "" if repr(bad.text) in bad.why else f" ({bad.text})"
    return f"{names[file]}, line {line}: {bad.why}{quoted}"
