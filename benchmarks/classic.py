"""The classic API of JMS 1.1: its cost beside the Context API that it is made of, in CPU time per message.

Sends and receives of messages of 1,000 bytes on a real node in this process. The two programs of a row run in turn on
the same node, several times, and of every figure the least counts, because other load only adds. Every turn ends with a
PERSISTENT send, so that everything before it is on disk. The table Classic has
programs that are awaited, Blocking those of `carrypost.sync.classic` beside `carrypost.sync`. The table Attributes has
the time of an attribute of a message, beside that of the same class without the names of Java.

Run: carrypost bench classic [--quick] [--json] [--strict] [--messages 2000] [--repeats 5] [--only NAME ...]
"""

from __future__ import annotations

import asyncio
import sys
import timeit
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

from benchmarks._jms_programs import BODY, factory
from benchmarks._processes import Row
from benchmarks._rounds import Rounds, Tables, at_most, judge
from benchmarks._sync_programs import LAST, weighed

from carrypost import DeliveryMode, TextMessage
from carrypost.classic import Session
from carrypost.java_names import JavaNamed, is_java_name
from carrypost.sync import classic

GOAL: Final = 1.1
ATTRIBUTE_GOAL: Final = 1.03
NON_PERSISTENT: Final = DeliveryMode.NON_PERSISTENT
_PARTS: Final = 4
"""Turns into which the messages of a round are divided, so that other load affects both programs."""


class Bench(Rounds):
    """Programs of the classic API, beside those of contexts."""

    def awaited(self) -> list[Row]:
        """Measure sends and receives that are awaited."""
        costs = [asyncio.run(_awaited(self.next_folder(), self.messages)) for _ in range(self.repeats)]
        return _rows(costs, "Context")

    def blocking(self) -> list[Row]:
        """Measure sends and receives that block."""
        costs = [_blocking(self.next_folder(), self.messages) for _ in range(self.repeats)]
        return _rows(costs, "carrypost.sync")

    def attributes(self) -> list[Row]:
        """Measure an attribute of a class with names of Java, and of one without."""
        members = {"text": TextMessage.text, "read": lambda _: None, "_text": "x", "_payload": None}
        plain = type("Plain", (), dict(members))
        spelled = type("Spelled", (JavaNamed,), members)
        assert is_java_name(spelled, "getText")
        rows: list[Row] = []
        for what, statement in (("attribute", "message.text"), ("method", "message.read()")):
            both = [_least(statement, kind(), self.messages, self.repeats) for kind in (spelled, plain)]
            rows.append(
                {"what": what, "ns": both[0], "without ns": both[1], **at_most(both[0] / both[1], ATTRIBUTE_GOAL)}
            )
        return rows


def _least(statement: str, message: object, messages: int, repeats: int) -> float:
    timer = timeit.Timer(statement, globals={"message": message})
    return min(timer.repeat(max(5, 4 * repeats), messages * 10)) / (messages * 10) * 1e9


Costs = dict[str, dict[str, float]]
"""CPU time of a message in microseconds, by operation and API."""


def _rows(costs: Sequence[Costs], beside: str) -> list[Row]:
    rows: list[Row] = []
    for what in ("send PERSISTENT", "send NON_PERSISTENT", "receive"):
        mine, theirs = (min(cost[what][name] for cost in costs) for name in ("classic", "context"))
        rows.append({"what": what, "µs": mine, f"{beside} µs": theirs, **at_most(mine / theirs, GOAL)})
    return rows


