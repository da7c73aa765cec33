"""Programs on one machine speak with a node through its control socket, and none of them can harm the others."""

from __future__ import annotations

import asyncio
import random
import socket
import stat
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import msgspec
import pytest
from tests.loopback import apart
from tests.nodes import QUICK, scene, until

from carrypost.errors import (
    CarrypostError,
    LocalError,
    NodeError,
    NoNodeError,
    PatternError,
    PayloadError,
    RunningError,
    SendError,
    StateError,
)
from carrypost.node.control.calls import AttributeValue
from carrypost.node.control.client import Client
from carrypost.node.control.control import Control
from carrypost.node.runtime import Node
from carrypost.node.settings import parse

KIB = 1024
MIB = 1024 * KIB
WITHIN_S = 10.0


@asynccontextmanager
async def served(folder: Path, name: str = "n", **keywords: object) -> AsyncIterator[tuple[Node, Control]]:
    """A node on loopback, and its control socket."""
    settings = parse("", {}, {**QUICK, "udp": apart(), **keywords, "node.data": str(folder / name)})
    async with Node(settings) as node:
        control = Control(node)
        await control.open()
        try:
            yield node, control
        finally:
            await control.close()


async def client_of(node: Node) -> Client:
    return await Client.connect(node.settings.control)


async def raw(node: Node) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    return await asyncio.open_unix_connection(node.settings.control)


def framed(value: object) -> bytes:
    body = msgspec.msgpack.encode(value)
    return len(body).to_bytes(4, "big") + body


async def said(reader: asyncio.StreamReader) -> list[dict[str, object]]:
    """All that the node says until it hangs up."""
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
        with pytest.raises(NoNodeError, match=f"no node answers at {path}; start one with: carrypost node"):
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
        with pytest.raises(NodeError, match=f"{place} is no socket: it was left as it is; choose another path"):
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


@scene
async def test_a_node_ends_when_it_is_asked_to(tmp_path: Path) -> None:
    ended = asyncio.Event()

    async def life() -> None:
        async with served(tmp_path) as (node, control):
            started.set_result(node)
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
            with pytest.raises(NoNodeError, match="ended"):
                await gone.next_delivery()
        await client.stop()
    await running
    assert ended.is_set()


# --- questions ------------------------------------------------------------------------------------------------------


@scene
async def test_status_tells_how_things_stand(tmp_path: Path) -> None:
    async with served(tmp_path) as (node, _), await client_of(node) as client:
        await client.subscribe("news")
        await client.publish("news", b"x" * 100)
        await client.next_delivery(WITHIN_S)
        found = await client.status()
        assert found["node"] == node.host.node
        assert found["security"] == "signed"
        assert found["incarnation"] == 1
        assert found["data"] == str(tmp_path / "n")
        assert found["addresses"] == node.udp.addresses
        assert found["addresses"][0].startswith("127.0.0.1:")
        assert found["neighbours"] == 0
        assert found["subscriptions"] == 1
        assert found["messaging"] == {
            "subscriptions": 0, "durable": 0, "consumers": 0, "claims": 0, "pinned": 0, "lost": 0,
            "queues": 0, "entries": 0, "receiving": 0,
        }  # fmt: skip
        assert found["cache"] == {"messages": 1, "bytes": 100, "unconfirmed": 1}
        assert 0 <= found["uptime_s"] < WITHIN_S
        assert found["clock_ahead_s"] < 1
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
        a.home.set_pet_name(b.host.node, "bert")

        async def linked() -> bool:
            return [peer["state"] for peer in await client.peers()] == ["linked"]

        await until(linked)
        (peer,) = await client.peers()
        assert (peer["node"], peer["name"]) == (b.host.node, "bert")
        assert peer["address"] in b.udp.addresses
        assert 0 <= peer["heard_s"] <= peer["since_s"] + WITHIN_S
        (tmp_path / "a" / "names.json").write_text("{")
        assert [peer["name"] for peer in await client.peers()] == [""]


# --- messages -------------------------------------------------------------------------------------------------------


