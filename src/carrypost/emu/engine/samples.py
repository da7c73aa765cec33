"""Traffic and sizes, sampled: what each node sent by kind of frame, how much its cache and its registries hold.

A row of traffic covers the time since the sample before. The cost of the datagrams around the frames is a kind of its
own, so the rows of a node add up to all that it sent. Nodes that are away are not sampled. A node that leaves is
sampled just before, with a mark on its sizes: they are no part of a mean over time. The registries are those of CAUSAL
§IV and §V.
"""

from __future__ import annotations

from collections.abc import Mapping

from carrypost.emu.engine.driver import EmulatedDriver, NodeState
from carrypost.emu.engine.radio import Radio
from carrypost.log.record import Kind, Record

DATAGRAM = "datagram"
"""Kind of the bytes around the frames of a datagram."""
CACHE = "cache"
REGISTRIES = ("c_barrier", "co_delivered", "pending")
"""Of each order group."""
AT, AT_LEAVE = "at", "leave"
"""The mark on sizes of a node that is about to leave."""


class Sampler:
    """Takes the samples of one run."""

    def __init__(self, record: Record, radio: Radio, drivers: Mapping[str, EmulatedDriver]) -> None:
        self._record = record
        self._radio = radio
        self._drivers = drivers
        self._last_bytes: dict[str, dict[str, int]] = {}

    def sample(self, t_us: int) -> None:
        """Sample every node that is running."""
        for name in sorted(self._drivers):
            driver = self._drivers[name]
            if driver.state is NodeState.RUNNING:
                self._sample_traffic(name, t_us)
                self._sample_sizes(driver, t_us, {})

    def sample_leaving(self, driver: EmulatedDriver, t_us: int) -> None:
        """Sample one node that is about to leave, and mark its sizes so."""
        self._sample_traffic(driver.name, t_us)
        self._sample_sizes(driver, t_us, {AT: AT_LEAVE})

    def _sample_sizes(self, driver: EmulatedDriver, t_us: int, mark: dict[str, str]) -> None:
        host, node, add = driver.host, driver.name, self._record.add
        add(Kind.REGISTRY, t_us, node, size=host.copies, detail=CACHE, attrs=mark or None)
        for registry in host.registries(driver.now):
            attrs = {"destination": registry.destination, **mark}
            for name in REGISTRIES:
                add(Kind.REGISTRY, t_us, node, size=getattr(registry, name), detail=name, attrs=attrs)

    def _sample_traffic(self, node: str, t_us: int) -> None:
        """Record what one node sent since its last sample."""
        sent = self._radio.sent(node)
        last = self._last_bytes.setdefault(node, {})
        counts = dict(sorted(sent.frame_bytes.items()))
        counts[DATAGRAM] = sent.bytes - sum(counts.values())
        for kind, nbytes in counts.items():
            if new := nbytes - last.get(kind, 0):
                self._record.add(Kind.TRAFFIC, t_us, node, size=new, detail=kind)
        self._last_bytes[node] = counts

    def forget(self, node: str) -> None:
        """Drop what is remembered of a node that left for good."""
        self._last_bytes.pop(node, None)
