"""Programs and their node in processes of their own, which are killed, stopped and started at the same time."""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest
from tests.support.agents import Agent
from tests.support.loopback import apart
from tests.support.nodes import PATIENCE_S, scene

from carrypost import ConnectionFactory, DeliveryMode, InvalidClientIDException, SessionMode

PROGRAM = Path(__file__).parents[1] / "support" / "attached_agent.py"
MIB = 1024 * 1024


class Scene:
    """The processes of one test, on one folder."""

    def __init__(self, folder: Path) -> None:
        settings = {"udp": apart(), "limits": {"share_queues": 1.0}}
        self.folder, self._settings = folder / "node", json.dumps(settings)
        self.agents: list[Agent] = []

    def start(self, what: str, *arguments: object, fresh: bool = False) -> Agent:
        agent = Agent(PROGRAM, None, what, what, self.folder, self._settings, *arguments, fresh=fresh)
        self.agents.append(agent)
        return agent

    def start_node(self, what: str, *, fresh: bool = False) -> Agent:
        agent = self.start(what, fresh=fresh)
        agent.wait(lambda: bool(agent.said("ready")) or any("ready" in line[0] for line in agent.lines))
        return agent

    def factory(self) -> ConnectionFactory:
        return ConnectionFactory(data=self.folder, attach=True)


@contextmanager
def played(folder: Path) -> Iterator[Scene]:
    made = Scene(folder)
    try:
        yield made
    finally:
        told = [each.kill() for each in reversed(made.agents) if not each.killed]  # The node last.
    assert not any("Traceback" in text for text in told), told


def ends(agent: Agent) -> list[str]:
    """Return the output of a program that ended by itself, because its node did."""
    agent.process.wait(PATIENCE_S)
    told = agent.kill()
    assert not told, told
    return [" ".join(words) for words in agent.said("ended")]


async def out_of(scene: Scene, enough: Callable[[Counter[str]], bool]) -> Counter[str]:
    """Return the number of times that each text is in the queue out, once there are enough."""
    deadline_s = time.monotonic() + PATIENCE_S
    async with scene.factory().create_context() as ctx:
        out = await ctx.declare_queue("out")
        while True:
            found = Counter([each.get_body(str) or "" async for each in ctx.create_browser(out)])
            if enough(found) or time.monotonic() > deadline_s:
                return found
            await asyncio.sleep(0.1)


def kill_again_and_again(folder: Path, what: str, victim: str, kills: int, chance: random.Random) -> None:
    """Nothing confirmed is lost, nothing acknowledged comes again, commits are whole, and survivors hear of it."""
    confirmed, tried = set[str](), set[str]()
    with played(folder) as scene:
        node, life = scene.start_node(what), 0
        sender, mover = scene.start("send", life), scene.start("move")

        def book(agent: Agent) -> None:
            confirmed.update(text for (text,) in agent.said("sent"))
            tried.update(text for (text,) in agent.said("trying"))

        for _ in range(kills):
            moved, sent = len(mover.said("moved")), len(sender.said("sent"))
            mover.wait(lambda: len(mover.said("moved")) > moved + 2)  # noqa: B023 - waited for at once
            sender.wait(lambda: len(sender.said("sent")) > sent + 2)  # noqa: B023 - likewise
            time.sleep(chance.uniform(0, 0.02))
            if victim == "program":
                chance.choice((sender, mover)).kill()
            else:
                node.kill()
                for each in (sender, mover):
                    (told,) = ends(each)
                    assert "the node at" in told
                    assert "ended" in told
                node = scene.start_node(what)
            if sender.process.poll() is not None:
                book(sender)
                life += 1
                sender = scene.start("send", life)
            if mover.process.poll() is not None:
                mover = scene.start("move")
        sender.wait(lambda: bool(sender.said("sent")))
        sender.kill()
        book(sender)
        found = asyncio.run(out_of(scene, lambda found: confirmed <= found.keys()))
    assert confirmed <= found.keys() <= tried
    assert set(found.values()) == {1}


