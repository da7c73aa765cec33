"""Contacts as hosts see them, beside those that there were: who was a neighbour of whom, by `up` and `down` (JOMS).

Each side of a contact is counted by itself, since hosts may differ: the number of contacts is half of all. A contact
that a host sees ends where the host leaves, if it has not ended before.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from carrypost.arrays import Ints
from carrypost.lab.metrics.distribution import Columns, Counts, Moments, cdf, milliseconds
from carrypost.lab.metrics.families import CONTACT_VIEWS
from carrypost.lab.metrics.parts import Slice, listed
from carrypost.lab.metrics.presence import Presence
from carrypost.lab.metrics.statistics import coded
from carrypost.log.record import Kind
from carrypost.traces.csvfiles import HEARD

_SHORT_US = 60_000_000
TRUE, HOSTS = "true", "hosts"
"""Names of the two views."""


@dataclass(frozen=True, eq=False)
class Sightings:
    """Changes of the neighbours of hosts, the presence of nodes, and contacts that work one way."""

    changes: pa.Table
    """Node, peer, t_us, up."""
    presence: Presence
    one_way: int
    reported: int
    """Rows in which a host reports that it is not heard."""

    @classmethod
    def of(cls, of: Slice) -> Sightings:
        """Return the sightings in a slice."""
        rows = of.rows
        at = rows.of(Kind.UP, Kind.DOWN)
        up = pc.equal(rows.texts("kind", at), Kind.UP.value)
        changes = {"node": rows.texts("node", at), "peer": rows.texts("peer", at), "t_us": rows.t_us[at], "up": up}
        one_way = rows.attribute(HEARD, rows.of(Kind.CONTACT))
        reported = len(rows.of(Kind.ONEWAY))
        return cls(pa.table(changes), Presence.of(of), len(one_way) - one_way.null_count, reported)

    def merge(self, other: Sightings) -> Sightings:
        """Return the sightings of this slice and another."""
        return Sightings(
            pa.concat_tables([self.changes, other.changes]), self.presence.merge(other.presence),
            self.one_way + other.one_way, self.reported + other.reported,
        )  # fmt: skip

    def lasting_us(self) -> Ints:
        """Return how long hosts saw their neighbours: a length for each side of a contact."""
        stays = self.presence.stays()
        (node, host), _ = coded(self.changes["node"], stays.node)
        (peer,), names = coded(self.changes["peer"])
        t_us, pair = self.changes["t_us"].to_numpy(), node * (len(names) + 1) + peer
        order = np.lexsort((t_us, pair))
        node, t_us, pair = node[order], t_us[order], pair[order]
        up = self.changes["up"].to_numpy()[order]
        last_us = np.iinfo(np.int64).max
        next_us = np.append(t_us[1:], last_us)
        next_us[np.append(np.diff(pair) != 0, True)] = last_us
        begins = np.lexsort((stays.start_us, host))
        times_us, span = np.unique(np.concatenate([stays.start_us, t_us])), len(stays.start_us) + len(t_us) + 1
        keys = host[begins] * span + np.searchsorted(times_us, stays.start_us[begins])
        place = np.searchsorted(keys, node * span + np.searchsorted(times_us, t_us), side="right") - 1
        there = up & (place >= 0)
        place = np.maximum(place, 0)[there]
        ends_us = np.minimum(next_us[there], stays.end_us[begins][place]) if len(keys) else next_us[there]
        found: Ints = (ends_us - t_us[there])[host[begins][place] == node[there]] if len(keys) else ends_us
        return found[found > 0]


def contact_views(part: Sightings) -> Columns:
    """Table CONTACT_VIEWS."""
    rows = []
    for view, lasting_us, sides, one_way in (
        (TRUE, part.presence.meetings.lasting_us, 1, part.one_way), (HOSTS, part.lasting_us(), 2, part.reported),
    ):  # fmt: skip
        if len(lasting_us):
            short = float((lasting_us < _SHORT_US).mean())
            contacts = len(lasting_us) / sides
            figures = {"view": view, "contacts": contacts, "one_way": one_way, "short": short}
            rows.append(figures | dict(Moments.of(lasting_us).seconds))
    return listed(CONTACT_VIEWS, rows)


def seen_contact_cdf(part: Sightings) -> Columns:
    """Table SEEN_CONTACT_CDF."""
    return cdf(Counts.of(milliseconds(part.lasting_us())))
