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


@dataclass(slots=True)
class Tally:
    """Counts of a part, or of a run."""

    counts: Counter[str] = field(default_factory=Counter)
    delays: Counter[int] = field(default_factory=Counter)
    """Receptions by whole seconds since publication."""
    hops: Counter[int] = field(default_factory=Counter)
    """Receptions by hops."""

    def add(self, other: Tally) -> None:
        """Add the counts of another part."""
        self.counts.update(other.counts)
        self.delays.update(other.delays)
        self.hops.update(other.hops)

    def met(self, contacts: Encounters, until_us: int, published: int) -> None:
        """Count the contacts that begin before this time, and publications."""
        begun = contacts.start_us < until_us
        self.counts["contact"] += int(begun.sum())
        self.counts["contact_us"] += int((contacts.end_us - contacts.start_us)[begun].sum())
        self.counts["publish"] += published

    def received(self, delay_us: Ints, hops: Ints) -> None:
        """Count receptions, of each of which the delay since its publication and the hops are given."""
        self.counts["receive"] += len(delay_us)
        self.counts["delay_us"] += int(delay_us.sum())
        for counter, values in ((self.delays, delay_us // MICROSECONDS), (self.hops, hops)):
            least = int(values.min(initial=0))
            many = np.bincount(values - least)
            for value in np.flatnonzero(many).tolist():
                counter[value + least] += int(many[value])

    def record(self, record: Record, t_us: int) -> None:
        """Append the counts as rows."""
        for name, count in sorted(self.counts.items()):
            record.add(Kind.TALLY, t_us, "", size=count, detail=name)
        for since_s, count in sorted(self.delays.items()):
            attrs = {"from_s": str(since_s), "to_s": str(since_s + 1)}
            record.add(Kind.TALLY, t_us, "", size=count, detail="delay", attrs=attrs)
        for hops, count in sorted(self.hops.items()):
            record.add(Kind.TALLY, t_us, "", hops=hops, size=count, detail="hops")
