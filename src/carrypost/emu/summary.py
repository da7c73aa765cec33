"""Summary of a run in some twenty figures, for `carrypost emu show` and for comparisons of runs.

Read from the record alone, and counted by copies (`carrypost.emu.rows`): a message that a node dropped and
received anew counts once. Delays are those of deliveries to others than the author. The share of the flood bound is
that of the record's own contacts, presences and publications.

Where messages have an order, the metrics of CAUSAL §VI-A d come on top. A *co-delivery* is a delivery in order; own
messages count. The transmission delay is from publication to reception, the co-delivery latency from reception to
delivery, and the co-delivery delay both together; authors receive none of their own messages and have no delays. A
message that was received and neither delivered nor expired is left: because its node left, because the copy was dropped
(for want of room, say), or because the run ended. Standard deviations are those of all values, not of a sample.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace

import numpy as np
import pyarrow as pa

from carrypost.arrays import Ints
from carrypost.emu.engine.samples import AT, AT_LEAVE
from carrypost.emu.rows import DELAYS, Copies, log_of
from carrypost.emu.scenario_tables import POPULATION
from carrypost.emu.verify.facts import Facts
from carrypost.gossip.wire.frames import CARRYING, kind_of
from carrypost.log.record import Kind, Record
from carrypost.model.times import MICROSECONDS

_PLACES = 3


@dataclass(frozen=True, slots=True)
class Delays:
    """Seconds from publication to delivery."""

    min_s: float
    mean_s: float
    median_s: float
    p90_s: float
    max_s: float


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


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """The figures of one run."""

    run: str
    seed: str
    version: str
    mode: str
    duration_s: float | None
    """Duration in the scenario; None: unknown."""
    until_s: float
    """Time of the last row."""
    partial: bool
    """The run did not come to its end."""
    rows: int
    nodes: int
    contacts: int
    contact_s: float
    """Together."""
    published: int
    received: int
    """Pairs of message and node."""
    delivered: int
    """To others than the author."""
    delivered_own: int
    delays: Delays | None
    """None: nothing was delivered."""
    hops_mean: float | None
    drops: dict[str, int]
    """By reason."""
    refused: dict[str, int]
    """By reason."""
    control_bytes: int | None
    """None: population mode, which sends nothing."""
    data_bytes: int | None
    traffic: dict[str, int]
    """Bytes sent by kind of frame; "datagram": bytes around frames."""
    bound: int | None
    """Receptions that a flood reaches; None: the record knows no contacts."""
    bound_endless: bool = False
    """The bound takes messages for endless, since clocks are wrong: what nodes took for a deadline is not known."""
    ordered: Ordered | None = None
    """Figures of the messages that have an order; None: there are none."""
    calibration: str = ""
    """In population mode, the source of the calibrated delays."""

    @property
    def share(self) -> float | None:
        """Receptions by what a flood reaches."""
        return self.received / self.bound if self.bound else None

    def json(self) -> str:
        """Return the figures as one line of JSON."""
        values = asdict(self) | {"share": self.share}
        if self.ordered is not None:
            values["ordered"] |= self.ordered.ratios()
        return json.dumps(values, ensure_ascii=False)

    def text(self) -> str:
        """Return the figures for people, one to a line."""
        mean_contact = f"{self.contact_s / self.contacts:,.1f} s on average" if self.contacts else "none recorded"
        lines = [
            ("lasted", self._lasted()),
            ("nodes", f"{self.nodes:,}"),
            ("contacts", f"{self.contacts:,}, {mean_contact}"),
            ("published", f"{self.published:,}"),
            ("received", f"{self.received:,}{self._shares()}"),
            ("delivered", f"{self.delivered:,} to others, {self.delivered_own:,} to their authors"),
            ("delay", self._delays()),
            ("hops", "–" if self.hops_mean is None else f"{self.hops_mean:.2f} on average"),
            ("dropped", _reasons(self.drops)),
            ("refused", _reasons(self.refused)),
            *self._sent(),
            *(self.ordered.lines() if self.ordered is not None else ()),
        ]
        width = max(len(name) for name, _ in lines)
        origin = ", ".join(f"{name} {value}" for name in ("mode", "seed", "version") if (value := getattr(self, name)))
        head = f"{self.run}  ({origin})" if origin else self.run
        return "\n".join([head, *(f"  {name:<{width}}  {value}" for name, value in lines)])

    def _sent(self) -> list[tuple[str, str]]:
        if self.control_bytes is None or self.data_bytes is None:
            values = 'not known: rows `traffic` are written only with mode = "faithful"'
            return [("sent", values), ("calibration", self.calibration)]
        sent = f"{_bytes(self.data_bytes)} data, {_bytes(self.control_bytes)} control"
        return [("sent", sent), ("", _reasons(self.traffic))]

    def _lasted(self) -> str:
        if self.duration_s is None:
            return f"{self.until_s:,.3f} s"
        if self.partial:
            return f"{self.until_s:,.3f} s of {self.duration_s:,.3f} s: PARTIAL, the run was interrupted"
        return f"{self.duration_s:,.3f} s"

    def _shares(self) -> str:
        if self.bound is None:
            return ""
        if self.share is None:
            return "; a flood reaches nobody"
        rounded = math.floor(self.share * 10_000) / 10_000  # 100 % is said of nothing less.
        endless = " if nothing expires" if self.bound_endless else ""
        return f", {rounded:.2%} of the {self.bound:,} that a flood reaches{endless}"

    def _delays(self) -> str:
        if self.delays is None:
            return "–"
        values = asdict(self.delays)
        names = {"min_s": "least", "mean_s": "mean", "median_s": "median", "p90_s": "90 %", "max_s": "most"}
        return ", ".join(f"{name} {values[key]:,.3f} s" for key, name in names.items())


def summarise(record: pa.Table | Record, *, bound: bool = True) -> Summary:
    """Return the figures of one run; without `bound` the flood is left out."""
    facts = Facts(log_of(record))
    log, attrs = facts.log, facts.log.run_attrs()
    copies = Copies.of(log)
    received, delivered = copies.received[copies.received >= 0], copies.delivered >= 0
    duration_us = _duration_us(facts)
    until_us = int(log.t_us.max(initial=0))
    contacts = facts.contacts
    traffic = _sums(facts, Kind.TRAFFIC, log.size)
    data_bytes = sum(traffic.get(kind_of(each), 0) for each in CARRYING)
    modelled = attrs.get("mode") == POPULATION
    found = Summary(
        run=log.run,
        seed=attrs.get("seed", ""),
        version=attrs.get("version", ""),
        mode=attrs.get("mode", ""),
        duration_s=None if duration_us is None else duration_us / MICROSECONDS,
        until_s=until_us / MICROSECONDS,
        # Nodes that are present at the end of a run are sampled in its last microsecond.
        partial=duration_us is not None
        and until_us < duration_us - 1
        and any(leave_us is None for *_, leave_us in facts.presences),
        rows=len(log),
        nodes=len(np.unique(log.node[log.of(Kind.JOIN)])),
        contacts=len(contacts),
        contact_s=sum(end_us - start_us for *_, start_us, end_us in contacts) / MICROSECONDS,
        published=len(log.of(Kind.PUBLISH)),
        received=len(received),
        delivered=int(np.count_nonzero(delivered & ~copies.own)),
        delivered_own=int(np.count_nonzero(delivered & copies.own)),
        delays=_delays(copies),
        hops_mean=round(float(log.hops[received].mean()), _PLACES) if len(received) else None,
        drops=_sums(facts, Kind.DROP, np.ones(len(log), np.int64)),
        refused=_sums(facts, Kind.REFUSE, _counts(facts)),
        control_bytes=None if modelled else sum(traffic.values()) - data_bytes,
        data_bytes=None if modelled else data_bytes,
        traffic=traffic,
        bound=len(facts.bound) if bound and facts.emulated else None,
        bound_endless=bool(facts.wrong_clocks.any()),
        ordered=ordered(facts, copies),
        calibration=attrs.get("calibration", ""),
    )
    return found if len(log.of(Kind.JOIN)) or not len(log.of(Kind.TALLY)) else _counted(found, facts)


def _counted(found: Summary, facts: Facts) -> Summary:
    """Return the figures of a population whose rows were not kept, by its counts."""
    log = facts.log
    rows = log.of(Kind.TALLY)
    since = log.attr("from_s")
    counts = {log.details[log.detail[row]]: int(log.size[row]) for row in rows.tolist() if row not in since}
    received = counts.get("receive", 0)
    hops = [(int(log.hops[row]), int(log.size[row])) for row in rows.tolist() if log.hops[row] >= 0]
    return replace(
        found,
        nodes=counts.get("join", 0),
        contacts=counts.get("contact", 0),
        contact_s=counts.get("contact_us", 0) / MICROSECONDS,
        published=counts.get("publish", 0),
        received=received,
        delivered=received,
        delivered_own=counts.get("publish", 0),
        delays=_binned(counts, [(int(text), int(log.size[row])) for row, text in since.items()]) if received else None,
        hops_mean=round(sum(each * many for each, many in hops) / received, _PLACES) if received else None,
        bound=None,
    )


def _binned(counts: dict[str, int], bins: list[tuple[int, int]]) -> Delays:
    """Delays by a histogram of whole seconds: the mean is exact, the others are edges of bins."""
    bins.sort()
    reached = np.cumsum([many for _, many in bins])
    median, p90 = (bins[int(np.searchsorted(reached, share * reached[-1]))][0] + 1.0 for share in (0.5, 0.9))
    mean_s = round(counts["delay_us"] / counts["receive"]) / MICROSECONDS
    return Delays(float(bins[0][0]), mean_s, median, p90, bins[-1][0] + 1.0)


def _duration_us(facts: Facts) -> int | None:
    values = facts.in_force.get("duration_s")
    return round(values * MICROSECONDS) if isinstance(values, int | float) else None


def _delays(copies: Copies) -> Delays | None:
    known = ~copies.own & copies.published & (copies.delivered >= 0)
    if not known.any():
        return None
    delay_us = (copies.delivered_us - copies.published_us)[known]
    median, p90 = np.quantile(delay_us, (0.5, 0.9))
    return Delays(*_seconds(delay_us.min(), delay_us.mean(), median, p90, delay_us.max()))


def _seconds(*figures_us: float) -> Iterator[float]:
    """Seconds of microseconds, each rounded to a whole one."""
    return (round(float(each)) / MICROSECONDS for each in figures_us)


def ordered(facts: Facts, copies: Copies) -> Ordered | None:
    """Return the figures of messages with an order; None where there are none."""
    log, groups = facts.log, dict[str, str]()
    for destination, ordering in facts.groups:
        groups[destination] = f"{groups[destination]} and {ordering}" if destination in groups else ordering
    if not groups:
        return None
    published = copies.publications[facts.group[copies.publications] >= 0]
    ours = copies.published & (facts.group[copies.publication] >= 0)
    received, delivered, expired = (ours & (rows >= 0) for rows in (copies.received, copies.delivered, copies.expired))
    left = copies.received[received & ~(delivered | expired)]
    ends = facts.before(log.of(Kind.RECEIVE, Kind.DROP))
    dropped, there = facts.are(ends.last(facts.copy(left)), Kind.DROP), facts.there_at_end(left)
    barrier = np.array([int(log.details[code]) for code in log.detail[published].tolist() if code >= 0], np.int64)
    transmission, latency, delay = (
        _spread(delay_us[ours & known]) for known, delay_us in (copies.delays[each] for each in DELAYS)
    )
    return Ordered(
        groups=groups,
        broadcast=len(published),
        received=int(np.count_nonzero(received)),
        co_delivered=int(np.count_nonzero(delivered)),
        expired=int(np.count_nonzero(expired)),
        left_by_leaving=int(np.count_nonzero(~dropped & ~there)),
        left_at_end=int(np.count_nonzero(~dropped & there)),
        left_by_drop=int(np.count_nonzero(dropped)),
        transmission_delay=transmission,
        co_delivery_latency=latency,
        co_delivery_delay=delay,
        barrier=EntryCounts(round(float(barrier.mean()), _PLACES), int(barrier.max())) if len(barrier) else None,
        registries=_registries(facts),
    )


def _spread(delay_us: Ints) -> Spread | None:
    if not len(delay_us):
        return None
    return Spread(*_seconds(delay_us.min(), delay_us.max(), delay_us.mean(), delay_us.std()))


def _registries(facts: Facts) -> dict[str, EntryCounts]:
    log = facts.log
    rows = log.of(Kind.REGISTRY)
    leaving = np.zeros(len(log), np.bool_)
    leaving[[row for row, at in log.attr(AT).items() if at == AT_LEAVE]] = True
    found: dict[str, EntryCounts] = {}
    for code in np.unique(log.detail[rows]).tolist():
        of = rows[log.detail[rows] == code]
        regular = of[~leaving[of]]
        mean = float(log.size[regular].mean()) if len(regular) else 0.0
        found[log.details[code]] = EntryCounts(round(mean, _PLACES), int(log.size[of].max()))
    return dict(sorted(found.items()))


def _counts(facts: Facts) -> Ints:
    """Return the number of refusals that each row stands for."""
    found = np.ones(len(facts.log), np.int64)
    for row, count in facts.log.attr("count").items():
        found[row] = int(count)
    return found


def _sums(facts: Facts, kind: Kind, weights: Ints) -> dict[str, int]:
    """Sums by detail over the rows of a kind, largest first."""
    log = facts.log
    rows = log.of(kind)
    totals: Counter[str] = Counter()
    for code in np.unique(log.detail[rows]).tolist():
        name = log.details[code] if code >= 0 else "?"
        totals[name] = int(weights[rows[log.detail[rows] == code]].sum())
    return dict(sorted(totals.items(), key=lambda each: (-each[1], each[0])))


def _reasons(counts: dict[str, int]) -> str:
    return ", ".join(f"{name} {count:,}" for name, count in counts.items()) or "–"


def _bytes(count: int) -> str:
    """Return a number of bytes, in the unit that leaves one to three digits before the point."""
    size, units = float(count), ["B", "kB", "MB", "GB", "TB"]
    while size >= 1_000 and len(units) > 1:  # noqa: PLR2004 - SI
        size, units = size / 1_000, units[1:]
    return f"{count:,} B" if units[0] == "B" else f"{size:.2f} {units[0]}"
