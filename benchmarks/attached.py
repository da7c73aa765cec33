"""Programs that are not one asyncio program with its node: what they cost beyond the same program embedded.

CPU time per message of 1,000 bytes, of all threads and processes that take part, in turn with the same program awaited
on a node in its own process. Of every figure the least of several rounds counts: what else the machine does only adds.

The table Sync has blocking programs (`carrypost.sync`, programs in `_sync_programs`): a call is a hop between two
threads. A further kind of program is a further table of `measure`, with the same columns.

Run: carrypost bench attached [--quick] [--json] [--strict] [--messages 2000] [--repeats 5]
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks import _report
from benchmarks._processes import Row, say, scratch
from benchmarks._sync_programs import CASES, Case


@dataclass
class Bench:
    """How much is measured, and where."""

    folder: Path
    messages: int
    repeats: int
    _nodes: int = 0

    def node(self) -> Path:
        """Return the folder of a new node."""
        self._nodes += 1
        return self.folder / str(self._nodes)

    def blocking(self, case: Case) -> Row:
        """Measure a blocking program beside the awaited one, in turn."""
        messages = max(1, self.messages // case.share)
        awaited, blocking = [], []
        for _ in range(self.repeats):
            awaited.append(case.awaited(self.node(), messages))
            blocking.append(case.blocking(self.node(), messages))
        return judged(case.what, min(blocking), min(awaited), case.goal)


def judged(what: str, cost_us: float, embedded_us: float, goal: float) -> Row:
    """Return a row: what a message costs, beside the same program embedded."""
    times = cost_us / embedded_us
    return {
        "what": what, "µs": cost_us, "embedded µs": embedded_us, "times": times, "goal": goal, "met": times <= goal,
    }  # fmt: skip


def measure(bench: Bench, *, json: bool | None) -> bool:
    """Measure and show; return True if all goals are met."""
    say("blocking programs")
    rows = [bench.blocking(case) for case in CASES]
    _report.show("Sync: blocking programs, beside the same awaited, CPU time of a message", rows, json=json)
    return all(row["met"] for row in rows)


def main(argv: Sequence[str]) -> int:
    """Print the tables; 1 if the goals are to be met and are missed."""
    parser = _report.parser("attached", str(__doc__).split("\n\n", maxsplit=1)[0], "--repeats 3 --json")
    parser.add_argument("--quick", action="store_true", help="100 messages, once, in a few seconds")
    parser.add_argument("--messages", type=_report.positive, default=2_000, metavar="N", help="messages of a round")
    parser.add_argument("--repeats", type=_report.positive, default=5, metavar="N", help="rounds of each kind")
    parser.add_argument("--strict", action="store_true", help="exit with 1 if a goal is missed")
    given = parser.parse_args(argv)
    messages, repeats = (100, 1) if given.quick else (given.messages, given.repeats)
    with scratch() as folder:
        met = measure(Bench(folder, messages, repeats), json=given.json)
    return 1 if given.strict and not met else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
