"""Traffic and sizes, sampled: what each node sent by kind of frame, and how much its cache holds.

A row of traffic tells of the time since the sample before. What the datagrams around the frames cost is a kind of its
own, so the rows of a node add up to all that it sent. Nodes that are away are not sampled; whoever leaves is, just
before.
"""

from __future__ import annotations

from collections.abc import Mapping

from carrypost.emu.driver import Driver, Life
from carrypost.emu.radio import Radio
from carrypost.record import Kind, Record

DATAGRAM = "datagram"
"""What stands around the frames of a datagram."""
CACHE = "cache"


class Samples:
    """Takes the samples of one run."""

    def __init__(self, record: Record, radio: Radio, drivers: Mapping[str, Driver]) -> None:
        self._record = record
        self._radio = radio
        self._drivers = drivers
        self._told: dict[str, dict[str, int]] = {}

    def take(self, t_us: int) -> None:
        """Everybody who is there."""
        for name in sorted(self._drivers):
            driver = self._drivers[name]
            if driver.life is Life.RUNNING:
                self.take_traffic(name, t_us)
                entries = driver.host.copies
                self._record.add(Kind.REGISTRY, t_us, name, size=entries, detail=CACHE)

    def take_traffic(self, node: str, t_us: int) -> None:
        """What one node sent since its last sample."""
        sent = self._radio.sent(node)
        told = self._told.setdefault(node, {})
        counts = dict(sorted(sent.frame_bytes.items()))
        counts[DATAGRAM] = sent.bytes - sum(counts.values())
        for kind, nbytes in counts.items():
            if new := nbytes - told.get(kind, 0):
                self._record.add(Kind.TRAFFIC, t_us, node, size=new, detail=kind)
        self._told[node] = counts

    def forget(self, node: str) -> None:
        """It left for good."""
        self._told.pop(node, None)
