"""Queues between programs, each a process with its own node: manager, carrier and receiver are killed in turn."""

from __future__ import annotations

import signal
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.support.agents import Agent
from tests.support.nodes import Nodes, scene
from tools.netns import Net
from tools.radio_hub import Radio

from tools import netns

AGENT = Path(__file__).parents[1] / "support" / "queue_agent.py"
MESSAGES = 30
MOVED = 40


@pytest.fixture
def net() -> Iterator[Net]:
    with Net() as made:
        yield made


class Worker:
    """Programs that consume a queue on one node, one after the other, and all promises to them."""

    def __init__(self, net: Net, name: str, folder: Path, queue: str) -> None:
        self._net, self._name, self._folder, self._queue = net, name, folder, queue
        self.got: dict[str, str] = {}
        self.done: set[str] = set()
        self.agent = self._start()

    def _start(self) -> Agent:
        agent = Agent(AGENT, self._net, self._name, "work", self._folder, self._queue)
        agent.wait(lambda: bool(agent.said("ready")))
        return agent

    def wait_done(self, count: int) -> None:
        self.agent.wait(lambda: len(self.done) + len(self.agent.said("done")) >= count)

    def kill(self, *, restart: bool = True) -> None:
        self.agent.kill()
        for message, number, count in self.agent.said("got"):
            assert message not in self.done, "what was acknowledged came again"
            assert message not in self.got or int(count) > 1, "it came again, and did not say so"
            self.got[message] = number
        self.done |= {message for (message,) in self.agent.said("done")}
        if restart:
            self.agent = self._start()


@pytest.mark.skipif(bool(netns.available()), reason=f"no network namespaces: {netns.available()}")
@scene
async def test_each_message_of_a_queue_is_consumed_once_whoever_is_killed(net: Net, tmp_path: Path) -> None:
    net.add("a", "bus", "m", "r")
    radio = Radio(net, "a", "bus", "m", "r")
    for name in ("a", "m", "r"):
        radio.link(name, "bus")
    async with Nodes(tmp_path, net) as nodes:
        (bus,) = await nodes.start("bus")
        manager = Agent(AGENT, net, "m", "manage", tmp_path / "m")
        manager.wait(lambda: bool(manager.said("queue")))
        ((queue,),) = manager.said("queue")
        worker = Worker(net, "r", tmp_path / "r", queue)
        author = Agent(AGENT, net, "a", "send", tmp_path / "a", queue, 0, MESSAGES)
        worker.wait_done(3)

        manager.kill()
        manager = Agent(AGENT, net, "m", "manage", tmp_path / "m")
        worker.wait_done(8)

        await bus.end(signal.SIGKILL)
        (bus,) = await nodes.start("bus")
        worker.wait_done(13)

        worker.kill()
        worker.wait_done(18)
        manager.kill()
        worker.kill()
        manager = Agent(AGENT, net, "m", "manage", tmp_path / "m")
        author.wait(lambda: len(author.said("delivered")) == MESSAGES)
        worker.kill(restart=False)
        assert Counter(worker.got.values()) == dict.fromkeys(map(str, range(MESSAGES)), 1)
        assert len(worker.got.keys() - worker.done) <= 2, "each kill leaves one in doubt: the one being acknowledged"
        author.kill()
        manager.kill()


def test_what_a_transaction_takes_and_sends_is_all_or_nothing_whenever_its_program_is_killed(tmp_path: Path) -> None:
    moved: list[str] = []
    for until in (0, 1, 4, 9, 15, 22, 30):
        mover = Agent(AGENT, None, "", "move", tmp_path / "node", MOVED)
        mover.wait(lambda: bool(mover.said("ready")))  # noqa: B023 - waited for at once
        mover.wait(lambda: len(moved) + len(mover.said("moved")) >= until)  # noqa: B023 - likewise
        mover.kill()
        moved += [number for (number,) in mover.said("moved")]
    counter = Agent(AGENT, None, "", "count", tmp_path / "node")
    counter.wait(lambda: bool(counter.said("counted")))
    counter.kill()
    found = {word: [number for (number,) in counter.said(word)] for word in ("in", "queue", "topic")}
    assert Counter(number for numbers in found.values() for number in numbers) == dict.fromkeys(
        map(str, range(MOVED)), 1
    )
    assert set(moved) <= {*found["queue"], *found["topic"]}
    assert all(int(number) % 2 for number in found["queue"])
    assert not any(int(number) % 2 for number in found["topic"])
