"""What blocks say, added up; and what must hold of all of them together before anything is assembled.

`Sum` is what is known of blocks besides their rows: counts, the first bad lines, bounds, how places spread, and the
order of time from one block to the next. Adding is the same in whatever order blocks were read.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise

import msgspec

from carrypost.emu.traces.formats import Format, Options, Parsed
from carrypost.emu.traces.formats.events import back
from carrypost.emu.traces.formats.rules import BAD_SHOWN, Bad, FileFault, first, where
from carrypost.emu.traces.formats.tables import Positions, median
from carrypost.emu.traces.formats.words import plain_name
from carrypost.errors import LocalError

BAD_SHARE_MAX = 0.01


class Sum(msgspec.Struct):
    """Blocks, added up."""

    lines: int = 0
    passed: int = 0
    left_out: int = 0
    rows: int = 0
    bad_lines: int = 0
    bad: list[Bad] = []
    faults: list[FileFault] = []
    least: dict[str, float] = {}
    most: dict[str, float] = {}
    spread: dict[str, dict[int, int]] = {}
    orders: list[tuple[int, int, int, int]] = []
    spelt: dict[str, int] = {}

    def add(self, parsed: Parsed) -> None:
        """Add one more block."""
        faults = [parsed.fault] if parsed.fault is not None else []
        orders = [parsed.order] if parsed.order is not None else []
        self.join(
            Sum(
                parsed.lines, parsed.passed, parsed.left_out, parsed.rows.num_rows, parsed.bad_lines, list(parsed.bad),
                faults, parsed.least, parsed.most, parsed.spread, orders, parsed.spelt,
            )
        )  # fmt: skip

    def join(self, other: Sum) -> Sum:
        """Add the blocks of another sum; returns this one."""
        for name in ("lines", "passed", "left_out", "rows", "bad_lines"):
            setattr(self, name, getattr(self, name) + getattr(other, name))
        self.bad = sorted([*self.bad, *other.bad])[:BAD_SHOWN]
        self.faults += other.faults
        self.orders += other.orders
        self.spelt |= {name: min(line, self.spelt.get(name, line)) for name, line in other.spelt.items()}
        self.least |= {key: min(value, self.least.get(key, value)) for key, value in other.least.items()}
        self.most |= {key: max(value, self.most.get(key, value)) for key, value in other.most.items()}
        for axis, counts in other.spread.items():
            self.spread[axis] = Counter(counts) + Counter(self.spread.get(axis))
        return self

    @property
    def renamed(self) -> list[str]:
        """Names that became others: nodes cannot have colons."""
        return sorted(name for name in self.spelt if ":" in name)

    def text(self) -> str:
        """For the way from an executor."""
        return msgspec.json.encode(self).decode()

    @classmethod
    def of(cls, text: str) -> Sum:
        """Back again."""
        return msgspec.json.decode(text, type=cls)


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
    if (fault := first([*faults, *_same_name(found)])) is not None:
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


def _same_name(found: Sum) -> list[FileFault]:
    """Where a node would be called what another one is called."""
    faults = []
    homes: dict[str, str] = {}
    for place, name in sorted((place, name) for name, place in found.spelt.items()):
        other = homes.setdefault(plain_name(name), name)
        if other != name:
            message = (
                f"{name} and {other} of {{other}} would be one node: names have no colons, and these become hyphens"
            )
            faults.append(FileFault(place, message, found.spelt[other]))
    return faults


def told_bad(found: Sum, names: Sequence[str]) -> str:
    """The first bad lines for people, one below the other."""
    first_of = [] if len(found.bad) == found.bad_lines else [f"the first {len(found.bad)} of them:"]
    return "\n".join([*first_of, *(f"  {shown(each, names)}" for each in found.bad)])


def shown(bad: Bad, names: Sequence[str]) -> str:
    """A bad line for people."""
    file, line = where(bad.at)
    quoted = "" if repr(bad.text) in bad.why else f" ({bad.text})"
    return f"{names[file]}, line {line}: {bad.why}{quoted}"
