"""Cost of the overlay: routes between brokers, legs and events beside the same messages by gossip, and modulators.

*Routes*: brokers on a square, each with its six nearest as neighbours, are all in the tables of one of them; an entry
changes, and the path to every broker is looked up again. The goal is a time on the machine at hand.

*Legs*: a message of 1,000 bytes goes over two hops, from the first of three brokers in a line to the last. As a leg,
the broker between passes it on: three messages are made, stored and acknowledged, and with signatures the last broker
and the one between check two each. By gossip one message is made, and the host between carries it. The CPU time of all
three hosts counts, publication and acknowledgements included. *Alone*: each message is published when the last came;
*together*: several at once, so that gossip shares its steps among them.

*Events*: the same for an event over three hops, from its producer over both homes to its consumer: four messages are
made, three are acknowledged.

*Calls* (`--calls`, which prints nothing else): function calls of Python and C for such an event, without signatures,
beside those for a message by gossip. Other work on the machine does not change them.

*Relocations*: a seat with 1,000 bytes of state moves from a broker to its neighbour, beside a leg over that hop alone.
Five seconds count, with what hosts do in any case.

*Modulators*: what a broker does around the function of a named modulator, beside that function alone.

*Modules*, where wasmtime is installed: an event of 100 bytes beside a bare call of wasmtime with the same bytes in and
out; the runoff of the flood watch beside the same in Python; the latency of messages while modules are compiled; a busy
seat beside 255 idle ones.

*Control*: bytes of the messages by which brokers and clients keep channels going, apart from events and results, per
broker and hour. Four brokers in a line have a given number of clients, all of them consumers and some of them
producers, each on a node of its own. An event is sent every minute. Messages by which clients come do not count.

*Walkers* (`--walkers SECONDS`): CPU time of `scenarios/overlay.toml`, which has brokers alone, and of
`scenarios/overlay_clients.toml`, each beside the same scenario without overlay.

Run: carrypost bench overlay [--quick] [--strict] [--json] [--messages N] [--repeats N] [--walkers SECONDS] [--calls]
"""

from __future__ import annotations

import cProfile
import math
import random
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path

from benchmarks._line import message_us, relocation_us

from benchmarks import _control, _modules, _report
from carrypost.config import Limits
from carrypost.emu import run
from carrypost.emu.scenario import Scenario
from carrypost.gossip.holdings.copies import Copy
from carrypost.model.descriptor import Descriptor, PayloadCodec
from carrypost.model.headers import Headers
from carrypost.model.ids import NodeId, node_prefix
from carrypost.overlay.items import Entry
from carrypost.overlay.modulators import programs
from carrypost.overlay.modulators.modulator import Modulator
from carrypost.overlay.modulators.registry import Event, Result, modulator
from carrypost.overlay.processing import Processing, SeatRow
from carrypost.overlay.tables import BrokerInfo, Brokers, TopologyTable
from carrypost.overlay.topology import Routes

ROUTES_GOALS_MS = {40: 1.0, 256: 10.0}
"""Time in which all paths are found anew, by number of brokers."""
GOSSIP_GOALS = {"off": 2.0, "signed": 2.5}
"""CPU time of a leg or an event, by that of the same message by gossip over as many hops."""
HOPS = {"leg": 2, "event": 3}
RELOCATION_GOAL = 15.0
"""Largest CPU time of a relocation, in units of one leg."""
MODULATOR_GOAL_US = 10.0
"""Time that a named modulator takes above its function."""
WALKERS_GOALS = {"overlay.toml": 1.5, "overlay_clients.toml": 2.5}
"""CPU time of walking nodes, by that of the same without overlay."""
TOGETHER = (1, 20)
CALLS_GOALS = {1: 2.0, 20: 2.2}
"""Function calls of an event, by those of a message by gossip, by the number published at once."""
SCENARIOS = Path(__file__).resolve().parents[1] / "scenarios"
_BYTES, _NEIGHBOURS = 1_000, 6


def overlay(count: int, seed: int = 1) -> tuple[TopologyTable[Entry], Brokers, list[bytes]]:
    """Return the tables of one broker among `count`, each with the nearest as neighbours, and the names of all."""
    rng = random.Random(seed)
    places = {NodeId(f"n{number}"): complex(rng.random(), rng.random()) for number in range(count)}
    own = next(iter(places))
    table, brokers = TopologyTable[Entry](node_prefix(own), count), Brokers(own, count)
    for node in places:
        if node != own:
            brokers.put(BrokerInfo(node, node_prefix(node), 1, 0, 1), ())
    for node, here in places.items():
        near = sorted((abs(there - here), other) for other, there in places.items() if other != node)[:_NEIGHBOURS]
        links = sorted((node_prefix(other), 1 + math.ceil(10 * away)) for away, other in near)
        table.put(Entry(node_prefix(node), 1, 0, tuple(links)), brokers)
    return table, brokers, [node_prefix(node) for node in places]


