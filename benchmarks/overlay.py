"""Cost of the overlay: routes between brokers, and a leg beside the same message by gossip.

*Routes*: brokers on a square, each with its six nearest as neighbours, are all in the tables of one of them; an entry
changes, and the path to every broker is looked up again. The goal is a time on the machine at hand.

*Legs*: a message of 1,000 bytes goes over two hops, from the first of three brokers in a line to the last. As a leg,
the broker between passes it on: three messages are made, stored and acknowledged, and with signatures the last broker
and the one between check two each. By gossip one message is made, and the host between carries it. The CPU time of all
three hosts counts, publication and acknowledgements included. *Alone*: each message is published when the last came;
*together*: so many at once, so that gossip shares its steps among them.

Run: carrypost bench overlay [--quick] [--strict] [--json] [--messages N] [--repeats N]
"""

from __future__ import annotations

import math
import random
import statistics
import sys
import time
from collections.abc import Iterator, Sequence

from benchmarks import _report
from benchmarks._line import message_us

from carrypost.model.ids import NodeId, node_prefix
from carrypost.overlay.items import Entry
from carrypost.overlay.tables import BrokerInfo, Brokers, Routes, TopologyTable

ROUTES_GOALS_MS = {40: 1.0, 256: 10.0}
"""Time in which all paths are found anew, by number of brokers."""
LEG_GOALS = {"off": 2.0, "signed": 2.5}
"""CPU time of a leg, by that of the same message by gossip over as many hops."""
TOGETHER = (1, 20)
_BYTES, _NEIGHBOURS = 1_000, 6


def overlay(count: int, seed: int = 1) -> tuple[TopologyTable[Entry], Brokers, list[bytes]]:
    """Return the tables of one broker among so many, each with the nearest as neighbours, and the names of all."""
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


def legs(messages: int, repeats: int) -> Iterator[dict[str, object]]:
    """Rows of the table of legs: both ways in turn, medians."""
    rng = random.Random(1)
    payloads = [rng.randbytes(_BYTES) for _ in range(messages)]
    for security, goal in LEG_GOALS.items():
        for together in TOGETHER:
            spent: dict[str, list[float]] = {"leg": [], "gossip": []}
            for _ in range(repeats):
                for kind, times_us in spent.items():
                    times_us.append(message_us(kind, payloads, security, together=together))
            leg_us, gossip_us = statistics.median(spent["leg"]), statistics.median(spent["gossip"])
            times = leg_us / gossip_us
            yield {
                "security": security, "published": "alone" if together == 1 else f"{together} together",
                "messages": messages, "repeats": repeats, "leg µs": leg_us, "gossip µs": gossip_us, "times": times,
                "goal": goal, "met": times <= goal,
            }  # fmt: skip


def main(argv: Sequence[str]) -> int:
    """Print the tables; 1 if the goals are to be met and are missed."""
    parser = _report.parser("overlay", str(__doc__).split("\n\n", maxsplit=1)[0], "--repeats 3 --strict")
    parser.add_argument("--quick", action="store_true", help="20 messages, once, in a few seconds")
    parser.add_argument("--messages", type=_report.positive, default=200, metavar="N", help="messages of a round")
    parser.add_argument("--repeats", type=_report.positive, default=5, metavar="N", help="rounds of each kind")
    parser.add_argument("--strict", action="store_true", help="exit with 1 if a goal is missed")
    given = parser.parse_args(argv)
    messages, repeats = (20, 1) if given.quick else (given.messages, given.repeats)
    found = [routes(count, max(11, repeats)) for count in ROUTES_GOALS_MS]
    _report.show("Routes: all paths of one broker, found anew", found, json=given.json)
    passed = list(legs(messages, repeats))
    _report.show("Legs: a message over two hops, as a leg and by gossip", passed, json=given.json)
    return 1 if given.strict and not all(row["met"] for row in (*found, *passed)) else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
