"""Homes: which broker works for a client, and when another one would be better (OVERLAY §2.4, steps 1 and 2).

A client attaches to the nearest broker. Every `discovery_s` its `Monitor` compares the distances of brokers, that of a
producer also when its home moves away. A producer changes to a nearer home by itself. A consumer has its seat there, so
it reports the candidate, and its home decides (`choose_home`): only a broker knows loads and paths from producers.

All functions here are pure. Ties go to the lower id, except that no client moves for a tie.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Mapping

    from carrypost.model.ids import NodeId


class Distance(NamedTuple):
    """The distance from a client to a broker. Brokers without a route come after all that have one."""

    unreachable: bool
    """True if the island has no route to it."""
    hops: int
    """Hops of the route. Without one: 1 for a neighbour, else the hops that its announcement took."""


LOOKS = 6
"""Number of looks after which the same candidate is reported again: the report was lost, or the candidate had no room.
"""
LOADED_GAIN = 0.9
"""Hops by which paths must become shorter if a consumer is not nearer to its new home, which has more work."""
OTHERS_MAX = 3
"""Most brokers that are reported beside the nearest one."""
FAR = Distance(True, 255)
"""The distance of a broker that is not known any more."""


class Home(NamedTuple):
    """A broker as the home of one consumer."""

    broker: NodeId
    load: float
    """Share of its capacity that is in use; with the consumer's own work, if that is not counted in it yet."""
    hops: int
    """Hops from it to the consumer."""
    producer_hops: float = 0.0
    """Mean hops to it from the homes of producers; of the same producers for both homes that are compared."""
    share: float = 1.0
    """Part of the bytes that goes on from it to the consumer, if the seat shortens events (`overlay.placement`)."""

    @property
    def path(self) -> float:
        """Mean length of the paths from producers' homes through it to the consumer; hops after it count by `share`."""
        return self.producer_hops + self.share * self.hops


def mean_hops(distances: Mapping[bytes, int], producers: Mapping[bytes, int]) -> float:
    """Return the mean distance of producers, by the number of them at each home; 0 if there are none."""
    # Weighted, since producers that rosters of strangers list would make every comparison slow one by one.
    number = sum(producers.values())
    return sum(distances[home] * each for home, each in producers.items()) / number if number else 0.0


def choose_home(current: Home, candidate: Home, load_max: float) -> Home:
    """Return the one of two brokers that should be the home of a consumer.

    The four rules of step 2: if one is overloaded, the other; if both are, the one with the lighter load; if neither
    is, the one with the shorter mean path. The paper's rule 1, to look at both loads, is the caller's part. A candidate
    that has more work, and is not nearer to the consumer, needs a path shorter by `LOADED_GAIN`.
    """
    overloaded = current.load > load_max, candidate.load > load_max
    if overloaded == (True, True):
        return candidate if candidate.load < current.load else current
    if overloaded == (False, False):
        # Otherwise the broker in the middle of the network would become the home of most consumers.
        central = candidate.hops >= current.hops and candidate.load > current.load
        return candidate if candidate.path + (LOADED_GAIN if central else 0) < current.path else current
    return candidate if overloaded[0] else current


def nearest(distances: Mapping[NodeId, Distance], *, but: NodeId | None = None) -> NodeId | None:
    """Return the nearest broker, except one; None if there is none."""
    found = min(((distance, node) for node, distance in distances.items() if node != but), default=None)
    return None if found is None else found[1]


class Report(NamedTuple):
    """A broker that could be the home of a consumer, as the consumer reports it to its present home."""

    candidate: NodeId
    hops: int
    """Hops from the consumer to the candidate."""
    home_hops: int
    """Hops from the consumer to its home."""
    others: tuple[tuple[NodeId, int], ...] = ()
    """Brokers that are as near as the home, too, and the hops to them; the nearest first."""


class Monitor:
    """The monitor of one client, which looks for nearer brokers."""

    def __init__(self, discovery_us: int, now: int) -> None:
        self._discovery_us = discovery_us
        self._reported: tuple[NodeId, Report] | None = None
        """The home that got the last report, and that report, without other brokers."""
        self._looks = 0
        """Number of looks since the last report."""
        self._home = FAR
        """Distance of the home of a producer after its last look; `FAR` if that is not known."""
        self.due_us = now + discovery_us
        """Time of the next look."""

    def look_for_producer(self, home: NodeId, distances: Mapping[NodeId, Distance], now: int) -> NodeId | None:
        """Return a broker that is nearer than the home of a producer; None if there is none."""
        self.due_us = now + self._discovery_us
        candidate, here = nearest(distances, but=home), distances.get(home, FAR)
        nearer = candidate is not None and distances[candidate] < here
        # A home out of reach is replaced after a while. Until then it cannot move farther away.
        self._home = FAR if here.unreachable else min(distances.values())
        return candidate if nearer else None

    def home_moved(self, distance: Distance, now: int) -> bool:
        """Let a producer look now if its home is farther away than after the last look; return True then.

        Consumers wait for their looks, since a change of their homes is a relocation.
        """
        before, self._home = self._home, min(self._home, distance)
        if before.unreachable or distance <= before:
            return False  # It is new, or out of reach and waited for; or it is as near as before.
        self.due_us = now
        return True

    def look_for_consumer(self, home: NodeId, distances: Mapping[NodeId, Distance], now: int) -> Report | None:
        """Return brokers as near as the home of a consumer, or nearer; None if the home got that report lately.

        One that is as near can be on shorter paths from producers, as in the second topology of the testbed (§4.3). The
        nearest one may have too much work.
        """
        self.due_us = now + self._discovery_us
        self._looks += 1
        here = distances.get(home, FAR)
        near = sorted((distance, node) for node, distance in distances.items() if node != home and distance <= here)
        if not near:
            self._reported = None
            return None
        (distance, candidate), *others = near[: 1 + OTHERS_MAX]
        report = Report(candidate, distance.hops, here.hops)
        # News of the nearest one at once, but the same report only after `LOOKS` looks: each one
        # costs a message.
        if self._reported == (home, report) and self._looks < LOOKS:
            return None
        self._reported, self._looks = (home, report), 0
        return report._replace(others=tuple((node, distance.hops) for distance, node in others))
