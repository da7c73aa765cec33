"""Programs that are attached to a node at its socket, in the same process: how they come to it, and what ends them."""

from __future__ import annotations

import asyncio
import functools
import socket
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any, TypeVar, cast

import msgspec
import psutil
import pytest
from tests.support.loopback import apart
from tests.support.nodes import scene, until

from carrypost import (
    ConfigError,
    ConnectionFactory,
    DeliveryMode,
    IllegalArgumentException,
    IllegalStateException,
    InvalidClientIDException,
    InvalidDestinationException,
    InvalidSelectorException,
    JMSException,
    SessionMode,
)
from carrypost.attach import outbox
from carrypost.attach.client import Client
from carrypost.attach.provider import AttachedProvider
from carrypost.attach.served_node import ServedNode
from carrypost.errors import NodeError, NoNodeError, RunningError, StateError
from carrypost.jms.provider import Program
from carrypost.jms.provider.local import LocalProvider
from carrypost.log.events import Handed
from carrypost.messaging.commands import Command, Consume, Credit, OpenRequests, OpenSession, Receive
from carrypost.node.runtime import Node
from carrypost.node.settings import NodeSettings, parse

R = TypeVar("R")

WITHIN_S = 30.0
MIB = 1024 * 1024


@functools.cache
def udp(_: Path) -> dict[str, object]:
    """Return the same value throughout one test."""
    return apart()


def settings(folder: Path, **keywords: object) -> NodeSettings:
    return parse("", {}, {"udp": udp(folder), **keywords, "node.data": str(folder / "node")})


def factory(folder: Path, **given: Any) -> ConnectionFactory:  # noqa: ANN401 - as programs give them
    return ConnectionFactory(data=folder / "node", **given)


@asynccontextmanager
async def running(folder: Path, **keywords: object) -> AsyncIterator[ServedNode]:
    """Yield a node as `carrypost node` runs it."""
    served = await ServedNode.start(settings(folder, **keywords), stopping=asyncio.Event())
    try:
        async with asyncio.timeout(WITHIN_S):
            yield served
    finally:
        await served.stop()


# --- how programs come to their node ------------------------------------------------------------------------------


@scene
async def test_a_program_attaches_where_a_node_runs_and_embeds_where_none_does(tmp_path: Path) -> None:
    own = factory(tmp_path, udp=udp(tmp_path))
    modes = [own.mode]
    async with own.create_context() as alone:
        modes.append(own.mode)
        node = alone.node_id
    async with running(tmp_path):
        one, other = factory(tmp_path), ConnectionFactory(f"unix:{tmp_path}/node/control.sock")
        async with one.create_context() as here, other.create_context() as there:
            assert (one.mode, other.mode, here.node_id, there.node_id) == ("attached", "attached", node, node)
            inbox = await there.create_consumer("topic/news")
            await here.send("topic/news", "hello")
            assert await inbox.receive_body(str) == "hello"
        async with own.create_context():
            modes.append(own.mode)
    assert modes == [None, "embedded", "attached"]


@scene
async def test_others_attach_to_the_node_of_a_program_and_hear_of_its_end(tmp_path: Path) -> None:
    own = factory(tmp_path, udp=udp(tmp_path))
    other = factory(tmp_path, attach=True, client_id="other", reconnect=False)
    async with asyncio.timeout(WITHIN_S):
        here = await own.create_context()
        there = await other.create_context()
        inbox = await there.create_consumer("topic/news")
        told: list[JMSException] = []
        there.set_exception_listener(told.append)
        async with await Client.connect(own.settings.control) as client:
            with pytest.raises(StateError, match="this node runs inside a program and stops with it: stop the process"):
                await client.stop()
        waiting = asyncio.create_task(inbox.receive())
        await here.send("topic/other", "x")
        await here.close()
        with pytest.raises(IllegalStateException, match="the node has ended"):
            await waiting
        with pytest.raises(IllegalStateException, match="the node has ended"):
            await there.send("topic/news", "y")
        assert [str(each) for each in told] == ["the node has ended"]
        await there.close()
        with pytest.raises(JMSException, match="no node answers at") as caught:
            _ = await other.create_context()
        assert type(caught.value.__cause__) is NoNodeError


