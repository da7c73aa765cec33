"""Networks that split and merge again, and the reach of floods in them: an oracle for channels over partitions.

All nodes are connected for the first 10 s, so that brokers are known and clients have homes. Afterwards contacts are
random. An event travels to its producer's home, from there to the consumer's home, and its result to the consumer:
three floods, each of which begins when the previous one has arrived, and not before those of earlier events.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from typing import Any, NamedTuple

from tests.support.emulated import Rows, contacts, nodes
from tests.support.emulated import rows as rows_of

from carrypost.emu import Scenario
from carrypost.gossip.wire.pieces import Blank
from carrypost.overlay.modulators.registry import Event, Result, modulator

CONNECTED_S, END_S, PERIOD_S = 10.0, 3_610.0, 240.0
"""All nodes are connected, the end, and the period of events. Parts last longer than all that expires by itself."""
BROKERS, PRODUCERS, CONSUMERS, CARRIERS = "ABC", "pq", "xy", "mn"
NODES = BROKERS + PRODUCERS + CONSUMERS + CARRIERS
Contact = tuple[str, str, float, float]


@modulator("tally")
class Tally:
    """Make a result of each event that has as many bytes as there were events so far."""

    def __init__(self) -> None:
        self.count = 0

    def process(self, event: Event) -> list[Event | Result]:
        self.count += event is not None
        return [Result(Blank(self.count))]

    def save(self) -> bytes:
        return str(self.count).encode()

    def load(self, state: bytes) -> None:
        self.count = int(state)


def schedule(seed: int) -> list[Contact]:
    """Return contacts: a connected network, then parts that merge and are torn."""
    chance = random.Random(seed)
    others = PRODUCERS + CONSUMERS + CARRIERS
    order = [*BROKERS, *chance.sample(others, len(others))]
    edges = set(combinations(BROKERS, 2))  # Brokers tell each other of their clients only where they reach each other.
    edges |= {(chance.choice(order[:at]), order[at]) for at in range(len(BROKERS), len(order))}
    edges |= set(chance.sample(list(combinations(NODES, 2)), chance.randrange(8)))
    found = [(*sorted(edge), 0.0, CONNECTED_S) for edge in edges]
    density = chance.choice([0.1, 0.3, 1.0, 2.5])
    for one, other in combinations(NODES, 2):
        for _ in range(chance.choices(range(6), [6, 5 * density, 4 * density, 2 * density, 1, 1])[0]):
            start = CONNECTED_S + chance.randrange(60) * 60
            found.append((one, other, start, min(start + chance.choice([60, 60, 120, 360, 960]), END_S)))
    return merged(found)


def merged(found: Sequence[tuple[Any, ...]]) -> list[Contact]:
    """Return the same contacts without overlaps of one pair."""
    spans: dict[tuple[str, str], list[tuple[float, float]]] = {}
    for one, other, start, end in sorted(set(found)):
        before = spans.setdefault((one, other), [])
        if before and start <= before[-1][1]:
            before[-1] = before[-1][0], max(end, before[-1][1])
        else:
            before.append((start, end))
    return [(*pair, start, end) for pair, each in spans.items() for start, end in each]


class Delivery(NamedTuple):
    """An event whose result was delivered to a consumer."""

    t: float
    consumer: str
    producer: str
    event: int


@dataclass(frozen=True)
class Oracle:
    """Floods over contacts without delays. The oracle knows nothing of hosts except their homes."""

    contacts: Sequence[Contact]

    def arrival(self, source: str, target: str, t: float | None) -> float | None:
        """Return the time at which a flood from one node reaches another; None if it never does."""
        if t is None:
            return None
        times = {source: t}
        while True:
            before = dict(times)
            for one, other, start, end in self.contacts:
                for a, b in ((one, other), (other, one)):
                    at = max(times.get(a, END_S), start)
                    if at < min(end, times.get(b, END_S)):
                        times[b] = at
            if times == before:
                return times.get(target)

    def deliveries(
        self, events: Mapping[tuple[str, int], float], homes: Mapping[str, str], consumers: str
    ) -> list[Delivery]:
        """Return what consumers are given, and when."""
        found = []
        for consumer in consumers:
            seat = homes[consumer]
            made: list[tuple[float, str, int]] = []
            last: dict[str, float | None] = {}
            for (producer, number), t in sorted(events.items()):
                home = homes[producer]
                came, before = self.arrival(home, seat, self.arrival(producer, home, t)), last.get(producer, 0.0)
                last[producer] = None if came is None or before is None else max(came, before)
                if (at := last[producer]) is not None:
                    made.append((at, producer, number))
            given: float | None = 0.0
            for at, producer, number in sorted(made):
                came = self.arrival(seat, consumer, at)
                given = None if came is None or given is None else max(came, given)
                if given is not None:
                    found.append(Delivery(given, consumer, producer, number))
        return sorted(found)


SCENARIO = """
name = "partitions"
duration_s = {end}
sample_s = {end}
mode = "ideal"
[nodes]
file = "nodes.csv"
[contacts]
file = "contacts.csv"
[[nodes.group]]
name = "brokers"
names = ["A", "B", "C"]
[nodes.group.settings.overlay]
broker = true
[[nodes.group]]
name = "producers"
names = ["p", "q"]
[[nodes.group]]
name = "consumers"
names = ["x", "y"]
[[workload]]
kind = "channel"
topic = "flood"
producers = "producers"
consumers = "consumers"
modulator = "tally"
first_s = 6.5
period_s = {period}
size = 100
[settings]
island = true
altruistic = true
{settings}
[settings.overlay]
enabled = true
{overlay}
"""
FIXED = """homing = "static"
topology = "static"
paths = "direct"
gap_s = 86400
orphan_s = 86400
event_lifetime_s = 31536000
"""
"""Homes and paths that do not change, and nothing that is given up."""


def played(folder: Path, drawn: Sequence[Contact], *, settings: str, overlay: str, seed: int = 1) -> Rows:
    """Return the record of a run."""
    contacts(folder, *(",".join(map(str, each)) for each in drawn))
    nodes(folder, *(f"{node},0," for node in NODES))
    return rows_of(
        Scenario.parse(SCENARIO.format(end=END_S, period=PERIOD_S, settings=settings, overlay=overlay), folder), seed
    )


def emitted(rows: Rows) -> dict[tuple[str, int], float]:
    """Return when events were sent, by producer and number."""
    return {
        (row["node"], int(row["attrs"]["event"])): row["t"]
        for row in rows
        if row["kind"] == "publish" and "event" in row["attrs"]
    }


def homes(rows: Rows) -> dict[str, str]:
    """Return the home of each client; each must have exactly one."""
    found: dict[str, str] = {}
    for row in rows:
        if row["kind"] == "home":
            assert found.setdefault(row["node"], row["peer"]) == row["peer"]
    return found


def given(rows: Rows) -> tuple[list[Delivery], dict[str, list[int]]]:
    """Return the events that consumers were given, and the sizes of their results, in the order of delivery."""
    made = {row["message"]: row for row in rows if row["kind"] == "publish"}
    found, sizes = [], dict[str, list[int]]()
    for row in rows:
        if row["kind"] == "deliver" and "covers" in (of := made[row["message"]])["attrs"]:
            _, _, *runs = of["attrs"]["covers"].split()
            names = of["attrs"]["producers"].split()
            sizes.setdefault(row["node"], []).append(of["size"])
            for run in runs:
                at, span = run.split(":")
                after, upto = map(int, span.split("-"))
                found += [Delivery(row["t"], row["node"], names[int(at)], n) for n in range(after + 1, upto + 1)]
    return found, sizes
