"""Load balancing: an adaptor that lets clients leave a broker with too much work (OVERLAY §3.5).

The rules for homes look at loads when a consumer reports a broker as near as its home. Where none does, an overloaded
broker looks for other homes by itself. It moves those seats first whose paths grow least, until it is not overloaded.
A reported broker that had too much work is tried again when brokers announce new loads.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from carrypost.model.ids import NodeId, node_prefix
from carrypost.overlay.home_choice import LOOKS, OTHERS_MAX
from carrypost.overlay.notices import LoadChanged, NearestBroker, Notice, Propagated

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

    from carrypost.gossip.transfers.host_context import HostContext
    from carrypost.overlay.candidates import Candidates
    from carrypost.overlay.lanes import Seat
    from carrypost.overlay.load import Load
    from carrypost.overlay.movable import MovableSeats
    from carrypost.overlay.topology import Topology


class LoadAdaptor:
    """An adaptor that moves seats away from this broker while it is overloaded."""

    def __init__(
        self, context: HostContext, topology: Topology, seats: MovableSeats, load: Load, candidates: Candidates
    ) -> None:
        self._topology, self._seats, self._load, self._candidates = topology, seats, load, candidates
        self._valid_us = round((LOOKS + 1) * context.settings.overlay.discovery_s * 1e6)
        self._most = context.limits.seats_max * (OTHERS_MAX + 1)
        self._reports: dict[tuple[NodeId, str, int, NodeId], NearestBroker] = {}
        """Latest reports of consumers, in the order of their times; at most as many as one of each seat has."""
        self._full: dict[tuple[NodeId, str, int, NodeId], NearestBroker] = {}
        """Reports of brokers that had too much work."""

    def subscribe(self) -> Collection[type[Notice]]:
        """Subscribe to changes of the load, and to brokers that consumers report."""
        return (LoadChanged, NearestBroker, Propagated)

    def process(self, notice: Notice) -> None:
        """Remember the report of a consumer; move seats away while this broker is overloaded."""
        if isinstance(notice, NearestBroker):
            for each in notice.each:
                self._remember(each)
        elif isinstance(notice, LoadChanged) and notice.load > self._load.load_max:
            self._relieve(notice.now_us)
        elif isinstance(notice, Propagated):
            self._try_again(notice.now_us)

    def _remember(self, report: NearestBroker) -> None:
        # Removed first, so that the report moves to the end: the dict is in the order of times.
        self._reports.pop(report[:4], None)
        self._reports[report[:4]] = report
        self._full.pop(report[:4], None)
        if self._candidates.load_after(report) > self._load.load_max:
            self._full[report[:4]] = report
        if len(self._reports) > self._most:
            oldest = next(iter(self._reports))
            del self._reports[oldest]
            self._full.pop(oldest, None)

    def _try_again(self, now: int) -> None:
        """Move seats to nearer brokers that had too much work when consumers reported them."""
        full, self._full = self._full, {}
        for each, report in full.items():
            if now - report.now_us < self._valid_us:
                moved = self._candidates.try_move(report._replace(now_us=now))
                if not moved and self._candidates.load_after(report) > self._load.load_max:
                    self._full[each] = report

    def _relieve(self, now: int) -> None:
        """Move seats away, first those whose paths become longer by the fewest hops."""
        options = []
        for notice in self._options(now):
            here, there = self._candidates.compare(notice)
            options.append((there.path - here.path, there.load, notice))
        for _, _, notice in sorted(options):
            # `ahead` already leaves out the seats that began to move, so that no more move than
            # necessary.
            if self._load.ahead <= self._load.load_max:
                return
            self._candidates.try_move(notice)

    def _options(self, now: int) -> Iterator[NearestBroker]:
        """Yield all moves of seats to brokers nearby, as if their consumers had reported these."""
        for seat in self._seats:
            node, _, channel, subscription = seat.client.key
            home_hops = self._topology.hops(node)
            if home_hops is not None and seat.is_settled:
                for broker in self._topology.neighbours:
                    hops = self._hops(seat, broker, home_hops, now)
                    yield NearestBroker(node, channel, subscription, broker, hops, home_hops, now)

    def _hops(self, seat: Seat, broker: NodeId, home_hops: int, now: int) -> int:
        """Return the hops from a consumer to a broker, as far as this one can know.

        A consumer may have reported them, or run on a broker's node. Otherwise they are between the difference and the
        sum of the hops from here to both.
        """
        node, _, channel, subscription = seat.client.key
        report = self._reports.get((node, channel, subscription, broker))
        if report is not None and now - report.now_us < self._valid_us:
            return report.hops
        if node == broker:
            return 0
        distances = self._topology.routes.distances(node_prefix(broker))
        if node in self._topology.brokers and (known := distances.get(node_prefix(node))) is not None:
            return round(known)
        # The larger of the two distances lies between these bounds. The sum would rule out moves
        # that are worth trying, and the difference would allow too many.
        return max(round(distances.get(self._topology.prefix, home_hops)), home_hops)
