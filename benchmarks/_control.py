"""Scene of control bytes: what brokers and their clients say to keep channels going, by the number of clients."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from carrypost import testing
from carrypost.log.events import Event, Published

LINEAR_GOAL = 1.1
"""Largest ratio of the cost of one more client to that cost with fewer clients."""
CLIENTS = {"one": (1, 50, 100, 500), "a tenth": (1, 50, 100)}
"""Numbers of clients, by how many of them are producers."""
_BROKERS = "ABCD"
_HOUR_S = 3_600


def rows(seconds: int, producers: str, counts: Sequence[int]) -> list[dict[str, object]]:
    """Return the rows of the table: bytes per broker and hour, and the cost of one more client, which must not rise."""
    found: list[dict[str, object]] = []
    fewer, less, before = 0, 0.0, 0.0
    for clients in counts:
        hourly = _bytes_per_hour(clients, clients if producers == "one" else 10, seconds)
        each = (hourly - less) / (clients - fewer)
        times = each / before if before else 1.0
        found.append({
            "producers": producers, "clients": clients, "seconds": seconds, "bytes per broker and hour": hourly,
            "bytes for one more": each, "times": times, "goal": LINEAR_GOAL, "met": times <= LINEAR_GOAL,
        })  # fmt: skip
        fewer, less, before = clients, hourly, each
    return found


def _bytes_per_hour(clients: int, every: int, seconds: int) -> float:
    """Give four brokers in a line clients, every `every`-th a producer, and let an event be sent every minute."""
    overlay = {"enabled": True}
    names = [f"c{number}" for number in range(clients)]
    producers = names[::every]
    sent = 0

    def count(_: float, __: str, event: Event) -> None:
        nonlocal sent
        if isinstance(event, Published):
            descriptor = event.descriptor
            headers = descriptor.headers
            if descriptor.destination.startswith("overlay/") and headers is not None and not headers.origin:
                sent += descriptor.wire_bytes + descriptor.length

    with testing.network(*names, seed=1, island=True, overlay=overlay, announce_s_max=60.0) as net:
        for name in _BROKERS:
            net.add(name, overlay=overlay | {"broker": True})
        for one, other in pairwise(_BROKERS):
            net.link(one, other)
        for number, name in enumerate(names):
            net.link(name, _BROKERS[number % len(_BROKERS)])
        net.advance(60)
        for name in producers:
            net.emit(name, "flood", b"")
        for name in names:
            net.consume(name, "flood")
        net.advance(60)
        net.watch(count)
        for at in range(seconds // 60):
            net.emit(producers[at % len(producers)], "flood", b"")
            net.advance(60)
    return sent / len(_BROKERS) * _HOUR_S / seconds
