"""Programs that are not one asyncio program with its node: what they cost beyond the same program embedded.

CPU time per message of 1,000 bytes, of all threads and processes that take part, in turn with the same program awaited
on a node in its own process. Of every figure the least of several rounds counts: what else the machine does only adds.

The table Attached has programs in other processes than their node (programs in `_attached_programs`): a call is a round
trip over its socket. Long bodies has small sends of one program beside another that sends bodies of 10 MB all the time.
The table Sync has blocking programs (`carrypost.sync`, programs in `_sync_programs`): a call is a hop between two
threads. A further kind of program is a further table of `measure`, with the same columns.

Run: carrypost bench attached [--quick] [--json] [--strict] [--messages 2000] [--repeats 5]
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks import _attached_programs as attached
from benchmarks import _report
from benchmarks import _sync_programs as sync
from benchmarks._processes import Row, say, scratch


@dataclass
class Bench:
    """Amount that is measured, and the folder for it."""

    folder: Path
    messages: int
    repeats: int
    _nodes: int = 0

    def node(self) -> Path:
        """Return the folder of a new node."""
        self._nodes += 1
        return self.folder / str(self._nodes)

    def attached(self, case: attached.Case) -> Row:
        """Measure an attached program beside the embedded one, in turn."""
        messages = max(1, self.messages // case.share)
        inside, beside = [], []
        for _ in range(self.repeats):
            inside.append(case.embedded(self.node(), messages))
            beside.append(case.attached(self.node(), messages))
        return judged(case.what, min(beside), min(inside), case.goal)

    def long_bodies(self) -> Row:
        """Measure small sends beside long ones, attached and embedded in turn."""
        inside, beside = [], []
        for _ in range(self.repeats):
            inside.append(attached.beside_films(self.node(), self.messages / 500, attach=False))
            beside.append(attached.beside_films(self.node(), self.messages / 500, attach=True))
        part = max(beside) / max(inside)
        return {
            "what": "small sends a second", "attached": max(beside), "embedded": max(inside), "part": part, "goal": 0.5,
            "met": part >= 0.5,
        }  # fmt: skip

    def blocking(self, case: sync.Case) -> Row:
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
    say("attached programs")
    rows = [bench.attached(case) for case in attached.CASES]
    _report.show(
        "Attached: programs beside their node, beside the same embedded, CPU time of a message", rows, json=json
    )
    say("long bodies")
    long_bodies = [bench.long_bodies()]
    _report.show("Long bodies: small sends of one program while another sends 10 MB", long_bodies, json=json)
    say("blocking programs")
    blocking = [bench.blocking(case) for case in sync.CASES]
    _report.show("Sync: blocking programs, beside the same awaited, CPU time of a message", blocking, json=json)
    return all(row["met"] for row in (*rows, *long_bodies, *blocking))


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
