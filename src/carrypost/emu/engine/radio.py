"""The emulated radio: nodes that hear each other, the links between them, and the fate of datagrams on the way.

A transmission is cut into datagrams exactly as the codec would cut it; loss, duplication, delay and damage act on
datagrams, as on a real link, never on single frames. Each direction of each link draws from streams of its own, so that
one more node, or one more link, does not disturb the others. A datagram that would arrive at or after the end of its
link is lost. Frames are handed over as values; with `encoded` they go through their bytes, and nothing may differ.

Airtime is private (each direction of a link has its rate to itself), paired or shared. A transmission then keeps its
sender, and its receivers or every node that hears it, from sending until it is over, so a node that relays halves its
channel (JOMS-15 figure 5).
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from operator import attrgetter
from typing import Any, Final, Literal

from carrypost.chance import stream
from carrypost.config import Limits
from carrypost.config.settings import PACKET_BYTES
from carrypost.emu.arguments import is_number, microseconds
from carrypost.emu.engine.datagram import Burst, Datagram
from carrypost.emu.engine.scheduler import Phase, Scheduler
from carrypost.errors import LocalError, StateError
from carrypost.gossip.wire import codec
from carrypost.gossip.wire.frames import Frame, kind_of
from carrypost.model.times import MICROSECONDS, NEVER

_PROBABILITIES: Final = ("loss", "duplicate", "reorder", "corrupt", "truncate")


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkModel:
    """The treatment of datagrams by one direction of a link."""

    delay_us: int = 1_000
    loss: float = 0.0
    """Probability that a datagram does not arrive."""
    duplicate: float = 0.0
    """Probability that it arrives twice."""
    reorder: float = 0.0
    """Probability that it is held up, so that later ones overtake it."""
    reorder_us: int = 20_000
    """Longest delay of such a datagram."""
    corrupt: float = 0.0
    """Probability that a byte of it is changed."""
    truncate: float = 0.0
    """Probability that its end is cut off."""
    rate_bytes_per_s: int | None = None
    """Rate at which datagrams leave the link's queue; None: no limit."""
    gather_us: int = 0
    """Time within which datagrams of one transmission are handed over together, when the last has arrived."""

    def __post_init__(self) -> None:
        for name in _PROBABILITIES:
            value = getattr(self, name)
            if not is_number(value) or not 0.0 <= value <= 1.0:
                raise LocalError(f"{name} must be a probability, from 0 to 1, not {value!r}")
        for name, least in (("delay_us", 0), ("reorder_us", 1), ("gather_us", 0)):
            if getattr(self, name) < least:
                raise LocalError(f"{name} must be at least {least}, not {getattr(self, name)!r}")
        rate: object = self.rate_bytes_per_s
        if rate is not None and (not isinstance(rate, int) or isinstance(rate, bool) or rate < 1):
            raise LocalError(f"rate_bytes_per_s must be a whole number, at least 1, or None, not {rate!r}")

    def changed(self, *, delay_s: float | None = None, **changes: object) -> LinkModel:
        """Return this model with some values changed; None leaves a value as it is."""
        given: dict[str, Any] = {name: value for name, value in changes.items() if value is not None}
        if delay_s is not None:
            given["delay_us"] = microseconds(delay_s, "delay_s")
        return replace(self, **given)

    @property
    # Most scenarios have neither loss nor damage. Their datagrams skip the random streams
    # altogether.
    def certain(self) -> bool:
        """True if nothing is left to chance."""
        return not (self.loss or self.duplicate or self.reorder or self.corrupt or self.truncate)


class Traffic:
    """The traffic over one direction of a link, or out of one node."""

    __slots__ = ("arrived", "bytes", "cut", "datagrams", "lost", "tally")

    def __init__(self) -> None:
        self.datagrams = 0
        self.bytes = 0
        self.lost = 0
        """Datagrams lost by chance."""
        self.cut = 0
        """Datagrams lost because the link ended first."""
        self.arrived = 0
        """Datagrams that arrived, duplicates included."""
        self.tally: dict[type[Frame], list[int]] = {}
        """Number and bytes of the frames of each type."""

    @property
    def frames(self) -> Counter[str]:
        """Frames by kind."""
        return self._by_kind(0)

    @property
    def frame_bytes(self) -> Counter[str]:
        """Bytes by kind, less what the datagrams around them cost."""
        return self._by_kind(1)

    def _by_kind(self, column: int) -> Counter[str]:
        found: Counter[str] = Counter()
        for frame_type, counts in self.tally.items():
            found[kind_of(frame_type)] += counts[column]
        return found

    def count_frame(self, kind: type[Frame], size: int, number: int = 1) -> None:
        """Add a frame of this type, or a number of them that have this size together."""
        counts = self.tally.get(kind)
        if counts is None:
            counts = self.tally[kind] = [0, 0]
        counts[0] += number
        counts[1] += size

    def count_frames(self, frames: Sequence[Frame], sizes: Sequence[int]) -> None:
        """Add frames by type."""
        if len(frames) == 1:
            self.count_frame(type(frames[0]), sizes[0])
            return
        kinds = [type(frame) for frame in frames]
        if kinds and kinds.count(kinds[0]) == len(kinds):  # As in most bursts.
            self.count_frame(kinds[0], sum(sizes), len(kinds))
            return
        for kind, size in zip(kinds, sizes, strict=True):
            self.count_frame(kind, size)


