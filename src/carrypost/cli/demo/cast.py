"""The nodes of the demonstration: processes of their own on loopback, and who of them is in reach of whom.

Every node has a place. Nodes at one place hear each other: their gates let each other's datagrams in, and nobody
else's. Nodes at `ALONE` hear nobody. A process that ends although nobody asked it to makes `died` fail. The stdin of
each process is a pipe that closes with the demonstration, however that ends, and then the node ends, too.
"""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import sys
from collections import Counter
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec

from carrypost import ConnectionFactory, Context
from carrypost.attach.client import Client
from carrypost.cli._settings import NodeCommand
from carrypost.errors import CarrypostError, NodeError

HILL, LAKE = "Hill", "Lake"
ALONE = ""
"""Place of nodes that are out of reach of all others, and of each other."""
_START_S = 60.0
_LEAVE_S = 2.0
_END_S = 5.0
_ANSWER_S = 10.0
_SETTINGS = {
    "udp.interfaces": ["lo", "lo0"],
    "udp.ipv6_multicast": False,
    "udp.hear": list[str](),
    "announce_s_min": 0.1,
    "announce_s_max": 0.25,
    "record.sample_s": 0.15,  # Also how often rows are written.
    "record.rotate_s": 86_400,
}
_ENVIRONMENT = {name: value for name, value in os.environ.items() if not name.startswith("CARRYPOST_")}
"""Environment without the settings of the user's own node."""


class Actor:
    """One node: its process, a connection for questions, and the context of the program that uses it."""

    def __init__(self, name: str, settings: Mapping[str, object], place: str) -> None:
        self.name = name
        self.settings = settings
        self.place = place
        self.id = ""
        self.addresses: list[str] = []
        self.sent: Counter[str] = Counter()
        """Datagrams and bytes that earlier lives of the node sent."""
        self._process: asyncio.subprocess.Process | None = None
        self._control: Path | None = None
        self._client: Client | None = None
        self._context: Context | None = None

    @property
    def process(self) -> asyncio.subprocess.Process:
        """Process of the node."""
        assert self._process is not None
        return self._process

    @property
    def runs(self) -> bool:
        """True while the process runs."""
        return self._process is not None and self._process.returncode is None

    @property
    def is_ready(self) -> bool:
        """True once the node has said that it is ready."""
        return self._context is not None

    @property
    def client(self) -> Client:
        """Connection for questions."""
        assert self._client is not None
        return self._client

    @property
    def context(self) -> Context:
        """Context of the program on this node."""
        assert self._context is not None
        return self._context

    async def begin(self, folder: Path, log: Path) -> None:
        """Start the process, and wait until it is ready; raise `NodeError` if it does not start."""
        changes = tuple(f"{name}={msgspec.json.encode(value).decode()}" for name, value in self.settings.items())
        command = NodeCommand(config=None, data=str(folder), changes=changes, json=True, verbose=False, until_eof=True)
        with log.open("ab") as stderr:
            # In a group of its own, or Ctrl-C would end all nodes at once, before the demonstration has noticed.
            self._process = await asyncio.create_subprocess_exec(
                sys.executable, "-P", "-m", "carrypost.cli._process", msgspec.json.encode(command).decode(),
                stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, stderr=stderr,
                process_group=0, env=_ENVIRONMENT,
            )  # fmt: skip
        assert self._process.stdout is not None
        try:
            async with asyncio.timeout(_START_S):
                line = await self._process.stdout.readline()
        except TimeoutError:
            raise NodeError(f"the node of {self.name} did not start within {_START_S:.0f} s") from None
        if not line:
            await self._process.wait()
            raise NodeError(f"the node of {self.name} did not start: {_last_words(log)}")
        ready = msgspec.json.decode(line)
        self.id, self.addresses = ready["node"], ready["addresses"]
        self._control = Path(ready["control"])
        self._client = await Client.connect(self._control)
        # The demo ends nodes itself, and connects again when it has started them.
        factory = ConnectionFactory(f"unix:{self._control}", client_id=self.name, reconnect=False)
        self._context = await factory.create_context()

    async def count(self) -> Counter[str]:
        """Return how many datagrams and bytes this node has sent in all of its lives."""
        found: dict[str, Any] = (await self.client.status())["udp"]["counters"]
        return self.sent + Counter({"datagrams": found["sent"], "bytes": found["sent_bytes"]})

    async def leave(self) -> None:
        """Close the connections to the process."""
        for each in (self._context, self._client):
            if each is not None:
                with suppress(CarrypostError, TimeoutError):
                    async with asyncio.timeout(_LEAVE_S):
                        await each.close()
        self._context = self._client = None

    def send_signal(self, number: signal.Signals) -> None:
        """Send a signal to the process if it is there."""
        if self.runs:
            with suppress(ProcessLookupError):
                self.process.send_signal(number)

    async def ended(self) -> None:
        """Wait until the process has ended; end it by force if that takes too long."""
        if self._process is None:
            return
        try:
            async with asyncio.timeout(_END_S):
                await self._process.wait()
        except TimeoutError:
            self.send_signal(signal.SIGKILL)
            await self._process.wait()
        if self._control is not None:  # A node that was killed leaves it, perhaps outside of its folder.
            self._control.unlink(missing_ok=True)


