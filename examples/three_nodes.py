"""Mail by bus, on real sockets: two programs with their nodes, a third node between them, contacts that come and go.

anna and carl are never in reach of each other; the bus carries. Each has its own key, its own folder and its own SQLite
file; they speak UDP over loopback. The nodes of anna and carl are inside this program, and hear nobody but the bus. The
bus is a `carrypost node`, and a gate in it says who is in reach. It is killed on its way (`kill -9`) and starts again
from its disk. Run it with ``python examples/three_nodes.py``.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import signal
import socket
import sys
import tempfile
import time
from pathlib import Path

from rich.console import Console
from rich.text import Text

from carrypost import ConnectionFactory, Context
from carrypost.node.control.client import Client

COLOURS = {"anna": "cyan", "bus": "yellow", "carl": "green"}
LETTER = "The bridge is closed, take the road by the mill."
PATIENCE_S = 30
LOOPBACK = ["lo", "lo0"]
ANNOUNCE_S = (0.3, 1.0)
BUS = """\
altruistic = true
announce_s_min = {}
announce_s_max = {}

[udp]
interfaces = {}
unicast_port = {}
hear = []
"""

console = Console(highlight=False, soft_wrap=True)
began_s = time.monotonic()


def say(who: str, what: str) -> None:
    """What a node does."""
    passed = Text(f"{time.monotonic() - began_s:6.2f} s   ", "dim")
    console.print(passed + Text(f"{who:<6}", f"bold {COLOURS[who]}") + Text(what))


def stage(what: str) -> None:
    """What happens around the nodes, and is not told to them."""
    console.print(Text(f"{time.monotonic() - began_s:6.2f} s   -- {what} --", "dim italic"))


def free_port() -> int:
    """A UDP port that nobody has."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class Phone:
    """A program's own node, which hears the bus alone."""

    def __init__(self, name: str, folder: Path, bus: str) -> None:
        self.port = free_port()
        least_s, most_s = ANNOUNCE_S
        self.factory = ConnectionFactory(
            data=folder / name, announce_s_min=least_s, announce_s_max=most_s,
            udp={"interfaces": LOOPBACK, "unicast_port": self.port, "hear": [bus]},
        )  # fmt: skip

    @property
    def address(self) -> str:
        """Address at which its node is reached."""
        return f"127.0.0.1:{self.port}"


class Bus:
    """A node process that carries for others, and a connection to its control socket."""

    def __init__(self, folder: Path) -> None:
        port = free_port()
        self.folder = folder / "bus"
        self.address = f"127.0.0.1:{port}"
        self.seen: set[str] = set()
        self.process: asyncio.subprocess.Process | None = None
        self.client: Client | None = None
        self.folder.mkdir()
        (self.folder / "node.toml").write_text(BUS.format(*ANNOUNCE_S, json.dumps(LOOPBACK), port))

    async def start(self) -> None:
        """Start the process, and connect to its control socket."""
        self.process = await asyncio.create_subprocess_exec(
            sys.executable, "-c", "from carrypost.cli import main; main()",
            "node", "--config", self.folder / "node.toml", "--data", self.folder / "data", "--json",
            stdout=asyncio.subprocess.PIPE,
        )  # fmt: skip
        assert self.process.stdout is not None
        ready = json.loads(await self.process.stdout.readline())
        self.client = await Client.connect(Path(ready["control"]))
        say("bus", f"process {ready['pid']}, node {ready['node'][:8]}…, at {self.address}")

    async def stop_at(self, *phones: Phone) -> None:
        """Let only these be in reach from now on, or nobody."""
        assert self.client is not None
        await self.client.gate(phone.address for phone in phones)

    async def watch(self, names: dict[str, str], neighbours: int) -> None:
        """Tell of contacts that it noticed or lost by itself, until it has so many neighbours."""
        assert self.client is not None
        async with asyncio.timeout(PATIENCE_S):
            while True:
                linked = {names[peer["node"]] for peer in await self.client.peers() if peer["state"] == "linked"}
                for name in sorted(linked - self.seen):
                    say("bus", f"sees {name}")
                for name in sorted(self.seen - linked):
                    say("bus", f"has lost sight of {name}")
                self.seen = linked
                if len(linked) == neighbours:
                    return
                await asyncio.sleep(0.05)

    async def end(self, number: signal.Signals) -> None:
        """End it by a signal. Ctrl-C, which all processes of a terminal get, may have ended it already."""
        if self.process is not None:
            with contextlib.suppress(ProcessLookupError):
                self.process.send_signal(number)
            await self.process.wait()
        if self.client is not None:
            await self.client.close()


async def play(here: Context, there: Context, anna: Phone, carl: Phone, bus: Bus) -> bool:
    """The bus meets anna, drives on, is killed, starts again and meets carl. Whether the letter arrived."""
    names: dict[str, str] = {here.node_id: "anna", there.node_id: "carl"}
    await bus.start()
    inbox = await there.create_consumer("topic/village.>")
    say("carl", "wants to hear of everything on village.>")
    sent = await here.send("topic/village.roads", LETTER, time_to_live=600)
    say("anna", f"sends {str(sent.message_id)[:11]}… to village.roads: on her disk, good for ten minutes")

    stage("the bus stops at anna's door")
    await bus.stop_at(anna)
    await bus.watch(names, neighbours=1)
    await sent.carried(timeout=PATIENCE_S)
    say("bus", "has the letter, and carries it")

    stage("the bus drives on; nobody is in reach of anybody")
    await bus.stop_at()
    await bus.watch(names, neighbours=0)

    say("bus", "has its power cut, and starts again from its disk")
    await bus.end(signal.SIGKILL)
    await bus.start()

    stage("the bus stops at carl's door")
    await bus.stop_at(carl)
    await bus.watch(names, neighbours=1)
    message = await inbox.receive(timeout=PATIENCE_S)
    if message is None:
        return False
    hops, author = message.get_int_property("JMS_carrypost_Hops"), str(message.get_string_property("JMSXUserID"))
    say("carl", f"gets {str(message.jms_message_id)[:11]}… over {hops} hops, signed by {author[:8]}…")
    say("carl", f"has read: {message.get_body(str)}")
    return message.jms_message_id == sent.message_id and author == here.node_id


async def main() -> int:
    """Run the scene; 0 if the letter arrived. SIGTERM ends it as Ctrl-C does: the nodes end, too."""
    program = asyncio.current_task()
    assert program is not None
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, program.cancel)
    console.print("Three nodes. anna and carl never meet; the bus carries for others.\n")
    with tempfile.TemporaryDirectory(prefix="carrypost-demo-") as name:
        folder = Path(name)
        bus = Bus(folder)
        anna, carl = (Phone(who, folder, bus.address) for who in ("anna", "carl"))
        async with anna.factory.create_context() as here, carl.factory.create_context() as there:
            try:
                arrived = await play(here, there, anna, carl, bus)
            finally:
                await bus.end(signal.SIGTERM)
    console.print("\nAll three have shut down cleanly; their folders are removed.")
    return 0 if arrived else 1


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt, asyncio.CancelledError):
        sys.exit(asyncio.run(main()))
    sys.exit("ended early; the nodes have ended, and their folders are removed")
