"""STOMP clients: their cost for the node, beside programs that have the node inside.

Clients in this process only write and read bytes, and the CPU time is that of the node, in another process. It is
compared with the CPU time of a program of the API with its node inside that does the same, in turn. Of every figure the
best of several rounds counts, because other load only adds.

The table Frames has the cost of decoding a SEND, beside cutting bytes into lines and dictionaries without any check.
Sending has 10 clients, each of which waits for a receipt before it sends again. Receiving has one client that sends to
1 and to 20 others, a copy each. Slow has the copies that 150 clients get per CPU second of the node while 50 others
read nothing: the rate that the node can keep up.

Run: carrypost bench stomp [--quick] [--json] [--strict] [--messages 2000] [--repeats 5] [--only NAME ...]
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Sequence
from typing import Final

from benchmarks._processes import Row
from benchmarks._rounds import Rounds, Tables, at_most, judge

from benchmarks import _jms_programs as programs
from benchmarks import _stomp_clients as clients
from carrypost import DeliveryMode

SENDERS: Final = 10
HEALTHY, SLOW = 150, 50


class Bench(Rounds):
    """STOMP clients beside embedded programs, in turn."""

    def frames(self) -> Row:
        """Measure the decoder beside plain cutting, in turn."""
        found = [clients.decoding(10 * self.messages) for _ in range(self.repeats)]
        checked, cut = (min(costs) for costs in zip(*found, strict=True))
        return {"what": "a SEND of 1,000 bytes", "µs": checked, "cut µs": cut, **at_most(checked / cut, 2.0)}

    def sending(self, mode: DeliveryMode) -> Row:
        """Measure sends with receipts beside those of an embedded program, in turn."""
        persistent = mode is DeliveryMode.PERSISTENT
        inside, beside = [], []
        for _ in range(self.repeats):
            made = programs.factory(self.next_folder(), "signed", self.messages)
            inside.append(asyncio.run(programs.sending(made, self.messages, SENDERS, mode)).cpu_us)
            told = clients.sending(self.next_folder(), self.messages, SENDERS, persistent=persistent)
            beside.append(asyncio.run(told))
        return judged(f"{mode.name}, {SENDERS} clients", min(beside), min(inside))

    def receiving(self, count: int) -> Row:
        """Measure copies for this many clients beside as many embedded consumers, in turn."""
        messages = max(1, self.messages // min(count, 4))
        inside, beside = [], []
        for _ in range(self.repeats):
            made = programs.factory(self.next_folder(), "signed", messages)
            inside.append(asyncio.run(programs.fan_out(made, messages, count, together=False)).cpu_us / count)
            beside.append(asyncio.run(clients.receiving(self.next_folder(), messages, count)))
        return judged(f"a copy for each of {count} clients", min(beside), min(inside))

    def slow(self) -> Row:
        """Measure what clients get beside such that do not read, and alone, in turn."""
        messages = max(1, self.messages // 5)
        alone, beside = [], []
        for _ in range(self.repeats):
            alone.append(asyncio.run(clients.beside_slow(self.next_folder(), messages, HEALTHY, 0)))
            beside.append(asyncio.run(clients.beside_slow(self.next_folder(), messages, HEALTHY, SLOW)))
        part = max(beside) / max(alone)
        return {
            "what": f"copies a CPU second for {HEALTHY} clients", f"beside {SLOW} slow": max(beside),
            "alone": max(alone), "part": part, "goal": 0.8, "met": part >= 0.8,
        }  # fmt: skip


def judged(what: str, cost_us: float, embedded_us: float) -> Row:
    """Return a row: what a message costs the node, beside the same program embedded."""
    return {"what": what, "µs": cost_us, "embedded µs": embedded_us, **at_most(cost_us / embedded_us, 1.5)}


TABLES: Final[Tables[Bench]] = {
    "Frames": ("decoding, beside cutting without checks, CPU time of a frame", lambda bench: [bench.frames()]),
    "Sending": (
        "SEND with receipt, the node's CPU time of a message, beside an embedded program",
        lambda bench: [bench.sending(mode) for mode in (DeliveryMode.PERSISTENT, DeliveryMode.NON_PERSISTENT)],
    ),
    "Receiving": (
        "MESSAGE, the node's CPU time of a copy, beside embedded consumers",
        lambda bench: [bench.receiving(count) for count in (1, 20)],
    ),
    "Slow": ("clients beside such that do not read", lambda bench: [bench.slow()]),
}


def main(argv: Sequence[str]) -> int:
    """Print the tables; 1 if the goals are to be met and are missed."""
    return judge(Bench, TABLES, ("stomp", str(__doc__)), argv, few=100, many=2_000)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
