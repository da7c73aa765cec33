"""Programs on one machine talk to a node through its control socket, and none of them can harm the others."""

from __future__ import annotations

import asyncio
import os
import random
import socket
import stat
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.support.loopback import apart
from tests.support.node_programs import Programs
from tests.support.nodes import QUICK, scene, until

from carrypost.attach.client import Client
from carrypost.attach.served_node import Control
from carrypost.errors import LocalError, NodeError, NoNodeError, RunningError, StateError
from carrypost.node.runtime import Node
from carrypost.node.settings import parse

WITHIN_S = 10.0


@asynccontextmanager
async def served(folder: Path, name: str = "n", **keywords: object) -> AsyncIterator[tuple[Node, Control]]:
    """Yield a node on loopback, and its control socket."""
    settings = parse("", {}, {**QUICK, "udp": apart(), **keywords, "node.data": str(folder / name)})
    async with Node(settings) as node:
        control = Control(node, stopping=asyncio.Event())
        await control.open()
        try:
            yield node, control
        finally:
            await control.close()


async def client_of(node: Node) -> Client:
    return await Client.connect(node.settings.control)


async def raw(node: Node) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """Return a connection that has been welcomed."""
    reader, writer = await asyncio.open_unix_connection(node.settings.control)
    writer.write(HELLO)
    await reader.readexactly(int.from_bytes(await reader.readexactly(4), "big"))
    return reader, writer


def framed(value: object) -> bytes:
    body = msgspec.msgpack.encode(value)
    return len(body).to_bytes(4, "big") + body


HELLO = framed({"do": "hello", "versions": [2], "program": "test"})


async def said(reader: asyncio.StreamReader) -> list[dict[str, object]]:
    """Return all replies of the node until it hangs up."""
    async with asyncio.timeout(WITHIN_S):
        content = await reader.read()
    found = []
    while content:
        length = int.from_bytes(content[:4], "big")
        found.append(msgspec.msgpack.decode(content[4 : 4 + length]))
        content = content[4 + length :]
    return found


# --- life -----------------------------------------------------------------------------------------------------------


@scene
async def test_the_socket_is_its_owners_alone_and_goes_with_the_node(tmp_path: Path) -> None:
    async with served(tmp_path) as (node, _):
        path = node.settings.control
        assert path == tmp_path / "n" / "control.sock"
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        (tmp_path / "other").touch()
        assert stat.S_IMODE((tmp_path / "other").stat().st_mode) != 0o600, "only the socket is made so"
    assert not path.exists()


@scene
async def test_no_node_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for path in (tmp_path / "nothing", tmp_path / "file", tmp_path / ("x" * 200)):
        with pytest.raises(NoNodeError, match=f"no node answers at {path}; start one with: carrypost node$"):
            await Client.connect(path)
    path = tmp_path / "my node" / "control.sock"
    start = f"carrypost node --data '{path.parent}'"
    with pytest.raises(NoNodeError, match=f"no node answers at {path}; start one with: {start}$"):
        await Client.connect(path)


@scene
async def test_the_socket_of_a_killed_node_gives_way(tmp_path: Path) -> None:
    (tmp_path / "n").mkdir()
    with socket.socket(socket.AF_UNIX) as left:
        left.bind(str(tmp_path / "n" / "control.sock"))
        left.listen()
    async with served(tmp_path) as (node, _), await client_of(node) as client:
        assert (await client.status())["node"] == node.host.node


@scene
async def test_what_is_no_socket_is_not_removed_for_one(tmp_path: Path) -> None:
    notes = tmp_path / "notes.txt"
    notes.write_text("mine")
    for place in (notes, tmp_path):
        with pytest.raises(NodeError, match=f"{place} is not a socket, and was left unchanged; choose another path"):
            async with served(tmp_path, node={"control": str(place)}):
                pass
    assert notes.read_text() == "mine"


@scene
async def test_the_socket_of_another_node_is_not_taken_away(tmp_path: Path) -> None:
    shared = {"node": {"control": str(tmp_path / "shared.sock")}}
    async with served(tmp_path, "a", **shared) as (a, _):
        with pytest.raises(RunningError, match="another node answers at"):
            async with served(tmp_path, "b", **shared):
                pass
        async with await client_of(a) as client:
            assert (await client.status())["node"] == a.host.node


