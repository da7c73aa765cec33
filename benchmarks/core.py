"""The core of the network layer: exchange, control traffic, matching.

Three tables. *Exchange*: messages that go from one host to another per CPU second, both hosts in one process, bytes by
reference, beside what cannot be avoided (the floor: encode, decode and, if signed, sign and verify each descriptor
once). *Contacts*: datagrams and bytes besides announcements of a contact between two hosts that share so many messages
while one of them has so many new ones. *Matching*: see benchmarks/match.py.

Run: carrypost bench core [--quick]
"""

from __future__ import annotations

import argparse
import gc
import os
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial

from benchmarks import match
from benchmarks._pair import Pair
from rich.console import Console
from rich.table import Table

from carrypost import testing
from carrypost.config import Settings
from carrypost.gossip.pieces import Blank
from carrypost.model import descriptor as descriptors
from carrypost.model.descriptor import Descriptor, PayloadCodec
from carrypost.security.identity import Identity, verify

SIZE_BYTES = 1_000
BODY = os.urandom(SIZE_BYTES)
CONTROL = ("Digest", "Offer", "Request", "Ack")


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
    """CPU microseconds to encode, sign, decode and verify one descriptor."""
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


def exchange_table(count: int, repeats: int) -> Table:
    """Messages per CPU second."""
    table = Table(title=f"Exchange: {count:,} messages of {SIZE_BYTES:,} bytes, CPU time of both hosts together")
    for column in ("security", "payload", "µs a message (median)", "messages/CPU s", "floor µs", "times floor"):
        table.add_column(column, justify="right")
    cases: list[tuple[str, str, bytes | Blank]] = [
        ("off", "blank", Blank(SIZE_BYTES)), ("off", "bytes", BODY), ("signed", "bytes", BODY),
    ]  # fmt: skip
    for security, name, payload in cases:
        settings = Settings.emulated(security=security)
        cost = _median(partial(exchange_us, count, settings, payload), repeats)
        floor = _median(partial(floor_us, count, signed=security == "signed"), repeats)
        table.add_row(security, name, f"{cost:.1f}", f"{1e6 / cost:,.0f}", f"{floor:.1f}", f"{cost / floor:.1f}")
    return table


def _median(measured: Callable[[], float], repeats: int) -> float:
    return statistics.median(measured() for _ in range(repeats))


def contact(held: int, new: int) -> tuple[int, int, int]:
    """Control datagrams and bytes, and data bytes, of one contact."""
    with testing.network("a", "b", seed=1, cache_messages_max=100_000) as net:
        for node in ("a", "b"):
            net.subscribe(node, "news")
        for number in range(held):
            net.publish("a", "news", b"old %d" % number)
        net.link("a", "b")
        while len(net.deliveries("b")) < held:
            net.advance(5)
        net.unlink("a", "b")
        net.advance(60)
        for number in range(new):
            net.publish("a", "news", b"new %d" % number)
        before = {node: net.sent(node).frame_bytes.copy() for node in "ab"}
        datagrams = {node: net.sent(node).datagrams for node in "ab"}
        announced = {node: net.sent(node).frames["Announce"] for node in "ab"}
        net.link("a", "b")
        net.advance(20)
        assert len(net.deliveries("b")) == held + new
        control = data = total = 0
        for node in "ab":
            spent = net.sent(node).frame_bytes - before[node]
            control += sum(spent[kind] for kind in CONTROL)
            data += spent["DescriptorPart"] + spent["Data"] + spent["HashList"]
            total += net.sent(node).datagrams - datagrams[node]
            total -= net.sent(node).frames["Announce"] - announced[node]
        return total, control, data


def contact_table(helds: Sequence[int]) -> Table:
    """What a contact costs, as a function of what is held and what is new."""
    table = Table(title="Contacts: same profile, 1,200-byte datagrams, announcements not counted")
    for column in ("both hold", "new", "datagrams", "control bytes", "data bytes", "control bytes per new"):
        table.add_column(column, justify="right")
    for held in helds:
        for new in (0, 1, 10, 100):
            datagrams, control, data = contact(held, new)
            per_new = f"{control / new:,.0f}" if new else "-"
            table.add_row(f"{held:,}", f"{new:,}", f"{datagrams:,}", f"{control:,}", f"{data:,}", per_new)
    return table


def main(argv: Sequence[str]) -> int:
    """Print the tables."""
    parser = argparse.ArgumentParser(prog="carrypost bench core", description=__doc__.split("\n\n")[0])
    parser.add_argument("--quick", action="store_true", help="a small version, in about ten seconds")
    options = parser.parse_args(argv)
    console = Console()
    console.print(exchange_table(*((1_000, 1) if options.quick else (5_000, 5))))
    console.print(contact_table((0, 1_000) if options.quick else (0, 100, 1_000, 10_000)))
    return match.main(["1" if options.quick else "5"])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
