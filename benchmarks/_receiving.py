"""CPU time that a host needs to take a message in, without the verification of its signature.

Messages go from one host to another, both in one process, frames by reference. *Burst*: the sender has all of them when
the two meet. *Alone*: they are published one by one, half a second apart; what else the receiver does meanwhile, such
as announcements, counts with them.
"""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import cast
from unittest import mock

from benchmarks._pair import Pair, Side

from carrypost.config import Settings
from carrypost.gossip.wire.frames import Frame
from carrypost.model.descriptor import Descriptor
from carrypost.security.identity import verify

_SIZE_BYTES = 1_000
_MTU_BYTES = 1_400
"""A signed message of that size is one frame."""
_PAUSE_S = 0.5


class _Receiver(Side):
    """A side of which CPU time is taken."""

    spent_s = 0.0

    @contextmanager
    def _timed(self) -> Iterator[None]:
        began = time.process_time()
        yield
        self.spent_s += time.process_time() - began

    def drain(self, now: int) -> list[tuple[Frame, ...]]:
        with self._timed():
            return super().drain(now)

    def receive(self, frames: Sequence[Frame], peer: str, now: int) -> None:
        with self._timed():
            super().receive(frames, peer, now)

    def tick(self, now: int) -> None:
        with self._timed():
            super().tick(now)


def receive_us(count: int, settings: Settings, *, alone: bool) -> float:
    """CPU microseconds of the receiving host per message, verification not counted."""
    verified_s = 0.0

    def timed(descriptor: Descriptor) -> None:
        nonlocal verified_s
        began = time.process_time()
        verify(descriptor)
        verified_s += time.process_time() - began

    pair = Pair(settings, side=_Receiver)
    receiver = cast("_Receiver", pair.b)
    for side in (pair.a, pair.b):
        side.host.subscribe("news", now=0, confirmed=True)
    if alone:
        pair.meet(20)
    receiver.spent_s = 0.0
    with mock.patch("carrypost.gossip.transfers.inspection.verify", timed):
        for _ in range(count):
            pair.a.host.publish("news", os.urandom(_SIZE_BYTES), now=pair.now)
            if alone:
                pair.meet(_PAUSE_S)
        pair.run(count)
    return (receiver.spent_s - verified_s) / count * 1e6


def rows(count: int, repeats: int) -> list[Mapping[str, object]]:
    """One row for each level of security and way to come."""
    found: list[Mapping[str, object]] = []
    for security in ("off", "signed"):
        settings = Settings.emulated(security=security, mtu_bytes=_MTU_BYTES)
        for alone in (False, True):
            costs = [receive_us(count, settings, alone=alone) for _ in range(repeats)]
            found.append(
                {
                    "security": security,
                    "come": "alone" if alone else "burst",
                    "messages": count,
                    "median µs a message": statistics.median(costs),
                }
            )
    return found
