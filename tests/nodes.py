"""Real `carrypost node` processes for tests: started in a folder, and in a namespace if there is one, and always ended.

::

    async with Nodes(tmp_path, net, altruistic=True) as nodes:
        a, b = await nodes.start("a", "b", udp={"ipv6_multicast": False})
        await b.program.subscribe("news")
        await a.program.send("news", b"hello")
        message = await b.receive()

In each process is a program of the API (`program`, and further ones by `Program.connect`), and at its control socket a
connection for questions (`client`). Keywords are settings as in the TOML file, tables as dictionaries. A name is that
of a namespace and of a folder; a node that was ended and is started again finds its folder as it left it. When a test
fails, its report has what the nodes said; when it passes, every node still running has to end cleanly and must have
said nothing of an internal error.
"""

from __future__ import annotations

import asyncio
import functools
import itertools
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
from typing import Any, ParamSpec, Self, TypeVar

import msgspec
from tests import node_process
from tests.node_process import Received
from tools.netns import Net

from carrypost.cli._settings import NodeCommand
from carrypost.errors import NoNodeError
from carrypost.node.control.client import Client

PATIENCE_S = 30.0
"""How long something may take that ought to happen; a busy machine is not a fault."""
QUICK: Mapping[str, object] = {"announce_s_min": 0.2, "announce_s_max": 0.5}
_COMMAND = [sys.executable, "-c", "from tests.node_process import main; main()"]
"""What the command `carrypost node` becomes, with programs: to load the command line first would be a third of a start.
"""
_ROOT = Path(__file__).parents[1]
_SAID_BYTES_MAX = 8_000

P = ParamSpec("P")
T = TypeVar("T")


def scene(test: Callable[P, Coroutine[Any, Any, None]]) -> Callable[P, None]:
    """A test that is written as a coroutine."""

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


class Program:
    """A program in the process of a node; it acknowledges each message for itself."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer
        self._numbers = itertools.count()
        self._waiting: dict[int, asyncio.Future[Any]] = {}
        self._gone: NoNodeError | None = None
        self._listening = asyncio.create_task(self._listen())

    @classmethod
    async def connect(cls, control: str, client_id: str = "") -> Self:
        """Begin one on the node with this control socket."""
        reader, writer = await asyncio.open_unix_connection(node_process.api_path(Path(control)))
        writer.write(node_process.framed(client_id))
        return cls(reader, writer)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Let it close its context, and go."""
        self._writer.close()
        await self._listening

    async def _listen(self) -> None:
        try:
            while True:
                number, answer = await node_process.read(self._reader)
                waiting = self._waiting.pop(number)
                if waiting.done():
                    continue
                if isinstance(answer, Exception):
                    waiting.set_exception(answer)
                else:
                    waiting.set_result(answer)
        except (EOFError, ConnectionError):
            pass
        finally:
            self._gone = NoNodeError("the node is gone")
            for waiting in self._waiting.values():
                if not waiting.done():
                    waiting.set_exception(self._gone)

    async def _call(self, name: str, *args: object, **keywords: object) -> Any:  # noqa: ANN401 - as it answers
        if self._gone is not None:
            raise self._gone
        number = next(self._numbers)
        waiting = self._waiting[number] = asyncio.get_running_loop().create_future()
        self._writer.write(node_process.framed((number, name, args, keywords)))
        return await waiting

    async def send(self, topic: str, body: bytes, **keywords: object) -> str:
        """Send; returns the message's id."""
        return str(await self._call("send", topic, body, **keywords))

    async def subscribe(self, topic: str, **keywords: object) -> None:
        """Open its consumer."""
        await self._call("subscribe", topic, **keywords)

    async def receive(self, timeout_s: float | None = None) -> Received:
        """The next message; raises `TimeoutError`."""
        found = await self._call("receive", timeout_s)
        if found is None:
            raise TimeoutError(f"no message within {timeout_s} s")
        assert isinstance(found, Received)
        return found

    async def acknowledge(self, *messages: Received) -> None:
        """Acknowledge these; returns once that is durable."""
        await self._call("acknowledge", *(each.id for each in messages))


class Node:
    """One process, a connection to its control socket, and a program."""

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
        """The program that runs there as long as the test is connected."""
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
        """What it wrote to its log, or the end of that."""
        return (self.folder / "stderr").read_bytes()[-_SAID_BYTES_MAX:].decode(errors="replace")

    # --- at the socket ---------------------------------------------------------------------------------------------

    async def receive(self, patience_s: float = PATIENCE_S) -> Received:
        """The next message, acknowledged."""
        message = await self.program.receive(timeout_s=patience_s)
        await self.program.acknowledge(message)
        return message

    async def collect(self, count: int) -> list[Received]:
        """So many messages, each acknowledged."""
        return [await self.receive() for _ in range(count)]

    async def states(self) -> dict[str, str]:
        """Whom it hears: node ids and the states of the links."""
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
        """Let it stand still, as a machine that sleeps."""
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


async def _linked(node: Node, others: tuple[Node, ...]) -> bool:
    states = await node.states()
    return all(states.get(other.id) == "linked" for other in others)


class Nodes:
    """Nodes of one test, in folders below one, in the namespaces of a net or, without one, on this machine."""

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
        environment["PYTHONPATH"] = str(_ROOT)
        order = NodeCommand(config=str(file), data=None, changes=(), json=True, verbose=False)
        command = [*_COMMAND, msgspec.json.encode(order).decode()]
        with (folder / "stdout").open("wb") as stdout, (folder / "stderr").open("ab") as stderr:
            if self._net is not None:
                process = self._net.popen(name, command, stdout=stdout, stderr=stderr, env=environment)
            else:
                process = subprocess.Popen(  # noqa: S603 - our own command
                    command, stdin=subprocess.DEVNULL, stdout=stdout, stderr=stderr, env=environment
                )
        node = self._nodes[name] = Node(name, folder, process)
        return node

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
