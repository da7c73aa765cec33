"""Counts of a population run: what stays of it without rows, and what its record ends with.

Counts of parts add up to those of the run. Delays are counted by whole seconds; their sum is exact.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

import numpy as np

from carrypost.emu.arrays import Ints
from carrypost.emu.traces.encounters import Encounters
from carrypost.model.times import MICROSECONDS
from carrypost.record import Kind, Record


def _nothing() -> Ints:
    return np.zeros(0, np.int64)


@dataclass(slots=True)
class Tally:
    """Counts of a part, or of a run."""

    counts: Counter[str] = field(default_factory=Counter)
    delays: Ints = field(default_factory=_nothing)
    """Receptions by whole seconds since publication."""
    hops: Ints = field(default_factory=_nothing)
    """Receptions by hops."""

    def add(self, other: Tally) -> None:
        """Add the counts of another part."""
        self.counts.update(other.counts)
        self.delays, self.hops = _sum(self.delays, other.delays), _sum(self.hops, other.hops)

    def met(self, contacts: Encounters, until_us: int, published: int) -> None:
        """Count the contacts that begin before this time, and publications."""
        begun = contacts.start_us < until_us
        self.counts["contact"] += int(begun.sum())
        self.counts["contact_us"] += int((contacts.end_us - contacts.start_us)[begun].sum())
        self.counts["publish"] += published

    def received(self, delay_us: Ints, hops: Ints) -> None:
        """Count receptions, of each of which the delay since its publication and the hops are given."""
        counts = Counter({"receive": len(delay_us), "delay_us": int(delay_us.sum())})
        self.add(Tally(counts, np.bincount(delay_us // MICROSECONDS), np.bincount(hops)))

    def record(self, record: Record, t_us: int) -> None:
        """Append the counts as rows."""
        for name, count in sorted(self.counts.items()):
            record.add(Kind.TALLY, t_us, "", size=count, detail=name)
        for since_s in np.flatnonzero(self.delays).tolist():
            attrs = {"from_s": str(since_s), "to_s": str(since_s + 1)}
            record.add(Kind.TALLY, t_us, "", size=int(self.delays[since_s]), detail="delay", attrs=attrs)
        for hops in np.flatnonzero(self.hops).tolist():
            record.add(Kind.TALLY, t_us, "", hops=hops, size=int(self.hops[hops]), detail="hops")


def _sum(one: Ints, other: Ints) -> Ints:
    """Return the sum of two histograms, of which one may be shorter."""
    longer, shorter = (one, other) if len(one) > len(other) else (other, one)
    found = longer.copy()
    found[: len(shorter)] += shorter
    return found
