"""Placement: seats that shorten events move towards producers, upstream, and others back (OVERLAY §3.4).

A seat that passes on little of what it gets is best where the paths of its producers meet: the bytes that it drops
travel no further. `last_common` finds that broker. It follows the paths from the broker nearest to the consumer to the
homes of producers as far as all of them are the same. With one producer that is the producer's home, which may be the
producer's own node if that is a broker. A node that is not a broker never has a seat.

Seats do not flap. A seat is judged by the events that it processed where it is, eight of them at least. It moves
upstream if it sends at most `placement_ratio` of the bytes that it got, and back to the nearest broker if it sends more
than the mean of that ratio and 1. `HomeBrokerAdaptor` does not undo it: it counts hops after such a seat by the part of
the bytes that go there (`Home.path`). Where paths of producers meet, that sum is never larger than at the broker
nearest to the consumer.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from carrypost.model.ids import NodeId, node_prefix
from carrypost.overlay.events import DOWNSTREAM, UPSTREAM
from carrypost.overlay.home_choice import LOOKS
from carrypost.overlay.notices import NearestBroker, Notice, Timer

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from carrypost.config.settings import Overlay
    from carrypost.overlay.handoffs import Handoffs
    from carrypost.overlay.lanes import Seat
    from carrypost.overlay.seats import Seats
    from carrypost.overlay.topology import Topology

Consumer = tuple[NodeId, str, int]
"""Node, channel and subscription of a consumer."""


class PlacementAdaptor:
    """An adaptor that moves seats upstream, to where the paths of their producers meet, and downstream."""

    def __init__(self, topology: Topology, moves: Handoffs, seats: Seats, settings: Overlay) -> None:
        self._topology, self._moves, self._seats = topology, moves, seats
        self._load_max = settings.load_max
        self._upstream_ratio = settings.placement_ratio
        # Far from the other threshold, so that a seat whose ratio varies around one of them does
        # not move to and fro.
        self._downstream_ratio = (1 + settings.placement_ratio) / 2
        self._reported_us = round(2 * LOOKS * settings.discovery_s * 1e6)
        """Time for which a report counts. A consumer repeats its report as long as it is true."""
        self._reports: dict[Consumer, NearestBroker] = {}
        """Latest reports of consumers that have seats here."""

    def subscribe(self) -> Collection[type[Notice]]:
        """Subscribe to looks, and to brokers that are nearer to consumers."""
        return (Timer, NearestBroker)

    def process(self, notice: Notice) -> None:
        """Move seats to where they save bytes."""
        if isinstance(notice, Timer):
            for seat in list(self._seats):
                self._place(seat, notice.now_us)
            here = {_consumer(seat) for seat in self._seats}
            self._reports = {each: report for each, report in self._reports.items() if each in here}
        elif isinstance(notice, NearestBroker):
            consumer = notice.consumer, notice.channel, notice.subscription
            for seat in [each for each in self._seats if _consumer(each) == consumer]:
                self._reports[consumer] = notice
                self._place(seat, notice.now_us)

    def _place(self, seat: Seat, now: int) -> None:
        # A seat whose consumer is out of reach stays: where its results will have to go is not
        # known.
        ratio, consumer, node = seat.flow.ratio, _consumer(seat), seat.client.node
        if ratio is None or not (node == self._topology.node or self._topology.can_reach(node)):
            return
        report = self._reports.get(consumer)
        if report is not None and (now - report.now_us > self._reported_us or report.hops >= report.home_hops):
            report = None
        to = None
        if ratio <= self._upstream_ratio:
            nearest = self._topology.prefix if report is None else node_prefix(report.broker)
            to = self._meeting(seat.client.item.channel, nearest)
        elif ratio > self._downstream_ratio and report is not None and report.placed:
            to = self._nearest(report)
        info = None if to is None else self._topology.brokers.at(to)
        if to is None or info is None or not self._topology.can_reach(info.node):
            return
        if self._topology.load(to) <= self._load_max:
            downstream = report is not None and to in self._path_to(report.broker)
            self._moves.migrate(consumer, info.node, DOWNSTREAM if downstream else UPSTREAM, now)

    def _meeting(self, channel: str, nearest: bytes) -> bytes | None:
        """Return the broker where the paths of a channel's producers to a broker meet; None if no path is known."""
        ways = self._topology.routes.ways(nearest)
        homes = [each for each, served in self._topology.rosters.serving(channel).items() if served.producers]
        return last_common([(nearest, *ways[each].path) for each in homes if each in ways])

    def _nearest(self, report: NearestBroker) -> bytes | None:
        """Return the broker nearest to a consumer, if it is on the way there; None if results would take a detour."""
        prefix = node_prefix(report.broker)
        way = self._topology.routes.way(prefix)
        return prefix if way is not None and way.hops + report.hops <= report.home_hops else None

    def _path_to(self, broker: NodeId) -> tuple[bytes, ...]:
        way = self._topology.routes.way(node_prefix(broker))
        return () if way is None else way.path


def last_common(paths: Sequence[Sequence[bytes]]) -> bytes | None:
    """Return the last broker that all paths share, which begin at the same broker; None if there are no paths."""
    found = None
    # Paths are of different lengths, and the shortest one ends the search: its end is a producer's
    # home.
    for passed in zip(*paths, strict=False):
        if len(set(passed)) > 1:
            break
        found = passed[0]
    return found


def _consumer(seat: Seat) -> Consumer:
    item = seat.client.item
    return seat.client.node, item.channel, item.subscription
