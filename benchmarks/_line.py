"""Brokers in a line, joined by nothing, with the cheapest driver there can be: what `benchmarks._pair` is to two hosts.

A message goes from the first host to the last, either as a leg that every broker between them passes on, or by gossip.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from itertools import pairwise

from benchmarks._pair import ROUND_US, Side

from carrypost.config import Settings
from carrypost.events import Event
from carrypost.gossip.wire.frames import Frame
from carrypost.gossip.wire.payloads import filled
from carrypost.overlay.arrivals import LegArrived


class Broker(Side):
    """A host that counts what comes, as a leg or delivered."""

    def _take(self, event: Event, now: int) -> None:
        if isinstance(event, LegArrived):
            self.delivered += 1
        else:
            super()._take(event, now)

    def _resolved(self, frames: tuple[Frame, ...]) -> tuple[Frame, ...]:
        found, _ = filled(frames, self._piece)  # What was acknowledged in the same round is gone.
        return tuple(found)


class Line:
    """Brokers `a`, `b` and so on, each in reach of the next, and the time."""

    def __init__(self, names: str, settings: Settings) -> None:
        self.now = 0
        self.sides = {name: Broker(name, settings) for name in names}
        self._near: dict[str, list[str]] = {name: [] for name in names}
        for one, other in pairwise(names):
            self._near[one].append(other)
            self._near[other].append(one)
        self.first, self.last = self.sides[names[0]], self.sides[names[-1]]

    def run(self, seconds: float, *, until: int | None = None) -> None:
        """Let them talk for so long, or until the last one had so many messages."""
        end = self.now + round(seconds * 1e6)
        while self.now < end and (until is None or self.last.delivered < until):
            moved = False
            for name, side in self.sides.items():
                for sent in side.transmissions(self.now):
                    moved = True
                    for near in self._near[name] if sent.to is None else [sent.to]:
                        self.sides[near].receive(sent.frames, name, self.now)
            self._pass(end, moved=moved)

    def _pass(self, end: int, *, moved: bool) -> None:
        """Let a round pass, or the time until something is due."""
        dues = [due for side in self.sides.values() if (due := side.host.next_deadline()) is not None]
        self.now = self.now + ROUND_US if moved else max(self.now + 1, min([*dues, end]))
        for side in self.sides.values():
            due = side.host.next_deadline()
            if due is not None and due <= self.now:
                side.tick(self.now)


DESTINATION = "topic/weather"
_KNOWN_S, _SETTLED_S = 40.0, 5.0
"""Time in which brokers come to know each other, and in which acknowledgements are told."""


def message_us(kind: str, payloads: Sequence[bytes], security: str, *, together: int, hops: int = 2) -> float:
    """Return the CPU microseconds that all hosts together need for one message.

    `kind`: `leg` or `gossip`. So many messages are published `together`; the next ones when the last host has them.
    """
    leg, names = kind == "leg", "abcdefgh"[: hops + 1]
    settings = Settings.emulated(
        security=security, island=True, altruistic=not leg, cache_messages_max=4 * len(payloads) + 1_000,
        overlay={"enabled": True, "broker": True, "neighbours_max": 1},
    )  # fmt: skip
    line = Line(names, settings)
    first, last = line.first.host, line.last.host
    if not leg:
        last.subscribe(DESTINATION, now=0)
    line.run(_KNOWN_S)
    assert len(first.overlay.path(last.node) or ()) == hops + 1
    spent_s = -time.process_time()
    for at in range(0, len(payloads), together):
        for payload in payloads[at : at + together]:
            message = first.publish(DESTINATION, payload, lifetime_us=600_000_000, now=line.now)
            if leg:
                first.overlay.send(message, [last.node], line.now)
        line.run(60.0, until=at + together)
        line.run(0.5)
    line.run(_SETTLED_S)
    spent_s += time.process_time()
    assert line.last.delivered == len(payloads)
    return spent_s / len(payloads) * 1e6
