"""Cost of a node that has little to do: alone, and with neighbours and a message every three minutes (JOMS-15 §3.1).

Nodes have all settings at their defaults, and no program uses messaging. Each is in its own process (`_worker`) and
network namespace, on one link. *Alone*: CPU share and memory of a node that hears no other. *Neighbours*: traffic of
the interface of one node and its CPU time, per hour, in reach of others that want its messages. The hour is computed:
the cost of an interval without messages per second, and the additional cost of a message, measured at a shorter
interval. With `--full` messages come at their real interval, and the whole is measured at once. *Island*: CPU time of
idle nodes that are all in reach of each other, with `island` and without. Both groups run at the same time, each on its
own link.

Run: carrypost bench idle [--quick] [--json] [--seconds 60] [--full] [--only alone island]
"""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final

from benchmarks._processes import (
    BenchmarkError,
    Row,
    Worker,
    cpu_s,
    interface_counters,
    memory_bytes,
    say,
    scratch,
    settings_file,
    start,
    without_namespaces,
)

from benchmarks import _report
from tools import netns

NAMES: Final = ("a", "b", "c", "d", "e")
PARTS: Final = ("alone", "island")
ISLAND_CPU_MAX: Final = 1.1
"""Largest ratio of the CPU time with an island to that without."""
CPU_US_PER_S_MAX: Final = 1_000
"""CPU microseconds per second: a tenth of a per cent of one core."""
MEMORY_BYTES_MAX: Final = 45_000_000
EVERY_S: Final = 180.0
HOUR_S: Final = 3_600.0
SIZE_BYTES: Final = 1_000
DESTINATION: Final = "news"


@dataclass(frozen=True)
class Options:
    """The lengths of the measurements."""

    alone_s: float = 60.0
    idle_s: float = 30.0
    every_s: float = 10.0
    """Between messages."""
    messages: int = 4
    warm_up_s: float = 8.0
    neighbours: Sequence[int] = (0, 1, 4)
    island_s: float = 180.0
    settle_s: float = 30.0
    """After which announcements come at their longest period."""
    island_neighbours: int = 5


@dataclass(frozen=True)
class Cost:
    """The cost of a node so far, or in an interval."""

    seconds: float
    cpu_s: float
    sent: float
    sent_bytes: float
    received: float
    received_bytes: float

    def __sub__(self, other: Cost) -> Cost:
        return Cost(*(mine - its for mine, its in zip(self.values, other.values, strict=True)))

    def __add__(self, other: Cost) -> Cost:
        return Cost(*(mine + its for mine, its in zip(self.values, other.values, strict=True)))

    def times(self, factor: float) -> Cost:
        """Return the cost multiplied by this factor."""
        return Cost(*(value * factor for value in self.values))

    @property
    def values(self) -> tuple[float, ...]:
        """The figures in the order of the table's columns."""
        return self.seconds, self.cpu_s, self.sent, self.sent_bytes, self.received, self.received_bytes