def routes(count: int, repeats: int) -> dict[str, object]:
    """Return how long it takes to find all paths after a change, in the median."""
    table, brokers, names = overlay(count)
    own, *others = names
    found = Routes(own, table, brokers)
    times_ms: list[float] = []
    lengths: list[int] = []
    for number in range(repeats):
        entry = table.get(others[number % len(others)])
        assert entry is not None
        table.put(entry._replace(version=entry.version + 1), brokers)
        began = time.process_time()
        ways = [found.way(each) for each in others]
        times_ms.append((time.process_time() - began) * 1e3)
        lengths = [len(way.path) for way in ways if way is not None]
    median_ms, goal = statistics.median(times_ms), ROUTES_GOALS_MS[count]
    return {
        "brokers": count, "reached": len(lengths), "longest path": max(lengths, default=0), "repeats": repeats,
        "median ms": median_ms, "goal": goal, "met": median_ms <= goal,
    }  # fmt: skip


def beside_gossip(kind: str, messages: int, repeats: int) -> Iterator[dict[str, object]]:
    """Rows of the table of legs or events: both ways in turn, medians."""
    rng = random.Random(1)
    payloads = [rng.randbytes(_BYTES) for _ in range(messages)]
    for security, goal in GOSSIP_GOALS.items():
        for together in TOGETHER:
            spent: dict[str, list[float]] = {kind: [], "gossip": []}
            for _ in range(repeats):
                for each, times_us in spent.items():
                    times_us.append(message_us(each, payloads, security, together=together, hops=HOPS[kind]))
            own_us, gossip_us = statistics.median(spent[kind]), statistics.median(spent["gossip"])
            times = own_us / gossip_us
            yield {
                "security": security, "published": "alone" if together == 1 else f"{together} together",
                "messages": messages, "repeats": repeats, f"{kind} µs": own_us, "gossip µs": gossip_us, "times": times,
                "goal": goal, "met": times <= goal,
            }  # fmt: skip


def calls(messages: int) -> Iterator[dict[str, object]]:
    """Rows of the table of calls."""
    rng = random.Random(1)
    payloads = [rng.randbytes(_BYTES) for _ in range(messages)]
    for together, goal in CALLS_GOALS.items():
        event, gossip = (_calls(kind, payloads, together) for kind in ("event", "gossip"))
        yield {
            "published": "alone" if together == 1 else f"{together} together", "messages": messages,
            "event calls": round(event), "gossip calls": round(gossip), "times": event / gossip,
            "goal": goal, "met": event / gossip <= goal,
        }  # fmt: skip


def _calls(kind: str, payloads: Sequence[bytes], together: int) -> float:
    """Return the function calls of all hosts together for one message over three hops."""
    profile = cProfile.Profile()

    def clock_s() -> float:
        profile.disable()
        count = sum(each.callcount for each in profile.getstats())
        profile.enable()
        return count / 1e6

    try:
        return message_us(kind, payloads, "off", together=together, hops=HOPS["event"], clock_s=clock_s)
    finally:
        profile.disable()


@modulator("benchmark-count", payload=True)
class Count:
    """A modulator that counts events, lets them pass, and has 1,000 bytes of state."""

    def __init__(self) -> None:
        self._count = 0

    def process(self, event: Event) -> list[Event | Result]:
        """Let an event pass."""
        self._count += 1
        return [event]

    def save(self) -> bytes:
        """Return the count."""
        return self._count.to_bytes(_BYTES, "big")

    def load(self, state: bytes) -> None:
        """Go on with a count."""
        self._count = int.from_bytes(state, "big")


def relocations(count: int, repeats: int) -> Iterator[dict[str, object]]:
    """Rows of the table of relocations: relocations and legs in turn, medians."""
    payloads = [bytes(_BYTES)] * count
    for security in GOSSIP_GOALS:
        moved: list[float] = []
        passed: list[float] = []
        for _ in range(repeats):
            moved.append(relocation_us(security, count, Modulator.named("benchmark-count")))
            passed.append(message_us("leg", payloads, security, together=1, hops=1))
        move_us, leg_us = statistics.median(moved), statistics.median(passed)
        times = move_us / leg_us
        yield {
            "security": security, "relocations": count, "repeats": repeats, "relocation µs": move_us, "leg µs": leg_us,
            "times": times, "goal": RELOCATION_GOAL, "met": times <= RELOCATION_GOAL,
        }  # fmt: skip