VICTIMS = [("node", "program"), ("node", "node"), ("embed", "node")]


@pytest.mark.parametrize(("what", "victim"), VICTIMS)
def test_what_was_confirmed_survives_kills_and_comes_once(tmp_path: Path, what: str, victim: str) -> None:
    kill_again_and_again(tmp_path, what, victim, 1, random.Random(1))


@pytest.mark.soak
@pytest.mark.parametrize(("what", "victim"), VICTIMS)
@pytest.mark.parametrize("seed", range(10))
def test_what_was_confirmed_survives_many_kills(tmp_path: Path, what: str, victim: str, seed: int) -> None:
    kill_again_and_again(tmp_path, what, victim, 20, random.Random(seed))


def outlive(folder: Path, mover: str, kills: int, chance: random.Random) -> None:
    """Programs outlive their node: nothing confirmed is lost, and what comes again was not acknowledged."""
    with played(folder) as scene:
        node = scene.start_node("node")
        # A copy of this process could not block, if another test has begun the thread of blocking calls.
        sending, moving = scene.start("keep-sending"), scene.start(mover, fresh=mover.endswith("blocking"))
        for kill in range(kills + 1):
            moved, sent = len(moving.said("moved")), len(sending.said("sent"))
            moving.wait(lambda: len(moving.said("moved")) > moved + 2)  # noqa: B023 - waited for at once
            sending.wait(lambda: len(sending.said("sent")) > sent + 2)  # noqa: B023 - likewise
            if kill < kills:
                time.sleep(chance.uniform(0, 0.02))
                node.kill()
                time.sleep(chance.uniform(0, 0.5))
                node = scene.start_node("node")
        assert (sending.process.poll(), moving.process.poll()) == (None, None)
        sending.kill()
        confirmed, tried = ({text for (text,) in sending.said(word)} for word in ("sent", "trying"))
        found = asyncio.run(out_of(scene, lambda found: confirmed <= found.keys()))
    assert confirmed <= found.keys() <= tried
    assert set(found.values()) == {1}


MOVERS = ["keep-moving", "keep-moving-blocking"]


@pytest.mark.parametrize("mover", MOVERS)
def test_programs_outlive_their_node(tmp_path: Path, mover: str) -> None:
    outlive(tmp_path, mover, 1, random.Random(1))


@pytest.mark.soak
@pytest.mark.parametrize("mover", MOVERS)
@pytest.mark.parametrize("seed", range(5))
def test_programs_outlive_their_node_many_times(tmp_path: Path, mover: str, seed: int) -> None:
    outlive(tmp_path, mover, 20, random.Random(seed))


@scene
async def test_a_message_that_ends_its_program_takes_no_other_along(tmp_path: Path) -> None:
    with played(tmp_path) as processes:
        processes.start_node("node")
        async with processes.factory().create_context(SessionMode.CLIENT_ACKNOWLEDGE) as ctx:
            box = await ctx.declare_queue("box")
            for number in range(20):
                await ctx.send(box, str(number))
            for _ in range(3):
                program = processes.start("fall")
                program.process.wait(PATIENCE_S)
                assert not program.kill()
                assert program.said("fell") == [["0"]]
            inbox = await ctx.create_consumer(box)
            for number in range(20):
                message = await inbox.receive(timeout=PATIENCE_S)
                assert message is not None
                count = message.get_int_property("JMSXDeliveryCount")
                assert (message.get_body(str), count) == (str(number), 1 if number else 4)
                await message.acknowledge()


