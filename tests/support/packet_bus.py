"""Members of a closed network, and strangers, on one medium in virtual time: datagrams are bytes, as on real links."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Mapping, Sequence

from carrypost.config import Settings
from carrypost.emu.engine.driver import MemoryStore
from carrypost.gossip.wire import codec
from carrypost.gossip.wire.codec import fill_payloads
from carrypost.gossip.wire.frames import Transmission
from carrypost.host import Host
from carrypost.host.driving import ProgramDriver
from carrypost.log.events import Delivered, Event, NeighbourUp, PayloadWanted
from carrypost.log.journal import Batch
from carrypost.model.descriptor import Descriptor
from carrypost.model.ids import node_prefix
from carrypost.security import packets
from carrypost.security.identity import Identity, derived
from carrypost.security.packets import Packets

_DELAY_US = 1_000
Sent = tuple[str, str | None, bytes]
"""A datagram on the air: the address of its sender, the one that it is for or None, and its bytes."""


class Station(ProgramDriver):
    """One host with its protection, as the driver of a node connects them; messaging is open."""

    def __init__(self, name: str, bus: Bus, settings: Settings) -> None:
        identity = Identity.derived(1, name)
        entropy = derived(1, name, 1)
        host = Host(identity, settings, random.Random(name), entropy=entropy)
        super().__init__(settings, host)
        self.name, self.host, self.node = name, host, identity.node
        self.packets = Packets(node_prefix(identity.node), entropy) if settings.sealing.closed else None
        self.events: list[Event] = []
        self.due_us = 0
        self._bus, self._store = bus, MemoryStore()
        host.start(0)
        self.drain()
        host.messaging.open(0)
        self.drain()

    def hear(self, sender: str, datagram: bytes) -> None:
        """Take a datagram from the air."""
        key = b""
        if self.packets is not None:
            self.packets.rekey(self.host.closed.keys)
            if (opened := self.packets.open(datagram)) is None:
                self.host.closed.refuse(1)
                return
            datagram, key = opened
        peer = packets.under(sender, key) if key else sender
        decoded = codec.decode(datagram, self.settings.limits)
        if decoded.refused:
            self.host.refused(decoded.refused, peer, self.now, nbytes=len(datagram))
        self.host.receive(decoded.frames, peer, self.now, nbytes=len(datagram))
        self.drain()

    def wake(self) -> None:
        """Do what is due."""
        self._wake(self.now)

    @property
    def met(self) -> set[str]:
        """Nodes that became neighbours."""
        return {each.node for each in self.events if isinstance(each, NeighbourUp)}

    @property
    def payloads(self) -> list[bytes]:
        """Payloads of delivered messages."""
        found = [
            delivery.descriptor for each in self.events if isinstance(each, Delivered) for delivery in each.deliveries
        ]
        return [self.stored(each) for each in found]

    @property
    def now(self) -> int:
        return self._bus.now

    def command(self) -> Host:
        return self.host

    def stored(self, descriptor: Descriptor) -> bytes:
        return self._store.payload(descriptor, self.settings.limits)

    async def room(self) -> None:
        """Return at once."""

    def _write(self, batch: Batch) -> None:
        self._store.write(batch)
        self.host.durable(batch.serial, self.now)

    def _transmit(self, transmission: Transmission) -> None:
        frames, _ = fill_payloads(transmission.frames, self._store.piece)
        datagrams = codec.datagrams(frames, self.settings.datagram_bytes)
        peer, key = transmission.to, b""
        if self.packets is not None:
            self.packets.rekey(self.host.closed.keys)
            peer, key = packets.parted(peer or "")
            node = self.host.closed.prefix_at(transmission.to) if peer and transmission.to else b""
            datagrams = self.packets.seal(datagrams, key, node)
        for each in datagrams:
            self._bus.put(self.name, peer or None, each)

    def _report(self, events: Sequence[Event]) -> None:
        self.events += events
        for event in events:
            if isinstance(event, PayloadWanted):
                self.answer(event)

    def _arm(self, deadline_us: int) -> None:
        self.due_us = deadline_us


class Bus:
    """A medium on which all hear what is for all, a millisecond later."""

    def __init__(self, names: Iterable[str], settings: Settings) -> None:
        self.now = 0
        self.air: list[Sent] = []
        self.watch: Callable[[Sent], None] = lambda _: None
        """Called with everything that is put on the air."""
        self.stations: Mapping[str, Station] = {name: Station(name, self, settings) for name in names}

    def put(self, sender: str, to: str | None, datagram: bytes) -> None:
        """Put a datagram on the air."""
        self.air.append((sender, to, datagram))
        self.watch((sender, to, datagram))

    def run(self, seconds: float) -> None:
        """Let time pass."""
        until = self.now + round(seconds * 1e6)
        while self.now < until:
            air, self.air = self.air, []
            for sender, to, datagram in air:
                for station in self.stations.values():
                    if station.name != sender and to in {None, station.name}:
                        station.hear(sender, datagram)
            for station in self.stations.values():
                if station.due_us <= self.now:
                    station.wake()
            soonest = min(station.due_us for station in self.stations.values())
            self.now += _DELAY_US if self.air else max(_DELAY_US, min(until, soonest) - self.now)
