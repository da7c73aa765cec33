"""STOMP clients of real nodes: across a contact, with nodes that are killed, beside clients that do not read."""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from tests.support.agents import Agent
from tests.support.loopback import apart
from tests.support.nodes import FreshNodes, Node, Nodes, scene, until
from tests.support.stomp_agent import TEXT
from tests.support.stomp_clients import Raw, free_port
from tools.netns import Net

from carrypost import ConnectionFactory, SessionMode
from carrypost.daemon.stomp.codec import Frame
from tools import netns

AGENT = Path(__file__).parents[1] / "support" / "stomp_agent.py"
PORT = 61_613
MIB = 1024 * 1024


# --- two nodes -----------------------------------------------------------------------------------------------------


@pytest.fixture
def net() -> Iterator[Net]:
    with Net() as made:
        yield made


def agent(net: Net, node: Node, what: str, *arguments: str) -> Agent:
    token = (node.folder / "data" / "stomp.token").read_text().strip()
    return Agent(AGENT, net, node.name, what, PORT, token, *arguments)


@pytest.mark.skipif(bool(netns.available()), reason=f"no network namespaces: {netns.available()}")
@scene
async def test_what_is_sent_before_a_contact_is_received_after_it_by_clients_and_programs(
    net: Net, tmp_path: Path
) -> None:
    net.add("a", "b")
    cable = net.cable("a", "b")
    cable.reach(False)
    async with Nodes(tmp_path, net, stomp={"port": PORT}) as nodes:
        a, b = await nodes.start("a", "b")
        async with ConnectionFactory(f"unix:{b.control}").create_context(SessionMode.INDIVIDUAL_ACKNOWLEDGE) as program:
            roads = await program.create_consumer("topic/roads")
            jobs = await program.create_consumer(f"queue/jobs@{a.id}")
            receiver, sender = agent(net, b, "man", a.id), agent(net, a, "py")
            try:
                receiver.wait(lambda: bool(receiver.said("ready")))
                await asyncio.to_thread(sender.process.wait, 30)
                assert sender.said("sent") == [[]]
                assert receiver.said("got") == []
                cable.reach(True)
                levels = {}
                for _ in range(4):
                    message = await roads.receive(timeout=30)
                    assert message is not None
                    levels[message.get_int_property("level")] = message.get_body(str)
                    assert message.get_boolean_property("hot") is True
                    assert message.get_string_property("x_HYPHEN_y_DOT_z") == TEXT
                    await message.acknowledge()
                assert levels == {level: f"{TEXT}{level}" for level in range(1, 5)}
                done: Counter[str] = Counter()

                async def all_done() -> bool:
                    message = await jobs.receive(timeout=0.1)
                    if message is not None:
                        done[message.get_body(str) or ""] += 1
                        await message.acknowledge()
                    return len(done) + len(receiver.said("got")) >= 10 + 2

                await until(all_done)
                assert await jobs.receive(timeout=1) is None
                got = [json.loads(text) for (text,) in receiver.said("got")]
                topic = {body: headers for headers, body in got if headers["destination"] == "/topic/roads"}
                assert sorted(topic) == [f"{TEXT}3", f"{TEXT}4"]
                for headers in topic.values():
                    assert (headers["hot"], headers["x-y.z"], headers["persistent"]) == ("true", TEXT, "true")
                    assert sorted(headers["carrypost-types"].split(",")) == ["hot=boolean", "level=int"]
                done.update(body for headers, body in got if headers["destination"] == f"/queue/jobs@{a.id}")
                assert done == {str(number): 1 for number in range(10)}
            finally:
                said = receiver.kill() + sender.kill()
            assert "Traceback" not in said


# --- kill -9 -------------------------------------------------------------------------------------------------------


class Ledger:
    """Messages of a queue, by number: those whose SEND was confirmed, that were acknowledged, and confirmed as such."""

    def __init__(self) -> None:
        self.sent: set[str] = set()
        self.acknowledged: set[str] = set()
        self.done: set[str] = set()
        self._came: set[str] = set()

    def begin(self) -> None:
        """Start the node's next life."""
        self._came.clear()

    def take(self, client: Raw, frame: Frame) -> None:
        """Record a received message, and acknowledge it."""
        if frame.command == "RECEIPT":
            what, _, number = frame.headers["receipt-id"].partition("-")
            (self.sent if what == "sent" else self.done).add(number)
            return
        body = frame.body.decode()
        assert body not in self.done, "what was confirmed came again"
        assert body not in self._came, "it came twice"
        self._came.add(body)
        self.acknowledged.add(body)
        client.write(f"ACK\nid:{frame.headers['ack']}\nreceipt:done-{body}\n\n^")


