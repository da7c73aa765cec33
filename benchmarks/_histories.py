"""Histories of an order group: publications of sources that learn of each other late, and replays at one host.

A history is made once, by two hosts at every source that get the same messages: one with our registries, and one that
follows the codes of the paper to the letter. So every message exists twice, each with the barrier of its version. An
oracle that knows all publications and deliveries, and no barrier, decides whether order was kept.
"""

from __future__ import annotations

import gc
import random
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Final

from tests.support.happens_before import History
from tests.support.literal_causal import LiteralHost, Message

from carrypost.model import descriptor as descriptors
from carrypost.model.descriptor import Descriptor, Ordering, PayloadCodec
from carrypost.model.ids import NodeId
from carrypost.order.causal import Group

SOURCES: Final = 50
LAG_MAX: Final = 50
"""A source that publishes has heard of all messages except at most this many of the last ones."""
SECOND_US: Final = 1_000_000
"""Something is published every second."""
LONG_S: Final = (1_000_000, 1_000_000)
"""Lifetimes, from and to: nothing ever dies."""
MIXED_S: Final = (15, 300)
RECEIVER: Final = "receiver"
_DESTINATION: Final = "forum"


@dataclass(slots=True)
class Made:
    """The published messages; all others depend on the first."""

    ours: list[Descriptor] = field(default_factory=list)
    literal: list[Message] = field(default_factory=list)
    received: int = 0
    """Messages that the sources received alive while the history was made."""
    ours_delivered: int = 0
    """Messages that were delivered, of those received."""
    literal_delivered: int = 0
    past: History = field(default_factory=History)
    """Publications and deliveries of each host, by our version."""
    replays: int = 0
    """Number of checks."""

    @property
    def end_us(self) -> int:
        """Time at which all is published."""
        return len(self.ours) * SECOND_US

    def check(self, delivered: Sequence[str]) -> None:
        """Assert that a host at which this was delivered lacks nothing and got it in causal order."""
        assert sorted(delivered) == sorted(each.label for each in self.ours), "something was not delivered"
        self.replays += 1
        for name in delivered:
            self.past.deliver(f"{RECEIVER} {self.replays}", name)
        assert not self.past.faults, self.past.faults


class _Source:
    """A host that publishes, in both versions."""

    def __init__(self, name: str, made: Made, air: dict[str, Message]) -> None:
        self.name = name
        self.group = Group(_DESTINATION, Ordering.DELTA_CAUSAL, NodeId(name))
        self.literal = LiteralHost(name, air, self._count, delta=True)
        self.air = air
        self._made = made
        self._heard = 0
        self._sequence = 0

    def _count(self, _mid: str) -> None:
        self._made.literal_delivered += 1

    def hear(self, until: int, now: int) -> None:
        """All that was published before this place in the history, and that is alive."""
        made = self._made
        places = range(self._heard, until)
        self._heard = max(self._heard, until)
        found = [made.ours[at] for at in places if made.ours[at].author != self.name and made.ours[at].alive(now)]
        made.received += len(found)
        for each in self.group.receive(found, now):
            made.past.deliver(self.name, each.label)
            made.ours_delivered += 1
        for each in found:
            self.literal.arrive(self.air[each.label])

    def publish(self, label: str, lifetime_us: int, now: int) -> None:
        """The next message."""
        self._sequence += 1
        created_us = self.group.stamp(now)
        assert created_us == now, "both versions count the lifetime from the same date"
        barrier = self.group.barrier(now)
        mine = Descriptor(
            self.name, 1, self._sequence, created_us, created_us + lifetime_us, _DESTINATION, 0, 0, PayloadCodec.BLANK,
            b"", 1024, label=label, ordering=Ordering.DELTA_CAUSAL, barrier=barrier,
        )  # fmt: skip
        self._made.past.publish(self.name, label)
        self._made.ours.append(mine)
        self.group.published(mine, now)
        self.literal.lifetime = lifetime_us
        self.literal.co_broadcast(label)
        self._made.literal_delivered -= 1  # Its own, which does not count.
        self._made.literal.append(self.air[label])


def make(count: int, lifetimes_s: tuple[int, int], seed: int) -> Made:
    """Return a history of this many messages and the one before them, by sources that lag at random."""
    chance = random.Random(seed)
    made = Made()
    air: dict[str, Message] = {}
    sources = [_Source(f"s{number}", made, air) for number in range(SOURCES)]
    for number in range(count + 1):
        now = (number + 1) * SECOND_US
        source = chance.choice(sources)
        source.literal.now = now
        if lifetimes_s != LONG_S:
            source.group.expire(now)
            source.literal.expire()
        source.hear(max(min(1, number), number - chance.randrange(LAG_MAX)), now)
        source.publish(f"m{number}", chance.randint(*lifetimes_s) * SECOND_US, now)
    assert not made.past.faults, made.past.faults
    return made


# --- replays -----------------------------------------------------------------------------------------------


def arrivals(count: int, name: str, seed: int) -> list[int]:
    """Return the places of a history in the order in which they come to the receiver; the first message comes last."""
    rest = list(range(1, count))
    if name == "shuffled":
        random.Random(seed).shuffle(rest)
    elif name == "newest first":
        rest.reverse()
    return [*rest, 0]


def ready(given: Descriptor, *, fresh: bool) -> Descriptor:
    """A descriptor as the layer gets it; `fresh`: it was just decoded, and no host has worked with its barrier yet."""
    found = descriptors.decode(given.wire) if fresh else given
    _ = found.id, found.node
    if not fresh:
        _ = found.tag, found.ends_us, found.predecessors
    return found


def ours_us(made: Made, order: Sequence[int], *, fresh: bool = False) -> float:
    """Return the CPU microseconds per delivery, one message after the other."""
    given = [ready(made.ours[at], fresh=fresh) for at in order]
    group = Group(_DESTINATION, Ordering.DELTA_CAUSAL, NodeId(RECEIVER))
    delivered: list[Descriptor] = []

    def replay() -> None:
        receive, now = group.receive, made.end_us
        for each in given[:-1]:
            delivered.extend(receive((each,), now))
        waited.append(len(group.pending))
        delivered.extend(receive((given[-1],), now))

    waited: list[int] = []
    spent_us = _timed(replay) / len(given)
    assert (waited, len(group.pending)) == ([len(given) - 1], 0), "all have to wait for the last one, and no longer"
    made.check([each.label for each in delivered])
    return spent_us


def literal_us(made: Made, order: Sequence[int]) -> float:
    """Likewise, by the codes of the paper."""
    given = [made.literal[at] for at in order]
    delivered: list[str] = []
    host = LiteralHost(RECEIVER, {}, delivered.append, delta=True)
    host.now = made.end_us

    def replay() -> None:
        arrive = host.arrive
        for each in given[:-1]:
            arrive(each)
        waited.append(len(host.pending))
        arrive(given[-1])

    waited: list[int] = []
    spent_us = _timed(replay) / len(given)
    assert (waited, len(host.pending)) == ([len(given) - 1], 0), "all have to wait for the last one, and no longer"
    made.check(delivered)
    return spent_us


def _timed(replay: Callable[[], None]) -> float:
    with _no_collection():
        began_s = time.process_time()
        replay()
        return (time.process_time() - began_s) * 1e6


@contextmanager
def _no_collection() -> Iterator[None]:
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
