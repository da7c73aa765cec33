"""The price of knowing the island, beside OLSR over the same contacts, and the time until all hosts know of a change.

Hosts stand still, or walk at 1.5 m/s in straight lines between random points. They hear each other within 100 m, and
have about nine neighbours. *island* are the bytes of link states and records that a host sends per second;
*announcements* those of the beacons, which carry the heard-lists and are sent in any case. Beside them is the traffic
of OLSR over the same contacts (RFC 3626: HELLO every 2 s, TC every 5 s by selected hosts, forwarded by relays), with
the sizes of that document and without signatures. Headers of IP and UDP are not included.

*changes*: a link begins or ends. Time runs from the moment at which an end notices the change until the last host of
the island has the record in which that end reports it, or a later one. Changes that no end has to report do not count.

Run: carrypost bench island [--hosts N …] [--seconds S] [--quick] [--strict] [--json]
"""

from __future__ import annotations

import math
import random
import statistics
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from benchmarks import _report
from carrypost.emu.engine.network import Network
from carrypost.island.island import choose
from carrypost.island.links import Entry, Table
from carrypost.log.events import Event, NeighbourDown, NeighbourUp
from carrypost.model.ids import NodeId, node_prefix
from carrypost.testing import network

HOSTS = (32, 100, 200)
GOALS = {("still", "off"): 0.1, ("still", "signed"): 0.1, ("moving", "off"): 1.2, ("moving", "signed"): 3.0}
"""Bytes of the island by those of OLSR."""
CHANGE_GOALS_S = {0.0: 1.0, 0.1: 6.0}
"""Time within which 95 of 100 changes must be known to all hosts, by the loss of datagrams."""
_RANGE_M, _SPEED_M, _DEGREE = 100.0, 1.5, 9.0
_WARM_S, _STEP_S = 40, 1.0
_LOOK_S = 0.25
_SILENT_S = 6.0
"""Time after which a change that both ends noticed and did not report needs no report: a host reports after
`island_s_min` (5) at the latest."""
_HELLO_S, _TC_S = 2.0, 5.0
_PACKET, _MESSAGE, _HELLO, _LINKS, _TC, _ADDRESS = 4, 12, 4, 4, 4, 4
"""Bytes of headers: of a packet, a message, a HELLO, one list of neighbours in it, a TC; and of an address."""

Graph = dict[str, set[str]]


class Walkers:
    """Hosts that walk from point to point on a square."""

    def __init__(self, hosts: int, seed: int, *, speed_m: float) -> None:
        self._rng, self._speed_m = random.Random(seed), speed_m
        self._side_m = math.sqrt(hosts * math.pi * _RANGE_M**2 / _DEGREE)
        self.names = [f"n{number}" for number in range(hosts)]
        self._places = {name: self._point() for name in self.names}
        self._goals = {name: self._point() for name in self.names}

    def _point(self) -> complex:
        return complex(self._rng.uniform(0, self._side_m), self._rng.uniform(0, self._side_m))

    def walk(self) -> None:
        """Go on for a second."""
        for name, place in self._places.items():
            way = self._goals[name] - place
            if abs(way) <= self._speed_m:
                self._goals[name] = self._point()
            else:
                self._places[name] = place + way / abs(way) * self._speed_m

    def edges(self) -> set[tuple[str, str]]:
        """Return the pairs of hosts that hear each other."""
        places = list(self._places.items())
        return {
            (one, other)
            for at, (one, here) in enumerate(places)
            for other, there in places[at + 1 :]
            if abs(here - there) <= _RANGE_M
        }


def graph(names: Sequence[str], edges: set[tuple[str, str]]) -> Graph:
    """Return the neighbours of each."""
    found: Graph = {name: set() for name in names}
    for one, other in edges:
        found[one].add(other)
        found[other].add(one)
    return found


def olsr_bytes_per_s(neighbours: Graph) -> float:
    """Return what hosts with these neighbours send by OLSR in a second, all together."""
    relays = _relays(neighbours)
    selectors: Graph = {name: set() for name in neighbours}
    for name, chosen in relays.items():
        for each in chosen:
            selectors[each].add(name)
    total = 0.0
    for name, near in neighbours.items():
        lists = (len(relays[name]) > 0) + (len(near) > len(relays[name]))
        total += (_PACKET + _MESSAGE + _HELLO + _LINKS * lists + _ADDRESS * len(near)) / _HELLO_S
        if selectors[name]:
            size = _PACKET + _MESSAGE + _TC + _ADDRESS * len(selectors[name])
            total += size * _sent_by(name, neighbours, relays) / _TC_S
    return total