@scene
async def test_attach_allows_one_of_the_two_alone(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with pytest.raises(
        JMSException, match=r"no node answers at .*control\.sock; start one with: carrypost node"
    ) as none:
        _ = await factory(tmp_path, attach=True).create_context()
    assert type(none.value.__cause__) is NoNodeError
    async with running(tmp_path):
        with pytest.raises(JMSException, match="a node is already running in") as there:
            _ = await factory(tmp_path, attach=False, udp=udp(tmp_path)).create_context()
        assert type(there.value.__cause__) is RunningError
        with pytest.raises(IllegalStateException, match=r"\[node\] plugins"):
            _ = await factory(tmp_path, privilege=lambda _: 3).create_context()
        assert caplog.messages == []
        given = factory(tmp_path, altruistic=True, messaging={"tries": 9})
        for _ in range(2):
            async with given.create_context():
                pass
        (warned,) = caplog.messages
        assert warned.endswith("its own settings; ignoring these: altruistic, messaging")
    with pytest.raises(IllegalArgumentException, match="unix:PATH"):
        ConnectionFactory("unix:", attach=True)
    with pytest.raises(IllegalArgumentException, match="unix:PATH"):
        ConnectionFactory("unix:/x", attach=False)
    with pytest.raises(ConfigError, match=r"node\.plugins"):
        factory(tmp_path, node={"plugins": "x"})


@scene
async def test_each_way_in_which_a_node_cannot_be_reached_has_its_own_sentence(tmp_path: Path) -> None:
    dead, long = tmp_path / "dead.sock", tmp_path / ("x" * 150)
    with socket.socket(socket.AF_UNIX) as left:
        left.bind(str(dead))
    for path in (dead, long, tmp_path / "none"):
        with pytest.raises(JMSException, match=f"no node answers at {path}") as caught:
            _ = await ConnectionFactory(f"unix:{path}").create_context()
        assert type(caught.value.__cause__) is NoNodeError
    async with running(tmp_path, messaging={"enabled": False}) as served:
        with pytest.raises(
            JMSException, match=r"messaging is switched off on this node: set messaging\.enabled = true"
        ):
            _ = await factory(tmp_path).create_context()
        async with await Client.connect(served.node.settings.control) as client:
            assert (await client.status())["messaging"] is None


@scene
async def test_the_socket_of_another_user_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise PermissionError

    monkeypatch.setattr(asyncio.get_running_loop(), "create_unix_connection", refuse)
    with pytest.raises(JMSException, match="the node at /x belongs to another user"):
        _ = await ConnectionFactory("unix:/x").create_context()


@scene
async def test_a_node_that_starts_is_waited_for(tmp_path: Path) -> None:
    node = Node(settings(tmp_path))
    await node.start()  # Its folder is taken, and it has no socket yet.
    try:
        opening = [asyncio.ensure_future(factory(tmp_path, attach=each).create_context()) for each in (None, True)]
        await asyncio.sleep(0.2)
        assert not any(each.done() for each in opening)
    finally:
        await node.stop()
    async with running(tmp_path):
        for each in opening:
            await (await each).close()


@scene
async def test_two_that_start_at_once_share_one_node(tmp_path: Path) -> None:
    """A second event loop of a process is as another process to the node."""
    modes: list[str | None] = []
    both = threading.Barrier(2)

    def program(number: int) -> None:
        async def life() -> None:
            made = factory(tmp_path, udp=udp(tmp_path))
            async with made.create_context() as ctx:
                modes.append(made.mode)
                inbox = await ctx.create_consumer("topic/news")
                await asyncio.to_thread(both.wait)
                await ctx.send("topic/news", str(number))
                got = {await inbox.receive_body(str, timeout=WITHIN_S) for _ in range(2)}
                assert got == {"0", "1"}
                await asyncio.to_thread(both.wait)
                if made.mode == "embedded":
                    await asyncio.to_thread(both.wait)
            if made.mode == "attached":
                await asyncio.to_thread(both.wait)

        asyncio.run(life())

    udp(tmp_path)
    await asyncio.gather(*(asyncio.to_thread(program, number) for number in range(2)))
    assert sorted(map(str, modes)) == ["attached", "embedded"]


@scene
async def test_plugins_are_loaded_into_the_node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "village_rules.py").write_text(
        "from carrypost.messaging import policies\n"
        "policies.register('village', policies.first)\n"
        "def privilege(descriptor): return descriptor.priority\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    async with running(tmp_path, node={"plugins": ["village_rules"]}), factory(tmp_path).create_context() as ctx:
        await ctx.declare_queue("box", policy="village")
    with pytest.raises(
        NodeError, match=r"\[node\] plugins: the module 'village_laws' cannot be loaded: ModuleNotFound"
    ):
        async with running(tmp_path, node={"plugins": ["village_laws"]}):
            pass


# --- what they do there -------------------------------------------------------------------------------------------


@scene
async def test_client_ids_are_exclusive_subscriptions_are_shared_and_errors_keep_what_they_say(tmp_path: Path) -> None:
    async with running(tmp_path):
        own = factory(tmp_path, client_id="anna")
        async with own.create_context() as ctx:
            with pytest.raises(InvalidClientIDException, match="'anna' is in use on this node"):
                _ = await factory(tmp_path, client_id="anna").create_context()
            with pytest.raises(InvalidSelectorException) as wrong:
                await ctx.create_consumer("topic/news", "a >")
            assert wrong.value.position is not None
        async with own.create_context() as one, factory(tmp_path).create_context() as other:
            both = [await each.create_shared_consumer(each.create_topic("news"), "jobs") for each in (other, other)]
            for number in range(6):
                await one.send("topic/news", str(number))
            got = [await each.receive_body(str, timeout=5) for each in both for _ in range(3)]
            assert sorted(map(str, got)) == [str(number) for number in range(6)]


@scene
async def test_a_temporary_queue_ends_with_its_program_and_its_receiver_is_not_another(tmp_path: Path) -> None:
    async with running(tmp_path), factory(tmp_path).create_context() as here:
        other = await factory(tmp_path).create_context()
        box = await other.create_temporary_queue()
        await here.send(here.create_queue(box.queue_name), "x")
        assert await (await other.create_consumer(box)).receive_body(str) == "x"
        await other.close()
        with pytest.raises(InvalidDestinationException, match="this node manages no queue"):
            await here.send(here.create_queue(box.queue_name), "y")


@scene
async def test_a_long_body_lets_small_calls_pass(tmp_path: Path) -> None:
    body = bytes(range(256)) * 64 * 1024  # 16 MiB
    async with (
        running(tmp_path),
        factory(tmp_path).create_context() as ctx,
        factory(tmp_path).create_context() as other,
    ):
        inbox = await other.create_consumer("topic/film")
        small = 0

        async def work(until: asyncio.Task[Any]) -> None:
            nonlocal small
            while not until.done():
                # Not durable: else three of them might wait for a busy disk for longer than the long one takes.
                await ctx.send("topic/small", "x", time_to_live=5, delivery_mode=DeliveryMode.NON_PERSISTENT)
                small += 1

        sending = asyncio.ensure_future(ctx.send("topic/film", body))
        await work(sending)
        await sending
        assert small >= 3, "they go on while the long one is on its way"
        small = 0
        receiving = asyncio.ensure_future(inbox.receive_body(bytes))
        await work(receiving)
        assert await receiving == body
        assert small >= 3


@scene
async def test_a_look_into_a_long_queue_comes_a_few_at_a_time(tmp_path: Path) -> None:
    async with running(tmp_path), factory(tmp_path).create_context(SessionMode.SESSION_TRANSACTED) as ctx:
        box = await ctx.declare_queue("box")
        for number in range(200):
            await ctx.send(box, str(number), properties={"long": "x" * 500})
        await ctx.commit()
        looks = [[each.get_body(str) async for each in ctx.create_browser(box)] for _ in range(2)]
        assert looks == [[str(number) for number in range(200)]] * 2


@scene
async def test_a_program_that_is_cancelled_while_it_waits_for_its_node_leaves_nothing_open(tmp_path: Path) -> None:
    async with running(tmp_path) as served, factory(tmp_path).create_context() as ctx:

        async def consumers() -> int:
            found = served.node.host.messaging.overview()
            assert found is not None
            return found.consumers

        for turns in range(1, 9):
            opening = asyncio.ensure_future(ctx.create_consumer("topic/news"))
            for _ in range(turns):
                await asyncio.sleep(0)
            opening.cancel()
            with suppress(asyncio.CancelledError):
                await (await opening).close()

        async def none() -> bool:
            return await consumers() == 0

        await until(none)


# --- bad programs -------------------------------------------------------------------------------------------------


def framed(value: object) -> bytes:
    body = msgspec.msgpack.encode(value)
    return len(body).to_bytes(4, "big") + body


HELLO = framed({"do": "hello", "versions": [2], "program": "bad", "new": "field"})


def call(number: int, name: str, *args: object, **more: object) -> bytes:
    return framed({"do": "call", "number": number, "command": [name, *args], **more})


async def said(control: Path, data: bytes, *, ends: bool = True) -> list[dict[str, Any]]:
    """Return all answers of the node to these bytes."""
    reader, writer = await asyncio.open_unix_connection(control)
    writer.write(data)
    if not ends:
        writer.write_eof()
    content = await reader.read()
    writer.close()
    found = []
    while content:
        length = int.from_bytes(content[:4], "big")
        found.append(msgspec.msgpack.decode(content[4 : 4 + length]))
        content = content[4 + length :]
    return found


OPENED = HELLO + call(1, "connect", "") + call(2, "open_session", 1)
ENDS: dict[str, tuple[bytes, str]] = {
    "no greeting": (framed({"do": "status", "number": 1}), "a program must send hello first"),
    "a call before the greeting": (call(1, "connect", ""), "a program must send hello first"),
    "a greeting of a later version": (
        framed({"do": "hello", "versions": [1, 3], "program": "later"}), "version 2 of the protocol, and later does not"
    ),
    "two greetings": (HELLO + HELLO, "send hello once"),
    "a length of 4 GiB": (HELLO + b"\xff\xff\xff\xff", "a frame of 4,294,967,295 bytes"),
    "a part without a call": (HELLO + framed({"do": "part", "number": 7, "bytes": b"x"}), "none was announced"),
    "parts of 4 GiB": (HELLO + call(1, "connect", "", length=2**32), "parts of 4,294,967,296 bytes are announced"),
    "parts before messaging is used, too long": (HELLO + call(1, "connect", length=2**62), "may be open"),
    "more than announced": (
        HELLO + call(1, "connect", length=2) + framed({"do": "part", "number": 1, "bytes": b"xyz"}), "2 bytes announced"
    ),
    "endless empty parts": (
        HELLO + call(1, "connect", length=2) + framed({"do": "part", "number": 1, "bytes": b""}), "2 bytes announced"
    ),
    "five calls whose parts do not come": (
        HELLO + b"".join(call(number, "connect", length=1) for number in range(1, 6)), "at most 4 may be open"
    ),
    "a credit of 2^63": (OPENED + call(0, "credit", 3, 2**63, 1), "not 9,223,372,036,854,775,808 messages"),
    "a credit below nothing": (OPENED + call(0, "credit", 3, -1, 1), "not -1 messages"),
    "a credit of bytes": (OPENED + call(0, "credit", 3, 1, 2**64 - 1), "at most 9,007,199,254,740,992, not"),
    "no map": (HELLO + framed([1, 2]), "the control socket received a malformed frame"),
    "text": (b"GET / HTTP/1.1\r\n\r\n", "a frame of 1,195,725,856 bytes"),
}  # fmt: skip


@scene
async def test_what_no_program_says_ends_its_connection_with_a_sentence_and_no_other(tmp_path: Path) -> None:
    async with running(tmp_path) as served, factory(tmp_path).create_context() as good:
        control = served.node.settings.control
        inbox = await good.create_consumer("topic/news")
        for what, (data, told) in ENDS.items():
            *_, last = await said(control, data)
            assert (last["is"], last["number"], last["error"]) == ("refusal", -1, "LocalError"), what
            assert told in last["text"], what
        await good.send("topic/news", "x")
        assert await inbox.receive_body(str) == "x"
        for cut in range(1, len(OPENED), 7):
            await said(control, OPENED[:cut], ends=False)
        await good.send("topic/news", "y")
        assert await inbox.receive_body(str) == "y"


@scene
async def test_what_is_not_a_programs_own_is_refused_alone(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async with running(tmp_path) as served, factory(tmp_path).create_context(SessionMode.SESSION_TRANSACTED) as good:
        box = await good.declare_queue("box")
        await good.send(box, "x")
        connection, session = good.create_producer()._session.connection.number, good.create_producer()._session.number  # noqa: SLF001
        draft = {"destination": "topic/x", "payload": b""}
        asked = {"type": "receive", "destination": box.address}
        refused: list[tuple[Any, ...]] = [
            ("perform", session, [], [], 1, False), ("open_session", connection), ("close_session", session, []),
            ("consume", session, asked), ("disconnect", connection, []), ("draft", session, draft),
            ("rollback", session, []), ("recover", session, [], None), ("close_consumer", 3, []), ("dance", 1),
            ("connect", 5), ("payload", b"no descriptor"), ("perform",), ("consume", 99, {"type": "unknown"}),
            ("declare", {"name": "t", "connection": connection}),
        ]  # fmt: skip
        data = (
            HELLO
            + call(1, "connect", "")
            + b"".join(call(number, name, *args) for number, (name, *args) in enumerate(refused, 2))
        )
        answers = {each["number"]: each for each in (await said(served.node.settings.control, data, ends=False))[1:]}
        assert answers[1]["is"] == "answer"
        assert [number for number in range(2, 2 + len(refused)) if answers[number]["is"] != "refusal"] == []
        assert (
            answers[2]["text"]
            == f"this program has no open session {session}: it was closed, or belongs to another program"
        )
        mine, mine_too = answers[1]["value"], answers[1]["value"] + 1
        stolen = (
            HELLO
            + call(1, "connect", "")
            + call(2, "open_session", mine + 1)
            + call(3, "perform", mine_too + 1, [1], [], 1, False)
        )
        answers = {each["number"]: each for each in (await said(served.node.settings.control, stolen, ends=False))[1:]}
        assert answers[3]["is"] == "refusal"
        await good.commit()
        assert [each.get_body(str) async for each in good.create_browser(box)] == ["x"]
    assert caplog.messages == []


@scene
async def test_long_bodies_that_are_sent_together_arrive_however_many_they_are(tmp_path: Path) -> None:
    """Check sends that have more bytes together than a program may announce."""
    async with running(tmp_path, limits={"message_bytes_max": MIB}), factory(tmp_path).create_context() as program:
        inbox = await program.create_consumer("topic/films")
        films = [bytes([number]) * (MIB - 1) for number in range(8)]
        await asyncio.gather(*(program.send("topic/films", film) for film in films))
        assert sorted([await inbox.receive_body(bytes) or b"" for _ in films]) == films


@scene
async def test_a_program_that_takes_more_than_it_reads_does_not_fill_the_memory(tmp_path: Path) -> None:
    """Check a program with endless credit that asks for the same long body again and again."""
    async with running(tmp_path) as served, factory(tmp_path).create_context() as good:
        box = await good.declare_queue("box")
        descriptor = (await good.send("topic/film", bytes(8 * MIB))).descriptor
        assert descriptor is not None
        process = psutil.Process()
        before = process.memory_info().rss
        _, writer = await asyncio.open_unix_connection(served.node.settings.control)
        writer.transport.pause_reading()  # type: ignore[attr-defined]
        writer.write(
            HELLO
            + call(1, "connect", "")
            + b"".join(call(number, "payload", descriptor.wire) for number in range(2, 5_000))
        )
        async with factory(tmp_path).create_context() as other:
            inbox = await other.create_consumer(box)
            for number in range(50):
                await good.send(box, str(number))
            assert [await inbox.receive_body(str) for _ in range(50)] == [str(number) for number in range(50)]
        assert process.memory_info().rss - before < 64 * MIB
        writer.transport.abort()


class Taking:
    """A program that keeps the messages that it gets, and is informed only of the end."""

    def __init__(self) -> None:
        self.bodies: list[bytes | None] = []

    def deliver(self, handed: Handed, body: bytes | None = None) -> None:  # noqa: ARG002 - only the body is looked at
        self.bodies.append(body)

    def node_ended(self, reason: str) -> None:
        pass


@scene
async def test_of_a_program_that_does_not_read_what_waits_for_it_nothing_more_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Behind the messages that wait for it wait answers, up to a bound; when it reads, it gets all of them."""
    for module in (outbox, outbox):
        monkeypatch.setattr(module, "WAITING_MAX", 100)
    asked: list[int] = []

    execute = LocalProvider.execute

    async def counting(provider: LocalProvider, command: Command[R]) -> R:
        if isinstance(command, OpenRequests):
            asked.append(len(asked))
        return await execute(provider, command)

    monkeypatch.setattr(LocalProvider, "execute", counting)
    async with running(tmp_path) as served, factory(tmp_path).create_context() as good:
        box, taking = await good.declare_queue("box"), Taking()
        slow = await AttachedProvider.open(served.node.settings.control)
        session = await slow.execute(OpenSession(await slow.connect("", cast("Program", taking))))
        slow.tell(Credit(await slow.execute(Consume(session, Receive(box.address))), 10_000, 10_000 * MIB))
        slow.line.read(False)
        bodies = [bytes([number]) * 30_000 for number in range(150)]
        for body in bodies:
            await good.send(box, body)
        calls = [asyncio.ensure_future(slow.execute(OpenRequests())) for _ in range(1_000)]
        before = -1
        while before < len(asked) or not asked:
            before = len(asked)
            await asyncio.sleep(0.2)
        assert 100 <= len(asked) < 500, "what was read before the bound was reached is answered"
        assert not any(each.done() for each in calls)
        slow.line.read(True)
        await asyncio.gather(*calls)
        assert [body and body[-1] for body in taking.bodies] == [*range(150)]
        await slow.close()
