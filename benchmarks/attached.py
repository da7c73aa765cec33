"""Programs that are not one asyncio program with its node: their cost beyond the same program embedded.

The unit is CPU time per message of 1,000 bytes, of all threads and processes that take part, measured in turn with the
same program awaited on a node in its own process. Of every figure the least of several rounds counts, because other
load only adds.

The table Attached has programs in other processes than their node (programs in `_attached_programs`): a call is a round
trip over its socket. Long bodies has small sends of one program beside another that sends bodies of 10 MB continuously.
The table Sync has blocking programs (`carrypost.sync`, programs in `_sync_programs`): a call is a hop between two
threads. A further kind of program is a further table, with the same columns.

Run: carrypost bench attached [--quick] [--json] [--strict] [--messages 2000] [--repeats 5] [--only NAME ...]
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Final

from benchmarks._processes import Row
from benchmarks._rounds import Rounds, Tables, at_most, judge

from benchmarks import _attached_programs as attached
from benchmarks import _sync_programs as sync


class Bench(Rounds):
    """Programs beside the same embedded, in turn."""

    def attached(self, case: attached.Case) -> Row:
        """Measure an attached program beside the embedded one, in turn."""
        messages = max(1, self.messages // case.share)
        inside, beside = [], []
        for _ in range(self.repeats):
            inside.append(case.embedded(self.next_folder(), messages))
            beside.append(case.attached(self.next_folder(), messages))
        return judged(case.what, min(beside), min(inside), case.goal)

    def long_bodies(self) -> Row:
        """Measure small sends beside long ones, attached and embedded in turn."""
        inside, beside = [], []
        for _ in range(self.repeats):
            inside.append(attached.beside_films(self.next_folder(), self.messages / 500, attach=False))
            beside.append(attached.beside_films(self.next_folder(), self.messages / 500, attach=True))
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
            awaited.append(case.awaited(self.next_folder(), messages))
            blocking.append(case.blocking(self.next_folder(), messages))
        return judged(case.what, min(blocking), min(awaited), case.goal)


def judged(what: str, cost_us: float, embedded_us: float, goal: float) -> Row:
    """Return a row: what a message costs, beside the same program embedded."""
    return {"what": what, "µs": cost_us, "embedded µs": embedded_us, **at_most(cost_us / embedded_us, goal)}


TABLES: Final[Tables[Bench]] = {
    "Attached": (
        "programs beside their node, beside the same embedded, CPU time of a message",
        lambda bench: [bench.attached(case) for case in attached.CASES],
    ),
    "Long bodies": (
        "small sends of one program while another sends 10 MB", lambda bench: [bench.long_bodies()],
    ),
    "Sync": (
        "blocking programs, beside the same awaited, CPU time of a message",
        lambda bench: [bench.blocking(case) for case in sync.CASES],
    ),
}  # fmt: skip


def main(argv: Sequence[str]) -> int:
    """Print the tables; 1 if the goals are to be met and are missed."""
    return judge(Bench, TABLES, ("attached", str(__doc__)), argv, few=100, many=2_000)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
