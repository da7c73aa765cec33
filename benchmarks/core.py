"""The core of the network layer: exchange, control traffic, matching.

*Exchange*: messages transferred from one host to another per CPU second, both hosts in one process, bytes by reference,
beside the unavoidable work (the floor: encode, decode and, if signed, sign and verify each descriptor once).
*Receiving*: CPU time of the receiving host alone, without the verification of signatures. *Contacts*: datagrams and
bytes of a contact between two hosts that have many messages in common, and some new ones. *Cliques*: a message for all
hosts, which are all in reach of each other. *Matching*: see benchmarks/match.py.

Run: carrypost bench core [--quick] [--json]
"""

from __future__ import annotations

import gc
import os
import statistics
import sys
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import combinations

from benchmarks._pair import Meter, Pair

from benchmarks import _receiving, _report, match
from carrypost import testing
from carrypost.config import Settings
from carrypost.gossip.wire.frames import CARRYING, WIRE_KINDS, kind_of
from carrypost.gossip.wire.pieces import Blank
from carrypost.model import descriptor as descriptors
from carrypost.model.descriptor import Descriptor, PayloadCodec
from carrypost.security.identity import Identity, verify

SIZE_BYTES = 1_000
BODY = os.urandom(SIZE_BYTES)
DATA = tuple(kind_of(each) for each in CARRYING)
CONTROL = tuple(name for each in WIRE_KINDS if (name := kind_of(each)) not in (*DATA, "Announce"))
CONTACT_S = 20
CLIQUE_MESSAGES = 50
CLIQUE_PAUSE_S = 0.5

Row = Mapping[str, object]


def exchange_us(count: int, settings: Settings, payload: bytes | Blank) -> float:
    """CPU microseconds per message that goes from `a` to `b`, both sides together, publication not counted."""
    pair = Pair(settings)
    for side in (pair.a, pair.b):
        side.host.subscribe("news", now=0)
        side.drain(0)
    for _ in range(count):
        pair.a.host.publish("news", payload, now=0)
    pair.a.drain(0)
    gc.collect()
    began = time.process_time()
    pair.run(count)
    return (time.process_time() - began) / count * 1e6


def floor_us(count: int, *, signed: bool) -> float:
    """Return the CPU microseconds to encode, sign, decode and verify one descriptor."""
    identity = Identity.derived(1, "a") if signed else Identity.plain("a")
    root = bytes(32) if signed else b""
    began = time.process_time()
    for sequence in range(count):
        made = Descriptor(
            identity.author, 1, sequence, 0, None, "news", SIZE_BYTES, SIZE_BYTES, PayloadCodec.PLAIN, root, 1024
        )
        found = descriptors.decode(identity.sign(made).wire)
        if signed:
            verify(found)
    return (time.process_time() - began) / count * 1e6


def exchange_rows(count: int, repeats: int) -> list[Row]:
    """Messages per CPU second."""
    rows: list[Row] = []
    cases: list[tuple[str, str, bytes | Blank]] = [
        ("off", "blank", Blank(SIZE_BYTES)), ("off", "bytes", BODY), ("signed", "bytes", BODY),
    ]  # fmt: skip
    for security, name, payload in cases:
        settings = Settings.emulated(security=security)
        cost = _median(partial(exchange_us, count, settings, payload), repeats)
        floor = _median(partial(floor_us, count, signed=security == "signed"), repeats)
        rows.append(
            {
                "security": security,
                "payload": name,
                "messages": count,
                "median µs a message": cost,
                "messages/CPU s": 1e6 / cost,
                "floor µs": floor,
                "times floor": cost / floor,
            }
        )
    return rows


def _median(measured: Callable[[], float], repeats: int) -> float:
    return statistics.median(measured() for _ in range(repeats))


