"""Summary of a run in some twenty figures, for `carrypost emu show` and for comparisons of runs.

Where messages have an order, the metrics of CAUSAL §VI come on top (`carrypost.emu.records.ordered`).

Read from the record alone. What a crash brought a second time (`again`, `redelivered`) is not counted; a message that
a node dropped and received anew counts once. Delays are those of deliveries to others than the author. The share of
the flood bound is that of the record's own contacts, presences and publications.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from dataclasses import asdict, dataclass, replace

import numpy as np
import pyarrow as pa

from carrypost.emu.arrays import Flags, Ints
from carrypost.emu.records.log import KIND, log_of
from carrypost.emu.records.ordered import Ordered, ordered
from carrypost.emu.scenario.tables import POPULATION
from carrypost.emu.verify.facts import Facts
from carrypost.gossip.wire.frames import CARRYING, kind_of
from carrypost.model.times import MICROSECONDS
from carrypost.record import Kind, Record

_PLACES = 3


@dataclass(frozen=True, slots=True)
class Delays:
    """Seconds from publication to delivery."""

    min_s: float
    mean_s: float
    median_s: float
    p90_s: float
    max_s: float


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
        lines = [
            ("lasted", self._lasted()),
            ("nodes", f"{self.nodes:,}"),
            ("contacts", f"{self.contacts:,}, {self._mean_contact()}"),
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

    def _mean_contact(self) -> str:
        return f"{self.contact_s / self.contacts:,.1f} s on average" if self.contacts else "none recorded"

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
    received, delivered = facts.receptions, facts.deliveries
    own = log.node[delivered] == log.source[delivered]
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
        nodes=len(np.unique(log.node[log.rows(Kind.JOIN)])),
        contacts=len(contacts),
        contact_s=sum(end_us - start_us for *_, start_us, end_us in contacts) / MICROSECONDS,
        published=len(log.rows(Kind.PUBLISH)),
        received=len(received),
        delivered=int(np.count_nonzero(~own)),
        delivered_own=int(np.count_nonzero(own)),
        delays=_delays(facts, delivered[~own]),
        hops_mean=round(float(log.hops[received].mean()), _PLACES) if len(received) else None,
        drops=_sums(facts, Kind.DROP, np.ones(len(log), np.int64)),
        refused=_sums(facts, Kind.REFUSE, _counts(facts)),
        control_bytes=None if modelled else sum(traffic.values()) - data_bytes,
        data_bytes=None if modelled else data_bytes,
        traffic=traffic,
        bound=len(facts.bound) if bound and facts.emulated else None,
        bound_endless=bool(facts.wrong_clocks.any()),
        ordered=ordered(facts),
        calibration=attrs.get("calibration", ""),
    )
    return found if len(log.rows(Kind.JOIN)) or not len(log.rows(Kind.TALLY)) else _counted(found, facts)


def _counted(found: Summary, facts: Facts) -> Summary:
    """Return the figures of a population whose rows were not kept, by its counts."""
    log = facts.log
    rows = log.rows(Kind.TALLY)
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


def _delays(facts: Facts, delivered: Ints) -> Delays | None:
    log = facts.log
    origin = facts.published[log.message[delivered]]
    known: Flags = origin < len(log)
    if not known.any():
        return None
    delay_us = log.t_us[delivered[known]] - log.t_us[origin[known]]
    median, p90 = np.quantile(delay_us, (0.5, 0.9))
    figures = (delay_us.min(), delay_us.mean(), median, p90, delay_us.max())
    return Delays(*(round(float(each)) / MICROSECONDS for each in figures))


def _counts(facts: Facts) -> Ints:
    """Return the number of refusals that each row stands for."""
    found = np.ones(len(facts.log), np.int64)
    for row, count in facts.log.attr("count").items():
        found[row] = int(count)
    return found


def _sums(facts: Facts, kind: Kind, weights: Ints) -> dict[str, int]:
    """Sums by detail over the rows of a kind, largest first."""
    log = facts.log
    rows = np.flatnonzero(log.kind == KIND[kind])
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