def _relays(neighbours: Graph) -> Graph:
    """Return the relays of each, chosen anew."""
    found: Graph = {}
    for name, near in neighbours.items():
        heard = {each.encode(): frozenset(one.encode() for one in neighbours[each]) for each in near}
        found[name] = {each.decode() for each in choose(name.encode(), heard)}
    return found


def _sent_by(origin: str, neighbours: Graph, relays: Graph) -> int:
    """Return how often a message is sent until all have it: by its origin, and by the relays of its senders."""
    known, border, sent = {origin}, [origin], 0
    while border:
        beyond: list[str] = []
        for name in border:
            sent += 1
            fresh = neighbours[name] - known
            known |= fresh
            beyond += [each for each in sorted(fresh) if each in relays[name]]
        border = beyond
    return sent


def _have(net: Network, before: set[tuple[str, str]], edges: set[tuple[str, str]]) -> None:
    for one, other in sorted(before - edges):
        net.unlink(one, other)
    for one, other in sorted(edges - before):
        net.link(one, other)


def _said(net: Network, names: Sequence[str]) -> tuple[int, int]:
    """Return the bytes of the island, and of announcements, that all have sent."""
    said = [net._radio.sent(name).frame_bytes for name in names]  # noqa: SLF001 - what a network does not tell
    return sum(each["LinkState"] + each["LinkRecord"] for each in said), sum(each["Announce"] for each in said)


def weigh(hosts: int, motion: str, security: str, seconds: int, seed: int = 1) -> dict[str, object]:
    """Return what hosts send in a second, beside OLSR."""
    walkers = Walkers(hosts, seed, speed_m=_SPEED_M if motion == "moving" else 0.0)
    edges: set[tuple[str, str]] = set()
    changes, olsr, begun = 0, 0.0, (0, 0)
    with network(*walkers.names, seed=seed, island=True, security=security) as net:
        for second in range(_WARM_S + seconds):
            if second == _WARM_S:
                begun = _said(net, walkers.names)
            before, edges = edges, walkers.edges()
            _have(net, before, edges)
            if second >= _WARM_S:
                changes += len(before ^ edges)
                olsr += olsr_bytes_per_s(graph(walkers.names, edges))
            net.advance(_STEP_S)
            if motion == "moving":
                walkers.walk()
        ended = _said(net, walkers.names)
    island, announcements = ((ended[at] - begun[at]) / hosts / seconds for at in (0, 1))
    times = island / (olsr / hosts / seconds)
    return {
        "hosts": hosts, "motion": motion, "security": security, "neighbours": 2 * len(edges) / hosts,
        "link changes a host and minute": 2 * changes / hosts / seconds * 60, "island B/s": island,
        "announcements B/s": announcements, "OLSR B/s": olsr / hosts / seconds, "times": times,
        "goal": GOALS[motion, security], "met": times <= GOALS[motion, security],
    }  # fmt: skip


@dataclass
class Change:
    """A link that begins or ends, and when its ends noticed."""

    ends: tuple[str, str]
    noticed_us: dict[str, int]


def know(hosts: int, loss: float, changes: int, seed: int = 1) -> dict[str, object]:
    """Return how long it takes until all know of a link that begins or ends."""
    walkers = Walkers(hosts, seed, speed_m=0.0)
    rng, edges = random.Random(seed), walkers.edges()
    times: list[float] = []
    silent = 0
    with network(*walkers.names, seed=seed, island=True, loss=loss) as net:
        watched: list[Change] = []

        def watch(now: float, node: str, event: Event) -> None:
            for each in watched[-1:]:
                if node in each.ends and isinstance(event, NeighbourUp | NeighbourDown):
                    other = each.ends[node == each.ends[0]]
                    if net.name(event.node) == other:
                        each.noticed_us.setdefault(node, round(now * 1e6))

        net.watch(watch)
        _have(net, set(), edges)
        net.advance(_WARM_S)
        down: list[tuple[str, str]] = []
        while len(times) + silent < changes:
            ends = down.pop() if down else rng.choice(sorted(edges))
            watched.append(Change(ends, {}))
            if net.linked(*ends):
                down.append(ends)
                net.unlink(*ends)
            else:
                net.link(*ends)
            found = _last(net, walkers.names, watched[-1])
            if found is None:
                silent += 1
            else:
                times.append(found)
            net.advance(10)
    times.sort()
    p95 = times[math.ceil(0.95 * len(times)) - 1] if times else 0.0
    return {
        "hosts": hosts, "loss": loss, "changes": len(times), "nothing to say": silent,
        "median s": statistics.median(times or [0.0]), "p95 s": p95, "longest s": max(times, default=0.0),
        "goal": CHANGE_GOALS_S[loss], "met": p95 <= CHANGE_GOALS_S[loss],
    }  # fmt: skip


