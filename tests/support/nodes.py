"""Real `carrypost node` processes for tests: started in a folder, and in a namespace if there is one, and always ended.

::

    async with Nodes(tmp_path, net, altruistic=True) as nodes:
        a, b = await nodes.start("a", "b", udp={"ipv6_multicast": False})
        await b.program.subscribe("news")
        await a.program.send("news", b"hello")
        message = await b.receive()

The test is attached to each by a program of the API (`program`, and further ones by `Program.connect`), and has a
connection for questions (`client`). Keywords are settings as in the TOML file, tables as dictionaries. A name is that
of a namespace and of a folder; a node that was ended and is started again finds its folder as it left it. When a test
fails, its report has what the nodes said; when it passes, every node still running has to end cleanly and must have
said nothing of an internal error.
"""

from __future__ import annotations

import asyncio
import functools
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import IO, Any, NamedTuple, ParamSpec, Self, TypedDict, TypeVar

import msgspec
from tests.support.copies import copy
from tools.netns import Net

from carrypost import (
    ConnectionFactory,
    Consumer,
    Context,
    DeliveryMode,
    JMSException,
    Message,
    Sent,
    SessionMode,
    Topic,
)
from carrypost.attach.client import Client
from carrypost.cli import _exit, serve
from carrypost.cli._settings import NodeCommand
from carrypost.model.descriptor import Ordering

PATIENCE_S = 30.0
"""Time that something may take that ought to happen; a busy machine is not a fault."""
QUICK: Mapping[str, object] = {"announce_s_min": 0.2, "announce_s_max": 0.5}
COMMAND = [sys.executable, "-P", "-m", "carrypost.cli._process"]
"""Program that the command `carrypost node` becomes: loading the command line first would be a third of a start."""
_SAID_BYTES_MAX = 8_000

P = ParamSpec("P")
T = TypeVar("T")


def scene(test: Callable[P, Coroutine[Any, Any, None]]) -> Callable[P, None]:
    """Return a test that is written as a coroutine."""

    @functools.wraps(test)
    def run(*args: P.args, **kwargs: P.kwargs) -> None:
        asyncio.run(test(*args, **kwargs))

    return run


async def until(condition: Callable[[], Awaitable[T | None]], patience_s: float = PATIENCE_S) -> T:
    """Ask again and again until the answer is true, or something in it; returns it."""
    deadline_s = time.monotonic() + patience_s
    while not (found := await condition()):
        assert time.monotonic() < deadline_s, f"still {found!r} after {patience_s} s"
        await asyncio.sleep(0.02)
    return found


def toml(settings: Mapping[str, object]) -> str:
    """Settings as a file has them: keys first, then tables."""
    keys = [f"{key} = {json.dumps(value)}" for key, value in settings.items() if not isinstance(value, Mapping)]
    tables = [f"\n[{key}]\n{toml(value)}" for key, value in settings.items() if isinstance(value, Mapping)]
    return "\n".join(keys) + "\n" + "".join(tables)


class Received(NamedTuple):
    """A message as a program received it."""

    id: str
    body: bytes
    source: str
    """Id of the node that sent it."""
    hops: int
    redelivered: bool
    label: str
    properties: Mapping[str, object]


