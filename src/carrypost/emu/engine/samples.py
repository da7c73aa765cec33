"""Overlays of emulated nodes, by the names of nodes, and samples of a run: traffic, sizes, overlays, lengths of paths.

A row of traffic covers the time since the sample before. The cost of the datagrams around the frames is a kind of its
own, so the rows of a node add up to all that it sent. Nodes that are away are not sampled. A node that leaves is
sampled just before, with a mark on its sizes: they are no part of a mean over time. The registries are those of CAUSAL
§IV and §V.

The rows `path` have, for each broker, the sum of the hops to all other brokers: `network`, as the network is, and
`overlay`, along the broker's own paths (OVERLAY §4.1). Pairs that are not connected count in neither. A row for each
pair would be forty times as many. The rows `registry` with the detail `topology` have the bytes of the messages by
which a broker informed others of the overlay since the sample before, the rows `load` its load.

For each producer of channels the rows `path` have the sum of the hops to all consumers (OVERLAY §4.1, figures 10 to
12). `delivery` is the path that an event takes now: from the producer to its home, along the route of a leg from that
broker to the consumer's home, and to the consumer. `best` is the one in an overlay that knows the network as it is at
this instant: every client at home at the nearest broker, brokers with their nearest ones as neighbours, and paths by
the rule of the BRT; ties go to the lower id. A pair counts in both or, if it is not connected, or its path is cut, in
neither.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING

from carrypost.emu.engine.driver import EmulatedDriver, NodeState
from carrypost.emu.engine.radio import Radio
from carrypost.log.record import Kind, Record
from carrypost.overlay.items import Role

if TYPE_CHECKING:
    from collections.abc import Callable

    from carrypost.emu.scenario import Channel
    from carrypost.model.ids import NodeId
    from carrypost.overlay.commands import OverlayView


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

        @functools.cache  # Many producers and consumers share their homes.
        def between(first: NodeId, last: NodeId) -> int | None:
            """Return the length of the route that an event takes from one home to another now; None if it is cut."""
            return along((first,) if first == last else brokers[first].host.overlay.route(last), hops)

        for channel in self._channels:
            producers, consumers = (self._running(each) for each in (channel.producers, channel.consumers))
            nearest = {each.name: _nearest(each, hops) for each in (*producers, *consumers)}
            lasts = [each.host.overlay.homes(Role.CONSUMER).get(channel.name) for each in consumers]
            for producer in producers:
                of = found.setdefault(producer.name, {DELIVERY: [], BEST: []})
                first = producer.host.overlay.homes(Role.PRODUCER).get(channel.name)
                before = None if first is None or first not in brokers else hops[first].get(producer.identity.node)
                for consumer, last in zip(consumers, lasts, strict=True):
                    if producer is consumer or first is None or last is None or before is None:
                        continue
                    after = hops.get(last, {}).get(consumer.identity.node)
                    way = None if after is None else between(first, last)
                    best = None if way is None else _best((producer, consumer), nearest, ideal, hops)
                    if after is not None and way is not None and best is not None:
                        of[DELIVERY].append(before + way + after)
                        of[BEST].append(best)
        yield from ((self._drivers[name], details) for name, details in sorted(found.items()))

    def _running(self, places: Iterable[str]) -> list[EmulatedDriver]:
        drivers = [self._drivers.get(self._places.get(place, "")) for place in sorted(places)]
        return [each for each in drivers if each is not None and each.state is NodeState.RUNNING]


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


TOPOLOGY = "topology"
NETWORK, OVERLAY = "network", "overlay"
_THOUSANDTHS = 1_000


class OverlayOf:
    """The overlay as one node knows it, at one moment."""

    def __init__(self, view: OverlayView, name: Callable[[NodeId], str]) -> None:
        self.broker = view.broker
        """True if the node is a broker."""
        self.brokers = sorted(map(name, view.brokers))
        """Other brokers that it knows."""
        self.neighbours = {name(node): hops for node, hops in view.neighbours.items()}
        """Neighbours in the overlay, and their distances in hops."""
        self.topology_bytes = view.topology_bytes
        """Bytes of the messages by which it informed other brokers of the overlay."""
        self.load = view.load
        """Load of a broker; 1: all that it can do."""
        self.legs, self.repaired = view.legs, view.repaired
        """Legs that it passed on, and routes of legs that it changed."""
        self.homes = {channel: name(broker) for channel, broker in view.homes.items()}
        """Home brokers of the node's clients, by channel."""
        self.clients = view.clients
        """Number of clients that the node is the home broker of."""
        self.seats = [(name(node), *rest) for node, *rest in view.seats]
        """Seats of consumers that it has: consumer, channel, epoch, and the number of the last result."""
        self._paths = {name(node): [name(each) for each in path] for node, path in view.paths.items()}

    def path(self, broker: str) -> list[str] | None:
        """Return the brokers from this node to another one, both included; None if it knows no path."""
        return self._paths.get(broker)


