"""CPU time that a host needs to receive a message, without the verification of its signature.

Messages go from one host to another, both in one process. *Burst*: the sender has all of them when the two meet.
*Alone*: they are published one by one, half a second apart; other work of the receiver meanwhile, such as
announcements, is included. All calls of the receiver are kept, then repeated with a second receiver: so the clock,
which is slow to read, is read only twice. Frames are decoded before, as in a node.
"""

from __future__ import annotations

import gc
import os
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from typing import cast
from unittest import mock

from benchmarks._pair import Pair, Side

from carrypost.config import Settings
from carrypost.gossip.wire import codec
from carrypost.gossip.wire.frames import Frame
from carrypost.model.descriptor import Descriptor

SIZES_BYTES = (200, 1_000)
_MTU_BYTES = 1_400
"""Length of datagrams: a signed message of either size is one frame."""
_PAUSE_S = 0.5


class _Recorder(Side):
    """A side that keeps everything that it receives."""

    def __init__(self, name: str, settings: Settings) -> None:
        self._settings = settings
        self.told: list[Callable[[Side], object]] = []
        super().__init__(name, settings)

    def drain(self, now: int) -> list[tuple[Frame, ...]]:
        self.told.append(lambda side: side.drain(now))
        return super().drain(now)

    def receive(self, frames: Sequence[Frame], peer: str, now: int) -> None:
        datagrams = codec.datagrams(frames, self._settings.datagram_bytes)
        limits = self._settings.limits
        decoded = [frame for datagram in datagrams for frame in codec.decode(datagram, limits).frames]
        self.told.append(lambda side: side.receive(decoded, peer, now))
        super().receive(frames, peer, now)

    def tick(self, now: int) -> None:
        self.told.append(lambda side: side.tick(now))
        super().tick(now)


def _trust(_descriptor: Descriptor) -> None:
    """Take the place of `verify`."""


@mock.patch("carrypost.gossip.transfers.inbound.verify", _trust)
def receive_us(count: int, settings: Settings, size_bytes: int, *, alone: bool) -> float:
    """CPU microseconds of the receiving host per message, verification not counted."""
    pair = Pair(settings, side=_Recorder)
    receiver, again = cast("_Recorder", pair.b), Side("b", settings)
    receiver.told.clear()
    for side in (pair.a, pair.b, again):
        side.host.subscribe("news", now=0, confirmed=True)
    if alone:
        pair.meet(20)
    met = len(receiver.told)
    for _ in range(count):
        pair.a.host.publish("news", os.urandom(size_bytes), now=pair.now)
        if alone:
            pair.meet(_PAUSE_S)
    pair.run(count)
    for tell in receiver.told[:met]:
        tell(again)
    gc.collect()
    began = time.process_time()
    for tell in receiver.told[met:]:
        tell(again)
    spent_s = time.process_time() - began
    assert again.delivered == count
    return spent_s / count * 1e6


def rows(count: int, repeats: int) -> list[Mapping[str, object]]:
    """Return one row for each level of security, size and way of arrival."""
    found: list[Mapping[str, object]] = []
    for security in ("off", "signed"):
        settings = Settings.emulated(security=security, mtu_bytes=_MTU_BYTES)
        for size_bytes in SIZES_BYTES:
            for alone in (False, True):
                costs = [receive_us(count, settings, size_bytes, alone=alone) for _ in range(repeats)]
                found.append(
                    {
                        "security": security,
                        "bytes": size_bytes,
                        "come": "alone" if alone else "burst",
                        "messages": count,
                        "median µs a message": statistics.median(costs),
                    }
                )
    return found
