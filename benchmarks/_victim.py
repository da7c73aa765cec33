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
from carrypost.model.descriptor import Descriptor, PayloadCodec
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
        self,
        held: int,
        *,
        message_bytes: int = 100,
        cache_messages_max: int = 20_000,
        meter: Callable[[], int] | None = None,
        **limits: object,
    ) -> None:
        self.settings = Settings(altruistic=True, cache_messages_max=cache_messages_max).replace(limits=limits)
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
        began_us, nbytes = self.host.clock_us(), len(datagram)
        decoded = codec.decode(datagram, self.settings.limits)
        read_us = self.host.clock_us() - began_us
        if decoded.refused:
            self.host.refused(decoded.refused, peer, self.now, nbytes=nbytes, read_us=read_us)
        self.host.receive(decoded.frames, peer, self.now, nbytes=nbytes, read_us=read_us)
        return self._sent_to(peer)

    def meet(self, stranger: Stranger, peer: str = PEER) -> None:
        """Make them neighbours, and let the stranger be offered all messages."""
        said = stranger.introduction()
        for _ in range(_ROUNDS):
            heard = [frame for datagram in said for frame in self.take(datagram, peer)]
            self.wait(_ROUND_S)
            said = stranger.hear([*heard, *self._sent_to(peer)])

    def remember(self, count: int, *, done: bool) -> None:
        """Remember messages that it does not hold: it is done with them, or had no room."""
        holdings = self.host._holdings  # noqa: SLF001 - as if each had come and gone
        lives_us = self.now, self.now + 3_600 * SECOND_US
        for number in range(1, count + 1):
            found = Descriptor(b"x" * 32, 1, number, *lives_us, "news", 0, 0, PayloadCodec.BLANK, b"", 1_024)
            holdings.note_memory(holdings.cache.remember(found, done=done))

    def wait(self, seconds: float) -> None:
        """Time passes."""
        self.now += round(seconds * SECOND_US)
        self.host.tick(self.now)

    def _sent_to(self, peer: str) -> list[Frame]:
        sent = self.drain()
        return [*sent.get(peer, ()), *sent.get(None, ())]