@scene
async def test_two_programs_on_one_node_exchange_messages(tmp_path: Path) -> None:
    async with served(tmp_path) as (node, _), await client_of(node) as a, await client_of(node) as b:
        number = await b.subscribe({"destination": "ne.*", "language": "en|fr"})
        how: dict[str, AttributeValue] = {"language": "en", "urgent": True, "count": -3, "ratio": 0.5}
        message = await a.publish(
            "news", b"\0hello", attributes=how, label="x", persistent=True, priority=9, lifetime_s=60
        )
        await a.publish("news", b"", attributes={"language": "de"})
        got = await b.next_delivery(WITHIN_S)
        assert (got.message, got.destination, got.payload) == (message, "news", b"\0hello")
        assert message.startswith("ID:")
        assert got.attributes == how
        assert (got.label, got.persistent, got.priority) == ("x", True, 9)
        assert got.deadline_us is not None
        assert got.deadline_us - got.created_us == 60_000_000
        assert (got.source, got.hops, got.redelivered, got.subscriptions) == (node.host.node, 0, False, (number,))
        await b.confirm(got)
        with pytest.raises(TimeoutError, match=r"no message within 0.01 s"):
            await b.next_delivery(0.01)
        await b.unsubscribe(number)
        await a.publish("news", b"", attributes=how)
        assert (await a.status())["subscriptions"] == 0
        with pytest.raises(TimeoutError):
            await b.next_delivery(0.01)


REFUSED: list[tuple[Callable[[Client], Awaitable[object]], type[CarrypostError], str]] = [
    (lambda c: c.publish(""), PayloadError, "destination"),
    (lambda c: c.publish("x", priority=10), PayloadError, "a priority is 0 to 9, not 10"),
    (lambda c: c.publish("x", lifetime_s=0), PayloadError, "a lifetime must be longer than nothing"),
    (lambda c: c.publish("x", lifetime_s=float("nan")), PayloadError, "a lifetime is a number of seconds, not nan"),
    (lambda c: c.publish("x", lifetime_s=float("inf")), PayloadError, "a lifetime is a number of seconds, not inf"),
    (lambda c: c.publish("x", bytes(MIB + 1)), PayloadError, "a payload has 0 to 1048576 bytes, not 1048577"),
    (lambda c: c.publish("x", bytes(9 * MIB)), CarrypostError, "a call of 9,437,"),
    (lambda c: c.publish("x", "text"), LocalError, "Expected `bytes`"),  # type: ignore[arg-type]
    (lambda c: c.publish("x", attributes={"a": 2**70}), LocalError, "cannot be told to a node"),
    (lambda c: c.publish("x", attributes={"a": object()}), LocalError, "cannot be told to a node"),  # type: ignore[dict-item]
    (lambda c: c.publish("\udc80"), LocalError, "cannot be told to a node"),
    (lambda c: c.subscribe("("), PatternError, ""),
    (lambda c: c.subscribe({}), PatternError, "at least one attribute"),
    (lambda c: c.unsubscribe(7), LocalError, "this program has no subscription 7"),
    (lambda c: c.confirm("ID:x"), LocalError, "ID:x was not handed to this program, or was confirmed already"),
]


@pytest.mark.parametrize("number", range(len(REFUSED)))
def test_a_mistake_is_told_to_who_made_it_and_to_nobody_else(
    tmp_path: Path, number: int, caplog: pytest.LogCaptureFixture
) -> None:
    act, kind, text = REFUSED[number]

    async def scene() -> None:
        async with (
            served(tmp_path, limits={"message_bytes_max": MIB}) as (node, _),
            await client_of(node) as client,
            await client_of(node) as other,
        ):
            async with asyncio.timeout(WITHIN_S):
                with pytest.raises(kind) as caught:
                    await act(client)
            assert text in str(caught.value)
            await other.publish("x")
            if number != 6:  # Who says too much at once is hung up on.
                await client.publish("x")

    asyncio.run(scene())
    assert [record.getMessage() for record in caplog.records] == []


@scene
async def test_a_disk_that_does_not_take_the_message_is_a_send_error(tmp_path: Path) -> None:
    async with served(tmp_path) as (node, _), await client_of(node) as client:
        await client.publish("news")
        answers = node.store.answers

        def full() -> list[tuple[int, str | None]]:
            return [(serial, "the disk is full") for serial, _ in answers()]

        node.store.answers = full  # type: ignore[method-assign]
        with pytest.raises(SendError, match="the disk is full"):
            await client.publish("news")


