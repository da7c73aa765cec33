"""The emulated radio: who hears whom, and what becomes of a datagram on the way.

A transmission is cut into datagrams exactly as the codec would cut it; loss, duplication and delay act on
datagrams, as on a real link, never on single frames. Each direction of each link draws from streams of its
own, so that one more node, or one more link, does not disturb the others. A datagram that would arrive at
or after the end of its link is lost. Frames are handed over as values; with `encoded` they go through their
bytes, and nothing may differ.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

from carrypost.config import Limits
from carrypost.emu.chance import stream
from carrypost.emu.checks import is_number
from carrypost.emu.scheduler import Phase, Scheduler
from carrypost.errors import LocalError, StateError
from carrypost.gossip import codec
from carrypost.gossip.frames import Frame, kind

MICROSECONDS = 1_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkModel:
    """How one direction of a link treats its datagrams."""

    delay_us: int = 1_000
    loss: float = 0.0
    """Probability that a datagram does not arrive."""
    duplicate: float = 0.0
    """Probability that it arrives twice."""
    reorder: float = 0.0
    """Probability that it is held up, so that later ones overtake it."""
    reorder_us: int = 20_000
    """By how much, at most."""
    rate_bytes_per_s: int | None = None
    """Datagrams queue for the link at this rate; None: no limit."""

    def __post_init__(self) -> None:
        for name in ("loss", "duplicate", "reorder"):
            value = getattr(self, name)
            if not is_number(value) or not 0.0 <= value <= 1.0:
                raise LocalError(f"{name} is a probability, from 0 to 1, not {value!r}")
        for name, least in (("delay_us", 0), ("reorder_us", 1)):
            if getattr(self, name) < least:
                raise LocalError(f"{name} is at least {least}, not {getattr(self, name)!r}")
        rate: object = self.rate_bytes_per_s
        if rate is not None and (not isinstance(rate, int) or isinstance(rate, bool) or rate < 1):
            raise LocalError(f"rate_bytes_per_s is a whole number, at least 1, or None, not {rate!r}")


@dataclass(slots=True)
class Traffic:
    """What went over one direction of a link, or out of one node."""

    datagrams: int = 0
    bytes: int = 0
    frames: Counter[str] = field(default_factory=Counter)
    """Frames by kind."""
    frame_bytes: Counter[str] = field(default_factory=Counter)
    """Bytes by kind, less what the datagrams around them cost."""
    lost: int = 0
    """Datagrams: by chance."""
    cut: int = 0
    """Datagrams: because the link ended first."""
    arrived: int = 0
    """Datagrams: duplicates included."""

    def count(self, load: Load) -> None:
        """Add what was sent."""
        self.datagrams += len(load.datagrams)
        self.bytes += load.nbytes
        for name, (frames, nbytes) in load.kinds.items():
            self.frames[name] += frames
            self.frame_bytes[name] += nbytes


@dataclass(frozen=True, slots=True)
class Datagram:
    """Frames that share one fate."""

    frames: tuple[Frame, ...]
    size: int
    refused: Mapping[str, int] = field(default_factory=dict)
    """What could not be read of it, by reason."""


Burst = Sequence[Datagram]
"""Datagrams that arrive together, in order."""
Receiver = Callable[[Burst, str], None]
"""Takes a burst and the name of its sender."""


@dataclass(frozen=True, slots=True)
class Load:
    """One transmission, ready to be sent."""

    datagrams: list[Datagram]
    nbytes: int
    kinds: dict[str, tuple[int, int]]
    """Number and bytes of the frames of each kind."""


class _Way:
    """One direction between two nodes; keeps its streams and counters while the link is down."""

    __slots__ = ("_seed", "_streams", "free_us", "life", "model", "receiver", "sender", "traffic", "up")

    def __init__(self, seed: int | str, sender: str, receiver: str) -> None:
        self.sender, self.receiver = sender, receiver
        self.model = LinkModel()
        self.up = False
        self.life = 0
        """Which of the links that these two have had."""
        self.free_us = 0
        """When the link has sent what was queued for it."""
        self.traffic = Traffic()
        self._seed = seed
        self._streams: dict[str, random.Random] = {}

    def open(self, model: LinkModel) -> None:
        self.model, self.up, self.free_us = model, True, 0
        self.life += 1

    def arrivals(self, size: int, now: int) -> tuple[int, ...]:
        """When a datagram that is sent now arrives: never, once or twice."""
        model = self.model
        sent = now
        if model.rate_bytes_per_s is not None:
            sent = max(now, self.free_us) - (-size * MICROSECONDS // model.rate_bytes_per_s)
            self.free_us = sent
        if model.loss and self._chance("loss").random() < model.loss:
            self.traffic.lost += 1
            return ()
        first = sent + model.delay_us
        if model.reorder and (late := self._chance("reorder")).random() < model.reorder:
            first += late.randint(1, model.reorder_us)
        if model.duplicate and (again := self._chance("duplicate")).random() < model.duplicate:
            return first, first + again.randint(0, model.reorder_us)
        return (first,)

    def _chance(self, purpose: str) -> random.Random:
        if purpose not in self._streams:
            self._streams[purpose] = stream(self._seed, self.sender, self.receiver, purpose)
        return self._streams[purpose]


class Radio:
    """Named nodes, the links between them, and the datagrams in the air."""

    def __init__(
        self,
        scheduler: Scheduler,
        seed: int | str = 0,
        *,
        model: LinkModel | None = None,
        encoded: bool = False,
        limits: Limits | None = None,
    ) -> None:
        self.model = model or LinkModel()
        self.refused: Counter[str] = Counter()
        """What the codec refused of what was sent, by reason; only with `encoded`."""
        self._scheduler = scheduler
        self._seed = seed
        self._encoded = encoded
        self._limits = limits or Limits()
        self._receivers: dict[str, Receiver] = {}
        self._sent: dict[str, Traffic] = {}
        self._ways: dict[tuple[str, str], _Way] = {}
        self._up: dict[str, dict[str, _Way]] = {}

    def add(self, node: str, receiver: Receiver) -> None:
        """A node joins, linked to nobody."""
        if node in self._receivers:
            raise StateError(f"there is a node {node!r} already")
        self._receivers[node] = receiver
        self._sent[node] = Traffic()
        self._up[node] = {}

    def link(self, a: str, b: str, *, one_way: bool = False, model: LinkModel | None = None) -> None:
        """From now on `a` and `b` hear each other; with `one_way` only `b` hears `a`."""
        if a == b:
            raise LocalError(f"{a!r} cannot be linked to itself")
        ways = self._directions(a, b, one_way=one_way)
        for way in ways:
            if way.up:
                raise StateError(f"{way.sender!r} and {way.receiver!r} are linked already")
        for way in ways:
            way.open(model or self.model)
            self._up[way.sender][way.receiver] = way

    def unlink(self, a: str, b: str, *, one_way: bool = False) -> None:
        """The link ends, and what is in the air is lost; with `one_way` only `b` no longer hears `a`."""
        ways = [way for way in self._directions(a, b, one_way=one_way) if way.up]
        if not ways:
            raise StateError(f"{a!r} and {b!r} are not linked")
        for way in ways:
            way.up = False
            del self._up[way.sender][way.receiver]

    def linked(self, a: str, b: str) -> bool:
        """Whether `b` hears `a`."""
        return b in self._up[a]

    def traffic(self, a: str, b: str) -> Traffic:
        """What `a` sent to `b`, broadcasts that `b` could hear included."""
        return self._way(a, b).traffic

    def sent(self, node: str) -> Traffic:
        """What `node` sent; a broadcast counts once, however many hear it."""
        return self._sent[node]

    def send(self, sender: str, frames: Sequence[Frame], to: str | None, mtu_bytes: int) -> None:
        """Send frames to one neighbour, or to whoever hears; `StoredData` must have been resolved."""
        load = self._packed(frames, mtu_bytes)
        self._sent[sender].count(load)
        linked = self._up[sender]
        for way in linked.values() if to is None else filter(None, (linked.get(to),)):
            way.traffic.count(load)
            self._carry(way, load.datagrams)

    def _carry(self, way: _Way, datagrams: Iterable[Datagram]) -> None:
        now = self._scheduler.now
        bursts: dict[int, list[Datagram]] = {}
        for datagram in datagrams:
            for t_us in way.arrivals(datagram.size, now):
                bursts.setdefault(t_us, []).append(datagram)
        for t_us, burst in bursts.items():
            arrive = partial(self._arrive, way, way.life, burst)
            self._scheduler.at(t_us, Phase.ARRIVAL, way.receiver, arrive)

    def _arrive(self, way: _Way, life: int, burst: list[Datagram]) -> None:
        if not way.up or way.life != life:
            way.traffic.cut += len(burst)
            return
        way.traffic.arrived += len(burst)
        self._receivers[way.receiver](burst, way.sender)

    def _packed(self, frames: Sequence[Frame], mtu_bytes: int) -> Load:
        """The datagrams that these frames make, in order."""
        sizes = [codec.wire_size(frame) for frame in frames]
        kinds: dict[str, tuple[int, int]] = {}
        for frame, nbytes in zip(frames, sizes, strict=True):
            name = kind(frame)
            before = kinds.get(name, (0, 0))
            kinds[name] = before[0] + 1, before[1] + nbytes
        datagrams = []
        for start, stop, size in codec.runs(sizes, mtu_bytes):
            datagram = Datagram(tuple(frames[start:stop]), size)
            datagrams.append(self._through_bytes(datagram) if self._encoded else datagram)
        return Load(datagrams, sum(datagram.size for datagram in datagrams), kinds)

    def _through_bytes(self, sent: Datagram) -> Datagram:
        """What a receiver makes of its bytes."""
        (datagram,) = codec.datagrams(sent.frames, max(sent.size, 1))
        assert len(datagram) == sent.size, f"{sent.size} bytes were counted, {len(datagram)} would be sent"
        decoded = codec.decode(datagram, self._limits)
        self.refused.update(decoded.refused)
        return Datagram(tuple(decoded.frames), sent.size, decoded.refused)

    def _directions(self, a: str, b: str, *, one_way: bool) -> list[_Way]:
        for node in (a, b):
            if node not in self._receivers:
                raise LocalError(f"no node {node!r}")
        return [self._way(a, b)] if one_way else [self._way(a, b), self._way(b, a)]

    def _way(self, sender: str, receiver: str) -> _Way:
        pair = sender, receiver
        if pair not in self._ways:
            self._ways[pair] = _Way(self._seed, sender, receiver)
        return self._ways[pair]
