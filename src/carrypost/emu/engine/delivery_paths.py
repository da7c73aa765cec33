"""Lengths of the paths from producers of channels to consumers, in hops between nodes (OVERLAY §4.1, figures 10 to 12).

`delivery` is the path that an event takes now: from the producer to its home, along the route of a leg from that broker
to the consumer's home, and to the consumer. `best` is the one in an overlay that knows the network as it is at this
instant: every client at home at the nearest broker, brokers with their nearest ones as neighbours, and paths by the
rule of the BRT; ties go to the lower id. A pair counts in both or, if it is not connected, or its path is cut, in
neither.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING

from carrypost.emu.engine.driver import EmulatedDriver, NodeState
from carrypost.overlay.items import Role

if TYPE_CHECKING:
    from carrypost.emu.scenario.channels import Channel
    from carrypost.model.ids import NodeId

DELIVERY, BEST = "delivery", "best"
Hops = Mapping["NodeId", Mapping["NodeId", int]]
"""Hops between nodes, by broker and by other node that is connected with it."""


def along(path: Sequence[NodeId], hops: Hops) -> int | None:
    """Return the hops between nodes along a path of brokers, as the network is now; None if it is cut."""
    found = [hops.get(here, {}).get(there) for here, there in pairwise(path)]
    return None if None in found else sum(each for each in found if each is not None)


class DeliveryPaths:
    """Paths from producers to consumers of the channels of one run."""

    def __init__(
        self, channels: Sequence[Channel], places: Mapping[str, str], drivers: Mapping[str, EmulatedDriver]
    ) -> None:
        self._channels, self._places, self._drivers = channels, places, drivers

    def lengths(
        self, brokers: Mapping[NodeId, EmulatedDriver], hops: Hops
    ) -> Iterator[tuple[EmulatedDriver, dict[str, list[int]]]]:
        """Yield each producer with the lengths of its paths to all consumers, in the same order for both details."""
        if not self._channels or not brokers:
            return
        found: dict[str, dict[str, list[int]]] = {}
        ideal = _ideal_ways(brokers, hops)
        for channel in self._channels:
            producers, consumers = (self._running(each) for each in (channel.producers, channel.consumers))
            homes = {each.name: _nearest(each, hops) for each in (*producers, *consumers)}
            for producer in producers:
                of = found.setdefault(producer.name, {DELIVERY: [], BEST: []})
                for consumer in consumers:
                    now = self._delivery(channel.name, producer, consumer, brokers, hops)
                    best = _best((producer, consumer), homes, ideal, hops)
                    if producer is not consumer and now is not None and best is not None:
                        of[DELIVERY].append(now)
                        of[BEST].append(best)
        yield from ((self._drivers[name], details) for name, details in sorted(found.items()))

    def _running(self, places: Iterable[str]) -> list[EmulatedDriver]:
        drivers = [self._drivers.get(self._places.get(place, "")) for place in sorted(places)]
        return [each for each in drivers if each is not None and each.state is NodeState.RUNNING]

    def _delivery(
        self,
        channel: str,
        producer: EmulatedDriver,
        consumer: EmulatedDriver,
        brokers: Mapping[NodeId, EmulatedDriver],
        hops: Hops,
    ) -> int | None:
        """Return the length of the path that an event would take now; None if there is none."""
        first = producer.host.overlay.homes(Role.PRODUCER).get(channel)
        last = consumer.host.overlay.homes(Role.CONSUMER).get(channel)
        if first is None or last is None or first not in brokers:
            return None
        route = (first,) if first == last else brokers[first].host.overlay.route(last)
        parts = (
            hops[first].get(producer.identity.node),
            along(route, hops),
            hops.get(last, {}).get(consumer.identity.node),
        )
        return None if None in parts else sum(each for each in parts if each is not None)


def _ideal_ways(brokers: Mapping[NodeId, EmulatedDriver], hops: Hops) -> dict[NodeId, dict[NodeId, int]]:
    """Return the lengths of paths between brokers whose neighbours are those that are nearest now."""
    links: dict[NodeId, dict[NodeId, int]] = {node: {} for node in brokers}
    for node, driver in brokers.items():
        settings = driver.settings.overlay
        near = sorted((hops[node][other], other) for other in brokers if other != node and other in hops[node])
        for distance, other in near[: settings.neighbours_max]:
            if distance <= settings.vicinity_hops:
                links[node][other] = links[other][node] = distance
    return {node: _ways(node, links) for node in brokers}


def _ways(start: NodeId, links: Hops) -> dict[NodeId, int]:
    """Return the lengths of the paths over the fewest brokers, of those the ones with the fewest hops."""
    found, edge = {start: 0}, {start: 0}
    while edge:
        beyond: dict[NodeId, int] = {}
        for here, length in edge.items():
            for other, distance in links[here].items():
                if other not in found:
                    beyond[other] = min(beyond.get(other, length + distance), length + distance)
        found |= beyond
        edge = beyond
    return found


def _nearest(client: EmulatedDriver, hops: Hops) -> NodeId | None:
    """Return the broker that is nearest to a client; None if none is connected with it."""
    node = client.identity.node
    found = min(((there[node], broker) for broker, there in hops.items() if node in there), default=None)
    return None if found is None else found[1]


def _best(
    ends: tuple[EmulatedDriver, EmulatedDriver], homes: Mapping[str, NodeId | None], ideal: Hops, hops: Hops
) -> int | None:
    """Return the length of the best path from a producer to a consumer; None if the two are not connected."""
    producer, consumer = ends
    first, last = homes[producer.name], homes[consumer.name]
    if first is None or last is None or last not in ideal[first]:
        return None
    return hops[first][producer.identity.node] + ideal[first][last] + hops[last][consumer.identity.node]