class Turns:
    """Programs that run in turn; of each, the least cost of a turn counts."""

    def __init__(self, messages: int) -> None:
        self.each = max(1, messages // _PARTS)
        self.costs: Costs = {}

    def note(self, what: str, name: str, cost: float) -> None:
        """Note the cost of a turn."""
        found = self.costs.setdefault(what, {})
        found[name] = min(cost, found.get(name, cost))


async def _awaited(folder: Path, messages: int) -> Costs:
    turns, made = Turns(messages), factory(folder, "signed", 8 * messages)
    async with made.create_context() as context, made.create_connection() as connection:
        session = await connection.create_session(False, Session.AUTO_ACKNOWLEDGE)
        await connection.start()
        queues = {name: await context.declare_queue(name) for name in ("context", "classic")}
        message = session.create_bytes_message(BODY)
        sending: dict[str, Callable[..., Any]] = {}
        producer, bound = context.create_producer(), session.create_producer(queues["classic"])
        sending["context"] = lambda: producer.send(queues["context"], message)
        sending["classic"] = lambda: bound.send(message)
        for mode, share in ((DeliveryMode.PERSISTENT, 4), (NON_PERSISTENT, 1)):
            producer.set_delivery_mode(mode)
            bound.set_delivery_mode(mode)
            count = max(1, turns.each // share)
            for _ in range(_PARTS):
                for name, send in sending.items():
                    with weighed(count) as cost:
                        for _ in range(count):
                            await send()
                        await context.send(LAST, None)
                    turns.note(f"send {mode.name}", name, cost[0])
        inbox = await context.create_consumer(queues["context"])
        receiver = await session.create_consumer(queues["classic"])
        receiving: dict[str, Callable[[], Any]] = {
            "context": lambda: inbox.receive(timeout=60),
            "classic": lambda: receiver.receive(60_000),
        }
        for _ in range(_PARTS):
            for name, receive in receiving.items():
                with weighed(turns.each) as cost:
                    for _ in range(turns.each):
                        assert await receive() is not None
                    await context.send(LAST, None)
                turns.note("receive", name, cost[0])
    return turns.costs


def _blocking(folder: Path, messages: int) -> Costs:
    turns = Turns(messages)
    made = classic.ConnectionFactory(
        data=str(folder), cache_messages_max=16 * messages + 1_000, udp={"interfaces": ["lo"]},
        limits={"unconfirmed_max": 16 * messages, "share_queues": 1.0},
    )  # fmt: skip
    with made.create_context() as context, made.create_connection() as connection:
        session = connection.create_session(False, Session.AUTO_ACKNOWLEDGE)
        connection.start()
        queues = {name: context.declare_queue(name) for name in ("context", "classic")}
        message = session.create_bytes_message(BODY)
        producer, bound = context.create_producer(), session.create_producer(queues["classic"])
        sending: dict[str, Callable[[], object]] = {
            "context": lambda: producer.send(queues["context"], message),
            "classic": lambda: bound.send(message),
        }
        for mode, share in ((DeliveryMode.PERSISTENT, 4), (NON_PERSISTENT, 1)):
            producer.set_delivery_mode(mode)
            bound.set_delivery_mode(mode)
            count = max(1, turns.each // share)
            for _ in range(_PARTS):
                for name, send in sending.items():
                    with weighed(count) as cost:
                        for _ in range(count):
                            send()
                        context.send(LAST, None)
                    turns.note(f"send {mode.name}", name, cost[0])
        inbox, receiver = context.create_consumer(queues["context"]), session.create_consumer(queues["classic"])
        receiving: dict[str, Callable[[], object]] = {
            "context": lambda: inbox.receive(timeout=60),
            "classic": lambda: receiver.receive(60_000),
        }
        for _ in range(_PARTS):
            for name, receive in receiving.items():
                with weighed(turns.each) as cost:
                    for _ in range(turns.each):
                        assert receive() is not None
                    context.send(LAST, None)
                turns.note("receive", name, cost[0])
    return turns.costs


TABLES: Final[Tables[Bench]] = {
    "Classic": ("programs that are awaited, beside `Context`, CPU time of a message", Bench.awaited),
    "Blocking": ("programs that block, beside `carrypost.sync`, CPU time of a message", Bench.blocking),
    "Attributes": ("names that exist, beside a class without the names of Java", Bench.attributes),
}


def main(argv: Sequence[str]) -> int:
    """Print the tables; 1 if the goals are to be met and are missed."""
    return judge(Bench, TABLES, ("classic", str(__doc__)), argv, few=100, many=2_000)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