async def kill_between(folder: Path, kills: int, chance: random.Random) -> None:
    """Kill a node between ACK and RECEIPT; nothing that was confirmed is lost or comes twice."""
    port, ledger = free_port(), Ledger()
    subscribe = "SUBSCRIBE\nid:s\ndestination:/queue/q\nack:client-individual\n\n^"
    async with Nodes(folder, udp=apart(), stomp={"port": port, "open": True}) as nodes:
        for kill in range(kills):
            (node,) = await nodes.start("a")
            client, before = await Raw.connect(f"127.0.0.1:{port}"), len(ledger.acknowledged)
            client.write(subscribe)
            for number in range(4 * kill, 4 * kill + 4):
                client.write(f"SEND\ndestination:/queue/q\npersistent:true\nreceipt:sent-{number}\n\n{number}^")
            while len(ledger.acknowledged) < before + 2:
                ledger.take(client, await client.next())
            await asyncio.sleep(chance.choice([0.0, 0.001, 0.003]))
            node.process.kill()
            for frame in await client.rest():
                if frame.command == "RECEIPT":
                    ledger.take(client, frame)
            client.close()
            await node.kill()
            ledger.begin()
        await nodes.start("a")
        client = await Raw.connect(f"127.0.0.1:{port}")
        client.write(subscribe)
        while not ledger.sent <= ledger.acknowledged:
            ledger.take(client, await client.next())
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(0.3):
                while True:
                    ledger.take(client, await client.next())
        client.close()
    assert len(ledger.done) >= kills
    assert ledger.sent <= ledger.acknowledged


@scene
async def test_what_was_confirmed_survives_kills_between_ack_and_receipt_and_comes_once(tmp_path: Path) -> None:
    await kill_between(tmp_path, 2, random.Random(1))


@pytest.mark.soak
@scene
async def test_what_was_confirmed_survives_many_kills_between_ack_and_receipt(tmp_path: Path) -> None:
    await kill_between(tmp_path, 100, random.Random(2))


# --- clients that do not read ----------------------------------------------------------------------------------------


async def beside_the_dead(folder: Path, clients: int, dead: int, messages: int) -> None:
    """Send to clients some of which never read: the others get everything, and the node stays small."""
    port = free_port()
    async with FreshNodes(folder, udp=apart(), stomp={"port": port, "open": True}) as nodes:
        (node,) = await nodes.start("a")
        address = f"127.0.0.1:{port}"
        made = [await Raw.connect(address, read_bytes=4_096 if each < dead else 2**16) for each in range(clients)]
        for each in made:
            each.write("SUBSCRIBE\nid:s\ndestination:/topic/t\nreceipt:s\n\n^")
            await each.take("RECEIPT")
        author, body = await Raw.connect(address), "x" * 4_000

        async def send() -> None:
            for number in range(messages):
                author.write(f"SEND\ndestination:/topic/t\nnumber:{number}\n\n{body}^")
                await author.writer.drain()

        async def read(client: Raw) -> None:
            for number in range(messages):
                frame = await client.take("MESSAGE")
                assert (frame.headers["number"], len(frame.body)) == (str(number), len(body))

        async with asyncio.TaskGroup() as group:
            group.create_task(send())
            for each in made[dead:]:
                group.create_task(read(each))
        assert psutil.Process(node.process.pid).memory_info().rss < 200 * MIB
        Raw.close_all()


@pytest.mark.soak
@scene
async def test_beside_a_client_that_never_reads_all_arrives_and_the_node_stays_small(tmp_path: Path) -> None:
    await beside_the_dead(tmp_path, 2, 1, 2_000)


@scene
async def test_a_few_dead_clients_among_many_delay_nobody(tmp_path: Path) -> None:
    await beside_the_dead(tmp_path, 20, 5, 100)


@pytest.mark.soak
@scene
async def test_many_dead_clients_among_many_delay_nobody(tmp_path: Path) -> None:
    await beside_the_dead(tmp_path, 200, 50, 2_000)
