"""Mail by bus: a message travels between two people who are never in range of each other.

Three hosts run the real protocol code in virtual time, so the two minutes of this scene take a moment. The
hosts discover each other by their beacons. Run it with ``python examples/three_hosts.py``.
"""

from __future__ import annotations

import sys
import time

from rich.console import Console
from rich.text import Text

from carrypost import testing

COLOURS = {"anna": "cyan", "bus": "yellow", "carl": "green"}
LETTER = "The bridge is closed, take the road by the mill."

console = Console(highlight=False, soft_wrap=True)


def say(t: float, node: str, what: str) -> None:
    """Print an action of a host."""
    console.print(Text(f"{t:7.2f} s   ", "dim") + Text(f"{node:<6}", f"bold {COLOURS[node]}") + Text(what))


def stage(t: float, what: str) -> None:
    """Print an event outside of the hosts."""
    console.print(Text(f"{t:7.2f} s   -- {what} --", "dim italic"))


def watch(t: float, node: str, event: testing.Event) -> None:
    """Print an event of a host."""
    match event:
        case testing.NeighbourUp():
            say(t, node, f"sees {event.node}")
        case testing.NeighbourDown():
            say(t, node, f"has lost sight of {event.node}")
        case testing.Received():
            for reception in event.receptions:
                what = f"gets '{reception.descriptor.shown}' from {event.peer}, hop {reception.hops}"
                say(t, node, what + ("" if node == "carl" else ", and carries it"))
        case testing.Delivered():
            for delivery in event.deliveries:
                say(t, node, f"gives '{delivery.descriptor.shown}' to the application")


async def scene() -> int:
    """Let the bus meet anna, drive on, and meet carl; return the number of letters that carl has."""
    async with testing.network("anna", "carl", seed=2) as net:
        net.add("bus", altruistic=True)
        net.watch(watch)

        say(net.now, "carl", "wants to hear of everything on village/*")
        net.subscribe("carl", "village/.*")
        say(net.now, "anna", f"publishes 'bridge' on village/roads: {len(LETTER)} bytes, good for ten minutes")
        net.publish("anna", "village/roads", LETTER.encode(), label="bridge", lifetime_s=600)
        await net.run(5)

        stage(net.now, "the bus stops at anna's door")
        net.link("anna", "bus")
        await net.run(20)

        stage(net.now, "the bus drives on; nobody is in reach of anybody")
        net.unlink("anna", "bus")
        await net.run(20)

        say(net.now, "bus", "has its power cut, and starts again from its disk")
        net.kill("bus")
        net.restart("bus")
        await net.run(20)

        stage(net.now, "the bus stops at carl's door")
        net.link("bus", "carl")
        await net.run(20)

        stage(net.now, "the bus drives on")
        net.unlink("bus", "carl")
        await net.run(35)

        for delivery in net.deliveries("carl"):
            say(net.now, "carl", f"has read: {delivery.payload.decode()}")
        sent = [net.sent(node) for node in ("anna", "bus", "carl")]
        datagrams, nbytes = sum(each.datagrams for each in sent), sum(each.bytes for each in sent)
        stage(net.now, f"{datagrams} datagrams, {nbytes:,} bytes, beacons included")
        return len(net.deliveries("carl"))


def main() -> int:
    """Run the scene; return 0 if the letter arrived."""
    console.print("Three hosts. anna and carl never meet; the bus carries for others.\n")
    began = time.perf_counter()
    letters = testing.run(scene)
    console.print(f"\nTwo virtual minutes took {time.perf_counter() - began:.2f} s.")
    return 0 if letters == 1 else 1


if __name__ == "__main__":
    sys.exit(main())
