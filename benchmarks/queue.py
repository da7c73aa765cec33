"""Queues: their cost beside topics, beside plain sends, and on the air; every goal is a ratio within one run.

*Hand-outs*, *Receipts* and *Commits* use real nodes in this process, with their sockets, disks and threads; the others
use hosts alone. For CPU time the least of several rounds counts, because other load only adds; the two sides of a ratio
are measured in turn.

Run: carrypost bench queue [--quick] [--json] [--strict] [--messages 1000] [--repeats 5] [--only NAME ...]
"""

from __future__ import annotations

import asyncio
import statistics
import sys
from collections.abc import Sequence
from typing import Final

from benchmarks._jms_programs import Cost
from benchmarks._processes import Row, free_port
from benchmarks._queue_purge import COPIES, Carrying
from benchmarks._rounds import Rounds, Tables, at_most, judge

from benchmarks import _jms_programs as jms
from benchmarks import _queue_control as control
from benchmarks import _queue_engine as engine
from benchmarks import _queue_programs as programs
from carrypost import ConnectionFactory, DeliveryMode

HAND_OUT_GOAL: Final = 0.5
RECEIPT_GOAL: Final = 4.0
CONTROL_GOALS: Final = {1: 1_600, 100: 250}
"""Bytes, by how many messages go together."""
ASSIGNMENT_GOAL: Final = 5.0
COMMIT_GOAL: Final = 0.8
PURGE_GOAL: Final = 2.0
_WAITING_SHARE: Final = 5
"""Part of the messages that is enough where each one waits for a disk or for a neighbour."""


class Bench(Rounds):
    """Queues, beside topics, plain sends and deadlines."""

    def _node(self) -> ConnectionFactory:
        return jms.factory(self.next_folder(), "signed", self.messages)

    @property
    def _few(self) -> int:
        return max(10, self.messages // _WAITING_SHARE)

    # --- real nodes ----------------------------------------------------------------------------------------

    def hand_outs(self) -> list[Row]:
        """Receive and acknowledge, out of a queue of this node and of a topic."""
        rows: list[Row] = []
        for mode in (DeliveryMode.NON_PERSISTENT, DeliveryMode.PERSISTENT):
            costs: dict[bool, list[Cost]] = {True: [], False: []}
            for _ in range(self.repeats):
                for queue, some in costs.items():
                    some.append(asyncio.run(jms.receiving(self._node(), self.messages, mode, queue=queue)))
            queue_us, topic_us = (min(cost.cpu_us for cost in costs[queue]) for queue in (True, False))
            rows.append(
                {
                    "messages": mode.name, "queue µs": queue_us, "topic µs": topic_us,
                    "hand-outs/CPU s": 1e6 / queue_us, "deliveries/CPU s": 1e6 / topic_us,
                    **_at_least(topic_us / queue_us, HAND_OUT_GOAL),
                }
            )  # fmt: skip
        return rows

    def receipts(self) -> list[Row]:
        """Measure the time from send to receipt over one hop, and from send to delivery."""
        receipts, deliveries = asyncio.run(programs.Hop(self.next_folder(), free_port()).latencies_s(self._few))
        row: dict[str, object] = {"messages": len(receipts)}
        for name, times_s in (("receipt", receipts), ("delivery", deliveries)):
            row |= {f"{name} ms": statistics.median(times_s) * 1e3, f"least {name} ms": min(times_s) * 1e3}
        return [{**row, **at_most(statistics.median(receipts) / statistics.median(deliveries), RECEIPT_GOAL)}]

    def commits(self) -> list[Row]:
        """Measure commits of one send and one acknowledgement, and PERSISTENT sends of one producer."""
        kinds = {"commits": programs.committing, "sends": programs.sending}
        costs: dict[str, list[Cost]] = {name: [] for name in kinds}
        for _ in range(self.repeats):
            for name, program in kinds.items():
                costs[name].append(asyncio.run(program(self._node(), self._few)))
        row: dict[str, object] = {"messages": self._few}
        rates = {name: 1e6 / min(cost.wall_us for cost in some) for name, some in costs.items()}
        best = {name: min(some, key=lambda cost: cost.cpu_us) for name, some in costs.items()}
        for name, cost in best.items():
            row |= {f"{name}/s": rates[name], f"{name} CPU µs": cost.cpu_us, f"{name} per transaction": cost.per_commit}
        row["CPU share"] = best["sends"].cpu_us / best["commits"].cpu_us
        return [{**row, **_at_least(rates["commits"] / rates["sends"], COMMIT_GOAL)}]

    # --- hosts ---------------------------------------------------------------------------------------------

    def control_bytes(self) -> list[Row]:
        """Return the bytes of control messages on a hop."""
        rows: list[Row] = []
        for together, goal in CONTROL_GOALS.items():
            said = control.spoken(max(together, min(self.messages, 100)), together)
            rows.append(
                {
                    "together": together, "control messages": said.control_messages,
                    **{f"{name} bytes": said.frame_bytes.get(name, 0.0) for name in ("Offer", "Request", "Ack")},
                    "descriptor bytes": said.carrying_bytes, "acknowledgement bytes": said.acknowledging_bytes,
                    "bytes": said.nbytes, "goal": goal,
                    "met": said.nbytes <= goal,
                }
            )  # fmt: skip
        return rows

    def assignments(self) -> list[Row]:
        """Measure an assignment with many waiting messages and requests, and with few messages and one request."""
        cases = (engine.MANY, engine.FEW)
        rounds = [[engine.assigning(*case).cpu_us for case in cases] for _ in range(self.repeats)]
        many_us, few_us = (min(each) for each in zip(*rounds, strict=True))
        (waiting, requests), (few, one) = cases
        return [
            {
                "waiting": waiting, "requests": requests, "µs": many_us, f"{few} waiting, {one} request µs": few_us,
                **at_most(many_us / few_us, ASSIGNMENT_GOAL),
            }
        ]  # fmt: skip

    def purges(self) -> list[Row]:
        """Copies that acknowledgements take away, and their deadline."""
        rounds = [(Carrying(COPIES).purge(), Carrying(COPIES).expire()) for _ in range(self.repeats)]
        purge_s, expiry_s = (min(each) for each in zip(*rounds, strict=True))
        nbytes = {f"bytes of {copies}": Carrying(copies).purge_bytes() for copies in (1, COPIES)}
        return [
            {
                "copies": COPIES, **nbytes, "purge ms": purge_s * 1e3, "expiry ms": expiry_s * 1e3,
                **at_most(purge_s / expiry_s, PURGE_GOAL),
            }
        ]  # fmt: skip


def _at_least(share: float, goal: float) -> dict[str, object]:
    return {"share": share, "goal": goal, "met": share >= goal}


TABLES: Final[Tables[Bench]] = {
    "Hand-outs": ("receive and acknowledge, out of a queue and of a topic, CPU time of a message", Bench.hand_outs),
    "Receipts": ("from a send to a queue over one hop until its receipt, and to a topic until it came", Bench.receipts),
    "Control": ("bytes per message, signed, of control messages over one hop", Bench.control_bytes),
    "Assignments": ("CPU time of an assignment, with a selector for each request", Bench.assignments),
    "Commits": ("of one send and one acknowledgement, beside PERSISTENT sends of one producer", Bench.commits),
    "Purges": ("CPU time of a carrier that is told so, and at the deadline", Bench.purges),
}


def main(argv: Sequence[str]) -> int:
    """Print the tables; 1 if the goals are to be met and are missed."""
    return judge(Bench, TABLES, ("queue", str(__doc__)), argv, few=50, many=1_000)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