class Way:
    """One direction between two nodes; keeps its streams and counters while the link is down."""

    __slots__ = (
        "_seed", "_streams", "certain", "free_us", "contact", "model", "plain", "receiver", "sender", "traffic",
        "until_us", "up",
    )  # fmt: skip

    def __init__(self, seed: int | str, sender: str, receiver: str) -> None:
        self.sender, self.receiver = sender, receiver
        self.model = LinkModel()
        self.certain = True
        self.plain = True
        """True if datagrams are only delayed."""
        self.up = False
        self.contact = 0
        """Number of the link among those that these two have had."""
        self.free_us = 0
        """Time at which the link has sent what was queued for it."""
        self.until_us = NEVER
        """Time at which it will end, if that is known: later arrivals are lost."""
        self.traffic = Traffic()
        self._seed = seed
        self._streams: dict[str, random.Random] = {}

    def open(self, model: LinkModel, until_us: int) -> None:
        """Begin a contact with this model; `until_us` is its end, if that is known."""
        self.model, self.certain, self.up = model, model.certain, True
        self.plain = self.certain and model.rate_bytes_per_s is None
        self.free_us, self.until_us = 0, until_us
        # Datagrams in the air belong to one contact. The next contact of the same pair must not get
        # them.
        self.contact += 1

    def queued(self, datagrams: Burst, now: int) -> list[int]:
        """Return the times at which each datagram has left, if this direction has the air to itself."""
        rate = self.model.rate_bytes_per_s
        if rate is None:
            return [now] * len(datagrams)
        times, self.free_us = spaced(datagrams, max(now, self.free_us), rate)
        return times

    def arrivals(self, sent_us: int) -> tuple[int, ...]:
        """Return the times at which a datagram that has left at `sent_us` arrives: none, one or two."""
        model = self.model
        if model.loss and self.chance("loss").random() < model.loss:
            self.traffic.lost += 1
            return ()
        first = sent_us + model.delay_us
        if model.reorder and (late := self.chance("reorder")).random() < model.reorder:
            # One stream per purpose: with a common one, switching reordering on would change which
            # datagrams are lost, and two runs could not be compared.
            first += late.randint(1, model.reorder_us)
        if model.duplicate and (again := self.chance("duplicate")).random() < model.duplicate:
            return first, first + again.randint(0, model.reorder_us)
        return (first,)

    def damaged(self, encoded: bytes) -> bytes:
        """Return the bytes of a datagram after the link corrupted or truncated them, if it does."""
        model = self.model
        if model.corrupt and (chance := self.chance("corrupt")).random() < model.corrupt:
            at = chance.randrange(len(encoded))
            encoded = encoded[:at] + bytes((encoded[at] ^ chance.randint(1, 255),)) + encoded[at + 1 :]
        if model.truncate and (chance := self.chance("truncate")).random() < model.truncate:
            encoded = encoded[: chance.randrange(len(encoded))]
        return encoded

    def chance(self, purpose: str) -> random.Random:
        """Return the stream of this direction for a purpose."""
        if purpose not in self._streams:
            self._streams[purpose] = stream(self._seed, self.sender, self.receiver, purpose)
        return self._streams[purpose]


def spaced(datagrams: Burst, free_us: int, rate: int) -> tuple[list[int], int]:
    """Return the times at which each datagram has left, one after the other at this rate, and the last time."""
    times: list[int] = []
    for datagram in datagrams:
        free_us -= -datagram.size * MICROSECONDS // rate
        times.append(free_us)
    return times, free_us


def gathered(times: list[int], gather_us: int, until_us: int) -> Iterator[tuple[int, int]]:
    """Yield groups of datagrams that are handed over together, as (first, end); none is delayed beyond `until_us`."""
    start = 0
    for at in range(1, len(times) + 1):
        if at == len(times) or times[at] > times[start] + gather_us or times[at] >= until_us:
            yield start, at
            start = at


__all__ = ["Burst", "Datagram", "LinkModel", "Radio", "Traffic"]

_ARRIVAL: Final = Phase.ARRIVAL
_SIZE: Final = attrgetter("size")

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
        # Most transmissions are one datagram: there are no runs to look for.
        nbytes = sum(sizes) + codec.datagram_overhead(len(sizes))
        if len(sizes) == 1 or (nbytes <= mtu_bytes and 0 < len(sizes) <= codec.FRAMES_MAX):
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
        if way.certain and len(datagrams) == 1:
            self._deliver(way, times[0] + model.delay_us, datagrams)
            return
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
