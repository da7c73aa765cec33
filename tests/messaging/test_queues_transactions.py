"""Transactions over queues and topics, local and remote: the power fails at every batch of every node in them.

A worker receives one message each from a queue of its own, a queue of the shop and a topic. In one unit of work it
acknowledges all three and sends one message to each kind of destination. The scene is played once to count the batches;
then once for every batch of both nodes, with the crash right before or right after it is durable. In every case the
received messages are redelivered as a whole, or consumed as a whole, and each result exists once.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from itertools import count

import pytest
from tests.support.programs import Program, declare
from tests.support.watched_network import CrashError, FaultyStore

from carrypost import testing
from carrypost.gossip.draft import Draft
from carrypost.messaging.commands import Ack, UnitOfWork

NODES = ("worker", "shop")
LOG = {"client": "log", "name": "log", "durable": True}
ORDERS = {"client": "orders", "name": "orders", "durable": True}
SETTLED_S = 100.0
_numbers = count(1_000_000)


class Shop:
    """The network and the actions in it; a node that crashes is back after a second."""

    def __init__(self, disk_delay_s: float) -> None:
        self._stack = ExitStack()
        self.net = testing.network(*NODES, seed=1, disk_delay_s=disk_delay_s)
        for name in NODES:
            self.net._driver(name).disk.store = FaultyStore(name)  # noqa: SLF001 - there is no other way to make a disk faulty
        self._stack.enter_context(self.net)
        self.net.open_messaging()
        self.net.link(*NODES)
        self.crashed: list[str] = []
        self.queues = {
            (node, name): declare(self.net, node, name)
            for node, name in (("worker", "desk"), ("worker", "shelf"), ("shop", "in"), ("shop", "out"))
        }
        for node, topic, asked in (("worker", "topic/orders", ORDERS), ("shop", "topic/log", LOG)):
            Program(self.net, node, topic, **asked).close()  # type: ignore[arg-type]
        self.advance(10.0)
        for node, destination in (
            ("shop", self.queues["shop", "in"]), ("worker", self.queues["worker", "desk"]), ("shop", "topic/orders"),
        ):  # fmt: skip
            self.net.publish(node, destination, b"question")
        self.advance(10.0)

    def close(self) -> None:
        self._stack.close()

    def store(self, node: str) -> FaultyStore:
        store = self.net._driver(node).store  # noqa: SLF001 - as above
        assert isinstance(store, FaultyStore)
        return store

    def safely(self, step: Callable[[], object]) -> bool:
        try:
            step()
        except CrashError as crash:
            self.net.kill(crash.node)
            self.crashed.append(crash.node)
            self.safely(lambda: self.net.advance(1.0))
            self.net.restart(crash.node)
            return False
        return True

    def advance(self, seconds: float) -> None:
        end = self.net.now + seconds
        while not self.safely(lambda: self.net.advance(max(0.0, end - self.net.now))):
            pass

    def work(self, wait_s: float) -> int:
        """Receive the waiting messages; answer all three in one unit of work. Return their number."""
        crashes = self.crashed.count("worker")
        inputs = (self.queues["shop", "in"], self.queues["worker", "desk"])
        programs = [Program(self.net, "worker", queue, acknowledges=False) for queue in inputs]
        programs.append(Program(self.net, "worker", "topic/orders", acknowledges=False, **ORDERS))  # type: ignore[arg-type]
        self.advance(wait_s)
        taken = sum(len(program.got) for program in programs)
        if self.crashed.count("worker") == crashes and taken == 3:
            acks = tuple(Ack(program.session, (number,)) for number, program in self._numbered(programs))
            outputs = (self.queues["shop", "out"], self.queues["worker", "shelf"], "topic/log")
            sends = tuple(Draft(destination, b"answer", persistent=True) for destination in outputs)
            host, now = self.net.host("worker"), round(self.net.now * 1e6)
            self.safely(lambda: host.perform(UnitOfWork(next(_numbers), sends, acks), now))
            self.advance(wait_s)
        if self.crashed.count("worker") == crashes:
            for program in programs:
                program.close()
        return taken

    def _numbered(self, programs: list[Program]) -> list[tuple[int, Program]]:
        """Return the programs with the numbers under which they got their messages: numbers rise over all of them."""
        ordered = sorted(programs, key=lambda program: program.numbers[0])
        return [(program.numbers[0], program) for program in ordered]

    def outcome(self) -> list[int]:
        """Return the number of copies of each answer."""
        readers = [Program(self.net, "shop", self.queues["shop", "out"])]
        readers.append(Program(self.net, "worker", self.queues["worker", "shelf"]))
        readers.append(Program(self.net, "shop", "topic/log", **LOG))  # type: ignore[arg-type]
        self.advance(SETTLED_S)
        return [len(reader.got) for reader in readers]


def play(disk_delay_s: float, node: str = "", fuse: int = -1, *, after: bool = False) -> dict[str, int]:
    """Run all of it, with a crash or without; return the number of batches that each node made."""
    shop = Shop(disk_delay_s)
    try:
        before = {name: shop.store(name).batches for name in NODES}
        if node:
            shop.store(node).fuse, shop.store(node).after = fuse, after
        shop.work(5.0)
        shop.advance(10.0)
        made = {name: shop.store(name).batches - before[name] for name in NODES}
        if node:
            assert shop.crashed == [node]
        again = shop.work(SETTLED_S)
        assert again in (0, 3), f"{again} of three came again"
        assert shop.work(SETTLED_S) == 0
        assert shop.outcome() == [1, 1, 1]
    finally:
        shop.close()
    return made


@pytest.mark.parametrize("disk_delay_s", [0.0, 0.02])
@pytest.mark.parametrize("node", NODES)
@pytest.mark.parametrize("every", [3, pytest.param(1, marks=pytest.mark.soak)])
def test_a_crash_at_any_batch_leaves_all_of_a_transaction_or_nothing(
    node: str, disk_delay_s: float, every: int
) -> None:
    batches = play(disk_delay_s)[node]
    assert batches >= 5
    for fuse in range(1, batches + 1, every):
        for after in (False, True):
            try:
                play(disk_delay_s, node, fuse, after=after)
            except Exception as error:
                error.add_note(f"{node} crashes {'after' if after else 'before'} batch {fuse} of {batches}")
                raise