def modulators(repeats: int, events: int) -> dict[str, object]:
    """Return how long a seat takes for an event with a named modulator, above its function, in the median of rounds."""
    payload, function = bytes(_BYTES), Count()
    descriptor = Descriptor(
        "p", 1, 1, 0, None, "channel/x", _BYTES, _BYTES, PayloadCodec.PLAIN, b"", 1_024, headers=Headers(event=1)
    )
    copy, event, row = Copy(0, 0, descriptor, descriptor.id), Event(payload), SeatRow(1, 0, {"p": 0})
    seats = [Processing(each, Limits()) for each in (Modulator.named("benchmark-count"), None)]
    named, plain = (partial(each.step, row, copy, payload, "results/c/1", 0) for each in seats)
    median_us = {
        run: statistics.median([_each_us(run, events) for _ in range(repeats)])
        for run in (named, plain, partial(function.process, event), function.save)
    }
    named_us, *others_us = median_us.values()
    above_us = named_us - sum(others_us)
    return {
        "events": events, "repeats": repeats, "with it µs": named_us, "without it µs": others_us[0],
        "its function µs": sum(others_us[1:]), "above µs": above_us,
        "goal": MODULATOR_GOAL_US, "met": above_us <= MODULATOR_GOAL_US,
    }  # fmt: skip


def _each_us(run: Callable[[], object], count: int) -> float:
    began_s = time.process_time()
    for _ in range(count):
        run()
    return (time.process_time() - began_s) / count * 1e6


def walkers(duration_s: int) -> Iterator[dict[str, object]]:
    """Rows of the table of walkers: CPU seconds of a scenario, and of the same without overlay."""
    for name, goal in WALKERS_GOALS.items():
        text = (SCENARIOS / name).read_text(encoding="utf-8")
        spent_s, without_s = (_walk_s(each, duration_s) for each in (text, text.partition("[settings.overlay]")[0]))
        times = spent_s / without_s
        yield {
            "scenario": name, "seconds": duration_s, "CPU s": spent_s, "without overlay CPU s": without_s,
            "times": times, "goal": goal, "met": times <= goal,
        }  # fmt: skip


def _walk_s(scenario: str, duration_s: int) -> float:
    began_s = time.process_time()
    run(Scenario.parse(scenario.replace("duration_s = 600", f"duration_s = {duration_s}")))
    return time.process_time() - began_s


def main(argv: Sequence[str]) -> int:
    """Print the tables; 1 if the goals are to be met and are missed."""
    parser = _report.parser("overlay", str(__doc__).split("\n\n", maxsplit=1)[0], "--repeats 3 --strict")
    parser.add_argument("--quick", action="store_true", help="20 messages, once, in a few seconds")
    parser.add_argument("--messages", type=_report.positive, default=200, metavar="N", help="messages of a round")
    parser.add_argument("--repeats", type=_report.positive, default=5, metavar="N", help="rounds of each kind")
    parser.add_argument("--walkers", type=_report.positive, metavar="SECONDS", help="also emulate so long")
    parser.add_argument("--calls", action="store_true", help="count the function calls of events, and nothing else")
    parser.add_argument("--strict", action="store_true", help="exit with 1 if a goal is missed")
    given = parser.parse_args(argv)
    messages, repeats = (20, 1) if given.quick else (given.messages, given.repeats)
    if given.calls:
        counted = list(calls(messages))
        _report.show("Calls: functions called for an event over both homes, and by gossip", counted, json=given.json)
        return 1 if given.strict and not all(row["met"] for row in counted) else 0
    found = [routes(count, repeats if given.quick else max(11, repeats)) for count in ROUTES_GOALS_MS]
    _report.show("Routes: all paths of one broker, found anew", found, json=given.json)
    passed = list(beside_gossip("leg", messages, repeats))
    _report.show("Legs: a message over two hops, as a leg and by gossip", passed, json=given.json)
    emitted = list(beside_gossip("event", messages, repeats))
    _report.show("Events: an event over both homes, three hops, and by gossip", emitted, json=given.json)
    moved = list(relocations(max(2, messages // 10), repeats))
    _report.show("Relocations: a seat with 1,000 bytes of state, and one leg", moved, json=given.json)
    modulated = [modulators(max(5, repeats), 100 if given.quick else 2_000)]
    _report.show("Modulators: an event at a seat, with a named modulator", modulated, json=given.json)
    counts = {"one": (1, 10)} if given.quick else _control.CLIENTS
    said = [row for which, clients in counts.items() for row in _control.rows(300, which, clients)]
    _report.show("Control: bytes that keep channels going, per broker and hour", said, json=given.json)
    compiled = _modules.show(repeats, quick=given.quick, json=given.json) if programs.is_installed() else []
    walked = [] if given.walkers is None else list(walkers(given.walkers))
    if walked:
        _report.show("Walkers: nodes that walk, with overlay and without", walked, json=given.json)
    rows = [*found, *passed, *emitted, *moved, *modulated, *said, *compiled, *walked]
    return 1 if given.strict and not all(row["met"] for row in rows) else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
