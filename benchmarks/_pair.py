"""Two hosts without a network: frames are passed by reference, and batches are durable at once.

This is the cheapest possible driver, so that only the core is measured. Time advances by a millisecond per round, or to
the next timer if nothing is in flight.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Sequence

from carrypost.config import Settings
from carrypost.gossip.wire import codec
from carrypost.gossip.wire.codec import fill_payloads
from carrypost.gossip.wire.frames import Announce, Frame, Transmission, kind
from carrypost.host import Host
from carrypost.log.events import Delivered, Event
from carrypost.log.journal import PIECE, Batch, Key, PieceOf, Value
from carrypost.model.ids import MessageId
from carrypost.security.identity import Identity

ROUND_US = 1_000

Watch = Callable[[str, tuple[Frame, ...]], None]
"""Function that is called with the sender and its frames."""


class Meter:
    """Datagrams of a contact by content, and bytes of frames by kind."""

    def __init__(self) -> None:
        self.without_announcement = 0
        self.bare_announcement = 0
        self.mixed = 0
        """With an announcement and something else."""
        self.frame_bytes: Counter[str] = Counter()

    def count(self, frames: tuple[Frame, ...], mtu_bytes: int) -> None:
        """One transmission, cut as the codec would cut it."""
        sizes = [codec.wire_size(frame) for frame in frames]
        for frame, size in zip(frames, sizes, strict=True):
            self.frame_bytes[kind(frame)] += size
        for start, stop, _ in codec.runs(sizes, mtu_bytes):
            announcements = sum(isinstance(frame, Announce) for frame in frames[start:stop])
            if not announcements:
                self.without_announcement += 1
            elif announcements == stop - start:
                self.bare_announcement += 1
            else:
                self.mixed += 1


class Side:
    """One host with the least of a driver."""

    def __init__(self, name: str, settings: Settings) -> None:
        signed = settings.security == "signed"
        identity = Identity.derived(1, name) if signed else Identity.plain(name)
        self.host = Host(identity, settings, random.Random(name))
        self.store: dict[Key, Value] = {}
        self.delivered = 0
        self.host.start(0)
        self.drain(0)

    def drain(self, now: int) -> list[tuple[Frame, ...]]:
        """Store, report, and return the frames to send."""
        return [sent.frames for sent in self.transmissions(now)]

    def transmissions(self, now: int) -> list[Transmission]:
        """Return the frames to send, with their addressees, after everything was stored and reported."""
        host = self.host
        while True:
            batch = host.changes()
            if batch is not None:
                self._write(batch)
                host.durable(batch.serial, now)
            events = host.events()
            for event in events:
                self._take(event, now)
            if batch is None and not events:
                break
        return [Transmission(self._resolved(sent.frames), sent.to) for sent in host.outgoing()]

    def receive(self, frames: Sequence[Frame], peer: str, now: int) -> None:
        """Take what the other side sent."""
        self.host.receive(frames, peer, now)

    def tick(self, now: int) -> None:
        """Do what is due."""
        self.host.tick(now)

    def _take(self, event: Event, now: int) -> None:
        """The application's part; a test of something else may have another."""
        if isinstance(event, Delivered):
            self.delivered += len(event.deliveries)
            if open_ones := [delivery for delivery in event.deliveries if not delivery.confirmed]:
                self.host.confirm(open_ones, now)

    def _resolved(self, frames: tuple[Frame, ...]) -> tuple[Frame, ...]:
        found, gone = fill_payloads(frames, self._piece)
        assert not gone
        return tuple(found)

    def _write(self, batch: Batch) -> None:
        if batch.refers:
            for key, value in batch.puts.items():
                self.store[key] = self.store[PIECE, value.message, key[2]] if isinstance(value, PieceOf) else value
        else:
            self.store.update(batch.puts)
        for key in batch.deletes:
            self.store.pop(key, None)

    def _piece(self, message: MessageId, piece: int) -> bytes | None:
        body = self.store.get((PIECE, message, piece))
        return body if isinstance(body, bytes) else None


class Pair:
    """Hosts `a` and `b`, and the time."""

    def __init__(self, settings: Settings, *, side: type[Side] = Side) -> None:
        self.now = 0
        self._mtu_bytes = settings.datagram_bytes
        self.a, self.b = side("a", settings), side("b", settings)

    def run(self, until: int) -> None:
        """Let the two talk until `b` has had this many messages."""
        sides = {"a": (self.a, self.b), "b": (self.b, self.a)}
        while self.b.delivered < until:
            moved = False
            for name, (side, other) in sides.items():
                for frames in side.drain(self.now):
                    moved = True
                    other.receive(frames, name, self.now)
            self._pass(moved=moved)

    def meet(self, seconds: float, watch: Watch = lambda _sender, _frames: None) -> Meter:
        """Let the two exchange datagrams for this long, a round each way; return their traffic."""
        return self._spend(seconds, apart=False, watch=watch)

    def part(self, seconds: float) -> None:
        """So much time passes in which nothing arrives."""
        self._spend(seconds, apart=True, watch=lambda _sender, _frames: None)

    def _spend(self, seconds: float, *, apart: bool, watch: Watch) -> Meter:
        meter, end = Meter(), self.now + round(seconds * 1e6)
        while self.now < end:
            from_a, from_b = self.a.drain(self.now), self.b.drain(self.now)
            for name, transmissions in (("a", from_a), ("b", from_b)):
                for frames in transmissions:
                    meter.count(frames, self._mtu_bytes)
                    watch(name, frames)
            self._pass(moved=bool(from_a or from_b), end=end)
            if not apart:
                for side, name, transmissions in ((self.b, "a", from_a), (self.a, "b", from_b)):
                    for frames in transmissions:
                        side.receive(frames, name, self.now)
        return meter

    def _pass(self, *, moved: bool, end: int | None = None) -> None:
        """A round passes, or the time until something is due or the end comes; timers run."""
        sides = (self.a, self.b)
        dues = [due for due in (*(side.host.next_deadline() for side in sides), end) if due is not None]
        if not moved and min(dues) > self.now:
            self.now = min(dues)
        else:
            self.now += ROUND_US
        for side in sides:
            due = side.host.next_deadline()
            if due is not None and due <= self.now:
                side.tick(self.now)
