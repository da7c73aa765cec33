"""The metrics of CAUSAL §VI-A d, from the record of a run whose messages have an order.

A *co-delivery* is a delivery in order; own messages count. The transmission delay is from publication to reception, the
co-delivery latency from reception to delivery, and the co-delivery delay both together; authors receive none of their
own messages and have no delays. What a crash brought a second time is not counted. A message that was received and
neither delivered nor expired is left: because its node left, because the copy was dropped (for want of room, say), or
because the run ended. Standard deviations are those of all values, not of a sample.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from carrypost.emu.arrays import Ints
from carrypost.emu.engine.samples import AT, AT_LEAVE
from carrypost.emu.verify.facts import Facts
from carrypost.model.times import MICROSECONDS
from carrypost.record import Kind

_PLACES = 3


@dataclass(frozen=True, slots=True)
class Spread:
    """Least, most, mean and deviation in seconds, in the order of the paper's tables."""

    min_s: float
    max_s: float
    mean_s: float
    stdev_s: float

    def __str__(self) -> str:
        values = (self.min_s, self.max_s, self.mean_s, self.stdev_s)
        return "least {:,.3f} s, most {:,.3f} s, mean {:,.3f} s, deviation {:,.3f} s".format(*values)


@dataclass(frozen=True, slots=True)
class EntryCounts:
    """The number of entries: the mean, and the most."""

    mean: float
    max: int

    def __str__(self) -> str:
        return f"{self.mean:,.2f} on average, at most {self.max:,}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Ordered:
    """The figures of messages that have an order, all groups of a run together."""

    groups: dict[str, str]
    """Destinations, and how they are ordered."""
    broadcast: int
    received: int
    """Pairs of message and node."""
    co_delivered: int
    """Co-deliveries, own messages included."""
    expired: int
    """Messages that were received and will never be delivered."""
    left_by_leaving: int
    """Received, neither delivered nor expired when its node left for good."""
    left_at_end: int
    """Likewise, at nodes that are there at the end of the run."""
    left_by_drop: int
    """Likewise, dropped before."""
    transmission_delay: Spread | None
    """Delays of all receptions; None if there are none."""
    co_delivery_latency: Spread | None
    co_delivery_delay: Spread | None
    barrier: EntryCounts | None
    """Entries that messages carry."""
    registries: dict[str, EntryCounts]
    """By registry. The mean is that of regular samples; the most is also that of nodes about to leave."""

    @property
    def co_delivery_ratio(self) -> float | None:
        """Co-deliveries divided by messages broadcast and received; None if there were none."""
        return _divided(self.co_delivered, self.broadcast + self.received)

    @property
    def expiry_ratio(self) -> float | None:
        """Expiries divided by messages received; None if there were none."""
        return _divided(self.expired, self.received)

    def ratios(self) -> dict[str, float | None]:
        """Return the two ratios by name."""
        return {"co_delivery_ratio": self.co_delivery_ratio, "expiry_ratio": self.expiry_ratio}

    def lines(self) -> list[tuple[str, str]]:
        """Return the figures for people: names and values."""
        total = f"{self.broadcast:,} broadcast and {self.received:,} received"
        left = {
            "as their nodes left": self.left_by_leaving,
            "dropped": self.left_by_drop,
            "at the end": self.left_at_end,
        }
        spreads = self.transmission_delay, self.co_delivery_latency, self.co_delivery_delay
        shown = ("–" if each is None else str(each) for each in spreads)
        return [
            ("order", ", ".join(f"{name} {ordering}" for name, ordering in self.groups.items())),
            ("co-delivered", f"{self.co_delivered:,} of {total}{_share(self.co_delivery_ratio)}"),
            ("expired", f"{self.expired:,}{_share(self.expiry_ratio)} of those received"),
            ("left", ", ".join(f"{count:,} {why}" for why, count in left.items())),
            *zip(("transmission delay", "co-delivery latency", "co-delivery delay"), shown, strict=True),
            ("barrier", "–" if self.barrier is None else f"{self.barrier} entries"),
            *((name, str(sizes)) for name, sizes in self.registries.items()),
        ]


def _divided(part: int, whole: int) -> float | None:
    return part / whole if whole else None


def _share(ratio: float | None) -> str:
    return "" if ratio is None else f", {ratio:.2%}"


def ordered(facts: Facts) -> Ordered | None:
    """Return the figures; None where no message has an order."""
    log, groups = facts.log, dict[str, str]()
    for destination, ordering in facts.groups:
        groups[destination] = f"{groups[destination]} and {ordering}" if destination in groups else ordering
    if not groups:
        return None
    rows = log.rows(Kind.PUBLISH), facts.receptions, facts.deliveries, facts.once(log.rows(Kind.EXPIRE))
    published, received, delivered, expired = (each[facts.group[each] >= 0] for each in rows)
    # Authors deliver their own messages without receiving them, and would count as delays of zero.
    given = delivered[log.node[delivered] != log.source[delivered]]
    came = facts.before(received).find(facts.copy(given), given)
    given, came = given[came >= 0], came[came >= 0]
    delivered_here, expired_here = (np.isin(facts.copy(received), facts.copy(each)) for each in (given, expired))
    left = received[~(delivered_here | expired_here)]
    ends = facts.before(log.rows(Kind.RECEIVE, Kind.DROP))
    dropped, there = facts.are(ends.last(facts.copy(left)), Kind.DROP), facts.there_at_end(left)
    barrier = np.array([int(log.details[code]) for code in log.detail[published].tolist() if code >= 0], np.int64)
    return Ordered(
        groups=groups,
        broadcast=len(published),
        received=len(received),
        co_delivered=len(delivered),
        expired=len(expired),
        left_by_leaving=int(np.count_nonzero(~dropped & ~there)),
        left_at_end=int(np.count_nonzero(~dropped & there)),
        left_by_drop=int(np.count_nonzero(dropped)),
        transmission_delay=_spread(log.t_us[received] - log.t_us[facts.publication(received)]),
        co_delivery_latency=_spread(log.t_us[given] - log.t_us[came]),
        co_delivery_delay=_spread(log.t_us[given] - log.t_us[facts.publication(given)]),
        barrier=EntryCounts(round(float(barrier.mean()), _PLACES), int(barrier.max())) if len(barrier) else None,
        registries=_registries(facts),
    )


def _spread(delay_us: Ints) -> Spread | None:
    if not len(delay_us):
        return None
    figures = (delay_us.min(), delay_us.max(), delay_us.mean(), delay_us.std())
    return Spread(*(round(float(each)) / MICROSECONDS for each in figures))


def _registries(facts: Facts) -> dict[str, EntryCounts]:
    log = facts.log
    rows = log.rows(Kind.REGISTRY)
    leaving = np.zeros(len(log), np.bool_)
    leaving[[row for row, at in log.attr(AT).items() if at == AT_LEAVE]] = True
    found: dict[str, EntryCounts] = {}
    for code in np.unique(log.detail[rows]).tolist():
        of = rows[log.detail[rows] == code]
        regular = of[~leaving[of]]
        mean = float(log.size[regular].mean()) if len(regular) else 0.0
        found[log.details[code]] = EntryCounts(round(mean, _PLACES), int(log.size[of].max()))
    return dict(sorted(found.items()))