def _last(net: Network, names: Sequence[str], change: Change) -> float | None:
    """Return how long it took until the last host had what the first end says that says something; None: none did."""
    tables = {name: _table(net, name) for name in names}
    ids = {end: net.host(end).node for end in change.ends}
    before = {end: _says(tables[end], ids, end) for end in change.ends}
    told: dict[str, Entry] = {}
    waited_s = 0.0
    while waited_s < _SILENT_S and not any(end in change.noticed_us for end in told):
        net.advance(_LOOK_S)
        waited_s += _LOOK_S if len(change.noticed_us) == len(change.ends) else 0.0
        for end in change.ends:
            own = tables[end].get(ids[end])
            if own is not None and end not in told and _says(tables[end], ids, end) != before[end]:
                told[end] = own
    author = next((end for end in change.noticed_us if end in told), None)
    if author is None:
        return None
    said, known_us = told[author], dict[str, int]()
    island = [name for name in names if author in {name, *net.reach(name)}]
    for _ in range(120):
        for name in island:
            entry = tables[name].get(said.node)
            if name not in known_us and entry is not None and not entry.is_before(said.record):
                known_us[name] = entry.since_us
        if len(known_us) == len(island):
            break
        net.advance(_LOOK_S)
    return (max(known_us.values()) - change.noticed_us[author]) / 1e6


def _table(net: Network, name: str) -> Table:
    island = net.host(name)._island  # noqa: SLF001 - what hosts know of each other
    assert island is not None
    return island.table


def _says(table: Table, ids: dict[str, NodeId], end: str) -> tuple[bool, bool]:
    """Return whether the record of an end of a link claims the other one, and whether it denies it."""
    entry = table.get(ids[end])
    other = next(node_prefix(node) for name, node in ids.items() if name != end)
    return (False, False) if entry is None else (other in entry.claimed, other in entry.denied)


def rows(hosts: Sequence[int], seconds: int) -> Iterator[dict[str, object]]:
    """Rows of the table of bytes."""
    for count in hosts:
        for motion in ("still", "moving"):
            for security in ("off", "signed"):
                yield weigh(count, motion, security, seconds)


def main(argv: Sequence[str]) -> int:
    """Print the tables; 1 if the goals are to be met and are missed."""
    parser = _report.parser("island", str(__doc__).split("\n\n", maxsplit=1)[0], "--hosts 32 100 --strict")
    parser.add_argument("--hosts", type=_report.positive, nargs="+", default=list(HOSTS), help="numbers of hosts")
    parser.add_argument("--seconds", type=_report.positive, default=60, help="virtual time that is measured")
    parser.add_argument("--changes", type=_report.positive, default=20, help="links that begin or end")
    parser.add_argument("--quick", action="store_true", help="8 hosts and a few changes, in a few seconds")
    parser.add_argument("--strict", action="store_true", help="exit with 1 if a goal is missed")
    given = parser.parse_args(argv)
    hosts, seconds, changes = ([8], 10, 4) if given.quick else (given.hosts, given.seconds, given.changes)
    weighed = list(rows(hosts, seconds))
    _report.show("Bytes: what a host sends in a second to know its island", weighed, json=given.json)
    known = [know(count, loss, changes) for count in hosts for loss in CHANGE_GOALS_S]
    _report.show("Changes: until all know of a link that begins or ends", known, json=given.json)
    return 1 if given.strict and not all(row["met"] for row in (*weighed, *known)) else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
