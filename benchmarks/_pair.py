"""Two hosts joined by nothing: frames go from one to the other by reference, batches are durable at once.

The cheapest driver there can be, so that what is measured is the core. Time advances by a millisecond per round, or to
the next timer where nothing is under way.
"""

from __future__ import annotations

import random

from carrypost.config import Settings
from carrypost.events import Delivered, Event
from carrypost.gossip.frames import Data, Frame, StoredData
from carrypost.gossip.journal import PIECE, Key, Value
from carrypost.host import Host
from carrypost.security.identity import Identity

ROUND_US = 1_000


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
        """Store, tell, and give what is to be sent."""
        host = self.host
        while True:
            batch = host.changes()
            if batch is not None:
                self.store.update(batch.puts)
                for key in batch.deletes:
                    self.store.pop(key, None)
                host.durable(batch.serial, now)
            events = host.events()
            for event in events:
                self._take(event, now)
            if batch is None and not events:
                break
        return [self._resolved(sent.frames) for sent in host.outgoing()]

    def _take(self, event: Event, now: int) -> None:
        if isinstance(event, Delivered):
            self.delivered += len(event.deliveries)
            self.host.confirm(event.deliveries, now)

    def _resolved(self, frames: tuple[Frame, ...]) -> tuple[Frame, ...]:
        return tuple([self._bytes(frame) if type(frame) is StoredData else frame for frame in frames])

    def _bytes(self, frame: StoredData) -> Frame:
        piece = self.store[PIECE, frame.message, frame.piece]
        assert isinstance(piece, bytes)
        body = piece[frame.offset : frame.offset + frame.length]
        return Data(frame.handle, frame.serial, frame.index, frame.last, body)


class Pair:
    """Hosts `a` and `b`, and the time."""

    def __init__(self, settings: Settings) -> None:
        self.now = 0
        self.a, self.b = Side("a", settings), Side("b", settings)

    def run(self, until: int) -> None:
        """Let the two talk until `b` has had this many messages."""
        sides = {"a": (self.a, self.b), "b": (self.b, self.a)}
        while self.b.delivered < until:
            moved = False
            for name, (side, other) in sides.items():
                for frames in side.drain(self.now):
                    moved = True
                    other.host.receive(frames, name, self.now)
            dues = [due for side, _ in sides.values() if (due := side.host.next_deadline()) is not None]
            if not moved and min(dues) > self.now:
                self.now = min(dues)
            else:
                self.now += ROUND_US
            for side, _ in sides.values():
                due = side.host.next_deadline()
                if due is not None and due <= self.now:
                    side.host.tick(self.now)