def contact(held: int, new: int) -> Meter:
    """Return the traffic of two hosts in one contact, when both hold `held` messages and `a` has `new` ones."""
    pair = Pair(Settings.emulated(cache_messages_max=100_000))
    for side in (pair.a, pair.b):
        side.host.subscribe("news", now=0)
    for number in range(held):
        pair.a.host.publish("news", b"old %d" % number, now=0)
    pair.run(held)
    pair.meet(CONTACT_S)
    pair.part(60)
    for number in range(new):
        pair.a.host.publish("news", b"new %d" % number, now=pair.now)
    pair.part(60)
    meter = pair.meet(CONTACT_S)
    assert pair.b.delivered == held + new
    return meter


def contact_rows(helds: Sequence[int]) -> list[Row]:
    """Return the cost of a contact, by the messages that are held and those that are new."""
    rows: list[Row] = []
    for held in helds:
        for new in (0, 1, 10, 100):
            meter = contact(held, new)
            control = _bytes(meter.frame_bytes, CONTROL)
            rows.append(
                {
                    "both hold": held,
                    "new": new,
                    "datagrams": meter.without_announcement,
                    "with announcements": meter.without_announcement + meter.mixed,
                    "control bytes": control,
                    "data bytes": _bytes(meter.frame_bytes, DATA),
                    "control bytes per new": control / new if new else None,
                }
            )
    return rows


def _bytes(counted: Counter[str], kinds: Sequence[str]) -> int:
    return sum(counted[kind] for kind in kinds)


def clique_rows(sizes: Sequence[int]) -> list[Row]:
    """Return the cost of a message that reaches all hosts of a clique."""
    return [_clique(size) for size in sizes]


def _clique(hosts: int) -> Row:
    names = [f"h{number:02}" for number in range(hosts)]
    with testing.network(*names, seed=1) as net:
        for name in names:
            net.subscribe(name, "news")
        for a, b in combinations(names, 2):
            net.link(a, b)
        net.advance(30)
        before = _sent(net, names)
        gc.collect()
        began = time.process_time()
        for _ in range(CLIQUE_MESSAGES):
            net.publish(names[0], "news", Blank(SIZE_BYTES))
            net.advance(CLIQUE_PAUSE_S)
        spent = time.process_time() - began
        receptions = sum(len(net.deliveries(name)) for name in names[1:])
        assert receptions == CLIQUE_MESSAGES * (hosts - 1)
        sent = _sent(net, names) - before
    return {
        "hosts": hosts,
        "receptions": receptions,
        "CPU µs per reception": spent / receptions * 1e6,
        "data bytes per reception": _bytes(sent, DATA) / receptions,
        "control bytes per reception": _bytes(sent, CONTROL) / receptions,
    }


def _sent(net: testing.Network, names: Sequence[str]) -> Counter[str]:
    return sum((net.sent(name).frame_bytes for name in names), Counter[str]())


def main(argv: Sequence[str]) -> int:
    """Print the tables."""
    parser = _report.parser("core", __doc__.split("\n\n")[0], "--quick --json")
    parser.add_argument("--quick", action="store_true", help="a small version, in a few seconds")
    options = parser.parse_args(argv)
    quick = options.quick
    show = partial(_report.show, json=options.json)
    count, repeats = (100, 1) if quick else (5_000, 5)
    show(
        f"Exchange: messages of {SIZE_BYTES:,} bytes, CPU time of both hosts together",
        exchange_rows(count, repeats),
    )
    show(
        "Receiving: CPU time of the receiving host alone, verification of signatures not counted",
        _receiving.rows(count // 5, repeats),
    )
    show(
        f'Contacts: {CONTACT_S} s, same profile, 1,200-byte datagrams; "datagrams" have no announcement in them, '
        '"with announcements" counts all but bare announcements; bytes are without announcements',
        contact_rows((0, 200) if quick else (0, 100, 1_000, 10_000)),
    )
    show(
        f"Cliques: {CLIQUE_MESSAGES} messages of {SIZE_BYTES:,} bytes by one host, {CLIQUE_PAUSE_S} s apart, to all "
        "others; CPU time with emulator and announcements, bytes as sent and without announcements",
        clique_rows((2, 5) if quick else (2, 5, 10, 20)),
    )
    match.tables(repeats, json=options.json, quick=quick)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