def stop_a_reader(folder: Path, stopped_s: float, messages: int) -> None:
    body_bytes = 4_000

    async def send(scene: Scene, first: int, count: int) -> None:
        async with scene.factory().create_context() as ctx:
            producer = ctx.create_producer().set_delivery_mode(DeliveryMode.NON_PERSISTENT)
            for number in range(first, first + count):
                await producer.send("topic/news", number.to_bytes(4, "big").ljust(body_bytes))

    with played(folder) as scene:
        node = scene.start_node("node", fresh=True)
        readers = [scene.start("read", 2 * messages) for _ in range(2)]
        for each in readers:
            each.wait(lambda: bool(each.said("ready")))  # noqa: B023 - waited for at once
        asyncio.run(send(scene, 0, messages))  # The node has its caches, and both readers their first messages.
        readers[0].process.send_signal(signal.SIGSTOP)
        before, begun_s = psutil.Process(node.process.pid).memory_info().rss, time.monotonic()
        asyncio.run(send(scene, messages, messages))
        readers[1].wait(lambda: bool(readers[1].said("read")))
        time.sleep(max(0.0, begun_s + stopped_s - time.monotonic()))
        grown = psutil.Process(node.process.pid).memory_info().rss - before
        readers[0].process.send_signal(signal.SIGCONT)
        readers[0].wait(lambda: bool(readers[0].said("read")))
        assert grown < 20 * MIB, f"{grown:,} bytes"


@pytest.mark.soak
def test_a_stopped_program_costs_the_node_little_and_gets_everything_later(tmp_path: Path) -> None:
    stop_a_reader(tmp_path, 10, 1_000)


@pytest.mark.soak
def test_a_program_that_is_stopped_for_a_minute_costs_the_node_little(tmp_path: Path) -> None:
    stop_a_reader(tmp_path, 60, 4_000)


def share_one_node(folder: Path, count: int) -> None:
    """Half of the programs are killed, and the others go on."""
    with played(folder) as scene:
        scene.start_node("node")
        names = [str(number) for number in range(count)]
        patience_s = PATIENCE_S * (1 + count / 10)
        programs = [scene.start("share", name, ",".join(names)) for name in names]
        for each in programs:
            each.wait(lambda: bool(each.said("met")), patience_s)  # noqa: B023 - waited for at once
            assert each.said("mode") == [["attached"]]
        for each in programs[::2]:
            each.kill()
        again = [scene.start("share", f"{name}!", ",".join(f"{each}!" for each in names[::2])) for name in names[::2]]
        for each in again:
            each.wait(lambda: bool(each.said("met")), patience_s)  # noqa: B023 - likewise
        assert all(each.process.poll() is None for each in programs[1::2])


def test_eight_programs_share_one_node(tmp_path: Path) -> None:
    share_one_node(tmp_path, 8)


@pytest.mark.soak
def test_a_hundred_programs_share_one_node(tmp_path: Path) -> None:
    share_one_node(tmp_path, 100)


def start_at_once(folder: Path, times: int) -> None:
    for number in range(times):
        with played(folder / str(number)) as scene:
            both = [scene.start("share", name, "a,b") for name in "ab"]
            for each in both:
                each.wait(lambda: bool(each.said("met")))  # noqa: B023 - waited for at once
            assert sorted(str(each.said("mode")[0][0]) for each in both) == ["attached", "embedded"]


def test_of_two_that_start_at_once_in_an_empty_folder_one_embeds_and_one_attaches(tmp_path: Path) -> None:
    start_at_once(tmp_path, 3)


@pytest.mark.soak
def test_of_two_that_start_at_once_one_embeds_many_times(tmp_path: Path) -> None:
    start_at_once(tmp_path, 50)


@scene
async def test_a_client_id_and_a_temporary_queue_go_with_a_program_that_is_killed(tmp_path: Path) -> None:
    with played(tmp_path) as scene:
        scene.start_node("node")
        mover = scene.start("move")
        mover.wait(lambda: bool(mover.said("ready")))
        named = ConnectionFactory(data=scene.folder, attach=True, client_id="mover")
        with pytest.raises(InvalidClientIDException, match="'mover' is in use on this node"):
            _ = await named.create_context()
        mover.kill()
        async with asyncio.timeout(PATIENCE_S):
            while True:
                with contextlib.suppress(InvalidClientIDException):
                    async with named.create_context():
                        break
                await asyncio.sleep(0.01)