class Scene:
    """One link, the node that is weighed, and its neighbours."""

    def __init__(self, net: netns.Net, folder: Path, names: Sequence[str] = NAMES, **settings: object) -> None:
        net.add(*names)
        self._net, self._folder, self._names, self._settings = net, folder, names, settings
        self._lan = net.switch(*names)
        self._nodes: list[Worker] = []

    def grow(self, neighbours: int) -> None:
        """Start nodes until there are this many neighbours, which subscribe, and confirm all deliveries."""
        while len(self._nodes) <= neighbours:
            name = self._names[len(self._nodes)]
            file = settings_file(self._folder / name, **self._settings)
            node = start(name, ["_worker.py", str(file)], net=self._net, namespace=name)
            self._nodes.append(node)
            node.answer()
            if len(self._nodes) > 1:
                node.ask("subscribe", pattern=DESTINATION)
        self._nodes[0].ask("linked", count=neighbours)

    @property
    def cpu_s(self) -> list[float]:
        """CPU seconds of each node so far."""
        return [node.cpu_s for node in self._nodes]

    @property
    def pid(self) -> int:
        """Process of the node that is weighed."""
        return self._nodes[0].process.pid

    def cost(self) -> Cost:
        """Return the cost so far."""
        found = interface_counters(self._net, self._lan.ends[self._names[0]])
        return Cost(
            time.monotonic(), cpu_s(self.pid), found["tx_packets"], found["tx_bytes"], found["rx_packets"],
            found["rx_bytes"],
        )  # fmt: skip

    def rest(self, seconds: float) -> Cost:
        """Return the cost of doing nothing for this long."""
        before = self.cost()
        time.sleep(seconds)
        return self.cost() - before

    def publish(self, messages: int, every_s: float) -> Cost:
        """Return the cost of publishing messages at an interval, including the interval after the last one."""
        before = self.cost()
        for _ in range(messages):
            self._nodes[0].ask("publish", size=SIZE_BYTES, count=1, destination=DESTINATION)
            time.sleep(every_s)
        return self.cost() - before

    def close(self) -> None:
        """End all nodes."""
        for node in self._nodes:
            node.end()


@contextlib.contextmanager
def scene(folder: Path) -> Iterator[Scene]:
    """Yield a link without nodes."""
    with netns.Net() as net:
        made = Scene(net, folder)
        try:
            yield made
        finally:
            made.close()


def alone_row(cost: Cost, pid: int) -> Row:
    """Return the cost of a node that hears no other."""
    share = cost.cpu_s / cost.seconds * 1e6
    memory, own = memory_bytes(pid)
    return {
        "seconds": cost.seconds,
        "CPU µs/s": share,
        "goal µs/s": CPU_US_PER_S_MAX,
        "CPU met": share < CPU_US_PER_S_MAX,
        "memory kB": memory // 1_000,
        "of it anonymous kB": own // 1_000,
        "goal kB": MEMORY_BYTES_MAX // 1_000,
        "memory met": memory < MEMORY_BYTES_MAX,
        "CPU s in 14.5 h": cost.cpu_s / cost.seconds * 14.5 * HOUR_S,
    }


def hour_row(neighbours: int, hour: Cost, message: Cost | None, memory: int) -> Row:
    """Return the cost of an hour."""
    return {
        "neighbours": neighbours,
        "sent": hour.sent,
        "sent kB": hour.sent_bytes / 1e3,
        "received": hour.received,
        "received kB": hour.received_bytes / 1e3,
        "CPU s": hour.cpu_s,
        "CPU µs/s": hour.cpu_s / HOUR_S * 1e6,
        "a message: datagrams": None if message is None else message.sent + message.received,
        "a message: bytes": None if message is None else message.sent_bytes + message.received_bytes,
        "a message: CPU ms": None if message is None else message.cpu_s * 1e3,
        "memory kB": memory // 1_000,
    }


def measure(folder: Path, options: Options, *, full: bool) -> tuple[list[Row], list[Row]]:
    """Return the rows of both tables."""
    hours: list[Row] = []
    alone: list[Row] = []
    with scene(folder) as link:
        for neighbours in options.neighbours:
            link.grow(neighbours)
            time.sleep(options.warm_up_s)
            idle_s = options.idle_s if neighbours else options.alone_s
            say(
                f"{neighbours} neighbours: {idle_s:g} s without, {options.messages * options.every_s:g} s with messages"
            )
            idle = link.rest(idle_s)
            if not neighbours:
                alone.append(alone_row(idle, link.pid))
            busy = link.publish(options.messages, options.every_s)
            memory, _ = memory_bytes(link.pid)
            if full:
                hours.append(hour_row(neighbours, busy.times(HOUR_S / busy.seconds), None, memory))
                continue
            message = (busy - idle.times(busy.seconds / idle.seconds)).times(1 / options.messages)
            hour = idle.times(HOUR_S / idle.seconds) + message.times(HOUR_S / EVERY_S)
            hours.append(hour_row(neighbours, hour, message, memory))
    return alone, hours