@scene
async def test_what_a_program_did_not_confirm_goes_to_the_next_one(tmp_path: Path) -> None:
    async with served(tmp_path) as (node, _):
        async with await client_of(node) as first:
            await first.subscribe("news")
            messages = [await first.publish("news", str(number).encode()) for number in range(3)]
            got = [await first.next_delivery(WITHIN_S) for _ in range(3)]
            assert [each.message for each in got] == messages
            await first.confirm(got[1])
        async with await client_of(node) as second:

            async def alone() -> bool:
                return bool((await second.status())["subscriptions"] == 0)

            await until(alone)
            await second.subscribe("news")
            got = [await second.next_delivery(WITHIN_S) for _ in range(2)]
            assert [each.message for each in got] == [messages[0], messages[2]]
            assert all(each.redelivered for each in got)
            await second.confirm(*got)
            with pytest.raises(LocalError, match="confirmed already"):
                await second.confirm(got[0])
    async with served(tmp_path) as (node, _), await client_of(node) as third:
        await third.subscribe("news")
        with pytest.raises(TimeoutError):
            await third.next_delivery(0.05)


@scene
async def test_what_was_not_confirmed_comes_again_after_the_node_did(tmp_path: Path) -> None:
    async with served(tmp_path) as (node, _), await client_of(node) as client:
        await client.subscribe("news")
        kept, done = await client.publish("news"), await client.publish("news")
        for _ in range(2):
            await client.next_delivery(WITHIN_S)
        await client.confirm(done, done)
    async with served(tmp_path) as (node, _), await client_of(node) as client:
        await client.subscribe("news")
        got = await client.next_delivery(WITHIN_S)
        assert (got.message, got.redelivered) == (kept, True)
        with pytest.raises(TimeoutError):
            await client.next_delivery(0.05)


@scene
async def test_a_program_may_stop_waiting_and_misses_nothing(tmp_path: Path) -> None:
    async with served(tmp_path) as (node, _), await client_of(node) as client:
        await client.subscribe("news")
        waiting = asyncio.create_task(client.next_delivery())
        await asyncio.sleep(0)
        waiting.cancel()
        message = await client.publish("news")
        assert (await client.next_delivery(WITHIN_S)).message == message
        await client.publish("news")
        both = [asyncio.create_task(client.next_delivery(WITHIN_S)) for _ in range(2)]
        await client.publish("news")
        assert len({(await each).message for each in both}) == 2


@scene
async def test_a_large_message_goes_through_to_another_node(tmp_path: Path) -> None:
    udp = apart()
    payload = random.Random(5).randbytes(5 * MIB)
    async with (
        served(tmp_path, "a", udp=udp) as (a, _),
        served(tmp_path, "b", udp=udp) as (b, _),
        await client_of(a) as anna,
        await client_of(b) as bert,
    ):
        await bert.subscribe("film")
        await anna.publish("film", payload)
        got = await bert.next_delivery(30)
        assert got.payload == payload
        assert got.hops == 1
        await bert.confirm(got)


@scene
async def test_the_gate_opens_and_closes_a_contact(tmp_path: Path) -> None:
    udp = {**apart(), "hear": []}
    async with (
        served(tmp_path, "a", udp=udp) as (a, _),
        served(tmp_path, "b", udp=udp) as (b, _),
        await client_of(a) as anna,
        await client_of(b) as bert,
    ):
        await bert.subscribe("news")

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
        await anna.publish("news", b"1")
        assert (await bert.next_delivery(WITHIN_S)).payload == b"1"
        await anna.gate([])
        await bert.gate([])
        await until(parted)
        await anna.publish("news", b"2")
        with pytest.raises(TimeoutError):
            await bert.next_delivery(0.1)
        await anna.gate(None)
        await bert.gate(None)
        assert (await bert.next_delivery(WITHIN_S)).payload == b"2"


# --- programs that behave badly -------------------------------------------------------------------------------------


