"""Hosts in a line, joined by nothing, with the cheapest driver there can be: what `benchmarks._pair` is to two hosts.

A message goes from the first host to the last: as a leg that every broker between them passes on, as an event from a
producer over the homes of producer and consumer, which are the hosts between, or by gossip.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise

from benchmarks._pair import ROUND_US, Side

from carrypost.config import Limits, Settings
from carrypost.gossip.wire.codec import assemble_payload, fill_payloads
from carrypost.gossip.wire.frames import Frame
from carrypost.host import Host
from carrypost.log.events import Event, PayloadWanted
from carrypost.model.ids import NodeId
from carrypost.overlay.legs import LegArrived
from carrypost.overlay.modulators.modulator import Modulator

_LIMITS = Limits()


class Place(Side):
    """A host that counts what comes, as a leg or delivered."""

    def _take(self, event: Event, now: int) -> None:
        if isinstance(event, LegArrived):
            self.delivered += 1
        elif isinstance(event, PayloadWanted):
            payload = assemble_payload(event.descriptor, self._piece, _LIMITS)
            self.host.payload_read(event.descriptor.id, payload, now)
        else:
            super()._take(event, now)

    def _resolved(self, frames: tuple[Frame, ...]) -> tuple[Frame, ...]:
        found, _ = fill_payloads(frames, self._piece)  # What was acknowledged in the same round is gone.
        return tuple(found)


class Line:
    """Hosts with these names and settings, each in reach of the next, and the time."""

    def __init__(self, settings: Mapping[str, Settings]) -> None:
        self.now = 0
        self.sides = {name: Place(name, each) for name, each in settings.items()}
        self._near: dict[str, list[str]] = {name: [] for name in settings}
        for one, other in pairwise(settings):
            self._near[one].append(other)
            self._near[other].append(one)
        sides = list(self.sides.values())
        self.first, self.last = sides[0], sides[-1]

    def run(self, seconds: float, *, until: int | None = None) -> None:
        """Let the hosts exchange datagrams for this long, or until the last one has this many messages."""
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


DESTINATION, CHANNEL = "topic/weather", "weather"
_KNOWN_S, _SETTLED_S = 40.0, 5.0
"""Time in which brokers learn of each other, and in which acknowledgements arrive."""
_LIFETIME_US = 600_000_000

Publish = Callable[[bytes], object]
"""Function that publishes one payload."""


def _gossip(line: Line) -> Publish:
    """Let the last host subscribe to a topic, whose messages all hosts carry."""
    line.last.host.subscribe(DESTINATION, now=0)
    line.run(_KNOWN_S)
    return lambda payload: line.first.host.publish(DESTINATION, payload, lifetime_us=_LIFETIME_US, now=line.now)


def _leg(line: Line) -> Publish:
    """Pass on messages of the first broker along the overlay."""
    first, last = line.first.host, line.last.host
    line.run(_KNOWN_S)
    assert len(first.overlay.path(last.node) or ()) == len(line.sides)

    def publish(payload: bytes) -> None:
        message = first.publish(DESTINATION, payload, lifetime_us=_LIFETIME_US, now=line.now)
        first.overlay.send(message, [last.node], line.now)

    return publish


def _event(line: Line) -> Publish:
    """Let the last host consume a channel of which the first one is a producer; the home of each is its neighbour."""
    first, last = line.first.host, line.last.host
    line.run(_KNOWN_S)
    last.subscribe(last.overlay.consume(CHANNEL, line.now), now=line.now)
    line.run(_KNOWN_S)

    def publish(payload: bytes) -> None:
        first.overlay.emit(CHANNEL, payload, line.now, lifetime_us=_LIFETIME_US)

    return publish


_KINDS: Mapping[str, Callable[[Line], Publish]] = {"gossip": _gossip, "leg": _leg, "event": _event}


def message_us(
    kind: str, payloads: Sequence[bytes], security: str,
    *, together: int, hops: int = 2, clock_s: Callable[[], float] = time.process_time,
) -> float:  # fmt: skip
    """Return the CPU microseconds that all hosts together need for one message, or what else the clock counts.

    `kind`: `leg`, `event` or `gossip`. `together` messages are published at once; the next ones when the last host has
    them. The first message is not counted: with it the producer of events finds its home.
    """
    names = "abcdefgh"[: hops + 1]
    clients = {names[0], names[-1]} if kind == "event" else set()
    line = Line({
        name: Settings.emulated(
            security=security, island=True, altruistic=kind == "gossip", cache_messages_max=4 * len(payloads) + 1_000,
            overlay={"enabled": True, "broker": name not in clients, "neighbours_max": 1},
        )
        for name in names
    })  # fmt: skip
    publish = _KINDS[kind](line)
    publish(payloads[0])
    line.run(60.0, until=1)
    line.run(_SETTLED_S)
    spent_s = -clock_s()
    for at in range(0, len(payloads), together):
        for payload in payloads[at : at + together]:
            publish(payload)
        line.run(60.0, until=at + together + 1)
        line.run(0.5)
    line.run(_SETTLED_S)
    spent_s += clock_s()
    assert line.last.delivered == len(payloads) + 1
    return spent_s / len(payloads) * 1e6


def _migrate(source: Host, consumer: NodeId, destination: NodeId, now: int) -> None:
    """Begin to move a seat, as an adaptor does: programs have no command for it."""
    commands = source.overlay
    overlay = commands._overlay  # noqa: SLF001
    with commands._steps.step(now):  # noqa: SLF001
        assert overlay.handoffs.migrate((consumer, CHANNEL, 1), destination, "nearer", now)
        overlay._look_ahead()  # noqa: SLF001


def relocation_us(security: str, count: int, modulator: Modulator) -> float:
    """Return the CPU microseconds that all hosts together need to move a seat from one broker to another.

    It moves back and forth between the homes of the producer and of the consumer, with one event before each move.
    """
    line = Line({
        name: Settings.emulated(
            security=security, island=True, overlay={"enabled": True, "broker": name in "bc", "homing": "static"}
        )
        for name in "abcd"
    })  # fmt: skip
    line.run(_KNOWN_S)
    consumer = line.last.host
    consumer.subscribe(consumer.overlay.consume(CHANNEL, line.now, modulator), now=line.now)
    line.run(_KNOWN_S)
    brokers = [line.sides[name] for name in "cb"]
    spent_s = 0.0
    for number in range(count):
        line.first.host.overlay.emit(CHANNEL, b"", line.now)
        line.run(_SETTLED_S)
        source, destination = brokers[number % 2], brokers[1 - number % 2]
        assert source.host.overlay.view().seats
        spent_s -= time.process_time()
        _migrate(source.host, consumer.node, destination.host.node, line.now)
        line.run(_SETTLED_S)
        spent_s += time.process_time()
        assert destination.host.overlay.view().seats
        assert not source.host.overlay.view().seats
    return spent_s / count * 1e6