class Cast:
    """All nodes, by name."""

    def __init__(
        self, folder: Path, record: Path, own: Mapping[str, Mapping[str, object]], homes: Mapping[str, str]
    ) -> None:
        self._folder = folder
        shared = {**_SETTINGS, "udp.port": free_port(socket.SOCK_DGRAM), "record.folder": str(record)}
        self.actors = {
            name: Actor(name, {**shared, **settings}, homes.get(name, ALONE)) for name, settings in own.items()
        }
        self.died: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        """Fails with a `NodeError` when a process has ended by itself."""
        self._watches: dict[str, asyncio.Task[None]] = {}

    def __getitem__(self, name: str) -> Actor:
        return self.actors[name]

    def folder_of(self, name: str) -> Path:
        """Return the folder of a node."""
        return self._folder / name

    @property
    def names(self) -> dict[str, str]:
        """Names of the nodes by their ids."""
        return {actor.id: name for name, actor in self.actors.items()}

    async def start(self, *names: str) -> None:
        """Start nodes that do not run, at the same time; raise `NodeError` if one of them does not start."""
        begun = [self.actors[name].begin(self.folder_of(name), self._log(name)) for name in names]
        for found in await asyncio.gather(*begun, return_exceptions=True):
            if isinstance(found, BaseException):
                raise found
        for name in names:
            self._watches[name] = asyncio.create_task(self._watch(self.actors[name]))
        await self.meet()

    async def _watch(self, actor: Actor) -> None:
        code = await actor.process.wait()
        if not self.died.done():
            words = _last_words(self._log(actor.name))
            self.died.set_exception(NodeError(f"the node of {actor.name} ended by itself (exit code {code}): {words}"))
            self.died.exception()  # It counts as seen: the demonstration may be at its end.

    async def meet(self, **places: str) -> None:
        """Move nodes to other places, and let all hear those that are at the same place."""
        for name, place in places.items():
            self.actors[name].place = place
        async with asyncio.timeout(_ANSWER_S):
            await asyncio.gather(*(actor.client.gate(self._in_reach(actor)) for actor in self.actors.values()))

    def _in_reach(self, actor: Actor) -> list[str]:
        others = (each for each in self.actors.values() if each is not actor and each.place == actor.place != ALONE)
        return [address for other in others for address in other.addresses]

    async def kill(self, name: str) -> int:
        """End a node by SIGKILL, and return the id of its process."""
        actor = self.actors[name]
        actor.sent = await actor.count()
        self._watches.pop(name).cancel()
        actor.send_signal(signal.SIGKILL)
        await actor.ended()
        await actor.leave()
        return actor.process.pid

    async def count(self) -> Counter[str]:
        """Return how many datagrams and bytes all nodes have sent."""
        async with asyncio.timeout(_ANSWER_S):
            return sum(await asyncio.gather(*(actor.count() for actor in self.actors.values())), Counter[str]())

    async def rows_lost(self) -> int:
        """Return how many rows of their records the nodes could not write."""
        async with asyncio.timeout(_ANSWER_S):
            found = await asyncio.gather(*(actor.client.status() for actor in self.actors.values()))
            return sum(status["record_rows_lost"] for status in found)

    async def close(self) -> None:
        """End all processes in order, within seconds. Idempotent."""
        for watch in self._watches.values():
            watch.cancel()
        await asyncio.gather(*(actor.leave() for actor in self.actors.values()))
        for actor in self.actors.values():
            actor.send_signal(signal.SIGTERM)
        await asyncio.gather(*(actor.ended() for actor in self.actors.values()))

    def _log(self, name: str) -> Path:
        return self._folder / f"{name}.log"


def free_port(kind: socket.SocketKind) -> int:
    """Return a port of loopback that no process has."""
    with socket.socket(socket.AF_INET, kind) as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _last_words(log: Path) -> str:
    """Return the last sentence that a node wrote to its log."""
    lines = log.read_text(encoding="utf-8", errors="replace").strip().splitlines()
    return lines[-1].removeprefix("carrypost: ") if lines else "it said nothing"
