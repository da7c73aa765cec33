"""Alternatives: brokers near this one that its consumers could have as homes, though they report none.

A consumer reports a broker as near as its home, or nearer. A broker with too much work also considers others. It knows
the distances from recent reports, and estimates those that were not reported.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from carrypost.model.ids import NodeId, node_prefix
from carrypost.overlay.home_choice import LOOKS, OTHERS_MAX
from carrypost.overlay.notices import NearestBroker, Option

if TYPE_CHECKING:
    from collections.abc import Iterator

    from carrypost.gossip.transfers.host_context import HostContext
    from carrypost.overlay.lanes import Seat
    from carrypost.overlay.seats import Seats
    from carrypost.overlay.topology import Topology


class Alternatives:
    """The other homes that consumers of one broker could have."""

    def __init__(self, context: HostContext, topology: Topology, seats: Seats) -> None:
        self._topology, self._seats = topology, seats
        self._valid_us = round((LOOKS + 1) * context.settings.overlay.discovery_s * 1e6)
        self._most = context.limits.seats_max * (OTHERS_MAX + 1)
        self._reports: dict[Option, NearestBroker] = {}
        """Latest reports of consumers, in the order of their times; at most as many as one of each seat has."""

    def remember(self, report: NearestBroker) -> Option | None:
        """Remember the report of a consumer. Returns the option of the oldest one if that is forgotten for it."""
        # Removed first, so that the report moves to the end: the dict is in the order of times.
        self._reports.pop(report.option, None)
        self._reports[report.option] = report
        if len(self._reports) <= self._most:
            return None
        oldest = next(iter(self._reports))
        del self._reports[oldest]
        return oldest

    def is_valid(self, report: NearestBroker, now: int) -> bool:
        """Return True if a report is not old. A consumer repeats its report as long as it is true."""
        return now - report.now_us < self._valid_us

    def all(self, now: int, *, at_most: bool = False) -> Iterator[NearestBroker]:
        """Yield all moves of seats to brokers nearby, as if their consumers had reported these.

        `at_most`: estimate distances by the most that they can be.
        """
        for seat in self._seats:
            node, _, channel, subscription = seat.client.key
            home_hops = self._topology.hops(node)
            if home_hops is not None and seat.is_settled:
                for broker in self._topology.neighbours:
                    hops = self._hops(seat, broker, home_hops, now, at_most=at_most)
                    yield NearestBroker(node, channel, subscription, broker, hops, home_hops, now)

    def _hops(self, seat: Seat, broker: NodeId, home_hops: int, now: int, *, at_most: bool) -> int:
        """Return the hops from a consumer to a broker, as far as this one can know.

        A consumer may have reported them, or run on a broker's node. Otherwise they are between the difference and the
        sum of the hops from here to both.
        """
        node, _, channel, subscription = seat.client.key
        report = self._reports.get((node, channel, subscription, broker))
        if report is not None and self.is_valid(report, now):
            return report.hops
        if node == broker:
            return 0
        distances = self._topology.routes.distances(node_prefix(broker))
        if node in self._topology.brokers and (known := distances.get(node_prefix(node))) is not None:
            return round(known)
        between = round(distances.get(self._topology.prefix, home_hops))
        # The larger of the two distances lies between these bounds. The sum would rule out moves
        # that are worth trying, and the difference would allow too many.
        return between + home_hops if at_most else max(between, home_hops)
