"""OpenWire clients: their cost for the node, beside STOMP clients.

Clients in this process only write and read bytes, and the CPU time is that of the node, in another process. STOMP
clients do the same in turn. Of every figure the best of several rounds counts, because other load only adds.

Sending has 10 clients, each of which waits for the response before it sends again. Receiving has one client that sends
to 1 and to 20 others, a copy each: clients of OpenWire acknowledge each message, as ActiveMQ's does, while for those of
STOMP a message counts as acknowledged when it is written.

Run: carrypost bench openwire [--quick] [--json] [--strict] [--messages 2000] [--repeats 5] [--only NAME ...]
"""

from __future__ import annotations

import asyncio
import socket
import sys
from collections.abc import Sequence
from typing import Final

from benchmarks._processes import Row
from benchmarks._rounds import Rounds, Tables, at_most, judge

from benchmarks import _openwire_clients as openwire
from benchmarks import _stomp_clients as stomp

SENDERS: Final = 10


class Bench(Rounds):
    """OpenWire clients beside STOMP clients, in turn."""

    def sending(self, *, persistent: bool) -> Row:
        """Measure sends that are answered beside SENDs with receipts, in turn."""
        mine, theirs = list[float](), list[float]()
        for _ in range(self.repeats):
            for module, costs in ((openwire, mine), (stomp, theirs)):
                told = module.sending(self.next_folder(), self.messages, SENDERS, persistent=persistent)
                costs.append(asyncio.run(told))
        return judged(f"{'PERSISTENT' if persistent else 'NON_PERSISTENT'}, {SENDERS} clients", min(mine), min(theirs))

    def receiving(self, count: int, *, acknowledged: bool) -> Row:
        """Measure copies for this many clients, in turn; `acknowledged`: by those of STOMP, too."""
        messages = max(1, self.messages // min(count, 4))
        mine, theirs = list[float](), list[float]()
        for _ in range(self.repeats):
            mine.append(asyncio.run(openwire.receiving(self.next_folder(), messages, count)))
            told = stomp.receiving(self.next_folder(), messages, count, acknowledges=acknowledged)
            theirs.append(asyncio.run(told))
        who = "acknowledged by both" if acknowledged else "acknowledged by those of OpenWire"
        return judged(f"a copy for each of {count} clients, {who}", min(mine), min(theirs))

    def unused(self) -> Row:
        """Measure SENDs of STOMP clients at a node with the port for OpenWire open, beside one without it, in turn."""
        mine, theirs = list[float](), list[float]()
        for _ in range(self.repeats):
            with socket.socket() as probe:
                probe.bind(("127.0.0.1", 0))
                port = f"openwire.port={probe.getsockname()[1]}"
            for settings, costs in (((port,), mine), ((), theirs)):
                told = stomp.sending(self.next_folder(), self.messages, SENDERS, *settings, persistent=False)
                costs.append(asyncio.run(told))
        return judged(f"SEND, NON_PERSISTENT, {SENDERS} clients", min(mine), min(theirs), 1.0)


def judged(what: str, cost_us: float, stomp_us: float, goal: float = 1.2) -> Row:
    """Return a row: what a message costs the node, beside the same with STOMP."""
    return {"what": what, "µs": cost_us, "STOMP µs": stomp_us, **at_most(cost_us / stomp_us, goal)}


TABLES: Final[Tables[Bench]] = {
    "Sending": (
        "a message with response, the node's CPU time, beside SEND with receipt",
        lambda bench: [bench.sending(persistent=persistent) for persistent in (True, False)],
    ),
    "Receiving": (
        "a message received, the node's CPU time of a copy, beside MESSAGE",
        lambda bench: [bench.receiving(count, acknowledged=each) for count in (1, 20) for each in (False, True)],
    ),
    "Unused": (
        "STOMP clients at a node whose port for OpenWire is open, the node's CPU time, beside one without",
        lambda bench: [bench.unused()],
    ),
}


def main(argv: Sequence[str]) -> int:
    """Print the tables; 1 if the goals are to be met and are missed."""
    return judge(Bench, TABLES, ("openwire", str(__doc__)), argv, few=100, many=2_000)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
