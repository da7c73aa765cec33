"""One direction of an emulated link: its treatment of datagrams, and its traffic.

Loss, duplication, delay and damage act on datagrams, as on a real link, never on single frames. Each direction of each
link draws from streams of its own, so that one more node, or one more link, does not disturb the others.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from carrypost.chance import stream
from carrypost.emu.engine.datagram import Burst
from carrypost.emu.scenario.checks import is_number, microseconds
from carrypost.errors import LocalError
from carrypost.gossip.wire.frames import Frame, kind_of
from carrypost.model.times import MICROSECONDS, NEVER

_PROBABILITIES = ("loss", "duplicate", "reorder", "corrupt", "truncate")


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
