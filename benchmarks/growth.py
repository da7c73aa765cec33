"""Growth: CPU time of a load and of one ten times as large, which may cost at most twelve times as much.

Each row is a load of which the cost per item once grew with the number of items. The smaller load has the size in the
first column. Both are made anew for each repeat, and the quickest of all repeats counts.

Run: carrypost bench growth [--only TEXT] [--repeats N] [--quick] [--strict] [--json]
"""

from __future__ import annotations

import argparse
import gc
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from benchmarks._processes import Row, say

from benchmarks import _growth_core as core
from benchmarks import _growth_messaging as messaging
from benchmarks import _report

TIMES: Final = 10
GOAL: Final = 12
REPEATS: Final = 5
_QUICK_PART: Final = 100
"""With `--quick` loads are this part of their size: the figures mean nothing."""

Work = Callable[[], None]


@dataclass(frozen=True, slots=True)
class Load:
    """Something that a host does for as many items as it is given."""

    what: str
    size: int
    """Size of the smaller load: large enough to be timed, and to show quadratic growth."""
    make: Callable[[int], Work]


LOADS: Final = (
    Load("copies that leave while a profile is learnt", 200, core.learning),
    Load("ids compared with a neighbour's", 2_000, core.comparing),
    Load("ids remembered", 20_000, core.remembering),
    Load("messages offered and sent", 4_000, core.offering),
    Load("frames acknowledged one by one", 1_000, core.acknowledging),
    Load("frames lost, sent again and acknowledged", 300, core.repeating),
    Load("messages cancelled in flight", 300, core.cancelling),
    Load("fragments buffered", 500, core.buffering),
    Load("claims handed over, returned and handed over again", 500, messaging.backlog),
    Load("notes to other nodes", 50, messaging.post),
    Load("deliveries that wait for the disk and expire", 200, messaging.stalling),
    Load("open requests and their replies", 30, messaging.replies),
    Load("failed lookups among as many names", 200, messaging.names),
)


def cpu_s(make: Callable[[int], Work], size: int) -> float:
    """Prepare a load of this size, and time it."""
    work = make(size)
    gc.collect()
    gc.disable()
    try:
        began_s = time.process_time()
        work()
        return time.process_time() - began_s
    finally:
        gc.enable()


def growth_row(load: Load, size: int, repeats: int) -> Row:
    """Measure a load and one ten times as large, in turn."""
    few: list[float] = []
    many: list[float] = []
    for _ in range(repeats):
        few.append(cpu_s(load.make, size))
        many.append(cpu_s(load.make, TIMES * size))
    times = min(many) / min(few)
    return {
        "load": load.what,
        "size": size,
        "CPU ms": min(few) * 1e3,
        "ten times as much, CPU ms": min(many) * 1e3,
        "times": times,
        "goal": GOAL,
        "met": times <= GOAL,
    }


def _options(argv: Sequence[str]) -> argparse.Namespace:
    parser = _report.parser("growth", str(__doc__).split("\n\n", maxsplit=1)[0], "--only offered --repeats 3 --json")
    parser.add_argument("--only", default="", metavar="TEXT", help="loads whose name contains this text")
    parser.add_argument(
        "--repeats", type=_report.positive, default=REPEATS, metavar="N", help=f"so many times (default {REPEATS})"
    )
    parser.add_argument("--quick", action="store_true", help="small loads, once each: to see that all of them run")
    parser.add_argument("--strict", action="store_true", help="exit with 1 if a goal is missed")
    options = parser.parse_args(argv)
    if not any(options.only in load.what for load in LOADS):
        parser.error(f"--only: no load is called like {options.only!r}")
    return options


def main(argv: Sequence[str]) -> int:
    """Print the table; return 1 if goals must be met and one is missed."""
    options = _options(argv)
    rows: list[Row] = []
    for load in LOADS:
        if options.only in load.what:
            say(load.what)
            size = max(1, load.size // _QUICK_PART) if options.quick else load.size
            rows.append(growth_row(load, size, 1 if options.quick else options.repeats))
    if options.quick:
        rows = [{**row, "met": None} for row in rows]
    _report.show("Growth: CPU time of a load and of one ten times as large", rows, json=options.json)
    return 1 if options.strict and not all(row["met"] for row in rows) else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
