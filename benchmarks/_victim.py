"""A host driven only by datagrams of strangers: without sockets, disk and a clock of its own.

Used by `bench hostile` to measure single datagrams, and by the tests of the accounts to count what is read.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from typing import Final

from benchmarks._strangers import Stranger

from carrypost.config import Settings
from carrypost.gossip.wire import codec
from carrypost.gossip.wire.frames import Frame
from carrypost.host import Host
from carrypost.security.identity import Identity

SECOND_US: Final = 1_000_000
PEER: Final = "stranger"
_BEGIN_US: Final = 1_700_000_000 * SECOND_US
_ROUNDS: Final = 15
"""Rounds of exchange until a stranger is a neighbour and has been offered something."""
_ROUND_S: Final = 0.2


class Victim:
    """A signed, altruistic host with this many own messages, which wants news."""

    def __init__(
        self, held: int, *, message_bytes: int = 100, meter: Callable[[], int] | None = None, **limits: object
    ) -> None:
        self.settings = Settings(altruistic=True).replace(limits=limits)
        self.host = Host(Identity.derived("victim", "victim"), self.settings, random.Random(1), meter=meter)
        self.now = _BEGIN_US
        self.read: Counter[str] = Counter()
        """Datagrams that were decoded, by link address."""
        self.host.start(self.now)
        self.drain()
        self.host.subscribe("news", now=self.now)
        for _ in range(held):
            self.host.publish("news", bytes(message_bytes), now=self.now)
        self.drain()

    def drain(self) -> dict[str | None, list[Frame]]:
        """Process all requests of the host; return the frames that it sends, by address."""
        sent: dict[str | None, list[Frame]] = {}
        busy = True
        while busy:
            busy = False
            while (batch := self.host.changes()) is not None:
                self.host.durable(batch.serial, self.now)
            for transmission in self.host.outgoing():
                busy = True
                sent.setdefault(transmission.to, []).extend(transmission.frames)
            busy = bool(self.host.events()) or busy
        return sent

    def take(self, datagram: bytes, peer: str = PEER) -> list[Frame]:
        """Receive a datagram as a driver would; return the frames that are sent to its address, and to all."""
        if not self.host.listens(peer, self.now):
            return []
        self.read[peer] += 1
        decoded = codec.decode(datagram, self.settings.limits)
        if decoded.refused:
            self.host.refused(decoded.refused, peer, self.now, nbytes=len(datagram))
        self.host.receive(decoded.frames, peer, self.now, nbytes=len(datagram))
        return self._sent_to(peer)

    def meet(self, stranger: Stranger, peer: str = PEER) -> None:
        """Make them neighbours, and let the stranger be offered all messages."""
        said = stranger.introduction()
        for _ in range(_ROUNDS):
            heard = [frame for datagram in said for frame in self.take(datagram, peer)]
            self.wait(_ROUND_S)
            said = stranger.hear([*heard, *self._sent_to(peer)])

    def wait(self, seconds: float) -> None:
        """Time passes."""
        self.now += round(seconds * SECOND_US)
        self.host.tick(self.now)

    def _sent_to(self, peer: str) -> list[Frame]:
        sent = self.drain()
        return [*sent.get(peer, ()), *sent.get(None, ())]