class OverlaySampler:
    """Samples of the overlay in one run: lengths of paths, and what it costs to keep them."""

    def __init__(
        self, record: Record, radio: Radio, drivers: Mapping[str, EmulatedDriver], deliveries: DeliveryPaths
    ) -> None:
        self._record, self._radio, self._drivers, self._deliveries = record, radio, drivers, deliveries
        self._last_bytes: dict[str, int] = {}
        """Bytes that each broker had sent to others at its last sample."""

    def sample(self, t_us: int) -> None:
        """Sample all brokers that are running, and the clients of channels."""
        brokers = {
            driver.identity.node: driver
            for _, driver in sorted(self._drivers.items())
            if driver.settings.overlay.broker and driver.state is NodeState.RUNNING
        }
        nodes = {name: driver.identity.node for name, driver in self._drivers.items()}
        links = {name: self._radio.neighbours_of(name) for name in self._drivers if brokers}
        hops = {
            node: {nodes[name]: hops for name, hops in _hops_from(driver.name, links).items()}
            for node, driver in brokers.items()
        }
        for node, driver in brokers.items():
            view, there = driver.host.overlay.view(), hops[node]
            self._add(t_us, driver, NETWORK, [there[other] for other in brokers if other != node and other in there])
            ways = [along(path, hops) for other, path in view.paths.items() if other in there]
            self._add(t_us, driver, OVERLAY, [way for way in ways if way is not None])
            self._record.add(Kind.LOAD, t_us, driver.name, size=round(_THOUSANDTHS * view.load))
            sent = view.topology_bytes
            last, self._last_bytes[driver.name] = self._last_bytes.get(driver.name, 0), sent
            size = sent - last if sent >= last else sent  # A crash begins anew.
            self._record.add(Kind.REGISTRY, t_us, driver.name, size=size, detail=TOPOLOGY)
        for driver, details in self._deliveries.lengths(brokers, hops):
            for detail, found in details.items():
                self._add(t_us, driver, detail, found)

    def _add(self, t_us: int, driver: EmulatedDriver, detail: str, hops: Sequence[int]) -> None:
        attrs = {"pairs": str(len(hops))}
        self._record.add(Kind.PATH, t_us, driver.name, size=sum(hops), detail=detail, attrs=attrs)


def _hops_from(name: str, links: Mapping[str, Sequence[str]]) -> dict[str, int]:
    """Return the nodes that are connected with one, itself included, and over how many hops."""
    found, edge, distance = {name: 0}, [name], 0
    while edge:
        distance += 1
        edge = sorted(set().union(*[links[each] for each in edge]) - found.keys())
        found.update(dict.fromkeys(edge, distance))
    return found


DATAGRAM = "datagram"
"""Kind of the bytes around the frames of a datagram."""
CACHE = "cache"
REGISTRIES = ("c_barrier", "co_delivered", "pending")
"""Of each order group."""
AT, AT_LEAVE = "at", "leave"
"""The mark on sizes of a node that is about to leave."""


class Sampler:
    """Takes the samples of one run."""

    def __init__(self, record: Record, radio: Radio, drivers: Mapping[str, EmulatedDriver]) -> None:
        self._record = record
        self._radio = radio
        self._drivers = drivers
        self._last_bytes: dict[str, dict[str, int]] = {}

    def sample(self, t_us: int) -> None:
        """Sample every node that is running."""
        for name in sorted(self._drivers):
            driver = self._drivers[name]
            if driver.state is NodeState.RUNNING:
                self._sample_traffic(name, t_us)
                self._sample_sizes(driver, t_us, {})

    def sample_leaving(self, driver: EmulatedDriver, t_us: int) -> None:
        """Sample one node that is about to leave, and mark its sizes so."""
        self._sample_traffic(driver.name, t_us)
        self._sample_sizes(driver, t_us, {AT: AT_LEAVE})

    def _sample_sizes(self, driver: EmulatedDriver, t_us: int, mark: dict[str, str]) -> None:
        host, node, add = driver.host, driver.name, self._record.add
        add(Kind.REGISTRY, t_us, node, size=host.copies, detail=CACHE, attrs=mark or None)
        for registry in host.registries(driver.now):
            attrs = {"destination": registry.destination, **mark}
            for name in REGISTRIES:
                add(Kind.REGISTRY, t_us, node, size=getattr(registry, name), detail=name, attrs=attrs)

    def _sample_traffic(self, node: str, t_us: int) -> None:
        """Record what one node sent since its last sample."""
        sent = self._radio.sent(node)
        last = self._last_bytes.setdefault(node, {})
        counts = dict(sorted(sent.frame_bytes.items()))
        counts[DATAGRAM] = sent.bytes - sum(counts.values())
        for kind, nbytes in counts.items():
            if new := nbytes - last.get(kind, 0):
                self._record.add(Kind.TRAFFIC, t_us, node, size=new, detail=kind)
        self._last_bytes[node] = counts

    def forget(self, node: str) -> None:
        """Drop what is remembered of a node that left for good."""
        self._last_bytes.pop(node, None)