def measure_island(folder: Path, options: Options) -> list[Row]:
    """Return the rows about nodes with an island and without."""
    count = options.island_neighbours
    with netns.Net() as net, contextlib.ExitStack() as ending:
        scenes: dict[bool, Scene] = {}
        for island in (False, True):
            names = [f"{'with' if island else 'without'}{number}" for number in range(count + 1)]
            scenes[island] = Scene(net, folder, names, island=island)
            ending.callback(scenes[island].close)
            scenes[island].grow(count)
        say(f"{count} neighbours, with an island and without: {options.settle_s:g} s, then {options.island_s:g} s")
        time.sleep(options.settle_s)
        before = {island: made.cpu_s for island, made in scenes.items()}
        costs = {island: made.cost() for island, made in scenes.items()}
        time.sleep(options.island_s)
        after = {island: made.cpu_s for island, made in scenes.items()}
        costs = {island: made.cost() - costs[island] for island, made in scenes.items()}
    means = {island: (sum(after[island]) - sum(before[island])) / (count + 1) for island in scenes}
    return [
        {
            "island": str(island).lower(),
            "neighbours": count,
            "seconds": costs[island].seconds,
            "CPU µs/s a node": means[island] / options.island_s * 1e6,
            "bytes/s of a node": costs[island].sent_bytes / costs[island].seconds,
            "times": times,
            "goal": ISLAND_CPU_MAX if island else None,
            "met": times <= ISLAND_CPU_MAX,
        }
        for island in scenes
        for times in [means[island] / (means[False] or 1e-9)]  # In a moment a node may do nothing at all.
    ]


def main(argv: Sequence[str]) -> int:
    """Print the tables."""
    parser = _report.parser("idle", str(__doc__).split("\n\n", maxsplit=1)[0], "--seconds 300 --json")
    parser.add_argument("--quick", action="store_true", help="a second each, in a few seconds; says little about CPU")
    parser.add_argument("--seconds", type=float, default=60.0, metavar="S", help="how long a node alone is watched")
    parser.add_argument(
        "--full", action="store_true", help="a message every three minutes, three of them for each number of neighbours"
    )
    parser.add_argument("--only", nargs="+", choices=PARTS, default=PARTS, metavar="PART", help=", ".join(PARTS))
    given = parser.parse_args(argv)
    if given.seconds <= 0:
        parser.error("--seconds must be more than nothing")
    options = Options(alone_s=given.seconds)
    if given.full:
        options = Options(alone_s=given.seconds, every_s=EVERY_S, messages=3)
    if given.quick:
        options = Options(0.5, 0.5, 0.3, 2, 0.2, (0, 1), 0.5, 0.2, 1)
    if reason := without_namespaces("idle"):
        say(reason)
        return 1
    try:
        with scratch() as folder:
            alone, hours = measure(folder, options, full=given.full) if "alone" in given.only else ([], [])
            islands = measure_island(folder, options) if "island" in given.only else []
    except (netns.NetError, BenchmarkError) as error:
        say(f"carrypost bench idle: {error}")
        return 1
    show = partial(_report.show, json=given.json)
    if islands:
        show("Island: nodes with nothing to do that know whom they can reach, and without", islands)
    if not alone:
        return 0
    show(f"Alone: a node that hears nobody, for {options.alone_s:g} s", alone)
    way = "measured" if given.full else f"computed from {options.idle_s:g} s without and {options.messages} messages"
    show(
        f"Neighbours: an hour with a message of {SIZE_BYTES:,} bytes every {EVERY_S:g} s, {way}; datagrams and bytes "
        "at the interface, all protocols and headers",
        hours,
    )
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
