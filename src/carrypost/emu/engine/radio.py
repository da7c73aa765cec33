"""The emulated radio: which nodes hear each other, and the fate of datagrams on the way.

A transmission is cut into datagrams exactly as the codec would cut it; loss, duplication, delay and damage act on
datagrams (`emu.engine.links`). A datagram that would arrive at or after the end of its link is lost. Frames are handed
over as values; with `encoded` they go through their bytes, and nothing may differ.

Airtime is private (each direction of a link has its rate to itself), paired or shared. A transmission then keeps its
sender, and its receivers or every node that hears it, from sending until it is over, so a node that relays halves its
channel (JOMS-15 figure 5).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from operator import attrgetter
from typing import Literal

from carrypost.config import Limits
from carrypost.config.settings import PACKET_BYTES
from carrypost.emu.engine.datagram import Burst, Datagram
from carrypost.emu.engine.links import LinkModel, Traffic, Way, gathered, spaced
from carrypost.emu.engine.scheduler import Phase, Scheduler
from carrypost.errors import LocalError, StateError
from carrypost.gossip.wire import codec
from carrypost.gossip.wire.frames import Frame
from carrypost.model.times import NEVER

__all__ = ["Burst", "Datagram", "LinkModel", "Radio", "Traffic"]

_OVERHEAD_BYTES = codec.datagram_overhead(1)
_ARRIVAL = Phase.ARRIVAL
_SIZE = attrgetter("size")

Airtime = Literal["private", "paired", "shared"]
Receiver = Callable[[Burst, str], None]
"""Function that receives a burst and the name of its sender."""


class _Station:
    """One node on the air."""

    __slots__ = ("free_us", "key", "met", "receive", "sent", "up")

    def __init__(self, receive: Receiver) -> None:
        self.receive = receive
        self.sent = Traffic()
        self.met: dict[str, None] = {}
        """Stations to which it was ever linked."""
        self.up: dict[str, Way] = {}
        """Stations that hear it."""
        self.free_us = 0
        """Time at which the air around it is free, unless airtime is private."""
        self.key = b""
        """Id of the key that protects its datagrams."""


class Radio:
    """Named nodes, the links between them, and the datagrams in the air."""

    def __init__(
        self,
        scheduler: Scheduler,
        seed: int | str = 0,
        *,
        model: LinkModel | None = None,
        encoded: bool = False,
        airtime: Airtime = "private",
        limits: Limits | None = None,
        by_link: bool = True,
        checked: bool = True,
    ) -> None:
        self.model = model or LinkModel()
        self.refused: Counter[str] = Counter()
        """Number of undecodable arrivals, by reason; only if there are bytes."""
        self._scheduler = scheduler
        self._seed = seed
        self._encoded = encoded
        self._airtime = airtime
        self._limits = limits or Limits()
        self._by_link = by_link
        """True if the frames on each link are counted by kind, and not only those of each node."""
        self._checked = checked
        """True if datagrams have a checksum, as those of UDP: a damaged frame goes no further. Without it only
        signatures reveal damage."""
        self._stations: dict[str, _Station] = {}
        self._ways: dict[tuple[str, str], Way] = {}

    def add(self, node: str, receiver: Receiver) -> None:
        """Add a node, linked to none."""
        if node in self._stations:
            raise StateError(f"there is a node {node!r} already")
        self._stations[node] = _Station(receiver)

    def remove(self, node: str) -> None:
        """Remove a node without links for good, with all that is known of it."""
        for other in self._stations.pop(node).met:
            self._ways.pop((node, other), None)
            self._ways.pop((other, node), None)
            self._stations[other].met.pop(node, None)

    def link(
        self, a: str, b: str, *, one_way: bool = False, model: LinkModel | None = None, until_us: int = NEVER
    ) -> None:
        """Link two nodes: both hear each other or, with `one_way`, only `b` hears `a`."""
        if a == b:
            raise LocalError(f"{a!r} cannot be linked to itself")
        ways = self._directions(a, b, one_way=one_way)
        for way in ways:
            if way.up:
                raise StateError(f"{way.sender!r} and {way.receiver!r} are linked already")
        for way in ways:
            way.open(model or self.model, until_us)
            self._stations[way.sender].up[way.receiver] = way

    def unlink(self, a: str, b: str, *, one_way: bool = False) -> None:
        """End a link: datagrams in the air are lost; with `one_way` only `b` no longer hears `a`."""
        ways = [way for way in self._directions(a, b, one_way=one_way) if way.up]
        if not ways:
            raise StateError(f"{a!r} and {b!r} are not linked")
        for way in ways:
            way.up = False
            del self._stations[way.sender].up[way.receiver]

    def linked(self, a: str, b: str) -> bool:
        """Return True if `b` hears `a`."""
        return b in self._stations[a].up

    def neighbours_of(self, node: str) -> list[str]:
        """Return the nodes that a node hears and that hear it."""
        return [other for other in self._stations[node].up if node in self._stations[other].up]

    def traffic(self, a: str, b: str) -> Traffic:
        """Return the traffic from `a` to `b`, broadcasts that `b` could hear included."""
        return self._way(a, b).traffic

    def sent(self, node: str) -> Traffic:
        """Return the traffic from `node`; a broadcast counts once, however many hear it."""
        return self._stations[node].sent

    def protect(self, sender: str, key: bytes) -> None:
        """Protect the datagrams of a node from now on, which become longer by that; `key`: the id of the key."""
        self._stations[sender].key = key

    def send(self, sender: str, frames: Sequence[Frame], to: str | None, mtu_bytes: int) -> None:
        """Send frames to one neighbour, or to all that hear it; `StoredData` must have been resolved."""
        station = self._stations[sender]
        up = station.up
        ways = list(up.values()) if to is None else [up[to]] if to in up else []
        sizes = codec.wire_sizes(frames)
        sent = station.sent
        sent.count_frames(frames, sizes)
        # Most transmissions are one frame, which is one datagram: there are no runs to look for.
        if len(sizes) == 1:
            nbytes = sizes[0] + _OVERHEAD_BYTES
            datagrams = [Datagram(tuple(frames), nbytes)] if ways else []
            sent.datagrams += 1
        else:
            runs = codec.runs(sizes, mtu_bytes)
            datagrams = [Datagram(tuple(frames[start:stop]), size) for start, stop, size in runs]
            nbytes = sum(map(_SIZE, datagrams))
            sent.datagrams += len(datagrams)
        if key := station.key:
            nbytes += PACKET_BYTES * max(1, len(datagrams))
        sent.bytes += nbytes
        if ways:
            if self._encoded:
                datagrams = [self._through_bytes(datagram) for datagram in datagrams]
            if key:
                datagrams = [
                    Datagram(each.frames, each.size + PACKET_BYTES, each.refused, key) for each in datagrams
                ]  # fmt: skip
            aired = None if self._airtime == "private" else self._aired(station, datagrams, ways)
            scheduler = self._scheduler
            for way in ways:
                if self._by_link:
                    way.traffic.datagrams += len(datagrams)
                    way.traffic.bytes += nbytes
                    way.traffic.count_frames(frames, sizes)
                if way.plain and aired is None:
                    self._deliver(way, scheduler.now + way.model.delay_us, datagrams)
                else:
                    self._carry(way, datagrams, aired)

    def _aired(self, station: _Station, datagrams: Burst, ways: list[Way]) -> list[int] | None:
        """Return the times at which datagrams have left: the sender and others are silent until the last one has.

        The others are all that hear the sender if the air is shared, and the receivers if it is paired; these must be
        free, too. A broadcast goes at the rate of its slowest receiver.
        """
        rates = [way.model.rate_bytes_per_s for way in ways]
        rate = min((rate for rate in rates if rate is not None), default=None)
        if rate is None:
            return None
        begin_us = max(self._scheduler.now, station.free_us)
        if self._airtime == "shared":
            silent = [self._stations[name] for name in station.up]
        else:
            silent = [self._stations[way.receiver] for way in ways]
            begin_us = max(begin_us, *[each.free_us for each in silent])
        times, end_us = spaced(datagrams, begin_us, rate)
        station.free_us = end_us
        for each in silent:
            each.free_us = max(each.free_us, end_us)
        return times

    def _carry(self, way: Way, datagrams: Burst, aired: list[int] | None) -> None:
        now, model = self._scheduler.now, way.model
        times = aired if aired is not None else way.queued(datagrams, now)
        if way.certain:
            for start, stop in gathered(times, model.gather_us, way.until_us - model.delay_us):
                self._deliver(way, times[stop - 1] + model.delay_us, datagrams[start:stop])
            return
        bursts: dict[int, list[Datagram]] = {}
        for datagram, sent_us in zip(datagrams, times, strict=True):
            for t_us in way.arrivals(sent_us):
                bursts.setdefault(t_us, []).append(self._worn(way, datagram))
        for t_us, burst in bursts.items():
            self._deliver(way, t_us, burst)

    def _deliver(self, way: Way, t_us: int, burst: Burst) -> None:
        if t_us >= way.until_us:
            way.traffic.cut += len(burst)
        else:
            self._scheduler.post(t_us, _ARRIVAL, way.receiver, self._arrive, way, way.contact, burst)

    def _arrive(self, way: Way, contact: int, burst: Burst) -> None:
        if not way.up or way.contact != contact:
            way.traffic.cut += len(burst)
            return
        way.traffic.arrived += len(burst)
        self._stations[way.receiver].receive(burst, way.sender)

    def _worn(self, way: Way, sent: Datagram) -> Datagram:
        """Return a datagram as a damaging link delivers it."""
        if not (sent.frames and (way.model.corrupt or way.model.truncate)):
            return sent  # Without frames: all of it was refused when it was read, with `encoded`.
        (encoded,) = codec.datagrams(sent.frames, max(sent.size, 1))
        damaged = way.damaged(encoded)
        if damaged == encoded:
            return sent
        if sent.key:
            return Datagram((), sent.size, {"packet": 1}, sent.key)  # No part of it opens.
        read = self._read(damaged, sent.size)
        if not self._checked:
            return read
        # UDP's checksum catches damage, but the emulator decodes frame by frame. Frames that
        # survived unchanged are kept, as if they had been in a datagram of their own, so that one
        # flipped byte does not always cost the whole burst.
        sound = self._read(encoded, sent.size).frames
        kept = tuple(frame for frame in read.frames if frame in sound)
        return Datagram(kept, sent.size, read.refused or {"checksum": 1})

    def _through_bytes(self, sent: Datagram) -> Datagram:
        """Return a datagram as a receiver decodes its bytes."""
        (encoded,) = codec.datagrams(sent.frames, max(sent.size, 1))
        assert len(encoded) == sent.size, f"{sent.size} bytes were counted, {len(encoded)} would be sent"
        return self._read(encoded, sent.size)

    def _read(self, encoded: bytes, size: int) -> Datagram:
        decoded = codec.decode(encoded, self._limits)
        self.refused.update(decoded.refused)
        return Datagram(tuple(decoded.frames), size, decoded.refused)

    def _directions(self, a: str, b: str, *, one_way: bool) -> list[Way]:
        for node in (a, b):
            if node not in self._stations:
                raise LocalError(f"no node {node!r}")
        return [self._way(a, b)] if one_way else [self._way(a, b), self._way(b, a)]

    def _way(self, sender: str, receiver: str) -> Way:
        pair = sender, receiver
        if pair not in self._ways:
            self._ways[pair] = Way(self._seed, sender, receiver)
            self._stations[sender].met[receiver] = None
            self._stations[receiver].met[sender] = None
        return self._ways[pair]