@scene
async def test_a_path_that_is_too_long_for_a_socket_is_told(tmp_path: Path) -> None:
    with pytest.raises(NodeError, match=r"cannot open the control socket .*x: AF_UNIX path too long; choose another"):
        async with served(tmp_path, node={"control": "x" * 120}):
            pass


@scene
async def test_a_folder_with_a_long_name_has_a_control_socket(tmp_path: Path) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
        async with served(tmp_path, "x" * 120) as (node, _), await client_of(node) as client:
            assert node.settings.control.parent == tmp_path
            assert (await client.status())["data"] == str(tmp_path / ("x" * 120))


@pytest.mark.skipif(os.name != "posix" or os.geteuid() != 0, reason="only the administrator can be somebody else")
@scene
async def test_a_socket_that_a_stranger_made_is_told_nothing(tmp_path: Path) -> None:
    stranger, heard = 65_533, asyncio.get_running_loop().create_future()

    async def listen(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        heard.set_result(await reader.read())
        writer.close()

    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("XDG_RUNTIME_DIR", raising=False)
        patch.setattr(tempfile, "tempdir", str(tmp_path))
        path = parse("", {}, {"node.data": str(tmp_path / ("x" * 120))}).control
    assert path.parent == tmp_path
    listening = socket.socket(socket.AF_UNIX)
    listening.bind(str(path))  # The path is ours. That shows nothing: paths can be exchanged at any moment.
    os.seteuid(stranger)
    try:
        server = await asyncio.start_unix_server(listen, sock=listening)
    finally:
        os.seteuid(0)
    async with server:
        told = f"the socket {path} belongs to another user, and was not used: remove it"
        with pytest.raises(NoNodeError, match=told):
            await Client.connect(path)
        assert await heard == b""


@pytest.mark.skipif(os.name != "posix" or os.geteuid() != 0, reason="only the administrator can be somebody else")
@scene
async def test_the_administrator_may_use_the_node_of_a_user(tmp_path: Path) -> None:
    async with served(tmp_path) as (node, _):
        for path in (node.settings.control, node.settings.data):
            os.chown(path, 65_533, -1)
        async with await client_of(node) as client:
            assert (await client.status())["node"] == node.host.node


@scene
async def test_a_node_ends_when_it_is_asked_to(tmp_path: Path) -> None:
    ended = asyncio.Event()

    async def life() -> None:
        async with served(tmp_path) as (node, control):
            started.set_result(node)
            assert control.stopping is not None
            await control.stopping.wait()
        ended.set()

    started: asyncio.Future[Node] = asyncio.get_running_loop().create_future()
    running = asyncio.create_task(life())
    either: set[asyncio.Future[Any]] = {started, running}
    await asyncio.wait(either, timeout=WITHIN_S, return_when=asyncio.FIRST_COMPLETED)
    node = started.result()
    async with await client_of(node) as client, await client_of(node) as other:
        await client.stop()
        for gone in (client, other):
            with pytest.raises(NoNodeError, match=r"the node at .* ended"):
                await gone.status()
        await client.stop()
    await running
    assert ended.is_set()


# --- questions ------------------------------------------------------------------------------------------------------


@scene
async def test_status_tells_how_things_stand(tmp_path: Path) -> None:
    async with (
        served(tmp_path) as (node, _),
        await client_of(node) as client,
        Programs(node).context() as ctx,
        ctx.create_consumer("topic/news"),
    ):
        await ctx.send("topic/news", b"x" * 100)
        found = await client.status()
        assert found["node"] == node.host.node
        assert found["security"] == "signed"
        assert found["incarnation"] == 1
        assert found["data"] == str(tmp_path / "n")
        assert found["addresses"] == node.udp.addresses
        assert found["addresses"][0].startswith("127.0.0.1:")
        assert found["neighbours"] == 0
        assert found["messaging"] == {
            "subscriptions": 1, "durable": 0, "consumers": 1, "claims": 1, "pinned": 1, "lost": 0,
            "queues": 0, "entries": 0, "receiving": 0, "unattended": [], "lapsing": [], "circles": [],
        }  # fmt: skip
        assert found["strategy"] == "exchange"
        assert found["cache"] == {"messages": 2, "bytes": 100}  # One has the sealing key.
        assert found["recipients"] == {"acknowledgements": 0, "messages": 0, "left": 0}
        assert found["island"] == {"hosts": 0, "records": 1, "routes": 0, "relayed_bytes": 0, "withheld": 0}
        assert 0 <= found["uptime_s"] < WITHIN_S
        assert found["clock_ahead_s"] < 1
        assert found["clock_set_back_s"] < 1
        assert found["store"]["lost"] == 0
        assert [each["name"] for each in found["udp"]["interfaces"]] == ["lo"]
        assert await client.peers() == []


@scene
async def test_peers_are_told_with_the_names_their_owner_gave_them(tmp_path: Path) -> None:
    udp = apart()
    async with (
        served(tmp_path, "a", udp=udp) as (a, _),
        served(tmp_path, "b", udp=udp) as (b, _),
        await client_of(a) as client,
    ):
        a.folder.set_pet_name(b.host.node, "bert")

        async def linked() -> bool:
            return [peer["state"] for peer in await client.peers()] == ["linked"]

        await until(linked)
        (peer,) = await client.peers()
        assert (peer["node"], peer["name"]) == (b.host.node, "bert")
        assert peer["address"] in b.udp.addresses
        assert 0 <= peer["heard_s"] <= peer["since_s"] + WITHIN_S
        (tmp_path / "a" / "names.json").write_text("{")
        assert [peer["name"] for peer in await client.peers()] == [""]


# --- the gate -------------------------------------------------------------------------------------------------------


@scene
async def test_the_gate_opens_and_closes_a_contact(tmp_path: Path) -> None:
    udp = {**apart(), "hear": []}
    async with (
        served(tmp_path, "a", udp=udp) as (a, _),
        served(tmp_path, "b", udp=udp) as (b, _),
        await client_of(a) as anna,
        await client_of(b) as bert,
        Programs(a).context() as sender,
        Programs(b).context() as receiver,
    ):
        inbox = await receiver.create_consumer("topic/news")

        async def gated() -> bool:
            return bool((await anna.status())["udp"]["counters"]["gated"] > 1)

        await until(gated)
        assert await anna.peers() == []
        await anna.gate(b.udp.addresses)
        await bert.gate(None)

        async def states() -> list[str]:
            return [peer["state"] for client in (anna, bert) for peer in await client.peers()]

        async def met() -> bool:
            return await states() == ["linked"] * 2

        async def parted() -> bool:
            return "linked" not in await states()

        await until(met)
        await sender.send("topic/news", "1")
        assert await inbox.receive_body(str, timeout=WITHIN_S) == "1"
        await anna.gate([])
        await bert.gate([])
        await until(parted)
        await sender.send("topic/news", "2")
        assert await inbox.receive(timeout=0.1) is None
        await anna.gate(None)
        await bert.gate(None)
        assert await inbox.receive_body(str, timeout=WITHIN_S) == "2"


# --- programs that behave badly -------------------------------------------------------------------------------------


def test_a_node_ends_though_a_program_does_not_read(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def scene() -> None:
        async with asyncio.timeout(WITHIN_S), served(tmp_path) as (node, _), await client_of(node) as good:
            _, writer = await raw(node)
            writer.transport.pause_reading()  # type: ignore[attr-defined]
            for number in range(10_000):
                writer.write(framed({"do": "status", "number": number}))
            for _ in range(10):
                await good.status()
        writer.close()

    asyncio.run(scene())
    assert [record.getMessage() for record in caplog.records] == []


@scene
async def test_a_program_that_vanishes_in_the_middle_of_a_call_leaves_no_trace(tmp_path: Path) -> None:
    async with served(tmp_path) as (node, control), await client_of(node) as good:
        call = framed({"do": "gate", "number": 1, "hear": ["127.0.0.1:9"] * 5_000})
        for sent in (0, 2, 4, 100, len(call) - 1):
            _, writer = await raw(node)
            writer.write(framed({"do": "status", "number": 1}) + call[:sent])
            await writer.drain()
            writer.transport.abort()

        async def alone() -> bool:
            return len(control.lines) == 1

        await until(alone)
        assert node.udp.intake.gate is None
        _, writer = await raw(node)
        writer.write(call)
        await writer.drain()
        writer.close()

        async def gated() -> bool:
            return node.udp.intake.gate == frozenset(["127.0.0.1:9"])

        await until(gated)
        assert await good.peers() == []


GARBAGE = [
    b"GET / HTTP/1.1\r\n\r\n",
    bytes(4),
    b"\xff\xff\xff\xff",
    b"\0\0\0\3abc",
    framed([1, 2, 3]),
    framed({"do": "status"}),
    framed({"do": "status", "number": "one"}),
    (4_000).to_bytes(4, "big") + b"\x91" * 4_000,
]


@pytest.mark.parametrize("garbage", GARBAGE)
def test_what_is_no_call_is_answered_and_ends_the_connection(
    tmp_path: Path, garbage: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    async def scene() -> None:
        async with served(tmp_path) as (node, _), await client_of(node) as good:
            reader, writer = await raw(node)
            writer.write(garbage)
            (answer,) = await said(reader)
            assert (answer["is"], answer["number"], answer["error"]) == ("refusal", -1, "LocalError")
            writer.close()
            assert await good.peers() == []

    asyncio.run(scene())
    assert caplog.records == []


NOT_UNDERSTOOD = [
    {"do": "dance", "number": 4},
    {"number": 4},
    {"do": "publish", "number": 4, "destination": "x", "payload": b"of an older program"},
    {"do": "gate", "number": 4},
    {"do": "gate", "number": 4, "hear": "all"},
    {"do": "gate", "number": 4, "hear": [b"\0"]},
]


@pytest.mark.parametrize("call", NOT_UNDERSTOOD)
def test_a_call_that_is_not_understood_is_answered_by_its_number_and_others_follow(
    tmp_path: Path, call: dict[str, object]
) -> None:
    async def scene() -> None:
        async with served(tmp_path) as (node, _):
            reader, writer = await raw(node)
            writer.write(framed(call) + framed({"do": "peers", "number": 5, "new": "field"}))
            writer.write_eof()
            refusal, answer = await said(reader)
            assert (refusal["is"], refusal["number"], refusal["error"]) == ("refusal", 4, "LocalError")
            assert (answer["is"], answer["number"], answer["value"]) == ("answer", 5, [])
            writer.close()

    asyncio.run(scene())


@scene
async def test_whatever_bytes_come_the_node_lives(tmp_path: Path) -> None:
    chance = random.Random(7)
    async with served(tmp_path) as (node, _), await client_of(node) as good:
        for number in range(200):
            call = bytearray(framed({"do": "gate", "number": number, "hear": ["127.0.0.1:9"]}))
            for _ in range(chance.randrange(1, 4)):
                call[chance.randrange(4, len(call))] = chance.randrange(256)
            _, writer = await raw(node)
            writer.write(bytes(call))
            writer.close()
        await good.gate(["127.0.0.1:1"])
        assert (await good.status())["node"] == node.host.node


@scene
async def test_a_client_that_is_closed_ends_what_it_waits_for(tmp_path: Path) -> None:
    async def welcome(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        said = {"is": "welcome", "version": 1, "carrypost": "x", "place": None, "now_us": 0, "system_us": 0, "new": 1}
        writer.write(framed(said))
        await reader.read()
        writer.close()

    silent = await asyncio.start_unix_server(welcome, path=tmp_path / "control.sock")
    async with silent:
        client = await Client.connect(tmp_path / "control.sock")
        calls: list[asyncio.Task[object]] = [
            asyncio.create_task(client.status()),
            asyncio.create_task(client.peers()),
        ]
        await asyncio.sleep(0)
        await client.close()
        async with asyncio.timeout(WITHIN_S):
            for call in calls:
                with pytest.raises(StateError, match="the connection to the node is closed"):
                    await call
        with pytest.raises(StateError):
            await client.status()
        await client.close()


@scene
async def test_what_cannot_be_told_to_a_node_is_refused_before_it_is_sent(tmp_path: Path) -> None:
    async with served(tmp_path) as (node, _), await client_of(node) as client:
        with pytest.raises(LocalError, match="cannot be encoded for the node"):
            await client.gate(["\udc80"])
        with pytest.raises(LocalError, match="Expected `str`"):
            await client.gate([7])  # type: ignore[list-item]
        assert await client.peers() == []
        with pytest.raises(LocalError, match="a frame of 1,"):
            await client.gate(["127.0.0.1:9"] * 120_000)


@scene
async def test_a_node_that_does_not_run_is_not_used(tmp_path: Path) -> None:
    node = Node(parse("", {}, {"udp": apart(), "node.data": str(tmp_path)}))
    with pytest.raises(StateError, match="the node is not running"):
        node.driver.drain()
    await node.start()
    await node.stop()
    with pytest.raises(StateError, match="the node is not running"):
        node.driver.drain()