class Program:
    """A program that is attached to a node; it acknowledges each message for itself."""

    def __init__(self, ctx: Context) -> None:
        self._ctx = ctx
        self._consumer: Consumer | None = None
        self._received: dict[str, Message] = {}
        self.problems: list[JMSException] = []

    @classmethod
    async def connect(cls, control: str, client_id: str = "") -> Self:
        """Connect a program to the node with this control socket."""
        factory = ConnectionFactory(f"unix:{control}", client_id=client_id or None, reconnect=False)
        return cls(await factory.create_context(SessionMode.INDIVIDUAL_ACKNOWLEDGE))

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Close its context."""
        await self._ctx.close()

    async def send(
        self,
        topic: str | Topic,
        body: bytes,
        *,
        persistent: bool = False,
        ordering: Ordering = Ordering.NONE,
        **keywords: Any,  # noqa: ANN401 - as `Context.send` has them
    ) -> str:
        """Send; returns the message's id."""
        mode = DeliveryMode.PERSISTENT if persistent else DeliveryMode.NON_PERSISTENT
        wanted = Topic(topic, ordering) if isinstance(topic, str) else topic
        sent = await self._ctx.send(wanted, body, delivery_mode=mode, **keywords)
        return str(sent.message_id)

    async def sent(self, message: str) -> Sent:
        """Return the `Sent` of a message that a program on this node sent, in this life or an earlier one."""
        return await self._ctx.sent(message)

    async def hold(self, name: str) -> Topic:
        """Let its node hold a topic."""
        return await self._ctx.declare_topic(name)

    async def subscribe(self, topic: str | Topic, *, durable: bool = False, ordering: Ordering = Ordering.NONE) -> None:
        """Open its consumer; `problems` has the reported problems."""
        wanted = Topic(topic, ordering) if isinstance(topic, str) else topic
        self._ctx.set_exception_listener(self.problems.append)
        if durable:
            self._consumer = await self._ctx.create_durable_consumer(wanted, wanted.topic_name.replace("@", "."))
        else:
            self._consumer = await self._ctx.create_consumer(wanted)

    async def receive(self, timeout_s: float | None = None) -> Received:
        """Return the next message; raises `TimeoutError`."""
        assert self._consumer is not None
        message = await self._consumer.receive(timeout=timeout_s)
        if message is None:
            raise TimeoutError(f"no message within {timeout_s} s; problems: {self.problems}")
        descriptor = message.descriptor
        assert descriptor is not None
        found = Received(
            descriptor.id_text, message.get_body(bytes) or b"", descriptor.node,
            message.get_int_property("JMS_carrypost_Hops"), message.jms_redelivered, descriptor.label,
            {name: value for name, value in message.properties.items() if not name.startswith("JMS")},
        )  # fmt: skip
        self._received[found.id] = message
        return found

    async def acknowledge(self, *messages: Received) -> None:
        """Acknowledge these; returns once that is durable."""
        for each in messages:
            await self._received.pop(each.id).acknowledge()


class Node:
    """One process, a connection for questions, and a program that is attached to it."""

    def __init__(self, name: str, folder: Path, process: subprocess.Popen[bytes]) -> None:
        self.name = name
        self.folder = folder
        self.process = process
        self.id = ""
        self.control = ""
        self._client: Client | None = None
        self._program: Program | None = None

    @property
    def program(self) -> Program:
        """The program that is attached to it as long as the test is connected."""
        assert self._program is not None
        return self._program

    @property
    def client(self) -> Client:
        """The connection to it."""
        assert self._client is not None
        return self._client

    async def connect(self) -> None:
        """Wait until it is ready, and connect."""
        ready = await until(self._ready)
        self.id, self.control = ready["node"], ready["control"]
        self._client = await Client.connect(Path(self.control))
        self._program = await Program.connect(self.control, self.name)

    async def disconnect(self) -> None:
        """Close the connections."""
        for each in (self._client, self._program):
            if each is not None:
                await each.close()
        self._client = self._program = None

    async def _ready(self) -> dict[str, str] | None:
        if self.process.poll() is not None:
            raise AssertionError(f"node {self.name} ended with exit code {self.process.returncode}")
        lines = (self.folder / "stdout").read_bytes().split(b"\n")[:-1]
        return next((line for line in map(json.loads, lines) if line["event"] == "ready"), None)

    @property
    def said(self) -> str:
        """The node's log, or the end of it."""
        return (self.folder / "stderr").read_bytes()[-_SAID_BYTES_MAX:].decode(errors="replace")

    # --- at the socket ---------------------------------------------------------------------------------------------

    async def receive(self, patience_s: float = PATIENCE_S) -> Received:
        """Return the next message, acknowledged."""
        message = await self.program.receive(timeout_s=patience_s)
        await self.program.acknowledge(message)
        return message

    async def collect(self, count: int) -> list[Received]:
        """Return `count` messages, each acknowledged."""
        return [await self.receive() for _ in range(count)]

    async def states(self) -> dict[str, str]:
        """Return the nodes that it hears: ids and the states of the links."""
        return {peer["node"]: peer["state"] for peer in await self.client.peers()}

    async def meet(self, *others: Node) -> None:
        """Wait until these are its neighbours, and it is theirs."""
        await until(functools.partial(_linked, self, others))
        for other in others:
            await until(functools.partial(_linked, other, (self,)))

    async def miss(self, *others: Node) -> None:
        """Wait until none of these is a neighbour any more."""

        async def gone() -> bool:
            states = await self.states()
            return all(states.get(other.id) != "linked" for other in others)

        await until(gone)

    # --- as a process ----------------------------------------------------------------------------------------------

    def suspend(self) -> None:
        """Suspend it, like a machine that sleeps."""
        self.process.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        """Let it go on."""
        self.process.send_signal(signal.SIGCONT)

    async def end(self, number: int = signal.SIGTERM) -> int:
        """End it by a signal; returns its exit code."""
        await self.disconnect()
        self.process.send_signal(number)

        async def ended() -> bool:
            return self.process.poll() is not None

        await until(ended)
        return self.process.returncode

    async def kill(self) -> None:
        """End it at once, while programs are attached to it; they hear of it afterwards."""
        self.process.kill()
        self.process.wait()
        await self.disconnect()


