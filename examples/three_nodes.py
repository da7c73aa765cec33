"""Mail by bus, on real sockets: three node processes on this machine, contacts that come and go.

anna and carl are never in reach of each other; the bus carries. Each is a `carrypost node` with its own key, its own
folder and its own SQLite file; they speak UDP over loopback, and a gate in each node says who is in reach. The bus is
killed on its way (`kill -9`) and starts again from its disk. Run it with ``python examples/three_nodes.py``.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import signal
import sys
import tempfile
import time
from pathlib import Path

from rich.console import Console
from rich.text import Text

from carrypost.node.control.client import Client

COLOURS = {"anna": "cyan", "bus": "yellow", "carl": "green"}
LETTER = "The bridge is closed, take the road by the mill."
PATIENCE_S = 30
SETTINGS = """\
altruistic = {altruistic}
announce_s_min = 0.3
announce_s_max = 1.0

[udp]
interfaces = ["lo", "lo0"]
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


class Phone:
    """One real node process, and a program that is connected to it."""

    def __init__(self, name: str, folder: Path, *, altruistic: bool = False) -> None:
        self.name = name
        self.folder = folder / name
        self.folder.mkdir()
        self.settings = self.folder / "node.toml"
        self.settings.write_text(SETTINGS.format(altruistic=str(altruistic).lower()))
        self.neighbours: set[str] = set()

    async def start(self) -> None:
        """Start the process, and connect to its control socket."""
        self.process = await asyncio.create_subprocess_exec(
            sys.executable, "-c", "from carrypost.cli import main; main()",
            "node", "--config", self.settings, "--data", self.folder / "data", "--json",
            stdout=asyncio.subprocess.PIPE,
        )  # fmt: skip
        assert self.process.stdout is not None
        ready = json.loads(await self.process.stdout.readline())
        self.node, self.addresses = ready["node"], ready["addresses"]
        self.client = await Client.connect(Path(ready["control"]))
        say(self.name, f"process {ready['pid']}, node {self.node[:8]}…, at {self.addresses[0]}")

    async def kill(self) -> None:
        """No notice, no farewell."""
        self.process.send_signal(signal.SIGKILL)
        await self.process.wait()
        await self.client.close()
        self.neighbours.clear()

    async def end(self) -> None:
        """Shut down cleanly. Ctrl-C, which all processes of a terminal get, may have ended the node already."""
        with contextlib.suppress(ProcessLookupError):
            self.process.terminate()
        await self.process.wait()
        if hasattr(self, "client"):
            await self.client.close()


class Scene:
    """Three nodes, and who is in reach of whom."""

    def __init__(self, folder: Path) -> None:
        self.anna, self.bus, self.carl = (
            Phone("anna", folder), Phone("bus", folder, altruistic=True), Phone("carl", folder),
        )  # fmt: skip
        self.phones = (self.anna, self.bus, self.carl)

    async def reach(self, *pair: Phone) -> None:
        """Only these two hear each other from now on; nobody does if there are none."""
        for phone in self.phones:
            others = [other for other in pair if other is not phone] if phone in pair else []
            await phone.client.gate(address for other in others for address in other.addresses)

    async def watch(self) -> None:
        """Tell of contacts that a node noticed or lost by itself."""
        names = {phone.node: phone.name for phone in self.phones}
        for phone in self.phones:
            linked = {names[peer["node"]] for peer in await phone.client.peers() if peer["state"] == "linked"}
            for other in sorted(linked - phone.neighbours):
                say(phone.name, f"sees {other}")
            for other in sorted(phone.neighbours - linked):
                say(phone.name, f"has lost sight of {other}")
            phone.neighbours = linked

    async def until(self, phone: Phone, *, messages: int | None = None, neighbours: int | None = None) -> None:
        """Watch until a node has so many messages, or so many neighbours."""
        async with asyncio.timeout(PATIENCE_S):
            while True:
                await self.watch()
                cache = (await phone.client.status())["cache"]
                if messages in (None, cache["messages"]) and neighbours in (None, len(phone.neighbours)):
                    return
                await asyncio.sleep(0.05)

    async def play(self) -> bool:
        """The bus meets anna, drives on, is killed, starts again and meets carl. Whether the letter arrived."""
        for phone in self.phones:
            await phone.start()
        await self.carl.client.subscribe("village/.*")
        say("carl", "wants to hear of everything on village/*")
        message = await self.anna.client.publish("village/roads", LETTER.encode(), persistent=True, lifetime_s=600)
        say("anna", f"publishes {message[:11]}… on village/roads: on her disk, good for ten minutes")

        stage("the bus stops at anna's door")
        await self.reach(self.anna, self.bus)
        await self.until(self.bus, messages=1)
        say("bus", "has the letter, and carries it")

        stage("the bus drives on; nobody is in reach of anybody")
        await self.reach()
        await self.until(self.anna, neighbours=0)

        say("bus", "has its power cut, and starts again from its disk")
        await self.bus.kill()
        await self.bus.start()

        stage("the bus stops at carl's door")
        await self.reach(self.bus, self.carl)
        watching = asyncio.create_task(self.until(self.carl, neighbours=1))
        delivery = await self.carl.client.next_delivery(PATIENCE_S)
        await watching
        say("carl", f"gets {delivery.message[:11]}… over {delivery.hops} hops, signed by {delivery.source[:8]}…")
        await self.carl.client.confirm(delivery)
        say("carl", f"has read: {delivery.payload.decode()}")
        return delivery.message == message and delivery.source == self.anna.node


async def main() -> int:
    """Run the scene; 0 if the letter arrived. SIGTERM ends it as Ctrl-C does: the nodes end, too."""
    program = asyncio.current_task()
    assert program is not None
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, program.cancel)
    console.print("Three nodes, three processes. anna and carl never meet; the bus carries for others.\n")
    with tempfile.TemporaryDirectory(prefix="carrypost-demo-") as folder:
        scene = Scene(Path(folder))
        try:
            arrived = await scene.play()
        finally:
            for phone in scene.phones:
                if hasattr(phone, "process"):
                    await phone.end()
    console.print("\nAll three have shut down cleanly; their folders are removed.")
    return 0 if arrived else 1


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt, asyncio.CancelledError):
        sys.exit(asyncio.run(main()))
    sys.exit("ended early; the nodes have ended, and their folders are removed")
