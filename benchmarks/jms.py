"""The Context API: its cost beyond the unavoidable, in CPU time of the process per message.

A real node in this process, with its sockets, its disk and the store's thread, and programs on it that send, receive
and acknowledge messages of 1,000 bytes; in turn with these, in the same run, the host's own work alone and the bare
commit of the same rows. Of every figure the least of several rounds counts, because other load only adds.

Run: carrypost bench jms [--quick] [--json] [--strict] [--messages 2000] [--repeats 5] [--only NAME ...]
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Coroutine, Sequence
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any, Final

from benchmarks._jms_programs import Cost
from benchmarks._processes import Row
from benchmarks._rounds import Rounds, Tables, at_most, judge

from benchmarks import _jms_floor as floor
from benchmarks import _jms_programs as programs
from carrypost import ConnectionFactory, DeliveryMode

SENDERS: Final = (1, 10, 100)
CONSUMERS: Final = (1, 10, 100)
SEND_GOALS: Final = {"signed": 2.0, "off": 3.0}
FAN_OUT_GOAL: Final = 25.0
RECEIVE_GOAL: Final = 3.0
_ALONE_SHARE: Final = 8
"""Divisor of the number of messages: one sender waits for the disk with every message, so fewer are enough."""
_FAN_OUT_SHARE: Final = 10


class Bench(Rounds):
    """Programs of the Context API, beside the work below them."""

    def node(self, security: str, messages: int) -> tuple[ConnectionFactory, Path]:
        """Return a new node, and its folder."""
        folder = self.next_folder()
        return programs.factory(folder, security, messages), folder

    def cost(self, security: str, program: Callable[[ConnectionFactory], Coroutine[Any, Any, Cost]]) -> Cost:
        """Return the cost of a program on a new node: the round with the least CPU time."""
        return min(
            (asyncio.run(program(self.node(security, self.messages)[0])) for _ in range(self.repeats)),
            key=lambda cost: cost.cpu_us,
        )

    # --- the tables ----------------------------------------------------------------------------------------

    def persistent(self, security: str, senders: int) -> Row:
        """Measure PERSISTENT sends of several coroutines."""
        messages = max(senders, self.messages // _ALONE_SHARE if senders == 1 else self.messages)
        costs, bare = [], []
        for _ in range(self.repeats):
            factory, folder = self.node(security, messages)
            cost = asyncio.run(programs.sending(factory, messages, senders, DeliveryMode.PERSISTENT))
            store = floor.BareStore(folder / "bare.sqlite", programs.rows_of(folder))
            bare.append(floor.publish_us(factory.settings.core, messages, max(1, round(cost.per_commit)), store))
            store.close()
            costs.append(cost)
        best = min(costs, key=lambda cost: cost.cpu_us)
        publish_us, commit_us = min(bare, key=sum)
        return {
            "security": security, "coroutines": senders, "µs": best.cpu_us, "publish µs": publish_us,
            "commit µs": commit_us, **at_most(best.cpu_us / (publish_us + commit_us), SEND_GOALS[security]),
            "messages per commit": best.per_commit, "sends/s": 1e6 / min(cost.wall_us for cost in costs),
            "fdatasync ms": floor.fdatasync_ms(self.folder / "sync"),
        }  # fmt: skip

    def non_persistent(self, security: str, senders: int) -> Row:
        """Measure NON_PERSISTENT sends of several coroutines."""
        costs, bare = [], []
        for _ in range(self.repeats):
            factory, _ = self.node(security, self.messages)
            cost = asyncio.run(programs.sending(factory, self.messages, senders, DeliveryMode.NON_PERSISTENT))
            publish_us, _ = floor.publish_us(factory.settings.core, self.messages, max(1, round(cost.per_commit)))
            bare.append(publish_us)
            costs.append(cost)
        best = min(costs, key=lambda cost: cost.cpu_us)
        return {
            "security": security, "coroutines": senders, "µs": best.cpu_us, "publish µs": min(bare),
            **at_most(best.cpu_us / min(bare), SEND_GOALS[security]), "messages per commit": best.per_commit,
            "sends/s": 1e6 / min(cost.wall_us for cost in costs),
        }  # fmt: skip

    def fan_out(self, security: str, *, together: bool) -> list[Row]:
        """Measure one program that sends to many consumers, compared with one consumer."""
        messages = max(10, self.messages // _FAN_OUT_SHARE)
        rows: list[Row] = []
        one_us = 0.0
        for consumers in CONSUMERS:
            program = partial(programs.fan_out, messages=messages, consumers=consumers, together=together)
            cost = self.cost(security, program)
            one_us = one_us or cost.cpu_us
            rows.append(
                {
                    "security": security, "contexts": "one" if together else "one each", "consumers": consumers,
                    "µs": cost.cpu_us, "µs a consumer": cost.cpu_us / consumers,
                    **at_most(cost.cpu_us / one_us, FAN_OUT_GOAL),
                }
            )  # fmt: skip
        return rows

    def receiving(self, security: str) -> Row:
        """Receive and acknowledge, beside deliver and confirm on the same node and on a host alone."""
        received = self.cost(security, partial(programs.receiving, messages=self.messages))
        delivered = self.cost(security, partial(programs.delivering, messages=self.messages))
        core = self.node(security, self.messages)[0].settings.core
        alone_us = min(floor.confirm_us(core, self.messages) for _ in range(self.repeats))
        return {
            "security": security, "µs": received.cpu_us, "deliver and confirm µs": delivered.cpu_us,
            **at_most(received.cpu_us / delivered.cpu_us, RECEIVE_GOAL), "without payload and disk µs": alone_us,
        }  # fmt: skip


def _each(row: Callable[[Bench, str, int], Row]) -> Callable[[Bench], list[Row]]:
    return lambda bench: [row(bench, security, senders) for security in SEND_GOALS for senders in SENDERS]


def _fan_outs(bench: Bench) -> list[Row]:
    fans = [bench.fan_out(security, together=together) for security in SEND_GOALS for together in (True, False)]
    return list(chain.from_iterable(fans))


TABLES: Final[Tables[Bench]] = {
    "Persistent": (
        "sends, beside Host.publish and the bare commit of the same rows, CPU time of a message",
        _each(Bench.persistent),
    ),
    "Non-persistent": ("sends, beside Host.publish alone, CPU time of a message", _each(Bench.non_persistent)),
    "Fan-out": ("a message to all consumers of a node, beside one of them, CPU time of a message", _fan_outs),
    "Receiving": (
        "receive and acknowledge, beside the host's own deliver and confirm, CPU time of a message",
        lambda bench: [bench.receiving(security) for security in SEND_GOALS],
    ),
}


def main(argv: Sequence[str]) -> int:
    """Print the tables; 1 if the goals are to be met and are missed."""
    return judge(Bench, TABLES, ("jms", str(__doc__)), argv, few=100, many=2_000)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