@scene
async def test_a_program_that_does_not_read_holds_nobody_up(tmp_path: Path) -> None:
    count, body = 40, bytes(256 * KIB)
    async with served(tmp_path) as (node, _), await client_of(node) as good:
        reader, writer = await raw(node)
        writer.transport.pause_reading()  # type: ignore[attr-defined]
        writer.write(framed({"do": "subscribe", "number": 1, "pattern": "film"}))

        async def subscribed() -> bool:
            return bool((await good.status())["subscriptions"] == 1)

        await until(subscribed)
        await good.subscribe("film")
        payload = Mock(side_effect=node.payload)
        node.payload = payload  # type: ignore[method-assign]
        for number in range(count):
            await good.publish("film", number.to_bytes(4, "big") + body)
            got = await good.next_delivery(WITHIN_S)
            await good.confirm(got)
        assert (await good.status())["cache"]["unconfirmed"] == count
        assert payload.call_count <= count + 4, "what nobody reads yet stays on disk"
        writer.transport.resume_reading()  # type: ignore[attr-defined]
        numbers: list[int] = []
        async with asyncio.timeout(WITHIN_S):
            while len(numbers) < count:
                length = int.from_bytes(await reader.readexactly(4), "big")
                reply = msgspec.msgpack.decode(await reader.readexactly(length))
                if reply["is"] == "delivery":
                    numbers.append(int.from_bytes(reply["payload"][:4], "big"))
        assert numbers == list(range(count))
        writer.close()


def test_a_node_ends_though_a_program_does_not_read(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def scene() -> None:
        async with asyncio.timeout(WITHIN_S), served(tmp_path) as (node, _), await client_of(node) as good:
            _, writer = await raw(node)
            writer.transport.pause_reading()  # type: ignore[attr-defined]
            writer.write(framed({"do": "subscribe", "number": 1, "pattern": "film"}))
            await good.subscribe("film")
            for _ in range(10):
                await good.publish("film", bytes(256 * KIB))
                await good.next_delivery(WITHIN_S)
        writer.close()

    asyncio.run(scene())
    assert [record.getMessage() for record in caplog.records] == []


@scene
async def test_a_program_that_vanishes_in_the_middle_of_a_call_leaves_no_trace(tmp_path: Path) -> None:
    async with served(tmp_path) as (node, _), await client_of(node) as good:
        call = framed({"do": "publish", "number": 1, "destination": "news", "payload": bytes(100 * KIB)})
        for sent in (0, 2, 4, 100, len(call) - 1):
            _, writer = await raw(node)
            writer.write(framed({"do": "subscribe", "number": 1, "pattern": "news"}) + call[:sent])
            await writer.drain()
            writer.transport.abort()

        async def alone() -> bool:
            found = await good.status()
            return bool(found["subscriptions"] == 0)

        await until(alone)
        assert (await good.status())["cache"]["messages"] == 0
        _, writer = await raw(node)
        writer.write(call)
        await writer.drain()
        writer.close()

        async def stored() -> bool:
            return bool((await good.status())["cache"]["messages"] == 1)

        await until(stored)


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
    {"do": "publish", "number": 4},
    {"do": "publish", "number": 4, "destination": "x", "payload": "text"},
    {"do": "publish", "number": 4, "destination": "x", "attributes": {"a": [1]}},
    {"do": "gate", "number": 4, "hear": "all"},
    {"do": "confirm", "number": 4, "messages": [b"\0"]},
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
            call = bytearray(framed({"do": "publish", "number": number, "destination": "x", "payload": b"abc"}))
            for _ in range(chance.randrange(1, 4)):
                call[chance.randrange(4, len(call))] = chance.randrange(256)
            _, writer = await raw(node)
            writer.write(bytes(call))
            writer.close()
        await good.subscribe("x")
        await good.publish("x", b"whole")
        deadline_s = time.monotonic() + WITHIN_S
        while (await good.next_delivery(WITHIN_S)).payload != b"whole":
            assert time.monotonic() < deadline_s


@scene
async def test_a_client_that_is_closed_ends_what_it_waits_for(tmp_path: Path) -> None:
    async with served(tmp_path) as (node, _):
        client = await client_of(node)
        node.store.answers = list  # type: ignore[method-assign]
        calls: list[asyncio.Task[object]] = [
            asyncio.create_task(client.publish("x")),  # The disk never answers.
            asyncio.create_task(client.next_delivery()),
        ]
        await client.status()
        await client.close()
        async with asyncio.timeout(WITHIN_S):
            for call in calls:
                with pytest.raises(StateError, match="the connection to the node is closed"):
                    await call
        with pytest.raises(StateError):
            await client.status()
        await client.close()


@scene
async def test_a_node_that_does_not_run_is_not_used(tmp_path: Path) -> None:
    node = Node(parse("", {}, {"udp": apart(), "node.data": str(tmp_path)}))
    with pytest.raises(StateError, match="the node is not running"):
        await node.publish("x", b"")
    await node.start()
    await node.stop()
    with pytest.raises(StateError, match="the node is not running"):
        await node.publish("x", b"")