async def _linked(node: Node, others: tuple[Node, ...]) -> bool:
    states = await node.states()
    return all(states.get(other.id) == "linked" for other in others)


class _Options(TypedDict):
    stdout: IO[bytes]
    stderr: IO[bytes]
    env: Mapping[str, str]


def node_main(order: str) -> int:
    """Run a node in a copy of this process, as `carrypost.cli._process` does."""
    _exit.end_at_once()
    return serve.main(order)


class Nodes:
    """The nodes of one test, in subfolders of one folder, and in the namespaces of a net if there is one.

    They are copies of this process (`tests.support.copies`).
    """

    def __init__(self, folder: Path, net: Net | None = None, **settings: object) -> None:
        self._folder = folder
        self._net = net
        self._settings = {**QUICK, **settings}
        self._nodes: dict[str, Node] = {}

    def __getitem__(self, name: str) -> Node:
        return self._nodes[name]

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        try:
            if error is None:
                await self._end()
        except BaseException as failure:
            self._testify(failure)
            raise
        finally:
            if error is not None:
                self._testify(error)
            await self._kill()

    async def start(self, *names: str, **settings: object) -> list[Node]:
        """Start nodes, with these settings over those of all, and wait until they are ready."""
        started = [self._launch(name, {**self._settings, **settings}) for name in names]
        await asyncio.gather(*(node.connect() for node in started))
        return started

    def _launch(self, name: str, settings: Mapping[str, object]) -> Node:
        folder = self._folder / name
        folder.mkdir(exist_ok=True)
        place = settings.get("node", {})
        assert isinstance(place, Mapping)
        file = folder / "node.toml"
        file.write_text(toml({**settings, "node": {"data": "data", "name": name, **place}}), encoding="utf-8")
        environment = {key: value for key, value in os.environ.items() if not key.startswith("CARRYPOST_")}
        order = NodeCommand(config=str(file), data=None, changes=(), json=True, verbose=False)
        with (folder / "stdout").open("wb") as stdout, (folder / "stderr").open("ab") as stderr:
            options: _Options = {"stdout": stdout, "stderr": stderr, "env": environment}
            process = self._process(name, msgspec.json.encode(order).decode(), options)
        node = self._nodes[name] = Node(name, folder, process)
        return node

    def _process(self, name: str, order: str, options: _Options) -> subprocess.Popen[bytes]:
        return copy(functools.partial(node_main, order), net=self._net, namespace=name, **options)

    async def _end(self) -> None:
        """Every node that runs ends when it is asked to, and none has had an internal error."""
        running = [node for node in self._nodes.values() if node.process.poll() is None]
        codes = await asyncio.gather(*(node.end() for node in running))
        assert dict(zip((node.name for node in running), codes, strict=True)) == {node.name: 0 for node in running}
        for node in self._nodes.values():
            assert "Traceback" not in node.said, node.name

    async def _kill(self) -> None:
        for node in self._nodes.values():
            with suppress(Exception):  # The node may be gone, or stopped; what matters is that its process ends.
                await asyncio.wait_for(node.disconnect(), 1)
        for node in self._nodes.values():
            node.process.kill()
            node.process.wait()

    def _testify(self, failure: BaseException) -> None:
        for node in self._nodes.values():
            code = node.process.poll()
            state = "runs" if code is None else f"ended with exit code {code}"
            failure.add_note(f"--- node {node.name} ({node.id}) {state} and said:\n{node.said}")


class FreshNodes(Nodes):
    """Nodes that are fresh interpreters on this machine, for tests that measure their memory."""

    def _process(self, name: str, order: str, options: _Options) -> subprocess.Popen[bytes]:
        assert self._net is None, name
        return subprocess.Popen([*COMMAND, order], stdin=subprocess.DEVNULL, **options)  # noqa: S603 - our own command
